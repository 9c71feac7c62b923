"""When members take snapshots of their own, and what goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest

from group.cluster import FAST, TINY_LOG, Cluster
from group.kv import KvMachine, delete, put, value_of
from lowmark.group.wire import InstallOffer, Item
from lowmark.log import EntryGone
from lowmark.raft import Append
from lowmark.runtime import Buffer


def indexes(cluster: Cluster) -> list[int]:
    return [m.group().status().snapshot_index for m in cluster.members.values()]


def test_a_snapshot_is_taken_by_entries() -> None:
    # given a limit of 50 entries (a leader may wait for a follower until there are 100)
    cluster = Cluster(config=replace(FAST, snapshot_entries=50))
    leader = cluster.wait_leader()
    while leader.group().applied < 49:
        cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster.run_for(100)
    assert indexes(cluster) == [0, 0, 0]
    # when there is one more
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster.run_for(100)
    # then each member has taken one, on its own
    assert indexes(cluster) == [50, 50, 50]
    # and the next one comes after as many again
    for _ in range(49):
        cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster.run_for(100)
    assert indexes(cluster) == [50, 50, 50]


def test_a_snapshot_is_taken_by_size() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_bytes=100_000))
    cluster.propose(*(put("a", b"x" * 1_000) for _ in range(90)))
    cluster.wait_even()
    cluster.run_for(100)
    assert indexes(cluster) == [0, 0, 0]
    cluster.propose(*(put("a", b"x" * 1_000) for _ in range(20)))
    cluster.wait_even()
    cluster.run_for(100)
    assert all(index > 0 for index in indexes(cluster))


def test_a_snapshot_is_taken_by_age() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_age_ms=3_000, rest_ticks=0))
    cluster.propose(put("a", b"x"))
    cluster.run_for(2_000)
    assert indexes(cluster) == [0, 0, 0]
    cluster.run_for(1_500)
    taken = indexes(cluster)
    assert all(index > 0 for index in taken)
    # but not of a log that is empty
    cluster.run_for(7_000)
    assert indexes(cluster) == taken


def test_a_snapshot_is_taken_by_segments_however_small_they_are() -> None:
    # given a node whose group gets an entry in each of its lives
    cluster = Cluster(nodes=1, config=replace(FAST, snapshot_segments=8))
    taken = []
    for _ in range(20):
        cluster.wait_leader()
        cluster.run_for(100)
        taken.append(indexes(cluster)[0])
        cluster.propose(put("a", b"x"))
        cluster[1].restart()
    # then a snapshot covers them as soon as there are this many, and again after as many
    lives = [taken.index(index) for index in sorted(set(taken)) if index]
    assert lives == [8, 16]


def test_live_entries_stay_readable_and_dead_ones_go() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_entries=40), log_config=TINY_LOG)
    cluster.propose(put("old", b"still here"))
    dead = cluster.wait_leader().machine.rows["old"].index + 1
    for _ in range(5):
        cluster.propose(*(put("x", b"-") for _ in range(40)))
        cluster.run_for(100)
    cluster.wait_even()
    for member in cluster.members.values():
        assert member.group().status().snapshot_index > 100
        row = member.machine.rows["old"]
        assert value_of(member.group().read_command(row.index).data) == b"still here"
        with pytest.raises(EntryGone):
            member.group().read_command(dead)
    # and so it is after a crash
    for member in cluster.members.values():
        member.crash()
        member.start()
    cluster.wait_leader()
    cluster.wait_even()
    for member in cluster.members.values():
        row = member.machine.rows["old"]
        assert value_of(member.group().read_command(row.index).data) == b"still here"


class LargeKv(KvMachine):
    """Its snapshot comes in very many chunks, drawn one by one."""

    chunks = 800
    drawn = 0

    def snapshot(self) -> Iterable[Buffer]:
        whole = msgspec.msgpack.encode((self.version, sorted(self.rows.items())))

        def draw() -> Iterable[Buffer]:
            LargeKv.drawn += 1
            yield whole
            for _ in range(self.chunks):
                LargeKv.drawn += 1
                yield b""

        return draw()


@pytest.mark.slow
def test_proposals_are_answered_while_a_large_snapshot_is_written() -> None:
    # given a snapshot that takes seconds to write
    cluster = Cluster(machine=LargeKv, config=replace(FAST, rest_ticks=0))
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    for member in cluster.members.values():
        member.group().snapshot()
    cluster.run_for(50)
    assert indexes(cluster) == [0, 0, 0]
    # when commands come meanwhile
    slowest = 0.0
    version = 1
    while max(indexes(cluster)) == 0:
        began = cluster.now_ms
        version += 1
        assert cluster.propose(put("a", b"x")) == [version]
        slowest = max(slowest, cluster.now_ms - began)
    # then they are answered as fast as ever
    assert version > 20
    assert slowest < 50
    # and the snapshot is of the time when it was asked for
    cluster.run_until(lambda: min(indexes(cluster)) > 0)
    assert max(indexes(cluster)) < 10
    for member in cluster.members.values():
        member.restart()
    cluster.wait_leader()
    cluster.wait_even()
    assert {m.machine.rows["a"].version for m in cluster.members.values()} == {version}


def test_a_leader_waits_a_little_for_a_follower_that_is_close_behind() -> None:
    # given a follower that is in step, but whose last answers are late
    cluster = Cluster(config=replace(FAST, snapshot_entries=50))
    leader = cluster.make_leader(1)
    cluster.propose(*(put("a", b"x") for _ in range(30)))
    cluster.wait_even()

    def loses(sender: int, to: int, item: Item) -> bool:
        del sender
        return to == 3 and isinstance(item, Append) and bool(item.entries)

    cluster.network.loses = loses
    # when the limit is reached
    cluster.propose(*(put("a", b"x") for _ in range(25)))
    cluster.run_for(30)
    assert leader.group().applied >= 50
    # then the leader has not cut away what that follower is about to get
    assert leader.group().status().snapshot_index == 0
    cluster.network.loses = None
    offers: list[Item] = []

    def noted(sender: int, to: int, item: Item) -> bool:
        if isinstance(item, InstallOffer):
            offers.append(item)
        return False

    cluster.network.loses = noted
    cluster.wait_even()
    assert offers == []
    cluster.run_until(lambda: leader.group().status().snapshot_index >= 50)


def test_but_not_for_ever() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_entries=50))
    leader = cluster.make_leader(1)
    cluster.isolate(3)
    while leader.group().applied < 101:
        cluster.propose(put("a", b"x"))
    cluster.run_until(lambda: leader.group().status().snapshot_index >= 50)
    cluster.heal()
    cluster.wait_even()
    assert cluster[3].machine.rows == leader.machine.rows


def test_a_snapshot_that_can_not_be_written_harms_nobody_and_is_taken_later() -> None:
    # given a disk on which the next snapshot can't be written
    cluster = Cluster(nodes=1, config=replace(FAST, snapshot_entries=20))
    cluster.propose(*(put("a", b"x") for _ in range(10)))
    cluster[1].disk.fail_next("create", "snapshots/")
    cluster[1].disk.fail_next("mkdir", "snapshots/")
    cluster.propose(*(put("a", b"x") for _ in range(15)))
    cluster.run_for(200)
    # then the group serves, and has one with the next commands
    cluster.propose(*(put("a", b"x") for _ in range(15)))
    cluster.run_until(lambda: indexes(cluster)[0] > 0)
    assert cluster.propose(put("a", b"x")) == [41]


def test_members_may_take_snapshots_at_different_times_and_agree() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_entries=10_000))
    for round_ in range(12):
        cluster.propose(*(put(f"k{i}", b"%d" % round_) for i in range(5)), delete(f"k{round_ % 5}"))
        cluster[1 + round_ % 3].group().snapshot()
        cluster.run_for(50)
    cluster.wait_even()
    taken = indexes(cluster)
    assert len(set(taken)) == 3
    for member in cluster.members.values():
        assert member.machine.rows == cluster[1].machine.rows
        assert list(member.machine.live_indexes()) == list(cluster[1].machine.live_indexes())
        for row in member.machine.rows.values():
            member.group().read_command(row.index)
