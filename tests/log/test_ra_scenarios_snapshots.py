"""Ra's scenarios for snapshots (reference/raft-and-log.md §2, 51 to 56; 41), and its gap that a
lost live set reads as an empty one.

    41  test_an_empty_live_file_is_a_lost_one
    51  test_a_local_snapshot_and_an_install_in_any_order
    52  test_a_snapshot_that_the_disk_refuses_leaves_nothing
    53  test_a_damaged_newest_snapshot_gives_way_to_the_one_before;
        test_the_only_snapshot_when_damaged_quarantines_the_group
    54  test_a_lost_live_set_is_not_an_empty_one (unknown versions: the tests of bad files)
    55, 56  none: there are no checkpoints
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyroaring import BitMap64

from log.world import Ended, World, number
from lowmark.log import EntryGone, SnapshotMeta
from lowmark.log.errors import SnapshotRefused
from lowmark.runtime.sim import SimDisk


def path_of(index: int, part: str, *, term: int = 1) -> str:
    """A file of the snapshot at an index."""
    return f"groups/g/snapshots/{index:016x}-{term:016x}/{part}"


# -- taking one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_a_local_snapshot_and_an_install_in_any_order(turns: int) -> None:
    # given a local snapshot at 55 under way, and one at 165 that is being installed
    world = World()
    world.append(1, 60)
    installer = world.group.begin_install(SnapshotMeta(index=165, term=3), last_applied=50)
    installer.add_state(0, b"installed")
    world.drain("compaction")
    local = world.begin_snapshot(55, [7, 9], state=[b"local"] * 4)
    for _ in range(turns):
        world.loop.turn()
    # when the installation ends before or after the local one
    ended = Ended()
    installer.finish(BitMap64([9]), ended)
    world.loop.run_until(lambda: ended.over and local.over)
    ended.check()
    world.settle()
    # then the installed one is in force in both cases, and the only one on disk
    for after in [world, world.crash()]:
        assert after.group.row.snapshot_index == 165
        assert after.snapshots() == [165]
        assert b"".join(after.group.read_snapshot()) == b"installed"
        assert after.readable(1, 60) == [9]


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("mkdir", ".tmp"),
        ("create", "/state"),
        ("write", "/state"),
        ("datasync", "/state"),
        ("create", "/live"),
        ("datasync", "/live"),
        ("rename", "snapshots/"),
        ("sync_dir", "/snapshots"),
    ],
)
def test_a_snapshot_that_the_disk_refuses_leaves_nothing(call: str, part: str) -> None:
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    # when the disk refuses one of its calls
    world.disk.fail_next(call, part)
    ended = world.begin_snapshot(15, [3])
    world.loop.run_until(lambda: ended.over)
    # then the error comes back, the group is as it was, and the next one works
    assert ended.error is not None
    assert world.group.snapshot is None
    world.check(range(1, 21))
    world.crash().check(range(11, 21))
    world.snapshot(15, [3])
    for after in [world, world.crash()]:
        assert after.snapshots() == [15]
        assert after.readable(1, 20) == [3, *range(16, 21)]


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda w: w.begin_snapshot(20), "durable up to 10"),
        (lambda w: w.begin_snapshot(5), "The last one is at 5"),
        (lambda w: w.begin_snapshot(8, [9]), "9 lies after the snapshot"),
        (lambda w: w.begin_snapshot(8, [4, 7]), "index 4 is dead and can't be live again"),
    ],
)
def test_a_snapshot_that_can_not_be_stood_behind_is_refused(
    ask: Callable[[World], object], why: str
) -> None:
    world = World()
    world.append(1, 10)
    world.snapshot(5, [2])
    world.put(11, 20)
    with pytest.raises(SnapshotRefused, match=why):
        ask(world)
    assert world.group.row.snapshot_index == 5


def test_a_snapshot_of_another_term_is_refused() -> None:
    world = World()
    world.append(1, 10)
    with pytest.raises(SnapshotRefused, match="not of term 2"):
        world.group.take_snapshot(SnapshotMeta(index=5, term=2), [], BitMap64(), Ended())


def test_there_is_one_snapshot_at_a_time() -> None:
    world = World()
    world.append(1, 10)
    first = world.begin_snapshot(5)
    with pytest.raises(SnapshotRefused, match="already"):
        world.begin_snapshot(6)
    world.loop.run_until(lambda: first.over)
    world.settle()
    world.snapshot(6)


def test_meta_and_state_come_back() -> None:
    world = World()
    world.append(1, 5)
    meta = SnapshotMeta(index=5, term=1, members=b"a,b,c", machine_version=7)
    ended = Ended()
    world.group.take_snapshot(meta, [b"one ", b"", b"two"], BitMap64([1]), ended)
    world.loop.run_until(lambda: ended.over)
    for after in [world, world.crash()]:
        snapshot = after.group.snapshot
        assert snapshot is not None
        assert (snapshot.meta, snapshot.live) == (meta, BitMap64([1]))
        assert b"".join(after.group.read_snapshot()) == b"one two"


# -- finding one --------------------------------------------------------------------------------


def two_snapshots() -> World:
    """A crash after a snapshot at 15 was published and before the one at 5 went."""
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.snapshot(5, [3])
    world.until("unlink", path_of(5, ""), lambda: world.snapshot(15, [3, 12]))
    assert world.snapshots() == [5, 15]
    return world


def test_of_two_snapshots_the_newer_counts() -> None:
    world = two_snapshots()
    for after in [*world.worlds_after_crash(), world.kill()]:
        assert after.snapshots() == [15]
        assert after.readable(1, 20) == [3, 12, *range(16, 21)]


def test_a_damaged_newest_snapshot_gives_way_to_the_one_before() -> None:
    world = two_snapshots()
    world.spoil(path_of(15, "state"), b"state")
    world = world.kill()
    # then the older one is used, and what follows it is all there
    assert world.snapshots() == [5]
    assert world.group.quarantined is None
    assert world.readable(1, 20) == [3, *range(6, 21)]
    world.snapshot(15, [3, 12])


def test_the_only_snapshot_when_damaged_quarantines_the_group() -> None:
    world = World()
    world.segment(1, 10)
    world.snapshot(5, [3])
    world.spoil(path_of(5, "state"), b"state")
    world = world.kill()
    assert world.group.quarantined is not None
    # its file is kept for people
    assert world.disk.stat(path_of(5, "state")) is not None


def test_an_unfinished_snapshot_is_removed_at_start_up() -> None:
    world = World()
    world.append(1, 10)
    world.until("datasync", "/live", lambda: world.snapshot(5))
    for after in [*world.worlds_after_crash(), world.kill()]:
        assert after.disk.list("groups/g/snapshots") == []
        after.check(range(1, 11))


# -- the live set -------------------------------------------------------------------------------


def lose(disk: SimDisk, how: str, path: str) -> None:
    match how:
        case "missing":
            disk.unlink(path)
        case "empty":
            disk.open(path, "write").truncate(0)
        case _:
            disk.flip_bit(path, 8 * 30)


def with_lost_live_set(how: str) -> World:
    """Three segments and a snapshot at 20, live [3, 12], whose live file is lost."""
    world = World(compaction_interval_ms=1_000)
    for k in range(3):
        world.segment(10 * k + 1, 10 * k + 10)
    world.snapshot(20, [3, 12])
    world.settle()
    world.log.close()
    lose(world.disk, how, path_of(20, "live"))
    return world.kill()


@pytest.mark.parametrize("how", ["missing", "empty", "damaged"])
def test_gap_a_lost_live_set_is_not_an_empty_one(how: str) -> None:
    world = with_lost_live_set(how)
    # given a lost live set: it is unknown, the log is open, and no compaction runs
    assert world.group.row.known is False
    assert world.group.quarantined is None
    assert world.group.compact() is False
    world.append(31, 40)
    world.roll()
    world.loop.run_for(5_000)
    world.check([3, 12, *range(21, 41)])
    assert number(1) + ".segment" in world.files()
    with pytest.raises(SnapshotRefused):
        world.group.open_sender("peer", last_applied=0)
    # when it is given back, rebuilt from the state
    ended = Ended()
    world.group.restore_live(BitMap64([3, 12]), ended)
    world.loop.run_until(lambda: ended.over)
    ended.check()
    world.settle()
    # then it counts, now and after a restart
    for after in [world, world.crash()]:
        assert after.group.row.known
        assert after.readable(1, 40) == [3, 12, *range(21, 41)]
        after.group.open_sender("peer", last_applied=0).close()


def test_an_empty_live_file_is_a_lost_one() -> None:
    world = with_lost_live_set("empty")
    assert not world.group.row.known
    assert world.group.row.counts(1)


def test_a_live_set_that_is_not_lost_is_not_restored() -> None:
    world = World()
    world.append(1, 5)
    with pytest.raises(SnapshotRefused, match="not lost"):
        world.group.restore_live(BitMap64(), Ended())
    world.snapshot(5, [2])
    with pytest.raises(SnapshotRefused, match="not lost"):
        world.group.restore_live(BitMap64(), Ended())


def test_a_restored_live_set_must_fit_its_snapshot() -> None:
    world = with_lost_live_set("missing")
    with pytest.raises(SnapshotRefused, match="index 21 lies after the snapshot"):
        world.group.restore_live(BitMap64([21]), Ended())


def test_a_new_snapshot_brings_a_new_live_set() -> None:
    world = with_lost_live_set("missing")
    world.snapshot(25, [3, 22])
    assert world.group.row.known
    with pytest.raises(EntryGone):
        world.read(12)
    world.check([3, 22])
