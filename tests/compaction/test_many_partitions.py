"""Runs over many small partitions: what they write grows with the partitions, not with their
square, and what is done for several of them at once is as safe as one by one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compaction.life import crash_image
from compaction.world import Stopped, World
from inside import backend_of, on_loop
from lowmark.compaction.records import Records
from lowmark.ledger import LedgerLost, RunRecord
from sim.mutants import replaced

pytestmark = pytest.mark.slow

MANY = 34
"""Enough for waves of two: see `compacting._WAVES`."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Made once, closed, and copied."""
    with World(tmp_path_factory.mktemp("many") / "data", partitions=MANY) as one:
        one.write(*[(f"k{number}", number) for number in range(10 * MANY)])
        one.settle()
    return one


@pytest.fixture
def world(made: World, tmp_path: Path) -> Iterator[World]:
    with made.copied_to(tmp_path / "data") as one:
        yield one


def test_what_a_run_writes_into_the_metastore_grows_with_its_partitions_only(world: World) -> None:
    records: list[int] = []
    original = Records.note_run

    def note_run(self: Records, record: RunRecord) -> bool:
        records.append(len(msgspec.json.encode(record)))
        return original(self, record)

    metastore = backend_of(world.db).node.cluster.metastore
    before = on_loop(world.db, lambda: metastore.state.latest)
    with replaced(Records, "note_run", note_run):
        assert world.table.compact(engine="local").state == "done"
    after = on_loop(world.db, lambda: metastore.state.latest)
    # then the record of the run was written a number of times that the partitions do not change
    assert len(records) <= 25
    assert sum(records) <= 25 * max(records)
    # and beside it, there is one write for each partition, its pointer, and what upkeep does
    assert after - before <= MANY + len(records) + 5
    world.check()


@pytest.mark.parametrize(
    "step",
    ["publish partition 17", "adopt partition 17"],
)
def test_a_run_that_ends_within_a_wave_is_resumed(world: World, step: str) -> None:
    image = world.path.with_name("image")

    def stop(name: str) -> None:
        if name == step:
            crash_image(world.path, image)
            raise Stopped

    with pytest.raises(Stopped):
        world.table.compact(engine="local", step=stop)
    # when it goes on with what was there when the process was killed
    world.db.close()
    shutil.rmtree(world.path)
    image.rename(world.path)
    world.reopen()
    world.check()
    (left,) = world.table.runs()
    assert left.state == "interrupted"
    done = world.table.compact(engine="local", resume=left.run)
    # then all of it is compacted, once, and nothing is left over
    assert {one.state for one in done.partitions} == {"adopted"}
    assert {world.adopted(number).epoch for number in range(MANY)} == {1}
    world.check()
    world.check_tidy()


AS_THE_LAST_LINE = """
import sys, threading, lowmark

db = lowmark.open(sys.argv[1])
table = db.table("t")

def step(name):
    if name == "note the run":
        began.set()
        threading.main_thread().join()

began = threading.Event()
compact = lambda: table.compact(engine="local", step=step)
threading.Thread(target=compact, daemon=sys.argv[2] == "daemon").start()
began.wait()
"""


@pytest.mark.parametrize("kind", ["user", "daemon"])
def test_a_run_on_a_thread_does_not_fail_because_the_main_thread_has_ended(
    world: World, kind: str
) -> None:
    # given a program whose last line starts a thread that compacts
    world.db.close()
    command = [sys.executable, "-c", AS_THE_LAST_LINE, str(world.path), kind]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    # when it has ended, then a run that it has to wait for is done; another one may be interrupted
    world.reopen()
    (run,) = world.table.runs()
    states = {"done"} if kind == "user" else {"done", "interrupted"}
    assert run.state in states, (run.error, ended.stderr)
    if run.state == "interrupted":
        assert world.table.compact(engine="local", resume=run.run).state == "done"
    world.check()
    world.check_tidy()


def test_damage_in_one_of_many_partitions_keeps_no_other_from_being_compacted(
    world: World,
) -> None:
    world.table.compact(engine="local")
    path = world.path / "ledgers" / world.adopted(17).manifest
    world.db.close()
    path.unlink()
    world.reopen()
    world.write(*[(f"k{number}", -number) for number in range(10 * MANY)])
    world.settle()
    with pytest.raises(LedgerLost) as told:
        world.table.compact(engine="local")
    assert str(path) in str(told.value)
    epochs: dict[int, int] = {number: world.adopted(number).epoch for number in range(MANY)}
    assert epochs == {number: 1 if number == 17 else 2 for number in range(MANY)}
