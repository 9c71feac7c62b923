"""Table functions for SQL: `SELECT * FROM lowmark_tables()`.

`register` binds them to a database, for one session. Each call opens the database where Spark runs
it, and one task gives all of its rows. `lowmark_changes` has the columns of its table, for which
Spark asks when it analyzes the query: so the table and the columns must be constants, and all else
may come from a row of another table. `lowmark_compact` writes a plan and waits for the worker that
carries it out, so a task never compacts by itself. Spark may run a task again: then a plan that
waits already is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lowmark.client import HistoryLine, Table
from lowmark.convert.times import datetime_of
from lowmark.frames.carrying import carried_source, worded_function
from lowmark.frames.changes import changed_rows
from lowmark.frames.columns import spark_schema
from lowmark.frames.errors import OptionRefused, WorkerMissing
from lowmark.frames.opening import opened
from lowmark.frames.options import Options, placed_at
from lowmark.frames.reading import schema_of
from lowmark.frames.source import LowmarkSource
from lowmark.ledger.records import RunRecord
from lowmark.runtime import COUNTER_BITS
from lowmark.spark.python import python_of

_LOOKS_EVERY_S: Final = 0.25
_TABLES = (
    "name string, partitions int, key array<string>, columns string, rows bigint, bytes bigint"
)
_HOLDERS = "partition int, kind string, name string, why string, offset bigint, keeps_bytes bigint"
_RUNS = (
    "run string, state string, trigger string, engine string, began timestamp, ended timestamp,"
    " rows_read bigint, rows_live bigint, bytes_read bigint, bytes_written bigint, error string"
)
_HISTORY = (
    "at timestamp, kind string, operation string, by string, what string, schema_version bigint,"
    " catalog_version bigint, run string, rows bigint, bytes bigint, offsets map<int, bigint>"
)
Place: TypeAlias = int | str | datetime | None
"""Of changes: a version; `earliest`, `latest`, a version or a time as text, offsets as JSON; or a
timestamp."""


def register(spark: Any, *, path: str = "", node: str | Sequence[str] = "") -> None:
    """Make `format("lowmark")` known to a session that does not find it by itself: one whose Python
    (`python3`, if `PYSPARK_PYTHON` names no other) is not the one that has Lowmark.

    With `path` or `node`, give it the functions `lowmark_tables`, `lowmark_explain`,
    `lowmark_runs`, `lowmark_history`, `lowmark_changes` and `lowmark_compact`, of that database.
    """
    functions = {}
    if path or node:
        functions = _functions(Options.read(placed_at(path, node, table="-")))
    # Spark Connect has no context here: there, the server's Python is taken.
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    with nullcontext() if connect else python_of(spark.sparkContext):
        _register_source(spark)
        for name, made in functions.items():
            spark.udtf.register(name, made)


def _register_source(spark: Any) -> None:
    try:
        spark.dataSource.register(carried_source(LowmarkSource))
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # it was found by itself
            raise


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

    class History:
        def eval(self, table: str) -> Iterator[tuple[Any, ...]]:
            with opened(place) as database:
                for one in database[_named(table)].history():
                    yield _line(one)

    class Changes:
        def __init__(self, analyzed: AnalyzeResult) -> None:
            self._schema = analyzed.schema

        @staticmethod
        def analyze(
            table: AnalyzeArgument,
            start: AnalyzeArgument | None = None,
            end: AnalyzeArgument | None = None,
            preimages: AnalyzeArgument | None = None,
            net: AnalyzeArgument | None = None,
            columns: AnalyzeArgument | None = None,
        ) -> AnalyzeResult:
            del start, end, preimages, net  # they say which rows, not which columns
            names = None if columns is None else _constant("columns", columns)
            feed = _feed(place, _constant("table", table), columns=names)
            return AnalyzeResult(spark_schema(schema_of(feed)))

        def eval(
            self,
            table: str,
            start: Place = None,
            end: Place = None,
            preimages: bool = True,
            net: bool = False,
            columns: str | None = None,
        ) -> Iterator[tuple[Any, ...]]:
            flags = {"preimages": str(preimages), "net": str(net)}
            places = _place("starting", start) | _place("ending", end)
            yield from changed_rows(
                _feed(place, table, columns=columns, **places, **flags), self._schema
            )

    # Not by Arrow: that takes pandas, for a few rows.
    kinds = {
        Tables: _TABLES,
        Explain: _HOLDERS,
        Runs: _RUNS,
        History: _HISTORY,
        Changes: None,
        Compact: _RUNS,
    }
    return {
        f"lowmark_{kind.__name__.lower()}": udtf(
            worded_function(kind), returnType=columns, useArrow=False
        )
        for kind, columns in kinds.items()
    }


def _named(table: str | None) -> str:
    if not table:
        raise OptionRefused("no table is named", hint="Name it: lowmark_runs('orders').")
    return table


def _constant(name: str, given: AnalyzeArgument) -> Any:
    """An argument that says which columns there are."""
    if not given.isConstantExpression:
        raise OptionRefused(
            f"{name} is not a constant: the columns of changes depend on it",
            hint="Name it: lowmark_changes('orders').",
        )
    return given.value


def _feed(place: Options, table: str | None, *, columns: str | None, **given: str) -> Options:
    """Changes of a table as `readChangeFeed` has them."""
    named = {"path": place.path, "node": place.node, "columns": columns}
    there = {name: text for name, text in named.items() if text}
    return Options.read({**there, "table": _named(table), "readChangeFeed": "true", **given})


def _place(which: str, given: Place) -> dict[str, str]:
    """The option that a place is given by."""
    if given is None:
        return {}
    if isinstance(given, datetime):  # Spark gives local times without a zone
        return {f"{which}Timestamp": given.astimezone(UTC).isoformat()}
    text = str(given).strip()
    if text.startswith("{"):
        return {f"{which}Offsets": text}
    kind = "Version" if text in {"earliest", "latest"} or text.isdecimal() else "Timestamp"
    return {f"{which}{kind}": text}


def _line(one: HistoryLine) -> tuple[Any, ...]:
    offsets = None if one.offsets is None else dict(one.offsets)
    return (
        one.at,
        one.kind,
        one.operation,
        one.by,
        one.what,
        one.schema_version,
        one.catalog_version,
        one.run,
        one.rows,
        one.bytes,
        offsets,
    )


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
