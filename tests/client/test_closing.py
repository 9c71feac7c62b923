"""The end of a database: use after it, closing while others work, and directories that won't open.

Whatever was open ends with an error that has a name, soon; nothing hangs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.backend import exits
from lowmark.client import AppendFailed, Closed, Database, Producer, Reader, Table
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.group import QuarantinedHere
from lowmark.log.errors import Damaged
from lowmark.node import NodeClosing
from lowmark.runtime import Locked
from node.running import Running

SOON_S = 20.0
"""Longer than anything may take, on a machine that is busy with other tests."""


def row(number: int) -> dict[str, object]:
    return {"id": f"o-{number}", "status": "new", "amount": number}


class Working:
    """Something that goes on, on a thread of its own, until it fails."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.times = 0
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._work()
                self.times += 1
        except BaseException as error:
            self.error = error

    def under_way(self) -> Self:
        eventually(lambda: self.times > 2 or self.error is not None)
        assert self.error is None, self.error
        return self

    def ended_with(self, *kinds: type[BaseException]) -> None:
        self._thread.join(SOON_S)
        assert not self._thread.is_alive(), "it hangs"
        assert isinstance(self.error, kinds), repr(self.error)


# -- use after the end ----------------------------------------------------------------------------

AFTER: dict[str, Callable[[Database, Table, Reader, Reader], object]] = {
    "Database.table": lambda db, *_: db.table("orders"),
    "Database[...]": lambda db, *_: db["orders"],
    "Database.tables": lambda db, *_: db.tables(),
    "Database.catalog": lambda db, *_: db.catalog,
    "Database.create_table": lambda db, *_: db.create_table("t", {"id": "string"}),
    "Database.drop_table": lambda db, *_: db.drop_table("orders"),
    "Database.watermark": lambda db, *_: db.watermark(),
    "Database.advance_watermark": lambda db, *_: db.advance_watermark(),
    "with Database": lambda db, *_: db.__enter__(),
    "Table.append": lambda _, table, *__: table.append([row(1)]),
    "Table.append of nothing": lambda _, table, *__: table.append([]),
    "Table.delete": lambda _, table, *__: table.delete(["o-1"]),
    "Table.get": lambda _, table, *__: table.get("o-1"),
    "Table.get_many": lambda _, table, *__: table.get_many(["o-1"]),
    "Table.read": lambda _, table, *__: table.read(),
    "Table.read as of": lambda _, table, *__: table.read(as_of="2020-01-01T00:00:00Z"),
    "Table.snapshot": lambda _, table, *__: table.snapshot(),
    "Table.producer": lambda _, table, *__: table.producer(),
    "Table.cursors": lambda _, table, *__: table.cursors,
    "Table.explain": lambda _, table, *__: table.explain(),
    "Table.trim": lambda _, table, *__: table.trim({0: 1}),
    "Reader of the rest": lambda _, __, reader, ___: list(reader),
    "Reader that follows": lambda _, __, ___, reader: next(reader),
}


@pytest.mark.parametrize("what", AFTER)
def test_use_after_close_is_refused_by_name(db: Database, orders: Table, what: str) -> None:
    # given a database that was used, and readers that were read from
    for number in range(3):
        orders.append([row(number * 10 + at) for at in range(10)])
    assert orders.get("o-1") is not None
    bounded, following = orders.read(batch_bytes=1), orders.read(follow=True, start="latest")
    next(bounded)
    # when it is closed
    db.close()
    # then nothing can be done with anything of it, and the error says so
    with pytest.raises(Closed, match="is closed"):
        AFTER[what](db, orders, bounded, following)


def test_what_can_still_be_asked_after_close(db: Database, orders: Table) -> None:
    orders.append([row(1)])
    reader = orders.read()
    db.close()
    assert db.closed
    assert "closed" in repr(db)
    assert "orders" in repr(orders)
    assert (orders.name, orders.key, orders.partitions) == ("orders", ("id",), 4)
    assert orders.schema.names == ["id", "status", "amount"]
    assert isinstance(reader.position, dict)
    reader.close()


def test_closing_twice_is_fine_for_everything(db: Database, orders: Table) -> None:
    producer, reader = orders.producer(), orders.read(follow=True)
    producer.send(row(1))
    for thing in (producer, reader, db):
        thing.close()
        thing.close()
    producer.close()
    reader.close()


