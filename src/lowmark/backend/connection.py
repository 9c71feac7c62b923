"""The way from a client to a server: calls with their time limits, asked again where that is safe.

gRPC connects again by itself when a server is back. What an error means for a call is decided here:

    not sent        no connection, or the server took nothing: any call is asked again
    answer lost     a safe call is asked again, an unknown one raises `OutcomeUnknown`
    refused         the server's own error, by its name

All of that within the time of the call. Every answer says which start of the server it is of, and
how new its catalog is. Where a server may be followed by another one, at another address, the
connection is given a way to find it (`locate`), and looks there whenever the last one is away.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import flight

from lowmark.backend.call_streams import CallStreams
from lowmark.backend.codec import decode
from lowmark.backend.errors import Closed, Ended, ServerFull
from lowmark.backend.forks import check_fork, made
from lowmark.backend.port import RETRY
from lowmark.backend.protocol import (
    APPEND,
    CALL,
    CALLS,
    HELLO,
    Hello,
    Reply,
    Request,
    Welcome,
    decode_reply,
    encode_request,
)
from lowmark.backend.values import DatabaseInfo
from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.fault import decode_fault
from lowmark.node import AnswerLost, NodeClosing, NodeUnreachable
from lowmark.node.owner import is_plain_path
from lowmark.node.server import ActionUnknown
from lowmark.runtime import host_and_port

_UNIX: Final = "unix:"
_NOT_SENT: Final = "failed to connect"
"""What gRPC says, and says only, when there was no connection to send anything by."""
_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),
    # Else a client would inherit the rest that an earlier one of the same address has to take.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A server that is gone without a word is found out.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.25
_FIND_S = 30.0
"""A stream of appends looks for the next server for so long."""
_SLACK_S = 1.0
"""A server says itself that it was too slow: it has the time of the call, the way there this."""
_AWAY = (NodeUnreachable, NodeClosing, Ended)
_FLIGHT_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


Locate: TypeAlias = Callable[[float], str]
"""Gives the address of the server that there is now, within that many seconds."""


def _client(address: str) -> Any:
    return made(flight.FlightClient(location_of(address), generic_options=_OPTIONS))


def location_of(address: str) -> str:
    """An address as Flight has it: `host:port`, or `unix:PATH`."""
    if address.startswith(("grpc+", "grpc://")):
        return address
    path = unix_path(address)
    if path is not None:
        if not is_plain_path(path):
            raise Rejected(
                f"{path} can't be the path of a socket: Arrow Flight would take another one",
                hint="Use letters, digits and ._-+ alone.",
            )
        return f"grpc+unix://{path}"
    host, port = host_and_port(address)
    shown = f"[{host}]" if ":" in host else host
    return f"grpc+tcp://{shown}:{port}"


def unix_path(address: str) -> str | None:
    """The path of a Unix socket, from the root on; None: it is no such address."""
    if not address.startswith(_UNIX):
        return None
    return os.path.abspath(address.removeprefix(_UNIX).removeprefix("//"))


def machine() -> str:
    """This machine, as long as it runs: processes of one can open each other's files."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


