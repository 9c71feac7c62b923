"""A file, a folder or all handles that are bad for longer than every retry, and well after it.

Nothing is damaged then. So nothing that was acknowledged is lost, no group is put into quarantine,
whoever asks hears the real reason, and everything goes on when the disk is well.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from log.world import Ended, World, number
from lowmark.inspect import Finding, verify_log
from lowmark.log import (
    Damaged,
    GroupUnwritable,
    Log,
    SnapshotMeta,
)
from lowmark.log.kept import Kept, read_kept, write_kept
from lowmark.runtime import DiskFailed
from lowmark.runtime.sim import SimDisk
from lowmark.runtime.sim.disk import Ailment

LONG_MS = 60_000


def two_groups(**limits: Any) -> World:
    """100 entries of `g` are acknowledged, and some of another group; all in one WAL file."""
    world = World(**limits)
    world.log.create_group("other")
    world.append(1, 100)
    world.append(1, 3, group="other")
    return world


def vote(world: World, data: bytes) -> None:
    ended = Ended()
    world.group.put_meta(data, ended)
    world.loop.run_until(lambda: ended.over)
    ended.check()


def wal_files(world: World) -> list[str]:
    return [name for name in world.disk.list("wal") if name.endswith(".wal")]


def everything_is_there(world: World, last: int = 100) -> None:
    assert world.group.quarantined is None
    assert world.group.last_index == last
    world.check(range(1, last + 1))


# -- a sick folder -------------------------------------------------------------------------------


@pytest.mark.parametrize("ailment", ["unwritable", "broken"])
def test_a_folder_that_is_sick_for_long_costs_nothing(ailment: Ailment) -> None:
    world = two_groups()
    # given a folder that can't be written for longer than every retry, while its WAL file is closed
    world.disk.go_bad(ailment, "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    with pytest.raises(GroupUnwritable) as refused:
        world.put(101, 101)
    # then the error names the folder and the cause
    said = {"unwritable": "Read-only", "broken": "Input/output"}
    assert "its folder groups/g can't be written" in str(refused.value)
    assert said[ailment] in str(refused.value)
    world.append(4, 5, group="other")
    # when the log is closed, the disk is well, and it is opened again
    world.log.close()
    world.disk.heal()
    after = world._next(world.disk)
    # then every entry is there, and it goes on
    everything_is_there(after)
    after.append(101, 102)
    after.settle()
    assert not after.log.segment_writer.kept
    assert len(after.disk.list("wal")) == 1
    everything_is_there(after.crash(), 102)


def test_a_sick_group_is_well_again_without_a_restart_and_says_so() -> None:
    world = two_groups()
    told: list[bool] = []
    world.log.on_writable = lambda: told.append(True)
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    assert world.group.unwritable is not None
    told.clear()
    world.disk.heal()
    world.loop.run_until(lambda: bool(told))
    world.append(101, 101)
    world.settle()
    assert len(world.disk.list("wal")) == 1
    everything_is_there(world.crash(), 101)


def test_wal_files_go_though_one_is_kept_for_a_sick_group() -> None:
    # given a sick group with entries in two WAL files, and another one that fills ten
    world = two_groups(wal_bytes_max=4_096)
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.number == 2)
    world.append(101, 105)
    first = 4
    for _ in range(30):
        world.append(first, first + 19, size=100, group="other")
        first += 20
        world.loop.run_for(2_000)
    # then only those that hold entries of the sick group stay, and each says for whom
    kept = [number(n) for n in (1, 2)]
    assert wal_files(world)[:2] == [f"{n}.wal" for n in kept]
    assert len(wal_files(world)) <= 4
    assert {name for name, _ in read_kept(world.disk)[1].owners} == {"g"}
    # whatever crash comes now, both groups have all that was acknowledged
    for seed in range(8):
        after = world.crash(seed)
        everything_is_there(after, 105)
        other = after.log.group("other")
        assert other.quarantined is None
        assert len(other.read(range(1, first))) == first - 1


def test_what_a_kept_file_holds_of_others_does_not_undo_what_is_newer() -> None:
    world = two_groups()
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    # given entries of the other group that overwrite what the kept file holds, all in segments
    world.put(2, 9, term=2, group="other")
    world.await_written(9, group="other")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    world.disk.heal()
    after = world.kill()
    assert after.read(*range(2, 10), group="other")[0][1] == 2
    assert after.log.group("other").last_index == 9
    everything_is_there(after)


def test_a_sick_group_can_be_deleted_and_its_wal_file_goes() -> None:
    world = two_groups()
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    world.disk.heal()
    world.log.delete_group("g")
    world.loop.run_until(lambda: world.log.idle and not world.log.segment_writer.kept)
    assert len(world.disk.list("wal")) == 1


def test_an_installation_that_can_not_be_moved_in_stops_no_other_group() -> None:
    # given a snapshot that counts, in a folder that then goes bad
    world = two_groups(wal_files_waiting_max=1, wal_bytes_max=4_096)
    installer = world.group.begin_install(SnapshotMeta(index=140, term=3), last_applied=8)
    installer.add_state(0, b"state")
    world.drain("compaction")
    ended = Ended()
    installer.finish(world.group.row.live, ended)
    world.loop.run_until(lambda: world.disk.stat("groups/g/installed") is not None or ended.over)
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    # then the others go on
    for first in range(4, 204, 20):
        world.append(first, first + 19, size=100, group="other")
    world.disk.heal()
    world.loop.run_until(lambda: ended.over and world.log.idle)
    assert world.group.row.snapshot_index == 140
    world.append(141, 142, term=3)
    assert world.crash().group.last_index == 142


# -- a start that can't read ---------------------------------------------------------------------


def test_a_group_whose_identity_can_not_be_read_once_is_not_taken_for_deleted() -> None:
    world = two_groups()
    vote(world, b"my vote")
    world.disk.killed()
    for _ in range(3):
        world.disk.fail_next("read", "groups/g/group")
    # when one start can't read who the group is
    log = Log.open(world.runtime, world.config)
    # then it says which file could not be read, and why, and the others go on
    with pytest.raises(DiskFailed, match=r"read of groups/g/group failed: simulated failure"):
        log.group("g")
    log.group("other").append(1, [b"4@1"])
    world.loop.run_until(lambda: log.idle)
    log.roll()
    world.loop.run_until(lambda: log.idle)
    log.close()
    # and the next, healthy one has everything, the vote included
    world.disk.heal()
    after = world._next(world.disk)
    everything_is_there(after)
    assert after.group.meta == b"my vote"
    assert after.log.group("other").last_index == 4
    after.settle()
    assert len(after.disk.list("wal")) == 1


def test_a_bit_that_is_put_right_afterwards_costs_nothing() -> None:
    world = two_groups()
    vote(world, b"my vote")
    world.disk.killed()
    world.disk.flip_bit("groups/g/group", 77)
    for _ in range(3):
        log = Log.open(world.runtime, world.config)
        world.loop.run_until(lambda: log.idle)  # noqa: B023
        with pytest.raises(Damaged, match="groups/g/group is damaged"):
            log.group("g")
        log.close()
    world.disk.flip_bit("groups/g/group", 77)
    after = world._next(world.disk)
    everything_is_there(after)
    assert after.group.meta == b"my vote"


@pytest.mark.parametrize("part", ["/state", f"{number(1)}.segment", "snapshots", ""])
@pytest.mark.parametrize("ailment", ["unreadable", "broken"])
def test_a_group_of_which_a_file_can_not_be_read_once_loses_nothing(
    part: str, ailment: Ailment
) -> None:
    # given a group with a snapshot, segments, and entries that only the WAL has
    world = World()
    world.log.create_group("other")
    world.segment(1, 5)
    world.segment(6, 10)
    world.snapshot(8, [3])
    world.append(11, 20)
    disk = world.disk.killed()
    path = next(p for p in disk.tree() if p.startswith("groups/g/") and part in p).rstrip("/")
    # when a start can't read one of its files, works off the WAL, and ends
    disk.go_bad(ailment, path if part else "groups/g")
    log = Log.open(world.runtime, world.config)
    world.loop.run_until(lambda: log.idle)
    assert isinstance(log.unreadable["g"], DiskFailed)
    assert path in str(log.unreadable["g"]) or not part
    log.close()
    # then the next one has all of it
    disk.heal()
    after = world._next(disk)
    assert after.readable(1, 20) == [3, *range(9, 21)]
    assert after.group.quarantined is None


def test_an_unreadable_group_can_be_deleted_and_its_wal_file_goes_then() -> None:
    world = two_groups()
    disk = world.disk.killed()
    disk.flip_bit("groups/g/group", 77)
    log = Log.open(world.runtime, world.config)
    world.loop.run_until(lambda: log.idle)
    assert len(log.segment_writer.kept) == 1
    log.delete_group("g")
    world.loop.run_until(lambda: log.idle and not log.segment_writer.kept)
    assert len(disk.list("wal")) == 1
    log.create_group("g")


def test_a_group_that_a_newer_release_wrote_keeps_its_wal_files() -> None:
    # given a group with a segment of a newer format, and entries in the WAL
    world = World()
    world.segment(1, 5)
    world.append(6, 10)
    path = f"groups/g/{number(1)}.segment"
    file = world.disk.killed().open(path, "write")
    own = file.read_at(4, 4)
    file.write_at(4, [b"\x63\x00\x07\x00"])
    file.sync()
    # when this release has had the log open, then the one that can read it finds all of it
    log = Log.open(world.runtime, world.config)
    world.loop.run_until(lambda: log.idle)
    assert "format version 99" in (log.group("g").quarantined or "")
    log.close()
    file.write_at(4, [own])
    file.sync()
    after = world._next(world.disk)
    everything_is_there(after, 10)


# -- a quarantine that can't be written down -----------------------------------------------------


def test_a_quarantine_is_written_into_the_node_s_own_folder_when_its_group_s_is_sick() -> None:
    world = World()
    world.log.create_group("other")
    world.append(1, 5)
    world.append(6, 9)
    disk = world.disk.killed()
    world.spoil(f"wal/{number(1)}.wal", b"3@1")
    # given damage of a group whose folder can't be written, after it was mended for this start
    disk.fail_next("create", "groups/g/quarantine.tmp")
    log = Log.open(world.runtime, world.config)
    world.loop.run_until(lambda: log.idle)
    cause = log.group("g").quarantined
    assert cause is not None
    log.close()
    # then it is written down elsewhere, with its incarnation, and counts at the next start
    assert disk.stat("groups/g/quarantine") is None
    after = Log.open(world.runtime, world.config)
    assert after.group("g").quarantined == cause
    assert [f.what for f in _quarantines(world, after)] == [cause]
    # when the group is deleted and made anew, it is over
    after = Log.open(world.runtime, world.config)
    after.delete_group("g")
    world.loop.run_until(lambda: after.idle)
    assert disk.list("quarantine") == []
    after.create_group("g")
    after.close()
    assert Log.open(world.runtime, world.config).group("g").quarantined is None


def _quarantines(world: World, log: Log) -> list[Finding]:
    log.close()
    return [f for f in verify_log(world.disk) if f.kind == "quarantine"]


def test_a_wal_file_stays_until_the_quarantine_that_it_shows_is_durable() -> None:
    world = World()
    world.log.create_group("other")
    world.append(1, 5)
    world.append(6, 9)
    disk = world.disk.killed()
    world.spoil(f"wal/{number(1)}.wal", b"3@1")
    # given damage of a group, and no place where its quarantine can be written down
    for place in ("groups/g/quarantine.tmp", "quarantine"):
        disk.go_bad("unwritable", place)
    log = Log.open(world.runtime, world.config)
    world.loop.run_for(LONG_MS)
    # then the file that shows the damage is there, under its name; after a crash it shows it again
    assert disk.stat(f"wal/{number(1)}.wal") is not None
    for seed in range(4):
        again = World(disk=disk.crashed(Random(seed)), config=world.config)
        assert again.group.quarantined is not None
    # when it can be written down, the file is set aside
    disk.heal()
    world.loop.run_until(lambda: log.idle and disk.stat(f"wal/{number(1)}.wal") is None)
    assert disk.stat(f"wal/{number(1)}.wal.damaged") is not None
    assert disk.stat("groups/g/quarantine") is not None


# -- files that were set aside -------------------------------------------------------------------


def set_aside(world: World, wal: int = 1) -> SimDisk:
    """What an earlier release did to a sound file when it could not write one group's folder."""
    disk = world.disk.killed()
    disk.rename(f"wal/{number(wal)}.wal", f"wal/{number(wal)}.wal.damaged")
    disk.sync_dir("wal")
    return disk


