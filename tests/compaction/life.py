"""One life of a compacted table, decided by one seed: operations in any order, and every few of
them all ways to read it are held against the plain model.

The database is a real one, in a directory; limits are small, so that ledgers have many files, files
many row groups, and keys are folded in ranges. Times are those of a real clock: what a seed decides
is what happens, and in which order.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import lowmark
from compaction.model import Broken, Column, Consumer, Key, Model, Row, Schema, confirm
from compaction.world import Stopped
from inside import backend_of
from lowmark.backend.errors import RunUnderWay
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    DropColumns,
    NewColumn,
    RenameColumn,
    TableId,
    parse_type,
)
from lowmark.client import BelowWatermark, Database, GapFound, Reader, Table, looking_back
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import RunOptions
from lowmark.compaction.runner import LocalRunner
from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.group import GroupConfig
from lowmark.ledger import RunRecord, files, read_manifest, table_folder, tail, work
from lowmark.ledger.manifest import decode_manifest, encode_manifest
from lowmark.log import LogConfig
from lowmark.node import Settings
from lowmark.node.settings import LedgerSettings, SchemaSync, WatermarkSettings
from lowmark.table import Adopted, Cursor, KeepSchemas, Lease
from sim.mutants import replaced

__all__ = [
    "LIVES_IN_ALL",
    "LIVES_IN_TEST",
    "Life",
    "Story",
    "crash_image",
    "live",
    "settings_of",
    "small",
]

LIVES_IN_TEST = 8
"""Lives in `make test`."""
LIVES_IN_ALL = 24
"""Lives in `make test-all`."""
STEPS = 40
ALL = ("_partition", "_offset", "_time", "_change")
LONG_MS = 3_600_000
"""A lease that never ends by itself in a test."""


@dataclass(frozen=True, slots=True)
class Story:
    """What a life came to."""

    seed: int
    counts: Counter[str]

    def as_figures(self) -> dict[str, int]:
        return {"lives": 1, **self.counts}


# -- what a world is made of ----------------------------------------------------------------------

Draw = Callable[[Random], Any]
TEXTS = ("", "a", "A", "a\0", "ä", "key", "a much longer key than all the others are", "鍵")
KEYS: dict[str, dict[str, tuple[str, Draw]]] = {
    "integer": {"id": ("int64", lambda dice: dice.randint(-6, 24))},
    "wide integer": {"id": ("int64", lambda dice: dice.choice([-(2**63), 2**63 - 1, 0, 1, 7]))},
    "text": {"id": ("string", lambda dice: dice.choice(TEXTS) + str(dice.randint(0, 2)))},
    "bytes": {"id": ("binary", lambda dice: bytes(dice.randint(0, 2) for _ in range(3)))},
    "uuid": {"id": ("uuid", lambda dice: UUID(int=dice.randint(0, 20) << 64))},
    "composite": {
        "region": ("string", lambda dice: dice.choice(TEXTS)),
        "number": ("int32", lambda dice: dice.randint(-2, 2)),
    },
    "day and name": {
        "day": ("date", lambda dice: date(1969, 12, 30 + dice.randint(0, 1))),
        "name": ("string", lambda dice: dice.choice(TEXTS)),
    },
    "none": {},
}


def settings_of(dice: Random) -> Settings:
    """Everything may be compacted as soon as the watermark is told to; the log moves a lot."""
    return Settings(
        ledger=LedgerSettings(grace_ms=0),
        schema_sync=SchemaSync(delay_ms=1),
        watermark=WatermarkSettings(availability_ms=0, interval_ms=600_000),
        group=GroupConfig(snapshot_entries=dice.choice([10, 60, 1_000_000])),
        log=LogConfig(
            segment_entries_max=dice.choice([3, 10, 1_000]),
            compaction_dead_ratio=dice.choice([0.0, 0.5]),
            link_grace_ms=dice.choice([0, 60_000]),
            disk_low_bytes=0,
            disk_reserved_bytes=0,
        ),
    )


@contextlib.contextmanager
def small(dice: Random) -> Iterator[None]:
    """Small limits of files, so that there are many of everything."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (work, "FILE_ROWS_MAX", dice.choice([7, 40, 1 << 22])),
            (files, "ROW_GROUP_ROWS", dice.choice([3, 16, 1 << 17])),
            (tail, "_CHUNK_BYTES", dice.choice([400, 4 << 20])),
            (looking_back, "_CHUNK_BYTES", dice.choice([400, 8 << 20])),
        ):
            stack.enter_context(replaced(owner, name, value))
        yield


def crash_image(source: Path, target: Path) -> Path:
    """What a crash would leave of a database that is open: its files, copied at rest."""
    while True:
        before = _listing(source)
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(OSError, shutil.Error):  # a file went while it was copied
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock"))
            if _listing(source) == before:
                return target


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for root, folders, names in os.walk(folder):  # folders that go meanwhile are left out
        for name in [*folders, *names]:
            path = os.path.join(root, name)
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(path)
                found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


# -- what is open ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Open:
    """A reader that was left half way."""

    kind: Literal["raw", "compacted", "as of"]
    reader: Reader
    schema: Schema
    follows: bool
    leased: bool
    skips: bool
    trusted: bool
    starts: dict[int, int]
    ends: dict[int, int]
    horizons: dict[int, int]
    deletes_below: dict[int, int]
    consumer: Consumer
    time: int = 0
    given: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        words = [
            "a",
            "leased" if self.leased else "",
            self.kind,
            "reader that follows" if self.follows else "bounded reader",
            "of a cursor" if self.trusted else "",
            f"from {self.starts}",
        ]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the table was at a time, as it was given the first time."""

    time: int
    schema: Schema
    rows: list[dict[str, Any]]


@dataclass(slots=True)
class Placed:
    """A cursor, and whoever reads by it."""

    kind: Literal["raw", "compacted"]
    consumer: Consumer
    floor: dict[int, int]
    """Deletes below these offsets were gone when it came."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition stands."""

    start: int
    end: int
    ledger: Adopted | None
    cursors: dict[str, Cursor]
    leases: dict[str, Lease]

    @property
    def horizon(self) -> int:
        return 0 if self.ledger is None else self.ledger.horizon

    @property
    def deletes_below(self) -> int:
        return 0 if self.ledger is None else self.ledger.deletes_below


