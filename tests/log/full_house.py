"""A small data directory with every kind of file in it, made by the log itself.

g   segments, a merge with its links, a large file, a snapshot with a live set, overwritten
    entries, a record of a compaction; entries and a large one that only the WAL holds
h   the same again in small, so that files can be swapped between groups
i   a snapshot that was received from g: segments with other numbers in their trailers
q   in quarantine
wal two files: one whose flush was interrupted, and the one after it
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from pyroaring import BitMap64

from log.world import QUIET, Ended, World, finish, send
from lowmark.errors import Corrupt, LowmarkError
from lowmark.log import Log, SnapshotMeta
from lowmark.runtime import Runtime
from lowmark.runtime.sim import SimDisk, SimLoop, sim_runtime

CONFIG = replace(QUIET, large_entry_bytes_min=200)
LARGE = 203


@dataclass(frozen=True)
class GroupTruth:
    """What a group must say, or else say nothing."""

    entries: dict[int, tuple[int, bytes]]
    live: frozenset[int]
    snapshot_index: int
    last_index: int
    state: bytes
    meta: bytes


def full_house() -> SimDisk:
    """A fresh copy of the directory; copies share bytes, so they are cheap."""
    return copy_of(_built())


def copy_of(disk: SimDisk) -> SimDisk:
    """A disk of its own with the same names and bytes."""
    return next(iter(disk.crash_images(Random(0)))).disk


@functools.cache
def _built() -> SimDisk:
    world = World(config=CONFIG)
    for name in ("h", "i", "q"):
        world.log.create_group(name)
    _vote(world, "g", b"vote of g, first")
    world.segment(1, 6)
    world.segment(7, 12)
    world.append(13, 13, size=LARGE)
    world.segment(14, 16)
    world.append(1, 3, group="h")
    world.append(4, 4, group="h", size=LARGE)
    world.append(1, 2, group="q")
    world.segment(5, 6, group="h")
    world.segment(17, 20)
    world.snapshot(14, live=[2, 8, 9, 13], state=[b"the state of g"])
    _snapshot_of_h(world)
    assert world.compact().merges == 1
    world.segment(19, 21, term=2)
    _install_into_i(world)
    state = world.log.group("q").state
    world.log.quarantine(state, Corrupt("a test wanted it"))
    _vote(world, "g", b"vote of g, second")
    world.append(22, 25, term=2)
    world.append(26, 26, term=2, size=LARGE)
    world.append(7, 8, group="h")
    _interrupt_flush(world)
    world.append(27, 30, term=3)
    world.append(31, 31, term=3, size=LARGE)
    world.append(9, 9, group="h")
    world.append(15, 17, group="i", term=3)
    world.append(10, 11, group="h")
    return world.disk.killed()


def _vote(world: World, group: str, data: bytes) -> None:
    done: list[bool] = []
    world.log.group(group).put_meta(data, lambda _: done.append(True))
    world.loop.run_until(lambda: bool(done))


def _snapshot_of_h(world: World) -> None:
    ended = Ended()
    meta = SnapshotMeta(index=5, term=1)
    world.log.group("h").take_snapshot(meta, [b"the state of h"], BitMap64([1, 4]), ended)
    world.loop.run_until(lambda: ended.over)
    ended.check()
    world.settle()


def _install_into_i(world: World) -> None:
    sender = world.group.open_sender("i", last_applied=0)
    installer = world.log.group("i").begin_install(sender.meta, last_applied=0)
    send(sender, installer)
    finish(world, installer, sender.needed)
    sender.close()
    world.settle()


def _interrupt_flush(world: World) -> None:
    """Close the WAL file, and let the segment writer fail for a while."""
    before = world.log.wal.number
    world.disk.fail_next("create", ".segment.tmp")
    world.log.roll()
    world.loop.run_until(lambda: world.log.wal.number > before)
    world.loop.run_until(lambda: world.log.segment_writer.error is not None)


# -- looking ------------------------------------------------------------------------------------


def open_house(disk: SimDisk, *, read_only: bool = False) -> tuple[Log, SimLoop]:
    """Open the log on a disk."""
    loop = SimLoop(7)
    runtime: Runtime = sim_runtime(7, disk=disk, loop=loop)
    return Log.open(runtime, CONFIG, read_only=read_only), loop


@functools.cache
def truth() -> dict[str, GroupTruth]:
    """What the intact directory says."""
    log, _ = open_house(full_house(), read_only=True)
    found = {}
    for group in log.groups():
        indexes = [i for i in range(1, group.last_index + 1) if group.row.counts(i)]
        found[group.name] = GroupTruth(
            {e.index: (e.term, bytes(e.data)) for e in group.read(indexes)},
            frozenset(group.row.live),
            group.row.snapshot_index,
            group.last_index,
            b"".join(group.read_snapshot()),
            group.meta,
        )
    log.close()
    return found


def content(disk: SimDisk, path: str) -> bytes:
    """A file's bytes."""
    file = disk.open(path, "read")
    data = file.read_at(0, file.size())
    file.close()
    return data


def rewrite(disk: SimDisk, path: str, data: bytes) -> None:
    """Put other bytes into a file, behind everybody's back."""
    file = disk.open(path, "write")
    file.truncate(0)
    file.append([data])
    file.sync()
    file.close()


def file_paths(disk: SimDisk) -> Iterator[str]:
    """Every regular file, the lock left out."""
    for path in disk.tree():
        stat = disk.stat(path.rstrip("/"))
        if stat is not None and stat.kind == "file" and path != "LOCK":
            yield path


def served(log: Log, name: str) -> dict[int, tuple[int, bytes]]:
    """What a group gives when it is asked for everything, index by index."""
    try:
        group = log.group(name)
    except LowmarkError:
        return {}
    found = {}
    for index in range(1, group.last_index + 1):
        try:
            entry = group.read([index])[0]
        except LowmarkError:
            continue
        assert entry.index == index
        found[index] = (entry.term, bytes(entry.data))
    return found
