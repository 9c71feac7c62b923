"""What a directory answers, as JSON can hold it."""

from __future__ import annotations

from typing import Any

from lowmark.client import Database, Reader


def rows_of(reader: Reader, key: str) -> list[dict[str, Any]]:
    """All rows, in the order of a column, as text where JSON has no such value."""
    rows = [{name: _plain(value) for name, value in row.items()} for row in reader.to_pylist()]
    return sorted(rows, key=lambda row: (row[key] is None, row[key]))


def answers_of(db: Database) -> dict[str, Any]:
    """By every way to ask."""
    orders, events = db.table("orders"), db.table("events")
    snapshot = orders.snapshot()
    offsets = orders.read(compacted=True, columns=["id", "_partition", "_offset", "_change"])
    return {
        "tables": db.tables(),
        "schema": [f"{field.name}: {field.type}" for field in orders.schema],
        "ends": {str(number): end for number, end in sorted(snapshot.ends.items())},
        "now": rows_of(orders.read(as_of=snapshot.time), "id"),
        "compacted": rows_of(offsets, "id"),
        "left in the backlog": orders.read(start="earliest").to_arrow().num_rows,
        "got": [orders.get(key) and _row(orders.get(key)) for key in (3, 7, 8, 59, 69, 100, 101)],
        "events": rows_of(events.read(), "what"),
        "cursors": {
            one.name: [one.kind, {str(at): offset for at, offset in one.position.items()}]
            for one in orders.cursors.list()
        },
        "runs": [one.state for one in orders.runs()],
        "ledgers sound": [not verdict.problems for verdict in orders.verify_ledgers()],
    }


def _row(row: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str | list | None) else str(value)
