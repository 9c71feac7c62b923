"""The first ten minutes, in one: a shop's orders from the first change to a compacted table.

    make quickstart

It opens a database, loads three million changes while a reader follows them, compacts them on
Spark, and reads the same state in several ways that must agree. Then it looks back in time, and
further back than it can; a cursor keeps what its reader has not read; and a picture shows where
everything stands. What it leaves behind is that picture, and the database if you name a folder.
Where Java or PySpark is missing it says so, and compacts in its own process, as with --no-spark.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from quickstart_shop import COLUMNS, HERO, Shop, State
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

import lowmark
from lowmark.client import BelowWatermark, Database, Reader, RunRecord, Table
from lowmark.client import Progress as RunProgress
from lowmark.errors import LowmarkError

ROWS = 3_000_000
BATCH = 50_000
MORNING, NOON = 0.3, 0.9
"""After so much of the load, a moment is noted."""
BY_HAND = {"noon": ("packed", "86.50"), "evening": ("shipped", "79.90")}
"""What becomes of one order by hand, before a moment is noted."""
STATE_COLUMNS = ["id", "status", "total"]

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """The tour, from top to bottom."""
    arguments = parsed()
    began_s = time.monotonic()
    with contextlib.ExitStack() as ending:
        folder = arguments.data
        if folder is None:
            home = ending.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-"))
            folder = Path(home) / "data"
        elif folder.exists() and any(folder.iterdir()):
            console.print(f"{folder} is not empty: name a folder that is, or none.")
            return 2

        on_spark = not arguments.no_spark and spark_is_there()
        step("Open a folder. Nothing has to be started.")
        db = ending.enter_context(lowmark.open(folder))
        orders = db.create_table("orders", COLUMNS, key="id", partitions=4)
        say(f"{orders}: key {orders.key[0]}, {len(COLUMNS)} columns.")

        tour = Tour(db, orders, arguments.rows)
        tour.load()
        spark = ending.enter_context(session(wanted=on_spark))
        first = tour.compact_first(spark)
        tour.compare()
        tour.look_back()
        tour.hold(spark, first)
        tour.draw(arguments.picture)

    kept = f" The database is in {folder}." if arguments.data else ""
    step(f"Done in {time.monotonic() - began_s:.0f} seconds.{kept}")
    say("Go on with docs/guide/start.md, or `lowmark --help`.")
    return 0


def parsed() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="The first ten minutes with Lowmark, in one.")
    parser.add_argument("--rows", type=rows_of, default=ROWS, help="changes to load")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the database here")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", default=Path("tide.png"), help="default: tide.png"
    )
    parser.add_argument("--no-spark", action="store_true", help="compact in this process")
    return parser.parse_args()


def rows_of(text: str) -> int:
    """A number of changes that is worth it."""
    rows = int(text.replace(",", "").replace("_", ""))
    if rows < 1_000:
        raise argparse.ArgumentTypeError("at least 1,000 make sense")
    return rows


# -- saying ---------------------------------------------------------------------------------------


def step(title: str) -> None:
    """What comes next."""
    console.print(f"\n{title}", style="bold")


def say(words: object) -> None:
    """What came of it."""
    console.print(f"  {words}", markup=False)


def show(rows: list[tuple[object, ...]], *names: str) -> None:
    """A small table; numbers to the right."""
    grid = Grid(box=None, pad_edge=True)
    for at, name in enumerate(names):
        numbers = all(isinstance(row[at], int) for row in rows)
        grid.add_column(name, justify="right" if numbers else "left")
    for row in rows:
        grid.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console.print(grid)


def size(count: int) -> str:
    """Bytes, for people."""
    return f"{count / 1024:,.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MiB"


def bars() -> Progress:
    """Progress bars."""
    columns = (TextColumn("  {task.description:<24}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


# -- the tour -------------------------------------------------------------------------------------


class Tour:
    """One database, one table, and what is remembered between the steps."""

    def __init__(self, db: Database, orders: Table, rows: int) -> None:
        self.db = db
        self.orders = orders
        self.rows = rows
        self.few = rows // 40
        self.shop = Shop(rows + 3 * self.few)
        self.moments: dict[str, int] = {}
        self.states: dict[str, State] = {}
        self.before: tuple[int, int] = 0, 0

    def note(self, moment: str) -> None:
        """Remember a moment: its time, and what the shop says of it."""
        self.moments[moment] = self.orders.snapshot().time
        self.states[moment] = self.shop.state

    def load(self) -> None:
        """Append, and follow."""
        rows, shop = self.rows, self.shop
        step(f"Load {rows:,} changes of a shop's orders. Another thread follows them as they come.")
        tail = Tail(self.orders)
        with bars() as progress:
            loaded = progress.add_task("appended, durable", total=rows)
            tail.start(rows, progress)
            done = 0
            for part, moment in ((MORNING, "morning"), (NOON, "noon"), (1, "evening")):
                by_hand = BY_HAND.get(moment)
                if by_hand is not None:
                    self.orders.append([shop.change_by_hand(*by_hand)])
                    done += 1
                while done < int(part * rows):
                    count = min(BATCH, int(part * rows) - done)
                    self.orders.append(shop.batch(count))
                    done += count
                    progress.update(loaded, completed=done)
                self.note(moment)
            tail.wait()
        say(f"The follower saw all {tail.seen:,} changes, {tail.deletes:,} of them cancellations.")
        say(f"Of order {HERO}, it saw: {', then '.join(tail.of_hero)}.")
        explained = self.orders.explain()
        self.before = explained.rows, explained.bytes
        self.states["folded"] = folded(self.orders.read(columns=[*STATE_COLUMNS, "_change"]))

    def compact_first(self, spark: Any) -> RunRecord:
        """Up to noon; history after it stays."""
        step("Compact: of each order, keep the last change up to noon. History stays exact after.")
        self.db.advance_watermark(self.moments["noon"])
        record = compacted(self.orders, spark)
        say(
            f"{record.rows_read:,} changes became {record.rows_live:,} rows in"
            f" {record.seconds:.1f} seconds; {record.too_young_rows:,} are later than noon, and"
            " stay."
        )
        rows, byte_count = self.before
        after = self.orders.explain()
        show(
            [
                ("backlog before", rows, size(byte_count)),
                ("backlog after", after.rows, size(after.bytes)),
                ("ledger", after.ledger_rows, size(after.ledger_bytes)),
            ],
            "",
            "rows",
            "bytes",
        )
        return record

    def compare(self) -> None:
        """The same state by several ways."""
        step("Read the same state in several ways. They must agree.")
        orders, noon = self.orders, self.moments["noon"]
        files = [file for ledger in orders.ledgers() for file in ledger.files]
        evening = {
            "every change, folded": self.states["folded"],
            "read(compacted=True)": folded(
                orders.read(columns=[*STATE_COLUMNS, "_change"], compacted=True)
            ),
            'read(as_of="now")': state_of(orders.read(columns=STATE_COLUMNS, as_of="now")),
            "the shop's own books": self.states["evening"],
        }
        midday = {
            "read(as_of=noon)": state_of(orders.read(columns=STATE_COLUMNS, as_of=noon)),
            f"its Parquet files, by {PARQUET_READER}": from_parquet(files),
            "the shop's own books": self.states["noon"],
        }
        show(
            [
                (moment, how, state.orders, state.delivered, f"{state.total:>16,}")
                for moment, readings in (("now", evening), ("noon", midday))
                for how, state in readings.items()
            ],
            "state",
            "read by",
            "orders",
            "delivered",
            "sum of totals",
        )
        if len(set(evening.values())) > 1 or len(set(midday.values())) > 1:
            raise SystemExit("They do not agree: this is a bug of Lowmark.")
        say("They agree.")

    def look_back(self) -> None:
        """At one order; and too far."""
        step("Look back: one order as it was at noon, and as it is.")
        columns = ["id", "status", "total"]
        then = self.orders.read(columns=columns, as_of=self.moments["noon"]).to_arrow()
        show(
            [
                ("noon", *order_in(then)),
                ("now", *order_in(pa.Table.from_pylist([self.orders.get(HERO)]))),
            ],
            "",
            "id",
            "status",
            "total",
        )
        step("Look back to the morning: the low watermark has passed it, and nothing is made up.")
        try:
            self.orders.read(as_of=self.moments["morning"])
        except BelowWatermark as refused:
            say(f"{type(refused).__name__}: {refused.message}")

    def hold(self, spark: Any, first: RunRecord) -> None:
        """A cursor, more changes, and a run that costs what changed."""
        step("A cursor keeps what its reader has not read yet; compaction does not cut it.")
        orders = self.orders
        cursor = orders.cursors.create("billing")
        orders.cursors.create("search", kind="compacted", start="latest")
        read = 0
        with orders.read(start=cursor.position, columns=["id"]) as reader:
            for batch in reader:
                read += batch.num_rows
                if read > cursor.lag_rows // 3:
                    break
            cursor = orders.cursors.commit("billing", reader.position)
        say(f"billing has read {read:,} changes, and has {cursor.lag_rows:,} to go.")

        step(f"{self.few:,} more changes, and compact again. A run costs what is new.")
        self.few_more("night")
        self.db.advance_watermark(self.moments["night"])
        again = compacted(orders, spark)
        show(
            [run_row("first run", first), run_row("second run", again)],
            "",
            "changes",
            "read",
            "written",
            "seconds",
        )
        self.few_more("dawn")
        self.db.advance_watermark(self.moments["dawn"])  # a run would take these, too
        self.few_more("today")

        step("Explain: why is the backlog still there?")
        explained = orders.explain()
        kept = self.orders.tide(stretches=0).kept_bytes
        say(f"{size(kept)} of its {size(explained.bytes)} are in the ledger, too, and stay because")
        show(
            [
                (f"{one.kind} {one.name}", one.partition, one.offset, size(one.keeps_bytes))
                for one in explained.holders
            ],
            "of",
            "in partition",
            "from offset",
            "it has to go",
        )

    def few_more(self, moment: str) -> None:
        """Some changes, and a moment after them."""
        self.orders.append(self.shop.batch(self.few))
        self.note(moment)

    def draw(self, picture: Path) -> None:
        """The tide."""
        step("A picture of where everything stands: ledger, horizon, backlog, watermark, cursors.")
        tide = self.orders.tide()
        with contextlib.suppress(OSError):
            picture.parent.mkdir(parents=True, exist_ok=True)
        try:
            tide.save(picture)
        except LowmarkError as refused:
            say(refused)
        else:
            say(f"It is in {picture}.")


class Tail:
    """A thread that follows a table and counts."""

    def __init__(self, orders: Table) -> None:
        self.seen = self.deletes = 0
        self.of_hero: list[str] = []
        columns = ["id", "status", "_change"]
        self._reader = orders.read(columns=columns, start="latest", follow=True)

    def start(self, rows: int, progress: Progress) -> None:
        """Follow until so many rows have come."""
        bar = progress.add_task("seen by the follower", total=rows)

        def follow() -> None:
            for batch in self._reader:
                self.seen += batch.num_rows
                self.deletes += pc.sum(pc.equal(batch["_change"], "delete")).as_py() or 0
                self.of_hero += batch.filter(pc.equal(batch["id"], HERO))["status"].to_pylist()
                progress.update(bar, completed=self.seen)
                if self.seen >= rows:
                    return

        self._thread = threading.Thread(target=follow, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until they have."""
        self._thread.join()
        self._reader.close()


