from __future__ import annotations

from random import Random

import msgspec
import pytest

from lowmark.catalog import AlterZone
from lowmark.errors import Rejected
from lowmark.group import Future, OutcomeUnknown
from lowmark.holds import Span
from lowmark.metastore import Do, Event
from lowmark.metastore.nodes import lease_of
from lowmark.table import BelowWatermark, TimeInFuture, write_history
from lowmark.table.watermark import HOLD_PREFIX, WATERMARK_KEY, AsOfHold, hold_key
from table.world import TableNode, TableWorld, log_table, ms

BEHIND_MS = 1_020
"""Availability and skew of these worlds."""


def alone(**more: object) -> tuple[TableWorld, TableNode]:
    world = TableWorld(nodes=1, **more)  # type: ignore[arg-type]
    world.run_for(2_000)
    return world, world[1]


def published(node: TableNode) -> dict[bytes, int]:
    """The holds as a node knows them, by key."""
    return {
        entry.key: msgspec.json.decode(entry.value)["time"]
        for entry in node.metastore.range_local(HOLD_PREFIX).entries
    }


# -- now ----------------------------------------------------------------------------------------


def test_now_at_any_node_is_after_what_another_node_s_clock_has_stamped() -> None:
    # given a table with a copy at each node, whose leader's clock is ahead by almost the skew
    world = TableWorld(nodes=3)
    world.execute(1, AlterZone(name="default", replicas=3))
    table = world.create(1, log_table("events"))
    ahead = world.leading(table).group.node
    world.run_until(lambda: all(node.tables.of(table) for node in world.up))
    world[ahead].clock.skew_ms += 15
    # when rows come, then no node that shows them gives an earlier time as now
    for end in range(1, 6):
        time = world.append(table).time
        for node in world.up:
            (copy,) = node.tables.of(table)
            world.run_until(lambda copy=copy, end=end: copy.view.end == end)  # type: ignore[misc]
            assert node.run.clock.now() > time


# -- moving -------------------------------------------------------------------------------------


def test_it_follows_the_clock_by_availability_and_skew() -> None:
    # given a cluster whose watermark was never moved
    world, node = alone()
    assert (node.watermark.current, world.wait(node.watermark.read())) == (0, 0)
    # when it is moved
    moved = world.wait(node.watermark.advance())
    # then it is behind the clock by what was settled
    assert moved.before == 0
    assert moved.after == moved.wanted == node.watermark.current
    assert world.now_ms() - BEHIND_MS - 5 <= moved.after >> 16 <= world.now_ms() - BEHIND_MS
    assert moved.held_by == ()
    # and after a while further on
    world.run_for(3_000)
    assert world.wait(node.watermark.advance()).after >> 16 >= (moved.after >> 16) + 3_000
    standing = node.watermark.standing()
    assert standing.value == node.watermark.current
    assert standing.holds == ()
    assert standing.goal >= standing.value


def test_times_that_a_log_is_ahead_take_no_history_away() -> None:
    # given three nodes of which all follow a log whose times are an hour ahead of their clocks
    world = TableWorld(nodes=3)
    world.run_for(2_000)
    hour_ms = 3_600_000
    node = world[1]
    ahead = ms(world.loop.wall_ms() + hour_ms)
    for one in world.up:
        assert one.run.clock.follow_log(ahead)
    # when the watermark is moved
    moved = world.wait(node.watermark.advance())
    # then it is behind the clocks, and not behind that log
    assert world.now_ms() >= world.loop.wall_ms() + hour_ms - 5_000
    assert moved.after >> 16 <= world.loop.wall_ms() - BEHIND_MS + 20


@pytest.mark.slow
def test_how_far_behind_it_follows_can_be_altered() -> None:
    # given three nodes, and a watermark that follows as it was settled
    world = TableWorld()
    world.run_for(20_000)
    settled = world.wait(world[1].watermark.advance()).after
    # when it is to follow ten seconds behind
    world.wait(world[2].metastore.invoke(Do((write_history(10_000),))))
    world.run_for(1_000)
    # then it does not go back, at no node, and waits until it is that far behind
    for number in (1, 2, 3):
        assert world[number].watermark.availability_ms == 10_000
        assert world.wait(world[number].watermark.advance()).after == settled
    world.run_for(12_000)
    moved = world.wait(world[3].watermark.advance()).after
    assert world.now_ms() - 10_020 - 50 <= moved >> 16 <= world.now_ms() - 10_020
    # and with a shorter one it goes on
    world.wait(world[2].metastore.invoke(Do((write_history(0),))))
    world.run_for(1_000)
    assert world.wait(world[1].watermark.advance()).after >> 16 >= world.now_ms() - 100


