"""The partition machine, command by command, and against a plain model."""

from __future__ import annotations

import random

import pytest

from lowmark.errors import Corrupt
from lowmark.table import (
    NAME_CHARACTERS_MAX,
    NO_PRODUCER,
    Appended,
    BatchRefused,
    Change,
    CommandRefused,
    CreateCursor,
    Cursor,
    CursorExists,
    CursorMovesBack,
    CursorOverdue,
    CursorUnknown,
    DeleteCursor,
    Fence,
    Finish,
    Finished,
    Lease,
    LeaseExists,
    LeaseExpired,
    MoveCursor,
    OffsetExpired,
    OffsetToCome,
    OutOfSequence,
    ProducerFenced,
    ProducerForgotten,
    ReleaseLease,
    RenewLease,
    RepeatTooOld,
    TakeLease,
    Tick,
    TransactionUnknown,
    Trim,
    Trimmed,
    encode_batch,
)
from lowmark.table.commands import CONTROL
from lowmark.table.producers import ANSWERS_KEPT, PRODUCERS_MAX
from table.one_log import Log, is_a

PRODUCER = b"p" * 16


@pytest.fixture
def log() -> Log:
    return Log()


# -- rows -----------------------------------------------------------------------------------------


def test_offsets_are_dense_and_times_grow(log: Log) -> None:
    first, second = log.append(3), log.append(2)
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert (first.first, first.rows, second.first) == (0, 3, 3)
    assert second.time > first.time
    assert log.offsets() == (0, 5)
    assert log.live() == [1, 2]


def test_a_repeat_gets_its_first_answer_also_after_a_restart(log: Log) -> None:
    # given a batch of a producer
    first = log.append(3, producer=PRODUCER, sequence=0)
    log.append(1)
    log.restart()
    # when it comes again, it is not stored again
    assert log.append(3, producer=PRODUCER, sequence=0) == first
    assert log.offsets() == (0, 4)
    assert log.live() == [1, 2]


def test_a_gap_a_fenced_epoch_and_a_stranger_are_refused_by_name(log: Log) -> None:
    log.append(producer=PRODUCER, sequence=0, epoch=2)
    assert is_a(log.append(producer=PRODUCER, sequence=2, epoch=2), OutOfSequence)
    assert is_a(log.append(producer=PRODUCER, sequence=1, epoch=1), ProducerFenced)
    assert is_a(log.append(producer=b"q" * 16, sequence=1), ProducerForgotten)
    assert log.offsets() == (0, 1)
    # a higher epoch begins again at 0
    assert is_a(log.append(producer=PRODUCER, sequence=1, epoch=3), OutOfSequence)
    assert isinstance(log.append(producer=PRODUCER, sequence=0, epoch=3), Appended)


def test_an_epoch_that_no_header_could_name_is_refused(log: Log) -> None:
    assert is_a(log.ask(Fence(PRODUCER, 1 << 32)), CommandRefused)
    assert is_a(log.ask(Fence(b"short", 1)), CommandRefused)
    assert log.ask(Fence(PRODUCER, 1 << 12)) is None
    assert is_a(log.append(producer=PRODUCER, sequence=0), ProducerFenced)


def test_answers_are_kept_for_so_many_batches(log: Log) -> None:
    answers = [log.append(producer=PRODUCER, sequence=number) for number in range(ANSWERS_KEPT + 1)]
    assert log.append(producer=PRODUCER, sequence=1) == answers[1]
    assert is_a(log.append(producer=PRODUCER, sequence=0), RepeatTooOld)


def test_the_producer_that_was_idle_longest_is_forgotten_first(log: Log) -> None:
    names = [number.to_bytes(16, "big") for number in range(1, PRODUCERS_MAX + 2)]
    for name in names[:-1]:
        log.append(producer=name, sequence=0)
    log.append(producer=names[0], sequence=1)  # it is idle no more
    log.append(producer=names[-1], sequence=0)
    assert is_a(log.append(producer=names[1], sequence=1), ProducerForgotten)
    assert isinstance(log.append(producer=names[0], sequence=2), Appended)


