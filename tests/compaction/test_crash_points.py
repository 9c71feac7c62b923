"""The process of a run is killed before every step, and before every call to the store.

Whatever is left: all ways to read agree with the model, the run is resumed or another one made, and
in the end there is one ledger, nothing is lost, and no file is there that nobody needs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from compaction.faults import calls_of_a_run, killed_at_call, killed_before_step
from compaction.world import World
from eventually import eventually
from inside import backend_of
from lowmark.errors import Rejected
from lowmark.ledger import RunRecord

pytestmark = pytest.mark.slow

STEPS = [
    "note the run",
    "hold partition 0",
    "hold partition 1",
    "note progress",
    "carry out the work",
    "note progress",
    "publish partition 0",
    "adopt partition 0",
    "trim partition 0",
    "note progress",
    "publish partition 1",
    "adopt partition 1",
    "trim partition 1",
    "note progress",
    "note the end",
    "sweep",
]
"""Of a run over two partitions."""
WORKED = STEPS.index("publish partition 0")
SHARDS = 4


def fill(world: World) -> None:
    """A ledger, and a backlog behind it: new keys, keys that come again, and deletes of both."""
    world.write(*[(f"k{number % 12}", number) for number in range(30)], ("k1", None))
    world.compact()
    world.write(*[(f"k{number % 9}", number) for number in range(30, 50)])
    world.write(("k2", None), ("k11", None), ("new", 1), ("gone", 1), ("gone", None))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> list[World]:
    """By the number of partitions: made once, closed, and copied for each way to end."""
    worlds = []
    for partitions in (1, 2):
        path = tmp_path_factory.mktemp(f"filled-{partitions}") / "data"
        with World(path, partitions=partitions) as world:
            fill(world)
            world.settle()
        worlds.append(world)
    return worlds


@pytest.fixture
def two(filled: list[World], tmp_path: Path) -> Iterator[World]:
    with filled[1].copied_to(tmp_path / "data") as world:
        yield world


@pytest.fixture
def one(filled: list[World], tmp_path: Path) -> Iterator[World]:
    with filled[0].copied_to(tmp_path / "data") as world:
        yield world


def check_over(world: World, run: RunRecord) -> None:
    """A run is over and everything with it; once more after the database was opened again."""
    idle = all(one.state == "skipped" for one in run.partitions)
    assert run.state == ("nothing" if idle else "done"), run.error
    assert {one.state for one in run.partitions} <= {"adopted", "skipped"}
    for opened_again in (False, True):
        if opened_again:
            world.reopen()
        world.check()
        check_one_ledger(world)
        world.check_tidy()


def check_one_ledger(world: World) -> None:
    """Of each partition: what is published is what was adopted, of all rows, and nothing holds."""
    pointers = world.table._compactor.records.pointers(world.table.descriptor.id)
    for number in range(world.table.partitions):
        view, adopted = world.view(number), world.adopted(number)
        pointer = pointers[number]
        assert (pointer.manifest, pointer.epoch) == (adopted.manifest, adopted.epoch)
        assert view.start == adopted.horizon == view.end
        assert leases(world, number) == []
    assert [
        one.state for one in world.table.runs() if one.state in {"running", "interrupted", "failed"}
    ] == []


def leases(world: World, number: int) -> list[str]:
    status = backend_of(world.table).status(world.table.descriptor.id, [number])
    return [lease.name for lease in status[number].leases]


# -- before every step ----------------------------------------------------------------------------


def test_these_are_all_steps_of_a_run(two: World) -> None:
    told: list[str] = []
    two.compact(step=told.append)
    assert told == STEPS


@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
def test_a_run_killed_before_any_step_is_resumed(two: World, number: int) -> None:
    # given a run that was killed
    run = killed_before_step(two, number)
    # then all that was written is there
    two.check()
    # when it is resumed, then it does what was left of it
    told: list[str] = []
    match STEPS[number - 1]:
        case "note the run":
            assert run is None
            done = two.compact()
        case "sweep":
            assert run is not None
            with pytest.raises(Rejected, match="is done"):
                two.table.compact(engine="local", resume=run.run)
            done = run
        case _:
            assert run is not None
            assert run.state == "interrupted"
            done = two.table.compact(engine="local", resume=run.run, step=told.append)
            assert done.run == run.run
            assert done.resumed == 1
            # and no work that was finished before is done again
            assert ("carry out the work" in told) == (number - 1 < WORKED - 1)
    check_over(two, done)


@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
def test_after_a_run_killed_before_any_step_another_one_is_made(two: World, number: int) -> None:
    # given a run that was killed, and changes that came after that
    killed = killed_before_step(two, number)
    two.check()
    two.write(("k3", 103), ("k4", None), ("later", 1))
    two.check()
    # when another run is made instead
    done = two.compact()
    # then it does what the first one would have done, and that one is given up
    if killed is not None and killed.state != "done":
        known = {one.run: one.state for one in two.table.runs()}
        assert known == {**known, killed.run: "cancelled", done.run: "done"}
        with pytest.raises(Rejected, match="is cancelled"):
            two.table.compact(engine="local", resume=killed.run)
    check_over(two, done)


@pytest.mark.parametrize("number", range(2, len(STEPS)))
def test_a_run_killed_before_any_step_is_given_up(two: World, number: int) -> None:
    # given a run that was killed
    run = killed_before_step(two, number)
    assert run is not None
    # when it is given up
    assert two.table.cancel_run(run.run).state == "cancelled"
    # then it holds nothing any more, and nothing is left of it that was not published
    assert [leases(two, number) for number in range(2)] == [[], []]
    two.check()
    check_over(two, two.compact())


def test_a_run_that_is_killed_again_and_again_comes_to_its_end(two: World) -> None:
    # given a run that is killed before each of its steps, one life after the other
    first = killed_before_step(two, 2)
    assert first is not None
    for step in range(2, 7):
        killed_before_step(two, step, resume=first.run)
        two.check()
    # when it is left in peace, then it is done
    done = two.table.compact(engine="local", resume=first.run)
    assert done.resumed == 6
    check_over(two, done)


# -- before every call to the store ---------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(filled: list[World], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Those that a run makes to the store."""
    with filled[0].copied_to(tmp_path_factory.mktemp("calls") / "data") as world:
        return calls_of_a_run(world)