def test_a_sound_file_that_was_set_aside_is_replayed() -> None:
    world = two_groups()
    disk = set_aside(world)
    after = world._next(disk)
    everything_is_there(after)
    assert after.log.group("other").last_index == 3
    after.settle()
    # and then its entries are in segments, it counts for nobody, and it is kept for analysis
    assert after.segments == [(1, 1, 100)]
    assert disk.stat(f"wal/{number(1)}.wal.damaged") is not None
    assert read_kept(disk)[1].owners == frozenset()
    after.append(60, 61, term=2)
    again = after.crash()
    assert again.group.last_index == 61
    assert again.read(61) == [(61, 2, b"61@2")]


def test_a_file_that_was_set_aside_undoes_nothing_that_is_newer() -> None:
    # given a file that was set aside, whose entries are in segments, and newer ones after them
    world = two_groups()
    disk = world.disk
    saved = disk.open(f"wal/{number(1)}.wal", "read").read_at(0, 1 << 20)
    world.roll()
    world.segment(50, 59, term=2)
    world.segment(60, 69, term=2)
    file = disk.open(f"wal/{number(1)}.wal.damaged", "create")
    file.append([saved])
    file.sync()
    disk.sync_dir("wal")
    # then nothing of it is taken, because it does not follow what is there
    after = world.kill()
    assert after.group.last_index == 69
    assert after.read(55) == [(55, 2, b"55@2")]
    after.settle()
    # and verify names the group that it has entries of that are not in the log
    after.log.close()
    named = [f for f in verify_log(disk) if ".wal.damaged" in f.path and f.group == "g"]
    assert ["70 to 100" in f.what for f in named] == [True]