@pytest.mark.slow
def test_by_hand_it_goes_as_far_as_now_and_not_into_the_future() -> None:
    # given a cluster
    world, node = alone()
    now = node.run.clock.now()
    # when it is moved to now, it goes there, whatever the availability
    assert world.wait(node.watermark.advance(now)).after == now
    # when it is moved to a time that has not come, that is refused by name
    error = world.wait_error(node.watermark.advance(node.run.clock.now() + ms(1)))
    assert isinstance(error, TimeInFuture)
    assert isinstance(error, Rejected)
    assert node.watermark.current == now


def test_it_never_goes_back() -> None:
    # given a watermark at now
    world, node = alone()
    now = node.run.clock.now()
    world.wait(node.watermark.advance(now))
    # when it is moved to an earlier time, and to where it should be by the clock
    by_hand = world.wait(node.watermark.advance(now - ms(100)))
    by_clock = world.wait(node.watermark.advance())
    # then it stays
    assert by_hand.before == by_hand.after == by_clock.after == now


def test_every_node_can_read_and_move_it() -> None:
    # given three nodes
    world = TableWorld()
    world.run_for(2_000)
    # when each of them moves it
    for number in (1, 2, 3):
        moved = world.wait(world[number].watermark.advance())
        # then all read it there
        for other in (1, 2, 3):
            assert world.wait(world[other].watermark.read()) == moved.after
        world.run_for(100)


def test_two_that_move_it_at_once_do_not_undo_each_other() -> None:
    # given two nodes that move it in the same moment, one further than the other
    world = TableWorld()
    world.run_for(2_000)
    now = world[3].run.clock.now()
    world.run_for(1)
    moves = [world[2].watermark.advance(now - ms(50)), world[3].watermark.advance(now)]
    # when both have their answer
    done = [world.wait(move) for move in moves]
    # then the further one is in force, and nobody was told of less than he asked for
    assert world.wait(world[1].watermark.read()) == now
    assert done[1].after == now
    assert done[0].after >= now - ms(50)


# -- holding ------------------------------------------------------------------------------------


def test_a_reader_holds_it_at_his_time_and_not_one_tick_earlier() -> None:
    # given a reader
    world, node = alone()
    time = node.run.clock.now()
    held = world.wait(node.watermark.hold(time, "a report"))
    assert (held.time, held.lost) == (time, False)
    world.run_for(5_000)
    # when the watermark is moved
    moved = world.wait(node.watermark.advance())
    # then it stops there, and says for whom
    assert moved.after == time < moved.wanted
    [hold] = moved.held_by
    assert (hold.holder, hold.kind, hold.pins, hold.why) == (
        "node n1",
        "as-of reads",
        Span(time),
        "a report",
    )
    assert node.watermark.standing().holds == (hold,)
    # when he lets go, twice
    held()
    held()
    # then it goes on, and nothing is left of him
    moved = world.wait(node.watermark.advance())
    assert moved.after == moved.wanted
    assert published(node) == {}


def test_a_reader_below_it_is_refused_with_where_it_is() -> None:
    # given a watermark
    world, node = alone()
    at = world.wait(node.watermark.advance()).after
    # when somebody wants to read just below it
    error = world.wait_error(node.watermark.hold(at - 1, "too late"))
    # then he is told where it is, and what to do
    assert isinstance(error, BelowWatermark)
    assert (error.time, error.watermark) == (at - 1, at)
    assert error.hint
    with pytest.raises(BelowWatermark):
        node.watermark.check(at - 1)
    # and at the watermark he may
    node.watermark.check(at)
    world.wait(node.watermark.hold(at, "just in time"))


def test_a_time_to_come_can_not_be_held() -> None:
    # given a node; another one's clock may be ahead of it by the skew, and no more
    world, node = alone()
    now = node.run.clock.now()
    node.watermark.check(now + ms(20))
    # when somebody asks for more
    error = world.wait_error(node.watermark.hold(now + ms(22), "a dream"))
    # then he is refused
    assert isinstance(error, TimeInFuture)


