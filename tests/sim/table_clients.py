"""What clients of a partition do: append, stage, read, look back, hold and cut; and what they know.

Whoever appends notes for each batch what it was told: that it is stored, and where; that it is not;
or that nobody knows. `check_end` holds all of that against the rows that are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group import Future, OutcomeUnknown, open_command
from lowmark.table import (
    NO_PRODUCER,
    Adopt,
    Appended,
    Bind,
    Bound,
    Change,
    CreateCursor,
    DeleteCursor,
    Fence,
    Finish,
    Finished,
    Fold,
    KeepSchemas,
    MoveCursor,
    Outgoing,
    Producing,
    ReleaseLease,
    RenewLease,
    RepeatTooOld,
    SchemaNotInForce,
    TakeLease,
    Tick,
    Trim,
    View,
    decode_rows,
    encode_batch,
)
from lowmark.table.commands import Control
from lowmark.table.state import Outcome
from sim.cluster_ledger import confirm
from sim.table_ledger import SCHEMA, rows_message
from sim.table_world import PartitionNode, PartitionWorld

__all__ = ["TableClients"]

KEYS = 6
NAMES = ("a", "b", "c")
CURSORS: tuple[Literal["raw", "compacted"], ...] = ("raw", "compacted")
LEASES: tuple[Literal["raw", "compacted", "run"], ...] = ("raw", "raw", "compacted", "run")
WINDOW = 5
KEEPS_FROM, BINDS_FROM = 3, 4
"""From which version of the machine on there are `KeepSchemas` and `Bind`."""


@dataclass(slots=True)
class _Sent:
    """A batch, and what its sender knows of it."""

    values: list[str]
    command: bytes = b""
    anew: Callable[[], bytes] = bytes
    """The same rows under the same number, with the newest schema version."""
    answer: Appended | None = None
    unknown: bool = False
    """Whether an attempt may have been stored without an answer."""
    over: bool = False
    """Whether nothing more is tried."""


class _Numbered:
    """A producer that goes on anywhere with what is not answered; perhaps within a transaction."""

    def __init__(self, clients: TableClients, name: int, *, transaction: int = 0) -> None:
        self._clients = clients
        self._producer = name.to_bytes(16, "big")
        self.transaction = transaction
        self._epoch = 0
        self._next = 0
        self._waiting: list[_Sent] = []
        self._under_way = 0
        self.sent: list[_Sent] = []

    def make(self) -> None:
        """One more batch, if there are not too many."""
        if len(self._waiting) >= WINDOW:
            return
        sent = self._clients.new_batch(
            producer=self._producer,
            epoch=self._epoch,
            sequence=self._next,
            transaction=self.transaction,
        )
        self._next += 1
        self._waiting.append(sent)
        self.sent.append(sent)

    @property
    def idle(self) -> bool:
        return not self._under_way and not self._waiting

    def give_up(self) -> None:
        """Forget what is not answered, and go on in another epoch."""
        if self._under_way:
            return
        for sent in self._waiting:
            sent.unknown = sent.over = True
        self._waiting = []
        self._epoch += 1
        self._next = 0

    def send(self, node: PartitionNode) -> None:
        """Send everything that is not answered, in order."""
        if self._under_way:
            return
        for sent in list(self._waiting):
            self._under_way += 1
            node.ask(node.here.append(sent.command), partial(self._answered, sent))

    def _answered(self, sent: _Sent, done: Future[Appended]) -> None:
        self._under_way -= 1
        if done.error is not None:
            sent.unknown |= isinstance(done.error, OutcomeUnknown)
            # Its answer is kept for longer than any batch is under way.
            confirm(not isinstance(done.error, RepeatTooOld), f"a repeat is too old: {done.error}")
            if isinstance(done.error, SchemaNotInForce):
                sent.command = sent.anew()
            return
        answer = done.result()
        self._clients.told(sent, answer)
        sent.over = True
        self._waiting = [one for one in self._waiting if one is not sent]


class _Transaction:
    """Rows that are staged, and then finished, by a client that does not give up.

    Some are bound to an epoch instead, where two compete: one of both is stored.
    """

    def __init__(self, clients: TableClients, number: int, batches: int, *, commit: bool) -> None:
        self._clients = clients
        self._commit = commit
        self.staging = _Numbered(clients, 1_000 + number, transaction=number)
        for _ in range(batches):
            self.staging.make()
        self._asked = False
        self.outcome: Finished | Bound | None = None
        self._binds = commit and number % 2 == 1
        self._ending: Control | None = None

    def act(self, node: PartitionNode) -> None:
        if not self.staging.idle:
            self.staging.send(node)
        elif not self._asked:
            self._asked = True
            self._ending = self._ending or self._end(node)  # an earlier one may be on its way
            node.ask(node.here.ask(self._ending), self._answered)

    def _end(self, node: PartitionNode) -> Control:
        number, group = self.staging.transaction, node.group
        if not self._binds or group is None or group.version < BINDS_FROM:
            return Finish(number, self._commit)
        rows = sum(len(sent.values) for sent in self.staging.sent)
        query, plan = (number // 4).to_bytes(16, "big"), (rows,)
        return Bind(query, 3, (number,), rows, plan=plan, keep_ms=1 << 30)

    def _answered(self, done: Future[Outcome]) -> None:
        self._asked = False
        if done.error is not None:
            return
        outcome = done.result()
        assert isinstance(outcome, Finished | Bound)
        confirm(self.outcome in {None, outcome}, f"{outcome} is another answer than {self.outcome}")
        self.outcome = outcome
        if isinstance(outcome, Finished):
            confirm(outcome.commit == self._commit, f"transaction finished otherwise: {outcome}")
        self._clients.acknowledge(outcome.first + outcome.rows)
        # Again, now and then: a repeat must get the same answer.
        self._asked = self._clients.dice.random() < 0.7

    def check_end(self) -> None:
        if self.outcome is None:
            return
        expected = [value for sent in self.staging.sent for value in sent.values]
        stored = [value for value in expected if value in set(self._clients.values)]
        if isinstance(self.outcome, Bound) and self.staging.transaction not in (
            self.outcome.transactions
        ):
            self._clients.world.count("an epoch that another attempt has bound")
            confirm(not stored, f"{stored} are there, but their attempt has lost")
            return
        rows = self._clients.values[self.outcome.first :][: self.outcome.rows]
        expected = expected if self._commit else []
        confirm(rows == expected, f"a transaction's rows are {rows}, should be {expected}")


@dataclass(slots=True)
class _Lane:
    """A `Producing` at one process, and what it was asked to send, in order."""

    node: PartitionNode
    life: int
    producing: Producing
    sent: list[_Sent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a table was as of a time, as somebody has read it."""

    time: int
    start: int
    answer: dict[int, str]


