"""A disk that is full, and one that fails: what is refused, what goes on, and that nothing
acknowledged is lost, whatever crash follows.
"""

from __future__ import annotations

from typing import Any

import pytest

from log.world import Ended, World, data_of, number
from lowmark.errors import LowmarkError
from lowmark.log import CompactionRun, Entry, SnapshotMeta
from lowmark.runtime import DiskFailed, DiskFull, NoHandles
from lowmark.runtime.sim import SimDisk


def fill(world: World, *, left: int = 0) -> None:
    """Take all space but so much away."""
    world.disk.capacity_bytes = used(world.disk) + left


def used(disk: SimDisk) -> int:
    return disk._used_bytes


def free(world: World) -> None:
    """Give space back."""
    world.disk.capacity_bytes = None


def full_world(**limits: Any) -> World:
    """A world whose WAL has just found the disk full; 1 to 10 are written, 11 to 15 are not."""
    world = World(**limits)
    world.segment(1, 5)
    world.append(6, 10)
    fill(world)
    world.put(11, 15)
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    return world


# -- the WAL ------------------------------------------------------------------------------------


def test_a_full_disk_refuses_writes_by_name_and_they_resume_by_themselves() -> None:
    world = full_world()
    # given a full disk: appends and votes are refused, and reads are not
    for refused in (
        lambda: world.put(16, 16),
        lambda: world.group.put_meta(b"vote", lambda _: None),
        world.log.roll,
        lambda: world.log.create_group("other"),
    ):
        with pytest.raises(DiskFull):
            refused()
    world.check(range(1, 16))
    assert world.group.written_index == 10
    room = world.log.has_room
    assert not room
    # when time passes it stays so; when there is space again, what waited is written by itself
    world.loop.run_for(10_000)
    assert world.group.written_index == 10
    free(world)
    world.await_written(15)
    assert world.log.has_room
    world.append(16, 20)
    for after in [world, world.crash()]:
        after.check(range(1, 21))


def test_a_snapshot_is_taken_on_a_full_disk_because_it_frees_space() -> None:
    # given a disk that is full for appends, with a little left in reserve
    world = World(disk_reserved_bytes=40_000)
    world.segment(1, 10, size=200)
    world.segment(11, 20, size=200)
    world.segment(21, 30, size=200)
    world.disk.capacity_bytes = world.disk._used_bytes + 30_000
    world.put(31, 31)  # nothing was known of it yet
    world.loop.run_for(100)
    with pytest.raises(DiskFull):
        world.put(32, 32)
    # when a snapshot says that nobody needs the old entries
    world.begin_snapshot(30)
    world.loop.run_for(500)
    # then their segments are gone
    assert [ref.first for ref in world.group.state.segments] == [31]


def test_a_crash_on_a_full_disk_keeps_what_was_acknowledged() -> None:
    world = full_world()
    for seed in range(8):
        after = world.crash(seed)
        free(after)
        assert after.group.last_index >= 10
        after.check(range(1, 11))


def test_a_full_disk_can_be_opened_read_and_compacted() -> None:
    # given a crash on a disk without any space
    world = World()
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10, size=200)
    world.snapshot(30, range(1, 31))
    fill(world)
    world = world.crash()
    # then it opens: reads work, writes are refused
    world.check(range(31, 41), size=200)
    with pytest.raises(DiskFull):
        world.put(41, 41)
    # a group can be deleted, which gives space, and writes resume by themselves
    world.log.delete_group("g")
    world.loop.run_until(lambda: world.log.wal.stopped is None)
    world.log.create_group("g")
    world.append(1, 3)
    world.crash().check(range(1, 4))


def test_what_was_in_the_wal_before_a_full_restart_is_flushed_when_there_is_space() -> None:
    world = World()
    world.append(1, 10)
    fill(world)
    world = world.crash()
    world.check(range(1, 11))
    world.loop.run_for(5_000)
    free(world)
    world.loop.run_until(lambda: world.log.has_room)
    world.append(11, 12)
    world.settle()
    assert world.segments == [(1, 1, 10)]
    assert len(world.disk.list("wal")) == 1
    world.crash().check(range(1, 13))


