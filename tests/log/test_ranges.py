"""Consecutive entries for a follower that catches up, and sizes for whoever decides by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from log.world import World, data_of, number
from lowmark.log import Entry, EntryGone, GroupUnknown

EVERYTHING = 1 << 40


def indexes(found: list[Entry]) -> list[int]:
    return [entry.index for entry in found]


@contextmanager
def no_segment_opened(world: World) -> Iterator[None]:
    """Expect that meanwhile no segment is looked into."""
    world.log.cache.close()
    yield
    assert not world.log.cache._readers


def layered() -> World:
    """1 to 10 and 11 to 20 in segments, 21 to 30 in the WAL, 31 to 35 just appended."""
    world = World()
    world.segment(1, 10, size=100)
    world.segment(11, 20, size=100)
    for first in (21, 26):
        world.append(first, first + 4, size=100)
    world.put(31, 35, size=100)
    return world


# -- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(1, 35), (8, 13), (15, 28), (22, 24), (33, 35)])
def test_a_range_is_read_across_segments_and_memory(first: int, last: int) -> None:
    world = layered()
    found = world.group.read_range(first, last, bytes_max=EVERYTHING)
    expected = [(i, 1, data_of(i, 1, 100)) for i in range(first, last + 1)]
    assert [(e.index, e.term, bytes(e.data)) for e in found] == expected


@pytest.mark.parametrize("first", [1, 9, 20, 21, 33])
@pytest.mark.parametrize(
    ("bytes_max", "count"), [(0, 1), (99, 1), (100, 1), (299, 2), (300, 3), (301, 3)]
)
def test_a_range_ends_before_it_is_too_much_but_not_before_its_first_entry(
    first: int, bytes_max: int, count: int
) -> None:
    found = layered().group.read_range(first, 35, bytes_max=bytes_max)
    assert indexes(found) == list(range(first, first + count))


def test_nothing_comes_after_an_entry_that_did_not_fit() -> None:
    # given a large entry between small ones, each in a run of its own
    world = World()
    world.append(1, 1, size=10)
    world.append(2, 2, size=500)
    world.append(3, 3, size=10)
    for after in [world, world.crash()]:
        # then a range that has no room for it ends there, and does not skip it
        assert indexes(after.group.read_range(1, 3, bytes_max=100)) == [1]
        assert indexes(after.group.read_range(2, 3, bytes_max=100)) == [2]


def test_an_empty_entry_still_fits_when_the_room_is_used_up() -> None:
    world = World()
    for data in (b"x" * 100, b"", b"", b"y", b""):
        world.group.append(1, [data])
    assert indexes(world.group.read_range(1, 5, bytes_max=100)) == [1, 2, 3]
    world.settle()
    world.roll()
    assert indexes(world.group.read_range(1, 5, bytes_max=100)) == [1, 2, 3]


def test_a_range_ends_with_the_log_and_what_the_snapshot_covers_is_gone() -> None:
    world = layered()
    world.await_written(35)
    world.snapshot(15, [3])
    group = world.group
    assert indexes(group.read_range(34, 99, bytes_max=EVERYTHING)) == [34, 35]
    assert group.read_range(36, 99, bytes_max=EVERYTHING) == []
    assert group.read_range(20, 19, bytes_max=EVERYTHING) == []
    assert indexes(group.read_range(16, 17, bytes_max=EVERYTHING)) == [16, 17]
    # a live entry below the snapshot is no part of the normal section either
    for first in (15, 3, 0):
        with pytest.raises(EntryGone):
            group.read_range(first, 20, bytes_max=EVERYTHING)


def test_a_range_has_the_newest_of_what_was_overwritten() -> None:
    # given an overwrite in memory that is shorter than what segments hold
    world = World()
    world.segment(1, 20)
    world.put(8, 12, term=2)
    for first in (1, 8, 10):
        found = world.group.read_range(first, 99, bytes_max=EVERYTHING)
        expected = [(i, 1 if i < 8 else 2) for i in range(first, 13)]
        assert [(entry.index, entry.term) for entry in found] == expected


def test_large_entries_are_part_of_a_range_wherever_they_are() -> None:
    world = World()
    world.append(1, 2)
    world.append(3, 4, size=20_000)
    world.append(5, 6)

    def check(world: World) -> None:
        found = world.group.read_range(1, 6, bytes_max=EVERYTHING)
        assert [len(entry.data) for entry in found] == [3, 3, 20_000, 20_000, 3, 3]
        assert indexes(world.group.read_range(2, 6, bytes_max=30_000)) == [2, 3]
        assert world.group.size_of(1, 6) == 40_012

    check(world)
    check(world.crash())  # named by the WAL only
    world.roll()
    check(world)


def test_a_range_that_lies_in_the_newest_run_opens_no_segment() -> None:
    world = layered()
    with no_segment_opened(world):
        found = world.group.read_range(31, 35, bytes_max=EVERYTHING)
    assert indexes(found) == [31, 32, 33, 34, 35]


@pytest.mark.parametrize("part", [b"13@1", b"19@1"])
def test_damage_in_a_range_quarantines_the_group_and_is_raised(part: bytes) -> None:
    # given a damaged entry in a segment
    world = layered()
    world.spoil(f"groups/g/{number(2)}.segment", part)
    # then a range up to it is fine, one with it is not, and the group is closed to writes
    assert indexes(world.group.read_range(8, 12, bytes_max=EVERYTHING)) == [8, 9, 10, 11, 12]
    with pytest.raises(Exception, match="fails its checksum"):
        world.group.read_range(8, 30, bytes_max=EVERYTHING)
    assert world.group.quarantined is not None


def test_many_entries_of_a_segment_are_checked_as_well() -> None:
    # given so many entries that they are checked as arrays
    world = World()
    world.segment(1, 400)
    assert len(world.group.read_range(1, 400, bytes_max=EVERYTHING)) == 400
    world.spoil(f"groups/g/{number(1)}.segment", b"377@1")
    with pytest.raises(Exception, match="entry 377 fails its checksum"):
        world.group.read_range(1, 400, bytes_max=EVERYTHING)


def test_a_plan_for_a_range_can_be_carried_out_elsewhere() -> None:
    world = layered()
    plan = world.group.plan_range(5, 33, bytes_max=2_000)
    # when what was in memory is overwritten and flushed meanwhile
    world.append(25, 26, term=2)
    world.roll()
    # then the plan still has what was asked for
    assert indexes(plan.execute(world.disk)) == list(range(5, 25))


@pytest.mark.parametrize("seed", range(20))
def test_any_range_reads_like_its_entries_one_by_one(seed: int) -> None:
    # given a log of entries of any size, overwritten here and there, in any number of pieces
    dice, world = Random(seed), World(seed, segment_entries_max=7)
    term = 1
    for _ in range(12):
        last = world.group.last_index
        if last and dice.random() < 0.3:
            term += 1
            last = max(world.group.first_index - 1, last - dice.randrange(6))
        datas = [dice.randbytes(dice.choice([0, 5, 50, 20_000])) for _ in range(dice.randrange(9))]
        world.group.append(term, datas, first=last + 1)
        world.settle()
        if dice.random() < 0.3:
            world.roll()
    if dice.random() < 0.5:
        world.snapshot(dice.randrange(1, world.group.last_index + 1))
    group = world.group
    everything = group.read(range(group.first_index, group.last_index + 1))
    for _ in range(30):
        first = dice.randrange(group.first_index, group.last_index + 2)
        last, bytes_max = first + dice.randrange(30), dice.choice([1, 60, 500, 25_000, EVERYTHING])
        expected, size = list[Entry](), 0
        for entry in everything:
            if first <= entry.index <= last:
                size += len(entry.data)
                if expected and size > bytes_max:
                    break
                expected.append(entry)
        # then a range gives what single reads give, up to its limit
        assert group.read_range(first, last, bytes_max=bytes_max) == expected
        sizes = [len(entry.data) for entry in everything if first <= entry.index <= last]
        assert group.size_of(first, last) == sum(sizes)
        for entry in expected:
            assert group.term_at(entry.index) == entry.term


# -- sizes --------------------------------------------------------------------------------------


def test_the_size_of_a_range_is_known_without_reading_it() -> None:
    world = layered()
    group = world.group
    with no_segment_opened(world):
        # whole segments and memory: no segment is opened
        assert group.size_of(1, 35) == 3_500
        assert group.size_of(21, 33) == 1_300
        assert group.size_of(11, 99) == 2_500
    assert group.size_of(5, 15) == 1_100
    assert (group.size_of(36, 99), group.size_of(9, 8), group.size_of(30, 30)) == (0, 0, 100)
    # what the snapshot covers does not count
    world.await_written(35)
    world.snapshot(15, [3])
    assert group.size_of(1, 20) == 500


def test_the_size_of_the_log_follows_appends_flushes_overwrites_and_snapshots() -> None:
    world = World()
    assert world.group.log_bytes == 0
    world.append(1, 10, size=100)
    assert world.group.log_bytes == 1_000
    world.roll()
    assert world.group.log_bytes == 1_000
    world.append(11, 20, size=100)
    assert world.group.log_bytes == 2_000
    world.append(8, 9, term=2, size=100)
    assert world.group.log_bytes == 900
    world.roll()
    assert world.group.log_bytes == 900
    world.snapshot(4, [2])
    for after in [world, world.crash(), world.kill()]:
        assert after.group.log_bytes == 500
        assert after.group.size_of(1, 99) == 500
    world.snapshot(9)
    assert world.group.log_bytes == 0


def test_the_size_of_the_log_does_not_look_at_segments_again_and_again() -> None:
    world = layered()
    assert world.group.log_bytes == 3_500
    known = world.group.state.segment_bytes_known
    world.put(36, 40, size=100)
    assert world.group.log_bytes == 4_000
    assert world.group.state.segment_bytes_known is known


def test_a_group_tells_who_it_is_and_how_big_its_state_is() -> None:
    world = World()
    world.append(1, 10)
    before = world.group.incarnation
    assert (len(before), world.group.state_bytes) == (16, 0)
    world.snapshot(5, state=[b"abc", b"defg"])
    for after in [world, world.crash()]:
        assert (after.group.incarnation, after.group.state_bytes) == (before, 7)
    # one that is made anew is another
    world.log.delete_group("g")
    world.settle()
    assert world.log.create_group("g").incarnation != before


# -- terms --------------------------------------------------------------------------------------


def test_the_term_in_a_segment_of_one_term_needs_no_file() -> None:
    world = layered().kill()
    with no_segment_opened(world):
        assert [world.group.term_at(i) for i in (1, 5, 10, 11, 15, 25)] == [1] * 6


def test_a_segment_of_several_terms_is_asked_once() -> None:
    world = World(open_files_max=1)
    for first, term in ((1, 1), (5, 3), (9, 4)):
        world.append(first, first + 3, term=term)
    world.roll()
    world.segment(13, 14, term=4)
    terms = [1] * 4 + [3] * 4 + [4] * 4
    assert [world.group.term_at(i) for i in range(1, 13)] == terms
    with no_segment_opened(world):
        assert [world.group.term_at(i) for i in range(1, 13)] == terms


# -- a group that is gone -----------------------------------------------------------------------


def test_a_deleted_group_serves_nothing_to_who_still_has_it_in_hand() -> None:
    world = layered()
    group = world.group
    world.log.delete_group("g")
    for refused in (
        lambda: group.read([1]),
        lambda: group.read_range(1, 20, bytes_max=EVERYTHING),
        lambda: group.append(1, [b"x"]),
        lambda: group.put_meta(b"x", lambda _: None),
        lambda: group.size_of(2, 3),
    ):
        with pytest.raises(GroupUnknown):
            refused()
