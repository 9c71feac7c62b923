"""What the log of one partition says, and what must follow from it: the judge of its lives.

Every copy tells what it applied, what it answered and what it has become. The first word on each
entry is held against a model made of plain lists; every later word must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer
from lowmark.table import (
    NO_PRODUCER,
    Adopt,
    Change,
    CreateCursor,
    DeleteCursor,
    Fence,
    Finish,
    MoveCursor,
    PartitionMachine,
    ReleaseLease,
    RenewCursor,
    RenewLease,
    State,
    TakeLease,
    Tick,
    Trim,
    decode_rows,
    encode_rows,
)
from lowmark.table.commands import Abandon, Batch, Begin, Bind, Control, Drop, KeepSchemas, decode
from lowmark.table.state import Outcome
from sim.cluster_ledger import confirm

__all__ = ["SCHEMA", "Row", "TableLedger", "WatchedPartition", "rows_message", "shown"]

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.string())])
"""Of every batch, deletes included: each row has a value that no other one has."""
ANSWERS_KEPT = 64

Shown: TypeAlias = tuple[object, ...]
"""An outcome, as it is compared."""


def rows_message(rows: Iterable[tuple[int, str]]) -> memoryview:
    """Rows as they are sent."""
    keys, values = zip(*rows, strict=True)
    batch = pa.record_batch([pa.array(keys, pa.int64()), pa.array(values)], schema=SCHEMA)
    return memoryview(encode_rows(batch))


class Row(NamedTuple):
    """One row that was stored."""

    key: int
    value: str
    deletes: bool
    time: int
    entry: int
    """The entry that it came in with."""
    schema: int = 1


def shown(outcome: object) -> Shown:
    """What of an outcome all copies, and the model, must agree on."""
    if isinstance(outcome, LowmarkError):
        return (type(outcome).__name__,)
    if outcome is None:
        return ("None",)
    what = type(outcome).__name__
    match what:
        case "Trimmed":
            seen: Any = outcome
            return (what, seen.safe.position, seen.batches)
        case "Cursor":
            seen = outcome
            return (what, seen.name, seen.token, seen.kind, seen.offset, seen.overdue)
        case "Lease":
            seen = outcome
            return (what, seen.name, seen.holder, seen.kind, seen.offset, seen.ends_ms)
        case "Adopted":
            return (what, *msgspec.structs.astuple(outcome))  # type: ignore[arg-type]
        case _:
            return (what, *outcome)  # type: ignore[misc]


@dataclass(slots=True)
class _Producer:
    epoch: int
    answers: list[Shown] = field(default_factory=list)


@dataclass(slots=True)
class _Cursor:
    token: int
    kind: Literal["raw", "compacted"]
    offset: int
    max_lag_rows: int
    max_lag_ms: int
    overdue: bool = False
    idle_ms: int = 0
    heard_ms: int = 0
    expired: bool = False


@dataclass(slots=True)
class _Lease:
    holder: int
    offset: int
    ttl_ms: int
    ends_ms: int
    kind: str


class TableModel:
    """A partition made of plain lists: all rows that ever were, and who holds what."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.start = 0
        self.time = 0
        self.expired = 0
        self.ledger: Shown | None = None
        self.schemas_from = 0
        self.begun: tuple[str, int, int] = ("Begun", 0, 0)
        """What adopting it was answered with."""
        self.horizon = 0
        self.epoch = -1
        self.deletes_below = 0
        self.place: dict[int, int] = {}
        """Where an entry stands now, by where it came in."""
        self.cursors: dict[str, _Cursor] = {}
        self.leases: dict[str, _Lease] = {}
        self._producers: dict[bytes, _Producer] = {}
        self._staged: dict[int, list[tuple[int, list[Row]]]] = {}
        self._staged_by: dict[int, bytes] = {}
        self._finished: dict[int, Shown] = {}
        self._bound: dict[tuple[bytes, int], Shown] = {}

    def apply(self, index: int, time: int, command: Buffer) -> Shown:
        """What a command must come to."""
        confirm(time > self.time, f"entry {index} is of time {time}, after one of {self.time}")
        self.time = time
        wanted = decode(command)
        self._mark_late()
        if isinstance(wanted, Batch):
            outcome = self._batch(wanted, index, time, command)
        else:
            outcome = self._control(wanted, index, time)
        self._mark_late()
        return outcome

    def _mark_late(self) -> None:
        for cursor in self.cursors.values():
            if not cursor.overdue:
                idle_ms = (self.time >> 16) - cursor.heard_ms
                cursor.expired = 0 < cursor.idle_ms < idle_ms
                cursor.overdue = cursor.expired or self._is_late(cursor)

    def _is_late(self, cursor: _Cursor) -> bool:
        unseen = self.rows[max(cursor.offset, self.start) :]
        if cursor.max_lag_rows and len(self.rows) - cursor.offset > cursor.max_lag_rows:
            return True
        if not cursor.max_lag_ms or not unseen:
            return False
        return (self.time >> 16) - (unseen[0].time >> 16) > cursor.max_lag_ms

    def moved(self, old: int, new: int) -> None:
        """An entry has been copied; who is dead by now stays dead."""
        for entry, place in self.place.items():
            if place == old:
                self.place[entry] = new

    def live(self) -> set[int]:
        """The places of all rows that are there or wait."""
        entries = {row.entry for row in self.rows[self.start :]}
        entries |= {entry for batches in self._staged.values() for entry, _ in batches}
        return {self.place[entry] for entry in entries}

    def holds(self, now_ms: int) -> list[int]:
        """Where those stand behind whom nobody may cut."""
        return self._held(now_ms, {"raw", "run"})

    def delete_holds(self, now_ms: int) -> list[int]:
        """Where those stand who must be given deletes."""
        return self._held(now_ms, {"raw", "compacted"})

    def _held(self, now_ms: int, kinds: set[str]) -> list[int]:
        held = [
            one.offset for one in self.cursors.values() if one.kind in kinds and not one.overdue
        ]
        return held + [
            one.offset for one in self.leases.values() if one.kind in kinds and one.ends_ms > now_ms
        ]

    def as_of(self, time: int, start: int) -> dict[int, str]:
        """The value of each key, at a time, as far as rows from an offset on say."""
        values: dict[int, str] = {}
        for row in self.rows[start:]:
            if row.time > time:
                break
            if row.deletes:
                values.pop(row.key, None)
            else:
                values[row.key] = row.value
        return values

    # -- rows -----------------------------------------------------------------------------------

    def _batch(self, batch: Batch, index: int, time: int, command: Buffer) -> Shown:
        producer: _Producer | None = None
        if batch.producer != NO_PRODUCER:
            known = self._producers.get(batch.producer)
            if known is None:
                if batch.sequence:
                    return ("ProducerForgotten",)
                known = _Producer(batch.epoch)
            elif batch.epoch < known.epoch:
                return ("ProducerFenced",)
            elif batch.epoch > known.epoch:
                if batch.sequence:
                    return ("OutOfSequence",)
                known = _Producer(batch.epoch)
            elif batch.sequence > len(known.answers):
                return ("OutOfSequence",)
            elif batch.sequence < len(known.answers):
                if batch.sequence < len(known.answers) - ANSWERS_KEPT:
                    return ("RepeatTooOld",)
                return known.answers[batch.sequence]
            producer = known
        if batch.schema < self.schemas_from:
            return ("SchemaNotInForce",)
        if batch.transaction in self._finished:
            return ("BatchRefused",)
        decoded = decode_rows(command, SCHEMA).to_pydict()
        deletes = batch.change == Change.DELETE
        rows = [
            Row(key, value, deletes, time, index, batch.schema)
            for key, value in zip(decoded["key"], decoded["value"], strict=True)
        ]
        self.place[index] = index
        if batch.transaction:
            self._staged.setdefault(batch.transaction, []).append((index, rows))
            self._staged_by[batch.transaction] = batch.producer  # which sends nothing else
            answer: Shown = ("Appended", -1, len(rows), time)
        else:
            answer = ("Appended", len(self.rows), len(rows), time)
            self.rows += rows
        if producer is not None:
            producer.answers.append(answer)
            self._producers[batch.producer] = producer
        return answer

    def _finish(self, finish: Finish, time: int) -> Shown:
        known = self._finished.get(finish.transaction)
        if known is not None:
            return known
        staged = self._staged.pop(finish.transaction, None)
        if staged is None and finish.commit:
            return ("TransactionUnknown",)
        rows = [row._replace(time=time) for _, batch in staged or () for row in batch]
        if not finish.commit:
            rows = []
        answer = ("Finished", finish.commit, len(self.rows), len(rows), time)
        self.rows += rows
        self._finished[finish.transaction] = answer
        return answer

    def _bind(self, bind: Bind, time: int) -> Shown:
        known = self._bound.get((bind.query, bind.epoch))
        if known is not None:
            self._forget(self._lost(bind), time)
            return known
        ends = [self._finished.get(one) for one in bind.transactions if bind.plan]
        if any(end is not None and not end[1] for end in ends):
            return ("StagedRowsMissing",)
        staged = [batch for one in bind.transactions for batch in self._staged.get(one, ())]
        rows = [row._replace(time=time) for _, batch in staged for row in batch]
        if len(rows) != bind.rows:
            return ("StagedRowsMissing",)
        decided = bind.transactions if bind.plan else ()
        answer = ("Bound", bind.epoch, len(self.rows), len(rows), time, decided, bind.plan)
        for one in bind.transactions:
            waited = [row for _, batch in self._staged.pop(one, ()) for row in batch]
            if waited:
                at = len(self.rows)
                self.rows += [row._replace(time=time) for row in waited]
                self._finished[one] = ("Finished", True, at, len(waited), time)
                self._producers.pop(self._staged_by[one], None)
        self._forget(self._lost(bind), time)
        self._bound[bind.query, bind.epoch] = answer
        return answer

    def _lost(self, bind: Bind) -> list[int]:
        return [
            one for one in self._staged if one in bind.transactions or one >> 20 in bind.families
        ]

    def _forget(self, transactions: Iterable[int], time: int) -> None:
        for one in transactions:
            if self._staged.pop(one, None) is not None:
                self._producers.pop(self._staged_by[one], None)
                self._finished[one] = ("Finished", False, len(self.rows), 0, time)

    # -- everything else ------------------------------------------------------------------------

    def _control(self, command: Control, index: int, time: int) -> Shown:
        now_ms = time >> 16
        match command:
            case Tick():
                return ("Ticked", time)
            case Finish():
                return self._finish(command, time)
            case CreateCursor():
                return self._create(command)
            case MoveCursor():
                return self._move(command)
            case DeleteCursor():
                there = self.cursors.get(command.name)
                if command.token and (there is None or there.token != command.token):
                    return ("None",)
                gone = self.cursors.pop(command.name, None)
                return ("CursorUnknown",) if gone is None else self._cursor(command.name, gone)
            case RenewCursor():
                return self._renew_cursor(command, now_ms)
            case TakeLease():
                return self._take(command, now_ms)
            case RenewLease():
                lease = self.leases.get(command.name)
                if lease is None or lease.holder != command.holder or lease.ends_ms <= now_ms:
                    return ("LeaseExpired",)
                lease.offset = max(lease.offset, min(command.offset, len(self.rows)))
                lease.ends_ms = now_ms + lease.ttl_ms
                return self._lease(command.name)
            case ReleaseLease():
                lease = self.leases.get(command.name)
                if lease is not None and lease.holder == command.holder:
                    del self.leases[command.name]
                return ("None",)
            case Trim():
                return self._trim(command, now_ms)
            case Fence():
                known = self._producers.get(command.producer)
                if known is not None and known.epoch >= command.epoch:
                    return ("ProducerFenced",)
                self._producers[command.producer] = _Producer(command.epoch)
                return ("None",)
            case Adopt():
                return self._adopt(command, time)
            case Begin():
                if command.time > self.begun[2]:
                    self.begun = ("Begun", index, command.time)
                return self.begun
            case KeepSchemas():
                self.schemas_from = max(self.schemas_from, command.keep_from)
                staged = [rows for batches in self._staged.values() for _, rows in batches]
                rows = [*self.rows[self.start :], *(row for some in staged for row in some)]
                least = min((row.schema for row in rows), default=0)
                return ("SchemasKept", self.schemas_from, least)
            case Bind():
                return self._bind(command, time)
            case Drop():
                bound = self._bound.get((command.query, command.epoch))
                if bound is None:
                    lost = [one for one in self._staged if one >> 20 in command.families]
                    self._forget(lost, time)
                return bound or ("None",)
            case Abandon():
                raise AssertionError("there is no other partition that could ask")

    def _adopt(self, wanted: Adopt, time: int) -> Shown:
        fields = msgspec.structs.astuple(wanted)
        if self.ledger is not None and self.ledger[1:-1] == fields:
            return self.ledger
        if not 0 <= wanted.deletes_below <= wanted.horizon or wanted.epoch < 0:
            return ("CommandRefused",)
        if wanted.epoch <= self.epoch:
            return ("LedgerOld",) if wanted.epoch < self.epoch else ("LedgerConflict",)
        if not self.horizon <= wanted.horizon <= len(self.rows):
            return ("CommandRefused",)
        if wanted.deletes_below < self.deletes_below:
            return ("CommandRefused",)
        goes = range(self.deletes_below, wanted.deletes_below)
        if goes and min([*self.delete_holds(time >> 16), goes.stop]) < goes.stop:
            return ("DeletesHeld",)
        self.epoch, self.horizon = wanted.epoch, wanted.horizon
        self.deletes_below = wanted.deletes_below
        self.ledger = ("Adopted", *fields, time)
        return self.ledger

    def _no_start(self, offset: int, kind: str) -> Shown | None:
        if offset > len(self.rows):
            return ("OffsetToCome",)
        if kind == "compacted":
            return ("DeletesGone",) if 0 < offset < self.deletes_below else None
        return ("OffsetExpired",) if offset < self.start else None

    def _create(self, wanted: CreateCursor) -> Shown:
        there = self.cursors.get(wanted.name)
        if there is not None:
            if there.token != wanted.token:
                return ("CursorExists",)
            return self._cursor(wanted.name, there)
        offset = len(self.rows) if wanted.offset is None else wanted.offset
        if wanted.earliest:
            offset = 0 if wanted.kind == "compacted" else self.start
        refused = self._no_start(offset, wanted.kind)
        if refused is not None:
            return refused
        made = _Cursor(wanted.token, wanted.kind, offset, wanted.max_lag_rows, wanted.max_lag_ms)
        made.heard_ms = self.time >> 16
        self.cursors[wanted.name] = made
        return self._cursor(wanted.name, made)

    def _move(self, move: MoveCursor) -> Shown:
        cursor = self.cursors.get(move.name)
        if cursor is None:
            return ("CursorUnknown",)
        if cursor.overdue and not move.reset:
            return ("CursorExpired" if cursor.expired else "CursorOverdue",)
        if move.offset < cursor.offset and not move.reset:
            return ("CursorMovesBack",)
        refused = self._no_start(move.offset, cursor.kind)
        if refused == ("DeletesGone",) and not move.reset:
            refused = None  # it has come by there
        if refused is not None:
            return refused
        cursor.offset, cursor.overdue, cursor.expired = move.offset, False, False
        cursor.heard_ms = self.time >> 16
        return self._cursor(move.name, cursor)

    def _renew_cursor(self, renew: RenewCursor, now_ms: int) -> Shown:
        cursor = self.cursors.get(renew.name)
        if cursor is None:
            return ("CursorUnknown",)
        if cursor.overdue:
            return ("CursorExpired" if cursor.expired else "CursorOverdue",)
        cursor.idle_ms, cursor.heard_ms = renew.idle_ms, now_ms
        return self._cursor(renew.name, cursor)

    def _take(self, take: TakeLease, now_ms: int) -> Shown:
        there = self.leases.get(take.name)
        if there is not None and there.ends_ms > now_ms and there.holder != take.holder:
            return ("LeaseExists",)
        if not 0 < take.ttl_ms <= 1 << 40:
            return ("CommandRefused",)
        refused = self._no_start(take.offset, take.kind)
        if refused is not None:
            return refused
        ends_ms = now_ms + take.ttl_ms
        lease = _Lease(take.holder, take.offset, take.ttl_ms, ends_ms, take.kind)
        self.leases[take.name] = lease
        return self._lease(take.name)

    def _trim(self, trim: Trim, now_ms: int) -> Shown:
        goal = min(trim.offset, len(self.rows) if trim.expire else self.horizon)
        cut = max(self.start, min([goal, *self.holds(now_ms)]))
        if trim.expire and cut > self.start:
            self.expired = cut
        gone = {row.entry for row in self.rows[self.start :]}
        self.start = cut
        gone -= {row.entry for row in self.rows[cut:]}
        return ("Trimmed", cut, len(gone))

    def _cursor(self, name: str, cursor: _Cursor) -> Shown:
        return ("Cursor", name, cursor.token, cursor.kind, cursor.offset, cursor.overdue)

    def _lease(self, name: str) -> Shown:
        lease = self.leases[name]
        return ("Lease", name, lease.holder, lease.kind, lease.offset, lease.ends_ms)


