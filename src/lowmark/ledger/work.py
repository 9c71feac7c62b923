"""One partition's part of a run: what it is told, what it does, what it answers.

Steps, and what is true after each; a crash leaves files that nothing refers to, and the sweep finds

    1. pass one says which rows of the tail survive, and whose older rows die with that
    2. rows of the ledger before that died are noted, not touched
    3. pass two writes survivors into new files, durable and read back
    4. the new manifest is written: it refers to new files, and to old ones with fewer live rows
    5. the answer is written into the run's folder. From here on the partition is finished: a
       process that resumes the run takes the answer instead of doing it again

Work that fails before step 5 removes what it has written, the manifest first: a process that
finds the manifest finds its files. Its files have the run's name, so no sweep would take them as
long as the run can be resumed, and on a full disk each attempt would leave another copy.

Nothing here changes what readers read: the run does, when it publishes the manifest.

`budget_bytes` bounds what keys take in memory: those that pass one folds (see `kernel`), and those
of a file that is written, which is ended when a quarter of it is spent, though not below four
megabytes, and which takes twice that while it is ended. Nothing is kept of a key from
pass one to pass two. Beside that there are

    - a few bytes for each row of the tail, and numbers of 64 bits for each of its batches
    - a bit or two for each row of the ledger before; of one of its files at a time, its keys and
      its offsets
    - the indexes of its keys, if they come from afar: those of this machine are mapped
    - what is read or written at a time: some megabytes of the tail, a row group
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lowmark.catalog import Table, TableSchema
from lowmark.catalog.serializers import decode_table
from lowmark.errors import Corrupt, LowmarkError, invariant
from lowmark.ledger.claim import check_claim
from lowmark.ledger.digest import EMPTY, Digest
from lowmark.ledger.errors import LedgerDamaged, ProofFailed
from lowmark.ledger.files import FileWriter, OpenFile, Rows, check_there, schema_of
from lowmark.ledger.kernel import Folded, KeyRange, Sample, Second, Survivors, fold_tail
from lowmark.ledger.key_file import KEY_SEED, KeyFile, open_key_file
from lowmark.ledger.manifest import (
    Expected,
    LedgerFile,
    Manifest,
    encode_manifest,
    folder_of,
    layout_of,
    read_manifest,
    run_folder,
)
from lowmark.ledger.policy import Fate, Room, fates
from lowmark.ledger.rule import LAST_ROW, Rule, deletes_to_drop
from lowmark.ledger.tail import Source, Tail, TailReader
from lowmark.runtime.disk import StoreFailed
from lowmark.runtime.store import Store
from lowmark.table import (
    CHANGE,
    I64,
    OFFSET,
    TIME,
    U64,
    Change,
    KeyForm,
    Mask,
    Shape,
)

# Keeps work below a rate of bytes a second, and counts them.

_BURST_S = 0.25
"""This much may be owed before the work waits: many short waits would cost more than they slow."""


class _Clock(Protocol):
    def now_s(self) -> float: ...
    def wait(self, seconds: float) -> None: ...


class Throttle:
    """Called with bytes after they were moved; waits until the rate is kept."""

    def __init__(self, rate: int, clock: _Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._began_s = clock.now_s()
        self.total = 0

    def __call__(self, count: int) -> None:
        """This many bytes more."""
        self.total += count
        if self._rate <= 0:
            return
        ahead_s = self.total / self._rate - (self._clock.now_s() - self._began_s)
        if ahead_s > _BURST_S:
            self._clock.wait(ahead_s)


FILE_ROWS_MAX = 1 << 22
"""A file that has so many rows is finished, and another one begun."""
_KEYS_SHARE = 4
"""And one whose keys have spent one part in this many of the budget."""
_KEYS_LEAST = 4 << 20
_KEYS_MOST = 1 << 30
"""In whatever budget: files are not too small to be worth it, and no array is too large."""


ReadWay: TypeAlias = Literal["auto", "segments", "flight"]
"""How a task reads a backlog: sealed segments, from the directory of a node; the same batches from
a server, over Arrow Flight; or segments where the task sees that directory, else a server."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do for one partition."""

    run: str
    store: str
    read: ReadWay = "auto"
    """How the tail is read."""
    cluster: str = ""
    """The database that servers at the tail's addresses must have."""
    ca: str = ""
    """The file of authorities that its client believes, if it was given one; a task on another
    machine finds it at the same path, or by $LOWMARK_CA.
    """
    claimed: bool = False
    """Whether the store says that it is this database's: the task must see that, too."""
    lease: str = ""
    """The run's lease in the partition: tasks that ask a server for the tail show it there."""
    shows: str = ""
    """The pass that a task shows to servers; empty: none, or a token of its environment."""
    table: bytes
    table_name: str
    partition: int
    epoch: int
    """That the new ledger gets."""
    base: str = ""
    """The manifest of the ledger before; empty if there is none."""
    base_is: Expected | None = None
    """Which ledger that is."""
    base_bytes: int = 0
    """What its files take."""
    tail: Tail
    horizon: int
    schema: int
    """The schema version that new files get."""
    deletes_below: int
    """Deletes below this offset were passed by all readers, and may go."""
    deletes_gone: int = 0
    """Deletes below this offset may be gone already, whatever the base has."""
    watermark: int = 0
    expired: int = 0
    made_at: str = ""
    release: str = ""
    verify: bool = False
    rewrite: bool = False
    """Write every file anew."""
    budget_bytes: int = 1 << 30
    read_rate: int = 0
    """Bytes a second; 0: as fast as it goes."""
    write_rate: int = 0

    def __repr__(self) -> str:  # without the pass
        return f"Work(run={self.run!r}, table={self.table_name!r}, partition={self.partition})"


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    partition: int
    manifest: str
    epoch: int
    horizon: int
    digest: str
    deletes_below: int
    rows_read: int = 0
    """Of the tail."""
    rows_live: int = 0
    """Of the new ledger, without deletes."""
    rows_died: int = 0
    """Of the ledger before."""
    deletes: int = 0
    """Deletes that stay."""
    deletes_dropped: int = 0
    bytes_read: int = 0
    """Of the tail, once for each pass over it; and of the ledger before."""
    bytes_written: int = 0
    files_kept: int = 0
    files_written: int = 0
    files_dropped: int = 0
    rows_checked: int = 0
    """This many rows were looked at by the second algorithm."""
    key_ranges: int = 1
    ledger_bytes: int = 0
    read_from: str = ""
    """Where the tail was read: `segments`, or the address of a server; empty, if nothing was."""