def test_with_closes_also_when_it_is_left_by_an_error(tmp_path: Path) -> None:
    db = lowmark.open(tmp_path)

    def fail() -> None:
        with db:
            db.create_table("t", {"id": "string"}).append([{"id": "1"}])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert db.closed
    # and so the directory is free, with all that is in it
    with lowmark.open(tmp_path) as again:
        assert again["t"].read().to_pylist() == [{"id": "1"}]


def test_a_database_that_was_closed_can_be_opened_again_and_again(tmp_path: Path) -> None:
    for number in range(4):
        with lowmark.open(tmp_path) as db:
            table = db.create_table("t", {"id": "int64"}, key="id", if_not_exists=True)
            table.append([{"id": number}])
            assert [table.get(at) for at in range(number + 1)] == [
                {"id": at} for at in range(number + 1)
            ]


# -- producers and readers ------------------------------------------------------------------------


def test_a_producer_that_was_closed_takes_nothing_more(orders: Table) -> None:
    producer = orders.producer()
    producer.send(row(1))
    producer.close()
    assert producer.rows == 1
    with pytest.raises(Closed, match="producer is closed"):
        producer.send(row(2))
    with pytest.raises(Closed, match="producer is closed"):
        producer.send_many([row(2)])
    assert orders.read().to_arrow().num_rows == 1


def test_a_producer_of_a_closed_database_has_stored_what_it_was_given_and_takes_no_more(
    db: Database, orders: Table
) -> None:
    # given a row that lingers
    producer = orders.producer(linger_ms=600_000)
    producer.send(row(1))
    # when the database is closed
    db.close()
    # then the row is stored, and no other is taken
    assert producer.rows == 1
    assert producer.unsent == []
    with pytest.raises(Closed):
        producer.send(row(2))
    producer.flush()
    producer.close()


def test_a_producer_that_fails_names_each_row_once(db: Database) -> None:
    # given a producer with batches of more rows than are sent together
    table = db.create_table("t", {"id": "int64"}, partitions=1)
    producer = table.producer(linger_ms=600_000, batch_rows=200_000)
    producer.send_many({"id": number} for number in range(70_000))
    # when the partition stops
    node = backend_of(db).node
    assert node.tables is not None
    (partition,) = (one for one in node.tables.all())
    backend_of(db).ask_now(lambda: node.groups.close_group(partition.group.name))
    with pytest.raises(Unavailable):
        producer.flush()
    # then what was not stored is told, each row once
    assert [one["id"] for one in producer.unsent] == list(range(70_000))


class Sending(Working):
    """Sends one row after another; `sent` are those that were taken for certain."""

    def __init__(self, producer: Producer) -> None:
        self.sent = 0

        def send() -> None:
            producer.send(row(self.sent))
            self.sent += 1

        super().__init__(send)


def within(work: Callable[[], object]) -> None:
    """Do it on a thread of its own: it ends by itself, and soon."""
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    eventually(done.is_set, deadline_s=SOON_S)


@pytest.mark.slow
def test_flush_waits_for_what_was_sent_before_it_and_not_for_what_comes_after(
    orders: Table,
) -> None:
    # given a thread that sends without a pause
    producer = orders.producer(linger_ms=0, batch_rows=100)
    sending = Sending(producer).under_way()
    stored: list[tuple[int, int]] = []

    def flush() -> None:
        before = sending.sent
        producer.flush()
        stored.append((before, producer.rows))

    # when another one flushes, again and again, then it returns each time
    for _ in range(20):
        within(flush)
    # and by then what had been sent was stored
    assert all(before <= rows for before, rows in stored)
    # and what comes after goes on to be taken
    assert sending.error is None
    sent = sending.sent
    eventually(lambda: sending.sent > sent)
    producer.close()
    sending.ended_with(Closed)