# -- compacting -----------------------------------------------------------------------------------


def spark_is_there() -> bool:
    """Whether it can be started; if not, this says what is missing."""
    from lowmark.spark import why_not  # noqa: PLC0415

    missing = why_not()
    if missing:
        step("Without Spark, as with --no-spark: this process does the compaction.")
        say(f"{missing}.")
        say("Spark takes PySpark, which make installs, and Java 17 or newer, which it does not:")
        say("on Debian and Ubuntu, run `apt-get install openjdk-17-jre-headless`.")
    return not missing


@contextlib.contextmanager
def session(*, wanted: bool) -> Iterator[Any]:
    """A Spark session on all cores of this machine; None if there is none to be had."""
    if not wanted:
        yield None
        return
    step("Start Spark on this machine, local[*], for all runs to come.")
    began_s = time.monotonic()
    try:
        from lowmark.spark import close_session, open_session  # noqa: PLC0415

        spark = open_session("local[*]")
    except LowmarkError as refused:
        say(f"{refused.message}: compacting in this process instead. {refused.hint}")
        yield None
        return
    say(f"It took {time.monotonic() - began_s:.1f} seconds.")
    try:
        yield spark
    finally:
        close_session(spark)


def compacted(orders: Table, spark: Any) -> RunRecord:
    """A run, with a bar."""
    with bars() as progress:
        bar = progress.add_task("compacting, KiB", total=None)

        def tell(seen: RunProgress) -> None:
            progress.update(bar, completed=seen.bytes_done >> 10, total=seen.bytes_total >> 10)

        if spark is None:
            record = orders.compact(engine="local", progress=tell)
        else:
            record = orders.compact(spark=spark, progress=tell)
        total = sum(one.bytes for one in record.partitions) >> 10
        progress.update(bar, completed=total, total=total)
    return record


