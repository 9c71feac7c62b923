"""Proposals and reads: every future resolves, once, and says what became of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import Row, cas, digest, put, value_of
from lowmark.errors import LowmarkError
from lowmark.group import (
    CommandTooLarge,
    Future,
    GroupBusy,
    GroupStopped,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    QuarantinedHere,
    ReadTimedOut,
    ShuttingDown,
    Superseded,
)
from lowmark.raft import Append


def versions(machine: object) -> dict[str, int]:
    assert isinstance(machine, dict)
    return {key: row.version for key, row in machine.items()}


# -- proposals ------------------------------------------------------------------------------------


def test_a_command_is_answered_with_the_machines_result_and_applied_everywhere() -> None:
    # given a group of three
    cluster = Cluster()
    # when commands are proposed at the leader
    results = cluster.propose(put("a", b"1"), put("a", b"2"), cas("a", digest(b"1"), b"3"))
    # then each answer is the machine's, and every member comes to the same state
    assert results == [1, 2, False]
    cluster.wait_even()
    assert all(m.machine.rows == cluster[1].machine.rows for m in cluster.members.values())


def test_what_a_caller_outside_proposes_is_in_the_log_in_the_same_turn() -> None:
    # given a leader with nothing to do
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.wait_even()
    group, futures = leader.group(), list[Future[object]]()
    before = group.log.last_index
    # when a step proposes, within a turn of the groups
    leader.here.turn(lambda: futures.append(group.propose(put("a", b"1"))))
    # then the log has it, though the loop has not gone on; and it is answered as any other
    assert group.log.last_index == before + 1
    cluster.run_until(lambda: futures[0].done)
    assert futures[0].result() == 1


def test_a_step_that_fails_leaves_the_work_of_groups_to_the_next_turn() -> None:
    # given a step that proposes, and fails then
    cluster = Cluster()
    leader = cluster.wait_leader()
    group, futures = leader.group(), list[Future[object]]()

    def step() -> None:
        futures.append(group.propose(put("a", b"1")))
        raise RuntimeError("a bug")

    # when it is done, then its error is told, and what it proposed is stored all the same
    with pytest.raises(RuntimeError, match="a bug"):
        leader.here.turn(step)
    cluster.run_until(lambda: futures[0].done)
    assert futures[0].result() == 1


def test_a_command_can_be_read_back_from_its_entry() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"a value"))
    leader = cluster.wait_leader()
    row = leader.machine.rows["a"]
    command = leader.group().read_command(row.index)
    assert (value_of(command.data), command.time) == (b"a value", row.time)


def test_a_follower_refuses_a_proposal_and_names_the_leader() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.run_for(200)
    for follower in cluster.followers():
        future = follower.group().propose(put("a", b"1"))
        assert isinstance(future.error, NotLeader)
        assert future.error.leader == leader.number


def test_without_a_leader_a_proposal_is_refused_at_once() -> None:
    # given a member that has not heard of anybody yet
    cluster = Cluster()
    # when it is asked before any election
    future = cluster[1].group().propose(put("a", b"1"))
    # then it says so instead of waiting
    assert isinstance(future.error, NotLeader)
    assert future.error.leader is None


def test_an_entry_that_another_leader_overwrote_is_superseded() -> None:
    # given a leader that is cut off with an entry that nobody else has
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    old = cluster.wait_leader()
    cluster.isolate(old.number)
    lost = old.group().propose(put("a", b"lost"), timeout_ms=60_000)
    cluster.run_for(5)
    # when others elect a new leader, which writes at the same index, and the network heals
    new = cluster.wait_leader(other_than=old.number)
    cluster.wait(new.group().propose(put("a", b"2")))
    cluster.heal()
    # then the proposer learns that its command was not applied and never will be
    error = cluster.wait_error(lost)
    assert isinstance(error, Superseded)
    assert error.leader == new.number
    cluster.wait_even()
    assert {m.machine.rows["a"].digest for m in cluster.members.values()} == {digest(b"2")}


def test_an_isolated_leader_says_after_the_timeout_that_the_outcome_is_unknown() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.isolate(leader.number)
    began = cluster.now_ms
    future = leader.group().propose(put("a", b"1"))
    error = cluster.wait_error(future)
    assert isinstance(error, NoQuorum)
    assert isinstance(error, OutcomeUnknown)
    waited = cluster.now_ms - began
    assert FAST.request_timeout_ms <= waited <= FAST.request_timeout_ms + 2 * FAST.tick_ms


def test_a_caller_may_wait_for_less_than_the_limit() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.isolate(leader.number)
    future = leader.group().propose(put("a", b"1"), timeout_ms=100)
    cluster.run_for(150)
    assert isinstance(future.error, NoQuorum)


def test_closing_answers_everybody_and_refuses_by_name_from_then_on() -> None:
    # given a leader with a command in its log and a read that waits, none of them confirmed
    cluster = Cluster()
    leader = cluster.wait_leader()
    group = leader.group()
    cluster.isolate(leader.number)
    under_way = group.propose(put("a", b"1"))
    cluster.run_for(5)
    reading = group.read("a")
    queued = group.propose(put("a", b"2"))
    # when the copy is closed
    leader.here.close_group("g")
    # then what was in the log may still happen, and the rest left no trace
    assert isinstance(under_way.error, ShuttingDown)
    assert isinstance(under_way.error, OutcomeUnknown)
    assert isinstance(reading.error, GroupStopped)
    assert isinstance(queued.error, GroupStopped)
    # and whoever comes later is refused by name, whatever he asks
    assert isinstance(group.propose(put("a", b"3")).error, GroupStopped)
    assert isinstance(group.read("a").error, GroupStopped)
    assert isinstance(group.rewrite().error, GroupStopped)
    with pytest.raises(GroupStopped):
        group.transfer(1)
    with pytest.raises(GroupStopped):
        leader.here.group("g")
    assert group.status().stopped


def test_closing_the_node_closes_all_its_groups() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    group = leader.group()
    future = group.propose(put("a", b"1"))
    leader.here.close()
    leader.here.close()
    assert isinstance(future.error, GroupStopped)
    assert leader.here.groups() == []


def test_whoever_hears_that_his_command_timed_out_may_close_the_group() -> None:
    # given several commands that will time out together
    cluster = Cluster()
    leader = cluster.wait_leader()
    group = leader.group()
    cluster.isolate(leader.number)
    futures = [group.propose(put("a", b"1")) for _ in range(3)]
    # when the first one's owner closes the group on hearing of it
    futures[0].then(lambda _: leader.here.close_group("g"))
    cluster.run_for(FAST.request_timeout_ms + 200)
    # then all are answered, and the node goes on
    assert all(future.done for future in futures)
    assert leader.here.groups() == []


def test_a_snapshot_that_skips_a_command_leaves_its_outcome_open() -> None:
    # given an old leader that is cut off with a command that nobody has
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    old = cluster.wait_leader()
    cluster.isolate(old.number)
    skipped = old.group().propose(put("b", b"1"), timeout_ms=60_000)
    # when the others go on, and a snapshot covers that index before the old leader is back
    new = cluster.wait_leader(other_than=old.number)
    cluster.propose(*(put("a", b"2") for _ in range(10)))
    for member in cluster.members.values():
        if member is not old:
            member.group().snapshot()
    cluster.run_until(lambda: new.group().status().snapshot_index > 10)
    cluster.heal()
    # then the old leader, which got a snapshot, can't tell what became of it
    error = cluster.wait_error(skipped)
    assert isinstance(error, OutcomeUnknown)
    assert "snapshot" in error.message


def test_a_command_at_the_limit_is_taken_and_one_byte_more_is_refused() -> None:
    cluster = Cluster(config=replace(FAST, command_bytes_max=1_000))
    group = cluster.wait_leader().group()
    overhead = len(put("a", b"x" * 900)) - 900
    fits, too_large = put("a", b"x" * (1_000 - overhead)), put("a", b"x" * (1_001 - overhead))
    assert (len(fits), len(too_large)) == (1_000, 1_001)
    assert cluster.wait(group.propose(fits)) == 1
    assert isinstance(group.propose(too_large).error, CommandTooLarge)


def test_requests_are_taken_up_to_the_limit_and_not_one_more() -> None:
    # given a leader that may have four requests waiting
    cluster = Cluster(config=replace(FAST, waiting_requests_max=4))
    group = cluster.wait_leader().group()
    # when three proposals and a read wait
    waiting: list[Future[object]] = [group.propose(put("a", b"1")) for _ in range(3)]
    waiting.append(group.read("a"))
    # then the fifth is refused by name, be it a proposal or a read
    assert isinstance(group.propose(put("a", b"1")).error, GroupBusy)
    assert isinstance(group.read("a").error, GroupBusy)
    # and when the first ones are answered there is room again
    assert [cluster.wait(future) for future in waiting[:3]] == [1, 2, 3]
    cluster.wait(waiting[3])
    assert cluster.wait(group.propose(put("a", b"1"))) == 4


def test_bytes_are_taken_up_to_the_limit_and_not_one_more() -> None:
    cluster = Cluster(config=replace(FAST, waiting_bytes_max=1_000))
    group = cluster.wait_leader().group()
    command = put("a", b"x" * 480)
    size = len(command)
    first = group.propose(command)
    rest = put("a", b"x" * (480 + 1_000 - 2 * size))
    assert len(rest) == 1_000 - size
    second = group.propose(rest)
    third = group.propose(put("a", b""))
    assert isinstance(third.error, GroupBusy)
    assert cluster.wait(first) == 1
    assert cluster.wait(second) == 2


@pytest.mark.parametrize("size", range(480, 512))
def test_what_was_taken_is_never_refused_later_for_want_of_room(size: int) -> None:
    # given a leader whose tail is half full of what can't be committed yet
    cluster = Cluster(config=replace(FAST, waiting_bytes_max=1_000))
    leader = cluster.wait_leader()
    cluster.isolate(leader.number)
    first = leader.group().propose(put("a", b"x" * 470))
    cluster.run_for(5)
    # when another command comes that has just room, or just not
    second = leader.group().propose(put("a", b"x" * size))
    cluster.run_for(5)
    assert not first.done
    assert not second.done
    # then it waits its turn, and is applied like any other
    cluster.heal()
    assert (cluster.wait(first), cluster.wait(second)) == (1, 2)


# -- damage ---------------------------------------------------------------------------------------


def damage_a_segment(cluster: Cluster, member: Member) -> int:
    """Flip a bit in a value that is in a segment; give the entry's index."""
    assert member.log is not None
    cluster.propose(*(put(f"k{i}", b"value %d" % i) for i in range(20)))
    cluster.wait_even()
    member.log.roll()
    cluster.run_until(lambda: member.log is not None and member.log.idle)
    index = member.machine.rows["k7"].index
    (path,) = (p for p in member.disk.tree() if p.startswith("groups/g/") and "segment" in p)
    content = bytes(member.disk.open(path, "read").map())
    member.disk.flip_bit(path, 8 * content.index(b"value 7"))
    return index


