"""A partition as a group's state machine. Its rows stay in the log, where they are live entries.

A snapshot is a run of blocks, each a length (4 bytes, little endian) and its bytes: a header
(msgpack), the columns of the backlog, and the producers (docs/formats/table.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import cast

import msgspec
from pyroaring import BitMap64

from lowmark.errors import Corrupt
from lowmark.runtime import Buffer
from lowmark.table.adopting import Adopted
from lowmark.table.backlog import Backlog
from lowmark.table.binding import Queries, Query
from lowmark.table.commands import (
    Abandon,
    Begin,
    Bind,
    Drop,
    KeepSchemas,
    RenewCursor,
    decode,
    frees_space,
)
from lowmark.table.errors import CommandRefused, MembersBehind
from lowmark.table.producers import Producers
from lowmark.table.readers import Cursor, Lease
from lowmark.table.state import Begun, Finished, Outcome, Staged, State

FORMAT = 6
"""The newest one. A version of the machine writes its snapshots in the format of its number."""
_LENGTH = struct.Struct("<I")
_NEEDED_VERSION: dict[type, int] = {
    Begin: 2,
    KeepSchemas: 3,
    Bind: 4,
    Drop: 4,
    RenewCursor: 5,
    Abandon: 6,
}
"""From which version of the machine on a command is carried out."""
_FIELDS_OF = {1: 11, 2: 12, 3: 13, 4: 15, 5: 15, 6: 16}
"""How many fields the header has, by format."""
_CURSOR_FIELDS_OF = {1: 9, 2: 9, 3: 9, 4: 9, 5: 12, 6: 12}
"""How many a cursor has. What is left out is as in a cursor that never expires."""


class _Header(msgspec.Struct, frozen=True, array_like=True):
    format: int
    batches: int
    start: int
    end: int
    closed: int
    ledger: Adopted | None
    expired: int
    cursors: tuple[Cursor, ...]
    leases: tuple[Lease, ...]
    staged: tuple[tuple[int, tuple[Staged, ...]], ...]
    finished: tuple[tuple[int, tuple[bool, int, int, int]], ...]
    begins: tuple[tuple[int, int], ...] = ()
    """From format 2 on."""
    schemas_from: int = 0
    """From format 3 on."""
    staged_since: tuple[tuple[int, int], ...] = ()
    """From format 4 on, as what follows."""
    queries: tuple[Query, ...] = ()
    given_up: tuple[tuple[int, int], ...] = ()
    """From format 6 on."""


_CURSORS = _Header.__struct_fields__.index("cursors")


class PartitionMachine:
    """Applies commands to a `State`.

    Version 2 keeps begin minimums (`Begin`), version 3 refuses schema versions (`KeepSchemas`),
    version 4 binds staged rows to epochs (`Bind`) and drops those that are never finished, in
    version 5 cursors may expire (`RenewCursor`), and version 6 drops staged rows no more by their
    age alone (`Abandon`); nothing else differs.
    """

    newest_version = 6

    def __init__(self) -> None:
        self.state = State()
        self._version = 1
        self.applied_bytes = 0
        """How much was applied in this life."""

    def apply(self, index: int, time: int, command: Buffer) -> Outcome:
        """Carry a command out; what it refuses is an error that is given back, not raised."""
        self.applied_bytes += len(command)
        try:
            # Its author has checked it. But no bytes may stop members, or divide them.
            wanted = decode(command)
        except Corrupt as error:
            return error
        if self._version < _NEEDED_VERSION.get(type(wanted), 1):
            # A member of an older release can't read it, and changes nothing, either.
            if isinstance(wanted, Bind | Drop | Abandon):
                return MembersBehind()
            if isinstance(wanted, RenewCursor):
                return MembersBehind("how cursors expire")
            return CommandRefused(
                f"not all members of this partition know the command {type(wanted).__name__}",
                hint="Have all nodes run the same release.",
            )
        return self.state.apply(wanted, index=index, time=time, size=len(command))

    def may_use_reserve(self, command: Buffer) -> bool:
        """All but rows: deletes, cursors, leases, and what compaction asks for."""
        return frees_space(command)

    def moved(self, old: int, new: int) -> None:
        """A batch has another place in the log."""
        state = self.state
        if state.backlog.moved(old, new):
            state.publish()
            return
        for transaction, batches in state.staged.items():
            if any(batch.index == old for batch in batches):
                state.staged[transaction] = [
                    msgspec.structs.replace(batch, index=new) if batch.index == old else batch
                    for batch in batches
                ]

    def upgrade(self, version: int) -> None:
        """All members know it: snapshots are written in its format from here on."""
        self._version = version
        if version >= _NEEDED_VERSION[Bind]:
            self.state.let_staged_expire()
        if version >= _NEEDED_VERSION[Abandon]:
            self.state.ask_before_dropping()

    def live_indexes(self) -> BitMap64:
        """The entries that hold rows."""
        state = self.state
        live = BitMap64(state.backlog.indexes())
        for batches in state.staged.values():
            live.update(batch.index for batch in batches)
        return live

    def read(self, query: object) -> object:
        """A query is a function of the state."""
        return cast("Callable[[State], object]", query)(self.state)

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[Buffer]:
        """The state as it is now."""
        state = self.state
        backlog = state.backlog
        header = _Header(
            self._version,
            len(backlog),
            backlog.start,
            backlog.end,
            state.closed,
            state.ledger,
            state.expired,
            tuple(state.cursors.values()),
            tuple(state.leases.values()),
            tuple((number, tuple(batches)) for number, batches in state.staged.items()),
            tuple(
                (number, (done.commit, done.first, done.rows, done.time))
                for number, done in state.finished.items()
            ),
            tuple(state.begins),
            state.schemas_from,
            tuple(state.staged_since.items()),
            tuple(state.queries),
            tuple(state.given_up.items()),
        )
        fields = list(msgspec.structs.astuple(header)[: _FIELDS_OF[self._version]])
        fields[_CURSORS] = [
            msgspec.structs.astuple(cursor)[: _CURSOR_FIELDS_OF[self._version]]
            for cursor in header.cursors
        ]
        head = msgspec.msgpack.encode(fields)
        parts = (head, backlog.encode(), state.producers.encode())
        return [piece for part in parts for piece in (_LENGTH.pack(len(part)), part)]

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        """Become what a snapshot says."""
        try:
            self.state = _restored(b"".join(chunks))
        except (struct.error, msgspec.MsgspecError, ValueError) as error:
            raise Corrupt(f"a snapshot of a partition can't be read: {error!r}") from error
        self._version = version


def _restored(data: bytes) -> State:
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise Corrupt("a snapshot of a partition ends within a block")
        parts.append(data[at : at + length])
        at += length
    head, columns, producers = parts
    header = msgspec.msgpack.decode(head, type=_Header)
    if not 1 <= header.format <= FORMAT:
        raise Corrupt(f"a snapshot of a partition is of format {header.format}, not 1 to {FORMAT}")
    state = State()
    state.backlog = Backlog.decode(
        columns, count=header.batches, start=header.start, end=header.end
    )
    # A snapshot does not say when the rows were that are cut: before it was taken, anyway.
    state.backlog.cut_time = header.closed if header.start else 0
    state.producers = Producers.decode(producers)
    state.closed, state.ledger, state.expired = header.closed, header.ledger, header.expired
    state.leases = {lease.name: lease for lease in header.leases}
    state.staged = {number: list(batches) for number, batches in header.staged}
    state.finished = {number: Finished(*done) for number, done in header.finished}
    state.begins = tuple(Begun(*begun) for begun in header.begins)
    state.schemas_from = header.schemas_from
    state.expires = header.format >= _NEEDED_VERSION[Bind]
    state.staged_batches = sum(map(len, state.staged.values()))
    state.staged_since = dict(header.staged_since)
    state.queries = Queries(header.queries)
    state.given_up = dict(header.given_up)
    if header.format >= _NEEDED_VERSION[Abandon]:
        state.ask_before_dropping()
    state.put_cursors(header.cursors)
    state.publish()
    return state
