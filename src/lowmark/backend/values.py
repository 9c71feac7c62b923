"""What goes through the port: values that never change, and that can be encoded.

A `View` is one, too (`lowmark.table`): columns of numbers that only grow at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.holds import Hold as Holder
from lowmark.table import Adopted, Appended, Cursor, Lease, View, deletes_held, holds_of

Answer: TypeAlias = Appended | LowmarkError
"""What became of one part of an append: where it went, or why it was not stored."""


ALL_FILES = "*"
"""Stands for every file of ledgers among those that are in use: holds may be missing there."""


class Numbered(NamedTuple):
    """A batch that a client has numbered, on its way into the log."""

    table: TableId
    partition: int
    room: memoryview
    """The command, with room in front of it for what the log adds; its receiver may write there."""
    done: Callable[[Answer], None]


class Asker(NamedTuple):
    """Who asks what a thread asks next."""

    by_node: bool = False
    """Whether another node does, for one of its clients."""
    lineages: Mapping[str, int] | None = {}
    """What it has seen; None: it is of an earlier release, and says nothing of that."""

    def at_least(self, group: str) -> int:
        """The lineage that it has seen of a group."""
        return self.lineages.get(group, 0) if self.lineages else 0


NOBODY: Final = Asker()
"""A program in this process."""


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """What is settled of a database, and how long its node waits for things."""

    name: str
    """How callers know it: its directory, or an address."""
    cluster: str
    ledger_location: str
    """Where ledgers are: a path of this machine, or a URL."""
    ledgers_elsewhere: bool
    """Whether that is not in its own directory."""
    data_path: str
    """The directory whose segments a run reads; empty if it is on no disk of this machine."""
    watermark_availability_ms: int
    grace_ms: int
    """How long a ledger that was replaced stays."""
    request_timeout_ms: int
    ledgers_claimed: bool = False
    """Whether a file where ledgers are says whose they are: a process that does not find it there
    sees another place."""

    @property
    def ledger_owner(self) -> str:
        """What that file says; empty if there is none."""
        return self.cluster if self.ledgers_claimed else ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time above all that is known, and the wall clock."""

    time: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Something that is kept for a caller until it is released, or its database is closed."""

    number: int
    """Drawn, and not counted: one of an earlier start is never another caller's."""

    @classmethod
    def drawn(cls) -> Hold:
        """One that there never was."""
        return cls(secrets.randbits(63))


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What a reader is going to read of one partition."""

    start: int
    end: int | None
    """None: it follows, and nothing of the backlog is kept for it."""
    ledger: Literal["none", "beside", "below"] = "none"
    """Whether the files of the adopted ledger are kept, too: for themselves, or because rows below
    its horizon come from there; then the backlog is kept only from the horizon on.
    """


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Consecutive batches of a backlog."""

    first: int
    """The first offset of the first one: where they are found if they have moved."""
    places: tuple[int, ...]
    """Where they stand in the log."""
    lineage: int = 0
    """Of the view that names them."""

    @classmethod
    def of(cls, view: View, low: int, high: int) -> BatchRange:
        """The batches of a view from position `low` to before `high`."""
        places = tuple(view.places[low:high].tolist())
        return cls(int(view.columns.first[low]), places, view.lineage)


@dataclass(frozen=True, slots=True)
class Staging:
    """Rows of a partition that wait to be finished, and are read by no reader."""

    transactions: int
    batches: int
    rows: int
    bytes: int
    since_ms: int | None
    """When the first of them was staged; None: that is not known."""
    by_transaction: Mapping[int, int] = field(default_factory=dict)
    """How many rows each has."""

    def rows_in(self, transactions: Collection[int]) -> int:
        """How many rows these have together."""
        return sum(self.by_transaction.get(one, 0) for one in transactions)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition at one moment: what planning, reading, explaining and cursors work from."""

    partition: int
    view: View
    """The backlog, and the ledger that was adopted with it."""
    expired: int
    """Rows below this offset went by retention before they were in a ledger."""
    cursors: tuple[Cursor, ...]
    leases: tuple[Lease, ...]
    now_ms: int
    """By this time leases are over, or not: the wall clock, or the partition's if that is later."""
    wall_ms: int
    """The wall clock: how old rows are. The partition's may be ahead, if a clock ever was."""
    stopped: LowmarkError | None = field(default=None, compare=False)
    """Why nothing will change here any more."""
    staging: Staging | None = None
    """What is staged, if anything is."""

    @property
    def ledger(self) -> Adopted | None:
        """The ledger that it has adopted."""
        return self.view.ledger

    @property
    def horizon(self) -> int:
        """Below this offset rows are in the ledger."""
        return 0 if self.view.ledger is None else self.view.ledger.horizon

    @property
    def deletes_gone(self) -> int:
        """Deletes below this offset may be gone from the ledger that it has adopted."""
        return 0 if self.view.ledger is None else self.view.ledger.deletes_below

    def backlog_holders(self) -> tuple[Holder, ...]:
        """Who holds the backlog, and from which offset on."""
        return tuple(holds_of(*self._readers(), now_ms=self.now_ms))

    def delete_holders(self) -> tuple[Holder, ...]:
        """Who holds deletes, and from which offset on."""
        return tuple(deletes_held(*self._readers(), now_ms=self.now_ms))

    def live_leases(self) -> tuple[Lease, ...]:
        """Leases that are not over."""
        return tuple(lease for lease in self.leases if lease.ends_ms > self.now_ms)

    def _readers(self) -> tuple[dict[str, Cursor], dict[str, Lease]]:
        cursors = {cursor.name: cursor for cursor in self.cursors}
        return cursors, {lease.name: lease for lease in self.leases}


@dataclass(frozen=True, slots=True)
class Held:
    """A hold, and the partitions as they were at the moment that it was taken."""

    hold: Hold
    partitions: Mapping[int, PartitionStatus]
    files: Mapping[int, Hold] = field(default_factory=dict)
    """By partition, what keeps the files of its ledger: a reader is through with a ledger long
    before its end. Releasing `hold` releases these, too.
    """


@dataclass(frozen=True, slots=True)
class Found:
    """The last change of a key."""

    partition: int
    offset: int
    time: int
    deleted: bool
    row: dict[str, Any] | None
    in_ledger: bool = False
    """Whether it was found in the ledger: the backlog does not have it any more."""
