"""A vote or an acknowledgement leaves a node only when what it claims is durable there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster, Member, Sent
from group.kv import put
from lowmark.group.storage import GroupMeta
from lowmark.log import GroupLog, Log
from lowmark.raft import Append, AppendResponse, HardState, Heartbeat, VoteResponse
from lowmark.runtime.sim import SimDisk, sim_runtime
from lowmark.runtime.sim.crash import Choice
from lowmark.runtime.sim.tree import FileNode, reachable


def what_is_durable(disk: SimDisk) -> SimDisk:
    """The disk after a crash that kept nothing but what was synced."""
    files = [n for n in reachable(disk._root) if isinstance(n, FileNode) and n.unsynced]
    lost = {file.inode: file.survives([]) for file in files}
    return disk._after(Choice("nothing else", frozenset(), lost))


class Witness:
    """Looks at the sender's disk whenever a frame leaves, and counts what it has checked."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[int, tuple[int, GroupLog]] = {}
        self._commits: dict[int, int] = {}
        self.acknowledged = 0
        self.voted = 0
        self.committed = 0
        self.led = 0
        cluster.network.on_sent = self._sent

    def _log(self, member: Member) -> GroupLog:
        known = self._seen.get(member.number)
        if known is None or known[0] != member.disk.calls:
            image = what_is_durable(member.disk)
            log = Log.open(sim_runtime(1, disk=image), self._cluster.log_config, read_only=True)
            known = self._seen[member.number] = (member.disk.calls, log.group("g"))
        return known[1]

    def _hard(self, member: Member) -> HardState:
        return GroupMeta.decode(self._log(member).meta).hard

    def _has(self, member: Member, index: int, term: int | None) -> bool:
        log = self._log(member)
        return log.row.snapshot_index >= index or (
            log.last_index >= index and log.term_at(index) == term
        )

    def _sent(self, sent: Sent) -> None:
        member = self._cluster[sent.sender]
        if not member.up:
            return
        core = member.group().raft.core
        for _, item in sent.items:
            match item:
                case AppendResponse(reject=False):
                    # What it says it has, it has; and the term in which it says so.
                    self.acknowledged += 1
                    assert self._has(member, item.index, core.log.term(item.index))
                    assert self._hard(member).term >= item.term
                case VoteResponse(pre=False, reject=False):
                    self.voted += 1
                    hard = self._hard(member)
                    assert (hard.term, hard.vote) == (item.term, item.to) or hard.term > item.term
                case Append() | Heartbeat():
                    # Whoever adds to the log as a leader has its own vote on its disk. (The first
                    # entry of a term is always the same, and may go out before: others elected it.)
                    if isinstance(item, Append) and any(e.data for e in item.entries):
                        self.led += 1
                        hard = self._hard(member)
                        assert (hard.term, hard.vote) == (item.term, item.sender)
                    self._check_commit(member, item.commit)
                case _:
                    pass

    def _check_commit(self, leader: Member, commit: int) -> None:
        """What it calls committed is on the disks of a majority."""
        if commit <= self._commits.get(leader.number, 0):
            return
        self._commits[leader.number] = commit
        self.committed += 1
        core = leader.group().raft.core
        voters = core.members.incoming
        have = [n for n in voters if self._has(self._cluster[n], commit, core.log.term(commit))]
        assert len(have) > len(voters) // 2, f"{commit} is only on {have}"


def life(cluster: Cluster) -> Iterator[None]:
    """Elections, commands, hand-overs and partitions."""
    for round_ in range(4):
        leader = cluster.wait_leader()
        futures = [leader.group().propose(put("a", b"%d" % i)) for i in range(5)]
        cluster.run_until(lambda f=futures: all(x.done for x in f))  # type: ignore[misc]
        yield
        if round_ % 2:
            cluster.isolate(leader.number)
            leader.group().propose(put("lost", b"x"))
            cluster.wait_leader(other_than=leader.number)
            cluster.heal()
        else:
            cluster.make_leader(leader.number % 3 + 1)
        yield
    cluster.wait_even()


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_nothing_is_claimed_before_it_is_durable(seed: int, slow: int) -> None:
    # given nodes of which one may have a slow disk
    cluster = Cluster(seed, config=replace(FAST, request_timeout_ms=5_000))
    if slow:
        cluster[slow].slow_down("wal", 30)
    # when everything that leaves a node is compared with its disk
    witness = Witness(cluster)
    for _ in life(cluster):
        pass
    # then all of it was true when it left
    assert witness.acknowledged > 20
    assert witness.voted >= 4
    assert witness.committed > 10
    assert witness.led > 10


