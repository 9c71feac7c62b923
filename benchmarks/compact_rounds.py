"""The turns of `bench compact`: what they need, and what each of them came to.

All figures are made of the same rounds, because a run of compaction takes long and serves most of
them. What a turn needs is made before its clock starts. What came of it is held against the truth
once, after its clock has stopped: if a side is wrong, ours or a peer, the bench ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.compact_base import Base, make_base, opened_copy
from benchmarks.compact_figures import FIELDS, PLAIN_INPUT, sides_of
from benchmarks.compact_inputs import left_in_files, write_inputs, write_sample
from benchmarks.compact_memory import Peak
from benchmarks.compact_ours import compacted_by, left_in_table, read_whole
from benchmarks.compact_peers import Copying, Job, Peer, plain_spark
from benchmarks.compact_session import empty_job_seconds, opened_session, start_seconds
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import PARTITIONS, rewrites_of
from benchmarks.figure import Round, Side, rounded
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_workload import Opened
from clusters.processes import Children
from lowmark.errors import invariant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED, HALF_SEED, SECOND_SEED = 1, 2, 3


@measures(*(field.figure for field in FIELDS))
def compaction(bench: Bench[CompactSizes]) -> Iterator[Plan]:
    """A table is compacted on Spark, again and again, beside whoever can do the same."""
    sizes = bench.sizes
    compared = {
        field.figure.name: field.compared(sizes) for field in FIELDS if field.figure in bench.wanted
    }
    sides = sides_of(compared)
    if bench.everything:
        sides.add("empty")
    with bench.fresh_folder() as root:
        ground = _prepared(bench, root, sides)
        if bench.everything and sizes.starts:
            _tell_starts(bench, root)
        with Children(root) as children, opened_session(rehearsal=bench.rehearsal) as session:
            turns = _Turns(bench, ground, session, children)
            yield Plan(turns=turns.all(), compared=compared)
    if turns.empty_s:
        counted = turns.empty_s[-sizes.runs :]
        bench.apart["empty_job_seconds"] = rounded(median(counted))


def _tell_starts(bench: Bench[CompactSizes], root: Path) -> None:
    """How long a session takes in a process of its own, with the archive and without."""
    bench.say("starting sessions")
    for name, archive in (("with_archive", True), ("without_archive", False)):
        start = start_seconds(root, archive=archive, count=bench.sizes.starts)
        bench.apart[f"session_start_{name}_seconds"] = rounded(start.session)
        bench.apart[f"first_job_{name}_seconds"] = rounded(start.first_job)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What lies ready."""

    sides: set[Hashable]
    whole: Base
    half: Base | None
    inputs: Mapping[str, Path]
    """Of peers, by how they are compressed."""
    sample: Path


def _prepared(bench: Bench[CompactSizes], root: Path, sides: set[Hashable]) -> _Ground:
    sizes = bench.sizes
    bench.say(f"preparing a table of {sizes.rows:,} rows")
    whole = make_base(root / "whole", sizes.rows, sizes.keys, seed=SEED)
    half = None
    if "half" in sides:
        bench.say(f"preparing a table of {sizes.half_rows:,} rows")
        half = make_base(root / "half", sizes.half_rows, sizes.half_keys, seed=HALF_SEED)
    bench.say("preparing the same rows for the peers")
    inputs = {"zstd": root / "zstd"}
    if any(str(side).endswith(PLAIN_INPUT) for side in sides):
        inputs["none"] = root / "plain"
    write_inputs(whole, inputs)
    sample = root / "sample"
    write_sample(inputs["zstd"], sample)
    return _Ground(sides=sides, whole=whole, half=half, inputs=inputs, sample=sample)


