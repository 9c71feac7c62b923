"""Who follows a partition compacted is told of every delete that it must be told of.

Readers with cursors, compaction, trims and restarts take turns, as a seed says. The ledger is made
by the rule and nothing else: of each key the last change below the horizon, and no delete below
`deletes_below`. Whenever a reader has come to the end, what it has is what is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from lowmark.holds import safe_point
from lowmark.table import (
    Adopt,
    Adopted,
    CreateCursor,
    Cursor,
    CursorOverdue,
    DeleteCursor,
    DeletesGone,
    DeletesHeld,
    MoveCursor,
    Trim,
    deletes_held,
)
from lowmark.table import state as state_module
from table.one_log import Log

KEYS = 30
STEPS = 400


class Change(NamedTuple):
    """One row."""

    offset: int
    key: int
    deletes: bool


@dataclass
class Reader:
    """What one has read, and where its cursor stands."""

    name: str
    has: dict[int, int] = field(default_factory=dict)
    """The offset of each key's row."""
    at: int = 0

    def take(self, rows: list[Change]) -> None:
        for row in rows:
            if row.deletes:
                self.has.pop(row.key, None)
            else:
                self.has[row.key] = row.offset


class Story:
    """A partition, the ledgers that were made of it, and its readers."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log = Log()
        self.rows: list[Change] = []
        self.ledgers: dict[str, list[Change]] = {}
        self.readers: list[Reader] = []
        self.counts: dict[str, int] = {}

    def live(self) -> None:
        acts: list[Callable[[], None]] = [self.append, self.append, self.read, self.read]
        acts += [self.begin, self.leave, self.compact, self.trim, self.restart, self.wait]
        for _ in range(STEPS):
            self.dice.choice(acts)()
        for reader in self.readers:
            while reader.at < len(self.rows) and self.read_some(reader):
                pass
            self.judge(reader)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- what may happen ------------------------------------------------------------------------

    def append(self) -> None:
        count = self.dice.randrange(1, 4)
        for _ in range(count):
            key, deletes = self.dice.randrange(KEYS), self.dice.random() < 0.4
            self.rows.append(Change(len(self.rows), key, deletes))
        self.log.append(count)

    def begin(self) -> None:
        """A reader comes: from nothing, or with what it was given by another one elsewhere."""
        if len(self.readers) >= 4:
            return
        name, at = f"r{self.log.index}", self.dice.choice([0, self.dice.randint(0, len(self.rows))])
        lag_ms = self.dice.choice([0, 0, 300])
        made = self.log.ask(CreateCursor(name, 1, "compacted", at, max_lag_ms=lag_ms))
        if isinstance(made, DeletesGone):
            self.count("deletes gone")
            return
        assert isinstance(made, Cursor)
        reader = Reader(name, at=at)
        reader.take(self.rows[:at])
        self.readers.append(reader)

    def leave(self) -> None:
        if self.readers and self.dice.random() < 0.5:
            gone = self.readers.pop(self.dice.randrange(len(self.readers)))
            self.log.ask(DeleteCursor(gone.name))

    def read(self) -> None:
        if self.readers:
            reader = self.dice.choice(self.readers)
            self.read_some(reader)
            if reader.at == len(self.rows):
                self.judge(reader)

    def read_some(self, reader: Reader) -> bool:
        """From the ledger below its horizon, from the backlog above: a part of either."""
        view = self.log.machine.state.backlog.view
        if view.ledger is not None and reader.at < view.ledger.horizon:
            end = self.some(reader.at, view.ledger.horizon)
            rows = self.ledgers[view.ledger.manifest]
        else:
            assert reader.at >= view.start  # no gap between the two
            end = self.some(reader.at, len(self.rows))
            rows = self.rows
        reader.take([row for row in rows if reader.at <= row.offset < end])
        moved = self.log.ask(MoveCursor(reader.name, end))
        if isinstance(moved, CursorOverdue):
            self.log.ask(MoveCursor(reader.name, 0, reset=True))
            self.count("overdue")
            reader.has, end = {}, 0
        reader.at = end
        return not isinstance(moved, CursorOverdue)

    def some(self, low: int, high: int) -> int:
        return self.dice.choice([self.dice.randint(low, high), high])

    def judge(self, reader: Reader) -> None:
        if reader.at < len(self.rows):
            return
        truth = Reader("the truth")
        truth.take(self.rows)
        assert reader.has == truth.has, reader.name
        self.count("judged")

    def compact(self) -> None:
        """As far as holds allow, mostly; else it must be refused."""
        state, dice = self.log.machine.state, self.dice
        epoch = 1 if state.ledger is None else state.ledger.epoch + dice.choice([1, 2])
        gone = 0 if state.ledger is None else state.ledger.deletes_below
        horizon = dice.randint(state.horizon, len(self.rows))
        held = deletes_held(state.cursors, state.leases, now_ms=self.log.ms)
        allowed = max(gone, safe_point(horizon, held).position)
        below = dice.choice([allowed, allowed, dice.randint(gone, horizon)])
        last = {row.key: row for row in self.rows[:horizon]}
        manifest = f"m{self.log.index}"
        self.ledgers[manifest] = sorted(
            row for row in last.values() if not row.deletes or row.offset >= below
        )
        outcome = self.log.ask(Adopt(epoch, manifest, horizon, bytes(16), below))
        assert isinstance(outcome, Adopted | DeletesHeld)
        self.count(type(outcome).__name__)

    def trim(self) -> None:
        self.log.ask(Trim(self.dice.randint(0, len(self.rows))))
        view = self.log.machine.state.backlog.view
        assert view.start <= (0 if view.ledger is None else view.ledger.horizon)
        self.count("trim")

    def restart(self) -> None:
        self.log.restart()

    def wait(self) -> None:
        self.log.ms += self.dice.choice([5, 20])


@pytest.mark.parametrize("seed", range(20))
def test_a_compacted_reader_that_has_come_to_the_end_has_what_is_there(seed: int) -> None:
    story = Story(seed)
    story.live()
    # then all of it happened
    assert story.counts["judged"]
    assert story.counts["Adopted"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deletes_held", "deletes_gone"])
def test_without_either_rule_somebody_keeps_a_key_that_was_deleted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a machine that does not ask who stands where, or lets anybody begin anywhere
    monkeypatch.setattr(state_module, name, lambda *_, **__: () if name == "deletes_held" else None)
    broken = 0
    # when the same stories are told
    for seed in range(20):
        try:
            Story(seed).live()
        except AssertionError:
            broken += 1
    # then some of them end badly
    assert broken