def test_batches_without_a_producer_are_not_numbered(log: Log) -> None:
    assert isinstance(log.append(producer=NO_PRODUCER, sequence=7), Appended)
    assert isinstance(log.append(producer=NO_PRODUCER, sequence=7), Appended)


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\x07rubbish",
        b"\x03rubbish",
        b"\x01short",
        encode_batch(b"", rows=0, schema=1),
        encode_batch(b"", rows=1, schema=1, change=Change.UPSERT)[:1] + b"\x09" + bytes(45),
    ],
)
def test_bytes_that_are_no_command_change_nothing(log: Log, command: bytes) -> None:
    log.append(2)
    assert isinstance(log.apply(command), Corrupt)
    assert log.offsets() == (0, 2)


# -- staging --------------------------------------------------------------------------------------


def test_staged_rows_get_their_offsets_when_they_are_committed(log: Log) -> None:
    # given rows of a transaction, and others that came in between
    log.append(2, transaction=9)
    log.append(3)
    log.append(1, transaction=9)
    assert log.offsets() == (0, 3)
    assert log.live() == [1, 2, 3]
    log.restart()
    # when it is committed
    done = log.ask(Finish(9, commit=True))
    # then they follow, all of one time; a repeat gets the same answer
    assert isinstance(done, Finished)
    assert (done.first, done.rows) == (3, 3)
    view = log.machine.state.backlog.view
    assert view.time.tolist()[1:] == [done.time, done.time]
    assert view.places.tolist() == [2, 1, 3]
    log.restart()
    assert log.ask(Finish(9, commit=True)) == done
    assert is_a(log.append(1, transaction=9), BatchRefused)


def test_aborted_rows_never_get_an_offset_and_die(log: Log) -> None:
    log.append(2, transaction=9)
    log.ask(Finish(9, commit=False))
    assert log.offsets() == (0, 0)
    assert log.live() == []
    assert is_a(log.ask(Finish(8, commit=True)), TransactionUnknown)


# -- cursors and leases ---------------------------------------------------------------------------


def test_a_cursor_moves_forward_only_unless_it_is_reset(log: Log) -> None:
    log.append(10)
    log.ask(CreateCursor("c", 1, "raw", 4))
    moved = log.ask(MoveCursor("c", 6))
    assert isinstance(moved, Cursor)
    assert moved.offset == 6
    assert is_a(log.ask(MoveCursor("c", 5)), CursorMovesBack)
    assert is_a(log.ask(MoveCursor("c", 11)), OffsetToCome)
    assert isinstance(log.ask(MoveCursor("c", 0, reset=True)), Cursor)
    assert is_a(log.ask(MoveCursor("d", 0)), CursorUnknown)


def test_a_name_has_one_cursor_and_creating_it_again_is_a_repeat(log: Log) -> None:
    first = log.ask(CreateCursor("c", 1, "raw", None))
    assert log.ask(CreateCursor("c", 1, "raw", None)) == first
    assert is_a(log.ask(CreateCursor("c", 2, "raw", None)), CursorExists)
    log.ask(DeleteCursor("c"))
    assert is_a(log.ask(DeleteCursor("c")), CursorUnknown)
    assert isinstance(log.ask(CreateCursor("c", 2, "raw", None)), Cursor)


def test_a_raw_cursor_holds_the_backlog_and_a_compacted_one_does_not(log: Log) -> None:
    log.append(4)
    log.append(4)
    log.ask(CreateCursor("slow", 1, "raw", 5))
    log.ask(CreateCursor("other", 2, "compacted", 0))
    cut = log.ask(Trim(8, expire=True))
    assert isinstance(cut, Trimmed)
    assert cut.safe.position == 5
    assert [hold.holder for hold in cut.safe.held_by] == ["slow"]
    # the batch that straddles the cut stays
    assert log.live() == [2]
    assert log.offsets() == (5, 8)
    # when the cursor goes, so does what it held
    log.ask(DeleteCursor("slow"))
    log.ask(Trim(8, expire=True))
    assert log.live() == []
    assert log.offsets() == (8, 8)


