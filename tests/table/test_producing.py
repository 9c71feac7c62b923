"""A producer's batches over leaders that change, answers that are lost and queues that are full.

Whatever happens: a batch is stored once and in order, or its sender is told that it was not stored,
or that nobody knows. Every entry is held against the model of `sim.table_ledger` on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from group.cluster import FAST, TINY_LOG
from lowmark.errors import LowmarkError
from lowmark.group import (
    CommandTooLarge,
    Future,
    GroupConfig,
    GroupStopped,
    NotLeader,
    OutcomeUnknown,
)
from lowmark.runtime.sim import Weather
from lowmark.table import (
    EPOCH_BITS,
    Appended,
    Change,
    Fence,
    Outgoing,
    Partition,
    ProducerFenced,
    Producing,
    encode_batch,
)
from lowmark.table.producing import WINDOW
from sim.table_ledger import rows_message
from sim.table_world import TABLE, PartitionNode, PartitionWorld, TableShape

PRODUCER = b"p" * 16


def world_of(members: int, *, seed: int = 1, config: GroupConfig = FAST) -> PartitionWorld:
    numbers = tuple(range(1, members + 1))
    shape = TableShape(nodes=members, founders=numbers, config=config, log_config=TINY_LOG)
    return PartitionWorld(seed, shape)


class Sending:
    """Sends numbered values by one producer at one node, and knows what became of each."""

    def __init__(self, node: PartitionNode, *, timeout_ms: int = 5_000, epoch: int = 0) -> None:
        self.node = node
        self.producing = Producing(node.run, producer=PRODUCER, timeout_ms=timeout_ms, epoch=epoch)
        self.futures: list[Future[Appended]] = []

    def send(self, count: int = 1, *, rows: int = 1, size: int = 0) -> None:
        for _ in range(count):
            number = len(self.futures)
            values = [(number, f"{number}/{row}" + "x" * size) for row in range(rows)]
            batch = Outgoing(rows_message(values), rows, 1, Change.UPSERT)
            self.futures.append(self.producing.send(self.node.here, batch))

    @property
    def done(self) -> bool:
        return all(future.done for future in self.futures)

    def of(self, kind: type[LowmarkError] | None) -> list[int]:
        """Which batches came to this: an error, or, with None, to be stored."""
        return [
            number
            for number, future in enumerate(self.futures)
            if future.done
            and (future.error is None if kind is None else isinstance(future.error, kind))
        ]

    def check(self, world: PartitionWorld) -> None:
        """Once and in order; or not at all, and told so; or nobody knows."""
        values = [row.value for row in world.ledger.model.rows]
        stored = [int(value.partition("/")[0]) for value in values]
        assert len(set(values)) == len(values)
        assert stored == sorted(stored)
        for number, future in enumerate(self.futures):
            assert future.done
            if future.error is None:
                answer = future.result()
                rows = values[answer.first : answer.first + answer.rows]
                assert [value.partition("/")[0] for value in rows] == [str(number)] * answer.rows
            elif not isinstance(future.error, OutcomeUnknown):
                assert number not in stored, f"{number} failed with {future.error!r}"


def loses_answers(node: PartitionNode, lost: Callable[[int], bool]) -> None:
    """Have the answers to some appends of a node lost: nobody knows what came of them."""
    partition, count = node.here, 0
    propose = partition.propose

    def lossy(command: bytes) -> Future[object]:
        nonlocal count
        count += 1
        answer = propose(command)
        if not lost(count):
            return answer
        return Future.failed(OutcomeUnknown("g", why="its answer was lost"))

    partition.propose = lossy  # type: ignore[method-assign,assignment]


# -- all is well ----------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 3])
def test_batches_are_stored_in_order_and_more_than_a_window_waits(members: int) -> None:
    # given more batches than may be under way at a time
    world = world_of(members)
    sending = Sending(world.make_leader(1))
    sending.send(5 * WINDOW, rows=2)
    # then at most a window of them has been proposed
    group = world[1].group
    assert group is not None
    assert group.status().waiting <= WINDOW
    # and in the end all are there
    world.run_until(lambda: sending.done)
    assert [future.result().first for future in sending.futures] == list(range(0, 10 * WINDOW, 2))
    sending.check(world)


# -- what may pass --------------------------------------------------------------------------------


def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice() -> None:
    # given every third answer lost
    world = world_of(1)
    node = world.wait_leader()
    loses_answers(node, lambda number: number % 3 == 0)
    sending = Sending(node)
    # when batches are sent
    sending.send(100)
    world.run_until(lambda: sending.done)
    # then each is stored once, and all are answered
    assert sending.of(None) == list(range(100))
    assert len(world.ledger.model.rows) == 100
    sending.check(world)


def test_a_group_that_is_busy_gets_its_batches_later_and_in_order() -> None:
    # given a queue with room for very little
    config = replace(FAST, waiting_bytes_max=2_000, waiting_requests_max=8)
    world = world_of(3, config=config)
    sending = Sending(world.make_leader(1))
    # when far more is sent at once
    sending.send(150, size=100)
    world.run_until(lambda: sending.done)
    # then all of it is stored
    assert sending.of(None) == list(range(150))
    sending.check(world)


def test_batches_wait_for_their_leader_to_come_back() -> None:
    # given a leader that hands over while a whole window is under way
    world = world_of(3)
    node = world.make_leader(1)
    sending = Sending(node, timeout_ms=20_000)
    sending.send(3 * WINDOW)
    assert node.group is not None
    node.group.transfer(2)
    world.run_until(lambda: world.leader() is world[2])
    sending.send(10)
    world.run_for(1_000)
    assert not sending.done
    # when it leads again
    world.make_leader(1)
    world.run_until(lambda: sending.done)
    # then every batch is stored once
    assert sending.of(None) == list(range(3 * WINDOW + 10))
    sending.check(world)


def test_trying_again_costs_no_more_the_longer_it_takes() -> None:
    """Each batch that failed had the others sent again, too: soon there was nothing else to do."""
    # given a window of batches at a node that is cut off and no longer leads
    world = world_of(3)
    node = world.make_leader(1)
    sending = Sending(node, timeout_ms=6_000)
    sending.send(WINDOW)
    world.isolate(1)
    world.run_until(lambda: node.group is not None and not node.group.leads)
    tries = 0
    propose = node.here.propose

    def counted(command: bytes) -> Future[object]:
        nonlocal tries
        tries += 1
        return propose(command)

    node.here.propose = counted  # type: ignore[method-assign,assignment]
    # when they are tried for seconds
    world.run_until(lambda: sending.done)
    # then one at a time, until their time was over
    assert sending.of(OutcomeUnknown)
    assert 0 < tries <= 6_000 / 50 + WINDOW
    sending.check(world)


# -- what does not pass ---------------------------------------------------------------------------


def test_a_refused_batch_fails_alone_and_those_behind_it_take_its_number() -> None:
    # given a batch that no group takes, among others
    world = world_of(1, config=replace(FAST, command_bytes_max=4_000))
    sending = Sending(world.wait_leader())
    sending.send(5)
    sending.send(1, size=8_000)
    sending.send(5)
    world.run_until(lambda: sending.done)
    # then it is refused, and all others are stored, in the same epoch
    assert sending.of(CommandTooLarge) == [5]
    assert sending.of(None) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert world[1].here.state.producers.epoch_of(PRODUCER) == 0
    sending.check(world)


def test_a_group_that_stops_ends_any_number_of_batches_at_once() -> None:
    """They were given up one within another, until Python had enough of it."""
    # given thousands of batches that wait
    world = world_of(1)
    sending = Sending(world.wait_leader())
    sending.send(3_000)
    # when the copy stops
    assert world[1].groups is not None
    world[1].groups.close_group(world.group_name)
    # then all of them have failed, those under way with nobody knowing
    assert sending.done
    assert len(sending.of(GroupStopped)) + len(sending.of(OutcomeUnknown)) == 3_000
    assert len(sending.of(OutcomeUnknown)) <= WINDOW


def test_a_batch_that_was_given_up_fences_its_epoch() -> None:
    # given a batch in the log of a leader that is cut off, and given up by its producer
    world = world_of(3)
    node = world.make_leader(1)
    sending = Sending(node, timeout_ms=1_000)
    world.isolate(1)
    sending.send()
    world.run_until(lambda: sending.done)
    assert sending.of(OutcomeUnknown) == [0]
    # when the producer goes on
    world.network.heal()
    world.make_leader(1)
    sending.send(3)
    world.run_until(lambda: sending.done)
    assert sending.of(None) == [1, 2, 3]
    # then what it gave up can't come any more
    late = encode_batch(
        rows_message([(0, "0/late")]), rows=1, schema=1, producer=PRODUCER, epoch=0, sequence=0
    )
    future = world.make_leader(1).here.append(late)
    world.run_until(lambda: future.done)
    assert isinstance(future.error, ProducerFenced)
    sending.check(world)


def test_after_a_fence_nothing_more_is_stored_however_often_it_is_tried() -> None:
    # given a producer, and another one of its name that has begun a later epoch
    world = world_of(1)
    node = world.wait_leader()
    sending = Sending(node)
    sending.send(3)
    world.run_until(lambda: sending.done)
    world.wait(node.here.ask(Fence(PRODUCER, 4)))
    # when the first one goes on and on
    for _ in range(10):
        sending.send(2)
        world.run_until(lambda: sending.done)
    # then all is refused: it does not count itself up to that epoch
    assert sending.of(ProducerFenced) == list(range(3, 23))
    sending.check(world)


LAST = (2 << EPOCH_BITS) - 1
"""The last epoch that a producer of a name has for itself."""


def test_a_producer_does_not_begin_the_epoch_of_its_successor() -> None:
    """It would have shared that one's numbers, and got answers to batches that it never sent."""
    # given a producer in its last epoch, with a batch whose answer is lost for good
    world = world_of(1)
    node = world.wait_leader()
    sending = Sending(node, timeout_ms=200, epoch=LAST)
    sending.send(3)
    world.run_until(lambda: sending.done)
    lossy = True
    loses_answers(node, lambda _: lossy)
    sending.send(1)
    # when it is given up, with more batches than may be under way behind it
    sending.send(2 * WINDOW)
    world.run_until(lambda: sending.done)
    lossy = False
    # then those of which nobody knows are told so, and all others that they are not stored
    assert sending.of(None) == [0, 1, 2]
    unknown, fenced = sending.of(OutcomeUnknown), sending.of(ProducerFenced)
    assert unknown[0] == 3
    assert len(fenced) >= WINDOW
    assert sorted(unknown + fenced) == list(range(3, 4 + 2 * WINDOW))
    # and nothing is stored any more, in no epoch
    sending.send(3)
    assert sending.of(ProducerFenced)[-3:] == [len(sending.futures) - n for n in (3, 2, 1)]
    assert node.here.state.producers.epoch_of(PRODUCER) == LAST
    sending.check(world)
    # so its successor has all numbers of its epoch for itself
    world.wait(node.here.ask(Fence(PRODUCER, LAST + 1)))
    successor = Sending(node, epoch=LAST + 1)
    successor.send()
    world.run_until(lambda: successor.done)
    assert successor.of(None) == [0]


