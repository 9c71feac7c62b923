"""Table functions for SQL: `SELECT * FROM lowmark_tables()`.

`register` binds them to a database, for one session. Each call opens the database where Spark runs
it; `lowmark_compact` writes a plan and waits for the worker that carries it out, so a task never
compacts by itself. Spark may run a task again: then a plan that waits already is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.functions import udtf

from lowmark.client import Table
from lowmark.convert.times import datetime_of
from lowmark.frames.errors import OptionRefused, WorkerMissing
from lowmark.frames.opening import opened
from lowmark.frames.options import Options
from lowmark.ledger.records import RunRecord
from lowmark.runtime import COUNTER_BITS

_LOOKS_EVERY_S: Final = 0.25
_TABLES = (
    "name string, partitions int, key array<string>, columns string, rows bigint, bytes bigint"
)
_HOLDERS = "partition int, kind string, name string, why string, offset bigint, keeps_bytes bigint"
_RUNS = (
    "run string, state string, trigger string, engine string, began timestamp, ended timestamp,"
    " rows_read bigint, rows_live bigint, bytes_read bigint, bytes_written bigint, error string"
)


def register(spark: Any, *, path: str = "", node: str = "") -> None:
    """Give a session the functions `lowmark_tables`, `lowmark_explain`, `lowmark_runs` and
    `lowmark_compact`, of one database.
    """
    given = {"path": path, "node": node, "table": "-"}
    place = Options.read({key: text for key, text in given.items() if text})
    for name, made in _functions(place).items():
        spark.udtf.register(name, made)


def _functions(place: Options) -> dict[str, Any]:
    """Classes that carry the place with them: Spark pickles them whole."""

    class Tables:
        def eval(self) -> Iterator[tuple[Any, ...]]:
            with opened(place) as database:
                for name in database.tables():
                    yield _described(database[name])

    class Explain:
        def eval(self, table: str) -> Iterator[tuple[Any, ...]]:
            with opened(place) as database:
                for one in database[_named(table)].explain().holders:
                    yield one.partition, one.kind, one.name, one.why, one.offset, one.keeps_bytes

    class Runs:
        def eval(self, table: str) -> Iterator[tuple[Any, ...]]:
            with opened(place) as database:
                for one in database[_named(table)].runs():
                    yield _run(one)

    class Compact:
        def eval(self, table: str, wait_s: float = 600.0) -> Iterator[tuple[Any, ...]]:
            with opened(place, writes=True) as database:
                yield _run(_compacted(database[_named(table)], float(wait_s)))

    # Not by Arrow: that takes pandas, for a few rows.
    kinds = {Tables: _TABLES, Explain: _HOLDERS, Runs: _RUNS, Compact: _RUNS}
    return {
        f"lowmark_{kind.__name__.lower()}": udtf(kind, returnType=columns, useArrow=False)
        for kind, columns in kinds.items()
    }


def _named(table: str | None) -> str:
    if not table:
        raise OptionRefused("no table is named", hint="Name it: lowmark_runs('orders').")
    return table


def _described(table: Table) -> tuple[Any, ...]:
    found = table.explain()
    columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    return table.name, table.partitions, list(table.key), columns, found.readable_rows, found.bytes


def _run(one: RunRecord) -> tuple[Any, ...]:
    ended = datetime_of(one.ended_at_ms << COUNTER_BITS) if one.ended_at_ms else None
    return (
        one.run,
        one.state,
        one.trigger,
        one.engine,
        datetime_of(one.began_at_ms << COUNTER_BITS),
        ended,
        one.rows_read,
        one.rows_live,
        one.bytes_read,
        one.bytes_written,
        one.error,
    )


def _compacted(table: Table, wait_s: float) -> RunRecord:
    """Plan a run, unless one is planned, and wait for its end."""
    planned = next((one for one in table.runs() if one.state == "planned"), None)
    run = table.compact(detach=True) if planned is None else planned
    ends_at = time.monotonic() + wait_s
    while run.state in {"planned", "running"}:
        if time.monotonic() > ends_at:
            raise WorkerMissing(run.run, waited_s=wait_s)
        time.sleep(_LOOKS_EVERY_S)
        run = next((one for one in table.runs() if one.run == run.run), run)
    return run
