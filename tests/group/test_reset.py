"""A group whose majority is lost: one copy goes on alone, and no one it left behind disturbs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import KvMachine, put, value_of
from lowmark.errors import LowmarkError, Rejected
from lowmark.group import (
    ChangeAnswer,
    CopyOutdated,
    Group,
    NotLeader,
    Reset,
    Stage,
    reset_members,
)
from lowmark.group.storage import GroupMeta
from lowmark.group.wire import Item
from lowmark.log import Log
from lowmark.raft import Append, Message
from lowmark.runtime.sim import SimDisk, SimLoop, sim_runtime

CONFIG = replace(FAST, catch_up_stall_ms=6_000, request_timeout_ms=1_000)


def reset(member: Member, name: str = "g") -> tuple[Group, Reset]:
    group, done = member.here.reset(
        name,
        member._machine(name),
        listener=member._listener(name),
        observer=member._watcher(name),
    )
    member._watched(group)
    return group, done


def replace_outdated(member: Member, name: str = "g", *, ask: Iterable[int] = ()) -> None:
    """As its driver does: a copy that the group went on without is made anew."""

    def stopped(what: str) -> None:
        if what == "stopped" and isinstance(member.group(name).stopped, CopyOutdated):
            member.clock.call_soon(again)

    def again() -> None:
        member.rebuild(name, ask=ask)

    member.watchers[name].then = stopped
    stopped("stopped")


def three(*, commands: int = 5, log: bool = False) -> Cluster:
    """Three members that have all, and two nodes more."""
    cluster = Cluster(spare=2, config=CONFIG, log_config=TINY_LOG if log else None)
    cluster.make_leader(2)
    for i in range(commands):
        cluster.propose(put(f"k{i}", b"value %d" % i))
    cluster.wait_even()
    return cluster


def grow(cluster: Cluster, leader: Member, peers: list[int], *, token: int = 1) -> None:
    group = leader.group()
    assert group.change_peers(group.term, token, peers) is ChangeAnswer.RECEIVED
    listener = leader.listener
    before = len(listener.committed)
    cluster.run_until(lambda: len(listener.committed) > before or bool(listener.errors))
    assert listener.errors == []
    assert listener.committed[-1] == tuple(peers)
    cluster.wait_even(*peers)
    for number in peers:
        assert cluster[number].machine.rows == leader.machine.rows


def check_values(member: Member, count: int) -> None:
    for i in range(count):
        row = member.machine.rows[f"k{i}"]
        assert value_of(member.group().read_command(row.index).data) == b"value %d" % i


# -- the survivor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_survivor_serves_alone_with_all_that_it_had(snapshot: bool) -> None:
    cluster = three()
    if snapshot:
        cluster[1].group().snapshot()
        cluster.run_until(lambda: cluster[1].group().status().snapshot_index > 0)
        cluster.propose(put("k5", b"value 5"))
        cluster.wait_even()
    rows, last = dict(cluster[1].machine.rows), cluster[1].group().last_index()
    term = cluster[1].group().term
    cluster[2].crash()
    cluster[3].crash()
    # when the operator gives the others up
    group, done = reset(cluster[1])
    cluster.run_until(lambda: group.ready, timeout_ms=1_000)
    # then it has all, and serves
    assert (done.last_index, done.index, done.lost) == (last, last + 1, (2, 3))
    assert done.term > term + 100_000
    assert done.committed <= last
    assert cluster[1].machine.rows == rows
    status = group.status()
    assert (status.voters, status.learners, status.voters_outgoing) == ((1,), (), ())
    assert (status.incarnation, status.lineage) == (last + 1, done.term)
    assert cluster.propose(put("new", b"x")) == [1]
    # and after any restart, too
    for stop in (cluster[1].stop, cluster[1].crash):
        stop()
        cluster[1].start()
        cluster.run_until(lambda: cluster[1].group().ready)
        assert cluster[1].group().status().voters == (1,)
        assert cluster[1].machine.rows["new"].version == 1
        assert rows.items() <= cluster[1].machine.rows.items()


def test_entries_that_are_not_known_to_be_committed_are_kept() -> None:
    # given a leader with entries that no other member has answered for
    cluster = three()
    leader = cluster.make_leader(1)
    cluster.isolate(1)
    futures = [leader.group().propose(put(f"tail{i}", b"x")) for i in range(3)]
    cluster.run_for(50)
    last, committed = leader.group().last_index(), leader.group().status().committed
    assert last == committed + 3
    # when it is reset
    group, done = reset(cluster[1])
    assert all(future.error is not None for future in futures)
    cluster.run_until(lambda: group.ready)
    # then they are there: the lost members may have acknowledged them
    assert done.last_index == last
    assert done.committed <= committed
    assert {"tail0", "tail1", "tail2"} <= cluster[1].machine.rows.keys()


def test_a_copy_is_reset_from_a_joint_configuration() -> None:
    # given a survivor whose last entry is a joint configuration that can't be left
    cluster = three()
    leader = cluster.make_leader(1)
    cluster[4].create("g")
    group = leader.group()
    group.change_peers(group.term, 1, [1, 4])

    def loses(sender: int, to: int, item: Item) -> bool:
        return group.members().joint and sender != to

    cluster.network.loses = loses
    cluster.run_until(lambda: group.members().joint)
    cluster.run_for(200)
    assert group.status().voters_outgoing == (1, 2, 3)
    for number in (2, 3, 4):
        cluster[number].crash()
    cluster.network.loses = None
    rows = dict(leader.machine.rows)
    group, done = reset(cluster[1])
    cluster.run_until(lambda: group.ready)
    assert done.lost == (2, 3, 4)
    status = group.status()
    assert (status.voters, status.voters_outgoing, status.learners) == ((1,), (), ())
    assert cluster[1].machine.rows == rows
    cluster[5].create("g")
    grow(cluster, cluster[1], [1, 5])


def test_a_learner_can_be_all_that_is_left() -> None:
    cluster = three()
    leader = cluster.wait_leader()
    cluster[4].create("g")
    leader.group().change_peers(leader.group().term, 1, [1, 2, 3], learners=[4])
    cluster.run_until(lambda: bool(leader.listener.committed))
    cluster.wait_even()
    for number in (1, 2, 3):
        cluster[number].crash()
    group, _ = reset(cluster[4])
    cluster.run_until(lambda: group.ready)
    check_values(cluster[4], 5)
    assert cluster.propose(put("k0", b"value 0")) == [2]


def test_a_copy_without_anything_is_refused() -> None:
    cluster = three()
    cluster[4].create("g")
    cluster.run_for(100)
    with pytest.raises(Rejected, match="nothing of it"):
        reset(cluster[4])
    assert cluster[4].has()  # and it goes on


def test_a_group_is_reset_twice() -> None:
    cluster = three()
    cluster[2].crash()
    cluster[3].crash()
    _, first = reset(cluster[1])
    # at once, before the first is durable,
    group, second = reset(cluster[1])
    cluster.run_until(lambda: group.ready)
    assert second.term > first.term
    assert second.last_index == first.index
    assert second.lost == (2, 3)  # as far as was known then
    # and after it grew and lost its majority again, on another node
    cluster[4].create("g")
    cluster[5].create("g")
    grow(cluster, cluster[1], [1, 4, 5])
    cluster.propose(put("k5", b"value 5"))
    cluster.wait_even(1, 4, 5)
    cluster[1].crash()
    cluster[5].crash()
    group, third = reset(cluster[4])
    cluster.run_until(lambda: group.ready)
    assert third.term > second.term
    assert third.lost == (1, 5)
    check_values(cluster[4], 6)
    # the first survivor's copy is a former member's now
    cluster[1].start()
    replace_outdated(cluster[1])
    grow(cluster, cluster[4], [1, 4])
    check_values(cluster[1], 6)


# -- each step, and offline -----------------------------------------------------------------------


def survivors_disk(seed: int = 1) -> tuple[SimDisk, dict[str, object]]:
    cluster = Cluster(seed, config=CONFIG)
    cluster.make_leader(2)
    cluster.propose(*(put(f"k{i}", b"value %d" % i) for i in range(5)))
    cluster.wait_even()
    rows = dict(cluster[1].machine.rows)
    cluster.run_for(2_000)
    for member in cluster.members.values():
        member.crash(killed=True)
    return cluster[1].disk, dict(rows)


def offline(disk: SimDisk, *, until: Callable[[], bool] | None = None) -> Reset:
    """As a tool does on the directory of a node that is stopped."""
    loop = SimLoop(7)
    log = Log.open(sim_runtime(7, disk=disk, loop=loop))
    done: list[LowmarkError | None] = []
    found = reset_members(log.group("g"), 1, on_done=done.append)
    loop.run_until(lambda: bool(done) or (until is not None and until()))
    if until is None:
        assert done == [None]
        log.close()
    return found


def opened(disk: SimDisk) -> Cluster:
    """A node with this disk, alone."""
    cluster = Cluster(nodes=0, spare=3, config=CONFIG, group="")
    cluster[1].stop()
    cluster[1].disk = disk
    cluster[1].start()
    cluster.run_for(3_000)
    return cluster


def test_a_stopped_nodes_directory_is_reset() -> None:
    disk, rows = survivors_disk()
    found = offline(disk)
    assert found.lost == (2, 3)
    cluster = opened(disk)
    assert cluster[1].group().ready
    assert cluster[1].machine.rows == rows
    assert cluster[1].group().status().lineage == found.term
    assert cluster.propose(put("k0", b"x")) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_time_leaves_the_copy_as_it_was_or_reset(seed: int) -> None:
    whole, rows = survivors_disk()
    outcomes: list[bool] = []
    for turns in range(200):
        # given a reset that the power fails in after so many turns of the loop and its lanes
        disk, loop, left = whole.killed(), SimLoop(seed), turns
        log = Log.open(sim_runtime(seed, disk=disk, loop=loop))
        done: list[LowmarkError | None] = []
        reset_members(log.group("g"), 1, on_done=done.append)

        def over() -> bool:
            nonlocal left
            left -= 1
            return left < 0 or bool(done)  # noqa: B023

        loop.run_until(over)
        cluster = opened(disk.crashed(Random(f"{seed} {turns}")))
        group = cluster[1].group()
        outcomes.append(group.status().lineage > 0)
        # then all is there; and it serves if it was reset, and else waits as before
        assert group.ready is outcomes[-1]
        if group.ready:
            assert cluster[1].machine.rows == rows
            assert group.status().voters == (1,)
            assert cluster.propose(put("k0", b"x")) == [2]
        else:
            assert group.last_index() >= len(rows)
            assert group.status().voters == (1, 2, 3)
        if done:
            break
    assert outcomes[-1]
    assert not outcomes[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_soon_after_a_reset_of_a_running_copy(seed: int) -> None:
    cluster = Cluster(seed, spare=1, config=CONFIG)
    leader = cluster.make_leader(1 + seed % 2)
    cluster.propose(*(put(f"k{i}", b"value %d" % i) for i in range(5)))
    cluster.wait_even()
    leader.group().propose(put("late", b"x"))  # on its way when it is reset
    cluster.run_for(Random(seed).uniform(0, 1))
    cluster[2].crash()
    cluster[3].crash()
    _, done = reset(cluster[1])
    cluster.run_for(Random(seed).uniform(0, 4))
    cluster[1].crash()
    cluster[1].start()
    cluster.run_for(3_000)
    group = cluster[1].group()
    # then it is one or the other, whole; and a second try completes it
    assert group.ready is (group.status().lineage == done.term)
    if not group.ready:
        assert group.status().lineage == 0
        group, _ = reset(cluster[1])
        cluster.run_until(lambda: group.ready)
    check_values(cluster[1], 5)
    cluster[4].create("g")
    grow(cluster, cluster[1], [1, 4])


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_each_step_is_carried_out_by_the_next_start(steps: int) -> None:
    # given a copy of which only so many steps became durable
    disk, rows = survivors_disk()
    loop = SimLoop(7)
    log = Log.open(sim_runtime(7, disk=disk, loop=loop))
    here = log.group("g")
    taken = 0
    put_meta, append = here.put_meta, here.append

    def counted(plain: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            nonlocal taken
            taken += 1
            return plain(*given, **named) if taken <= steps else None

        return call

    here.put_meta = counted(put_meta)  # type: ignore[method-assign, assignment]
    here.append = counted(append)  # type: ignore[method-assign, assignment]
    found = reset_members(here, 1)
    assert taken == 3
    loop.run_until(lambda: log.idle)
    meta = GroupMeta.decode(here.meta)
    assert meta.reset_at == (found.index if steps in {1, 2} else 0)
    assert (here.last_index == found.index) is (steps >= 2)
    # when the node starts, after a crash
    cluster = opened(disk.crashed(Random(steps)))
    group = cluster[1].group()
    assert group.ready is (steps > 0)
    if steps:
        assert group.status().lineage == found.term
        assert cluster[1].machine.rows == rows
        (reset_entry,) = group.log.read([found.index])
        assert reset_entry.term == found.term
        # once more, and all is as it was
        cluster[1].crash()
        cluster[1].start()
        cluster.run_until(lambda: cluster[1].group().ready)
        assert cluster[1].machine.rows == rows


# -- those it left behind -------------------------------------------------------------------------


def test_late_messages_of_former_members_change_nothing() -> None:
    # given all that the others said to it, in several terms
    cluster = three()
    said: list[tuple[int, Item]] = []

    def note(sender: int, to: int, item: Item) -> bool:
        if to == 1:
            said.append((sender, item))
        return False

    cluster.network.loses = note
    cluster.make_leader(3)
    cluster.propose(put("a", b"1"))
    cluster.make_leader(2)
    cluster.propose(put("a", b"2"))
    cluster.make_leader(1)
    cluster.propose(put("a", b"3"))
    cluster.network.loses = None
    cluster.wait_even()
    cluster[2].crash()
    cluster[3].crash()
    group, done = reset(cluster[1])
    cluster.run_until(lambda: group.ready)
    cluster.propose(put("a", b"4"))
    term, last = group.term, group.last_index()
    # when they come again, also as if they were of terms to come
    messages = [(sender, item) for sender, item in said if isinstance(item, Message)]
    assert len({type(item) for _, item in messages}) >= 4
    for ahead in (0, 50, 3_000_000):
        for sender, item in messages:
            item.term += ahead
            if isinstance(item, Append):
                for entry in item.entries:
                    entry.term = item.term
            group.received(sender, item)
            cluster.run_for(1)
    # then it leads in its term, and its log is its own
    assert group.ready
    assert (group.term, group.last_index()) == (term, last)
    assert not group.stopped
    assert cluster.propose(put("a", b"5")) == [5]
    assert group.status().lineage == done.term


def test_an_old_majority_that_is_alive_and_the_survivor_are_two_groups() -> None:
    # given a survivor that was only cut off: an operator's error
    cluster = three()
    cluster.make_leader(2)
    cluster.isolate(1)
    survivor, done = reset(cluster[1])
    cluster.run_until(lambda: survivor.ready)
    old = cluster[2].group()
    old_term = old.term
    for i in range(3):
        cluster.wait(survivor.propose(put("mine", b"%d" % i)))
        cluster.wait(old.propose(put("theirs", b"%d" % i)))
    # when they hear each other again, through elections of the old ones
    cluster.heal()
    cluster.run_for(3_000)
    cluster[2].crash()
    cluster.run_for(3_000)
    cluster[2].start()
    cluster.run_until(lambda: cluster[2].group().leader == cluster[3].group().leader != 0)
    cluster[3].group().campaign()
    cluster.run_for(5_000)
    # then neither is drawn into the other's term, nor has its entries
    assert survivor.ready
    assert survivor.term < done.term + 100
    assert cluster[1].machine.rows.keys() & {"mine", "theirs"} == {"mine"}
    for number in (2, 3):
        group = cluster[number].group()
        assert old_term <= group.term < done.term
        assert group.leader in {2, 3}
        assert not group.stopped
        assert cluster[number].machine.rows.keys() & {"mine", "theirs"} == {"theirs"}
    # both serve, each its own
    assert cluster.wait(survivor.propose(put("mine", b"x"))) == 4
    leader = cluster[cluster[2].group().leader].group()
    assert cluster.wait(leader.propose(put("theirs", b"x"))) == 4


def test_former_members_that_return_as_a_minority_wait_for_ever() -> None:
    cluster = three()
    cluster[2].crash()
    cluster[3].crash()
    survivor, _ = reset(cluster[1])
    cluster.run_until(lambda: survivor.ready)
    term = survivor.term
    cluster[2].start()
    cluster.run_for(10_000)
    assert (survivor.ready, survivor.term) == (True, term)
    assert survivor.resting.resting  # though the other one calls all the time
    assert not cluster[2].group().leads
    assert isinstance(cluster[2].group().propose(put("a", b"x")).error, NotLeader)


@pytest.mark.parametrize("seed", range(5))
def test_a_group_grows_again_with_a_former_member_whose_log_went_another_way(seed: int) -> None:
    # given old members that committed more without the survivor, far beyond what it has
    cluster = Cluster(seed, spare=2, config=CONFIG, log_config=TINY_LOG)
    cluster.make_leader(2)
    for i in range(5):
        cluster.propose(put(f"k{i}", b"value %d" % i))
    cluster.wait_even()
    cluster.isolate(1)
    cluster.make_leader(2)
    old = cluster[2].group()
    for i in range(30):
        cluster.wait(old.propose(put(f"theirs{i}", b"x" * 50)))
    if seed % 2:
        old.snapshot()
        cluster.run_for(200)
    cluster.run_until(lambda: cluster[3].group().applied == old.applied)
    cluster[2].crash()
    cluster[3].crash()
    cluster.heal()
    survivor, done = reset(cluster[1])
    cluster.run_until(lambda: survivor.ready)
    assert done.last_index < cluster[1].group().last_index() < 30
    if seed % 3 == 0:
        # (one that is longer than theirs again)
        for i in range(40):
            cluster.propose(put(f"mine{i}", b"y"))
    # when one comes back with its old copy, and is added again
    cluster[2].start()
    cluster[4].create("g")
    replace_outdated(cluster[2])
    grow(cluster, cluster[1], [1, 2, 4])
    # then it has what the group has, and nothing else
    assert not any(key.startswith("theirs") for key in cluster[2].machine.rows)
    check_values(cluster[2], 5)
    assert not cluster[2].group().stopped
    assert cluster[2].group().status().lineage == done.term
    # and it may lead, and outlive the survivor
    cluster.make_leader(2)
    cluster.propose(put("a", b"x"))
    cluster[1].crash()
    assert cluster.propose(put("a", b"x")) == [2]
    for number in (2, 4):
        cluster[number].restart()
    assert cluster.propose(put("a", b"x")) == [3]
    # and the third, much later, with its old copy
    cluster[3].start()
    replace_outdated(cluster[3])
    leader = cluster.wait_leader()
    grow(cluster, leader, [2, 3, 4], token=2)
    check_values(cluster[3], 5)


def test_a_former_members_copy_stops_until_it_is_rebuilt_and_its_change_fails_by_name() -> None:
    cluster = three()
    cluster[2].crash()
    cluster[3].crash()
    survivor, _ = reset(cluster[1])
    cluster.run_until(lambda: survivor.ready)
    cluster[2].start()
    last = cluster[2].group().last_index()
    survivor.change_peers(survivor.term, 1, [1, 2])
    cluster.run_until(lambda: bool(cluster[1].listener.errors))
    stopped = cluster[2].group().stopped
    assert isinstance(stopped, CopyOutdated)
    assert "reset" in stopped.message
    # what it has is still there, also after a restart, until its driver gives it up
    cluster[2].restart()
    cluster.run_for(1_000)
    assert cluster[2].group().last_index() == last
    assert survivor.status().stage is Stage.NONE
    replace_outdated(cluster[2])
    cluster[1].listener.errors.clear()
    grow(cluster, cluster[1], [1, 2], token=2)


def test_a_rebuilt_copy_of_an_earlier_lineage_may_have_had_a_higher_incarnation() -> None:
    # given a member that was added by an entry that the survivor never saw
    cluster = three()
    old = cluster.make_leader(2)
    cluster.isolate(1)
    for i in range(30):
        cluster.wait(old.group().propose(put("x", b"%d" % i)))
    cluster[4].create("g")
    old.group().change_peers(old.group().term, 1, [2, 3, 4])
    cluster.run_until(lambda: bool(old.listener.committed))
    assert old.group().members().incarnation(4) > 30
    for number in (2, 3, 4):
        cluster[number].crash()
    cluster.heal()
    survivor, done = reset(cluster[1])
    cluster.run_until(lambda: survivor.ready)
    assert done.index < 30
    # when it is added to the new group, by an entry of a lower index
    cluster[4].start()
    replace_outdated(cluster[4], ask=[1])
    grow(cluster, cluster[1], [1, 4])
    assert survivor.members().incarnation(4) < 30
    # then its vote counts, and a crash does not make it forget
    cluster[4].crash()
    cluster[4].start()
    cluster.make_leader(4)
    assert cluster.propose(put("a", b"x")) == [1]
    # and if it is lost in this lineage it is silent until it was added once more
    before = cluster[1].group().members().incarnation(4)
    cluster.make_leader(1)
    cluster[5].create("g")
    grow(cluster, cluster[1], [1, 4, 5], token=2)
    cluster.wait(cluster[4].rebuild())
    assert cluster[4].group().raft.core.mute
    cluster.run_until(lambda: cluster[1].group().members().incarnation(4) > before)
    cluster.run_until(lambda: 4 in cluster[1].group().status().voters)
    cluster.wait_even(1, 4, 5)


def test_a_group_that_was_reset_often_is_joined_by_a_new_copy() -> None:
    # given terms that have risen by more than a member believes of its own group
    cluster = three()
    cluster[2].crash()
    cluster[3].crash()
    for _ in range(5):
        cluster[1].here.close_group("g")
        assert cluster[1].log is not None
        reset_members(cluster[1].log.group("g"), 1_999)  # the farthest step
        cluster.run_for(100)
    group, done = reset(cluster[1])
    cluster.run_until(lambda: group.ready)
    assert done.term > 1 << 32
    cluster[4].create("g")
    grow(cluster, cluster[1], [1, 4])


def test_a_fresh_machine_is_what_a_reset_copy_is_opened_with() -> None:
    cluster = three()
    machine = KvMachine()
    group, _ = cluster[1].here.reset("g", machine)
    cluster.run_until(lambda: group.ready)
    assert machine.rows.keys() == {f"k{i}" for i in range(5)}