class TaskContext(Protocol):
    """What the process is asked for that carries the work out."""

    def now_s(self) -> float:
        """A clock that never goes back."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def draw(self) -> str:
        """A few letters that no other attempt draws: they tell two attempts apart."""

    def source(self, work: Work) -> tuple[Source, str]:
        """What the tail is read from, and where that is, in words."""

    def check(self) -> None:
        """Raise if the work is no longer wanted."""


def done_path(table: int, run: str, partition: int) -> str:
    """Where a partition's answer is."""
    return f"{run_folder(table, run)}/{partition}.done"


def progress_path(table: int, run: str, partition: int) -> str:
    """Where a partition says how far it is."""
    return f"{run_folder(table, run)}/{partition}.progress"


def carry_out(data: bytes, context: TaskContext, *, rule: Rule = LAST_ROW) -> bytes:
    """Do what `data`, an encoded `Work`, says; gives an encoded `Done`."""
    work = msgspec.msgpack.decode(data, type=Work)
    return msgspec.msgpack.encode(_Job(work, context, rule).run())


@dataclass(slots=True)
class _Old:
    """A file of the ledger before, and what became of its rows."""

    file: LedgerFile
    dead: BitMap
    digest: Digest
    """Of what is live."""
    keys: KeyFile | None
    before: BitMap
    """Rows that were dead already."""
    fate: Fate = "keep"

    @property
    def now(self) -> LedgerFile:
        """The file with the rows that are dead now."""
        if len(self.dead) == self.file.dead_rows:
            return self.file
        return self.file.with_dead(self.dead, self.digest)

    def kill(self, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        """Declare rows dead that stand at these places of the index; gives how many were live."""
        invariant(self.keys is not None, "a row that is found by its key is in an index")
        assert self.keys is not None
        rows = BitMap(self.keys.rows[at]) - self.dead
        fresh = np.isin(self.keys.rows[at], np.frombuffer(rows.to_array(), np.uint32))
        self.digest = self.digest.minus(self.keys.digests[at][fresh])
        self.dead |= rows
        return len(rows)

    def live_in(self, part: KeyRange) -> Mask:
        """Which entries of the index are of a range, and were live when the run began."""
        assert self.keys is not None
        mine = part.of(self.keys.hashes)
        if self.before:
            mine &= self.file.without(self.before)[self.keys.rows]
        return mine


class _Job:
    """One piece of work, from its beginning to its answer."""

    def __init__(self, work: Work, context: TaskContext, rule: Rule) -> None:
        self.work = work
        self.rule = rule
        self.context = context
        self.store = Store(work.store, owner=work.cluster if work.claimed else "")
        self.table: Table = decode_table(work.table)
        schema = self.table.schema_version(work.schema)
        if schema is None:
            raise Corrupt(f"table {work.table_name} has no schema version {work.schema}")
        self.schema: TableSchema = schema
        self.folder = folder_of(self.table.id, work.partition)
        self.read = Throttle(work.read_rate, context)
        self.written = Throttle(work.write_rate, context)
        self.token = f"{work.run}-{context.draw()}"
        self.files = 0
        self.progress_s = context.now_s()
        self.room = Room(
            FILE_ROWS_MAX, min(max(work.budget_bytes // _KEYS_SHARE, _KEYS_LEAST), _KEYS_MOST)
        )
        self.died = 0
        """Rows of the ledger before."""
        self.gone = 0
        """Deletes that were dropped."""
        self.gone_below = 0
        """All of them are below this offset."""
        self.sample = Sample(None if work.verify else sum(work.run.encode()) + work.partition)

    # -- the whole ------------------------------------------------------------------------------

    def run(self) -> Done:
        """All steps; if one fails, nothing is left. Of a process that ends, the sweep finds it."""
        try:
            return self._run()
        except (Exception, KeyboardInterrupt):
            self._remove_written()
            raise

    def _remove_written(self) -> None:
        stems = [f"{self.folder}/{self.token}-{number}" for number in range(self.files)]
        files = [f"{stem}{ending}" for stem in stems for ending in (".parquet", ".keys")]
        for path in (self._manifest_path, *files):
            try:
                self.store.delete(path)
            except StoreFailed:
                return  # each call would take seconds; a sweep finds what is left
            except LowmarkError:
                continue  # what failed before is what is told

    @property
    def _manifest_path(self) -> str:
        return f"{self.folder}/{self.work.epoch}-{self.token}.json"

    def _run(self) -> Done:
        work = self.work
        if work.claimed:
            check_claim(self.store, work.cluster)
        base = read_manifest(self.store, work.base, work.base_is) if work.base else None
        if base is not None and base.horizon > work.horizon:
            raise ProofFailed(work.partition, "the horizon would fall")
        old = [self._opened(file) for file in base.files] if base is not None else []
        source, read_from = self.context.source(work)
        with contextlib.closing(TailReader(source, work.tail, partition=work.partition)) as reader:
            return self._compact(base, old, reader, read_from)

    def _compact(
        self, base: Manifest | None, old: list[_Old], reader: TailReader, read_from: str
    ) -> Done:
        work = self.work

        def each(part: KeyRange, survivors: Survivors, second: Second) -> None:
            self._supersede(old, part, survivors, second)

        folded = fold_tail(
            reader,
            self.table,
            budget_bytes=work.budget_bytes,
            pace=self._paced_read,
            sample=self.sample,
            each=each,
            rule=self.rule,
        )
        now = [one.now for one in old]
        for one, fate in zip(
            old, fates(now, tail_rows=len(folded.keep), room=self.room), strict=True
        ):
            one.fate = "rewrite" if work.rewrite and fate == "keep" else fate
        pa.default_memory_pool().release_unused()  # the keys are gone; now come the rows
        self._drop_deletes(old)
        files = list(self._write(old, reader, folded))
        deletes_below = max(work.deletes_gone, base.deletes_below if base else 0, self.gone_below)
        manifest = self._manifest(base, files, deletes_below)
        path = self._manifest_path
        encoded = encode_manifest(manifest)
        self.store.write(path, encoded)
        self.written(len(encoded))
        done = Done(
            partition=work.partition,
            manifest=path,
            epoch=work.epoch,
            horizon=work.horizon,
            digest=manifest.digest,
            deletes_below=deletes_below,
            rows_read=len(folded.keep) - reader.skip,
            rows_live=manifest.live_rows,
            rows_died=self.died,
            deletes=manifest.live_deletes,
            deletes_dropped=self.gone,
            bytes_read=self.read.total,
            bytes_written=self.written.total,
            files_kept=sum(one.fate == "keep" for one in old),
            files_written=self.files,
            files_dropped=sum(one.fate != "keep" for one in old),
            rows_checked=folded.checked,
            key_ranges=folded.ranges,
            ledger_bytes=manifest.bytes,
            read_from=read_from,
        )
        # Its name need not be durable: who does not find it does the work again.
        answer = done_path(self.table.id, work.run, work.partition)
        with self.store.create(answer, settled=False) as stream:
            stream.write(msgspec.json.encode(done))
        return done

    def _opened(self, file: LedgerFile) -> _Old:
        # One that is kept is not read; but the cut of the backlog relies on it later.
        check_there(self.store, [file])
        keys = None
        if file.keys_path:
            keys = open_key_file(self.store, file.keys_path, checksum=file.keys_checksum)
            self._paced_read(file.keys_bytes)
        return _Old(file, file.dead_set(), file.digest_value(), keys, file.dead_set())

    def _paced_read(self, count: int) -> None:
        self.context.check()
        self.read(count)
        now = self.context.now_s()
        if now - self.progress_s >= 1:
            self.progress_s = now
            path = progress_path(self.table.id, self.work.run, self.work.partition)
            self.store.hint(path, b"%d" % self.read.total)

    def _paced_write(self, count: int) -> None:
        self.context.check()
        self.written(count)

    # -- what dies ------------------------------------------------------------------------------

    def _supersede(
        self, old: list[_Old], part: KeyRange, survivors: Survivors, second: Second
    ) -> None:
        """Declare rows dead whose keys have come again, and check that by another way: a row of the
        tail wins without being compared, since it is of a later source.

        Saying so twice changes nothing: ranges of a tail that is parted further come again.
        """
        hashes = KeyForm.hashes(survivors.keys, KEY_SEED)
        for source in self.rule.sources(len(old)):
            one = old[source]
            if one.keys is None:
                continue
            at = one.keys.find(survivors.keys, hashes)
            self.died += one.kill(at[at >= 0])
            mine = one.live_in(part)
            second.check_base(
                one.keys.keys.filter(pa.array(mine)),
                dead=~one.file.without(one.dead)[one.keys.rows[mine]],
                partition=self.work.partition,
            )

    def _drop_deletes(self, old: list[_Old]) -> None:
        """Let deletes of the ledger before go, as the rule says; rows older than those of a file
        are in the files before it.
        """
        for at, one in enumerate(old):
            live = one.file.delete_set() - one.dead
            # A file that begins above has no delete that may go, and its offsets need not be read.
            if live and one.keys is not None and one.file.first < self.work.deletes_below:
                self._drop_deletes_of(one, one.keys, live, _staying(old[:at]))

    def _drop_deletes_of(
        self, one: _Old, index: KeyFile, live: BitMap, stay: list[KeyFile]
    ) -> None:
        places = np.flatnonzero(np.isin(index.rows, np.frombuffer(live.to_array(), np.uint32)))
        offsets = self._offsets_of(one.file, index.rows[places])

        def older_stays(which: I64) -> Mask:
            some = places[which]
            return _held(index.keys.take(pa.array(some)), index.hashes[some], stay)

        gone = deletes_to_drop(
            offsets,
            np.ones(len(places), np.bool_),
            below=self.work.deletes_below,
            older_stays=older_stays,
        )
        self._note_gone(offsets[gone])
        one.kill(places[gone])

    def _without_passed_deletes(self, rows: Rows, stay: list[KeyFile]) -> Rows:
        """The same of rows of the tail; they are later than all of the ledger before."""

        def older_stays(places: I64) -> Mask:
            form = KeyForm.of(self.table, self.schema)
            keys = form.array(rows.columns.take(pa.array(places)))
            return _held(keys, KeyForm.hashes(keys, KEY_SEED), stay)

        gone = deletes_to_drop(
            rows.offsets, rows.deletes, below=self.work.deletes_below, older_stays=older_stays
        )
        if not len(gone):
            return rows
        self._note_gone(rows.offsets[gone])
        kept = np.ones(len(rows), np.bool_)
        kept[gone] = False
        return rows.kept(kept)

    def _note_gone(self, offsets: I64) -> None:
        if len(offsets):
            self.gone += len(offsets)
            self.gone_below = max(self.gone_below, int(offsets.max()) + 1)

    def _offsets_of(
        self, file: LedgerFile, rows: np.ndarray[tuple[int], np.dtype[np.uint32]]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        opened = OpenFile(self.store, file, schema_of(self.table, file))
        groups = range(len(opened.starts) - 1)
        offsets = np.concatenate([opened.group(at, [OFFSET]).column(0).to_numpy() for at in groups])
        opened.close()
        self._paced_read(offsets.nbytes)
        found: np.ndarray[tuple[int], np.dtype[np.int64]] = offsets[rows]
        return found

    # -- what is written ------------------------------------------------------------------------

    def _write(self, old: list[_Old], reader: TailReader, folded: Folded) -> Iterator[LedgerFile]:
        """The files of the new ledger, in the order of offsets."""
        writer = _Files(self._new_file, self.room)
        try:
            yield from self._written_by(writer, old, reader, folded)
        except BaseException:
            writer.give_up()
            raise

    def _written_by(
        self, writer: _Files, old: list[_Old], reader: TailReader, folded: Folded
    ) -> Iterator[LedgerFile]:
        for one in old:
            match one.fate:
                case "drop":
                    continue
                case "keep":
                    yield from writer.finish()
                    yield one.now
                case _:
                    for rows in self._rows_again(one):
                        yield from writer.add(rows)
        if not any(one.fate == "merge" for one in old):
            yield from writer.finish()
        stay = _staying(old)
        for rows in self._tail_rows(reader, folded):
            yield from writer.add(self._without_passed_deletes(rows, stay))
        yield from writer.finish()

    def _new_file(self) -> FileWriter:
        path = f"{self.folder}/{self.token}-{self.files}.parquet"
        self.files += 1
        return FileWriter(self.store, path, self.table, self.schema, pace=self._paced_write)

    def _rows_again(self, one: _Old) -> Iterator[Rows]:
        """The live rows of a file that is written anew; all of it is checked on the way."""
        schema = schema_of(self.table, one.file)
        opened = OpenFile(self.store, one.file, schema)
        digest = EMPTY
        mask = one.file.without(one.dead) if one.dead else None
        at = 0
        shape = self._shape()
        for rows in opened.rows():
            self._paced_read(one.file.bytes * len(rows) // one.file.rows)
            kept = rows if mask is None else rows.kept(mask[at : at + len(rows)])
            at += len(rows)
            digest = digest.plus(kept.hashes(schema))
            if schema.number != self.schema.number and len(kept):
                materialized = shape.materialize(
                    kept.columns,
                    version=schema.number,
                    partition=self.work.partition,
                    offsets=kept.offsets,
                    times=kept.times,
                    deletes=kept.deletes,
                )
                kept = Rows(materialized, kept.offsets, kept.times, kept.deletes)
            yield kept
        opened.close()
        if digest != one.digest:
            raise LedgerDamaged(one.file.path, "its rows have another digest than it says")

    def _shape(self, *more: str) -> Shape:
        """All columns of the version that new files have."""
        schemas = tuple(
            schema for schema in self.table.schemas if schema.number <= self.schema.number
        )
        until = replace(self.table, schemas=schemas)
        return Shape(until, [*(column.name for column in self.schema.columns), *more])

    def _tail_rows(self, reader: TailReader, folded: Folded) -> Iterator[Rows]:
        """Pass two: the rows of the tail that survive, as they are."""
        view = reader.view
        starts = np.concatenate([[0], np.cumsum(view.rows, dtype=np.int64)])
        shape = self._shape(OFFSET, TIME, CHANGE)
        keep, count = folded.keep, len(self.schema.columns)

        def wanted(low: int, high: int) -> bool:
            return bool(keep[starts[low] : starts[high]].any())

        for low, high, commands in reader.chunks(self._paced_read, wanted=wanted):
            parts = []
            for at in range(low, high):
                mask = keep[starts[at] : starts[at + 1]]
                if mask.any():
                    parts.append(
                        shape.read_at(
                            view,
                            at,
                            commands[at - low],
                            partition=self.work.partition,
                            keep=None if mask.all() else mask,
                        )
                    )
            if parts:
                yield _rows_of(pa.concat_batches(parts), count)

    def _manifest(
        self, base: Manifest | None, files: list[LedgerFile], deletes_below: int
    ) -> Manifest:
        work = self.work
        manifest = Manifest(
            table=self.table.id,
            table_name=work.table_name,
            partition=work.partition,
            epoch=work.epoch,
            horizon=work.horizon,
            deletes_below=deletes_below,
            expired=work.expired,
            files=tuple(files),
            made_by=work.run,
            made_at=work.made_at,
            watermark=work.watermark,
            based_on=work.base if base is not None else "",
            release=work.release,
            lost=base.lost if base is not None else (),
            layouts=tuple(
                layout_of(self.table, number) for number in sorted({file.schema for file in files})
            ),
        )
        return manifest.summed_up()


class _Files:
    """Rows into files of a bounded size."""

    def __init__(self, begin: Callable[[], FileWriter], room: Room) -> None:
        self._begin = begin
        self._room = room
        self._open: FileWriter | None = None

    def add(self, rows: Rows) -> Iterator[LedgerFile]:
        """Add rows; gives a file if one is full."""
        if not len(rows):
            return
        if self._open is None:
            self._open = self._begin()
        self._open.add(rows)
        if self._room.is_full(rows=self._open.rows, keys_bytes=self._open.keys_bytes):
            yield from self.finish()

    def give_up(self) -> None:
        """Leave no half of a file behind."""
        if self._open is not None:
            self._open.give_up()

    def finish(self) -> Iterator[LedgerFile]:
        """End the file that is open, if one is."""
        writer, self._open = self._open, None
        if writer is not None:
            yield writer.finish()


def _rows_of(batch: pa.RecordBatch, count: int) -> Rows:
    """A batch whose last three columns are the system's."""
    columns = batch.columns
    offsets, times, changes = columns[count:]
    return Rows(
        batch.select(list(range(count))),
        offsets.to_numpy(),
        times.to_numpy(),
        changes.indices.to_numpy() == int(Change.DELETE),
    )


def _staying(old: list[_Old]) -> list[KeyFile]:
    """The indexes of the files that stay as they are."""
    return [one.keys for one in old if one.fate == "keep" and one.keys is not None]


def _held(keys: pa.Array, hashes: U64, files: list[KeyFile]) -> Mask:
    """Which of the keys have a row in one of the files."""
    held = np.zeros(len(keys), np.bool_)
    for file in files:
        held |= file.find(keys, hashes) >= 0
    return held
