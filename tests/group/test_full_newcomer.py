"""A change of peers whose new member has no space: the leader says so, and can try it again."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import put
from lowmark.group import ChangeAnswer, ChangeError, GroupConfig, wire
from lowmark.raft import HeartbeatResponse

RESERVED = 100_000
CONFIG = replace(
    FAST,
    catch_up_stall_ms=9_000,
    install_stall_ms=3_000,
    install_piece_bytes=2_000,
    install_window_bytes=8_000,
    near_entries=5,
    near_bytes=100_000,  # more than there is: what is in the log goes as entries
)


def grown(
    *, snapshot: bool, reserved: int = RESERVED, config: GroupConfig = CONFIG
) -> tuple[Cluster, Member]:
    """A group with some data, in its log or in a snapshot, and a node that is to join it."""
    log = replace(TINY_LOG, disk_reserved_bytes=reserved)
    cluster = Cluster(spare=1, config=config, log_config=log)
    cluster.make_leader(1)
    for i in range(40):
        cluster.propose(put(f"k{i}", b"x" * 1_000))
    cluster.wait_even()
    leader = cluster[1]
    if snapshot:
        leader.group().snapshot()
        cluster.run_until(lambda: leader.group().status().snapshot_index > 30)
    cluster[4].create("g")
    return cluster, leader


def ask(cluster: Cluster, leader: Member, *, token: int = 1) -> None:
    cluster.wait_leader()
    answer = leader.group().change_peers(leader.group().term, token, [1, 2, 3, 4])
    assert answer is ChangeAnswer.RECEIVED


def fill(member: Member, *, left: int) -> None:
    member.disk.capacity_bytes = member.disk._used_bytes + left


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize(
    ("reserved", "left"),
    [
        pytest.param(RESERVED, RESERVED - 1, id="nothing but the reserve is left"),
        pytest.param(RESERVED, 2_000, id="nothing is left"),
        pytest.param(0, 15_000, id="it is full on the way"),
    ],
)
def test_a_change_says_that_a_new_members_disk_is_full(
    snapshot: bool, reserved: int, left: int
) -> None:
    cluster, leader = grown(snapshot=snapshot, reserved=reserved)
    fill(cluster[4], left=left)
    cluster.run_for(2_000)
    began = cluster.now_ms
    ask(cluster, leader)
    cluster.run_until(lambda: bool(leader.listener.errors))
    # then it says which node, and does so before it would say that nothing moves
    (failed,) = leader.listener.errors
    assert (failed.error, failed.node, failed.token) == (ChangeError.DISK_FULL, 4, 1)
    assert cluster.now_ms - began < CONFIG.catch_up_stall_ms
    if snapshot:
        assert failed.detail
    # and the old members serve, alone
    assert cluster.propose(put("y", b"1")) == [1]
    cluster.run_until(lambda: leader.group().status().learners == ())
    # when there is space, the same change goes through
    cluster[4].disk.capacity_bytes = None
    ask(cluster, leader, token=2)
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert leader.listener.committed == [(1, 2, 3, 4)]
    assert len(leader.listener.errors) == 1
    cluster.wait_even()
    assert cluster[4].machine.rows == leader.machine.rows


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_disk_that_is_full_for_a_moment_fails_nothing(snapshot: bool) -> None:
    cluster, leader = grown(snapshot=snapshot)
    fill(cluster[4], left=RESERVED - 1)
    cluster.run_for(2_000)
    ask(cluster, leader)
    cluster.run_until(lambda: any(peer.disk_full for peer in leader.group().status().peers))
    cluster.run_for(1_000)
    # when space is made within a third of the stall time
    cluster[4].disk.capacity_bytes = None
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert leader.listener.errors == []
    cluster.run_until(lambda: not any(p.disk_full for p in leader.group().status().peers))


@pytest.mark.slow
def test_a_newcomer_that_can_not_write_what_there_was_is_no_voter_however_little_it_lacks() -> None:
    # given limits by which it is near from its first entry on, and entries that come one by one
    near = replace(CONFIG, near_entries=1_000, near_bytes=1 << 20, message_bytes_max=1_000)
    cluster, leader = grown(snapshot=False, reserved=0, config=near)
    fill(cluster[4], left=15_000)
    ask(cluster, leader)
    cluster.run_until(lambda: bool(leader.listener.errors or leader.listener.asked))
    # then it never was about to vote
    assert leader.listener.asked == []
    assert leader.listener.errors[0].error is ChangeError.DISK_FULL
    # and with space it is
    cluster[4].disk.capacity_bytes = None
    cluster.run_until(lambda: leader.group().status().learners == ())
    ask(cluster, leader, token=2)
    cluster.run_until(lambda: bool(leader.listener.committed))


def test_a_heartbeat_is_answered_to_and_by_members_that_know_nothing_of_it() -> None:
    # given an answer as a release writes it that does not know the field
    item = HeartbeatResponse(1, 2, 3, 0, 7)
    frame = b"".join(wire.encode(1, [("g", item)]))
    size = int.from_bytes(frame[:4], "little")
    form, boot, ((group, message),) = msgspec.msgpack.decode(frame[4 : 4 + size])
    assert message[5:] == [7, False, 0]
    head = msgspec.msgpack.encode((form, boot, [(group, message[:6])]))
    _, ((_, read),) = wire.decode(len(head).to_bytes(4, "little") + head)
    assert read == item
    # and one with a field more than this release knows
    head = msgspec.msgpack.encode((form, boot, [(group, [*message, 9])]))
    _, ((_, read),) = wire.decode(len(head).to_bytes(4, "little") + head)
    assert read == item