def test_verify_names_every_group_that_misses_entries() -> None:
    world = two_groups()
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    world.log.close()
    world.disk.heal()
    # given a kept file that somebody took away
    assert not [f for f in verify_log(world.disk) if f.kind == "missing"]
    world.disk.unlink(f"wal/{number(1)}.wal")
    missing = [f for f in verify_log(world.disk) if f.kind == "missing"]
    assert [f.group for f in missing] == ["g"]
    assert f"wal/{number(1)}.wal" in missing[0].path
    # then the group does not come back shorter, as if nothing had happened
    after = world._next(world.disk)
    assert after.group.quarantined is not None
    assert after.log.group("other").quarantined is None


def test_a_note_that_can_not_be_read_stops_the_start_by_name() -> None:
    world = two_groups()
    note = Kept(frozenset({("g", world.group.incarnation)}), 0)
    write_kept(world.disk, 1, note, world.log.wal_folder)
    disk = world.disk.killed()
    disk.flip_bit(f"wal/{number(1)}.kept", 99)
    with pytest.raises(Damaged, match=rf"wal/{number(1)}\.kept is damaged"):
        Log.open(world.runtime, world.config, read_only=True)
    with pytest.raises(Damaged):
        Log.open(world.runtime, world.config)
    assert any(f"{number(1)}.kept" in f.path for f in verify_log(disk.killed()))
    assert disk.stat(f"wal/{number(1)}.wal") is not None


