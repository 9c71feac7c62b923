"""A log in simulation that is checked by an oracle: for crash points and for the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyroaring import BitMap64

from log.oracle import GroupOracle, Oracle, Version
from lowmark.errors import LowmarkError, Unavailable
from lowmark.log import Entry, GroupUnknown, Log, LogConfig, SnapshotMeta
from lowmark.log.errors import LogClosed
from lowmark.runtime.sim import SimDisk, sim_runtime

TINY = LogConfig(
    wal_bytes_max=1 << 20,
    segment_bytes_max=4096,
    segment_entries_max=8,
    large_entry_bytes_min=512,
    compaction_interval_ms=0,
    disk_reserved_bytes=0,
    disk_low_bytes=0,
)


class CheckedWorld:
    """A log on a simulated disk, with an oracle that knows what it must answer."""

    def __init__(self, disk: SimDisk, *, seed: int = 1, config: LogConfig = TINY) -> None:
        self.oracle = Oracle()
        self.config = config
        self.may_fail = False
        """Whether what was begun may end with an error of the disk; then it may count, or not."""
        self.open(disk, seed=seed)

    def open(self, disk: SimDisk, *, seed: int) -> None:
        """Open the log on that disk, in a world of its own."""
        self.disk = disk
        self.unanswered = 0
        self.runtime = sim_runtime(seed, disk=disk)
        self.log = Log.open(self.runtime, self.config)
        self.log.on_written = self.oracle.written
        self.log.on_dropped = self.oracle.dropped

    def create(self, name: str) -> None:
        self.log.create_group(name)
        assert not self.oracle[name].versions

    def close(self) -> None:
        """Close the log; everybody has an answer then."""
        self.log.close()
        assert self.unanswered == 0

    def replace(self, name: str) -> None:
        """Delete a group, whatever is under way, and make it anew."""
        self.log.delete_group(name)
        self.settle()
        # A write of before the disk was well may have failed meanwhile: the WAL tries it again.
        self.runtime.loop.run_until(lambda: self.log.wal.refusal is None)
        self.oracle.groups[name] = GroupOracle()
        self.create(name)

    def once(self, done: Callable[[], None]) -> Callable[[LowmarkError | None], None]:
        """A callback that expects to be called once; only a close or a delete is an error here."""
        self.unanswered += 1
        answers: list[LowmarkError | None] = []

        def answer(error: LowmarkError | None) -> None:
            answers.append(error)
            assert len(answers) == 1, "an end is told once"
            self.unanswered -= 1
            if error is None:
                done()
            else:
                ended = isinstance(error, GroupUnknown | LogClosed)
                assert ended or (self.may_fail and isinstance(error, Unavailable)), error

        return answer

    @contextmanager
    def asking(self, name: str) -> Iterator[GroupOracle]:
        """Ask a group for something; what it refuses at once has never been asked for."""
        known, waiting = self.oracle[name], self.unanswered
        before = (list(known.snapshots), dict(known.meta), known.void_from)
        versions = {i: [replace(v) for v in found] for i, found in known.versions.items()}
        try:
            yield known
        except LowmarkError:
            known.snapshots, known.meta, known.void_from = before
            known.versions = versions
            self.unanswered = waiting
            raise

    def append(self, name: str, count: int, *, term: int = 1, first: int | None = None) -> None:
        group = self.log.group(name)
        at = group.last_index + 1 if first is None else first
        datas = [f"{name}-{i}-{term}-".encode() * 4 for i in range(at, at + count)]
        with self.asking(name) as known:
            known.append(at, term, datas)
            group.append(term, datas, first=first)

    def append_large(self, name: str, *, term: int = 1) -> None:
        group = self.log.group(name)
        data = f"{name}-large-{group.last_index + 1}-".encode() * 60
        with self.asking(name) as known:
            known.append(group.last_index + 1, term, [data])
            group.append(term, [data])

    def put_meta(self, name: str, data: bytes) -> None:
        group = self.log.group(name)
        with self.asking(name) as known:
            number = known.metas_begun = known.metas_begun + 1
            known.meta[number] = data

            def done() -> None:
                known.meta = {n: m for n, m in known.meta.items() if n >= number}

            group.put_meta(data, self.once(done))

    def settle(self) -> None:
        self.runtime.loop.run_until(lambda: self.log.idle)
        assert self.unanswered == 0

    def roll(self) -> None:
        self.log.roll()
        self.settle()

    def snapshot(self, name: str, index: int, live: list[int]) -> None:
        group = self.log.group(name)
        term = group.term_at(index)
        assert term is not None
        meta = SnapshotMeta(index=index, term=term)
        chunks = [b"state of " + name.encode(), b" at %d" % index]
        with self.asking(name) as known:
            known.snapshot_begun(index, BitMap64(live))
            group.take_snapshot(meta, chunks, BitMap64(live), self.once(known.snapshot_done))

    def install(self, name: str, meta: SnapshotMeta, live: list[int], *, applied: int) -> None:
        group = self.log.group(name)
        received = {
            i: Version(meta.term, b"from the leader %d " % i * 3) for i in live if i > applied
        }
        entries = [Entry(i, v.term, v.data) for i, v in received.items()]
        with self.asking(name) as known:
            known.install_begun(meta.index, BitMap64(live), received)
            installer = group.begin_install(meta, last_applied=applied)
            for entry in entries:
                installer.add_entries(installer.previous, [entry])
            installer.add_state(0, b"the state, ")
            installer.add_state(11, b"all of it")

            done = self.once(lambda: known.installed(meta.index))
            installer.finish(BitMap64(live), done)
