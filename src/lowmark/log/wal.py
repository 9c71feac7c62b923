"""The write-ahead log: one file at a time for all groups, one sync for all that waits.

The loop decides, the lane `wal` writes. A batch takes what is waiting, up to a size: large entries
go to their group's large file first and are synced there; then the batch, which names them, is
written and synced; only then are its entries "written". So whatever a durable batch names is
durable, too.

When a write or a sync fails, the file is given up at its last durable byte and never written again
(after a failed sync, a later one proves nothing): what was not durable goes back to the front of
the queue, in order, and into a new file, whose header says how much of the old one counts. Until
that works, appends are refused with the disk's error, and it is tried again from time to time. So
what was taken is not lost while the process lives, with one exception: when it is a group's large
file that can't be written, time after time, that group's folder is sick, and what waits of it is
dropped, so that the others can go on.

When `wal_files_waiting_max` closed files wait for the segment writer, the WAL waits for it. If what
the segment writer waits for is a disk that fails, appends are refused with that error, too: who
waited for a failed disk in silence could not tell why.

What waits here is never below a group's snapshot, so the WAL need not compare it with the smallest
live index: a snapshot is taken only of entries that are written (`GroupLog.take_snapshot`), appends
leave out what it covers, and one that is installed empties the memtable, after which the runs that
still wait count no entry (`kept`).

A part of the disk is reserved (`disk_reserved_bytes`), so that a disk full of rows locks no one
out. The caller says whether the entries may use it. What may not is refused at once (`shortage`)
when it would leave less than that free, counting what was taken before it. What was taken is
written in any case: the reserve is for it, too, if another program has filled the disk meanwhile.
What is in WAL files is written once more, into segments, before they can go. Where that would need
more of the reserve than a quarter, the next batch waits until the segment writer is through.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from lowmark.errors import InvariantBroken, LowmarkError
from lowmark.log import files, large_format, wal_format
from lowmark.log.config import LogConfig
from lowmark.log.entries import LargePlace, Run
from lowmark.log.errors import reason_of, reserve_reached
from lowmark.log.files import SharedFolder, discard
from lowmark.log.state import GroupState
from lowmark.log.wal_format import Record, WalHeader
from lowmark.runtime import (
    Buffer,
    Disk,
    DiskFull,
    File,
    NoHandles,
    Outcome,
    Runtime,
    by_name,
)

logger = logging.getLogger(__name__)

_LARGE_FAILURES_MAX = 5
_FAILURES_PASSING = 1
"""So often in a row the disk may fail before callers are told: the next try may go through."""
_MUCH_BYTES = 256 << 10
"""For so much the disk is asked anew: other programs may have filled it since the last batch."""
_KNOWN_US = 1_000_000
"""After so long, too: the log may have been idle meanwhile."""
_FLUSH_SHARE = 4
"""The segment writer may use this part of the reserve (1/4)."""


@dataclass(slots=True, eq=False)
class RunWrite:
    """A run that waits for the WAL."""

    state: GroupState
    run: Run
    size: int
    """About how many bytes it will take."""

    def __init__(self, state: GroupState, run: Run) -> None:
        self.state, self.run = state, run
        self.size = len(run.payload) + 8 * run.count + wal_format.ROW_BYTES


@dataclass(slots=True, eq=False)
class MetaWrite:
    """A group's own record that waits for the WAL."""

    state: GroupState
    data: bytes
    on_done: Callable[[LowmarkError | None], None]

    @property
    def size(self) -> int:
        """About how many bytes it will take."""
        return len(self.data) + wal_format.ROW_BYTES


@dataclass(slots=True, eq=False)
class Fence:
    """Comes back when everything that was given to the WAL before it is durable."""

    state: GroupState
    on_done: Callable[[LowmarkError | None], None]
    size: int = 0


Write = RunWrite | MetaWrite | Fence


@dataclass(slots=True)
class _LargeWrite:
    """Frames for one large file, written together."""

    path: str
    header: bytes
    folder: SharedFolder
    frames: list[tuple[int, Run]] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    number: int
    sequence: int
    offset: int
    records: list[Record]
    large: dict[tuple[str, int], _LargeWrite]
    writes: list[Write]


@dataclass(frozen=True, slots=True)
class _NewFile:
    number: int
    buffers: list[Buffer]
    carried: list[bytes]


