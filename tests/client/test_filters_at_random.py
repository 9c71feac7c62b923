"""Filters of several conditions at random, in each way of reading, beside a full scan that Python
filters row by row: by Arrow's expressions and by text, over ledgers and what comes behind them.

`LOWMARK_FILTER_CASES=10000` says how many are tried; `LOWMARK_FILTER_SEED=17` begins with another
table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lowmark
from client.random_filters import SYSTEM, exact, passing, tree
from client.random_tables import Drawn, draw
from lowmark.backend.filtering import Filter
from lowmark.ledger import files, tail
from lowmark.table import Mask

CASES = int(os.environ.get("LOWMARK_FILTER_CASES", "100"))
CASES_OF_A_TABLE = 100
FILTERS_OF_A_WAY = 4
"""Of each full scan."""
SEED = int(os.environ.get("LOWMARK_FILTER_SEED", "1"))


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 500)


@pytest.mark.slow
def test_a_filter_gives_what_python_leaves_of_all_rows(tmp_path: Path) -> None:
    tables = range(SEED, SEED + -(-CASES // CASES_OF_A_TABLE))
    passed = kept = runs = 0
    for seed in tables:
        # given a table with a history
        with lowmark.open(tmp_path / str(seed)) as db:
            drawn = draw(db, seed)
            runs += drawn.runs
            check_moments(drawn)
            # when it is read by filters that are drawn
            for _ in range(min(CASES, CASES_OF_A_TABLE) // FILTERS_OF_A_WAY):
                given, expected = check_some(drawn)
                passed += expected
                kept += given
    # then each gave what it should; and some rows passed, and some did not
    assert runs
    assert 0 < passed < kept


@pytest.mark.release  # the same test with 100 cases is above
@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", range(10))
def test_filters_give_what_python_leaves_of_all_rows_ten_thousand_times(
    tmp_path: Path, part: int
) -> None:
    check_tables(tmp_path, range(1_000 * part + 2_000, 1_000 * part + 2_010))


def check_tables(folder: Path, seeds: range) -> None:
    """Tables, with a hundred filters each."""
    for seed in seeds:
        with lowmark.open(folder / str(seed)) as db:
            drawn = draw(db, seed)
            check_moments(drawn)
            for _ in range(CASES_OF_A_TABLE // FILTERS_OF_A_WAY):
                check_some(drawn)


def check_moments(drawn: Drawn) -> None:
    """A full scan as of a time is what the model had: else filtering it says little."""
    for moment in drawn.moments:
        columns = ["id", *moment.kinds]
        found = drawn.table.read(as_of=moment.time, columns=columns).to_arrow()
        assert sorted(exact(found.to_pylist(), columns)) == sorted(exact(moment.rows, columns))


def check_some(drawn: Drawn) -> tuple[int, int]:
    """Some filters of one way of reading; how many rows there were, and how many have passed."""
    kinds, way = way_of(drawn)
    every = [*kinds, *SYSTEM, "_time"]
    whole = drawn.table.read(columns=every, **way).to_arrow()
    rows = whole.to_pylist()
    passed = sum(
        check_one(drawn, {**kinds, **SYSTEM}, way, whole, rows) for _ in range(FILTERS_OF_A_WAY)
    )
    return len(rows) * FILTERS_OF_A_WAY, passed


def check_one(
    drawn: Drawn,
    kinds: dict[str, str],
    way: dict[str, Any],
    whole: pa.Table,
    rows: list[dict[str, Any]],
) -> int:
    """One filter; how many rows pass."""
    dice, table, every = drawn.dice, drawn.table, whole.column_names
    filter_ = tree(dice, kinds, whole.schema, depth=dice.randrange(4))
    text = filter_.text()
    where: Any = text if text is not None and dice.random() < 0.5 else filter_.arrow()
    columns = dice.choice((every, dice.sample(every, dice.randrange(len(every)))))
    limit = dice.randrange(20) if dice.random() < 0.2 else None
    expected = passing(filter_, rows)
    if "as_of" in way and dice.random() < 0.2:
        assert table.count(where=where, as_of=way["as_of"]) == len(expected), where
    if "_change" not in columns:
        expected = [row for row in expected if row["_change"] == "upsert"]
    expected = expected[:limit]
    told = f"table {table.name}, {way}, where {where}, columns {columns}, limit {limit}"
    found = table.read(columns=columns, where=where, limit=limit, **way).to_arrow()
    assert found.num_rows == len(expected), told
    if columns:
        assert found.schema == whole.select(columns).schema, told
        assert exact(found.to_pylist(), columns) == exact(expected, columns), told
    return len(expected)


def way_of(drawn: Drawn) -> tuple[dict[str, str], dict[str, Any]]:
    """How to read, and the columns that there are then."""
    dice = drawn.dice
    now = {"id": "int64", **drawn.kinds}
    match dice.randrange(5):
        case 0:
            return now, {"start": "earliest"}
        case 1:
            return now, {"compacted": True}
        case 2:
            start = {number: dice.randrange(200) for number in range(drawn.table.partitions)}
            ends = drawn.table.offsets("latest")
            start = {number: min(one, ends[number]) for number, one in start.items()}
            return now, {"compacted": True, "start": start, "on_gap": "skip"}
        case 3:
            return now, {"as_of": "now"}
        case _:
            moment = dice.choice(drawn.moments)
            return {"id": "int64", **moment.kinds}, {"as_of": moment.time}


@pytest.mark.release  # it is about this file alone
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["statistics", "nulls"])
def test_a_fault_in_filters_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    # given filters that trust what files say of columns that have another name or type, or NaN; or
    # that take what is not known for true
    if fault == "statistics":
        monkeypatch.setattr(Filter, "_is_as_stored", lambda *_: True)
    else:
        right = Filter.mask

        def wrong(self: Filter, columns: pa.RecordBatch) -> Mask:
            mask = right(self, columns)
            for name in self.names:
                mask = mask | columns.column(name).is_null().to_numpy(zero_copy_only=False)
            return mask

        monkeypatch.setattr(Filter, "mask", wrong)
    # then some case shows it
    with pytest.raises(
        AssertionError,
    ):
        check_tables(tmp_path, range(4_000, 4_010))