def test_a_full_disk_does_not_collect_rubbish() -> None:
    world = full_world()
    before = used(world.disk)
    names = world.disk.tree()
    world.loop.run_for(30_000)
    assert used(world.disk) == before
    assert world.disk.tree() == names


@pytest.mark.parametrize("installing", [False, True])
def test_rows_do_not_take_the_segment_writer_s_space_while_a_group_is_being_installed(
    installing: bool,
) -> None:
    # given a group that takes a snapshot over for ever: its folder can't be written
    world = World(wal_bytes_max=1 << 20, disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.log.create_group("other")
    world.append(1, 3, group="other")
    world.append(1, 20)
    if installing:
        installer = world.group.begin_install(SnapshotMeta(index=140, term=3), last_applied=8)
        installer.add_state(0, b"state")
        world.drain("compaction")
        installer.finish(world.group.row.live, Ended())
        world.loop.run_until(lambda: world.disk.stat("groups/g/installed") is not None)
        world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(20_000)
    assert world.log.segment_writer.error is None  # it has parked that group
    # when another one is given as many rows as are taken
    fill(world, left=120_000)
    index = 4
    while True:
        try:
            world.put(index, index, size=500, group="other")
        except DiskFull:
            break
        world.await_written(index, group="other")
        index += 1
    # then the segment writer can still work, and what may use the reserve is taken
    world.log.roll()
    world.loop.run_for(60_000)
    for _ in range(10):
        world.log.group("other").append(1, [data_of(index, 1, 100)], reserve=True)
        world.loop.run_for(1_000)
        assert world.log.trouble is None
        assert world.log.segment_writer.stuck is None
        index += 1


def test_a_caller_that_waits_for_little_space_is_told_though_much_was_refused() -> None:
    world = World(disk_reserved_bytes=20_000)
    world.append(1, 10)
    told: list[bool] = []
    world.log.on_writable = lambda: told.append(True)
    # given that much was refused first (for that, the disk is asked anew), and then little
    fill(world, left=20_000)
    for size in (900_000, 100):
        with pytest.raises(DiskFull):
            world.put(11, 11, size=size)
    # when there is space for the little, and not for the much
    fill(world, left=220_000)
    # then that is told, and when there is space for the much, that is told, too
    world.loop.run_until(lambda: bool(told))
    world.append(11, 11, size=100)
    with pytest.raises(DiskFull):
        world.put(12, 12, size=900_000)
    world.loop.run_for(10_000)
    told.clear()
    free(world)
    world.loop.run_until(lambda: bool(told))
    world.append(12, 12, size=900_000)


def test_timers_do_not_pile_up_while_the_wal_waits_for_the_segment_writer() -> None:
    # given a segment writer that waits for a group that takes a snapshot over, and little space
    world = World(wal_bytes_max=1 << 20, disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.log.create_group("other")
    world.append(1, 20, size=200, group="other")
    world.append(1, 20)
    installer = world.group.begin_install(SnapshotMeta(index=140, term=3), last_applied=8)
    installer.add_state(0, b"state")
    world.drain("compaction")
    installer.finish(world.group.row.live, Ended())
    world.loop.run_until(lambda: world.disk.stat("groups/g/installed") is not None)
    world.disk.go_bad("unwritable", "groups/g")
    fill(world, left=20_000)
    world.log.roll()
    world.loop.run_for(100)
    # when appends come that must wait for it, each in a turn of its own
    for index in range(21, 61):
        world.log.group("other").append(1, [data_of(index, 1, 100)], reserve=True)
        world.loop.run_for(1)
    assert world.log.group("other").written_index == 20
    # then few timers run for all of them, and they are written when it is through
    assert len(world.loop._queue) < 10
    world.await_written(60, group="other")


def test_each_outage_of_the_wal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def said() -> int:
        return sum("the WAL is stopped" in message for message in caplog.messages)

    # given outages of the same kind, some with several tries, with a write that works in between
    world = World()
    for n, tries in enumerate([1, 4, 1], start=1):
        for _ in range(tries):
            world.disk.fail_next("datasync", ".wal")
        world.append(n, n)
        assert said() == n
    # and when nothing waits, a new file that works ends one, too
    for n in (4, 5):
        world.disk.fail_next("datasync", ".wal")
        world.log.roll()
        world.loop.run_until(lambda n=n: said() == n)  # type: ignore[misc]
        world.loop.run_until(lambda: world.log.has_room)


def test_space_is_reserved_for_compaction() -> None:
    # given less free space than is reserved
    world = World(disk_reserved_bytes=20_000, disk_low_bytes=0)
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10, size=200)
    world.snapshot(30, [5, 15, 25])
    fill(world, left=19_000)
    world.log.wal._free = world.disk.free_bytes()
    # then an append is refused at once, though there is space, and nothing else is
    with pytest.raises(DiskFull, match="reserved") as refused:
        world.put(41, 41, size=200)
    assert (refused.value.free, refused.value.reserved) == (19_000, 20_000)
    vote = Ended()
    world.group.put_meta(b"vote", vote)
    world.group.append(1, [data_of(41, 1, 200)], reserve=True)
    world.await_written(41)
    assert vote.over
    # and phase 3, which low disk starts by itself, makes enough of it for appends
    heard: list[str] = []
    world.log.on_writable = lambda: heard.append("writable")
    world.loop.run_until(lambda: bool(heard))
    assert [run.trigger for run in world.group.runs] == ["low disk"]
    assert world.group.runs[0].bytes_freed > 0
    world.append(42, 42, size=200)
    world.crash().check([5, 15, 25, *range(31, 43)], size=200)


def test_who_frees_space_is_not_refused_any_more() -> None:
    world = World(disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.append(1, 3)
    fill(world, left=19_000)
    world.append(4, 4)  # nothing was known of it yet
    with pytest.raises(DiskFull):
        world.put(5, 5)
    # when there is space, then the very next append is taken
    free(world)
    world.append(5, 5)
    world.crash().check(range(1, 6))


def test_what_was_known_of_the_disk_some_time_ago_does_not_count() -> None:
    # given a log that was idle while another program filled the disk
    world = World(disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.append(1, 3)
    fill(world, left=19_000)
    world.loop.run_for(2_000)
    # then the first append after that is refused
    with pytest.raises(DiskFull, match="reserved"):
        world.put(4, 4)
    # and taken when there is space again
    free(world)
    world.append(4, 4)


def test_much_at_once_is_not_taken_by_what_was_known_of_the_disk_before() -> None:
    world = World(disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.append(1, 3)
    fill(world, left=21_000)
    with pytest.raises(DiskFull):
        world.put(4, 4, size=300_000)
    world.append(4, 4)


def test_space_runs_short_once_and_so_often_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(world: World) -> None:
        for _ in range(5):
            with pytest.raises(DiskFull):
                world.put(5, 5)
            world.loop.run_for(3_000)

    world = World(disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.append(1, 3)
    fill(world, left=19_000)
    world.append(4, 4)
    refuse(world)
    assert len(caplog.messages) == 1
    # when there was enough in between, it is said again
    free(world)
    world.loop.run_for(3_000)
    fill(world, left=19_000)
    world.log.wal._free = world.disk.free_bytes()
    refuse(world)
    assert len(caplog.messages) == 2


def test_a_disk_that_stays_full_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    world = full_world()
    world.loop.run_for(30_000)
    assert [message for message in caplog.messages if "WAL" in message] == ["the WAL is stopped"]


def test_a_batch_waits_for_the_segment_writer_before_it_leaves_no_space_for_it() -> None:
    # given a disk with room for all rows once, and half of them twice
    world = World(wal_bytes_max=1 << 20, disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.disk.capacity_bytes = 120_000
    lowest = 1 << 20

    def look(call: str, path: str) -> None:
        nonlocal lowest
        lowest = min(lowest, world.disk.free_bytes())

    world.disk.before_call = look
    for index in range(1, 171):
        world.append(index, index, size=500)
    world.roll()
    # then all are taken, and the segment writer never needed more than its part of the reserve
    assert lowest >= 20_000 * 3 // 4
    assert world.disk.free_bytes() >= 20_000
    world.disk.before_call = None
    world.crash().check(range(1, 171), size=500)


def test_the_reserve_is_written_when_the_segment_writer_stands() -> None:
    # given a segment writer that can't write, and a WAL that should wait for it
    world = World(wal_bytes_max=1 << 20, disk_reserved_bytes=20_000, disk_low_bytes=0)
    world.disk.capacity_bytes = 60_000
    while world.disk.free_bytes() > 42_000:
        world.append(world.group.last_index + 1, world.group.last_index + 1, size=500)
    for _ in range(100):
        world.disk.fail_next("space", ".segment")
    last = world.group.last_index
    for index in range(last + 1, last + 4):
        world.group.append(1, [data_of(index, 1, 2_000)], reserve=True)
    # then what may use the reserve is written all the same
    world.await_written(last + 3)
    assert world.log.segment_writer.error is not None


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("call", ["space", "write", "datasync"])
def test_a_batch_that_fails_is_written_to_a_new_file(call: str, times: int) -> None:
    world = World()
    world.append(1, 5)
    for _ in range(times):
        world.disk.fail_next(call, ".wal")
    world.put(6, 10)
    world.await_written(10)
    world.append(11, 12)
    # then nothing is lost, and the given-up file's torn end counts for nothing
    for seed in range(4):
        world.crash(seed).check(range(1, 13))
    world.settle()
    world.reopen().check(range(1, 13))


def test_bytes_before_a_failed_sync_are_never_taken_for_durable() -> None:
    # given a sync that failed: what was written before it may be gone, or not
    world = World()
    world.append(1, 5)
    world.disk.fail_next("datasync", ".wal")
    world.put(6, 10)
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    assert world.group.written_index == 5
    with pytest.raises(DiskFailed):
        world.put(11, 11)
    # when power fails before the retry, then acknowledged entries are there
    for seed in range(4):
        after = world.crash(seed)
        after.check(range(1, 6))
        assert after.group.quarantined is None
    # when it fails after it, then all are
    world.await_written(10)
    world.put(6, 8, term=2)  # and an overwrite in the new file wins over the given-up one
    world.await_written(8)
    for seed in range(4):
        after = world.crash(seed)
        after.check(range(1, 6))
        after.check([6, 7, 8], term=2)
        assert after.group.last_index == 8


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("create", ".wal.tmp"),
        ("space", ".wal.tmp"),
        ("write", ".wal.tmp"),
        ("datasync", ".wal.tmp"),
        ("rename", ".wal"),
        ("sync_dir", "wal"),
    ],
)
def test_a_roll_over_that_fails_is_tried_again(call: str, part: str) -> None:
    world = World()
    world.append(1, 5)
    world.settle()
    world.disk.fail_next(call, part)
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    world.crash().check(range(1, 6))
    world.loop.run_until(lambda: world.log.wal.stopped is None)
    world.append(6, 10)
    world.settle()
    # and no file is left over
    assert len(world.disk.list("wal")) == 1
    assert world.segments == [(1, 1, 5)]
    world.crash().check(range(1, 11))


@pytest.mark.parametrize("call", ["create", "space", "write", "datasync", "sync_dir"])
def test_a_large_entry_that_fails_is_written_to_a_new_file(call: str) -> None:
    world = World()
    world.append(1, 1, size=20_000)
    world.roll()
    world.disk.fail_next(call, "groups/g" if call == "sync_dir" else ".large")
    world.put(2, 2, size=20_000)
    world.put(3, 3)
    world.await_written(3)
    for after in [world, world.crash()]:
        after.check([1, 2], size=20_000)
        after.check([3])
    world.roll()
    world.reopen().check([1, 2], size=20_000)


# -- segments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("create", ".segment.tmp"),
        ("space", ".segment.tmp"),
        ("write", ".segment.tmp"),
        ("datasync", ".segment.tmp"),
        ("rename", ".segment"),
        ("sync_dir", "groups/g"),
        ("unlink", ".wal"),
    ],
)
def test_a_flush_that_fails_is_tried_again_and_the_wal_file_stays(call: str, part: str) -> None:
    world = World()
    world.append(1, 10)
    world.settle()
    world.disk.fail_next(call, part)
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.error is not None)
    # given a flush that failed: reads and appends go on, and a crash loses nothing
    world.check(range(1, 11))
    world.append(11, 12)
    for seed in range(4):
        world.crash(seed).check(range(1, 13))
    # when the disk works again, it goes through
    world.settle()
    assert [(first, last) for _, first, last in world.segments] == [(1, 10)]
    assert len(world.disk.list("wal")) == 1
    for after in [world, world.crash()]:
        after.check(range(1, 13))


def test_a_flush_on_a_full_disk_waits_for_space() -> None:
    world = World()
    world.append(1, 10, size=1_000)
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.number == 2)
    fill(world)
    world.loop.run_for(5_000)
    assert world.segments == []
    world.check(range(1, 11), size=1_000)
    free(world)
    world.settle()
    assert world.segments == [(1, 1, 10)]
    world.crash().check(range(1, 11), size=1_000)