class Wal:
    """Takes writes on the loop, makes them durable, and says so in order."""

    def __init__(
        self,
        runtime: Runtime,
        config: LogConfig,
        *,
        folder: SharedFolder,
        groups: Callable[[], Iterable[GroupState]],
        on_written: Callable[[list[Write]], None],
        on_closed: Callable[[int], None],
        on_low_disk: Callable[[], None],
        on_free: Callable[[int], None],
        on_broken: Callable[[GroupState, LowmarkError, list[Write]], None],
        on_room: Callable[[], None],
        flush_error: Callable[[], LowmarkError | None],
        flush_stands: Callable[[], bool],
    ) -> None:
        self._flush_error = flush_error
        self._flush_stands = flush_stands
        self._free = 0
        """How much was free on the disk when it was last asked."""
        self._asked_us = 0
        """When that was, or a little before."""
        self._writing_bytes = 0
        self.promised_bytes = 0
        """What groups have taken from callers and not appended yet: space is kept for it, too."""
        self._short_of: int | None = None
        """The least that did not fit beside the reserve, if rows are being refused: when it fits,
        all are told, and who needs more is refused anew."""
        self._told_of: type[LowmarkError] | None = None
        """Which error of this outage was logged."""
        self._on_broken = on_broken
        self._on_room = on_room
        self._room_bytes = min(config.wal_batch_bytes_max, config.wal_queue_bytes_max)
        self._had_room = True
        self._large_failures: dict[str, int] = {}
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._lane = runtime.loop.lane("wal")
        self._config = config
        self._files_waiting_max = config.wal_files_waiting_max
        self._groups = groups
        self._on_written = on_written
        self._on_closed = on_closed
        self._on_low_disk = on_low_disk
        self._on_free = on_free
        self._queue: deque[Write] = deque()
        self._handles = _Handles(runtime.disk, folder)
        self._writers: dict[bytes, int] = {}
        self._busy = False
        self._pump_planned = False
        self._look_planned = False
        self._roll_asked = False
        self._sealed = (0, 0)
        """File and sequence number of the last seal."""
        self._failures = 0
        self._burned = 0
        self._waiting_bytes: dict[int, int] = {}
        self._begun_bytes = 0
        self._first_number = 1
        self._old: list[int] = []
        self._unsure_large: list[tuple[GroupState, int]] = []
        """Large files of batches that failed. Until the next file's header says that such a batch
        does not count, a start may read it, and must find them."""
        self.queued_bytes = 0
        self.files_waiting = 0
        self.bytes_written = 0
        """Since the log was opened, large files included: what phase 3 looks at to step back."""
        self.number = 0
        self.sequence = 0
        self.durable_bytes = 0
        self.large_bytes = 0
        self.stopped: LowmarkError | None = None
        self.closed = False

    # -- what others ask of it ------------------------------------------------------------------

    def start(self, *, number: int, previous: int, previous_bytes: int, waiting: list[int]) -> None:
        """Open the first file of this process; `previous` is the last one before it, or 0.

        Older files may be flushed and removed (`waiting`) only when the new one is there: it
        repeats the groups' own records, which are nowhere else.
        """
        self._old = waiting
        self.number, self.durable_bytes = previous, previous_bytes
        self._first_number = number
        new = self._plan_file(number)
        try:
            free = self._write_file(new)
        except DiskFull as full:
            self._stop(full)  # reads, deletes and compaction need no WAL
            return
        self._use_file(new, free=free)

    def write(self, write: Write) -> None:
        """Take a write; it is made durable with whatever else is waiting."""
        self._queue.append(write)
        self.queued_bytes += write.size
        if not (self._had_room and self.queued_bytes < self._room_bytes and self.well):
            self.look_for_room()
        if not self._pump_planned:
            self._plan_pump()

    @property
    def well(self) -> bool:
        """Whether nothing at all keeps it from writing. Asked with every append: two looks."""
        return self.stopped is None and self.files_waiting < self._files_waiting_max

    def drop(self, state: GroupState) -> list[Write]:
        """Forget what waits of a group that was deleted, or is broken; give it back."""
        dropped = [w for w in self._queue if w.state is state]
        self._queue = deque(w for w in self._queue if w.state is not state)
        self.queued_bytes -= sum(w.size for w in dropped)
        self.look_for_room()
        return dropped

    @property
    def has_room(self) -> bool:
        """Whether a write would be taken without a wait."""
        return self.queued_bytes < self._room_bytes and self.refusal is None

    @property
    def refusal(self) -> LowmarkError | None:
        """The disk's error that keeps it from writing, its own or the segment writer's."""
        if self.stopped is not None:
            return self.stopped
        return self._flush_error() if self.waits_for_flush else None

    @property
    def _full(self) -> bool:
        return self.durable_bytes + self.large_bytes >= self._config.wal_bytes_max

    @property
    def waits_for_flush(self) -> bool:
        """Whether nothing is written before the segment writer is through with a file."""
        return self.files_waiting >= self._files_waiting_max and self._full

    @property
    def newest_number(self) -> int:
        """The highest number of a file that may be on the disk under its name."""
        return max(self.number, self._first_number - 1) + self._burned

    def closed_bytes(self, number: int) -> int:
        """How many bytes of a closed file count; 0 if it never got any."""
        return self._waiting_bytes.get(number, 0)

    def look_for_room(self) -> None:
        """Plan to tell when there is room again; the one who hears looks for himself."""
        has_room = self.queued_bytes < self._room_bytes and (self.well or self.refusal is None)
        if has_room and not self._had_room:
            self._loop.call_soon(self._on_room)
        self._had_room = has_room

    # -- the reserve ----------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Whether so much may be taken without using the reserve, as far as is known."""
        reserved = self._config.disk_reserved_bytes
        if not reserved:
            return True
        now = self._loop.elapsed_us()
        if size >= _MUCH_BYTES:
            self._free, self._asked_us = self._disk.free_bytes(), now
        elif now - self._asked_us > _KNOWN_US:
            self._asked_us = now
            with contextlib.suppress(LowmarkError):  # the write will say what is wrong
                self._free = self._disk.free_bytes()
        taken = self.promised_bytes + self.queued_bytes + self._writing_bytes
        return size + taken <= self._free - reserved

    def shortage(self, size: int) -> DiskFull | None:
        """Why so much that may not use the reserve is not taken; None if it is."""
        if self.fits(size):
            return None
        # In place, since it is rare and quick: a caller that has freed space is not refused.
        self._free = self._disk.free_bytes()
        if self.fits(size):
            return None
        self._run_short(size)
        where, reserved = self._disk.describe(""), self._config.disk_reserved_bytes
        return reserve_reached(where, free=self._free, reserved=reserved)

    def _run_short(self, size: int) -> None:
        if self._short_of is not None:
            self._short_of = min(self._short_of, size)
            return
        self._short_of = size
        logger.warning(
            "rows are refused: there is no space for them beside what is reserved",
            extra={
                "directory": self._disk.describe(""),
                "free_bytes": self._free,
                "reserved_bytes": self._config.disk_reserved_bytes,
            },
        )
        # What compaction can free is in segments.
        if self.durable_bytes > self._begun_bytes and not self.files_waiting:
            self.roll()
        self._loop.call_soon(self._on_low_disk)
        self._loop.call_later(self._config.retry_ms, self._ask_for_space)

    def _ask_for_space(self) -> None:
        if not self.closed:
            self._lane.submit(self._disk.free_bytes, self._space_known)

    def _space_known(self, done: Outcome[int]) -> None:
        if self.closed or self._short_of is None:
            return
        self._free = done.value() if done.error is None else self._free
        if not self.fits(self._short_of):
            self._loop.call_later(self._config.retry_ms, self._ask_for_space)
            return
        self._short_of = None
        logger.info("rows are taken again", extra={"free_bytes": self._free})
        self._on_room()

    def _must_flush_first(self) -> bool:
        """Whether the segment writer would lack space for what is in WAL files and the next batch.

        If it can't help, because it stands or has nothing to do, the batch is written all the same.
        """
        reserved = self._config.disk_reserved_bytes
        if not reserved or not self._queue:
            return False
        batch = min(self.queued_bytes, self._config.wal_batch_bytes_max)
        allowed = max(self._free - reserved, reserved // _FLUSH_SHARE)
        if self.unflushed_bytes + 2 * batch <= allowed or self._flush_stands():
            return False
        return self.files_waiting > 0 or self.durable_bytes > self._begun_bytes

    @property
    def trouble(self) -> LowmarkError | None:
        """The disk's error, if it keeps everything from being written, and not just this once."""
        return self.stopped if self._failures > _FAILURES_PASSING else None

    def roll(self) -> None:
        """Close the present file as soon as what is being written is written."""
        self._roll_asked = True
        self._plan_pump()

    def seal(self) -> bool:
        """Say behind the last batch that it was synced, if nothing is being written; gives whether
        that is said, or can't be.

        Otherwise a start can't tell a last batch that rotted from one that a crash has torn, and
        takes it for the second. A seal is a batch without records. It is not synced: killing a
        process does not take it away, and after a power cut the last batch may be torn. The next
        batch takes its place.
        """
        here, file = (self.number, self.sequence), self._handles.wal
        if file is None or self.stopped is not None or self.closed:
            return True
        if not self.idle:
            return False
        if self._sealed == here or self.sequence < 2:
            return True
        self._sealed, self._busy = here, True
        offset, buffers = self.durable_bytes, wal_format.encode_batch(*here, [])
        self._lane.submit(lambda: file.write_at(offset, buffers), self._finish_seal)
        return False

    def _finish_seal(self, done: Outcome[None]) -> None:
        self._busy = False
        if self.closed:
            return
        if done.error is not None and not isinstance(by_name(done.error), LowmarkError):
            raise done.error
        # What was lost is a hint: the next batch will say what is wrong with the disk.
        self._plan_pump()

    def flushed(self, number: int) -> None:
        """A closed file is in segments: there may be room again."""
        self._waiting_bytes.pop(number, None)
        self.files_waiting -= 1
        self.look_for_room()
        self._plan_pump()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return not (self._queue or self._busy or self._roll_asked)

    def close(self) -> None:
        """Take no more; give the handles back."""
        self.closed = True
        self._handles.close()

    # -- batches --------------------------------------------------------------------------------

    def _plan_pump(self) -> None:
        # One turn later, so that everything appended in this turn shares a batch.
        if self._pump_planned or self._busy or self.closed:
            return
        if self._queue or self._roll_asked:
            self._pump_planned = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_planned = False
        if self._busy or self.closed or self.stopped is not None:
            return
        if self._roll_asked or (self._full and self._queue):
            if self.files_waiting < self._files_waiting_max:
                self._roll_asked = False
                self._roll()
                return
            if self._full:
                self.look_for_room()
                return
        if self._must_flush_first():
            if not self.files_waiting:
                self._roll()
            else:  # until it is flushed; looked at again, lest the segment writer stands
                self._plan_look()
            return
        if not self._queue:
            return
        before = self.queued_bytes
        batch = self._make_batch()
        if not batch.records:
            self._on_written(batch.writes)
            self._plan_pump()
            return
        self._busy = True
        self._writing_bytes = before - self.queued_bytes
        self._lane.submit(partial(self._write_batch, batch), partial(self._finish_batch, batch))

    def _plan_look(self) -> None:
        """Pump again later, once, however often it is asked for."""
        if not self._look_planned:
            self._look_planned = True
            self._loop.call_later(self._config.retry_ms, self._look)

    def _look(self) -> None:
        self._look_planned = False
        self._plan_pump()

    def _make_batch(self) -> _Batch:
        batch = _Batch(self.number, self.sequence, self.durable_bytes, [], {}, [])
        size, large_bytes_min = 0, self._config.large_entry_bytes_min
        while self._queue and (not batch.writes or size < self._config.wal_batch_bytes_max):
            write = self._queue.popleft()
            self.queued_bytes -= write.size
            size += write.size
            match write:
                case RunWrite(state=state, run=run):
                    if run.kept == 0:
                        continue  # overwritten, or overtaken by an installed snapshot
                    if run.count == 1 and len(run.payload) >= large_bytes_min:
                        self._place_large(batch, state, run)
                    state.memtable.stored(run, self.number)
                    record = wal_format.run_record(self._writer(batch, state), run)
                    batch.records.append(record)
                case MetaWrite(state=state, data=data):
                    record = wal_format.meta_record(self._writer(batch, state), data)
                    batch.records.append(record)
                case Fence():
                    pass
            batch.writes.append(write)
        self.look_for_room()
        return batch

    def _writer(self, batch: _Batch, state: GroupState) -> int:
        writer = self._writers.get(state.incarnation)
        if writer is None:
            writer = self._writers[state.incarnation] = len(self._writers) + 1
            batch.records.append(
                wal_format.writer_record(writer, incarnation=state.incarnation, group=state.name)
            )
        return writer

    def _place_large(self, batch: _Batch, state: GroupState, run: Run) -> None:
        number, offset = state.place_large(
            wal=self.number,
            frame_bytes=large_format.frame_bytes(len(run.payload)),
            header_bytes=large_format.HEADER_BYTES,
            bytes_max=self._config.segment_bytes_max,
        )
        key = (state.folder, number)
        if key not in batch.large:
            path = f"{state.folder}/{files.large_name(number)}"
            header = large_format.encode_header(number, state.incarnation)
            batch.large[key] = _LargeWrite(path, header, state.shared_folder)
        batch.large[key].frames.append((offset, run))
        run.large = LargePlace(number, offset + large_format.FRAME_BYTES)

    def _write_batch(self, batch: _Batch) -> tuple[int, int, int]:
        """The lane's step: how many bytes went to the WAL and to large files, and are free."""
        large_bytes = 0
        for (folder, _), large in batch.large.items():
            try:
                large_bytes += self._handles.write_large(large)
            except LowmarkError as error:
                raise _LargeFailed(folder, error) from error
        buffers = wal_format.encode_batch(batch.number, batch.sequence, batch.records)
        file = self._handles.wal
        if file is None:
            raise InvariantBroken("the WAL has an open file")
        file.write_at(batch.offset, buffers)
        file.datasync()
        free = self._disk.free_bytes() if self._config.disk_reserved_bytes else 0
        return sum(map(len, buffers)), large_bytes, free

    def _finish_batch(self, batch: _Batch, done: Outcome[tuple[int, int, int]]) -> None:
        self._busy = False
        self._writing_bytes = 0
        if self.closed:
            return
        if done.error is not None:
            self._give_back(batch)
            self._batch_failed(done.error)
            return
        self._large_failures.clear()
        wal_bytes, large_bytes, self._free = done.value()
        self._asked_us = self._loop.elapsed_us()
        self.sequence += 1
        self.durable_bytes += wal_bytes
        self.large_bytes += large_bytes
        self.bytes_written += wal_bytes + large_bytes
        self._failures = 0
        self._told_of = None
        self.look_for_room()
        self._on_written(batch.writes)
        self._plan_pump()

    def _batch_failed(self, error: Exception) -> None:
        if not isinstance(error, _LargeFailed):
            self._stop(error)
            return
        failures = self._large_failures.get(error.folder, 0) + 1
        self._large_failures[error.folder] = failures
        everybody_s = isinstance(error.cause, DiskFull | NoHandles)
        if everybody_s or failures < _LARGE_FAILURES_MAX:
            self._stop(error.cause, counts=everybody_s)
            return
        # The WAL itself is sound: it is that group's folder that is broken, and only it pays.
        for state in list(self._groups()):
            if state.folder == error.folder:
                self._on_broken(state, error.cause, self.drop(state))
        self._plan_pump()

    def _give_back(self, batch: _Batch) -> None:
        """Put what did not become durable back to the front of the queue."""
        named = {r.writer for r in batch.records if r.kind is wal_format.Kind.WRITER}
        self._writers = {who: n for who, n in self._writers.items() if n not in named}
        for write in reversed(batch.writes):
            if write.state.deleted:
                continue
            if isinstance(write, RunWrite):
                run = write.run
                if run.wal:
                    write.state.memtable.unstored(run)
                elif run.kept == 0:
                    continue  # an installed snapshot cleared the memtable in the meantime
                if run.large is not None:
                    self._unsure_large.append((write.state, run.large.number))
                run.large = None
                write.state.open_large = None
            self._queue.appendleft(write)
            self.queued_bytes += write.size
        self.look_for_room()

    # -- files ----------------------------------------------------------------------------------

    @property
    def unflushed_bytes(self) -> int:
        """What the segment writer has still to write of WAL files, the present one included."""
        return self.durable_bytes + sum(self._waiting_bytes.values())

    def _roll(self) -> None:
        new = self._plan_file(max(self.number + 1, self._first_number) + self._burned)
        self._busy = True
        self._lane.submit(partial(self._write_file, new), partial(self._roll_done, new))

    def _plan_file(self, number: int) -> _NewFile:
        """A new file begins with what older ones said and no segment holds: the groups' metas."""
        carried = [state for state in self._groups() if state.meta]
        records: list[Record] = []
        for writer, state in enumerate(carried, start=1):
            who = wal_format.writer_record(writer, incarnation=state.incarnation, group=state.name)
            records += [who, wal_format.meta_record(writer, state.meta)]
        flags = wal_format.ROSTERED
        header = WalHeader(number, self.number, self.durable_bytes, flags)
        buffers: list[Buffer] = [wal_format.encode_header(header)]
        buffers += wal_format.encode_batch(number, 0, records)
        return _NewFile(number, buffers, [state.incarnation for state in carried])

    def _write_file(self, new: _NewFile) -> int:
        """The lane's step: how many bytes are free."""
        self._handles.open_wal(new.number, new.buffers)
        return self._disk.free_bytes()

    def _roll_done(self, new: _NewFile, done: Outcome[int]) -> None:
        self._busy = False
        if self.closed:
            return
        if done.error is not None:
            # A number is given up only when its name may be on the disk.
            self._burned += self._handles.name_made
            self._stop(done.error)
            return
        self._burned = 0
        if not self._queue:  # else what waits shows whether it is over
            self._told_of = None
        closed = range(max(self.number, self._first_number), new.number)
        self._waiting_bytes[self.number] = self.durable_bytes
        self._use_file(new, free=done.value())
        for old in closed:
            self.files_waiting += 1
            self._on_closed(old)
        self._plan_pump()

    def _use_file(self, new: _NewFile, *, free: int) -> None:
        self.number = new.number
        self._free = free
        self.sequence = 1
        self.durable_bytes = self._begun_bytes = sum(map(len, new.buffers))
        self.large_bytes = 0
        self._writers = {incarnation: i + 1 for i, incarnation in enumerate(new.carried)}
        self.stopped = None
        for state, large in self._unsure_large:
            state.large_garbage.add(large)
        self._unsure_large = []
        old, self._old = self._old, []
        for closed in old:
            self.files_waiting += 1
            self._on_closed(closed)
        self.look_for_room()
        self._on_free(free)

    def _stop(self, error: Exception, *, counts: bool = True) -> None:
        """Write nothing until a new file works; `counts`: it may be trouble of all groups."""
        cause = by_name(error)
        if not isinstance(cause, LowmarkError):
            raise error
        if self._told_of is not type(cause):  # once, and not with every try
            self._told_of = type(cause)
            logger.warning("the WAL is stopped", extra={"reason": reason_of(cause)})
        self.stopped = cause
        self.look_for_room()
        self._failures += counts
        if isinstance(cause, DiskFull) and self._failures == 1:
            self._on_low_disk()
        self._loop.call_later(self._config.retry_ms, self._retry)

    def _retry(self) -> None:
        if self.stopped is not None and not self._busy and not self.closed:
            self._roll()


class _LargeFailed(Exception):
    """A group's large file could not be written; nothing of the batch is in the WAL."""

    def __init__(self, folder: str, cause: LowmarkError) -> None:
        super().__init__(folder)
        self.folder = folder
        self.cause = cause


class _Handles:
    """The open files of the WAL. Only the lane touches them, but for start and close."""

    def __init__(self, disk: Disk, folder: SharedFolder) -> None:
        self._disk = disk
        self._folder = folder
        self.wal: File | None = None
        self.name_made = False
        """Whether the last new file may have got its name, though something failed."""
        # By path and header: a group that was deleted and made anew has another file of that name.
        self._large: dict[tuple[str, bytes], File] = {}

    def write_large(self, large: _LargeWrite) -> int:
        """Write frames and sync them; a new file's name is synced, too."""
        key, faults = (large.path, large.header), large.folder.faults
        file, created = self._large.get(key), False
        if file is None:
            file, created = self._disk.open(large.path, "create"), True
            file.write_at(0, [large.header])
            self._large[key] = file
        written, buffers = 0, list[Buffer]()
        for _, run in large.frames:
            buffers += large_format.encode_frame(run)
        written = sum(map(len, buffers))
        file.write_at(large.frames[0][0], buffers)
        file.datasync()
        if created:
            large.folder.sync(self._disk, since=faults)
        return written

    def open_wal(self, number: int, buffers: list[Buffer]) -> None:
        """Make a new WAL file whole under another name, then give it its own."""
        path, faults = files.wal_path(number), self._folder.faults
        self.name_made = False
        for left_over in (path + files.TEMPORARY, path):
            discard(self._disk, left_over)
        file = self._disk.open(path + files.TEMPORARY, "create")
        try:
            file.append(buffers)
            file.datasync()
            self._disk.rename(path + files.TEMPORARY, path)
            self.name_made = True
        except LowmarkError:
            file.close()
            discard(self._disk, path + files.TEMPORARY)
            raise
        try:
            self._folder.sync(self._disk, since=faults)
        except LowmarkError:
            file.close()
            raise
        self.close()
        self.wal = file

    def close(self) -> None:
        """Give all handles back."""
        if self.wal is not None:
            self.wal.close()
            self.wal = None
        for file in self._large.values():
            file.close()
        self._large.clear()
