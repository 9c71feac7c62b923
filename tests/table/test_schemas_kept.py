"""Schema versions that a partition takes no more: what it refuses, and what it says of its rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowmark.group import Future, OutcomeUnknown
from lowmark.table import (
    Appended,
    CommandRefused,
    Finish,
    Finished,
    KeepSchemas,
    Outgoing,
    OutOfSequence,
    PartitionMachine,
    Producing,
    SchemaNotInForce,
    SchemasKept,
    Trim,
)
from lowmark.table.commands import Change
from sim.table_ledger import rows_message
from sim.table_world import PartitionNode, PartitionWorld
from table.one_log import Log, is_a
from table.test_producing import loses_answers, world_of

PRODUCER = b"p" * 16


@pytest.fixture
def log() -> Log:
    made = Log()
    made.machine.upgrade(PartitionMachine.newest_version)
    return made


# -- the machine ----------------------------------------------------------------------------------


def test_a_partition_takes_no_rows_of_a_version_below_the_one_that_is_kept(log: Log) -> None:
    # given rows of two versions
    log.append(2, schema=1)
    log.append(1, schema=3)
    # when versions are kept from 3 on
    assert log.ask(KeepSchemas(3)) == SchemasKept(3, least=1)
    # then older ones are refused by name, and change nothing; what is there stays
    refused = log.append(schema=2)
    assert isinstance(refused, SchemaNotInForce)
    assert (refused.version, "newest version" in refused.hint) == (2, True)
    assert log.offsets() == (0, 3)
    assert isinstance(log.append(schema=3), Appended)
    assert isinstance(log.append(schema=4), Appended)


def test_it_never_falls_and_a_snapshot_keeps_it(log: Log) -> None:
    log.ask(KeepSchemas(3))
    # when an older wish comes late, and the copy is started again from its snapshot
    assert log.ask(KeepSchemas(2)) == SchemasKept(3, least=0)
    log.restart(PartitionMachine.newest_version)
    # then it is as it was
    assert is_a(log.append(schema=2), SchemaNotInForce)
    assert log.ask(KeepSchemas(0)) == SchemasKept(3, least=0)


def test_rows_that_are_cut_need_no_version_and_a_batch_that_straddles_the_cut_does(
    log: Log,
) -> None:
    log.append(2, schema=1)
    log.append(3, schema=2)
    log.append(1, schema=5)
    for offset, least in ((1, 1), (2, 2), (4, 2), (5, 5), (6, 0)):
        log.ask(Trim(offset, expire=True))
        assert log.ask(KeepSchemas(0)) == SchemasKept(0, least=least)


def test_staged_rows_need_their_version_until_they_are_finished_and_cut(log: Log) -> None:
    # given rows of a transaction, and newer ones beside them
    log.append(schema=4, transaction=9)
    log.append(schema=2, transaction=9)
    log.append(schema=6)
    assert log.ask(KeepSchemas(6)) == SchemasKept(6, least=2)
    # then they may still be committed, for they were taken before
    assert isinstance(log.ask(Finish(9, True)), Finished)
    assert log.offsets() == (0, 3)
    assert log.ask(KeepSchemas(0)) == SchemasKept(6, least=2)
    # and no more may be staged
    assert is_a(log.append(schema=2, transaction=10), SchemaNotInForce)


def test_a_repeat_gets_its_first_answer_though_its_version_is_not_taken_any_more(log: Log) -> None:
    # given a producer's batch of an old version
    first = log.append(schema=1, producer=PRODUCER, sequence=0)
    log.ask(KeepSchemas(2))
    # when its answer was lost and it comes again, as it was or encoded anew, it is stored once
    assert log.append(schema=1, producer=PRODUCER, sequence=0) == first
    assert log.append(schema=2, producer=PRODUCER, sequence=0) == first
    # and the next number is refused without being used up
    assert is_a(log.append(schema=1, producer=PRODUCER, sequence=1), SchemaNotInForce)
    assert is_a(log.append(schema=2, producer=PRODUCER, sequence=2), OutOfSequence)
    assert isinstance(log.append(schema=2, producer=PRODUCER, sequence=1), Appended)


def test_until_all_members_know_it_nothing_is_refused() -> None:
    log = Log()
    log.machine.upgrade(2)
    assert is_a(log.ask(KeepSchemas(2)), CommandRefused)
    assert isinstance(log.append(schema=1), Appended)


# -- a producer across it -------------------------------------------------------------------------


class Sending:
    """Sends values with an old schema version, by a producer that can encode them anew."""

    def __init__(self, node: PartitionNode, *, newest: Callable[[], int] = lambda: 3) -> None:
        self._node, self._newest = node, newest
        self.renewed: list[int] = []
        self.producing = Producing(node.run, producer=PRODUCER, timeout_ms=5_000, renew=self._renew)
        self.futures: list[Future[Appended]] = []

    def _renew(self, batch: Outgoing) -> Future[Outgoing]:
        self.renewed.append(batch.schema)
        return Future.of(batch._replace(schema=self._newest()))

    def send(self, *schemas: int) -> None:
        for schema in schemas:
            number = len(self.futures)
            batch = Outgoing(rows_message([(number, f"{number}")]), 1, schema, Change.UPSERT)
            self.futures.append(self.producing.send(self._node.here, batch))


def stored(world: PartitionWorld) -> list[tuple[str, int]]:
    return [(row.value, row.schema) for row in world.ledger.model.rows]


@pytest.mark.parametrize("members", [1, 3])
def test_batches_of_an_old_version_are_encoded_anew_and_keep_their_order(members: int) -> None:
    # given a partition that takes versions from 3 on
    world = world_of(members)
    node = world.make_leader(1)
    world.run_until(lambda: node.here.group.version == PartitionMachine.newest_version)
    world.wait(node.here.ask(KeepSchemas(3)))
    # when a producer that is behind sends old ones, and then new ones right behind them
    sending = Sending(node)
    sending.send(1, 1, 2, 3, 3, 1, 3)
    world.run_until(lambda: all(future.done for future in sending.futures))
    # then all are stored, once, in their order and with the newest version
    assert stored(world) == [(f"{number}", 3) for number in range(7)]
    assert [future.result().first for future in sending.futures] == list(range(7))
    assert sending.renewed == [1, 1, 2, 1]


def test_a_batch_that_was_stored_without_an_answer_is_not_stored_again_when_encoded_anew() -> None:
    # given a producer whose first batch is stored, and its answer is lost
    world = world_of(1)
    node = world.make_leader(1)
    world.run_until(lambda: node.here.group.version == PartitionMachine.newest_version)
    loses_answers(node, lambda count: count == 1)
    sending = Sending(node)
    sending.send(1)
    world.run_until(lambda: bool(stored(world)))
    # when its version is not taken any more before it is sent again
    world.wait(node.here.ask(KeepSchemas(3)))
    sending.send(1)
    world.run_until(lambda: all(future.done for future in sending.futures))
    # then it gets its first answer, and only what was not stored is encoded anew
    assert stored(world) == [("0", 1), ("1", 3)]
    assert [future.result().first for future in sending.futures] == [0, 1]
    assert sending.renewed == [1]


def test_a_producer_waits_until_it_hears_of_a_version_that_is_taken() -> None:
    # given a node that has not heard of the newest version yet
    world = world_of(1)
    node = world.make_leader(1)
    world.run_until(lambda: node.here.group.version == PartitionMachine.newest_version)
    world.wait(node.here.ask(KeepSchemas(3)))
    known = [1]
    sending = Sending(node, newest=lambda: known[0])
    sending.send(1)
    world.run_for(500)
    assert not sending.futures[0].done
    # when it hears of it, the batch is stored
    known[0] = 3
    world.run_until(lambda: sending.futures[0].done)
    assert stored(world) == [("0", 3)]


def test_a_batch_that_can_t_be_encoded_anew_fails_alone() -> None:
    # given a producer that can't encode rows of version 1
    world = world_of(1)
    node = world.make_leader(1)
    world.run_until(lambda: node.here.group.version == PartitionMachine.newest_version)
    world.wait(node.here.ask(KeepSchemas(3)))
    sending = Sending(node)

    def renew(batch: Outgoing) -> Future[Outgoing]:
        return Future.failed(SchemaNotInForce(version=batch.schema, why="its columns are unknown"))

    sending.producing = Producing(node.run, producer=PRODUCER, timeout_ms=5_000, renew=renew)
    sending.send(1, 3)
    world.run_until(lambda: all(future.done for future in sending.futures))
    # then its sender is told, and what came behind it is stored
    assert isinstance(sending.futures[0].error, SchemaNotInForce)
    assert not isinstance(sending.futures[0].error, OutcomeUnknown)
    assert stored(world) == [("1", 3)]
