from __future__ import annotations

import logging
from typing import Any

import pytest

from lowmark.catalog import AlterZone, CreateZone, DropTable, TableId, Zone
from lowmark.catalog.descriptors import SCALE_UP_MS
from lowmark.group import Future
from lowmark.metastore import Answer, Branch, Do, MetastoreConfig, Put, Statement
from lowmark.metastore.following import RETRY_MS
from lowmark.metastore.nodes import Topology, decode_topology
from lowmark.placement.assignments import (
    METASTORE,
    STABLE_PREFIX,
    Assignments,
    decode_assignments,
    parse_key,
    removal_of,
)
from lowmark.placement.operations import REBALANCE_KEY
from lowmark.runtime import Buffer, DiskFull, NoHandles
from table.world import TableNode, TableWorld, log_table


def three_replicas(world: TableWorld) -> None:
    world.execute(1, AlterZone(name="default", replicas=3))


def stable(node: TableNode) -> dict[tuple[TableId, int], Assignments]:
    """What a node's copy of the metastore says."""
    found = {}
    for entry in node.metastore.range_local(STABLE_PREFIX).entries:
        parsed = parse_key(entry.key)
        assert parsed is not None
        if parsed[1] != METASTORE.table:
            found[parsed[1], parsed[2]] = decode_assignments(entry.value)
    return found


def copies(node: TableNode, table: TableId) -> list[int]:
    return [one.number for one in node.tables.of(table)]


# -- new tables ---------------------------------------------------------------------------------


def test_a_table_that_is_made_can_be_used_at_once_where_it_is_alone() -> None:
    # given a node of its own
    world = TableWorld(nodes=1)
    # when a table is made
    table = world.create(1, log_table("events", partitions=3))
    # then all its partitions are here, and lead
    assert copies(world[1], table) == [0, 1, 2]
    assert all(one.group.ready for one in world[1].tables.of(table))
    version = world[1].catalog.latest.version
    assert stable(world[1]) == {(table, n): Assignments((1,), version) for n in range(3)}
    assert world[1].placement.routes(table, 2) == (1,)
    assert world[1].placement.routes(table, 3) == ()
    assert world[1].placement.problem == ""


def test_what_is_known_of_partitions_stays_while_something_else_can_not_be_read() -> None:
    # given tables, and a node that has to look anew at what is said of them
    world = TableWorld(nodes=1)
    table = world.create(1, log_table("events", partitions=2))
    gone = world.create(1, log_table("old", partitions=1))
    placement, metastore = world[1].placement, world[1].metastore
    metastore._watches.end_all(NoHandles("1.wal", call="read", reason="too many open files"))
    # when it can't read how moves are made, for as long as it tries
    world.wait(metastore.put(REBALANCE_KEY, b"{"))
    world.wait(metastore.invoke(Do(removal_of(gone))))
    world.run_for(3 * RETRY_MS)
    # then it still knows where partitions are
    assert [placement.routes(table, number) for number in range(2)] == [(1,), (1,)]
    # and when it can, it hears which ones are gone since
    world.wait(metastore.remove(REBALANCE_KEY))
    world.run_until(lambda: placement.routes(gone, 0) == ())
    assert placement._founded.keys() == {(table, 0), (table, 1)}


@pytest.mark.slow
def test_all_nodes_compute_and_write_the_same() -> None:
    # given three nodes, each with what it was about to write
    world = TableWorld(nodes=4)
    three_replicas(world)
    written: dict[int, dict[bytes, bytes]] = {number: {} for number in world.nodes}
    for number in world.nodes:
        note_writes(world[number], written[number])
    # when a table is made
    table = world.create(2, log_table("events", partitions=8))
    world.everywhere()
    # then all that were in time to write one wrote the same
    everything: dict[bytes, bytes] = {}
    for own in written.values():
        for key, value in own.items():
            assert everything.setdefault(key, value) == value
    assert len(everything) == 8
    # and all nodes know the same, and have their copies
    world.run_until(lambda: all(stable(node) == stable(world[1]) for node in world.up))
    found = stable(world[1])
    for (owner, number), assignments in found.items():
        assert owner == table
        assert len(assignments.nodes) == 3
        for node in world.up:
            assert node.placement.routes(table, number) == assignments.nodes
            assert (number in copies(node, table)) == (node.number in assignments.nodes)
    # and every partition has a leader that takes rows
    for number in range(8):
        assert world.leading(table, number).group.members().voters == set(
            found[table, number].nodes
        )