def test_the_epoch_before_the_last_one_has_a_next() -> None:
    # given a producer that may begin one more epoch
    world = world_of(1)
    node = world.wait_leader()
    sending = Sending(node, timeout_ms=200, epoch=LAST - 1)
    loses_answers(node, lambda _: not sending.of(OutcomeUnknown))
    # when it gives a batch up
    sending.send()
    world.run_until(lambda: sending.done)
    sending.send()
    world.run_until(lambda: sending.done)
    # then it goes on in that one
    assert (sending.of(OutcomeUnknown), sending.of(None)) == ([0], [1])
    assert node.here.state.producers.epoch_of(PRODUCER) == LAST


def test_in_its_last_epoch_a_producer_goes_on_at_another_copy_under_its_numbers() -> None:
    # given a producer in its last epoch, and its copy closed and opened again
    world = world_of(1)
    node = world.wait_leader()
    sending = Sending(node, epoch=LAST)
    sending.send()
    world.run_until(lambda: sending.done)
    for _ in range(2):
        assert node.groups is not None
        node.groups.close_group(world.group_name)
        node.partition = None
        node.have_copy()
        world.wait_leader()
        # when it goes on
        sending.send()
        world.run_until(lambda: sending.done)
    # then it needs no other epoch: the copy knows its numbers
    assert sending.of(None) == [0, 1, 2]
    assert node.here.state.producers.epoch_of(PRODUCER) == LAST
    sending.check(world)


