"""What can happen to the files of a ledger, and every way to read a table that has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.world import World, folded
from inside import backend_of
from lowmark.client import Table
from lowmark.ledger import LedgerDamaged, LedgerFile, LedgerLost, Manifest, read_manifest

__all__ = [
    "DAMAGES",
    "MISPLACED",
    "NAMED",
    "READS",
    "cut",
    "damage",
    "flip",
    "misplace",
    "outcome",
    "remove",
    "told",
]

NAMED = (LedgerLost, LedgerDamaged)
ROWS_AT = 8
"""Behind a Parquet file's magic: its first column's pages."""


def remove(path: Path, _: int = 0) -> None:
    path.unlink()


def cut(path: Path, _: int = 0) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def empty(path: Path, _: int = 0) -> None:
    path.write_bytes(b"")


def flip(path: Path, at: int) -> None:
    """Another bit, of a byte from the start, or from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


DAMAGES: dict[str, tuple[str, Callable[[Path, int], None], int]] = {
    "manifest missing": ("manifest", remove, 0),
    "manifest cut": ("manifest", cut, 0),
    "manifest empty": ("manifest", empty, 0),
    "manifest flipped": ("manifest", flip, 100),
    "file missing": ("rows", remove, 0),
    "file cut": ("rows", cut, 0),
    "file empty": ("rows", empty, 0),
    "file flipped in its rows": ("rows", flip, ROWS_AT),
    "file flipped in its footer": ("rows", flip, -20),
    "index missing": ("keys", remove, 0),
    "index cut": ("keys", cut, 0),
    "index empty": ("keys", empty, 0),
    "index flipped": ("keys", flip, 200),
}
"""Which file, what becomes of it, and where."""


def damage(world: World, kind: str, *, file: int = -1, partition: int = 0) -> Path:
    """Damage the ledger of a partition, and open the database again: nothing is in memory."""
    what, happens, at = DAMAGES[kind]
    one: LedgerFile = world.manifest(partition).files[file]
    paths = {
        "manifest": world.adopted(partition).manifest,
        "rows": one.path,
        "keys": one.keys_path,
    }
    path = world.path / "ledgers" / paths[what]
    world.db.close()
    happens(path, at)
    world.reopen()
    return path


MISPLACED: dict[str, tuple[str, str]] = {
    f"{what} of another {where}": (what, where)
    for what in ("manifest", "file", "index")
    for where in ("partition", "table", "epoch")
}
"""Which file is replaced, and whose file of that kind lies in its place: every byte of it is as it
was written, and its own checksum is right."""


def misplace(world: World, kind: str, *, other: Table, older: Manifest) -> Path:
    """Put a valid file in the place of one of partition 1, and open the database again: the one of
    partition 0, of partition 1 of another table, or of an older ledger of the same partition.
    """
    what, where = MISPLACED[kind]
    store = world.table._compactor.ledgers.store
    theirs = backend_of(other).view(other.descriptor.id, 1).ledger
    assert theirs is not None
    mine = world.adopted(1).manifest, world.manifest(1)
    name, manifest = {
        "partition": (world.adopted(0).manifest, world.manifest(0)),
        "table": (theirs.manifest, read_manifest(store, theirs.manifest)),
        "epoch": (mine[1].based_on, older),
    }[where]

    def path(name: str, one: Manifest) -> Path:
        paths = {"manifest": name, "file": one.files[0].path, "index": one.files[0].keys_path}
        return world.path / "ledgers" / paths[what]

    source, target = path(name, manifest), path(*mine)
    assert source != target
    world.db.close()
    shutil.copyfile(source, target)
    world.reopen()
    return target


READS: dict[str, Callable[[World], Any]] = {
    "compacted": lambda world: folded(world.table.read(compacted=True)),
    "as of now": lambda world: {
        row["id"]: row["v"] for row in world.table.read(as_of="now").to_pylist()
    },
    "get": lambda world: _there(world, [world.table.get(key) for key in sorted(world.written)]),
    "get_many": lambda world: _there(world, world.table.get_many(sorted(world.written))),
    "explain a key": lambda world: {
        key: found.row["v"]
        for key in sorted(world.written)
        if (found := world.table.explain(key)).row is not None
    },
}
"""Each gives the rows of all keys, as the dict has them."""


def _there(world: World, rows: list[dict[str, Any] | None]) -> dict[Any, Any]:
    return {row["id"]: row["v"] for row in rows if row is not None}


def outcome(world: World, read: str) -> Any:
    """What a read gives: rows, or a named error."""
    try:
        return READS[read](world)
    except NAMED as error:
        return error


def told(world: World) -> set[str]:
    """Which reads end with a named error; all others must give every row."""
    failed = set()
    for read in READS:
        found = outcome(world, read)
        if isinstance(found, NAMED):
            assert "lowmark ledger rebuild" in found.hint
            failed.add(read)
        else:
            assert found == world.model, read
    return failed


def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger files of row groups of ten rows."""
    monkeypatch.setattr("lowmark.ledger.files.ROW_GROUP_ROWS", 10)
    monkeypatch.setattr("lowmark.ledger.tail._CHUNK_BYTES", 1_000)
