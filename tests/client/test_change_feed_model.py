"""Change feeds beside a model that folds the log row by row in Python.

A life is writes, deletes, a column that is added, runs with a cut and without one, and times that
are remembered in between. After it, feeds between all those times are what the model says, and two
feeds that follow each other are together the feed over both. A feed may be refused only if it
begins before what a run has compacted, and something was cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowmark
from lowmark.client import Database, Snapshot, Table
from lowmark.errors import ChangesGone

_NUMBERS = count()
KEYS = st.integers(0, 7)
ROWS = st.lists(st.tuples(KEYS, st.sampled_from("abc"), st.booleans()), min_size=1, max_size=6).map(
    tuple
)
CHAPTERS = st.lists(
    st.tuples(
        st.lists(ROWS, max_size=2),
        st.lists(KEYS, max_size=2, unique=True),
        st.sampled_from(["", "", "", "cut", "keep", "part", "alter"]),
    ),
    min_size=3,
    max_size=7,
)
"""Each: batches to write, keys to delete, and what happens after a time was remembered."""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with lowmark.open(tmp_path_factory.mktemp("feeds") / "data") as database:
        yield database


@dataclass
class Life:
    """A table, and every row that was ever written into it."""

    db: Database
    table: Table
    marks: list[Snapshot] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    compacted_to: int = 0
    was_cut: bool = False
    altered: bool = False

    def live(self, batches: list[Any], deletes: list[int], then: str) -> None:
        for rows in batches:
            self.table.append(
                [
                    {"id": key, "v": value, "_change": "upsert" if there else "delete"}
                    for key, value, there in rows
                ]
            )
        if deletes:
            self.table.delete(deletes)
        self.note()
        self.marks.append(self.table.snapshot())
        if then == "alter" and not self.altered:
            self.table.alter(add={"n": int})
            self.table.append([{"id": 3, "v": "n", "n": 3}])
            self.altered = True
            self.note()
        elif then in {"cut", "keep", "part"}:
            self.compacted_to = self.db.advance_watermark("now").after
            done = self.table.compact(engine="local", trim=then == "cut").state == "done"
            if then == "part":  # the ledger goes further than what is cut
                self.table.trim(self.marks[len(self.marks) // 2].ends)
            self.was_cut |= then == "part" or (then == "cut" and done)

    def note(self) -> None:
        """Take down what was written since, before a run can cut it."""
        names = ["id", "v", "_partition", "_offset", "_time", "_change"]
        names += ["n"] if self.altered else []
        reader = self.table.read(start=self.ends or "earliest", columns=names)
        self.log += reader.to_pylist()
        self.ends = reader.position

    def told(self, since: int, until: int, *, net: bool, preimages: bool) -> list[tuple[Any, ...]]:
        """What the feed should be: each partition's log, folded row by row."""
        rows: list[tuple[Any, ...]] = []
        for number in range(self.table.partitions):
            mine = [row for row in self.log if row["_partition"] == number]
            state: dict[int, Any] = {}
            for row in mine:
                if row["_time"] < since:
                    self.apply(state, row)
            steps: dict[Any, dict[str, Any]] = {}
            for row in mine:
                if since <= row["_time"] <= until:
                    steps.pop(once := (row["id"], None if net else row["_time"]), None)
                    steps[once] = row  # where its last row is
            for row in steps.values():
                before = state.get(row["id"])
                self.apply(state, row)
                after = state.get(row["id"])
                version = row["_time"]
                if before is not None and after is not None:
                    if preimages:
                        rows.append((number, row["id"], *before, "update_preimage", version))
                    rows.append((number, row["id"], *after, "update_postimage", version))
                elif after is not None:
                    rows.append((number, row["id"], *after, "insert", version))
                elif before is not None:
                    old = before if preimages else (None, None)
                    rows.append((number, row["id"], *old, "delete", version))
        return rows

    @staticmethod
    def apply(state: dict[int, Any], row: dict[str, Any]) -> None:
        state.pop(row["id"], None)
        if row["_change"] != "delete":
            state[row["id"]] = (row["v"], row.get("n"))

    def feed(self, since: int, until: int, *, net: bool, preimages: bool) -> Any:
        """What the feed is; None: it was refused, and may be."""
        rows = None
        names = ["_partition", "id", "v", *(["n"] if self.altered else [])]
        with contextlib.suppress(ChangesGone):
            rows = self.table.changes(
                since, until, net=net, preimages=preimages, columns=names
            ).to_pylist()
        if rows is None:
            assert self.was_cut
            assert since <= self.compacted_to
            return None
        return [
            (
                row["_partition"],
                row["id"],
                row["v"],
                row.get("n"),
                row["_change_type"],
                row["_commit_version"],
            )
            for row in rows
        ]


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 6, deadline=None)
@given(CHAPTERS, st.integers(1, 2))
def test_feeds_are_what_a_model_says_and_fit_together(
    db: Database, chapters: list[Any], partitions: int
) -> None:
    # given a life of a table
    name = f"t{next(_NUMBERS)}"
    table = db.create_table(name, {"id": int, "v": str}, key="id", partitions=partitions)
    life = Life(db, table, marks=[table.snapshot()])
    for chapter in chapters:
        life.live(*chapter)
    life.live([], [], "")
    marks = [mark.time for mark in life.marks]
    for net, preimages in ((False, False), (False, True), (True, False), (True, True)):
        for at, first in enumerate(marks):
            # when feeds are read from a time to each later one
            whole = {}
            for until in marks[at:]:
                found = life.feed(first + 1, until, net=net, preimages=preimages)
                # then they are what the model says, or refused where that may be
                if found is not None:
                    wanted = life.told(first + 1, until, net=net, preimages=preimages)
                    assert found == wanted
                    whole[until] = found
            # and two that follow each other are one
            last = marks[-1]
            for middle in marks[at:] if last in whole and not net else ():
                then = life.feed(middle + 1, last, net=net, preimages=preimages)
                if middle in whole and then is not None:
                    together = sorted([*whole[middle], *then], key=lambda row: row[0])
                    assert together == whole[last]
    db.drop_table(name)