def note_writes(node: TableNode, notes: dict[bytes, bytes]) -> None:
    send = node.metastore.invoke

    def invoke(statement: Statement) -> Future[Answer]:
        if isinstance(statement, Branch) and isinstance(statement.then, Do):
            for one in statement.then.operations:
                if isinstance(one, Put) and one.key.startswith(STABLE_PREFIX):
                    notes[one.key] = bytes(one.value)
        return send(statement)

    node.metastore.invoke = invoke  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_version_is_ready_when_this_node_has_its_copies() -> None:
    # given a node that makes a table with many partitions
    world = TableWorld(nodes=1)
    catalogs = world[1].catalog
    made = catalogs.execute(log_table("events", partitions=100))
    # when it is known here
    world.run_until(lambda: bool(catalogs.latest.tables))
    table = next(iter(catalogs.latest.tables))
    version = catalogs.latest.version
    assert catalogs.ready_version < version
    # then it counts as ready only with all of its copies
    world.run_until(lambda: catalogs.ready_version == version)
    assert len(world[1].tables.of(table)) == 100
    world.wait(made)


# -- crashes and restarts -----------------------------------------------------------------------


def test_what_a_crash_left_between_catalog_and_assignments_is_made_good() -> None:
    # given a node that dies when a table is in the catalog, and is not assigned yet
    world = TableWorld(nodes=1)
    world[1].placement.close()  # nothing is written after the catalog
    table = world.create(1, log_table("events", partitions=2))
    assert stable(world[1]) == {}
    world[1].crash()
    # when it starts again
    world[1].start()
    world.run_until(lambda: len(stable(world[1])) == 2)
    # then the table gets its home, as of the version that made it
    world.run_until(lambda: copies(world[1], table) == [0, 1])
    assert world.append(table).first == 0


@pytest.mark.slow
def test_what_was_left_undone_is_computed_from_the_nodes_that_were_up_then() -> None:
    # given three nodes that all die between catalog and assignments
    world = TableWorld()
    three_replicas(world)
    for node in world.up:
        node.placement.close()
    table = world.create(1, log_table("events"))
    world.everywhere()
    for number in (1, 2, 3):
        world[number].crash()
    # when two come back, and the third one is taken for gone
    world[1].start()
    world[2].start()
    world.run_until(lambda: bool(stable(world[1])))
    # then the table has the home that it should have had
    assert stable(world[1])[table, 0].nodes == (1, 2, 3)
    assert world.append(table).first == 0
    # and the third one joins in
    world[3].start()
    world.run_until(lambda: world[3].tables_ is not None and copies(world[3], table) == [0])
    world.run_until(lambda: world[3].tables.get(table, 0).view.end == 1)


@pytest.mark.slow
def test_a_restart_starts_the_copies_that_were_there_with_their_rows() -> None:
    # given a table with rows
    world = TableWorld()
    three_replicas(world)
    table = world.create(1, log_table("events", partitions=2))
    world.append(table, rows=5)
    # when all nodes die and come back
    for number in (1, 2, 3):
        world[number].crash()
    for number in (1, 2, 3):
        world[number].start()
    # then the rows are there, and more can come
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_node_that_was_down_when_a_table_was_made_joins_in() -> None:
    # given a node that is down, but not taken for gone
    world = TableWorld(metastore_config=MetastoreConfig(lease_ms=60_000, request_timeout_ms=3_000))
    three_replicas(world)
    down = next(n for n in (1, 2, 3) if n != world.wait_leader().number)
    world[down].crash()
    # when a table is made, and has rows
    maker = world.wait_leader().number
    table = world.create(maker, log_table("events"))
    assert stable(world[maker])[table, 0].nodes == (1, 2, 3)
    world.append(table, rows=3)
    # then it has its copy as soon as it is back
    world[down].start()
    world.run_until(lambda: world[down].tables_ is not None and copies(world[down], table) == [0])
    world.run_until(lambda: world[down].tables.get(table, 0).view.end == 3)


