"""The maths of a figure, with made-up turns."""

from __future__ import annotations

import pytest

from benchmarks.figure import Variant, compared, rounded
from benchmarks.suites import Figure, Side, Target
from lowmark.errors import InvariantBroken


def test_a_round_compares_rates() -> None:
    ours = [Side(100, 1.0), Side(100, 2.0)]
    peer = [Side(100, 0.5), Side(400, 2.0)]
    assert compared(ours, peer, Target(0.4)) == [0.5, 0.25]


def test_sides_may_do_different_amounts() -> None:
    # given a peer that did half as much in half the time
    assert compared([Side(100, 1.0)], [Side(50, 0.5)], Target(1.0)) == [1.0]


def test_where_less_is_better_times_are_compared() -> None:
    assert compared([Side(8, 2.0)], [Side(8, 1.0)], Target(4.0, at_least=False)) == [2.0]


def test_every_round_has_two_sides() -> None:
    with pytest.raises(InvariantBroken):
        compared([Side(1, 1.0)], [], Target(1.0))


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
    figure = Figure(
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
