"""Cases that reviews found: each was a way to lose something, or to wait for ever."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from group.cluster import FAST, TINY_LOG, Cluster
from group.kv import put
from group.test_resting import many_groups, wait_rest
from lowmark.errors import Corrupt, Rejected
from lowmark.group import GroupConfig, Groups, Stage
from lowmark.group.storage import GroupMeta, GroupStorage
from lowmark.group.writes import Writes
from lowmark.log import Log, LogConfig
from lowmark.raft import (
    Append,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    StorageAppend,
)
from lowmark.runtime.sim import SimDisk, SimLoop, sim_runtime


def entries(first: int, last: int, term: int) -> list[Entry]:
    return [Entry(index, term, EntryKind.NORMAL, b"") for index in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_never_commits_a_stale_tail(seed: int) -> None:
    # given a copy with seven committed entries and three stale ones, just restarted
    config = LogConfig(wal_batch_bytes_max=1 << 20, disk_reserved_bytes=0, disk_low_bytes=0)
    disk, loop = SimDisk(), SimLoop(seed)
    log = Log.open(sim_runtime(seed, disk=disk, loop=loop), config)
    group, other = log.create_group("g"), log.create_group("other")
    group.append(1, [b""] * 10)
    meta = GroupMeta(hard=HardState(2, 0, 7, 0))
    group.put_meta(meta.encode(), lambda _: None)
    loop.run_until(lambda: log.idle)
    writes = Writes(
        group,
        meta,
        install=lambda *_: None,
        release=lambda _: None,
        failed=lambda error: pytest.fail(str(error)),
        may_use_reserve=lambda *_: True,
    )
    log.on_written = lambda event: writes.written(event) if event.group == "g" else None
    log.on_writable = writes.retry
    # when the next leader's entries replace the stale ones, committed as they come, while the WAL
    # is busy, and the power fails at any moment
    other.append(1, [b"x" * ((1 << 20) - 90)])
    writes.order(StorageAppend(entries(8, 10, 2), HardState(2, 0, 10, 0), None, []))
    loop.run_for(Random(seed).uniform(0, 6))
    crashed = disk.crashed(Random(seed))
    # then nothing is committed that is not the leader's
    again = Log.open(sim_runtime(seed + 100, disk=crashed, loop=SimLoop(seed + 100)), config)
    meta = GroupMeta(founders=ConfState(voters=(1, 2, 3)))
    hard, _ = GroupStorage(again.group("g"), meta).initial_state()
    terms = [again.group("g").term_at(index) for index in range(8, hard.commit + 1)]
    assert terms == [2] * len(terms)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["close", "leave", "quarantine"])
def test_a_group_that_rests_on_a_copy_that_stops_gets_another_leader(how: str) -> None:
    # given groups that rest
    cluster = many_groups()
    wait_rest(cluster)
    cluster.run_for(200)
    leader = cluster.leader("g0")
    assert leader is not None
    # when the leader's copy of one of them stops, though its node lives on
    match how:
        case "close":
            leader.here.close_group("g0")
        case "leave":
            leader.here.leave("g0")
        case _:
            assert leader.log is not None
            state = leader.log.group("g0").state
            leader.log.quarantine(state, Corrupt("found by a compaction"))
    # then another one leads soon
    others = [member for member in cluster.members.values() if member is not leader]
    cluster.run_until(
        lambda: any(member.group("g0").ready for member in others), timeout_ms=120_000
    )


def test_a_cancelled_change_leaves_no_learner_that_was_on_its_way_into_the_log() -> None:
    # given a leader that has put a learner into its log, and can't commit it
    cluster = Cluster(1, nodes=3, spare=1)
    leader = cluster.wait_leader()
    cluster.propose(put("a", b"1"))
    cluster.run_for(300)
    cluster[4].create("g")
    cluster.network.loses = lambda _a, _b, item: isinstance(item, Append)
    group = leader.group()
    group.change_peers(group.term, 1, [1, 2, 3, 4])
    cluster.run_for(60)
    # when the change is cancelled before that, and the entry is committed after all
    assert group.cancel_change_peers()
    cluster.run_for(60)
    cluster.network.loses = None
    # then the learner goes again
    cluster.run_for(2_000)
    status = cluster.wait_leader().group().status()
    assert (status.learners, status.stage) == ((), Stage.NONE)


def test_a_read_of_the_disk_that_fails_ends_no_process() -> None:
    # given a leader whose follower needs entries that are in segments only
    cluster = Cluster(1, nodes=3, log_config=TINY_LOG)
    cluster.make_leader(1)
    cluster[3].crash()
    for at in range(60):
        cluster.propose(*[put(f"k{at}-{i}", b"x" * 500) for i in range(5)])
    cluster.run_for(2_000)
    log = cluster[1].log
    assert log is not None
    # when the disk fails to read one
    cluster[1].disk.fail_next("read", "segment")
    log.cache.forget(log.group("g").state.folder)
    cluster[3].start()
    # then the follower catches up all the same
    cluster.wait_even(1, 2, 3)


def test_an_entry_that_is_too_large_for_one_member_stops_that_copy_by_name() -> None:
    # given a node whose log takes smaller entries than the others'
    cluster = Cluster(1, nodes=3, group="")
    small, theirs = cluster[3], cluster.log_config
    small.stop()
    small.config = replace(FAST, command_bytes_max=1 << 20)
    cluster.log_config = replace(theirs, entry_bytes_max=2 << 20)
    small.start()
    cluster.log_config = theirs
    for number in (1, 2, 3):
        cluster[number].create("g", (1, 2, 3))
    cluster.make_leader(1)
    # when a large command comes
    answer = cluster[1].group().propose(put("a", b"x" * (4 << 20)))
    cluster.run_until(lambda: answer.done)
    cluster.run_for(2_000)
    # then the others have it, and that copy says why it has not
    assert answer.error is None
    assert "too many for one entry" in small.group().status().stopped


def test_a_voter_that_was_taken_out_to_be_rebuilt_comes_back_under_any_leader() -> None:
    # given a copy that is being rebuilt, and was just taken out
    cluster = Cluster(3, nodes=3)
    cluster.make_leader(1)
    cluster.propose(put("a", b"1"))
    cluster.run_for(200)
    cluster[3].rebuild()
    cluster.run_until(lambda: 3 not in cluster[1].group().raft.core.progress)
    # when the leader crashes before it adds it again
    cluster[1].crash()
    cluster.run_for(100)
    cluster[1].start()
    # then the next one does

    def whole() -> bool:
        leader = cluster.leader()
        return leader is not None and leader.group().status().voters == (1, 2, 3)

    cluster.run_until(whole, timeout_ms=120_000)
    assert all(not member.listener.errors for member in cluster.members.values())


def test_a_follower_whose_snapshot_was_overtaken_gets_the_next_one_at_once() -> None:
    # given a follower that is being sent a snapshot, slowly, while the leader takes another one
    slow = replace(FAST, install_bytes_per_s=40_000)
    cluster = Cluster(1, nodes=3, log_config=TINY_LOG, config=slow)
    cluster.make_leader(1)
    cluster[3].crash()
    for at in range(20):
        cluster.propose(*[put(f"k{at}-{i}", b"x" * 500) for i in range(5)])
    cluster[1].group().snapshot()
    cluster.run_for(1_000)
    cluster[3].start()
    cluster.run_until(lambda: cluster[3].group()._receives.busy)
    cluster.run_for(300)
    cluster.propose(put("z", b"1"))
    cluster[1].group().snapshot()
    # when it has the first
    log = cluster[3].log
    assert log is not None
    cluster.run_until(lambda: log.group("g").row.snapshot_index > 0)
    before = cluster.now_ms
    # then it does not wait for anything to time out
    cluster.wait_even(1, 2, 3)
    assert cluster.now_ms - before < slow.install_stall_ms / 2


@pytest.mark.parametrize("field", ["message_bytes_max", "install_piece_bytes"])
def test_sizes_that_no_frame_has_room_for_are_refused_at_the_start(field: str) -> None:
    runtime = sim_runtime(1)
    config = replace(GroupConfig(inflight_bytes_max=64 << 20), **{field: 32 << 20})
    with pytest.raises(Rejected, match=field):
        Groups(runtime, Log.open(runtime), node=1, address="n1:1", config=config)
