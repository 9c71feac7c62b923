"""A run that another one overtakes, at each of its steps: what it ends as, and that no row is lost.

The other one is of a release that knows no claims, as in a cluster whose nodes are upgraded one by
one; or it has taken the first one for dead, and has given it up. Its sweep removes the ledger that
the first run began with, and of a run that was given up all that it has written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.faults import killed_before_step
from compaction.test_crash_points import STEPS
from compaction.world import World
from lowmark.backend.errors import Cancelled
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import RunOptions
from lowmark.compaction.records import Records, SeenPointer
from lowmark.compaction.runner import LocalRunner
from lowmark.errors import LedgerLost
from lowmark.ledger import RunRecord
from sim.mutants import replaced


def numbered(*in_make_test: int) -> list[Any]:
    """All steps of a run by their number; those that `make test` leaves out are like one in it."""
    release = pytest.mark.release
    return [
        pytest.param(number, marks=() if number in in_make_test else release)
        for number in range(1, len(STEPS) + 1)
    ]


def fill(world: World) -> None:
    """A ledger, and changes to a few of its rows: the next one keeps the file that it has."""
    world.write(*[(f"k{number}", number) for number in range(60)])
    world.compact()
    world.write(("k1", 101), ("k2", None), ("k3", 103), ("new", 1), ("newer", 1))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two partitions with a ledger each, and a backlog behind it; made once, closed, and copied."""
    with World(tmp_path_factory.mktemp("filled") / "data", partitions=2) as world:
        fill(world)
        world.settle()
    return world


@pytest.fixture
def two(filled: World, tmp_path: Path) -> Iterator[World]:
    with filled.copied_to(tmp_path / "data") as world:
        yield world


def overtake(world: World, *, gives_up: bool = False) -> RunRecord:
    """Another run, of more rows: it is published, adopted, and what nothing names is swept."""
    world.write(("k3", 1_003), ("k5", None), ("late", 1))
    world.settle()
    own = world.table._compactor
    rival = Compactor(world.table._session, own.ledgers)
    with contextlib.ExitStack() as old:
        if not gives_up:
            old.enter_context(replaced(rival, "give_up_others", lambda *_, **__: False))
        old.enter_context(replaced(rival, "_under_way", set))
        old.enter_context(replaced(rival, "_claimed", lambda *_, **__: contextlib.nullcontext()))
        options = RunOptions(engine="local", where="this process")
        return rival.compact(world.table.descriptor, range(2), LocalRunner, options)


def before(number: int, act: Callable[[], object]) -> Callable[[str], None]:
    """For `compact(step=...)`: do something before the step of that number."""
    made = 0

    def told(_: str) -> None:
        nonlocal made
        made += 1
        if made == number:
            act()

    return told


def check_sound(world: World) -> None:
    """Every read is right, no ledger has lost a file, and the next run goes on from there."""
    world.check()
    assert all(one.sound for one in world.table.verify_ledgers())
    world.write(("k4", 104), ("later", 1))
    run = world.compact()
    assert {one.state for one in run.partitions} <= {"adopted", "skipped"}
    world.check()
    world.check_tidy()


@pytest.mark.slow
@pytest.mark.parametrize("number", numbered(2, 5, 11, 12))
def test_a_run_that_is_overtaken_before_any_step_ends_as_overtaken(two: World, number: int) -> None:
    # when another run overtakes one before a step of it, and sweeps
    run = two.compact(step=before(number, lambda: overtake(two)))
    # then what it has published first is there, and all else is overtaken: it is no failure
    states = {one.state for one in run.partitions}
    assert run.state == "done" or states == {"skipped"}
    assert states <= {"adopted", "overtaken", "skipped"}
    assert ("overtaken" in states) == (1 < number < STEPS.index("trim partition 1") + 1)
    check_sound(two)


@pytest.mark.slow
@pytest.mark.parametrize("number", numbered(7, 12))
def test_a_run_that_is_given_up_before_any_step_ends_as_given_up(two: World, number: int) -> None:
    # when another run gives one up before a step of it, and sweeps its files
    outcome = ""
    try:
        outcome = two.compact(step=before(number, lambda: overtake(two, gives_up=True))).state
    except Cancelled as given_up:
        outcome = given_up.message
    # then it says so, if anything was left to be done
    over = number == 1 or number > STEPS.index("note the end")
    assert ("was given up" in outcome) != over
    check_sound(two)


@pytest.mark.slow
@pytest.mark.parametrize("number", numbered(11)[1:-1])
def test_a_run_that_was_killed_and_overtaken_is_resumed(two: World, number: int) -> None:
    # given a run that was killed before a step, and another one after it that knew nothing of it
    run = killed_before_step(two, number)
    assert run is not None
    overtake(two)
    two.check()
    # when the first one is resumed, then it finds nothing left to do
    done = two.table.compact(engine="local", resume=run.run)
    assert done.state == "done"
    assert {one.state for one in done.partitions} <= {"adopted", "overtaken", "skipped"}
    check_sound(two)


def test_a_run_that_looks_at_a_partition_while_another_one_publishes_looks_again(
    two: World,
) -> None:
    # given a run that has seen what was published for a partition, and not yet what was adopted
    pointer, seen = Records.pointer, list[SeenPointer]()

    def slowly(self: Records, table: int, partition: int) -> SeenPointer:
        found = pointer(self, table, partition)
        if not seen:
            seen.append(found)
            # when another run publishes the next ledger, and the partition adopts it
            overtake(two)
        return found

    with replaced(Records, "pointer", slowly):
        two.compact()
    # then that is no sign of a metastore that is behind
    assert seen[0].epoch == 1
    check_sound(two)


def test_a_file_that_is_gone_though_no_other_run_was_made_is_a_loss(two: World) -> None:
    # when a file of the ledger that a run goes on with is removed, by no run
    def remove() -> None:
        [path] = [path for path in two.manifest(1).paths() if path.endswith(".parquet")]
        (two.path / "ledgers" / path).unlink()

    # then the run says that it is lost, and neither publishes that partition nor cuts it
    with pytest.raises(LedgerLost, match="is missing"):
        two.compact(step=before(STEPS.index("publish partition 1") + 1, remove))
    assert two.adopted(1).epoch == 1
    assert two.view(1).start < two.view(1).end
    [failed] = [one for one in two.table.runs() if one.state == "failed"]
    assert [one.state for one in failed.partitions] == ["adopted", "written"]