def run_row(name: str, record: RunRecord) -> tuple[object, ...]:
    """What a run cost."""
    cost = size(record.bytes_read), size(record.bytes_written), f"{record.seconds:.1f}"
    return name, record.rows_read, *cost


# -- reading --------------------------------------------------------------------------------------


def folded(reader: Reader) -> State:
    """What changes come to: of each order the last one, unless that is a cancellation."""
    with reader:
        return last_of_each(reader.to_arrow())


def last_of_each(changes: pa.Table) -> State:
    """Of rows in the order in which they were written: an order is in one partition."""
    ids = changes["id"].to_numpy()
    _, from_the_end = np.unique(ids[::-1], return_index=True)
    last = changes.take(pa.array(len(ids) - 1 - from_the_end))
    return state_in(last.filter(pc.equal(last["_change"], "upsert")))


def state_of(reader: Reader) -> State:
    """What a table of orders comes to."""
    with reader:
        return state_in(reader.to_arrow())


def state_in(rows: pa.Table) -> State:
    """What orders come to."""
    delivered = pc.sum(pc.equal(rows["status"], "delivered")).as_py() or 0
    return State(rows.num_rows, pc.sum(rows["total"]).as_py(), delivered)


def order_in(rows: pa.Table) -> tuple[object, ...]:
    """One order of a table, by its columns."""
    [row] = rows.filter(pc.equal(rows["id"], HERO)).to_pylist()
    return str(row["id"]), row["status"], row["total"]


try:
    import duckdb

    PARQUET_READER = "DuckDB"
except ImportError:
    PARQUET_READER = "pyarrow"


def from_parquet(files: list[str]) -> State:
    """What the ledger's files come to, read by a program that knows nothing of Lowmark."""
    if PARQUET_READER == "pyarrow":
        names = [*STATE_COLUMNS, "_change"]
        return last_of_each(pa.concat_tables(pq.read_table(file, columns=names) for file in files))
    found = duckdb.execute(
        """
        select count(*), sum(total), count(*) filter (status = 'delivered')
        from (
            select * from read_parquet(?)
            qualify row_number() over (partition by id order by _offset desc) = 1
        )
        where _change = 'upsert'
        """,
        [files],
    ).fetchone()
    assert found is not None
    return State(found[0], found[1], found[2])


if __name__ == "__main__":
    sys.exit(main())