@pytest.mark.parametrize("part", [".large", ".segment"])
def test_a_process_without_handles_breaks_no_group(part: str) -> None:
    world = World()
    world.append(1, 3)

    def none_left(call: str, path: str) -> None:
        if call == "create" and part in path:
            raise NoHandles(path, call="open", reason="Too many open files")

    # given a process without handles, for longer than a broken folder is tried
    world.disk.before_call = none_left
    world.put(4, 4, size=20_000)
    world.log.wal.roll()
    world.loop.run_for(60_000)
    assert world.group.quarantined is None
    # when there are some again, then it goes on by itself
    world.disk.before_call = None
    world.settle()
    world.await_written(4)
    world.crash().check([4], size=20_000)


# -- snapshots, compaction, installations -------------------------------------------------------


@pytest.mark.parametrize("part", ["/state", "/live"])
def test_a_snapshot_on_a_full_disk_fails_and_the_old_one_stays(part: str) -> None:
    world = World()
    world.append(1, 20)
    world.snapshot(5, [2])
    world.disk.fail_next("space", part)
    ended = world.begin_snapshot(15, [2, 12])
    world.loop.run_until(lambda: ended.over)
    assert isinstance(ended.error, DiskFull)
    for after in [world, world.crash()]:
        assert after.group.row.snapshot_index == 5
        assert after.disk.list("groups/g/snapshots") == [f"{5:016x}-{1:016x}"]
        assert after.readable(1, 20) == [2, *range(6, 21)]
    world.snapshot(15, [2, 12])


