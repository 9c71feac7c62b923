"""The store of ledgers is lost under three nodes and Spark: killed, suspended, with wrong keys.

It takes a store that can be killed: `pytest --real-store`, on loopback, or with `--hosts`, where
nodes, the store, Spark's master and its workers each have a host, and no file is common to any two
of them. `hosts/test_between.py` makes both.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.places import real_store
from eventually import eventually
from ledger.stores import RealStore
from lowmark.client import Database, Table
from lowmark.errors import LowmarkError, Unavailable
from server.nodes import Nodes, table_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.release,  # ledger/test_real_object_store, in one process
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(1_200),  # a call to a store that is away takes six seconds, of each task
]

KEYS, PARTITIONS = 300, 3


@pytest.fixture
def store() -> RealStore:
    found = real_store()
    if found is None:
        pytest.skip("it takes a store that can be killed: pytest --real-store")
    return found


@pytest.fixture
def nodes(store: RealStore, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, 3) as started:
        yield started


class Orders:
    """A table of three replicas that Spark writes, reads and compacts; and what it must have."""

    def __init__(self, spark: Any, nodes: Nodes, db: Database) -> None:
        self.spark, self.nodes = spark, nodes
        self.table: Table = table_of(db, "orders", replicas=3, partitions=PARTITIONS)
        self.copies: Table = table_of(db, "copies", replicas=3, partitions=2)
        self.expected: dict[int, str] = {}

    def options(self, node: int, table: str = "orders") -> dict[str, str]:
        return {"node": self.nodes.address(node), "table": table}

    def write(self, status: str, first: int, count: int, *, node: int = 1) -> None:
        """By tasks, which stage rows at a node."""
        frame = self.spark.range(first, first + count, numPartitions=2)
        frame.selectExpr("id", f"'{status}' AS status").write.format("lowmark").mode(
            "append"
        ).options(**self.options(node)).save()
        self.expected |= dict.fromkeys(range(first, first + count), status)

    def settle(self) -> None:
        """Let the low watermark pass all rows."""
        backend = self.table._backend
        time = backend.now(self.table.descriptor.id).time
        eventually(lambda: backend.advance_watermark(time).after >= time)

    def compact(self, **more: Any) -> str:
        return self.table.compact(spark=self.spark, verify=True, **more).state

    def stream(self, checkpoint: Path, node: int, starts: str) -> None:
        """Copy what came since the last time."""
        query = (
            self.spark.readStream.format("lowmark")
            .options(**self.options(node), columns="id,status", startingOffsets=starts)
            .load()
            .writeStream.format("lowmark")
            .options(**self.options(node, "copies"), checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def read(self, node: int) -> list[tuple[int, str]]:
        """By tasks, all rows."""
        frame = self.spark.read.format("lowmark").options(**self.options(node)).load()
        return [(row["id"], row["status"]) for row in frame.collect()]

    def check(self) -> None:
        """Executors and every node read the same, and all of it."""
        for node in range(3):
            found = self.read(node)
            assert len(found) == len(self.expected)
            assert dict(found) == self.expected
            with self.nodes.connect(node) as db:
                rows = db["orders"].read(compacted=True).to_pylist()
                assert {row["id"]: row["status"] for row in rows} == self.expected
                assert db["orders"].get(7) == {"id": 7, "status": self.expected[7]}
        assert [one.problems for one in self.table.verify_ledgers()] == [()] * PARTITIONS


@pytest.fixture
def orders(spark: Any, nodes: Nodes) -> Iterator[Orders]:
    with nodes.connect(0) as db:
        orders = Orders(spark, nodes, db)
        for status in ("new", "paid"):
            orders.write(status, 0, KEYS)
        orders.settle()
        assert orders.compact() == "done"
        orders.check()
        yield orders


def refused(what: Callable[[], object]) -> str:
    """What it ends with; a task's error, as Spark shows it."""
    try:
        what()
    except Exception as error:  # Spark's, or ours
        return f"{type(error).__name__} {error}"
    raise AssertionError("it was not refused")


