"""Commands for a partition, given to any node: the one that leads carries them out, once."""

from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.errors import LowmarkError
from lowmark.group import (
    COMMAND_BYTES,
    CopyOutdated,
    Future,
    NotLeader,
    OutcomeUnknown,
    QuarantinedHere,
)
from lowmark.placement.assignments import PartitionId
from lowmark.runtime import DiskFull, HybridTime
from lowmark.table import (
    Appended,
    Bind,
    Bound,
    Change,
    CreateCursor,
    Cursor,
    CursorUnknown,
    DeleteCursor,
    Distant,
    Fence,
    Finish,
    Finished,
    KeepSchemas,
    MoveCursor,
    Outgoing,
    Partition,
    PartitionMachine,
    Producing,
    SchemaNotInForce,
    SchemasKept,
    TakeLease,
    Tick,
    TimeInFuture,
    Trim,
    Trimmed,
    encode_batch,
    group_name,
)
from lowmark.table.forwarding import SERVICE
from table.world import TableNode, TableWorld, log_table, ms

PRODUCER = b"p" * 16
BATCH = encode_batch(b"rows", rows=1, schema=1)


def world_of(nodes: int, seed: int = 1) -> tuple[TableWorld, TableId]:
    """A table with three replicas whose partition leads somewhere, as all copies know."""
    world = TableWorld(seed, nodes=nodes)
    world.execute(1, AlterZone(name="default", replicas=3))
    table = world.create(1, log_table("events"))
    world.everywhere()
    lead = leader(world, table)
    copies = [copy.group for node in world.up for copy in node.tables.of(table)]
    world.run_until(lambda: all(copy.leader == lead for copy in copies))
    return world, table


def leader(world: TableWorld, table: TableId) -> int:
    return world.leading(table).group.node


def followers(world: TableWorld, table: TableId) -> list[TableNode]:
    found = [node for node in world.up if node.tables.of(table)]
    return [node for node in found if node.number != leader(world, table)]


def outsider(world: TableWorld, table: TableId) -> TableNode:
    (found,) = [node for node in world.up if not node.tables.of(table)]
    return found


def way(node: TableNode, table: TableId) -> Partition | Distant:
    return node.tables.way(table, 0)


def batch(text: bytes = b"row") -> Outgoing:
    return Outgoing(text, rows=1, schema=1, change=Change.UPSERT)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["a follower", "a node without a copy"])
def test_a_batch_that_any_node_is_given_is_stored_by_the_leader(where: str) -> None:
    world, table = world_of(4)
    node = followers(world, table)[0] if where == "a follower" else outsider(world, table)
    # when it is given to another node than the leader
    first = world.wait(way(node, table).propose(encode_batch(b"rows", rows=3, schema=1)))
    room = memoryview(bytearray(COMMAND_BYTES) + encode_batch(b"rows", rows=2, schema=1))
    second = world.wait(way(node, table).propose(room, in_place=True))
    # then it has its offsets, and the leader has it
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert [(one.first, one.rows) for one in (first, second)] == [(0, 3), (3, 2)]
    assert world.leading(table).view.end == 5


@pytest.mark.slow
def test_all_outcomes_of_commands_come_back_as_they_are() -> None:
    world, table = world_of(4)
    node = outsider(world, table)
    there = way(node, table)
    assert isinstance(there, Distant)
    for number in range(4):
        world.append(table, rows=number + 1)
    # a cursor, which is a value
    made = world.wait(there.ask(CreateCursor("c", 7, "raw", 2)))
    assert isinstance(made, Cursor)
    assert (made.name, made.offset) == ("c", 2)
    assert world.leading(table).state.cursors["c"] == made
    world.wait(there.ask(MoveCursor("c", 4)))
    # nothing
    assert world.wait(there.ask(Fence(PRODUCER, 1))) is None
    # a lease, and a cut that it holds back
    world.wait(there.ask(TakeLease("l", 1, 3, 60_000, "for a test")))
    cut = world.wait(there.ask(Trim(6, expire=True)))
    assert isinstance(cut, Trimmed)
    here = world.wait(world.leading(table).ask(Trim(6, expire=True)))
    assert isinstance(here, Trimmed)
    assert cut.batches == 2
    assert cut.safe == here.safe
    assert cut.safe.held_by
    # what the machine refuses, by its name
    assert isinstance(world.wait_error(there.ask(DeleteCursor("other"))), CursorUnknown)
    deleted = world.wait(there.ask(DeleteCursor("c")))
    assert isinstance(deleted, Cursor)
    assert deleted.offset == 4


