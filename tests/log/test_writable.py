"""What becomes of entries when the WAL can't write: who is told what, and when it goes on."""

from __future__ import annotations

import re

import pytest

from log.world import Ended, World, number
from lowmark.log import Damaged, Dropped, GroupUnwritable, SnapshotMeta, Written
from lowmark.log.errors import LogBusy
from lowmark.runtime import DiskFailed, DiskFull


def listen(world: World) -> list[str]:
    """What the log tells, as words."""
    heard: list[str] = []

    def written(event: Written) -> None:
        heard.append(f"{event.group}: {event.first} to {event.last} written")

    def dropped(event: Dropped) -> None:
        heard.append(f"{event.group}: {event.first} to {event.last} dropped")

    world.log.on_written, world.log.on_dropped = written, dropped
    world.log.on_writable = lambda: heard.append("writable")
    return heard


# -- refused, and taken again -------------------------------------------------------------------


def test_a_log_says_when_a_full_disk_has_room_again() -> None:
    world = World()
    world.append(1, 5)
    heard = listen(world)
    world.disk.capacity_bytes = 0
    world.put(6, 8)
    vote = Ended()
    world.group.put_meta(b"vote", vote)
    world.loop.run_for(10_000)
    # given a full disk: nothing is written, nothing is lost, and the log says nothing
    assert (heard, vote.over) == ([], False)
    assert (world.group.last_index, world.group.written_index) == (8, 5)
    world.check(range(1, 9))
    with pytest.raises(DiskFull):
        world.put(9, 9)
    # when there is space, it says so, and what waited is written by itself, in order
    world.disk.capacity_bytes = None
    world.loop.run_until(lambda: bool(heard))
    assert world.log.has_room
    world.put(9, 9)
    world.settle()
    assert heard == ["writable", "g: 6 to 8 written", "g: 9 to 9 written"]
    assert vote.over
    assert vote.error is None


@pytest.mark.parametrize("call", ["write", "datasync", "space"])
def test_a_log_says_when_a_failed_disk_works_again(call: str) -> None:
    world = World()
    world.append(1, 5)
    heard = listen(world)
    world.disk.fail_next(call, ".wal")
    world.put(6, 8)
    world.loop.run_until(lambda: not world.log.has_room)
    with pytest.raises((DiskFailed, DiskFull)):
        world.put(9, 9)
    world.settle()
    world.await_written(8)
    assert heard == ["writable", "g: 6 to 8 written"]
    world.crash().check(range(1, 9))


def test_a_log_that_was_opened_on_a_full_disk_says_when_it_can_write() -> None:
    world = World()
    world.append(1, 5)
    world.disk.capacity_bytes = 0
    world = world.kill()
    heard = listen(world)
    assert not world.log.has_room
    world.loop.run_for(5_000)
    assert heard == []
    world.disk.capacity_bytes = None
    world.loop.run_until(lambda: heard == ["writable"])
    world.append(6, 6)


def test_a_log_says_when_less_waits_again() -> None:
    world = World(wal_queue_bytes_max=10_000, wal_batch_bytes_max=8_000)
    heard = listen(world)
    # given more than may wait
    while world.log.wal.queued_bytes <= 10_000:
        world.put(world.group.last_index + 1, world.group.last_index + 1, size=1_000)
    with pytest.raises(LogBusy):
        world.put(world.group.last_index + 1, world.group.last_index + 1)
    assert not world.log.has_room
    # when it has been taken to be written, then the log says so
    world.loop.run_until(lambda: "writable" in heard)
    world.append(world.group.last_index + 1, world.group.last_index + 1)
    world.settle()
    assert heard.count("writable") == 1


def test_who_appends_when_it_is_told_gets_everything_through() -> None:
    # given an owner that appends whenever there is room, on a disk that fails now and then
    world = World(wal_queue_bytes_max=10_000, wal_batch_bytes_max=8_000)
    dropped: list[Dropped] = []
    world.log.on_dropped = dropped.append

    def go_on() -> None:
        while world.log.has_room and world.group.last_index < 300:
            world.put(world.group.last_index + 1, world.group.last_index + 1, size=500)

    world.log.on_writable = go_on
    for call in ("write", "datasync", "space", "datasync"):
        world.disk.fail_next(call, ".wal")
    go_on()
    world.await_written(300)
    assert dropped == []
    for after in [world, world.crash()]:
        after.check(range(1, 301), size=500)


