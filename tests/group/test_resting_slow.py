"""Groups rest on machines that are too slow for all of them, and on nodes that are held up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from group.cluster import Cluster, Member
from group.kv import put
from lowmark.group.group import Group

NAMES = [f"g{i}" for i in range(12)]


def groups_at_rest(seed: int = 1) -> Cluster:
    cluster = Cluster(seed, group="")
    for name in NAMES:
        for number in (1, 2, 3):
            cluster[number].create(name, (1, 2, 3))
    for name in NAMES:
        cluster.wait_leader(name)
    wait_rest(cluster)
    return cluster


def copies(cluster: Cluster) -> list[Group]:
    return [group for m in cluster.members.values() if m.up for group in m.here.groups()]


def wait_rest(cluster: Cluster) -> None:
    cluster.run_until(
        lambda: all(group.resting.resting for group in copies(cluster)), timeout_ms=120_000
    )


def make_slow(member: Member, ms: float) -> None:
    """Let each tick, message and turn of a group take so long, on one thread for all of them."""

    def slow(call: Callable[..., None]) -> Callable[..., None]:
        def slowly(*given: object) -> None:
            member.clock.hold_up(ms)
            call(*given)

        return slowly

    for group in member.here.groups():
        group.tick = slow(group.tick)  # type: ignore[method-assign]
        group.received = slow(group.received)  # type: ignore[method-assign]
        group.work = slow(group.work)  # type: ignore[method-assign]


@pytest.mark.slow
def test_groups_come_to_rest_though_one_round_of_all_takes_longer_than_an_election_timeout() -> (
    None
):
    # given a machine on which all groups together need over an election timeout for a tick
    cluster = groups_at_rest()
    slow_ms = 1.2 * cluster.config.election_ms / len(NAMES)
    for member in cluster.members.values():
        make_slow(member, slow_ms)
    # when all of them wake
    for name in NAMES:
        cluster.wait_leader(name).group(name).resting.wake()
    # then they rest again: nodes that are late are not taken for dead, which would wake more groups
    wait_rest(cluster)
    # and so when a node dies
    dead = cluster.wait_leader(NAMES[0])
    dead.crash()
    for name in NAMES:
        cluster.run_until(
            lambda name=name: cluster.wait_leader(name) is not dead,  # type: ignore[misc]
            timeout_ms=120_000,
        )
    wait_rest(cluster)
    # and when it is back
    dead.start()
    make_slow(dead, slow_ms)
    for name in NAMES:
        cluster.wait_even(name=name)
    wait_rest(cluster)


@pytest.mark.parametrize("held_up_ms", [300, 3_000, 30_000])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_node_that_was_held_up_disturbs_no_group_when_it_goes_on(
    seed: int, held_up_ms: int
) -> None:
    # given groups at rest, and a node that is suspended: others lead what it led
    cluster = groups_at_rest(seed)
    late = cluster.wait_leader(NAMES[0])
    late.clock.hold_up(held_up_ms)
    cluster.run_for(held_up_ms - 10)
    leaders = {
        name: leader
        for name in NAMES
        if (leader := cluster.leader(name)) is not None and leader is not late
    }
    terms = {name: leader.group(name).term for name, leader in leaders.items()}
    # when it goes on
    cluster.run_for(20)
    began = cluster.now_ms
    # then each group serves at once
    for name in leaders:
        cluster.propose(put("a", b"1"), name=name)
        assert cluster.now_ms - began < cluster.config.election_ms
    # and has the leader that it had
    cluster.run_for(3_000)
    assert {name: cluster.leader(name) for name in leaders} == leaders
    assert {name: leader.group(name).term for name, leader in leaders.items()} == terms
    wait_rest(cluster)
