"""The metastore's majority is lost: it goes on from one node's directory, and the others follow."""

from __future__ import annotations

from random import Random

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.group import reset_members
from lowmark.log import Log
from lowmark.metastore import GROUP, find_identity, load_identity
from lowmark.metastore.identity import CATCHING_UP, DUE
from lowmark.placement.assignments import LINEAGE_KEY, METASTORE, Keys, PartitionId
from lowmark.placement.writes import local_keys
from lowmark.runtime.sim import SimNode, sim_runtime
from placement.test_moves import holders, stable
from table.world import TableNode, TableWorld, log_table


def reset_directory(node: TableNode, *, turns: int | None = None) -> None:
    """As `lowmark meta reset` does in the directory of a node that is down; with `turns`, power is
    cut after this many turns of the loop.
    """
    assert not node.up
    loop = node.sim_node = node.clock.restarted()
    runtime = sim_runtime(node.life, disk=node.disk, loop=loop, network=node.world.network)
    log = Log.open(runtime, node.world.log_config)
    done: list[object] = []
    reset_members(log.group(GROUP), node.number, on_done=done.append)
    if turns is None:
        node.world.run_until(lambda: bool(done))
        assert done == [None]
        log.close()
        loop.crash()
        return
    left = turns

    def over() -> bool:
        nonlocal left
        left -= 1
        return left < 0 or bool(done)

    node.world.run_until(over)
    loop.crash()
    node.disk = node.disk.crashed(Random(f"{node.world.seed} {turns}"))


def keys(world: TableWorld) -> Keys:
    return local_keys(world.wait_leader().metastore, METASTORE)


def start_again(world: TableWorld) -> list[int]:
    """Start those that have to be, as `lowmark serve` does; which these were."""
    again = [n for n, node in world.nodes.items() if node.up and node.here.renewed is not None]
    for number in again:
        node = world[number]
        assert isinstance(node.sim_node, SimNode)
        node.crash(killed=True)
        node.start()
    return again


def run_until_members(world: TableWorld, voters: set[int], *, timeout_ms: float = 120_000) -> None:
    """Until these vote and nothing is under way; nodes that have to be started again are."""

    def there() -> bool:
        start_again(world)
        leader = world.leader()
        if leader is None or not all(
            node.here.ready.done for node in world.nodes.values() if node.up
        ):
            return False
        found = local_keys(leader.metastore, METASTORE)
        members = leader.metastore.group.members()
        return (
            found.stable is not None
            and found.pending is None
            and set(found.stable.nodes) == voters == members.voters
        )

    world.run_until(there, timeout_ms=timeout_ms)


@pytest.fixture
def world() -> TableWorld:
    """Five nodes, three of which vote in the metastore, with a table on all of them."""
    world = TableWorld(nodes=5)
    world.execute(1, AlterZone(name="default", replicas=5))
    world.run_for(8_000)
    return world


def table_of(world: TableWorld) -> TableId:
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    assert stable(world, table) == (1, 2, 3, 4, 5)
    return table


def lose(world: TableWorld, *numbers: int) -> None:
    for number in numbers:
        world[number].crash()
    world.run_for(5_000)


@pytest.mark.slow
def test_followers_get_new_copies_and_tables_are_as_they_were(world: TableWorld) -> None:
    # given that two of three voters are lost, and the third one is stopped
    table = table_of(world)
    latest = world.wait_leader().metastore.state.latest
    lose(world, 2, 3)
    world[1].crash()
    # when its directory is reset, and it is started
    reset_directory(world[1])
    world[1].start()
    run_until_members(world, {1, 4, 5})
    # then the keys say what is: the lost nodes follow if they come back, are down, and are drained
    assert keys(world).stable is not None
    assert keys(world).stable.learners == (2, 3)  # type: ignore[union-attr]
    leader = world.wait_leader()
    assert leader.metastore.state.latest > latest
    assert {n.number for n in leader.here.topology.nodes} == {1, 4, 5}
    assert {n.number for n in leader.here.nodes()} == {1, 2, 3, 4, 5}
    assert world[1].placement.zones.draining() == {2, 3}
    # all three have the same metastore, and know it
    world.everywhere()
    assert {world[n].metastore.lineage for n in (1, 4, 5)} == {leader.metastore.lineage}
    entry = leader.metastore.get_local(LINEAGE_KEY)
    assert entry is not None
    assert int(entry.value) == leader.metastore.lineage > 0
    for number in (4, 5):
        identity = load_identity(world[number].disk)
        assert identity is not None
        assert identity.renewing == ""
    # and the table has its rows, on all that are left, and takes others: three of five are up
    assert world.append(table).first == 5
    world.run_until(lambda: stable(world, table) == (1, 4, 5), timeout_ms=120_000)


@pytest.mark.slow
def test_partitions_that_lost_their_majority_too_are_reset_after_it(world: TableWorld) -> None:
    # given that only one node of five is left
    table = table_of(world)
    lose(world, 2, 3, 4, 5)
    world[1].crash()
    reset_directory(world[1])
    world[1].start()
    run_until_members(world, {1})
    # voters that are lost are drained; those that only followed are down
    assert world[1].placement.zones.draining() == {2, 3}
    # when its partition is reset, as soon as the leases of all others are over
    world.run_until(lambda: len(world[1].here.topology.nodes) == 1)
    world.run_for(5_000)
    partition = PartitionId(table, 0)
    done = world.wait(
        world[1].placement.resetting.reset(partition, node=1, lost=[2, 3, 4, 5]),
        timeout_ms=120_000,
    )
    # then all rows are there, and a new node gets a replica, and votes
    assert done.rows == 5
    assert world.append(table).first == 5
    world.nodes[6] = world.new_node(6)
    for number in (2, 3, 4, 5):
        del world.nodes[number]
    world[6].start(join=world[1].address)
    run_until_members(world, {1, 6})
    world.run_until(lambda: stable(world, table) == (1, 6), timeout_ms=120_000)
    assert holders(world, table, 0) == {1, 6}


