"""What is kept of a table, and for whom; what became of a key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.backend.values import Found, PartitionStatus, Staging
from lowmark.catalog import Table, duration_text
from lowmark.client.lookup import Lookup
from lowmark.convert.times import time_text
from lowmark.errors import LowmarkError
from lowmark.formatting import counted, times_text, verb
from lowmark.holds import Hold
from lowmark.ledger import read_adopted
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import Adopted, table_mark


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a partition's backlog, from where on, and what that keeps."""

    kind: str
    name: str
    partition: int
    offset: int
    age_ms: int
    why: str
    keeps_bytes: int
    """What lies behind it in the backlog: without it and those before it, that could go. 0 of one
    that is listed for the deletes that it holds."""


@dataclass(frozen=True, slots=True)
class LedgerExplanation:
    """The ledger that a partition is read from: it has what lies below its horizon."""

    epoch: int
    horizon: int
    deletes_below: int
    """Deletes below this offset may be gone from it."""
    rows: int | None
    """Of each key the last one, without deletes; None if the ledger can't be read."""
    bytes: int | None
    problem: str = ""
    """Why it can't be read."""
    deletes: int | None = None
    """That it still has, for readers which have not passed them."""


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """One partition's backlog, and its ledger."""

    partition: int
    start: int
    end: int
    horizon: int
    batches: int
    bytes: int
    closed: str
    """No row up to this time will ever be added."""
    holders: tuple[Holder, ...]
    ledger: LedgerExplanation | None = None
    delete_holders: tuple[Holder, ...] = ()
    """Who has yet to pass deletes: from its offset on, they stay."""


@dataclass(frozen=True, slots=True)
class TableExplanation:
    """What is kept of a table."""

    table: str
    partitions: tuple[PartitionExplanation, ...]
    rows: int
    bytes: int
    kept_because: str
    """Why the backlog is kept apart from any holder."""

    @property
    def holders(self) -> tuple[Holder, ...]:
        """All holders, those that keep most first."""
        every = [holder for partition in self.partitions for holder in partition.holders]
        return tuple(sorted(every, key=lambda one: (-one.keeps_bytes, one.name, one.partition)))

    @property
    def delete_holders(self) -> tuple[Holder, ...]:
        """All who have yet to pass deletes, those that are furthest behind first."""
        every = [holder for partition in self.partitions for holder in partition.delete_holders]
        return tuple(sorted(every, key=lambda one: (one.offset, one.name, one.partition)))

    @property
    def ledger_rows(self) -> int:
        """Rows that ledgers have, without deletes."""
        return sum(ledger.rows or 0 for ledger in self._ledgers)

    @property
    def ledger_deletes(self) -> int:
        """Deletes that ledgers still have."""
        return sum(ledger.deletes or 0 for ledger in self._ledgers)

    @property
    def readable_rows(self) -> int:
        """Rows that ledgers have, and changes of the backlog that are not in them yet: what a
        compacted reader is given, without the deletes of ledgers.
        """
        after = sum(max(0, one.end - max(one.start, one.horizon)) for one in self.partitions)
        return self.ledger_rows + after

    @property
    def ledger_bytes(self) -> int:
        """What ledgers take."""
        return sum(ledger.bytes or 0 for ledger in self._ledgers)

    @property
    def _ledgers(self) -> list[LedgerExplanation]:
        return [one.ledger for one in self.partitions if one.ledger is not None]

    def __str__(self) -> str:
        size = f"{counted(self.rows, 'row')}, {self.bytes} bytes"
        size += f" in {counted(len(self.partitions), 'partition')}"
        lines = [f"table {self.table}: {size}", self.kept_because]
        if self._ledgers:
            below = ", ".join(f"{one.partition}: {one.horizon}" for one in self.partitions)
            lines.append(
                f"ledgers: {counted(self.ledger_rows, 'row')}, {self.ledger_bytes} bytes, of all"
                f" offsets below {below}"
            )
        lines += [
            f"  {holder.kind} {holder.name} holds partition {holder.partition} from"
            f" {holder.offset} on, {holder.keeps_bytes} bytes, for {holder.age_ms} ms: {holder.why}"
            for holder in self.holders
        ]
        lines += [
            f"  {holder.kind} {holder.name} holds deletes of partition {holder.partition} from"
            f" {holder.offset} on, for {holder.age_ms} ms: {holder.why}"
            for holder in self.delete_holders
        ]
        lines += [f"  {one.problem}" for one in self._ledgers if one.problem]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """What became of a key."""

    key: tuple[object, ...]
    state: str
    """`live`, `deleted` or `unknown`."""
    partition: int
    offset: int | None = None
    time: str = ""
    row: Mapping[str, Any] | None = field(default=None)
    source: str = ""
    """Where its last change was found: `backlog`, or `ledger` if the backlog does not have it any
    more; empty if nothing has it."""
    in_ledger: bool = False
    """Whether the ledger has that change; the backlog may have it, too, for a reader."""

    @property
    def places(self) -> tuple[str, ...]:
        """All that has its last change: `ledger`, `backlog`, both, or nothing."""
        places = ("ledger",) if self.in_ledger else ()
        return (*places, "backlog") if self.source == "backlog" else places

    def __str__(self) -> str:
        where = f"partition {self.partition}"
        if self.state == "unknown":
            return f"key {self.key} is unknown: {where} has no row of it"
        word = "was deleted" if self.state == "deleted" else "is there"
        where = f"{where}, offset {self.offset}, in the {' and the '.join(self.places)}"
        return f"key {self.key} {word}: {where}, {self.time}"


Explanation = TableExplanation | KeyExplanation


