"""What a listener asks of a database: the answers to its calls, within what clients may have under
way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import PutEnded, RequestRefused
from lowmark.backend.protocol import APPEND, CALLS, COMMANDS, HELLO, is_request
from lowmark.backend.values import NOBODY
from lowmark.client import Database
from lowmark.errors import LowmarkError, Rejected
from lowmark.node.codes import Code, code_of
from lowmark.node.listener import Listener
from lowmark.node.slots import Slots
from lowmark.server.allowing import check_plain
from lowmark.server.appending import AppendStream
from lowmark.server.checking import Checker
from lowmark.server.limits import Limits
from lowmark.server.plain import PlainTables, is_plain
from lowmark.server.reading import check_read, read
from lowmark.server.service import Service
from lowmark.server.sessions import Holding

HOLD_MS: Final = 60_000
"""How long a client that is silent keeps its holds."""


class Endpoint:
    """A database for a listener; it may be called on any thread."""

    def __init__(
        self,
        database: Database,
        listener: Listener,
        *,
        advertised: str = "",
        open_at: Sequence[str] = (),
        limits: Limits | None = None,
        hold_ms: int = HOLD_MS,
        on_held: Callable[[Holding], None] = lambda _: None,
    ) -> None:
        """`advertised`: where clients are told to find it, if that is not the listener's address.
        `open_at`: the addresses of it at which strangers can come in.
        """
        backend = served(database)
        self.limits = limits or Limits()
        self._listener = listener
        listener.waiting.stall_s = self.limits.stall_ms / 1_000
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
        self._address = advertised or listener.address
        backend.served_at.append(self._address)
        self._open_at = open_at
        backend.node.open_at += open_at

    # -- what a listener asks ---------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to begin anything when the end has come."""
        self._service.check()

    def act(self, name: str, body: bytes) -> bytes:
        """An action of our clients."""
        return self._service.hello(body) if name == HELLO else self._service.call(body)

    def is_ours(self, asked: bytes) -> bool:
        """Whether only a client of ours asks so: by a ticket, or by the command of a stream."""
        return is_request(asked) or asked.startswith((CALLS, APPEND))

    def get(self, ticket: bytes) -> tuple[pa.Schema, Iterator[Any]]:
        """A read."""
        if is_plain(ticket):
            check_plain()
            self._backend.asked_by(NOBODY)
            schema, rows = self._plain.read(ticket)
            return schema, self._messages(rows)
        request = self._service.request(ticket)
        check_read(request)
        return COMMANDS, self._messages(read(self._backend, self._service.sessions, request))

    def _messages(self, messages: Iterator[Any]) -> Iterator[Any]:
        # Here, where it is given back: one whose client is gone already never begins.
        with self._reads.one():
            for rows, note in messages:
                yield rows if note is None else (rows, note)

    @property
    def _location(self) -> str:
        return self._listener.location_at(self._address)

    def flights(self) -> Iterator[Any]:
        """All tables."""
        return self._plain.flights(self._location)

    def info(self, descriptor: Any) -> Any:
        """One table."""
        return self._plain.info(descriptor, self._location)

    def schema(self, descriptor: Any) -> pa.Schema:
        """Its columns."""
        return self._plain.schema(descriptor)

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Rows of a client with none of our code."""
        peer, stored = context.peer(), 0
        self._backend.asked_by(NOBODY)
        try:
            with self._streams.one():
                for said in self._plain.put(descriptor, reader):
                    stored += 1
                    with self._listener.waiting.on(peer):
                        writer.write(pa.py_buffer(said))
                    self._service.check()
        except LowmarkError as error:
            if stored and code_of(error) is Code.UNAVAILABLE:
                # A client that is told "nothing was done" would send all of its batches again.
                raise PutEnded(stored, cause=error) from error
            raise

    def exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A stream of appends, or of calls."""
        command = descriptor.command or b""
        watched = partial(self._listener.waiting.on, context.peer())
        if command.startswith(CALLS):
            self._service.request(command.removeprefix(CALLS))
            with self._call_streams.one():
                self._service.serve(reader, writer, watched=watched)
            return
        if not command.startswith(APPEND):
            raise RequestRefused("there is no such stream")
        request = self._service.request(command.removeprefix(APPEND))
        with self._streams.one():
            heard = partial(self._service.heard, request)
            stream = AppendStream(
                self._backend, self._checker, self._append_bytes, heard=heard, watched=watched
            )
            stream.run(reader, writer)

    # -- the end ----------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether something is under way that ends by itself, and soon."""
        return self._service.calls + self._append_bytes.taken > 0

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self._service.closing = True

    def end(self) -> None:
        """Keep nothing for clients any more."""
        with contextlib.suppress(ValueError):  # it was ended before
            self._backend.served_at.remove(self._address)
            for address in self._open_at:
                self._backend.node.open_at.remove(address)
        self._service.close()


def served(database: Database) -> Embedded:
    """What a database asks, if it can be served."""
    backend = database.backend
    if not isinstance(backend, Embedded):
        raise Rejected(
            "only a database that this process has open itself can be served",
            hint="Use one from lowmark.open.",
        )
    return backend
