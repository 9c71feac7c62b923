"""What is kept of a table, and for whom; what became of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowmark.catalog import Table
from lowmark.client.embedded import Embedded
from lowmark.client.lookup import Lookup
from lowmark.client.times import time_text
from lowmark.group import when_all
from lowmark.holds import Hold
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import Partition, State, View, holds_of

__all__ = ["Explanation", "Holder", "KeyExplanation", "PartitionExplanation", "TableExplanation"]


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
    """What lies behind it in the backlog: without it and those before it, that could go."""


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """One partition's backlog."""

    partition: int
    start: int
    end: int
    horizon: int
    batches: int
    bytes: int
    closed: str
    """No row up to this time will ever be added."""
    holders: tuple[Holder, ...]


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

    def __str__(self) -> str:
        size = f"{self.rows} rows, {self.bytes} bytes in {len(self.partitions)} partitions"
        lines = [f"table {self.table}: {size}", self.kept_because]
        lines += [
            f"  {holder.kind} {holder.name} holds partition {holder.partition} from"
            f" {holder.offset} on, {holder.keeps_bytes} bytes, for {holder.age_ms} ms: {holder.why}"
            for holder in self.holders
        ]
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

    def __str__(self) -> str:
        where = f"partition {self.partition}"
        if self.state == "unknown":
            return f"key {self.key} is unknown: {where}'s backlog has no row of it"
        word = "was deleted" if self.state == "deleted" else "is there"
        return f"key {self.key} {word}: {where}, offset {self.offset}, {self.time}"


Explanation = TableExplanation | KeyExplanation


def explain_key(lookup: Lookup, values: Sequence[object]) -> KeyExplanation:
    """Whether a key is there, was deleted, or is unknown."""
    found = lookup.find(values)
    if found is None:
        return KeyExplanation(tuple(values), "unknown", lookup.partition_of(values))
    return KeyExplanation(
        tuple(values),
        "deleted" if found.deleted else "live",
        found.partition,
        found.offset,
        time_text(found.time),
        found.row,
    )


def explain_table(
    embedded: Embedded, table: Table, partitions: Mapping[int, Partition]
) -> TableExplanation:
    """What is kept of a table, and for whom."""
    asked = list(partitions.values())
    now_ms = embedded.node.loop.wall_ms()

    def look(state: State) -> tuple[View, list[Hold], int]:
        now = millis_of(HybridTime(state.closed))
        holds = list(holds_of(state.cursors, state.leases, now_ms=max(now, now_ms)))
        return state.backlog.view, holds, state.horizon

    found = embedded.ask(lambda: when_all([one.read(look) for one in asked]))
    explained = tuple(
        _partition(partition.number, view, holds, horizon, now_ms)
        for partition, (view, holds, horizon) in zip(asked, found, strict=True)
    )
    return TableExplanation(
        table.name,
        explained,
        sum(one.end - one.start for one in explained),
        sum(one.bytes for one in explained),
        _why(table),
    )


def _partition(
    number: int, view: View, holds: list[Hold], horizon: int, now_ms: int
) -> PartitionExplanation:
    size = int(view.size.sum())
    holders = []
    for hold in holds:
        offset = hold.lowest() or 0
        holders.append(
            Holder(
                hold.kind,
                hold.holder,
                number,
                offset,
                max(0, now_ms - hold.since_ms),
                hold.why,
                view.bytes_from(offset),
            )
        )
    holders.sort(key=lambda one: (one.offset, one.name))
    closed = time_text(view.closed)
    return PartitionExplanation(
        number, view.start, view.end, horizon, view.count, size, closed, tuple(holders)
    )


def _why(table: Table) -> str:
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
    return "Rows are kept until a compaction has put them into a ledger."
