"""A server that goes away and comes back: nothing is lost, nothing comes twice, readers go on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import flight

import lowmark
from eventually import eventually
from lowmark import errors
from lowmark.backend.protocol import decode_request
from lowmark.catalog import DropTable
from lowmark.client import Database
from lowmark.client.cluster import Cluster
from lowmark.metastore import NodeInfo, Put
from lowmark.metastore.nodes import node_key
from lowmark.node.bridge import NodeSilent
from lowmark.runtime import DiskFull
from lowmark.server.service import as_lost
from server.world import COLUMNS, Served, ServedProcess


@pytest.fixture(params=["tcp", "unix"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    address = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/socket"
    with Served(tmp_path / "data", address) as one:
        yield one


@pytest.fixture
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


def rows(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "status": "new"} for number in range(first, end)]


@pytest.mark.slow
def test_a_client_goes_on_when_its_server_is_started_again(served: Served, db: Database) -> None:
    # given a table that was used in every way
    orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
    orders.append(rows(0, 5))
    producer = orders.producer(linger_ms=0)
    producer.send_many(rows(5, 7))
    producer.flush()
    reader = orders.read(batch_bytes=1)
    first = next(reader)
    # when the server is started again
    served.restart()
    # then the same objects go on: appends, producers, look-ups, the catalog, a read under way
    orders.append(rows(7, 10))
    producer.send_many(rows(10, 12))
    producer.flush()
    assert orders.get(11) == {"id": 11, "status": "new"}
    assert sorted([*first["id"].to_pylist(), *reader.to_arrow()["id"].to_pylist()]) == [*range(7)]
    db.create_table("other", COLUMNS, key="id")
    assert db.tables() == ["orders", "other"]
    assert len(orders.read().to_pylist()) == 12


@pytest.mark.slow
def test_a_reader_that_follows_goes_on_without_gap_or_repeat(served: Served, db: Database) -> None:
    orders = db.create_table("orders", COLUMNS, partitions=2)
    seen: list[int] = []
    reader = orders.read(follow=True, columns=["id"])

    def follow() -> None:
        for batch in reader:
            seen.extend(batch["id"].to_pylist())
            if len(seen) >= 60:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    # given a reader that waits for more, when the server is started again and again
    for first in range(0, 60, 20):
        orders.append(rows(first, first + 20))
        eventually(lambda first=first: len(seen) == first + 20)  # type: ignore[misc]
        if first < 40:
            served.restart()
    # then it has every row once
    thread.join(30)
    assert sorted(seen) == list(range(60))
    assert served.backend._kept
    reader.close()
    eventually(lambda: not served.backend._kept)


@pytest.mark.slow
def test_rows_in_flight_are_stored_once_whenever_the_server_goes(
    served: Served, db: Database
) -> None:
    # given a producer with much under way
    events = db.create_table("events", COLUMNS, partitions=3)
    producer = events.producer(linger_ms=0, batch_rows=20, in_flight=16)
    over = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not over.is_set():
            producer.send_many(rows(sent, sent + 50))
            sent += 50

    thread = threading.Thread(target=send)
    thread.start()
    # when the server goes away in the middle, with and without its database
    for again in (served.restart, served.server.close, served.restart):
        before = producer.rows
        eventually(lambda before=before: producer.rows > before + 200)  # type: ignore[misc]
        again()
        if again == served.server.close:
            served.serve()
    over.set()
    thread.join(60)
    producer.close()
    # then every row is there, once, in order
    assert producer.rows == sent
    found = events.read(columns=["id", "_partition", "_offset"]).to_pylist()
    assert Counter(row["id"] for row in found) == Counter(range(sent))


def test_what_may_have_been_done_is_not_done_again(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server whose answers are lost after it did what it was asked
    db.create_table("orders", COLUMNS, key="id")
    done = 0
    call = served.server.endpoint._service.call

    def lost(body: bytes) -> bytes:
        nonlocal done
        answer = call(body)
        if b"execute" in body or b"watermark" in body:
            done += 1
            raise flight.FlightServerError("the connection broke")
        return answer

    monkeypatch.setattr(served.server.endpoint._service, "call", lost)
    # then a change has an unknown outcome, and was tried once
    with pytest.raises(errors.OutcomeUnknown, match="execute"):
        db.execute([DropTable(name="orders")])
    assert done == 1
    assert served.db.tables() == []
    # and a question is asked again for as long as it may take
    with pytest.raises(errors.NodeUnreachable):
        db.backend.watermark(timeout_s=0.3)
    assert done > 2


class Lossy:
    """Has the answers to an action lost, after the server did what it was asked."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch, action: bytes) -> None:
        self.done = 0
        call = served.server.endpoint._service.call

        def lost(body: bytes) -> bytes:
            answer = call(body)
            if action in body:
                self.done += 1
                raise flight.FlightServerError("the connection broke")
            return answer

        monkeypatch.setattr(served.server.endpoint._service, "call", lost)


