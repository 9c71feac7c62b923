"""How a run of compaction is said: to people in tables and lines, to programs in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lowmark.cli.database import bytes_text, times_text
from lowmark.cli.output import Cell, show_facts, show_table
from lowmark.client import PartitionPlan, RunRecord
from lowmark.formatting import counted, time_text
from lowmark.runtime import HybridTime, millis_of

_TOTALS = (
    "rows_read",
    "rows_live",
    "rows_died",
    "deletes",
    "deletes_dropped",
    "bytes_read",
    "bytes_written",
    "ledger_bytes",
    "trimmed_bytes",
    "too_young_rows",
)


# -- for programs -------------------------------------------------------------------------------


def run_row(record: RunRecord) -> dict[str, Any]:
    """A run in one row: what it was, what it did, what it cost."""
    totals = {name: sum(getattr(one, name) for one in record.partitions) for name in _TOTALS}
    return {
        "run": record.run,
        "table": record.table_name,
        "state": record.state,
        "trigger": record.trigger,
        "began": time_text(record.began_at_ms),
        "ended": time_text(record.ended_at_ms) if record.ended_at_ms else None,
        "seconds": round(record.seconds, 3),
        "engine": record.engine or None,
        "where": record.where,
        "watermark": time_text(millis_of(HybridTime(record.watermark)))
        if record.watermark
        else None,
        "verify": record.verify,
        "trim": record.trim,
        "rewrite": record.rewrite,
        "read_rate": record.read_rate,
        "write_rate": record.write_rate,
        "resumed": record.resumed,
        "error": record.error or None,
        **totals,
        "held_until": record.held_until or None,
    }


def run_json(record: RunRecord) -> dict[str, Any]:
    """All of it, partition by partition."""
    partitions = [
        {
            name: None if value == "" else value
            for name, value in msgspec.structs.asdict(one).items()
        }
        for one in record.partitions
    ]
    return run_row(record) | {"partitions": partitions}


# -- for people ---------------------------------------------------------------------------------


def show_runs(rows: Sequence[dict[str, Any]]) -> None:
    """Runs, one a line."""
    columns = (
        "run",
        "table",
        "state",
        "trigger",
        "began",
        "seconds",
        "rows_read",
        "rows_live",
        "read",
        "written",
        "engine",
        "where",
    )
    shown = [
        row | {"read": bytes_text(row["bytes_read"]), "written": bytes_text(row["bytes_written"])}
        for row in rows
    ]
    show_table(shown, columns=columns, as_json=False)


def show_plan(record: RunRecord) -> None:
    """What a run would do."""
    rows: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "from": one.low,
            "horizon": one.horizon,
            "rows": one.rows,
            "bytes": bytes_text(one.bytes),
            "too_young": one.too_young_rows,
            "until_watermark": one.held_until or None,
            "note": one.why or None,
        }
        for one in record.partitions
    ]
    _show(rows, unless_empty=("until_watermark", "note"))
    print()
    todo = [one for one in record.partitions if one.state != "skipped"]
    if not todo:
        print(_nothing(record))
    else:
        size = bytes_text(sum(one.bytes for one in todo))
        rows_read = sum(one.rows for one in todo)
        print(
            f"a run would compact {counted(rows_read, 'row')}, {size} of the backlog, of"
            f" {counted(len(todo), 'partition')} of {record.table_name}"
        )
    _show_young(record)


def show_done(record: RunRecord) -> None:
    """What a run has done, and what it could not do and why."""
    _show_partitions(record)
    print()
    print(_summary(record))
    _show_young(record)
    _show_held(record)


def _show_partitions(record: RunRecord) -> None:
    if any(one.state != "skipped" for one in record.partitions):
        _show(
            [_work_row(one) for one in record.partitions],
            unless_empty=("rows_died", "deletes_dropped", "note"),
        )
        print()
    standing: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "horizon": one.horizon,
            "trimmed_to": one.trimmed_to or None,
            "trimmed": bytes_text(one.trimmed_bytes),
            "held_by": ", ".join(one.held_by) or None,
            "too_young": one.too_young_rows,
            "until_watermark": one.held_until or None,
        }
        for one in record.partitions
    ]
    _show(standing, unless_empty=("held_by", "until_watermark"))


def _work_row(one: PartitionPlan) -> dict[str, Cell]:
    return {
        "partition": one.partition,
        "rows_read": one.rows_read,
        "rows_live": one.rows_live,
        "rows_died": one.rows_died,
        "deletes_kept": one.deletes,
        "deletes_dropped": one.deletes_dropped,
        "read": bytes_text(one.bytes_read),
        "written": bytes_text(one.bytes_written),
        "ledger": bytes_text(one.ledger_bytes),
        "note": one.why or ("" if one.state == "adopted" else one.state) or None,
    }


def _show(rows: Sequence[dict[str, Cell]], *, unless_empty: Sequence[str]) -> None:
    """A table without those columns that say nothing."""
    columns = [
        name for name in rows[0] if name not in unless_empty or any(row[name] for row in rows)
    ]
    show_table(rows, columns=columns, as_json=False)


def _summary(record: RunRecord) -> str:
    if all(one.state == "skipped" for one in record.partitions):
        words = _nothing(record)
        if record.trimmed_bytes:
            words += f"; {bytes_text(record.trimmed_bytes)} of the backlog were trimmed"
        return words
    return (
        f"compacted {record.table_name} in {record.seconds:.2f} s ({_place(record)}):"
        f" {counted(record.rows_read, 'row')} read → {record.rows_live:,} live{_deletes(record)},"
        f" {bytes_text(record.bytes_read)} read, {bytes_text(record.bytes_written)} written,"
        f" ledgers take {bytes_text(record.ledger_bytes)},"
        f" {bytes_text(record.trimmed_bytes)} trimmed; run {record.run}"
    )


def _deletes(record: RunRecord) -> str:
    if not record.deletes:
        return ""
    return f" and {counted(record.deletes, 'delete')} that readers have not passed"


def _place(record: RunRecord) -> str:
    return f"in {record.where}" if record.engine == "local" else f"on Spark, {record.where}"


def _nothing(record: RunRecord) -> str:
    why = " and ".join(dict.fromkeys(one.why for one in record.partitions if one.why))
    return f"nothing to do for {record.table_name}: {why}"


def _show_young(record: RunRecord) -> None:
    rows = record.too_young_rows
    if not rows:
        return
    verb = "is" if rows == 1 else "are"
    print(
        f"{counted(rows, 'row')} {verb} too young: the first of them waits until the"
        f" low watermark has passed {record.held_until} (`lowmark watermark`), or for the table's"
        " min_lag_ms, if it has one"
    )


def _show_held(record: RunRecord) -> None:
    names = dict.fromkeys(name for one in record.partitions for name in one.held_by)
    if names:
        print(
            f"the backlog below the horizon is kept for {', '.join(names)}"
            f" (`lowmark explain {record.table_name}`)"
        )


def show_noted(record: RunRecord) -> None:
    """All that is noted of a run that is over, or was interrupted."""
    row = run_row(record)
    facts: dict[str, Cell] = {
        "run": row["run"],
        "table": row["table"],
        "state": row["state"],
        "trigger": row["trigger"],
        "began": row["began"],
        "ended": row["ended"],
        "took": times_text(round(record.seconds * 1_000)),
        "engine": row["engine"],
        "where": row["where"],
        "low_watermark": row["watermark"],
        "verify": row["verify"],
        "trim": row["trim"],
        "rewrite": row["rewrite"],
        "read_rate": _rate(record.read_rate),
        "write_rate": _rate(record.write_rate),
        "resumed": counted(record.resumed, "time") if record.resumed else None,
        "error": row["error"],
    }
    show_facts(facts, as_json=False)
    if record.partitions:
        print()
        _show_partitions(record)


def _rate(rate: int) -> str:
    return f"{bytes_text(rate)}/s" if rate else "no limit"
