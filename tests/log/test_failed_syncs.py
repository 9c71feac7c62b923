"""A name whose sync failed is there for this process and the next, and gone when power fails.

A later sync proves nothing about it. So nothing relies on such a name before it was made anew.
"""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest

from log.world import Stopped, World, finish, number
from lowmark.log import SnapshotMeta
from lowmark.log.kept import read_kept
from lowmark.runtime import DiskFailed
from lowmark.runtime.sim.disk import WorldStopped

LONG_MS = 60_000


def test_a_note_whose_sync_failed_is_not_trusted_by_the_next_process() -> None:
    # given a note beside a WAL file whose sync failed, in a process that was killed then
    world = World()
    world.log.create_group("other")
    world.append(1, 100)
    world.append(1, 3, group="other")
    world.disk.go_bad("unwritable", "groups/g")
    world.before("rename", ".kept", lambda: world.disk.fail_next("sync_dir", "wal"))
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.stuck is not None)
    after = world.kill()
    assert read_kept(after.disk)[1].owners
    # when another group overwrites what the file holds of it, and newer files go
    for term in (2, 3):
        after.put(2, 9, term=term, group="other")
        after.await_written(9, group="other")
        after.log.roll()
        after.loop.run_for(LONG_MS)
    after.disk.heal()
    # then the file is not replayed for that group, whatever a crash leaves
    for again in after.worlds_after_crash():
        assert again.log.group("other").last_index == 9
        assert {term for _, term, _ in again.read(*range(2, 10), group="other")} == {3}
        again.check(range(1, 101))


def test_a_quarantine_whose_sync_failed_is_not_trusted_by_the_next_process() -> None:
    # given damage of acknowledged entries, and a quarantine that got its name, but not for sure
    world = World()
    world.log.create_group("other")
    world.append(1, 5)
    world.append(6, 10)
    world.append(1, 3, group="other")
    world.spoil(f"wal/{number(1)}.wal", b"7@1")
    disk = world.disk.killed()
    disk.fail_next("mkdir", "quarantine")  # the node's own folder can't be made either
    world.before("rename", "groups/g/quarantine", lambda: disk.fail_next("sync_dir", "groups/g"))
    second = world._next(disk)
    assert second.group.quarantined
    assert not second.group.state.quarantine_saved
    # when the process is killed before it tries again, and the next one ends the WAL file
    third = second.kill()
    third.settle()
    assert not third.log.segment_writer.kept
    # then the group is in quarantine, whatever a crash leaves
    for after in third.worlds_after_crash():
        assert after.group.quarantined


# -- more than one lane syncs a folder -----------------------------------------------------------


def test_a_failed_sync_for_a_large_entry_costs_no_segment() -> None:
    # given ten segments on their way into a folder that is synced once, after the last
    world = World(segment_entries_max=10)
    world.append(1, 100)
    world.settle()

    def large_entry() -> None:
        # when the WAL makes a large file there meanwhile, and its sync fails, once
        world.put(101, 101, size=20_000)
        world.before("create", ".large", lambda: world.disk.fail_next("sync_dir", "groups/g"))

    world.before("rename", f"{number(1)}.segment", large_entry)
    world.log.roll()
    world.await_written(101)
    world.settle()
    # then each segment is there, whatever a crash leaves
    for after in world.worlds_after_crash():
        assert after.group.quarantined is None
        after.check(range(1, 101))
        after.check([101], size=20_000)


def fail_a_sync_between(world: World, call: str, path_part: str) -> None:
    """Let another lane's sync of `wal/` fail between that call and the sync after it."""

    def other_lane() -> None:
        world.disk.fail_next("sync_dir", "wal")
        with pytest.raises(DiskFailed):
            world.log.wal_folder.sync(world.disk)

    world.before(call, path_part, lambda: world.before("sync_dir", "wal", other_lane))


def test_a_new_wal_file_whose_name_another_lane_s_failed_sync_dropped_is_not_used() -> None:
    world = World()
    world.append(1, 10)
    # given a failed sync of the other lane, right after the next file got its name
    fail_a_sync_between(world, "rename", f"{number(2)}.wal")
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.number >= 2)
    # when entries are acknowledged, then they are there, whatever a crash leaves
    world.append(11, 20)
    for after in world.worlds_after_crash():
        assert after.group.last_index == 20
        after.check(range(1, 21))


def test_a_wal_file_whose_removal_another_lane_s_failed_sync_dropped_does_not_come_back() -> None:
    world = World()
    world.append(1, 10)
    # given a failed sync of the other lane, right after a file was removed
    fail_a_sync_between(world, "unlink", f"{number(1)}.wal")
    world.log.roll()
    world.settle()
    # then it is gone for sure when the next file's turn has come, whatever a crash leaves
    for image in world.disk.crash_images(Random(1)):
        assert f"{number(1)}.wal" not in image.disk.list("wal")


def test_a_note_whose_name_another_lane_s_failed_sync_dropped_is_written_again() -> None:
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    world.disk.go_bad("unwritable", "groups/g")
    # given a failed sync of the other lane, right after a note got its name
    fail_a_sync_between(world, "rename", ".kept")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    # then the note is there, whatever a crash leaves
    for image in world.disk.crash_images(Random(1)):
        assert {name for name, _ in read_kept(image.disk)[1].owners} == {"g"}


