"""Who takes a turn when; no test here asks how long anything takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from benchmarks import free_memory
from benchmarks.feed import SMALL_BATCH, SMALL_GROUPS, spread
from benchmarks.figure import Compared, Figure, PeerMissing, Round, Side, Target, ratio
from benchmarks.free_memory import TOUCHED_BYTES_MAX, Taken, free_bytes, touch
from benchmarks.profile import Sampler
from benchmarks.runner import Bench, Measurement, Plan, Report, Suite, Turn, measures
from benchmarks.stopwatch import Stopwatch
from eventually import eventually

MIB = 1 << 20


@pytest.fixture(autouse=True)
def rested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is shared with other tests: a turn here does not wait until all that they wrote
    is on the disk, and does not touch the memory that they took meanwhile.
    """
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(free_memory, "TOUCHED_BYTES_MAX", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    """Sizes of a suite whose turns are made up."""

    mode: str = "full"
    runs: int = 1
    variants: bool = True
    space_needed_bytes: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def quick(cls) -> Self:
        return cls(mode="quick", variants=False)

    @classmethod
    def tiny(cls) -> Self:
        return cls(mode="tiny")


def run(
    folder: Path,
    sizes: Few,
    *measurements: Measurement,
    only: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    suite = Suite(sizes=Few, measurements=measurements, versions=["numpy", "no-such-package"])
    return suite.run(folder, sizes, only=only, say=say)


def comparing(ours: Turn, peer: Turn, other: Turn | None = None, *, least: float) -> Measurement:
    @measures(Figure("figure", Target(least), "things/s"))
    def compared(bench: Bench[Few]) -> Iterator[Plan]:
        variants = {"one_in_flight": (other, peer)} if other else {}
        yield bench.compare(ours, peer, notes="", variants=variants)

    return compared


class Turns:
    """Made-up turns, and the order in which they were taken."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def of(self, name: str, rates: list[float]) -> Turn:
        def turn(folder: Path) -> Side:
            assert list(folder.iterdir()) == []
            self.taken.append(name)
            return Side(rates[self.taken.count(name) - 1], 1.0)

        return turn


@pytest.fixture
def turns() -> Turns:
    return Turns()


# -- rounds -----------------------------------------------------------------------------------


def test_sides_take_turns_and_the_first_round_does_not_count(here: Path, turns: Turns) -> None:
    # given sides whose first turn is far off
    ours, peer = turns.of("ours", [1_000, 5, 6, 9]), turns.of("peer", [1, 10, 10, 10])
    # when they are compared
    [figure] = run(here, Few(runs=3), comparing(ours, peer, least=0.5)).results
    # then it is the median of the rounds that counted, and nothing is left on the disk
    assert turns.taken == ["ours", "peer"] * 4
    assert (figure.value, figure.spread, figure.runs) == (0.6, (0.5, 0.9), 3)
    assert (figure.ours, figure.peer, figure.met) == (6, 10, True)
    assert list(here.iterdir()) == []


def test_a_variant_shares_the_rounds(here: Path, turns: Turns) -> None:
    ours, peer, other = (turns.of(n, [r] * 2) for n, r in (("ours", 4), ("peer", 8), ("other", 2)))
    compared = comparing(ours, peer, other, least=0.5)
    [figure] = run(here, Few(), compared).results
    assert turns.taken == ["ours", "peer", "other"] * 2
    assert figure.variants["one_in_flight"].value == 0.25
    # and a quick run leaves it out
    turns.taken.clear()
    [figure] = run(here, Few.quick(), compared).results
    assert (turns.taken, figure.variants) == (["ours", "peer"] * 2, {})


def test_a_miss_comes_with_a_profile_of_one_more_turn(here: Path, turns: Turns) -> None:
    compared = comparing(turns.of("ours", [1] * 3), turns.of("peer", [2] * 2), least=0.9)
    [figure] = run(here, Few(), compared).results
    assert not figure.met
    assert turns.taken == ["ours", "peer", "ours", "peer", "ours"]
    # but a rehearsal takes every turn once
    turns.taken.clear()
    run(here, Few.tiny(), compared)
    assert turns.taken == ["ours", "peer"]


def test_what_has_no_peer_is_watched(here: Path) -> None:
    @measures(Figure("failover", Target(3.0, at_least=False), "timeouts"), warm_up=False)
    def watched(bench: Bench[Few]) -> Iterator[Plan]:
        yield bench.watch(lambda _: Side(500, 200), notes="in ms")

    [figure] = run(here, Few(runs=2), watched).results
    assert (figure.value, figure.ours, figure.peer, figure.runs) == (2.5, 500, None, 2)


def _net(side: str) -> Compared:
    return Compared(ratio(lambda one: one[side].rate, lambda one: one["base"].rate, side), "")


def test_figures_may_be_made_of_the_same_rounds(here: Path) -> None:
    # given a turn that serves two figures, and something that belongs to neither
    wanted: list[list[str]] = []

    def turn(_: Path) -> Round:
        return {"base": Side(2), "one": Side(4), "two": Side(8)}

    @measures(*(Figure(name, Target(1.0), "things/s") for name in ("one", "two")))
    def shared(bench: Bench[Few]) -> Iterator[Plan]:
        wanted.append([figure.name for figure in bench.wanted])
        yield Plan(turns=[turn], compared={name: _net(name) for name in ("one", "two")})
        if bench.everything:
            bench.apart["start_seconds"] = 1.5

    # when both are asked for, or one
    both, one = run(here, Few(), shared), run(here, Few(), shared, only=("two",))
    # then they are measured together, and only what was asked for is told
    assert [figure.value for figure in both.results] == [2, 4]
    assert [figure.name for figure in one.results] == ["two"]
    assert wanted == [["one", "two"], ["two"]]
    assert (both.apart, one.apart) == ({"start_seconds": 1.5}, {})


def test_without_its_peer_a_figure_is_left_out(here: Path, turns: Turns) -> None:
    def missing() -> None:
        raise PeerMissing("etcd is not here")

    # given one that is known to miss its peer, and one that finds out while it prepares
    figures = [Figure("known", Target(1.0), "things/s", needs=missing)]

    @measures(*figures)
    def known(bench: Bench[Few]) -> Iterator[Plan]:
        raise AssertionError

    @measures(Figure("late", Target(1.0), "things/s"))
    def late(bench: Bench[Few]) -> Iterator[Plan]:
        missing()
        yield bench.watch(lambda _: Side(1), notes="")

    said: list[str] = []
    compared = comparing(turns.of("ours", [1] * 2), turns.of("peer", [1] * 2), least=1.0)
    # when all are run, then the others go on
    report = run(here, Few(), known, late, compared, say=said.append)
    assert [figure.name for figure in report.results] == ["figure"]
    assert report.skipped == dict.fromkeys(("known", "late"), "etcd is not here")
    assert "known: skipped: etcd is not here" in said
    # and programs are told null
    shown = report.as_json()
    assert list(shown)[:3] == ["figure", "known", "late"]
    assert (shown["figure"], shown["known"], shown["late"]) == (1.0, None, None)
    machine, settings = shown["machine"], shown["settings"]
    assert isinstance(machine, dict)
    assert machine["versions"].keys() == {"lowmark", "numpy", "no-such-package"}
    assert machine["versions"]["no-such-package"] is None
    assert isinstance(settings, dict)
    assert (settings["mode"], settings["runs"]) == ("full", 1)
    assert settings["switch_interval_seconds"] == sys.getswitchinterval()


# -- memory -----------------------------------------------------------------------------------


def test_how_far_free_memory_fell_is_what_was_taken() -> None:
    # given memory that falls, and comes back before the end
    free = 1_000
    with Taken(lambda: free) as taken:
        free = 300
        eventually(lambda: taken.bytes == 700)
        free = 900
    assert taken.bytes == 700
    # then what falls at the very end counts, too
    with Taken(lambda: free) as taken:
        free = 850
    assert taken.bytes == 50


def test_both_sides_find_memory_that_was_touched_before(here: Path) -> None:
    # given sides of which one takes much more memory than the other
    happened: list[str] = []
    free = 1_000

    def turn_taking(name: str, amount: int) -> Turn:
        def turn(_: Path) -> Side:
            nonlocal free
            happened.append(name)
            free -= amount
            return Side(1)

        return turn

    def touched(amount: int) -> int:
        nonlocal free
        free = 1_000  # what the last turn took is free again
        happened.append(f"touch {amount}")
        return amount

    ours, peer = turn_taking("ours", 700), turn_taking("peer", 20)
    compared = comparing(ours, peer, least=1.0)
    bench = Bench(here, Few(), lambda _: None, compared.figures, free=lambda: free, touch=touched)
    # when they are measured
    bench.measure(compared)
    # then as much as the larger one took is touched before either of them has its turn that counts
    assert happened[-4:] == ["touch 700", "ours", "touch 700", "peer"]


@pytest.mark.slow
def test_memory_is_touched_and_given_back() -> None:
    wanted = min(200 * MIB, max(0, free_bytes() - 512 * MIB))
    code = f"""
from pathlib import Path
from benchmarks.free_memory import touch

def resident_kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

before, count = resident_kib("VmHWM"), touch({wanted})
print(count, resident_kib("VmHWM") - before, resident_kib("VmRSS") - before)
"""
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    touched, most_kib, left_kib = map(int, ran.stdout.split())
    assert touched <= wanted
    assert most_kib << 10 >= touched - 8 * MIB
    assert left_kib << 10 < 8 * MIB
    # and what is not free is not asked for
    assert touch(0) == 0
    assert touch(-1) == 0
    assert TOUCHED_BYTES_MAX <= 4 << 30


def test_a_profile_looks_only_at_what_is_measured() -> None:
    with Sampler() as before:
        sum(range(200_000))
    assert before.spots() == []


def test_a_stopwatch_stands_still_when_it_is_over() -> None:
    with Stopwatch() as watch:
        assert Stopwatch.running
    assert not Stopwatch.running
    assert watch.seconds() == watch.seconds()


def test_a_small_batch_is_spread_evenly() -> None:
    shares = spread(SMALL_GROUPS)
    assert sum(shares) == SMALL_BATCH
    assert {15, 16} == set(shares)
