from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone, DropTable, TableId
from lowmark.metastore import MetastoreConfig
from lowmark.placement.assignments import ASSIGNMENTS_PREFIX
from lowmark.table import PartitionNotHere, encode_batch
from lowmark.upkeep.dropped import dropped_at
from table.world import TableNode, TableWorld, log_table

PATIENT = MetastoreConfig(lease_ms=60_000, request_timeout_ms=3_000)


def made(world: TableWorld, *, partitions: int = 2) -> TableId:
    """A table with rows on all nodes."""
    world.execute(1, AlterZone(name="default", replicas=3))
    table = world.create(1, log_table("events", partitions=partitions))
    world.append(table, rows=3)
    world.run_until(lambda: all(len(node.tables.of(table)) == partitions for node in world.up))
    return table


def keys(node: TableNode) -> list[bytes]:
    """Of the assignments of tables."""
    found = [entry.key for entry in node.metastore.range_local(ASSIGNMENTS_PREFIX).entries]
    return [key for key in found if not key.endswith(b".0.0")]


def past(world: TableWorld) -> None:
    """Later than availability and skew."""
    world.run_for(2_000)


@pytest.mark.slow
def test_a_copy_that_was_destroyed_is_not_founded_anew_by_a_node_that_starts() -> None:
    # given nodes that have destroyed all copies of a table
    world = TableWorld()
    table = made(world)
    for node in world.up:
        node.metastore.group.snapshot()
    world.run_for(200)
    world.execute(1, DropTable(name="events"))
    past(world)
    world.look()
    world.everywhere()
    world.look()
    assert not any(node.tables.on_disk() for node in world.up)
    # when all start again, and their metastore begins with a snapshot that has the table
    for number in (1, 2, 3):
        world[number].crash()
    for number in (1, 2, 3):
        world[number].start()
    made_anew: list[tuple[TableId, int]] = []

    def are_up() -> bool:
        there = [node for node in world.up if node.tables_ is not None]
        made_anew.extend(one for node in there for one in node.tables.on_disk() if one[0] == table)
        return len(there) == 3

    world.run_until(are_up)
    for _ in range(100):
        world.run_for(20)
        assert are_up()
    # then none of them has a copy, at any time
    assert made_anew == []
    # and a table that is new is made as ever
    other = world.create(1, log_table("others"))
    world.append(other)


@pytest.mark.slow
def test_a_dropped_table_goes_when_the_watermark_has_passed_the_drop() -> None:
    # given a table that was dropped
    world = TableWorld()
    table, other = made(world), world.create(1, log_table("others"))
    before = world[1].run.clock.now()
    world.execute(1, DropTable(name="events"))
    # when it is looked after, before the watermark is there
    world.look()
    # then it is still there, for those who read as of earlier times
    for node in world.up:
        assert node.tables.on_disk() == [(table, 0), (table, 1), *_on_disk(node, other)]
    assert world.leading(table).view.end == 3
    held = world.wait(world[2].watermark.hold(before, "a report"))
    # when somebody reads so, it stays however late it is
    past(world)
    world.look()
    assert world.leading(table).view.end == 3
    assert not held.lost
    # when he is done
    held()
    past(world)
    looks = world.look()
    world.everywhere()
    world.look()
    # then all of it goes, on all nodes, and nothing else
    assert {one for look in looks.values() for one in look.destroyed} <= {(table, 0), (table, 1)}
    for node in world.up:
        assert node.tables.on_disk() == _on_disk(node, other)
        with pytest.raises(PartitionNotHere):
            node.tables.get(table, 0)
        assert keys(node) == [
            b"partition.assignments.change.trigger.revision.%d.0" % other,
            b"partition.assignments.stable.%d.0" % other,
        ]
        assert node.placement.routes(table, 0) == ()
    assert any(table in look.removed for look in looks.values())
    # and its files
    world.run_for(1_000)
    for node in world.up:
        assert not [name for name in node.disk.list("groups") if f"table.{table}." in name]


def _on_disk(node: TableNode, table: TableId) -> list[tuple[TableId, int]]:
    return [(table, 0)] if node.number in node.placement.routes(table, 0) else []


def test_a_node_that_was_down_then_destroys_its_copies_when_it_is_back() -> None:
    # given a node that is down while a table is dropped and destroyed
    world = TableWorld(metastore_config=PATIENT)
    table = made(world)
    down = next(n for n in (1, 2, 3) if n != world.wait_leader().number)
    world[down].crash()
    leader = world.wait_leader().number
    world.execute(leader, DropTable(name="events"))
    past(world)
    world.look()
    assert keys(world[leader]) == []
    # when it is back
    world[down].start()
    world.run_until(lambda: world[down].tables_ is not None)
    assert world[down].tables.on_disk() == [(table, 0), (table, 1)]
    world.everywhere()
    world.run_until(lambda: table not in world[down].catalog.latest.tables)
    world.look()
    # then nothing is left there, either
    assert world[down].tables.on_disk() == []


