"""History is a choice: of the database, and of a table that keeps its own past for longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import lowmark
from inside import backend_of
from lowmark.client import Database, Table
from lowmark.compaction.plan import old_enough
from lowmark.errors import BelowWatermark, CatalogRefused, Rejected
from lowmark.ledger import read_adopted
from lowmark.runtime import HybridTime, RealLoop, millis_of

MINUTE_MS = 60_000


class Wall:
    """The machine's clock, which the test moves on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def pass_minutes(self, count: int) -> None:
        self.ahead_ms += count * MINUTE_MS


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(RealLoop, "wall_ms", lambda _: wall.now_ms())
    return wall


@pytest.fixture
def db(wall: Wall, tmp_path: Path) -> Iterator[Database]:
    """One whose clocks are all the test's: it is opened after that."""
    assert wall.ahead_ms == 0
    with lowmark.open(tmp_path / "data") as database:
        yield database


def new_table(db: Database, *, history: str | None = None) -> Table:
    options: dict[str, str | int] = {} if history is None else {"history": history}
    return db.create_table("t", {"id": int, "v": int}, key="id", partitions=2, options=options)


def state(table: Table, at: int) -> list[dict[str, Any]]:
    return sorted(table.read(as_of=at).to_pylist(), key=lambda row: row["id"])


def live_a_while(table: Table, wall: Wall, dice: Random, turns: int) -> list[int]:
    """Write and delete, ten minutes apart; gives the times in between."""
    times = []
    for turn in range(turns):
        table.append([{"id": dice.randrange(20), "v": turn} for _ in range(6)])
        table.delete([dice.randrange(20) for _ in range(2)])
        times.append(table.snapshot().time)
        wall.pass_minutes(10)
    return times


def adopted_marks(table: Table) -> list[int]:
    """The mark of each ledger, and that no row below its horizon is later."""
    backend, ledgers = table._backend, table._compactor.ledgers
    marks = []
    for status in backend.status(table.descriptor.id, range(table.partitions)).values():
        assert status.ledger is not None
        manifest = read_adopted(ledgers.store, status.ledger)
        marks.append(manifest.watermark)
    newest = table.read(compacted=True, columns=["_time", "_partition", "_offset"]).to_pylist()
    for row in newest:
        horizon = table.explain().partitions[row["_partition"]].horizon
        if row["_offset"] < horizon:
            assert row["_time"] <= marks[row["_partition"]]
    return marks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_run_leaves_every_answer_within_the_tables_history_as_it_was(
    db: Database, wall: Wall, seed: int
) -> None:
    # given a table that keeps two hours, five hours of changes, and what it was at many times
    table = new_table(db, history="2 hours")
    dice = Random(seed)
    times = live_a_while(table, wall, dice, 30)
    # and the low watermark, which has passed nearly all of it
    moved = db.advance_watermark()
    assert moved.after > times[-2]
    now_ms = wall.now_ms()
    kept = [at for at in times if millis_of(HybridTime(at)) > now_ms - 119 * MINUTE_MS]
    gone = [at for at in times if millis_of(HybridTime(at)) < now_ms - 121 * MINUTE_MS]
    assert len(kept) > 8
    assert len(gone) > 10
    before = {at: state(table, at) for at in kept}
    keys = {at: table.get(3, as_of=at) for at in kept}
    counts = {at: table.count(as_of=at) for at in kept}
    # when it is compacted
    run = table.compact(engine="local")
    assert run.state == "done"
    # then the horizon has come as far as the history, and no further
    assert run.rows_read > 50
    adopted_marks(table)
    # and all answers are what they were, though the low watermark has passed them
    assert {at: state(table, at) for at in kept} == before
    assert {at: table.get(3, as_of=at) for at in kept} == keys
    assert {at: table.count(as_of=at) for at in kept} == counts
    # and earlier times are refused, by the name of the table
    for at in gone:
        with pytest.raises(BelowWatermark, match="history of table t"):
            table.read(as_of=at)
    # and a second run, later, keeps what is within the history then
    wall.pass_minutes(60)
    db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    still = [at for at in kept if millis_of(HybridTime(at)) > wall.now_ms() - 119 * MINUTE_MS]
    assert 2 < len(still) < len(kept)
    assert {at: state(table, at) for at in still} == {at: before[at] for at in still}
    # and so it is after a restart
    path = Path(db.path)
    db.close()
    with lowmark.open(path) as again:
        assert {at: state(again["t"], at) for at in still} == {at: before[at] for at in still}


