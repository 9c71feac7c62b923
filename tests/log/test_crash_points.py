"""Every disk call is a place to crash, and every world that a crash may leave must recover.

A scenario runs in simulation. Before each of its disk calls we take every world that losing power
right then may leave (unsynced bytes kept, lost or torn, per file; unsynced names kept or lost, in
any combination up to six), open a log on it, and hold it against the oracle: nothing acknowledged
is lost, every live index reads with its right term, nothing dead came back, no temporary is left.
Then the log must go on working: append, roll over, settle, and still agree.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from log.checked import TINY, CheckedWorld
from log.oracle import Oracle, left_overs
from lowmark.log import Log, SnapshotMeta
from lowmark.runtime import File
from lowmark.runtime.disk import Mode
from lowmark.runtime.sim import SimDisk, sim_runtime


class NotRecovered(BaseException):
    """A crash lost something.

    Not an Exception: it is raised inside a disk call, and the log would take it for a disk's error.
    """


def recovers(disk: SimDisk, oracle: Oracle, *, seed: int) -> None:
    """Open a log on that disk; it agrees with the oracle, now and after more work."""
    runtime = sim_runtime(seed, disk=disk)
    log = Log.open(runtime, TINY)
    oracle.check(log)
    runtime.loop.run_until(lambda: log.idle)
    oracle.check(log)
    assert left_overs(disk.tree()) == []
    groups = [group for group in log.groups() if group.name in oracle.groups]
    for group in groups:
        group.append(max(9, group.last_term), [b"after the crash"])
    log.roll()
    runtime.loop.run_until(lambda: log.idle)
    for group in groups:
        assert group.written_index == group.last_index
        [entry] = group.read([group.last_index])
        assert bytes(entry.data) == b"after the crash"
    log.close()


def crash_everywhere(
    world: CheckedWorld,
    scenario: Callable[[CheckedWorld], None],
    *,
    links: bool = False,
    every: int = 1,
) -> tuple[int, int]:
    """Run the scenario; before each of its disk calls, or every so many, recover every world that
    a crash may leave.
    """
    points = images = 0

    def before_call(call: str, path: str) -> None:
        nonlocal points, images
        points += 1
        if points % every:
            return
        for image in world.disk.crash_images(Random(points), samples=8):
            images += 1
            if links:
                link_everything(image.disk)
            try:
                recovers(image.disk, world.oracle, seed=points)
            except Exception as failure:
                where = f"crash {points}, before {call} {path}; {image.label}"
                raise NotRecovered(where) from failure

    world.disk.before_call = before_call
    scenario(world)
    world.disk.before_call = None
    world.oracle.check(world.log)
    return points, images


def link_everything(disk: SimDisk) -> None:
    """A backup by hard links: every file gets a second name, outside of our folders."""
    disk.make_dir("backup")
    for path in disk.tree():
        stat = disk.stat(path.rstrip("/"))
        if stat is not None and stat.kind == "file" and not path.startswith("backup/"):
            disk.link(path, "backup/" + path.replace("/", "#"))
    disk.sync_dir("backup")
    disk.sync_dir("")


# -- scenarios: how the world is before, and what happens in it ---------------------------------


def two_groups(disk: SimDisk) -> CheckedWorld:
    world = CheckedWorld(disk)
    world.create("a")
    world.create("b")
    world.settle()
    return world


def roll_over(world: CheckedWorld) -> None:
    """Two groups, large entries, an overwrite, metas; then the WAL file becomes segments."""
    world.append("a", 5)
    world.append("b", 3)
    world.put_meta("a", b"vote 1")
    world.settle()
    world.append("a", 4)
    world.append_large("a")
    world.append_large("b")
    world.settle()
    world.append("a", 2, term=2, first=4)
    world.put_meta("a", b"vote 2")
    world.settle()
    world.roll()
    world.append("a", 3, term=2)
    world.settle()
    world.append("a", 1, term=3, first=5)
    world.roll()


def four_segments(disk: SimDisk) -> CheckedWorld:
    world = CheckedWorld(disk)
    world.create("a")
    for _ in range(3):
        world.append("a", 7)
        world.append_large("a")
        world.roll()
    world.append("a", 4)
    world.settle()
    world.snapshot("a", 6, [2, 3])
    world.settle()
    return world


def newer_snapshot(world: CheckedWorld) -> None:
    """A newer snapshot with fewer live indexes: the older goes, whole segments go."""
    world.snapshot("a", 26, [3, 24])
    world.settle()


def six_segments(disk: SimDisk) -> CheckedWorld:
    world = CheckedWorld(disk)
    world.create("a")
    for _ in range(6):
        world.append("a", 5)
        world.append_large("a")
        world.append("a", 2)
        world.roll()
    world.append("a", 3)
    world.settle()
    return world


def merges(world: CheckedWorld) -> None:
    """Snapshots leave sparse segments, large entries among them; phase 3 merges them, twice."""
    world.snapshot("a", 46, [2, 6, 11, 17, 18, 22, 30, 31, 41])
    world.settle()
    world.snapshot("a", 50, [2, 18, 22, 30, 31, 49])
    world.settle()
    assert world.log.group("a").compact()
    world.settle()


def rewrite_of_one(world: CheckedWorld) -> None:
    """A single mostly dead segment between dense ones is replaced by one rename."""
    world.snapshot("a", 46, [*range(1, 9), 12, *range(17, 41)])
    world.settle()


def a_tail_in_the_wal(disk: SimDisk) -> CheckedWorld:
    world = CheckedWorld(disk)
    world.create("a")
    world.append("a", 10)
    world.roll()
    world.append("a", 10)
    world.settle()
    world.snapshot("a", 9, [3, 8])
    world.settle()
    world.append("a", 12, term=2)
    world.append_large("a", term=2)
    world.settle()
    return world


def an_install(world: CheckedWorld) -> None:
    """A snapshot from elsewhere: own live entries only in the WAL, and a stale tail behind them."""
    live = [3, 8, 20, 27, 28, 40, 60]
    world.install("a", SnapshotMeta(index=64, term=3), live, applied=28)
    world.runtime.loop.run_until(lambda: world.oracle["a"].void_from is None)
    world.settle()
    world.append("a", 3, term=3)
    world.roll()


def groups_come_and_go(world: CheckedWorld) -> None:
    """One group is made, another is deleted with entries in WAL and segments, and made anew."""
    world.append("a", 3)
    world.append("b", 3)
    world.roll()
    world.append("b", 2)
    world.settle()
    del world.oracle.groups["b"]
    world.log.delete_group("b")
    world.settle()
    world.log.create_group("b")
    world.oracle["b"]
    world.append("b", 1, term=4)
    world.settle()


SCENARIOS = [
    (two_groups, roll_over),
    (four_segments, newer_snapshot),
    (six_segments, merges),
    (six_segments, rewrite_of_one),
    (a_tail_in_the_wal, an_install),
    (two_groups, groups_come_and_go),
]


@pytest.mark.slow
@pytest.mark.parametrize(("given", "when"), SCENARIOS, ids=[s[1].__name__ for s in SCENARIOS])
def test_every_crash_recovers(
    given: Callable[[SimDisk], CheckedWorld], when: Callable[[CheckedWorld], None]
) -> None:
    points, images = crash_everywhere(given(SimDisk()), when)
    assert images > points > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "when"),
    [
        pytest.param(*one, id=one[1].__name__, marks=pytest.mark.release if long else ())
        for one in SCENARIOS
        for long in (one[1] in {merges, an_install},)
    ],
)
def test_a_backup_by_hard_links_changes_nothing(
    given: Callable[[SimDisk], CheckedWorld], when: Callable[[CheckedWorld], None]
) -> None:
    points, images = crash_everywhere(given(SimDisk()), when, links=True)
    assert points < images


class LyingDisk(SimDisk):
    """A disk that says it synced and did not, for paths that end in something."""

    def __init__(self, call: str, path_end: str) -> None:
        super().__init__()
        self._lie = (call, path_end)
        self.lies = False

    def _lies_about(self, call: str, path: str) -> bool:
        return self.lies and call == self._lie[0] and path.endswith(self._lie[1])

    def open(self, path: str, mode: Mode) -> File:  # type: ignore[override]
        file = super().open(path, mode)
        if self._lies_about("datasync", path):
            file.datasync = lambda: None  # type: ignore[method-assign]
        return file

    def sync_dir(self, path: str) -> None:
        if not self._lies_about("sync_dir", path):
            super().sync_dir(path)


LIES = [
    (two_groups, roll_over, "datasync", ".wal.tmp"),
    (two_groups, roll_over, "datasync", ".large"),
    (two_groups, roll_over, "datasync", ".segment.tmp"),
    (two_groups, roll_over, "sync_dir", "wal"),
    (two_groups, roll_over, "sync_dir", "groups/a"),
    (four_segments, newer_snapshot, "datasync", "/state"),
    (four_segments, newer_snapshot, "datasync", "/live"),
    (four_segments, newer_snapshot, "sync_dir", "/snapshots"),
    (six_segments, merges, "datasync", ".compacting"),
    (six_segments, merges, "sync_dir", "groups/a"),
    (a_tail_in_the_wal, an_install, "datasync", "/state"),
    (a_tail_in_the_wal, an_install, "datasync", "/plan"),
    (a_tail_in_the_wal, an_install, "datasync", "installing/0000000000000001.segment.tmp"),
    (a_tail_in_the_wal, an_install, "sync_dir", "/installing"),
    (a_tail_in_the_wal, an_install, "sync_dir", "groups/a"),
    (a_tail_in_the_wal, an_install, "sync_dir", "/snapshots"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "when", "call", "path_end"),
    LIES,
    ids=[f"{when.__name__}: {call} {end}" for _, when, call, end in LIES],
)
def test_a_disk_that_lies_about_a_sync_is_found_out(
    given: Callable[[SimDisk], CheckedWorld],
    when: Callable[[CheckedWorld], None],
    call: str,
    path_end: str,
) -> None:
    def lied_to(*strides: int) -> None:
        for every in strides:
            # given a disk that will lie about one kind of sync, so that each of ours is needed
            disk = LyingDisk(call, path_end)
            world = given(disk)
            disk.lies = True
            # when the same scenario runs on it
            crash_everywhere(world, when, every=every)

    # then some crash loses something: most come behind the lie, so that few of them find it; and
    # if these do not, then all
    with pytest.raises(NotRecovered):
        lied_to(7, 1)
