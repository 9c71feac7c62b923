"""Upserts into a large table, against a merge into a table of Delta Lake by its Python package.

Both tables have all keys once, in Parquet: ours was compacted. Then some keys, scattered over the
whole table, get new values, again and again. Each side has a process of its own, which stays for
all rounds, so its memory can be looked at.

What is compared
    The time until every reader that begins has the new values: `upsert` has returned, and so has
    `merge`. Ours is on the disk then; Delta Lake does not sync its files.

What it does not say
    A merge writes anew all files that have one of the keys. We leave that to a run of compaction,
    and readers put both together until then. So two variants count more: the upsert with a run
    after it, and the upsert with a reader after it that reads a column of all keys.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import lowmark
from benchmarks.compact_memory import Peak
from benchmarks.compact_peers import find_peer
from benchmarks.figure import Compared, Figure, Pair, Round, Side, Take, Target, ratio
from benchmarks.runner import Bench, Plan, measures
from benchmarks.spark_sizes import SparkSizes
from benchmarks.spark_workload import COLUMNS, pieces_of, rows_of
from benchmarks.stopwatch import Stopwatch
from clusters.processes import Child, Children, Parent
from lowmark.errors import invariant

find_delta = partial(find_peer, "deltalake")
UPSERT = Figure("upsert_vs_delta", Target(3.0), "ms", needs=find_delta)
MEMORY = Figure("upsert_memory_vs_delta", Target(None), "MB", needs=find_delta)
SHARE = 100
"""One key of this many is changed."""
PARTITIONS = 2
SIDES = "ours", "delta"
DEADLINE_S = 1_800.0


class Order(msgspec.Struct, frozen=True):
    """What a side does next; it answers with what it took."""

    do: Literal["make", "upsert", "read", "compact"]
    seed: int = 0
    """Of the values that are made."""


class Done(msgspec.Struct, frozen=True):
    """What it took, and what a reader has found."""

    seconds: float
    rows: int = 0
    total: int = 0
    """The sum of the column."""


# -- the bench --------------------------------------------------------------------------------


@measures(UPSERT, MEMORY, runs="upsert_runs")
def upserts(bench: Bench[SparkSizes]) -> Iterator[Plan]:
    """Give some keys new values."""
    keys = bench.sizes.upsert_keys
    with bench.fresh_folder() as root, Children(root) as children:
        bench.say(f"preparing two tables of {keys:,} keys")
        sides = [
            children.start("benchmarks.spark_upserts", name, str(root / name), str(keys), name=name)
            for name in SIDES
        ]
        for child in sides:
            child.receive(bool, deadline_s=DEADLINE_S)
        yield Plan(turns=[_Rounds(bench, keys, *sides).turn], compared=_compared(keys))


class _Rounds:
    """Both sides get the same values, and must have the same afterwards."""

    def __init__(self, bench: Bench[SparkSizes], keys: int, *sides: Child) -> None:
        self._bench = bench
        self._keys = keys
        self._sides = sides
        self._seeds = itertools.count(2)
        self._before = 0

    def turn(self, _: Path) -> Round:
        """One after the other."""
        seed = next(self._seeds)
        taken: dict[Hashable, Side] = {}
        found = {child.name: self._take(child, seed, taken) for child in self._sides}
        ours, delta = (found[name] for name in SIDES)
        invariant(ours.rows == delta.rows == self._keys, "all keys are there once")
        invariant(ours.total == delta.total != self._before, "both have the new values")
        self._before = ours.total
        return taken

    def _take(self, child: Child, seed: int, taken: dict[Hashable, Side]) -> Done:
        def ask(order: Order) -> Done:
            return child.ask(order, Done, deadline_s=DEADLINE_S)

        ask(Order("make", seed))
        self._bench.settle()
        with Peak(lambda: [child.pid]) as peak:
            stored = ask(Order("upsert"))
        read = ask(Order("read"))
        compacted = ask(Order("compact"))
        name, rows = child.name, self._keys // SHARE
        taken[name] = Side(rows, stored.seconds, held_bytes=peak.bytes)
        taken[f"{name} with run"] = Side(rows, stored.seconds + compacted.seconds)
        taken[f"{name} with reader"] = Side(rows, stored.seconds + read.seconds)
        return read


def _compared(keys: int) -> dict[str, Compared]:
    shape = (
        f"{keys // SHARE:,} of {keys:,} keys, scattered, five columns; one client, one batch; ours:"
        f" a directory that its process has open, {PARTITIONS} partitions, compacted before; peer:"
        " `merge` of the Python package deltalake on a table in this file system, until it returns"
    )
    return {
        UPSERT.name: Compared(
            _times("ours", "delta"),
            f"the time of the peer over that of `upsert`: {shape}; with a run: a run of compaction"
            " in the same process is added to ours; with a reader: on both sides, a read of one"
            " column of all keys right after it",
            {
                "with_a_run": _times("ours with run", "delta"),
                "with_a_reader": _times("ours with reader", "delta with reader"),
            },
        ),
        MEMORY.name: Compared(
            ratio(_megabytes("ours"), _megabytes("delta"), *SIDES),
            "the most memory that is not files, of the process that upserts, with its rows and what"
            f" its program takes; {shape}",
        ),
    }


def _times(ours: str, peer: str) -> Pair:
    def milliseconds(side: str) -> Take:
        return lambda one: one[side].seconds * 1e3

    return Pair(
        sides=(ours, peer),
        value=lambda one: one[peer].seconds / one[ours].seconds,
        ours=milliseconds(ours),
        peer=milliseconds(peer),
    )


def _megabytes(side: str) -> Take:
    return lambda one: one[side].held_bytes / 1e6


# -- the sides --------------------------------------------------------------------------------


class _Ours:
    def __init__(self, folder: Path, keys: int) -> None:
        self._database = lowmark.open(folder)
        self._table = self._database.create_table("rows", COLUMNS, key="id", partitions=PARTITIONS)
        for part in pieces_of(range(keys)):
            self._table.append(rows_of(part, seed=1))
        self.compact()

    def upsert(self, rows: pa.Table) -> None:
        self._table.upsert(rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._table.read(columns=["count"], as_of=self._table.snapshot().time) as reader:
            yield from reader

    def compact(self) -> None:
        self._database.advance_watermark(self._table.snapshot().time)
        run = self._table.compact(engine="local")
        invariant(run.state == "done", f"the run is {run.state}")

    def close(self) -> None:
        self._database.close()


class _Delta:
    def __init__(self, folder: Path, keys: int) -> None:
        self._folder = str(folder)
        self._delta: Any = importlib.import_module("deltalake")
        for part in pieces_of(range(keys)):
            self._delta.write_deltalake(self._folder, rows_of(part, seed=1), mode="append")
        # Many small files would be a disadvantage.
        self._delta.DeltaTable(self._folder).optimize.compact()

    def upsert(self, rows: pa.Table) -> None:
        table = self._delta.DeltaTable(self._folder)
        merge = table.merge(rows, "old.id = new.id", source_alias="new", target_alias="old")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def batches(self) -> Iterator[pa.RecordBatch]:
        files = self._delta.DeltaTable(self._folder).to_pyarrow_dataset()
        yield from files.to_batches(columns=["count"])

    def compact(self) -> None:
        """A merge has done it."""

    def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    """Make a table, and do what the parent asks for, again and again."""
    parent = Parent()
    name, folder, keys = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    side = _Ours(folder, keys) if name == "ours" else _Delta(folder, keys)
    parent.send(True)
    rows = pa.table({})
    for order in parent.messages(Order):
        done = Done(0.0)
        match order.do:
            case "make":
                rows = rows_of(_some_keys(keys, order.seed), seed=order.seed)
            case "upsert":
                done = Done(_seconds(partial(side.upsert, rows)))
            case "read":
                done = _read(side)
            case "compact":
                done = Done(_seconds(side.compact))
        parent.send(done)
    side.close()


def _some_keys(keys: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).choice(keys, keys // SHARE, replace=False)


def _seconds(work: Callable[[], None]) -> float:
    with Stopwatch() as watch:
        work()
    return watch.seconds()


def _read(side: _Ours | _Delta) -> Done:
    rows = total = 0
    with Stopwatch() as watch:
        for batch in side.batches():
            rows += batch.num_rows
            total += pc.sum(batch.column("count")).as_py() or 0
    return Done(watch.seconds(), rows, total)


if __name__ == "__main__":
    main()
