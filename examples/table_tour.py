"""Tables in your process, the small things: append, tail, look up, look back, die, recover.

    .venv/bin/python examples/table_tour.py

A first process makes a table of orders in a fresh directory, uses it, and kills itself with -9. A
second one opens what is left: everything that was acknowledged is there. Then it looks at
what is kept for which reader, and moves the low watermark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from textwrap import indent

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

import lowmark
from lowmark.client import Reader, ValueRefused
from lowmark.table import BelowWatermark

console = Console(highlight=False, soft_wrap=True)


def step(title: str) -> None:
    """What comes next."""
    console.print(f"\n{title}", style="bold")


def say(*what: object) -> None:
    """What came of it."""
    console.print(indent(" ".join(map(str, what)), "  "), markup=False)


def first_life(folder: str) -> None:
    """Make a table, use it, and die."""
    step("Open a directory. Nothing has to be started.")
    db = lowmark.open(folder, watermark_availability_ms=1_000)
    orders = db.create_table(
        "orders",
        {"id": "string", "status": "string", "amount": "decimal(12,2)"},
        key="id",
        partitions=4,
    )
    say(orders)

    step("Append: dicts, pandas, Polars or Arrow. It returns when the rows are durable.")
    orders.append([{"id": "o-1", "status": "new", "amount": 9}])
    many = pa.table({"id": [f"c-{number}" for number in range(10_000)]})
    many = many.append_column("amount", pa.array(range(10_000)))
    result = orders.append(many)
    where = ", ".join(f"{part.rows} in {part.partition}" for part in result.parts)
    say(f"{result.rows:,} rows of an Arrow table, by the hash of their key: {where}.")

    step("A value that its column can't hold is refused, and nothing of its batch is stored.")
    try:
        orders.append([{"id": "o-2", "amount": "9.50"}, {"id": "o-3", "amount": "9.505"}])
    except ValueRefused as refused:
        say(f"{type(refused).__name__}: {refused.message}")

    step("Tail it from another thread, while a producer sends rows one at a time.")
    tail = orders.read(columns=["id", "status", "_offset"], start="latest", follow=True)
    tailing = threading.Thread(target=print_three, args=[tail])
    tailing.start()
    before = orders.snapshot()
    with orders.producer(linger_ms=5) as producer:
        for status in ("paid", "packed", "shipped"):
            producer.send({"id": "o-1", "status": status, "amount": "9.50"})
    tailing.join()

    step("Look up, look back.")
    say("now:", orders.get("o-1"))
    then = {row["id"]: row for row in orders.read(as_of=before.time).to_pylist()}
    say("before the producer:", then["o-1"])

    step("A delete is a change like any other. None is None; explain tells why.")
    orders.delete(["c-17"])
    say("get:", orders.get("c-17"), "and", orders.get("c-99999"))
    say(orders.explain("c-17"))
    say(orders.explain("c-99999"))

    step("A cursor is a durable reader: it keeps what it has not seen.")
    cursor = orders.cursors.create("billing")
    with orders.read(start=cursor.position) as reader:
        seen = next(reader).num_rows
        cursor = orders.cursors.commit("billing", reader.position)
    say(f"billing has seen {seen:,} rows, and has {cursor.lag_rows:,} to go.")

    step("kill -9")
    os.kill(os.getpid(), signal.SIGKILL)


def print_three(tail: Reader) -> None:
    """Show the first three rows that come."""
    left = 3
    for batch in tail:
        for row in batch.to_pylist():
            say("tail:", row)
            left -= 1
        if left <= 0:
            return


def second_life(folder: str) -> None:
    """Open what is left."""
    step("Recovered: everything that was acknowledged is there.")
    with lowmark.open(folder) as db:
        orders = db["orders"]
        changes = orders.read(columns=["_time", "_change"]).to_arrow()
        say(f"{changes.num_rows:,} changes, of which one is a delete: c-17 is", orders.get("c-17"))
        say("the last row of o-1 is", orders.get("o-1"))
        say(f"billing still has {orders.cursors.get('billing').lag_rows:,} rows to go")

        step("What is kept, for which reader, and why?")
        say(orders.explain())

        step("History is exact from the low watermark on. A reader that looks back holds it.")
        first = pc.min(changes["_time"]).as_py()
        with orders.read(as_of=first) as reader:
            say("as of the first append:", reader.to_pylist())
        reader = orders.read(as_of=first)
        moved = db.advance_watermark("now")
        say("held by", "; ".join(f"{one.holder}: {one.why}" for one in moved.held_by))
        reader.close()
        db.advance_watermark("now")
        try:
            orders.read(as_of=first)
        except BelowWatermark as refused:
            say(f"{type(refused).__name__}: {refused.message}")

    step("Closed. Go on with README.md, docs/guide/, or `lowmark --help`.")


def main() -> int:
    """Two lives in one folder, the first in a process of its own."""
    if len(sys.argv) == 3 and sys.argv[1] == "--first-life":
        first_life(sys.argv[2])
        return 1
    with tempfile.TemporaryDirectory(prefix="lowmark-") as home:
        folder = f"{home}/data"
        died = subprocess.run([sys.executable, __file__, "--first-life", folder], check=False)
        if died.returncode != -signal.SIGKILL:
            say(f"The first process should have been killed, and ended with {died.returncode}.")
            return 1
        second_life(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
