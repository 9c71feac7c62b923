"""Cases that a careful reader of the code found, each of which once lost or spoilt something."""

from __future__ import annotations

from array import array

import pytest
from pyroaring import BitMap64

from log.world import Ended, World, finish, number, send
from lowmark.errors import Rejected
from lowmark.holds import Span
from lowmark.log import GroupUnwritable, InstallRefused, SnapshotMeta
from lowmark.log.errors import SnapshotRefused
from lowmark.runtime import DiskFull


def test_a_cancelled_segment_that_comes_back_does_not_cancel_a_merge() -> None:
    # given segment 2, overwritten by segment 3, whose file could not be removed
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.disk.fail_next("unlink", f"{number(2)}.segment")
    world.append(11, 20, term=2)
    world.segment(21, 30, term=2)
    world.segment(31, 40, term=2)
    world.segment(41, 50, term=2)
    # when 1 and 3 are merged under the name of 1, and the log is opened again
    world.snapshot(40, [5, 15, 25, 35])
    world.compact()
    for after in [world, world.crash()]:
        # then the newer term is read, not what 2 says
        assert after.group.quarantined is None
        after.check([15, 25, 35], term=2)
        after.check([5])


def test_a_removal_that_failed_is_tried_again() -> None:
    world = World()
    for first in (1, 11, 21):
        world.segment(first, first + 9)
    world.disk.fail_next("unlink", f"{number(1)}.segment")
    world.snapshot(20, [])
    world.segment(31, 40)
    assert world.disk.stat(f"groups/g/{number(1)}.segment") is None


def test_a_hold_keeps_entries_that_are_only_in_the_wal() -> None:
    # given held entries that no segment has yet
    world = World()
    world.append(1, 10)
    world.group.hold("ann", kind="reader", pins=Span(1, 10), why="reads")
    # when a snapshot makes them dead, and the WAL file is flushed
    world.snapshot(10, [])
    world.segment(11, 12)
    # then the holder can read them still
    plan = world.group.plan_read(range(1, 11), held=True)
    assert [entry.index for entry in plan.execute(world.disk)] == list(range(1, 11))


def test_a_sender_can_send_what_a_newer_snapshot_made_dead_in_the_wal() -> None:
    world = World()
    world.append(1, 10)
    world.snapshot(10, [3, 5])
    sender = world.group.open_sender("follower", last_applied=0)
    world.append(11, 12)
    world.snapshot(12, [])
    world.segment(13, 14)
    assert [entry.index for entry in sender.entries()[1]] == [3, 5]


def test_after_a_failed_sync_of_the_folder_every_segment_is_named_again() -> None:
    # given a flush of two segments whose folder can't be synced at first
    world = World(segment_entries_max=10)
    world.append(1, 10)
    world.append(11, 20)
    world.disk.fail_next("sync_dir", "groups/g")
    world.log.roll()
    world.loop.run_for(5_000)
    world.settle()
    # when the WAL file is gone and the power fails, then both are there
    for after in world.worlds_after_crash():
        after.check(range(1, 21))


def test_a_failed_sync_of_another_lane_is_heard() -> None:
    # given phase 1, whose sync of the folder fails between a segment's rename and its own sync
    world = World(segment_entries_max=10)
    world.append(1, 10)
    world.append(11, 20)

    def look(call: str, path: str) -> None:
        if call == "rename" and path.endswith(f"{number(1)}.segment"):
            world.disk.before_call = None
            world.group.state.large_garbage.add(999)
            world.disk.fail_next("sync_dir", "groups/g")
            world.log.phase1(world.group.state)

    world.disk.before_call = look
    world.log.roll()
    world.loop.run_for(5_000)
    world.settle()
    for after in world.worlds_after_crash():
        after.check(range(1, 21))


def test_an_installation_without_all_its_entries_is_refused() -> None:
    world = World()
    world.append(1, 10)
    installer = world.group.begin_install(SnapshotMeta(index=70, term=3), last_applied=5)
    installer.add_state(0, b"state")
    with pytest.raises(InstallRefused, match="2 live entries have not come, the first is 50"):
        installer.finish(BitMap64([5, 50, 70]), Ended())