def test_nothing_is_trimmed_above_the_horizon(log: Log) -> None:
    log.append(4)
    cut = log.ask(Trim(4))
    assert isinstance(cut, Trimmed)
    assert (cut.safe.position, cut.batches) == (0, 0)


def test_a_cursor_that_falls_too_far_behind_is_overdue_and_holds_nothing(log: Log) -> None:
    log.append(3)
    log.ask(CreateCursor("c", 1, "raw", 0, max_lag_rows=5))
    log.append(2)
    assert [one.overdue for one in log.machine.state.cursors.values()] == [False]
    log.append(1)
    assert [one.overdue for one in log.machine.state.cursors.values()] == [True]
    log.restart()
    log.ask(Trim(6, expire=True))
    assert log.offsets() == (6, 6)
    assert is_a(log.ask(MoveCursor("c", 6)), CursorOverdue)
    reset = log.ask(MoveCursor("c", 6, reset=True))
    assert isinstance(reset, Cursor)
    assert not reset.overdue


def test_a_cursor_may_be_late_by_time_too(log: Log) -> None:
    log.append(1)
    log.ask(CreateCursor("c", 1, "raw", 0, max_lag_ms=50))
    log.ask(Tick())
    assert [one.overdue for one in log.machine.state.cursors.values()] == [False]
    log.ms += 60
    log.ask(Tick())
    assert [one.overdue for one in log.machine.state.cursors.values()] == [True]


def test_nobody_stands_where_nothing_is(log: Log) -> None:
    log.append(3)
    log.ask(Trim(2, expire=True))
    assert is_a(log.ask(CreateCursor("c", 1, "raw", 1)), OffsetExpired)
    assert is_a(log.ask(CreateCursor("c", 1, "raw", 4)), OffsetToCome)
    assert is_a(log.ask(TakeLease("l", 1, 1, 100)), OffsetExpired)
    assert is_a(log.ask(CreateCursor("", 1, "raw", 3)), CommandRefused)
    assert is_a(log.ask(TakeLease("l", 1, 3, 0)), CommandRefused)


def test_a_view_knows_how_late_the_rows_were_that_are_cut(log: Log) -> None:
    # given three batches, and a cut that goes through the second one
    times = []
    for _ in range(3):
        log.append(2)
        times.append(log.machine.state.closed)
    assert log.machine.state.backlog.view.cut_time == 0
    log.ask(Trim(3, expire=True))
    # then it says the time of the last row that went, and a cut that does nothing changes nothing
    assert log.machine.state.backlog.view.cut_time == times[1]
    log.ask(Trim(3, expire=True))
    assert log.machine.state.backlog.view.cut_time == times[1]
    log.ask(Trim(6, expire=True))
    assert log.machine.state.backlog.view.cut_time == times[2]
    # and a copy that begins with a snapshot knows a time that is no earlier, and not to come
    closed = log.machine.state.closed
    log.restart()
    assert times[2] <= log.machine.state.backlog.view.cut_time <= closed


@pytest.mark.parametrize(
    ("name", "well"),
    [
        ("", False),
        ("n" * NAME_CHARACTERS_MAX, True),
        ("\U0001f4a7" * NAME_CHARACTERS_MAX, True),
        ("n" * (NAME_CHARACTERS_MAX + 1), False),
        ("a\x1fb", False),
        ("a\x7fb", False),
        ("a b~", True),
        ("\u0378", True),  # in no Unicode so far: a newer Python may find it printable
    ],
)
def test_what_names_a_cursor_or_a_lease_is_the_same_in_every_python(
    log: Log, name: str, well: bool
) -> None:
    # given a name that came past the endpoint of whichever client
    # when a cursor and a lease are to have it
    outcomes = [log.ask(CreateCursor(name, 1, "raw", 0)), log.ask(TakeLease(name, 1, 0, 100))]
    # then only its length and its control characters count, by which all members agree
    expected = (Cursor, Lease) if well else (CommandRefused, CommandRefused)
    assert tuple(map(type, outcomes)) == expected