CHANGES: dict[str, Callable[[Cluster], object]] = {
    "rebalance.change": lambda cluster: cluster.pause(),
    "rebalance.cancel": lambda cluster: cluster.cancel(),
    "node.drain": lambda cluster: cluster.drain("n9"),
    "zone.baseline": lambda cluster: cluster.baseline("default", "auto"),
}


def a_node_that_is_down(served: Served) -> None:
    """It belongs to the cluster."""
    number, address = 9, "127.0.0.1:1"
    value = msgspec.json.encode(NodeInfo(number=number, name="n9", address=address))
    served.backend.write([Put(node_key(number), value)])


@pytest.mark.parametrize("action", CHANGES)
def test_what_an_operator_has_asked_is_not_done_twice(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    a_node_that_is_down(served)
    lossy = Lossy(served, monkeypatch, action.encode())
    with pytest.raises(errors.OutcomeUnknown, match=f"whether {action} was done"):
        CHANGES[action](db.cluster)
    assert lossy.done == 1


def test_a_removal_whose_answer_was_lost_is_done_if_the_node_is_gone(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node that may go
    a_node_that_is_down(served)
    lossy = Lossy(served, monkeypatch, b"node.remove")
    # when it is removed, and the answer is lost, then the metastore says that it is gone
    done = db.cluster.remove("n9")
    assert (done.node, done.number, done.keep, lossy.done) == ("n9", 9, "", 1)
    # and of one that is still there nothing is known
    [own] = db.cluster.baseline("default").nodes
    with pytest.raises(errors.OutcomeUnknown, match=r"whether node\.remove was done"):
        db.cluster.remove(own)
    assert lossy.done == 2


@pytest.mark.parametrize("late", ["epoch_of", "propose"])
def test_a_call_that_comes_late_fences_off_no_producer_that_was_opened_since(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    # given a server that is suspended when a producer is opened, whose client asks again elsewhere
    orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
    held: list[bytes] = []
    call = served.server.endpoint._service.call

    def suspended(body: bytes) -> bytes:
        if decode_request(body).call in (late, "fence") and not held:
            held.append(body)
            raise flight.FlightServerError("the connection broke")
        return call(body)

    monkeypatch.setattr(served.server.endpoint._service, "call", suspended)
    with orders.producer(name="import", linger_ms=0) as producer:
        producer.send_many(rows(0, 4))
        producer.flush()
        # when it wakes up, and does what it was asked at first
        call(held.pop())
        # then the producer goes on
        producer.send_many(rows(4, 8))
        producer.flush()
    assert orders.count() == 8


def test_a_producer_is_opened_though_the_answer_was_lost(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
    call, lost = served.server.endpoint._service.call, list[bytes]()

    def loses(body: bytes) -> bytes:
        answer = call(body)
        if decode_request(body).call == "propose" and not lost:
            lost.append(body)
            raise flight.FlightServerError("the connection broke")
        return answer

    monkeypatch.setattr(served.server.endpoint._service, "call", loses)
    with orders.producer(name="import", linger_ms=0) as producer:
        producer.send_many(rows(0, 4))
    assert lost
    assert orders.count() == 4


@pytest.mark.slow
def test_a_call_waits_for_a_server_that_is_away_no_longer_than_it_may(
    served: Served, db: Database
) -> None:
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 1))
    served.stop()
    began = time.monotonic()
    with pytest.raises(errors.NodeUnreachable):
        db.backend.now(timeout_s=0.2)
    assert time.monotonic() - began < 5
    # and a change that was not even sent is no unknown outcome
    with pytest.raises(errors.NodeUnreachable):
        db.backend.write([], timeout_s=0.2)


def test_another_database_at_the_same_address_is_refused(served: Served, tmp_path: Path) -> None:
    with lowmark.connect(served.address) as db:
        orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
        orders.append(rows(0, 1))
        served.stop()
        with Served(tmp_path / "another", served.address) as another:
            theirs = another.db.create_table("orders", COLUMNS, key="id", partitions=1)
            with pytest.raises(errors.OtherDatabase):
                db.watermark()
            with pytest.raises(errors.LowmarkError):
                orders.append(rows(1, 2))
            assert theirs.read().to_pylist() == []


@pytest.mark.slow
def test_a_server_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    # given a server in a process of its own, two writers and a reader that follows
    with ServedProcess(tmp_path / "data") as served, lowmark.connect(served.address) as db:
        events = db.create_table("events", COLUMNS, partitions=2)
        over, stored, failed = threading.Event(), Counter[int](), list[Any]()
        seen: Counter[int] = Counter()

        def write(base: int) -> None:
            at = base
            while not over.is_set():
                try:
                    events.append(rows(at, at + 25))
                except errors.LowmarkError as error:
                    failed.append(error)
                    return
                stored.update(range(at, at + 25))
                at += 25

        def follow() -> None:
            for batch in reader:
                seen.update(batch["id"].to_pylist())

        reader = events.read(follow=True, columns=["id"])
        threads = [threading.Thread(target=write, args=(base,)) for base in (0, 10_000_000)]
        following = threading.Thread(target=follow, daemon=True)
        for thread in [*threads, following]:
            thread.start()
        # when it is killed with -9, again and again
        for _ in range(2):
            before = len(stored)
            eventually(lambda before=before: len(stored) > before + 500 or bool(failed))  # type: ignore[misc]
            served.kill()
            served.start()
        before = len(stored)
        eventually(lambda: len(stored) > before + 100 or bool(failed))
        over.set()
        for thread in threads:
            thread.join(60)
        # then no append failed, and every row is there once, for the reader, too
        assert failed == []
        found = Counter(events.read().to_arrow()["id"].to_pylist())
        assert found == stored
        eventually(lambda: seen == stored)
        reader.close()
        following.join(30)


@pytest.mark.slow
def test_all_readers_of_a_client_go_on_when_the_server_is_slow_to_hold_again(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given several readers of one client, each waiting on a thread of its own
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 1))
    readers = [orders.read(follow=True, columns=["id"]) for _ in range(4)]
    for reader in readers:
        next(reader)
    found: list[object] = []

    def follow(reader: Any) -> None:
        try:
            found.extend(next(reader)["id"].to_pylist())
        except errors.LowmarkError as error:
            found.append(error)

    threads = [threading.Thread(target=follow, args=(one,), daemon=True) for one in readers]
    for thread in threads:
        thread.start()
    # when another start of the server takes its time to hold each again
    served.server.close()
    hold = served.backend.hold

    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.3)
        return hold(*arguments, **named)

    monkeypatch.setattr(served.backend, "hold", slow)
    served.serve()
    eventually(lambda: len(served.backend._kept) == 4)
    served.db.table("orders").append(rows(1, 2))
    # then every one of them has the next row
    for thread in threads:
        thread.join(30)
    assert found == [1] * 4
    for reader in readers:
        reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("as_of", [None, "now"])