class _Reach(NamedTuple):
    """How far a partition was cut and compacted."""

    start: int
    epoch: int
    horizon: int
    deletes_below: int

    @classmethod
    def of(cls, model: TableModel) -> _Reach:
        return cls(model.start, model.epoch, model.horizon, model.deletes_below)


class TableLedger:
    """Everything that was ever true of one partition, over all copies and all lives."""

    def __init__(self) -> None:
        self.model = TableModel()
        self.commands: dict[int, bytes] = {}
        """By the index that a command came in with."""
        self.acknowledged = 0
        """So many rows were there when somebody was last told of one."""
        self._last = 0
        self._outcomes: dict[int, Shown] = {}
        self._digests: dict[int, bytes] = {}

    def applied(
        self, index: int, time: int, command: bytes, outcome: object, state: State, who: str
    ) -> None:
        """A copy has applied a command."""
        got = shown(outcome)
        if index > self._last:
            self._last = index
            self.commands[index] = command
            self._outcomes[index] = got
            before = _Reach.of(self.model)
            expected = self.model.apply(index, time, command)
            self._check_promises(before, state, decode(command), who)
            confirm(got == expected, f"entry {index} on {who}: {got}, should be {expected}")
            self._check_state(state, who)
            return
        confirm(self.commands[index] == command, f"{who} has another command at {index}")
        confirm(self._outcomes[index] == got, f"{who} came to {got} at {index}, others did not")

    def _check_promises(self, before: _Reach, state: State, command: object, who: str) -> None:
        """What no command may do, whatever it was answered; by what all others did before it."""
        now_ms, ledger, cut = self.model.time >> 16, state.ledger, state.backlog.start
        if cut > before.start:
            held = self.model.holds(now_ms)
            confirm(all(cut <= offset for offset in held), f"{who} cut at {cut}: {held}")
            expires = isinstance(command, Trim) and command.expire
            confirm(expires or cut <= before.horizon, f"{who} cut at {cut}, above {before}")
        if ledger is None:
            confirm(before.epoch < 0, f"{who} has lost the ledger of {before}")
            return
        if ledger.epoch != before.epoch:
            confirm(ledger.epoch > before.epoch, f"{who} has gone back to {ledger} from {before}")
        confirm(ledger.horizon >= before.horizon, f"the horizon falls: {before}, {ledger} on {who}")
        if ledger.deletes_below > before.deletes_below:
            held = self.model.delete_holds(now_ms)
            kept = all(ledger.deletes_below <= offset for offset in held)
            confirm(kept, f"{who} let deletes go below {ledger.deletes_below}: {held}")

    def _check_state(self, state: State, who: str) -> None:
        model, view = self.model, state.backlog.view
        now = (view.start, view.end, view.closed, state.expired)
        should = (model.start, len(model.rows), model.time, model.expired)
        confirm(now == should, f"the backlog on {who} is {now}, should be {should}")
        self._check_ledger(state, who)
        cursors = {name: one.offset for name, one in state.cursors.items()}
        should_be = {name: one.offset for name, one in model.cursors.items()}
        confirm(cursors == should_be, f"{who} has cursors {cursors}, should be {should_be}")

    def _check_ledger(self, state: State, who: str) -> None:
        """What readers see, in one value: a ledger and a backlog that belong together."""
        view, model = state.backlog.view, self.model
        seen = None if view.ledger is None else shown(view.ledger)
        confirm(seen == model.ledger, f"the ledger on {who} is {seen}, should be {model.ledger}")
        covered = max(state.horizon, state.expired)
        confirm(view.start <= covered, f"{who} begins at {view.start}, is covered to {covered}")

    def moved(self, old: int, new: int) -> None:
        """A copy was told that an entry has another place."""
        if new > self._last:
            self._last = new
            self.model.moved(old, new)

    def stands(self, index: int, machine: WatchedPartition, who: str) -> None:
        """A copy has applied everything up to an index."""
        live = machine.live_indexes()
        digest = blake2b(live.serialize(), digest_size=8)
        for piece in machine.snapshot():
            digest.update(piece)
        found = digest.digest()
        known = self._digests.setdefault(index, found)
        confirm(known == found, f"copies differ at {index}, on {who} and before")
        if index == self._last:
            should = BitMap64(self.model.live())
            confirm(live == should, f"{who} takes {list(live)} for live, should be {list(should)}")
            self._check_ledger(machine.state, who)


class WatchedPartition(PartitionMachine):
    """Tells the ledger what every entry made of it."""

    def __init__(self, ledger: TableLedger, who: str) -> None:
        super().__init__()
        self._ledger = ledger
        self._who = who

    def apply(self, index: int, time: int, command: Buffer) -> Outcome:
        outcome = super().apply(index, time, command)
        self._ledger.applied(index, time, bytes(command), outcome, self.state, self._who)
        self._ledger.stands(index, self, self._who)
        return outcome

    def moved(self, old: int, new: int) -> None:
        super().moved(old, new)
        self._ledger.moved(old, new)
        self._ledger.stands(new, self, self._who)

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        whole = b"".join(chunks)
        super().restore([whole], version)
        again = b"".join(bytes(piece) for piece in self.snapshot())
        confirm(again == whole, f"{self._who} has become something else than its snapshot says")