class Connection:
    """One server. May be used on any thread."""

    def __init__(
        self,
        address: str,
        *,
        session: int,
        on_reply: Callable[[Reply], None],
        timeout_s: float,
        locate: Locate | None = None,
    ) -> None:
        check_fork(address)
        self.address = address
        self._locate = locate
        self._away = False
        """Whether the server was not there when it was last asked."""
        self._finding = threading.Lock()
        self._session = session
        self._on_reply = on_reply
        self._closed = False
        self.cluster = ""
        self._flight = _client(address)
        self._calls = CallStreams(lambda: self._exchange(CALLS, "calls"))
        try:
            self.welcome = self._hello(timeout_s)
        except BaseException:
            self._flight.close()
            raise
        self.cluster = self.welcome.cluster

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._closed

    def close(self) -> None:
        """End all calls."""
        self._closed = True
        self._calls.close()
        self._flight.close()

    def info(self) -> DatabaseInfo:
        """What is settled of the database, as it can be used from here."""
        info = decode(self.welcome.info)
        if not isinstance(info, DatabaseInfo):
            raise Corrupt(f"the server at {self.address} does not say what database it has")
        return info

    @property
    def same_machine(self) -> bool:
        """Whether the server's files can be opened here."""
        return self.welcome.machine == machine()

    def _hello(self, timeout_s: float) -> Welcome:
        body = msgspec.json.encode(Hello())
        ends_at = time.monotonic() + timeout_s

        def ask(left_s: float) -> Welcome:
            (result,) = self._there(left_s).do_action(flight.Action(HELLO, body), _options(left_s))
            return msgspec.json.decode(result.body.to_pybytes(), type=Welcome)

        welcome: Welcome = self._again(HELLO, ask, ends_at, safe=True)
        return welcome

    def _there(self, left_s: float) -> Any:
        """Flight's way to the server; to the next one, if the last is away."""
        if self._away and self._locate is not None:
            if not self._finding.acquire(timeout=left_s):  # another thread looks for it
                raise NodeUnreachable(self.address, why="It was looked for in vain.")
            try:
                if self._away:
                    address = self._locate(left_s)
                    if address != self.address:
                        gone, self._flight = self._flight, _client(address)
                        self.address = address
                        self._calls.end_free()
                        gone.close()
                    self._away = False
            finally:
                self._finding.release()
        return self._flight

    # -- calls ----------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """One call of the port. What has a time limit of its own has it in `named`."""
        ends_at = time.monotonic() + timeout_s

        def ask(left_s: float) -> Any:
            more = {**named, "timeout_s": left_s} if name in LIMITED else named
            body = encode_request(Request(self.cluster, self._session, name, arguments, more))
            there = self._there(left_s)
            if name in QUICK:
                try:
                    return self._value(self._calls.ask(body, left_s + _SLACK_S))
                except flight.FlightError as error:
                    if not _is_full(error):
                        raise
                # Other clients have all streams of calls, maybe idle ones: it goes without.
            (result,) = there.do_action(flight.Action(CALL, body), _options(left_s))
            return self._value(result.body.to_pybytes())

        return self._again(name, ask, ends_at, safe=RETRY.get(name, "safe") == "safe")

    def _value(self, data: bytes) -> Any:
        reply = decode_reply(data)
        self._on_reply(reply)
        if isinstance(reply.value, LowmarkError):
            raise reply.value
        return reply.value

    def _again(self, name: str, ask: Callable[[float], Any], ends_at: float, *, safe: bool) -> Any:
        """Ask until there is an answer, or the time is over."""
        began, pause_s = time.monotonic(), _PAUSE_S
        while True:
            self.check()
            left_s = max(0.0, ends_at - time.monotonic())
            try:
                return ask(left_s)
            except (*_FLIGHT_ERRORS, LowmarkError) as error:
                named, done_maybe = self._in_our_words(name, error, ends_at - began)
                self.check()
                if done_maybe and not safe:
                    raise self._unknown(name, named) from error
                if not _may_pass(named) or time.monotonic() + pause_s >= ends_at:
                    raise named from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def check(self) -> None:
        """Raise if it was closed."""
        if self._closed:
            raise Closed(self.address)

    def _unknown(self, name: str, error: LowmarkError) -> LowmarkError:
        return AnswerLost(self.address, name, why=error.message)

    def _in_our_words(
        self, name: str, error: Exception, waited_s: float
    ) -> tuple[LowmarkError, bool]:
        """What happened, and whether the server may have done what it was asked."""
        named, done_maybe = self._named(name, error, waited_s)
        if isinstance(named, _AWAY) and not isinstance(named, _Late):
            self._away = True
        return named, done_maybe

    def _named(self, name: str, error: Exception, waited_s: float) -> tuple[LowmarkError, bool]:
        if isinstance(error, LowmarkError):
            return error, isinstance(error, Ended)
        extra = getattr(error, "extra_info", None)
        said = decode_fault(extra) if extra else None
        if said is not None:
            return said, False
        if isinstance(error, flight.FlightTimedOutError):
            why = f"No answer to {name} came within {waited_s:.3g} seconds."
            return _Late(self.address, name, waited_s=waited_s, why=why), True
        if isinstance(error, flight.FlightCancelledError) and self._closed:
            return Closed(self.address), True
        text = str(error)
        why = text.partition(". gRPC client debug context")[0].rpartition("message: ")[2]
        return NodeUnreachable(self.address, why=f"{why}."), _NOT_SENT not in text

    # -- streams --------------------------------------------------------------------------------

    def read(self, name: str, *arguments: Any, timeout_s: float, **named: Any) -> Iterator[Any]:
        """The messages of one bounded `DoGet`: record batches with what was said of each. Not
        asked again: its caller knows how far it came.
        """
        self.check()
        more = {**named, "timeout_s": timeout_s}
        request = Request(self.cluster, self._session, name, arguments, more)
        try:
            reader = self._there(timeout_s).do_get(
                flight.Ticket(encode_request(request)), _options(timeout_s)
            )
            try:
                while True:
                    yield reader.read_chunk()
            except StopIteration:
                return
        except _FLIGHT_ERRORS as error:
            named_error, _ = self._in_our_words(name, error, timeout_s)
            self.check()
            raise named_error from error

    def exchange(self) -> tuple[Any, Any]:
        """A stream of appends: what writes to it, and what reads the answers."""
        return self._exchange(APPEND, "append")

    def _exchange(self, kind: bytes, name: str) -> tuple[Any, Any]:
        self.check()
        request = Request(self.cluster, self._session, name, (), {})
        command = kind + encode_request(request)
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self._there(_FIND_S).do_exchange(descriptor, flight.FlightCallOptions())
        return writer, reader

    def in_our_words(self, name: str, error: Exception) -> tuple[LowmarkError, bool]:
        """What an error of a stream means, and whether what was sent may have been done."""
        return self._in_our_words(name, error, 0.0)