def test_damage_stops_this_copy_by_name_and_no_other() -> None:
    # given a leader in whose segment a bit has flipped
    cluster = Cluster(log_config=TINY_LOG)
    leader = cluster.wait_leader()
    index = damage_a_segment(cluster, leader)
    group = leader.group()
    waiting = group.read("k1")
    # when somebody reads that entry
    with pytest.raises(LowmarkError, match="checksum"):
        group.read_command(index)
    cluster.run_for(100)
    # then this copy refuses everything by name
    assert isinstance(group.propose(put("a", b"1")).error, QuarantinedHere)
    assert isinstance(group.read("k1").error, QuarantinedHere)
    assert waiting.done
    assert "quarantine" in group.status().stopped
    # but what is sound in memory can be looked at
    assert group.read_local("k1") == leader.machine.rows["k1"]
    # and the others elect a leader and go on
    new = cluster.wait_leader(other_than=leader.number)
    assert cluster.wait(new.group().propose(put("a", b"2"))) == 1


def test_a_command_under_way_when_its_copy_breaks_has_an_unknown_outcome() -> None:
    # given a leader with a command in its log that others may have by now
    cluster = Cluster(log_config=TINY_LOG)
    leader = cluster.wait_leader()
    index = damage_a_segment(cluster, leader)
    group = leader.group()
    cluster.isolate(leader.number)
    under_way = group.propose(put("a", b"1"))
    cluster.run_for(5)
    # when its copy is found to be damaged
    with pytest.raises(LowmarkError, match="checksum"):
        group.read_command(index)
    error = cluster.wait_error(under_way)
    # then nobody claims that it was not applied: the new leader may well do it
    assert isinstance(error, OutcomeUnknown)
    assert "quarantine" in error.message


