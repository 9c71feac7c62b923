"""Rows that wait to be committed, while columns change, schema versions go and the catalog is cut.

A staged batch names the schema version that it was written with, as a stored one does, and nothing
else of the catalog: the table's descriptor in any version of the catalog has all schema versions
that were not trimmed. So a cut of the catalog takes none from it, and a trim counts what is staged
at the fence in each partition's log (`lowmark.compaction.schemas`). What is bound later is a row of
the backlog from there on, with the version that was counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.life import crash_image
from compaction.world import World
from eventually import eventually
from inside import backend_of
from lowmark.catalog import NewColumn, parse_type
from lowmark.client import Staged
from lowmark.client.staging import STREAM_MS, Commit

ROWS = [{"id": f"s{number}", "v": number} for number in range(20)]


class Late:
    """A driver that commits what was staged with the first schema version after much has changed:
    first the one partition that decides, and then the others.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.staged: Staged | None = None

    def steps(self) -> list[Callable[[], None]]:
        return [
            self.stage,
            self.alter,
            self.cut,
            self.decide,
            self.alter,
            self.cut,
            self.compact,
            self.commit,
            self.alter,
            self.cut,
            self.compact,
        ]

    def stage(self) -> None:
        with self.world.table.stage() as writer:
            writer.append(ROWS)
            self.staged = writer.staged()

    def alter(self) -> None:
        """One column more, with what older rows show in it."""
        at = len(self.world.table.descriptor.columns)
        column = NewColumn(name=f"x{at}", type=parse_type("int64"), default=at)
        self.world.table.alter(add=[column])

    def cut(self) -> None:
        """Of the catalog and of the table's schema versions, all that nothing needs."""
        db, table = self.world.db, self.world.table

        def is_cut() -> bool:
            db.advance_watermark()
            return db.catalog.compact().earliest > 1

        eventually(is_cut)
        table.trim_schemas()

    def decide(self) -> None:
        commit = self._commit()
        bind = commit._bind(commit._transactions, commit._plan, commit._at, STREAM_MS)
        commit._bound({commit._at: bind})

    def _commit(self) -> Commit:
        assert self.staged is not None
        backend, table = backend_of(self.world.table), self.world.table.descriptor
        return Commit(backend, table, [self.staged], query="q", epoch=1)

    def commit(self) -> None:
        assert self.staged is not None
        assert self.world.table.commit([self.staged], query="q", epoch=1).rows == len(ROWS)

    def compact(self) -> None:
        self.world.settle()
        self.world.table.compact(engine="local")

    def check(self, columns: int) -> None:
        """All rows, with what each shows in columns that came after it."""
        rows = self.world.table.read(as_of="now").to_pylist()
        later = {f"x{at}": at for at in range(2, columns)}
        assert sorted(rows, key=lambda row: row["v"]) == [row | later for row in ROWS]


def crash(world: World, folder: Path) -> None:
    """Go on with what a crash would leave."""
    image = crash_image(world.path, folder / "image")
    world.db.close()
    shutil.rmtree(world.path)
    shutil.move(image, world.path)
    world.reopen()


def schemas_that_wait(world: World) -> list[int]:
    """The schema versions of the batches that are staged in partition 0."""
    backend, table = backend_of(world.table), world.table.descriptor.id
    state = backend.ask_now(lambda: backend.tables.get(table, 0).state)
    return sorted(batch.schema for batches in state.staged.values() for batch in batches)


@pytest.mark.slow
@pytest.mark.parametrize(
    "crashes",
    # Before the commit; the others are this one, with a crash at another step, or before each.
    [
        7,
        *(pytest.param(at, marks=pytest.mark.release) for at in range(1, 11) if at != 7),
        pytest.param("before all", marks=pytest.mark.release),
    ],
)
def test_no_cut_takes_the_version_of_rows_that_wait(tmp_path: Path, crashes: object) -> None:
    with World(tmp_path / "data", partitions=3) as world:
        late = Late(world)
        # when they are committed late, and the process is killed in between
        for at, step in enumerate(late.steps()):
            if crashes in {"before all", at}:
                crash(world, tmp_path)
            step()
            # then their version stays as long as a row has it
            first = world.table.descriptor.schemas[0].number
            assert (first == 1) == (step != late.compact or at < 10)
        late.check(columns=5)
        assert world.db.catalog.explain().earliest > 1


@pytest.mark.slow
def test_rows_of_a_writer_that_is_behind_wait_with_the_version_that_is_taken(world: World) -> None:
    # given a writer that has staged rows, and has encoded more with the same version
    late = Late(world)
    with world.table.stage() as writer:
        writer.append(ROWS[:10])
        behind = list(writer._parts(ROWS[10:]))
        # when the table is altered, and the version is refused before they are sent
        late.alter()
        late.cut()
        writer._parts = lambda _: iter(behind)
        assert writer.append(ROWS[10:]).rows == 10
        late.staged = writer.staged()
    # then they are encoded anew, and wait with the others
    assert schemas_that_wait(world) == [1, 2]
    assert world.table.count() == 0
    # and all of them show the same when they are committed
    late.commit()
    late.check(columns=3)
