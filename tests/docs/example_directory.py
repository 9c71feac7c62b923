"""The data directory that the pages in docs/formats/ take their examples from.

The log itself makes it, in a simulated world: two merged segments, a large entry that a segment
names and one that only the WAL names, a snapshot with a live set. Nothing is left to chance, so the
same bytes come out each time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from random import Random

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.log import CompactionRun, GroupLog, Log, LogConfig, SnapshotMeta
from lowmark.runtime import Runtime
from lowmark.runtime.sim import SimDisk, sim_runtime

GROUP = "orders"
CONFIG = LogConfig(
    large_entry_bytes_min=24,
    compaction_dead_ratio=1.0,
    compaction_interval_ms=0,
    disk_reserved_bytes=0,
    disk_low_bytes=0,
)
ENTRIES = {
    1: (1, b"o-1 paid"),
    2: (1, b"o-2 paid"),
    3: (1, b"o-1 sent"),
    4: (1, b"o-3 paid"),
    5: (2, b"o-2 sent"),
    6: (2, b"o-3 sent, with the receipt"),
    7: (2, b"o-4 paid"),
    8: (2, b"o-5 paid"),
    9: (2, b"o-4 sent, with the receipt"),
}
LIVE = [2, 3, 4]
SNAPSHOT = SnapshotMeta(index=4, term=1, members=b"n1 n2 n3", machine_version=1)
STATE = b"3 orders, 1 sent"
VOTE = b"n2 in 2"


class _Known(Random):
    """Draws bytes that a reader of a hex dump recognises: a0 a1 a2 …, then b0 b1 b2 …"""

    drawn = 0

    def randbytes(self, n: int) -> bytes:
        start = 0xA0 + self.drawn
        self.drawn += 0x10
        return bytes(range(start, start + n))


class Example:
    """The log at work, step by step."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        runtime = replace(sim_runtime(1, disk=self.disk), random=_Known())
        self.runtime: Runtime = runtime
        self.log = Log.open(runtime, CONFIG)
        self.group: GroupLog = self.log.create_group(GROUP)

    def append(self, first: int, last: int) -> None:
        """Append entries of one term, and wait until they are written."""
        datas = [ENTRIES[index][1] for index in range(first, last + 1)]
        self.group.append(ENTRIES[first][0], datas, first=first)
        self.wait(lambda: self.group.written_index == last)

    def roll(self) -> None:
        """Close the WAL file and wait until it is in segments."""
        self.log.roll()
        self.settle()

    def vote(self) -> None:
        """Make the group's own record durable."""
        done: list[bool] = []
        self.group.put_meta(VOTE, lambda _: done.append(True))
        self.wait(lambda: bool(done))

    def snapshot(self) -> None:
        """Take the snapshot and wait for it."""
        ended: list[LowmarkError | None] = []
        self.group.take_snapshot(SNAPSHOT, [STATE], BitMap64(LIVE), ended.append)
        self.wait(lambda: bool(ended))
        assert ended == [None]
        self.settle()

    def compact(self) -> None:
        """Merge what can be merged."""
        runs: list[CompactionRun] = []
        assert self.group.compact(runs.append)
        self.wait(lambda: bool(runs))
        self.settle()

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        self.wait(lambda: self.log.idle)

    def wait(self, until: Callable[[], bool]) -> None:
        """Let the world go on."""
        self.runtime.loop.run_until(until)


def live_through(example: Example, *, close: bool = True) -> SimDisk:
    """Everything that happens to the example, up to its end."""
    example.vote()
    for first, last in ((1, 2), (3, 4), (5, 6)):
        example.append(first, last)
        example.roll()
    example.snapshot()
    example.compact()
    example.append(7, 9)
    example.settle()
    if close:
        example.log.close()
    return example.disk


@functools.cache
def example_files() -> dict[str, bytes]:
    """Every file of the directory but the lock, by path."""
    disk = live_through(Example())
    found = {}
    for path in disk.tree():
        stat = disk.stat(path.rstrip("/"))
        if stat is not None and stat.kind == "file" and path != "LOCK":
            file = disk.open(path, "read")
            found[path] = file.read_at(0, file.size())
            file.close()
    return found
