"""One runner for all suites: who has a turn when, in which folder, and what is made of it.

What a suite declares
    A measurement is a generator. It prepares what its turns need, yields a plan (the turns, and
    which numbers of a round its figures compare), and cleans up. It is declared with its figures:
    name, target, unit, how many rounds. Most have one figure and two turns (`Bench.compare`).

How it runs
    1. In a round every turn is taken once, one after the other. The first round does not count,
       unless the measurement says that it needs none.
    2. Before each turn the disk and this process are brought to rest, and as much free memory as a
       turn took in the first round is touched, whichever side comes next (see `free_memory`).
    3. A figure that misses its target is profiled in one more turn, if its work is done in this
       process.
"""

from __future__ import annotations

import gc
import os
import platform
import shutil
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from benchmarks.figure import (
    Compared,
    Figure,
    Pair,
    PeerMissing,
    Result,
    Round,
    Side,
    rates,
    result_of,
    rounded,
)
from benchmarks.free_memory import Taken, free_bytes, touch
from benchmarks.profile import Sampler

Turn = Callable[[Path], Side | Round]
"""One turn in a fresh folder: one side, whose name is the turn itself, or several with names."""
Say = Callable[[str], None]


class Sizes(Protocol):
    """How much a suite is fed: three amounts of the same shape."""

    @property
    def mode(self) -> str:
        """Which of the three."""

    @property
    def variants(self) -> bool:
        """Whether figures come with their variants; quick ones do not."""

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""

    @classmethod
    def quick(cls) -> Self:
        """Less data or fewer rounds, the same shape."""

    @classmethod
    def tiny(cls) -> Self:
        """For the benchmarks' own tests: everything runs, nothing is worth reading."""