class _Turns:
    def __init__(
        self,
        bench: Bench[CompactSizes],
        ground: _Ground,
        session: SparkSession,
        children: Children,
    ) -> None:
        self._bench = bench
        self._sizes = bench.sizes
        self._ground = ground
        self._session = session
        self._children = children
        self._written = 0
        """Bytes of the ledgers that the last full run wrote."""
        self._checked: set[str] = set()
        self._taken: dict[str, int] = {}
        self.empty_s: list[float] = []

    def all(self) -> list[Turn]:
        """Who has a turn in a round, in order."""
        sides = sorted(map(str, self._ground.sides))
        turns: list[Turn] = [self._whole]
        if self._ground.half is not None:
            turns.append(partial(self._half, self._ground.half))
        if "empty" in sides:
            turns.append(self._empty)
        if "copy" in sides:
            turns.append(partial(self._copy, Copying(self._children)))
        for name in ("duckdb", "polars"):
            if chosen := [side for side in sides if side.startswith(name)]:
                peer = Peer(self._children, name)
                turns += [partial(self._peer, side, peer) for side in chosen]
        if "plain_spark" in sides:
            turns.append(self._plain_spark)
        return turns

    def _first(self, side: str) -> bool:
        """Whether this is a side's turn to warm up, and a small one is enough for that."""
        self._taken[side] = self._taken.get(side, 0) + 1
        return self._taken[side] == 1 and not self._sizes.whole_warm_up

    # -- ours -----------------------------------------------------------------------------------

    def _whole(self, folder: Path) -> Round:
        base, sides, taken = self._ground.whole, self._ground.sides, dict[Hashable, Side]()
        with opened_copy(base, folder) as opened:
            if "backlog" in sides:
                taken["backlog"] = read_whole(self._bench, opened.table, compacted=False)
            run, self._written = compacted_by(self._bench, self._session, opened, base.rows)
            taken["full"] = run
            if "compacted" in sides:
                taken["compacted"] = read_whole(self._bench, opened.table, compacted=True)
            self._check("full", lambda: (left_in_table(opened.table), base.truth.left()))
            if "second" in sides:
                taken["second"] = self._second(opened, base)
        return taken

    def _second(self, opened: Opened, base: Base) -> Side:
        """Some keys are rewritten, and the table is compacted again."""
        chunk = rewrites_of(base.keys, base.keys // self._sizes.rewritten_in, seed=SECOND_SEED)
        truth = base.truth.copy()
        truth.take(chunk)
        opened.table.append(chunk.as_arrow())
        run, _ = compacted_by(self._bench, self._session, opened, len(chunk.keys))
        self._check("second", lambda: (left_in_table(opened.table).anywhere, truth.left().anywhere))
        return run

    def _half(self, base: Base, folder: Path) -> Round:
        with opened_copy(base, folder) as opened:
            run, _ = compacted_by(self._bench, self._session, opened, base.rows)
            self._check(
                "half", lambda: (left_in_table(opened.table).anywhere, base.truth.left().anywhere)
            )
        return {"half": run}

    def _empty(self, _: Path) -> Round:
        self.empty_s.append(empty_job_seconds(self._session, self._sizes.empty_jobs))
        return {"empty": Side(0, self.empty_s[-1])}

    # -- the peers ------------------------------------------------------------------------------

    def _copy(self, copying: Copying, folder: Path) -> Round:
        seconds = copying.run(self._ground.whole.files, folder, self._written)
        copied = sum(path.stat().st_size for path in folder.iterdir())
        invariant(copied == self._written, f"{copied} bytes were copied, not {self._written}")
        return {"copy": Side(self._ground.whole.rows, seconds)}

    def _peer(self, side: str, peer: Peer, folder: Path) -> Round:
        form = side.removesuffix(PLAIN_INPUT)
        source = self._ground.inputs["none" if form != side else "zstd"]
        partitions = list(range(self._sizes.spark_partitions if self._first(side) else PARTITIONS))
        with Peak(lambda: [peer.pid]) as peak:
            seconds = peer.run(Job(form, str(source), str(folder), partitions))
        self._check_files(side, folder, partitions)
        return {side: Side(self._ground.whole.rows, seconds, held_bytes=peak.bytes)}

    def _plain_spark(self, folder: Path) -> Round:
        """It takes long: in later rounds it has no turn."""
        small = self._first("plain_spark")
        if self._taken["plain_spark"] > self._sizes.spark_runs + 1:
            return {}
        partitions = [0] if small else list(range(self._sizes.spark_partitions))
        source = self._ground.sample if small else self._ground.inputs["zstd"]
        with Stopwatch() as watch:
            plain_spark(self._session, Job("", str(source), str(folder), partitions))
        if not small:
            self._check_files("plain_spark", folder, partitions)
        rows = self._ground.whole.truth.rows_of(partitions)
        return {"plain_spark": Side(rows, watch.seconds())}

    # -- checks ---------------------------------------------------------------------------------

    def _check_files(self, side: str, folder: Path, partitions: list[int]) -> None:
        truth = self._ground.whole.truth
        self._check(side, lambda: (left_in_files(folder), truth.left(partitions)))

    def _check(self, side: str, found_and_true: Callable[[], tuple[object, object]]) -> None:
        if side not in self._checked:
            self._checked.add(side)
            found, true = found_and_true()
            invariant(found == true, f"{side} has left {found}, and it should be {true}")
