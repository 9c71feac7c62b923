"""What a review of tables found, one after another: each was wrong once."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowmark
from compaction.life import crash_image
from eventually import eventually
from inside import backend_of, on_loop, partition_of, proposed
from lowmark.client import Database, Table, TableUnknown
from lowmark.errors import Rejected
from lowmark.group import Future
from lowmark.runtime import COUNTER_BITS, HybridClock
from lowmark.table import BatchRefused, Trim


def flushed(table: Table) -> None:
    """Have all rows of a table in segments."""
    on_loop(table, backend_of(table).node.log.roll)
    logs = [partition_of(table, number).group.log for number in range(table.partitions)]
    eventually(lambda: all(log.state.memtable.first is None for log in logs))


@pytest.fixture
def few_files() -> Iterator[None]:
    """So few file handles that a leak shows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
def test_rows_that_are_kept_keep_no_file_handles(db: Database) -> None:
    # given many small batches in segments
    table = db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=4)
    for start in range(0, 1_200, 2):
        table.append([{"id": start, "v": "x" * 40}, {"id": start + 1, "v": "y" * 40}])
    flushed(table)
    # when all of them are read, looked up and kept
    kept = [batch for _ in range(3) for batch in table.read(batch_bytes=1)]
    rows = [table.get(number) for number in range(1_200)]
    # then everything goes on
    assert sum(batch.num_rows for batch in kept) == 3 * 1_200
    assert all(rows)
    assert table.append([{"id": 1}]).rows == 1


def test_one_row_that_is_too_large_has_nothing_of_its_call_stored(db: Database) -> None:
    table = db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=2)
    rows = [{"id": number, "v": "x"} for number in range(25_000)]
    rows[20_000]["v"] = "x" * (8 << 20)
    with pytest.raises(BatchRefused, match="row 20000 is too large"):
        table.append(rows)
    assert table.read().to_arrow().num_rows == 0


def test_a_clock_that_is_put_back_hides_no_table_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lowmark.open(tmp_path) as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=2)
        table.append([{"id": 1}])
    # given a clock that is an hour behind from now on
    real = HybridClock.__init__

    def behind(self: HybridClock, wall_ms: Any, **more: Any) -> None:
        real(self, lambda: wall_ms() - 3_600_000, **more)

    monkeypatch.setattr(HybridClock, "__init__", behind)
    with lowmark.open(tmp_path) as db:
        table = db["t"]
        table.append([{"id": 2}])
        assert [table.get(1), table.get(2)] == [{"id": 1}, {"id": 2}]
        assert sum(table.snapshot().ends.values()) == 2
        assert table.read(as_of="now").to_arrow().num_rows == 2


def test_a_clock_that_was_ahead_for_one_append_hides_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead_ms = HybridClock.__init__, 0

    def shifted(self: HybridClock, wall_ms: Any, **more: Any) -> None:
        real(self, lambda: wall_ms() + ahead_ms, **more)

    monkeypatch.setattr(HybridClock, "__init__", shifted)
    with lowmark.open(tmp_path / "data") as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=2)
        metastore, written = backend_of(db).node.cluster.metastore, 0

        def only_partitions_know() -> bool:
            """Write a row an hour ahead, and take what a crash would leave right then."""
            nonlocal ahead_ms, written
            ahead_ms += 3_600_000
            table.append([{"id": written}])
            written += 1
            crash_image(tmp_path / "data", tmp_path / "image")
            last = max(
                partition_of(table, number).view.closed for number in range(table.partitions)
            )
            known = on_loop(db, lambda: metastore.state.time)
            return known < last - (1_800_000 << COUNTER_BITS)

        # given rows whose times are an hour ahead of all that the metastore knows
        eventually(only_partitions_know)
    # when the clock is right again, and the database opened
    ahead_ms = 0
    with lowmark.open(tmp_path / "image") as db:
        table = db["t"]
        # then what is there is there now: the times of partitions were given by this clock, too
        assert table.read(as_of="now").to_arrow().num_rows == written
        assert sum(table.snapshot().ends.values()) == written


@pytest.mark.slow
def test_threads_that_ask_for_the_time_do_no_harm(db: Database, orders: Table) -> None:
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(100):
                db.table("orders", as_of="now")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        orders.append([{"id": f"{number}"}])
    for thread in threads:
        thread.join()
    assert errors == []
    assert orders.read().to_arrow().num_rows == 100


