"""Versions of the machine: a group moves on when every member knows how, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster
from group.kv import put
from lowmark.group import ChangeAnswer, ChangeError, MachineTooOld, Stage
from lowmark.group.wire import Item, Knows


def versions(cluster: Cluster) -> set[int]:
    return {m.group().version for m in cluster.members.values() if m.has()}


def upgrade(cluster: Cluster, *numbers: int, to: int = 2) -> None:
    """Restart nodes with newer code, one after another."""
    for number in numbers:
        cluster[number].machine_version = to
        cluster[number].restart()
        cluster.wait_leader()
        cluster.run_for(1_000)


def snapshot_everywhere(cluster: Cluster) -> None:
    for member in cluster.members.values():
        if member.has():
            member.group().snapshot()
    cluster.run_for(500)


def test_a_new_group_starts_with_what_all_founders_know() -> None:
    cluster = Cluster(machine_version=3)
    cluster.wait_leader()
    cluster.run_until(lambda: versions(cluster) == {3})


def test_a_rolling_upgrade_takes_effect_with_the_last_node() -> None:
    # given a group of machines that know version 1
    cluster = Cluster()
    assert cluster.propose(put("a", b"x")) == [1]
    # when node after node is restarted with version 2
    for number in (1, 2):
        upgrade(cluster, number)
        # then everybody behaves like version 1 while one is left
        assert versions(cluster) == {1}
    assert cluster.propose(put("a", b"x")) == [2]
    # and like version 2 from the same entry on when none is
    upgrade(cluster, 3)
    cluster.run_until(lambda: versions(cluster) == {2})
    assert cluster.propose(put("a", b"x")) == [12]
    cluster.wait_even()
    assert all(m.machine.rows["a"].version == 12 for m in cluster.members.values())


def test_a_lost_word_about_versions_is_said_again() -> None:
    # given a network that loses the first words of each member about its version
    cluster = Cluster(machine_version=2)
    lost: list[int] = []

    def loses(sender: int, to: int, item: Item) -> bool:
        del to
        if isinstance(item, Knows) and lost.count(sender) < 3:
            lost.append(sender)
            return True
        return False

    cluster.network.loses = loses
    # then the group moves on all the same, without another election
    cluster.run_until(lambda: versions(cluster) == {2})
    assert len(lost) >= 6
    assert cluster.wait_leader().group().term == 1


def test_a_full_queue_does_not_keep_the_group_from_its_new_version() -> None:
    # given a leader that has as many requests as it takes when a member tells what it knows
    cluster = Cluster(config=replace(FAST, waiting_requests_max=2))
    leader = cluster.make_leader(1)
    upgrade(cluster, 2, 3)
    leader = cluster.wait_leader()
    cluster[1].machine_version = 2
    if leader.number == 1:
        leader = cluster.make_leader(2)
    cluster[1].restart()
    for _ in range(100):
        while not leader.group().propose(put("a", b"x")).done:
            pass
        cluster.run_for(20)
    # then nothing breaks, and it moves on
    assert versions(cluster) == {2}


def test_a_node_that_is_down_holds_the_upgrade_back() -> None:
    cluster = Cluster()
    cluster.wait_leader()
    cluster[3].stop()
    upgrade(cluster, 1, 2)
    assert versions(cluster) == {1}
    cluster[3].machine_version = 2
    cluster[3].start()
    cluster.run_until(lambda: versions(cluster) == {2})


def test_the_version_survives_restarts_with_and_without_a_snapshot() -> None:
    cluster = Cluster(machine_version=2)
    cluster.run_until(lambda: versions(cluster) == {2})
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    for number in (1, 2, 3):
        cluster[number].restart()
    cluster.wait_leader()
    assert cluster.propose(put("a", b"x")) == [20]
    snapshot_everywhere(cluster)
    for number in (1, 2, 3):
        cluster[number].crash()
        cluster[number].start()
    assert versions(cluster) == {2}
    assert cluster.propose(put("a", b"x")) == [30]


def test_groups_rest_while_an_upgrade_is_half_done() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    upgrade(cluster, 1, 2)
    # Members know more than is in force; nobody need be reminded of it with every tick.
    cluster.run_until(
        lambda: all(m.group().resting.resting for m in cluster.members.values()),
        timeout_ms=5_000,
    )
    # and the upgrade of the last one finds them all the same
    upgrade(cluster, 3)
    cluster.run_until(lambda: versions(cluster) == {2})


def test_a_learner_that_knows_less_holds_the_upgrade_back() -> None:
    # given a group with a learner, all of version 1
    cluster = Cluster(spare=1)
    leader = cluster.wait_leader()
    leader.listener.finish = False
    cluster[4].create("g")
    leader.group().change_peers(leader.group().term, 1, [1, 2, 3, 4])
    cluster.run_until(lambda: bool(leader.listener.asked))
    # when all voters are upgraded, but not the learner
    upgrade(cluster, 1, 2, 3)
    assert cluster.wait_leader().group().status().learners == (4,)
    assert versions(cluster) == {1}
    # then the group waits for it
    cluster[4].machine_version = 2
    cluster[4].restart()
    cluster.run_until(lambda: versions(cluster) == {2})


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_new_member_that_knows_too_little_fails_the_change_by_name(with_snapshot: bool) -> None:
    # given a group at version 2
    cluster = Cluster(spare=1, machine_version=2)
    cluster.run_until(lambda: versions(cluster) == {2})
    cluster.propose(put("a", b"x"))
    if with_snapshot:
        snapshot_everywhere(cluster)
    # when a node with older code is to join
    cluster[4].machine_version = 1
    cluster[4].restart()
    cluster[4].create("g")
    leader = cluster.wait_leader()
    answer = leader.group().change_peers(leader.group().term, 7, [1, 2, 3, 4])
    assert answer is ChangeAnswer.RECEIVED
    cluster.run_until(lambda: bool(leader.listener.errors))
    # then the change fails, long before it could stall, and says by whom
    (error,) = leader.listener.errors
    assert (error.error, error.node, error.token) == (ChangeError.TOO_OLD, 4, 7)
    cluster.run_until(lambda: not leader.group().status().learners)
    assert leader.group().status().voters == (1, 2, 3)
    assert leader.group().status().stage is Stage.NONE
    # and the newcomer says what it lacks
    status = cluster[4].group().status()
    assert "needs version 2 of its machine" in status.stopped + status.install_refused
    assert cluster[4].machine.rows == {}
    assert cluster.propose(put("a", b"x")) == [20]


def test_a_learner_that_stops_before_it_could_say_so_is_never_promoted() -> None:
    # given a newcomer with older code, which applies everything before its first tick
    cluster = Cluster(spare=1, machine_version=2)
    cluster.run_until(lambda: versions(cluster) == {2})
    cluster[4].machine_version = 1
    cluster[4].config = replace(FAST, tick_ms=5_000)
    cluster[4].restart()
    cluster[4].create("g")
    leader = cluster.wait_leader()
    leader.group().change_peers(leader.group().term, 1, [1, 2, 3, 4])
    cluster.run_until(lambda: bool(leader.listener.errors or leader.listener.committed))
    assert [error.error for error in leader.listener.errors] == [ChangeError.TOO_OLD]
    assert leader.listener.committed == []


def test_a_snapshot_of_a_newer_version_is_refused_by_name_and_changes_nothing() -> None:
    # given a member that knew version 2 and is started again with older code
    cluster = Cluster(machine_version=2)
    cluster.propose(put("a", b"x"))
    cluster.run_until(lambda: versions(cluster) == {2})
    cluster.wait_even()
    cluster.make_leader(1)
    cluster[3].crash(killed=True)
    cluster.propose(*(put("a", b"y") for _ in range(20)))
    snapshot_everywhere(cluster)
    assert cluster[1].group().status().snapshot_index > 20
    cluster[3].machine_version = 1
    cluster[3].start(opens=False)
    # when it opens its log: the entry that moved the group to version 2 is in it
    group = cluster[3].open()
    before = group.status()
    cluster.run_for(2_000)
    # then it stops or refuses, by name, and its log is as it was
    status = group.status()
    assert "needs version 2 of its machine; this process has 1" in (
        status.stopped + status.install_refused
    )
    assert (status.snapshot_index, status.last_index) == (0, before.last_index)
    # and with the right code again it catches up
    cluster[3].machine_version = 2
    cluster[3].restart()
    cluster.wait_even()
    assert cluster[3].machine.rows == cluster[1].machine.rows


def test_a_machine_that_is_older_than_its_own_snapshot_is_refused_at_open() -> None:
    cluster = Cluster(nodes=1, machine_version=2)
    cluster.propose(put("a", b"x"))
    snapshot_everywhere(cluster)
    cluster[1].stop()
    cluster[1].machine_version = 1
    cluster[1].start(opens=False)
    with pytest.raises(MachineTooOld) as refused:
        cluster[1].open()
    assert (refused.value.needed, refused.value.have) == (2, 1)
    # the right code opens it
    cluster[1].machine_version = 2
    cluster[1].open()
    assert cluster.propose(put("a", b"x")) == [20]