def test_a_run_makes_calls_of_every_kind_and_always_the_same(
    calls: list[str], tmp_path: Path
) -> None:
    # given another world that was filled in the same way
    with World(tmp_path / "data") as world:
        fill(world)
        made = [calls, calls_of_a_run(world)]
    assert made[0] == made[1]
    kinds = Counter(made[0])
    # Rows, keys, manifest and answer: each is created, made durable and given its name.
    assert kinds["create"] >= 4
    assert kinds["rename"] == kinds["create"]
    assert kinds["sync"] > kinds["create"]
    # What is swept: the ledger before, and what the run has noted for itself.
    assert kinds["delete"] >= 4


@pytest.mark.parametrize("loses", [False, True], ids=["the process", "the machine"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_killed_before_any_call_to_the_store_a_run_is_resumed(
    filled: list[World], calls: list[str], tmp_path: Path, shard: int, loses: bool
) -> None:
    for number in range(1 + shard, len(calls) + 1, SHARDS):
        with filled[0].copied_to(tmp_path / str(number) / "data") as world:
            # given a run that was killed before a call
            assert killed_at_call(world, number, loses=loses) == calls[number - 1]
            # then all that was written is there, with what is left of the run or without
            world.check()
            killed = world.table.runs()[0]
            if number % 2 and killed.state == "interrupted":
                done = world.table.compact(engine="local", resume=killed.run)
            else:
                world.write(("k3", 103), ("later", 1))
                done = world.compact()
            check_over(world, done)


# -- a real process -------------------------------------------------------------------------------

OPENS = """
import os, sys
import lowmark
from lowmark.node import load_settings

db = lowmark.open(sys.argv[1], settings=load_settings(
    arguments={"watermark": {"availability_ms": 0}, "ledger": {"grace_ms": 0}}))
table = db.table("t")

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
COMPACTS_SLOWLY = """
table.compact(engine="local", step=say, read_rate=200)
"""
WRITES_AND_COMPACTS = """
number = int(sys.argv[2])
while True:
    change = {"id": f"k{number % 7}", "v": number, "_change": "upsert"}
    if number % 5 == 3:
        change = {"id": f"k{number % 7}", "_change": "delete"}
    table.append([change])
    say("stored", number)
    number += 1
    if number % 4 == 0:
        db.advance_watermark()
        table.compact(engine="local", rewrite=number % 3 == 0)
        say("compacted")
"""


class Child:
    """A process that has the database; it says what it does."""

    def __init__(self, world: World, code: str, *arguments: object) -> None:
        world.db.close()
        self._said = world.path.with_name("said")
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", OPENS + code, str(world.path), *map(str, arguments)],
                stdout=out,
            )

    @property
    def said(self) -> list[str]:
        lines = self._said.read_text().splitlines(keepends=True)
        return [line.strip() for line in lines if line.endswith("\n")]

    def wait_for(self, lines: int) -> None:
        def there() -> bool:
            assert self.process.poll() is None
            return len(self.said) >= lines

        eventually(there)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("how", ["resume", "another run"])
def test_a_process_killed_in_the_middle_of_the_work(one: World, how: str) -> None:
    # given a process that reads slowly, so that it is in the middle of the work
    one.settle()
    child = Child(one, COMPACTS_SLOWLY)
    child.wait_for(4)
    assert child.said == ["note the run", "hold partition 0", "note progress", STEPS[4]]
    # when it is killed
    child.kill()
    one.reopen()
    # then all is there
    one.check()
    killed = one.table.runs()[0]
    assert killed.state == "interrupted"
    # and the work is done in this process, without any wait for what the other one held
    if how == "resume":
        check_over(one, one.table.compact(engine="local", resume=killed.run, read_rate=0))
    else:
        check_over(one, one.compact())


def test_a_process_killed_at_any_moment_of_its_runs(tmp_path: Path) -> None:
    dice = Random(4)
    with World(tmp_path / "data") as world:
        for _ in range(4):
            # given a process that writes, and compacts what it has written again and again
            child = Child(world, WRITES_AND_COMPACTS, world.changes)
            child.wait_for(dice.randint(2, 25))
            # when it is killed at some moment
            child.kill()
            world.reopen()
            # then all that it was told is stored is there, and at most one row more
            stored = [int(line.split()[1]) for line in child.said if line.startswith("stored")]
            end = world.view().end
            assert end in {stored[-1] + 1, stored[-1] + 2}
            world.note(
                (f"k{number % 7}", None if number % 5 == 3 else number)
                for number in range(world.changes, end)
            )
            world.check()
        check_over(world, world.compact(rewrite=True))
