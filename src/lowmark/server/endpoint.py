"""What a Flight server asks of a database: the answers to its calls, and what ends those stuck.

Flight's own shutdown waits for every call, and a call that writes to a client which does not read
waits for ever. So calls are counted and watched: a read that its client takes nothing of is cut
off after a time (see `cutting`), and when the endpoint ends, what does not end by itself in a
moment is, too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from lowmark.backend.connection import location_of, unix_path
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import RequestRefused, ServerFailed
from lowmark.backend.protocol import APPEND, CALL, CALLS, COMMANDS, HELLO
from lowmark.client import Database
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.fault import encode_fault
from lowmark.runtime import host_and_port
from lowmark.server.appending import AppendStream
from lowmark.server.checking import Checker
from lowmark.server.cutting import cut
from lowmark.server.limits import Limits, Slots
from lowmark.server.plain import PlainTables, is_plain
from lowmark.server.reading import check_read, read
from lowmark.server.service import Service

logger = logging.getLogger(__name__)

HOLD_MS: Final = 60_000
"""How long a client that is silent keeps its holds."""
CALM_S: Final = 1.0
"""What is under way when a server is closed may take so long, before it is cut off."""
_LOOK_S: Final = 0.25
_MOMENT_S: Final = 0.01


def flight_error(error: LowmarkError) -> Exception:
    """An error of ours as Flight carries it; our clients get it as it is."""
    kind = flight.FlightServerError
    if isinstance(error, Unavailable) and not isinstance(error, ServerFailed):
        kind = flight.FlightUnavailableError  # so that any Flight client knows that it may retry
    # One line: it travels in a header of its own, too.
    failure: Exception = kind(" ".join(error.message.split())[:500], extra_info=encode_fault(error))
    return failure


@contextlib.contextmanager
def in_flight_s_words(what: str) -> Iterator[None]:
    """Whatever goes wrong in here as Flight carries it."""
    try:
        yield
    except LowmarkError as error:
        raise flight_error(error) from error
    except (flight.FlightError, pa.ArrowException, OSError, StopIteration):
        raise
    except Exception as error:
        logger.exception("a call failed", extra={"call": what})
        raise flight_error(ServerFailed(what, error)) from error


class Endpoint:
    """A database for the Flight server at an address: it may be called on any thread."""

    def __init__(
        self,
        database: Database,
        address: str,
        *,
        advertised: str = "",
        open_at: Sequence[str] = (),
        limits: Limits | None = None,
        hold_ms: int = HOLD_MS,
        on_held: Callable[[frozenset[int]], None] = lambda _: None,
    ) -> None:
        """`advertised`: where clients are told to find it, if that is not the same address.
        `open_at`: the addresses of it at which strangers can come in.
        """
        backend = database.backend
        if not isinstance(backend, Embedded):
            raise Rejected(
                "only a database that this process has open itself can be served",
                hint="Use one from lowmark.open.",
            )
        self.limits = limits or Limits()
        self._location = location_of(advertised or address)
        self._path = unix_path(address)
        self._port = host_and_port(address)[1] if self._path is None else None
        self._service = Service(
            database, backend, limits=self.limits, hold_ms=hold_ms, on_held=on_held
        )
        self._backend = backend
        self._checker = Checker()
        self._plain = PlainTables(database, backend)
        self._streams = Slots("streams of appends", self.limits.streams)
        self._call_streams = Slots("streams of calls", self.limits.call_streams)
        self._reads = Slots("reads", self.limits.reads)
        self._append_bytes = Slots("bytes of rows", self.limits.append_bytes)
        self._watched: dict[int, tuple[float, str]] = {}
        """Reads that wait for their client to take something: since when, and whose."""
        self._writers: dict[int, tuple[float, str]] = {}
        """The same of streams that wait for their client to take an answer."""
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._address = advertised or address if self._path is None else f"unix:{self._path}"
        backend.served_at.append(self._address)
        self._open_at = open_at
        backend.node.open_at += open_at
        threading.Thread(target=self._watch, name="lowmark-watch", daemon=True).start()

    # -- what Flight asks -------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to begin anything when the end has come."""
        self._service.check()

    def act(self, name: str, body: bytes) -> bytes:
        """An action."""
        if name == CALL:
            return self._service.call(body)
        if name == HELLO:
            return self._service.hello(body)
        raise RequestRefused(f"there is no action {name[:100]!r}", hint=f"Use {HELLO} or {CALL}.")

    def get(self, context: Any, ticket: bytes) -> Any:
        """A read."""
        if is_plain(ticket):
            self._service.check()
            schema, rows = self._plain.read(ticket)
            return self._streamed(context, schema, rows)
        request = self._service.request(ticket)
        check_read(request)
        messages = read(self._backend, self._service.sessions, request)
        return self._streamed(context, COMMANDS, messages)

    def flights(self) -> Iterator[Any]:
        """All tables."""
        self._service.check()
        return self._plain.flights(self._location)

    def info(self, descriptor: Any) -> Any:
        """One table."""
        self._service.check()
        return self._plain.info(descriptor, self._location)

    def schema(self, descriptor: Any) -> pa.Schema:
        """Its columns."""
        self._service.check()
        return self._plain.schema(descriptor)

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Rows of a client with none of our code."""
        self._service.check()
        peer = context.peer()
        with self._streams.one():
            for said in self._plain.put(descriptor, reader):
                self._service.check()
                with self._writes_to(peer):
                    writer.write(pa.py_buffer(said))

    def exchange(self, descriptor: Any, reader: Any, writer: Any, context: Any) -> None:
        """A stream of appends, or of calls."""
        command = descriptor.command or b""
        watched = partial(self._writes_to, context.peer())
        if command.startswith(CALLS):
            self._service.request(command.removeprefix(CALLS))
            with self._call_streams.one():
                self._service.serve(reader, writer, watched=watched)
            return
        if not command.startswith(APPEND):
            raise RequestRefused("there is no such stream")
        request = self._service.request(command.removeprefix(APPEND))
        with self._streams.one():
            heard = partial(self._service.sessions.hear, request.session)
            stream = AppendStream(
                self._backend, self._checker, self._append_bytes, heard=heard, watched=watched
            )
            stream.run(reader, writer)

    @contextlib.contextmanager
    def _writes_to(self, peer: str) -> Iterator[None]:
        """Watched while its client takes an answer."""
        number = next(self._numbers)
        self._writers[number] = (time.monotonic(), peer)
        try:
            yield
        finally:
            self._writers.pop(number, None)

    def _streamed(self, context: Any, schema: pa.Schema, messages: Iterator[Any]) -> Any:
        """An answer with rows, watched while its client takes it."""
        return flight.GeneratorStream(schema, self._watched_messages(context.peer(), messages))

    def _watched_messages(self, peer: str, messages: Iterator[Any]) -> Iterator[Any]:
        number = next(self._numbers)
        # Here, where it is given back: one whose client is gone already never begins.
        with in_flight_s_words("a read"):
            self._reads.take()
        try:
            while True:
                with in_flight_s_words("a read"):
                    message = next(messages, None)
                if message is None:
                    return
                self._watched[number] = (time.monotonic(), peer)
                yield message if message[1] is not None else message[0]
                self._watched.pop(number, None)
        finally:
            self._watched.pop(number, None)
            self._reads.give()

    # -- what does not end by itself --------------------------------------------------------------

    def _watch(self) -> None:
        stall_s = self.limits.stall_ms / 1_000
        while not self._over.wait(min(_LOOK_S, stall_s / 2)):
            since = time.monotonic() - stall_s
            for watched in (self._watched, self._writers):
                for number, (waits, peer) in list(watched.items()):
                    if waits < since and watched.pop(number, None) is not None:
                        count = cut(port=self._port, path=self._path, peer=peer)
                        logger.warning(
                            "a client took nothing of what it had asked for, and was cut off",
                            extra={"peer": peer, "seconds": stall_s, "connections": count},
                        )

    def _busy(self) -> bool:
        """Whether something is under way that ends by itself, and soon."""
        under_way = self._service.calls + self._append_bytes.taken + self._reads.taken
        return under_way > len(self._watched)

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self._service.closing = True

    def end(self, ended: Callable[[], bool], *, within_s: float) -> None:
        """Keep nothing for clients, and cut off those that do not let go, until the server has
        ended, or the time is over.
        """
        with contextlib.suppress(ValueError):  # it was ended before
            self._backend.served_at.remove(self._address)
            for address in self._open_at:
                self._backend.node.open_at.remove(address)
        self._service.close()
        self._over.set()
        ends_at = time.monotonic() + within_s
        calm_until = time.monotonic() + min(CALM_S, within_s / 2)
        while not ended() and self._busy() and time.monotonic() < calm_until:
            time.sleep(_MOMENT_S)
        # What is left waits for rows, or for its client: that would not end by itself.
        while not ended() and time.monotonic() < ends_at:
            cut(port=self._port, path=self._path)
            for _ in range(25):
                if ended():
                    return
                time.sleep(_MOMENT_S)