# -- a batch whose sync failed, seen again -------------------------------------------------------


def test_a_batch_whose_sync_failed_is_not_trusted_by_the_next_process() -> None:
    # given a batch whose sync failed, in a process that is killed then: its bytes can still be read
    world = World()
    world.append(1, 5)
    world.disk.fail_next("datasync", ".wal")
    world.put(6, 10)
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    after = world.kill()
    assert after.group.written_index == 10
    # when power fails in the next process, then what that said to be written is there
    for seed in range(8):
        again = after.crash(seed)
        assert again.group.quarantined is None
        again.check(range(1, 11))


# -- a removal whose sync fails ------------------------------------------------------------------


def test_a_failed_sync_after_a_removal_stops_nothing_for_long() -> None:
    world = World(wal_bytes_max=4_096, wal_files_waiting_max=1)
    world.append(1, 10)
    world.settle()
    # given one failed sync of `wal/`, right after a file's removal
    world.before("unlink", f"{number(1)}.wal", lambda: world.disk.fail_next("sync_dir", "wal"))
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.error is not None)
    # then appends go on by themselves: they are refused for a moment at most, for the real reason
    refused: list[str] = []
    for first in range(11, 200, 10):
        try:
            world.append(first, first + 9, size=150)
        except DiskFailed as error:
            refused.append(error.message)
            world.loop.run_until(lambda: world.log.has_room, timeout_ms=2_000)
            world.append(first, first + 9, size=150)
    assert refused == ["sync_dir of wal failed: simulated failure"]
    world.settle()
    assert len(world.disk.list("wal")) == 1
    world.crash().check(range(1, 11))