def test_a_copy_of_a_dropped_table_is_started_again_from_its_disk() -> None:
    # given a table with rows that was dropped, and may still be read as of earlier times
    world = TableWorld(nodes=1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=3)
    world.execute(1, DropTable(name="events"))
    # when its node starts again
    world[1].crash()
    world[1].start()
    # then its copy is there
    world.run_until(lambda: world[1].tables_ is not None and bool(world[1].tables.of(table)))
    world.run_until(lambda: world[1].tables.get(table, 0).group.ready)
    assert world[1].tables.get(table, 0).view.end == 3


@pytest.mark.slow
def test_no_copy_is_made_of_a_table_that_was_dropped_meanwhile() -> None:
    # given a node that is down while a table is made and dropped
    world = TableWorld(metastore_config=MetastoreConfig(lease_ms=60_000, request_timeout_ms=3_000))
    three_replicas(world)
    down = next(n for n in (1, 2, 3) if n != world.wait_leader().number)
    world[down].crash()
    maker = world.wait_leader().number
    table = world.create(maker, log_table("events"))
    world.execute(maker, DropTable(name="events"))
    # when it is back, and knows all that
    world[down].start()
    version = world[maker].catalog.latest.version
    world.run_until(
        lambda: world[down].catalogs is not None and world[down].catalog.latest.version == version
    )
    world.run_for(1_000)
    # then it has no copy; unless it heard of the home before it heard of the drop
    for one in world[down].tables.of(table):
        assert one.view.end == 0


# -- homeless -----------------------------------------------------------------------------------


def test_a_table_that_no_node_may_hold_waits_for_one(caplog: pytest.LogCaptureFixture) -> None:
    # given a zone whose filter matches nobody
    world = TableWorld(nodes=1)
    world.execute(1, CreateZone(name="fast", replicas=1, partitions=1, node_filter="rack = r9"))
    # when a table is made there
    with caplog.at_level(logging.WARNING):
        table = world.create(1, log_table("events", zone="fast"))
    # then it has no assignments, which is said, and nothing else is wrong
    assert stable(world[1]) == {}
    assert "public.events has no assignments" in world[1].placement.problem
    assert "rack = r9" in world[1].placement.problem
    assert any("no assignments" in record.message for record in caplog.records)
    world.create(1, log_table("others"))
    # when a node comes that matches
    node = world.nodes[2] = world.new_node(2)
    node.rack = "r9"
    node.start(join=world[1].address)
    # then it has the table
    world.run_until(lambda: world[1].placement.routes(table, 0) == (2,))
    world.run_until(lambda: world[2].tables_ is not None and copies(world[2], table) == [0])
    assert world[1].placement.problem == ""
    assert world.append(table).first == 0


def test_a_filter_that_is_changed_gives_a_table_its_home() -> None:
    # given a table without a home
    world = TableWorld(nodes=1)
    world.execute(1, CreateZone(name="fast", replicas=1, partitions=1, node_filter="rack = r9"))
    table = world.create(1, log_table("events", zone="fast"))
    # when its zone takes any node
    world.execute(1, AlterZone(name="fast", node_filter=""))
    # then it has one
    world.run_until(lambda: copies(world[1], table) == [0])
    assert world[1].placement.problem == ""


# -- what can go wrong --------------------------------------------------------------------------