def test_a_control_waits_for_the_next_leader_and_a_batch_does_not() -> None:
    world, table = world_of(3)
    node = followers(world, table)[0]
    # given a leader that is gone without a word
    gone = leader(world, table)
    world[gone].crash()
    # when both are asked of a node that does not know it yet
    moved = way(node, table).propose(encode_batch(b"rows", rows=1, schema=1))
    made = way(node, table).ask(CreateCursor("c", 7, "raw", 0))
    # then the batch is given back to its producer, and the cursor is there with the next leader,
    # unless the one that is gone may have heard of it
    error = world.wait_error(moved)
    assert isinstance(error, NotLeader | OutcomeUnknown) or "asked" in error.message
    try:
        world.wait(made)
    except OutcomeUnknown:
        return
    assert "c" in world.leading(table).state.cursors


def test_what_the_leader_may_have_heard_stays_unknown_when_no_other_one_comes() -> None:
    world, table = world_of(4)
    node = outsider(world, table)
    world.append(table)
    # given a cut that the leader has been asked for, which does no harm twice
    cut = way(node, table).ask(Trim(1, expire=True))
    forwarding = node.tables._forwarding
    assert forwarding is not None
    world.run_until(lambda: any(forwarding._open.values()))
    gone = leader(world, table)
    [[asked]] = forwarding._open.values()
    # when all members die, and the node hears before that that another one leads
    for one in [*world.up]:
        if one is not node:
            world[one.number].crash()
    forwarding.leader_changed(table, 0, gone + 1)
    tries = asked.tries
    # then it looks for another one until its time is up: finding none says nothing of the first
    world.run_until(lambda: asked.tries > tries + 1)
    assert isinstance(asked.error, OutcomeUnknown)
    assert isinstance(world.wait_error(cut), OutcomeUnknown)


def test_a_leader_closes_what_a_log_elsewhere_has_though_it_is_far_ahead() -> None:
    # given a node that follows a log with times of an hour ahead, which the leader has not heard of
    world, table = world_of(3)
    world.run_for(1_500)
    lead = leader(world, table)
    node = world[followers(world, table)[0].number]
    time = node.run.clock.now() + ms(3_600_000)
    assert node.run.clock.follow_log(time)
    assert not world[lead].run.clock.follow(time)
    # when that time is to be closed at once, then the leader asks whether a log has it, and does so
    (copy,) = node.tables.of(table)
    assert world.wait(copy.closed(time)).closed >= time
    # but what no log has, is not closed
    beyond = time + ms(5_000)
    assert isinstance(world.wait_error(copy.closed(beyond)), TimeInFuture)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["the leader", "a follower", "a node without a copy"])
