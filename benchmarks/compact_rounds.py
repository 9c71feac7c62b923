"""The rounds of `bench compact`: who has a turn when, and what each turn came to.

All figures are made of the same rounds. In a round every side has one turn after the other, so a
machine that grows slower slows all of them. What a turn needs is made before its clock starts.
What came of it is held against the truth once, after its clock has stopped: whoever is wrong, we or
a peer, ends the bench.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compact_base import Base, make_base, opened_copy
from benchmarks.compact_inputs import left_in_files, write_inputs, write_sample
from benchmarks.compact_memory import Peak
from benchmarks.compact_ours import Run, compacted_by, left_in_table, read_whole, settle
from benchmarks.compact_peers import Copying, Job, Peer, plain_spark
from benchmarks.compact_session import Start, empty_job_seconds, opened_session, start_seconds
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import PARTITIONS, rewrites_of
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_workload import Opened
from clusters.processes import Children
from lowmark.errors import invariant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PLAIN_INPUT", "Measured", "Round", "measure"]

PLAIN_INPUT = "_plain_input"
"""Ends the name of a peer's turn whose input is not compressed."""
SEED, HALF_SEED, SECOND_SEED = 1, 2, 3

Round = dict[str, Run]
"""What every side's turn came to, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that figures are made of."""

    rounds: list[Round] = field(default_factory=list)
    starts: Mapping[str, Start] = field(default_factory=dict)
    """Of a session in a process of its own, with the archive and without."""

    def with_all(self, *sides: str) -> list[Round]:
        """The rounds in which all of these had a turn."""
        return [one for one in self.rounds if all(side in one for side in sides)]