S = TypeVar("S", bound=Sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a measurement has prepared."""

    turns: Sequence[Turn]
    compared: Mapping[str, Compared]
    """By the figure's name."""
    profiled: Turn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Figures that are made of the same rounds."""

    figures: tuple[Figure, ...]
    prepare: Callable[[Bench[Any]], AbstractContextManager[Plan]]
    runs: str
    warm_up: bool


Prepare = Callable[["Bench[Any]"], Iterator[Plan]]


def measures(
    *figures: Figure, runs: str = "runs", warm_up: bool = True
) -> Callable[[Prepare], Measurement]:
    """Declare a measurement; `runs` is the field of the sizes that says how many rounds count."""

    def declared(prepare: Prepare) -> Measurement:
        return Measurement(
            figures=figures, prepare=contextmanager(prepare), runs=runs, warm_up=warm_up
        )

    return declared


@dataclass(slots=True)
class Bench(Generic[S]):
    """What every measurement is given."""

    root: Path
    sizes: S
    tell: Say
    wanted: Sequence[Figure] = ()
    """Those of its figures that are to be measured."""
    everything: bool = True
    """Whether the whole suite runs, and not only chosen figures."""
    apart: dict[str, object] = field(default_factory=dict)
    """What is told beside the figures."""
    free: Callable[[], int] = free_bytes
    """How much memory the machine has free."""
    touch: Callable[[int], int] = touch
    _folders: int = 0
    _taken_bytes: int = 0

    @property
    def rehearsal(self) -> bool:
        """Whether everything is only run once: nothing warms up, comes to rest, or is profiled."""
        return self.sizes.mode == "tiny"

    def compare(
        self,
        ours: Turn,
        peer: Turn,
        *,
        notes: str,
        variants: Mapping[str, tuple[Turn, Turn]] | None = None,
        profile: bool = True,
    ) -> Plan:
        """A plan of one figure: our rate against the peer's; variants share the rounds.

        A variant that shares a side with the figure shares its turns, too.
        """
        [figure] = self.wanted
        pairs = (variants or {}) if self.sizes.variants else {}
        turns = dict.fromkeys([ours, peer, *(turn for pair in pairs.values() for turn in pair)])
        made = {name: rates(figure, a, b) for name, (a, b) in pairs.items()}
        plan = self.plan(list(turns), rates(figure, ours, peer), notes, made)
        return replace(plan, profiled=ours if profile else None)

    def watch(self, turn: Turn, *, notes: str) -> Plan:
        """A plan of one figure that has no peer: its value is what a turn came to."""
        pair = Pair(
            sides=(turn,), value=lambda one: one[turn].rate, ours=lambda one: one[turn].amount
        )
        return self.plan([turn], pair, notes)

    def plan(
        self,
        turns: Sequence[Turn],
        pair: Pair,
        notes: str,
        variants: Mapping[str, Pair] | None = None,
    ) -> Plan:
        """A plan of one figure."""
        [figure] = self.wanted
        made = Compared(pair, notes, variants or {})
        return Plan(turns=turns, compared={figure.name: made})

    def say(self, what: str) -> None:
        """Tell how far it is."""
        one, *others = self.wanted
        self.tell(f"{one.name}{f' and {len(others)} more' if others else ''}: {what}")

    def settle(self) -> None:
        """Bring disk and memory to rest, before a clock starts."""
        if self.rehearsal:
            return
        gc.collect()
        os.sync()
        self.touch(self._taken_bytes)

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """An empty folder that goes when it is no longer needed."""
        self._folders += 1
        folder = self.root / f"{self._folders:04d}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def measure(self, what: Measurement) -> list[Result]:
        """All of its figures that are wanted."""
        with what.prepare(self) as plan:
            rounds = self._rounds(plan.turns, getattr(self.sizes, what.runs), warm_up=what.warm_up)
            results = [result_of(f, plan.compared[f.name], rounds) for f in self.wanted]
            if plan.profiled is not None and not self.rehearsal:
                results = [self._with_profile(one, plan.profiled) for one in results]
        return results

    def _rounds(self, turns: Sequence[Turn], runs: int, *, warm_up: bool) -> list[Round]:
        self._taken_bytes = 0
        warm_up = warm_up and not self.rehearsal
        rounds: list[Round] = []
        for number in range(0 if warm_up else 1, runs + 1):
            self.say(f"round {number} of {runs}")
            taken: dict[Hashable, Side] = {}
            for turn in turns:
                with nullcontext() if number else self._weighed():
                    said = self._take(turn)
                taken.update({turn: said} if isinstance(said, Side) else said)
            rounds.append(taken)
        return rounds[1:] if warm_up else rounds

    @contextmanager
    def _weighed(self) -> Iterator[None]:
        """See how much free memory a turn takes: so much is touched before those that count."""
        with Taken(self.free) as taken:
            yield
        self._taken_bytes = max(self._taken_bytes, taken.bytes)

    def _take(self, turn: Turn) -> Side | Round:
        with self.fresh_folder() as folder:
            self.settle()
            return turn(folder)

    def _with_profile(self, result: Result, turn: Turn) -> Result:
        if result.met:
            return result
        self.say("missed its target, profiling one more turn")
        with Sampler() as sampler:
            self._take(turn)
        return replace(result, profile=sampler.spots())


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What belongs together: `lowmark bench NAME`."""

    sizes: type[Sizes]
    measurements: Sequence[Measurement]
    versions: Sequence[str]
    """Packages whose versions are reported, besides ours."""
    machine: Callable[[], Mapping[str, object]] = dict
    """What else is reported of the machine."""
    switch_interval_s: float | None = None
    """Of the interpreter; else it stays as it is."""

    @property
    def figures(self) -> dict[str, Figure]:
        """All of them, in order."""
        return {figure.name: figure for one in self.measurements for figure in one.figures}

    def run(self, root: Path, sizes: Sizes, *, only: Sequence[str] = (), say: Say) -> Report:
        """Measure, in a folder that exists and is on the disk to be measured."""
        bench = Bench(root, sizes, say, everything=not only)
        results: list[Result] = []
        skipped: dict[str, str] = {}

        def skip(figure: Figure, missing: PeerMissing) -> None:
            skipped[figure.name] = missing.one_line()
            say(f"{figure.name}: skipped: {missing.one_line()}")

        with self._switching():
            for measurement in self.measurements:
                bench.wanted = []
                for figure in measurement.figures:
                    if only and figure.name not in only:
                        continue
                    try:
                        figure.needs()
                        bench.wanted.append(figure)
                    except PeerMissing as missing:
                        skip(figure, missing)
                try:
                    results += bench.measure(measurement) if bench.wanted else []
                except PeerMissing as missing:
                    for figure in bench.wanted:
                        skip(figure, missing)
            return Report(self, sizes, results, skipped, bench.apart, sys.getswitchinterval())

    @contextmanager
    def _switching(self) -> Iterator[None]:
        """As `serve` does: a lane that comes back from the disk must not wait 5 ms for its turn."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(self.switch_interval_s or before)
        try:
            yield
        finally:
            sys.setswitchinterval(before)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run."""

    suite: Suite
    sizes: Sizes
    results: Sequence[Result]
    skipped: Mapping[str, str]
    """Why other figures were left out."""
    apart: Mapping[str, object]
    switch_interval_s: float

    def as_json(self) -> dict[str, object]:
        """One object: a number per figure, and what is behind it; null for what was left out."""
        settings: Any = self.sizes
        return {
            **{result.name: rounded(result.value) for result in self.results},
            **dict.fromkeys(self.skipped),
            "apart": dict(self.apart),
            "details": {result.name: result.details() for result in self.results},
            "skipped": dict(self.skipped),
            "machine": {
                "cores": os.cpu_count(),
                "system": f"{platform.system()} {platform.release()}",
                "python": platform.python_version(),
                **self.suite.machine(),
                "versions": {name: _version(name) for name in ("lowmark", *self.suite.versions)},
            },
            "settings": {**asdict(settings), "switch_interval_seconds": self.switch_interval_s},
        }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