class TableClients:
    """All clients of one partition."""

    def __init__(self, world: PartitionWorld, dice: Random) -> None:
        self.world = world
        self.dice = dice
        self.open = True
        self.operations = 0
        self._batches = 0
        self._token = 0
        self._plain: list[_Sent] = []
        self._numbered = [_Numbered(self, 1 + number) for number in range(3)]
        self._lanes: list[_Lane] = []
        self._transactions: list[_Transaction] = []
        self._remembered: list[_Remembered] = []
        self._adopting: Adopt | None = None
        self._newest_schema = 1
        self._actions: list[tuple[int, Callable[[PartitionNode], None]]] = [
            (8, self._append),
            (14, self._append_numbered),
            (8, self._produce),
            (5, self._transact),
            (2, self._fence),
            (6, self._move_cursors),
            (5, self._lease),
            (5, self._trim),
            (4, self._adopt),
            (2, self._tick),
            (3, self._keep_schemas),
            (5, self._read_latest),
            (6, self._look_back),
        ]

    @property
    def values(self) -> list[str]:
        return [row.value for row in self.world.ledger.model.rows]

    def act(self, times: int = 1) -> None:
        """Something is asked, mostly of whoever leads."""
        for _ in range(times):
            serving = self.world.serving
            if not serving:
                return
            leader = self.world.leader()
            node = leader if leader is not None and self.dice.random() < 0.8 else None
            weights = [weight for weight, _ in self._actions]
            (action,) = self.dice.choices([act for _, act in self._actions], weights)
            self.operations += 1
            action(node or self.dice.choice(serving))

    # -- appending ------------------------------------------------------------------------------

    def new_batch(
        self,
        *,
        producer: bytes = NO_PRODUCER,
        epoch: int = 0,
        sequence: int = 0,
        transaction: int = 0,
    ) -> _Sent:
        """A batch whose values nobody else has."""
        out, values = self._new_rows()

        def command(schema: int) -> bytes:
            return encode_batch(
                out.message,
                rows=out.rows,
                schema=schema,
                change=out.change,
                producer=producer,
                epoch=epoch,
                sequence=sequence,
                transaction=transaction,
            )

        return _Sent(values, command(out.schema), lambda: command(self._newest_schema))

    def _new_rows(self) -> tuple[Outgoing, list[str]]:
        self._batches += 1
        number, dice = self._batches, self.dice
        size = dice.choice([0, 0, 0, 300, 900])
        values = [f"{number}.{row}" + "x" * size for row in range(dice.choice([1, 1, 2, 4]))]
        message = rows_message([(dice.randrange(KEYS), value) for value in values])
        change = Change.DELETE if dice.random() < 0.15 else Change.UPSERT
        schema = max(1, self._newest_schema - dice.choice([0, 0, 0, 1, 2]))
        return Outgoing(message, len(values), schema, change), values

    def _renewed(self, batch: Outgoing) -> Future[Outgoing]:
        """All schema versions have the same columns here."""
        self.world.count("batches encoded anew")
        return Future.of(batch._replace(schema=self._newest_schema))

    def told(self, sent: _Sent, answer: Appended) -> None:
        """A batch is stored, its sender hears; each time the same."""
        confirm(sent.answer in {None, answer}, f"answers differ: {sent.answer} and {answer}")
        confirm(answer.rows == len(sent.values), f"{answer} is of another batch")
        sent.answer = answer
        if answer.first >= 0:  # else it is staged
            self.acknowledge(answer.first + answer.rows)

    def acknowledge(self, end: int) -> None:
        """Rows below an offset are there, and somebody knows."""
        ledger = self.world.ledger
        ledger.acknowledged = max(ledger.acknowledged, end)

    def _append(self, node: PartitionNode) -> None:
        sent = self.new_batch()
        self._plain.append(sent)

        def answered(done: Future[Appended]) -> None:
            sent.over = True
            if done.error is None:
                self.told(sent, done.result())
            else:
                sent.unknown = isinstance(done.error, OutcomeUnknown)

        node.ask(node.here.append(sent.command), answered)

    def _append_numbered(self, node: PartitionNode) -> None:
        one = self.dice.choice(self._numbered)
        if self.dice.random() < 0.03:
            one.give_up()
        for _ in range(self.dice.choice([0, 1, 1, 3])):
            one.make()
        one.send(node)

    def _produce(self, node: PartitionNode) -> None:
        lane = next(
            (one for one in self._lanes if one.node is node and one.life == node.lives), None
        )
        if lane is None:
            producer = self.dice.randbytes(16)
            timeout_ms = self.dice.choice([200, 1_500])
            producing = Producing(
                node.run, producer=producer, timeout_ms=timeout_ms, renew=self._renewed
            )
            lane = _Lane(node, node.lives, producing)
            self._lanes.append(lane)
        for _ in range(self.dice.choice([1, 2, 8])):
            out, values = self._new_rows()
            sent = _Sent(values)
            lane.sent.append(sent)
            asked = lane.producing.send(node.here, out)
            node.ask(asked, partial(self._produced, sent))

    def _produced(self, sent: _Sent, done: Future[Appended]) -> None:
        sent.over = True
        if done.error is None:
            self.told(sent, done.result())
        else:
            sent.unknown = isinstance(done.error, OutcomeUnknown)

    def _transact(self, node: PartitionNode) -> None:
        unfinished = [one for one in self._transactions if one.outcome is None]
        if len(unfinished) < 2:
            number, commit = len(self._transactions) + 1, self.dice.random() < 0.75
            batches = self.dice.choice([1, 2, 4])
            self._transactions.append(_Transaction(self, number, batches, commit=commit))
        self.dice.choice(self._transactions[-3:]).act(node)

    def _fence(self, node: PartitionNode) -> None:
        """Of a producer that nobody else uses."""
        producer = self.dice.choice([b"f" * 16, b"g" * 16])
        self._ask(node, Fence(producer, self.dice.randrange(10)))

    # -- holding and cutting --------------------------------------------------------------------

    def _ask(self, node: PartitionNode, command: Control) -> None:
        # What it comes to is the ledger's to judge.
        node.ask(node.here.ask(command), lambda _: None)

    def _some_offset(self, kind: str = "raw") -> int:
        model, dice = self.world.ledger.model, self.dice
        low, end = model.start, len(model.rows)
        if kind == "compacted":
            low = dice.choice([0, model.deletes_below])
        return max(0, dice.choice([low, end, dice.randint(low, end), low - 1, end + 1]))

    def _move_cursors(self, node: PartitionNode) -> None:
        dice, name = self.dice, self.dice.choice(NAMES)
        self._token += 1
        there = self.world.ledger.model.cursors.get(name)
        kind = dice.choice(CURSORS) if there is None else there.kind
        match dice.randrange(6):
            case 0 | 1:
                self._ask(
                    node,
                    CreateCursor(
                        name,
                        dice.choice([1, self._token]),
                        kind,
                        dice.choice([None, self._some_offset(kind)]),
                        earliest=dice.random() < 0.2,
                        max_lag_rows=dice.choice([0, 0, 20]),
                        max_lag_ms=dice.choice([0, 0, 400]),
                    ),
                )
            case 2 | 3:
                self._ask(node, MoveCursor(name, self._some_offset(kind)))
            case 4:
                self._ask(node, MoveCursor(name, self._some_offset(kind), reset=True))
            case _:
                self._ask(node, DeleteCursor(name))

    def _lease(self, node: PartitionNode) -> None:
        dice, name = self.dice, self.dice.choice(NAMES)
        holder = dice.choice([1, 1, 2])
        match dice.randrange(4):
            case 0 | 1:
                ttl_ms, kind = dice.choice([100, 800]), dice.choice(LEASES)
                at = self._some_offset(kind)
                self._ask(node, TakeLease(name, holder, at, ttl_ms, kind=kind))
            case 2:
                self._ask(node, RenewLease(name, holder, self._some_offset()))
            case _:
                self._ask(node, ReleaseLease(name, holder))

    def _trim(self, node: PartitionNode) -> None:
        expire = self.dice.random() < 0.5
        offset = self.dice.choice([self._some_offset(), self.world.ledger.model.horizon])
        self._ask(node, Trim(offset, expire=expire))

    def _adopt(self, node: PartitionNode) -> None:
        """A ledger that may follow the adopted one, mostly; or the last one again."""
        model, dice = self.world.ledger.model, self.dice
        if self._adopting is None or dice.random() < 0.7:
            end = len(model.rows)
            horizon = dice.choice([end, dice.randint(model.horizon, end), model.horizon])
            held = min([horizon, *model.delete_holds(model.time >> 16)])
            deletes_below = dice.choice([held, held, model.deletes_below, horizon])
            self._adopting = Adopt(
                model.epoch + dice.choice([1, 1, 1, 2, 3]),
                f"m{dice.randrange(3)}",
                horizon,
                dice.choice([b"d", b"e"]) * 16,
                max(model.deletes_below, deletes_below),
            )
        wanted = self._adopting
        odd: dict[str, object] = dice.choice(
            [
                {"horizon": model.horizon - 1, "deletes_below": model.deletes_below},
                {"horizon": len(model.rows) + 1},
                {"epoch": wanted.epoch - 1},
                {"manifest": "another"},
                {"deletes_below": wanted.deletes_below + 1},
            ]
        )
        if dice.random() < 0.3:
            wanted = msgspec.structs.replace(wanted, **odd)
        self._ask(node, wanted)

    def _keep_schemas(self, node: PartitionNode) -> None:
        """The table was altered, and older versions are to be forgotten, perhaps."""
        self._newest_schema += self.dice.choice([0, 1])
        group = node.group
        if group is not None and group.version >= KEEPS_FROM:
            self._ask(node, KeepSchemas(self.dice.randint(0, self._newest_schema)))

    def _tick(self, node: PartitionNode) -> None:
        self._ask(node, Tick())

    # -- reading --------------------------------------------------------------------------------

    def _read_latest(self, node: PartitionNode) -> None:
        """All that was acknowledged before is in the answer, wherever it is asked."""
        known = self.world.ledger.acknowledged

        def answered(done: Future[View]) -> None:
            if done.error is None:
                end = done.result().end
                confirm(end >= known, f"the latest at node {node.number} ends at {end} < {known}")
                self.world.count("read of the latest")

        node.ask(node.here.latest(), answered)

    def _look_back(self, node: PartitionNode) -> None:
        """The table as of a time: of now, or one that somebody has looked at before."""
        if self._remembered and self.dice.random() < 0.5:
            time = self.dice.choice(self._remembered).time
        else:
            time = int(node.run.clock.now())

        def answered(done: Future[View]) -> None:
            if done.error is None and node.group is not None:
                self._fold(node, done.result(), time)

        node.ask(node.here.closed(time), answered)

    def _fold(self, node: PartitionNode, view: View, time: int) -> None:
        who, model = f"node {node.number}", self.world.ledger.model
        confirm(
            view.closed >= time, f"{who} gives a view that is closed up to {view.closed} < {time}"
        )
        now = node.here.view  # the batches may have moved since
        end = view.offset_after(time)
        count = now.batch_at(end - 1) + 1 if end > now.start else 0
        places = now.places[:count].tolist()
        try:
            entries = node.here.plan(places).execute(node.disk)
        except LowmarkError as error:
            confirm(False, f"{who} can't read what was there at {time}: {error}")
            return
        fold, batches = Fold(), []
        for at, entry in enumerate(entries):
            rows = decode_rows(open_command(entry.data).data, SCHEMA)
            rows = rows.slice(max(0, now.start - int(now.first[at])))
            fold.add(rows.column("key"), int(now.columns.change[at]) == Change.DELETE)
            batches.append(rows)
        answer: dict[int, str] = {}
        for rows, mask in zip(batches, fold.masks(), strict=True):
            for row, (key, value) in enumerate(zip(*rows.to_pydict().values(), strict=True)):
                if mask is None or mask[row]:
                    answer[key] = value
        expected = model.as_of(time, now.start)
        confirm(answer == expected, f"as of {time}, {who} has {answer}, should be {expected}")
        for one in self._remembered:
            if one.time == time and one.start == now.start:
                confirm(one.answer == answer, f"as of {time}: {answer} now, {one.answer} before")
                self.world.count("look back at what was looked at before")
        self._remembered.append(_Remembered(time, now.start, answer))
        self.world.count("look back")

    # -- the end --------------------------------------------------------------------------------

    def settle(self, node: PartitionNode) -> bool:
        """Go on with what is not answered; whether all of it is."""
        for one in self._numbered:
            one.send(node)
        for transaction in self._transactions:
            if transaction.outcome is None:
                transaction.act(node)
        return all(one.idle for one in self._numbered) and all(
            transaction.outcome is not None for transaction in self._transactions
        )

    def holders(self) -> list[Control]:
        """What ends every hold that is left; leases end by themselves."""
        return [DeleteCursor(name) for name in self.world.ledger.model.cursors]

    def check_end(self) -> None:
        """What everybody was told is so."""
        values = self.values
        at = {value: offset for offset, value in enumerate(values)}
        confirm(len(at) == len(values), "a row is there twice")
        alone = [*self._plain, *(sent for lane in self._lanes for sent in lane.sent)]
        for sent in [*alone, *(sent for one in self._numbered for sent in one.sent)]:
            self._check_sent(sent, values, at)
        orders = [one.sent for one in self._numbered] + [lane.sent for lane in self._lanes]
        for order in orders:
            offsets = [at[sent.values[0]] for sent in order if sent.values[0] in at]
            confirm(offsets == sorted(offsets), f"a producer's batches stand at {offsets}")
        for transaction in self._transactions:
            transaction.check_end()

    def _check_sent(self, sent: _Sent, values: list[str], at: dict[str, int]) -> None:
        if sent.answer is not None:
            rows = values[sent.answer.first :][: sent.answer.rows]
            confirm(rows == sent.values, f"{sent.values} are not at {sent.answer}, but {rows}")
        elif not sent.unknown and sent.over:
            stored = [value for value in sent.values if value in at]
            confirm(not stored, f"{stored} are there, and their sender was told that they are not")