# -- reads ----------------------------------------------------------------------------------------


def test_a_read_reflects_all_that_was_answered_before_on_leader_and_followers() -> None:
    cluster = Cluster()
    for version in range(1, 6):
        cluster.propose(put("a", b"%d" % version))
        # asked at once, before followers can have applied it
        reads = [m.group().read("a") for m in cluster.members.values()]
        for read in reads:
            row = cluster.wait(read)
            assert isinstance(row, Row)
            assert row.version == version


def test_an_isolated_old_leader_never_answers_a_read() -> None:
    # given an old leader that is cut off and does not know it, and a newer one
    cluster = Cluster()
    cluster.propose(put("a", b"old"))
    old = cluster.wait_leader()
    cluster.isolate(old.number)
    early = old.group().read("a")
    new = cluster.wait_leader(other_than=old.number)
    cluster.wait(new.group().propose(put("a", b"new")))
    # when it is asked
    late = old.group().read("a")
    for read in (early, late):
        # then it times out rather than give an old answer
        assert isinstance(cluster.wait_error(read), ReadTimedOut)
    # though it shows what it has to those who say that old will do
    row = old.group().read_local("a")
    assert isinstance(row, Row)
    assert row.digest == digest(b"old")


def test_a_read_that_waits_when_the_network_heals_sees_the_newest() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"old"))
    old = cluster.wait_leader()
    cluster.isolate(old.number)
    new = cluster.wait_leader(other_than=old.number)
    cluster.wait(new.group().propose(put("a", b"new")))
    read = old.group().read("a", timeout_ms=30_000)
    cluster.run_for(500)
    assert not read.done
    cluster.heal()
    row = cluster.wait(read)
    assert isinstance(row, Row)
    assert row.digest == digest(b"new")