def test_a_delete_with_a_token_undoes_that_creation_and_no_other(log: Log) -> None:
    # given a cursor
    created = log.ask(CreateCursor("c", 7, "raw", 0))
    # when another one's creation is undone, or one that never came here
    assert log.ask(DeleteCursor("c", token=8)) is None
    assert log.ask(DeleteCursor("d", token=8)) is None
    # then it is still there
    assert log.machine.state.cursors == {"c": created}
    # and goes when its own is undone, once or again
    assert log.ask(DeleteCursor("c", token=7)) == created
    assert log.ask(DeleteCursor("c", token=7)) is None
    assert log.machine.state.cursors == {}
    # and with no token, whoever's it is
    log.ask(CreateCursor("c", 7, "raw", 0))
    assert isinstance(log.ask(DeleteCursor("c")), Cursor)
    assert is_a(log.ask(DeleteCursor("c")), CursorUnknown)


NESTED = b"\x91" * 100_000


@pytest.mark.parametrize(
    "control",
    [
        b"\x92\x04\xa2\xff\xfe",
        b"\x93\x04\xa3\xed\xa0\x80\x00",
        b"\x92\x09" + NESTED,
        b"\x94\x04\xa1c\x00" + NESTED,
        b"\x92\x04" + NESTED,
        b"\x92" + NESTED,
        NESTED,
        b"\x94\x04\xa1c\x00\x00",
        b"\x92\x63\x00",
        b"\x91\x09\x00",
        b"",
    ],
    ids=[
        "no UTF-8",
        "half a surrogate pair",
        "nested behind all fields of a tick",
        "nested behind all fields of another",
        "nested in a field",
        "nested as the tag",
        "nested and nothing else",
        "one too many",
        "unknown tag",
        "bytes behind it",
        "nothing",
    ],
)
def test_no_bytes_stop_the_machine_or_change_anything(log: Log, control: bytes) -> None:
    """Text that is no UTF-8, and arrays without end, came out as errors of Python's."""
    # given a cursor
    log.ask(CreateCursor("c", 1, "raw", 0))
    before = [bytes(chunk) for chunk in log.machine.snapshot()]
    # when bytes come that nobody can read
    outcome = log.apply(bytes([CONTROL]) + control)
    # then they are refused, and all is as it was
    assert is_a(outcome, Corrupt)
    assert [bytes(chunk) for chunk in log.machine.snapshot()] == before
    assert isinstance(log.append(1), Appended)


def test_a_lease_holds_until_it_is_over_and_can_t_be_renewed_then(log: Log) -> None:
    log.append(4)
    log.ask(TakeLease("l", 7, 1, ttl_ms=100, why="a copy"))
    log.ask(Trim(4, expire=True))
    assert log.offsets() == (1, 4)
    log.ms += 60
    renewed = log.ask(RenewLease("l", 7, 2))
    assert isinstance(renewed, Lease)
    log.ms += 60
    log.ask(Trim(4, expire=True))
    assert log.offsets() == (2, 4)
    log.ms += 100
    assert is_a(log.ask(RenewLease("l", 7, 3)), LeaseExpired)
    log.ask(Trim(4, expire=True))
    assert log.offsets() == (4, 4)