@pytest.mark.slow
def test_former_voters_that_come_back_get_new_copies(world: TableWorld) -> None:
    # given a metastore that was reset without two of its voters, and written to since
    table = table_of(world)
    lose(world, 2, 3)
    world[1].crash()
    reset_directory(world[1])
    world[1].start()
    run_until_members(world, {1, 4, 5})
    world.wait(world[1].metastore.put(b"t.since", b"v"))
    # when both come back after all: they are a majority of the metastore as it was
    world[2].start()
    world[3].start()
    seen: set[int] = set()

    def back() -> bool:
        seen.update(start_again(world))
        up = [world[n] for n in (2, 3) if world[n].up]
        return len(up) == 2 and all(
            node.here.ready.done
            and node.here.renewed is None
            and node.metastore.lineage == world[1].metastore.lineage
            and node.metastore.state.find(b"t.since") is not None
            for node in up
        )

    world.run_until(back, timeout_ms=240_000)
    # then they threw their copies away, and follow
    assert seen == {2, 3}
    run_until_members(world, {1, 4, 5})
    # and what they had of the table is given up, or was made anew
    world.run_until(lambda: holders(world, table, 0) == {1, 4, 5}, timeout_ms=240_000)
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_crash_while_the_directory_is_reset_leaves_it_as_it_was_or_reset() -> None:
    found = {turns: reset_with_a_crash(turns) for turns in (0, 1, 2, 3, 4, 6, 8, 12, 20)}
    assert not found[0]
    assert found[20]


def reset_with_a_crash(turns: int) -> bool:
    """Whether it was reset all the same."""
    world = TableWorld(turns + 1, nodes=3)
    table = world.create(1, log_table("events"))
    lose(world, 2, 3)
    world[1].crash()
    reset_directory(world[1], turns=turns)
    world[1].start()
    world.run_for(3_000)
    done = world.leader() is not None
    if not done:
        # as it was: nothing leads, and the operator asks again
        assert world[1].metastore.lineage == 0
        world[1].crash()
        reset_directory(world[1])
        world[1].start()
    run_until_members(world, {1})
    assert keys(world).stable is not None
    assert world[1].catalog.latest.table(table) is not None
    world.run_until(lambda: {n.number for n in world[1].here.topology.nodes} == {1})
    return done


@pytest.mark.slow
@pytest.mark.parametrize("ms", [0, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640])
def test_a_crash_soon_after_the_first_start_is_made_good_by_the_next(ms: int) -> None:
    # given a directory that was reset
    world = TableWorld(ms + 1, nodes=3)
    lose(world, 2, 3)
    world[1].crash()
    reset_directory(world[1])
    # when its node dies before, while or after it writes that down
    world[1].start()
    world.run_for(ms)
    world[1].crash()
    world[1].start()
    # then the next start does
    run_until_members(world, {1})
    assert world[1].placement.zones.draining() == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("ms", [0, 1, 2, 4, 8, 15, 30, 60, 120, 250, 500, 1_000])
def test_a_crash_while_a_copy_is_made_anew(ms: int) -> None:
    # given a follower whose copy is outdated
    world = TableWorld(ms + 1, nodes=4)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    table = world.create(1, log_table("events", partitions=4))
    world.run_for(500)
    held = {n for n in range(4) if 4 in stable(world, table, n)}
    assert held
    lose(world, 2, 3)
    world[1].crash()
    reset_directory(world[1])
    world[1].start()
    world.run_until(lambda: world[4].here.renewed is not None)
    assert world[4].here.problem
    identity = load_identity(world[4].disk)
    assert identity is not None
    assert identity.renewing == DUE
    # when it dies while it gets a new one, again and again
    for life in range(4):
        world[4].crash(killed=life % 2 == 0)
        find_identity(world[4].disk)  # a real node looks at its directory first
        world[4].start()
        world.run_for(ms)
        identity = load_identity(world[4].disk)
        assert identity is not None
        if world[4].here.ready.done:
            assert identity.renewing == ""
            assert world[4].metastore.lineage == world[1].metastore.lineage
        else:
            assert identity.renewing in {DUE, CATCHING_UP}
    # then it has one in the end, and has not given up what it has of tables
    run_until_members(world, {1, 4})
    world.everywhere()
    world.run_for(2_000)
    assert {n for n in range(4) if world[4].tables.has_copy(table, n)} >= held


@pytest.mark.slow
def test_all_voters_are_lost_and_a_follower_goes_on_and_later_another_one(
    world: TableWorld,
) -> None:
    # given that all three voters are lost: a node that only followed has all that they had
    table = table_of(world)
    lose(world, 1, 2, 3)
    world[4].crash()
    reset_directory(world[4])
    world[4].start()
    run_until_members(world, {4, 5})
    first = world[4].metastore.lineage
    assert world[4].placement.zones.draining() == {1, 2, 3}
    # when one of both that vote now is lost, and the metastore is reset once more
    lose(world, 4)
    world[5].crash()
    reset_directory(world[5])
    world[5].start()
    run_until_members(world, {5})
    # then the keys say so, too; and the first one that comes back follows
    assert world[5].metastore.lineage > first
    world.run_until(lambda: world[5].placement.zones.draining() == {1, 2, 3, 4})
    world[4].start()
    run_until_members(world, {4, 5})
    assert world[4].metastore.lineage == world[5].metastore.lineage
    world.run_until(lambda: world[4].catalog.latest.table(table) is not None)
