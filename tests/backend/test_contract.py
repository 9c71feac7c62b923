"""What the API promises, over each implementation of the port: the same answers, the same errors.

The second implementation passes bytes and nothing else (see `encoded`), so what holds here does not
depend on sharing a process with the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from backend.conftest import embedded
from backend.encoded import EncodedBackend
from eventually import eventually
from lowmark import errors
from lowmark.backend.port import RETRY, Backend
from lowmark.backend.values import BatchRange, Hold, ReadRange
from lowmark.catalog import AddColumns, NewColumn, parse_type
from lowmark.client import Database, Table
from lowmark.ledger import Tail

pytestmark = pytest.mark.contract

COLUMNS = {"id": "int64", "status": "string"}


@pytest.fixture
def orders(db: Database) -> Table:
    return db.create_table("orders", COLUMNS, key="id", partitions=3)


def rows(first: int, end: int, status: str = "new") -> list[dict[str, object]]:
    return [{"id": number, "status": status} for number in range(first, end)]


def by_id(found: list[dict[str, object]]) -> dict[object, object]:
    return {row["id"]: row["status"] for row in found}


def settle(db: Database) -> None:
    """Let compaction take all that is there."""
    db.advance_watermark("now")


def _wait_for(event: threading.Event) -> None:
    event.wait(60)


# -- rows in ------------------------------------------------------------------------------------


def test_rows_go_in_and_say_where(db: Database, orders: Table) -> None:
    # when rows, an Arrow table and deletes are appended
    first = orders.append(rows(0, 100))
    second = orders.append(pa.table({"id": [100, 101], "status": ["a", "b"]}))
    third = orders.delete([0, 1])
    # then each call says where they went, without gaps
    assert [one.rows for one in (first, second, third)] == [100, 2, 2]
    ends = orders.snapshot().ends
    assert sum(ends.values()) == 104
    assert orders.get(0) is None
    assert orders.get(101) == {"id": 101, "status": "b"}
    assert [row and row["id"] for row in orders.get_many([5, 1, 7])] == [5, None, 7]


def test_a_refused_batch_leaves_nothing(db: Database, orders: Table) -> None:
    with pytest.raises(errors.ValueRefused, match="status"):
        orders.append([{"id": 1, "status": "new"}, {"id": 2, "status": 7.5}])
    assert orders.read().to_arrow().num_rows == 0


def test_a_producer_sends_and_a_newer_one_fences_it_off(db: Database, orders: Table) -> None:
    older = orders.producer(name="import", linger_ms=0)
    older.send_many(rows(0, 10))
    older.flush()
    with orders.producer(name="import", linger_ms=0) as newer:
        newer.send_many(rows(10, 20))
    older.send({"id": 99, "status": "late"})
    with pytest.raises(errors.ProducerFenced):
        older.flush()
    assert orders.get(99) is None
    assert len(by_id(orders.read().to_pylist())) == 20


# -- rows out -----------------------------------------------------------------------------------


def test_rows_come_out_by_place_by_time_and_by_column(db: Database, orders: Table) -> None:
    orders.append(rows(0, 50))
    middle = orders.snapshot()
    orders.append(rows(50, 80))
    assert len(orders.read().to_pylist()) == 80
    assert len(orders.read(end=middle).to_pylist()) == 50
    assert len(orders.read(start=dict(middle.ends)).to_pylist()) == 30
    assert len(orders.read(start="latest").to_pylist()) == 0
    assert len(orders.read(partitions=[1]).to_pylist()) == len(
        orders.read(partitions=[1], batch_bytes=1).to_pylist()
    )
    limited = orders.read(limit=7, columns=["id", "_offset", "_partition", "_time"])
    assert len(limited.to_pylist()) == 7
    rest = orders.read(start=limited.position)
    assert len(rest.to_pylist()) == 73
    table = pa.table(orders.read(columns=["id"]))
    assert sorted(table["id"].to_pylist()) == list(range(80))


def test_history_is_exact(db: Database, orders: Table) -> None:
    orders.append(rows(0, 10, "old"))
    then = orders.snapshot().time
    orders.append(rows(0, 5, "new"))
    orders.delete([9])
    assert by_id(orders.read(as_of=then).to_pylist()) == dict.fromkeys(range(10), "old")
    now = by_id(orders.read(as_of=orders.snapshot().time).to_pylist())
    assert now == dict.fromkeys(range(5), "new") | dict.fromkeys(range(5, 9), "old")
    for far in (datetime(2100, 1, 1, tzinfo=UTC), 10**30):  # the second is no time of any clock
        with pytest.raises(errors.TimeInFuture):
            orders.read(as_of=far)


def test_a_reader_follows(db: Database, orders: Table) -> None:
    reader = orders.read(follow=True, lease_ms=60_000)
    seen: list[int] = []

    def follow() -> None:
        for batch in reader:
            seen.extend(batch.column("id").to_pylist())
            if len(seen) >= 20:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    orders.append(rows(0, 10))
    eventually(lambda: len(seen) == 10)
    orders.append(rows(10, 20))
    thread.join(60)
    reader.close()
    assert sorted(seen) == list(range(20))


def test_cursors_hold_what_they_have_not_read(db: Database, orders: Table) -> None:
    orders.append(rows(0, 30))
    cursor = orders.cursors.create("billing")
    assert cursor.lag_rows == 30
    reader = orders.read(cursor="billing")
    assert len(reader.to_pylist()) == 30
    orders.cursors.commit("billing", reader.position)
    assert orders.cursors.get("billing").lag_rows == 0
    (explained,) = {holder.name for one in orders.explain().partitions for holder in one.holders}
    assert explained == "billing"
    orders.cursors.delete("billing")
    with pytest.raises(errors.CursorUnknown):
        orders.cursors.get("billing")


# -- compaction ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_is_compacted_read_and_verified(db: Database, orders: Table) -> None:
    # given three rows of each key, and some deletes
    for status in ("a", "b", "c"):
        orders.append(rows(0, 40, status))
    orders.delete([38, 39])
    settle(db)
    then = orders.snapshot()
    # when it is compacted
    assert orders.compact(engine="local", dry_run=True).state == "planned"
    record = orders.compact(engine="local", verify=True)
    # then of each key the last row is left, by every way to look
    assert record.state == "done"
    expected = dict.fromkeys(range(38), "c")
    compacted = orders.read(compacted=True)
    assert by_id(compacted.to_pylist()) == expected
    assert by_id(orders.read(as_of=then.time).to_pylist()) == expected
    assert orders.get(7) == {"id": 7, "status": "c"}
    assert orders.get(38) is None
    with pytest.raises(errors.GapFound):
        orders.read().to_arrow()
    assert not any(verdict.problems for verdict in orders.verify_ledgers())
    assert [one.state for one in orders.runs()] == ["done"]
    assert len(orders.ledgers()) == 3
    assert orders.sweep(dry_run=True) == []
    tide = orders.tide(stretches=4)
    assert sum(one.ledger.live_rows for one in tide.partitions if one.ledger) == 38
    # and rows that come later are found with it
    orders.append(rows(0, 2, "d"))
    assert orders.get(0) == {"id": 0, "status": "d"}
    assert by_id(orders.read(compacted=True).to_pylist())[1] == "d"
    assert orders.compact(engine="local").state in {"too young", "done"}


def test_young_rows_are_left_alone(db: Database, orders: Table) -> None:
    orders.append(rows(0, 5))
    assert orders.compact(engine="local").state == "too young"
    assert len(orders.read().to_pylist()) == 5


# -- the catalog, the watermark, the end ---------------------------------------------------------


def test_tables_change_and_go(db: Database, orders: Table) -> None:
    orders.append(rows(0, 3))
    added = NewColumn(name="note", type=parse_type("string"))
    db.execute([AddColumns(table="orders", columns=(added,))])
    orders.append([{"id": 3, "status": "new", "note": "n"}])
    assert orders.get(3) == {"id": 3, "status": "new", "note": "n"}
    assert orders.get(0) == {"id": 0, "status": "new", "note": None}
    before = db.watermark().goal
    assert db.advance_watermark().after <= max(before, db.watermark().goal)
    assert db.tables() == ["orders"]
    then = orders.snapshot().time
    db.drop_table("orders")
    with pytest.raises(errors.TableUnknown):
        orders.append(rows(4, 5))
    with pytest.raises(errors.TableUnknown):
        db.table("ordres")
    assert len(db.table("orders", as_of=then).read(as_of=then).to_pylist()) == 4


def test_operators_are_answered(backend: Backend, db: Database, orders: Table) -> None:
    cluster = db.cluster
    assert (cluster.rebalance().moves, cluster.rebalance().draining) == ((), ())
    assert (cluster.pause().paused, cluster.resume().paused) == (True, False)
    assert cluster.throttle(1 << 20).bytes_per_s == 1 << 20
    assert cluster.cancel().cancelled == cluster.cancel(orders.name).too_late == ()
    [node] = cluster.baseline("default").nodes
    assert cluster.baseline("default", [node]).chosen
    assert not cluster.baseline("default", "auto").chosen
    assert cluster.plan(add=["n2:r1"]).replicas == 3  # the zone asks for three, and gets two
    assert cluster.drained(node).partitions == 3
    with pytest.raises(errors.Rejected, match="no other node would be left"):
        cluster.drain(node)
    with pytest.raises(errors.Rejected, match="there is no node nope"):
        cluster.remove("nope")
    with pytest.raises(errors.Rejected, match="the only copy of 3 partitions"):
        cluster.remove(node)
    # and through the same call nothing else is done
    for action in ("meta.put", "nope"):
        with pytest.raises(errors.Rejected, match="there is no action"):
            backend.operate(action, b"{}")
    with pytest.raises(errors.Rejected, match="a request can't be read"):
        backend.operate("node.drain", b"[")


def test_below_the_watermark_nothing_is_answered(db: Database, orders: Table) -> None:
    orders.append(rows(0, 3))
    then = orders.snapshot().time
    orders.append(rows(3, 6))
    settle(db)
    assert db.watermark().value > then
    with pytest.raises(errors.BelowWatermark):
        orders.read(as_of=then)


def test_after_the_end_every_call_says_so(db: Database, orders: Table) -> None:
    reader = orders.read(follow=True)
    db.close()
    with pytest.raises(errors.Closed):
        orders.append(rows(0, 1))
    with pytest.raises(errors.Closed):
        orders.get(1)
    with pytest.raises(errors.LowmarkError):
        next(reader)


@pytest.mark.slow
@pytest.mark.parametrize("encoded", [False, True], ids=["embedded", "encoded"])
def test_an_append_under_way_at_the_end_says_that_its_outcome_is_unknown(
    tmp_path: Path, encoded: bool
) -> None:
    # given a database that ends while a caller hands rows over to it
    inner = embedded(tmp_path / "data")
    db = Database(EncodedBackend(inner) if encoded else inner)
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 1))
    call = inner.node.bridge.call

    def too_late(callback: Callable[[], None]) -> None:
        inner.node.stop()
        inner._thread.join(60)
        call(callback)

    inner.node.bridge.call = too_late
    # then the caller hears that they may have been stored, and why that is not known
    with pytest.raises(errors.AppendFailed) as failed:
        orders.append(rows(1, 2))
    db.close()
    assert (failed.value.stored, failed.value.refused, failed.value.unknown) == ((), (), (0,))
    assert isinstance(failed.value.cause, errors.Ended)
    assert not failed.value.cause.failed


@pytest.mark.parametrize("encoded", [False, True], ids=["embedded", "encoded"])
def test_a_table_goes_on_when_the_backend_is_replaced(tmp_path: Path, encoded: bool) -> None:
    # given a table that was used in every way, with a producer
    def opened() -> Backend:
        inner = embedded(tmp_path / "data")
        return EncodedBackend(inner) if encoded else inner

    with Database(opened()) as db:
        orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
        orders.append(rows(0, 5))
        assert orders.get(1) == {"id": 1, "status": "new"}
        producer = orders.producer(linger_ms=0)
        producer.send_many(rows(5, 7))
        producer.flush()
        reader = orders.read(follow=True)
        settle(db)
        assert orders.compact(engine="local").state == "done"
        # when its backend is closed, and another one of the same database takes its place
        db._session.backend.close()
        with pytest.raises(errors.Closed):
            orders.append(rows(7, 8))
        db._session.backend = opened()
        # then the same table goes on, in every way
        orders.append(rows(7, 10))
        orders.delete([0])
        producer.send_many(rows(10, 12))
        producer.flush()
        with orders.producer(name="import", linger_ms=0) as named:
            named.send({"id": 12, "status": "new"})
        assert orders.get(0) is None
        assert orders.get(11) == {"id": 11, "status": "new"}
        assert [row and row["id"] for row in orders.get_many([0, 1, 12])] == [None, 1, 12]
        expected = dict.fromkeys(range(1, 13), "new")
        now = orders.snapshot().time
        assert by_id(orders.read(as_of=now).to_pylist()) == expected
        orders.cursors.create("billing")
        assert orders.explain().partitions[0].horizon == 7
        settle(db)
        assert orders.compact(engine="local").state == "done"
        assert by_id(orders.read(as_of="now").to_pylist()) == expected
        assert len(orders.read(compacted=True).to_pylist()) >= len(expected)
        assert [one.state for one in orders.runs()] == ["done", "done"]
        assert len(db.runs()) == 2
        # and what was kept by the first one has ended with it
        with pytest.raises(errors.LowmarkError):
            next(reader)


# -- the port itself ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("encoded", [False, True], ids=["embedded", "encoded"])
def test_no_call_waits_for_longer_than_it_was_told_to(tmp_path: Path, encoded: bool) -> None:
    # given a database that does not come to answer for a while
    inner = embedded(tmp_path / "data")
    backend: Backend = EncodedBackend(inner) if encoded else inner
    with Database(backend) as db:
        table = db.create_table("orders", COLUMNS, key="id", partitions=1).descriptor.id
        history = backend.hold_history(backend.now().time, "a test")
        busy = threading.Event()
        inner.tell(partial(_wait_for, busy))
        moved = [BatchRange(0, (1,))]
        calls: dict[str, Callable[[float], object]] = {
            "now": lambda s: backend.now(table, timeout_s=s),
            "watermark": lambda s: backend.watermark(latest=True, timeout_s=s),
            "hold_history": lambda s: backend.hold_history(1 << 60, "a test", timeout_s=s),
            "history_lost": lambda s: backend.history_lost(history, timeout_s=s),
            "epoch_of": lambda s: backend.epoch_of(table, b"p" * 16, timeout_s=s),
            "view": lambda s: backend.view(table, 0, timeout_s=s),
            "views": lambda s: backend.views(table, [0], timeout_s=s),
            "status": lambda s: backend.status(table, timeout_s=s),
            "batches": lambda s: next(backend.batches(table, 0, moved, held=False, timeout_s=s)),
            "tail": lambda s: backend.tail(table, 0, low=0, high=1, timeout_s=s),
            "get": lambda s: backend.get(b"k", timeout_s=s),
            "operate": lambda s: backend.operate("rebalance.status", b"", timeout_s=s),
        }
        # when it is asked by callers that have little time, then each is told soon
        waited = {}
        for name, call in calls.items():
            began = time.monotonic()
            with pytest.raises(errors.Unavailable, match="within"):
                call(0.02)
            waited[name] = time.monotonic() - began
        busy.set()
    assert [name for name, seconds in waited.items() if seconds > 4] == []


def test_a_hold_that_is_not_known_keeps_nothing_and_says_so(backend: Backend, db: Database) -> None:
    # given a hold that was released, and one that never was
    table = db.create_table("orders", COLUMNS, key="id", partitions=1).descriptor.id
    held = backend.hold(table, {0: ReadRange(0, None)}, holder="a test", why="it follows")
    backend.release(held.hold)
    backend.now()
    for hold in (held.hold, Hold(999)):
        # then a caller hears of it: it would wait for nothing, or take history for kept
        with pytest.raises(errors.HoldUnknown):
            backend.wait(hold, 60)
        with pytest.raises(errors.HoldUnknown):
            backend.history_lost(hold)
        # and may release it
        backend.release(hold)


def test_nothing_is_sent_and_answered_at_once(backend: Backend, db: Database) -> None:
    table = db.create_table("orders", COLUMNS, key="id", partitions=1).descriptor.id
    sent = backend.appender(table, producer=b"p" * 16).send([])
    assert sent.answers(0) == []
    assert sent.done


def test_a_cut_of_no_partition_is_refused(db: Database, orders: Table) -> None:
    with pytest.raises(errors.Rejected, match="no partition is named"):
        orders.trim({})


def test_a_run_away_from_the_segments_is_refused_by_name(tmp_path: Path) -> None:
    # given a backend whose segments are on no disk of this machine
    class Elsewhere(EncodedBackend):
        def tail(self, *given: Any, **named: Any) -> Tail:
            return msgspec.structs.replace(super().tail(*given, **named), root="")

    with Database(Elsewhere(embedded(tmp_path / "data"))) as db:
        orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
        orders.append(rows(0, 3))
        settle(db)
        # then a run that would read them says so
        with pytest.raises(errors.SegmentsElsewhere, match="partition 0"):
            orders.compact(engine="local")


def test_a_hold_that_is_asked_for_again_is_the_same_one(backend: Backend, db: Database) -> None:
    # given holds that a caller has drawn, and whose answers it has lost
    table = db.create_table("orders", COLUMNS, key="id", partitions=1)
    table.append(rows(0, 3))
    view, files, history = (Hold.drawn() for _ in range(3))
    past = backend.now().time

    def take() -> list[object]:
        ranges = {0: ReadRange(0, 3)}
        held = backend.hold(table.descriptor.id, ranges, holder="a test", why="it reads", hold=view)
        then = backend.hold_history(past, "it looks back", hold=history)
        status = held.partitions[0]
        return [held.hold, status.view.end, then, backend.hold_files(["one"], hold=files)]

    first = take()
    assert first == [view, 3, history, files]
    # when it asks again, after more has come, then it has what it had
    table.append(rows(3, 5))
    assert take() == first
    # and released once, it is gone
    for hold in (view, files, history):
        backend.release(hold)
    backend.now()
    assert backend.files_in_use() == frozenset()
    with pytest.raises(errors.HoldUnknown):
        backend.wait(view, 0)
    with pytest.raises(errors.HoldUnknown):
        backend.history_lost(history)


def test_a_hold_of_an_earlier_start_is_no_hold_of_a_later_one(tmp_path: Path) -> None:
    # given a hold that a caller has had when the database was closed
    backend = embedded(tmp_path / "data")
    before = [backend.hold_files(["one"]) for _ in range(3)]
    backend.close()
    # when it releases it after the next start, then all that others hold stays
    backend = embedded(tmp_path / "data")
    for name in ("one", "two", "three", "four"):
        backend.hold_files([name])
    for hold in before:
        backend.release(hold)
    assert backend.files_in_use() == {"one", "two", "three", "four"}
    backend.close()


def test_every_call_of_the_port_has_its_retry_class() -> None:
    calls = {
        name
        for name, member in vars(Backend).items()
        if callable(member) and not name.startswith("_")
    }
    assert calls - {"check", "close"} == set(RETRY)


@pytest.mark.slow
def test_the_api_and_compaction_use_every_call(tmp_path: Path) -> None:
    """A call that nothing uses is not part of the port."""
    backend = EncodedBackend(embedded(tmp_path / "data"))
    with Database(backend) as db:
        orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
        orders.append(rows(0, 20))
        with orders.producer(name="import", linger_ms=0) as producer:
            producer.send({"id": 20, "status": "new"})
        then = orders.snapshot().time
        orders.read(as_of=then).to_arrow()
        orders.get(1)
        with orders.read(follow=True) as reader:
            next(reader)
            threading.Timer(0.2, reader.close).start()
            for _ in reader:
                time.sleep(0)
        orders.cursors.create("billing")
        orders.cursors.delete("billing")
        db.table("orders", as_of=then)
        db.advance_watermark("now")
        orders.compact(engine="local")
        orders.verify_ledgers()
        orders.explain()
        db.cluster.rebalance()
        db.drop_table("orders")
        db.advance_watermark("now")
        other = db.create_table("other", COLUMNS, key="id")
        other.sweep()
    assert set(RETRY) - backend.calls == set()