def sparse() -> World:
    world = World()
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10)
    world.snapshot(30, [5, 15, 25])
    return world


def test_phase_3_on_a_full_disk_fails_and_leaves_nothing() -> None:
    world = sparse()
    names, before = world.files(), used(world.disk)
    fill(world, left=150)
    # when there is no room for the copy
    run = world.compact()
    assert "no space left" in run.result
    assert world.files() == names
    free(world)
    assert used(world.disk) - before < 1_000  # but for its record
    for after in [world, world.crash()]:
        after.check([5, 15, 25, *range(31, 41)])
    # then it works when there is room again
    assert world.compact().result == "done"


@pytest.mark.parametrize("call", ["create", "space", "write", "datasync", "link", "sync_dir"])
def test_phase_3_on_a_failing_disk_loses_nothing(call: str) -> None:
    world = sparse()
    part = {"link": ".segment.new", "sync_dir": "groups/g"}.get(call, ".compacting")
    world.disk.fail_next(call, part)
    ended: list[CompactionRun] = []
    world.group.compact(ended.append)
    world.loop.run_until(lambda: bool(ended))
    assert ended[0].result.startswith("failed")
    for seed in range(4):
        world.crash(seed).check([5, 15, 25, *range(31, 41)])
    assert world.compact().result == "done"
    for seed in range(4):
        world.crash(seed).check([5, 15, 25, *range(31, 41)])


