"""Copies that were lost: they say nothing until their node was taken out and added again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import Row, put, value_of
from group.test_reset import CONFIG as RESETTABLE
from group.test_reset import grow, reset
from lowmark.errors import LowmarkError, Rejected
from lowmark.group import QuarantinedHere, Stage
from lowmark.group.storage import GroupMeta
from lowmark.group.wire import Item, Rejoin
from lowmark.log import Damaged
from lowmark.raft import (
    AppendResponse,
    HeartbeatResponse,
    VoteResponse,
)


def damage(cluster: Cluster, member: Member) -> None:
    """Flip a bit in a segment of the member's, and have it noticed."""
    assert member.log is not None
    cluster.propose(*(put(f"k{i}", b"value %d" % i) for i in range(20)))
    cluster.wait_even()
    log = member.log
    log.roll()
    cluster.run_until(lambda: log.idle)
    (path,) = (p for p in member.disk.tree() if p.startswith("groups/g/") and "segment" in p)
    content = bytes(member.disk.open(path, "read").map())
    member.disk.flip_bit(path, 8 * content.index(b"value 7"))
    with pytest.raises(LowmarkError, match="checksum"):
        member.group().read_command(member.machine.rows["k7"].index)
    cluster.run_for(100)
    assert "quarantine" in member.group().status().stopped


def wait_voter(cluster: Cluster, number: int, *, above: int) -> None:
    """Until a node is a voter again, as a later incarnation."""

    def back() -> bool:
        leader = cluster.leader()
        if leader is None or leader.number == number:
            return False
        status = leader.group().status()
        members = leader.group().members()
        return (
            number in status.voters
            and not status.voters_outgoing
            and status.stage is Stage.NONE
            and members.incarnation(number) > above
        )

    cluster.run_until(back)
    cluster.wait_even()


def test_a_damaged_copy_is_rebuilt_and_comes_back_as_a_voter_of_another_incarnation() -> None:
    # given a follower whose copy is in quarantine
    cluster = Cluster(log_config=TINY_LOG)
    cluster.make_leader(1)
    damage(cluster, cluster[3])
    # when it is thrown away and made anew
    cluster.wait(cluster[3].rebuild())
    # then it is removed, added again as a learner, and promoted when it has caught up
    leader = cluster.wait_leader()
    stages: set[Stage] = set()
    learned = False

    def look() -> bool:
        nonlocal learned
        status = leader.group().status()
        stages.add(status.stage)
        learned = learned or 3 in status.learners
        return status.stage is Stage.NONE and Stage.STABLE in stages

    cluster.run_until(look)
    assert learned
    wait_voter(cluster, 3, above=0)
    assert cluster[3].machine.rows == leader.machine.rows
    for row in cluster[3].machine.rows.values():
        cluster[3].group().read_command(row.index)
    # and its vote counts
    cluster.isolate(2)
    assert cluster.propose(put("a", b"x")) == [1]
    cluster.heal()
    cluster.make_leader(3)
    assert cluster.propose(put("a", b"x")) == [2]


def test_a_damaged_copy_whose_last_record_is_lost_is_not_taken_for_what_it_was_last() -> None:
    # given a copy that was made anew before, and whose record is again that of the first one: the
    # later one went with the part of the WAL that is damaged
    cluster = Cluster(log_config=TINY_LOG)
    cluster.make_leader(1)
    member = cluster[3]
    assert member.log is not None
    first = member.log.group("g").meta
    cluster.wait(member.rebuild())
    wait_voter(cluster, 3, above=0)
    last = cluster.wait_leader().group().members().incarnation(3)
    written: list[LowmarkError | None] = []
    member.log.group("g").put_meta(first, written.append)
    cluster.run_until(lambda: bool(written))
    damage(cluster, member)
    member.crash(killed=True)
    member.start()
    assert member.log is not None
    assert GroupMeta.decode(member.log.group("g").meta).hard.incarnation == 0 < last
    # when it is made anew, then it comes back as a later one, not as the last
    cluster.wait(member.rebuild())
    assert member.group().in_doubt
    wait_voter(cluster, 3, above=last)


