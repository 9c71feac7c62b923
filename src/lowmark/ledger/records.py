"""What the metastore knows of ledgers: pointers, what was retired, and runs. JSON, for people too.

    ledger.<table>.<partition>                    the ledger that was published last
    ledger.retired.<table>.<partition>.<epoch>    one before it, whose files may still be read
    compaction.<table>.<run>                      a run: its plan, how far it is, what it cost
    compaction-claim.<table>.holder               the process that compacts a table; see `Claim`
    compaction-claim.<table>.turn                 a number that this process changes as it goes on
    compaction-claim.<table>.cancel               the run of it that was asked to end

A pointer is swapped by one conditional write, together with the note on the ledger that it retires.
Epochs only grow: a partition that has adopted a ledger with a higher one than its pointer has found
a metastore that is older than itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec

from lowmark.errors import Corrupt
from lowmark.formatting import time_text
from lowmark.metastore import RemoveRange
from lowmark.runtime import Buffer

POINTER_PREFIX = b"ledger."
RETIRED_PREFIX = b"ledger.retired."
RUN_PREFIX = b"compaction."
CLAIM_PREFIX = b"compaction-claim."
REBUILD = "a ledger is missing or damaged"
"""The trigger of a run that rebuilds ledgers; it can't be resumed, only made again."""
T = TypeVar("T")

RunState = Literal[
    "planned", "nothing", "too young", "running", "done", "failed", "cancelled", "interrupted"
]
"""`planned` is what a dry run gives; written down, it is a run that waits for a worker. Three are
never written down. `nothing` and `too young` are of a run that was not begun: there are no new
rows, or all of them are too young. `interrupted` is one that is noted as running, by a process that
is gone."""
UNDECIDED = frozenset({"planned", "running", "failed"})
"""States of runs that can be resumed, or given up."""
PartitionState = Literal["planned", "written", "adopted", "skipped", "overtaken"]


class Pointer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ledger of a partition that was published last."""

    manifest: str
    horizon: int
    epoch: int
    digest: str
    deletes_below: int = 0
    run: str = ""
    lineage: int = 0
    """Of the partition whose rows it has: after a reset, these may be others."""


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger that another one has replaced."""

    manifest: str
    at_ms: int
    by: str


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The process that compacts a table; or, without a holder, a run that any worker may take."""

    run: str
    holder: str = ""
    """Drawn anew for each claim; it begins with the machine and the process, for people."""
    lease_ms: int = 0
    """For this long a worker must have seen the claim unchanged before it may take it over."""
    detached: bool = False
    """Whether workers carry the run out also if the table is not compacted by itself."""


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run does to one partition, and how far that is."""

    partition: int
    state: PartitionState = "planned"
    why: str = ""
    """Why it was left alone, if it was."""
    base_epoch: int = 0
    base: str = ""
    """The manifest that it begins with."""
    low: int = 0
    horizon: int = 0
    rows: int = 0
    """To read from the backlog."""
    bytes: int = 0
    too_young_rows: int = msgspec.field(default=0, name="held_rows")  # its name in stored records
    """Rows that are too young: the low watermark, or the table's least lag, is before them."""
    held_until: str = ""
    manifest: str = ""
    rows_read: int = 0
    rows_live: int = 0
    rows_died: int = 0
    deletes: int = 0
    deletes_dropped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    files_written: int = 0
    ledger_bytes: int = 0
    rows_checked: int = 0
    read_from: str = ""
    """Where the backlog was read: `segments`, or the address of a server."""
    trimmed_bytes: int = 0
    trimmed_to: int = 0
    held_by: tuple[str, ...] = ()
    """Who keeps the backlog from being cut up to the horizon."""
    lineage: int = 0
    """See `Pointer`."""


