"""A database with one table, and a plain dict beside it that says what must be read.

Every read form is compared with the dict: the compacted reader, folded; the table as of now; keys
one by one; many keys at once; and the backlog, folded, as long as nothing of it was cut.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import lowmark
from eventually import eventually
from inside import backend_of, proposed
from lowmark.client import Database, Reader, Table
from lowmark.ledger import Manifest, RunRecord, read_manifest
from lowmark.node import Settings, load_settings
from lowmark.table import Adopted, View
from lowmark.table.commands import Control

__all__ = ["COLUMNS", "Stopped", "World", "folded", "stop_before"]

COLUMNS = {"id": "string", "v": "int64"}
NOBODY = "a key that nobody wrote"


class Stopped(BaseException):
    """The process ends here: nothing that a handler of errors may keep."""


def stop_before(step: str, *, nth: int = 1) -> Callable[[str], None]:
    """For `compact(step=...)`: stop before a step is made for the nth time."""
    seen = 0

    def stop(name: str) -> None:
        nonlocal seen
        seen += name == step
        if name == step and seen == nth:
            raise Stopped(step)

    return stop


def folded(reader: Reader) -> dict[Any, Any]:
    """What is left when changes are applied one after another, as `{id: v}`."""
    state: dict[Any, Any] = {}
    for row in reader.to_pylist():
        if row["_change"] == "delete":
            state.pop(row["id"], None)
        else:
            state[row["id"]] = row["v"]
    return state


class World:
    """A table `t` of `id` and `v`. Batched, all changes of a call are one append; else each is."""

    def __init__(
        self,
        path: Path,
        *,
        batched: bool = True,
        partitions: int = 1,
        columns: Mapping[str, str] = COLUMNS,
        options: Mapping[str, str | int] | None = None,
        grace_ms: int = 0,
    ) -> None:
        self.path = path
        self.batched = batched
        self.grace_ms = grace_ms
        self.model: dict[Any, Any] = {}
        self.written: set[Any] = set()
        """Every key that was ever written or deleted."""
        self.changes = 0
        self.db = self._open()
        self.table = self.db.create_table(
            "t", columns, key="id", partitions=partitions, options=options
        )

    def copied_to(self, path: Path) -> World:
        """Another one that goes on where this one, which is closed, has ended."""
        shutil.copytree(self.path, path)
        other = copy.copy(self)
        other.path, other.model, other.written = path, dict(self.model), set(self.written)
        other.reopen()
        return other

    def _open(self) -> Database:
        return lowmark.open(self.path, settings=self.settings)

    @property
    def settings(self) -> Settings:
        """History is exact for no time at all, so everything may be compacted at once."""
        return load_settings(
            arguments={
                "watermark": {"availability_ms": 0},
                "ledger": {"grace_ms": self.grace_ms},
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.close()

    def reopen(self) -> Table:
        """Close it, if that was not done yet, and open it again."""
        self.db.close()
        self.db = self._open()
        self.table = self.db.table("t")
        return self.table

    # -- changes --------------------------------------------------------------------------------

    def write(self, *changes: tuple[Any, Any]) -> None:
        """Write values to keys; None deletes a key."""
        rows = [
            {"id": key, "_change": "delete"}
            if value is None
            else {"id": key, "v": value, "_change": "upsert"}
            for key, value in changes
        ]
        for some in [rows] if self.batched else [[row] for row in rows]:
            self.table.append(some)
        self.note(changes)

    def note(self, changes: Iterable[tuple[Any, Any]]) -> None:
        """Changes that were written in another way."""
        for key, value in changes:
            self.changes += 1
            self.written.add(key)
            self.model[key] = value
            if value is None:
                del self.model[key]

    # -- compaction -----------------------------------------------------------------------------

    def settle(self, table: Table | None = None) -> None:
        """Let the low watermark pass every row that is there."""
        one = self.table if table is None else table

        def passed() -> bool:
            self.db.advance_watermark()
            return not one.compact(engine="local", dry_run=True).too_young_rows

        eventually(passed)

    def compact(self, **more: Any) -> RunRecord:
        """Compact everything that is there."""
        self.settle()
        run = self.table.compact(engine="local", **more)
        idle = all(one.state == "skipped" for one in run.partitions)
        assert run.state == "done" or (idle and run.state == "nothing"), run.error
        return run

    def stopped_before(self, step: str, *, nth: int = 1, closed: bool = True) -> RunRecord:
        """A run whose process ended before a step; gives its record, from the database after it.

        Closed, the database goes first, so that nothing is tidied up: as if it was killed.
        """
        self.settle()
        stop = stop_before(step, nth=nth)

        def told(name: str) -> None:
            try:
                stop(name)
            except Stopped:
                if closed:
                    self.db.close()
                raise

        try:
            self.table.compact(engine="local", step=told)
        except Stopped:
            pass
        else:
            raise AssertionError(f"there was no step {step!r} for the {nth}. time")
        self.reopen()
        return self.table.runs()[0]

    # -- looking inside -------------------------------------------------------------------------

    def view(self, partition: int = 0) -> View:
        """Of a partition, now."""
        return backend_of(self.table).view(self.table.descriptor.id, partition)

    def adopted(self, partition: int = 0) -> Adopted:
        """The ledger of a partition that has one."""
        ledger = self.view(partition).ledger
        assert ledger is not None
        return ledger

    def manifest(self, partition: int = 0) -> Manifest:
        """Of the ledger that a partition has adopted."""
        return read_manifest(self.table._compactor.ledgers.store, self.adopted(partition).manifest)

    def ask(self, command: Control, partition: int = 0) -> object:
        """Have a partition carry a command out."""
        return proposed(self.table, command, partition)

    def files(self, ending: str = "") -> set[str]:
        """What is in the folder of ledgers."""
        folder = self.path / "ledgers"
        return {
            str(path.relative_to(folder)) for path in folder.rglob(f"*{ending}") if path.is_file()
        }

    def needed(self) -> set[str]:
        """What the adopted ledgers consist of."""
        needed: set[str] = set()
        for number in range(self.table.partitions):
            if self.view(number).ledger is not None:
                needed |= {self.adopted(number).manifest, *self.manifest(number).paths()}
        return needed

    def offsets(self, **how: Any) -> list[tuple[Any, int]]:
        """The keys and offsets that a reader gives, in its order."""
        rows = self.table.read(columns=["id", "_offset", "_change"], **how).to_pylist()
        return [(row["id"], row["_offset"]) for row in rows]

    # -- checks ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Every way to read it says what the dict says."""
        table, model = self.table, self.model
        assert folded(table.read(compacted=True)) == model
        self.check_now()
        keys = [*sorted(self.written), NOBODY]
        rows = [{"id": key, "v": model[key]} if key in model else None for key in keys]
        assert [table.get(key) for key in keys] == rows
        assert table.get_many(keys) == rows
        views = [self.view(number) for number in range(table.partitions)]
        if not any(view.start for view in views):
            assert folded(table.read()) == model
            assert table.read().to_arrow().num_rows == self.changes
        for view in views:
            assert view.ledger is None or view.start <= view.ledger.horizon <= view.end

    def check_now(self) -> None:
        """The table as of now, each key once."""
        rows = self.table.read(as_of="now").to_pylist()
        assert len(rows) == len(self.model)
        assert {row["id"]: row["v"] for row in rows} == self.model

    def check_tidy(self) -> None:
        """No file of a ledger is there that nobody needs, and none is missing."""
        self.table.sweep()
        assert self.files() == self.needed()