def test_whoever_is_interrupted_while_taking_a_hold_holds_nothing(
    db: Database, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = orders.append([{"id": "1"}]).parts
    watermark = backend_of(db).mark
    hold, waiting = type(watermark).hold, []

    def slow(self: Any, time: int, why: str) -> Future[Any]:
        whole: Future[Any] = Future()
        waiting.append(lambda: hold(self, time, why).then(whole.follow))
        return whole

    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    # given a caller that is interrupted before its hold is there
    monkeypatch.setattr(type(watermark), "hold", slow)
    bridge = backend_of(db).node.bridge
    ask = bridge.ask
    with monkeypatch.context() as patch:

        def ask_and_leave(function: Any, **more: Any) -> Any:
            if function.__qualname__.endswith("take"):
                bridge.call(function)
                interrupted()
            return ask(function, **more)

        patch.setattr(bridge, "ask", ask_and_leave)
        with pytest.raises(KeyboardInterrupt):
            orders.read(as_of=part.time)
    # when it is there after all
    eventually(lambda: len(waiting) == 1)
    on_loop(db, waiting[0])
    # then nothing holds the watermark
    eventually(lambda: not db.advance_watermark("now").held_by)


def test_a_follower_of_a_dropped_table_is_told(db: Database, orders: Table) -> None:
    reader = orders.read(follow=True)
    db.drop_table("orders")
    with pytest.raises(TableUnknown):
        next(reader)


@pytest.mark.slow
@pytest.mark.parametrize("follow", [False, True])
def test_a_reader_of_a_table_whose_rows_are_gone_with_it_is_told_that_it_was_dropped(
    db: Database, orders: Table, *, follow: bool
) -> None:
    # given a reader that has begun
    for number in range(40):
        orders.append([{"id": f"{number}"}])
    reader = orders.read(follow=follow, batch_bytes=1)
    next(reader)
    # when its table is dropped, and the low watermark passes that
    db.drop_table("orders")
    db.advance_watermark("now")
    backend, table = backend_of(db), orders.descriptor.id
    eventually(lambda: not backend.status(table))
    # then that is what it says
    with pytest.raises(TableUnknown):
        list(reader)


def test_rows_that_come_by_and_by_do_not_go_into_a_dropped_table(
    db: Database, orders: Table
) -> None:
    def rows() -> Iterator[dict[str, str]]:
        for number in range(20_000):
            if number == 15_000:
                db.drop_table("orders")
            yield {"id": f"{number}"}

    with pytest.raises(TableUnknown):
        orders.append(rows())
    copies = backend_of(orders).tables.of(orders.descriptor.id)
    assert sum(one.view.end for one in copies) == 10_000


def test_a_producer_keeps_a_row_as_it_was_sent(orders: Table) -> None:
    row = {"id": ""}
    with orders.producer() as producer:
        for number in range(3):
            row["id"] = f"{number}"
            producer.send(row)
    assert sorted(one["id"] for one in orders.read().to_pylist()) == ["0", "1", "2"]


@pytest.mark.slow
def test_a_closed_database_has_no_producers(tmp_path: Path) -> None:
    db = lowmark.open(tmp_path)
    producer = db.create_table("t", {"id": "int64"}, key="id").producer()
    db.close()
    eventually(lambda: not producer._thread.is_alive())


def test_no_rows_are_no_step(orders: Table) -> None:
    orders.append([{"id": f"{number}"} for number in range(10)])
    with orders.read(limit=0) as reader:
        assert reader.to_arrow().num_rows == 0
        assert set(reader.position.values()) == {0}


def test_offsets_of_partitions_that_are_not_there_are_refused(orders: Table, db: Database) -> None:
    with pytest.raises(Rejected, match="partition 9"):
        orders.read(start={9: 0})
    other = db.create_table("other", {"id": "int64"}, key="id", partitions=8)
    with pytest.raises(Rejected, match="partition 4"):
        orders.read(end=other.snapshot())


def test_a_lease_is_taken_where_the_backlog_begins(db: Database) -> None:
    events = db.create_table("events", {"n": "int64"}, partitions=1)
    events.append([{"n": number} for number in range(5)])
    proposed(events, Trim(3, expire=True))
    with events.read(start=0, on_gap="skip", follow=True, lease_ms=60_000) as reader:
        assert next(reader)["n"].to_pylist() == [3, 4]
        assert [gap.last for gap in reader.gaps] == [2]


def test_memory_that_was_read_into_is_not_used_again_while_somebody_has_it(db: Database) -> None:
    # given more rows than are read in one go, in segments
    table = db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=1)
    for start in range(0, 60_000, 5_000):
        table.append([{"id": start + number, "v": "x" * 200} for number in range(5_000)])
    flushed(table)
    # when some batches are kept and others let go, again and again
    kept = []
    for _ in range(4):
        for number, batch in enumerate(table.read(columns=["id", "v"], batch_bytes=2 << 20)):
            if number % 3 == 0:
                kept.append((batch["id"][0].as_py(), batch))
    # then what was kept is what it was
    for first, batch in kept:
        assert batch["id"].to_pylist() == list(range(first, first + batch.num_rows))
        assert set(batch["v"].to_pylist()) == {"x" * 200}