def test_a_producer_does_not_hear_of_a_full_disk_that_one_node_has(where: str) -> None:
    world, table = world_of(4, seed=2)
    full = world[leader(world, table)]
    node = {
        "the leader": full,
        "a follower": followers(world, table)[0],
        "a node without a copy": outsider(world, table),
    }[where]
    producing = Producing(node.run, producer=PRODUCER, timeout_ms=600_000)
    first = [producing.send(way(node, table), batch(b"first"))]
    world.wait(first[0])
    # given a leader whose disk has only its reserve left
    full.disk.capacity_bytes = full.disk._used_bytes + 1_000
    # when rows come
    sent = [producing.send(way(node, table), batch(b"%d" % number)) for number in range(50)]
    # then they are stored, once and in order, by another leader
    assert [world.wait(one).first for one in sent] == list(range(1, 51))
    assert leader(world, table) != full.number
    # and when all are full, that is the answer
    for one in world.up:
        one.disk.capacity_bytes = one.disk._used_bytes + 1_000
    last = producing.send(way(node, table), batch(b"last" * 1_000))
    error = world.wait_error(last)
    assert isinstance(error, DiskFull | OutcomeUnknown)
    assert "no space" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_producer_at_any_node_stores_each_batch_once_while_leaders_die(seed: int) -> None:
    world, table = world_of(4, seed)
    node = outsider(world, table) if seed % 2 else followers(world, table)[0]
    producing = Producing(node.run, producer=PRODUCER, timeout_ms=600_000)
    sent: list[Future[Appended]] = []

    def send(count: int) -> None:
        for _ in range(count):
            sent.append(producing.send(way(node, table), batch(b"%d" % len(sent))))

    # when the node that leads dies, or is cut off, again and again
    for round_ in range(4):
        send(30)
        world.run_for(seed + round_)
        gone = next((n for n in world.up if _leads(n, table) and n is not node), None)
        if gone is not None and round_ % 2:
            world.isolate(gone.number)
        elif gone is not None:
            gone.crash()
        send(30)
        world.run_for(2_000)
        world.heal()
        if gone is not None and gone.tables_ is None:
            gone.restart()
            world.run_until(lambda: all(one.tables_ is not None for one in _all(world)))
    # then each batch has an answer, each has an offset of its own, and in order
    answers = [world.wait(one, timeout_ms=600_000) for one in sent]
    assert [answer.first for answer in answers] == list(range(len(sent)))
    assert world.leading(table).view.end == len(sent)


def _all(world: TableWorld) -> list[TableNode]:
    return [world[number] for number in world.nodes]


def _leads(node: TableNode, table: TableId) -> bool:
    return any(one.group.leads for one in node.tables.of(table))


def test_a_time_of_one_node_is_closed_by_a_leader_whose_clock_is_behind() -> None:
    world, table = world_of(3)
    node = followers(world, table)[0]
    lead = world.leading(table)
    world.append(table)
    # given a time that is ahead of the leader's clock, by less than clocks may differ
    ahead = HybridTime(world[lead.group.node].run.clock.now() + (15 << 16))
    node.run.clock.catch_up(ahead)
    # when a copy at another node is asked to have seen all up to then
    there = way(node, table)
    assert isinstance(there, Partition)
    view = world.wait(there.closed(ahead))
    # then it has, and so has the leader: nothing comes at or below it any more
    assert view.closed >= ahead
    assert world.append(table).time > ahead
    # and what is further ahead is refused
    far = HybridTime(ahead + (60_000 << 16))
    assert isinstance(world.wait_error(there.closed(far)), TimeInFuture)


@pytest.mark.parametrize("how", ["a commit", "an epoch"])
def test_now_at_a_node_without_a_copy_is_after_the_rows_that_it_was_told_of(how: str) -> None:
    # given rows that are staged where the leader's clock is ahead, by less than clocks may differ
    world, table = world_of(4)
    node = outsider(world, table)
    there = way(node, table)
    world.wait(there.propose(encode_batch(b"rows", rows=2, schema=1, transaction=9)))
    world[leader(world, table)].clock.skew_ms += 15
    # when another node has them committed, then what it gives as now is later than they are
    command = (
        Finish(9, commit=True) if how == "a commit" else Bind(b"q" * 16, 1, (9,), 2, keep_ms=60_000)
    )
    done = world.wait(there.ask(command))
    assert isinstance(done, Finished | Bound)
    assert (done.rows, world.leading(table).view.end) == (2, 2)
    assert node.run.clock.now() > done.time