@pytest.mark.parametrize("what", ["producer", "database"])
def test_closing_waits_for_what_was_sent_before_it_and_takes_nothing_more(
    db: Database, orders: Table, what: str
) -> None:
    # given a thread that sends without a pause
    producer = orders.producer(linger_ms=0, batch_rows=100)
    sending = Sending(producer).under_way()
    # when the producer, or its database, is closed by another one
    before = sending.sent
    within(producer.close if what == "producer" else db.close)
    # then what had been sent was stored, and the one that sends is told
    sending.ended_with(Closed)
    assert producer.rows >= before
    # and each row was stored, or is told as unsent; the one that was refused may be among them
    eventually(lambda: producer.rows + len(producer.unsent) - sending.sent in {0, 1})


def test_rows_sent_together_are_looked_at_together(orders: Table) -> None:
    """What is done for each row in Python is what sending costs."""
    rows = [row(number) for number in range(20_000)]
    producer = orders.producer()
    producer.send_many(rows[:1])  # what is imported with the first batch is no cost of rows
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    # when rows are sent together, and functions called by this thread are counted
    sys.setprofile(count)
    try:
        producer.send_many(rows[1:])
    finally:
        sys.setprofile(None)
    # then there are few for each batch, and none for each row
    assert calls < 200
    producer.close()
    assert producer.rows == 20_000
    assert orders.read(columns=["id"]).to_arrow().num_rows == 20_000


def test_rows_of_a_source_that_pauses_do_not_wait_for_the_next_one(orders: Table) -> None:
    # given rows from a source that gives three, and waits
    going_on = threading.Event()

    def source() -> Iterator[dict[str, object]]:
        yield from (row(number) for number in range(3))
        going_on.wait(SOON_S)
        yield row(3)

    producer = orders.producer(linger_ms=1)
    sending = threading.Thread(target=lambda: producer.send_many(source()), daemon=True)
    sending.start()
    # then those three are stored meanwhile
    eventually(lambda: producer.rows == 3)
    # and the fourth when it comes
    going_on.set()
    sending.join(SOON_S)
    producer.close()
    assert producer.rows == 4


def test_rows_before_one_that_cannot_be_had_are_sent(orders: Table) -> None:
    def source() -> Iterator[dict[str, object]]:
        yield row(1)
        yield row(2)
        raise ZeroDivisionError

    with orders.producer() as producer:
        with pytest.raises(ZeroDivisionError):
            producer.send_many(source())
        producer.flush()
        assert producer.rows == 2


def test_rows_that_are_sent_together_may_be_used_again_by_the_caller(orders: Table) -> None:
    rows = [row(1)]
    with orders.producer(linger_ms=600_000) as producer:
        producer.send_many(rows)
        rows[0]["status"] = "changed"
    found = orders.get("o-1")
    assert found is not None
    assert found["status"] == "new"


@pytest.mark.parametrize("what", ["producer", "database"])
def test_rows_that_come_after_the_end_are_told_as_unsent(
    db: Database, orders: Table, what: str
) -> None:
    # given rows from a source in the middle of which the producer, or its database, is closed
    producer = orders.producer(linger_ms=1)

    def source() -> Iterator[dict[str, object]]:
        yield row(1)
        within(producer.close if what == "producer" else db.close)
        yield row(2)
        yield row(3)

    # when they are sent together, then the caller is told
    with pytest.raises(Closed):
        producer.send_many(source())
    # and the first one was stored, and the others were not
    assert producer.rows == 1
    assert [one["id"] for one in producer.unsent] == ["o-2", "o-3"]


def test_rows_of_several_threads_that_come_after_the_end_are_all_told_as_unsent(
    orders: Table,
) -> None:
    producer = orders.producer(linger_ms=1)
    waits, goes, added = ([threading.Event() for _ in range(2)] for _ in range(3))

    def source(one: int) -> Iterator[dict[str, object]]:
        yield row(one)
        waits[one].set()
        assert goes[one].wait(30)
        yield row(10 + one)
        added[one].set()  # the queue has it: it asks for the next one

    def send(one: int) -> None:
        with pytest.raises(Closed):
            producer.send_many(source(one))

    class Unsent(list[Mapping[str, Any]]):
        """Has the second thread add its row while the first one tells of its own."""

        def __iadd__(self, rows: Iterable[Any]) -> Self:  # type: ignore[override,misc]
            self.extend(rows)
            goes[1].set()
            assert added[1].wait(30)
            return self

    # given two threads that have more rows for a producer that is closed
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(send, one) for one in range(2)]
        assert all(one.wait(30) for one in waits)
        producer.close()
        producer.unsent = Unsent()
        # when one adds a row while the other one leaves
        goes[0].set()
        for one in sent:
            one.result(30)
    # then both are told
    assert sorted(str(one["id"]) for one in producer.unsent) == ["o-10", "o-11"]


