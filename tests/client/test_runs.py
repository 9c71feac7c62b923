"""Runs of compaction as a program sees them: told of while they go on, listed, cancelled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventually import eventually
from lowmark.backend.errors import Cancelled, RunUnderWay
from lowmark.client import Database, Progress, RunRecord, Table
from lowmark.errors import Rejected

SLOWLY = 1 << 10


@pytest.fixture
def history(db: Database) -> Table:
    """Three partitions with a history, all of it at or below the low watermark."""
    table = db.create_table("history", {"id": "int64", "v": "string"}, key="id", partitions=3)
    for at in range(5):
        table.append([{"id": n, "v": f"{at}" * 50} for n in range(300)])

    def passed() -> bool:
        db.advance_watermark("now")
        return not table.compact(dry_run=True).too_young_rows

    eventually(passed)
    return table


def only_forward(told: Sequence[Progress]) -> bool:
    """Whether nothing that is done is ever taken back, and it ends with all of it."""
    last = told[-1]
    return (
        all(
            a.bytes_done <= b.bytes_done and a.partitions_done <= b.partitions_done
            for a, b in pairwise(told)
        )
        and {(one.bytes_total, one.partitions) for one in told}
        == {(last.bytes_total, last.partitions)}
        and (last.step, last.bytes_done, last.partitions_done)
        == ("done", last.bytes_total, last.partitions)
    )


@pytest.mark.slow
def test_progress_only_grows_and_ends_with_all_of_it(history: Table) -> None:
    told: list[Progress] = []
    plan = history.compact(dry_run=True)
    # when a run goes so slowly that it is told of on the way
    rate = 2 * sum(one.bytes for one in plan.partitions)
    history.compact(engine="local", read_rate=rate, progress=told.append)
    # then it was
    assert len(told) > 1
    assert told[-1].bytes_total == sum(one.bytes for one in plan.partitions)
    assert told[-1].partitions == 3
    assert only_forward(told)


def test_one_that_is_quick_or_has_little_to_do_is_told_of_as_well(history: Table) -> None:
    history.compact(engine="local", partitions=[0, 2])
    told: list[Progress] = []
    # when only one partition has anything to be done
    history.compact(engine="local", progress=told.append)
    # then the others do not count
    assert only_forward(told)
    assert told[-1].partitions == 1
    # and where nothing is done, nothing is told
    told.clear()
    assert history.compact(engine="local", progress=told.append).rows_read == 0
    assert told == []


def test_a_run_that_goes_on_is_cancelled_from_another_thread(history: Table) -> None:
    failed: list[BaseException] = []
    working = threading.Event()

    def compact() -> None:
        try:
            history.compact(
                engine="local",
                read_rate=SLOWLY,
                step=lambda name: working.set() if name == "carry out the work" else None,
            )
        except Cancelled as error:
            failed.append(error)

    # given a run that will take minutes
    thread = threading.Thread(target=compact)
    thread.start()
    try:
        assert working.wait(30)
        [run] = history.runs()
        assert run.state == "running"
        # then there is no room for another one
        with pytest.raises(RunUnderWay, match=run.run):
            history.compact(engine="local")
        # when it is cancelled
        history.cancel_run(run.run)
    finally:
        thread.join(30)
    # then it has ended, and holds nothing
    assert not thread.is_alive()
    assert len(failed) == 1
    assert [one.state for one in history.runs()] == ["cancelled"]
    assert history.explain().holders == ()
    assert history.compact(engine="local").rows_live == 300


def test_it_is_too_late_to_cancel_what_is_done(db: Database, history: Table) -> None:
    # given a run that somebody cancels when all is published
    def cancel(name: str) -> None:
        if name == "note the end":
            history.cancel_run(history.runs()[0].run)

    done = history.compact(engine="local", step=cancel)
    # then it is done all the same, and noted so
    assert done.state == "done"
    assert [one.state for one in history.runs()] == ["done"]
    assert [one.run for one in db.runs()] == [done.run]


def test_runs_are_listed_by_table_the_newest_first(db: Database, history: Table) -> None:
    other = db.create_table("other", {"id": "int64"}, key="id", partitions=1)
    first = history.compact(engine="local", partitions=[0])
    second = history.compact(engine="local", partitions=[1])
    assert [one.run for one in history.runs()] == [second.run, first.run]
    assert other.runs() == []
    assert len(db.runs()) == 2
    for wrong in ("", "nobody", first.run):
        with pytest.raises(Rejected):
            history.cancel_run(wrong)
        with pytest.raises(Rejected):
            history.compact(engine="local", resume=wrong)
    with pytest.raises(Rejected, match="there is no run"):
        other.cancel_run(first.run)


class Stopped(BaseException):
    """The process ends here."""


def stopped(table: Table, step: str, *, rate: int = 0, **how: Any) -> RunRecord:
    def stop(name: str) -> None:
        if name == step:
            raise Stopped

    with pytest.raises(Stopped):
        table.compact(step=stop, read_rate=rate, write_rate=rate, **how)
    return table.runs()[0]


def test_a_run_is_listed_as_running_while_it_goes_on_and_then_as_interrupted(
    history: Table, db: Database
) -> None:
    # given a run whose process ends in the middle
    seen: list[str] = []

    def look(name: str) -> None:
        seen.extend(one.state for one in (*history.runs(), *db.runs()))
        if name == "publish partition 0":
            raise Stopped

    with pytest.raises(Stopped):
        history.compact(engine="local", step=look)
    # then while it went on, it was listed as that
    assert set(seen) == {"running"}
    # and now as interrupted, by the table and by the database
    assert [one.state for one in (*history.runs(), *db.runs())] == ["interrupted"] * 2
    # until it has gone on
    assert history.compact(resume=history.runs()[0].run).state == "done"
    assert [one.state for one in history.runs()] == ["done"]


def test_a_run_goes_on_with_the_engine_that_it_was_made_with(history: Table) -> None:
    # given a run in this process, where there is Spark, too
    assert history.compact(dry_run=True).engine == "spark"
    run = stopped(history, "publish partition 0", engine="local")
    # when it is resumed, and nothing is said about where
    done = history.compact(resume=run.run)
    # then it has gone on in this process
    assert (done.state, done.engine, done.where) == ("done", "local", "this process")


def test_a_run_on_a_master_goes_on_there_unless_something_else_is_said(history: Table) -> None:
    # given a run on a master that it never asked
    run = stopped(history, "carry out the work", master="local[3]")
    assert (run.engine, run.where) == ("spark", "local[3]")
    # when it is resumed, and is stopped before it asks for the master again
    again = stopped(history, "carry out the work", resume=run.run)
    # then it was about to go on there
    assert (again.run, again.resumed) == (run.run, 1)
    assert (again.engine, again.where) == ("spark", "local[3]")
    # and elsewhere, if that is said
    done = history.compact(engine="local", resume=run.run)
    assert (done.state, done.resumed, done.engine) == ("done", 2, "local")


@pytest.mark.parametrize(
    ("noted", "engine", "where"),
    [
        ("Spark", "spark", "local[*]"),
        ("your Spark session", "spark", "local[*]"),
        ("local[3]", "spark", "local[3]"),
        ("here", "local", "this process"),
    ],
)
def test_a_run_that_was_noted_before_engines_had_names_goes_on_in_such_a_place(
    history: Table, noted: str, engine: str, where: str
) -> None:
    # given a run of an older release, which noted a place and no engine
    run = stopped(history, "carry out the work", engine="local")
    records = history._compactor.records
    record = records.run(history.descriptor.id, run.run)
    records.put_run(msgspec.structs.replace(record, engine="", where=noted))
    # when it is resumed, and is stopped before it asks for anything there
    again = stopped(history, "carry out the work", resume=run.run)
    # then it was about to go on there, or on a Spark of its own
    assert (again.run, again.engine, again.where) == (run.run, engine, where)


def test_the_plan_says_where_a_run_would_be_made(
    history: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def planned(**how: Any) -> tuple[str, str]:
        plan = history.compact(dry_run=True, **how)
        return plan.engine, plan.where

    # given PySpark and Java
    assert planned() == planned(engine="spark") == ("spark", "local[*]")
    assert planned(master="local[2]") == ("spark", "local[2]")
    assert planned(engine="local") == ("local", "this process")
    # when there is no Java
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # then it would be this process, which says why; but not if Spark was asked for
    assert planned() == ("local", "this process: Spark needs Java, and there is none")
    assert planned(engine="spark") == planned(spark_config={"spark.ui.port": "1"})
    assert planned(engine="spark") == ("spark", "local[*]")


def test_a_run_that_found_nothing_or_only_young_rows_says_so_in_its_state(
    history: Table, db: Database
) -> None:
    # given a table that was compacted, with a delete that a reader has not passed
    history.cursors.create("reader", kind="compacted", start="latest")
    history.delete([7])
    db.advance_watermark(history.snapshot().time)
    done = history.compact(engine="local")
    assert (done.state, done.too_young_rows, done.held_until) == ("done", 0, "")
    # then the delete is no row that is live, and indexes of keys are listed
    assert (done.rows_live, done.deletes) == (299, 1)
    for ledger in history.ledgers():
        assert [Path(path).suffix for path in ledger.key_files] == [".keys"] * len(ledger.files)
        assert all(Path(path).is_file() for path in ledger.key_files)
    # when nothing is new
    assert history.compact(engine="local").state == "nothing"
    # or what is new is too young
    history.append([{"id": 1}])
    young = history.compact(engine="local")
    # then that is its state, and until when; and no run was made
    assert (young.state, young.too_young_rows) == ("too young", 1)
    assert young.held_until == max(one.held_until for one in young.partitions)
    # and from when on it is old enough, and what to do about it
    assert young.held_until < young.ready_at
    assert f"It is old enough from {young.ready_at} on" in young.hint
    assert 'db.advance_watermark("now")' in young.hint
    assert "db.history" in young.hint
    assert (done.ready_at, done.hint) == ("", "")
    assert [one.state for one in history.runs()] == ["done"]


def test_rows_that_are_too_young_name_what_keeps_them(history: Table, db: Database) -> None:
    # given rows that two options of the table keep, of which one counts for longer
    history.alter(options={"min_lag_ms": 7_200_000})
    young = history.compact(engine="local", dry_run=True)
    # then that one is named, and how to do without it
    assert young.waits_for == "min_lag_ms"
    unset = 'table.alter(options={"min_lag_ms": None})'
    assert f'To compact now: {unset}, then db.advance_watermark("now")' in young.hint
    written, ready = map(datetime.fromisoformat, (young.held_until, young.ready_at))
    assert ready - written == timedelta(hours=2)
    # and with a history of its own that is longer, that; and who holds the low watermark
    history.alter(options={"history": "1 day"})
    with history.read(as_of=history.snapshot().time):
        young = history.compact(engine="local", dry_run=True)
    assert (young.waits_for, young.watermark_held_by) == ("history", ())
    history.alter(options={"history": None, "min_lag_ms": None})
    with history.read(as_of=db.watermark().value):
        history.append([{"id": 1}])
        young = history.compact(engine="local", dry_run=True)
    assert young.waits_for == "db.history"
    assert "The low watermark is held by node " in young.hint


def test_the_backlog_counts_once_for_each_pass_in_what_a_run_has_read(history: Table) -> None:
    # given partitions without a ledger, whose keys fit into memory at once
    plan = history.compact(dry_run=True)
    done = history.compact(engine="local")
    # then what was read is the backlog twice: for the keys, and for the rows
    assert done.bytes_read == 2 * sum(one.bytes for one in plan.partitions) > 0


def test_an_engine_that_is_none_is_refused_by_name(history: Table) -> None:
    for how, said in (
        ({"engine": "duckdb"}, "engine can't be 'duckdb'"),
        ({"engine": "here"}, "'local' is what was called 'here'"),
        ({"spark": "here"}, "'local' is what was called 'here'"),
        ({"here": True}, "engine='local'"),
        ({"engine": "local", "master": "local[2]"}, "runs without Spark"),
    ):
        with pytest.raises(Rejected, match=said):
            history.compact(dry_run=True, **how)


def test_a_run_that_is_resumed_keeps_its_rates_unless_others_are_given(history: Table) -> None:
    fast = 1 << 40
    run = stopped(history, "publish partition 0", rate=fast, engine="local")
    assert (run.state, run.read_rate, run.write_rate) == ("interrupted", fast, fast)
    told: list[Progress] = []
    done = history.compact(engine="local", resume=run.run, read_rate=0, progress=told.append)
    assert (done.run, done.state, done.resumed) == (run.run, "done", 1)
    assert (done.read_rate, done.write_rate) == (0, fast)
    assert only_forward(told)


def test_a_rate_that_is_none_is_refused(history: Table) -> None:
    for wrong in (-1, "50MiB", 1.5, True):
        with pytest.raises(Rejected, match="read_rate"):
            history.compact(engine="local", read_rate=wrong)  # type: ignore[arg-type]
    assert history.runs() == []
