"""The cursor of a stream: how long it holds the log, and what a query hears that comes after it.

A reader is asked as Spark asks it; the streams of `test_stream.py` are Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from eventually import eventually
from inside import proposed
from lowmark.client import Database, Table
from lowmark.client.cursors import Cursors
from lowmark.errors import CursorShared, StreamBehind
from lowmark.frames.change_stream import ChangeStreamReader
from lowmark.frames.columns import spark_schema
from lowmark.frames.options import IDLE_EXPIRY_MS, Options
from lowmark.frames.positions import Stretch
from lowmark.frames.reading import schema_of
from lowmark.frames.stream import RENEWS_S, RETRIES_S, StreamReader, offsets_in
from lowmark.group import OutcomeUnknown
from lowmark.table import DeleteCursor, MembersBehind

Start = Callable[..., StreamReader]


@pytest.fixture
def orders(db: Database) -> Table:
    return db.create_table("orders", {"id": "int64", "v": "int64"}, key="id", partitions=2)


@pytest.fixture
def start(place: str) -> Iterator[Start]:
    """Starts a query's reader, as a process of Spark has it."""
    readers: list[StreamReader] = []

    def reader(**more: str) -> StreamReader:
        given = {"path": place, "table": "orders", "startingOffsets": "earliest", **more}
        if "readChangeFeed" in given:
            given["startingVersion"] = given.pop("startingOffsets")
        options = Options.read({key.replace("_", ".", 1): text for key, text in given.items()})
        kind = ChangeStreamReader if options.feed else StreamReader
        readers.append(kind(options.for_stream(), spark_schema(schema_of(options))))
        return readers[-1]

    yield reader
    for one in readers:
        one.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a stream goes by."""
    seconds = [1_000.0]
    monkeypatch.setattr("lowmark.frames.stream.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def appended(table: Table, *numbers: int) -> None:
    table.append([{"id": number, "v": number} for number in numbers])


def compact(db: Database, table: Table) -> None:
    db.advance_watermark(table.snapshot().time)
    assert table.compact(engine="local").state == "done"


def let_go(table: Table, cursor: str, how: str) -> None:
    """Have a cursor hold nothing any more."""
    if how == "deleted":
        table.cursors.delete(cursor)
        return

    def expired() -> bool:
        appended(table, *range(100, 120))  # in all partitions, so that each sees the time pass
        return all(place.overdue for place in table.cursors.get(cursor).places)

    eventually(expired)


def take(reader: StreamReader, place: dict[str, Any] | None) -> dict[str, Any]:
    """A run of availableNow, from where the checkpoint is: gives where it is then."""
    reader.prepareForTriggerAvailableNow()
    if place is None:
        place = reader.initialOffset()
        end = reader.latestOffset(place, ReadAllAvailable())
        reader.partitions(place, end)  # of a new query there is always a batch, if an empty one
        place = end
    while (end := reader.latestOffset(place, ReadAllAvailable())) != place:
        reader.partitions(place, end)
        reader.commit(place)
        place = end
    return place


FEED = {"readChangeFeed": "true"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, FEED], ids=["rows", "changes"])
def test_a_run_of_available_now_takes_its_cursor_along_when_it_has_all(
    orders: Table, start: Start, options: dict[str, str]
) -> None:
    # given a run that has taken all there was, then its cursor is gone
    appended(orders, 1, 2, 3)
    place = take(start(**options), None)
    assert orders.cursors.list() == []
    # when another one goes on, then it has a cursor of the same name in its batches, and none after
    appended(orders, 4)
    again = start(**options)
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(place, ReadAllAvailable())
    assert sum(end["offsets"].values()) == 4
    again.partitions(place, end)
    assert [one.name for one in orders.cursors.list()] == [place["cursor"]]
    again.commit(place)
    assert again.latestOffset(end, ReadAllAvailable()) == end
    assert orders.cursors.list() == []
    # and so is a run that finds nothing
    assert take(start(**options), end) == end
    assert orders.cursors.list() == []


@pytest.mark.parametrize("options", [{}, FEED], ids=["rows", "changes"])
def test_of_two_streams_with_one_cursor_the_slower_one_ends_by_name(
    orders: Table, start: Start, options: dict[str, str]
) -> None:
    # given two queries that have named the same cursor
    fast, slow = start(cursor="audit", **options), start(cursor="audit", **options)
    begun = fast.initialOffset()
    assert slow.initialOffset() == begun

    def planned(reader: StreamReader, place: dict[str, Any]) -> dict[str, Any]:
        end = reader.latestOffset(place, ReadAllAvailable())
        reader.partitions(place, end)
        return end

    appended(orders, 1, 2, 3)
    first = planned(fast, begun)
    assert offsets_in(planned(slow, begun)) == offsets_in(first)
    appended(orders, 4, 5, 6)
    fast.commit(first)
    second = planned(fast, first)
    fast.commit(second)
    # when the one that is behind is through with a batch, then it hears of the other
    with pytest.raises(CursorShared, match="cursor 'audit' of table orders was moved by another"):
        slow.commit(first)
    # and one that begins again with an older checkpoint goes on, as long as it is alone
    again = start(cursor="audit", **options)
    again.commit(first)
    again.commit(second)
    again.stop()
    # and so does the one that is ahead
    appended(orders, 7)
    fast.commit(planned(fast, second))


def test_a_cursor_that_is_made_anew_ahead_of_its_stream_is_no_other_querys(
    db: Database, orders: Table, start: Start, clock: list[float]
) -> None:
    # given a query that goes on where rows are lost, and whose cursor goes, and its rows with it
    reader = start(cursor="audit", failOnDataLoss="false")
    place = reader.initialOffset()
    appended(orders, *range(20))
    orders.cursors.delete("audit")
    compact(db, orders)
    appended(orders, *range(20, 40))
    # when its next batch ends before what is left, where its cursor is made anew
    clock[0] += RENEWS_S
    end = reader.latestOffset(place, ReadMaxRows(4))
    made = orders.cursors.get("audit").position
    assert all(at < made[number] for number, at in offsets_in(end).items())
    # then it goes on, for it is its own
    reader.commit(end)
    reader.commit(reader.latestOffset(end, ReadAllAvailable()))
    assert orders.cursors.get("audit").position == orders.snapshot().ends


def moves_to(db: Database, time: int) -> None:
    """The low watermark moves there, as soon as what a reader has let go is heard of."""
    eventually(lambda: db.advance_watermark(time).after == time)


@pytest.mark.parametrize("options", [{}, {"cursor": "audit"}], ids=["drawn", "named"])
def test_a_run_of_changes_that_has_all_holds_no_history(
    db: Database, orders: Table, start: Start, options: dict[str, str]
) -> None:
    # given a run of availableNow that has taken all there was, and whose process is not gone yet
    appended(orders, 1, 2, 3)
    reader = start(**FEED, **options)
    place = take(reader, None)
    # then the low watermark moves on, and so it does when a later batch of it is done
    for number in (4, 5):
        appended(orders, number)
        moves_to(db, orders.snapshot().time)
        reader.commit(place)
    # and the next run holds it while it has something to read
    again = start(**FEED, **options)
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(place, ReadAllAvailable())
    held = db.advance_watermark(orders.snapshot().time)
    assert held.after < orders.snapshot().time
    again.partitions(place, end)
    assert again.latestOffset(end, ReadAllAvailable()) == end
    moves_to(db, orders.snapshot().time)


def test_a_run_of_available_now_that_goes_on_beside_another_source_has_a_cursor(
    orders: Table, start: Start
) -> None:
    # given a query of two sources, of which this one has given all that it has
    reader = start()
    place = take(reader, None)
    assert orders.cursors.list() == []
    # when another batch is done, of the other one's rows
    reader.commit(place)
    assert [one.name for one in orders.cursors.list()] == [place["cursor"]]
    # then it has none again in the end
    assert reader.latestOffset(place, ReadAllAvailable()) == place
    assert orders.cursors.list() == []


def test_a_run_that_ends_in_a_batch_leaves_its_cursor(orders: Table, start: Start) -> None:
    # given a run whose first batch is planned, and not done
    reader = start()
    reader.prepareForTriggerAvailableNow()
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadAllAvailable())
    reader.partitions(first, end)
    reader.stop()
    # then another process reads the batch again, from where its cursor stands
    [cursor] = orders.cursors.list()
    again = start()
    assert again.initialOffset()["cursor"] != cursor.name
    assert again.partitions(again.initialOffset(), end) == []
    assert [one.name for one in orders.cursors.list()] == [cursor.name]


@pytest.mark.slow
def test_a_cursor_with_a_name_holds_between_runs(db: Database, orders: Table, start: Start) -> None:
    # given a run with a cursor that the user has named
    appended(orders, 1, 2)
    reader = start(cursor="nightly")
    place = take(reader, None)
    reader.stop()
    # when rows come and go before the next one
    appended(orders, 1, 1, 3)
    compact(db, orders)
    # then it is given each of them
    again = start(cursor="nightly")
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(place, ReadAllAvailable())
    stretches = [one for one in again.partitions(place, end) if isinstance(one, Stretch)]
    rows = [row for one in stretches for batch in again.read(one) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == [1, 1, 3]


@pytest.mark.slow
def test_a_stream_says_by_name_what_was_cut_while_nothing_held_it(
    db: Database, orders: Table, start: Start
) -> None:
    # given a run of availableNow that is over, and a compaction of what came after it
    appended(orders, 1, 2)
    reader = start()
    place = take(reader, None)
    reader.stop()
    appended(orders, *range(10))
    compact(db, orders)
    # when it goes on, then it hears which rows it can't have, and no cursor is left
    for again in (start(), start()):
        with pytest.raises(StreamBehind, match="of table orders went while no cursor"):
            again.latestOffset(place, ReadAllAvailable())
        with pytest.raises(StreamBehind):
            again.partitions(place, place)
    assert orders.cursors.list() == []
    # and if that is what the user wants, it goes on with what is left, and holds it
    appended(orders, 99)
    lenient = start(failOnDataLoss="false")
    end = lenient.latestOffset(place, ReadAllAvailable())
    stretches = [one for one in lenient.partitions(place, end) if isinstance(one, Stretch)]
    rows = [row for one in stretches for batch in lenient.read(one) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [99]
    assert [one.lag_rows for one in orders.cursors.list()] == [1]


def test_a_cursor_of_a_stream_has_an_expiry_that_explain_names(orders: Table, start: Start) -> None:
    start().initialOffset()
    [cursor] = orders.cursors.list()
    assert cursor.idle_expiry_ms == IDLE_EXPIRY_MS == 7 * 86_400_000
    assert "cursor.idle_expiry is 7 days" in str(orders.explain())
    # and another one if the user says so
    start(cursor="b", cursor_idle_expiry="36 hours").initialOffset()
    assert orders.cursors.get("b").idle_expiry_ms == 36 * 3_600_000
    start(cursor="c", cursor_idle_expiry="0 s").initialOffset()
    assert orders.cursors.get("c").idle_expiry_ms == 0


def test_a_stream_without_rows_keeps_its_cursor_as_long_as_it_runs(
    db: Database, orders: Table, start: Start, clock: list[float]
) -> None:
    def heard() -> list[int]:
        status = db.backend.status(orders.descriptor.id, range(orders.partitions))
        return [one.renewed for part in status.values() for one in part.cursors]

    # given a stream that has just begun
    reader = start()
    place = reader.initialOffset()
    first = heard()
    assert reader.latestOffset(place, ReadAllAvailable()) == place
    assert heard() == first
    # when it looks for rows when some time has passed, and finds none
    clock[0] += RENEWS_S
    assert reader.latestOffset(place, ReadAllAvailable()) == place
    # then its cursor's time begins anew, in all partitions
    assert min(heard()) > max(first)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True], ids=["all there", "cut"])
def test_a_query_that_comes_back_after_its_cursor_has_expired_hears_what_it_has_missed(
    db: Database, orders: Table, start: Start, cut: bool
) -> None:
    # given a query that was away until its cursor had expired
    appended(orders, 1, 2)
    reader = start(cursor_idle_expiry="500 ms")
    place = reader.initialOffset()
    reader.stop()
    let_go(orders, place["cursor"], "expired")
    if cut:
        compact(db, orders)
    # when it comes back, then it goes on if all is there, and else says what is not
    again = start()
    if cut:
        with pytest.raises(StreamBehind, match="offsets 0 to"):
            again.latestOffset(place, ReadAllAvailable())
        return
    end = again.latestOffset(place, ReadAllAvailable())
    assert end["offsets"] == {str(at): end for at, end in orders.snapshot().ends.items()}
    held = orders.cursors.get(place["cursor"])
    assert (held.expired, held.idle_expiry_ms) == (False, IDLE_EXPIRY_MS)


class Batch:
    """A batch that is planned, whose tasks have read nothing yet."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        first = reader.initialOffset()
        self.cursor: str = first["cursor"]
        self.end = reader.latestOffset(first, ReadAllAvailable())
        self.stretches = list(reader.partitions(first, self.end))

    def ids(self) -> list[int]:
        """What its tasks read."""
        batches = [batch for one in self.stretches for batch in self.reader.read(one)]
        return sorted(row["id"] for batch in batches for row in batch.to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_a_batch_that_took_longer_than_the_expiry_goes_on(
    orders: Table, start: Start, how: str
) -> None:
    # given a batch in which the cursor has ended, and nothing was cut
    appended(orders, 1, 2, 3)
    batch = Batch(start(cursor_idle_expiry="500 ms"))
    let_go(orders, batch.cursor, how)
    # then its tasks read all that was planned
    assert batch.ids() == [1, 2, 3]
    # when it is done, then the rest is held from there on; long enough for a slow test to see it
    start(cursor_idle_expiry="1 day").commit(batch.end)
    held = orders.cursors.get(batch.cursor)
    assert {str(at): offset for at, offset in held.position.items()} == batch.end["offsets"]
    assert not held.overdue


@pytest.mark.slow
@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_a_batch_whose_rows_were_cut_before_it_was_read_says_so(
    db: Database, orders: Table, start: Start, how: str
) -> None:
    # given batches whose cursors have ended, and a compaction of all that they were to read
    appended(orders, *range(15))
    batch = Batch(start(cursor_idle_expiry="500 ms"))
    lenient = Batch(start(cursor_idle_expiry="500 ms", failOnDataLoss="false"))
    let_go(orders, batch.cursor, how)
    let_go(orders, lenient.cursor, how)
    compact(db, orders)
    # then no task gives less than was planned: it names what is gone, and the cursor
    for one in batch.stretches:
        with pytest.raises(StreamBehind, match="offsets 0 to") as refused:
            list(batch.reader.read(one))
        assert batch.cursor in str(refused.value.detail)
    # but those of a query that goes on all the same
    assert lenient.ids() == []


@pytest.mark.slow
def test_a_cursor_that_has_expired_keeps_what_its_user_has_said_of_it(
    orders: Table, start: Start
) -> None:
    # given a cursor of a user, with limits, whose query was away for too long
    orders.cursors.create("audit", max_lag_rows=1_000_000, max_lag_ms=3_600_000)
    reader = start(cursor="audit", cursor_idle_expiry="500 ms")
    place = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    let_go(orders, "audit", "expired")
    # when the query goes on, then the cursor holds again, and has the same limits
    again = start(cursor="audit", cursor_idle_expiry="7 days")
    again.latestOffset(place, ReadAllAvailable())
    held = orders.cursors.get("audit")
    assert (held.max_lag_rows, held.max_lag_ms) == (1_000_000, 3_600_000)
    assert (held.overdue, held.idle_expiry_ms) == (False, 7 * 86_400_000)
    assert {str(at): offset for at, offset in held.position.items()} == place["offsets"]


@pytest.mark.parametrize("options", [{}, {"cursor": "audit"}], ids=["drawn", "named"])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_query_goes_on_with_a_cursor_that_a_partition_does_not_have(
    db: Database, orders: Table, start: Start, options: dict[str, str], missing: int
) -> None:
    # given a cursor whose deletion has come to one partition only
    appended(orders, 1, 2, 3)
    reader = start(**options)
    place = reader.initialOffset()
    cursor: str = place["cursor"]
    reader.stop()
    db.backend.propose(orders.descriptor.id, {missing: DeleteCursor(cursor)})
    assert len(orders.cursors.get(cursor).places) == 1
    # when its query goes on, then all partitions have it
    end = start(**options).latestOffset(place, ReadAllAvailable())
    assert sum(end["offsets"].values()) == 3
    held = orders.cursors.get(cursor)
    assert {str(at): offset for at, offset in held.position.items()} == place["offsets"]
    # and a new query that finds such a one begins where its options say
    db.backend.propose(orders.descriptor.id, {missing: DeleteCursor(cursor)})
    assert start(cursor=cursor).initialOffset()["offsets"] == {"0": 0, "1": 0}
    assert len(orders.cursors.get(cursor).places) == 2


@pytest.mark.parametrize("idle", ["0 s", "30 days", "1 hour"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "named once"])
def test_a_stream_leaves_the_expiry_of_a_cursor_that_somebody_else_has_made(
    orders: Table, start: Start, idle: str, named: bool
) -> None:
    # given a cursor that a person has made
    made = orders.cursors.create("audit", idle_expiry=idle)
    # when a stream reads by it, also one that is started again without its name
    place = start(cursor="audit").initialOffset()
    assert place["cursor"] == "audit"
    again = start(**({"cursor": "audit"} if named else {}))
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(place, ReadAllAvailable()) == place
    # then it is there, and may be idle for as long as before
    assert orders.cursors.get("audit").idle_expiry_ms == made.idle_expiry_ms
    # but if the user of the query says how long, that counts
    told = start(cursor="audit", cursor_idle_expiry="2 days")
    told.latestOffset(place, ReadAllAvailable())
    assert orders.cursors.get("audit").idle_expiry_ms == 2 * 86_400_000
    # and it stays so
    start(cursor="audit").latestOffset(place, ReadAllAvailable())
    assert orders.cursors.get("audit").idle_expiry_ms == 2 * 86_400_000


@pytest.mark.parametrize("options", [{}, {"cursor": "audit"}], ids=["drawn", "named"])
def test_a_stream_asks_again_after_a_while_until_its_cursor_can_expire(
    orders: Table,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    clock: list[float],
    options: dict[str, str],
) -> None:
    # given members that have not agreed yet that cursors can expire
    know, refused = Cursors.renew, []

    def behind(*given: Any, **more: Any) -> Any:
        refused.append(given)
        raise MembersBehind

    monkeypatch.setattr(Cursors, "renew", behind)
    reader = start(**options)
    place = reader.initialOffset()
    # when it looks for rows again and again, then it does not ask each time: each question is
    # an entry in the log
    if options:
        reader.latestOffset(place, ReadAllAvailable())
    asked = len(refused)
    assert asked >= 1
    for _ in range(5):
        assert reader.latestOffset(place, ReadAllAvailable()) == place
    assert len(refused) == asked
    clock[0] += RETRIES_S
    reader.latestOffset(place, ReadAllAvailable())
    assert len(refused) == asked + 1
    assert orders.cursors.get(place["cursor"]).idle_expiry_ms == 0
    # and when the members have agreed, then a later one has it expire
    monkeypatch.setattr(Cursors, "renew", know)
    clock[0] += RETRIES_S
    assert reader.latestOffset(place, ReadAllAvailable()) == place
    assert orders.cursors.get(place["cursor"]).idle_expiry_ms == IDLE_EXPIRY_MS


def test_a_stream_goes_on_though_a_renewal_of_its_cursor_had_no_answer(
    orders: Table, start: Start, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    # given a stream that is due to renew its cursor, and a leader that is lost meanwhile
    reader = start()
    place = reader.initialOffset()
    renew, lost = Cursors.renew, []

    def gone(*given: Any, **more: Any) -> Any:
        lost.append(given)
        raise OutcomeUnknown("orders/0", why="its leader is gone")

    reader.latestOffset(place, ReadAllAvailable())
    monkeypatch.setattr(Cursors, "renew", gone)
    clock[0] += RENEWS_S
    # when it looks for rows, then it finds them
    appended(orders, 1, 2, 3)
    end = reader.latestOffset(place, ReadAllAvailable())
    assert sum(end["offsets"].values()) == 3
    assert len(lost) == 1
    # and it renews the cursor a little later
    told = []

    def renewed(*given: Any, **more: Any) -> Any:
        told.append(given)
        return renew(*given, **more)

    monkeypatch.setattr(Cursors, "renew", renewed)
    clock[0] += RETRIES_S
    reader.latestOffset(place, ReadAllAvailable())
    assert len(told) == 1
    # but a query that begins when its cursor can't be asked about fails: it may hold nothing
    monkeypatch.setattr(Cursors, "renew", gone)
    with pytest.raises(OutcomeUnknown):
        start().latestOffset(place, ReadAllAvailable())


@pytest.mark.slow
def test_a_stream_whose_cursor_is_ahead_or_unknown_in_one_partition_goes_on(
    start: Start, orders: Table
) -> None:
    # given a stream in the middle of a batch
    appended(orders, *range(20))
    reader = start()
    place = reader.initialOffset()
    end = reader.latestOffset(place, ReadAllAvailable())
    reader.partitions(place, end)
    cursor, ends = place["cursor"], orders.snapshot().ends
    # when it goes on by an older checkpoint, and its cursor is further in one partition
    appended(orders, *range(20, 40))
    later = orders.snapshot().ends
    orders.cursors.commit(cursor, {0: later[0]})
    reader = start()
    reader.partitions(place, end)
    reader.commit(end)
    # then it moves in the other one
    assert orders.cursors.get(cursor).position == {0: later[0], 1: ends[1]}
    # and where a partition does not know it any more, it holds from there again
    proposed(orders, DeleteCursor(cursor), 1)
    more = reader.latestOffset(end, ReadAllAvailable())
    reader.partitions(end, more)
    reader.commit(more)
    assert orders.cursors.get(cursor).position == later
