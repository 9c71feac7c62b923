"""Flight's side of a server: it listens, carries calls out on Flight's threads, and ends.

Flight's own shutdown waits for every call, and a call that writes to a client which does not read
waits for ever. So calls are counted and watched: a read that its client takes nothing of is cut
off after a time (see `cutting`), and when the server is closed, what does not end by itself in a
moment is, too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import flight

from lowmark.backend.connection import location_of
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import RequestRefused, ServerStuck
from lowmark.backend.protocol import APPEND, CALL, COMMANDS, HELLO
from lowmark.client import Database
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.fault import encode_fault
from lowmark.node.messages import check_free, check_loopback, joined
from lowmark.runtime import AddressUnusable, host_and_port
from lowmark.server.appending import AppendStream
from lowmark.server.checking import Checker
from lowmark.server.cutting import cut
from lowmark.server.limits import Limits, Slots
from lowmark.server.plain import PlainTables, is_plain
from lowmark.server.reading import check_read, read
from lowmark.server.service import ServerFailed, Service

logger = logging.getLogger(__name__)

HOLD_MS: Final = 60_000
"""How long a client that is silent keeps its holds."""
CALM_S: Final = 1.0
"""What is under way when a server is closed may take so long, before it is cut off."""
END_S: Final = 3.0
_LOOK_S: Final = 0.25
_MOMENT_S: Final = 0.01
_UNIX: Final = "unix:"


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


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """What Flight calls, on threads of its own. It listens as soon as it is made."""

    def __init__(self, server: Server, location: str) -> None:
        self._server = server
        super().__init__(location)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        del context
        with in_flight_s_words(action.type):
            yield self._server.act(action.type, action.body.to_pybytes())

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        del context
        return [(HELLO, "who is there"), (CALL, "a call of Lowmark's client")]

    def do_get(self, context: Any, ticket: Any) -> Any:
        with in_flight_s_words("a read"):
            return self._server.get(context, ticket.ticket)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        del context, criteria
        with in_flight_s_words("ListFlights"):
            yield from self._server.flights()

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        del context
        with in_flight_s_words("GetFlightInfo"):
            return self._server.info(descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        del context
        with in_flight_s_words("GetSchema"):
            return flight.SchemaResult(self._server.schema(descriptor))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with in_flight_s_words("DoPut"):
            self._server.put(context, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        del context
        with in_flight_s_words("a stream of appends"):
            self._server.exchange(descriptor, reader, writer)


class Server:
    """Serves a database that this process has open. It listens from the moment it is made.

    `address` is `host:port` on this machine (port 0: a free one), or `unix:PATH`; a socket at that
    path must be no other process's. The database stays open when the server is closed.
    """

    def __init__(
        self,
        database: Database,
        address: str = "127.0.0.1:0",
        *,
        limits: Limits | None = None,
        hold_ms: int = HOLD_MS,
    ) -> None:
        backend = database.backend
        if not isinstance(backend, Embedded):
            raise Rejected(
                "only a database that this process has open itself can be served",
                hint="Use one from lowmark.open.",
            )
        self.limits = limits or Limits()
        self.path = address.removeprefix(_UNIX).removeprefix("//") if _is_unix(address) else None
        if self.path is None:
            address = check_loopback(address)
            check_free(address)
        self._service = Service(database, backend, limits=self.limits, hold_ms=hold_ms)
        self._backend = backend
        self._checker = Checker()
        self._plain = PlainTables(database)
        self._streams = Slots("streams of appends", self.limits.streams)
        self._reads = Slots("reads", self.limits.reads)
        self._append_bytes = Slots("bytes of rows", self.limits.append_bytes)
        self._lock = threading.Lock()
        self._closed = False
        self._watched: dict[int, tuple[float, str]] = {}
        """Reads that wait for their client to take something: since when, and whose."""
        self._numbers = itertools.count()
        try:
            self._server = _FlightServer(self, location_of(address))
        except pa.ArrowException as error:
            self._service.close()
            raise AddressUnusable(address, reason=str(error)) from error
        if self.path is None:
            self.port: int | None = self._server.port
            address = joined(host_and_port(address)[0], self._server.port)
        else:
            self.port = None
        self.address = address
        """Where clients reach it; a port 0 has been replaced by the real one."""
        self._over = threading.Event()
        watch = threading.Thread(target=self._watch, name="lowmark-watch", daemon=True)
        watch.start()

    # -- what Flight asks -------------------------------------------------------------------------

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
        return self._plain.flights(location_of(self.address))

    def info(self, descriptor: Any) -> Any:
        """One table."""
        self._service.check()
        return self._plain.info(descriptor, location_of(self.address))

    def schema(self, descriptor: Any) -> pa.Schema:
        """Its columns."""
        self._service.check()
        return self._plain.schema(descriptor)

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Rows of a client with none of our code."""
        self._service.check()
        number, peer = next(self._numbers), context.peer()
        with self._streams.one():
            for said in self._plain.put(descriptor, reader):
                self._service.check()
                self._watched[number] = (time.monotonic(), peer)
                try:
                    writer.write(pa.py_buffer(said))
                finally:
                    self._watched.pop(number, None)

    def exchange(self, descriptor: Any, reader: Any, writer: Any) -> None:
        """A stream of appends."""
        command = descriptor.command or b""
        if not command.startswith(APPEND):
            raise RequestRefused("there is no such stream")
        request = self._service.request(command.removeprefix(APPEND))
        with self._streams.one():
            heard = partial(self._service.sessions.hear, request.session)
            stream = AppendStream(self._backend, self._checker, self._append_bytes, heard=heard)
            stream.run(reader, writer)

    def _streamed(self, context: Any, schema: pa.Schema, messages: Iterator[Any]) -> Any:
        """An answer with rows, watched while its client takes it."""
        self._reads.take()
        return flight.GeneratorStream(schema, self._watched_messages(context.peer(), messages))

    def _watched_messages(self, peer: str, messages: Iterator[Any]) -> Iterator[Any]:
        number = next(self._numbers)
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
            for number, (waits, peer) in list(self._watched.items()):
                if waits < since and self._watched.pop(number, None) is not None:
                    count = cut(port=self.port, path=self.path, peer=peer)
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

    def close(self) -> None:
        """End it, within a few seconds: clients that do not let go are cut off. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._service.close()
        self._over.set()
        ending = threading.Thread(target=self._server.shutdown, name="lowmark-end", daemon=True)
        ending.start()
        ends_at = time.monotonic() + CALM_S
        while ending.is_alive() and self._busy() and time.monotonic() < ends_at:
            ending.join(_MOMENT_S)
        # What is left waits for rows, or for its client: that would not end by itself.
        ends_at = time.monotonic() + END_S
        while ending.is_alive() and time.monotonic() < ends_at:
            cut(port=self.port, path=self.path)
            ending.join(_LOOK_S)
        if ending.is_alive():
            raise ServerStuck(self.address, waited_s=CALM_S + END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_unix(address: str) -> bool:
    return address.startswith(_UNIX)
