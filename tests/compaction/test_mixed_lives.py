"""Lives in which everything that may take rows from each other comes together: columns change and
their versions are forgotten, the catalog is cut, rows are staged and committed late or half,
runs overtake each other at any step, and the directory's owner ends or is killed.

A partition that moves has a log on another node: see `tests/sim/test_table_lives.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from compaction.life import Life
from compaction.model import Schema, confirm
from inside import backend_of
from lowmark.catalog import TableId
from lowmark.client import Committed, Staged
from lowmark.client.staging import STREAM_MS, Commit

IN_TEST = (7,)
"""A run is overtaken in it, which ended in LedgerLost once; 14 ended in OffsetExpired, and 23 in
LedgerOld."""
LIVES_IN_ALL = 40


@dataclass(frozen=True, slots=True)
class Waiting:
    """What one writer has staged, and no reader sees."""

    staged: Staged
    rows: list[dict[str, Any]]
    schema: Schema


class MixedLife(Life):
    """As often as all else, rows wait to be committed, and something happens before they are."""

    WEIGHTS: ClassVar = {
        "append": 6.0,
        "delete": 3,
        "compact": 6,
        "interrupt": 1.5,
        "resume": 1.5,
        "advance": 4,
        "remember": 1,
        "open_reader": 2,
        "go_on_reading": 2,
        "close_reader": 1,
        "create_cursor": 1,
        "move_cursor": 1,
        "delete_cursor": 1,
        "trim": 0.5,
        "change_columns": 5,
        "sweep": 1,
        "forget_schemas": 4,
        "restart": 0.7,
        "crash": 0.7,
    }

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.waiting: list[Waiting] = []
        self.epoch = 0

    def _acts(self) -> list[tuple[Callable[[], None], float]]:
        acts = [
            (act, self.WEIGHTS.get(act.__name__, 0) if weight else 0)
            for act, weight in super()._acts()
        ]
        return [
            *acts,
            (self.stage, 5),
            (self.commit_staged, 3),
            (self.commit_half, 3),
            (self.discard_staged, 0.7),
            (self.cut_catalog, 2),
        ]

    def _meanwhile(self, step: str) -> None:
        """Besides what else may happen: another run overtakes it, before any step."""
        if self.dice.random() < 0.05 and not step.startswith(("refuse", "look", "forget")):
            self.tell(f"  before the run would {step}: overtake")
            self.meddled = True
            self.overtake()
            self.count("overtake before any step")
        elif self.dice.random() < 0.1:
            act = self.dice.choice([self.stage, self.commit_staged, self.cut_catalog])
            self.tell(f"  before the run would {step}: {act.__name__}")
            act()
            self.count(f"{act.__name__} during a run")
        else:
            super()._meanwhile(step)

    def end(self) -> None:
        while self.waiting:
            self.commit_staged()
        super().end()

    # -- rows that wait -------------------------------------------------------------------------

    def stage(self) -> None:
        if len(self.waiting) >= 4:
            return
        count = self.dice.choice([1, 5, 12])
        rows = [self._row(self.model.schema, mixed=False) for _ in range(count)]
        self.waiting.append(Waiting(self._staged(rows), rows, self.model.schema))
        self.tell(f"stage {count} rows")

    def _staged(self, rows: list[dict[str, Any]]) -> Staged:
        with self.table.stage() as writer:
            writer.append(rows)
            return writer.staged()

    def _drawn(self) -> Waiting | None:
        return self.waiting.pop(self.dice.randrange(len(self.waiting))) if self.waiting else None

    def commit_staged(self) -> None:
        one = self._drawn()
        if one is None:
            return
        self.epoch += 1
        self._committed(one, self.table.commit([one.staged], query="q", epoch=self.epoch))
        self.tell(f"commit {len(one.rows)} rows as epoch {self.epoch}")

    def _committed(self, one: Waiting, committed: Committed) -> None:
        self._learn(one.rows, committed, one.schema)

    def commit_half(self) -> None:
        """A driver binds some partitions of an epoch, and dies. Much happens before another one
        repeats the epoch, with the same rows or with others.
        """
        one = self._drawn()
        if one is None:
            return
        self.epoch += 1
        commit = Commit(
            backend_of(self.table),
            self.table.descriptor,
            [one.staged],
            query="q",
            epoch=self.epoch,
        )
        partitions = range(self.table.partitions)
        order = [commit._at, *(number for number in partitions if number != commit._at)]
        for number in order[: self.dice.randint(1, len(order))]:
            bind = commit._bind(commit._transactions, commit._plan, number, STREAM_MS)
            commit._bound({number: bind})
        self.tell(f"a driver dies when epoch {self.epoch} is decided")
        for _ in range(self.dice.randint(1, 4)):
            self.dice.choice([self._altered, self._cut, self._killed, self._compacted])()
        again = one.staged
        if self.dice.random() < 0.5:
            again = self._staged([self._row(self.model.schema, mixed=False)])
        committed = self.table.commit([again], query="q", epoch=self.epoch)
        confirm(committed.repeated == (again is not one.staged), f"{committed} of {again}")
        self._committed(one, committed)
        self.tell(f"another driver ends epoch {self.epoch}")

    def _altered(self) -> None:
        self.change_columns()
        self.watermark = self.db.advance_watermark().after
        self.table.trim_schemas()

    def _cut(self) -> None:
        self.watermark = self.db.advance_watermark().after
        self.cut_catalog()

    def _killed(self) -> None:
        self._close_readers()
        image = self._image()
        self.db.close()
        shutil.rmtree(self.path)
        self.path = image
        self._open_again()

    def _compacted(self) -> None:
        self.watermark = self.db.advance_watermark().after
        self.table.compact(engine="local", trim=False)  # the life has yet to read what was bound
        self.table.sweep()

    def discard_staged(self) -> None:
        one = self._drawn()
        if one is not None:
            confirm(self.table.discard([one.staged]), f"{one.staged} was not discarded")
            self.tell("discard what was staged")

    def cut_catalog(self) -> None:
        done = self.db.catalog.compact()
        self.count("version of the catalog that was cut", done.cut)
        self.tell(f"cut the catalog to version {done.earliest}")

    # -- what needs a version -------------------------------------------------------------------

    def _needed_schemas(self) -> dict[str, int]:
        """Rows that wait, too."""
        needed, backend = super()._needed_schemas(), backend_of(self.table)
        for number in range(self.table.partitions):
            partition = backend.tables.get(TableId(self.table_id), number)
            state = backend.ask_now(partial(getattr, partition, "state"))
            staged = [one.schema for some in state.staged.values() for one in some]
            if staged:
                needed[f"staged rows in partition {number}"] = min(staged)
        return needed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=() if seed in IN_TEST else pytest.mark.release)
        for seed in range(LIVES_IN_ALL)
    ],
)
def test_whatever_comes_together_all_reads_stay_what_they_were(
    seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    story = MixedLife(seed, tmp_path / "life").run()
    record_property("compacted life", json.dumps(story.as_figures()))
