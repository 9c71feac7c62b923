"""Phase 4: scattered live entries are copied to the end of the log, so that they stand together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import delete, put, value_of
from lowmark.errors import LowmarkError
from lowmark.group import GroupBusy, GroupConfig, NotLeader, OutcomeUnknown, Superseded, envelope
from lowmark.raft import Append

KEYS = [f"live-{i}" for i in range(12)]


def scattered(config: GroupConfig = FAST, *, between: int = 60) -> Cluster:
    """A group with few live entries far from each other, all below the snapshot."""
    cluster = Cluster(config=config, log_config=TINY_LOG)
    for key in KEYS:
        cluster.propose(put(key, key.encode() * 10), *(put("x", b"-") for _ in range(between)))
    cluster.propose(delete("x"))
    snapshot_everywhere(cluster)
    return cluster


def snapshot_everywhere(cluster: Cluster) -> None:
    cluster.wait_even()
    target = cluster.wait_leader().group().applied
    for member in cluster.members.values():
        member.group().snapshot()
    cluster.run_until(
        lambda: all(m.group().status().snapshot_index >= target for m in cluster.members.values())
    )


def live(member: Member) -> list[int]:
    return list(member.machine.live_indexes())


def check_values(cluster: Cluster) -> None:
    """Every value can be read on every member, and the versions and times have not changed."""
    rows = cluster.wait_leader().machine.rows
    for member in cluster.members.values():
        assert member.machine.rows == rows
        for key, row in rows.items():
            command = member.group().read_command(row.index)
            assert value_of(command.data) == key.encode() * 10
            assert command.time == row.time


def test_scattered_entries_stand_together_afterwards_on_every_member() -> None:
    # given live entries that are scattered over the log
    cluster = scattered()
    leader = cluster.wait_leader()
    before, rows = live(leader), dict(leader.machine.rows)
    assert before[-1] - before[0] > 600
    # when they are rewritten
    assert cluster.wait(leader.group().rewrite()) == len(KEYS)
    # then they clump at the end, on every member, with the times and versions that they had
    cluster.wait_even()
    after = live(leader)
    assert len(after) == len(KEYS)
    assert after[-1] - after[0] < 2 * len(KEYS)
    assert after[0] > before[-1]
    for key, row in leader.machine.rows.items():
        assert (row.version, row.time) == (rows[key].version, rows[key].time)
    check_values(cluster)


def test_old_places_die_with_the_next_snapshot_and_compaction_frees_them() -> None:
    # given rewritten entries
    cluster = scattered()
    leader = cluster.wait_leader()
    before = live(leader)
    cluster.wait(leader.group().rewrite())
    # when the next snapshot is taken and phases 1 and 3 have run
    snapshot_everywhere(cluster)
    for member in cluster.members.values():
        assert member.log is not None
        member.log.roll()
        member.group().log.compact()
    cluster.run_until(
        lambda: all(m.log is not None and m.log.idle for m in cluster.members.values())
    )
    # then the old entries are gone, the new ones are there, and a restart changes nothing
    for member in cluster.members.values():
        for index in before:
            with pytest.raises(LowmarkError):
                member.group().read_command(index)
        assert len(member.group().log.state.segments) <= 3
    check_values(cluster)
    for member in cluster.members.values():
        member.crash()
        member.start()
    cluster.wait_leader()
    cluster.wait_even()
    check_values(cluster)


def test_a_copy_can_be_copied_again() -> None:
    cluster = scattered()
    for _ in range(3):
        leader = cluster.wait_leader()
        assert cluster.wait(leader.group().rewrite(live(leader))) == len(KEYS)
        cluster.propose(*(put("x", b"-") for _ in range(20)), delete("x"))
        snapshot_everywhere(cluster)
        check_values(cluster)


def test_entries_are_copied_in_chunks_one_after_another() -> None:
    # given chunks of five entries
    cluster = scattered(replace(FAST, rewrite_chunk_entries=5, rewrite_bytes_per_s=0))
    leader = cluster.wait_leader()
    cluster.run_for(100)
    sent = cluster.network.watch()
    # when twelve are rewritten
    cluster.wait(leader.group().rewrite())
    # then no append has more than five copies
    copies = [
        sum(bool(e.data) and e.data[0] == envelope.COPY for e in item.entries)
        for s in sent
        for _, item in s.items
        if isinstance(item, Append)
    ]
    assert [n for n in copies if n][::2] == [5, 5, 2]


def test_a_rewrite_is_no_faster_than_its_limit() -> None:
    # given a limit of 1,000 bytes a second
    slow = replace(FAST, rewrite_chunk_entries=2, rewrite_bytes_per_s=1_000)
    cluster = scattered(slow)
    leader = cluster.wait_leader()
    size = sum(len(leader.group().log.read([i])[0].data) for i in live(leader))
    began = cluster.now_ms
    rewriting = leader.group().rewrite()
    # when ordinary commands come meanwhile
    cluster.run_for(100)
    assert not rewriting.done
    asked = cluster.now_ms
    assert cluster.propose(put(KEYS[0], KEYS[0].encode() * 10)) == [2]
    # then they do not wait for it
    assert cluster.now_ms - asked < 50
    # and it takes as long as it should
    cluster.wait(rewriting)
    assert cluster.now_ms - began >= size * 0.8
    cluster.wait_even()
    check_values(cluster)


def test_what_dies_before_its_turn_is_left_out() -> None:
    slow = replace(FAST, rewrite_chunk_entries=4, rewrite_bytes_per_s=10_000)
    cluster = scattered(slow)
    leader = cluster.wait_leader()
    rewriting = leader.group().rewrite()
    # the first chunk is under way; one of the last is overwritten, another deleted
    cluster.propose(put(KEYS[10], KEYS[10].encode() * 10), delete(KEYS[11]))
    assert cluster.wait(rewriting) == len(KEYS) - 2
    cluster.wait_even()
    assert KEYS[11] not in leader.machine.rows
    check_values(cluster)


def test_what_dies_between_being_copied_and_being_applied_stays_dead() -> None:
    # given a rewrite whose copies are proposed in the same turn as the death of one of them
    cluster = scattered()
    leader = cluster.wait_leader()
    dying = leader.group().propose(delete(KEYS[3]))
    rewriting = leader.group().rewrite()
    cluster.wait(dying)
    cluster.wait(rewriting)
    cluster.wait_even()
    for member in cluster.members.values():
        assert KEYS[3] not in member.machine.rows
        assert len(live(member)) == len(KEYS) - 1
    check_values(cluster)
    snapshot_everywhere(cluster)
    check_values(cluster)


def test_dead_and_unknown_indexes_are_passed_over() -> None:
    cluster = scattered()
    leader = cluster.wait_leader()
    assert cluster.wait(leader.group().rewrite([1, 2, 10_000_000])) == 0
    assert cluster.wait(leader.group().rewrite([])) == 0
    # however many there are
    assert cluster.wait(leader.group().rewrite(list(range(10_000, 600_000)))) == 0


def test_a_second_rewrite_meanwhile_is_refused_by_name() -> None:
    cluster = scattered(replace(FAST, rewrite_bytes_per_s=100))
    leader = cluster.wait_leader()
    first = leader.group().rewrite()
    second = leader.group().rewrite()
    assert isinstance(second.error, GroupBusy)
    assert not first.done
    cluster.wait(first)
    assert cluster.wait(leader.group().rewrite(live(leader))) == len(KEYS)


def test_only_the_leader_rewrites() -> None:
    cluster = scattered()
    leader = cluster.wait_leader()
    cluster.run_for(200)
    error = cluster.followers()[0].group().rewrite().error
    assert isinstance(error, NotLeader)
    assert error.leader == leader.number


def test_a_change_of_leader_in_the_middle_ends_it_by_name() -> None:
    # given a rewrite in the middle
    cluster = scattered(replace(FAST, rewrite_chunk_entries=3, rewrite_bytes_per_s=1_000))
    leader = cluster.wait_leader()
    rewriting = leader.group().rewrite()
    cluster.run_for(50)
    assert not rewriting.done
    # when leadership goes to somebody else
    other = cluster.followers()[0].number
    cluster.make_leader(other)
    # then its future says so, and the new leader can finish the work
    error = cluster.wait_error(rewriting)
    assert isinstance(error, NotLeader | Superseded | OutcomeUnknown)
    new = cluster.wait_leader()
    cluster.wait(new.group().rewrite(live(new)))
    cluster.wait_even()
    check_values(cluster)


def test_a_leader_that_is_cut_off_in_the_middle_ends_it_by_name() -> None:
    cluster = scattered(replace(FAST, rewrite_chunk_entries=3, rewrite_bytes_per_s=1_000))
    leader = cluster.wait_leader()
    rewriting = leader.group().rewrite()
    cluster.run_for(50)
    cluster.isolate(leader.number)
    assert isinstance(cluster.wait_error(rewriting), NotLeader | OutcomeUnknown)
    cluster.heal()
    cluster.wait_leader()
    cluster.wait_even()
    check_values(cluster)


def test_a_member_that_missed_the_rewrite_gets_there_by_its_log_or_by_a_snapshot() -> None:
    for with_snapshot in (False, True):
        cluster = scattered()
        leader = cluster.wait_leader()
        away = cluster.followers()[0]
        away.crash(killed=True)
        cluster.wait(leader.group().rewrite())
        if with_snapshot:
            leader.group().snapshot()
            cluster.run_for(200)
        away.start()
        cluster.wait_even()
        check_values(cluster)


def test_large_entries_are_copied_a_few_at_a_time() -> None:
    # given ten live entries of 100 KB each, one chunk by their number, and messages of 300 KB
    config = replace(FAST, message_bytes_max=300_000, rewrite_bytes_per_s=0)
    cluster = Cluster(config=config)
    for i in range(10):
        cluster.propose(put(f"k{i}", b"x" * 100_000), put("y", b"-"))
    cluster.propose(delete("y"))
    snapshot_everywhere(cluster)
    group = cluster.wait_leader().group()
    rewriting = group.rewrite()
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, group.raft.core.uncommitted_bytes)
        return rewriting.done

    cluster.run_until(done)
    # then about one message of them is under way at a time
    assert rewriting.result() == 10
    assert 200_000 < most <= 400_000