def test_another_table_is_as_exact_as_the_low_watermark_says(db: Database, wall: Wall) -> None:
    kept = new_table(db, history="1 day")
    other = db.create_table("other", {"id": int}, key="id")
    kept.append([{"id": 1, "v": 1}])
    other.append([{"id": 1}])
    at = kept.snapshot().time
    wall.pass_minutes(30)
    db.advance_watermark()
    assert len(state(kept, at)) == 1
    with pytest.raises(BelowWatermark, match="low watermark"):
        other.read(as_of=at)
    assert other.compact(engine="local").state == "done"
    # and triggers do not take it for due
    watermark = db.watermark().value
    for table, free in ((kept, False), (other, True)):
        for one in backend_of(db).status(table.descriptor.id).values():
            limits = {"watermark": watermark, "wall_ms": one.wall_ms}
            found = old_enough(one.view, table.descriptor, **limits)
            assert found == (one.view.end if free else 0)
    run = kept.compact(engine="local")
    assert run.state == "too young"
    assert "history (1 day)" in run.partitions[0].why + run.partitions[1].why


def test_the_columns_of_then_are_known(db: Database, wall: Wall) -> None:
    # given a table with history, whose columns were changed and whose rows were compacted in part
    table = new_table(db, history="3 hours")
    table.append([{"id": 1, "v": 7}])
    wall.pass_minutes(100)
    table.append([{"id": 2, "v": 8}])
    at = table.snapshot().time
    wall.pass_minutes(10)
    table.alter(drop="v", add={"w": str})
    table.append([{"id": 3, "w": "x"}])
    wall.pass_minutes(100)
    db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    # then it is read with the columns of then
    assert state(table, at) == [{"id": 1, "v": 7}, {"id": 2, "v": 8}]


def test_explain_names_it_as_the_holder(db: Database, wall: Wall) -> None:
    table = new_table(db, history="1 day")
    table.append([{"id": one, "v": 1} for one in range(20)])
    assert not table.explain().holders  # the low watermark itself has not passed them
    wall.pass_minutes(30)
    db.advance_watermark()
    assert table.tide().partitions[0].next_bytes == 0  # a run would take nothing of it
    held = table.explain().holders
    assert {(one.kind, one.name) for one in held} == {("history", "1 day")}
    assert sum(one.keeps_bytes for one in held) == table.explain().bytes
    assert "history keeps its past exact for 1 day" in held[0].why
    assert "1 day (history)" in str(table.explain())
    # without it nothing holds them, and a run takes them
    table.alter(options={"history": None})
    assert not table.explain().holders
    assert table.tide().partitions[0].young_bytes == 0
    at = table.snapshot().time
    wall.pass_minutes(30)
    db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    with pytest.raises(BelowWatermark):
        table.read(as_of=at)


def test_to_shorten_it_lets_go_and_to_lengthen_it_brings_nothing_back(
    db: Database, wall: Wall
) -> None:
    # given a table whose history was shortened, and that was compacted then
    table = new_table(db, history="1 day")
    times = live_a_while(table, wall, Random(1), 12)
    table.alter(options={"history": "1 hour"})
    db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    marks = adopted_marks(table)
    # when it is lengthened again, and more runs come
    table.alter(options={"history": "1 day"})
    table.append([{"id": one, "v": -1} for one in range(20)])
    wall.pass_minutes(20)
    db.advance_watermark()
    table.compact(engine="local", rewrite=True)
    # then no ledger says that it is exact from an earlier time on
    assert all(new >= old for new, old in zip(adopted_marks(table), marks, strict=True))
    # and what was passed stays refused, while what was not is answered
    for at in times:
        if at < max(marks):
            with pytest.raises(BelowWatermark, match="history of table t"):
                table.read(as_of=at)
        else:
            assert table.read(as_of=at).to_arrow().num_rows == table.count(as_of=at)


def test_a_reader_within_the_history_is_not_disturbed_by_a_run(db: Database, wall: Wall) -> None:
    # given a reader as of a time that the low watermark has passed
    table = new_table(db, history="2 hours")
    times = live_a_while(table, wall, Random(2), 8)
    wall.pass_minutes(20)
    db.advance_watermark()
    at = times[4]
    wanted = state(table, at)
    reader = table.read(as_of=at)
    first = next(reader).to_pylist()
    # when the history is taken away, and all is compacted and cut before it reads on
    table.alter(options={"history": None})
    wall.pass_minutes(30)
    db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    # then it gives what it would have given
    rest = reader.to_pylist()
    assert sorted(first + rest, key=lambda row: row["id"]) == wanted
    with pytest.raises(BelowWatermark):
        table.read(as_of=at)


