"""Ra's scenarios for a replica's log (reference/raft-and-log.md §2, 23 to 41).

Ours differs: a batch that the disk refused is put back and written to a new file, so nobody has to
resend; events are calls on one loop and can't get lost; an installed snapshot's live entries do not
go through the WAL.

    23  test_entries_that_the_disk_refused_are_written_later_in_order
    24  test_two_crashes_in_a_row_lose_nothing (each WAL file names its own writers)
    25  none: an event can't be lost
    26  test_a_late_written_event_does_not_count_for_what_was_overwritten
    27  test_written_falls_at_once_when_entries_are_overwritten
    28  test_written_falls_to_the_entry_before_the_overwrite
    29  test_entries_that_were_overwritten_before_they_were_written_never_come_back
    30  test_a_snapshot_of_unwritten_entries_is_refused (an installed one: test_install)
    31  test_install: an install overtakes pending writes
    32  test_install_then_write_and_roll_over
    33  test_install_then_lead
    34  test_sparse_entries_are_the_same_after_a_restart
    35  test_reads: a dead index is gone, and says why
    36  none: live entries of an installed snapshot are not written to the WAL
    37  test_reads: a read plan stays good while phase 3 replaces the file
    38  none: there are no successor tables; see test_ra_scenarios_wal, 47
    39  test_a_group_that_is_deleted_during_its_flush_does_not_stop_the_others
    40  test_a_group_whose_identity_is_lost_is_reported_and_left_alone
    41  test_ra_scenarios_snapshots: an empty live file
"""

from __future__ import annotations

import pytest

from log.world import World, data_of, finish
from lowmark.log import Damaged, Entry, GroupExists, SnapshotMeta, Written
from lowmark.log.errors import SnapshotRefused


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("call", ["write", "datasync"])
def test_entries_that_the_disk_refused_are_written_later_in_order(call: str, failures: int) -> None:
    world = World()
    world.append(1, 5)
    # given a disk that refuses the WAL, once or twice in a row
    for _ in range(failures):
        world.disk.fail_next(call, ".wal")
    world.put(6, 8)
    world.put(9, 10, term=2)
    # when time passes, then all of it is written, in order and once
    world.await_written(10)
    assert world.written[1:] == [Written("g", 1, 6, 8), Written("g", 2, 9, 10)]
    # and survives
    for after in [world, world.crash()]:
        after.check(range(1, 9))
        after.check([9, 10], term=2)


def test_two_crashes_in_a_row_lose_nothing() -> None:
    world = World()
    world.append(1, 5)
    world = world.crash()
    world.append(6, 10)
    world = world.crash()
    world.append(11, 15)
    for _ in range(3):
        world = world.crash()
        world.check(range(1, 16))
        assert world.group.last_index == 15


def test_a_late_written_event_does_not_count_for_what_was_overwritten() -> None:
    # given 1 to 3, on their way to the disk, and 2 overwritten meanwhile
    world = World()
    world.put(1, 3)
    world.loop.turn()
    world.put(2, 2, term=2)
    # when the first write ends
    world.loop.run_until(lambda: bool(world.written))
    # then only what is left of it counts as written
    assert world.written == [Written("g", 1, 1, 1)]
    assert world.group.written_index == 1
    world.await_written(2)
    assert world.written[1:] == [Written("g", 2, 2, 2)]
    assert (world.group.last_index, world.group.last_term) == (2, 2)


def test_written_falls_at_once_when_entries_are_overwritten() -> None:
    world = World()
    world.append(1, 2)
    # when the first is overwritten, then nothing is written any more, before any disk call
    world.put(1, 1, term=2)
    assert world.group.written_index == 0
    world.await_written(1)
    world.check([1], term=2)
    assert world.group.last_index == 1


def test_written_falls_to_the_entry_before_the_overwrite() -> None:
    world = World()
    world.append(1, 15)
    world.snapshot(10)
    world.put(13, 13, term=2)
    assert world.group.written_index == 12
    world.await_written(13)


