"""Cursors whose reader is away for too long: they hold nothing any more, and say so by name."""

from __future__ import annotations

from random import Random

import pytest

from lowmark.errors import LowmarkError
from lowmark.table import (
    IDLE_MS_MAX,
    CommandRefused,
    CreateCursor,
    Cursor,
    CursorExpired,
    CursorOverdue,
    CursorUnknown,
    MembersBehind,
    MoveCursor,
    PartitionMachine,
    RenewCursor,
    Tick,
    Trim,
    encode_batch,
    encode_control,
)
from sim.table_ledger import TableModel, rows_message, shown
from table.one_log import Log, is_a

NEWEST = PartitionMachine.newest_version


@pytest.fixture
def log() -> Log:
    made = Log()
    made.machine.upgrade(NEWEST)
    return made


def cursor(log: Log, name: str = "c") -> Cursor:
    return log.machine.state.cursors[name]


def test_a_cursor_that_was_idle_for_too_long_holds_nothing_and_says_so(log: Log) -> None:
    # given a cursor that may be idle for a second, and rows that it has not seen
    log.append(3)
    log.ask(CreateCursor("c", 1, "raw", 0))
    log.ask(RenewCursor("c", 1_000))
    # when exactly that time has passed, also in a snapshot, then it holds
    log.ms += 999
    log.ask(Trim(3, expire=True))
    log.restart(NEWEST)
    assert log.offsets() == (0, 3)
    assert not cursor(log).expired
    # when it is a millisecond more, then it holds nothing
    log.ask(Trim(3, expire=True))
    assert log.offsets() == (3, 3)
    log.restart(NEWEST)
    assert cursor(log).expired
    # and its reader hears of it by name, until the cursor is put somewhere
    expired = log.ask(MoveCursor("c", 3))
    assert isinstance(expired, CursorExpired)
    assert expired.message == "cursor 'c' expired: it was idle for 1 second"
    assert is_a(log.ask(RenewCursor("c", 1_000)), CursorExpired)
    reset = log.ask(MoveCursor("c", 3, reset=True))
    assert isinstance(reset, Cursor)
    assert (reset.overdue, reset.expired, reset.idle_ms) == (False, False, 1_000)


@pytest.mark.parametrize("sign", [MoveCursor("c", 0), RenewCursor("c", 1_000)])
def test_a_cursor_whose_reader_is_there_does_not_expire(
    log: Log, sign: MoveCursor | RenewCursor
) -> None:
    log.append(3)
    log.ask(CreateCursor("c", 1, "raw", 0))
    log.ask(RenewCursor("c", 1_000))
    for _ in range(5):
        log.ms += 900
        assert not isinstance(log.ask(sign), LowmarkError)
        log.ask(Trim(3, expire=True))
    assert log.offsets() == (0, 3)


def test_a_cursor_without_an_expiry_stays(log: Log) -> None:
    # given one that never had one, and one that has none any more
    log.append(1)
    for name in ("a", "b"):
        log.ask(CreateCursor(name, 1, "raw", 0))
    log.ask(RenewCursor("b", 1_000))
    log.ask(RenewCursor("b", 0))
    # when a year passes
    log.ms += 366 * 86_400_000
    log.ask(Tick())
    # then both are as they were
    assert [one.overdue for one in log.machine.state.cursors.values()] == [False, False]


def test_a_cursor_that_falls_behind_is_overdue_and_not_expired(log: Log) -> None:
    log.ask(CreateCursor("c", 1, "raw", 0, max_lag_rows=2))
    log.ask(RenewCursor("c", 1_000))
    log.append(3)
    log.ms += 5_000
    assert is_a(log.ask(MoveCursor("c", 3)), CursorOverdue)
    assert not cursor(log).expired


@pytest.mark.parametrize(
    ("idle_ms", "well"), [(0, True), (-1, False), (IDLE_MS_MAX, True), (IDLE_MS_MAX + 1, False)]
)
def test_how_long_a_cursor_may_be_idle_has_a_limit(log: Log, idle_ms: int, well: bool) -> None:
    log.ask(CreateCursor("c", 1, "raw", 0))
    assert is_a(log.ask(RenewCursor("c", idle_ms)), CommandRefused) != well
    assert is_a(log.ask(RenewCursor("other", 1)), CursorUnknown)


def test_no_cursor_expires_until_all_members_know_how() -> None:
    # given a partition with a member of an older release
    log = Log()
    log.machine.upgrade(4)
    log.ask(CreateCursor("c", 1, "raw", 0))
    # when a cursor is to expire, then that is refused, and its snapshot is the older release's
    assert is_a(log.ask(RenewCursor("c", 1)), MembersBehind)
    older = b"".join(map(bytes, log.machine.snapshot()))
    log.restart(4)
    assert b"".join(map(bytes, log.machine.snapshot())) == older
    # when all know how, then it is taken
    log.machine.upgrade(NEWEST)
    assert not isinstance(log.ask(RenewCursor("c", 1)), LowmarkError)
    log.restart(NEWEST)
    assert cursor(log).idle_ms == 1


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_cursors_expire_as_in_a_model_of_plain_lists(seed: int) -> None:
    dice, log, model = Random(seed), Log(), TableModel()
    log.machine.upgrade(NEWEST)
    for step in range(200):
        name = dice.choice("ab")
        at = dice.randrange(model.start, len(model.rows) + 2)
        command = dice.choice(
            [
                encode_batch(rows_message([(step, "v")]), rows=1, schema=1),
                encode_control(CreateCursor(name, 1, "raw", at, max_lag_rows=dice.choice([0, 9]))),
                encode_control(RenewCursor(name, dice.choice([0, 5, 30, 100]))),
                encode_control(MoveCursor(name, at, reset=dice.random() < 0.3)),
                encode_control(Trim(at, expire=True)),
                encode_control(Tick()),
            ]
        )
        log.ms += dice.choice([0, 0, 3, 29, 30])
        outcome = log.apply(command)
        expected = model.apply(log.index, log.ms << 16, command)
        assert shown(outcome) == expected, step
        if dice.random() < 0.1:
            log.restart(NEWEST)
    assert {name: (one.overdue, one.expired) for name, one in model.cursors.items()} == {
        name: (one.overdue, one.expired) for name, one in log.machine.state.cursors.items()
    }