@pytest.mark.parametrize("at", [1, 3, 5], ids=["the first one", "a later one", "one sent again"])
def test_an_error_that_nobody_expects_is_told_and_the_batches_go_on(at: int) -> None:
    """The lane took itself for busy for good: nothing was sent any more, and nothing answered."""
    # given answers that are lost at first, and a copy that fails once in another way
    world = world_of(1)
    node = world.wait_leader()
    loses_answers(node, lambda number: number <= 2)
    propose, calls = node.here.propose, 0

    def fails(command: bytes) -> Future[object]:
        nonlocal calls
        calls += 1
        if calls == at:
            raise RuntimeError("nobody expects this")
        return propose(command)

    node.here.propose = fails  # type: ignore[method-assign,assignment]
    sending = Sending(node)
    # when batches are sent, it is told to whoever called
    told = 0
    for _ in range(4):
        try:
            sending.send()
        except RuntimeError:
            told += 1
    try:
        world.run_until(lambda: sending.done)
    except RuntimeError:
        told += 1
    assert told == 1
    # then what was sent before and after is stored, once and in order
    sending.send()
    world.run_until(lambda: sending.done)
    assert sending.of(None) == list(range(len(sending.futures)))
    values = [row.value for row in world.ledger.model.rows]
    assert len(values) == 5


