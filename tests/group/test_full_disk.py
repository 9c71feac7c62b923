"""A member that can't write: what its leader refuses, what goes on, and what callers are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import delete, put
from lowmark.errors import LowmarkError, NoMemory
from lowmark.group import Future, NoQuorum, NotWritten, OutcomeUnknown
from lowmark.runtime import DiskFailed, DiskFull

RESERVED = 100_000
PATIENT = replace(FAST, request_timeout_ms=3_600_000)
"""Whoever waits for a deadline waits an hour."""
SOON_MS = 5_000


def cluster_of(nodes: int) -> Cluster:
    log = replace(TINY_LOG, disk_reserved_bytes=RESERVED)
    cluster = Cluster(nodes=nodes, config=PATIENT, log_config=log)
    leader = cluster.wait_leader()
    await_(cluster, leader.group().propose(put("a", b"1")))
    return cluster


def await_(cluster: Cluster, future: Future[object]) -> Future[object]:
    cluster.run_until(lambda: future.done, timeout_ms=SOON_MS)
    return future


def fill(member: Member, *, left: int) -> None:
    member.disk.capacity_bytes = member.disk._used_bytes + left


def promised(member: Member) -> int:
    assert member.log is not None
    return member.log.wal.promised_bytes


def error_of(cluster: Cluster, future: Future[object]) -> LowmarkError:
    error = await_(cluster, future).error
    assert error is not None
    return error


# -- the reserve ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_leader_with_a_full_disk_refuses_at_once_what_fills_it(nodes: int) -> None:
    cluster = cluster_of(nodes)
    leader = cluster.wait_leader()
    group = leader.group()
    fill(leader, left=RESERVED - 1_000)
    await_(cluster, group.propose(put("b", b"2")))  # nothing was known of it yet
    last = group.last_index()
    # then it refuses a put before it is in the log, and takes a delete
    refused = group.propose(put("c", b"3"))
    assert refused.done
    assert isinstance(refused.error, DiskFull)
    assert group.last_index() == last
    assert await_(cluster, group.propose(delete("a"))).result() is True
    # and when there is space, it takes puts again by itself
    leader.disk.capacity_bytes = None
    assert await_(cluster, group.propose(put("c", b"3"))).result() == 1


def test_rows_are_taken_by_another_leader_while_only_this_one_is_full() -> None:
    # given three members, and a full disk under the leader's, all at rest
    cluster = cluster_of(3)
    leader = cluster.wait_leader()
    cluster.run_until(lambda: all(m.group().resting.resting for m in cluster.members.values()))
    fill(leader, left=RESERVED - 1_000)
    # when it has refused a row
    while await_(cluster, leader.group().propose(put("b", b"2"))).error is None:
        pass
    # then another one leads, though no one else has anything to do, and takes them
    other = cluster.wait_leader(other_than=leader.number)
    for n in range(20):
        assert await_(cluster, other.group().propose(put(f"k{n}", b"x"))).result() == 1
    assert cluster.wait_leader() is other


@pytest.mark.slow
def test_leadership_goes_round_ever_more_slowly_where_every_disk_is_full() -> None:
    cluster = cluster_of(3)
    for member in cluster.members.values():
        fill(member, left=RESERVED - 1_000)

    def changes(seconds: int) -> int:
        began = cluster.wait_leader().group().term
        for _ in range(seconds * 5):
            cluster.wait_leader().group().propose(put("b", b"2"))
            cluster.run_for(200)
        return cluster.wait_leader().group().term - began

    # then after a while there is hardly a change in 10 s, which are 50 election timeouts
    first, second = changes(10), changes(10)
    assert 3 < first < 20
    assert second <= first // 2
    # and what frees space is taken all the while
    assert await_(cluster, cluster.wait_leader().group().propose(delete("a"))).result() is True


@pytest.mark.parametrize("groups", [["g"], ["g", "h"]])
def test_a_burst_of_rows_in_one_turn_does_not_use_the_reserve(groups: list[str]) -> None:
    # given a member that knows that it has space for very few rows
    cluster = cluster_of(1)
    for name in groups[1:]:
        cluster[1].create(name, [1])
        cluster.wait_leader(name)
    leader = cluster.wait_leader()
    fill(leader, left=RESERVED + 8_000)
    await_(cluster, leader.group().propose(put("b", b"1")))
    # when its groups are asked to take many at once
    futures = [
        leader.group(groups[n % len(groups)]).propose(put(f"k{n}", bytes(4_000))) for n in range(40)
    ]
    # then it refuses at once what does not fit beside the reserve
    refused = [future.error for future in futures if future.done]
    assert len(refused) > 30
    assert all(isinstance(error, DiskFull) for error in refused)
    cluster.run_until(lambda: all(future.done for future in futures))
    assert leader.disk.free_bytes() > RESERVED * 3 // 4
    assert promised(leader) == 0
    # and what frees space is taken, also after a restart
    leader.restart()
    cluster.wait_leader()
    assert await_(cluster, leader.group().propose(delete("b"))).result() is True


def test_space_that_was_promised_and_not_used_is_given_back() -> None:
    # given a leader without followers, with proposals that wait: some in the log, some before it
    cluster = Cluster(nodes=3, config=FAST, log_config=TINY_LOG)
    leader = cluster.wait_leader()
    for other in cluster.members.values():
        if other is not leader:
            other.crash()
    futures = [leader.group().propose(put(f"k{n}", bytes(4_000))) for n in range(40)]
    assert promised(leader) > 40 * 4_000
    # when all have their answer, whatever it is
    cluster.run_until(lambda: all(future.done for future in futures))
    # then nothing is promised
    assert promised(leader) == 0


def test_space_that_was_promised_is_given_back_by_a_copy_that_stops() -> None:
    cluster = cluster_of(1)
    leader = cluster.wait_leader()
    future = leader.group().propose(put("k", bytes(4_000)))
    assert promised(leader) > 4_000
    leader.group().close()
    assert future.done
    assert promised(leader) == 0


def test_copies_of_scattered_rows_do_not_use_the_reserve() -> None:
    cluster = cluster_of(1)
    leader = cluster.wait_leader()
    group = leader.group()
    await_(cluster, group.propose(put("b", bytes(4_000))))
    row = group.last_index()
    fill(leader, left=RESERVED + 1_000)
    await_(cluster, group.propose(delete("a")))  # now it knows what is free
    copied = group.rewrite([row])
    assert isinstance(copied.error, DiskFull)
    leader.disk.capacity_bytes = None
    again = group.rewrite([row])
    cluster.run_until(lambda: again.done)
    assert again.result() == 1


def test_a_member_that_starts_on_a_full_disk_leads_and_answers() -> None:
    cluster = cluster_of(1)
    fill(cluster[1], left=RESERVED // 2)
    cluster[1].restart()
    leader = cluster.wait_leader()
    group = leader.group()
    assert await_(cluster, group.read(None)).result()
    assert isinstance(error_of(cluster, group.propose(put("c", b"3"))), DiskFull)
    assert await_(cluster, group.propose(delete("a"))).result() is True
    # and it can be started again, as often as one likes
    cluster[1].crash()
    cluster[1].start()
    assert await_(cluster, cluster.wait_leader().group().read(None)).result() == {}


def test_a_follower_with_a_full_disk_stops_nobody_and_keeps_its_reserve() -> None:
    cluster = cluster_of(3)
    leader = cluster.wait_leader()
    follower = next(m for m in cluster.members.values() if m is not leader)
    fill(follower, left=RESERVED)
    # when more is stored than it has space for
    for n in range(60):
        await_(cluster, leader.group().propose(put(f"k{n}", bytes(4_000))))
    # then it has not used what is reserved, but for what it took before it knew
    cluster.run_for(5_000)
    assert follower.disk.free_bytes() > RESERVED - 20_000
    assert follower.group().applied < leader.group().applied
    # and it takes the rest when it has space
    follower.disk.capacity_bytes = None
    cluster.run_until(lambda: follower.group().applied == leader.group().applied)


# -- a disk that can't be written at all ----------------------------------------------------------


def break_disk(member: Member, kind: str) -> None:
    if kind == "full":
        fill(member, left=0)
        return

    def fail(call: str, path: str) -> None:
        if call == "write" and kind == "no memory":
            raise MemoryError
        if call == "write":
            raise DiskFailed(path, call=call, reason="Input/output error")

    member.disk.before_call = fail


def mend(member: Member) -> None:
    member.disk.capacity_bytes = member.disk.before_call = None


CAUSES = [("full", DiskFull), ("failing", DiskFailed), ("no memory", NoMemory)]
SAID = {"full": "no space left", "failing": "Input/output error", "no memory": "memory"}


@pytest.mark.parametrize(("kind", "error"), CAUSES)
def test_an_only_member_says_why_it_can_not_write(kind: str, error: type[LowmarkError]) -> None:
    cluster = cluster_of(1)
    group = cluster[1].group()
    break_disk(cluster[1], kind)
    # when something is proposed: it is in the log, and may yet be written
    told = error_of(cluster, group.propose(delete("a")))
    assert isinstance(told, NotWritten)
    assert isinstance(told, OutcomeUnknown)
    assert SAID[kind] in told.message
    assert "majority" not in str(told)
    # then what comes next is refused with the cause, and left no trace
    last = group.last_index()
    assert isinstance(error_of(cluster, group.propose(delete("b"))), error)
    assert group.last_index() == last
    # and reads go on; and when the disk works again, so does everything
    assert await_(cluster, group.read(None)).result() is not None
    mend(cluster[1])
    cluster.run_until(lambda: group.applied == last)
    assert await_(cluster, group.propose(put("c", b"3"))).result() == 1


@pytest.mark.parametrize(("kind", "error"), CAUSES)
def test_an_only_member_that_can_not_even_stand_says_why(
    kind: str, error: type[LowmarkError]
) -> None:
    cluster = cluster_of(1)
    cluster[1].stop()
    if kind == "full":
        fill(cluster[1], left=0)
        cluster[1].start()
    else:
        cluster[1].start(opens=False)
        break_disk(cluster[1], kind)
        cluster[1].open()
    group = cluster[1].group()
    asked = group.read(None)
    assert isinstance(error_of(cluster, asked), error)
    assert isinstance(error_of(cluster, group.propose(delete("a"))), error)
    mend(cluster[1])
    cluster.wait_leader()


def test_a_disk_that_fails_once_is_nobody_s_business() -> None:
    cluster = cluster_of(1)
    cluster[1].disk.fail_next("datasync", ".wal")
    assert await_(cluster, cluster[1].group().propose(put("b", b"2"))).result() == 1


def test_a_stopped_segment_writer_is_named_when_it_stops_the_wal() -> None:
    log = replace(TINY_LOG, wal_bytes_max=4 << 10, wal_files_waiting_max=1)
    cluster = Cluster(nodes=1, config=PATIENT, log_config=log)
    group = cluster.wait_leader().group()

    def fail(call: str, path: str) -> None:
        if call == "write" and ".segment" in path:
            raise DiskFull(path)

    cluster[1].disk.before_call = fail
    error: LowmarkError | None = None
    for n in range(20):
        error = await_(cluster, group.propose(put(f"k{n}", bytes(1_000)))).error
        if error is not None:
            break
    assert isinstance(error, DiskFull)
    assert "segment" in error.message
    assert isinstance(error_of(cluster, group.propose(delete("a"))), DiskFull)
    # and when it can write again, all goes on
    mend(cluster[1])
    cluster.run_until(lambda: group.trouble is None)
    await_(cluster, group.propose(delete("a")))


@pytest.mark.parametrize("broken", [True, False])
def test_a_deadline_names_the_cause_if_this_node_could_not_write(broken: bool) -> None:
    # given a leader of three without the others, and perhaps without a disk
    cluster = Cluster(nodes=3, config=FAST, log_config=TINY_LOG)
    leader = cluster.wait_leader()
    for other in cluster.members.values():
        if other is not leader:
            other.crash()
    if broken:
        fill(leader, left=0)
    error = error_of(cluster, leader.group().propose(put("a", b"1")))
    if broken:
        assert isinstance(error, NotWritten)
        assert "no space left" in error.message
    else:
        assert isinstance(error, NoQuorum)
