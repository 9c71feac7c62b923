"""Flight's side of a server: it listens, and carries calls out on Flight's threads.

It listens from the moment it is made; a call that comes before the endpoint is there is refused as
if the server was closing: clients ask again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import flight

from lowmark.backend.connection import location_of, unix_path
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import ServerStuck
from lowmark.backend.exits import at_exit, come_first
from lowmark.backend.forks import check_fork, made
from lowmark.backend.protocol import CALL, HELLO
from lowmark.client import Database
from lowmark.errors import LowmarkError
from lowmark.node import NodeClosing
from lowmark.node.addresses import Guard, Place, check_free, insecure_words, place_of
from lowmark.runtime import AddressUnusable
from lowmark.server.endpoint import HOLD_MS, Endpoint, in_flight_s_words
from lowmark.server.limits import Limits

logger = logging.getLogger(__name__)

END_S: Final = 4.0
"""A server that is closed ends within this; clients that do not let go are cut off."""


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """What Flight calls, on threads of its own. It listens as soon as it is made."""

    def __init__(self, server: Server, location: str) -> None:
        self._server = server
        super().__init__(location)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with in_flight_s_words(action.type):
            yield from self._server.act(action, context.is_cancelled)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        del context
        own = [(HELLO, "who is there"), (CALL, "a call of Lowmark's client")]
        return [*own, *((name, "") for name in sorted(self._server.actions))]

    def do_get(self, context: Any, ticket: Any) -> Any:
        with in_flight_s_words("a read"):
            return self._server.endpoint.get(context, ticket.ticket)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        del context, criteria
        with in_flight_s_words("ListFlights"):
            yield from self._server.endpoint.flights()

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        del context
        with in_flight_s_words("GetFlightInfo"):
            return self._server.endpoint.info(descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        del context
        with in_flight_s_words("GetSchema"):
            return flight.SchemaResult(self._server.endpoint.schema(descriptor))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with in_flight_s_words("DoPut"):
            self._server.endpoint.put(context, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with in_flight_s_words("a stream of appends"):
            self._server.endpoint.exchange(descriptor, reader, writer, context)


class Server:
    """Serves a database that this process has open. It listens from the moment it is made.

    `address` is `host:port` on this machine (port 0: a free one), or `unix:PATH`; a socket at that
    path must be no other process's. One that other machines can reach is refused (`NotLoopback`),
    unless `insecure` says that all of them may read and change all data. `advertise` is what Flight
    clients are told to connect to, if that is not `address`. The database stays open when the
    server is closed. `on_held` is told which clients hold anything (see `Sessions`).
    """

    def __init__(
        self,
        database: Database,
        address: str = "127.0.0.1:0",
        *,
        advertise: str = "",
        insecure: bool = False,
        limits: Limits | None = None,
        hold_ms: int = HOLD_MS,
        on_held: Callable[[frozenset[int]], None] = lambda _: None,
    ) -> None:
        check_fork(address)
        path = unix_path(address)
        place, guard = Place(address, address), Guard(insecure=insecure)
        if path is None:
            place = place_of(address, advertise, guard=guard)
            check_free(place.listens_at)
        self._lock = threading.Lock()
        self._closed = False
        self._endpoint: Endpoint | None = None
        backend = database.backend
        self.actions = backend.node.actions if isinstance(backend, Embedded) else {}
        """What clients may ask of the node itself, as of one that is served."""
        try:
            self._server = made(_FlightServer(self, location_of(place.listens_at)))
        except pa.ArrowException as error:
            raise AddressUnusable(address, reason=str(error)) from error
        if path is None:
            place = place.with_port(self._server.port)
        open_at = guard.open_at(place) if path is None else ()
        if open_at:
            logger.warning(insecure_words(f"the server at {place.listens_at}", open_at))
        self.address = place.advertised
        """Where clients reach it; a port 0 has been replaced by the real one."""
        _open.add(self)
        come_first()  # before Flight's own hook for its server
        try:
            self._endpoint = Endpoint(
                database,
                place.listens_at,
                advertised=place.advertised,
                open_at=open_at,
                limits=limits,
                hold_ms=hold_ms,
                on_held=on_held,
            )
        except BaseException:
            self._server.shutdown()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """What answers."""
        if self._endpoint is None:
            raise NodeClosing
        return self._endpoint

    def act(self, action: Any, gone: Callable[[], bool]) -> Iterable[bytes]:
        """An action: of an endpoint, or of the node."""
        body = action.body.to_pybytes()
        of_node = self.actions.get(action.type)
        if of_node is None:
            return [self.endpoint.act(action.type, body)]
        self.endpoint.check()
        return of_node(body, gone)

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self.endpoint.refuse()

    def close(self) -> None:
        """End it, within a few seconds: clients that do not let go are cut off. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _open.discard(self)
        ending = threading.Thread(target=self._server.shutdown, name="lowmark-end", daemon=True)
        self.endpoint.refuse()
        ending.start()
        self.endpoint.end(lambda: not ending.is_alive(), within_s=END_S)
        if ending.is_alive():
            raise ServerStuck(self.address, waited_s=END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_open: weakref.WeakSet[Server] = weakref.WeakSet()
_pid = os.getpid()


def _close_all() -> None:
    if os.getpid() == _pid:  # in a child they are the parent's
        for one in list(_open):
            with contextlib.suppress(LowmarkError):
                one.close()


at_exit("servers", _close_all)