def test_an_installation_that_counts_on_dead_entries_is_refused() -> None:
    world = World()
    world.append(1, 10)
    world.snapshot(8, [3])
    installer = world.group.begin_install(SnapshotMeta(index=70, term=3), last_applied=9)
    with pytest.raises(InstallRefused, match="live entry 5 was not sent, and is dead here"):
        installer.finish(BitMap64([3, 5]), Ended())


def test_a_state_that_rotted_at_the_sender_does_not_infect_the_receiver() -> None:
    # given a sender whose state file has a wrong byte
    source = World(7)
    source.append(1, 20)
    source.snapshot(20, [], state=[b"precious state"])
    assert source.group.snapshot is not None
    source.spoil(f"{source.group.snapshot.folder}/state", b"precious")
    # when it is sent whole
    world = World()
    installer = world.group.begin_install(SnapshotMeta(index=20, term=1), last_applied=0)
    sender = source.group.open_sender("follower", last_applied=0)
    send(sender, installer)
    # then the receiver finds out before it counts
    with pytest.raises(InstallRefused, match="another checksum"):
        installer.finish(BitMap64(), Ended(), state=sender.state_sum)


def test_wal_numbers_go_on_above_a_floor_when_the_files_are_gone() -> None:
    # given a group with an installed snapshot, and a `wal/` that somebody emptied
    world = World()
    world.append(1, 10)
    for _ in range(3):
        world.roll()
    installer = world.group.begin_install(SnapshotMeta(index=50, term=3), last_applied=0)
    installer.add_state(0, b"state")
    finish(world, installer, [])
    world.log.close()
    for name in world.disk.list("wal"):
        world.disk.unlink(f"wal/{name}")
    # when it goes on, then what is written is not taken for void after a restart
    world = world.reopen()
    world.append(51, 60, term=3)
    world.crash().check(range(51, 61), term=3)


@pytest.mark.slow
def test_a_long_time_without_space_leaves_no_trail_of_file_numbers() -> None:
    world = World(retry_ms=1_000)
    world.append(1, 5)
    world.disk.capacity_bytes = 0
    world.put(6, 6)
    world.loop.run_for(3_600_000)
    world.disk.capacity_bytes = None
    world.await_written(6)
    world.settle()
    assert world.log.wal.number < 10


def test_a_refusal_that_is_repeated_gathers_no_tracebacks() -> None:
    world = World()
    world.append(1, 5)
    world.disk.capacity_bytes = 0
    world.put(6, 6)
    world.loop.run_for(100)
    depths = []
    for _ in range(50):
        with pytest.raises(DiskFull) as refused:
            world.put(7, 7)
        depths.append(len(refused.traceback))
    assert len(set(depths)) == 1


def test_deleting_a_group_stops_nobody_else() -> None:
    # given a large entry of one group on its way to the disk
    world = World()
    world.log.create_group("other")
    world.put(1, 1, size=20_000)
    world.loop.turn()
    # when that group is deleted, then others go on at once
    world.log.delete_group("g")
    world.append(1, 3, group="other")
    assert world.log.wal.stopped is None
    world.settle()
    assert world.disk.list("groups") == ["other"]


def test_a_group_that_could_not_be_deleted_can_be_deleted_again() -> None:
    world = World()
    world.append(1, 3)
    world.disk.fail_next("rename", "groups/~g")
    world.log.delete_group("g")
    world.settle()
    assert "could not be deleted" in str(world.log.unreadable["g"])
    world.log.delete_group("g")
    world.settle()
    assert world.disk.list("groups") == []


def test_a_snapshot_s_state_is_pulled_on_the_loop_and_its_error_is_the_caller_s() -> None:
    world = World()
    world.append(1, 10)

    def chunks() -> object:
        yield b"half a state"
        raise KeyError("the machine broke")

    meta = SnapshotMeta(index=10, term=1)
    world.group.take_snapshot(meta, chunks(), BitMap64(), Ended())  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="the machine broke"):
        world.loop.run_for(1_000)
    # then another one can be taken
    world.snapshot(10, [])
    assert world.group.row.snapshot_index == 10