def test_rubbish_of_a_peer_is_refused_and_nothing_is_stored() -> None:
    world, table = world_of(3)
    node = followers(world, table)[0]
    groups = node.groups
    assert groups is not None
    for body in (b"", b"\x00" * 5, b"\x00" * 20, b"\x00" * 20 + b"\x63rubbish"):
        answer = world.wait(groups.calls.ask(leader(world, table), "partition.propose", body))
        assert answer[0] == 2, answer
    assert world.leading(table).view.end == 0


def test_what_is_too_much_on_its_way_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.table.forwarding._WAITING_BYTES_MAX", 1_000)
    world, table = world_of(3)
    node = followers(world, table)[0]
    some = [way(node, table).propose(encode_batch(bytes(600), rows=1, schema=1)) for _ in range(3)]
    errors: list[LowmarkError] = [world.wait_error(one) for one in some[1:]]
    assert all("on their way" in error.message for error in errors)
    assert isinstance(world.wait(some[0]), Appended)
    # and there is room again
    assert isinstance(
        world.wait(way(node, table).propose(encode_batch(bytes(600), rows=1, schema=1))), Appended
    )


@pytest.mark.slow
def test_a_link_that_broke_once_does_not_keep_a_node_from_asking_again() -> None:
    # given a node without a copy, and a leader that has no reason to speak to it
    world, table = world_of(4, 1)
    for seed in range(2, 20):
        if world.wait_leader().number not in {outsider(world, table).number, leader(world, table)}:
            break
        world, table = world_of(4, seed)
    node, lead = outsider(world, table), leader(world, table)
    assert isinstance(world.wait(way(node, table).propose(BATCH)), Appended)
    # when the connection of the two breaks once
    groups = node.groups
    assert groups is not None
    groups.lost(lead, groups.transport.addresses[lead])
    assert not groups.reaches(lead)
    # then it is asked again after a while
    world.run_for(20_000)
    assert isinstance(world.wait(way(node, table).propose(BATCH)), Appended)


def quarantined(one: Partition) -> None:
    one.group.stop(QuarantinedHere(one.group.name, cause="a bad block", alone=False))


def test_a_node_whose_own_copy_has_stopped_carries_commands_to_the_leader() -> None:
    world, table = world_of(3)
    node = followers(world, table)[0]
    (copy,) = node.tables.of(table)
    quarantined(copy)
    producing = Producing(node.run, producer=PRODUCER, timeout_ms=60_000)
    assert world.wait(producing.send(way(node, table), batch())).first == 0
    assert isinstance(world.wait(copy.ask(CreateCursor("c", 7, "raw", 0))), Cursor)


def test_commands_wait_for_the_next_leader_when_the_copy_that_leads_has_stopped() -> None:
    world, table = world_of(3)
    node, lead = followers(world, table)[0], world.leading(table)
    producing = Producing(node.run, producer=PRODUCER, timeout_ms=60_000)
    there = way(node, table)
    ticked = there.ask(Tick())
    stored = producing.send(there, batch())
    quarantined(lead)
    made = there.ask(CreateCursor("c", 7, "raw", 0))
    assert world.wait(ticked) is not None
    assert world.wait(stored).first == 0
    assert isinstance(world.wait(made), Cursor)


def test_a_control_passes_what_is_too_much_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.table.forwarding._WAITING_BYTES_MAX", 1_000)
    world, table = world_of(3)
    node = followers(world, table)[0]
    rows = way(node, table).propose(encode_batch(bytes(900), rows=1, schema=1))
    ticked = way(node, table).ask(Tick())
    assert isinstance(world.wait(rows), Appended)
    assert world.wait(ticked) is not None


