"""Which ledgers a partition adopts, who holds their deletes, and what may be cut then."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import msgspec
import pytest

from lowmark.errors import Conflict, Corrupt, LowmarkError
from lowmark.holds import safe_point
from lowmark.table import (
    MANIFEST_CHARACTERS_MAX,
    Adopt,
    Adopted,
    CommandRefused,
    CreateCursor,
    Cursor,
    CursorMovesBack,
    CursorOverdue,
    DeleteCursor,
    DeletesGone,
    DeletesHeld,
    Lease,
    LedgerConflict,
    LedgerOld,
    MoveCursor,
    OffsetExpired,
    OffsetToCome,
    ReleaseLease,
    RenewLease,
    TakeLease,
    Tick,
    Trim,
    Trimmed,
    deletes_held,
)
from lowmark.table.commands import Control
from table.one_log import Log, is_a

DIGEST = b"d" * 16
FIRST = Adopt(5, "five", 8, DIGEST, 4)
"""Of a log of ten rows."""


@pytest.fixture
def log() -> Log:
    """Ten rows, in batches of 4, 4 and 2."""
    log = Log()
    for rows in (4, 4, 2):
        log.append(rows)
    return log


def changed(**fields: object) -> Adopt:
    return msgspec.structs.replace(FIRST, **fields)


def ledger(log: Log) -> Adopted | None:
    """The one that readers see; it is the one that the machine has."""
    seen = log.machine.state.backlog.view.ledger
    assert seen is log.machine.state.ledger
    return seen


def snapshot(log: Log) -> bytes:
    return b"".join(map(bytes, log.machine.snapshot()))


# -- which ledger may follow ----------------------------------------------------------------------


def test_an_adopted_ledger_is_shown_together_with_its_backlog(log: Log) -> None:
    before = log.machine.state.backlog.view
    # when a ledger is adopted
    adopted = log.ask(FIRST)
    # then it is what the next view has, stamped; and the view of before is what it was
    assert adopted == Adopted(5, "five", 8, DIGEST, 4, log.ms << 16)
    assert ledger(log) == adopted
    assert log.machine.state.horizon == 8
    assert before.ledger is None
    with pytest.raises(FrozenInstanceError):
        before.ledger = ledger(log)  # type: ignore[misc]
    # and every later view has it, too
    log.append(1)
    assert ledger(log) == adopted
    log.machine.moved(1, 99)
    assert ledger(log) == adopted
    log.restart()
    assert ledger(log) == adopted


@pytest.mark.parametrize(
    "wanted",
    [
        changed(digest=b""),
        changed(digest=b"d" * 15),
        changed(digest=b"d" * 17),
        changed(manifest=""),
        changed(manifest="m" * (MANIFEST_CHARACTERS_MAX + 1)),
        changed(manifest="a\nb"),
        changed(manifest="a\x7fb"),
        changed(horizon=11),
        changed(horizon=-1, deletes_below=-1),
        changed(deletes_below=-1),
        changed(deletes_below=9),
        changed(epoch=-1),
    ],
    ids=lambda wanted: repr(wanted)[:60],
)
def test_a_ledger_that_can_t_be_is_refused_and_nothing_is_adopted(log: Log, wanted: Adopt) -> None:
    assert is_a(log.ask(wanted), CommandRefused)
    assert ledger(log) is None


@pytest.mark.parametrize(
    "wanted",
    [
        changed(manifest="m" * MANIFEST_CHARACTERS_MAX),
        changed(manifest="\u0378"),  # in no Unicode so far: a newer Python may find it printable
        changed(horizon=10, deletes_below=10),
        changed(horizon=0, deletes_below=0),
        changed(deletes_below=0),
        changed(deletes_below=8),
        changed(epoch=0),
    ],
    ids=lambda wanted: repr(wanted)[:60],
)
def test_a_ledger_may_go_to_the_limit(log: Log, wanted: Adopt) -> None:
    assert isinstance(log.ask(wanted), Adopted)


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        (changed(epoch=4), LedgerOld),
        (changed(epoch=4, manifest="another", horizon=10, digest=b"e" * 16), LedgerOld),
        (changed(manifest="another"), LedgerConflict),
        (changed(horizon=9), LedgerConflict),
        (changed(digest=b"e" * 16), LedgerConflict),
        (changed(deletes_below=5), LedgerConflict),
        (changed(epoch=6, horizon=7), CommandRefused),
        (changed(epoch=6, horizon=11), CommandRefused),
        (changed(epoch=6, deletes_below=3), CommandRefused),
    ],
    ids=lambda wanted: repr(wanted)[:60],
)
def test_what_may_not_follow_is_refused_by_name_and_changes_nothing(
    log: Log, wanted: Adopt, refusal: type[LowmarkError]
) -> None:
    # given a ledger
    adopted = log.ask(FIRST)
    log.ask(Trim(8))
    before = snapshot(log)
    # when another one comes that can't follow it
    log.index, log.ms = log.index - 1, log.ms - 1
    outcome = log.ask(wanted)
    # then it is refused, and all is as it was
    assert type(outcome) is refusal
    assert snapshot(log) == before
    assert ledger(log) == adopted


def test_two_ledgers_of_one_epoch_are_damage_and_an_old_one_is_not(log: Log) -> None:
    log.ask(FIRST)
    assert is_a(log.ask(changed(manifest="another")), Corrupt)
    old = log.ask(changed(epoch=1))
    assert isinstance(old, LedgerOld)
    assert isinstance(old, Conflict)
    assert (old.epoch, old.current) == (1, 5)


@pytest.mark.parametrize(
    "wanted",
    [
        changed(epoch=6),
        changed(epoch=6, manifest="another", digest=b"e" * 16),
        changed(epoch=6, horizon=10),
        changed(epoch=6, deletes_below=8),
        changed(epoch=1 << 40),
    ],
    ids=lambda wanted: repr(wanted)[:60],
)
def test_a_newer_ledger_may_cover_as_much_or_more(log: Log, wanted: Adopt) -> None:
    log.ask(FIRST)
    assert isinstance(log.ask(wanted), Adopted)
    adopted = ledger(log)
    assert adopted is not None
    assert adopted.is_same(wanted)


def test_a_repeat_gets_its_first_answer_whatever_stands_in_its_way_by_now(log: Log) -> None:
    # given a ledger, and a cursor that would hold its deletes
    first = log.ask(FIRST)
    log.ask(CreateCursor("late", 1, "compacted", 0))
    # when the same comes again, it is the first answer, with its time
    assert log.ask(FIRST) == first
    log.restart()
    log.append(3)
    assert log.ask(FIRST) == first
    assert ledger(log) == first
    # and not once another one is adopted
    log.ask(changed(epoch=6))
    assert is_a(log.ask(FIRST), LedgerOld)


def test_a_refused_ledger_still_closes_its_time(log: Log) -> None:
    log.ask(changed(horizon=11))
    assert log.machine.state.backlog.view.closed == log.ms << 16


# -- who holds deletes ----------------------------------------------------------------------------

HOLDERS: dict[str, Control] = {
    "a raw cursor": CreateCursor("h", 1, "raw", 4),
    "a compacted cursor": CreateCursor("h", 1, "compacted", 4),
    "a raw lease": TakeLease("h", 1, 4, 1_000),
    "a compacted lease": TakeLease("h", 1, 4, 1_000, kind="compacted"),
}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_stands_at_an_offset_holds_the_deletes_from_there_on(
    log: Log, holder: str, restarts: bool
) -> None:
    # given one who stands at 4
    log.ask(HOLDERS[holder])
    if restarts:
        log.restart()
    # then deletes may not go below 5 or beyond: the one at 4 is yet to come
    for wanted in (5, 8):
        held = log.ask(changed(deletes_below=wanted))
        assert isinstance(held, DeletesHeld)
        assert isinstance(held, Conflict)
        assert (held.holder, held.at, held.wanted) == ("h", 4, wanted)
        assert held.kind in holder
        assert "'h'" in str(held)
    # but below 4 they may
    assert isinstance(log.ask(changed(deletes_below=4)), Adopted)
    # and further, when it has moved on
    moved = MoveCursor("h", 5) if "cursor" in holder else RenewLease("h", 1, 5)
    assert not is_a(log.ask(moved), LowmarkError)
    assert is_a(log.ask(changed(epoch=6, deletes_below=6)), DeletesHeld)
    assert isinstance(log.ask(changed(epoch=6, deletes_below=5)), Adopted)
    # and as far as it likes, when it is gone
    log.ask(DeleteCursor("h") if "cursor" in holder else ReleaseLease("h", 1))
    assert isinstance(log.ask(changed(epoch=7, deletes_below=8)), Adopted)


def test_of_several_holders_the_earliest_is_named(log: Log) -> None:
    log.ask(CreateCursor("c", 1, "compacted", 6))
    log.ask(TakeLease("b", 1, 2, 1_000))
    log.ask(CreateCursor("a", 1, "raw", 3))
    held = log.ask(changed(deletes_below=8))
    assert isinstance(held, DeletesHeld)
    assert (held.holder, held.at) == ("b", 2)
    # and who plans a ledger sees the same before
    state = log.machine.state
    safe = safe_point(8, deletes_held(state.cursors, state.leases, now_ms=log.ms))
    assert [hold.holder for hold in safe.held_by] == ["b", "a", "c"]
    assert safe.position == 2


def test_a_lease_of_a_run_holds_no_deletes(log: Log) -> None:
    log.ask(TakeLease("run", 1, 0, 1_000, kind="run"))
    assert isinstance(log.ask(changed(deletes_below=8)), Adopted)


def test_a_lease_holds_deletes_until_it_is_over(log: Log) -> None:
    lease = log.ask(TakeLease("l", 1, 0, 100, kind="compacted"))
    assert isinstance(lease, Lease)
    log.ms = lease.ends_ms - 2
    assert is_a(log.ask(FIRST), DeletesHeld)
    # in its last millisecond it is over, though nobody has swept it up
    assert log.ms + 1 == lease.ends_ms
    assert isinstance(log.ask(FIRST), Adopted)
    assert "l" in log.machine.state.leases


@pytest.mark.parametrize("kind", ["raw", "compacted"])
@pytest.mark.parametrize("restarts", [False, True])
def test_an_overdue_cursor_holds_no_deletes(log: Log, kind: str, restarts: bool) -> None:
    # given a cursor that may be late by so much
    log.ask(CreateCursor("c", 1, kind, 0, max_lag_ms=100))  # type: ignore[arg-type]
    assert is_a(log.ask(FIRST), DeletesHeld)
    if restarts:
        log.restart()
    # when it is too late by the time of the very command that wants its deletes
    log.ms += 100
    # then that is not refused
    assert isinstance(log.ask(FIRST), Adopted)
    assert [one.overdue for one in log.machine.state.cursors.values()] == [True]
    assert is_a(log.ask(MoveCursor("c", 10)), CursorOverdue)


def test_a_compacted_cursor_is_late_by_rows_and_by_what_is_left_of_the_backlog(log: Log) -> None:
    # given two compacted cursors with a maximum lag, and a backlog of which a part is cut
    log.ask(changed(deletes_below=0))
    log.ask(CreateCursor("rows", 1, "compacted", 0, max_lag_rows=11))
    log.ask(CreateCursor("time", 1, "compacted", 0, max_lag_ms=100))
    log.ms += 80
    log.append(1)
    log.ask(changed(epoch=6, horizon=11, deletes_below=0))
    log.ask(Trim(10))
    log.ms += 80
    log.ask(Tick())
    # then the first row that one has not seen and that is left is not old enough
    late = {name: one.overdue for name, one in log.machine.state.cursors.items()}
    assert late == {"rows": False, "time": False}
    # when there is a row more, and it gets older
    log.append(1)
    late = {name: one.overdue for name, one in log.machine.state.cursors.items()}
    assert late == {"rows": True, "time": False}
    log.ms += 30
    log.ask(Tick())
    late = {name: one.overdue for name, one in log.machine.state.cursors.items()}
    assert late == {"rows": True, "time": True}
    # and with nothing left in the backlog nobody is late by time
    log.ask(changed(epoch=7, horizon=12, deletes_below=0))
    log.ask(Trim(12))
    log.ask(MoveCursor("time", 0, reset=True))
    log.ms += 1_000
    log.ask(Tick())
    assert not log.machine.state.cursors["time"].overdue


def test_a_cursor_that_came_between_plan_and_adopting_wins(log: Log) -> None:
    # given a ledger that is made by the holds of now: none
    wanted = changed(deletes_below=8)
    # when a cursor is created before it is adopted
    log.ask(CreateCursor("quick", 1, "compacted", 3))
    # then the ledger is refused, and the reader can go on
    assert is_a(log.ask(wanted), DeletesHeld)
    assert ledger(log) is None


def test_a_ledger_that_was_adopted_before_a_cursor_wins(log: Log) -> None:
    log.ask(changed(deletes_below=8))
    gone = log.ask(CreateCursor("slow", 1, "compacted", 3))
    assert isinstance(gone, DeletesGone)
    assert isinstance(gone, Conflict)
    assert (gone.wanted, gone.below) == (3, 8)
    assert "Begin at 0" in gone.hint
    assert log.machine.state.cursors == {}


def test_deletes_that_are_gone_already_are_held_by_nobody(log: Log) -> None:
    # given a ledger, and then a reader who began at 0, and one in what is left of the backlog
    log.ask(FIRST)
    log.ask(CreateCursor("fresh", 1, "compacted", 0))
    log.ask(TakeLease("raw", 1, 2, 1_000))
    # when the next one lacks no more than the first, it is adopted
    assert isinstance(log.ask(changed(epoch=6, horizon=10)), Adopted)
    # and if it lacks one more, it is not
    assert is_a(log.ask(changed(epoch=7, horizon=10, deletes_below=5)), DeletesHeld)


# -- where compacted readers begin ----------------------------------------------------------------


def begin(log: Log, how: str, offset: int) -> object:
    """A compacted reader begins at an offset, and goes again."""
    if how == "lease":
        made = log.ask(TakeLease("r", 1, offset, 1_000, kind="compacted"))
        log.ask(ReleaseLease("r", 1))
    elif how == "cursor":
        made = log.ask(CreateCursor("r", 1, "compacted", offset))
        log.ask(DeleteCursor("r", 1))
    else:
        log.ask(CreateCursor("r", 1, "compacted", None))
        made = log.ask(MoveCursor("r", offset, reset=True))
        log.ask(DeleteCursor("r", 1))
    return made


@pytest.mark.parametrize("how", ["cursor", "lease", "reset"])
def test_a_compacted_reader_begins_at_0_or_where_deletes_are_still_there(
    log: Log, how: str
) -> None:
    # given a backlog that begins at 6, and a ledger without deletes below 4
    log.ask(FIRST)
    log.ask(Trim(6))
    assert log.offsets() == (6, 10)
    outcomes = {offset: type(begin(log, how, offset)) for offset in range(-1, 12)}
    made = Lease if how == "lease" else Cursor
    assert outcomes == {
        -1: OffsetExpired,
        0: made,
        **dict.fromkeys(range(1, 4), DeletesGone),
        **dict.fromkeys(range(4, 11), made),
        11: OffsetToCome,
    }


@pytest.mark.parametrize("how", ["cursor", "lease", "reset"])
def test_without_a_ledger_a_compacted_reader_begins_anywhere(log: Log, how: str) -> None:
    log.ask(Trim(6, expire=True))
    made = Lease if how == "lease" else Cursor
    assert {type(begin(log, how, offset)) for offset in range(11)} == {made}


def test_the_earliest_is_0_for_a_compacted_cursor_and_the_start_for_a_raw_one(log: Log) -> None:
    log.ask(FIRST)
    log.ask(Trim(6))
    compacted = log.ask(CreateCursor("c", 1, "compacted", None, earliest=True))
    raw = log.ask(CreateCursor("r", 1, "raw", None, earliest=True))
    latest = log.ask(CreateCursor("l", 1, "compacted", None))
    assert isinstance(compacted, Cursor)
    assert isinstance(raw, Cursor)
    assert isinstance(latest, Cursor)
    assert (compacted.offset, raw.offset, latest.offset) == (0, 6, 10)


def test_a_compacted_cursor_moves_forward_through_the_ledger(log: Log) -> None:
    # given one that began at 0 when deletes below 4 were gone, and the backlog cut
    log.ask(FIRST)
    log.ask(Trim(8))
    log.ask(CreateCursor("c", 1, "compacted", 0))
    # when it moves on step by step
    for offset in range(1, 11):
        moved = log.ask(MoveCursor("c", offset))
        # then it stands there, where it could not have begun
        assert isinstance(moved, Cursor)
        assert moved.offset == offset
    assert is_a(log.ask(MoveCursor("c", 11)), OffsetToCome)
    assert is_a(log.ask(MoveCursor("c", 9)), CursorMovesBack)
    assert is_a(log.ask(MoveCursor("c", 3, reset=True)), DeletesGone)
    assert isinstance(log.ask(MoveCursor("c", 4, reset=True)), Cursor)
    assert isinstance(log.ask(MoveCursor("c", 0, reset=True)), Cursor)


def test_who_reads_the_backlog_stands_within_it_whatever_the_ledger_lacks(log: Log) -> None:
    # given a backlog that is cut at 2, and a ledger without deletes below 8
    log.ask(changed(deletes_below=8))
    log.ask(Trim(2))
    # then raw readers and runs stand at its start, and not before it
    commands: list[tuple[Control, Control]] = [
        (CreateCursor("a", 1, "raw", 1), CreateCursor("a", 1, "raw", 2)),
        (TakeLease("b", 1, 1, 1_000), TakeLease("b", 1, 2, 1_000)),
        (TakeLease("c", 1, 1, 1_000, kind="run"), TakeLease("c", 1, 2, 1_000, kind="run")),
    ]
    for before, within in commands:
        assert is_a(log.ask(before), OffsetExpired)
        assert isinstance(log.ask(within), Cursor | Lease)
    assert is_a(log.ask(MoveCursor("a", 1, reset=True)), OffsetExpired)


def test_a_lease_is_of_the_kind_that_it_was_taken_as_also_after_a_restart(log: Log) -> None:
    for kind in ("raw", "compacted", "run"):
        log.ask(TakeLease(kind, 1, 0, 1_000, kind=kind))
        log.ask(RenewLease(kind, 1, 1))
    log.restart()
    assert {one.name: one.kind for one in log.machine.state.leases.values()} == {
        "raw": "raw",
        "compacted": "compacted",
        "run": "run",
    }
    # taken again by its holder, it is what it is taken as
    log.ask(TakeLease("raw", 1, 0, 1_000, kind="compacted"))
    assert log.machine.state.leases["raw"].kind == "compacted"


# -- cutting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(12))
def test_a_trim_cuts_up_to_the_horizon_and_expires_nothing(log: Log, offset: int) -> None:
    # given a ledger up to 7, in the middle of the second batch
    log.ask(changed(horizon=7))
    # when the backlog is cut
    cut = log.ask(Trim(offset))
    # then it begins there, or at the horizon; a batch that straddles the cut stays
    where = min(offset, 7)
    assert isinstance(cut, Trimmed)
    assert (cut.safe.position, cut.horizon) == (where, 7)
    assert log.offsets() == (where, 10)
    live = [1, 2, 3] if where < 4 else [2, 3]
    assert log.live() == live
    assert cut.batches == 3 - len(live)
    assert log.machine.state.expired == 0
    log.restart()
    assert (log.offsets(), log.live()) == ((where, 10), live)
    view = log.machine.state.backlog.view
    assert view.ledger is not None
    assert int(view.places[view.batch_at(where)]) == live[0]


HELD_BY: dict[str, tuple[Control, bool]] = {
    "a raw cursor": (CreateCursor("h", 1, "raw", 3), True),
    "a compacted cursor": (CreateCursor("h", 1, "compacted", 3), False),
    "a raw lease": (TakeLease("h", 1, 3, 1_000), True),
    "a run's lease": (TakeLease("h", 1, 3, 1_000, kind="run"), True),
    "a compacted lease": (TakeLease("h", 1, 3, 1_000, kind="compacted"), False),
}


@pytest.mark.parametrize("expire", [False, True])
@pytest.mark.parametrize("who", HELD_BY)
def test_the_backlog_is_held_by_who_reads_it_and_by_runs(log: Log, who: str, expire: bool) -> None:
    # given a ledger, and one who stands at 3
    taken, holds = HELD_BY[who]
    log.ask(changed(deletes_below=0))
    log.ask(taken)
    log.restart()
    # when the backlog is cut
    cut = log.ask(Trim(8, expire=expire))
    # then it is held by those who read it, who are named
    assert isinstance(cut, Trimmed)
    assert log.offsets() == (3 if holds else 8, 10)
    assert [hold.holder for hold in cut.safe.held_by] == (["h"] if holds else [])


def test_retention_goes_on_above_the_horizon_and_a_trim_does_not(log: Log) -> None:
    # given a ledger up to 5 and a backlog that was cut there
    log.ask(changed(horizon=5))
    log.ask(Trim(10))
    state = log.machine.state
    assert (log.offsets(), state.expired) == ((5, 10), 0)
    # when rows expire above it
    log.ask(Trim(7, expire=True))
    assert (log.offsets(), state.expired) == ((7, 10), 7)
    # then a trim stays where the backlog begins, and `expired` is what retention did
    cut = log.ask(Trim(10))
    assert isinstance(cut, Trimmed)
    assert (cut.safe.position, cut.batches) == (7, 0)
    assert (log.offsets(), state.expired) == ((7, 10), 7)
    # and a later ledger lets trims go on, and leaves it alone
    log.ask(changed(epoch=6, horizon=9))
    log.ask(Trim(10))
    log.restart()
    assert (log.offsets(), log.machine.state.expired) == ((9, 10), 7)
    # and what is expired at or below the start already moves nothing
    log.ask(Trim(8, expire=True))
    assert (log.offsets(), log.machine.state.expired) == ((9, 10), 7)


def test_a_ledger_may_lie_below_what_has_expired(log: Log) -> None:
    log.ask(Trim(9, expire=True))
    assert isinstance(log.ask(changed(horizon=6)), Adopted)
    cut = log.ask(Trim(10))
    assert isinstance(cut, Trimmed)
    assert log.offsets() == (9, 10)