def test_a_node_publishes_the_least_of_its_readers_and_later_ones_cost_no_write() -> None:
    # given a reader at a node whose watermark has moved since it started
    world, node = alone()
    world.wait(node.watermark.advance())
    world.run_for(1_000)
    time = node.run.clock.now()
    first = world.wait(node.watermark.hold(time, "first"))
    writes = node.metastore.state.latest
    # when others come at later times
    later = [world.wait(node.watermark.hold(time + n, "later")) for n in (1, 2, 3)]
    # then nothing was written, and the first one's time stands
    assert node.metastore.state.latest == writes
    assert published(node) == {hold_key(1): time}
    # when one comes at an earlier time
    early = world.wait(node.watermark.hold(time - 1, "early"))
    # then that one does
    assert published(node) == {hold_key(1): time - 1}
    # when they let go, it is published by and by
    early()
    first()
    later[0]()
    world.run_for(2_000)
    assert published(node) == {hold_key(1): time + 2}
    for one in later:
        one()
    world.run_for(2_000)
    assert published(node) == {}


def test_many_readers_at_once_are_one_write() -> None:
    # given a node
    world, node = alone()
    world.wait(node.watermark.advance())
    world.run_for(1_000)
    writes, time = node.metastore.state.latest, node.run.clock.now()
    # when fifty readers come in one turn
    waits = [node.watermark.hold(time - n, "one of many") for n in range(50)]
    for one in waits:
        world.wait(one)
    # then the least of them was written, once
    assert node.metastore.state.latest == writes + 1
    assert published(node) == {hold_key(1): time - 49}


@pytest.mark.slow
def test_readers_at_several_nodes_hold_it_in_order() -> None:
    # given readers at three nodes
    world = TableWorld()
    world.run_for(2_000)
    time = world[1].run.clock.now()
    held = {
        number: world.wait(world[number].watermark.hold(time - number, f"reader {number}"))
        for number in (1, 2, 3)
    }
    world.run_for(3_000)
    # when it is moved, as each lets go
    for number in (3, 2, 1):
        moved = world.wait(world[1].watermark.advance())
        # then the earliest one left is where it is, and all are named
        assert moved.after == time - number
        assert [hold.why for hold in moved.held_by] == [f"reader {n}" for n in range(number, 0, -1)]
        held[number]()
        world.run_for(2_000)
    assert world.wait(world[1].watermark.advance()).held_by == ()


# -- a taker and a mover ------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["taker", "mover"])
def test_of_a_taker_and_a_mover_the_later_one_sees_the_other(first: str) -> None:
    # given two writes that were both made from the same state: one takes a hold, one moves
    world = TableWorld()
    world.run_for(2_000)
    world.everywhere()
    taker, mover = world[2].watermark, world[3].watermark
    time = world[2].run.clock.now()
    world.run_for(500)
    now = world[3].run.clock.now()
    # when their writes are let through one after the other, in both orders
    gates = {"taker": Gate(world, 2), "mover": Gate(world, 3)}
    held, moved = taker.hold(time, "a race"), mover.advance(now)
    world.run_until(lambda: all(gate.waiting for gate in gates.values()))
    second = "mover" if first == "taker" else "taker"
    gates[first].open()
    world.run_until(lambda: (held if first == "taker" else moved).done)
    gates[second].open()
    world.run_until(lambda: held.done and moved.done)
    # then the first one has its way, and the other one knows
    at = world.wait(world[1].watermark.read())
    if first == "taker":
        assert held.error is None
        assert at == time
        [hold] = moved.result().held_by
        assert hold.why == "a race"
    else:
        assert moved.result().after == at == now
        assert isinstance(held.error, BelowWatermark)


class Gate:
    """Keeps a node's conditional writes back until it is opened."""

    def __init__(self, world: TableWorld, number: int) -> None:
        metastore = world[number].metastore
        self._send = metastore.invoke
        self.waiting: list[tuple[object, Future[object]]] = []
        self._is_open = False
        metastore.invoke = self._invoke  # type: ignore[method-assign, assignment]

    def _invoke(self, statement: object) -> Future[object]:
        if self._is_open:
            return self._send(statement)  # type: ignore[arg-type, return-value]
        future: Future[object] = Future()
        self.waiting.append((statement, future))
        return future

    def open(self) -> None:
        self._is_open = True
        for statement, future in self.waiting:
            self._send(statement).then(future.follow)  # type: ignore[arg-type]


