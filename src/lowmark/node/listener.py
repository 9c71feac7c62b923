"""Flight's side of a process: the one way in for clients, of a node and of an embedded database.

It listens at an address, or on a Unix socket, from the moment it is made, and carries calls out on
Flight's threads. What it can do comes by and by: `actions` by name, and `data`, which answers for
rows (`lowmark.server`). A call that comes before is refused as if it was starting, or closing:
clients ask again.

What every call promises
    1. It is let in by `Callers` before anything else is looked at, and who makes it goes with it.
       Each message of a stream is checked again: a token may have been revoked meanwhile.
    2. An error arrives with its name, what happened, why, and what to do: whole to a client of
       ours, with gRPC's code to every other one (see `codes`).
    3. A body that is too long, or not what the call takes, is refused before anything happens.
    4. At most `CALLS_MAX` actions and questions are under way at a time; one more is refused.
       Streams have limits of their own (`lowmark.server.Limits`).
    5. A client that goes away ends its stream; one that takes nothing for too long is cut off.
    6. The code Unavailable, at which clients retry by themselves, is given only if nothing has
       happened. What may have happened, or did, has another one.

`close` ends within a time, whatever clients do (see `cutting`). `reopen` closes Flight's part and
opens it again at the same address, with other certificates: actions and data stay, and clients ask
again.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow
from pyarrow import flight

from lowmark.errors import LowmarkError
from lowmark.node.action import Action, Call
from lowmark.node.addresses import check_free, joined
from lowmark.node.bridge import NodeClosing
from lowmark.node.callers import (
    WITHOUT_MAJORITY,
    AnyCaller,
    Callers,
    bearer_of,
    calling,
    check_action,
    check_method,
)
from lowmark.node.codes import asks_for_whole, flight_error
from lowmark.node.cutting import Waiting
from lowmark.node.errors import ActionUnknown, BadRequest, NodeStarting, ServerFailed, ServerStuck
from lowmark.node.messages import BODY_BYTES_MAX, LOOKS
from lowmark.node.owner import SCHEME
from lowmark.node.slots import Slots
from lowmark.node.strangers import Door, Strangers
from lowmark.runtime import AddressInUse, AddressUnusable, host_and_port
from lowmark.runtime.network import TLS_SCHEME
from lowmark.tokens import Caller

logger = logging.getLogger(__name__)

CALLS_MAX: Final = 512
END_S: Final = 4.0
"""A listener that is closed ends within this; clients that do not let go are cut off."""
CALM_S: Final = 2.0
"""What is under way when it is closed may take so long, before it is cut off."""
DRAIN_S: Final = 10.0
"""The same of what is under way when it is opened again: the next one is there already."""
_FREE_S: Final = 2.0
"""How long a listener that opens again waits for its port."""
_FREE_LOOK_S: Final = 0.002
_ADMISSION: Final = "lowmark"
_BROKEN: Final = (pyarrow.ArrowException, OSError)
"""What a stream of messages ends with whose client has gone: it hears nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What a listener shows, and what it wants to see, in PEM."""

    certificate: bytes
    key: bytes
    root: bytes = b""
    """Clients must show a certificate of this authority; empty: they need none."""


class DataCalls(Protocol):
    """What a listener can be asked besides actions: see `lowmark.server`."""

    def check(self) -> None:
        """Refuse to begin anything when the end has come."""

    def get(self, ticket: bytes) -> tuple[pyarrow.Schema, Iterator[Any]]:
        """`DoGet`: the schema, and messages."""

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """`DoPut`."""

    def exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """`DoExchange`."""

    def flights(self) -> Iterator[Any]:
        """`ListFlights`."""

    def info(self, descriptor: Any) -> Any:
        """`GetFlightInfo`."""

    def schema(self, descriptor: Any) -> pyarrow.Schema:
        """`GetSchema`."""

    def is_ours(self, asked: bytes) -> bool:
        """Whether only a client of ours asks so: by a ticket, or by the command of a stream."""

    def refuse(self) -> None:
        """Take nothing new."""

    def busy(self) -> bool:
        """Whether something is under way that ends by itself, and soon."""

    def end(self) -> None:
        """Keep nothing for clients any more."""


def caller_of(context: Any) -> Caller:
    """Who makes a call, by the context that Flight gives to it."""
    return _admitted(context).caller


class _Admitted(flight.ServerMiddleware):  # type: ignore[misc]
    """What is known of a call before it is carried out."""

    def __init__(self, caller: Caller, *, whole: bool) -> None:
        self.caller = caller
        self.whole = whole
        """Whether its client takes errors as JSON."""


def _admitted(context: Any) -> _Admitted:
    found: _Admitted | None = context.get_middleware(_ADMISSION)
    assert found is not None  # no call begins without
    return found


class _Checked:
    """The messages of a client, each of which counts only if its caller is still let in."""

    def __init__(self, reader: Any, listener: Listener, context: Any) -> None:
        self._reader = reader
        self._listener = listener
        self._caller = caller_of(context)
        self._peer = context.peer()

    def read_chunk(self) -> Any:
        """The next one; `StopIteration` at the end."""
        chunk = self._reader.read_chunk()
        self._listener.callers.check(self._caller)
        self._listener.let_in(self._peer)
        return chunk


class _Admission(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Where callers are checked: every call begins here."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> _Admitted:
        whole = asks_for_whole(headers)
        with told("a call", whole=whole):
            caller = self._listener.callers.caller(bearer_of(headers))
            check_method(caller, info.method.name)
            if info.method != flight.FlightMethod.DO_ACTION:  # which one it is, is not known yet
                self._listener.callers.check(caller)
            if info.method == flight.FlightMethod.GET_SCHEMA:
                self._listener.find_data()  # refused later, it could not hear Unavailable
            return _Admitted(caller, whole=whole)


@contextlib.contextmanager
def told(
    what: str, *, whole: bool, schema: bool = False, passing: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Whatever goes wrong in here as Flight carries it, but for what is `passing`."""
    try:
        yield
    except LowmarkError as error:
        raise flight_error(error, whole=whole, schema=schema) from None
    except (flight.FlightError, *passing):
        raise
    except Exception as error:
        logger.exception("a call failed", extra={"call": what})
        raise flight_error(ServerFailed(what, error), whole=whole, schema=schema) from None


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """What Flight calls, on threads of its own. It listens as soon as it is made."""

    def __init__(self, listener: Listener, location: str, tls: Certificates | None) -> None:
        self._listener = listener
        more: dict[str, Any] = {}
        if tls is not None:
            more["tls_certificates"] = [(tls.certificate, tls.key)]
            if tls.root:
                more |= {"verify_client": True, "root_certificates": tls.root}
        super().__init__(location, middleware={_ADMISSION: _Admission(listener)}, **more)

    def _admitted(self, context: Any) -> _Admitted:
        """What is known of a call that was let in; its connection is no stranger's."""
        self._listener.let_in(context.peer())
        return _admitted(context)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        admitted = self._admitted(context)
        call = Call(context.is_cancelled, admitted.caller)
        return self._listener.act(action.type, action.body, call, whole=admitted.whole)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        self._listener.let_in(context.peer())
        return [(name, "") for name in sorted(self._listener.actions)]

    def do_get(self, context: Any, ticket: Any) -> Any:
        return self._listener.get(context, ticket.ticket, whole=self._admitted(context).whole)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with (
            told("DoPut", whole=self._admitted(context).whole, passing=_BROKEN),
            calling(caller_of(context)),
        ):
            checked = _Checked(reader, self._listener, context)
            self._listener.find_data().put(context, descriptor, checked, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        whole = self._admitted(context).whole
        with told("DoExchange", whole=whole):
            data = self._listener.find_data()
            whole = whole or data.is_ours(descriptor.command or b"")
        with told("DoExchange", whole=whole, passing=_BROKEN), calling(caller_of(context)):
            checked = _Checked(reader, self._listener, context)
            data.exchange(context, descriptor, checked, writer)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        del criteria
        with self._listener.question("ListFlights", context) as data:
            yield from data.flights()

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._listener.question("GetFlightInfo", context) as data:
            return data.info(descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with self._listener.question("GetSchema", context, schema=True) as data:
            return flight.SchemaResult(data.schema(descriptor))


class Listener:
    """Listens from the moment it is made, at `host:port` (port 0: a free one) or `unix:PATH`."""

    def __init__(
        self,
        address: str,
        *,
        callers: Callers | None = None,
        certificates: Certificates | None = None,
        door: Door | None = None,
        on_open: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """`door`: how long connections are kept that were not let in; None: as long as they like.
        `on_open` is called with each Flight server that is made.
        """
        self.actions: MutableMapping[str, Action] = {}
        """What clients may ask by name."""
        self._ours: set[str] = set()
        self.data: DataCalls | None = None
        """What answers for rows, as soon as it is there."""
        self.no_data: LowmarkError | None = None
        """Why there is nothing that answers for rows, if it can't be made."""
        self.starting = True
        """Whether there are more actions to come."""
        self.callers = callers or AnyCaller()
        self.waiting = Waiting()
        self._certificates = certificates
        self._on_open = on_open
        self._calls = Slots("calls", CALLS_MAX)
        self._brief = Slots("answers", sys.maxsize)
        """What is being done that ends by itself, and soon."""
        self._opening = threading.Lock()
        self._closed = False
        self._path = address.removeprefix(SCHEME) if address.startswith(SCHEME) else None
        self.address = address
        """Where it listens; a port 0 has been replaced by the real one."""
        self._flight: _FlightServer | None = None
        self._ending: list[threading.Thread] = []
        """Of Flight servers whose calls have not all ended yet."""
        self._strangers: Strangers | None = None
        self._open()
        port = None if self._path is not None else host_and_port(self.address)[1]
        self.waiting.start(port=port, path=self._path)
        if door is not None and port is not None:
            self._strangers = Strangers(port, door)

    @property
    def listens(self) -> bool:
        """Whether it takes calls; not, if its address could not be had back."""
        return self._flight is not None

    @property
    def location(self) -> str:
        """Where it listens, as Flight has it."""
        return self.location_at(self.address)

    def location_at(self, address: str) -> str:
        """The same by another address, as clients are told it."""
        if self._path is not None:
            return f"grpc+unix://{self._path}"
        scheme = "grpc+tcp" if self._certificates is None else "grpc+tls"
        return f"{scheme}://{address}"

    @property
    def endpoint(self) -> str:
        """The address as clients of ours have it."""
        return self.address if self._certificates is None else f"{TLS_SCHEME}{self.address}"

    def _open(self) -> None:
        if self._path is None:
            check_free(self.address)
        try:
            self._flight = _FlightServer(self, self.location, self._certificates)
        except (pyarrow.ArrowException, OSError) as error:
            raise AddressUnusable(self.address, reason=str(error)) from error
        if self._path is None:
            self.address = joined(host_and_port(self.address)[0], self._flight.port)
        self._on_open(self._flight)

    def offer_to_ours(self, actions: Mapping[str, Action]) -> None:
        """Actions that only clients of ours ask. Their errors are told whole, since older releases
        of ours do not say in a header who they are; and those under way are counted by the data.
        """
        self._ours |= actions.keys()
        self.actions.update(actions)

    # -- what Flight asks -------------------------------------------------------------------------

    def act(self, name: str, body: Any, call: Call, *, whole: bool = True) -> Iterator[bytes]:
        """Carry an action out."""
        ours = name in self._ours
        with told(name, whole=whole or ours), self._calls.one():
            self.check()
            check_action(call.caller, name)
            action = self.actions.get(name)
            if action is None:
                raise NodeStarting(name) if self.starting else ActionUnknown(name, self.actions)
            _check_length(body.size)
            with contextlib.nullcontext() if ours else self._brief.one():
                last_known = name in WITHOUT_MAJORITY
                self.callers.check(call.caller, last_known=last_known)
                with calling(call.caller):
                    results = iter(action(body.to_pybytes(), call))
                for at, result in enumerate(results):
                    # What was done is said, whatever has become of the token meanwhile: a refusal
                    # would say that nothing was. What goes on and on only looks.
                    if at and name in LOOKS:
                        self.callers.check(call.caller, last_known=last_known)
                    yield result

    def get(self, context: Any, ticket: bytes, *, whole: bool) -> Any:
        """Rows, watched while their client takes them."""
        with told("DoGet", whole=whole):
            _check_length(len(ticket))
            data = self.find_data()
            whole = whole or data.is_ours(ticket)
        caller = caller_of(context)
        with told("DoGet", whole=whole), calling(caller):
            schema, messages = data.get(ticket)
        sent = self._sent(context.peer(), caller, messages, whole=whole)
        return flight.GeneratorStream(schema, sent)

    def _sent(
        self, peer: str, caller: Caller, messages: Iterator[Any], *, whole: bool
    ) -> Iterator[Any]:
        while True:
            with told("DoGet", whole=whole), self._brief.one():
                message = next(messages, None)
                self.callers.check(caller)
            self.let_in(peer)
            if message is None:
                return
            with self.waiting.on(peer):
                yield message

    @contextlib.contextmanager
    def question(self, what: str, context: Any, *, schema: bool = False) -> Iterator[DataCalls]:
        """What answers for rows, for a call with one answer."""
        self.let_in(context.peer())
        with (
            told(what, whole=_admitted(context).whole, schema=schema),
            self._calls.one(),
            self._brief.one(),
        ):
            yield self.find_data()

    def let_in(self, peer: str) -> None:
        """A call of this client was let in, or goes on: its connection is no stranger's."""
        if self._strangers is not None:
            self._strangers.let_in(peer)

    def check(self) -> None:
        """Refuse to begin anything when the end has come."""
        if self._closed:
            raise NodeClosing
        if self.data is not None:
            self.data.check()

    def find_data(self) -> DataCalls:
        """What answers for rows."""
        self.check()
        if self.data is None:
            # It is about to be there, and clients ask again; or it can't be.
            raise NodeClosing if self.no_data is None else self.no_data.again()
        return self.data

    @property
    def calls(self) -> int:
        """How many actions and questions are under way."""
        return self._calls.taken

    # -- the end ----------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self._closed = True
        if self.data is not None:
            self.data.refuse()

    def close(self, *, within_s: float = END_S) -> None:
        """Wait until what is under way has ended, cut off what does not, and stop to listen."""
        self.refuse()
        with self._opening:
            ended = self._end(within_s)
        self.waiting.close()
        if self._strangers is not None:
            self._strangers.close()
        if not ended:
            raise ServerStuck(self.address, waited_s=within_s)

    def reopen(self, certificates: Certificates | None = None) -> None:
        """Listen again at the same address, with these certificates; without, as before. If these
        can't be used, those before are. If the address can't be had back, it raises, and may be
        called again. Not from a call's own thread: it returns when what was under way has ended.

        Flight's part stops to listen as soon as it begins to end. So the next one is there within
        milliseconds, and what is under way goes on with the one before, on the connections that it
        has. Streams of our clients would go on for ever: what has not ended by then is cut off.
        """
        with self._opening:
            if self._closed:
                raise NodeClosing
            of = self.waiting.connections()
            ended = self._begin_end()
            if self._path is not None:  # the socket's file goes with the one before
                self._wait_for_end(ended, calm_s=CALM_S, within_s=END_S, of=of)
            before = self._certificates
            self._certificates = certificates or before
            try:
                self._open_soon()
            except Exception:
                self._certificates = before
                self._open_soon()
                raise
        self._wait_for_end(
            lambda: ended() or self._closed, calm_s=DRAIN_S, within_s=2 * DRAIN_S, of=of
        )

    def _open_soon(self) -> None:
        """Open as soon as the port is free: the one before is about to leave it."""
        ends_at = time.monotonic() + _FREE_S
        while True:
            try:
                self._open()
                return
            except AddressInUse:
                if time.monotonic() > ends_at:
                    raise
            time.sleep(_FREE_LOOK_S)

    def _end(self, within_s: float) -> bool:
        """End Flight's part, and the data; says whether it has ended in time, and those before it
        that were still ending.
        """
        self._begin_end()
        if self.data is not None:
            self.data.end()
        return self._wait_for_end(
            lambda: not any(one.is_alive() for one in self._ending),
            calm_s=CALM_S,
            within_s=within_s,
        )

    def _begin_end(self) -> Callable[[], bool]:
        """Have Flight's part listen no more, and end its calls; gives whether they have ended."""
        ending = self._flight
        if ending is None:
            return lambda: True
        thread = threading.Thread(target=ending.shutdown, name="lowmark-end", daemon=True)
        thread.start()  # while the machine has no thread for it, this raises, and it still listens
        self._flight = None
        self._ending = [*filter(threading.Thread.is_alive, self._ending), thread]
        return lambda: not thread.is_alive()

    def _wait_for_end(
        self,
        ended: Callable[[], bool],
        *,
        calm_s: float,
        within_s: float,
        of: frozenset[int] | None = None,
    ) -> bool:
        return self.waiting.end(ended, self._busy, calm_s=calm_s, within_s=within_s, of=of)

    def _busy(self) -> bool:
        return self._brief.taken > 0 or (self.data is not None and self.data.busy())


def _check_length(length: int) -> None:
    if length > BODY_BYTES_MAX:
        raise BadRequest(
            f"a request of {length:,} bytes is too long",
            hint=f"At most {BODY_BYTES_MAX:,} bytes are allowed.",
        )