def test_a_store_that_is_killed_loses_nothing_and_all_goes_on_when_it_is_back(
    orders: Orders, store: RealStore, tmp_path: Path
) -> None:
    first = KEYS
    for turn, step in enumerate(("a file", "publish partition 1")):
        # given rows that were written again since the last run
        orders.write(f"turn {turn}", 0, KEYS // 2, node=turn % 3)
        orders.settle()
        killed = threading.Event()

        def kill(name: str, wanted: str = step, killed: threading.Event = killed) -> None:
            if name == wanted and not killed.is_set():
                killed.set()
                store.kill()

        def kill_at_file(killed: threading.Event = killed) -> None:
            before = set(store.objects.rglob("*.parquet"))
            while not killed.wait(0.01):
                if set(store.objects.rglob("*.parquet")) - before:
                    kill("a file")

        watch = threading.Thread(target=kill_at_file) if step == "a file" else None
        if watch is not None:
            watch.start()
        # when the store is killed in a run of executors, then the run ends by name, or is done
        try:
            with contextlib.suppress(LowmarkError):
                orders.compact(step=kill)
        finally:
            if not killed.is_set():
                killed.set()
                store.kill()
            if watch is not None:
                watch.join()
        # and while it is away, executors write, and what is in the backlog is read by its offset
        orders.write("meanwhile", first, 30, node=(turn + 1) % 3)
        assert orders.table.get(first) == {"id": first, "status": "meanwhile"}
        # and what needs a ledger is refused by name, in tasks, too: nothing is left out
        assert "StoreFailed" in refused(lambda: orders.read(2))
        with pytest.raises(Unavailable):
            orders.table.read(compacted=True).to_arrow()
        # when it is back, then all is there, without a restart, and the next run goes on
        store.start()
        orders.check()
        orders.settle()
        assert orders.compact() == "done"
        orders.check()
        first += 30
    # and no file is left that nothing needs: a run that was interrupted has left none
    assert orders.table.sweep() == []


def test_a_stream_goes_on_without_the_store_as_long_as_its_rows_are_in_the_backlog(
    orders: Orders, store: RealStore, tmp_path: Path
) -> None:
    def copied() -> dict[int, str]:
        return {row["id"]: row["status"] for row in orders.copies.read().to_pylist()}

    # given a stream that stands behind what was compacted
    ends = [
        one.view.end for one in orders.table._backend.status(orders.table.descriptor.id).values()
    ]
    starts = json.dumps({str(number): end for number, end in enumerate(ends)})
    orders.write("streamed", KEYS, 40)
    orders.stream(tmp_path / "checkpoint", 1, starts)
    assert copied() == dict.fromkeys(range(KEYS, KEYS + 40), "streamed")
    # when the store is killed, and more comes, then it goes on
    store.kill()
    orders.write("streamed", KEYS + 40, 40, node=2)
    orders.stream(tmp_path / "checkpoint", 2, starts)
    assert copied() == dict.fromkeys(range(KEYS, KEYS + 80), "streamed")
    # and each row has come once
    assert orders.copies.read().to_arrow().num_rows == 80
    store.start()
    orders.check()


def test_a_store_that_is_suspended_and_then_slow_delays_a_run_or_ends_it_by_name(
    orders: Orders, store: RealStore
) -> None:
    # given a store that answers nothing for a while as executors begin
    orders.write("late", 0, KEYS)
    orders.settle()
    over = threading.Event()

    def slow() -> None:
        with store.suspended():
            over.wait(10)
        while not over.is_set():
            with store.suspended():
                over.wait(0.2)
            over.wait(0.05)

    pulse = threading.Thread(target=slow)
    begun = threading.Event()

    def step(name: str) -> None:
        if name == "carry out the work" and not begun.is_set():
            begun.set()
            pulse.start()

    # when it is slow from then on
    try:
        state = ""
        with contextlib.suppress(Unavailable):
            state = orders.compact(step=step)
    finally:
        over.set()
        if begun.is_set():
            pulse.join()
    # then the run is done, or has ended by name, and nothing is lost
    assert begun.is_set()
    orders.check()
    if state != "done":
        assert orders.compact() == "done"
        orders.check()


def test_a_store_that_refuses_our_keys_is_told_by_executors_and_nothing_is_removed(
    orders: Orders, store: RealStore
) -> None:
    orders.write("again", 0, KEYS)
    orders.settle()
    before = {one for one in store.objects.rglob("*") if one.is_file()}
    # given a store whose keys change as executors begin
    changed = threading.Event()

    def change(name: str) -> None:
        if name == "carry out the work" and not changed.is_set():
            changed.set()
            store.kill()
            store.start(secret="another")

    # when a run needs it, then it hears so, and no key is shown
    with pytest.raises(LowmarkError) as told:
        orders.compact(step=change)
    said = str(told.value)
    assert "SECRET" not in said
    assert json.dumps(said)
    orders.write("meanwhile", KEYS, 10)
    store.kill()
    store.start()
    # then with the right ones all is there, and the next run goes on
    assert before <= {one for one in store.objects.rglob("*") if one.is_file()}
    orders.check()
    orders.settle()
    assert orders.compact() == "done"
    orders.check()
