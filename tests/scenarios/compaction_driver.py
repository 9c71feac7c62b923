"""Plans of compaction over small histories: what a run would do to each partition, and why not.

The partitions are real machines, moved by commands; no row is ever written, since a plan looks at
none. What a plan asks of a database (where partitions stand, the published pointers, the low
watermark and the time) is answered from them. Times are milliseconds since 1970. A batch has 100
bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import cast

import msgspec

from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend, HasBackend
from lowmark.backend.values import Moment, PartitionStatus
from lowmark.catalog import Catalog, ColumnId, Table, TableId, TableSchema
from lowmark.catalog.catalog import EMPTY
from lowmark.catalog.descriptors import SchemaId, ZoneId
from lowmark.compaction.context import CancelToken, RunContext, RunOptions
from lowmark.compaction.plan import PlanInput
from lowmark.compaction.records import Records
from lowmark.compaction.run import Run
from lowmark.errors import LowmarkError
from lowmark.holds import Hold
from lowmark.ledger import PartitionPlan, Pointer
from lowmark.ledger.manifest import LedgerFile
from lowmark.ledger.policy import Room, fates
from lowmark.ledger.records import pointer_key
from lowmark.metastore import Entry
from lowmark.runtime import COUNTER_BITS
from lowmark.runtime.store import Store
from lowmark.table import Adopt, Trim
from lowmark.table.adopting import DIGEST_BYTES
from lowmark.table.commands import (
    APPEND,
    NO_PRODUCER,
    Batch,
    Change,
    Control,
    CreateCursor,
    MoveCursor,
    TakeLease,
)
from lowmark.table.producers import Appended
from lowmark.table.state import State, Trimmed
from lowmark.table.watermark import WatermarkStanding
from scenarios.runner import Command, ScenarioBroken

__all__ = ["CompactionDriver"]

TABLE = TableId(1)
NOTHING_IS_STORED = "/nonexistent"
"""Where a plan would look for files: it must not."""
ROW_BYTES = 100


class _History:
    """Partitions, and what was published of them: as much of a database as a plan asks for."""

    caller = ""

    def __init__(self, partitions: int) -> None:
        self.states = [State() for _ in range(partitions)]
        self.pointers: dict[int, Pointer] = {}
        self.index = 0
        self.now_ms = 0
        self.watermark_ms = 0

    def apply(self, partition: int, command: Batch | Control, *, size: int = 0) -> object:
        self.index += 1
        time = self.now_ms << COUNTER_BITS
        state = self.states[partition]
        outcome = state.apply(command, index=self.index, time=time, size=size)
        if isinstance(outcome, LowmarkError):
            raise outcome
        return outcome

    # -- what a plan asks for -------------------------------------------------------------------

    def status(
        self, table: TableId, partitions: Collection[int] | None = None
    ) -> dict[int, PartitionStatus]:
        assert table == TABLE
        wanted = range(len(self.states)) if partitions is None else sorted(partitions)
        return {number: self._status(number) for number in wanted}

    def _status(self, number: int) -> PartitionStatus:
        state = self.states[number]
        return PartitionStatus(
            number,
            state.backlog.view,
            state.expired,
            tuple(state.cursors.values()),
            tuple(state.leases.values()),
            max(self.now_ms, state.closed >> COUNTER_BITS),
            self.now_ms,
        )

    def get(self, key: bytes) -> Entry | None:
        for number, pointer in self.pointers.items():
            if key == pointer_key(TABLE, number):
                return Entry(key, msgspec.json.encode(pointer), 1, 1, 1, 0)
        return None

    def watermark(self, *, latest: bool = False) -> WatermarkStanding:
        assert latest, "a plan goes by what the metastore knows"
        value = self.watermark_ms << COUNTER_BITS
        return WatermarkStanding(value, 0, value, ())

    def now(self) -> Moment:
        return Moment(self.now_ms << COUNTER_BITS, self.now_ms)

    def catalog_at(self, time: int) -> Catalog:
        assert time > 0, "no version is in force before the first moment"
        return EMPTY


class CompactionDriver:
    """Handles the commands of a file."""

    def __init__(self) -> None:
        self._history = _History(1)
        self._options: tuple[tuple[str, str], ...] = ()
        self._commands: dict[str, Callable[[Command], str]] = {
            "table": self._make,
            "set": self._set,
            "append": lambda c: self._append(c, Change.UPSERT),
            "delete": lambda c: self._append(c, Change.DELETE),
            "now": self._now,
            "watermark": self._watermark,
            "cursor": self._cursor,
            "commit": self._commit,
            "lease": self._lease,
            "publish": self._publish,
            "adopt": self._adopt,
            "trim": lambda c: self._trim(c, expire=False),
            "expire": lambda c: self._trim(c, expire=True),
            "plan": self._plan,
            "deletes": self._deletes,
            "files": self._files,
        }

    def __call__(self, command: Command) -> str:
        if command.name not in self._commands:
            raise ScenarioBroken(f"there is no command `{command.name}`")
        return self._commands[command.name](command)

    # -- a history ------------------------------------------------------------------------------

    def _make(self, command: Command) -> str:
        self._history = _History(command.number("partitions", 1))
        self._options = ()
        return self._set(command)

    def _set(self, command: Command) -> str:
        """Set options of the table; the least lag, for one."""
        given = [name for name in command.options if name != "partitions"]
        kept = [one for one in self._options if one[0] not in given]
        self._options = tuple(sorted([*kept, *((name, command.text(name)) for name in given)]))
        return ""

    def _now(self, command: Command) -> str:
        self._history.now_ms = int(command.word())
        return ""

    def _watermark(self, command: Command) -> str:
        self._history.watermark_ms = int(command.word())
        return ""

    def _append(self, command: Command, change: Change) -> str:
        """Append a batch to a partition; `at` moves the time."""
        self._history.now_ms = command.number("at", self._history.now_ms)
        rows = command.number("rows", 1)
        batch = Batch(APPEND, change, 0, rows, 1, NO_PRODUCER, 0, 0, 0)
        done = self._history.apply(int(command.word()), batch, size=ROW_BYTES * rows)
        assert isinstance(done, Appended)
        return f"offsets {done.first} to {done.first + rows - 1}"

    def _cursor(self, command: Command) -> str:
        kind = "compacted" if command.flag("compacted") else "raw"
        name, offset = command.text("name"), command.number("offset")
        max_lag = command.number("max_lag_rows")
        self._history.apply(
            int(command.word()),
            CreateCursor(name, 1, kind, offset, max_lag_rows=max_lag),  # type: ignore[arg-type]
        )
        return ""

    def _commit(self, command: Command) -> str:
        move = MoveCursor(command.text("name"), command.number("offset"))
        self._history.apply(int(command.word()), move)
        return ""

    def _lease(self, command: Command) -> str:
        take = TakeLease(command.text("name"), 1, command.number("offset"), command.number("ms"))
        self._history.apply(int(command.word()), take)
        return ""

    def _publish(self, command: Command) -> str:
        """A run has written a ledger, and its pointer is in the metastore."""
        partition, epoch = int(command.word()), command.number("epoch")
        self._history.pointers[partition] = Pointer(
            manifest=command.text("manifest", f"manifest-{epoch}"),
            horizon=command.number("horizon"),
            epoch=epoch,
            digest="",
            deletes_below=command.number("deletes_below"),
        )
        return ""

    def _adopt(self, command: Command) -> str:
        """A partition reads what was published; or another ledger, if one is named."""
        partition = int(command.word())
        there = self._history.pointers.get(partition)
        epoch = command.number("epoch", there.epoch if there else 0)
        adopt = Adopt(
            epoch,
            command.text("manifest", there.manifest if there else f"manifest-{epoch}"),
            command.number("horizon", there.horizon if there else 0),
            bytes(DIGEST_BYTES),
            command.number("deletes_below", there.deletes_below if there else 0),
        )
        self._history.apply(partition, adopt)
        return ""

    def _trim(self, command: Command, *, expire: bool) -> str:
        """Cut the backlog: up to the ledger's horizon, or (`expire`) whatever has the rows."""
        trim = Trim(command.number("to"), expire)
        done = self._history.apply(int(command.word()), trim)
        assert isinstance(done, Trimmed)
        return f"the backlog begins at {done.safe.position}{_held(done.safe.held_by)}"

    # -- what is planned ------------------------------------------------------------------------

    def _table(self) -> Table:
        return Table(
            id=TABLE,
            schema_id=SchemaId(1),
            zone_id=ZoneId(1),
            name="orders",
            schemas=(TableSchema(number=1, columns=()),),
            next_column_id=ColumnId(1),
            partitions=len(self._history.states),
            options=self._options,
        )

    def _records(self) -> Records:
        return Records(cast("HasBackend", SimpleNamespace(backend=self._history)))

    def _plan(self, command: Command) -> str:
        """As a dry run prints it; `begun`, as a run does that leaves out what is damaged."""
        backend = cast("Backend", self._history)
        context = RunContext(
            backend=backend,
            ledgers=Ledgers(Store(NOTHING_IS_STORED)),
            records=self._records(),
            table=self._table(),
            partitions=tuple(range(len(self._history.states))),
            options=RunOptions(rewrite=command.flag("rewrite")),
            run="a run",
            token=CancelToken("a run"),
        )
        dry = not command.flag("begun")
        record = Run(context, sweep=lambda table: None).plan(dry=dry)
        return "\n".join(_described(plan) for plan in record.partitions)

    def _deletes(self, command: Command) -> str:
        """Which deletes a run may drop, and whose they are that it may not."""
        del command
        records = self._records()
        lines = []
        for number, status in self._history.status(TABLE).items():
            given = PlanInput.of(status, records.pointer(TABLE, number), watermark=0)
            text = f"{number}: below {given.deletes_below}{_held(status.delete_holders())}"
            gone = f", below {given.deletes_gone} they may be gone" if given.deletes_gone else ""
            lines.append(text + gone)
        return "\n".join(lines)

    def _files(self, command: Command) -> str:
        """What becomes of each file of a ledger; a line of input is one: its rows, and the dead."""
        files = []
        for line in command.input:
            rows, dead = map(int, line.split())
            files.append(_file(rows, dead))
        room = Room(command.number("fits"), 1 << 40)
        found = fates(files, tail_rows=command.number("tail"), room=room)
        return "\n".join(
            f"{file.rows - file.dead_rows} of {file.rows} live: {fate}"
            for file, fate in zip(files, found, strict=True)
        )


def _described(plan: PartitionPlan) -> str:
    if plan.why and plan.state == "planned":
        return f"{plan.partition}: left out: {plan.why}"
    text = f"{plan.partition}: {plan.state}"
    text += f" ({plan.why})" if plan.why else ""
    text += f", low {plan.low}, horizon {plan.horizon}, {plan.rows} rows, {plan.bytes} bytes"
    text += f", after {plan.base} of epoch {plan.base_epoch}" if plan.base else ""
    if plan.too_young_rows:
        text += f", {plan.too_young_rows} too young"
    return text + (f", the first of {plan.held_until}" if plan.held_until else "")


def _held(holds: Collection[Hold]) -> str:
    return "".join(f", held by {one.kind} {one.holder} at {one.lowest()}" for one in holds)


def _file(rows: int, dead: int) -> LedgerFile:
    """What a plan looks at of a file; the rest says nothing."""
    return LedgerFile(
        path="f",
        bytes=rows,
        rows=rows,
        first=0,
        last=rows,
        schema=1,
        checksum=0,
        footer_bytes=0,
        footer_checksum=0,
        chunks="",
        dead_rows=dead,
        digest="",
    )