# -- dropped ------------------------------------------------------------------------------------


def broken_folder() -> tuple[World, list[str]]:
    """A group whose large files can't be made: 1 to 5 are written, 6 to 9 will never be."""
    world = World()
    world.log.create_group("other")
    world.append(1, 5)
    heard = listen(world)
    for _ in range(5):
        world.disk.fail_next("create", ".large")
    world.put(6, 6, size=20_000)
    world.put(7, 9)
    world.put(1, 3, group="other")
    return world, heard


def test_entries_of_a_broken_folder_are_dropped_by_name_and_only_they() -> None:
    world, heard = broken_folder()
    vote = Ended()
    world.group.put_meta(b"vote", vote)
    world.loop.run_until(lambda: bool(vote.over))
    with pytest.raises(GroupUnwritable):
        world.put(6, 6)
    world.settle()
    # then the log falls back to what is written, and says so
    assert "g: 6 to 9 dropped" in heard
    assert heard.count("other: 1 to 3 written") == 1
    group = world.group
    assert (group.last_index, group.last_term, group.written_index) == (5, 1, 5)
    assert group.size_of(1, 9) == 15
    world.check(range(1, 6))
    assert world.readable(1, 9) == [1, 2, 3, 4, 5]
    assert isinstance(vote.error, GroupUnwritable)
    assert re.search(r"create of groups/g/\d+\.large failed: simulated", str(vote.error))
    # and it is the same after a restart, but for the writes: nothing is damaged
    after = world.crash()
    assert after.readable(1, 9) == [1, 2, 3, 4, 5]
    assert after.group.quarantined is None
    # here, too, it goes on when its folder can be written again, and says so
    assert "writable" in heard
    world.append(6, 7)
    world.crash().check(range(1, 8))


def test_a_large_file_of_one_group_is_no_trouble_of_all() -> None:
    # given two groups, and the folder of one that can't be written
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    world.append(1, 3, group="other")
    world.settle()
    world.disk.go_bad("unwritable", "groups/g")
    # when that one has a large entry, which goes to its folder
    world.put(11, 11, size=20_000)
    # then the other one never hears of trouble, though the WAL tries several times
    seen: set[str | None] = set()
    while world.group.unwritable is None:
        world.loop.run_for(10)
        trouble = world.log.group("other").trouble
        seen.add(None if trouble is None else trouble.message)
    assert seen == {None}
    world.append(4, 5, group="other")


def test_what_was_overwritten_by_dropped_entries_is_not_served_meanwhile() -> None:
    # given written entries that newer ones overwrite, which are dropped
    world = World()
    world.append(1, 5)
    world.append(6, 9, term=2)
    heard = listen(world)
    for _ in range(5):
        world.disk.fail_next("create", ".large")
    world.put(4, 4, term=3, size=20_000)
    world.loop.run_until(lambda: "g: 4 to 4 dropped" in heard)
    # then the log ends before them: nobody knows any more what should stand there
    assert (world.group.last_index, world.group.last_term, world.group.written_index) == (3, 1, 3)
    assert world.readable(1, 9) == [1, 2, 3]


def test_an_installation_that_waits_for_dropped_entries_ends() -> None:
    world, heard = broken_folder()
    installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=5)
    world.drain("compaction")
    ended = Ended()
    installer.finish(world.group.row.live, ended)
    world.loop.run_until(lambda: ended.over)
    world.settle()
    assert isinstance(ended.error, GroupUnwritable)
    assert "g: 6 to 9 dropped" in heard
    assert not world.group.state.installing
    assert "installing" not in world.disk.list("groups/g")


def test_the_reason_of_a_quarantine_is_kept_in_the_group_s_folder() -> None:
    world = World()
    world.segment(1, 5)
    world.spoil(f"groups/g/{number(1)}.segment", b"3@1")
    with pytest.raises(Damaged):
        world.check([3])
    world.settle()
    reason = world.group.quarantined
    assert reason is not None
    file = world.disk.open("groups/g/quarantine", "read")
    assert file.read_at(0, file.size()).decode() == reason
    assert world.crash().group.quarantined == reason
