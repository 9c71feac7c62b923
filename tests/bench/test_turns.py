"""Who takes a turn when; no test here asks how long anything takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.feed import SMALL_BATCH, SMALL_GROUPS, spread
from benchmarks.profile import Sampler
from benchmarks.stopwatch import Stopwatch
from benchmarks.suites import Side, Sizes, Target
from benchmarks.turns import Bench, Turn


def bench_in(folder: Path, *, runs: int) -> Bench:
    return Bench(folder, replace(Sizes.tiny(), runs=runs), lambda _: None)


def turn_of(name: str, rates: list[float], taken: list[str]) -> Turn:
    def turn(folder: Path) -> Side:
        assert list(folder.iterdir()) == []
        taken.append(name)
        return Side(rates[taken.count(name) - 1], 1.0)

    return turn


def test_sides_take_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    # given sides whose first turn is far off
    taken: list[str] = []
    ours = turn_of("ours", [1_000, 5, 6, 9], taken)
    peer = turn_of("peer", [1, 10, 10, 10], taken)
    # when they are compared
    figure = bench_in(tmp_path, runs=3).compare(
        "figure", ours, peer, target=Target(0.5), unit="things/s", notes=""
    )
    # then it is the median of the rounds that counted, and nothing is left on the disk
    assert taken == ["ours", "peer"] * 4
    assert (figure.value, figure.spread, figure.runs) == (0.6, (0.5, 0.9), 3)
    assert (figure.ours, figure.peer, figure.met) == (6, 10, True)
    assert list(tmp_path.iterdir()) == []


def test_a_variant_shares_the_rounds(tmp_path: Path) -> None:
    taken: list[str] = []
    ours = turn_of("ours", [4, 4], taken)
    peer = turn_of("peer", [8, 8], taken)
    other = turn_of("other", [2, 2], taken)
    figure = bench_in(tmp_path, runs=1).compare(
        "figure",
        ours,
        peer,
        target=Target(0.5),
        unit="things/s",
        notes="",
        variants={"one_in_flight": (other, peer)},
    )
    assert taken == ["ours", "peer", "other"] * 2
    assert figure.variants["one_in_flight"].value == 0.25


def test_a_miss_comes_with_a_profile_of_one_more_turn(tmp_path: Path) -> None:
    taken: list[str] = []
    ours = turn_of("ours", [1] * 3, taken)
    peer = turn_of("peer", [2] * 2, taken)
    figure = bench_in(tmp_path, runs=1).compare(
        "figure", ours, peer, target=Target(0.9), unit="things/s", notes=""
    )
    assert not figure.met
    assert taken == ["ours", "peer", "ours", "peer", "ours"]


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