def test_a_crash_while_copies_are_destroyed_is_made_good() -> None:
    # given a node that dies right after it began
    world = TableWorld(nodes=1)
    table = made(world)
    world.execute(1, DropTable(name="events"))
    past(world)
    ticking = world[1].upkeep.tick()
    world.run_until(lambda: not world[1].tables.of(table))
    world[1].crash(killed=True)
    del ticking
    # when it starts again, with whatever was left
    world[1].start()
    world.run_until(lambda: world[1].tables_ is not None and world.leader() is not None)
    world.run_for(500)
    world.look()
    world.run_for(500)
    # then nothing is left
    assert world[1].tables.on_disk() == []
    assert keys(world[1]) == []
    assert not [name for name in world[1].disk.list("groups") if name.startswith("table.")]


def test_keys_that_come_late_go_with_the_next_look() -> None:
    # given a dropped table that was destroyed
    world = TableWorld(nodes=1)
    table = made(world, partitions=1)
    world.execute(1, DropTable(name="events"))
    past(world)
    world.look()
    assert keys(world[1]) == []
    # when a node that is far behind writes its home once more
    key = b"partition.assignments.stable.%d.0" % table
    world.wait(world[1].metastore.put(key, b'{"nodes":[1],"catalog_version":2}'))
    world.run_for(500)
    # then no copy is made of it, and it goes
    assert world[1].tables.on_disk() == []
    assert world.look()[1].removed == (table,)
    assert keys(world[1]) == []


@pytest.mark.parametrize(
    "key",
    [
        b"ledger.%d.0",
        b"ledger.retired.%d.0.4",
        b"compaction.%d.20260101T000000-abcdef",
        b"compaction-claim.%d.holder",
        b"partition.assignments.pending.%d.0",
        b"partition.assignments.planned.%d.0",
        b"partition.assignments.pending.lock.%d.0",
        b"partition.assignments.change.trigger.revision.%d.0",
    ],
)
def test_no_key_of_a_dropped_table_stays_whichever_was_written_late(key: bytes) -> None:
    # given a dropped table that was destroyed, and one whose id begins with the same digits
    world = TableWorld(nodes=1)
    table = made(world, partitions=1)
    world.execute(1, DropTable(name="events"))
    past(world)
    world.look()
    metastore = world[1].metastore
    late, other = key % table, key % int(f"{table}99")
    # when a run that went on, or a node that is far behind, writes one of its keys once more
    value = b"7"
    if b"assignments.p" in key and b"lock" not in key:
        value = b'{"nodes":[1],"catalog_version":2}'
    elif key.startswith(b"compaction."):
        value = b'{"run":"r","table_name":"events","state":"done","began_at_ms":1}'
    world.wait(metastore.put(late, value))
    world.wait(metastore.put(other, value))
    # then the next look removes it, and no key of another table
    assert world.look()[1].removed == (table,)
    left = {entry.key for entry in metastore.range_local(b"").entries}
    assert late not in left
    assert other in left
    # and the one after that has nothing to do
    assert world.look()[1].removed == ()


def test_a_node_forgets_the_ways_to_partitions_of_a_dropped_table() -> None:
    # given a node that has no copy of a table, and has sent rows to it
    world = TableWorld()
    world.execute(1, AlterZone(name="default", replicas=1))
    table = world.create(1, log_table("events", partitions=1))
    world.append(table, rows=1)
    home = world.leading(table).group.node
    away = next(node for node in world.up if node.number != home)
    batch = encode_batch(bytes(8), rows=1, schema=1)
    world.wait(away.tables.way(table, 0).propose(batch))
    assert away.tables.distant() == {table}
    # when it is dropped, and no read can look back to it
    world.execute(1, DropTable(name="events"))
    world.look()
    assert away.tables.distant() == {table}
    past(world)
    world.look()
    world.everywhere()
    world.look()
    # then nothing of it is left in memory
    assert away.tables.distant() == set()


def test_a_table_was_dropped_when_the_first_version_without_it_came_into_force() -> None:
    # given versions with and without a table
    world = TableWorld(nodes=1)
    table = made(world, partitions=1)
    catalogs = world[1].catalog
    assert dropped_at(catalogs, table) is None
    world.execute(1, DropTable(name="events"))
    dropped = catalogs.latest
    world.create(1, log_table("others"))
    # then that is when it was dropped
    assert dropped_at(catalogs, table) == dropped.activates_at
    # and one that no version has heard of was not
    assert dropped_at(catalogs, TableId(catalogs.latest.next_id)) is None
    # when no version is left that had it, it was the earliest one at the latest
    world.run_for(1_000)
    assert world.wait(catalogs.compact(catalogs.latest.version))
    world.run_until(lambda: catalogs.earliest.version > dropped.version)
    assert dropped_at(catalogs, table) == catalogs.earliest.activates_at