def test_what_is_being_snapshotted_is_not_overwritten() -> None:
    world = World()
    world.append(1, 10)
    world.begin_snapshot(8)
    with pytest.raises(SnapshotRefused, match="entry 7 can't be overwritten"):
        world.put(7, 7, term=2)
    world.settle()
    assert world.group.last_index == 10


def test_an_entry_that_is_missing_from_its_segment_is_damage() -> None:
    # given a live index that its segment does not hold, though its range does
    world = World()
    world.append(1, 10)
    world.snapshot(10, [2, 8])
    world.segment(11, 12)
    row = world.group.state.row
    row.live.add(5)
    # then the reader hears of damage, and the group is closed to writes
    with pytest.raises(Exception, match="in no segment"):
        world.group.read([5])
    assert world.group.quarantined is not None


def test_what_a_killed_process_did_not_sync_is_durable_once_it_is_reported() -> None:
    # given a process that was killed between writing a batch and syncing it
    world = World()
    world.append(1, 5)

    def write_more() -> None:
        world.put(6, 8)
        world.settle()

    world.until("datasync", ".wal", write_more)
    # when the next one finds the batch whole and reports it as written
    after = world.kill()
    assert after.group.written_index == 8
    # then no loss of power can take it back
    for later in after.worlds_after_crash():
        later.check(range(1, 9))


def test_deleting_a_group_in_the_middle_of_its_install_stops_nobody() -> None:
    # given a group that is taking a snapshot over, with a part of a WAL file still to be flushed
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    world.append(1, 10, group="other")
    installer = world.group.begin_install(SnapshotMeta(index=50, term=3), last_applied=0)
    installer.add_state(0, b"state")
    world.log.roll()
    installer.finish(BitMap64(), Ended())
    # when it is deleted
    world.log.delete_group("g")
    world.settle()
    # then the other's entries get into segments
    world.segment(11, 20, group="other")
    assert world.log.segment_writer.idle
    found = world.crash().log.group("other").read(range(1, 21))
    assert [entry.index for entry in found] == list(range(1, 21))


def test_buffers_of_any_kind_are_kept_as_the_bytes_they_were() -> None:
    # given a view of wider items, one that is not contiguous, and one that changes afterwards
    world = World()
    wide, strided = memoryview(array("I", [1, 2, 3])), memoryview(b"a-b-c-")[::2]
    changing = bytearray(b"before")
    world.group.append(1, [wide, b"second", strided])
    world.group.append(1, [changing])
    changing[:] = b"after!"
    world.await_written(4)
    world.roll()
    # then each reads back as it was when it was appended, also after a restart
    for after in [world, world.crash()]:
        found = [bytes(entry.data) for entry in after.group.read([1, 2, 3, 4])]
        assert found == [wide.tobytes(), b"second", b"abc", b"before"]


@pytest.mark.parametrize("term", [-1, 1 << 63, 1 << 64])
def test_a_term_that_the_formats_have_no_room_for_is_refused(term: int) -> None:
    world = World()
    with pytest.raises(Rejected, match="can't be a term"):
        world.group.append(term, [b"x"])
    world.append(1, 1)


def test_an_install_that_meets_damage_of_its_own_ends_with_it() -> None:
    # given a large entry that only the WAL names, and that is damaged
    world = World()
    world.append(1, 1, size=20_000)
    world.append(2, 4)
    world.spoil(f"groups/g/{number(1)}.large", b"1@1")
    world = world.kill()
    installer = world.group.begin_install(SnapshotMeta(index=50, term=3), last_applied=4)
    installer.add_state(0, b"state")
    ended = Ended()
    # when a snapshot is installed that counts on it
    installer.finish(BitMap64([1]), ended)
    world.loop.run_until(lambda: ended.over)
    # then the caller hears of it, and the group is closed to writes
    assert "fails its checksum" in str(ended.error)
    assert world.group.quarantined is not None