@pytest.mark.parametrize("where", ["a follower", "a node without a copy"])
def test_schema_versions_are_refused_from_any_node_and_by_the_next_leader(where: str) -> None:
    world, table = world_of(4)
    node = followers(world, table)[0] if where == "a follower" else outsider(world, table)
    world.wait(way(node, table).propose(BATCH))
    newest = PartitionMachine.newest_version
    world.run_until(lambda: world.leading(table).group.version == newest)
    # when another node than the leader is asked to have versions kept from 2 on
    assert world.wait(way(node, table).ask(KeepSchemas(2))) == SchemasKept(2, least=1)
    # then an old batch is refused wherever it is given, by name
    for one in world.up:
        assert isinstance(world.wait(way(one, table).propose(BATCH)), SchemaNotInForce)
    # and by the next leader, too
    world[leader(world, table)].crash()
    next_one = world.leading(table)
    assert isinstance(world.wait(next_one.propose(BATCH)), SchemaNotInForce)
    new = encode_batch(b"rows", rows=1, schema=2)
    assert isinstance(world.wait(next_one.propose(new)), Appended)


# -- resets ---------------------------------------------------------------------------------------


def reset(world: TableWorld, table: TableId) -> tuple[TableNode, list[TableNode], int]:
    """As an operator does who is wrong: a follower goes on alone, while the others are alive."""
    alone, other = followers(world, table)
    left = [world[leader(world, table)], other]
    alone.placement.moves.close()  # else it would add the others as members again
    partition = PartitionId(table, 0)
    copy, _ = alone.tables.reset(*partition, listener=alone.placement.moves.listener(partition))
    world.run_until(lambda: copy.group.ready)
    return alone, left, copy.lineage


def test_a_command_of_who_has_seen_a_reset_goes_past_those_that_it_left_behind() -> None:
    # given a partition that was reset while its majority is alive
    world, table = world_of(4)
    alone, left, lineage = reset(world, table)
    out = outsider(world, table)

    def cursors(node: TableNode) -> set[str]:
        return {*node.tables.get(table, 0).state.cursors}

    # when a node without a copy passes on what a caller asks that has seen the reset
    for number in range(3):  # whichever is asked first
        way = out.tables.way(table, 0, at_least=lineage)
        world.wait(way.ask(CreateCursor(f"c{number}", 1, "raw", 0)))
        out.tables.lineages._known = {}
    # then it is done where the partition was reset, and nowhere else
    assert cursors(alone) == {f"c{number}" for number in range(3)}
    assert not any(cursors(node) for node in left)
    # and who has a copy that was left behind refuses it
    for node in left:
        with pytest.raises(CopyOutdated):
            node.tables.way(table, 0, at_least=lineage)
    # when the node has heard of the reset by an answer, then it is a caller itself
    world.wait(out.tables.way(table, 0, at_least=lineage).ask(CreateCursor("c3", 1, "raw", 0)))
    assert out.tables.lineages.of(group_name(table, 0)) == lineage
    out.tables.forget_ways(table)
    for number in range(4, 6):
        world.wait(out.tables.way(table, 0).ask(CreateCursor(f"c{number}", 1, "raw", 0)))
        out.tables._forwarding.forget(table)  # type: ignore[union-attr]
    assert cursors(alone) == {f"c{number}" for number in range(6)}


def test_a_node_of_an_earlier_release_is_asked_unless_a_reset_is_known() -> None:
    # given nodes that have no such service as says lineages
    world, table = world_of(4)
    out = outsider(world, table)
    for node in world.up:
        if node is not out:
            assert node.groups is not None
            del node.groups.calls._services[SERVICE]
    # when a batch is passed on, then it is stored, at once and in order
    sent = [out.tables.way(table, 0).propose(BATCH) for _ in range(3)]
    answers = [world.wait(one) for one in sent]
    assert [one.first for one in answers] == [0, 1, 2]  # type: ignore[attr-defined]
    # and when a reset is known, then none of them is asked: it could not say what it is
    error = world.wait_error(out.tables.way(table, 0, at_least=7).propose(BATCH))
    assert isinstance(error, CopyOutdated)
    assert world.leading(table).view.end == 3
