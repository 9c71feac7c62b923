"""Rows that writers stage and one process commits: once, whatever is tried again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from lowmark.backend.values import PartitionStatus
from lowmark.client import Database, Staged, Table
from lowmark.client.staging import Commit, attempt_number, drawn_family
from lowmark.errors import (
    EpochHalfBound,
    Rejected,
    StagedRowsMissing,
    StagingFull,
    Unavailable,
    ValueRefused,
)
from lowmark.table import Bind, Bound, Drop, Finish, state


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=3)


def stage(
    table: Table, first: int, count: int, value: str = "x", *, number: int | None = None
) -> Staged:
    with table.stage(number=number) as writer:
        writer.append([{"id": key, "v": value} for key in range(first, first + count)])
        return writer.staged()


def values(table: Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.read(as_of="now").to_pylist()}


def states(table: Table) -> dict[int, PartitionStatus]:
    return table._backend.status(table.descriptor.id)


def staged_rows(table: Table) -> int:
    return sum(one.staging.rows for one in states(table).values() if one.staging is not None)


def test_staged_rows_are_read_by_nobody_until_they_are_committed(table: Table) -> None:
    # given rows of two writers
    table.append([{"id": 0, "v": "old"}])
    some = [stage(table, 0, 50), stage(table, 50, 50)]
    # then no reader sees them, and they are explained
    assert (table.count(), table.read().to_arrow().num_rows) == (1, 1)
    held = [one for one in table.explain().holders if one.kind == "staged"]
    assert {one.name for one in held} == {"2 writers"}
    assert sum(int(one.why.split()[0]) for one in held) == 100
    # when they are committed
    committed = table.commit(some, query="q", epoch=7)
    # then they are there, and each partition says where
    assert (committed.rows, committed.repeated) == (100, False)
    assert values(table) == dict.fromkeys(range(100), "x")
    assert table.get(70) == {"id": 70, "v": "x"}
    offsets = {one.partition: (one.first, one.rows) for one in committed.parts}
    assert {number: sum(pair) for number, pair in offsets.items()} == {
        number: one.view.end for number, one in states(table).items()
    }
    assert not table.explain().holders


def test_an_epoch_that_was_committed_is_not_stored_again(table: Table) -> None:
    # given an epoch that was committed, by a process that was not answered
    first = table.commit([stage(table, 0, 60)], query="q", epoch=1)
    # when it is tried again, with the same rows and with others
    again = table.commit([stage(table, 0, 60, "again")], query="q", epoch=1)
    other = table.commit([stage(table, 1_000, 5)], query="q", epoch=1)
    # then nothing is added, nothing waits, and the answer is the first one
    assert (again.repeated, other.repeated) == (True, True)
    assert again.parts == first.parts
    assert values(table) == dict.fromkeys(range(60), "x")
    assert staged_rows(table) == 0
    # and the next epoch, and another query, are stored
    table.commit([stage(table, 60, 1)], query="q", epoch=2)
    table.commit([stage(table, 61, 1)], query="other", epoch=1)
    assert table.count() == 62


@pytest.mark.parametrize("bound", range(4))
def test_a_driver_that_dies_while_it_commits_is_followed_by_one_that_ends_it(
    table: Table, bound: int
) -> None:
    # given a commit that ended after this many of its three partitions
    staged = stage(table, 0, 60)
    commit = Commit(table._backend, table.descriptor, [staged], query="q", epoch=0)
    at = commit._at
    for number in [at, *(one for one in range(3) if one != at)][:bound]:
        commit._bound({number: commit._bind(commit._transactions, commit._plan, number, 10_000)})
    # when another driver comes with rows that are split in another way
    later = table.commit([stage(table, 0, 30, "y"), stage(table, 30, 31, "y")], query="q", epoch=0)
    # then all rows are of one attempt: of the first, if that came as far as to decide
    assert later.repeated == (bound > 0)
    expected = dict.fromkeys(range(60), "x") if bound else dict.fromkeys(range(61), "y")
    assert values(table) == expected
    assert table.read().to_arrow().num_rows == len(expected)
    # and of the other nothing waits, but for what no later driver knows of
    assert staged_rows(table) == (0 if bound else 60)


def lacks(table: Table, query: str, epoch: int) -> bool:
    """Whether an epoch may lack rows, as the partition knows that has decided it."""
    commit = Commit(table._backend, table.descriptor, [], query=query, epoch=epoch)
    asked = {commit._at: Drop(commit._query, epoch, ())}
    [found] = table._backend.propose(table.descriptor.id, asked).values()
    assert isinstance(found, Bound)
    return bool(found.plan)


def test_a_commit_ends_with_a_note_that_all_partitions_have_it(table: Table) -> None:
    # given a commit, and one that another driver has to end
    table.commit([stage(table, 0, 60)], query="whole", epoch=0)
    commit = Commit(table._backend, table.descriptor, [stage(table, 60, 60)], query="q", epoch=0)
    at = commit._at
    commit._bound({at: commit._bind(commit._transactions, commit._plan, at, 10_000)})
    assert lacks(table, "q", 0)
    table.commit([stage(table, 60, 60)], query="q", epoch=0)
    # then no partition's leader has anything left to do
    assert not lacks(table, "whole", 0)
    assert not lacks(table, "q", 0)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_the_next_epoch_ends_the_last_one_first(table: Table, bound: int) -> None:
    # given a driver that died when this many partitions had its epoch, before it could say so
    commit = Commit(table._backend, table.descriptor, [stage(table, 0, 60)], query="q", epoch=0)
    for number in [commit._at, *(one for one in range(3) if one != commit._at)][:bound]:
        commit._bound({number: commit._bind(commit._transactions, commit._plan, number, 10_000)})
    # when another one goes on with the next epoch
    table.commit([stage(table, 60, 60)], query="q", epoch=1)
    # then all rows of both are there, and nothing waits
    assert values(table) == dict.fromkeys(range(120), "x")
    assert staged_rows(table) == 0
    assert not lacks(table, "q", 1)


def test_the_next_epoch_is_refused_if_rows_of_the_last_one_are_gone(table: Table) -> None:
    # given an epoch that was decided, and the rest of which was dropped by hand
    staged = stage(table, 0, 60)
    commit = Commit(table._backend, table.descriptor, [staged], query="q", epoch=0)
    at = commit._at
    commit._bound({at: commit._bind(commit._transactions, commit._plan, at, 10_000)})
    drop = Finish(staged.transaction, commit=False)
    table._backend.propose(table.descriptor.id, {one: drop for one in range(3) if one != at})
    # when the next one is committed, then the error says what is missing, and nothing changes
    with pytest.raises(EpochHalfBound, match="epoch 0 is in") as caught:
        table.commit([stage(table, 60, 60)], query="q", epoch=1)
    assert (caught.value.bound, len(caught.value.missing)) == ((at,), 2)
    assert len(values(table)) == staged.rows[at]


def test_the_next_epoch_does_not_ask_for_rows_that_were_forgotten(table: Table) -> None:
    # given a query that was bound everywhere, and is over before that was noted
    commit = Commit(table._backend, table.descriptor, [stage(table, 0, 60)], query="q", epoch=0)
    for number in [commit._at, *(one for one in range(3) if one != commit._at)]:
        commit._bound({number: commit._bind(commit._transactions, commit._plan, number, 1)})
    # when its next epoch comes, then it is stored
    table.commit([stage(table, 60, 60)], query="q", epoch=1)
    assert values(table) == dict.fromkeys(range(120), "x")


def test_what_has_lost_goes_also_if_another_driver_ends_the_commit(table: Table) -> None:
    # given two attempts of one task, and a driver that has decided on one of them, and no more
    write = drawn_family()
    lost, won = (stage(table, 0, 60, number=attempt_number(write, one)) for one in range(2))
    commit = Commit(table._backend, table.descriptor, [won], query="q", epoch=0)
    at = commit._at
    commit._bound({at: commit._bind(commit._transactions, commit._plan, at, 10_000)})
    assert staged_rows(table) == 2 * (60 - won.rows[at])
    assert lost.rows == won.rows
    # when another one ends it
    table.commit([stage(table, 0, 60, "y")], query="q", epoch=0)
    # then nothing waits of the other attempt, which the second driver never knew of
    assert staged_rows(table) == 0
    assert values(table) == dict.fromkeys(range(60), "x")


def test_of_two_attempts_that_stage_in_turns_one_counts(table: Table) -> None:
    # given two attempts of one task that run at once, so that their rows lie between each other
    write = drawn_family()
    with (
        table.stage(number=attempt_number(write, 0)) as one,
        table.stage(number=attempt_number(write, 1)) as other,
    ):
        for first in range(0, 60, 20):
            for attempt, value in ((one, "one"), (other, "other")):
                attempt.append([{"id": key, "v": value} for key in range(first, first + 20)])
        staged = [attempt.staged() for attempt in (one, other)]
    assert staged_rows(table) == 120
    # when the driver commits the later one
    table.commit(staged[1:], query="q", epoch=0)
    # then each row is there once, of that attempt, and nothing waits of the other one
    assert values(table) == dict.fromkeys(range(60), "other")
    assert table.read().to_arrow().num_rows == 60
    assert staged_rows(table) == 0


def test_rows_that_were_dropped_before_all_partitions_had_them_come_from_the_repeat(
    table: Table,
) -> None:
    # given a commit that was decided, and then waited until the rest was dropped
    staged = stage(table, 0, 60)
    commit = Commit(table._backend, table.descriptor, [staged], query="q", epoch=0)
    at = commit._at
    commit._bound({at: commit._bind(commit._transactions, commit._plan, at, 10_000)})
    drop = Finish(staged.transaction, commit=False)
    table._backend.propose(table.descriptor.id, {one: drop for one in range(3) if one != at})
    # when its own driver goes on, or one with other rows comes, then that is an error
    for rows in ([staged], [stage(table, 0, 61)]):
        with pytest.raises(EpochHalfBound) as caught:
            table.commit(rows, query="q", epoch=0)
        assert (caught.value.bound, len(caught.value.missing)) == ((at,), 2)
    # and one with the same rows ends it
    table.commit([stage(table, 0, 60)], query="q", epoch=0)
    assert values(table) == dict.fromkeys(range(60), "x")
    assert table.read().to_arrow().num_rows == 60


def test_what_is_refused_leaves_nothing(table: Table) -> None:
    # given a writer whose second rows can't be stored
    def write() -> None:
        with table.stage() as writer:
            writer.append([{"id": 1, "v": "a"}])
            writer.append([{"id": 2, "v": "b"}, {"id": "x", "v": "c"}])

    with pytest.raises(ValueRefused, match="row 1, column id"):
        write()
    # then nothing of it waits; the same by hand
    eventually(lambda: staged_rows(table) == 0)
    table.discard([stage(table, 0, 10)])
    assert staged_rows(table) == 0
    assert table.count() == 0
    # and what was committed stays; the same, once more, is a repeat
    staged = stage(table, 0, 10)
    first = table.commit([staged])
    assert not table.discard([staged])
    assert table.commit([staged]).parts == first.parts
    assert table.count() == 10


def test_a_writer_hears_at_once_that_a_partition_has_no_room_for_staged_rows(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given partitions with as many staged batches as there may be
    monkeypatch.setattr(state, "STAGED_MAX", 1)
    waits = stage(table, 0, 60)
    # when one more comes, then the error says what it would wait for
    before = [one.view.end for one in states(table).values()]
    with pytest.raises(StagingFull, match="1 staged batches wait") as full:
        stage(table, 60, 60)
    assert isinstance(full.value, Unavailable)
    assert [one.view.end for one in states(table).values()] == before
    # and there is room when those that wait are committed
    table.commit([waits], query="q", epoch=0)
    table.commit([stage(table, 60, 60)], query="q", epoch=1)
    assert table.count() == 120


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("query", list("abcdef"))
def test_of_rows_that_are_not_all_there_nothing_is_seen(
    db: Database, query: str, key: str | None
) -> None:
    # given what two writers have staged, one of which was given up
    table = db.create_table("gone", {"id": "int64", "v": "string"}, key=key, partitions=3)
    first, second = stage(table, 0, 1), stage(table, 1, 50)
    table.discard([first])
    # when it is committed, wherever it is decided, then it is refused, and nothing is there
    with pytest.raises(StagedRowsMissing):
        table.commit([first, second], query=query, epoch=1)
    assert table.count() == 0
    # and the same epoch can be committed with rows that are there
    assert table.commit([second], query=query, epoch=1).rows == 50


@pytest.mark.parametrize("bound", range(4))
def test_what_is_decided_is_not_discarded(table: Table, bound: int) -> None:
    # given a commit that ended after this many of its three partitions, as a node was away
    staged = stage(table, 0, 60)
    commit = Commit(table._backend, table.descriptor, [staged], query="q", epoch=0)
    for number in [commit._at, *(one for one in range(3) if one != commit._at)][:bound]:
        commit._bound({number: commit._bind(commit._transactions, commit._plan, number, 10_000)})
    # when its driver gives up, then only what was not decided is dropped
    assert table.discard([staged], query="q", epoch=0) == (bound == 0)
    assert (staged_rows(table) == 0) == (bound in {0, 3})
    # and the next driver ends it, with other rows
    table.commit([stage(table, 0, 61, "y")], query="q", epoch=0)
    expected = dict.fromkeys(range(60), "x") if bound else dict.fromkeys(range(61), "y")
    assert values(table) == expected
    # while what another attempt has staged goes
    assert table.discard([stage(table, 100, 5)], query="q", epoch=0)
    assert staged_rows(table) == 0


def test_writers_of_rows_without_a_key_use_all_partitions(db: Database) -> None:
    table = db.create_table("keyless", {"id": "int64", "v": "string"}, partitions=3)
    staged = []
    for number in range(6):
        with table.stage(number=7 << 20 | number) as writer:
            writer.append([{"id": 1, "v": "x"}])
            staged.append(writer.staged())
    assert [sum(column) for column in zip(*(one.rows for one in staged), strict=True)] == [2, 2, 2]


def test_deletes_are_staged_too(table: Table) -> None:
    table.append([{"id": key, "v": "old"} for key in range(3)])
    with table.stage() as writer:
        writer.append([{"id": 0, "_change": "delete"}, {"id": 1, "v": "new", "_change": "upsert"}])
        table.commit([writer.staged()])
    assert values(table) == {1: "new", 2: "old"}


def test_a_commit_of_nothing_is_one(table: Table) -> None:
    assert table.commit([], query="q", epoch=0).rows == 0
    with table.stage() as writer:
        assert table.commit([writer.staged()], query="q", epoch=1).rows == 0
    # and counts: what comes with that epoch later is a repeat
    assert table.commit([stage(table, 0, 5)], query="q", epoch=1).repeated
    assert table.count() == 0


def test_wrong_uses_are_refused_by_name(db: Database, table: Table) -> None:
    other = db.create_table("other", {"id": "int64", "v": "string"}, key="id", partitions=3)
    staged = stage(other, 0, 5)
    done = table.stage()
    done.staged()
    wrongs: list[Callable[[], object]] = [
        lambda: table.commit([staged]),
        lambda: table.commit([], query="q", epoch=-1),
        lambda: table.commit([], query=""),
        lambda: table.commit([], query="q", keep_ms=0),
        lambda: table.commit([], query="q", epoch=1 << 63),
        lambda: table.commit([], query="q", epoch=1.5),  # type: ignore[arg-type]
        lambda: table.commit([stage(table, 0, 1)] * 2),
        lambda: table.commit([], query=7),  # type: ignore[arg-type]
        lambda: table.commit(["x"]),  # type: ignore[list-item]
        lambda: done.append([{"id": 1, "v": "x"}]),
    ]
    for wrong in wrongs:
        with pytest.raises(Rejected):
            wrong()


def test_rows_are_committed_after_their_table_was_altered(table: Table) -> None:
    staged = stage(table, 0, 5)
    table.alter(add={"n": "int32"})
    table.commit([staged])
    assert {row["n"] for row in table.read(as_of="now").to_pylist()} == {None}


def test_staged_rows_get_a_time_above_the_watermark_that_passed_them(
    db: Database, table: Table
) -> None:
    # given rows that are staged, and a low watermark and a compaction that came later
    db.set_history("0 s")
    table.append([{"id": key, "v": "old"} for key in range(30)])
    staged = stage(table, 0, 20, "new")
    table.append([{"id": key, "v": "older"} for key in range(10, 40)])
    while table.compact(dry_run=True).too_young_rows:
        db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    assert staged_rows(table) == 20
    db.set_history("1 h")
    watermark = db.watermark().value
    before = table._backend.now(table.descriptor.id).time
    # when they are committed
    committed = table.commit([staged], query="q", epoch=0)
    # then they come behind all that, and win
    assert {one.time > max(watermark, before) for one in committed.parts} == {True}
    expected = {
        **dict.fromkeys(range(10), "old"),
        **dict.fromkeys(range(10, 40), "older"),
    }
    now = expected | dict.fromkeys(range(20), "new")
    assert values(table) == now
    assert {key: table.get(key)["v"] for key in range(40)} == now  # type: ignore[index]
    # and a read as of a time before sees none of them
    assert {row["id"]: row["v"] for row in table.read(as_of=before).to_pylist()} == expected
    # and each is one change
    after = table.changes(before + 1).to_pylist()
    assert sorted(row["id"] for row in after) == list(range(20))
    # and they are compacted like others
    db.set_history("0 s")
    while table.compact(dry_run=True).too_young_rows:
        db.advance_watermark()
    assert table.compact(engine="local").state == "done"
    assert values(table) == now


def test_staged_rows_survive_a_restart(tmp_path: Path) -> None:
    # given rows that were staged, and a database that is closed
    with lowmark.open(tmp_path / "db") as db:
        table = db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=3)
        staged = stage(table, 0, 20)
        table.append([{"id": 100, "v": "later"}])
    # when it is opened again, then they can be committed, once
    for repeated in (False, True):
        with lowmark.open(tmp_path / "db") as db:
            assert db["t"].commit([staged], query="q", epoch=3).repeated is False or repeated
            assert db["t"].count() == 21


def test_a_repeat_of_an_epoch_says_where_all_its_rows_are_however_late_it_comes(
    table: Table,
) -> None:
    # given an epoch that is noted as bound everywhere, and one that a later one has followed
    staged = [stage(table, 60 * number, 60) for number in range(3)]
    first = [table.commit([one], query="q", epoch=at) for at, one in enumerate(staged)]
    commit = Commit(table._backend, table.descriptor, [staged[2]], query="q", epoch=2)
    whole = Bind(commit._query, 2, (), 0)
    table._backend.propose(table.descriptor.id, {commit._at: whole})
    # when they are repeated, then the answers are the first ones
    again = [table.commit([one], query="q", epoch=at) for at, one in enumerate(staged)]
    assert [one.parts for one in again] == [one.parts for one in first]
    assert {one.repeated for one in again} == {True}
    assert {one.rows for one in again} == {60}
    assert table.count() == 180
