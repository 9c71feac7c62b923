"""Files that rot, on nodes that are processes: nothing acknowledged is lost, nothing wrong is read.

`tests/sim/damage_life.py` lives this many times over, in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pytest

from eventually import eventually
from lowmark.client import Table
from lowmark.errors import LowmarkError
from lowmark.node import NodeClient
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("damage")]

soon = partial(eventually, deadline_s=120.0)
SMALL = {
    "LOWMARK_LOG_WAL_BYTES_MAX": "65536",
    "LOWMARK_LOG_SEGMENT_ENTRIES_MAX": "16",
    "LOWMARK_LOG_LARGE_ENTRY_BYTES_MIN": "8192",
    "LOWMARK_GROUP_SNAPSHOT_ENTRIES": "100",
    "LOWMARK_METASTORE_SNAPSHOT_ENTRIES": "200",
    "LOWMARK_REBALANCE_RESEED_AGAIN_MS": "1",
    "LOWMARK_METASTORE_RENEW_AGAIN_MS": "1",
}
"""Small files, so that each kind is there; and copies that are damaged again and again."""
KINDS = {
    "WAL": "wal/*.wal",
    "segment": "groups/table.*/*.segment",
    "large file": "groups/table.*/*.large",
    "snapshot": "groups/table.*/snapshots/*/state",
    "live set": "groups/table.*/snapshots/*/live",
    "identity": "groups/table.*/group",
    "segment of the metastore": "groups/metastore/*.segment",
    "snapshot of the metastore": "groups/metastore/snapshots/*/*",
    "starts": "starts",
    "list of groups": "roster/*",
}
CASES = 10
"""In each test."""


def is_sound(nodes: Nodes) -> bool:
    """Whether all nodes are up, and every copy votes and is sound."""
    try:
        with NodeClient(nodes.address(0)) as client:
            status = client.status()
    except LowmarkError:
        return False
    rows = [row for row in status.nodes if row.problem]
    return not rows and all(
        len(group.voters) == 3 and not group.learners and group.state == "available"
        for group in status.groups
    )


def rows_at(nodes: Nodes, number: int) -> dict[int, str] | None:
    """All rows, as a node gives them; None: it gives none just now, and says why."""
    try:
        with nodes.connect(number) as db:
            found = db.table("orders").read(start="earliest").to_arrow()
    except LowmarkError:
        return None
    ids, texts = found["id"].to_pylist(), found["status"].to_pylist()
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, texts, strict=True))


@dataclass(frozen=True, slots=True)
class Rot:
    """A bit of a file that was turned."""

    path: Path
    inode: int
    at: int
    before: int
    after: int

    def put_right(self) -> None:
        """What nothing has read by now is right again: two nodes may not rot at a time."""
        if self.path.exists() and self.path.stat().st_ino == self.inode:
            _put(self.path, self.at, was=self.after, becomes=self.before)


def _put(path: Path, at: int, *, was: int, becomes: int) -> None:
    with path.open("r+b") as file:  # in place: the process that has it open sees it, too
        file.seek(at)
        if file.read(1) == bytes([was]):
            file.seek(at)
            file.write(bytes([becomes]))


def rot(path: Path, dice: Random) -> Rot:
    """Turn a bit of a file."""
    data = path.read_bytes()
    at = dice.randrange(len(data))
    after = data[at] ^ (1 << dice.randrange(8))
    _put(path, at, was=data[at], becomes=after)
    return Rot(path, path.stat().st_ino, at, data[at], after)


class Scene:
    """Three nodes with a table, and what was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes = Nodes(path, 3, started=3, **SMALL)
        self.rows: dict[int, str] = {}
        with self.nodes.connect(0) as db:
            table_of(db, "orders", replicas=3, partitions=2)
        soon(lambda: is_sound(self.nodes))

    def append(self, at: int, *, some: int = 40) -> None:
        """Rows that are acknowledged, of both sizes."""
        with self.nodes.connect(at) as db:
            orders: Table = db.table("orders")
            for _ in range(some):
                first = len(self.rows)
                rows = {n: "x" * (12_000 if n % 40 == 7 else 50) for n in range(first, first + 4)}
                orders.append([{"id": n, "status": text} for n, text in rows.items()])
                self.rows |= rows

    def file_of(self, number: int, kind: str, dice: Random) -> Path | None:
        found = sorted(self.path.joinpath(f"n{number}").glob(KINDS[kind]))
        found = [one for one in found if one.is_file() and not one.is_symlink()]
        found = [one for one in found if one.stat().st_size]
        return dice.choice(found) if found else None


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("damage"))
    with made.nodes:
        yield made


def damage_one(scene: Scene, number: int, kind: str, dice: Random) -> str:
    """One case: a file of a node rots; then all is sound again, and all rows are there."""
    nodes = scene.nodes
    was = dice.choice(["up", "stopped", "killed"])
    if was == "stopped":
        nodes.stop(number)
    elif was == "killed":
        nodes.kill(number)
    path = scene.file_of(number, kind, dice)
    if path is None:
        if was != "up":
            nodes.start(number)
        return ""
    done = rot(path, dice)
    case = f"{path.name} of n{number} at byte {done.at}, {kind}, {was}"
    if was != "up":
        nodes.start(number)
    # Whatever a node gives is right: what it can't read it does not give.
    for at in (number, (number + 1) % 3):
        found = rows_at(nodes, at)
        wrong = {} if found is None else {n for n, text in found.items() if scene.rows[n] != text}
        assert not wrong, case
    scene.append((number + 1) % 3, some=5)
    # Reading everything finds what nothing has read yet.
    soon(lambda: rows_at(nodes, number) == scene.rows)
    soon(lambda: is_sound(nodes))
    done.put_right()
    # What is committed now is so by all three: the change that brought the new copy in is over.
    scene.append((number + 1) % 3, some=5)
    # With another one away, this node is one of the majority.
    away = (number + 1 + dice.randrange(2)) % 3
    nodes.kill(away)
    soon(lambda: rows_at(nodes, number) == scene.rows)
    nodes.start(away)
    soon(lambda: is_sound(nodes))
    return case


def live(scene: Scene, seed: int, cases: int) -> None:
    dice = Random(f"damage on processes {seed}")
    scene.append(0)
    for at in range(cases):
        kind = dice.choice(sorted(KINDS))
        try:
            damage_one(scene, dice.randrange(3), kind, dice)
        except BaseException as error:
            error.add_note(f"seed {seed}, case {at}: {kind}")
            raise


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.release) for seed in range(20)]
)
def test_whatever_rots_on_one_node_costs_no_row(scene: Scene, seed: int) -> None:
    live(scene, seed, CASES)