def test_a_reader_that_was_closed_gives_nothing_more(orders: Table) -> None:
    orders.append([row(number) for number in range(50)])
    reader = orders.read(batch_bytes=1)
    next(reader)
    reader.close()
    assert list(reader) == []
    with orders.read(follow=True) as following:
        next(following)
    assert list(following) == []


def test_a_reader_that_waits_is_ended_by_another_thread(orders: Table) -> None:
    reader = orders.read(follow=True, start="latest")
    waiting = Working(lambda: next(reader))
    reader.close()
    waiting.ended_with(StopIteration)


def test_a_reader_that_follows_a_partition_that_stops_is_told(db: Database, orders: Table) -> None:
    """It waited for ever for what nobody can append any more."""
    # given a reader that waits
    reader = orders.read(follow=True, start="latest")
    waiting = Working(lambda: next(reader))
    # when a copy of a partition is found to be damaged
    node = backend_of(db).node
    assert node.tables is not None
    group = node.tables.all()[2].group
    damage = Damaged("a segment", offset=7, what="it rots")
    backend_of(db).ask_now(lambda: node.groups.quarantine(group.name, damage))
    # then the reader says so, as appends do
    waiting.ended_with(QuarantinedHere)
    with pytest.raises(AppendFailed):
        orders.append([row(number) for number in range(50)])


# -- closing while others work --------------------------------------------------------------------


