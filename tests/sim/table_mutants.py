"""Tables with one thing wrong, on purpose: what their lives must be able to find.

Each mutant is a context manager; within it, every world that is made has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.holds import Hold, SafePoint
from lowmark.table import (
    Adopt,
    Adopted,
    Finish,
    Partition,
    PartitionMachine,
    State,
    Trim,
    View,
    adopting,
    holds_of,
)
from lowmark.table import state as state_module
from lowmark.table.backlog import Backlog
from lowmark.table.binding import Queries, Query
from lowmark.table.commands import Batch, KeepSchemas, Tick
from lowmark.table.producers import Appended, Producers
from lowmark.table.producing import _Lane
from lowmark.table.state import Outcome
from sim.mutants import replaced

__all__ = ["TABLE_MUTANTS"]


def forgets_producers_in_snapshots() -> AbstractContextManager[None]:
    original = Producers.decode.__func__  # type: ignore[attr-defined]

    def decode(cls: type[Producers], data: bytes) -> Producers:
        producers: Producers = original(cls, data)
        producers._known = {}
        return producers

    return replaced(Producers, "decode", classmethod(decode))


def forgets_answers_in_snapshots() -> AbstractContextManager[None]:
    original = Producers.encode

    def encode(self: Producers) -> bytes:
        for known in self._known.values():
            known.answers = known.answers[-1:]
        return original(self)

    return replaced(Producers, "encode", encode)


def cuts_what_a_cursor_holds() -> AbstractContextManager[None]:
    original = State.would_trim

    def would_trim(self: State, trim: Trim, time: int) -> SafePoint:
        cursors, self.cursors = self.cursors, {}
        safe = original(self, trim, time)
        self.cursors = cursors
        return safe

    return replaced(State, "would_trim", would_trim)


def cuts_what_a_lease_holds() -> AbstractContextManager[None]:
    original = State.would_trim

    def would_trim(self: State, trim: Trim, time: int) -> SafePoint:
        leases, self.leases = self.leases, {}
        safe = original(self, trim, time)
        self.leases = leases
        return safe

    return replaced(State, "would_trim", would_trim)


@contextmanager
def counts_leases_that_are_over() -> Iterator[None]:
    original = State.would_trim

    def would_trim(self: State, trim: Trim, time: int) -> SafePoint:
        del time
        return original(self, trim, 0)

    def forget_ended(self: State, now_ms: int) -> None:
        del self, now_ms

    with (
        replaced(State, "would_trim", would_trim),
        replaced(State, "_forget_ended", forget_ended),
    ):
        yield


def leaves_a_gap_behind_a_finish() -> AbstractContextManager[None]:
    original = State._finish

    def finish(self: State, finish: Finish, time: int) -> Outcome:
        outcome = original(self, finish, time)
        self.backlog.end += finish.transaction % 2
        return outcome

    return replaced(State, "_finish", finish)


def finishes_twice() -> AbstractContextManager[None]:
    original = State._finish

    def finish(self: State, finish: Finish, time: int) -> Outcome:
        known = self.finished.pop(finish.transaction, None)
        outcome = original(self, finish, time)
        if known is not None:
            self.finished[finish.transaction] = known
        return outcome

    return replaced(State, "_finish", finish)


def binds_an_epoch_twice() -> AbstractContextManager[None]:
    return replaced(Query, "known", lambda self, epoch: None)


def forgets_epochs_in_snapshots() -> AbstractContextManager[None]:
    return replaced(Queries, "__iter__", lambda self: iter(()))


def keeps_what_has_lost() -> AbstractContextManager[None]:
    return replaced(State, "_drop", lambda self, transactions, time: None)


def closes_more_time_than_has_passed() -> AbstractContextManager[None]:
    original = State.apply

    def apply(self: State, command: Any, *, index: int, time: int, size: int) -> Outcome:
        if isinstance(command, Tick):
            time += 50 << 16
        return original(self, command, index=index, time=time, size=size)

    return replaced(State, "apply", apply)


def closes_time_by_what_it_has_not_applied() -> AbstractContextManager[None]:
    def closed(self: Partition, time: int) -> Future[View]:
        del time
        return self.latest()

    return replaced(Partition, "closed", closed)


def lets_staged_rows_die() -> AbstractContextManager[None]:
    def live_indexes(self: PartitionMachine) -> BitMap64:
        return BitMap64(self.state.backlog.indexes())

    return replaced(PartitionMachine, "live_indexes", live_indexes)


def looks_for_a_batch_where_it_was() -> AbstractContextManager[None]:
    """The log is told of the new place, readers are not."""

    def moved(self: Backlog, old: int, new: int) -> bool:
        places = self._columns.place[: self._count]
        del new
        return old in places.tolist()

    return replaced(Backlog, "moved", moved)


def forgets_that_staged_rows_have_moved() -> AbstractContextManager[None]:
    def moved(self: PartitionMachine, old: int, new: int) -> None:
        if self.state.backlog.moved(old, new):
            self.state.publish()

    return replaced(PartitionMachine, "moved", moved)


def drops_a_batch_that_straddles_the_cut() -> AbstractContextManager[None]:
    original = Backlog.cut

    def cut(self: Backlog, offset: int) -> int:
        gone = original(self, offset)
        if self._count and int(self._columns.first[0]) < offset:
            from_next = int(self._columns.first[0]) + int(self._columns.rows[0])
            gone += original(self, min(from_next, self.end))
            self.start = offset
        return gone

    return replaced(Backlog, "cut", cut)


def stores_a_repeat_again() -> AbstractContextManager[None]:
    original = State._batch

    def batch(self: State, batch: Batch, index: int, time: int, size: int) -> Outcome:
        outcome = original(self, batch, index, time, size)
        if isinstance(outcome, Appended) and outcome.time < time and not batch.transaction:
            return original(self, batch._replace(producer=bytes(16)), index, time, size)
        return outcome

    return replaced(State, "_batch", batch)


def takes_batches_out_of_order() -> AbstractContextManager[None]:
    original = Producers.seen

    def seen(self: Producers, producer: bytes, epoch: int, sequence: int) -> Any:
        known = self._known.get(producer)
        if known is not None and epoch == known.epoch and sequence > known.next:
            return None
        return original(self, producer, epoch, sequence)

    return replaced(Producers, "seen", seen)


def knows_the_latest_without_asking() -> AbstractContextManager[None]:
    def latest(self: Partition) -> Future[View]:
        return Future.of(self.view)

    return replaced(Partition, "latest", latest)


def takes_its_snapshot_later() -> AbstractContextManager[None]:
    original = PartitionMachine.snapshot

    def snapshot(self: PartitionMachine) -> Iterable[Any]:
        yield from original(self)

    return replaced(PartitionMachine, "snapshot", snapshot)


def numbers_a_batch_anew_that_may_be_stored() -> AbstractContextManager[None]:
    original = _Lane._answered

    def answered(self: _Lane, sent: Any, done: Future[object]) -> None:
        original(self, sent, done)
        sent.unknown = False

    return replaced(_Lane, "_answered", answered)


def forgets_where_cursors_moved_to() -> AbstractContextManager[None]:
    """Restored ones stand at the start."""
    original = State.put_cursors

    def put_cursors(self: State, cursors: Iterable[Any]) -> None:
        original(self, [msgspec.structs.replace(one, offset=self.backlog.start) for one in cursors])

    return replaced(State, "put_cursors", put_cursors)


def adopts_what_lacks_held_deletes() -> AbstractContextManager[None]:
    def deletes_held(*_: object, **__: object) -> Iterator[Hold]:
        return iter(())

    return replaced(state_module, "deletes_held", deletes_held)


def lets_only_raw_cursors_hold_deletes() -> AbstractContextManager[None]:
    """And runs: deletes are held by who holds the backlog."""
    return replaced(state_module, "deletes_held", holds_of)


def lets_the_horizon_fall() -> AbstractContextManager[None]:
    original = adopting._out_of_place

    def out_of_place(wanted: Adopt, there: Adopted | None, end: int) -> LowmarkError | None:
        if there is not None:
            there = msgspec.structs.replace(there, horizon=0)
        return original(wanted, there, end)

    return replaced(adopting, "_out_of_place", out_of_place)


def cuts_above_the_horizon() -> AbstractContextManager[None]:
    original = State.would_trim

    def would_trim(self: State, trim: Trim, time: int) -> SafePoint:
        return original(self, msgspec.structs.replace(trim, expire=True), time)

    return replaced(State, "would_trim", would_trim)


def forgets_the_ledger_in_snapshots() -> AbstractContextManager[None]:
    original = PartitionMachine.snapshot

    def snapshot(self: PartitionMachine) -> Iterable[Any]:
        ledger, self.state.ledger = self.state.ledger, None
        written = original(self)
        self.state.ledger = ledger
        return written

    return replaced(PartitionMachine, "snapshot", snapshot)


def shows_a_ledger_one_command_late() -> AbstractContextManager[None]:
    original = State.apply

    def apply(self: State, command: Any, *, index: int, time: int, size: int) -> Outcome:
        before = self.ledger
        outcome = original(self, command, index=index, time=time, size=size)
        self.backlog.publish(self.closed, before)
        return outcome

    return replaced(State, "apply", apply)


def begins_where_deletes_are_gone() -> AbstractContextManager[None]:
    def deletes_gone(offset: int, ledger: Adopted | None) -> None:
        del offset, ledger

    return replaced(state_module, "deletes_gone", deletes_gone)


def takes_rows_of_versions_that_are_not_kept() -> AbstractContextManager[None]:
    original = State._batch

    def batch(self: State, batch: Batch, index: int, time: int, size: int) -> Outcome:
        kept, self.schemas_from = self.schemas_from, 0
        outcome = original(self, batch, index, time, size)
        self.schemas_from = kept
        return outcome

    return replaced(State, "_batch", batch)


def forgets_in_snapshots_which_versions_are_kept() -> AbstractContextManager[None]:
    original = PartitionMachine.snapshot

    def snapshot(self: PartitionMachine) -> Iterable[Any]:
        kept, self.state.schemas_from = self.state.schemas_from, 0
        written = original(self)
        self.state.schemas_from = kept
        return written

    return replaced(PartitionMachine, "snapshot", snapshot)


def overlooks_versions_of_staged_rows() -> AbstractContextManager[None]:
    original = State._keep_schemas

    def keep_schemas(self: State, keep: KeepSchemas) -> Outcome:
        staged, self.staged = self.staged, {}
        outcome = original(self, keep)
        self.staged = staged
        return outcome

    return replaced(State, "_keep_schemas", keep_schemas)


TABLE_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "forgets producers in snapshots": forgets_producers_in_snapshots,
    "forgets answers in snapshots": forgets_answers_in_snapshots,
    "cuts what a cursor holds": cuts_what_a_cursor_holds,
    "cuts what a lease holds": cuts_what_a_lease_holds,
    "counts leases that are over": counts_leases_that_are_over,
    "leaves a gap behind a finish": leaves_a_gap_behind_a_finish,
    "finishes twice": finishes_twice,
    "binds an epoch twice": binds_an_epoch_twice,
    "forgets epochs in snapshots": forgets_epochs_in_snapshots,
    "keeps what has lost": keeps_what_has_lost,
    "closes more time than has passed": closes_more_time_than_has_passed,
    "closes time by what it has not applied": closes_time_by_what_it_has_not_applied,
    "lets staged rows die": lets_staged_rows_die,
    "looks for a batch where it was": looks_for_a_batch_where_it_was,
    "forgets that staged rows have moved": forgets_that_staged_rows_have_moved,
    "drops a batch that straddles the cut": drops_a_batch_that_straddles_the_cut,
    "stores a repeat again": stores_a_repeat_again,
    "takes batches out of order": takes_batches_out_of_order,
    "knows the latest without asking": knows_the_latest_without_asking,
    "takes its snapshot later": takes_its_snapshot_later,
    "numbers a batch anew that may be stored": numbers_a_batch_anew_that_may_be_stored,
    "forgets where cursors moved to": forgets_where_cursors_moved_to,
    "adopts what lacks held deletes": adopts_what_lacks_held_deletes,
    "lets only raw cursors hold deletes": lets_only_raw_cursors_hold_deletes,
    "lets the horizon fall": lets_the_horizon_fall,
    "cuts above the horizon": cuts_above_the_horizon,
    "forgets the ledger in snapshots": forgets_the_ledger_in_snapshots,
    "shows a ledger one command late": shows_a_ledger_one_command_late,
    "begins where deletes are gone": begins_where_deletes_are_gone,
    "takes rows of versions that are not kept": takes_rows_of_versions_that_are_not_kept,
    "forgets in snapshots which versions are kept": forgets_in_snapshots_which_versions_are_kept,
    "overlooks versions of staged rows": overlooks_versions_of_staged_rows,
}
