"""Ra's scenarios for the WAL (reference/raft-and-log.md §2, 42 to 50).

42  none: sparse entries go straight into segments (test_install)
43  test_a_gap_is_refused_and_says_what_to_send
44  test_what_a_snapshot_covers_is_left_out
45  test_two_terms_in_one_batch_are_two_events; test_of_several_overwrites_the_newest_counts
46  test_a_torn_last_write_costs_only_itself; test_damage_in_the_middle_quarantines_its_group
47  test_an_overwrite_across_two_wal_files_is_recovered
48  none: the segment writer starts when the WAL has been read
49  test_an_entry_larger_than_a_wal_file_is_taken (there is no limit of entries per file)
50  test_a_deleted_group_is_not_carried_into_new_files (a file names its writers itself)
"""

from __future__ import annotations

from random import Random

import pytest

from log.world import World
from lowmark.log import Written
from lowmark.log.errors import NotContiguous


def test_a_gap_is_refused_and_says_what_to_send() -> None:
    world = World()
    world.append(1, 3)
    with pytest.raises(NotContiguous, match="Send the entries from 4 on"):
        world.put(5, 5)
    with pytest.raises(NotContiguous):
        world.put(6, 6)
    # also after a roll-over and a restart
    world.roll()
    world = world.reopen()
    with pytest.raises(NotContiguous):
        world.put(5, 5)
    world.append(4, 6)
    world.check(range(1, 7))


def test_what_a_snapshot_covers_is_left_out() -> None:
    # given a snapshot at 5
    world = World()
    world.append(1, 5)
    world.snapshot(5)
    # when 4 to 7 come, then only 6 and 7 are written
    world.append(4, 7)
    assert world.written[-1] == Written("g", 1, 6, 7)
    # and what is wholly covered changes nothing
    world.put(2, 4)
    assert (world.group.last_index, world.group.written_index) == (7, 7)
    for after in [world, world.crash()]:
        after.check([6, 7])
        assert after.readable(1, 7) == [6, 7]


def test_straight_after_a_snapshot_an_append_is_taken() -> None:
    world = World()
    world.append(1, 5)
    world.snapshot(5)
    world.roll()
    assert world.segments == []
    world.append(6, 6)
    world.crash().check([6])


def test_two_terms_in_one_batch_are_two_events() -> None:
    world = World()
    with world.calls() as calls:
        world.put(1, 2)
        world.put(3, 4, term=2)
        world.await_written(4)
    assert sum(call.startswith("datasync") for call in calls) == 1
    assert world.written == [Written("g", 1, 1, 2), Written("g", 2, 3, 4)]


@pytest.mark.parametrize("wait", [False, True], ids=["in one batch", "across batches"])
def test_of_several_overwrites_the_newest_counts(wait: bool) -> None:
    world = World()
    for term in (1, 2, 3):
        world.put(2 if term > 1 else 1, 4, term=term)
        if wait:
            world.await_written(4)
    world.await_written(4)
    for after in [world, world.crash()]:
        after.check([1])
        after.check([2, 3, 4], term=3)
        after.roll()
        after.check([2, 3, 4], term=3)
        assert [e for e in after.segments if e[1] <= 4] == [(1, 1, 4)]


def test_a_torn_last_write_costs_only_itself() -> None:
    # given 99 written entries, and a crash while the hundredth is being written
    world = World()
    world.append(1, 99)
    world.put(100, 100)
    world.until("datasync", ".wal", lambda: world.await_written(100))
    found = set()
    for after in world.worlds_after_crash():
        # then it is there or it is not, and the others are
        assert after.group.quarantined is None
        after.check(range(1, after.group.last_index + 1))
        found.add(after.group.last_index)
        # and the log goes on behind it, over another crash
        last = after.group.last_index
        after.append(last + 1, last + 3, term=2)
        after = after.crash()
        after.check(range(1, last + 1))
        after.check(range(last + 1, last + 4), term=2)
    assert found == {99, 100}


