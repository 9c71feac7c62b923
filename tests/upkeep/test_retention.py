from __future__ import annotations

import numpy as np
import pytest

from lowmark.catalog import (
    AlterZone,
    CreateTable,
    NewColumn,
    SetTableOptions,
    Table,
    TableId,
    parse_type,
)
from lowmark.errors import Rejected
from lowmark.table import CreateCursor, DeleteCursor, OffsetExpired, TakeLease, View
from lowmark.table.backlog import Backlog
from lowmark.upkeep.upkeep import expired_before
from table.world import TableWorld, log_table, ms


def described(**options: str) -> Table:
    """A table as the catalog has it."""
    return Table(
        id=TableId(7),
        schema_id=1,  # type: ignore[arg-type]
        zone_id=1,  # type: ignore[arg-type]
        name="events",
        schemas=(),
        next_column_id=1,  # type: ignore[arg-type]
        partitions=1,
        options=tuple(sorted(options.items())),
    )


def backlog(*batches: tuple[int, int, int]) -> View:
    """Batches of (rows, milliseconds, bytes)."""
    made = Backlog()
    for index, (rows, millis, size) in enumerate(batches, start=1):
        made.add(index, rows=rows, time=ms(millis), schema=1, size=size, change=0)
    made.publish(ms(10**6))
    return made.view


BATCHES = backlog((2, 100, 10), (3, 200, 20), (1, 300, 30), (4, 400, 40))


# -- what is too old, and too much --------------------------------------------------------------


@pytest.mark.parametrize(
    ("now_ms", "offset"), [(150, 0), (200, 0), (201, 2), (300, 2), (301, 5), (501, 10), (9_999, 10)]
)
def test_rows_go_when_they_are_older_than_the_table_says(now_ms: int, offset: int) -> None:
    table = described(retention_ms="100")
    assert expired_before(BATCHES, table, now_ms=now_ms) == offset


@pytest.mark.parametrize(
    ("limit", "offset"),
    [(100, 0), (99, 2), (90, 2), (89, 5), (70, 5), (69, 6), (40, 6), (39, 6), (0, 6)],
)
def test_the_oldest_batches_go_until_the_rest_is_small_enough(limit: int, offset: int) -> None:
    # The newest one stays, however large it is.
    table = described(retention_bytes=str(limit))
    assert expired_before(BATCHES, table, now_ms=0) == offset


def test_of_both_limits_the_stricter_one_counts() -> None:
    both = described(retention_ms="100", retention_bytes="69")
    assert expired_before(BATCHES, both, now_ms=201) == 6
    assert expired_before(BATCHES, both, now_ms=501) == 10


def test_an_empty_backlog_and_a_table_without_limits_lose_nothing() -> None:
    assert expired_before(backlog(), described(retention_ms="0"), now_ms=10**6) == 0
    assert expired_before(BATCHES, described(), now_ms=10**6) == 0


def test_the_size_of_many_batches_is_counted_without_an_overflow() -> None:
    # given batches that have more than 4 GiB between them
    view = backlog(*((1, n, (1 << 31)) for n in range(8)))
    assert int(view.size.sum(dtype=np.uint64)) == 1 << 34
    # then those go that are too much
    assert expired_before(view, described(retention_bytes=str(1 << 33)), now_ms=0) == 4


# -- in a cluster -------------------------------------------------------------------------------


def events(world: TableWorld, **options: str) -> TableId:
    return world.create(1, log_table("events", options=options))


def test_retention_cuts_on_the_leader_and_is_seen_by_all() -> None:
    # given rows, of which some are too old
    world = TableWorld()
    world.execute(1, AlterZone(name="default", replicas=3))
    table = events(world, retention_ms="1000")
    world.append(table, rows=3)
    world.run_for(2_000)
    world.append(table, rows=2)
    # when it is looked after
    looks = world.look()
    # then they are gone, on every copy, and say that they expired
    [cut] = [one for look in looks.values() for one in look.retained]
    assert (cut.table, cut.number, cut.start, cut.wanted, cut.cut) == (table, 0, 0, 3, 3)
    assert (cut.rows, cut.held_by) == (3, ())
    assert cut.bytes > 100
    copies = [node.tables.get(table, 0) for node in world.up]
    world.run_until(lambda: all(one.view.start == 3 for one in copies))
    assert {(one.view.end, one.state.expired) for one in copies} == {(5, 3)}
    error = world.wait_error(world.leading(table).ask(CreateCursor("late", 1, "raw", 0)))
    assert isinstance(error, OffsetExpired)
    # and there is nothing to do a second time
    assert not any(look.retained for look in world.look().values())