def test_two_can_t_begin_the_same_epoch() -> None:
    # given two producers of one name that have both seen the same epoch
    world = world_of(1)
    node = world.wait_leader()
    world.wait(node.here.ask(Fence(PRODUCER, 4)))
    # then the second one is told: both would use the same numbers
    second = node.here.ask(Fence(PRODUCER, 4))
    world.run_until(lambda: second.done)
    assert isinstance(second.error, ProducerFenced)


def test_another_copy_of_the_partition_is_not_sent_numbers_that_were_used() -> None:
    """It would have answered with where the batches of those numbers went, and stored nothing."""
    # given a producer that has stored batches at a copy
    world = world_of(1)
    node = world.wait_leader()
    sending = Sending(node)
    sending.send(3)
    world.run_until(lambda: sending.done)
    # when that copy is closed and opened again, as another one
    assert node.groups is not None
    node.groups.close_group(world.group_name)
    node.partition = None
    node.have_copy()
    world.wait_leader()
    sending.send(3)
    world.run_until(lambda: sending.done)
    # then what is sent is stored
    assert [future.result().first for future in sending.futures] == list(range(6))
    sending.check(world)


def test_a_node_without_a_copy_of_it_refuses_what_is_sent() -> None:
    world = world_of(1)
    sending = Producing(world.wait_leader().run, producer=PRODUCER, timeout_ms=200)
    batch = Outgoing(rows_message([(1, "1/0")]), 1, 1, Change.UPSERT)
    future = sending.send(Partition(TABLE, 1), batch)
    world.run_until(lambda: future.done)
    assert future.error is not None
    assert "not at this node" in future.error.message


# -- anything at all ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_each_batch_is_stored_once_and_in_order_or_its_sender_is_told(
    seed: int, members: int
) -> None:
    dice = Random(f"{seed} {members}")
    config = replace(
        FAST,
        request_timeout_ms=dice.choice([300, 1_000]),
        waiting_bytes_max=dice.choice([1_500, 100_000]),
        waiting_requests_max=dice.choice([10, 1_000]),
        snapshot_entries=dice.choice([20, 100_000]),
    )
    world = world_of(members, seed=seed, config=config)
    sending = Sending(world.make_leader(1), timeout_ms=dice.choice([400, 2_000]))
    loses_answers(world[1], lambda _: dice.random() < 0.02)
    for _ in range(25):
        sending.send(dice.choice([1, 3, 30]), rows=dice.choice([1, 4]), size=dice.choice([0, 200]))
        match dice.randrange(8):
            case 0:
                world.isolate(dice.randint(1, members))
            case 1 | 2:
                world.network.heal()
            case 3:
                leader = world.leader()
                if leader is not None and leader.group is not None:
                    leader.group.transfer(dice.randint(1, members))
            case 4:
                drop = dice.choice([0.0, 0.0, 0.1])
                world.network.weather = Weather(delay_us_max=20_000, drop=drop)
            case 5 if members > 1:
                node = world[dice.randint(2, members)]
                node.crash(Random(dice.getrandbits(32)))
                world.run_for(dice.choice([1, 300]))
                node.start()
            case _:
                pass
        world.run_for(dice.choice([1, 20, 200, 700]))
    world.network.heal()
    world.network.weather = Weather()
    world.make_leader(1)
    world.run_until(lambda: sending.done)
    # and once all is well, so is every batch
    sending.send(WINDOW)
    world.run_until(lambda: sending.done)
    assert len(sending.of(None)) >= WINDOW
    assert not sending.of(NotLeader) or members > 1
    sending.check(world)