def test_a_record_that_can_not_be_written_stops_nothing() -> None:
    world = sparse()
    world.disk.fail_next("create", "runs")
    assert world.compact().result == "done"
    world.check([5, 15, 25])
    assert world.compact().result == "nothing to do"


def test_a_failed_delete_stops_nothing() -> None:
    world = World()
    for k in range(3):
        world.segment(10 * k + 1, 10 * k + 10)
    world.disk.fail_next("unlink", ".segment")
    world.snapshot(25)
    # given a dead segment whose file stayed: it does not count, and goes at the next start
    assert world.segments == [(3, 21, 30)]
    assert world.readable(1, 30) == [26, 27, 28, 29, 30]
    world = world.reopen()
    world.settle()
    assert world.files() == [f"{number(3)}.segment"]


def test_an_installation_on_a_full_disk_is_given_up_and_works_later() -> None:
    world = World()
    world.append(1, 10)
    fill(world, left=300)

    def install() -> LowmarkError | None:
        installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=8)
        ended = Ended()
        try:
            for index in (20, 30):
                installer.add_entries(installer.previous, [Entry(index, 3, data_of(index, 3, 500))])
            installer.add_state(0, b"s" * 500)
            installer.finish(world.group.row.live, ended)
        except LowmarkError as error:
            installer.abort()
            return error
        world.loop.run_until(lambda: ended.over)
        return ended.error

    assert isinstance(install(), DiskFull)
    world.settle()
    world.check(range(1, 11))
    assert "installing" not in world.disk.list("groups/g")
    world.append(11, 11)
    free(world)
    assert install() is None
    assert world.group.row.snapshot_index == 40


