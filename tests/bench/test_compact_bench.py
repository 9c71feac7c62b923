"""`lowmark bench compact`, with amounts too small to mean anything, and what must be left."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

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
from benchmarks.suites import COMPACT_FIELDS, CompactSizes
from lowmark.cli.app import app
from lowmark.errors import InvariantBroken

runner = CliRunner()

FIGURE = {
    "value",
    "target",
    "aim",
    "at_least",
    "met",
    "ours",
    "peer",
    "unit",
    "spread",
    "runs",
    "notes",
    "variants",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory without settings; afterwards logging is as it was."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in [each for each in os.environ if each.startswith("LOWMARK_")]:
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield folder
    root.handlers[:] = handlers
    ours.setLevel(level)


# -- the command --------------------------------------------------------------------------------


def bench(here: Path, *more: str) -> dict[str, Any]:
    """In a process of its own: a process has one Spark session at a time."""
    done = subprocess.run(
        [sys.executable, "-m", "lowmark", "bench", "compact", "--json", "--tiny", *more],
        cwd=here,
        # A test leaves nothing in the user's cache.
        env=os.environ | {"XDG_CACHE_HOME": str(here.parent / "cache")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    # a miss is a result, not a failure
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_every_figure_can_be_measured(here: Path) -> None:
    report = bench(here)
    assert set(report) == {
        *COMPACT_FIELDS,
        "apart",
        "details",
        "skipped",
        "machine",
        "settings",
    }
    assert report["skipped"].keys() <= {"vs_duckdb", "vs_polars", "memory_vs_duckdb"}
    for name in COMPACT_FIELDS.keys() - report["skipped"].keys():
        one = report["details"][name]
        assert set(one) >= FIGURE - {"variants"}
        assert report[name] == one["value"] > 0
        assert (one["target"], one["unit"]) == (
            COMPACT_FIELDS[name].target.limit,
            COMPACT_FIELDS[name].unit,
        )
        assert one["spread"][0] <= one["value"] <= one["spread"][1]
        assert set(one.get("variants", {})) == set(COMPACT_FIELDS[name].variants)
    assert set(report["apart"]) == {
        "empty_job_seconds",
        *(
            f"{what}_{how}_seconds"
            for what in ("session_start", "first_job")
            for how in ("with_archive", "without_archive")
        ),
    }
    assert all(seconds > 0 for seconds in report["apart"].values())
    assert {"cores", "system", "python", "versions"} == set(report["machine"])
    assert report["settings"]["mode"] == "tiny"
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_only_what_is_asked_for_is_measured(here: Path) -> None:
    report = bench(here, "--only", "vs_copy", "--figure", "second_run_bytes")
    assert [name for name in report if name in COMPACT_FIELDS] == ["vs_copy", "second_run_bytes"]
    assert set(report["details"]) == {"vs_copy", "second_run_bytes"}
    assert report["apart"] == {}
    assert list(here.iterdir()) == []


def test_without_its_peer_a_figure_is_left_out_with_a_clear_line(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a Python without DuckDB and Polars
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    names = ("vs_duckdb", "vs_polars", "memory_vs_duckdb")
    words = [word for name in names for word in ("--only", name)]
    # when only those are wanted that need them
    command = ["bench", "compact", "--tiny", "--dir", str(here), *words]
    told = runner.invoke(app, [*command, "--json"])
    shown = runner.invoke(app, command)
    # then nothing is measured, and it is said why
    assert (told.exit_code, shown.exit_code) == (0, 0)
    report = json.loads(told.stdout)
    assert [report[name] for name in names] == [None, None, None]
    assert report["details"] == {}
    for name in names:
        peer = "polars" if "polars" in name else "duckdb"
        assert f"{peer} is left out: it is not installed" in report["skipped"][name]
        assert f"{name}: {report['skipped'][name]}" in shown.stdout
        assert f"{name}: skipped" in told.stderr
    assert list(here.iterdir()) == []


def test_an_unknown_figure_is_wrong_use(here: Path) -> None:
    result = runner.invoke(app, ["bench", "compact", "--only", "vs_paper", "--dir", str(here)])
    assert result.exit_code == 2
    assert "vs_plain_spark" in result.stderr


def test_the_full_sizes_are_those_that_the_targets_name() -> None:
    for sizes in (CompactSizes.full(), CompactSizes.quick()):
        assert (sizes.rows, sizes.keys) == (20_000_000, 2_000_000)
        assert sizes.space_needed_bytes > 2 * sizes.rows * ROW_BYTES


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
