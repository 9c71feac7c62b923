"""Clients of a simulated metastore: what they ask for, and whether what they are told is true.

Revisions put all writes into one order, so answers are judged at once, against the ledger: a write
made the revision that it was told of, and no other command did; a read shows all of the key space
as of its revision; whoever asks after somebody was answered sees at least what that one saw. A
write that failed is looked for until the end: only one whose outcome is unknown may be there, once.

Two keys are written and read alone. Their histories go to the general checker as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from lowmark.errors import LowmarkError
from lowmark.group import Future, OutcomeUnknown
from lowmark.metastore import (
    Answer,
    Branch,
    Compare,
    Condition,
    Do,
    Entry,
    Exists,
    LeaseIsOver,
    Metastore,
    Not,
    Page,
    Put,
    Remove,
    RemoveRange,
    Revision,
    RevisionCompacted,
    Statement,
    Version,
    all_of,
    any_of,
    missing,
    value_is,
)
from lowmark.metastore.commands import (
    Compact,
    Invoke,
    Operation,
    Release,
    Renew,
    Take,
    digest_of,
    encode,
)
from lowmark.metastore.errors import LeaseOver, LeaseTaken, RevisionUnknown
from lowmark.metastore.nodes import lease_of
from lowmark.metastore.state import Cut, LeaseAnswer
from sim import history
from sim.cluster_ledger import confirm
from sim.history import Cas, Get, History
from sim.metastore_world import MetastoreNode, MetastoreWorld

__all__ = ["MetastoreClients"]

T = TypeVar("T")

THINK_MS_MAX = 60
LARGE_SHARE = 0.06
PREFIXES = (b"a/", b"b/")
ALONE = (b"alone/0", b"alone/1")
LEASES = ("lease/0", "lease/1")


@dataclass(slots=True)
class _Asked:
    """A command on its way."""

    command: bytes
    unique: bool
    since_index: int
    floor: int
    """The latest revision that anybody was told of before it was asked."""


@dataclass(slots=True, eq=False)
class _Hold:
    """Somebody at a node needs a revision."""

    node: MetastoreNode
    life: int
    revision: int
    taken_at: int
    let_go: Callable[[], None]


class MetastoreClients:
    """Some clients, and what they were told."""

    def __init__(self, world: MetastoreWorld, dice: Random, *, count: int) -> None:
        self.world = world
        self.ledger = world.ledger
        self.dice = dice
        self.history = History()
        self.open = True
        self.operations = 0
        self.keys = [prefix + b"%d" % n for prefix in PREFIXES for n in range(4)]
        self._floor = 0
        self._never: list[bytes] = []
        """Commands that failed, so that they were not and will not be carried out."""
        self._once: list[bytes] = []
        """Commands that differ from all others."""
        self._times: list[tuple[int, int]] = []
        self._seen: dict[bytes, Entry | None] = {}
        self._names: dict[bytes, str] = {}
        self._values = self._commands = 0
        self._holds: list[_Hold] = []
        world.ledger.on_cut = self._check_cut
        for number in range(count):
            self._think(f"c{number}")

    # -- one client after another ---------------------------------------------------------------

    def _think(self, client: str) -> None:
        delay_ms = self.dice.randint(1, THINK_MS_MAX)
        self.world.loop.call_later(delay_ms, lambda: self._act(client))

    def _act(self, client: str) -> None:
        if not self.open:
            return
        serving = self.world.serving()
        if serving:
            self.act(self.dice.choice(serving), lambda: self._think(client))
        else:
            self._think(client)

    def act(self, node: MetastoreNode, then: Callable[[], None] = lambda: None) -> None:
        """Ask for something at a node."""
        kinds: list[tuple[int, Callable[[MetastoreNode, Callable[[], None]], None]]] = [
            (18, self._write_alone),
            (10, self._read_alone),
            (22, self._invoke),
            (6, self._put),
            (3, self._remove),
            (8, self._get_all),
            (9, self._range),
            (3, self._history),
            (3, self._revision_at),
            (2, self._time_of),
            (6, self._lease),
            (3, self._hold),
            (3, self._compact),
        ]
        (act,) = self.dice.choices([act for _, act in kinds], [weight for weight, _ in kinds])
        self.operations += 1
        node.loop.run(lambda: act(node, then))

    # -- writes ---------------------------------------------------------------------------------

    def value(self) -> bytes:
        """One that nobody has used."""
        self._values += 1
        name = b"v%d" % self._values
        large = self.dice.random() < LARGE_SHARE
        return name.ljust(self.dice.randint(520, 900) if large else 20, b".")

    def _invoke(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        self._commands += 1
        statement = self._statement(self.dice.choice([0, 0, 1, 2, 3]), self._commands)
        metastore = self._at(node)
        self._submit(node, Invoke(statement), lambda: metastore.invoke(statement), then)

    def _statement(self, depth: int, number: int) -> Statement:
        if depth:
            return Branch(
                self._condition(2),
                self._statement(depth - 1, number),
                self._statement(self.dice.randrange(depth), number),
            )
        keys = self.dice.sample(self.keys, self.dice.choice([0, 1, 1, 2, 3]))
        operations: list[Operation] = [
            Put(key, self.value()) if self.dice.random() < 0.75 else Remove(key) for key in keys
        ]
        if self.dice.random() < 0.06:
            first = self.dice.choice([b"b/0", b"b/1", b"b/3"])
            operations = [one for one in operations if one.key < b"b/"]  # type: ignore[union-attr]
            operations.insert(0, RemoveRange(first, b"b/4"))
        return Do(tuple(operations), answer=number * 10 + self.dice.randrange(10))

    def _condition(self, depth: int) -> Condition:
        dice = self.dice
        if depth and dice.random() < 0.4:
            inner = [self._condition(depth - 1) for _ in range(dice.randint(0, 2))]
            return dice.choice([all_of(*inner), any_of(*inner), Not(self._condition(0))])
        key = dice.choice([*self.keys, *ALONE])
        entry, compare = self._seen.get(key), dice.choice(list(Compare))
        match dice.randrange(7):
            case 0:
                return Exists(key)
            case 1:
                return missing(key)
            case 2:
                return value_is(key, entry.value if entry is not None else b"")
            case 3:
                return Version(key, compare, entry.version if entry is not None else 1)
            case 4:
                return LeaseIsOver(dice.choice([*LEASES, lease_of(dice.randint(1, 4))]))
            case _:
                return Revision(key, compare, entry.revision if entry is not None else 0)

    def _put(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        key, value, metastore = self.dice.choice(self.keys), self.value(), self._at(node)
        command = Invoke(Do((Put(key, value),)))
        self._submit(node, command, lambda: metastore.put(key, value), then)

    def _remove(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        key, metastore = self.dice.choice(self.keys), self._at(node)
        command = Invoke(Do((Remove(key),)))
        self._submit(node, command, lambda: metastore.remove(key), then, unique=False)

    def _submit(
        self,
        node: MetastoreNode,
        command: Invoke | Take | Renew | Release | Compact,
        ask: Callable[[], Future[T]],
        then: Callable[[], None],
        *,
        unique: bool = True,
        told: Callable[[T], None] = lambda answer: None,
        failed: Callable[[LowmarkError | None], None] = lambda error: None,
    ) -> None:
        """Have a command carried out, and judge what is said of it."""
        data, ledger = encode(command), self.ledger
        asked = _Asked(data, unique, ledger.last_index, self._floor)
        if unique:
            self._once.append(data)

        def answered(future: Future[T]) -> None:
            if not future.done or isinstance(future.error, OutcomeUnknown):
                failed(None)
                self.world.count("outcome unknown")
            elif future.error is None:
                self._check_outcome(asked, future.result())
                told(future.result())
            else:
                failed(future.error)
                self._check_failure(asked, future.error)
            then()

        node.ask(ask(), answered)

    def _check_outcome(self, asked: _Asked, outcome: object) -> None:
        outcomes = self.ledger.outcomes(asked.command, since=asked.since_index)
        confirm(outcome in outcomes, f"a client was told {outcome}, and it came to {outcomes}")
        if isinstance(outcome, Answer):
            self._saw(outcome.revision, asked.floor + (1 if outcome.changed else 0))

    def _check_failure(self, asked: _Asked, error: LowmarkError) -> None:
        outcomes = self.ledger.outcomes(asked.command, since=asked.since_index)
        said = [outcome.outcome for outcome in outcomes if isinstance(outcome, LeaseAnswer)]
        match error:
            case LeaseTaken():
                confirm("taken" in said, f"{error}, and nobody said so")
            case LeaseOver():
                confirm("over" in said, f"{error}, and nobody said so")
            case RevisionCompacted():
                confirm("compacted" in said, f"{error}, and nobody said so")
            case _:
                self.world.count(f"refused: {type(error).__name__}")
                if asked.unique:
                    confirm(not outcomes, f"a command failed ({error!r}), and came to {outcomes}")
                    self._never.append(asked.command)

    def _saw(self, revision: int, floor: int) -> None:
        confirm(
            revision >= floor,
            f"a client was told of revision {revision}, and {floor} was known before it asked",
        )
        self._floor = max(self._floor, revision)

    # -- one key alone --------------------------------------------------------------------------

    def _write_alone(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        key, value, metastore = self.dice.choice(ALONE), self.value(), self._at(node)
        self._commands += 1
        number, chance, seen = self._commands, self.dice.random(), self._seen.get(key)
        swap: Hashable
        statement: Statement
        self._names[digest_of(value)] = name = value.rstrip(b".").decode()
        if chance < 0.15:
            swap, statement = history.Put(None), Do((Remove(key),), answer=number * 10)
        elif chance < 0.5:
            expected = None if seen is None else self._names[digest_of(seen.value)]
            swap = Cas(expected, name)
            held = missing(key) if seen is None else value_is(key, seen.value)
            done, not_done = Do((Put(key, value),), answer=number * 10 + 1), Do((), number * 10)
            statement = Branch(held, done, not_done)
        else:
            swap, statement = history.Put(name), Do((Put(key, value),), answer=number * 10)
        noted = self._note(key, swap)

        def told(answer: Answer) -> None:
            result = answer.answer % 10 == 1 if isinstance(swap, Cas) else None
            self.history.returned(noted, result, at_us=self._now_us())

        def failed(error: LowmarkError | None) -> None:
            if error is None:
                self.history.unknown(noted, "unknown")
            else:
                self.history.refused(noted)

        self._submit(
            node,
            Invoke(statement),
            lambda: metastore.invoke(statement),
            then,
            told=told,
            failed=failed,
        )

    def _read_alone(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        key, floor = self.dice.choice(ALONE), self._floor
        noted = self._note(key, Get())

        def answered(future: Future[Entry | None]) -> None:
            if not future.done or future.error is not None:
                self.history.refused(noted)  # a read that nobody answered changes nothing
            else:
                entry = self._seen[key] = future.result()
                name = None if entry is None else self._names[digest_of(entry.value)]
                self.history.returned(noted, name, at_us=self._now_us())
                if entry is not None:
                    confirm(
                        (entry,) == self.ledger.page([key], entry.revision),
                        f"a client was told {entry}, which is not so",
                    )
                    later = self.ledger.next_wanted(lambda one: one == key, entry.revision + 1)
                    confirm(
                        later is None or later.revision > floor, f"{entry} was superseded long ago"
                    )
            then()

        node.ask(self._at(node).get(key), answered)

    def _note(self, key: bytes, command: Hashable) -> int:
        return self.history.start("client", key.decode(), command, at_us=self._now_us())

    # -- reads ----------------------------------------------------------------------------------

    def _some_revision(self) -> int | None:
        if self.dice.random() < 0.55:
            return None
        low = max(0, self.ledger.compacted - 2)
        return self.dice.randint(low, max(low, self._floor + 2))

    def _get_all(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        keys, at = self.dice.sample(self.keys, self.dice.randint(1, 4)), self._some_revision()
        self._read(node, at, self._at(node).get_all(keys, at=at), lambda _: keys, then)

    def _range(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        dice, at, metastore = self.dice, self._some_revision(), self._at(node)
        limit = dice.choice([None, None, 1, 3])
        if dice.random() < 0.7:
            prefix = dice.choice([b"", *PREFIXES, b"a/1", b"node.", b"nothing"])
            future = metastore.range(prefix, at=at, limit=limit)

            def wanted(key: bytes) -> bool:
                return key.startswith(prefix)
        else:
            start, end = sorted(dice.sample([*self.keys, b"a", b"c"], 2))
            future = metastore.range(start=start, end=end, at=at, limit=limit)

            def wanted(key: bytes) -> bool:
                return start <= key < end

        def keys(revision: int) -> list[bytes]:
            there = self.ledger.made[revision].rows
            return sorted(key for key in there if wanted(key))[:limit]

        self._read(node, at, future, keys, then)

    def _read(
        self,
        node: MetastoreNode,
        at: int | None,
        future: Future[Page],
        keys: Callable[[int], Iterable[bytes]],
        then: Callable[[], None],
    ) -> None:
        floor = self._floor

        def answered(future: Future[Page]) -> None:
            if future.done and future.error is None:
                page = future.result()
                if at is None:
                    self._saw(page.revision, floor)
                else:
                    confirm(page.revision == at, f"read at {at}, answered at {page.revision}")
                    self._saw(max(at, floor), floor)
                right = self.ledger.page(keys(page.revision), page.revision)
                confirm(
                    page.entries == right,
                    f"at revision {page.revision} a client was told {page.entries}, not {right}",
                )
                self._seen |= {entry.key: entry for entry in page.entries}
            elif future.done:
                self._check_refusal(node, at, future.error, floor)
            then()

        node.ask(future, answered)

    def _check_refusal(
        self, node: MetastoreNode, at: int | None, error: LowmarkError | None, floor: int
    ) -> None:
        match error:
            case RevisionCompacted():
                assert at is not None
                assert node.cluster is not None
                cut = node.cluster.metastore.state.compacted
                confirm(at < cut <= self.ledger.compacted, f"{at} can be read, and was refused")
                confirm(error.first_left == cut, f"{error.first_left} is not the first left")
                self.world.count("read refused: compacted")
            case RevisionUnknown():
                assert at is not None
                confirm(floor <= error.latest < at, f"{at} can be read, and was unknown: {error}")
            case _:
                self.world.count(f"read refused: {type(error).__name__}")

    def _history(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        key, metastore = self.dice.choice(self.keys), self._at(node)

        def answered(future: Future[tuple[Entry | None, ...]]) -> None:
            if future.done and future.error is None:
                state, made = metastore.state, self.ledger.made
                at_cut = made[state.compacted].rows.get(key)
                right: list[Entry | None] = [] if at_cut is None else [at_cut.entry(key)]
                for one in made[state.compacted + 1 : state.latest + 1]:
                    if key in one.changes:
                        row = one.changes[key]
                        right.append(None if row is None else row.entry(key))
                confirm(list(future.result()) == right, f"history of {key!r}: {future.result()}")
            then()

        node.ask(metastore.history(key), answered)

    def _time_of(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        at = self._some_revision() or self._floor

        def answered(future: Future[int]) -> None:
            if future.done and future.error is None:
                confirm(future.result() == self.ledger.made[at].time, f"time of {at} is wrong")
            then()

        node.ask(self._at(node).time_of(at), answered)

    def _revision_at(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        made = self.ledger.made[self.dice.randint(self.ledger.compacted, self.ledger.latest)]
        time = made.time + self.dice.choice([-1, 0, 1, 3 << 16, 30 << 16])

        def answered(future: Future[int]) -> None:
            if future.done and future.error is None:
                # Whatever comes later must be later: it is looked at again at the end.
                self._times.append((time, future.result()))
                self.world.count("revision found by its time")
            then()

        node.ask(self._at(node).revision_at(time), answered)

    # -- leases and cuts ------------------------------------------------------------------------

    def _lease(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        dice, metastore, ledger = self.dice, self._at(node), self.ledger
        name, holder = dice.choice(LEASES), dice.randint(1, 3)
        low = max(1, ledger.compacted)
        hold = dice.choice([0, dice.randint(low, ledger.latest + 2)])
        match dice.randrange(4):
            case 0 | 1:
                self._commands += 1
                ttl_ms, why = dice.choice([200, 600, 1_500]), str(self._commands)
                self._submit(
                    node,
                    Take(name, holder, ttl_ms, hold, why),
                    lambda: metastore.take_lease(
                        name, holder=holder, ttl_ms=ttl_ms, hold=hold, why=why
                    ),
                    then,
                )
            case 2:
                self._submit(
                    node,
                    Renew(name, holder, hold),
                    lambda: metastore.renew_lease(name, holder=holder, hold=hold),
                    then,
                    unique=False,
                )
            case _:
                self._submit(
                    node,
                    Release(name, holder),
                    lambda: metastore.release_lease(name, holder=holder),
                    then,
                    unique=False,
                )

    def _hold(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        metastore, ledger, life = self._at(node), self.ledger, node.lives
        revision = self.dice.randint(ledger.compacted, ledger.latest)

        def answered(future: Future[Callable[[], None]]) -> None:
            lease = ledger.leases.get(lease_of(node.number))
            if future.done and future.error is None and lease is not None:
                held = _Hold(node, life, revision, lease.taken_at, future.result())
                self._holds.append(held)
                self.world.count("hold")
                delay_ms = self.dice.choice([30, 400, 2_500])
                self.world.loop.call_later(delay_ms, lambda: self._let_go(held))
            then()

        node.ask(metastore.hold(revision), answered)

    def _let_go(self, held: _Hold) -> None:
        if held in self._holds:
            self._holds.remove(held)
            if held.node.lives == held.life:
                held.let_go()

    def _check_cut(self, cut: int) -> None:
        """A cut is about to be made: nobody who holds a revision loses it while the lease of the
        node lasts, under which it was held."""
        for held in self._holds:
            lease = self.ledger.in_force(lease_of(held.node.number))
            lasts = lease is not None and lease.taken_at == held.taken_at
            if lasts and held.node.up and held.node.lives == held.life:
                confirm(
                    cut <= held.revision,
                    f"cut at {cut}, and {held.revision} is held at node {held.node.number}",
                )

    def _compact(self, node: MetastoreNode, then: Callable[[], None]) -> None:
        latest, metastore = self.ledger.latest, self._at(node)
        goal = self.dice.choice([latest, latest + 5, self.dice.randint(1, max(1, latest))])

        def told(cut: Cut) -> None:
            self.world.count("cut" if cut.compacted >= min(goal, latest) else "cut held back")

        self._submit(
            node,
            Compact(goal),
            lambda: metastore.compact(goal),
            then,
            unique=False,
            told=told,
        )

    # -- the end --------------------------------------------------------------------------------

    def let_all_go(self) -> None:
        """Nobody holds anything any more."""
        for held in list(self._holds):
            self._let_go(held)

    def check_end(self) -> None:
        """What was said at any time is still true."""
        known = self.ledger.by_command
        for command in self._never:
            confirm(command not in known, f"a command that failed was carried out: {command!r}")
        for command in self._once:
            where = known.get(command, ())
            confirm(len(where) <= 1, f"a command was carried out {len(where)} times: {command!r}")
        for time, found in self._times:
            right = self.ledger.revision_at(time)
            confirm(found == right, f"revision {found} was the last at {time}, now it is {right}")

    def _at(self, node: MetastoreNode) -> Metastore:
        assert node.metastore is not None
        return node.metastore

    def _now_us(self) -> int:
        return self.world.loop.elapsed_us()
