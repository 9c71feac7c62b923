"""Rounds that cut the catalog's history, on three nodes in virtual time."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from lowmark.catalog import (
    AddColumns,
    AlterZone,
    CreateIndex,
    DropIndex,
    DropTable,
    NewColumn,
    TableId,
    parse_type,
)
from lowmark.ledger import RunRecord, run_key
from lowmark.metastore import Do, Remove
from lowmark.placement.assignments import PENDING, Assignments, PartitionId
from lowmark.runtime import NoHandles
from lowmark.table import Partition, encode_batch
from lowmark.table.commands import Begin
from lowmark.upkeep import Round
from lowmark.upkeep.catalog_compaction import OLD_HOLDER_MS, ROUNDS_KEPT
from lowmark.upkeep.catalog_minimums import Active
from placement.test_moves import join
from table.world import SETTINGS, TableNode, TableWorld, log_table

LOOKS = replace(SETTINGS, watermark_interval_ms=500)


def column(name: str, table: str = "t") -> AddColumns:
    return AddColumns(table=table, columns=(NewColumn(name=name, type=parse_type("string")),))


def world_with(versions: int = 6, **more: object) -> tuple[TableWorld, TableId]:
    """Three nodes that look after themselves, a table with two partitions, and versions of it."""
    world = TableWorld(settings=LOOKS, **more)  # type: ignore[arg-type]
    table = world.create(1, log_table("t", partitions=2))
    world.append(table)
    alter(world, versions)
    return world, table


def alter(world: TableWorld, times: int = 1) -> int:
    """Make versions; gives the last one."""
    for _ in range(times):
        node = world.up[0]
        world.execute(node.number, column(f"c{node.catalog.latest.version}"))
    return world.up[0].catalog.latest.version


def coordinator(world: TableWorld) -> TableNode:
    return world[world.wait_leader().number]


def earliest(world: TableWorld) -> set[int]:
    return {node.catalog.earliest.version for node in world.up}


def wait_cut(world: TableWorld, version: int) -> None:
    """Until the history of every node begins with a version."""
    world.run_until(lambda: earliest(world) == {version}, timeout_ms=120_000)


def by_hand(world: TableWorld, number: int | None = None, *, dry_run: bool = False) -> Round:
    """What an operator gets; the watermark is as far as it can be."""
    node = coordinator(world) if number is None else world[number]
    world.wait(coordinator(world).watermark.advance())
    return world.wait(node.upkeep.catalog.compact(dry_run=dry_run), timeout_ms=120_000)


def let_pass(world: TableWorld) -> None:
    """Until the watermark is past all that was done before."""
    world.run_for(1_200)


# -- the way it goes ------------------------------------------------------------------------------


@pytest.mark.slow
def test_history_goes_by_itself_when_the_watermark_is_past_it() -> None:
    # given versions that the watermark has not passed
    world, table = world_with()
    latest = world[1].catalog.latest
    # when time passes, and nothing else happens
    wait_cut(world, latest.version)
    # then each node has the latest version alone, in force since the same time
    assert {node.catalog.earliest.activates_at for node in world.up} == {latest.activates_at}
    assert {len(node.catalog.history) for node in world.up} == {1}
    # and the log has no entry for it: its groups rest, and their snapshots cover all there is
    for node in world.up:
        for one in node.tables.of(table):
            assert one.state.begins == ()
            assert one.published > latest.activates_at


@pytest.mark.slow
def test_a_group_that_is_written_to_all_the_time_publishes_by_an_entry() -> None:
    world, table = world_with()
    latest = world[1].catalog.latest.version
    # when rows come every now and then, so that the group never rests
    for _ in range(400):
        world.leading(table).append(encode_batch(bytes(10), rows=1, schema=1))
        world.run_for(50)
        if earliest(world) == {latest}:
            break
    # then the history goes all the same
    assert earliest(world) == {latest}
    # and each copy has the one entry that its leader has proposed
    copies = [one for node in world.up for one in node.tables.of(table) if one.number == 0]
    assert len({one.state.begins for one in copies}) == 1
    assert len(copies[0].state.begins) == 1


@pytest.mark.slow
def test_nothing_is_asked_and_nothing_written_where_there_is_no_version_to_cut() -> None:
    # given a history that was cut
    world, _ = world_with()
    wait_cut(world, world[1].catalog.latest.version)
    node = coordinator(world)
    last, entries = node.upkeep.catalog.last, _entries(world)
    # when the watermark moves on, many times
    world.run_for(20_000)
    # then there was no further round, and no group has an entry more
    assert node.upkeep.catalog.last is last
    assert _entries(world) == entries


def _entries(world: TableWorld) -> dict[tuple[int, int, int], int]:
    return {
        (node.number, one.table, one.number): one.group.last_index()
        for node in world.up
        for one in node.tables.all()
    }


@pytest.mark.slow
def test_an_operator_gets_the_cut_at_once_at_any_node() -> None:
    world, _ = world_with()
    let_pass(world)
    other = next(n.number for n in world.up if n.number != coordinator(world).number)
    # when a node is asked that does not coordinate
    made = by_hand(world, other)
    # then it is done, and all that was asked is said
    latest = world[1].catalog.latest.version
    assert (made.version, made.latest, made.nodes) == (latest, latest, 3)
    assert made.cut == made.version - made.earliest > 0
    assert made.trigger == "by hand"
    wait_cut(world, latest)
    # and again there is nothing to do
    again = by_hand(world, other)
    assert (again.cut, again.holders) == (0, ())


@pytest.mark.slow
def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    world, _ = world_with()
    let_pass(world)
    node = coordinator(world)
    before = node.catalog.earliest.version, node.metastore.state.latest, _entries(world)
    world.wait(node.watermark.advance())
    revision = node.metastore.state.latest
    made = world.wait(node.upkeep.catalog.compact(dry_run=True))
    assert made.dry_run
    assert made.held
    assert node.metastore.state.latest == revision
    assert (node.catalog.earliest.version, _entries(world)) == (before[0], before[2])
    assert all(one.published == 0 for one in node.tables.all())


@pytest.mark.slow
def test_rounds_are_written_down_when_they_are_news_and_only_some_are_kept() -> None:
    world, _ = world_with(versions=2)
    let_pass(world)
    by_hand(world)
    node = coordinator(world)
    for _ in range(3):
        alter(world)
        let_pass(world)
        by_hand(world)
    rounds = node.upkeep.catalog.rounds()
    assert [one.number for one in rounds] == list(range(1, len(rounds) + 1))
    cuts = [one for one in rounds if one.cut]
    assert [one.version for one in cuts][-1] == node.catalog.latest.version
    assert all(one.took_us >= 0 and one.nodes == 3 for one in cuts)
    # all nodes know the same
    world.everywhere()
    assert all(one.upkeep.catalog.rounds() == rounds for one in world.up)
    # and the oldest go
    for number in range(len(rounds) + 1, ROUNDS_KEPT + 4):
        made = rounds[-1]
        noted = world.wait(node.upkeep.catalog._note(replace(made, took_us=number)))
        assert noted.number == number
    kept = node.upkeep.catalog.rounds()
    assert (len(kept), kept[0].number) == (ROUNDS_KEPT, 4)


@pytest.mark.slow
def test_a_trigger_during_a_round_begins_one_more_after_it() -> None:
    world, _ = world_with()
    let_pass(world)
    node = coordinator(world)
    world.wait(node.watermark.advance())
    # when three are asked for at once, and the watermark moves as well
    first = node.upkeep.catalog._request("by hand", dry_run=False)
    second = node.upkeep.catalog._request("by hand", dry_run=False)
    node.upkeep.catalog._trigger("low watermark")
    node.upkeep.catalog._trigger("low watermark")
    # then one is made at a time, and no more than are needed
    assert len(node.upkeep.catalog._waiting) == 2
    one, two = world.wait(first), world.wait(second)
    assert one.began_ms <= two.began_ms
    world.run_for(1_000)
    assert node.upkeep.catalog._waiting == []


def test_whatever_ends_its_watch_a_move_of_the_watermark_begins_a_round() -> None:
    # given nodes that can't read what their watches are about to be told
    world, _ = world_with()
    for node in world.up:
        node.metastore._watches.end_all(NoHandles("1.wal", call="read", reason="too many"))
    # when the watermark moves by itself, later
    latest = world[1].catalog.latest.version
    world.run_for(1_000)
    # then the history goes, as ever
    wait_cut(world, latest)


# -- the coordinator ------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_the_coordinator_makes_rounds_and_its_successor_goes_on() -> None:
    world, _ = world_with()
    let_pass(world)
    first = coordinator(world).number
    world.run_until(lambda: world[first].upkeep.catalog.last is not None)
    assert [n.number for n in world.up if n.upkeep.catalog.last is not None] == [first]
    # when it dies before copies have published anything
    world[first].crash()
    second = world.wait_leader(other_than=first).number
    world.run_until(lambda: world[second].upkeep.catalog.last is not None, timeout_ms=60_000)
    # then its successor asks on; the node that is down holds what its copies may need
    assert earliest(world) != {world[second].catalog.latest.version}
    world[first].start()
    wait_cut(world, world[second].catalog.latest.version)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 13, 21])
def test_a_coordinator_that_dies_in_the_middle_of_a_round_leaves_nothing_half_done(
    after: int,
) -> None:
    world, table = world_with(seed=after + 1)
    let_pass(world)
    by_hand(world, dry_run=True)
    node = coordinator(world)
    latest = node.catalog.latest
    # when it dies some turns of the loop into a round
    node.upkeep.catalog.compact()
    world.run_for(after)
    node.crash()
    world.wait_leader(other_than=node.number)
    node.start()
    # then all come to the same, with the times that there were
    wait_cut(world, latest.version)
    assert {one.catalog.earliest.activates_at for one in world.up} == {latest.activates_at}
    # and rows can be written, and nodes started again
    world.append(table)
    world[1].crash()
    world[1].start()
    world.run_until(lambda: world[1].catalogs is not None)
    wait_cut(world, latest.version)


# -- holders, and that the cut comes when they are gone -------------------------------------------


def held(world: TableWorld, version: int, kind: str) -> Round:
    """What an operator is told while something holds a version."""
    made = by_hand(world)
    assert made.version <= version, made
    lowest = [one for one in made.holders if one.version == made.version]
    assert kind in {one.kind for one in lowest}, made.holders
    assert all(one.hint and one.why and one.since_ms for one in lowest)
    return made


@pytest.mark.slow
def test_a_node_that_is_cut_off_holds_all_and_then_nothing() -> None:
    world, _ = world_with()
    let_pass(world)
    first = coordinator(world).number
    other = next(n.number for n in world.up if n.number != first)
    # given a node that hears nothing, but still is in the topology
    world.isolate(other)
    made = world.wait(world[first].upkeep.catalog.compact(dry_run=True), timeout_ms=60_000)
    assert made.version == made.earliest
    assert {one.kind for one in made.holders} & {"no answer", "node down"}
    # when it is heard again
    world.heal()
    wait_cut(world, world[first].catalog.latest.version)


@pytest.mark.slow
def test_a_node_that_is_down_holds_what_its_copies_may_need_until_it_is_back() -> None:
    world, _ = world_with()
    let_pass(world)
    down = next(n.number for n in world.up if n.number != coordinator(world).number)
    world[down].crash()
    node = coordinator(world)
    world.run_until(lambda: len(node.here.topology.nodes) == 2, timeout_ms=60_000)
    # then versions go only below the first one that has the table
    made = held(world, 2, "node down")
    assert any(one.holder.endswith(f"at node n{down}") for one in made.holders)
    latest = alter(world)
    world[down].start()
    wait_cut(world, latest)


@pytest.mark.slow
def test_a_transaction_holds_its_version_until_it_is_over() -> None:
    world, _ = world_with()
    node = world.up[1]
    begin = node.run.clock.now()
    in_force = node.catalog.at_local(begin).version
    active: list[Active] = [Active("transaction 1", begin)]
    node.upkeep.catalog.set_active(lambda: active[0] if active else None)
    latest = alter(world, 3)
    let_pass(world)
    world.run_for(5_000)
    assert earliest(world) == {in_force}
    made = held(world, in_force, "transactions")
    assert made.version == in_force
    # when it is over
    active.clear()
    wait_cut(world, latest)


@pytest.mark.slow
def test_an_index_that_is_registered_holds_its_version_until_it_is_dropped() -> None:
    world, _ = world_with(versions=2)
    version = world.execute(1, CreateIndex(name="i", table="t", columns=("note",))).catalog.version
    latest = alter(world, 3)
    let_pass(world)
    wait_cut(world, version)
    assert held(world, version, "index").version == version
    world.execute(1, DropIndex(name="i"))
    world.run_until(lambda: min(earliest(world)) > latest, timeout_ms=120_000)


def test_a_rebalance_holds_its_version_until_it_is_through() -> None:
    world, table = world_with()
    version = world[1].catalog.latest.version
    node = coordinator(world)
    # given a target that is never reached: no leader looks at it, because moves are paused
    for one in world.up:
        one.placement.moves.paused = True
    key = PartitionId(table, 0).key(PENDING)
    pending = Assignments(node.placement.routes(table, 0), version)
    world.wait(node.metastore.put(key, pending.encode()))
    latest = alter(world, 3)
    let_pass(world)
    wait_cut(world, version)
    assert held(world, version, "rebalance").version == version
    # when it is through
    world.wait(node.metastore.invoke(Do((Remove(key),))))
    wait_cut(world, latest)


def test_replicas_that_were_altered_hold_nothing_once_they_moved() -> None:
    world, table = world_with()
    world.execute(1, AlterZone(name="default", replicas=1))
    world.run_until(
        lambda: all(len(n.placement.routes(table, 0)) == 1 for n in world.up), timeout_ms=120_000
    )
    latest = alter(world, 2)
    wait_cut(world, latest)


def test_a_run_of_compaction_holds_its_version_until_it_is_decided() -> None:
    world, table = world_with()
    node = coordinator(world)
    version = node.catalog.latest.version
    record = RunRecord(
        run="r1", table=table, table_name="t", state="running", began_at_ms=1, catalog=version
    )
    key = run_key(table, "r1")
    world.wait(node.metastore.put(key, msgspec.json.encode(record)))
    latest = alter(world, 3)
    wait_cut(world, version)
    assert held(world, version, "run").version == version
    # when it is done
    done = replace(record, state="done")
    world.wait(node.metastore.put(key, msgspec.json.encode(done)))
    wait_cut(world, latest)


@pytest.mark.slow
def test_a_holder_that_is_older_than_an_hour_is_a_problem() -> None:
    world, _ = world_with()
    node = coordinator(world)
    begin = node.run.clock.now()
    world.up[0].upkeep.catalog.set_active(lambda: Active("transaction 1", begin))
    alter(world, 2)
    world.run_for(5_000)
    assert node.upkeep.catalog.old_holder_ms == OLD_HOLDER_MS == 3_600_000
    assert node.upkeep.problem == ""
    # when it is too old (here, after a second)
    node.upkeep.catalog.old_holder_ms = 1_000
    assert by_hand(world).held
    assert "transaction 1 at node n1 holds the catalog" in node.upkeep.problem


@pytest.mark.slow
def test_a_table_that_is_created_and_dropped_holds_nothing_in_the_end() -> None:
    world, _ = world_with(versions=1)
    for number in range(3):
        name = f"gone{number}"
        world.create(1, log_table(name))
        world.execute(2, DropTable(name=name))
    wait_cut(world, world[1].catalog.latest.version)


@pytest.mark.slow
def test_a_copy_that_rests_on_a_leader_that_was_replaced_publishes_nothing_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lowmark.upkeep.leaders.MOVES_MAX", 0)  # leaders stay where they are put
    # given a group at rest whose history was cut
    world, table = world_with()
    wait_cut(world, world[1].catalog.latest.version)
    node = coordinator(world)

    def copies() -> dict[int, Partition]:
        return {one.number: one.tables.get(table, 0) for one in world.up}

    def leads(number: int) -> bool:
        return copies()[number].group.ready

    copies()[node.number].group.campaign()
    world.run_until(lambda: leads(node.number))
    world.run_until(lambda: all(one.group.resting.resting for one in copies().values()))
    after, left_out = (one.number for one in world.up if one is not node)
    # when its leader hands over to a node that the third one can't hear
    world.network.cut([world[after].address], [world[left_out].address])
    copies()[node.number].group.transfer(after)
    world.run_until(lambda: leads(after))
    assert copies()[left_out].group.resting.resting
    # and a transaction writes a row, and is over
    begin = world[after].run.clock.now()
    needed = node.catalog.at_local(begin)
    world.wait(copies()[after].append(encode_batch(bytes(10), rows=1, schema=1)))
    row = copies()[after].group.last_index()
    # and the versions after it were made long ago, so that all copies may publish
    alter(world, 2)
    let_pass(world)
    for _ in range(4):
        world.wait(node.watermark.advance())
        world.wait(node.upkeep.catalog._request("by hand", dry_run=False))
        world.run_for(world.config.election_ms)
    # then the copy that has not got the row says that it may need its version
    assert copies()[left_out].group.last_index() < row
    assert copies()[left_out].published <= begin
    assert earliest(world) == {needed.version}
    # and when it has got it, the history goes
    world.heal()
    wait_cut(world, node.catalog.latest.version)
    assert copies()[left_out].group.last_index() >= row


@pytest.mark.slow
def test_tables_that_are_made_all_the_time_do_not_keep_what_is_older_than_they_are() -> None:
    # given a table whose versions are old, and a job that makes tables faster than copies publish
    world, _ = world_with()
    old = world[1].catalog.latest.version
    for number in range(40):
        world.create(1, log_table(f"new{number}"))
        world.run_for(100)
        if min(earliest(world)) >= old:
            break
    # then history goes all the same, as far as these tables are younger
    assert min(earliest(world)) >= old


# -- what a restart finds -------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_published_by_an_entry_is_known_again_after_a_restart() -> None:
    world, table = world_with()
    for _ in range(400):
        world.leading(table).append(encode_batch(bytes(10), rows=1, schema=1))
        world.run_for(50)
        copies = [one for node in world.up for one in node.tables.of(table) if not one.number]
        if all(one.state.begins and one.published for one in copies):
            break
    before = {node.number: node.tables.get(table, 0).published for node in world.up}
    assert all(before.values())
    for number in (1, 2, 3):
        world[number].crash()
    for number in (1, 2, 3):
        world[number].start()
    world.run_until(lambda: all(world[n].tables_ is not None for n in (1, 2, 3)))
    world.run_until(lambda: all(world[n].tables.of(table) for n in (1, 2, 3)))
    for number, published in before.items():
        assert world[number].tables.get(table, 0).published >= published


def test_what_no_snapshot_covers_is_not_published_by_any_restart() -> None:
    # given entries with a begin minimum that no snapshot covers
    world, table = world_with()
    copy = world.leading(table)
    world.run_until(lambda: copy.group.version >= 2)
    world.wait(copy.ask(Begin(copy.state.closed)))
    world.run_until(lambda: all(node.tables.get(table, 0).state.begins for node in world.up))
    assert all(node.tables.get(table, 0).published == 0 for node in world.up)
    # when all start anew, and replay it
    for number in (1, 2, 3):
        world[number].crash()
        world[number].start()
    world.run_until(lambda: all(world[n].tables_ is not None for n in (1, 2, 3)))
    world.run_until(
        lambda: all(
            world[n].tables.of(table) and world[n].tables.get(table, 0).state.begins
            for n in (1, 2, 3)
        )
    )
    # then it is still not published
    assert all(world[n].tables.get(table, 0).published == 0 for n in (1, 2, 3))


def test_a_node_replays_its_log_without_the_versions_that_were_cut() -> None:
    # given rows that were written while each of several versions was in force
    world = TableWorld()
    table = world.create(1, log_table("t"))
    for _ in range(5):
        world.append(table, rows=3)
        alter(world)
    latest = world[1].catalog.latest.version
    view = world.leading(table).view
    world.run_until(lambda: all(n.tables.get(table, 0).view.end == view.end for n in world.up))
    # and a history that was cut further than any round would: no copy has published anything
    world.run_for(200)
    assert world.wait(coordinator(world).catalog.compact(latest))
    wait_cut(world, latest)
    copy = world[2].tables.get(table, 0)
    assert (copy.published, copy.group.log.row.snapshot_index) == (0, 0)
    # when a node starts again, and replays all of its log
    world[2].crash(killed=True)
    world[2].start()
    world.run_until(lambda: world[2].tables_ is not None and bool(world[2].tables.of(table)))
    world.run_until(lambda: world[2].tables.get(table, 0).view.end == view.end)
    # then it has all rows, by their schema versions: a partition's machine asks no catalog
    again = world[2].tables.get(table, 0).view
    assert (again.start, again.end) == (view.start, view.end)
    assert [*again.columns.schema[: again.count]] == [*view.columns.schema[: view.count]]
    wait_cut(world, latest)


def test_a_watermark_below_the_earliest_version_is_raised_to_it() -> None:
    # given a history that was cut further than the watermark, as no round would
    world = TableWorld()
    world.create(1, log_table("t"))
    latest = alter(world, 3)
    world.run_for(200)
    node = coordinator(world)
    assert world.wait(node.catalog.compact(latest))
    wait_cut(world, latest)
    assert node.watermark.current < node.catalog.earliest.activates_at
    # when the coordinator looks
    world.look()
    # then history begins with the catalog's
    assert node.watermark.current >= node.catalog.earliest.activates_at


@pytest.mark.slow
def test_a_new_node_finds_the_history_as_it_was_cut() -> None:
    world, _ = world_with()
    latest = world[1].catalog.latest
    wait_cut(world, latest.version)
    join(world, 4)
    wait_cut(world, latest.version)
    assert world[4].catalog.earliest.activates_at == latest.activates_at