# -- tried again in the same process -------------------------------------------------------------


def test_an_installed_snapshot_whose_sync_failed_gets_its_name_anew() -> None:
    # given an installation whose snapshot got its name, and the sync after it fails, once
    world = World()
    world.append(1, 10)
    installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=8)
    installer.add_state(0, b"state")
    failed: list[str] = []

    def fail() -> None:
        world.disk.fail_next("sync_dir", "groups/g/snapshots")
        failed.append("the sync")

    world.before("rename", f"groups/g/snapshots/{40:016x}-{3:016x}", fail)
    # when it is tried again, and is told to be in force
    finish(world, installer, [])
    assert failed
    # then it is, whatever a crash leaves
    for after in world.worlds_after_crash():
        assert after.group.quarantined is None
        assert after.group.row.snapshot_index == 40


# -- trusted by the next process -----------------------------------------------------------------


def snapshot_name(index: int, term: int = 1) -> str:
    return f"groups/g/snapshots/{index:016x}-{term:016x}"


def fail_the_name(world: World, path: str, *, stop: bool) -> None:
    """Let the sync fail after a snapshot got its name; stop the world when it is taken back."""
    failed: list[str] = []

    def look(call: str, its_path: str) -> None:
        if call == "rename" and its_path == path and not failed:
            failed.append(path)
            world.disk.fail_next("sync_dir", "groups/g/snapshots")
        elif call == "rename" and its_path == f"{path}.tmp" and stop:
            raise Stopped

    world.disk.before_call = look


@pytest.mark.parametrize(("older", "undone"), [(True, True), (True, False), (False, True)])
def test_a_snapshot_whose_sync_failed_is_not_trusted_by_the_next_process(
    older: bool, undone: bool
) -> None:
    # given a snapshot that got its name, and the sync after it failed, in a process that was killed
    # right then, or after it had taken the name back
    world = World(segment_entries_max=5)
    world.segment(1, 20)
    if older:
        world.snapshot(5, [2])
    fail_the_name(world, snapshot_name(15), stop=not undone)
    ended = world.begin_snapshot(15, [2, 7])
    with nullcontext() if undone else pytest.raises(Stopped):
        world.loop.run_until(lambda: ended.over)
    assert not undone or isinstance(ended.error, DiskFailed)
    world.disk.before_call = None
    # when the next process deletes what its live set does not have
    after = world.kill()
    after.settle()
    # then a snapshot is there that fits what is left, whatever a crash leaves
    for again in after.worlds_after_crash():
        assert again.group.quarantined is None
        assert again.group.row.snapshot_index in ({5, 15} if older else {0, 15})
        again.check([2, 7, *range(16, 21)])
    # and another one can be taken
    after.snapshot(16, [7])
    after.crash().check([7, *range(17, 21)])


def test_an_installed_snapshot_whose_sync_failed_is_not_trusted_by_the_next_process() -> None:
    # given an installation whose snapshot got its name, and the sync after it failed, in a process
    # that was killed before it tried again
    world = World()
    world.segment(1, 10)
    installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=8)
    installer.add_state(0, b"state")
    fail_the_name(world, snapshot_name(40, 3), stop=True)
    with pytest.raises(Stopped):
        finish(world, installer, [])
    world.disk.before_call = None
    # when the next process moves it in
    after = world.kill()
    after.settle()
    # then it is in force, whatever a crash leaves
    for again in after.worlds_after_crash():
        assert again.group.quarantined is None
        assert again.group.row.snapshot_index == 40


@pytest.mark.parametrize("step", [f"{number(1)}.segment.new", f"{number(1)}.segment"])
def test_a_merge_whose_sync_failed_is_not_trusted_by_the_next_process(step: str) -> None:
    # given a merge whose step failed to become durable, in a process that was killed then
    world = World()
    for first in (1, 11, 21):
        world.segment(first, first + 9)
    world.snapshot(30, [2, 12, 22])
    call = "link" if step.endswith(".new") else "rename"
    world.before(call, f"groups/g/{step}", lambda: world.disk.fail_next("sync_dir", "groups/g"))
    assert "failed" in world.compact().result
    # when the next process brings it to its end
    after = world.kill()
    after.settle()
    after.check([2, 12, 22])
    # then every entry is there, whatever a crash leaves, at any step of it or later
    for again in after.worlds_after_crash():
        assert again.group.quarantined is None
        again.check([2, 12, 22])


def test_a_crash_while_a_merge_gets_its_name_anew_loses_nothing() -> None:
    calls = 0
    while True:
        world = World()
        for first in (1, 11):
            world.segment(first, first + 9)
        world.snapshot(20, [2, 12])
        path = f"groups/g/{number(1)}.segment"
        world.before("rename", path, lambda: world.disk.fail_next("sync_dir", "groups/g"))  # noqa: B023
        assert "failed" in world.compact().result
        disk = world.disk.killed()
        calls += 1
        disk.stop_at_call = disk.calls + calls
        try:
            world._next(disk).settle()
        except WorldStopped:
            pass
        else:
            break
        for again in world.worlds_after_crash():
            assert again.group.quarantined is None
            again.check([2, 12])
    assert calls > 8