def test_damage_in_the_middle_quarantines_its_group() -> None:
    # given two groups in the WAL, and a flipped bit in an entry of one
    world = World()
    world.log.create_group("other")
    world.append(1, 3)
    world.append(4, 6)
    world.append(1, 3, group="other")
    [wal] = world.disk.list("wal")
    world.spoil(f"wal/{wal}", b"4@1")
    # when the log is opened, then that group takes no writes, and the other does
    world = world.kill()
    assert world.group.quarantined is not None
    assert world.log.group("other").quarantined is None
    world.check(range(1, 4))
    world.append(4, 5, group="other")
    # and the damaged file is kept for people
    assert wal in world.disk.list("wal")


def test_an_overwrite_across_two_wal_files_is_recovered() -> None:
    # given 1 to 10 in one WAL file and 5 to 20 in the next, with nothing flushed
    world = World()
    world.append(1, 10)
    world.disk.fail_next("create", ".segment")
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.number == 2)
    world.append(5, 20, term=2)
    assert world.segments == []
    world = world.crash()

    def check(world: World) -> None:
        assert (world.group.last_index, world.group.last_term) == (20, 2)
        world.check(range(1, 5))
        world.check(range(5, 21), term=2)

    # then each index has its newest term, before and after the flush
    check(world)
    world.settle()
    world.roll()
    check(world)
    check(world.reopen())


def test_an_entry_larger_than_a_wal_file_is_taken() -> None:
    world = World(wal_bytes_max=4_096)
    world.append(1, 1, size=10_000)
    world.append(2, 2)
    world.settle()
    # the file it filled is closed with the next append, and both are there
    assert world.log.wal.number == 2
    for after in [world, world.crash()]:
        after.check([1], size=10_000)
        after.check([2])


def test_a_full_wal_file_is_rolled_over_by_itself() -> None:
    world = World(wal_bytes_max=4_096)
    for index in range(1, 101):
        world.append(index, index, size=200)
    world.settle()
    assert world.log.wal.number > 5
    assert len(world.disk.list("wal")) == 1
    for after in [world, world.crash()]:
        after.check(range(1, 101), size=200)


def test_the_wal_waits_when_the_segment_writer_lags() -> None:
    # given a segment writer that can't write
    world = World(wal_bytes_max=4_096, wal_batch_bytes_max=4_096, wal_files_waiting_max=2)
    for _ in range(40):
        world.disk.fail_next("space", ".segment")
    for index in range(1, 101):
        world.put(index, index, size=200)
    # then the WAL makes no more files than may wait, and goes on when it can
    most = 0
    while world.group.written_index < 100 or not world.log.idle:
        world.loop.turn()
        most = max(most, len(world.disk.list("wal")))
    assert most == 3
    world.crash().check(range(1, 101), size=200)


def test_a_deleted_group_is_not_carried_into_new_files() -> None:
    world = World()
    world.group.put_meta(b"a vote", lambda _: None)
    world.settle()
    world.roll()
    [wal] = world.disk.list("wal")
    with_it = world.disk.stat(f"wal/{wal}")
    world.log.delete_group("g")
    world.roll()
    [wal] = world.disk.list("wal")
    without = world.disk.stat(f"wal/{wal}")
    assert with_it is not None
    assert without is not None
    assert without.size < with_it.size


@pytest.mark.parametrize("seed", range(8))
def test_what_was_reported_as_written_is_there_after_a_crash(seed: int) -> None:
    dice = Random(seed)
    world = World(seed, wal_bytes_max=4_096)
    last = 0
    for _ in range(12):
        count = dice.randrange(1, 6)
        world.put(last + 1, last + count, size=dice.randrange(300))
        last += count
        for _ in range(dice.randrange(10)):
            world.loop.turn()
    written = world.group.written_index
    after = world.crash(seed)
    assert written <= after.group.last_index <= last
    assert [i for i, _, _ in after.read(*range(1, written + 1))] == list(range(1, written + 1))
