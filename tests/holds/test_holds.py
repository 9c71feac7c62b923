"""Holds by themselves: what they pin, how they end, and how far something may be cut."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from lowmark.holds import Decision, Hold, Holds, Kept, Pins, Reason, Span, safe_point


def hold(
    holder: str = "reader",
    pins: Pins | None = None,
    *,
    kind: str = "reader",
    expires_at_ms: int | None = None,
) -> Hold:
    return Hold(
        holder=holder,
        kind=kind,
        pins=Span(10, 20) if pins is None else pins,
        since_ms=1,
        why="reading",
        expires_at_ms=expires_at_ms,
    )


@pytest.mark.parametrize(
    ("low", "high", "pinned"),
    [(1, 9, False), (1, 10, True), (15, 15, True), (20, 30, True), (21, 30, False)],
)
def test_a_span_pins_both_its_ends(low: int, high: int, pinned: bool) -> None:
    assert hold().pins_any(low, high) is pinned
    assert hold(pins=BitMap64(range(10, 21))).pins_any(low, high) is pinned


def test_an_open_span_pins_everything_after_its_start() -> None:
    reader = hold(pins=Span(10))
    assert not reader.pins_any(1, 9)
    assert reader.pins_any(1_000_000, 1_000_001)
    assert list(reader.within(8, 12)) == [10, 11, 12]


def test_a_set_pins_its_members_only() -> None:
    sender = hold(pins=BitMap64([3, 7]))
    assert sender.pins_any(1, 3)
    assert not sender.pins_any(4, 6)
    assert list(sender.within(1, 5)) == [3]
    assert list(sender.within(4, 6)) == []


def test_what_is_held_within_a_range() -> None:
    assert list(hold(pins=Span(3, 5)).within(1, 4)) == [3, 4]
    assert list(hold(pins=Span(3, 5)).within(6, 9)) == []
    assert list(hold(pins=Span(3, 5)).within(9, 6)) == []


def test_the_lowest_held_position() -> None:
    assert hold(pins=Span(4)).lowest() == 4
    assert hold(pins=BitMap64([9, 5])).lowest() == 5
    assert hold(pins=BitMap64()).lowest() is None


def test_a_holder_has_one_hold_of_a_kind() -> None:
    holds = Holds()
    holds.place(hold("ann", Span(1)))
    holds.place(hold("ann", Span(5)))
    holds.place(hold("ann", Span(3), kind="sender"))
    holds.place(hold("bob", Span(2)))
    assert [(h.holder, h.kind, h.lowest()) for h in holds] == [
        ("ann", "reader", 5),
        ("ann", "sender", 3),
        ("bob", "reader", 2),
    ]


def test_a_released_hold_holds_nothing() -> None:
    holds = Holds()
    holds.place(hold("ann"))
    holds.release("ann", "sender")
    assert len(holds) == 1
    holds.release("ann", "reader")
    holds.release("ann", "reader")  # once more is fine
    assert list(holds) == []


def test_a_hold_expires_at_its_time_and_not_before() -> None:
    holds = Holds()
    holds.place(hold("ann", expires_at_ms=1_000))
    holds.place(hold("bob", expires_at_ms=2_000))
    holds.place(hold("eve"))
    assert holds.expire(999) == []
    assert [h.holder for h in holds.expire(1_000)] == ["ann"]
    assert [h.holder for h in holds.expire(1 << 50)] == ["bob"]
    assert [h.holder for h in holds] == ["eve"]


def test_a_renewed_hold_lives_on() -> None:
    holds = Holds()
    holds.place(hold("ann", expires_at_ms=1_000))
    holds.place(hold("ann", expires_at_ms=3_000))
    assert holds.expire(2_000) == []


def test_without_holds_everything_wanted_is_safe() -> None:
    point = safe_point(90, [])
    assert (point.position, point.wanted, point.held_by) == (90, 90, ())


def test_the_safe_point_stops_at_the_lowest_hold_and_names_all_in_the_way() -> None:
    backup, reader = hold("backup", Span(40)), hold("reader", BitMap64([70, 95]))
    ahead, idle = hold("ahead", Span(90)), hold("idle", BitMap64())
    point = safe_point(90, [reader, ahead, backup, idle])
    assert point.position == 40
    assert point.held_by == (backup, reader)


def test_holds_at_one_position_are_named_in_a_fixed_order() -> None:
    holds = [hold("bob", Span(5)), hold("ann", Span(5), kind="z"), hold("ann", Span(5), kind="a")]
    point = safe_point(90, holds)
    assert [(h.holder, h.kind) for h in point.held_by] == [
        ("ann", "a"),
        ("ann", "z"),
        ("bob", "reader"),
    ]


def test_a_decision_says_what_goes_and_what_stays_and_why() -> None:
    reason = Reason("held", "ann holds it", hold("ann"))
    decision = Decision((1, 2), (Kept(3, (reason,)),))
    assert decision.cut == (1, 2)
    assert decision.kept[0].reasons[0].hold == hold("ann")
