"""How copies of groups come and go on a node; and a group that has one member only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster
from group.kv import KvMachine, put, value_of
from lowmark.errors import Rejected
from lowmark.group import GroupConfig, GroupStopped, TransportLimits
from lowmark.log import GroupExists, GroupLeaving, GroupUnknown

# -- one member -----------------------------------------------------------------------------------


def test_a_group_of_one_elects_itself_at_once() -> None:
    # given a node with default settings, where an election takes a second or two
    cluster = Cluster(nodes=1, config=GroupConfig())
    # then nobody waits for it: there is nobody else to wait for
    cluster.run_until(lambda: cluster[1].group().ready, timeout_ms=50)
    assert cluster[1].listener.elected == [1]


def test_a_group_of_one_commits_reads_and_restarts() -> None:
    cluster = Cluster(nodes=1, config=GroupConfig())
    for life in range(1, 4):
        assert cluster.propose(put("a", b"life %d" % life)) == [life]
        read = cluster.wait(cluster[1].group().read("a"))
        assert read == cluster[1].machine.rows["a"]
        if life == 2:
            cluster[1].stop()
        else:
            cluster[1].crash()
        cluster[1].start()
        cluster.run_until(lambda: cluster[1].group().ready, timeout_ms=50)
    row = cluster[1].machine.rows["a"]
    assert value_of(cluster[1].group().read_command(row.index).data) == b"life 3"


def test_a_group_of_one_rests_and_needs_no_clock() -> None:
    cluster = Cluster(nodes=1)
    cluster.propose(put("a", b"1"))
    cluster.run_until(lambda: cluster[1].group().status().resting)
    assert cluster.propose(put("a", b"2")) == [2]


def test_a_group_of_one_takes_snapshots_and_starts_from_them() -> None:
    cluster = Cluster(nodes=1, config=replace(FAST, snapshot_entries=50), log_config=TINY_LOG)
    for round_ in range(6):
        cluster.propose(*(put(f"k{i}", b"%d" % round_) for i in range(20)))
    cluster.run_until(lambda: cluster[1].group().status().snapshot_index > 100)
    cluster.run_for(200)
    cluster[1].crash()
    cluster[1].start()
    cluster.wait_leader()
    group, rows = cluster[1].group(), cluster[1].machine.rows
    cluster.run_until(lambda: len(cluster[1].machine.rows) == 20)
    values = {value_of(group.read_command(row.index).data) for row in rows.values()}
    assert values == {b"5"}


# -- copies ---------------------------------------------------------------------------------------


def test_a_group_can_be_created_once() -> None:
    cluster = Cluster()
    with pytest.raises(GroupExists):
        cluster[1].create("g", (1, 2, 3))


def test_a_group_can_be_opened_once() -> None:
    cluster = Cluster()
    cluster.wait_leader()
    with pytest.raises(Rejected, match="open already"):
        cluster[1].here.open("g", KvMachine())


def test_a_group_that_is_not_here_can_not_be_opened() -> None:
    cluster = Cluster()
    with pytest.raises(GroupUnknown):
        cluster[1].here.open("other", KvMachine())
    with pytest.raises(GroupStopped):
        cluster[1].here.group("other")


@pytest.mark.parametrize("name", ["", "A", "a/b", "../x", "x" * 65])
def test_a_group_needs_a_proper_name(name: str) -> None:
    cluster = Cluster(group="")
    with pytest.raises(Rejected):
        cluster[1].create(name, (1,))


@pytest.mark.parametrize("founders", [(0, 1), (-1, 1)])
def test_founders_have_positive_numbers(founders: tuple[int, ...]) -> None:
    cluster = Cluster(group="")
    with pytest.raises(Rejected):
        cluster[1].create("g", founders)


@pytest.mark.parametrize("node", [0, -1, 1 << 63])
def test_a_node_needs_a_proper_number(node: int) -> None:
    cluster = Cluster(group="")
    member = cluster[1]
    assert member.runtime is not None
    assert member.log is not None
    with pytest.raises(Rejected):
        type(member.here)(member.runtime, member.log, node=node, address="x:1")


def test_a_closed_copy_can_be_opened_again_and_goes_on() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    cluster.wait_even()
    follower = cluster.followers()[0]
    follower.here.close_group("g")
    follower.here.close_group("g")
    cluster.propose(put("a", b"2"))
    follower.open()
    cluster.wait_even()
    assert follower.machine.rows["a"].version == 2


def test_a_deleted_group_leaves_nothing_and_its_name_is_free_again() -> None:
    # given a group of one with some data
    cluster = Cluster(nodes=1)
    cluster.propose(put("a", b"1"))
    old = cluster[1].group()
    # when it is deleted
    cluster[1].here.delete("g")
    with pytest.raises(GroupStopped):
        cluster[1].here.group("g")
    # then its name is taken until its files are gone
    with pytest.raises(GroupLeaving):
        cluster[1].create("g", (1,))
    assert cluster[1].log is not None
    cluster.run_until(lambda: cluster[1].log is not None and cluster[1].log.idle)
    assert not [path for path in cluster[1].disk.tree() if "groups/g" in path]
    # and then a group of that name begins anew
    new = cluster[1].create("g", (1,))
    assert cluster.propose(put("a", b"2")) == [1]
    assert isinstance(old.propose(put("a", b"3")).error, GroupStopped)
    assert new.status().last_index < 10


def test_founders_may_name_each_other_in_any_order() -> None:
    cluster = Cluster(group="")
    for number, founders in {1: (1, 2, 3), 2: (3, 2, 1, 1), 3: (2, 3, 1)}.items():
        cluster[number].create("g", founders)
    assert cluster.propose(put("a", b"1")) == [1]
    cluster.wait_even()
    assert {m.group().status().voters for m in cluster.members.values()} == {(1, 2, 3)}


def test_a_node_that_is_no_founder_waits_and_never_disturbs() -> None:
    # given a node that has made a copy of a group that does not count it among its members
    cluster = Cluster(spare=1)
    group = cluster[4].create("g", (1, 2, 3))
    cluster.propose(put("a", b"1"))
    term = cluster.wait_leader().group().term
    # when much time passes
    cluster.run_for(5_000)
    # then it has never stood for election, and the others know nothing of it
    assert group.status().voters == ()
    assert group.term == 0
    assert cluster.wait_leader().group().term == term
    # until it is added
    leader = cluster.wait_leader()
    leader.group().change_peers(term, 1, [1, 2, 3, 4])
    cluster.run_until(lambda: bool(leader.listener.committed))
    cluster.wait_even()
    assert cluster[4].machine.rows == leader.machine.rows
    assert group.status().voters == (1, 2, 3, 4)


def test_founders_that_come_late_find_their_group() -> None:
    cluster = Cluster(group="")
    cluster[1].create("g", (1, 2, 3))
    cluster.run_for(2_000)
    assert cluster.leader() is None
    cluster[2].create("g", (1, 2, 3))
    assert cluster.propose(put("a", b"1")) == [1]
    cluster.run_for(3_000)
    cluster[3].create("g", (1, 2, 3))
    cluster.wait_even(1, 2, 3)
    assert cluster[3].machine.rows == cluster[1].machine.rows


@pytest.mark.parametrize("answers", [True, False])
def test_a_new_leader_that_is_asked_to_hand_over_before_it_is_ready_goes_on(answers: bool) -> None:
    # given a group in which somebody has just won an election, and committed nothing yet
    cluster = Cluster()
    members = list(cluster.members.values())
    cluster.run_until(lambda: any(m.group().leads for m in members))
    (first,) = (m for m in members if m.group().leads)
    assert not first.group().ready
    # when it is asked to hand over at once, to somebody who may be gone
    to = next(m for m in members if m is not first)
    if not answers:
        cluster.isolate(to.number)
    first.group().transfer(to.number)
    cluster.run_for(1_000)
    # then somebody leads in the end, and the group knows its founders
    assert cluster.propose(put("a", b"1")) == [1]
    cluster.heal()
    cluster.wait_even()
    for member in members:
        member.restart()
    assert cluster.propose(put("a", b"2")) == [2]
    assert cluster.wait_leader().group().status().voters == (1, 2, 3)


@pytest.mark.slow
def test_many_groups_live_side_by_side_and_one_that_stops_does_not_disturb() -> None:
    cluster = Cluster(group="")
    names = [f"g{i}" for i in range(8)]
    for name in names:
        for number in (1, 2, 3):
            cluster[number].create(name, (1, 2, 3))
    for i, name in enumerate(names):
        cluster.propose(put("a", b"%d" % i), name=name)
    cluster[1].here.delete("g3")
    cluster[2].here.close_group("g4")
    for name in names:
        assert cluster.propose(put("a", b"again"), name=name) == [2]
    assert [g.name for g in cluster[1].here.groups()] == [n for n in names if n != "g3"]


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"election_ticks": 1},
        {"heartbeat_ticks": 0},
        {"snapshot_bytes": -1},
        {"inflight_bytes_max": 1_000},
        {"tick_ms": 0},
        {"install_piece_bytes": 0},
        {"install_window_bytes": 0},
        {"rewrite_chunk_entries": 0},
    ],
)
def test_settings_that_can_not_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Rejected, match=next(iter(wrong))):
        GroupConfig(**wrong)


def test_a_node_whose_limits_contradict_each_other_is_refused() -> None:
    # given a log, or a link, that has no room for the largest command that groups would take
    cluster = Cluster(group="", log_config=replace(TINY_LOG, entry_bytes_max=9 << 20))
    member = cluster[1]
    assert member.runtime is not None
    assert member.log is not None
    groups = type(member.here)
    for config, limits in (
        (GroupConfig(command_bytes_max=9 << 20), None),
        (GroupConfig(command_bytes_max=1 << 20), TransportLimits(frame_bytes_max=1 << 20)),
    ):
        # then it says so at the start, and not when the first such command comes
        with pytest.raises(Rejected, match="command_bytes_max"):
            groups(
                member.runtime,
                member.log,
                node=1,
                address="other:1",
                config=config,
                limits=limits,
            )