def test_a_cursor_and_a_lease_hold_rows_that_are_too_old() -> None:
    # given a cursor and a lease within rows that are too old
    world = TableWorld(nodes=1)
    table = events(world, retention_ms="100")
    for _ in range(4):
        world.append(table, rows=10)
    leading = world.leading(table)
    world.wait(leading.ask(CreateCursor("reader", 1, "raw", 10)))
    world.wait(leading.ask(TakeLease("job", 1, 20, 5_000, "a job")))
    world.run_for(1_000)
    # when it is looked after
    [cut] = world.look()[1].retained
    # then it is cut up to the first of them, and both are named
    assert (cut.wanted, cut.cut) == (40, 10)
    assert [hold.holder for hold in cut.held_by] == ["reader", "job"]
    # when the cursor is gone
    world.wait(leading.ask(DeleteCursor("reader")))
    [cut] = world.look()[1].retained
    # then up to the lease
    assert (cut.cut, [hold.holder for hold in cut.held_by]) == (20, ["job"])
    # when the lease is over
    world.run_for(6_000)
    [cut] = world.look()[1].retained
    # then all that is too old goes
    assert (cut.cut, cut.held_by) == (40, ())


def test_by_size_the_newest_batch_stays() -> None:
    # given more than a table may have, most of it in the last batch
    world = TableWorld(nodes=1)
    table = events(world, retention_bytes="1000")
    for size in (100, 100, 5_000):
        world.append(table, size=size)
    # when it is looked after
    [cut] = world.look()[1].retained
    # then that batch is what is left
    assert (cut.cut, world.leading(table).view.end) == (2, 3)


def test_a_table_whose_compaction_decides_is_left_alone() -> None:
    # given a table with a key, of which rows go by size only if compaction is off
    world = TableWorld(nodes=1)
    columns = (NewColumn(name="id", type=parse_type("int64"), required=True),)
    options = {"retention_ms": "10", "compaction": "off"}
    keyed = CreateTable(name="keyed", columns=columns, key=("id",), partitions=1, options=options)
    table = world.create(1, keyed)
    world.append(table)
    world.run_for(1_000)
    # when retention is unset, and compaction on
    world.execute(1, SetTableOptions(table="keyed", options=dict.fromkeys(options)))
    world.look()
    # then nothing goes, and asking for it by hand is refused
    assert world.leading(table).view.start == 0
    error = world.wait_error(world[1].upkeep.retain(table))
    assert isinstance(error, Rejected)
    assert "public.keyed has no retention" in error.message
    assert isinstance(world.wait_error(world[1].upkeep.retain(TableId(999))), Rejected)
    # when it is set again
    world.execute(1, SetTableOptions(table="keyed", options=options))
    world.look()
    # then it does
    assert world.leading(table).view.start == 1


def test_a_dry_run_says_what_the_run_then_does() -> None:
    # given rows that are too old, and a reader
    world = TableWorld(nodes=1)
    table = events(world, retention_ms="100")
    for _ in range(3):
        world.append(table, rows=5)
    world.wait(world.leading(table).ask(CreateCursor("reader", 1, "raw", 10)))
    world.run_for(1_000)
    # when it is tried
    tried = world.wait(world[1].upkeep.retain(table, dry_run=True))
    # then nothing has changed
    assert world.leading(table).view.start == 0
    # and the run does the same
    assert world.wait(world[1].upkeep.retain(table)) == tried
    assert world.leading(table).view.start == 10
    [one] = tried
    assert (one.rows, [hold.holder for hold in one.held_by]) == (10, ["reader"])


# -- files --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_cut_is_freed_on_every_member_if_it_is_worth_it() -> None:
    # given a table with rows on three nodes
    world = TableWorld()
    world.execute(1, AlterZone(name="default", replicas=3))
    table = events(world, retention_ms="1000")
    for _ in range(10):
        world.append(table, size=1_000)
    world.look()
    assert all(node.tables.get(table, 0).group.log.row.snapshot_index == 0 for node in world.up)
    # when a tenth of it goes, that is not worth a snapshot
    leading = world.leading(table)
    first = int(leading.view.time[0])
    world.run_for(2_000)
    for _ in range(100):
        world.append(table, size=1_000)
    assert int(leading.view.time[0]) == first
    world.look()
    world.run_until(lambda: all(n.tables.get(table, 0).view.start == 10 for n in world.up))
    assert not any(look.snapshots for look in world.look().values())
    # when the rest goes, too
    world.run_for(2_000)
    world.look()
    world.run_until(lambda: all(n.tables.get(table, 0).view.start == 110 for n in world.up))
    assert sum(look.snapshots for look in world.look().values()) >= 1
    # then every member has taken one, and its log begins behind it
    logs = [node.tables.get(table, 0).group.log for node in world.up]
    world.run_until(lambda: all(log.row.snapshot_index > 100 and not log.row.live for log in logs))
