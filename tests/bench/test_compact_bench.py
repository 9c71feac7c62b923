"""Who has a turn in `lowmark bench compact`, and what must be left of the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.compact_figures import FIELDS, sides_of
from benchmarks.compact_session import start_seconds
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import (
    NOTHING,
    PARTITIONS,
    ROW_BYTES,
    Left,
    Truth,
    changes_of,
    left_in,
    rewrites_of,
)
from lowmark.errors import InvariantBroken


def test_only_what_a_figure_needs_has_a_turn() -> None:
    fields = {field.figure.name: field for field in FIELDS}

    def sides(*names: str, sizes: CompactSizes) -> set[object]:
        return set(sides_of({name: fields[name].compared(sizes) for name in names}))

    quick, full = CompactSizes.quick(), CompactSizes.full()
    assert sides("vs_copy", "second_run_bytes", sizes=full) == {"full", "copy", "second"}
    assert sides("rows_growth", sizes=full) == {"full", "half", "empty"}
    # and the turns of variants are taken only where there are variants
    assert sides("vs_polars", sizes=quick) == {"full", "polars"}
    assert sides("vs_polars", sizes=full) == {"full", "polars", "polars_plain_input"}


@pytest.mark.slow
@pytest.mark.release  # `tests/spark` has a session that compacts, in this process
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_session_is_started_in_a_process_of_its_own(here: Path) -> None:
    start = start_seconds(here, archive=False, count=1)
    assert 0 < start.session < start.first_job


# -- what must be left --------------------------------------------------------------------------

KEYS = 300


class Plain:
    """The same changes in one partition, put down by a plain program."""

    def __init__(self) -> None:
        self.truth = Truth(KEYS)
        self.changes: list[dict[str, Any]] = []
        for chunk in changes_of(3_000, KEYS, seed=5):
            first = len(self.changes)
            rows = chunk.as_arrow().to_pylist()
            self.changes += [row | {"_offset": first + at} for at, row in enumerate(rows)]
            self.truth.take(chunk)
            offsets = np.arange(first, first + len(rows), dtype=np.int64)
            self.truth.place(0, offsets, chunk.keys)

    def last(self) -> list[dict[str, Any]]:
        """The last change of each key, sorted by offset, deletes among them."""
        by_key = {row["k"]: row for row in self.changes}
        return sorted(by_key.values(), key=lambda row: int(row["_offset"]))


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain()


def batches_of(rows: list[dict[str, Any]], size: int = 64) -> list[pa.RecordBatch]:
    names = {"k": pa.int64(), "v": pa.string(), "_offset": pa.int64(), "_change": pa.string()}
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(rows, pa.schema(names)).to_batches(
        max_chunksize=size
    )
    return batches


def test_the_truth_is_what_a_plain_program_comes_to(plain: Plain) -> None:
    last = plain.last()
    kept = [row for row in last if row["_change"] == "upsert"]
    assert 0 < len(kept) < len(last)
    true = plain.truth.left()
    assert true.rows == len(kept)
    assert true == plain.truth.left([0])
    assert plain.truth.left([1]) == NOTHING
    assert plain.truth.rows_of(range(PARTITIONS)) == 3_000
    # and however the result is cut into batches, it is found in it
    for size in (1, 64, 10_000):
        assert left_in(batches_of(kept, size)) == true
    assert left_in(batches_of(last), deletes=True) == true


Spoil = Callable[[list[dict[str, Any]], Plain], list[dict[str, Any]]]


def one_is_missing(kept: list[dict[str, Any]], _: Plain) -> list[dict[str, Any]]:
    return kept[1:]


def one_is_older(kept: list[dict[str, Any]], plain: Plain) -> list[dict[str, Any]]:
    """Of one key, the change before the last."""
    last = kept[-1]
    older = [row for row in plain.changes if row["k"] == last["k"]][-2]
    return sorted([*kept[:-1], older], key=lambda row: int(row["_offset"]))


def one_has_another_value(kept: list[dict[str, Any]], _: Plain) -> list[dict[str, Any]]:
    return [kept[0] | {"v": kept[1]["v"]}, *kept[1:]]


def one_has_another_offset(kept: list[dict[str, Any]], _: Plain) -> list[dict[str, Any]]:
    return [*kept[:-1], kept[-1] | {"_offset": kept[-1]["_offset"] + 1}]


def a_deleted_key_is_back(kept: list[dict[str, Any]], plain: Plain) -> list[dict[str, Any]]:
    gone = next(row for row in plain.last() if row["_change"] == "delete")
    before = [row for row in plain.changes if row["k"] == gone["k"] and row is not gone]
    return sorted([*kept, before[-1]], key=lambda row: int(row["_offset"]))


@pytest.mark.parametrize(
    "spoil",
    [
        one_is_missing,
        one_is_older,
        one_has_another_value,
        one_has_another_offset,
        a_deleted_key_is_back,
    ],
)
def test_a_wrong_result_is_another_one(plain: Plain, spoil: Spoil) -> None:
    kept = [row for row in plain.last() if row["_change"] == "upsert"]
    assert left_in(batches_of(spoil(kept, plain)), deletes=True) != plain.truth.left()


def test_what_no_result_may_have_is_refused(plain: Plain) -> None:
    kept = [row for row in plain.last() if row["_change"] == "upsert"]
    for spoilt, why in (
        (plain.last(), "no delete is left"),
        ([kept[1], kept[0], *kept[2:]], "sorted by offset"),
        ([kept[0], *kept], "sorted by offset"),
        ([kept[0] | {"v": None}, *kept[1:]], "has a value"),
        ([kept[0] | {"v": "short"}, *kept[1:]], "is whole"),
    ):
        for size in (1, 64):
            with pytest.raises(InvariantBroken, match=why):
                left_in(batches_of(spoilt, size))


def test_rewritten_keys_count_with_their_new_values(plain: Plain) -> None:
    # given a truth to go on with, and some keys written once more
    chunk = rewrites_of(KEYS, 30, seed=9)
    truth = plain.truth.copy()
    truth.take(chunk)
    # then all of them are live, and the first truth is as it was
    assert len(set(chunk.keys.tolist())) == 30
    assert truth.left().rows >= plain.truth.left().rows
    assert truth.left().anywhere != plain.truth.left().anywhere
    assert plain.truth.left() == Plain().truth.left()


def test_a_row_has_100_bytes_and_one_in_a_hundred_is_a_delete() -> None:
    [chunk] = changes_of(20_000, 2_000, seed=1)
    batch = chunk.as_arrow()
    assert round(batch.select(["k", "v"]).nbytes / batch.num_rows) == ROW_BYTES
    deletes = pc.sum(pc.equal(batch.column("_change").cast(pa.string()), "delete")).as_py()
    assert 100 < deletes < 300
    assert Left(1, 2, 3, 4) + Left(1, 2, 3, (1 << 64) - 4) == Left(2, 4, 6, 0)