def test_a_group_whose_folder_is_broken_stops_nobody() -> None:
    world = World(wal_bytes_max=4_096, wal_files_waiting_max=2)
    world.log.create_group("other")
    world.append(1, 5)
    world.disk.go_bad("unwritable", "groups/g")
    for first in range(1, 200, 20):
        world.append(first, first + 19, size=100, group="other")
    world.loop.run_for(20_000)
    # then it takes no writes, for the real reason, and nothing of it is taken for damaged
    with pytest.raises(GroupUnwritable, match=r"groups/g.*Read-only file system"):
        world.put(6, 6)
    assert world.group.quarantined is None
    world.check(range(1, 6))
    assert len(world.log.group("other").read(range(1, 201))) == 200
    # and the file that holds its entries stays for it, while those of the others go
    assert [file.number for file in world.log.segment_writer.kept] == [1]
    assert len(world.disk.list("wal")) == 3
    # when its folder can be written again, then it goes on by itself
    world.disk.heal()
    world.loop.run_until(lambda: world.group.unwritable is None)
    world.append(6, 7)
    world.settle()
    assert world.disk.list("wal") == [f"{number(world.log.wal.number)}.wal"]
    world.crash().check(range(1, 8))


@pytest.mark.parametrize("part", ["g/group", f"g/{number(1)}.segment", "/state", "g/runs"])
def test_a_file_that_cannot_be_read_keeps_no_other_group_from_starting(part: str) -> None:
    # given a disk that fails to read one file of one group
    world = World()
    world.log.create_group("other")
    world.segment(1, 5)
    world.segment(6, 10)
    world.segment(11, 15)
    world.snapshot(10, [3, 8])
    world.compact()
    world.append(1, 3, group="other")
    world.log.close()
    world.disk.fail_next("read", part)
    # when the log is opened, then the other group works, and this one does when it can be read
    after = world.reopen()
    after.append(4, 5, group="other")
    again = after.reopen()
    again.check([3, 8, 11, 15])


def test_appends_leave_room_for_what_the_segment_writer_has_still_to_write() -> None:
    # given a reserve that is smaller than a WAL file
    world = World(wal_bytes_max=64_000, disk_reserved_bytes=20_000)
    world.disk.capacity_bytes = 200_000

    def fill() -> None:
        for index in range(1, 2_000):
            world.put(index, index, size=500)
            world.loop.run_for(5)

    with pytest.raises(DiskFull):
        fill()
    # when everything that was written is in segments, then the reserve is still there
    world.loop.run_for(10_000)
    assert world.log.segment_writer.idle
    assert world.disk.free_bytes() >= 20_000 - 1_000
    assert world.log.wal.number < 12
    # and a snapshot frees space, so that appends go on by themselves
    world.begin_snapshot(world.group.written_index)
    world.loop.run_for(20_000)
    last = world.group.last_index
    world.append(last + 1, last + 1)


def test_a_callback_that_raises_costs_no_other_group_its_entries() -> None:
    world = World()
    world.log.create_group("other")

    def broken(_: object) -> None:
        raise KeyError("the caller broke")

    world.log.on_written = broken
    world.put(1, 3)
    world.put(1, 3, group="other")
    with pytest.raises(KeyError):
        world.loop.run_for(100)
    assert world.group.written_index == world.log.group("other").written_index == 3


def test_links_go_after_their_grace_time_though_the_clock_jumped_back() -> None:
    world = World(link_grace_ms=1_000)
    for first in (1, 11, 21, 31):
        world.segment(first, first + 9)
    world.snapshot(30, [5, 15])
    world.compact()
    assert world.group.state.links
    world.loop.skew_ms = -500
    world.loop.run_for(10_000)
    assert not world.group.state.links


def test_a_group_whose_large_files_cannot_be_made_stops_nobody_for_long() -> None:
    world = World()
    world.log.create_group("other")
    for _ in range(8):
        world.disk.fail_next("create", "groups/g/")
    world.put(1, 1, size=20_000)
    world.put(1, 3, group="other")
    world.loop.run_until(lambda: world.log.group("other").written_index == 3)
    assert world.group.unwritable is not None
    world.append(4, 5, group="other")
    # and it stays so only as long as they can't be made
    world.loop.run_until(lambda: world.group.unwritable is None)
    world.append(1, 1, size=20_000)
    after = world.crash()
    assert len(after.log.group("other").read(range(1, 6))) == 5
    after.check([1], size=20_000)
