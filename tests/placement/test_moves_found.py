"""What lives of moving partitions have found (`sim/test_placement_lives`), each reduced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowmark.catalog import TableId
from lowmark.errors import Conflict
from lowmark.group import ChangeAnswer, Future, NotLeader, OutcomeUnknown, Stage
from lowmark.placement import Adjust, RebalanceConfig
from lowmark.placement.assignments import Assignments, Keys, PartitionId
from lowmark.placement.decisions import Decision
from lowmark.placement.moves import Moves, _Move, _never_in_force
from lowmark.placement.writes import local_keys
from lowmark.raft import Members
from lowmark.table import Change, Outgoing, Producing
from lowmark.table.commands import HEADER_BYTES, decode
from table.world import TableWorld, log_table

ONE, OTHER = PartitionId(TableId(7), 0), PartitionId(TableId(7), 1)


def nodes(*numbers: int) -> Assignments:
    return Assignments(numbers, 1)


def moving(
    stable: Assignments,
    pending: Assignments | None = None,
    *,
    planned: Assignments | None = None,
    lock: int | None = None,
    token: int = 0,
) -> Keys:
    return Keys(
        stable=stable, pending=pending, planned=planned, lock=lock, revisions=(1, token, 0, 0, 0)
    )


class Led:
    """A group that this node leads; notes what it is asked for."""

    ready = True
    term = 2

    def __init__(self, members: Members, stage: Stage = Stage.NONE) -> None:
        self._members = members
        self.stage = stage
        self.begun: list[tuple[int, tuple[int, ...]]] = []
        self.cancelled = 0

    def members(self) -> Members:
        return self._members

    def change_peers(
        self, term: int, token: int, peers: list[int], *, learners: Iterable[int] = ()
    ) -> ChangeAnswer:
        del term, learners
        self.begun.append((token, tuple(peers)))
        self.stage = Stage.CATCHING_UP
        return ChangeAnswer.RECEIVED

    def cancel_change_peers(self) -> bool:
        self.cancelled += 1
        return True


def voters(*numbers: int, learners: Iterable[int] = ()) -> Members:
    return Members(incoming=frozenset(numbers), learners=frozenset(learners))


class Bench:
    """`Moves` with groups and keys of the test's own."""

    def __init__(self, groups: dict[PartitionId, Led], **config: Any) -> None:
        self.world = TableWorld(nodes=1)
        self.groups = groups
        self.keys: dict[PartitionId, Keys] = {}
        self.moves = Moves(
            self.world[1].run.loop,
            self.world[1].metastore,
            group=self.groups.get,  # type: ignore[arg-type]
            keys=lambda one: self.keys.get(one, Keys()),
            config=RebalanceConfig(**config),
        )

    def leads(self, partition: PartitionId, token: int = -1, peers: tuple[int, ...] = ()) -> _Move:
        move = self.moves._moves[partition] = _Move(2, token, peers)
        return move


def test_a_producer_keeps_its_numbers_when_its_partition_gets_another_way() -> None:
    """Two lanes began the same epoch: one batch got the answer of the other, and was not stored."""
    # given a producer with batches under way to a partition that has no copy here
    world = TableWorld(nodes=1)
    producing = Producing(world[1].run, producer=bytes(15) + b"p", timeout_ms=200)
    distant, here = Way(), Way()
    for message in (b"lost answer", b"not taken"):
        producing.send(distant, Outgoing(message, 1, 1, Change.UPSERT))
    # when it has a copy, the next batch goes there; the first one is given up, in the end
    producing.send(here, Outgoing(b"next one", 1, 1, Change.UPSERT))
    world.run_for(1_000)
    # then no two batches had the same number
    numbers: dict[tuple[int, int], set[bytes]] = {}
    for command in (*distant.asked, *here.asked):
        batch: Any = decode(command)
        numbers.setdefault((batch.epoch, batch.sequence), set()).add(command[HEADER_BYTES:])
    assert max(epoch for epoch, _ in numbers) == 1
    assert all(len(one) == 1 for one in numbers.values()), numbers


class Way:
    """A way to a partition: it loses the answer to one batch, and takes another one later."""

    table, number, name, replicated = 7, 0, "table.7.0", True

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    @property
    def group(self) -> Way:
        return self

    def propose(self, command: Any, *, in_place: bool = False) -> Future[object]:
        assert not in_place
        self.asked.append(bytes(command))
        batch: Any = decode(command)
        if command[HEADER_BYTES:] == b"lost answer":
            return Future.failed(OutcomeUnknown(self.name, why="no answer"))
        if command[HEADER_BYTES:] == b"not taken" and batch.epoch == 0:
            return Future.failed(NotLeader(self.name, leader=None))
        return Future()


def test_what_is_in_force_is_not_cancelled_before_it_is_written() -> None:
    """With adjust=cancel a new leader cancelled its own last step, and nothing was written."""
    # given a new leader that finds pending in force, and another target planned
    group = Led(voters(1, 3), Stage.CATCHING_UP)
    bench = Bench({ONE: group}, adjust=Adjust.CANCEL)
    bench.leads(ONE, token=25, peers=(1, 3))
    bench.keys[ONE] = moving(nodes(1, 2, 3), nodes(1, 3), planned=nodes(1, 2), token=25)
    # when it hears of that
    bench.moves.look(ONE)
    # then it goes on with what it has begun
    assert group.cancelled == 0