class Lossy:
    """Answers a node's next write with `OutcomeUnknown`, and keeps it for later."""

    def __init__(self, node: TableNode) -> None:
        self._metastore = node.metastore
        self._send = node.metastore.invoke
        self.kept: list[object] = []
        node.metastore.invoke = self._invoke  # type: ignore[method-assign, assignment]

    def _invoke(self, statement: object) -> Future[object]:
        self.kept.append(statement)
        self._metastore.invoke = self._send  # type: ignore[method-assign]
        return Future.failed(OutcomeUnknown("metastore", why="the answer was lost"))

    def deliver(self) -> Future[object]:
        return self._send(self.kept.pop())  # type: ignore[arg-type, return-value]


def test_a_write_that_comes_late_takes_no_hold_away() -> None:
    # given two readers, of whom the earlier one lets go; that is written, but nobody hears of it
    world, node = alone()
    world.wait(node.watermark.advance())
    world.run_for(1_000)
    time = node.run.clock.now()
    early = world.wait(node.watermark.hold(time, "early"))
    world.wait(node.watermark.hold(time + 20, "late"))
    lossy = Lossy(node)
    early()
    world.run_until(lambda: bool(lossy.kept))
    # when a reader comes in between them, and only then the lost write goes in
    world.wait(node.watermark.hold(time + 10, "in between"))
    world.wait(lossy.deliver())
    # then he is held for all the same
    world.run_for(3_000)
    assert published(node) == {hold_key(1): time + 10}
    assert world.wait(node.watermark.advance()).after == time + 10


@pytest.mark.slow
def test_a_hold_that_comes_late_and_that_nobody_needs_goes_by_itself() -> None:
    # given a reader whose hold is written, but nobody hears of it; he is held for by another write
    world, node = alone()
    lossy = Lossy(node)
    time = node.run.clock.now()
    held = world.wait(node.watermark.hold(time, "a reader"))
    # when he has let go, and only then the lost write goes in
    held()
    world.run_for(2_000)
    assert published(node) == {}
    world.wait(lossy.deliver())
    assert published(node) == {hold_key(1): time}
    # then that goes, too
    world.run_for(60_000)
    assert published(node) == {}


@pytest.mark.slow
def test_a_move_does_not_pass_the_hold_of_a_node_that_came_back_meanwhile() -> None:
    # given a reader at a node that was cut off for longer than its lease
    world = TableWorld()
    world.run_for(2_000)
    leader = world.wait_leader().number
    away = next(n for n in (1, 2, 3) if n != leader)
    time = world[away].run.clock.now()
    held = world.wait(world[away].watermark.hold(time, "away"))
    world.isolate(away)
    world.run_for(5_000)
    # when a mover sees that, and the node is back before its move is written
    gate = Gate(world, leader)
    moved = world[leader].watermark.advance()
    world.run_until(lambda: bool(gate.waiting))
    world.heal()
    state = world[leader].metastore.state
    world.run_until(lambda: state.lease(lease_of(away), state.time) is not None)
    gate.open()
    # then the hold counts again, and is not passed
    done = world.wait(moved)
    assert done.after == time
    assert [hold.why for hold in done.held_by] == ["away"]
    assert not held.lost


# -- nodes that go ------------------------------------------------------------------------------


def test_the_hold_of_a_node_that_is_gone_ends_with_its_lease() -> None:
    # given a reader at a node that dies
    world = TableWorld()
    world.run_for(2_000)
    leader = world.wait_leader().number
    dead = next(n for n in (1, 2, 3) if n != leader)
    time = world[dead].run.clock.now()
    world.wait(world[dead].watermark.hold(time, "a reader that dies"))
    world[dead].crash()
    # when the watermark is moved while the node's lease lasts
    mover = world[leader].watermark
    world.run_for(200)
    assert world.wait(mover.advance(world[leader].run.clock.now())).after == time
    # then it stays; and after that it goes on, and the hold goes
    world.run_for(3_000)
    moved = world.wait(mover.advance())
    assert moved.after == moved.wanted
    assert published(world[leader]) == {}
    assert world[leader].metastore.state.leases.get(lease_of(dead)) is None