def test_a_copy_that_can_not_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a disk without room for a group
    world = TableWorld(nodes=1)
    create = world[1].groups.create  # type: ignore[union-attr]
    failures: list[object] = []

    def full(*args: object, **more: object) -> object:
        if len(failures) < 2:
            failures.append(args)
            raise DiskFull("groups")
        return create(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(world[1].groups, "create", full)
    made = world[1].catalog.execute(log_table("events"))
    # when a table is made
    world.run_until(lambda: bool(failures))
    table = next(iter(world[1].catalog.latest.tables))
    # then that is said, and tried again until there is
    assert f"partition 0 of table {table} can't be started here" in world[1].placement.problem
    world.wait(made)
    world.run_until(lambda: copies(world[1], table) == [0])
    assert world[1].placement.problem == ""


def test_a_node_that_is_cut_off_gets_its_copies_when_it_is_back() -> None:
    # given a follower that is cut off when a table is made
    world = TableWorld(metastore_config=MetastoreConfig(lease_ms=60_000, request_timeout_ms=3_000))
    three_replicas(world)
    leader = world.wait_leader().number
    away = next(n for n in (1, 2, 3) if n != leader)
    world.isolate(away)
    world.run_for(50)
    table = world.create(leader, log_table("events", partitions=4))
    assert copies(world[away], table) == []
    # when it is back
    world.heal()
    # then it has them
    world.run_until(lambda: copies(world[away], table) == [0, 1, 2, 3])


# -- nodes that are down --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_that_is_made_while_a_node_is_down_has_its_copy_when_it_is_back() -> None:
    # given three nodes, of which one is down, and known to be
    world = TableWorld(nodes=3)
    three_replicas(world)
    world[3].crash()
    world.run_until(lambda: world[1].here.topology.find(3) is None)
    # when a table is made
    table = world.create(1, log_table("events", partitions=2))
    world.append(table)
    # then it is to be on all three, and works on two
    assert [one.nodes for one in stable(world[1]).values()] == [(1, 2, 3)] * 2
    # and when the third is back it has its copies, with all rows
    world[3].restart()
    world.run_until(lambda: world[3] in world.up and copies(world[3], table) == [0, 1])
    end = world.leading(table).view.end
    world.run_until(lambda: world[3].tables.of(table)[0].view.end == end)


def baselines(world: TableWorld) -> int:
    """How many events zones have had: each is a version of a zone's baseline."""
    world.everywhere()
    state = world.up[0].metastore.state
    found = state.find_range(b"zone.", b"zone/")
    return sum(one.record.version for one in found if one.key.endswith(b".baseline"))


def shares(world: TableWorld, table: TableId) -> dict[int, int]:
    """How many copies of a table are assigned to each node."""
    assigned = [
        node
        for (one, _), found in stable(world.up[0]).items()
        if one == table
        for node in found.nodes
    ]
    return {node.number: assigned.count(node.number) for node in world.up}


def away(world: TableWorld, number: int) -> None:
    """Stop a node, until others know that it is down."""
    world[number].crash()
    world.run_until(lambda: world.up[0].here.topology.find(number) is None)


def back(world: TableWorld, number: int) -> None:
    """Start it again, until others know that it is up, and for as long as a zone waits for it."""
    world[number].restart()
    world.run_until(lambda: world.up[0].here.topology.find(number) is not None)
    world.run_until(lambda: world[number] in world.up)
    world.run_for(SCALE_UP_MS + 2_000)


def three_in_the_zone() -> TableWorld:
    """Three nodes that the zone counts in, with one replica of each partition."""
    world = TableWorld(nodes=3)
    world.execute(1, AlterZone(name="default", replicas=1))
    world.run_for(SCALE_UP_MS + 2_000)
    return world


@pytest.mark.slow
def test_a_node_that_was_away_when_a_table_was_made_gets_its_share_when_it_is_back() -> None:
    # given three nodes, and a table that is made while one of them is down
    world = three_in_the_zone()
    away(world, 3)
    table = world.create(1, log_table("events", partitions=6))
    world.append(table)
    assert shares(world, table) == {1: 3, 2: 3}
    before = baselines(world)
    # when it is back
    back(world, 3)
    # then it has as many as the others, by one event
    world.run_until(lambda: shares(world, table) == {1: 2, 2: 2, 3: 2})
    assert baselines(world) == before + 1
    # and when it goes and comes again, nothing moves
    away(world, 3)
    back(world, 3)
    assert baselines(world) == before + 1
    assert shares(world, table) == {1: 2, 2: 2, 3: 2}


@pytest.mark.slow
def test_a_zone_is_looked_at_again_only_when_something_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a zone with a table, and a node that was away for a while
    world = three_in_the_zone()
    world.create(1, log_table("events", partitions=6))
    away(world, 3)
    back(world, 3)
    leader = world[world.wait_leader().number]
    read: list[int] = []
    looked: list[int] = []

    def counted(value: Buffer) -> Topology:
        topology = decode_topology(value)
        read.append(topology.version)
        return topology

    def looks(zone: Zone, *rest: Any) -> Any:
        looked.append(zone.id)
        return look_back(zone, *rest)

    zones = leader.placement.zones
    look_back = zones._look_back
    monkeypatch.setattr("lowmark.placement.zones.decode_topology", counted)
    monkeypatch.setattr(zones, "_look_back", looks)
    # when its coordinator looks at it again and again, then it reads and goes through nothing
    for _ in range(3):
        zones.look_soon()
        world.run_for(10)
    assert (read, looked) == ([], [])
    # and when a node goes and comes once more, then it reads what is new, once
    away(world, 3)
    back(world, 3)
    assert read == sorted({*read})
    assert read[0] == leader.here.topology.version - len(read) + 1
    assert looked


@pytest.mark.slow
@pytest.mark.release  # shorter relative: the test above it whose node gets its share
def test_a_coordinator_that_is_new_sees_to_a_node_that_is_back() -> None:
    # given a node that is back, for which the zone waits
    world = three_in_the_zone()
    away(world, 3)
    table = world.create(1, log_table("events", partitions=6))
    world[3].restart()
    world.run_until(lambda: world.up[0].here.topology.find(3) is not None)
    world.run_until(lambda: world[3] in world.up)
    # when another node coordinates
    leader = world.wait_leader()
    other = next(node.number for node in world.up if node.number != leader.number)
    leader.metastore.group.transfer(other)
    world.run_until(lambda: world[other].metastore.coordinates)
    # then it gets its share all the same
    world.run_until(lambda: shares(world, table) == {1: 2, 2: 2, 3: 2})


@pytest.mark.slow
@pytest.mark.release  # shorter relative: the test above it whose node gets its share
def test_a_node_gets_its_share_though_the_history_of_its_absence_goes_meanwhile() -> None:
    # given a node that is back, for which the zone waits
    world = three_in_the_zone()
    away(world, 3)
    table = world.create(1, log_table("events", partitions=6))
    world[3].restart()
    world.run_until(lambda: world.up[0].here.topology.find(3) is not None)
    world.run_for(500)
    # when the metastore forgets what was before
    metastore = world.wait_leader().metastore
    world.wait(metastore.compact(metastore.state.latest))
    # then it gets its share all the same
    world.run_until(lambda: world[3] in world.up)
    world.run_until(lambda: shares(world, table) == {1: 2, 2: 2, 3: 2})


@pytest.mark.slow
@pytest.mark.release  # shorter relative: the test below it, in which no table is made
def test_a_node_that_was_away_but_was_counted_in_moves_nothing_when_it_is_back() -> None:
    # given a zone that is not even, and a table that counts in a node that is down
    world = three_in_the_zone()
    for number in range(5):
        world.create(1, log_table(f"t{number}"))
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_until(lambda: all(len(one.nodes) == 3 for one in stable(world[1]).values()))
    away(world, 3)
    world.create(1, log_table("events", partitions=4))
    before = baselines(world)
    # when it is back
    back(world, 3)
    # then that is no event
    assert baselines(world) == before


@pytest.mark.slow
def test_a_node_that_was_away_while_no_table_was_made_moves_nothing_when_it_is_back() -> None:
    # given tables of one partition, so that a zone may be uneven
    world = three_in_the_zone()
    tables = [world.create(1, log_table(f"t{number}")) for number in range(7)]
    before = baselines(world), [shares(world, table) for table in tables]
    # when a node goes and comes
    away(world, 3)
    back(world, 3)
    # then they stay where they are
    assert (baselines(world), [shares(world, table) for table in tables]) == before


@pytest.mark.slow
def test_a_table_is_put_on_no_more_nodes_that_are_down_than_it_can_do_without() -> None:
    # given four nodes, of which two are down, and a zone of two of each
    world = TableWorld(nodes=4)
    for number in (2, 4):
        world[number].crash()
        world.run_until(lambda number=number: world[1].here.topology.find(number) is None)  # type: ignore[misc]
    world.execute(1, AlterZone(name="default", replicas=4))
    # when a table is made
    table = world.create(1, log_table("events"))
    # then those that are up are a majority, and it takes rows at once
    (found,) = stable(world[1]).values()
    assert len(found.nodes) == 3
    assert {1, 3} < set(found.nodes)
    assert world.append(table).first == 0