@pytest.mark.parametrize("times", [1, 2, 7])
def test_a_removed_file_that_comes_back_is_not_replayed(times: int) -> None:
    world = World()
    world.append(1, 10)
    world.settle()

    def fail() -> None:
        for _ in range(times):
            world.disk.fail_next("sync_dir", "wal")

    world.before("unlink", f"{number(1)}.wal", fail)
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.error is not None)
    world.loop.run_until(lambda: world.log.segment_writer.error is None)
    # given newer files that are gone for good, and held what overwrote the first
    world.segment(4, 6, term=2)
    world.segment(7, 8, term=2)
    # then, wherever power fails, what is newer stays
    for after in world.worlds_after_crash():
        after.check([1, 2, 3])
        after.check(range(4, 9), term=2)
        assert after.group.last_index == 8


def test_a_disk_on_which_no_file_can_be_removed_refuses_appends_by_name() -> None:
    world = World(wal_bytes_max=4_096, wal_files_waiting_max=1)
    world.append(1, 10)
    world.settle()

    def look(call: str, path: str) -> None:
        if call == "unlink" and path.endswith(".wal"):
            raise DiskFailed(path, call="unlink", reason="Operation not permitted")

    world.disk.before_call = look
    world.log.roll()
    last = 10

    def fill() -> None:
        nonlocal last
        for _ in range(100):
            world.put(last + 1, last + 10, size=200)
            last += 10
            world.loop.run_for(100)

    # then the appends that the WAL has no room for are refused, for the real reason, at once
    with pytest.raises(DiskFailed, match=r"unlink of wal/.*Operation not permitted"):
        fill()
    assert not world.log.has_room
    told: list[bool] = []
    world.log.on_writable = lambda: told.append(True)
    # and they go on by themselves
    world.disk.before_call = None
    world.loop.run_until(lambda: bool(told))
    world.append(last + 1, last + 1)
    world.settle()
    assert world.crash().group.last_index == last + 1


def test_a_failed_batch_that_is_read_again_finds_its_large_entries() -> None:
    # given a batch with a large entry whose sync failed, and no new WAL file since
    world = World()
    world.append(1, 5)
    world.roll()
    world.disk.fail_next("datasync", ".wal")
    world.put(6, 6, size=20_000)
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    for _ in range(3):
        world.disk.fail_next("create", ".wal.tmp")
    # when the compactor clears away what nobody needs, and the process is killed
    world.log.phase1(world.group.state)
    world.drain("compaction")
    world.disk.heal()
    after = world.kill()
    # then what the next one reads of it is whole
    assert after.group.last_index == 6
    after.check([6], size=20_000)


def test_a_file_that_comes_back_in_a_later_process_is_not_replayed() -> None:
    # given a removal whose sync failed, in a process that was killed before it could say so
    world = World()
    world.append(1, 10)
    world.settle()
    world.before("unlink", f"{number(1)}.wal", lambda: world.disk.fail_next("sync_dir", "wal"))
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.error is not None)
    after = world.kill()
    assert f"{number(1)}.wal" not in after.disk.list("wal")
    # when the next one removes newer files for good, and power fails
    after.segment(4, 6, term=2)
    after.segment(7, 8, term=2)
    for again in after.worlds_after_crash():
        # then the file is there again, and nothing of it counts
        again.check([1, 2, 3])
        again.check(range(4, 9), term=2)
        assert again.group.last_index == 8
        again.settle()
        assert len(again.disk.list("wal")) == 1


def test_nothing_relies_on_a_file_whose_name_may_not_be_durable() -> None:
    # given a WAL file that was opened only by half, and a process that was killed then
    world = two_groups()
    vote(world, b"my vote")
    world.disk.fail_next("sync_dir", "wal")
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    assert f"{number(2)}.wal" in world.disk.list("wal")
    disk = world.disk.killed()
    # when the next process can't read a group, and power fails in it at any moment
    disk.go_bad("unreadable", "groups/g")
    log = Log.open(world.runtime, world.config)
    for _ in range(40):
        for image in disk.crash_images(Random(1), samples=2):
            # then the group is whole afterwards, though that file may be gone
            after = World(disk=image.disk, config=world.config)
            everything_is_there(after)
            assert after.group.meta == b"my vote"
        if log.idle:
            break
        world.loop.turn()
    assert log.idle
