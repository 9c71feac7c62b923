"""The maths of a figure, with made-up turns."""

from __future__ import annotations

import pytest

from benchmarks.figure import (
    Compared,
    Figure,
    Pair,
    Result,
    Round,
    Side,
    Target,
    Variant,
    rates,
    ratio,
    result_of,
    rounded,
)
from lowmark.errors import InvariantBroken

MORE = Figure("append", Target(0.4), "MB/s", per_unit=1e6)
LESS = Figure("start", Target(4.0, at_least=False), "starts/s")


def rounds_of(ours: list[Side], peer: list[Side]) -> list[Round]:
    return [{"ours": a, "peer": b} for a, b in zip(ours, peer, strict=True)]


def result(figure: Figure, rounds: list[Round]) -> Result:
    return result_of(figure, Compared(rates(figure, "ours", "peer"), "notes"), rounds)


def test_a_round_compares_rates_and_the_median_counts() -> None:
    ours = [Side(1e8, 1.0), Side(1e8, 2.0), Side(1e8, 1.0)]
    peer = [Side(1e8, 0.5), Side(4e8, 2.0), Side(1e8, 0.75)]
    found = result(MORE, rounds_of(ours, peer))
    assert (found.value, found.spread, found.runs) == (0.5, (0.25, 0.75), 3)
    assert (found.ours, found.peer, found.met) == (100, 200, True)


def test_sides_may_do_different_amounts() -> None:
    # given a peer that did half as much in half the time
    assert result(MORE, rounds_of([Side(100, 1.0)], [Side(50, 0.5)])).value == 1.0


def test_where_less_is_better_times_are_compared() -> None:
    assert result(LESS, rounds_of([Side(8, 2.0)], [Side(8, 1.0)])).value == 2.0


def test_numbers_that_are_costs_are_compared_as_they_are() -> None:
    pair = ratio(lambda one: one["ours"].bytes_moved, lambda one: one["peer"].bytes_moved, "ours")
    rounds = rounds_of([Side(1, bytes_moved=30)], [Side(1, bytes_moved=60)])
    found = result_of(LESS, Compared(pair, ""), rounds)
    assert (found.value, found.ours, found.peer) == (0.5, 30, 60)


def test_a_figure_without_a_peer_has_a_spread_of_its_own() -> None:
    pair = Pair(
        sides=("most", "least"),
        value=lambda one: one["most"].amount,
        ours=lambda one: one["most"].amount,
        least=lambda one: one["least"].amount,
    )
    found = result_of(LESS, Compared(pair, ""), [{"most": Side(5), "least": Side(2)}])
    assert (found.value, found.spread, found.peer) == (5, (2, 5), None)


def test_only_rounds_in_which_all_sides_had_a_turn_count() -> None:
    # given a side that sat two of three rounds out, and a variant that never had a turn
    rounds: list[Round] = [
        {"ours": Side(1), "peer": Side(2)},
        {"ours": Side(9)},
        {"ours": Side(9)},
    ]
    variants = {"other": rates(MORE, "ours", "other"), "same": rates(MORE, "ours", "ours")}
    found = result_of(MORE, Compared(rates(MORE, "ours", "peer"), "", variants), rounds)
    assert (found.value, found.runs) == (0.5, 1)
    assert found.variants.keys() == {"same"}
    assert found.variants["same"].value == 1.0


def test_a_figure_has_at_least_one_round() -> None:
    with pytest.raises(InvariantBroken):
        result(MORE, [{"ours": Side(1)}])


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(0.4), 0.4, True),
        (Target(0.4), 0.39, False),
        (Target(4.0, at_least=False), 4.0, True),
        (Target(4.0, at_least=False), 4.1, False),
    ],
)
def test_a_target_is_met_at_its_limit(target: Target, value: float, met: bool) -> None:
    assert target.met_by(value) is met


def test_a_target_says_what_it_asks_for() -> None:
    assert str(Target(0.4, aim=0.7)) == "≥ 0.4, aim 0.7"
    assert str(Target(40_000_000, at_least=False)) == "≤ 40,000,000"


def test_details_say_both_rates_the_spread_and_the_verdict() -> None:
    figure = Result(
        name="append",
        value=0.51239,
        target=Target(0.4),
        unit="MB/s",
        ours=123.456,
        peer=250.0,
        spread=(0.4, 0.6),
        runs=3,
        variants={"one_in_flight": Variant(0.3, 75.0, 250.0)},
    )
    details = figure.details()
    assert details["value"] == 0.5124
    assert details["met"] is True
    assert (details["ours"], details["peer"], details["spread"]) == (123.5, 250.0, [0.4, 0.6])
    assert details["variants"] == {"one_in_flight": {"value": 0.3, "ours": 75.0, "peer": 250.0}}
    assert "profile" not in details


@pytest.mark.parametrize(("value", "shown"), [(0.123456, 0.1235), (12_619_776.4, 12_619_776.0)])
def test_digits_that_mean_nothing_are_not_shown(value: float, shown: float) -> None:
    assert rounded(value) == shown