def test_a_local_read_needs_nobody() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    cluster.wait_even()
    cluster.isolate(2)
    cluster.run_for(2_000)
    row = cluster[2].group().read_local("a")
    assert isinstance(row, Row)
    assert row.version == 1


def test_reads_and_proposals_are_answered_though_messages_get_lost() -> None:
    # given a network that loses, doubles and reorders
    cluster = Cluster(config=replace(FAST, request_timeout_ms=20_000))
    cluster.wait_leader()
    weather = cluster.network.weather
    weather.drop = weather.duplicate = weather.overtake = 0.1
    for round_ in range(20):
        leader = cluster.wait_leader()
        futures = [leader.group().propose(put("a", b"x")) for _ in range(3)]
        futures += [m.group().read("a") for m in cluster.members.values()]
        for future in futures:
            # then every future resolves, and reads with something
            cluster.run_until(lambda future=future: future.done)  # type: ignore[misc]
        assert all(future.error is None for future in futures[3:]), round_


def test_all_reads_of_a_turn_share_one_round() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    sent = cluster.network.watch()
    reads = [leader.group().read("a") for _ in range(100)]
    for read in reads:
        cluster.wait(read)
    frames = [s for s in sent if s.sender == leader.number and s.items]
    assert len(frames) <= 4


def test_all_proposals_of_a_turn_go_out_together() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.run_for(100)
    sent = cluster.network.watch()
    futures = [leader.group().propose(put("a", b"x")) for _ in range(100)]
    for future in futures:
        cluster.wait(future)
    appends = [i for s in sent for _, i in s.items if isinstance(i, Append) and i.entries]
    assert len(appends) == 2
    assert all(len(append.entries) == 100 for append in appends)


# -- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_ms", [3_600_000, -3_600_000, 500, -500])
def test_times_rise_over_changes_of_leaders_whose_clocks_are_wrong(skew_ms: int) -> None:
    # given a node whose wall clock is far off
    cluster = Cluster()
    cluster.wait_leader()
    cluster[1].clock.skew_ms = skew_ms
    times: list[int] = []
    # when leadership goes around, and each leader stamps a few commands
    for number in (1, 2, 1, 3, 2):
        leader = cluster.make_leader(number)
        for _ in range(3):
            cluster.wait(leader.group().propose(put("a", b"x")))
            times.append(leader.machine.rows["a"].time)
    # then times rise strictly all the same
    assert times == sorted(set(times))
    # also for one that starts again, from a snapshot
    cluster.make_leader(1)
    for member in cluster.members.values():
        member.group().snapshot()
    cluster.run_until(lambda: cluster[2].group().status().snapshot_index > 0)
    cluster.wait_even()
    cluster[2].restart()
    leader = cluster.make_leader(2)
    cluster.wait(leader.group().propose(put("a", b"x")))
    assert leader.machine.rows["a"].time > times[-1]