def test_a_damaged_copy_of_a_reset_group_hears_no_word_of_the_majority_it_was_reset_without() -> (
    None
):
    # given a group that was reset at node 1, and has other members since, while the members that it
    # was reset without go on by themselves
    cluster = Cluster(0, spare=2, config=RESETTABLE, log_config=TINY_LOG)
    cluster.make_leader(2)
    cluster.propose(put("a", b"1"))
    cluster.wait_even()
    cluster.isolate(1)
    survivor, _ = reset(cluster[1])
    cluster.run_until(lambda: survivor.ready)
    cluster.heal()
    cluster.run_for(2_000)
    for number in (4, 5):
        cluster[number].create("g")
    grow(cluster, cluster[1], [1, 4, 5])
    old = cluster[1].group()
    lineage, lost = old.status().lineage, old.incarnation
    # when its first copy is damaged, and made anew
    cluster[1].here.quarantine("g", Damaged("a segment", offset=0, what="it is"))
    cluster.run_until(lambda: cluster[1].group().stopped is not None)
    cluster.run_until(lambda: any(cluster[number].group().ready for number in (4, 5)))
    cluster.wait(cluster[1].rebuild())
    spoke: list[tuple[int, int]] = []

    def back() -> bool:
        core = cluster[1].group().raft.core
        if not core.mute:
            spoke.append((core.lineage, core.incarnation))
        return bool(spoke)

    cluster.run_until(back)
    # then it speaks in the lineage of the reset group alone, as a later incarnation
    assert spoke[0][0] == lineage
    assert spoke[0][1] > lost


def test_a_damaged_leaders_copy_is_rebuilt_by_the_next_leader() -> None:
    cluster = Cluster(log_config=TINY_LOG)
    cluster.make_leader(1)
    damage(cluster, cluster[1])
    cluster.wait_leader(other_than=1)
    cluster.wait(cluster[1].rebuild())
    wait_voter(cluster, 1, above=0)
    assert cluster.propose(put("a", b"x")) == [1]


def test_it_can_be_lost_and_rebuilt_again_and_again() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.make_leader(1)
    incarnations = [0]
    for _ in range(3):
        cluster.wait(cluster[3].rebuild())
        wait_voter(cluster, 3, above=incarnations[-1])
        incarnations.append(cluster.wait_leader().group().members().incarnation(3))
        assert cluster[3].group().status().incarnation == incarnations[-1]
    assert incarnations == sorted(set(incarnations))


def test_a_new_copy_says_nothing_but_that_it_wants_to_rejoin() -> None:
    # given a copy that was made anew, and a leader that never hears its wish
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.make_leader(1)
    cluster.wait_even()
    cluster.network.loses = lambda _s, _t, item: isinstance(item, Rejoin)
    cluster.wait(cluster[3].rebuild())
    sent = cluster.network.watch()
    # when much happens around it, elections too
    cluster.propose(put("a", b"x"))
    cluster.make_leader(2)
    cluster.propose(put("a", b"x"))
    cluster.run_for(3_000)
    # then all it says is that: no vote, no acknowledgement, no answer to a heartbeat
    said = {type(item) for s in sent if s.sender == 3 for _, item in s.items}
    assert said == {Rejoin}
    # and it does not count
    cluster.isolate(1)
    waiting = cluster[2].group().propose(put("a", b"x"), timeout_ms=1_000)
    assert cluster.wait_error(waiting) is not None
    cluster.heal()
    cluster.network.loses = None
    wait_voter(cluster, 3, above=0)


