"""What `lowmark status` says of tables: how much is there, its holders, and what needs a look.

A node says what it knows of the partitions that it leads, so that the parts of all nodes add up; a
partition without a leader is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowmark.catalog import DEFAULT_SCHEMA, Catalog, Table, TableId
from lowmark.node.messages import HolderRow, TableRow, WarningRow, WatermarkStatus
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import State, Tables
from lowmark.table.watermark import WatermarkStanding

PINNED_BYTES_MAX = 1 << 30
"""A cursor that keeps more than this is worth a look."""
WAITING_MS_MAX = 3_600_000
"""So is one that has let rows wait for longer than this,"""
HELD_MS_MAX = 600_000
"""and a reader that has held the low watermark for longer than this."""


class CursorPart(msgspec.Struct, frozen=True, array_like=True):
    """A cursor, as far as one node can tell."""

    name: str
    pinned_bytes: int
    waiting_ms: int
    """For how long it has not moved while rows were there for it; 0 if it has seen all."""
    overdue: bool


class TablePart(msgspec.Struct, frozen=True, array_like=True):
    """What one node leads of a table."""

    id: int
    name: str
    partitions: int
    """Of the whole table; 0 if it was dropped."""
    here: int
    rows: int
    bytes: int
    cursors: tuple[CursorPart, ...] = ()


def parts_here(catalog: Catalog, tables: Tables, *, now_ms: int) -> list[TablePart]:
    """What this node leads."""
    led = [one for one in tables.all() if one.group.leads]
    return parts_of(catalog, ((one.table, one.state) for one in led), now_ms=now_ms)


def parts_of(
    catalog: Catalog, states: Iterable[tuple[TableId, State]], *, now_ms: int
) -> list[TablePart]:
    """What is there, of every table of which there are partitions."""
    by_table: dict[TableId, list[State]] = {}
    for owner, state in states:
        by_table.setdefault(owner, []).append(state)
    found = []
    for table_id, mine in sorted(by_table.items()):
        table = catalog.table(table_id)
        found.append(
            TablePart(
                table_id,
                _name(catalog, table_id, table),
                0 if table is None else table.partitions,
                len(mine),
                sum(state.backlog.end - state.backlog.start for state in mine),
                sum(int(state.backlog.view.size.sum()) for state in mine),
                _summed(part for state in mine for part in _cursors(state, now_ms)),
            )
        )
    return found


def _name(catalog: Catalog, table_id: TableId, table: Table | None) -> str:
    if table is None:
        return f"table {table_id} (dropped)"
    return catalog.name_of(table).removeprefix(f"{DEFAULT_SCHEMA}.")


def _cursors(state: State, now_ms: int) -> Iterable[CursorPart]:
    view = state.backlog.view
    for cursor in state.cursors.values():
        waiting_ms = 0
        if cursor.offset < view.end and view.count:
            first = int(view.time[min(view.batch_at(cursor.offset), view.count - 1)])
            waiting_ms = max(0, now_ms - max(_millis(first), _millis(cursor.moved)))
        holds = cursor.kind == "raw" and not cursor.overdue
        pinned = view.bytes_from(cursor.offset) if holds else 0
        yield CursorPart(cursor.name, pinned, waiting_ms, cursor.overdue)


def _summed(parts: Iterable[CursorPart]) -> tuple[CursorPart, ...]:
    found: dict[str, CursorPart] = {}
    for part in parts:
        other = found.get(part.name)
        found[part.name] = part if other is None else _both(other, part)
    return tuple(found[name] for name in sorted(found))


def _both(one: CursorPart, other: CursorPart) -> CursorPart:
    return CursorPart(
        one.name,
        one.pinned_bytes + other.pinned_bytes,
        max(one.waiting_ms, other.waiting_ms),
        one.overdue or other.overdue,
    )


# -- of all nodes -------------------------------------------------------------------------------


def _added(parts: Iterable[TablePart]) -> list[TablePart]:
    found: dict[int, TablePart] = {}
    for part in parts:
        other = found.get(part.id)
        if other is None:
            found[part.id] = part
            continue
        # Who has not heard of a drop yet still knows the name.
        known = part if part.partitions else other
        found[part.id] = TablePart(
            part.id,
            known.name,
            known.partitions,
            other.here + part.here,
            other.rows + part.rows,
            other.bytes + part.bytes,
            _summed([*other.cursors, *part.cursors]),
        )
    return sorted(found.values(), key=lambda part: (not part.partitions, part.name))


def table_rows(parts: Iterable[TablePart]) -> tuple[TableRow, ...]:
    """Tables as they are shown."""
    return tuple(
        TableRow(
            name=part.name,
            partitions=part.partitions,
            here=part.here,
            rows=part.rows,
            bytes=part.bytes,
            cursors=len(part.cursors),
        )
        for part in _added(parts)
    )


def cursor_warning(*, pinned_bytes: int, waiting_ms: int, overdue: bool) -> tuple[str, str]:
    """Which kind of look a cursor needs, and why, in words; empty if it needs none."""
    if overdue:
        return "cursor-overdue", "is overdue: it holds nothing any more, and may miss rows"
    if pinned_bytes > PINNED_BYTES_MAX:
        return "cursor-pins", f"keeps {pinned_bytes / (1 << 30):,.1f} GiB of the backlog"
    if waiting_ms > WAITING_MS_MAX:
        return "cursor-waits", f"has let rows wait for {waiting_ms / 3_600_000:,.1f} hours"
    return "", ""


def warnings_of(
    parts: Iterable[TablePart], watermark: WatermarkStatus | None, *, now_ms: int
) -> tuple[WarningRow, ...]:
    """What needs a look."""
    found = []
    for part in _added(parts):
        for cursor in part.cursors:
            kind, why = cursor_warning(
                pinned_bytes=cursor.pinned_bytes,
                waiting_ms=cursor.waiting_ms,
                overdue=cursor.overdue,
            )
            if kind:
                text = f"cursor {cursor.name} of {part.name} {why}"
                found.append(WarningRow(kind=kind, table=part.name, holder=cursor.name, text=text))
    for holder in watermark.holders if watermark is not None else ():
        held_ms = now_ms - holder.since_ms
        if held_ms > HELD_MS_MAX:
            text = (
                f"{holder.holder} has held the low watermark for {held_ms / 60_000:,.0f} minutes:"
                f" {holder.why}"
            )
            found.append(WarningRow(kind="watermark-held", holder=holder.holder, text=text))
    return tuple(found)


def watermark_status(standing: WatermarkStanding) -> WatermarkStatus:
    """The low watermark as it is shown."""
    return WatermarkStatus(
        time_ms=_millis(standing.value),
        goal_ms=_millis(standing.goal),
        holders=tuple(
            HolderRow(
                holder=hold.holder,
                time_ms=_millis(hold.lowest() or 0),
                since_ms=hold.since_ms,
                why=hold.why,
            )
            for hold in standing.holds
        ),
    )


def _millis(time: int) -> int:
    return millis_of(HybridTime(time))