def test_rows_that_went_while_no_server_knew_of_a_reader_are_no_mystery(
    served: Served, db: Database, as_of: str | None
) -> None:
    # given a reader in the middle of its rows
    orders = db.create_table("orders", COLUMNS, key="id")
    for first in range(0, 40, 10):
        orders.append(rows(first, first + 10))
    reader = orders.read(batch_bytes=1, as_of=as_of, columns=["id"])
    first = next(reader)
    assert first.num_rows
    # when its server is closed, and its rows are cut before another one hears of it
    served.server.close()
    served.db.advance_watermark("now")
    assert served.db["orders"].compact(engine="local").state == "done"
    served.serve()
    # then the reader gives the rest, if that was on its way already, or says what happened
    found = first["id"].to_pylist()
    try:
        found += [one for batch in reader for one in batch["id"].to_pylist()]
    except (errors.HoldUnknown, errors.BelowWatermark):
        return
    assert sorted(found) == [*range(40)]


def test_a_call_without_an_answer_is_not_taken_for_refused_by_its_cause() -> None:
    # given a node whose full disk keeps it from an answer
    full, silent = DiskFull("wal/1.wal"), NodeSilent(waited_s=8)
    full.__cause__ = silent
    # then a client is told that there was none, and why
    told = as_lost(full)
    assert told is silent
    assert full.message in told.message
    assert told.hint == full.hint
    assert "may have been carried out" in told.detail
    # and so is one of a change, that a node in this process does not know either
    unknown = errors.OutcomeUnknown("metastore", why=full.message)
    unknown.__cause__ = full
    assert as_lost(unknown) is silent
    # but one that was refused for lack of space was refused
    refused = DiskFull("wal/1.wal")
    assert as_lost(refused) is refused