def test_a_group_that_could_not_be_created_can_be_created_later() -> None:
    world = World()
    for call in ("mkdir", "create", "write", "datasync", "sync_dir", "rename"):
        world.disk.fail_next(call, "groups/~other")
        if call == "rename":
            world.disk._faults.clear()
            world.disk.fail_next(call, "groups/other")
        with pytest.raises(DiskFailed):
            world.log.create_group("other")
        assert [group.name for group in world.log.groups()] == ["g"]
    world.log.create_group("other")
    world.append(1, 3, group="other")
    assert world.crash().log.group("other").last_index == 3


@pytest.mark.parametrize("seed", range(6))
def test_a_disk_that_fails_now_and_then_loses_nothing(seed: int) -> None:
    # given a disk that fails a call of each kind somewhere on the way
    world = World(seed, wal_bytes_max=4_096, compaction_dead_ratio=0.5)
    last = 0
    for round_ in range(10):
        for call, part in (("datasync", ".wal"), ("space", ".segment"), ("rename", ".wal")):
            if (round_ + len(call) + seed) % 3 == 0:
                world.disk.fail_next(call, part)
        for _ in range(5):
            while True:
                try:
                    world.put(last + 1, last + 4, size=150)
                    break
                except (DiskFull, DiskFailed):
                    world.loop.run_for(500)
            last += 4
        world.await_written(last)
        live = [i for i in range(7, last - 9, 7) if i > last - 60]
        ended = world.begin_snapshot(last - 10, live)
        world.loop.run_until(lambda: ended.over)  # noqa: B023
    written = world.group.written_index
    after = world.crash(seed)
    assert after.group.quarantined is None
    assert after.group.last_index == written == last
    after.check([*after.group.row.live, *range(after.group.first_index, last + 1)], size=150)