def busy(db: Database, orders: Table) -> list[Working]:
    """Everything that callers do, all at a time."""
    numbers = iter(range(1_000_000))
    producer = orders.producer(linger_ms=1, batch_rows=50)

    def produce() -> None:
        producer.send(row(next(numbers)))
        if next(numbers) % 7 == 0:
            producer.flush()

    followed = orders.read(follow=True)
    silent = orders.read(follow=True, start="latest", partitions=[0], columns=["id"])
    del db
    return [
        Working(lambda: orders.append([row(next(numbers)) for _ in range(20)])).under_way(),
        Working(lambda: orders.append(dict(row(next(numbers))) for _ in range(20))).under_way(),
        Working(produce).under_way(),
        Working(lambda: orders.get("o-1")).under_way(),
        Working(lambda: orders.get_many(["o-1", "o-2", "nobody"])).under_way(),
        Working(lambda: next(followed)).under_way(),
        Working(lambda: orders.read(columns=["id"]).to_arrow()).under_way(),
        Working(orders.snapshot).under_way(),
        Working(lambda: [None for _ in silent]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("life", range(3))
def test_whoever_works_when_it_is_closed_gets_a_named_error_and_nothing_hangs(
    tmp_path: Path, life: int
) -> None:
    del life
    # given threads that append, produce, look up, read, follow and wait
    with lowmark.open(tmp_path) as db:
        orders = db.create_table(
            "orders", {"id": "string", "status": "string", "amount": "int64"}, key="id"
        )
        orders.append([row(1)])
        working = busy(db, orders)
        # when the database is closed under them
        db.close()
    # then each ends, with an error that says what to do
    for each in working:
        each.ended_with(Closed, NodeClosing, AppendFailed, Unavailable)
        assert isinstance(each.error, LowmarkError)
    # and the directory is whole
    with lowmark.open(tmp_path) as again:
        rows = again["orders"].read(columns=["id", "_partition", "_offset"]).to_pylist()
    for number in {one["_partition"] for one in rows}:
        offsets = [one["_offset"] for one in rows if one["_partition"] == number]
        assert offsets == list(range(len(offsets)))


def test_an_append_that_returned_is_there_whoever_closed_meanwhile(tmp_path: Path) -> None:
    # given a thread that appends, and notes what returned
    stored: list[int] = []
    with lowmark.open(tmp_path) as db:
        table = db.create_table("t", {"id": "int64"}, key="id")

        def append() -> None:
            number = len(stored)
            table.append([{"id": number}])
            stored.append(number)

        appending = Working(append).under_way()
        # when it is closed
        db.close()
    appending.ended_with(Closed, NodeClosing, AppendFailed)
    # then what returned is there, and at most the one whose outcome nobody knows is there, too
    with lowmark.open(tmp_path) as again:
        ids = sorted(one["id"] for one in again["t"].read().to_pylist())
    assert ids in (stored, [*stored, len(stored)])


def test_two_threads_may_close_at_a_time(db: Database, orders: Table) -> None:
    orders.append([row(1)])
    closing = [threading.Thread(target=db.close) for _ in range(4)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(SOON_S)
        assert not thread.is_alive()
    assert db.closed


# -- directories that won't open ------------------------------------------------------------------


def test_a_directory_that_is_open_in_this_process_can_t_be_owned_twice(
    db: Database, orders: Table
) -> None:
    orders.append([row(1)])
    with pytest.raises(Locked, match="open in this process"):
        lowmark.open(db.path, owner=True)
    # and it did no harm
    orders.append([row(2)])
    assert orders.read().to_arrow().num_rows == 2
    # but it can be used twice
    with lowmark.open(db.path) as again:
        again["orders"].append([row(3)])
    assert orders.read().to_arrow().num_rows == 3


@pytest.mark.slow
def test_a_directory_of_a_node_with_others_is_refused(tmp_path: Path) -> None:
    # given a cluster of two nodes that was stopped
    one = Running(tmp_path / "n1", name="n1")
    with one, Running(tmp_path / "n2", name="n2", join=one.endpoint):
        pass
    # then neither of them can be run inside a process: it could not reach the other
    for name in ("n1", "n2"):
        with pytest.raises(Rejected, match="other nodes"):
            lowmark.open(tmp_path / name)
    # and asking did not lock it
    with pytest.raises(Rejected, match="other nodes"):
        lowmark.open(tmp_path / "n2")


def test_a_directory_of_a_node_on_its_own_can_be_opened_and_served_again(tmp_path: Path) -> None:
    with Running(tmp_path / "n1", name="n1"):
        pass
    with lowmark.open(tmp_path / "n1") as db:
        db.create_table("t", {"id": "string"}).append([{"id": "1"}])
    with Running(tmp_path / "n1", name="n1"):
        pass
    with lowmark.open(tmp_path / "n1") as db:
        assert db["t"].read().to_pylist() == [{"id": "1"}]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("something of somebody")
    with pytest.raises(LowmarkError) as refused:
        lowmark.open(path)
    assert str(path) in str(refused.value)
    assert path.read_text() == "something of somebody"
    with pytest.raises(LowmarkError):
        lowmark.open(path / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_can_t_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(LowmarkError, match="denied"):
            lowmark.open(tmp_path / "data")
        with pytest.raises(LowmarkError, match="denied"):
            lowmark.open(tmp_path)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("path", ["/proc/lowmark", "/dev/null", "/sys/kernel/lowmark"])
def test_a_place_where_nobody_can_write_is_refused_by_name(path: str) -> None:
    with pytest.raises(LowmarkError) as refused:
        lowmark.open(path)
    assert path in str(refused.value)


def test_a_database_that_can_t_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(LowmarkError):
            lowmark.open(tmp_path / "file")
    eventually(lambda: threading.active_count() <= before)


def test_a_closed_database_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    db = lowmark.open(tmp_path)
    table = db.create_table("t", {"id": "string"})
    producers: list[Producer] = [table.producer() for _ in range(3)]
    reader: Any = table.read(follow=True)
    for producer in producers:
        producer.send({"id": "1"})
        producer.close()
    reader.close()
    db.close()
    eventually(lambda: threading.active_count() <= before)


def test_rows_are_stored_at_exit_before_anything_is_ended(db: Database) -> None:
    # given rows that wait for a minute, if nothing has them stored before
    table = db.create_table("waiting", {"id": int}, partitions=1)
    producer = table.producer(linger_ms=60_000)
    producer.send({"id": 1})
    # when the interpreter ends, and comes to the rows
    for store in exits._closing["rows"]:
        store()
    # then they are stored
    assert table.count() == 1
    # and runs are ended only when their database is closed: one that is stuck is waited for once
    assert not db._compactor.closing