@pytest.mark.slow
def test_a_reader_whose_node_was_taken_for_gone_is_told() -> None:
    # given a reader at a node that is cut off for longer than its lease
    world = TableWorld()
    world.run_for(2_000)
    leader = world.wait_leader().number
    lost = next(n for n in (1, 2, 3) if n != leader)
    held = world.wait(world[lost].watermark.hold(world[lost].run.clock.now(), "cut off"))
    world.isolate(lost)
    world.run_for(5_000)
    moved = world.wait(world[leader].watermark.advance())
    assert moved.after > held.time
    # when it is back
    world.heal()
    world.run_until(lambda: world[lost].watermark.current == moved.after)
    # then the reader knows that what it read may be wrong; letting go is fine
    assert held.lost
    held()
    # and others can hold there again
    world.run_for(3_000)
    again = world.wait(world[lost].watermark.hold(world[lost].run.clock.now(), "again"))
    assert not again.lost


@pytest.mark.slow
def test_what_an_earlier_life_of_a_node_held_goes_when_it_starts() -> None:
    # given a reader at a node that restarts at once
    world = TableWorld()
    world.run_for(2_000)
    number = next(n for n in (1, 2, 3) if n != world.wait_leader().number)
    world.wait(world[number].watermark.hold(world[number].run.clock.now(), "before"))
    world[number].crash()
    world[number].start()
    # when it is up again
    world.run_for(4_000)
    # then it has nobody who reads, and says so
    assert published(world[world.wait_leader().number]) == {}
    assert world.wait(world[1].watermark.advance()).held_by == ()


def test_a_hold_is_taken_only_by_a_node_that_has_its_lease() -> None:
    # given a node whose lease was given back behind its back
    world, node = alone()
    world.wait(node.metastore.release_lease(lease_of(1), holder=1))
    # when somebody holds there
    time = node.run.clock.now()
    held = world.wait(node.watermark.hold(time, "without a lease"))
    # then it has its lease again, and the hold counts
    assert node.metastore.state.lease(lease_of(1), node.metastore.state.time) is not None
    world.run_for(3_000)
    assert world.wait(node.watermark.advance()).after == held.time == time


# -- chance -------------------------------------------------------------------------------------


class Moves:
    """Every move that a node is told of, and whose leases were over at that time."""

    def __init__(self, node: TableNode) -> None:
        self._state = node.metastore.state
        self.made: list[tuple[int, set[int]]] = []
        node.metastore.watch(keys=[WATERMARK_KEY], on_event=self._told, on_end=lambda _: None)

    def _told(self, event: Event) -> None:
        for change in event.changes:
            assert change.entry is not None
            value = msgspec.json.decode(change.entry.value)["time"]
            self.made.append((value, {n for n in (1, 2, 3) if self._is_over(n, event.time)}))

    def _is_over(self, number: int, time: int) -> bool:
        lease = self._state.leases.get(lease_of(number))
        return lease is None or lease.expires_at <= time or lease.taken_at > time


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_it_never_falls_and_never_passes_a_hold(seed: int) -> None:
    # given nodes that move it, readers that come and go, and a network that fails now and then
    world = TableWorld(seed=seed + 1)
    dice = Random(f"watermark {seed}")
    world.run_for(2_000)
    moves = Moves(world[1])  # which is never cut off
    holding: list[tuple[int, AsOfHold]] = []

    def hold(number: int, time: int) -> None:
        def held(future: Future[AsOfHold]) -> None:
            if future.error is None:
                holding.append((number, future.result()))

        world[number].watermark.hold(time, "chance").then(held)

    for _ in range(60):
        number = dice.choice([1, 2, 3])
        now = world[number].run.clock.now()
        match dice.choice(["move", "move", "hold", "hold", "release", "cut", "run"]):
            case "move":
                to = now - ms(dice.randrange(200))
                world[number].watermark.advance(to if dice.random() < 0.7 else None)
            case "hold":
                hold(number, now - ms(dice.randrange(400)))
            case "release" if holding:
                holding.pop(dice.randrange(len(holding)))[1]()
            case "cut" if dice.random() < 0.3:
                world.isolate(dice.choice([2, 3]))
                world.run_for(dice.choice([20, 300]))
                world.heal()
            case _:
                pass
        world.run_for(dice.choice([0, 1, 5, 50]))
        # then it never fell, and passed nobody who holds, but those whose node was taken for gone
        values = [value for value, _ in moves.made]
        assert values == sorted(values)
        for holder, one in holding:
            assert all(holder in over for value, over in moves.made if value > one.time)
    # when everybody has let go, also those who were still waiting
    world.run_for(10_000)
    for _, one in holding:
        one()
    world.run_for(5_000)
    # then nothing holds it
    done = world.wait(world[1].watermark.advance())
    assert done.after == done.wanted
    assert published(world[1]) == {}
