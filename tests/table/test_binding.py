"""Rows that tasks of a query have staged, bound to its epochs: each once, whatever is repeated."""

from __future__ import annotations

import msgspec
import pytest

from lowmark.table import (
    STAGED_MS,
    Appended,
    BatchRefused,
    Bind,
    Bound,
    CommandRefused,
    Drop,
    EpochPassed,
    Finish,
    MembersBehind,
    PartitionMachine,
    StagedRowsMissing,
    Tick,
    TooMany,
    state,
)
from lowmark.table.binding import EPOCHS_KEPT, QUERIES_KEPT
from table.one_log import Log, is_a

QUERY = b"q" * 16
LOST = 5 << 20 | 17
DAY_MS = 24 * 3_600 * 1_000


@pytest.fixture
def log() -> Log:
    made = Log()
    made.machine.upgrade(PartitionMachine.newest_version)
    return made


def bind(epoch: int, *transactions: int, rows: int, query: bytes = QUERY, **more: object) -> Bind:
    more = {"keep_ms": 90 * DAY_MS, **more}
    return Bind(query, epoch, transactions, rows, **more)  # type: ignore[arg-type]


def staged(log: Log) -> list[int]:
    return list(log.machine.state.staged)


def restart(log: Log) -> None:
    log.restart(PartitionMachine.newest_version)


def test_the_rows_of_an_epoch_follow_in_the_order_of_its_tasks(log: Log) -> None:
    # given rows of two tasks, and others that came in between
    log.append(2, transaction=7)
    log.append(3)
    log.append(1, transaction=8)
    log.append(1, transaction=7)
    restart(log)
    # when the epoch is bound, the later task first
    bound = log.ask(bind(0, 8, 7, rows=4, plan=(4,)))
    # then they are read, all of one time
    assert bound == Bound(0, 3, 4, bound.time, (8, 7), (4,))  # type: ignore[attr-defined]
    view = log.machine.state.backlog.view
    assert view.places.tolist() == [2, 3, 1, 4]
    assert len(set(view.time.tolist()[1:])) == 1
    assert (staged(log), log.offsets()) == ([], (0, 7))


def test_a_repeat_gets_the_first_answer_and_what_it_has_staged_goes(log: Log) -> None:
    # given an epoch that was bound
    log.append(2, transaction=7)
    first = log.ask(bind(4, 7, rows=2, plan=(2, 0)))
    # when its query comes with the same epoch again, with rows of other tasks
    log.append(5, transaction=8)
    log.append(1, transaction=9 << 20 | 3)
    restart(log)
    again = log.ask(bind(4, 8, rows=5, plan=(5, 0), families=(9,)))
    # then it hears which tasks count, nothing is stored, and nothing waits
    assert again == first
    assert (staged(log), log.offsets(), log.live()) == ([], (0, 2), [1])


def test_where_an_epoch_is_not_decided_nothing_but_its_answer_is_kept(log: Log) -> None:
    log.append(2, transaction=7)
    bound = log.ask(bind(0, 7, rows=2))
    assert isinstance(bound, Bound)
    assert (bound.transactions, bound.plan) == ((), ())


def test_rows_that_were_dropped_are_missed(log: Log) -> None:
    # given two tasks, and an attempt of the same write that has lost
    for task in (7, 8, LOST):
        log.append(2, transaction=task)
    log.ask(Finish(8, commit=False))
    # when all of their rows are asked for, then nothing changes
    refused = log.ask(bind(0, 7, 8, rows=4, families=(5,)))
    assert is_a(refused, StagedRowsMissing)
    assert "expected 4 staged rows, found 2" in str(refused)
    assert (staged(log), log.offsets()) == ([7, LOST], (0, 0))
    # and what is there can be bound; a task that has nothing here does not matter
    assert isinstance(log.ask(bind(0, 7, 8, rows=2, families=(5,))), Bound)
    assert (staged(log), log.offsets()) == ([], (0, 2))


def test_the_last_epochs_of_a_query_are_known_and_older_ones_are_refused(log: Log) -> None:
    # given more epochs than are kept, with gaps: not each has rows here
    answers = {}
    for epoch in range(0, 2 * EPOCHS_KEPT + 2, 2):
        log.append(1, transaction=100 + epoch)
        answers[epoch] = log.ask(bind(epoch, 100 + epoch, rows=1))
    restart(log)
    # then the last ones are answered as before
    last = list(answers)[-EPOCHS_KEPT:]
    assert [log.ask(bind(epoch, rows=0)) for epoch in last] == [answers[one] for one in last]
    # and what came before them is refused, also one that was never here
    for old in (0, 1, 3):
        assert is_a(log.ask(bind(old, rows=0)), EpochPassed)
    # and another query has epochs of its own
    log.append(1, transaction=5)
    assert isinstance(log.ask(bind(0, 5, rows=1, query=b"r" * 16)), Bound)


def test_a_query_is_forgotten_after_as_long_as_it_said(log: Log) -> None:
    log.append(1, transaction=1)
    first = log.ask(bind(0, 1, rows=1, keep_ms=DAY_MS))
    log.ms += DAY_MS // 2
    assert log.ask(bind(0, rows=0, keep_ms=DAY_MS)) == first
    log.ms += DAY_MS
    again = log.ask(bind(0, rows=0, keep_ms=DAY_MS))
    assert isinstance(again, Bound)
    assert again != first
    assert len(log.machine.state.queries) == 1


