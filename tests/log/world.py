"""One node's log in a simulated world, small enough to fill by hand.

Entries say who they are: the data of index 7 in term 2 is `7@2`, so a test reads back what it
expects without keeping books. Nothing happens by itself unless a test asks for it: the timer and
the dead ratio are off, a segment is made by `segment(first, last)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.log import (
    CompactionRun,
    Entry,
    GroupLog,
    Installer,
    Log,
    LogConfig,
    SnapshotMeta,
    SnapshotSender,
    Written,
)
from lowmark.log.segments import SegmentReader
from lowmark.runtime.sim import SimDisk, SimLoop, sim_runtime

__all__ = ["QUIET", "Ended", "Stopped", "World", "data_of", "finish", "number", "send"]

KIB = 1 << 10

QUIET = LogConfig(
    wal_bytes_max=1 << 20,
    wal_batch_bytes_max=64 * KIB,
    wal_queue_bytes_max=1 << 20,
    segment_entries_max=1_000,
    segment_bytes_max=64 * KIB,
    large_entry_bytes_min=16 * KIB,
    entry_bytes_max=1 << 20,
    compaction_dead_ratio=1.0,
    compaction_interval_ms=0,
    compaction_step_bytes=4 * KIB,
    disk_reserved_bytes=0,
    disk_low_bytes=0,
)
"""Small limits, and no compaction that nobody asked for."""


def data_of(index: int, term: int, size: int = 0) -> bytes:
    """What the entry at that index in that term says, filled up to `size` bytes."""
    return f"{index}@{term}".encode().ljust(size, b".")


def number(n: int) -> str:
    """A file number as it stands in names."""
    return f"{n:016d}"


class World:
    """A log on a simulated disk, with one group `g` unless the test makes others."""

    def __init__(
        self,
        seed: int = 1,
        *,
        disk: SimDisk | None = None,
        config: LogConfig = QUIET,
        loop: SimLoop | None = None,
        **limits: Any,
    ) -> None:
        self.seed = seed
        self.config = replace(config, **limits)
        self.disk = disk if disk is not None else SimDisk()
        self.loop = loop if loop is not None else SimLoop(seed)
        self.runtime = sim_runtime(seed, disk=self.disk, loop=self.loop)
        self.log = Log.open(self.runtime, self.config)
        self.written: list[Written] = []
        self.log.on_written = self.written.append
        if not self.disk.stat("groups/g"):
            self.log.create_group("g")

    # -- the log and its group ------------------------------------------------------------------

    @property
    def group(self) -> GroupLog:
        """The group `g`."""
        return self.log.group("g")

    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """The segments that count, as (number, first, last)."""
        return [(ref.number, ref.first, ref.last) for ref in self.group.state.segments]

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        self.drain("compaction")
        self.loop.run_until(lambda: self.log.idle)

    def drain(self, lane: str) -> None:
        """Let a lane finish what it has been given so far."""
        done: list[bool] = []
        self.loop.lane(lane).submit(lambda: None, lambda _: done.append(True))
        self.loop.run_until(lambda: bool(done))

    # -- writing --------------------------------------------------------------------------------

    def put(self, first: int, last: int, *, term: int = 1, size: int = 0, group: str = "g") -> None:
        """Append entries without waiting for anything."""
        datas = [data_of(index, term, size) for index in range(first, last + 1)]
        self.log.group(group).append(term, datas, first=first)

    def append(
        self, first: int, last: int, *, term: int = 1, size: int = 0, group: str = "g"
    ) -> None:
        """Append entries and wait until they are written."""
        self.put(first, last, term=term, size=size, group=group)
        self.await_written(last, group=group)

    def await_written(self, index: int, *, group: str = "g") -> None:
        """Wait until everything up to an index is written."""
        self.loop.run_until(lambda: self.log.group(group).written_index >= index)

    def roll(self) -> None:
        """Close the WAL file and wait until it is in segments."""
        self.log.roll()
        self.settle()

    def segment(
        self, first: int, last: int, *, term: int = 1, size: int = 0, group: str = "g"
    ) -> None:
        """Make one segment of these entries."""
        self.append(first, last, term=term, size=size, group=group)
        self.roll()

    # -- snapshots and compaction ---------------------------------------------------------------

    def begin_snapshot(
        self, index: int, live: Iterable[int] = (), *, state: Sequence[bytes] = (b"state",)
    ) -> Ended:
        """Start a snapshot; what is given back says how it ended."""
        ended = Ended()
        term = self.group.term_at(index)
        assert term is not None
        meta = SnapshotMeta(index=index, term=term)
        self.group.take_snapshot(meta, state, BitMap64(live), ended)
        return ended

    def snapshot(
        self, index: int, live: Iterable[int] = (), *, state: Sequence[bytes] = (b"state",)
    ) -> None:
        """Take a snapshot and wait until it is durable and phase 1 has run."""
        ended = self.begin_snapshot(index, live, state=state)
        self.loop.run_until(lambda: ended.over)
        ended.check()
        self.settle()

    def compact(self) -> CompactionRun:
        """Ask for phase 3, when nothing else is under way, and wait for its result."""
        self.settle()
        runs: list[CompactionRun] = []
        assert self.group.compact(runs.append)
        self.loop.run_until(lambda: bool(runs))
        self.settle()
        return runs[0]

    # -- ends and beginnings --------------------------------------------------------------------

    def reopen(self, **limits: Any) -> World:
        """Close the log properly and open it again."""
        self.settle()
        self.log.close()
        return self._next(self.disk, **limits)

    def crash(self, seed: int = 0) -> World:
        """Lose power now, keep some of what was not synced, and open what is left."""
        return self._next(self.disk.crashed(Random(seed)))

    def kill(self) -> World:
        """Kill the process: nothing is lost, nothing more is synced."""
        return self._next(self.disk.killed())

    def worlds_after_crash(self) -> Iterator[World]:
        """Every world that a crash at this moment can leave, opened again."""
        for image in self.disk.crash_images(Random(self.seed)):
            yield self._next(image.disk)

    def _next(self, disk: SimDisk, **limits: Any) -> World:
        loop = SimLoop(self.seed + 1, start_ms=self.loop.wall_ms())
        return World(self.seed + 1, disk=disk, config=self.config, loop=loop, **limits)

    def until(self, call: str, path_part: str, act: Callable[[], object]) -> None:
        """Do something, and let the world end right before the disk is asked for that call."""

        def look(its_call: str, path: str) -> None:
            if its_call == call and path_part in path:
                raise Stopped

        self.disk.before_call = look
        try:
            act()
        except Stopped:
            return
        finally:
            self.disk.before_call = None
        raise AssertionError(f"{call} {path_part} was never called")

    def before(self, call: str, path_part: str, act: Callable[[], object]) -> None:
        """Do something once, right before the disk is asked for that call."""

        def look(its_call: str, path: str) -> None:
            if its_call == call and path_part in path:
                self.disk.before_call = None
                act()

        self.disk.before_call = look

    def spoil(self, path: str, data: bytes) -> None:
        """Flip a bit of these bytes where they lie in a file."""
        file = self.disk.open(path, "read")
        at = file.read_at(0, file.size()).find(data)
        assert at >= 0, f"{data!r} is not in {path}"
        self.disk.flip_bit(path, 8 * at)

    # -- looking --------------------------------------------------------------------------------

    def read(self, *indexes: int, group: str = "g") -> list[tuple[int, int, bytes]]:
        """Entries as (index, term, data)."""
        found = self.log.group(group).read(indexes)
        return [(entry.index, entry.term, bytes(entry.data)) for entry in found]

    def check(self, indexes: Iterable[int], *, term: int = 1, size: int = 0) -> None:
        """Expect entries to be readable, in that term and with the right data."""
        wanted = list(indexes)
        assert self.read(*wanted) == [(i, term, data_of(i, term, size)) for i in wanted]

    def readable(self, low: int, high: int) -> list[int]:
        """The indexes from `low` up to `high` that can be read."""
        found = []
        for index in range(low, high + 1):
            try:
                self.read(index)
            except LowmarkError:
                continue
            found.append(index)
        return found

    def files(self, group: str = "g") -> list[str]:
        """The names in the group's folder that hold entries, finished or not."""
        return [n for n in self.disk.list(f"groups/{group}") if n[0].isdigit()]

    def records(self, segment: int) -> list[int]:
        """The indexes that a segment's file holds, whatever counts."""
        reader = SegmentReader(self.disk, "groups/g", segment, incarnation=None)
        try:
            return [int(index) for index in reader.rows["index"]]
        finally:
            reader.close()

    def links(self) -> dict[int, str]:
        """The symlinks in the group's folder: number, and what each says."""
        found = {}
        for name in self.files():
            stat = self.disk.stat(f"groups/g/{name}")
            if stat is not None and stat.kind == "symlink" and name.endswith(".segment"):
                found[int(name.split(".", maxsplit=1)[0])] = self.disk.read_link(f"groups/g/{name}")
        return found

    def snapshots(self) -> list[int]:
        """The indexes of the snapshots on disk, unfinished ones left out."""
        names = self.disk.list("groups/g/snapshots")
        return [int(name.split("-")[0], 16) for name in names if not name.endswith(".tmp")]

    @contextmanager
    def calls(self) -> Iterator[list[str]]:
        """What the disk is asked to do meanwhile, in order, as `call path`."""
        seen: list[str] = []
        self.disk.before_call = lambda call, path: seen.append(f"{call} {path}")
        yield seen
        self.disk.before_call = None


class Stopped(BaseException):
    """The world ended where a test wanted it to."""


class Ended:
    """Listens for the end of something: over or not, and with which error."""

    def __init__(self) -> None:
        self.over = False
        self.error: LowmarkError | None = None

    def __call__(self, error: LowmarkError | None) -> None:
        assert not self.over, "an end is told once"
        self.over, self.error = True, error

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.error is not None:
            raise self.error


# -- from one log to another --------------------------------------------------------------------


def send(
    sender: SnapshotSender, installer: Installer, *, count_max: int = 2, chunk: int = 4
) -> list[Entry]:
    """Carry everything over in small pieces, but do not finish; give the entries that were sent."""
    sent: list[Entry] = []
    while True:
        previous, entries = sender.entries(count_max)
        if not entries:
            break
        installer.add_entries(previous, entries)
        sent += entries
    while piece := sender.state(installer.state_bytes, chunk):
        installer.add_state(installer.state_bytes, piece)
    return sent


def finish(world: World, installer: Installer, live: Iterable[int]) -> None:
    """Put an installation in force and wait for it."""
    ended = Ended()
    installer.finish(BitMap64(live), ended)
    world.loop.run_until(lambda: ended.over)
    ended.check()
    world.settle()
