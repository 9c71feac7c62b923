"""What goes wrong at a moment when something else is wrong, or under way."""

from __future__ import annotations

from typing import Any

import pytest

from log.world import World, number
from lowmark.errors import NoMemory
from lowmark.log import Damaged, Log, flush
from lowmark.log.flush import SegmentPlan
from lowmark.log.snapshots import SnapshotWriter
from lowmark.runtime import NoHandles

LONG_MS = 60_000


def owed(world: World) -> World:
    """The log after it was closed with a WAL file that stays for `g`, whose folder was sick."""
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    world.log.close()
    world.disk.heal()
    return world


def test_a_group_hears_that_its_kept_file_is_lost_though_it_was_unreadable_meanwhile() -> None:
    # given a group that is owed a WAL file, and the file is lost
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    owed(world).disk.unlink(f"wal/{number(1)}.wal")
    # when a start can't read the group, and is through
    world.disk.go_bad("unreadable", "groups/g/group")
    second = world._next(world.disk)
    second.settle()
    second.log.close()
    # then the next one that can read it says that entries are missing
    second.disk.heal()
    third = second._next(second.disk)
    assert "is missing, and its note says that it holds entries" in (third.group.quarantined or "")
    assert third.log.group("other").quarantined is None


def test_a_quarantine_that_is_saved_while_a_note_is_written_lets_the_file_go() -> None:
    # given a group whose quarantine can't be written down, so that a WAL file is to stay for it
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    for place in ("groups/g/quarantine.tmp", "quarantine"):
        world.disk.go_bad("unwritable", place)
    state = world.group.state
    world.log.quarantine(state, Damaged("a file", offset=0, what="a test"))

    def saved() -> None:
        state.quarantine_saved = True
        world.log.segment_writer.look_again()

    # when it is durable while the note beside the file is on its way
    world.before("rename", ".kept", saved)
    world.log.roll()
    world.loop.run_until(lambda: state.quarantine_saved)
    # then the writer looks again when the note is there, and lets both go
    world.loop.run_for(LONG_MS)
    assert not world.log.segment_writer.kept
    assert world.disk.list("wal") == [f"{number(2)}.wal"]


def test_no_memory_to_plan_a_flush_only_delays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.append(1, 10)
    plan, left = flush.plan_segments, [2]

    def short(*args: Any, **kwargs: Any) -> list[SegmentPlan]:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return plan(*args, **kwargs)

    # given a process that has no memory left, twice, when segments are planned
    monkeypatch.setattr(flush, "plan_segments", short)
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.stuck is not None)
    assert isinstance(world.log.segment_writer.stuck, NoMemory)
    # then the WAL file waits, and is flushed when there is some again
    world.settle()
    assert world.log.segment_writer.error is None
    assert world.disk.list("wal") == [f"{number(2)}.wal"]
    world.check(range(1, 11))


def test_no_memory_for_a_snapshot_is_told_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.append(1, 10)

    def short(*_: object) -> None:
        raise MemoryError

    # given a process that has no memory left when a snapshot is written
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotWriter, "write", short)
        ended = world.begin_snapshot(5)
        world.loop.run_until(lambda: ended.over)
    # then the caller hears it, and the next snapshot works
    assert isinstance(ended.error, NoMemory)
    world.snapshot(5)
    assert world.snapshots() == [5]


def test_no_handles_at_a_start_make_no_group_unreadable() -> None:
    # given a process that has no handle left when a start comes to a group
    world = World()
    world.append(1, 10)
    disk = world.disk.killed()
    disk.go_bad("no handles", "groups/g")
    # then the start fails and says so: nothing is wrong with the group
    with pytest.raises(NoHandles, match="Too many open files"):
        Log.open(world.runtime, world.config)
    # when there are handles again, all of it is there
    disk.heal()
    after = world._next(disk)
    assert not after.log.unreadable
    after.check(range(1, 11))


def test_no_handles_for_long_are_no_trouble_of_one_group() -> None:
    # given a process that has no handle left for longer than every retry, while a file is flushed
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.number == 2)
    world.disk.go_bad("no handles")
    world.loop.run_for(LONG_MS)
    # then no group's folder is called sick, and what is open is written
    assert isinstance(world.log.segment_writer.stuck, NoHandles)
    assert world.group.unwritable is None
    world.append(11, 12)
    # when there are handles again, the file is flushed and goes
    world.disk.heal()
    world.settle()
    assert world.disk.list("wal") == [f"{number(2)}.wal"]
    world.check(range(1, 13))


@pytest.mark.parametrize("flips", [True, False])
def test_what_is_cut_from_the_end_of_the_wal_is_told(
    caplog: pytest.LogCaptureFixture, flips: bool
) -> None:
    # given a WAL file whose last batch, which was acknowledged, has one wrong bit now; or has none
    world = World()
    world.append(1, 5)
    world.append(6, 10)
    path = f"wal/{number(1)}.wal"
    size = world.disk.open(path, "read").size()
    if flips:
        world.spoil(path, b"7@1")
    # when the log is opened, it is taken for a write that was not finished
    after = world.kill()
    assert after.group.last_index == (5 if flips else 10)
    # then the start says from which file it cut how many bytes
    told = [record for record in caplog.records if "was cut" in record.message]
    assert [record.__dict__["file"] for record in told] == [path] * flips
    for record in told:
        assert record.levelname == "WARNING"
        assert record.__dict__["bytes"] + record.__dict__["from_byte"] == size
