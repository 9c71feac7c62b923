"""Rows that tasks of a query have staged, bound to its epochs: each once, whatever is repeated."""

from __future__ import annotations

import msgspec
import pytest

from lowmark.table import (
    STAGED_MS,
    Abandon,
    Appended,
    BatchRefused,
    Bind,
    Bound,
    CommandRefused,
    Drop,
    EpochPassed,
    EpochsUnfinished,
    EpochUnfinished,
    Finish,
    MembersBehind,
    PartitionMachine,
    StagedRowsMissing,
    StagingFull,
    Tick,
    TooMany,
    binding,
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a partition of an older release, with as many batches as there may be, of dead drivers
    log = Log()
    log.machine.upgrade(5)
    monkeypatch.setattr(state, "STAGED_MAX", 3)
    for number in (1, 2, 3):
        log.append(1, transaction=number)
    assert is_a(log.append(1, transaction=4), TooMany)
    # when they are more than an hour old, then they make room
    log.ms += 3_600_000
    assert isinstance(log.append(1, transaction=4), Appended)
    assert staged(log) == [4]
    log.restart(5)
    assert log.machine.state.staged_batches == 1


def test_rows_that_no_task_finishes_go_after_a_day_by_their_age_alone_before_version_6() -> None:
    # given a partition of an older release, with rows that wait, and some that came an hour later
    log = Log()
    log.machine.upgrade(5)
    log.append(1, transaction=1)
    log.ms += DAY_MS // 24
    log.append(1, transaction=2)
    # when it is a day after the first, then these are dropped, with the next command
    log.ms += STAGED_MS - DAY_MS // 24 - 10
    log.restart(5)
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
    log.restart(4)
    assert staged(log) == [1]
    log.ms += 20
    log.ask(Tick())
    assert staged(log) == []


# -- rows that may count for an epoch that another partition has decided --------------------------


def test_rows_are_not_dropped_by_their_age_alone(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # given rows that wait, and as many as there may be
    monkeypatch.setattr(state, "STAGED_MAX", 2)
    log.append(1, transaction=1)
    log.ms += 1_000
    log.append(1, transaction=2)
    # when more than a day passes, then the leader is told of them, and they stay
    log.ms += STAGED_MS - 1_000
    log.ask(Tick())
    restart(log)
    machine = log.machine
    assert machine.state.abandoned(log.ms << 16) == [1, 2]  # an hour, where there is no room
    monkeypatch.setattr(state, "STAGED_MAX", 3)
    assert machine.state.abandoned(log.ms << 16) == [1]
    assert not machine.state.overdue_at(log.ms << 16)
    assert staged(log) == [1, 2]
    # and where there is no room, new ones are refused by name
    monkeypatch.setattr(state, "STAGED_MAX", 2)
    assert is_a(log.append(1, transaction=3), StagingFull)
    # and the leader has them dropped
    log.ask(Finish(1, commit=False))
    assert staged(log) == [2]


def test_what_was_abandoned_is_in_no_epoch_that_is_decided_later(log: Log) -> None:
    # given rows of two writers, one of which has none here
    log.append(2, transaction=7)
    # when another partition is about to drop theirs
    assert log.ask(Abandon((7, 8))) is None
    restart(log)
    # then no epoch is decided with either of them, and no more is staged
    for transactions, rows in (((7,), 2), ((8,), 0), ((7, 8), 2)):
        refused = log.ask(bind(0, *transactions, rows=rows, plan=(rows, 5)))
        assert is_a(refused, StagedRowsMissing)
    assert is_a(log.append(1, transaction=8), BatchRefused)
    # but one that another partition has decided is bound here
    bound = log.ask(bind(0, 7, rows=2))
    assert isinstance(bound, Bound)
    assert log.offsets() == (0, 2)


def test_what_was_abandoned_and_waits_is_dropped_when_it_is_finished(log: Log) -> None:
    log.append(2, transaction=7, producer=b"1" * 16)
    log.ask(Abandon((7,)))
    assert staged(log) == [7]
    first = log.ask(Finish(7, commit=False))
    assert (staged(log), log.live(), len(log.machine.state.producers)) == ([], [], 0)
    assert log.ask(Finish(7, commit=False)) == first


def test_what_was_abandoned_is_in_no_epoch_however_much_happens_meanwhile(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "FINISHED_KEPT", 2)
    # given rows that another partition is about to drop, and an end that is known here
    first = log.ask(Finish(99, commit=False))
    log.ask(Abandon((7,)))
    # when many others are about to be dropped, and are dropped, too
    log.ms += STAGED_MS - 100
    for number in range(10, 15):
        log.ask(Abandon((number, number + 50)))
    assert log.ask(Finish(99, commit=False)) == first
    for number in range(20, 25):
        log.ask(Finish(number, commit=False))
    restart(log)
    # then no epoch is decided with the first ones; for a day
    late = bind(0, 7, rows=0, plan=(0, 5))
    assert is_a(log.ask(late), StagedRowsMissing)
    log.ms += 100
    log.ask(Abandon((8,)))
    assert list(log.machine.state.given_up) == [10, 60, 11, 61, 12, 62, 13, 63, 14, 64, 8]
    assert is_a(log.ask(late), Bound)


def test_more_is_not_abandoned_than_a_partition_remembers(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "GIVEN_UP_MAX", 3)
    # given as many transactions as a partition remembers to have given up
    log.ask(Abandon((1, 2, 3)))
    # then more are refused, those again are not, and room is there after a day
    assert is_a(log.ask(Abandon((3, 4))), CommandRefused)
    assert log.ask(Abandon((3, 1))) is None
    log.ms += STAGED_MS
    assert log.ask(Abandon((4,))) is None
    assert list(log.machine.state.given_up) == [4]


def test_who_asks_hears_of_an_epoch_that_was_decided_until_it_is_bound_everywhere(
    log: Log,
) -> None:
    # given an epoch with rows here and elsewhere, of a query that is known for an hour
    log.append(2, transaction=7)
    bound = log.ask(bind(0, 7, 8, rows=2, plan=(2, 5), keep_ms=DAY_MS // 24))
    # when many days have passed, then it is known all the same, and nothing is abandoned
    log.ms += 90 * DAY_MS
    restart(log)
    assert log.ask(Abandon((8, 9))) == bound
    assert log.ask(bind(0, 9, rows=0, plan=(0, 5))) == bound
    assert [one.id for one in log.machine.state.left(log.ms << 16)] == [QUERY]
    # when it is bound everywhere, then nobody has to end it any more, and it is forgotten in time
    assert log.ask(bind(0, rows=0)) == bound
    assert log.machine.state.left(log.ms << 16) == []
    assert log.ask(Abandon((8, 9))) is None
    again = log.ask(bind(0, rows=0, plan=(0, 0)))
    assert isinstance(again, Bound)
    assert again != bound


def test_an_epoch_that_lacks_rows_elsewhere_makes_no_room_for_others(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "QUERIES_KEPT", 3)
    monkeypatch.setattr(state, "QUERIES_KEPT", 3)
    # given as many epochs as may be known, one of which may lack rows elsewhere
    first = log.ask(bind(0, rows=0, plan=(0, 5), query=b"1" * 16, keep_ms=1_000))
    for other in (b"2" * 16, b"3" * 16, b"4" * 16):
        log.ask(bind(0, rows=0, plan=(0, 0), query=other))
    # then another one has made room
    known = [one.id for one in log.machine.state.queries]
    assert known == [b"1" * 16, b"3" * 16, b"4" * 16]
    # and when all but one lack some, no further one is decided
    log.ask(bind(1, rows=0, plan=(0, 5), query=b"4" * 16))
    assert is_a(log.ask(bind(0, rows=0, plan=(0, 0))), EpochsUnfinished)
    # but those that were decided elsewhere are bound, and make room for each other
    for other in (b"5" * 16, b"6" * 16):
        assert isinstance(log.ask(bind(0, rows=0, query=other)), Bound)
    assert {one.id for one in log.machine.state.queries} == {b"1" * 16, b"4" * 16, b"6" * 16}
    assert log.ask(bind(0, rows=0, query=b"1" * 16)) == first


def test_the_next_epoch_of_a_query_waits_until_the_last_one_is_bound_everywhere(log: Log) -> None:
    # given an epoch with rows elsewhere, of which no driver has said that all have it
    log.append(2, transaction=7)
    first = log.ask(bind(0, 7, 8, rows=2, plan=(2, 5), keep_ms=DAY_MS))
    log.append(3, transaction=9)
    # when the next one comes, soon or late, then nothing changes, and the answer says why
    for over in (False, True):
        restart(log)
        refused = log.ask(bind(1, 9, rows=3, plan=(3, 5)))
        assert isinstance(refused, EpochUnfinished)
        assert (refused.newest, refused.over) == (0, over)
        assert log.ask(Abandon((8,))) == first
        assert staged(log) == [9]
        log.ms += DAY_MS
    # and once it is noted that all have the first one, the next one is decided
    log.ask(bind(0, rows=0))
    assert is_a(log.ask(bind(1, 9, rows=3, plan=(3, 5))), Bound)


def test_a_query_that_is_known_needs_no_room_for_its_next_epoch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "QUERIES_KEPT", 3)
    monkeypatch.setattr(state, "QUERIES_KEPT", 3)
    # given a query all of whose rows are bound, and as many others as may lack some
    log.ask(bind(0, rows=0, plan=(0, 0)))
    for other in (b"1" * 16, b"2" * 16):
        log.ask(bind(0, rows=0, plan=(0, 5), query=other))
    # then its next epoch is decided, and the first one of another query is not
    assert is_a(log.ask(bind(0, rows=0, plan=(0, 5), query=b"3" * 16)), EpochsUnfinished)
    assert is_a(log.ask(bind(1, rows=0, plan=(0, 5))), Bound)


def test_epochs_that_all_lack_rows_since_an_earlier_release_leave_room_for_one_of_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "QUERIES_KEPT", 2)
    monkeypatch.setattr(state, "QUERIES_KEPT", 2)
    # given as many queries as may be known, which an earlier release let all lack rows elsewhere
    log = Log()
    log.machine.upgrade(5)
    for query in (b"1" * 16, b"2" * 16):
        log.ask(bind(0, rows=0, plan=(0, 5), query=query))
    log.restart(5)
    # when all members know that none of these may be forgotten
    log.machine.upgrade(6)
    # then epochs that other partitions have decided are bound, and make room for each other
    for query in (b"3" * 16, b"4" * 16):
        assert is_a(log.ask(bind(0, rows=0, query=query)), Bound)
    restart(log)
    known = {one.id for one in log.machine.state.queries}
    assert known == {b"1" * 16, b"2" * 16, b"4" * 16}


def test_nothing_is_abandoned_until_all_members_know_how() -> None:
    log = Log()
    log.machine.upgrade(5)
    log.append(1, transaction=7)
    assert is_a(log.ask(Abandon((7,))), MembersBehind)
    assert log.machine.state.abandoned((log.ms + STAGED_MS) << 16) == []
    assert isinstance(log.ask(bind(0, 7, rows=1, plan=(1, 5))), Bound)
    # when all know it, then what was decided before is known, too
    log.machine.upgrade(6)
    assert isinstance(log.ask(Abandon((7,))), Bound)


@pytest.mark.parametrize("wrong", [{"query": b"short"}, {"epoch": -1}])
def test_what_is_no_epoch_is_refused(log: Log, wrong: dict[str, object]) -> None:
    log.append(1, transaction=1)
    command = msgspec.structs.replace(bind(0, 1, rows=1), **wrong)
    assert is_a(log.ask(command), CommandRefused)
    assert staged(log) == [1]
