"""The work on a partition: what it reads twice is checked twice, and full files are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compaction.world import World
from lowmark.catalog import ColumnId
from lowmark.compaction import runner
from lowmark.errors import Corrupt, InvariantBroken
from lowmark.ledger import LedgerFile, TaskContext, kernel, tail, work
from lowmark.ledger.rule import Rule
from lowmark.table import I64


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data", batched=True) as one:
        yield one


def between_the_passes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something when it is known what survives, and before that is read again."""
    original = kernel.fold_tail

    def fold_tail(*given: Any, **more: Any) -> Any:
        folded = original(*given, **more)
        act()
        return folded

    monkeypatch.setattr(work, "fold_tail", fold_tail)


class ByTheFirstColumn(Rule):
    """A rule that files of a ledger can't follow: other programs read them by offset."""

    @property
    def column(self) -> ColumnId:
        return ColumnId(1)

    def ranks(self, values: pa.Array | None) -> I64:
        assert values is not None
        return np.zeros(len(values), np.int64)


def test_work_under_a_rule_that_does_not_go_by_offsets_is_refused_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(("k1", 1), ("k2", 2), ("k1", 3))
    world.settle()

    def another_rule(data: bytes, context: TaskContext) -> bytes:
        return work.carry_out(data, context, rule=ByTheFirstColumn())

    with monkeypatch.context() as patch:
        patch.setattr(runner, "carry_out", another_rule)
        with pytest.raises(InvariantBroken, match="goes by a column"):
            world.table.compact(engine="local")
    # then nothing was published, and nothing is left of it; by the rule of all tables it goes on
    assert world.view().ledger is None
    assert not list(world.path.rglob("*.parquet"))
    world.compact()
    world.check()


def flip(folder: Path, marker: bytes) -> int:
    """Flip a bit of the marker, in place, wherever it stands in the log; gives how often it did."""
    found = 0
    for path in folder.rglob("*"):
        if path.is_file() and "ledgers" not in path.parts:
            at = path.read_bytes().find(marker)
            if at >= 0:
                found += 1
                with path.open("r+b") as file:
                    os.pwrite(file.fileno(), bytes([marker[0] ^ 1]), at)
    return found


def test_a_byte_that_rots_between_the_passes_is_found_and_nothing_is_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(("k1", 1), ("marked", 2), ("k1", 3))
    world.settle()
    flipped = []
    with monkeypatch.context() as patch:
        between_the_passes(patch, lambda: flipped.append(flip(world.path, b"marked")))
        with pytest.raises(Corrupt, match="checksum"):
            world.table.compact(engine="local")
    assert sum(flipped) > 0
    # then nobody has heard of a ledger, and no manifest is there
    assert world.view().ledger is None
    assert world.table.runs()[0].state == "failed"
    assert world.files(".json") == set()
    # and as soon as the byte is as it was, all of it is compacted
    assert flip(world.path, bytes([b"m"[0] ^ 1]) + b"arked") > 0
    world.compact()
    world.check()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are full with a few keys, and a few rows are read at a time."""
    monkeypatch.setattr(work, "_KEYS_MOST", 600)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 1)


def written(world: World, start: int, keys: int) -> None:
    for at in range(start, start + keys, 5):
        world.write(*[(f"k{number:04}", number) for number in range(at, at + 5)])


def paths(files: tuple[LedgerFile, ...]) -> list[str]:
    return [file.path for file in files]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_files_are_ended_when_their_keys_are_many_and_are_not_put_together_again(
    world: World,
) -> None:
    written(world, 0, 200)
    world.compact()
    first = world.manifest().files
    assert len(first) > 5
    # when as much comes again, which would be reason enough to put small files together
    written(world, 200, 200)
    run = world.compact()
    # then those that were full are as they were, and only what is new was written
    second = world.manifest().files
    assert paths(second)[: len(first) - 1] == paths(first)[:-1]
    assert run.partitions[0].files_written <= len(second) - len(first) + 1
    world.check()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_neighbours_that_are_mostly_dead_become_one_file(world: World) -> None:
    written(world, 0, 200)
    world.compact()
    before = len(world.manifest().files)
    # when three in four of their rows are dead
    world.write(*[(f"k{number:04}", -1) for number in range(200) if number % 4])
    world.compact()
    # then what is left of several is in one
    files = [file for file in world.manifest().files if file.last < 200]
    assert sum(file.live_rows for file in files) == 50
    assert len(files) <= before // 2
    world.check()