class _Late(NodeUnreachable):
    """A call whose answer did not come in time."""

    def __init__(self, address: str, name: str, *, waited_s: float, why: str) -> None:
        super().__init__(address, why=why)
        self.message = f"the server at {address} gave no answer within {waited_s:.3g} seconds"
        self.args = (self.message,)


def _options(left_s: float) -> Any:
    return flight.FlightCallOptions(timeout=left_s + _SLACK_S)


def _is_full(error: flight.FlightError) -> bool:
    """Whether the server took nothing, for it has too much to do."""
    extra = getattr(error, "extra_info", None)
    return isinstance(decode_fault(extra) if extra else None, ServerFull)


def _may_pass(error: LowmarkError) -> bool:
    """Whether it is worth asking again: the server is away, closing, or has too much to do."""
    # A node that is not ready has no action `hello` yet.
    return isinstance(error, (*_AWAY, ServerFull, ActionUnknown))


def is_passing(error: LowmarkError) -> bool:
    """Whether a read that ended so may go on from where it was."""
    return _may_pass(error)


QUICK: Final = frozenset({"look_up", "now", "view_since"})
"""Calls that go over open streams: they are frequent, and answered at once."""
LIMITED: Final = frozenset(
    {
        "now",
        "catalog_at",
        "execute",
        "watermark",
        "advance_watermark",
        "hold_history",
        "history_lost",
        "fence",
        "view_since",
        "views",
        "status",
        "hold",
        "propose",
        "tail",
        "get",
        "range",
        "write",
    }
)
"""Calls that are told how much time is left."""