def measure(
    root: Path, sizes: CompactSizes, sides: Collection[str], *, say: Callable[[str], None]
) -> Measured:
    """Make what the sides need, and let them have their rounds."""
    ground = _prepared(root, sizes, frozenset(sides), say)
    starts = _starts(root, sizes, say) if "starts" in sides else {}
    with Children(root) as children, opened_session() as session:
        rounds = _Rounds(ground, sizes, session, children)
        taken = []
        for number in range(sizes.runs + 1):
            say(f"round {number} of {sizes.runs}")
            taken.append(rounds.take(number))
    # The first round is there to warm everybody up.
    return Measured(rounds=taken[1:], starts=starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What lies ready."""

    root: Path
    sides: frozenset[str]
    whole: Base
    half: Base | None
    inputs: Mapping[str, Path]
    """Of peers, by how they are compressed."""
    sample: Path


def _prepared(
    root: Path, sizes: CompactSizes, sides: frozenset[str], say: Callable[[str], None]
) -> _Ground:
    say(f"preparing a table of {sizes.rows:,} rows")
    whole = make_base(root / "whole", sizes.rows, sizes.keys, seed=SEED)
    half = None
    if "half" in sides:
        say(f"preparing a table of {sizes.half_rows:,} rows")
        half = make_base(root / "half", sizes.half_rows, sizes.half_keys, seed=HALF_SEED)
    say("preparing the same rows for the peers")
    inputs = {"zstd": root / "zstd"}
    if any(side.endswith(PLAIN_INPUT) for side in sides):
        inputs["none"] = root / "plain"
    write_inputs(whole, inputs)
    sample = root / "sample"
    write_sample(inputs["zstd"], sample)
    return _Ground(root=root, sides=sides, whole=whole, half=half, inputs=inputs, sample=sample)


def _starts(root: Path, sizes: CompactSizes, say: Callable[[str], None]) -> dict[str, Start]:
    say("starting sessions")
    return {
        name: start_seconds(root, archive=archive, count=sizes.starts)
        for name, archive in (("with_archive", True), ("without_archive", False))
    }


class _Rounds:
    def __init__(
        self, ground: _Ground, sizes: CompactSizes, session: SparkSession, children: Children
    ) -> None:
        self._ground = ground
        self._sizes = sizes
        self._session = session
        sides = ground.sides
        self._peers = {
            name: Peer(children, name)
            for name in ("duckdb", "polars")
            if any(side.startswith(name) for side in sides)
        }
        self._copying = Copying(children) if "copy" in sides else None
        self._checked: set[str] = set()
        self._folders = 0

    def take(self, number: int) -> Round:
        """Everybody has a turn."""
        sides, sizes = self._ground.sides, self._sizes
        small = number == 0 and not sizes.whole_warm_up
        taken: Round = {}
        self._whole(taken)
        if self._ground.half is not None:
            self._half(self._ground.half, taken)
        if "empty" in sides:
            taken["empty"] = Run(seconds=empty_job_seconds(self._session, sizes.empty_jobs))
        if self._copying is not None:
            self._copy(self._copying, taken)
        for side in sorted(sides):
            peer = self._peers.get(side.partition("_")[0])
            if peer is not None:
                self._peer(side, peer, taken, small=small)
        if "plain_spark" in sides and number <= sizes.spark_runs:
            self._plain_spark(taken, small=small)
        return taken

    # -- ours -----------------------------------------------------------------------------------

    def _whole(self, taken: Round) -> None:
        base, sides = self._ground.whole, self._ground.sides
        with self._fresh_folder() as folder, opened_copy(base, folder) as opened:
            if "backlog" in sides:
                taken["backlog"] = read_whole(opened.table, compacted=False)
            taken["full"] = compacted_by(self._session, opened, base.rows)
            if "compacted" in sides:
                taken["compacted"] = read_whole(opened.table, compacted=True)
            self._check("full", lambda: (left_in_table(opened.table), base.truth.left()))
            if "second" in sides:
                self._second(opened, base, taken)

    def _second(self, opened: Opened, base: Base, taken: Round) -> None:
        """Some keys are rewritten, and the table is compacted again."""
        chunk = rewrites_of(base.keys, base.keys // self._sizes.rewritten_in, seed=SECOND_SEED)
        truth = base.truth.copy()
        truth.take(chunk)
        opened.table.append(chunk.as_arrow())
        taken["second"] = compacted_by(self._session, opened, len(chunk.keys))
        self._check("second", lambda: (left_in_table(opened.table).anywhere, truth.left().anywhere))

    def _half(self, base: Base, taken: Round) -> None:
        with self._fresh_folder() as folder, opened_copy(base, folder) as opened:
            taken["half"] = compacted_by(self._session, opened, base.rows)
            self._check(
                "half", lambda: (left_in_table(opened.table).anywhere, base.truth.left().anywhere)
            )

    # -- the peers ------------------------------------------------------------------------------

    def _copy(self, copying: Copying, taken: Round) -> None:
        whole, written = self._ground.whole, taken["full"].bytes_written
        with self._fresh_folder() as folder:
            settle()
            seconds = copying.run(whole.files, folder, written)
            copied = sum(path.stat().st_size for path in folder.iterdir())
        invariant(copied == written, f"{copied} bytes were copied, not {written}")
        taken["copy"] = Run(seconds=seconds, rows=whole.rows, bytes_written=written)

    def _peer(self, side: str, peer: Peer, taken: Round, *, small: bool) -> None:
        form = side.removesuffix(PLAIN_INPUT)
        source = self._ground.inputs["none" if form != side else "zstd"]
        partitions = list(range(self._sizes.spark_partitions if small else PARTITIONS))
        with self._fresh_folder() as folder:
            settle()
            with Peak(lambda: [peer.pid]) as peak:
                seconds = peer.run(Job(form, str(source), str(folder), partitions))
            self._check_files(side, folder, partitions)
        taken[side] = Run(seconds=seconds, rows=self._ground.whole.rows, anonymous_bytes=peak.bytes)

    def _plain_spark(self, taken: Round, *, small: bool) -> None:
        partitions = [0] if small else list(range(self._sizes.spark_partitions))
        source = self._ground.sample if small else self._ground.inputs["zstd"]
        with self._fresh_folder() as folder:
            settle()
            with Stopwatch() as watch:
                plain_spark(self._session, Job("", str(source), str(folder), partitions))
            if not small:
                self._check_files("plain_spark", folder, partitions)
        rows = self._ground.whole.truth.rows_of(partitions)
        taken["plain_spark"] = Run(seconds=watch.seconds(), rows=rows)

    # -- checks ---------------------------------------------------------------------------------

    def _check_files(self, side: str, folder: Path, partitions: list[int]) -> None:
        truth = self._ground.whole.truth
        self._check(side, lambda: (left_in_files(folder), truth.left(partitions)))

    def _check(self, side: str, found_and_true: Callable[[], tuple[object, object]]) -> None:
        if side not in self._checked:
            self._checked.add(side)
            found, true = found_and_true()
            invariant(found == true, f"{side} has left {found}, and it should be {true}")

    @contextmanager
    def _fresh_folder(self) -> Iterator[Path]:
        self._folders += 1
        folder = self._ground.root / f"turn-{self._folders:04d}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