WaitsFor = Literal["", "db.history", "history", "min_lag_ms"]
"""What keeps rows from being compacted: how far back all tables are exact; or the table's option,
by which it keeps its own past for longer, or leaves rows alone at first."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of compaction."""

    run: str
    table: int
    table_name: str
    state: RunState
    trigger: str = "by hand"
    began_at_ms: int
    ended_at_ms: int = 0
    watermark: int = 0
    catalog: int = 0
    """The version of the catalog in force at the watermark: it was planned with that. As long as
    the run can be resumed, it needs it. 0: there was no table then, or it was not noted."""
    verify: bool = False
    trim: bool = True
    rewrite: bool = False
    read: Literal["auto", "segments", "flight"] = "auto"
    """How tasks read backlogs."""
    read_rate: int = 0
    write_rate: int = 0
    engine: Literal["", "spark", "local"] = ""
    """What carries the work out: Spark, or the process itself."""
    where: str = ""
    """On which Spark, or in which process; for people."""
    by: str = ""
    """The process that carries it out, or that has planned it: its machine and its number. Empty:
    a release noted the run that did not know this field."""
    resumed: int = 0
    seconds: float = 0.0
    error: str = ""
    ready_at_ms: int = 0
    """From when on the first of the rows is old enough that are too young; 0: there are none."""
    waits_for: WaitsFor = ""
    """Why not before."""
    watermark_held_by: tuple[str, ...] = ()
    """Who keeps the low watermark from passing that row, besides."""
    partitions: tuple[PartitionPlan, ...] = ()

    @property
    def rows_read(self) -> int:
        """Rows of backlogs that were read."""
        return sum(one.rows_read for one in self.partitions)

    @property
    def rows_live(self) -> int:
        """Rows that ledgers have now, without deletes."""
        return sum(one.rows_live for one in self.partitions)

    @property
    def deletes(self) -> int:
        """Deletes that ledgers have now: a reader may still have to see them."""
        return sum(one.deletes for one in self.partitions)

    @property
    def bytes_read(self) -> int:
        """From backlogs and ledgers. A backlog counts once for each pass over it: one for the keys,
        or one for each range of them if they did not fit into memory at once; and one for the rows.
        """
        return sum(one.bytes_read for one in self.partitions)

    @property
    def bytes_written(self) -> int:
        """Into ledgers."""
        return sum(one.bytes_written for one in self.partitions)

    @property
    def ledger_bytes(self) -> int:
        """What ledgers take now."""
        return sum(one.ledger_bytes for one in self.partitions)

    @property
    def trimmed_bytes(self) -> int:
        """What was cut off backlogs."""
        return sum(one.trimmed_bytes for one in self.partitions)

    @property
    def too_young_rows(self) -> int:
        """Rows that were too young to be compacted."""
        return sum(one.too_young_rows for one in self.partitions)

    @property
    def held_until(self) -> str:
        """When the first of those was written: when the low watermark has passed that, and the row
        is older than the table's `min_lag_ms`, it can be compacted. Empty: there are none.
        """
        return min((one.held_until for one in self.partitions if one.held_until), default="")

    @property
    def ready_at(self) -> str:
        """From when on the first of those is old enough; empty: there are none."""
        return time_text(self.ready_at_ms) if self.ready_at_ms else ""

    @property
    def hint(self) -> str:
        """What to do about rows that are too young; empty: there are none."""
        options = 'table.alter(options={{"{}": None}})'
        return young_hint(
            self,
            advance='db.advance_watermark("now")',
            unset=options,
            setting=("db.history", 'db.set_history("1 minute")'),
        )

    def partition(self, number: int) -> PartitionPlan | None:
        """What it does to one partition."""
        return next((one for one in self.partitions if one.partition == number), None)

    def with_partition(self, plan: PartitionPlan) -> RunRecord:
        """With what is new of one partition."""
        return self.with_partitions([plan])

    def with_partitions(self, plans: Iterable[PartitionPlan]) -> RunRecord:
        """With what is new of some partitions."""
        every = {one.partition: one for one in self.partitions}
        every.update((one.partition, one) for one in plans)
        return msgspec.structs.replace(self, partitions=tuple(every[at] for at in sorted(every)))


def young_hint(record: RunRecord, *, advance: str, unset: str, setting: tuple[str, str]) -> str:
    """What to do about rows that are too young, by the calls or commands that do it: which moves
    the low watermark, unsets an option, and shows and alters how far back tables are exact.
    """
    rows = record.too_young_rows
    if not rows or not record.ready_at_ms:
        return ""
    first = "It" if rows == 1 else "The first of them"
    shown, alter = setting
    if record.waits_for == "db.history":
        why = f"until then it can be asked for as of an earlier time ({shown})"
        now = f"To compact now, give up looking back: {advance}. To wait less from now on: {alter}."
    else:
        why = f"until then the table's option {record.waits_for} keeps it"
        now = f"To compact now: {unset.format(record.waits_for)}, then {advance}."
    words = f"{first} is old enough from {record.ready_at} on: {why}. Compact again then. {now}"
    if record.watermark_held_by:
        words += f" The low watermark is held by {', '.join(record.watermark_held_by)}."
    return words


def pointer_key(table: int, partition: int) -> bytes:
    """Where a partition's pointer is."""
    return b"%s%d.%d" % (POINTER_PREFIX, table, partition)


def pointer_prefix(table: int) -> bytes:
    """Where a table's pointers are."""
    return b"%s%d." % (POINTER_PREFIX, table)


def retired_prefix(table: int) -> bytes:
    """Where a table's retired ledgers are noted."""
    return b"%s%d." % (RETIRED_PREFIX, table)


def retired_key(table: int, partition: int, epoch: int) -> bytes:
    """Where a retired ledger is noted."""
    return b"%s%d.%d" % (retired_prefix(table), partition, epoch)


def parse_retired_key(key: bytes) -> tuple[int, int]:
    """The partition and the epoch of a retired ledger."""
    partition, epoch = key.split(b".")[-2:]
    return int(partition), int(epoch)


def table_of(key: bytes) -> int:
    """The table that a key of a ledger, of a run or of a claim belongs to."""
    for prefix in (RETIRED_PREFIX, POINTER_PREFIX, RUN_PREFIX, CLAIM_PREFIX):
        key = key.removeprefix(prefix)
    return int(key.partition(b".")[0])


def ledger_keys(table: int) -> tuple[RemoveRange, ...]:
    """Removes all that the metastore knows of a table's ledgers and runs."""
    starts = (
        pointer_prefix(table),
        retired_prefix(table),
        run_prefix(table),
        claim_prefix(table),
    )
    return tuple(RemoveRange(start, start[:-1] + b"/") for start in starts)  # `/` follows `.`


def run_prefix(table: int) -> bytes:
    """Where a table's runs are."""
    return b"%s%d." % (RUN_PREFIX, table)


def run_key(table: int, run: str) -> bytes:
    """Where a run is."""
    return run_prefix(table) + run.encode()


def claim_prefix(table: int) -> bytes:
    """Where the claim of a table is."""
    return b"%s%d." % (CLAIM_PREFIX, table)


def decode_record(value: Buffer, kind: type[T]) -> T:
    """A pointer, a retired ledger, a run or a claim, as it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a record of a ledger in the metastore can't be read: {error}") from error