def test_a_lease_belongs_to_its_holder(log: Log) -> None:
    log.append(4)
    log.ask(TakeLease("l", 7, 1, ttl_ms=100))
    assert is_a(log.ask(TakeLease("l", 8, 1, ttl_ms=100)), LeaseExists)
    assert is_a(log.ask(RenewLease("l", 8, 1)), LeaseExpired)
    log.ask(ReleaseLease("l", 8))
    assert "l" in log.machine.state.leases
    log.ask(ReleaseLease("l", 7))
    assert isinstance(log.ask(TakeLease("l", 8, 1, ttl_ms=100)), Lease)


# -- against a model ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_agree_with_a_plain_model(seed: int) -> None:
    """Rows as a list, holds as numbers; a restart at any moment, and copies that move."""
    dice, log = random.Random(seed), Log()
    rows: list[int] = []  # the entry that each row came in with; its place may move later
    place: dict[int, int] = {}
    start = 0
    cursors: dict[str, int] = {}
    sequence, answers = 0, {}
    for _ in range(300):
        match dice.randrange(9):
            case 0 | 1:
                count = dice.randrange(1, 5)
                answer = log.append(count)
                assert isinstance(answer, Appended)
                assert answer.first == len(rows)
                rows += [log.index] * count
                place[log.index] = log.index
            case 2:
                count = dice.randrange(1, 5)
                answers[sequence] = log.append(count, producer=PRODUCER, sequence=sequence)
                sequence += 1
                rows += [log.index] * count
                place[log.index] = log.index
            case 3 if sequence:
                number = dice.randrange(max(0, sequence - ANSWERS_KEPT), sequence)
                assert log.append(1, producer=PRODUCER, sequence=number) == answers[number]
            case 4:
                name, at = dice.choice("abc"), dice.randrange(start, len(rows) + 1)
                made = log.ask(CreateCursor(name, 1, "raw", at))
                if name not in cursors:
                    cursors[name] = at
                assert isinstance(made, Cursor)
                assert made.offset == cursors[name]
            case 5 if cursors:
                name, at = dice.choice(sorted(cursors)), dice.randrange(start, len(rows) + 1)
                moved = log.ask(MoveCursor(name, at))
                assert is_a(moved, CursorMovesBack) == (at < cursors[name])
                cursors[name] = max(cursors[name], at)
            case 6 if cursors and dice.random() < 0.3:
                name = dice.choice(sorted(cursors))
                log.ask(DeleteCursor(name))
                del cursors[name]
            case 7:
                goal = dice.randrange(start, len(rows) + 1)
                log.ask(Trim(goal, expire=True))
                start = max(start, min([goal, *cursors.values()]))
            case 8:
                live = log.live()
                if live and dice.random() < 0.5:
                    old = dice.choice(live)
                    log.index += 1
                    log.machine.moved(old, log.index)
                    place = {entry: log.index if at == old else at for entry, at in place.items()}
                else:
                    log.restart()
            case _:
                log.ask(Tick())
        assert log.offsets() == (start, len(rows))
        assert log.live() == sorted({place[entry] for entry in rows[start:]})
        view = log.machine.state.backlog.view
        for offset in dice.sample(range(start, len(rows)), min(3, len(rows) - start)):
            assert int(view.places[view.batch_at(offset)]) == place[rows[offset]]


def test_a_view_stays_what_it_is(log: Log) -> None:
    log.append(3)
    log.append(3)
    view = log.machine.state.backlog.view
    before = (view.places.tolist(), view.start, view.end)
    log.append(3)
    log.ask(Trim(5, expire=True))
    log.machine.moved(2, 99)
    for _ in range(200):
        log.append(1)
    assert (view.places.tolist(), view.start, view.end) == before
    assert log.machine.state.backlog.view.places.tolist()[0] == 99


def test_a_cut_does_not_wait_for_a_cursor_that_is_too_late_by_then(log: Log) -> None:
    log.append(4)
    log.ask(CreateCursor("c", 1, "raw", 0, max_lag_ms=50))
    log.ms += 60
    log.ask(Trim(4, expire=True))
    assert log.offsets() == (4, 4)
