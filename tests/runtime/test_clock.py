"""Hybrid time only grows, whatever the wall clock does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowmark.runtime import (
    COUNTER_BITS,
    LOG_AHEAD_MS_MAX,
    Agreed,
    ClockSkew,
    HybridClock,
    HybridTime,
    millis_of,
)

MAX_SKEW_MS = 500
LAST_MS = (1 << 48) - 1


def at(millis: int, counter: int = 0) -> HybridTime:
    return HybridTime((millis << COUNTER_BITS) | counter)


class Wall:
    """A wall clock that stands wherever it is put."""

    def __init__(self, millis: int) -> None:
        self.millis = millis

    def __call__(self) -> int:
        return self.millis


def test_time_follows_the_wall_clock() -> None:
    wall = Wall(1_000)
    clock = HybridClock(wall)
    assert clock.now() == at(1_000)
    wall.millis = 1_001
    assert clock.now() == at(1_001)
    assert millis_of(clock.now()) == 1_001


def test_within_one_millisecond_the_counter_orders() -> None:
    clock = HybridClock(Wall(1_000))
    assert [clock.now() for _ in range(3)] == [at(1_000), at(1_000, 1), at(1_000, 2)]


def test_a_wall_clock_that_jumps_back_does_not_take_time_along() -> None:
    wall = Wall(1_000)
    clock = HybridClock(wall)
    clock.now()
    wall.millis = 10
    assert clock.now() == at(1_000, 1)
    # and once the wall clock is ahead again, it is followed again
    wall.millis = 1_002
    assert clock.now() == at(1_002)


def test_a_clock_that_is_the_only_one_follows_every_time_it_gave() -> None:
    # given a log with times of an hour ago, by a wall clock that was put back since
    clock = HybridClock(Wall(1_000), alone=True)
    assert clock.observe(at(3_601_000, 7)) == at(3_601_000, 8)
    # then it goes on from there, whatever others may differ by
    clock.allow_skew(0)
    assert clock.now() == at(3_601_000, 9)


def test_a_counter_that_is_used_up_borrows_the_next_millisecond() -> None:
    clock = HybridClock(Wall(1_000))
    last = [clock.now() for _ in range(1 << COUNTER_BITS)][-1]
    assert last == at(1_000, 0xFFFF)
    assert clock.now() == at(1_001)


def test_an_observed_time_is_behind_us_from_then_on() -> None:
    clock = HybridClock(Wall(1_000))
    assert clock.observe(at(1_200, 7)) == at(1_200, 8)
    assert clock.now() == at(1_200, 9)


def test_an_observed_time_of_the_past_changes_nothing_but_the_counter() -> None:
    clock = HybridClock(Wall(1_000))
    clock.now()
    assert clock.observe(at(3)) == at(1_000, 1)


def test_a_peer_may_be_ahead_by_the_allowed_skew_and_not_by_one_more() -> None:
    clock = HybridClock(Wall(1_000), max_skew_ms=MAX_SKEW_MS)
    # given a peer at the edge
    clock.observe(at(1_000 + MAX_SKEW_MS, 0xFFFE))
    before = clock.now()
    # when one is beyond it
    with pytest.raises(ClockSkew) as refused:
        clock.observe(at(1_000 + MAX_SKEW_MS + 1))
    # then it is told by how much, and our time was not touched
    assert (refused.value.ahead_ms, refused.value.max_skew_ms) == (MAX_SKEW_MS + 1, MAX_SKEW_MS)
    assert clock.now() == before + 1


def test_a_time_is_followed_unless_it_is_too_far_ahead() -> None:
    clock = HybridClock(Wall(1_000), max_skew_ms=MAX_SKEW_MS)
    now = clock.now()
    clock.follow(now - 1)
    assert clock.latest == now
    clock.follow(at(1_000 + MAX_SKEW_MS))
    assert clock.now() > at(1_000 + MAX_SKEW_MS)
    latest = clock.latest
    clock.follow(at(1_001 + MAX_SKEW_MS))
    assert clock.latest == latest


@pytest.mark.parametrize("by_log", [True, False])
def test_a_clock_that_is_too_far_ahead_follows_others_that_are_as_far(by_log: bool) -> None:
    # given a clock that was wrong for a while, or whose log has times of one that was
    wrong = at(1_000 + 10 * MAX_SKEW_MS)
    wall = Wall(1_000)
    clock = HybridClock(wall, max_skew_ms=MAX_SKEW_MS)
    if by_log:
        clock.catch_up(wrong)
    else:
        wall.millis = millis_of(wrong)
        clock.now()
        wall.millis = 1_000
    # when another one like it has given some more times within that millisecond
    clock.follow(wrong + 5)
    # then this one goes on above them
    assert clock.now() > wrong + 5
    # and it follows none into the next millisecond
    latest = clock.latest
    clock.follow(at(1_001 + 10 * MAX_SKEW_MS))
    assert clock.latest == latest


HOUR_MS = 3_600_000


def clock_among(wall: Wall, *others: int) -> HybridClock:
    """A clock that knows what the cluster's say: the middle one of them."""
    clock = HybridClock(wall, max_skew_ms=MAX_SKEW_MS)

    def agreed(wall_ms: int) -> Agreed:
        middle = sorted([wall_ms, *others])[len(others) // 2]
        return Agreed(middle, middle)

    clock.others = agreed
    return clock


@pytest.mark.parametrize("off_ms", [-HOUR_MS, -MAX_SKEW_MS, MAX_SKEW_MS, HOUR_MS])
def test_a_wall_clock_that_is_wrong_is_held_to_those_of_most(off_ms: int) -> None:
    # given a clock that is off, among two that are right
    right = 2 * HOUR_MS
    wall = Wall(right + off_ms)
    clock = clock_among(wall, right, right)
    # then its times are as near to theirs as half of what clocks may differ
    half = MAX_SKEW_MS // 2 if off_ms > 0 else -MAX_SKEW_MS // 2
    assert millis_of(clock.now()) == clock.wall_ms() == right + half
    # and it follows others as far as any of them would
    assert clock.follow(at(right + MAX_SKEW_MS))
    assert not clock.follow(at(right + MAX_SKEW_MS + 1))


def test_a_wall_clock_that_is_off_by_no_more_than_half_of_the_skew_is_believed() -> None:
    for off_ms in (-MAX_SKEW_MS // 2, 7, MAX_SKEW_MS // 2):
        clock = clock_among(Wall(HOUR_MS + off_ms), HOUR_MS, HOUR_MS)
        assert clock.now() == at(HOUR_MS + off_ms)


def test_most_clocks_that_jump_together_are_followed() -> None:
    # given a clock that stayed behind when the two others were put forward
    clock = clock_among(Wall(1_000), HOUR_MS, HOUR_MS)
    assert millis_of(clock.now()) == HOUR_MS - MAX_SKEW_MS // 2


def test_a_time_that_a_log_has_is_followed_up_to_a_day_ahead() -> None:
    clock = clock_among(Wall(1_000), 1_000, 1_000)
    # given a log with times of a clock that was an hour ahead
    assert clock.follow_log(at(HOUR_MS, 5))
    assert clock.now() == at(HOUR_MS, 6)
    assert clock.logged == at(HOUR_MS, 5)
    # then the present is where it was
    assert clock.wall_ms() == 1_000
    # and one that is a day ahead is followed, and no later one
    assert clock.follow_log(at(1_000 + LOG_AHEAD_MS_MAX))
    latest = clock.latest
    assert not clock.follow_log(at(1_001 + LOG_AHEAD_MS_MAX))
    assert (clock.latest, clock.logged) == (latest, latest)


def test_a_clock_without_others_follows_its_log_however_far_ahead_it_is() -> None:
    for clock in (HybridClock(Wall(0)), HybridClock(Wall(0), alone=True)):
        assert clock.follow_log(at(10 * LOG_AHEAD_MS_MAX))
        assert clock.now() == at(10 * LOG_AHEAD_MS_MAX, 1)


def test_what_a_wrong_clock_gave_is_taken_back_but_for_what_a_log_has() -> None:
    # given a clock that was an hour ahead, and a log that has some of its times
    wall = Wall(2 * HOUR_MS)
    clock = HybridClock(wall, max_skew_ms=MAX_SKEW_MS)
    clock.follow_log(clock.now())
    logged = clock.logged
    assert clock.now() > logged
    wall.millis += 10_000
    clock.now()
    # when it is known what the others' clocks say
    clock.others = lambda _: Agreed(HOUR_MS, HOUR_MS)
    clock.heard_more()
    # then it goes on right above the log
    assert clock.now() == logged + 1


def test_a_log_that_was_more_than_a_day_ahead_moves_no_time_once_others_are_heard() -> None:
    # given a node that stamped a log by its clock, which was far ahead, as it knew no other
    right_ms = HOUR_MS
    wall = Wall(right_ms + 10 * LOG_AHEAD_MS_MAX)
    clock = HybridClock(wall, max_skew_ms=MAX_SKEW_MS)
    time = clock.now()
    assert clock.follow_log(time)
    # when it is known what the others' clocks say
    clock.others = lambda _: Agreed(right_ms, right_ms)
    clock.heard_more()
    # then what it gives to all other logs is of the present, and it tells no node of that one
    assert millis_of(clock.now()) == right_ms + MAX_SKEW_MS // 2
    assert clock.logged < time
    assert not clock.follow_log(time)


def test_times_that_are_ahead_by_less_than_twice_the_skew_are_not_taken_back() -> None:
    clock = clock_among(Wall(1_000), 1_000, 1_000)
    assert clock.follow(at(1_000 + MAX_SKEW_MS))
    latest = clock.latest
    # given clocks of which is known more closely how far they are
    clock.others = lambda _: Agreed(900, 900)
    clock.heard_more()
    assert clock.latest == latest


def test_time_fits_into_64_bits_up_to_its_last_moment() -> None:
    clock = HybridClock(Wall(LAST_MS))
    assert clock.now() == at(LAST_MS)
    assert clock.observe(at(LAST_MS, 0xFFFE)) == (1 << 64) - 1
    with pytest.raises(AssertionError, match="fits into 64 bits"):
        clock.now()


WALLS = st.integers(min_value=0, max_value=1 << 44)
AHEAD = st.integers(min_value=-10_000, max_value=MAX_SKEW_MS)
COUNTERS = st.integers(min_value=0, max_value=0xFFFF)


@pytest.mark.slow
@given(st.lists(st.tuples(WALLS, st.none() | st.tuples(AHEAD, COUNTERS)), max_size=50))
def test_time_only_grows_and_never_stays_behind_what_it_saw(
    steps: list[tuple[int, tuple[int, int] | None]],
) -> None:
    # given a wall clock that jumps anywhere, and peers that send their times
    wall = Wall(0)
    clock = HybridClock(wall, max_skew_ms=MAX_SKEW_MS)
    last = -1
    for wall.millis, peer in steps:
        if peer is None:
            time = clock.now()
        else:
            remote = at(max(0, wall.millis + peer[0]), peer[1])
            time = clock.observe(remote)
            assert time > remote
        # then each time is above all before it, and not behind the wall clock
        assert time > last
        assert millis_of(time) >= wall.millis
        last = time