def test_the_history_of_the_database_is_altered(db: Database, wall: Wall) -> None:
    # given a database that keeps ten minutes
    assert db.history == timedelta(minutes=10)
    table = new_table(db)
    table.append([{"id": 1, "v": 1}])
    at = table.snapshot().time
    # when it is to keep a day
    db.set_history("1 day")
    wall.pass_minutes(600)
    db.advance_watermark()
    # then it does
    assert db.history == timedelta(days=1)
    assert len(state(table, at)) == 1
    assert table.compact(engine="local").state == "too young"
    # and after a restart, whatever the settings say
    path = Path(db.path)
    db.close()
    with lowmark.open(path) as again:
        assert again.history == timedelta(days=1)
        again.advance_watermark()
        assert len(state(again["t"], at)) == 1
        # and to shorten it lets go
        again.set_history(timedelta(hours=1))
        again.advance_watermark()
        with pytest.raises(BelowWatermark):
            again["t"].read(as_of=at)
        assert again["t"].compact(engine="local").state == "done"
    with pytest.raises(Rejected, match="3600000 ms, not 600000"):
        lowmark.open(path, watermark_availability_ms=600_000)
    lowmark.open(path, watermark_availability_ms=3_600_000).close()


@pytest.mark.parametrize("wrong", ["soon", "7", 7, "-1 day", "1 fortnight", "1000 years", "", None])
def test_what_is_no_length_of_time_is_refused(db: Database, wrong: Any) -> None:
    with pytest.raises(Rejected, match="length of time"):
        db.set_history(wrong)
    if wrong is not None:
        with pytest.raises(CatalogRefused, match="history"):
            new_table(db, history=wrong)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("7 days", "7 days"),
        ("1d", "1 day"),
        ("24 HOURS", "1 day"),
        ("2 weeks", "14 days"),
        ("90min", "90 minutes"),
        ("1500 ms", "1500 ms"),
        ("0 s", "0 ms"),
    ],
)
def test_a_length_of_time_is_kept_in_one_form(db: Database, given: str, kept: str) -> None:
    assert dict(new_table(db, history=given).descriptor.options)["history"] == kept


def test_a_history_that_retention_can_not_keep_is_refused(db: Database) -> None:
    options: dict[str, str | int] = {"history": "1 day", "retention_ms": 1_000}
    with pytest.raises(CatalogRefused, match="longer than retention_ms"):
        db.create_table("log", {"n": int}, options=options)


def test_a_dropped_table_goes_with_its_history(db: Database, wall: Wall) -> None:
    table = new_table(db, history="1 day")
    table.append([{"id": 1, "v": 1}])
    at = table.snapshot().time
    wall.pass_minutes(5)
    db.drop_table("t")
    wall.pass_minutes(7)
    db.advance_watermark()
    with pytest.raises(BelowWatermark):
        table.read(as_of=at)
    assert backend_of(db).node.upkeep is not None


def test_a_look_at_now_is_answered_though_the_watermark_moves_to_now_at_that_moment(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a table, and a low watermark that moves when history is about to be held
    table = new_table(db)
    table.append([{"id": 1, "v": 1}])
    backend = backend_of(db)
    take, moves = backend.hold_history, [True, True, True]

    def moving(*given: Any, **named: Any) -> Any:
        if moves:
            moves.pop()
            db.advance_watermark("now")
        return take(*given, **named)

    monkeypatch.setattr(backend, "hold_history", moving)
    # then what is asked as of now is answered as of a later moment
    assert table.count() == 1
    moves.append(True)
    assert table.read(as_of="now").to_pylist() == [{"id": 1, "v": 1}]
    moves.append(True)
    assert table.get(1, as_of="now") == {"id": 1, "v": 1}
    # and a time that was given stays what it is
    at = table.snapshot().time
    moves.append(True)
    with pytest.raises(BelowWatermark):
        table.read(as_of=at)


@pytest.mark.slow
def test_what_an_alteration_gives_is_short_to_print(db: Database) -> None:
    for number in range(20):
        db.create_table(f"other_{number}", {"id": int})
    done = new_table(db).alter(add={"note": str})
    assert repr(done) == f"Executed(version={done.catalog.version}, applied=(True,))"
