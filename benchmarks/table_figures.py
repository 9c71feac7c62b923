"""What appending, sending, looking up and reading come to beside what else one might use."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from benchmarks.figure import Figure, Round, Side, Target, ratio
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_memory import weighed
from benchmarks.table_peers import (
    MappedFiles,
    Postgres,
    copy_lines,
    postgres_version,
    sqlite_insert,
    sqlite_opened,
    write_raw,
)
from benchmarks.table_sizes import TableSizes
from benchmarks.table_workload import (
    BATCH_ROWS,
    COLUMNS,
    PARTITIONS,
    Opened,
    Row,
    batch_of,
    batches_of,
    dicts_of,
    id_of,
    opened_table,
    tuples_of,
)
from lowmark.client import Table
from lowmark.errors import invariant
from lowmark.log import LogConfig

MIB = 1 << 20
SENT_TOGETHER = 1_000
"""Rows in one of SQLite's transactions beside a producer."""
LINGER_MS = 5
SYNCED_LATE = 32
"""Batches before a sync of the bare file, beside one call that has 4 MiB under way."""
COLUMN_NAMES = list(COLUMNS)
SQLITE = f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL, WITHOUT ROWID"
ROWS = "rows of 100 bytes (as Arrow has them), key in ascending order"
ONE_AT_A_TIME = "one at a time: the next when the last was acknowledged"

Append = Callable[[Table], object]
"""All that one turn appends."""


# -- appending --------------------------------------------------------------------------------