def test_a_new_copy_that_crashes_before_it_was_added_is_still_silent() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.make_leader(1)
    cluster.network.loses = lambda _s, _t, item: isinstance(item, Rejoin)
    cluster.wait(cluster[3].rebuild())
    cluster.run_for(200)
    cluster[3].crash()
    cluster[3].start()
    sent = cluster.network.watch()
    cluster.make_leader(2)
    cluster.run_for(1_000)
    said = [item for s in sent if s.sender == 3 for group, item in s.items if group == "g"]
    assert {type(item) for item in said} <= {Rejoin}
    cluster.network.loses = None
    wait_voter(cluster, 3, above=0)


def test_a_copy_that_is_created_anew_after_its_files_were_lost_rejoins() -> None:
    # given a node whose whole disk was replaced; somebody knows which incarnation it had
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.make_leader(1)
    cluster[3].crash()
    cluster[3].disk = type(cluster[3].disk)()
    cluster[3].start()
    cluster[3].recreate("g", ask=(1, 2), incarnation=0)
    wait_voter(cluster, 3, above=0)
    assert cluster[3].machine.rows == cluster[1].machine.rows


def test_late_words_of_a_former_incarnation_change_nothing() -> None:
    # given everything that a member said before it was lost
    cluster = Cluster()
    cluster.make_leader(1)
    said: list[Item] = []

    def note(sender: int, to: int, item: Item) -> bool:
        if (sender, to) == (3, 1):
            said.append(item)
        return False

    cluster.network.loses = note
    cluster.propose(*(put("a", b"x") for _ in range(20)))
    cluster.run_for(200)
    cluster.network.loses = None
    answers = [i for i in said if isinstance(i, AppendResponse | HeartbeatResponse | VoteResponse)]
    assert any(isinstance(i, AppendResponse) and i.index > 15 for i in answers)
    # when it is said again while the new copy has nothing yet
    cluster.network.loses = lambda sender, _t, item: (
        sender == 3 and isinstance(item, AppendResponse)
    )
    cluster.wait(cluster[3].rebuild())
    leader = cluster[1]
    cluster.run_until(lambda: 3 in leader.group().status().learners)
    # one of the same term
    assert leader.group().term == answers[-1].term
    for item in answers:
        leader.group().received(3, item)
    cluster.run_for(100)
    # then the leader does not believe that the new copy has any of it
    assert leader.group().progress()[3].match == 0
    assert 3 in leader.group().status().learners
    cluster.network.loses = None
    wait_voter(cluster, 3, above=0)


def test_a_copy_that_never_left_its_group_needs_no_other_copy_for_a_restart() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster[3].restart()
    cluster.wait_even()
    assert cluster[3].group().status().incarnation == 0


def test_a_node_that_left_and_is_added_again_is_another_incarnation() -> None:
    # given a node that was taken out of the group, and gave up its copy
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    leader = cluster.make_leader(1)
    leader.group().change_peers(leader.group().term, 1, [1, 2])
    cluster.run_until(lambda: bool(leader.listener.committed))
    cluster[3].here.leave("g")
    log = cluster[3].log
    assert log is not None
    cluster.run_until(lambda: log.idle)
    # when it is added again
    cluster[3].create("g")
    leader.group().change_peers(leader.group().term, 2, [1, 2, 3])
    wait_voter(cluster, 3, above=0)
    assert cluster[3].machine.rows == leader.machine.rows


def test_a_removed_node_that_kept_its_copy_is_added_again_and_speaks() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    leader = cluster.make_leader(1)
    leader.group().change_peers(leader.group().term, 1, [1, 2])
    cluster.run_until(lambda: bool(leader.listener.committed))
    cluster.propose(*(put("a", b"x") for _ in range(5)))
    leader.group().change_peers(leader.group().term, 2, [1, 2, 3])
    wait_voter(cluster, 3, above=0)
    assert cluster[3].machine.rows == leader.machine.rows


