"""Filters as Spark pushes them, several at a time and at random: what is taken and what Spark still
filters afterwards are together what Python leaves of a full scan, judged as Spark does.

For Spark NaN equals itself and is above all other numbers. `LOWMARK_FILTER_CASES=10000` says how
many are tried.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as sp

import lowmark
from client.random_filters import exact
from client.random_tables import POOLS, Drawn, draw, near
from frames.alone import sent
from lowmark.frames.columns import spark_schema
from lowmark.frames.filters import taken
from lowmark.frames.options import Options
from lowmark.frames.reading import PushingReader
from lowmark.ledger import files, tail

CASES = int(os.environ.get("LOWMARK_FILTER_CASES", "100"))
CASES_OF_A_TABLE = 100
THE_WHOLE_WAY = 25
"""One case in this many goes through a reader as Spark has it: pickled, a task for each part."""
SEED = int(os.environ.get("LOWMARK_FILTER_SEED", "1"))
COMPARED: dict[Any, Callable[[int], bool]] = {
    sp.EqualTo: lambda order: order == 0,
    sp.EqualNullSafe: lambda order: order == 0,
    sp.GreaterThan: lambda order: order > 0,
    sp.GreaterThanOrEqual: lambda order: order >= 0,
    sp.LessThan: lambda order: order < 0,
    sp.LessThanOrEqual: lambda order: order <= 0,
}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 500)


@dataclass
class Count:
    """What was tried, and what came of it."""

    taken: int = 0
    left: int = 0
    rows: int = 0
    passed: int = 0


@pytest.mark.slow
def test_pushed_filters_leave_what_python_leaves(tmp_path: Path) -> None:
    count = Count()
    for seed in range(SEED, SEED + -(-CASES // CASES_OF_A_TABLE)):
        with lowmark.open(tmp_path / str(seed)) as db:
            drawn = draw(db, seed)
            for case in range(min(CASES, CASES_OF_A_TABLE)):
                check_one(drawn, tmp_path / str(seed), count, whole=not case % THE_WHOLE_WAY)
    assert 0 < count.passed < count.rows
    assert count.taken > count.left > 0


@pytest.mark.release  # the same test with 100 cases is above
@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", range(10))
def test_pushed_filters_leave_what_python_leaves_ten_thousand_times(
    tmp_path: Path, part: int
) -> None:
    count = Count()
    for seed in range(1_000 * part + 3_000, 1_000 * part + 3_010):
        with lowmark.open(tmp_path / str(seed)) as db:
            drawn = draw(db, seed)
            for case in range(CASES_OF_A_TABLE):
                check_one(drawn, tmp_path / str(seed), count, whole=not case % THE_WHOLE_WAY)


def check_one(drawn: Drawn, folder: Path, count: Count, *, whole: bool) -> None:
    """Some filters, of the table as of a time."""
    dice, table = drawn.dice, drawn.table
    moment = dice.choice(drawn.moments)
    kinds = {"id": "int64", **moment.kinds}
    names = list(kinds)
    schema = table.read(as_of=moment.time, columns=names, limit=0).schema
    filters = [drawn_filter(dice, kinds) for _ in range(dice.randrange(1, 5))]
    told = f"table {table.name} as of {moment.time}: {filters}"
    if whole:
        words = {"path": str(folder), "table": table.name, "versionAsOf": str(moment.time)}
        reader = PushingReader(Options.read(words).for_read(), spark_schema(schema))
        left = list(reader.pushFilters(list(filters)))
        task = sent(reader)
        batches = [one for part in reader.partitions() for one in task.read(sent(part))]
        found = pa.Table.from_batches(batches).to_pylist() if batches else []
    else:
        left, where = taken(filters, schema)
        found = table.read(as_of=moment.time, columns=names, where=where).to_arrow().to_pylist()
    rows = table.read(as_of=moment.time, columns=names).to_arrow().to_pylist()
    expected = [row for row in rows if all(truth(one, row) is True for one in filters)]
    after = [row for row in found if all(truth(one, row) is True for one in left)]
    assert exact(after, names) == exact(expected, names), told
    count.taken += len(filters) - len(left)
    count.left += len(left)
    count.rows += len(rows)
    count.passed += len(expected)


def drawn_filter(dice: Random, kinds: Mapping[str, str]) -> Any:
    """One of those that Spark pushes."""
    name = dice.choice(sorted(kinds))
    kind = kinds[name]
    at = (name,)
    if dice.random() < 0.15:
        return sp.Not(drawn_filter(dice, {name: kind}))
    value: Any = dice.randrange(60) if name == "id" else near(dice, kind)
    draw = dice.random()
    if draw < 0.15:
        return dice.choice((sp.IsNull, sp.IsNotNull))(at)
    if draw < 0.4:
        some = [value, *(dice.choice(POOLS[kind]) for _ in range(dice.randrange(4)))]
        return sp.In(at, tuple([*some, None] if dice.random() < 0.2 else some))
    if kind == "string" and draw < 0.7:
        part = value[: dice.randrange(3)]
        ways = (sp.StringStartsWith, sp.StringEndsWith, sp.StringContains)
        return dice.choice(ways)(at, part)
    if draw < 0.5:
        return sp.EqualNullSafe(at, None if dice.random() < 0.4 else value)
    return dice.choice(sorted(COMPARED, key=lambda one: one.__name__))(at, value)


def truth(one: Any, row: Mapping[str, Any]) -> bool | None:
    """What Spark takes it to be of a row; None: it is not known."""
    if isinstance(one, sp.Not):
        found = truth(one.child, row)
        return None if found is None else not found
    value = row[one.attribute[0]]
    match one:
        case sp.IsNull():
            return value is None
        case sp.IsNotNull():
            return value is not None
        case sp.EqualNullSafe() if value is None or one.value is None:
            return value is None and one.value is None
    if value is None:
        return None
    match one:
        case sp.In():
            if any(other is not None and ordered(value, other) == 0 for other in one.value):
                return True
            return None if None in one.value else False
        case sp.StringStartsWith():
            return bool(value.startswith(one.value))
        case sp.StringEndsWith():
            return bool(value.endswith(one.value))
        case sp.StringContains():
            return bool(one.value in value)
        case _:
            return COMPARED[type(one)](ordered(value, one.value))


def ordered(one: Any, other: Any) -> int:
    """Below 0, 0 or above 0, in Spark's order."""
    if isinstance(one, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) - math.isnan(other)
    return int(one > other) - int(one < other)
