"""Tables that are dropped, before, during and after a run: nobody waits, and nothing is left."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from compaction.operating import STEPS, at_step, keys_left, look_after, run_aside
from compaction.world import COLUMNS, World, folded
from eventually import eventually
from inside import backend_of
from lowmark.errors import LowmarkError, Unavailable
from lowmark.ledger import RunRecord

BOUND_S = 30.0
"""Dropping a table waits for no run, and these runs wait until it is dropped: for longer than this,
which is milliseconds of work on a machine that has others to do.
"""


def fill(world: World) -> None:
    world.write(*[(f"k{number % 10}", number) for number in range(30)])
    world.compact()
    world.write(*[(f"k{number}", 100) for number in range(5)])


def drop(world: World) -> None:
    began_s = time.monotonic()
    world.db.drop_table("t")
    assert time.monotonic() - began_s < BOUND_S


def pass_the_drop(world: World) -> None:
    """Until nobody can look back to the table, and no copy of it is there."""

    def gone() -> bool:
        world.db.advance_watermark()
        look_after(world)
        tables = backend_of(world.db).node.tables
        assert tables is not None
        return not tables.all()

    eventually(gone)


def check_nothing_is_left(world: World) -> None:
    """Of its files and of all that was noted, at the next opening at the latest."""
    pass_the_drop(world)
    world.db.close()
    world.db = world._open()
    assert world.files() == set()
    assert keys_left(world) == []
    assert world.db.runs() == []


@pytest.mark.parametrize("step", STEPS)
def test_a_table_is_dropped_at_once_at_every_step_of_a_run(world: World, step: str) -> None:
    fill(world)
    world.settle()
    # when it is dropped in the middle of a run, then the run ends, well or with a named error
    with suppress(LowmarkError):
        world.table.compact(engine="local", step=at_step(step, lambda: drop(world)))
    # and nothing is left of it
    check_nothing_is_left(world)


@pytest.mark.parametrize("step", STEPS)
def test_a_run_whose_table_is_destroyed_under_it_ends_and_leaves_nothing(
    world: World, step: str
) -> None:
    fill(world)
    world.settle()

    # when a table is dropped, and every copy of it gone, before the run makes its next step
    def destroy() -> None:
        drop(world)
        pass_the_drop(world)

    with suppress(LowmarkError):
        world.table.compact(engine="local", step=at_step(step, destroy))
    # then what it still wrote, files or notes, goes as well
    check_nothing_is_left(world)


@pytest.mark.slow
def test_a_table_is_dropped_while_its_run_hangs(world: World) -> None:
    # given a run that goes no further
    fill(world)
    with run_aside(world, until="carry out the work") as end:
        # when the table is dropped, then that is done before the run is
        drop(world)
        assert world.db.tables() == []
        outcome = end()
    # and the run comes to an end by itself
    assert isinstance(outcome, RunRecord | LowmarkError)
    check_nothing_is_left(world)


@pytest.mark.slow
def test_a_table_is_dropped_whose_run_has_failed(world: World) -> None:
    fill(world)
    world.settle()

    def fail() -> None:
        raise Unavailable("the disk is full")

    with pytest.raises(Unavailable):
        world.table.compact(engine="local", step=at_step("publish partition 0", fail))
    assert world.table.runs()[0].state == "failed"
    drop(world)
    check_nothing_is_left(world)


@pytest.mark.slow
def test_a_table_is_dropped_whose_run_ended_with_its_process(world: World) -> None:
    fill(world)
    world.stopped_before("publish partition 0")
    drop(world)
    check_nothing_is_left(world)


def test_a_dropped_table_is_read_as_of_before_until_the_watermark_has_passed_it(
    world: World,
) -> None:
    # given a table with a ledger, and somebody who looks at it as it was
    fill(world)
    now = world.table.snapshot().time
    looking = world.db.table("t", as_of=now).read(as_of=now)
    other = world.db.create_table("other", COLUMNS, key="id", partitions=1)
    # when it is dropped and everything is swept
    drop(world)
    look_after(world)
    other.sweep()
    # then it can still be read, since the one who looks holds the watermark
    assert world.files()
    assert {row["id"]: row["v"] for row in looking.to_pylist()} == world.model
    # and when nobody does any more, its ledger goes with the next sweep, without a restart

    def swept() -> bool:
        look_after(world)
        other.sweep()
        return not world.files() and keys_left(world) == []

    eventually(swept)


def test_who_reads_a_ledger_reads_it_to_its_end_though_its_table_is_dropped(world: World) -> None:
    # given a reader that has begun with the ledger of a table
    world.write(*[(f"k{number}", number) for number in range(30)])
    world.compact()
    reader = world.table.read(compacted=True, columns=["id", "v", "_change"])
    other = world.db.create_table("other", COLUMNS, key="id", partitions=1)
    # when it is dropped, and destroyed, and swept
    drop(world)
    eventually(lambda: bool(look_after(world).destroyed))
    other.sweep()
    # then all of it is read, and its files go after that
    assert folded(reader) == world.model
    reader.close()

    def swept() -> bool:
        other.sweep()
        return not world.files()

    eventually(swept)


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True], ids=["after a run", "within a run"])
def test_a_table_of_the_same_name_begins_with_nothing_of_the_one_before(
    world: World, interrupted: bool
) -> None:
    # given a table that was compacted, or in the middle of it, and dropped
    fill(world)
    if interrupted:
        world.stopped_before("adopt partition 0")
    else:
        world.compact()
    old = world.table.descriptor.id
    drop(world)
    # when one of the same name is made, and compacted
    world.table = world.db.create_table("t", COLUMNS, key="id", partitions=1)
    world.model, world.written, world.changes = {}, set(), 0
    assert world.table.descriptor.id != old
    assert world.table.runs() == []
    assert world.view().ledger is None
    world.check()
    world.write(("k1", 7), ("k1", 8), ("new", 9))
    run = world.compact()
    # then all of its rows were read, from the first one on, and it is in an epoch of its own
    assert (run.rows_read, run.rows_live) == (3, 2)
    assert (world.adopted().epoch, world.adopted().horizon) == (1, 3)
    world.check()
    world.reopen()
    world.check()
    # and what is left of the one before goes, and nothing of this one

    def only_this() -> bool:
        world.db.advance_watermark()
        look_after(world)
        world.table.sweep()
        return world.files() == world.needed()

    eventually(only_this)
    world.check()