class Life:
    """A table, its model, and whoever reads it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.dice = Random(f"compacted life {seed}")
        self.folder = folder
        self.settings = settings_of(self.dice)
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []
        self.path = folder / "data"
        self.images = 0
        self.db: Database = lowmark.open(self.path, settings=self.settings)
        self.kind = self.dice.choice(list(KEYS))
        self.keyless = self.kind != "none" and self.dice.random() < 0.4
        self.serial = 0
        self.model, self.table = self._created()
        self.numbers = len(self.model.schema.columns)
        self.readers: list[Open] = []
        self.cursors: dict[str, Placed] = {}
        self.times: list[Remembered] = []
        self.standing = self.look()
        self.watermark = 0
        self.meddled = False
        """Whether somebody else has cut or compacted during the run."""
        self.attic: dict[str, bytes] = {}
        """What ledgers consisted of after runs, by their names."""
        self.misplacing = Random(f"misplaced in life {seed}")
        """Decides which file lies in which place: apart, so that all else of a life stays as it
        is."""

    def _created(self) -> tuple[Model, Table]:
        dice = self.dice
        types = {name: kind for name, (kind, _) in KEYS[self.kind].items()}
        more = {"v": "string", "n": "int32"}
        if dice.random() < 0.4:
            more = {"tags": "list<int64>", **more}
        columns = {**more, **types} if dice.random() < 0.3 else {**types, **more}
        options = {"compression": dice.choice(["none", "lz4", "zstd"])}
        if self.keyless:
            options["keyless_rows"] = "keep"
        partitions = dice.choice([1, 1, 2, 3])
        table = self.db.create_table(
            "t", columns, key=tuple(types) or None, partitions=partitions, options=options
        )
        made = tuple(
            Column(at, name, kind) for at, (name, kind) in enumerate(columns.items(), start=1)
        )
        key = tuple(column.number for name in types for column in made if column.name == name)
        schema = Schema(table.descriptor.latest.number, made)
        self.tell(f"a table with key {self.kind}, {partitions} partitions, {options}")
        return Model(key, [schema], {number: [] for number in range(partitions)}), table

    def tell(self, what: str) -> None:
        self.told.append(what)

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times

    # -- living ---------------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> Story:
        """Live it."""
        try:
            with small(self.dice):
                acts = self._acts()
                self.append()
                for _ in range(steps):
                    act = self.dice.choices([act for act, _ in acts], [w for _, w in acts])[0]
                    act()
                    self.count(act.__name__)
                    self.check_standing()
                    if self.dice.random() < 0.2:
                        self.check_some()
                self.end()
        except Broken as broken:
            raise Broken(f"{broken}\n  seed {self.seed}\n  " + "\n  ".join(self.told)) from broken
        except (LowmarkError, AssertionError) as error:
            error.add_note(f"  seed {self.seed}\n  " + "\n  ".join(self.told))
            raise
        finally:
            for one in self.readers:
                one.reader.close()
            self.db.close()
        self.count("row", sum(self.model.ends.values()))
        return Story(self.seed, self.counts)

    def _acts(self) -> list[tuple[Callable[[], None], float]]:
        keyed = self.kind != "none"
        return [
            (self.append, 7),
            (self.delete, 4 if keyed else 0),
            (self.compact, 7),
            (self.interrupt, 1.5),
            (self.resume, 1.5),
            (self.advance, 3),
            (self.remember, 2),
            (self.open_reader, 4),
            (self.go_on_reading, 5),
            (self.close_reader, 1),
            (self.create_cursor, 1.5),
            (self.move_cursor, 3),
            (self.delete_cursor, 0.7),
            (self.trim, 1),
            (self.change_columns, 2.5),
            (self.sweep, 1),
            (self.forget_schemas, 1),
            (self.damage, 1),
            (self.restart, 0.5),
            (self.crash, 0.4),
        ]

    def end(self) -> None:
        """Everybody reads to the end; then nobody holds anything, and all of it is compacted."""
        self.check_all()
        self._append_everywhere()
        for one in list(self.readers):
            self._read_on(one, 1_000)
            if one in self.readers:
                self._finish(one)
        for name in list(self.cursors):
            self._consume(name, None)
            self.cursors[name].consumer.check_all_known(f"cursor {name}")
            self.table.cursors.delete(name)
            del self.cursors[name]
        self.tell("nobody reads any more")
        self.watermark = self.db.advance_watermark(self.now()).after
        self._compact(rewrite=True, verify=True)
        self._check_nothing_is_left_over()
        self.sweep()
        self.table.trim_schemas()
        self._check_forgotten()
        self.check_all()

    def _check_forgotten(self) -> None:
        """All files were written anew: no version is left but theirs, and later ones."""
        first, needed = self.table.descriptor.schemas[0].number, self._needed_schemas()
        least = min([*needed.values(), self.model.schema.version])
        confirm(first == least, f"schema versions are kept from {first} on, not from {least}")

    def _check_nothing_is_left_over(self) -> None:
        for number, stands in self.look().items():
            if any(lease.kind != "run" for lease in stands.leases.values()):
                continue  # of a reader that was open at a crash
            confirm(stands.horizon == stands.end, f"partition {number} is not compacted: {stands}")
            confirm(stands.start == stands.end, f"partition {number} is not cut: {stands}")
            given = self.rows(compacted=True, partitions=[number])
            deletes = [one for one in given if one["_change"] == "delete"]
            confirm(not deletes, f"nobody needs {deletes[:2]} any more")

    # -- appending ------------------------------------------------------------------------------

    def now(self) -> int:
        return self.table.snapshot().time

    def _key(self) -> dict[str, Any]:
        """The values of a key, by the names that its columns have now."""
        draws = [draw for _, draw in KEYS[self.kind].values()]
        names = self.model.key_names()
        return {name: draw(self.dice) for name, draw in zip(names, draws, strict=True)}

    def append(self) -> None:
        self._append(self.dice.choice([1, 2, 5, 5, 12, 30]))

    def _append(self, count: int) -> None:
        schema = self.model.schema
        if self.dice.random() < 0.2:
            schema = self.dice.choice(self.model.schemas)
        mixed = self.kind != "none" and self.dice.random() < 0.3
        rows = [self._row(schema, mixed=mixed) for _ in range(count)]
        version = None if schema is self.model.schema else schema.version
        try:
            result = self.table.append(rows, schema_version=version)
        except Rejected:
            if version is None:
                raise
            return  # of a version that is too old to write with
        self._learn(rows, result, schema)
        self.tell(f"append {count} rows" + (" of both kinds" if mixed else ""))

    def _row(self, schema: Schema, *, mixed: bool) -> dict[str, Any]:
        dice, keyless = self.dice, self.keyless and self.dice.random() < 0.2
        drawn = list(self._key().values())
        keys = dict(zip(self.model.key, drawn, strict=True))
        row: dict[str, Any] = {}
        for column in schema.columns:
            if column.number in keys:
                row[column.name] = None if keyless else keys[column.number]
            else:
                row[column.name] = self._value(column)
        if mixed:
            row["_change"] = "delete" if not keyless and dice.random() < 0.4 else "upsert"
        return row

    def _value(self, column: Column) -> Any:
        dice = self.dice
        if column.name == "v" or (column.type == "string" and dice.random() < 0.8):
            self.serial += 1
            return f"value {self.serial}"
        if dice.random() < 0.2:
            return None
        if column.type.startswith("list"):
            return [dice.randint(0, 9) for _ in range(dice.randint(0, 3))]
        if column.type == "string":
            return "x" * dice.randint(0, 300)
        if column.type == "int64" and dice.random() < 0.1:
            return 2**40
        return dice.randint(-100, 100)

    def delete(self) -> None:
        there = [key for number in self.model.partitions for key in self.model.state(number)]
        keys = self.dice.sample(there, min(len(there), self.dice.choice([1, 2, 6])))
        if self.dice.random() < 0.3:
            keys.append(tuple(self._key().values()))
        if not keys:
            return
        result = self.table.delete(keys if len(keys[0]) > 1 else [key[0] for key in keys])
        names = self.model.key_names()
        rows = [dict(zip(names, key, strict=True)) | {"_change": "delete"} for key in keys]
        self._learn(rows, result, self.model.schema)
        self.tell(f"delete {len(keys)} keys")

    def _learn(self, rows: Sequence[Mapping[str, Any]], result: Any, schema: Schema) -> None:
        """See where rows went: in each partition in the order in which they were given."""
        names = self.model.key_names(schema)
        numbers = {column.name: column.number for column in schema.columns}
        found: list[Row] = []
        for part in result.parts:
            found += self._learn_part(part, names)
        by_place = {(row.partition, row.offset) for row in found}
        confirm(len(by_place) == len(rows) == result.rows, f"{len(rows)} rows went to {found}")
        left = list(found)
        for given in rows:
            deleted = given.get("_change") == "delete"
            values = {numbers[n]: value for n, value in given.items() if n in numbers}
            if deleted:
                values = {number: values[number] for number in self.model.key}
            key = tuple(given[name] for name in names)
            mine = None if not names or all(part is None for part in key) else key
            row = next((one for one in left if one.key == mine and one.deleted == deleted), None)
            confirm(row is not None, f"{given} went nowhere: {left}")
            assert row is not None
            earlier = [one for one in left if one.partition == row.partition]
            confirm(earlier[0] is row or mine is None, f"{given} is out of order: {earlier[0]}")
            left.remove(row)
            stored = self._stored_with(row)
            if stored.version != schema.version and not deleted:
                self.count("row encoded anew")
                values = {one.number: values.get(one.number, one.filling) for one in stored.columns}
            found[found.index(row)] = replace(row, values=values, version=stored.version)
        for row in sorted(found, key=lambda one: (one.partition, one.offset)):
            self.model.add(row)

    def _stored_with(self, row: Row) -> Schema:
        """The schema version that a row has which was just stored: not its writer's, if that is not
        taken any more.
        """
        view = backend_of(self.table).view(TableId(self.table_id), row.partition)
        version = int(view.columns.schema[view.batch_at(row.offset)])
        return next(one for one in self.model.schemas if one.version == version)

    def _learn_part(self, part: Any, names: Sequence[str]) -> list[Row]:
        current = self.model.key_names()
        reader = self.table.read(
            columns=[*current, *ALL],
            start={part.partition: part.first},
            end={part.partition: part.first + part.rows},
            partitions=[part.partition],
        )
        rows = []
        for one in reader.to_pylist():
            key = tuple(one[name] for name in current)
            rows.append(
                Row(
                    one["_partition"],
                    one["_offset"],
                    one["_time"],
                    one["_change"] == "delete",
                    None if not names or all(value is None for value in key) else key,
                    0,
                    {},
                )
            )
        return rows

    def _append_everywhere(self) -> None:
        """Rows that stay, at the end of every partition: so readers come to all before them."""
        ends, schema = self.model.ends, self.model.schema
        for _ in range(400):
            if all(
                self.model.partitions[number][end:] and self.model.surely_ahead(number, end)
                for number, end in ends.items()
            ):
                return
            rows = [self._row(schema, mixed=False)]
            self._learn(rows, self.table.append(rows), schema)

    # -- compaction -----------------------------------------------------------------------------

    def compact(self) -> None:
        dice = self.dice
        partitions = None
        if dice.random() < 0.2:
            partitions = sorted(dice.sample(list(self.model.partitions), 1))
        if dice.random() < 0.5:
            self.advance()
        self._compact(
            partitions=partitions,
            trim=dice.random() < 0.75,
            verify=dice.random() < 0.5,
            rewrite=dice.random() < 0.2,
            memory_bytes=dice.choice([50, 400, 1 << 30]),
            meanwhile=dice.random() < 0.5,
        )

    def _compact(
        self,
        *,
        partitions: Sequence[int] | None = None,
        trim: bool = True,
        verify: bool = False,
        rewrite: bool = False,
        memory_bytes: int = 1 << 30,
        meanwhile: bool = False,
    ) -> RunRecord:
        plan = self.table.compact(engine="local", dry_run=True, partitions=partitions)
        before = self.look()
        self._check_plan(plan, before)
        words = [word for word, said in (("verify", verify), ("rewrite", rewrite)) if said]
        more = "" if trim else "without a cut"
        self.meddled = False
        self.tell(f"compact {partitions or 'all'} {' '.join(words)} {more} {memory_bytes}")
        options = RunOptions(
            verify=verify,
            trim=trim,
            rewrite=rewrite,
            memory_bytes=memory_bytes,
            engine="local",
            where="this process",
            step=self._meanwhile if meanwhile else lambda step: None,
        )
        record = self._run(self.table._compactor, options, partitions)
        self._check_record(record, plan, before, trim=trim)
        return record

    def _run(
        self,
        compactor: Compactor,
        options: RunOptions,
        partitions: Sequence[int] | None = None,
    ) -> RunRecord:
        # The inner call: the table's own grants a megabyte at least, and ranges would not be used.
        wanted = self.table._wanted(partitions)
        return compactor.compact(self.table.descriptor, wanted, LocalRunner, options)

    def _meanwhile(self, step: str) -> None:
        """Before a step of a run: often enough, something else happens."""
        publishes = step.startswith("publish")
        if self.dice.random() >= (0.5 if publishes or step.startswith("adopt") else 0.15):
            return
        acts: list[tuple[Callable[[], None], float]] = [
            (self.append, 3),
            (self.delete, 2 if self.model.key else 0),
            (self.create_cursor, 5),
            (self.move_cursor, 2),
            (self.delete_cursor, 1),
            (self.open_reader, 4),
            (self.go_on_reading, 3),
            (self.close_reader, 1),
            (self.check_some, 2),
            (self.sweep, 3),
            (self.forget_schemas, 1),
            (self.advance, 1),
            (self.trim, 1),
            (self.change_columns, 1),
            (self.overtake, 6 if publishes else 0),
        ]
        act = self.dice.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
        self.tell(f"  before the run would {step}: {act.__name__}")
        self.meddled |= act in {self.overtake, self.trim}
        act()
        self.check_standing()
        self.count(f"{act.__name__} during a run")

    def overtake(self) -> None:
        """Another one compacts the table, as if it were in another process, of a release that knows
        no claims, and saw this run no more than one does whose owner of the directory was killed a
        moment ago.
        """
        table = self.table
        rival = Compactor(table._session, table._compactor.ledgers)
        options = RunOptions(trim=self.dice.random() < 0.5, engine="local", where="this process")
        with (
            replaced(rival, "give_up_others", lambda *_, **__: False),
            replaced(rival, "_under_way", set),
            replaced(rival, "_claimed", lambda *_, **__: contextlib.nullcontext()),
        ):
            self._run(rival, options)

    def interrupt(self) -> None:
        """A run that ends before some step of it, with its process or alone."""
        dice = self.dice
        self._append(5)
        self.advance()
        steps = dice.randint(1, 4 + 5 * self.table.partitions)
        how = dice.choice(["the process is killed", "the database is closed", "only the run ends"])
        image: Path | None = None

        def stop(step: str) -> None:
            nonlocal steps, image
            steps -= 1
            if steps:
                return
            self.tell(f"before the run would {step}, {how}")
            self.count(f"run interrupted: {how}")
            if how != "only the run ends":
                self._close_readers()
            if how == "the process is killed":
                image = self._image()
            if how != "only the run ends":
                self.db.close()
            raise Stopped

        options = RunOptions(
            trim=dice.random() < 0.75,
            rewrite=dice.random() < 0.2,
            engine="local",
            where="this process",
            step=stop,
        )
        self.tell("compact all, with an end before its end")
        with contextlib.suppress(Stopped):
            self._run(self.table._compactor, options)
        if self.db.closed:
            if image is not None:
                shutil.rmtree(self.path)
                self.path = image
            self._open_again()
        self.check_all()
        if dice.random() < 0.5:
            self.resume()

    def resume(self) -> None:
        """Go on with a run that was interrupted, or give it up."""
        left = [one.run for one in self.table.runs() if one.state == "interrupted"]
        if not left:
            return
        confirm(len(left) == 1, f"runs {left} wait to be resumed, all at once")
        if self.dice.random() < 0.3:
            record = self.table.cancel_run(left[0])
            confirm(record.state == "cancelled", f"a run that was cancelled is {record.state}")
            self.tell("give the run up")
        else:
            record = self.table.compact(engine="local", resume=left[0])
            self.tell("resume the run")
            confirm(record.state == "done", f"a run that was resumed is {record.state}")
            states = {one.state for one in record.partitions}
            # Nobody else has made a run meanwhile: that would have given this one up.
            confirm(states <= {"adopted", "skipped"}, f"a run that was resumed ends as {states}")
            self.count("run resumed")
        self._check_lets_go("a run that was given up, or resumed")
        self.check_files()

    def _check_lets_go(self, what: str) -> None:
        for number, stands in self.look().items():
            held = [lease.name for lease in stands.leases.values() if lease.kind == "run"]
            confirm(not held, f"{what} has left a lease on partition {number}: {held}")

    def _check_plan(self, plan: RunRecord, before: Mapping[int, Place]) -> None:
        for one in plan.partitions:
            rows, stands = self.model.partitions[one.partition], before[one.partition]
            free = sum(row.time <= self.watermark for row in rows)
            horizon = max(free, stands.horizon, stands.start)
            what = f"the plan of partition {one.partition} ({one})"
            confirm(one.horizon == horizon, f"{what} ends at {one.horizon}, not {horizon}")
            confirm(one.too_young_rows == len(rows) - horizon, f"{what} counts held rows wrongly")
            confirm(one.rows == horizon - one.low, f"{what} counts rows wrongly")

    def _check_record(
        self, record: RunRecord, plan: RunRecord, before: Mapping[int, Place], *, trim: bool
    ) -> None:
        idle = all(one.state == "skipped" for one in record.partitions)
        ends = {"done", "too young" if record.too_young_rows else "nothing"} if idle else {"done"}
        confirm(record.state in ends, f"a run ends as {record.state}: {record.error}")
        if record.partitions and any(one.state != "skipped" for one in record.partitions):
            self._check_lets_go(f"run {record.run}")
        after = self.look()
        for one in record.partitions:
            number = one.partition
            stands, planned = after[number], plan.partition(number)
            assert planned is not None
            what = f"run {record.run} on partition {number}"
            if one.state == "overtaken":
                confirm(self.meddled, f"{what} was overtaken by nobody")
                confirm(stands.horizon >= planned.horizon, f"{what}: {stands} is behind it")
                self.count("run overtaken")
                continue
            if one.state == "skipped":
                nothing = planned.rows == 0 or self.meddled
                confirm(nothing, f"{what} was skipped, though {planned.rows} rows wait")
                continue
            confirm(one.state == "adopted", f"{what} ends as {one.state}")
            if not self.meddled:
                confirm(stands.horizon == planned.horizon, f"{what} came to {stands.horizon}")
                confirm(one.rows_read == planned.rows, f"{what} read {one.rows_read} rows")
            confirm(stands.horizon >= planned.horizon, f"{what} came to {stands.horizon}")
            self.count("run of a partition")
            self.count("delete dropped", one.deletes_dropped)
            self.count("row died", one.rows_died)
            if not trim and not self.meddled:
                confirm(stands.start == before[number].start, f"{what} cut, though told not to")
        for paths in self._adopted_files().values():
            for path in paths:
                self.attic[path] = self._ledger_path(path).read_bytes()

    def advance(self) -> None:
        """Move the low watermark to some time that was, or as far as it goes."""
        now, dice = self.now(), self.dice
        to = now
        if dice.random() < 0.5:
            rows = [row for rows in self.model.partitions.values() for row in rows]
            late = [row.time for row in rows if row.time > self.watermark]
            to = dice.choice(late) if late else now
        done = self.db.advance_watermark(to)
        holds = [one.time for one in self.readers if one.kind == "as of"]
        wanted = max(self.watermark, min([to, *holds]))
        confirm(done.after == wanted, f"the watermark went to {done.after}, not {wanted}")
        self.watermark = done.after
        self.tell(f"advance the watermark{'' if to == now else ' a little'}")

    def trim(self) -> None:
        to = {
            number: self.dice.randint(0, self.model.end(number))
            for number in self.model.partitions
            if self.dice.random() < 0.8
        }
        if not to:
            return
        before = self.look()
        outcomes = self.table.trim(to)
        after = self.look()
        for number, offset in to.items():
            held = [
                one.offset
                for one in before[number].cursors.values()
                if one.kind == "raw" and not one.overdue
            ]
            held += [
                one.offset for one in before[number].leases.values() if one.kind != "compacted"
            ]
            goal = min([offset, before[number].horizon, *held])
            wanted = max(goal, before[number].start)
            confirm(after[number].start == wanted, f"a trim to {offset} came to {after[number]}")
            confirm(outcomes[number].safe.position == wanted, f"{outcomes[number]} is said")
        self.tell(f"trim to {to}")

    def sweep(self) -> None:
        self.table.sweep()
        self.check_files()
        self.tell("sweep")

    def forget_schemas(self) -> None:
        """Old schema versions go that nothing needs; or the process ends before they do."""
        before = self.table.descriptor.schemas
        if self.dice.random() < 0.3:
            keep = KeepSchemas(self.dice.choice(before).number)
            numbers = range(self.table.partitions)
            backend_of(self.table).propose(TableId(self.table_id), dict.fromkeys(numbers, keep))
            self.tell(f"refuse schema versions below {keep.keep_from}")
            return
        try:
            told = self.table.trim_schemas()
        except RunUnderWay:
            return  # it does that at its end
        after = self.table.descriptor.schemas
        confirm(after == before[told.trimmed :], f"{told}: {after} is left of {before}")
        self.tell(f"forget {told.trimmed} schema versions")

    def _needed_schemas(self) -> dict[str, int]:
        """The lowest schema version that each backlog and each file of an adopted ledger needs."""
        needed: dict[str, int] = {}
        store, backend = self.table._compactor.ledgers.store, backend_of(self.table)
        for number, stands in self.look().items():
            view = backend.view(TableId(self.table_id), number)
            if view.count:
                needed[f"backlog {number}"] = min(view.columns.schema[: view.count].tolist())
            if stands.ledger is not None:
                files = read_manifest(store, stands.ledger.manifest).files
                needed |= {one.path: one.schema for one in files}
        return needed

    def _check_schemas(self) -> None:
        """No row and no file is there whose columns the catalog does not know."""
        first = self.table.descriptor.schemas[0].number
        for what, version in self._needed_schemas().items():
            confirm(version >= first, f"{what} needs schema version {version}; {first} is kept")
        self.counts["schema version forgotten"] = first - 1

    def damage(self) -> None:
        """A bit of a ledger's file is wrong for a while: whoever reads it is told, or unharmed."""
        for _ in range(3):
            paths = self._written_paths()
            if paths:
                rows = [path for path in paths if path.endswith(".parquet")]
                self._damage(self.dice.choice(self.dice.choice([rows or paths, paths])))
        self.check_compacted()
        self.check_keys()
        self.misplace()

    def _written_paths(self) -> list[str]:
        """The files of ledgers in the order in which they were written, which a seed decides: the
        names of runs of one second are in an order that chance decides.
        """
        store = self.table._compactor.ledgers.store
        paths = [one.path for one in store.files(table_folder(self.table_id)) if one.bytes]
        return sorted(paths, key=lambda path: Path(store.full_path(path)).stat().st_mtime_ns)

    def _damage(self, path: str) -> None:
        dice, ledgers = self.dice, self.table._compactor.ledgers
        full = Path(ledgers.store.full_path(path))
        at = dice.randrange(full.stat().st_size)
        with full.open("r+b") as file:
            file.seek(at)
            whole = file.read(1)
            file.seek(at)
            file.write(bytes([whole[0] ^ 1 << dice.randrange(8)]))
            file.flush()
            ledgers.forget_all()
            self.tell(f"damage byte {at} of {full.name}")
            for check in (self.check_compacted, self.check_keys):
                try:
                    check()
                except Corrupt:
                    self.count("damage that was found")
            file.seek(at)
            file.write(whole)
        ledgers.forget_all()

    def misplace(self) -> None:
        """A valid file of another partition, table or epoch lies in the place of one, in a copy of
        the database that nobody goes on with: everybody is told, or is right.
        """
        named = self._adopted_files()
        if not named:
            return
        state, image = self.dice.getstate(), self._image()
        db, table, path = self.db, self.table, self.path
        try:
            self.path = image
            what = self.misplacing.choice(["manifest", "manifest", "file", "index"])
            chosen = self._misplaced(what, named)
            if chosen is not None:
                number, target, whose, data = chosen
                self.tell(f"in a copy, put the {what} of another {whose} in place of {target}")
                self._check_misplaced(number, target, data)
                self.count(f"{what} of another {whose} in the place of one")
        finally:
            self.db, self.table, self.path = db, table, path
            self.dice.setstate(state)
            shutil.rmtree(image)

    def _ledger_path(self, path: str) -> Path:
        return self.path / "ledgers" / path

    def _adopted_files(self) -> dict[int, list[str]]:
        """What the adopted ledgers consist of: the manifest first."""
        store, found = self.table._compactor.ledgers.store, {}
        for number, stands in self.look().items():
            if stands.ledger is not None:
                manifest = read_manifest(store, stands.ledger.manifest)
                found[number] = [stands.ledger.manifest, *sorted(manifest.paths())]
        return found

    def _misplaced(
        self, what: str, named: Mapping[int, Sequence[str]]
    ) -> tuple[int, str, str, bytes] | None:
        """The partition and the file of it that another one takes the place of, whose, and that."""
        dice, ending = self.misplacing, {"manifest": ".json", "file": ".parquet"}.get(what, ".keys")
        mine = {n: [path for path in paths if path.endswith(ending)] for n, paths in named.items()}
        mine = {number: paths for number, paths in mine.items() if paths}
        if not mine:
            return None
        number = dice.choice(sorted(mine))
        target = dice.choice(mine[number])
        right = self._ledger_path(target).read_bytes()
        found = [
            ("partition", self._ledger_path(path).read_bytes())
            for other, paths in mine.items()
            for path in paths
            if other != number
        ]
        folder = target.rpartition("/")[0]
        found += [
            ("epoch", data)
            for path, data in self.attic.items()
            if path.startswith(f"{folder}/") and path.endswith(ending) and path != target
        ]
        if what == "manifest":
            manifest = decode_manifest(right, path=target)
            other = msgspec.structs.replace(manifest, table=manifest.table + 1)
            found.append(("table", encode_manifest(other)))
        found = [one for one in found if one[1] != right]
        if not found:
            return None
        kinds = {whose for whose, _ in found}
        kind = "partition" if "partition" in kinds else dice.choice(sorted(kinds))
        return number, target, kind, dice.choice([data for whose, data in found if whose == kind])

    def _check_misplaced(self, number: int, target: str, data: bytes) -> None:
        path = self._ledger_path(target)
        right = path.read_bytes()
        path.write_bytes(data)
        self._open_again()
        try:
            for check in (self.check_compacted, self.check_keys, self._check_now):
                with contextlib.suppress(Corrupt):
                    check()
            verdict = self.table.verify_ledgers()[number]
            confirm(not verdict.sound, f"nobody sees that {target} is another ledger's")
            before = self.look()[number].ledger
            try:
                self.table.compact(engine="local", rewrite=True, partitions=[number])
            except Corrupt:
                same = self.look()[number].ledger == before
                confirm(same, f"adopted, though {target} is another ledger's")
            else:  # nothing of that file is needed any more
                verdict = self.table.verify_ledgers()[number]
                confirm(verdict.sound, f"a run has taken what lies in the place of {target}")
                self.check_compacted()
                self.check_keys()
            self.table.sweep()
            self.db.close()
            path.write_bytes(right)
            self._open_again()
            for one in self._adopted_files()[number]:
                confirm(self._ledger_path(one).exists(), f"swept, though needed: {one}")
            self.check_compacted()
            self.check_keys()
            sound = self.table.verify_ledgers()[number]
            confirm(sound.sound, f"not sound again: {sound.problems}")
        finally:
            self.db.close()

    def _check_now(self) -> None:
        schema, now = self.model.schema, self.now()
        wanted = [row.whole(schema) for row in self.model.as_of(now)]
        given = self._as_of(now, schema)
        confirm(given == wanted, f"as of now: {_difference(given, wanted)}")

    @property
    def table_id(self) -> int:
        return self.table.descriptor.id

    # -- looking --------------------------------------------------------------------------------

    def look(self) -> dict[int, Place]:
        found = backend_of(self.table).status(self.table.descriptor.id)
        return {
            number: Place(
                one.view.start,
                one.view.end,
                one.ledger,
                {cursor.name: cursor for cursor in one.cursors},
                {lease.name: lease for lease in one.leases},
            )
            for number, one in found.items()
        }

    def rows(self, **how: Any) -> list[dict[str, Any]]:
        how.setdefault("columns", [*self.model.schema.names, *ALL])
        return self.table.read(**how).to_pylist()

    def check_standing(self) -> None:
        """Nothing goes back, and nothing goes that is held."""
        now, before = self.look(), self.standing
        for number, stands in now.items():
            was, what = before[number], f"partition {number} ({stands})"
            confirm(stands.end == self.model.end(number), f"{what} ends elsewhere")
            confirm(stands.start >= was.start, f"{what} began at {was.start} before")
            confirm(stands.horizon >= was.horizon, f"{what} had horizon {was.horizon}")
            confirm(stands.start <= stands.horizon, f"{what} was cut above its horizon")
            confirm(stands.deletes_below <= stands.horizon, f"{what} lacks deletes")
            for name, cursor in self.cursors.items():
                at, floor = cursor.consumer.position[number], cursor.floor[number]
                there = stands.cursors[name].offset
                confirm(there == at, f"cursor {name} stands at {there}, not {at}")
                confirm(
                    stands.deletes_below <= max(at, floor),
                    f"deletes below {stands.deletes_below} are gone; cursor {name} is at {at}",
                )
                held = cursor.kind == "compacted" or stands.start <= at
                confirm(held, f"{what} was cut above cursor {name} at {at}")
            for one in self.readers:
                if one.leased and one.kind == "raw":
                    at = one.reader.position[number]
                    confirm(stands.start <= at, f"{what} was cut above {one} at {at}")
        self.standing = now
        self._check_schemas()

    def check_some(self) -> None:
        checks = [
            self.check_raw,
            self.check_compacted,
            self.check_times,
            self.check_keys,
            self.check_ledger_files,
            self.check_explain,
            self.check_by_and_by,
        ]
        for check in self.dice.sample(checks, 3):
            check()

    def check_all(self) -> None:
        """Every way to read it."""
        self.check_raw()
        self.check_compacted()
        self.check_times()
        self.check_keys()
        self.check_ledger_files()
        self.check_explain()
        self.check_by_and_by()
        self.check_files()

    def check_raw(self) -> None:
        stands = self.look()
        starts = {number: one.start for number, one in stands.items()}
        self.model.check_history(self.rows(start="earliest"), starts, "the backlog")
        for number, start in starts.items():
            if not start:
                continue
            reader = self.table.read(start={number: 0}, partitions=[number])
            try:
                next(reader, None)
            except GapFound as found:
                gap = found.gap
                said = (gap.partition, gap.first, gap.last, gap.kind)
                confirm(said == (number, 0, start - 1, "superseded"), f"{gap} for {start}")
            else:
                raise Broken(f"nobody says that partition {number} begins at {start}")

    def check_compacted(self) -> None:
        stands = self.look()
        self.model.check_compacted(
            self.rows(compacted=True),
            ends=self.model.ends,
            horizons={number: one.horizon for number, one in stands.items()},
            deletes_below={number: one.deletes_below for number, one in stands.items()},
            schema=self.model.schema,
            what="reading compacted",
        )
        # Without changes nobody is given deletes.
        schema = self.model.schema
        names = self.dice.sample(schema.names, self.dice.randint(1, len(schema.names)))
        given = self.table.read(compacted=True, columns=["_offset", "_partition", *names])
        rows = given.to_pylist()
        for one in rows:
            row = self.model.match(one, schema)
            confirm(not row.deleted, f"the delete {row} is given as if it were a row")
        there = {(one["_partition"], one["_offset"]) for one in rows}
        for number in self.model.partitions:
            wanted = {(number, row.offset) for row in self.model.survivors(number)}
            confirm(wanted <= there, f"{wanted - there} are missing")

    def check_by_and_by(self) -> None:
        """A few rows at a time, each reader where the last one stood: no gap and no repeat."""
        whole = [(one["_partition"], one["_offset"]) for one in self.rows(compacted=True)]
        got: list[tuple[int, int]] = []
        position: Any = "earliest"
        limit = self.dice.randint(1, 6)
        while True:
            reader = self.table.read(
                columns=list(ALL), compacted=True, start=position, limit=limit, on_gap="skip"
            )
            rows = reader.to_pylist()
            position = reader.position
            got += [(one["_partition"], one["_offset"]) for one in rows]
            if not rows:
                break
            limit = max(limit, len(whole) // 6)
        for number in self.model.partitions:
            mine, all_of_it = ([at for p, at in some if p == number] for some in (got, whole))
            confirm(mine == all_of_it, f"by and by, partition {number} gave {mine}")

    def check_times(self) -> None:
        """As-of answers never change, and a time to start at is found in the ledger, too."""
        for one in self.times:
            if one.time < self.watermark:
                try:
                    self.table.read(as_of=one.time)
                except BelowWatermark:
                    continue
                raise Broken(f"{one.time} can be read below the watermark {self.watermark}")
            given = self._as_of(one.time, one.schema)
            confirm(given == one.rows, f"as of {one.time}: {_difference(given, one.rows)}")
            self.count("as-of read that was repeated")
        if self.times:
            time = self.dice.choice(self.times).time
            later = self.rows(compacted=True, start=time, on_gap="skip")
            whole = [one for one in self.rows(compacted=True) if one["_time"] >= time]
            got, wanted = (
                sorted((one["_partition"], one["_offset"]) for one in some)
                for some in (later, whole)
            )
            confirm(got == wanted, f"from time {time} on: {got} for {wanted}")

    def _as_of(self, time: int, schema: Schema) -> list[dict[str, Any]]:
        rows = self.table.read(as_of=time, columns=[*schema.names, *ALL]).to_pylist()
        return sorted(rows, key=lambda one: (one["_partition"], one["_offset"]))

    def remember(self) -> None:
        """See what the table is right now; and what it was when some row was written."""
        times = [self.now()]
        late = [
            row.time
            for rows in self.model.partitions.values()
            for row in rows
            if row.time >= self.watermark and row.version == self.model.schema.version
        ]
        unchanged = len(self.model.schemas) == 1
        if late and unchanged:
            times.append(self.dice.choice(late))
        schema = self.model.schema
        for time in times:
            wanted = [row.whole(schema) for row in self.model.as_of(time)]
            given = self._as_of(time, schema)
            confirm(given == wanted, f"as of {time}: {_difference(given, wanted)}")
            self.times.append(Remembered(time, schema, given))
        self.tell("remember the table as it is")

    def check_keys(self) -> None:
        if not self.model.key:
            return
        schema = self.model.schema
        keys = self.model.known_keys()
        unknown = [tuple(self._key().values()) for _ in range(3)]
        asked = [*self.dice.sample(keys, min(len(keys), 6)), *unknown]
        found = self.table.get_many([*keys, *unknown])
        for key, row in zip([*keys, *unknown], found, strict=True):
            confirm(row == self._row_of(key, schema), f"get_many({key}) gives {row}")
        stands = self.look()
        for key in asked:
            wanted = self._row_of(key, schema)
            got = self.table.get(key)
            confirm(got == wanted, f"get({key}) gives {got}, not {wanted}")
            said = self.table.explain(key)
            last = self.model.row(key)
            if last is None:
                confirm(said.state == "unknown", f"{key} is {said.state}")
            elif last.deleted and said.state == "unknown":
                below = stands[last.partition].deletes_below
                confirm(last.offset < below, f"the delete of {key} at {last.offset} is forgotten")
            else:
                word = "deleted" if last.deleted else "live"
                confirm((said.state, said.offset) == (word, last.offset), f"{key}: {said}")

    def _row_of(self, key: Key, schema: Schema) -> dict[str, Any] | None:
        row = self.model.row(key)
        return None if row is None or row.deleted else row.seen(schema)

    def check_ledger_files(self) -> None:
        """The files alone: the highest offset of each key, without deletes; no live sets."""
        store = self.table._compactor.ledgers.store
        versions = {schema.version: schema for schema in self.model.schemas}
        for number, stands in self.look().items():
            if stands.ledger is None:
                continue
            manifest = read_manifest(store, stands.ledger.manifest)
            last: dict[Key, dict[str, Any]] = {}
            keyless: list[int] = []
            before = -1
            for file in manifest.files:
                schema = versions[file.schema]
                names = self.model.key_names(schema)
                rows = _rows(pq.read_table(store.full_path(file.path)))
                offsets = [one["_offset"] for one in rows]
                confirm(offsets == sorted(set(offsets)), f"{file.path} is out of order")
                confirm(before < offsets[0], f"{file.path} begins before the last one ends")
                confirm((file.first, file.last) == (offsets[0], offsets[-1]), f"{file} is wrong")
                before = offsets[-1]
                for one in rows:
                    row = self.model.partitions[number][one["_offset"]]
                    word = "delete" if row.deleted else "upsert"
                    confirm(one["_change"] == word, f"{file.path}: {one}")
                    confirm(_plain(one, schema) == row.seen(schema), f"{file.path}: {one}")
                    if row.key is None:
                        keyless.append(row.offset)
                    else:
                        last[row.key] = one
                    confirm(not names or row.key is None or len(row.key) == len(names), "a key")
            got = sorted(one["_offset"] for one in last.values() if one["_change"] == "upsert")
            wanted = sorted(r.offset for r in self.model.state(number, stands.horizon).values())
            confirm(got == wanted, f"the files of partition {number} say {got}, not {wanted}")
            without = [row.offset for row in self.model.keyless(number, stands.horizon)]
            confirm(keyless == without, f"the files of partition {number} lack rows without a key")

    def check_explain(self) -> None:
        said, stands = self.table.explain(), self.look()
        rows = sum(one.end - one.start for one in stands.values())
        confirm(said.rows == rows, f"{said.rows} rows are explained, not {rows}")
        confirm(said.bytes == sum(one.bytes for one in said.partitions), "bytes do not add up")
        for one in said.partitions:
            there = stands[one.partition]
            told = (one.start, one.end, one.horizon)
            confirm(told == (there.start, there.end, there.horizon), f"{one} for {there}")
            confirm((one.bytes > 0) == (one.batches > 0), f"{one} has bytes without batches")
            names = {holder.name for holder in one.holders if holder.kind == "cursor"}
            raw = {name for name, cursor in self.cursors.items() if cursor.kind == "raw"}
            confirm(names == raw, f"{names} hold partition {one.partition}, not {raw}")
            for holder in one.holders:
                if holder.kind == "staged":  # what waits is in no backlog yet
                    continue
                confirm(holder.keeps_bytes <= one.bytes, f"{holder} keeps more than there is")

    def check_files(self) -> None:
        """After a sweep: the files that are there are those that somebody names."""
        compactor = self.table._compactor
        store, table = compactor.ledgers.store, self.table.descriptor.id
        runs = [one.run for one in self.table.runs() if one.state in {"running", "interrupted"}]

        def of_runs() -> set[str]:
            there = {one.path for one in store.files(table_folder(table))}
            return {path for path in there if any(run in path for run in runs)}

        mine = of_runs()
        self.table.sweep()
        confirm(mine <= of_runs(), f"swept, though a run goes on: {sorted(mine - of_runs())[:3]}")
        names = {one.manifest for one in compactor.records.pointers(table).values()}
        names |= {one.ledger.manifest for one in self.look().values() if one.ledger is not None}
        names |= {
            part.ledger.manifest
            for one in self.readers
            for part in one.reader._parts
            if part.ledger is not None
        }
        needed = set(names)
        for name in names:
            needed |= read_manifest(store, name).paths()
        there = {one.path for one in store.files(table_folder(table))}
        confirm(needed <= there, f"swept, though needed: {sorted(needed - there)[:3]}")
        # A reader that has changed to a newer ledger lets the older one go when it is closed.
        if not any(one.follows for one in self.readers):
            left = there - needed - of_runs()
            confirm(not left, f"not swept: {sorted(left)[:3]}")

    # -- readers --------------------------------------------------------------------------------

    def open_reader(self) -> None:
        if len(self.readers) >= 5:
            return
        dice = self.dice
        if dice.random() < 0.2:
            self._open_as_of()
            return
        kind: Literal["raw", "compacted"] = dice.choice(["raw", "compacted", "compacted"])
        follows, leased = dice.random() < 0.5, dice.random() < 0.3
        how: dict[str, Any] = {"follow": follows, "compacted": kind == "compacted"}
        skips = dice.random() < 0.3
        stands = self.look()
        starts = {number: one.start for number, one in stands.items()}
        if kind == "compacted":
            starts = dict.fromkeys(stands, 0)
        consumer = Consumer.at(self.model, starts)
        placed = [name for name, one in self.cursors.items() if one.kind == "compacted"]
        trusted = False
        if kind == "compacted" and placed and dice.random() < 0.4:
            name = dice.choice(placed)
            consumer, trusted = self.cursors[name].consumer.copy(), True
            how["cursor"] = name
        elif dice.random() < 0.4:
            low = {number: 0 if kind == "compacted" else at for number, at in starts.items()}
            somewhere = {n: dice.randint(at, self.model.end(n)) for n, at in low.items()}
            if kind == "compacted" and leased:
                # A lease, like a cursor, begins where deletes are, or at 0.
                somewhere = {
                    n: at if not 0 < at < stands[n].deletes_below else 0
                    for n, at in somewhere.items()
                }
            how["start"] = somewhere
            consumer = Consumer.at(self.model, somewhere)
        elif kind == "raw":
            how["start"] = "earliest"
            consumer = Consumer.at(self.model, starts)
        if leased:
            how["lease_ms"] = LONG_MS
        reader = self.table.read(
            columns=[*self.model.schema.names, *ALL],
            batch_bytes=dice.choice([1, 300, 4 << 20]),
            on_gap="skip" if skips else "raise",
            **how,
        )
        one = Open(
            kind,
            reader,
            self.model.schema,
            follows,
            leased,
            skips,
            trusted,
            dict(consumer.position),
            self.model.ends,
            {number: there.horizon for number, there in stands.items()},
            {number: there.deletes_below for number, there in stands.items()},
            consumer,
        )
        self.readers.append(one)
        self.tell(f"open {one}")
        self._read_on(one, dice.randint(0, 2))

    def _open_as_of(self) -> None:
        time, schema = self.now(), self.model.schema
        reader = self.table.read(as_of=time, columns=[*schema.names, *ALL])
        at = dict.fromkeys(self.model.partitions, 0)
        one = Open(
            "as of",
            reader,
            schema,
            follows=False,
            leased=True,
            skips=False,
            trusted=False,
            starts=at,
            ends=self.model.ends,
            horizons=at,
            deletes_below=at,
            consumer=Consumer.at(self.model, at),
            time=time,
        )
        self.readers.append(one)
        self.tell(f"open {one}")
        self._read_on(one, self.dice.randint(0, 2))

    def go_on_reading(self) -> None:
        if self.readers:
            self._read_on(self.dice.choice(self.readers), self.dice.choice([1, 1, 2, 5, 50]))

    def close_reader(self) -> None:
        if self.readers:
            one = self.readers.pop(self.dice.randrange(len(self.readers)))
            one.reader.close()
            self.tell(f"close {one}")

    def _read_on(self, one: Open, batches: int) -> None:
        gaps = len(one.reader.gaps)
        self.tell(f"read on: {one}")
        for _ in range(batches):
            if one.follows and not self._something_to_come(one):
                break
            try:
                batch = next(one.reader, None)
            except GapFound as found:
                self._check_gap(one, found.gap)
                self.readers.remove(one)
                return
            except Rejected as refused:
                confirm("can't hold" in str(refused), f"{one}: {refused}")
                confirm(one.follows, f"{one} can't read what was there: {refused}")
                self.readers.remove(one)
                return
            for gap in one.reader.gaps[gaps:]:
                self._check_gap(one, gap)
                gaps += 1
                if gap.kind == "deleted":
                    one.consumer.missed.append((gap.partition, gap.first, gap.last))
                else:
                    one.consumer.position[gap.partition] = gap.last + 1
            if batch is None:
                confirm(not one.follows, f"{one} came to an end")
                self._finish(one)
                return
            rows = _rows(batch)
            one.given += rows
            if one.kind == "compacted":
                one.consumer.take(rows, one.schema)
            elif one.kind == "raw":
                self._take_raw(one, rows)

    def _take_raw(self, one: Open, rows: Sequence[Mapping[str, Any]]) -> None:
        for given in rows:
            row = self.model.match(given, one.schema)
            at = one.consumer.position[row.partition]
            confirm(row.offset == at, f"{one} gave {row.offset} of {row.partition}, not {at}")
            one.consumer.position[row.partition] = at + 1

    def _something_to_come(self, one: Open) -> bool:
        """Whether it is given a row, or told of a gap: else it would wait."""
        stands = self.look()
        for number, at in one.reader.position.items():
            if one.kind == "compacted":
                if self.model.surely_ahead(number, at):
                    return True
            elif (max(at, stands[number].start) if one.skips else at) < self.model.end(number):
                return True
        return False

    def _check_gap(self, one: Open, gap: Any) -> None:
        stands = self.look()[gap.partition]
        self.tell(f"{one} finds {gap}")
        self.count(f"gap: {gap.kind}")
        at = one.consumer.position[gap.partition]
        confirm(gap.first >= at, f"{one} at {at} finds {gap}")
        if gap.kind == "deleted":
            confirm(one.kind == "compacted", f"{one} reads no ledger, but finds {gap}")
            confirm(not one.leased, f"{one} finds {gap}")
            confirm(not one.trusted or one.follows, f"{one} finds {gap}")
            confirm(gap.last < stands.deletes_below, f"{one} finds {gap} in {stands}")
            return
        confirm(gap.kind == "superseded", f"{one} finds {gap}")
        confirm(one.kind == "raw" and not one.leased and one.follows, f"{one} finds {gap}")
        confirm(gap.first == at and gap.last == stands.start - 1, f"{one} finds {gap}: {stands}")

    def _finish(self, one: Open) -> None:
        """It has read all it can: is that what it should have?"""
        what = str(one)
        if one.kind == "as of":
            wanted = [row.whole(one.schema) for row in self.model.as_of(one.time)]
            got = sorted(one.given, key=lambda row: (row["_partition"], row["_offset"]))
            confirm(got == wanted, f"{what}: {_difference(got, wanted)}")
        elif one.follows:
            if one.kind == "compacted":
                one.consumer.check_all_known(what)
            else:
                ends = self.model.ends
                confirm(one.consumer.position == ends, f"{what}: {one.consumer.position}")
        elif one.kind == "raw":
            self.model.check_span(one.given, one.starts, one.ends, one.schema, what)
        elif not any(one.starts.values()):
            self.model.check_compacted(
                one.given,
                ends=one.ends,
                horizons=one.horizons,
                deletes_below=one.deletes_below,
                schema=one.schema,
                what=what,
            )
        self.count(f"{one.kind} reader that ended")
        one.reader.close()
        self.readers.remove(one)

    # -- cursors --------------------------------------------------------------------------------

    def create_cursor(self) -> None:
        if len(self.cursors) >= 3:
            return
        dice, stands = self.dice, self.look()
        kind: Literal["raw", "compacted"] = dice.choice(["raw", "compacted", "compacted"])
        name = f"cursor {len(self.told)}"
        start: Any = dice.choice(["earliest", "latest", "somewhere"])
        if start == "somewhere":
            start = {}
            for number, one in stands.items():
                low = one.start if kind == "raw" else one.deletes_below
                start[number] = dice.choice([dice.randint(low, one.end), low])
                if kind == "compacted" and dice.random() < 0.2:
                    start[number] = 0
        made = self.table.cursors.create(name, kind=kind, start=start)
        if start == "latest":
            confirm(made.position == self.model.ends, f"{made} is not at the end")
        floor = {number: one.deletes_below for number, one in stands.items()}
        self.cursors[name] = Placed(kind, Consumer.at(self.model, made.position), floor)
        self.tell(f"create {kind} {name} at {made.position}")

    def move_cursor(self) -> None:
        if self.cursors:
            name = self.dice.choice(list(self.cursors))
            self._consume(name, self.dice.choice([1, 5, 30, None]))

    def _consume(self, name: str, limit: int | None) -> None:
        """Read by a cursor, and move it on."""
        placed = self.cursors[name]
        schema = self.model.schema
        compacted = placed.kind == "compacted"
        reader = self.table.read(
            columns=[*schema.names, *ALL], cursor=name, compacted=compacted, limit=limit
        )
        rows = reader.to_pylist()
        if compacted:
            placed.consumer.take(rows, schema)
        else:
            before = dict(placed.consumer.position)
            self.model.check_span(rows, before, reader.position, schema, f"cursor {name}")
            placed.consumer = Consumer.at(self.model, reader.position)
        for number, at in reader.position.items():
            mine = placed.consumer.position[number]
            confirm(at >= mine, f"cursor {name} came to {mine}, and its reader to {at}")
            placed.consumer.position[number] = at
        self.table.cursors.commit(name, reader.position)
        if limit is None:
            placed.consumer.check_all_known(f"{placed.kind} cursor {name}")
        self.count("row read by a cursor", len(rows))
        self.tell(f"move cursor {name} by {len(rows)} rows to {reader.position}")

    def delete_cursor(self) -> None:
        if self.cursors:
            name = self.dice.choice(list(self.cursors))
            self.table.cursors.delete(name)
            del self.cursors[name]
            # Whoever reads from where it stood is told of gaps from now on.
            self.tell(f"delete cursor {name}")

    # -- columns --------------------------------------------------------------------------------

    def change_columns(self) -> None:
        if len(self.table.descriptor.schemas) >= 8:
            return
        dice, columns = self.dice, list(self.model.schema.columns)
        plain = [one for one in columns if one.number not in self.model.key and one.name != "v"]
        how = dice.choice(["add", "add", "drop", "widen", "rename", "default"])
        if how == "add":
            self.numbers += 1
            free = [name for name in ("n", "x", "y", "z") if name not in self.model.schema.names]
            if not free:
                return
            filling = dice.choice([None, 17])
            new = Column(self.numbers, dice.choice(free), "int32", filling)
            wanted = NewColumn(name=new.name, type=parse_type("int32"), default=filling)
            command: Any = AddColumns(table="t", columns=(wanted,))
            columns.append(new)
        elif how == "drop" and plain:
            gone = dice.choice(plain)
            command = DropColumns(table="t", columns=(gone.name,))
            columns.remove(gone)
        elif how == "widen" and any(one.type == "int32" for one in plain):
            old = dice.choice([one for one in plain if one.type == "int32"])
            command = AlterColumn(table="t", column=old.name, type=parse_type("int64"))
            columns[columns.index(old)] = replace(old, type="int64")
        elif how == "default" and any(one.type == "int32" for one in plain):
            # For rows to come: older ones go on to show what the column was added with.
            old = dice.choice([one for one in plain if one.type == "int32"])
            command = AlterColumn(table="t", column=old.name, default=100 + len(self.told))
        elif how == "rename" and len(columns) > 1:
            old = dice.choice([one for one in columns if one.name != "v"])
            name = f"{old.name[:8]}{len(self.told)}"
            command = RenameColumn(table="t", column=old.name, to=name)
            columns[columns.index(old)] = replace(old, name=name)
        else:
            return
        self.db.execute([command])
        self.model.with_columns(columns)
        latest = self.table.descriptor.latest
        confirm(latest.number == self.model.schema.version, f"{latest} for {self.model.schema}")
        self.tell(f"{how}: the columns are {self.model.schema.names}")

    # -- starting again -------------------------------------------------------------------------

    def restart(self) -> None:
        self._close_readers()
        self.db.close()
        self._open_again()
        self.tell("restart")
        self.check_all()

    def crash(self) -> None:
        """Go on with what a crash would leave."""
        self._close_readers()
        image = self._image()
        self.db.close()
        shutil.rmtree(self.path)
        self.path = image
        self._open_again()
        self.tell("crash")
        self.check_all()

    def _image(self) -> Path:
        self.images += 1
        return crash_image(self.path, self.folder / f"image {self.images}")

    def _close_readers(self) -> None:
        for one in self.readers:
            one.reader.close()
        self.readers.clear()

    def _open_again(self) -> None:
        self.db = lowmark.open(self.path, settings=self.settings)
        self.table = self.db.table("t")


def _rows(given: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Arrow's rows with UUIDs as Python has them: in Arrow they are 16 bytes."""
    rows: list[dict[str, Any]] = given.to_pylist()
    for name in [one.name for one in given.schema if one.type == pa.binary(16)]:
        for row in rows:
            row[name] = None if row[name] is None else UUID(bytes=row[name])
    return rows


def _plain(row: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The columns of a row of a file."""
    return {name: row[name] for name in schema.names}


def _difference(given: Sequence[Any], wanted: Sequence[Any]) -> str:
    foreign = [one for one in given if one not in wanted][:2]
    missing = [one for one in wanted if one not in given][:2]
    return f"{len(given)} rows for {len(wanted)}; {foreign} given, {missing} missing"


def live(seed: int, folder: Path) -> Story:
    """One life, in an empty folder."""
    return Life(seed, folder).run()