def explain_key(lookup: Lookup, values: Sequence[object]) -> KeyExplanation:
    """Whether a key is there, was deleted, or is unknown."""
    found = lookup.find(values)
    key = tuple(
        lookup.converts[name](value) if name in lookup.converts else value
        for name, value in zip(lookup.key_names, values, strict=True)
    )
    if found is None:
        return KeyExplanation(key, "unknown", lookup.partition_of(values))
    return KeyExplanation(
        key,
        "deleted" if found.deleted else "live",
        found.partition,
        found.offset,
        time_text(found.time),
        found.row,
        "ledger" if found.in_ledger else "backlog",
        found.in_ledger or _has_too(lookup.backend, lookup.table, found),
    )


def _has_too(backend: Backend, table: Table, found: Found) -> bool:
    """Whether a ledger has a change that was found in the backlog, too."""
    [view] = backend.views(table.id, [found.partition]).values()
    ledger = view.readable
    if ledger is None or found.offset >= ledger.horizon:
        return False
    return not found.deleted or found.offset >= ledger.deletes_below


def explain_table(
    backend: Backend, table: Table, partitions: Collection[int], ledgers: Ledgers
) -> TableExplanation:
    """What is kept of a table, and for whom."""
    found = backend.status(table.id, partitions)
    watermark = backend.watermark().value
    explained = tuple(
        _partition(found[number], ledgers, _own_history(table, found[number], watermark))
        for number in partitions
    )
    return TableExplanation(
        table.name,
        explained,
        sum(one.end - one.start for one in explained),
        sum(one.bytes for one in explained),
        why_kept(table),
    )


def _own_history(table: Table, status: PartitionStatus, watermark: int) -> list[Holder]:
    """The table's own history, where it keeps rows that a run could compact without it."""
    view, history_ms = status.view, table.settings.history_ms
    if history_ms is None:
        return []
    mark = table_mark(table, watermark=watermark, wall_ms=status.wall_ms)
    offset = max(view.offset_after(mark), status.horizon, view.start)
    free = view.offset_after(watermark)
    if offset >= free:
        return []
    kept = duration_text(history_ms)
    written = millis_of(HybridTime(int(view.columns.time[view.batch_at(offset)])))
    return [
        Holder(
            "history",
            kept,
            status.partition,
            offset,
            max(0, status.wall_ms - written),
            f"the table's option history keeps its past exact for {kept}",
            view.bytes_from(offset) - view.bytes_from(free),
        )
    ]


def _partition(
    status: PartitionStatus, ledgers: Ledgers, own: list[Holder]
) -> PartitionExplanation:
    view = status.view
    holders = own + [
        _holder(status, hold, view.bytes_from(hold.lowest() or 0))
        for hold in status.backlog_holders()
    ]
    on_deletes = [
        _holder(status, hold, 0)
        for hold in status.delete_holders()
        if (hold.lowest() or 0) < view.end
    ]
    if status.staging is not None:
        holders.append(_staged(status, status.staging))
    return PartitionExplanation(
        status.partition,
        view.start,
        view.end,
        status.horizon,
        view.count,
        int(view.size.sum()),
        time_text(view.closed),
        tuple(sorted(holders, key=lambda one: (one.offset, one.name))),
        _ledger(view.ledger, ledgers),
        tuple(sorted(on_deletes, key=lambda one: (one.offset, one.name))),
    )


def _staged(status: PartitionStatus, staging: Staging) -> Holder:
    """Rows that were staged: they have no offset yet, and are kept in the log."""
    since_ms = staging.since_ms
    return Holder(
        "staged",
        counted(staging.transactions, "writer"),
        status.partition,
        status.view.end,
        0 if since_ms is None else max(0, status.wall_ms - since_ms),
        f"{counted(staging.rows, 'row')} {verb(staging.rows, 'wait')} for a commit, and"
        f" {verb(staging.rows, 'are')} dropped after a day without, when all partitions have"
        " answered",
        staging.bytes,
    )


def _holder(status: PartitionStatus, hold: Hold, keeps_bytes: int) -> Holder:
    age_ms = max(0, status.wall_ms - hold.since_ms)
    offset = hold.lowest() or 0
    why = hold.why
    if hold.kind == "cursor" and hold.expires_at_ms is not None:
        left_ms = max(0, hold.expires_at_ms - status.wall_ms)
        why += f", so it expires in {times_text(left_ms)} unless its reader moves it"
    return Holder(hold.kind, hold.holder, status.partition, offset, age_ms, why, keeps_bytes)


def _ledger(adopted: Adopted | None, ledgers: Ledgers) -> LedgerExplanation | None:
    """What a ledger has; says so if it can't be read, since that is what the caller looks for."""
    if adopted is None:
        return None
    facts = (adopted.epoch, adopted.horizon, adopted.deletes_below)
    try:
        manifest = read_adopted(ledgers.store, adopted)
    except LowmarkError as error:
        return LedgerExplanation(*facts, None, None, error.message)
    return LedgerExplanation(
        *facts, manifest.live_rows, manifest.bytes, deletes=manifest.live_deletes
    )


def why_kept(table: Table) -> str:
    """Why a table's backlog is kept, apart from those who hold it."""
    settings = table.settings
    if settings.retention_ms is not None or settings.retention_bytes is not None:
        limits = []
        if settings.retention_ms is not None:
            limits.append(f"for {settings.retention_ms} ms")
        if settings.retention_bytes is not None:
            limits.append(f"up to {settings.retention_bytes} bytes a partition")
        return f"Rows are kept {' and '.join(limits)} (retention)."
    if not table.key or settings.compaction == "off":
        return "Rows are kept for good: the table has no retention."
    if settings.history_ms is not None:
        return (
            f"Rows are kept for {duration_text(settings.history_ms)} (history), and until a"
            " compaction has put them into a ledger."
        )
    return "Rows are kept until a compaction has put them into a ledger."