def test_rebuilding_with_a_snapshot_and_traffic() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_entries=30), log_config=TINY_LOG)
    cluster.make_leader(1)
    for i in range(60):
        cluster.propose(put(f"k{i}", b"value %d" % i))
    cluster.run_for(200)
    rebuilt = cluster[3].rebuild()
    for i in range(60):
        cluster.propose(put(f"k{i}", b"value %d" % i))
    cluster.wait(rebuilt)
    wait_voter(cluster, 3, above=0)
    for key, row in cluster[3].machine.rows.items():
        value = value_of(cluster[3].group().read_command(row.index).data)
        assert value == b"value %d" % int(key[1:])


# -- a group's only copy --------------------------------------------------------------------------


def test_a_groups_only_copy_in_quarantine_is_read_only() -> None:
    # given a group of one, whose copy is damaged
    cluster = Cluster(nodes=1, log_config=TINY_LOG)
    damage(cluster, cluster[1])
    group = cluster[1].group()
    # then it refuses commands by name, and what is sound can be read
    assert isinstance(group.propose(put("a", b"x")).error, QuarantinedHere)
    assert isinstance(group.read("k1").error, QuarantinedHere)
    row = group.read_local("k1")
    assert isinstance(row, Row)
    assert value_of(group.read_command(row.index).data) == b"value 1"
    # and nobody throws it away: there is no other
    with pytest.raises(Rejected, match="no other copy"):
        cluster[1].rebuild()


def test_a_groups_only_copy_in_quarantine_is_read_only_after_a_restart_too() -> None:
    cluster = Cluster(nodes=1, log_config=TINY_LOG)
    damage(cluster, cluster[1])
    cluster.run_for(500)
    cluster[1].restart()
    cluster.run_for(500)
    group = cluster[1].group()
    assert isinstance(group.propose(put("a", b"x")).error, QuarantinedHere)
    row = group.read_local("k1")
    assert isinstance(row, Row)
    assert value_of(group.read_command(row.index).data) == b"value 1"


def test_a_groups_only_copy_without_its_snapshot_still_opens_and_says_why() -> None:
    # given a group of one, whose log begins behind a snapshot, and that snapshot is damaged
    cluster = Cluster(nodes=1, config=replace(FAST, snapshot_entries=40), log_config=TINY_LOG)
    for i in range(10):
        cluster.propose(*(put(f"key-{i}-{k % 5}", b"value %d" % k) for k in range(30)))
        cluster.run_for(100)
    member = cluster[1]
    assert member.group().status().snapshot_index > 200
    member.stop()
    (path,) = (p for p in member.disk.tree() if p.endswith("/state"))
    content = bytes(member.disk.open(path, "read").map())
    member.disk.flip_bit(path, 8 * content.index(b"key-3-1"))
    # when it is opened
    member.start()
    cluster.run_for(500)
    # then it refuses by name, and shows what it can, which may be nothing
    group = member.group()
    assert isinstance(group.propose(put("a", b"x")).error, QuarantinedHere)
    assert "damaged" in group.status().stopped
    group.read_local("key-3-1")


def test_a_member_whose_disk_was_put_back_to_an_older_state_stops_and_is_rebuilt() -> None:
    # given a member whose disk is an old copy of itself: it lacks what it acknowledged
    cluster = Cluster()
    cluster.make_leader(1)
    cluster.propose(*(put("a", b"x") for _ in range(5)))
    cluster.wait_even()
    cluster.run_for(500)
    old = cluster[3].disk.crashed(Random(1))
    cluster.propose(*(put("a", b"x") for _ in range(5)))
    cluster.wait_even()
    cluster[3].crash()
    cluster[3].disk = old
    cluster[3].start()
    # when its leader, which knows what it had, speaks to it
    cluster.run_until(lambda: bool(cluster[3].group().status().stopped))
    # then it stops by name rather than vote with half a memory
    assert "committed, but the log ends" in cluster[3].group().status().stopped
    cluster.wait(cluster[3].rebuild())
    wait_voter(cluster, 3, above=0)
    assert cluster[3].machine.rows == cluster[1].machine.rows