def test_a_lock_stays_on_what_is_in_force() -> None:
    """It was opened: another target came, and no key named the members that the group had."""
    keys = moving(nodes(1, 2, 3), nodes(2, 3), lock=4)
    assert _never_in_force(keys, voters(1, 2, 3), 5)
    assert not _never_in_force(keys, voters(2, 3), 5)
    joint = Members(incoming=frozenset({2, 3}), outgoing=frozenset({1, 2, 3}))
    assert not _never_in_force(keys, joint, 5)
    # and nobody takes the lock of a later leader, or its own
    assert not _never_in_force(keys, voters(1, 2, 3), 4)


def test_a_change_begins_when_the_lock_of_the_one_before_is_settled() -> None:
    """The lock came late, and was given back while the next change was put in force by it."""
    # given a change that asks for the lock
    group = Led(voters(1, 2))
    bench = Bench({ONE: group})
    metastore, move = bench.world[1].metastore, bench.leads(ONE)
    bench.world.wait(metastore.put(ONE.key("stable"), nodes(1, 2).encode()))
    bench.world.wait(metastore.put(ONE.key("pending"), nodes(2).encode()))
    bench.keys[ONE] = moving(nodes(1, 2), nodes(2), token=metastore.state.latest)
    bench.moves.look(ONE)
    asked: list[bool] = []
    bench.moves.may_finish(ONE, (2,), asked.append)
    # when it is called off before the answer is there, and is to begin again
    group.stage, move.token = Stage.NONE, -1
    bench.moves.look(ONE)
    # then it does so when the lock was set and is given back
    assert len(group.begun) == 1
    bench.world.run_until(lambda: len(group.begun) == 2)
    assert asked == [True]
    assert local_keys(metastore, ONE).lock is None
    assert not move.locking


def test_what_is_heard_before_an_answer_is_looked_at_after_it() -> None:
    """The planned target became pending, and was not begun: the watch was faster."""
    # given a leader that has something written
    group = Led(voters(1))
    bench = Bench({ONE: group})
    move = bench.leads(ONE)
    bench.moves._ask(ONE, move, lambda _: Decision((), True))
    # when it hears of another target before the answer is there
    bench.keys[ONE] = moving(nodes(1), nodes(1, 2), token=9)
    bench.moves.changed(ONE)
    assert not group.begun
    bench.world.run_until(lambda: not move.asking)
    # then it begins with it
    assert group.begun == [(9, (1, 2))]


def test_one_that_waits_in_vain_keeps_no_other_waiting() -> None:
    """Only the first that waited was looked at, and it had lost its leadership."""
    # given two moves that wait for a third one
    third = PartitionId(TableId(7), 2)
    groups = {one: Led(voters(1)) for one in (ONE, OTHER, third)}
    bench = Bench(groups, moves_max=1)
    for one in (third, ONE, OTHER):
        bench.leads(one)
        bench.keys[one] = moving(nodes(1), nodes(1, 2), token=9)
        bench.moves.look(one)
    assert [bool(groups[one].begun) for one in (third, ONE, OTHER)] == [True, False, False]
    # when the third one is over, and another node leads the first one
    del bench.groups[ONE]
    bench.moves.forget(third)
    bench.world.run_for(10)
    # then the second one begins
    assert groups[OTHER].begun


def test_a_move_that_copies_needs_no_turn_for_its_next_target() -> None:
    """Two moves with outdated targets waited for each other."""
    groups = {ONE: Led(voters(1), Stage.CATCHING_UP), OTHER: Led(voters(1), Stage.CATCHING_UP)}
    bench = Bench(groups, moves_max=1)
    for one in (ONE, OTHER):
        bench.leads(one, token=5, peers=(1,))
        bench.keys[one] = moving(nodes(1), nodes(1, 2), token=9)
    bench.moves.look(ONE)
    assert groups[ONE].begun == [(9, (1, 2))]


def test_learners_of_an_earlier_leader_are_taken_away() -> None:
    """A withdrawn move left one behind: its copy was a member for good, and was never destroyed."""
    # given a move that was withdrawn, and a group with a learner of an earlier leader
    group = Led(voters(1, 2, learners=[3]))
    bench = Bench({ONE: group})
    bench.leads(ONE)
    bench.keys[ONE] = moving(nodes(1, 2))
    written = bench.world[1].metastore.put(ONE.key("stable"), nodes(1, 2).encode())
    bench.world.wait(written)
    # when its new leader looks at it
    bench.moves.look(ONE)
    bench.world.run_for(1_000)
    # then it puts in force what stable says
    assert [peers for _, peers in group.begun] == [(1, 2)]


def test_a_node_that_the_new_members_need_can_not_leave() -> None:
    """Stable had a majority without it; the group had moved on, and had none."""
    # given a partition that is being put in force on two of its three nodes
    world = TableWorld()
    world.create(1, log_table("events"))
    operations = world[1].placement.operations
    operations._keys = lambda _: moving(nodes(1, 2, 3), nodes(2, 3), lock=1)
    # then each of the two is needed, and the third one is not
    assert operations.refusal(1) is None
    assert operations.refusal(2) is not None
    assert operations.refusal(3) is not None


def test_a_change_that_never_goes_through_is_an_error() -> None:
    """After ten attempts it was reported as done; and moves were paused by a tower of futures."""
    world = TableWorld(nodes=1)
    operations = world[1].placement.operations
    lost = operations._again(lambda: Future.of(False))
    assert isinstance(world.wait_error(lost), Conflict)