@pytest.mark.parametrize("turns", range(4))
def test_entries_that_were_overwritten_before_they_were_written_never_come_back(turns: int) -> None:
    # given 6 to 10 on their way, and a new 6 that cuts them off
    world = World()
    world.append(1, 5)
    world.put(6, 10)
    for _ in range(turns):
        world.loop.turn()
    world.put(6, 6, term=2)
    world.await_written(6)
    # then they are gone, now, after a crash, and after a roll-over
    for after in [world, world.crash()]:
        assert (after.group.last_index, after.group.last_term) == (6, 2)
        after.roll()
        after = after.reopen()
        assert (after.group.last_index, after.group.last_term) == (6, 2)
        after.check([6], term=2)
        after.append(7, 8, term=2)
        after.check([7, 8], term=2)


def test_a_snapshot_of_unwritten_entries_is_refused() -> None:
    world = World()
    world.append(1, 5)
    world.put(6, 10)
    with pytest.raises(SnapshotRefused, match="durable up to 5"):
        world.begin_snapshot(8)
    world.await_written(10)
    world.snapshot(8)


def installed(live: dict[int, int], *, at: int = 15, last_applied: int = 0) -> World:
    """A world that took in a snapshot with these live indexes and terms."""
    world = World()
    if last_applied:
        world.append(1, last_applied)
    installer = world.group.begin_install(SnapshotMeta(index=at, term=1), last_applied=last_applied)
    sent = [Entry(i, term, data_of(i, term)) for i, term in live.items() if i > last_applied]
    installer.add_entries(last_applied, sent)
    installer.add_state(0, b"state")
    finish(world, installer, live)
    return world


def test_install_then_write_and_roll_over() -> None:
    # given an installed snapshot at 15 with 2, 9, 14 live
    world = installed({2: 1, 9: 1, 14: 1})
    # when 16 is written and rolled over
    world.segment(16, 16)
    # then memory is empty, and everything reads
    assert world.group.state.memtable.view == []
    world.check([2, 9, 14, 16])
    world.reopen().check([2, 9, 14, 16])


def test_install_then_lead() -> None:
    world = installed({1: 1, 5: 1})
    world.append(16, 20, term=2)
    for after in [world, world.crash()]:
        after.check([1, 5])
        after.check(range(16, 21), term=2)
        assert after.readable(1, 15) == [1, 5]


def test_sparse_entries_are_the_same_after_a_restart() -> None:
    # given own entries to 5, and 7 and 17 from a snapshot at 20
    world = installed({3: 1, 7: 1, 17: 1}, at=20, last_applied=5)
    before = (world.segments, world.group.last_index, world.group.written_index, world.group.row)
    world.check([3, 7, 17])
    # when the log is opened again, it looks the same
    world = world.reopen()
    after = (world.segments, world.group.last_index, world.group.written_index, world.group.row)
    assert after == before
    world.check([3, 7, 17])


def test_a_group_that_is_deleted_during_its_flush_does_not_stop_the_others() -> None:
    for turns in range(12):
        # given two groups in a WAL file that is being flushed
        world = World()
        world.log.create_group("other")
        world.append(1, 10)
        world.append(1, 10, group="other")
        world.log.roll()
        for _ in range(turns):
            world.loop.turn()
        # when one is deleted at any moment
        world.log.delete_group("g")
        world.settle()
        # then the other one's entries are in a segment, and the WAL file is gone
        assert [ref.last for ref in world.log.group("other").state.segments] == [10]
        assert len(world.disk.list("wal")) == 1
        assert world.disk.list("groups") == ["other"]


def test_a_group_whose_identity_is_lost_is_reported_and_left_alone() -> None:
    world = World()
    world.log.create_group("other")
    world.append(1, 5, group="other")
    world.segment(1, 5)
    world.log.close()
    # given a group folder that can't say who it is
    world.disk.unlink("groups/g/group")
    world = world.kill()
    # then its name says so, its files stay, and the others work
    with pytest.raises(Damaged, match=r"groups/g/group .* missing"):
        world.log.group("g")
    with pytest.raises(GroupExists):
        world.log.create_group("g")
    assert len(world.files()) == 1
    assert [group.name for group in world.log.groups()] == ["other"]
    world.append(6, 6, group="other")
    # and it can be deleted
    world.log.delete_group("g")
    world.settle()
    assert world.disk.list("groups") == ["other"]
    world.log.create_group("g")
