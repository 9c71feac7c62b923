"""What a producer was given is stored when the interpreter ends, whatever was imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lowmark
from server.world import Served

COLUMNS = {"id": "int64"}
ROWS = 40
PROGRAM = f"""
import importlib, sys
address, folder, kinds, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
import lowmark

def begin(db):  # rows that wait for a minute, if nothing has them stored before
    producer = db["t"].producer(linger_ms=60_000)
    producer.send_many({{"id": number}} for number in range({ROWS}))
    return producer

def opened(kind):
    if kind == "served":
        return [lowmark.connect(address)]
    if kind == "shared":  # an owner and a guest
        return [lowmark.open(folder + "/shared") for _ in range(2)]
    before, next_owner = (lowmark.open(folder + "/left") for _ in range(2))
    before["t"].append([{{"id": -1}}])
    before.close()
    next_owner["t"].append([{{"id": -2}}])  # it takes the directory over
    return [next_owner]

producers = [begin(db) for kind in kinds.split() for db in opened(kind)]
"""


def case(kinds: str, *imported: str, release: bool = True) -> object:
    marks = [pytest.mark.release] if release else []
    return pytest.param(kinds, imported, marks=marks, id=f"{kinds} {' '.join(imported)}")


# Those that are marked `release` differ from the first ones in their order alone.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "imported"),
    [
        case("served", "lowmark.client.session", release=False),
        case("shared left served", release=False),
        case("served shared left"),
        case("left served", "lowmark.server", "lowmark.client.session"),
        case("shared", "lowmark.client.session", "lowmark.backend.node_thread"),
        case("shared served", "lowmark.backend.remote", "lowmark.backend.embedded"),
    ],
)
def test_rows_of_producers_are_stored_when_the_interpreter_ends(
    tmp_path: Path, kinds: str, imported: tuple[str, ...]
) -> None:
    # given databases: one that is served, one that is shared, and one that a guest took over
    for name in ("shared", "left"):
        with lowmark.open(tmp_path / name) as db:
            db.create_table("t", COLUMNS, key="id", partitions=2)
    with Served(tmp_path / "served") as served:
        served.db.create_table("t", COLUMNS, key="id", partitions=2)
        # when a process ends that has rows for them, and closes none
        words = [served.address, str(tmp_path), kinds, *imported]
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        found = {"served": len(served.db["t"].read().to_pylist())}
    for name in ("shared", "left"):
        with lowmark.open(tmp_path / name) as db:
            found[name] = len(db["t"].read().to_pylist())
    # then each has all of its rows
    expected = {"served": ROWS, "shared": 2 * ROWS, "left": ROWS + 2}
    assert {kind: found[kind] for kind in kinds.split()} == {
        kind: expected[kind] for kind in kinds.split()
    }