@measures(Figure("append_vs_raw", Target(0.25, aim=0.5), "rows/s"))
def append_vs_raw(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """Batches of Arrow against a bare file."""
    sizes = bench.sizes
    count = sizes.appended(sizes.append_wal_bytes)
    batches = batches_of(count)
    messages = [batch.serialize() for batch in batches]
    whole = pa.Table.from_batches(batches)
    config = LogConfig(wal_bytes_max=sizes.append_wal_bytes)

    def raw(synced_every: int) -> Turn:
        def turn(folder: Path) -> Side:
            with Stopwatch() as watch:
                write_raw(folder / "raw", messages, synced_every=synced_every)
            return Side(count, watch.seconds())

        return turn

    bare, together = raw(1), _appending(config, count, lambda table: table.append(whole))
    yield bench.compare(
        _appending(config, count, _one_by_one(batches), roll_overs=sizes.roll_overs),
        bare,
        notes=f"{_amount(count, sizes.append_wal_bytes)}, {ONE_AT_A_TIME}, by one caller; peer:"
        " write the same bytes, as one Arrow message a batch, and fdatasync, batch by batch; in"
        " one call: all batches in one append, which has up to 4 MiB under way; in one call"
        f" against late syncs: the peer syncs every {SYNCED_LATE} batches",
        variants={
            "in_one_call": (together, bare),
            "in_one_call_against_late_syncs": (together, raw(SYNCED_LATE)),
        },
    )


@measures(Figure("append_vs_sqlite", Target(4.0), "rows/s"))
def append_vs_sqlite(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """Batches of Arrow against transactions of SQLite."""
    sizes = bench.sizes
    count = sizes.appended(sizes.append_wal_bytes)

    def sides(wal_bytes: int, *, scattered: bool) -> tuple[Turn, Turn]:
        count, config = sizes.appended(wal_bytes), LogConfig(wal_bytes_max=wal_bytes)
        batches = batches_of(count, scattered=scattered)
        ours = _appending(config, count, _one_by_one(batches), roll_overs=sizes.roll_overs)
        return ours, _inserting(count, lambda: map(tuples_of, batches))

    ours, sqlite = sides(sizes.append_wal_bytes, scattered=False)
    variants = {}
    if sizes.variants:
        # With less, because the peer becomes slow.
        variants["scattered_keys"] = sides(sizes.objects_wal_bytes, scattered=True)
    yield bench.compare(
        ours,
        sqlite,
        notes=f"{_amount(count, sizes.append_wal_bytes)}, {ONE_AT_A_TIME}, Arrow in; peer:"
        f" {SQLITE}, a transaction of {BATCH_ROWS:,} at a time by executemany, from tuples that are"
        " made before, and a last checkpoint in the measured time; scattered keys: keys in no"
        f" order, {sizes.appended(sizes.objects_wal_bytes):,} rows",
        variants=variants,
    )


@measures(Figure("append_objects_vs_sqlite", Target(1.0), "rows/s"))
def append_objects_vs_sqlite(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """Lists of dicts against SQLite's executemany."""
    sizes = bench.sizes
    count = sizes.appended(sizes.objects_wal_bytes)
    config = LogConfig(wal_bytes_max=sizes.objects_wal_bytes)
    batches = batches_of(count)
    rows = [dicts_of(batch) for batch in batches]
    ours = _appending(config, count, _one_by_one(rows), roll_overs=sizes.roll_overs)
    yield bench.compare(
        ours,
        _inserting(count, lambda: rows),
        notes=f"{_amount(count, sizes.objects_wal_bytes)}, each a list of Python dicts,"
        f" {ONE_AT_A_TIME}; peer: {SQLITE}, executemany of the same dicts, a transaction of"
        f" {BATCH_ROWS:,} at a time, and a last checkpoint in the measured time; against tuples:"
        " the peer is given tuples instead, which it takes faster",
        variants={"against_tuples": (ours, _inserting(count, lambda: map(tuples_of, batches)))},
    )


@measures(Figure("append_vs_postgres", Target(4.0), "rows/s"))
def append_vs_postgres(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """Batches of Arrow against PostgreSQL's COPY."""
    sizes = bench.sizes
    count = sizes.appended(sizes.append_wal_bytes)
    config = LogConfig(wal_bytes_max=sizes.append_wal_bytes)
    with bench.fresh_folder() as folder, Postgres(folder) as postgres:
        batches = batches_of(count)
        lines = [copy_lines(batch) for batch in batches]
        whole = pa.Table.from_batches(batches)

        def copying(*, at_once: bool) -> Turn:
            def turn(_: Path) -> Side:
                client = postgres.client
                client.run("DROP TABLE IF EXISTS rows")
                client.run(
                    "CREATE TABLE rows (id text PRIMARY KEY, customer bigint, amount bigint,"
                    " note text)"
                )
                with Stopwatch() as watch:
                    client.copy("rows", [lines] if at_once else [[one] for one in lines])
                return Side(count, watch.seconds())

            return turn

        yield bench.compare(
            _appending(config, count, _one_by_one(batches), roll_overs=sizes.roll_overs),
            copying(at_once=False),
            notes=f"{_amount(count, sizes.append_wal_bytes)}, {ONE_AT_A_TIME}, Arrow in; peer:"
            f" PostgreSQL {postgres_version()} with its default settings (synchronous commit) but"
            f" no checkpoint in the measured time, a COPY of {BATCH_ROWS:,} rows at a time into a"
            " table with a primary key, from text that is made before, over a Unix socket by a bare"
            " client; in one call: all batches in one append, and in one COPY",
            variants={
                "in_one_call": (
                    _appending(config, count, lambda table: table.append(whole)),
                    copying(at_once=True),
                )
            },
        )


def _amount(count: int, wal_bytes: int) -> str:
    return (
        f"{count // BATCH_ROWS} batches of {BATCH_ROWS:,} {ROWS}, durable, over {PARTITIONS}"
        f" partitions, until idle, over roll-overs of a WAL of {wal_bytes // MIB} MiB, each of"
        " which writes a segment of every partition"
    )


def _one_by_one(batches: Sequence[object]) -> Append:
    def append(table: Table) -> None:
        for batch in batches:
            table.append(batch)

    return append


def _appending(config: LogConfig, count: int, append: Append, *, roll_overs: int = 0) -> Turn:
    """A turn of ours ends when the segment writer is done, too."""

    def turn(folder: Path) -> Side:
        with opened_table(folder, config) as opened:
            with Stopwatch() as watch:
                append(opened.table)
                opened.rest()
            invariant(opened.rolled >= roll_overs, f"only {opened.rolled} roll-overs")
            _check_count(opened, count)
        return Side(count, watch.seconds())

    return turn


def _check_count(opened: Opened, count: int) -> None:
    stored = sum(opened.table.snapshot().ends.values())
    invariant(stored == count, f"{stored} rows are stored, not {count}")


def _inserting(
    count: int, batches: Callable[[], Iterable[Sequence[Row] | Sequence[dict[str, Any]]]]
) -> Turn:
    def turn(folder: Path) -> Side:
        made = list(batches())
        with sqlite_opened(folder / "peer.sqlite") as db:
            with Stopwatch() as watch:
                sqlite_insert(db, made)
            (stored,) = db.execute("SELECT count(*) FROM rows").fetchone()
            invariant(stored == count, f"SQLite has {stored} rows, not {count}")
        return Side(count, watch.seconds())

    return turn


# -- single rows ------------------------------------------------------------------------------


@measures(Figure("send_per_s", Target(0.5), "rows/s"))
def send_per_s(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """Rows that come one at a time, gathered by a producer."""
    sizes = bench.sizes
    count = sizes.sent
    rows = [row for batch in batches_of(count) for row in dicts_of(batch)]

    def send(table: Table) -> None:
        with table.producer(linger_ms=LINGER_MS) as producer:
            for row in rows:
                producer.send(row)

    def grouped() -> list[list[dict[str, Any]]]:
        return [rows[at : at + SENT_TOGETHER] for at in range(0, count, SENT_TOGETHER)]

    ours = _appending(LogConfig(wal_bytes_max=sizes.objects_wal_bytes), count, send)

    def as_tuples() -> list[list[Row]]:
        return [[(*row.values(),) for row in group] for group in grouped()]

    yield bench.compare(
        ours,
        _inserting(count, grouped),
        notes=f"{count:,} {ROWS}, each a Python dict given to producer.send, which lingers for"
        f" {LINGER_MS} ms, over {PARTITIONS} partitions; it ends when all are durable and the"
        f" segment writer is idle; peer: {SQLITE}, executemany of the same dicts in transactions"
        f" of {SENT_TOGETHER:,}, and a last checkpoint in the measured time; against tuples: the"
        " peer is given tuples instead",
        variants={"against_tuples": (ours, _inserting(count, as_tuples))},
    )


@measures(
    Figure("one_row_vs_sqlite", Target(6.0, at_least=False, aim=3.0), "appends/s"),
    runs="short_runs",
)
def one_row_vs_sqlite(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """One durable row at a time."""
    sizes = bench.sizes
    count = sizes.one_rows
    whole = batch_of(0, count)
    dicts = [[row] for row in dicts_of(whole)]
    slices = [whole.slice(at, 1) for at in range(count)]
    tuples = tuples_of(whole)

    def appending(rows: Sequence[object]) -> Turn:
        def turn(folder: Path) -> Side:
            with opened_table(folder) as opened:
                side = Side(1, _median_seconds(opened.table.append, rows))
                _check_count(opened, count)
            return side

        return turn

    def sqlite(folder: Path) -> Side:
        with sqlite_opened(folder / "peer.sqlite") as db:
            run = db.execute

            def insert(row: Row) -> None:
                run("BEGIN")
                run("INSERT INTO rows VALUES (?, ?, ?, ?)", row)
                run("COMMIT")

            return Side(1, _median_seconds(insert, tuples))

    yield bench.compare(
        appending(dicts),
        sqlite,
        notes=f"the median of {count:,} appends of one row, a list with one Python dict,"
        f" {ONE_AT_A_TIME}; the rate is one over the median; peer: {SQLITE}, BEGIN, INSERT of a"
        " tuple, COMMIT; as arrow: the row is given as an Arrow batch",
        variants={"as_arrow": (appending(slices), sqlite)},
    )


def _median_seconds(do: Callable[[Any], object], things: Sequence[object]) -> float:
    took, clock = [], time.perf_counter
    with Stopwatch():
        for thing in things:
            began = clock()
            do(thing)
            took.append(clock() - began)
    return median(took)


# -- looking up and reading -------------------------------------------------------------------


@measures(Figure("get_p50_vs_sqlite", Target(5.0, at_least=False), "gets/s"), runs="short_runs")
def get_p50_vs_sqlite(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """The latest row of a key, against a look-up by primary key."""
    sizes = bench.sizes
    count, dice = sizes.keys, Random(1)
    keys = [id_of(dice.randrange(count)) for _ in range(sizes.gets)]
    bench.say(f"preparing {count} keys")
    with (
        bench.fresh_folder() as folder,
        opened_table(folder / "data") as opened,
        sqlite_opened(folder / "peer.sqlite") as db,
    ):
        batches = batches_of(count)
        _one_by_one(batches)(opened.table)
        sqlite_insert(db, map(tuples_of, batches))
        del batches
        opened.rest()
        began = time.perf_counter()
        get = opened.table.get
        for key in keys[:1_000]:  # some of every partition: the index is built by whoever asks
            invariant(get(key) is not None, "every key is there")
        size = opened.table.index_size
        invariant(size is not None and size.keys == count, "every key is in the index")
        assert size is not None
        built = time.perf_counter() - began

        def ours(_: Path) -> Side:
            return Side(1, _median_seconds(get, keys))

        def sqlite(_: Path) -> Side:
            run = db.execute

            def look_up(key: str) -> Any:
                return run("SELECT * FROM rows WHERE id = ?", (key,)).fetchone()

            return Side(1, _median_seconds(look_up, keys))

        yield bench.compare(
            ours,
            sqlite,
            notes=f"the median of {len(keys):,} look-ups of {count:,} keys, drawn evenly; the rate"
            " is one over the median; ours gives a dict, from an index that was built before in"
            f" {built:.1f} s and takes {size.bytes_per_key:.0f} bytes a key, and batches that are"
            f" read from the disk when first needed; peer: {SQLITE}, SELECT * by primary key, gives"
            " a tuple",
        )


@measures(Figure("read_vs_memory", Target(0.3), "rows/s"), runs="short_runs")
def read_vs_memory(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """The whole backlog, against the same batches in memory-mapped files."""
    sizes = bench.sizes
    count = sizes.read_rows
    bench.say(f"preparing {count} rows")
    config = LogConfig(wal_bytes_max=sizes.append_wal_bytes)
    with (
        bench.fresh_folder() as folder,
        opened_table(folder / "data", config) as opened,
        bench.fresh_folder() as peer,
    ):
        table, mapped = opened.table, MappedFiles(peer)
        _one_by_one(batches_of(count))(table)
        opened.rest()
        for number in range(PARTITIONS):
            reader = table.read(columns=COLUMN_NAMES, partitions=[number])
            mapped.write(number, reader, reader.schema)
        sums: set[int] = set()

        def taking(batches: Callable[[], Iterable[pa.RecordBatch]], *, touched: bool) -> Turn:
            def turn(_: Path) -> Side:
                rows = total = 0
                with Stopwatch() as watch:
                    for batch in batches():
                        rows += batch.num_rows
                        total += _sum(batch) if touched else 0
                invariant(rows == count, f"{rows} rows were read, not {count}")
                if touched:
                    sums.add(total)
                    invariant(len(sums) == 1, "both sides read the same bytes")
                return Side(rows, watch.seconds())

            return turn

        def ours() -> Iterable[pa.RecordBatch]:
            return table.read(columns=COLUMN_NAMES)

        decoded = taking(lambda: mapped, touched=False)
        yield bench.compare(
            taking(ours, touched=False),
            decoded,
            notes=f"{count:,} {ROWS}, written in batches of {BATCH_ROWS:,} over {PARTITIONS}"
            " partitions, so that a stored batch has about 1,250; read from segments that the"
            " system has in memory, every checksum checked, all columns of the table; peer: the"
            " same stored batches as Arrow streams, a file per partition, memory-mapped, decoded"
            " and their rows counted: no byte of a value is looked at on either side but by our"
            " checksums; every value touched: both sides take a checksum of every column; with"
            " change: ours gives `_change`, too, as it does unless told otherwise",
            variants={
                "every_value_touched": (
                    taking(ours, touched=True),
                    taking(lambda: mapped, touched=True),
                ),
                "with_change": (taking(table.read, touched=False), decoded),
            },
        )


def _sum(batch: pa.RecordBatch) -> int:
    """A sum over every byte of every column."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers())
    return sum(crc32c(buffer) for buffer in buffers if buffer is not None)


# -- memory -----------------------------------------------------------------------------------


@measures(
    Figure("memory_growth", Target(1.2, at_least=False), "MB"), runs="memory_runs", warm_up=False
)
def memory_growth(bench: Bench[TableSizes]) -> Iterator[Plan]:
    """What a process weighs after many rows against few."""
    sizes = bench.sizes
    few, many = sizes.memory_rows_few, sizes.memory_rows

    def weigh(folder: Path) -> Round:
        before, after = weighed(folder, sizes.memory_wal_bytes, [few, many])
        return {"few": Side(before / 1e6), "many": Side(after / 1e6)}

    pair = ratio(lambda one: one["many"].amount, lambda one: one["few"].amount, "few", "many")
    notes = (
        f"anonymous memory (RssAnon) of a new process after {many:,} {ROWS}, in batches of"
        f" {BATCH_ROWS:,}, {ONE_AT_A_TIME}: the most while the last WAL file filled, with a WAL of"
        f" {sizes.memory_wal_bytes // MIB} MiB (what is in it is in memory, too); no key was looked"
        f" up, so there is no index of keys; peer: the same process after {few:,}"
    )
    yield bench.plan([weigh], pair, notes)