def test_the_witness_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks that forget their syncs make liars of sound nodes: the check is worth something."""
    cluster = Cluster()
    Witness(cluster)
    cluster.wait_leader()
    monkeypatch.setattr(FileNode, "sync", lambda _: None)
    with pytest.raises(AssertionError):
        cluster.propose(put("a", b"x"))


def test_a_leader_with_a_slow_disk_does_not_count_itself_but_others_commit_without_it() -> None:
    # given a leader whose disk has become slow
    cluster = Cluster(config=replace(FAST, request_timeout_ms=30_000))
    leader = cluster.make_leader(1)
    cluster.wait_even()
    leader.slow_down("wal", 400)
    last = leader.group().last_index()
    # when a command comes
    future = leader.group().propose(put("a", b"x"))
    cluster.run_until(lambda: cluster[2].group().applied > last)
    # then its followers have committed and applied it before it is durable here
    assert leader.group().status().committed > last
    assert leader.group().status().written_index == last
    assert not future.done
    cluster.wait(future)
    assert leader.group().leads


def test_a_leader_with_a_slow_disk_and_one_follower_must_wait_for_its_own_disk() -> None:
    cluster = Cluster(config=replace(FAST, request_timeout_ms=30_000))
    leader = cluster.make_leader(1)
    cluster.wait_even()
    cluster.isolate(3)
    leader.slow_down("wal", 400)
    last = leader.group().last_index()
    future = leader.group().propose(put("a", b"x"))
    cluster.run_for(300)
    # The follower has it, but one of three is no majority, and neither is hope.
    assert cluster[2].group().status().written_index > last
    assert leader.group().status().committed == last
    cluster.wait(future)


def test_a_group_of_one_commits_when_its_disk_has_it() -> None:
    cluster = Cluster(nodes=1)
    cluster.wait_leader()
    cluster.run_for(100)
    cluster[1].slow_down("wal", 300)
    future = cluster[1].group().propose(put("a", b"x"))
    cluster.run_for(250)
    assert not future.done
    cluster.wait(future)


def test_a_candidate_with_a_slow_disk_wins_only_when_its_own_vote_is_durable() -> None:
    # given a group of two, in which a candidate needs its own vote
    cluster = Cluster(nodes=2)
    cluster.wait_leader()
    leader = cluster.make_leader(1)
    cluster[2].slow_down("wal", 150)
    term = leader.group().term
    leader.group().transfer(2)
    cluster.run_until(lambda: cluster[2].group().term > term)
    cluster.run_for(100)
    assert not cluster[2].group().leads
    cluster.run_until(lambda: cluster[2].group().leads)


def test_a_vote_is_remembered_over_a_crash() -> None:
    # given a node that has voted
    cluster = Cluster()
    cluster.wait_leader()
    cluster.run_for(50)
    votes = {n: m.group().raft.core.hard_state for n, m in cluster.members.items()}
    # when all lose their power at once
    for member in cluster.members.values():
        member.crash()
        member.start()
    # then each knows what it said
    for number, member in cluster.members.items():
        hard = member.group().raft.core.hard_state
        assert (hard.term, hard.vote) == (votes[number].term, votes[number].vote)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_what_was_answered_survives_a_power_cut_of_all(seed: int) -> None:
    cluster = Cluster(seed)
    answered = 0
    for _ in range(5):
        for _ in range(10):
            assert cluster.propose(put("a", b"x")) == [answered + 1]
            answered += 1
        # what is under way may or may not survive
        futures = [cluster.wait_leader().group().propose(put("b", b"x")) for _ in range(3)]
        cluster.run_for(seed * 0.3)
        for member in cluster.members.values():
            member.crash()
        for member in cluster.members.values():
            member.start()
        assert len(futures) == 3
        cluster.wait_leader()
    cluster.wait_even()
    assert {m.machine.rows["a"].version for m in cluster.members.values()} == {answered}
