"""What an attack tried: strangers that lie, callers that err, machines that raise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster
from group.kv import KvMachine
from group.test_transport import Stranger, serves
from lowmark.errors import Rejected
from lowmark.group import MachineFailed, wire
from lowmark.group.wire import InstallOffer, Item
from lowmark.raft import (
    Append,
    ConfState,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndex,
    ReadIndexResponse,
    Snapshot,
    Vote,
)
from lowmark.runtime import Buffer

VOTERS = ConfState(voters=(1, 2, 3))


def lies(term: int) -> dict[str, Message]:
    """What node 9, which is no member, says to node 2."""
    entry = Entry(3, term, EntryKind.NORMAL, b"")
    return {
        "a commit beyond the log": Heartbeat(2, 9, term, 0, 1 << 40),
        "another leader of the same term": Append(2, 9, term, 0, 2, 1, 1 << 40, [entry]),
        "a leader of the next term": Heartbeat(2, 9, term + 1, 0, 1 << 40),
        "another past": Append(2, 9, term + 1, 0, 2, term + 1, 0, []),
        "a term beyond any": Vote(2, 9, (1 << 63) - 1, 0, 9, 9, pre=False, transfer=True),
    }


@pytest.mark.parametrize("lie", lies(1))
def test_what_a_stranger_says_damages_no_copy(lie: str) -> None:
    # given a group that works, and a node that is known but is no member
    cluster = Cluster()
    leader = cluster.make_leader(1)
    serves(cluster)
    stranger = Stranger(cluster)
    # when it lies to a follower
    message = lies(leader.group().term)[lie]
    stranger.say(cluster[2], message)
    cluster.run_for(1_000)
    # then no copy is damaged, and the group goes on, also after a restart
    assert all(not member.group().status().stopped for member in cluster.members.values())
    cluster[2].restart()
    serves(cluster)
    cluster.wait_even(1, 2, 3)


TOO_MUCH: dict[str, list[Item]] = {
    "a long context": [ReadIndex(1, 9, 0, 0, b"x" * (wire.CONTEXT_BYTES_MAX + 1))],
    "many messages": [HeartbeatResponse(1, 9, 1, 0)] * (wire.ITEMS_MAX + 1),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_a_frame_with_too_much_is_refused_and_one_at_the_limit_is_not(kind: str) -> None:
    items = TOO_MUCH[kind]
    with pytest.raises(wire.BadFrame):
        wire.decode(b"".join(wire.encode(1, [("g", item) for item in items])))
    allowed: list[Item] = items[1:] or [ReadIndex(1, 9, 0, 0, b"x" * wire.CONTEXT_BYTES_MAX)]
    wire.decode(b"".join(wire.encode(1, [("g", item) for item in allowed])))


def test_an_offer_of_a_snapshot_is_taken_from_the_leader_only() -> None:
    cluster = Cluster()
    leader = cluster.make_leader(1)
    stranger = Stranger(cluster)
    term = leader.group().term
    offer = InstallOffer(2, 9, 7, term, 0, Snapshot(1_000, 1, VOTERS), 1, 1, 0, 1 << 29, 0, 0, 0)
    stranger.say(cluster[2], offer)
    cluster.run_for(100)
    assert not cluster[2].group()._receives.busy
    serves(cluster)


def test_an_answer_to_a_read_of_an_earlier_life_confirms_nothing() -> None:
    # given a follower that read in an earlier life
    cluster = Cluster()
    leader = cluster.make_leader(1)
    sent = cluster.network.watch()
    cluster.wait(cluster[2].group().read("a"))
    asked = [item for s in sent for _, item in s.items if isinstance(item, ReadIndex)]
    cluster[2].restart()
    cluster.run_until(lambda: cluster[2].group().leader == 1)
    # when that answer comes once more, while the follower asks again and hears nothing
    cluster.network.loses = lambda _a, b, item: b == 2 and isinstance(item, ReadIndexResponse)
    read = cluster[2].group().read("a")
    cluster.run_for(50)
    late = ReadIndexResponse(2, 1, leader.group().term, 0, 0, asked[0].context)
    cluster[2].group().received(1, late)
    cluster.run_for(50)
    # then the new read is not answered by it
    assert not read.done


def test_a_node_that_restarts_wakes_the_groups_that_rest_on_it() -> None:
    cluster = Cluster(config=replace(FAST, election_ticks=1_000, heartbeat_ticks=1))
    cluster[1].group().raft.campaign()
    cluster.run_until(lambda: cluster[1].group().ready)
    cluster.run_until(lambda: all(m.group().resting.resting for m in cluster.members.values()))
    # long before anybody could have noticed a silence
    cluster[1].restart()
    cluster.run_for(2_000)
    assert not cluster[2].group().resting.resting


class _Raising(KvMachine):
    def apply(self, index: int, time: int, command: Buffer) -> object:
        if bytes(command) == b"poison":
            raise KeyError("a bug")
        return super().apply(index, time, command)

    def read(self, query: object) -> object:
        if query == "poison":
            raise KeyError("a bug")
        return super().read(query)


def test_a_machine_that_raises_stops_its_group_by_name_and_no_other() -> None:
    # given two groups on the same nodes
    cluster = Cluster(machine=_Raising)
    for number in (1, 2, 3):
        cluster[number].create("h", (1, 2, 3))
    cluster.wait_leader("h")
    leader = cluster.wait_leader()
    # when the machine of one can't read, or apply
    bad, good = leader.group().read("poison"), leader.group().read("a")
    cluster.run_until(lambda: bad.done and good.done)
    assert isinstance(bad.error, MachineFailed)
    assert good.error is None
    poison = leader.group().propose(b"poison")
    cluster.run_until(lambda: poison.done)
    # then that is said, and the other group goes on
    assert poison.error is not None
    assert "the machine of group g failed" in leader.group().status().stopped
    serves(cluster, "h")


MISTAKES: dict[str, tuple[type[Exception], Iterable[int]]] = {
    "a number that is no node": (Rejected, [1, 2, 1 << 63]),
    "nobody": (Rejected, []),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_list_of_peers_is_refused_at_the_door(mistake: str) -> None:
    error, peers = MISTAKES[mistake]
    group = Cluster().wait_leader().group()
    with pytest.raises(error):
        group.change_peers(group.term, 1, list(peers))


def test_a_command_that_is_no_bytes_is_refused_at_the_door() -> None:
    cluster = Cluster()
    group = cluster.wait_leader().group()
    with pytest.raises(TypeError):
        group.propose("text")  # type: ignore[arg-type]
    with pytest.raises(Rejected):
        group.rewrite([-1])
    serves(cluster)
    assert cluster.wait(group.rewrite([])) == 0


def test_a_rebuilt_copy_that_is_slow_is_tried_again_until_it_is_a_voter() -> None:
    cluster = Cluster(3, config=replace(FAST, catch_up_stall_ms=3_000))
    cluster.make_leader(1)
    serves(cluster)
    cluster.wait(cluster[3].rebuild())
    cluster.run_until(lambda: 3 not in cluster[1].group().raft.core.members.voters)
    cluster[3].crash()
    cluster.run_for(10_000)
    cluster[3].start()
    cluster.run_until(lambda: 3 in cluster[1].group().raft.core.members.incoming, timeout_ms=60_000)