@pytest.mark.slow
def test_of_too_many_queries_those_go_that_would_be_forgotten_first(log: Log) -> None:
    # given a stream, and as many writes that are none
    log.append(1, transaction=1)
    first = log.ask(bind(0, 1, rows=1))
    for number in range(QUERIES_KEPT):
        log.ask(bind(0, rows=0, query=number.to_bytes(16, "big"), keep_ms=1_000_000))
    # then the stream is still known, and the oldest of the others is not
    assert log.ask(bind(0, rows=0)) == first
    known = {one.id for one in log.machine.state.queries}
    assert len(known) == QUERIES_KEPT
    assert bytes(16) not in known


def test_tasks_do_not_take_the_place_of_other_producers(log: Log) -> None:
    # given a task whose rows are bound, one that has lost, and a producer that stages and appends
    for number, producer in ((1, b"1" * 16), (LOST, b"2" * 16), (3, b"3" * 16)):
        log.append(1, transaction=number, producer=producer)
        log.append(1, transaction=number, producer=producer, sequence=1)
    log.append(1, producer=b"3" * 16, sequence=2)
    assert len(log.machine.state.producers) == 3
    # when the epoch is bound, then only that one is known, and what comes late is refused
    log.ask(bind(0, 1, 3, rows=4, families=(5,)))
    assert len(log.machine.state.producers) == 1
    assert isinstance(log.append(1, producer=b"3" * 16, sequence=3), Appended)
    for number, producer in ((1, b"1" * 16), (LOST, b"2" * 16)):
        assert is_a(log.append(1, transaction=number, producer=producer), BatchRefused)


def test_what_is_staged_is_dropped_unless_its_epoch_is_bound(log: Log) -> None:
    # given attempts of two writes
    log.append(1, transaction=5 << 20)
    log.append(1, transaction=5 << 20 | 1)
    log.append(1, transaction=6 << 20)
    # when the first is given up before its epoch is bound, then its rows go
    assert log.ask(Drop(QUERY, 0, (5,))) is None
    assert staged(log) == [6 << 20]
    # and when it is bound, nothing goes, and the answer says so
    bound = log.ask(bind(0, 6 << 20, rows=1, plan=(1,)))
    log.append(1, transaction=7 << 20)
    assert log.ask(Drop(QUERY, 0, (7,))) == bound
    assert staged(log) == [7 << 20]
    # and an epoch that came too late leaves nothing
    log.ask(bind(9, rows=0))
    assert is_a(log.ask(bind(3, rows=1, families=(7,))), EpochPassed)
    assert staged(log) == []


def test_there_is_room_for_new_rows_where_old_ones_were_left(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given as many batches as there may be, of drivers that died
    monkeypatch.setattr(state, "STAGED_MAX", 3)
    for number in (1, 2, 3):
        log.append(1, transaction=number)
    assert is_a(log.append(1, transaction=4), TooMany)
    # when they are more than an hour old, then they make room
    log.ms += 3_600_000
    assert isinstance(log.append(1, transaction=4), Appended)
    assert staged(log) == [4]
    restart(log)
    assert log.machine.state.staged_batches == 1


def test_rows_that_no_task_finishes_go_after_a_day(log: Log) -> None:
    # given rows that wait, and some that came an hour later
    log.append(1, transaction=1)
    log.ms += DAY_MS // 24
    log.append(1, transaction=2)
    # when it is a day after the first, then these are dropped, with the next command
    log.ms += STAGED_MS - DAY_MS // 24 - 10
    restart(log)
    state = log.machine.state
    assert not state.overdue_at((log.ms + 2) << 16)
    assert staged(log) == [1, 2]
    log.ms += 10
    assert state.overdue_at(log.ms << 16)  # a partition without writers is given a tick then
    log.ask(Tick())
    assert staged(log) == [2]
    assert log.live() == [2]
    # and what still comes from there is refused
    assert not isinstance(log.append(1, transaction=1), Appended)


def test_nothing_is_dropped_and_bound_until_all_members_know_how(log: Log) -> None:
    # given a partition of an older release, with rows that wait
    log = Log()
    log.machine.upgrade(3)
    log.append(1, transaction=1)
    log.ms += 2 * STAGED_MS
    log.ask(Tick())
    assert is_a(log.ask(bind(0, 1, rows=1)), MembersBehind)
    log.restart(3)
    assert staged(log) == [1]
    # when all know it, then time begins to count
    log.machine.upgrade(4)
    log.ms += STAGED_MS - 10
    log.ask(Tick())
    restart(log)
    assert staged(log) == [1]
    log.ms += 20
    log.ask(Tick())
    assert staged(log) == []


@pytest.mark.parametrize("wrong", [{"query": b"short"}, {"epoch": -1}])
def test_what_is_no_epoch_is_refused(log: Log, wrong: dict[str, object]) -> None:
    log.append(1, transaction=1)
    command = msgspec.structs.replace(bind(0, 1, rows=1), **wrong)
    assert is_a(log.ask(command), CommandRefused)
    assert staged(log) == [1]
