"""The link between nodes: batched, bounded, and closed to those who break the rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster, Member
from group.kv import put
from lowmark.group import TransportLimits, wire
from lowmark.group.wire import (
    Answer,
    Ask,
    InstallOffer,
    Item,
    Knows,
    NotHere,
    Rejoin,
    Routed,
)
from lowmark.raft import (
    Append,
    ConfState,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Snapshot,
    Vote,
)
from lowmark.runtime import Buffer, Endpoint, NetworkLimits, PeerMisbehaved, PeerRefused
from lowmark.runtime.sim import Weather


class Stranger:
    """Node 9: known to the others, and free to send them anything.

    It has no service, as a node of a release before that is asked for its start.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.got: list[Routed] = []
        self.cut_off = 0
        self.endpoint: Endpoint = cluster.network.endpoint("n9:1", self._on_frame, self._on_cut)
        for member in cluster.members.values():
            member.here.transport.learn(9, "n9:1")

    def _on_frame(self, peer: str, frame: Buffer) -> None:
        for group, item in wire.decode(frame)[1]:
            if isinstance(item, Ask):
                answer = Answer(item.sender, 9, item.number, 1, b"")
                self.endpoint.send(peer, wire.encode(99, [(group, answer)]))
            else:
                self.got.append((group, item))

    def _on_cut(self, peer: str, why: object) -> None:
        del peer, why
        self.cut_off += 1

    def send(self, member: Member, frame: bytes) -> None:
        self.endpoint.send(member.address, [frame])

    def say(self, member: Member, *items: Item, group: str = "g") -> None:
        self.send(member, b"".join(wire.encode(99, [(group, item) for item in items])))


def serves(cluster: Cluster, name: str = "g") -> None:
    cluster.propose(put("check", b"x"), name=name)


# -- those who break the rules --------------------------------------------------------------------

VOTERS = ConfState(voters=(1, 2, 3))
RUBBISH: dict[str, bytes] = {
    "random bytes": b"\xde\xad\xbe\xef" * 10,
    "nothing": b"",
    "members that can't be": b"".join(
        wire.encode(
            99,
            [
                (
                    "g",
                    InstallOffer(
                        *(1, 9, 1, 1_000_000, 0),
                        Snapshot(1_000_000, 1, ConfState(voters=(1,), learners=(1,))),
                        *(1, 1, 0, 0, 0, 0, 0),
                    ),
                )
            ],
        )
    ),
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_a_peer_that_sends_rubbish_is_cut_off_by_name_and_alone(kind: str) -> None:
    # given a group, and a peer that one of its nodes knows
    cluster = Cluster()
    serves(cluster)
    terms = [m.group().term for m in cluster.members.values()]
    stranger = Stranger(cluster)
    # when it sends what no sound peer sends
    stranger.send(cluster[1], RUBBISH[kind])
    cluster.run_for(100)
    # then it is cut off, and there is a name for why
    why = cluster[1].here.transport.last_cut["n9:1"]
    assert isinstance(why, PeerMisbehaved)
    # and nobody else is
    assert "n2:1" not in cluster[1].here.transport.last_cut
    assert "n9:1" not in cluster[2].here.transport.last_cut
    serves(cluster)
    assert [m.group().term for m in cluster.members.values()] == terms


@pytest.mark.parametrize(
    "item", [Heartbeat(1, 2, 1_000_000, 0, 0), NotHere(3, 9)], ids=["another's name", "another's"]
)
def test_what_is_said_in_another_s_name_or_to_another_is_not_believed(item: Item) -> None:
    # given a group, and a peer that one of its nodes knows
    cluster = Cluster()
    serves(cluster)
    terms = [m.group().term for m in cluster.members.values()]
    # when it speaks as somebody else, or to somebody else
    Stranger(cluster).say(cluster[1], item)
    cluster.run_for(100)
    # then nothing has changed: an address may have had another node, or have another one now
    serves(cluster)
    assert [m.group().term for m in cluster.members.values()] == terms
    assert "n9:1" not in cluster[1].here.transport.last_cut


def test_a_peer_that_was_cut_off_is_heard_again_after_a_while() -> None:
    cluster = Cluster(network_limits=NetworkLimits(rest_ms_max=1_000))
    serves(cluster)
    stranger = Stranger(cluster)
    stranger.send(cluster[1], b"rubbish")
    cluster.run_for(100)
    stranger.say(cluster[1], Rejoin(1, 9, 0), group="nowhere")
    cluster.run_for(100)
    assert stranger.got == []
    cluster.run_for(2_000)
    stranger.say(cluster[1], Rejoin(1, 9, 0), group="nowhere")
    cluster.run_for(100)
    assert stranger.got == [("nowhere", NotHere(9, 1))]


def test_a_node_that_nobody_knows_is_not_listened_to() -> None:
    cluster = Cluster()
    serves(cluster)
    term = cluster[1].group().term
    endpoint = cluster.network.endpoint("n8:1", lambda _a, _b: None, lambda _a, _b: None)
    vote = Vote(1, 8, 1_000, 0, 1_000, 1_000, pre=False, transfer=True)
    endpoint.send("n1:1", wire.encode(1, [("g", vote)]))
    cluster.run_for(500)
    assert cluster[1].group().term == term


def test_sound_messages_of_somebody_who_is_no_member_do_no_harm() -> None:
    # given a node that is known, but does not belong to the group
    cluster = Cluster()
    serves(cluster)
    leader = cluster.wait_leader()
    stranger = Stranger(cluster)
    # when it says all sorts of things that a member might say
    for member in cluster.members.values():
        to = member.number
        stranger.say(member, HeartbeatResponse(to, 9, leader.group().term, 0))
        stranger.say(member, Vote(to, 9, leader.group().term + 5, 0, 1 << 40, 1 << 40, pre=True))
        stranger.say(member, Rejoin(to, 9, 5))
    cluster.run_for(500)
    # then nothing comes of it
    assert cluster.wait_leader() is leader
    serves(cluster)


# -- groups that are not here ---------------------------------------------------------------------


def test_a_message_for_a_group_that_is_not_here_is_answered_so() -> None:
    cluster = Cluster()
    stranger = Stranger(cluster)
    stranger.say(cluster[1], Rejoin(1, 9, 0), group="nowhere")
    cluster.run_for(100)
    assert stranger.got == [("nowhere", NotHere(9, 1))]
    # but an answer is not answered
    stranger.say(cluster[1], NotHere(1, 9), group="nowhere")
    cluster.run_for(100)
    assert len(stranger.got) == 1


def test_a_sender_spares_a_node_the_group_that_it_does_not_have() -> None:
    # given a leader with a member that has no copy
    cluster = Cluster(group="", transport_limits=TransportLimits(not_here_ms=1_000))
    for number in (1, 2):
        cluster[number].create("g", (1, 2, 3))
    leader = cluster.wait_leader()
    cluster.run_for(500)
    sent = cluster.network.watch()
    # when ten seconds pass
    cluster.run_for(10_000)
    # then it speaks to it about once a second, and not with every heartbeat
    to_it = [s for s in sent if s.to == 3 and s.sender == leader.number and s.items]
    assert 5 <= len(to_it) <= 40
    # and finds it soon when it has one
    cluster[3].create("g", (1, 2, 3))
    cluster.run_for(1_500)
    assert cluster[3].group().leader == leader.number


def test_a_node_that_was_told_that_a_group_is_not_here_hears_when_it_is() -> None:
    # given a leader that would spare a node its group for ever, after it heard that it is not there
    cluster = Cluster(group="", transport_limits=TransportLimits(not_here_ms=1_000_000_000))
    for number in (1, 2):
        cluster[number].create("g", (1, 2, 3))
    leader = cluster.wait_leader()
    cluster.run_for(1_000)
    # when the copy is made
    sent = cluster.network.watch()
    cluster[3].create("g", (1, 2, 3))
    # then it says so, once, to those who were told otherwise, and its leader calls it
    cluster.run_until(lambda: cluster[3].group().leader == leader.number)
    cluster.run_for(1_000)
    told = [s.to for s in sent for _, item in s.items if isinstance(item, Knows) and not item.term]
    assert sorted(told) == sorted({*told})
    assert leader.number in told


def test_a_copy_that_was_left_and_is_made_again_is_called_at_once() -> None:
    # given a node that has left a group, and said so to a leader that would spare it for ever
    cluster = Cluster(transport_limits=TransportLimits(not_here_ms=1_000_000_000))
    cluster.make_leader(1)
    serves(cluster)
    group = cluster[1].group()
    group.change_peers(group.term, 1, [1, 2])
    cluster.run_until(lambda: bool(cluster[1].listener.committed))
    cluster[3].here.leave("g")
    cluster.run_for(1_000)
    # when it is to be a member again, and makes its copy
    group.change_peers(group.term, 2, [1, 2, 3])
    cluster.run_until(lambda: group.status().learners == (3,))
    cluster[3].create("g")
    # then it is
    cluster.run_until(lambda: group.status().voters == (1, 2, 3))
    serves(cluster)


def test_a_peer_that_goes_on_about_a_group_that_is_not_here_is_cut_off_at_the_limit() -> None:
    # given a limit of ten such messages
    limits = TransportLimits(strays_max=10, strays_ms=1_000)
    cluster = Cluster(transport_limits=limits)
    stranger = Stranger(cluster)
    # when there are ten, it is answered each time
    stranger.say(cluster[1], *([Rejoin(1, 9, 0)] * 10), group="nowhere")
    cluster.run_for(100)
    assert len(stranger.got) == 10
    assert "n9:1" not in cluster[1].here.transport.last_cut
    # and with one more within the time it is cut off by name
    stranger.say(cluster[1], Rejoin(1, 9, 0), group="nowhere")
    cluster.run_for(100)
    why = cluster[1].here.transport.last_cut["n9:1"]
    assert isinstance(why, PeerMisbehaved)
    assert "not here" in why.message
    serves(cluster)


def test_strays_are_counted_anew_after_a_while() -> None:
    limits = TransportLimits(strays_max=10, strays_ms=1_000)
    cluster = Cluster(transport_limits=limits)
    stranger = Stranger(cluster)
    for _ in range(5):
        stranger.say(cluster[1], *([Rejoin(1, 9, 0)] * 10), group="nowhere")
        cluster.run_for(1_100)
    assert "n9:1" not in cluster[1].here.transport.last_cut


def test_what_a_peer_does_not_have_is_remembered_only_for_groups_that_are_here() -> None:
    cluster = Cluster()
    stranger = Stranger(cluster)
    for i in range(500):
        stranger.say(cluster[1], NotHere(1, 9), group=f"made-up-{i}")
    cluster.run_for(500)
    assert len(cluster[1].here.transport._peer(9).spared) == 0


# -- batches --------------------------------------------------------------------------------------


def many(count: int = 20) -> tuple[Cluster, list[str]]:
    """Groups that all have the same leader, and never rest."""
    cluster = Cluster(group="", config=replace(FAST, rest_ticks=0))
    names = [f"g{i}" for i in range(count)]
    for name in names:
        for number in (1, 2, 3):
            cluster[number].create(name, (1, 2, 3))
    for name in names:
        cluster.make_leader(1, name)
    cluster.run_for(300)
    return cluster, names


def test_what_many_groups_say_in_one_turn_goes_out_as_one_frame_per_peer() -> None:
    cluster, names = many()
    groups = [cluster[1].group(name) for name in names]
    cluster.run_for(5)
    sent = cluster.network.watch()
    futures = [group.propose(put("a", b"x")) for group in groups]
    cluster.run_until(lambda: all(future.done for future in futures))
    with_entries = [
        s
        for s in sent
        if s.sender == 1 and any(isinstance(i, Append) and i.entries for _, i in s.items)
    ]
    assert [(s.to, len(s.items)) for s in with_entries] == [(2, 20), (3, 20)]
    # and the answers, which one sync made possible, come back together, too
    answers = [s for s in sent if s.sender == 2 and s.to == 1 and s.items]
    assert len(answers) <= 4


def test_all_heartbeats_go_out_in_one_frame() -> None:
    cluster, names = many()
    sent = cluster.network.watch()
    cluster.run_for(1_000)
    ticks = 1_000 // cluster.config.tick_ms
    frames = [s for s in sent if s.sender == 1 and s.to == 2]
    assert ticks - 1 <= len(frames) <= ticks + 1
    for frame in frames:
        beats = [group for group, item in frame.items if isinstance(item, Heartbeat)]
        assert sorted(beats) == sorted(names)


def test_no_frame_is_longer_than_the_limit_however_much_there_is_to_say() -> None:
    limits = TransportLimits(frame_bytes_max=300_000)
    config = replace(
        FAST, command_bytes_max=200_000, message_bytes_max=100_000, install_piece_bytes=100_000
    )
    cluster = Cluster(group="", config=config, transport_limits=limits)
    names = [f"g{i}" for i in range(10)]
    for name in names:
        for number in (1, 2, 3):
            cluster[number].create(name, (1, 2, 3))
    for name in names:
        cluster.make_leader(1, name)
    sent = cluster.network.watch()
    futures = [cluster[1].group(n).propose(put("a", b"x" * 90_000)) for n in names]
    cluster.run_until(lambda: all(future.done for future in futures))
    assert all(future.error is None for future in futures)
    assert max(s.size for s in sent) <= 300_000
    assert len([s for s in sent if s.to == 2 and s.size > 100_000]) >= 3


# -- queues ---------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_the_group_probes_and_recovers() -> None:
    # given a follower that reads nothing, and queues that hold little
    network = NetworkLimits(frame_bytes_max=100_000, queued_bytes_max=200_000)
    config = replace(
        FAST, command_bytes_max=20_000, message_bytes_max=20_000, install_piece_bytes=20_000
    )
    cluster = Cluster(
        config=config,
        network_limits=network,
        transport_limits=TransportLimits(frame_bytes_max=50_000),
    )
    leader = cluster.wait_leader()
    slow, other = cluster.followers()
    slow_endpoint = slow.here.transport._endpoint
    slow_endpoint.pause(leader.address)
    # when much is written
    refused = 0
    original = leader.here.refused

    def counted(to: int, group: str, item: Item) -> None:
        nonlocal refused
        refused += 1
        original(to, group, item)

    leader.here.refused = counted  # type: ignore[method-assign]
    for _ in range(40):
        cluster.propose(put("a", b"x" * 15_000))
    # then the others serve, what does not fit is refused, and memory stays bounded
    assert refused > 0
    assert leader.here.transport.queued_bytes(slow.number) <= 200_000
    assert leader.group().progress()[slow.number].state.value == "probe"
    assert other.group().applied > 40
    # and when it reads again, it gets everything
    slow_endpoint.resume(leader.address)
    cluster.wait_even()
    assert slow.machine.rows == leader.machine.rows


def test_messages_to_a_node_whose_address_nobody_knows_are_refused() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    with_stranger = leader.here.transport
    refused: list[Item] = []
    leader.here.refused = lambda to, group, item: refused.append(item)  # type: ignore[method-assign]
    with_stranger.send("g", Heartbeat(77, leader.number, 1, 0, 0))
    with_stranger.flush()
    assert [type(item) for item in refused] == [Heartbeat]


def test_a_node_that_moved_is_found_at_its_new_address() -> None:
    cluster = Cluster()
    cluster.wait_leader()
    transport = cluster[1].here.transport
    transport.learn(2, "n2:7")
    assert transport.addresses[2] == "n2:7"
    transport.learn(2, cluster[2].address)
    serves(cluster)
    cluster.wait_even()


def test_why_a_node_was_refused_is_forgotten_when_it_moves_or_goes() -> None:
    cluster = Cluster()
    transport = cluster[1].here.transport

    def refuses(address: str) -> None:
        transport._on_cut(address, PeerRefused(address, reason="its certificate was revoked"))

    # given two nodes that are refused
    refuses(cluster[2].address)
    refuses(cluster[3].address)
    assert transport.refused.keys() == {cluster[2].address, cluster[3].address}
    # when one is heard of at the same address, then nothing changes
    transport.learn(2, cluster[2].address)
    assert cluster[2].address in transport.refused
    # when it moves, then what was said of its old address goes
    transport.learn(2, "n2:7")
    assert transport.refused.keys() == {cluster[3].address}
    # and so it does when a node goes
    transport.forget_refused(but={"n2:7"})
    assert transport.refused == {}


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x63 of no kind", "kind 99"),
        (b"\x05", "quarantine"),
        (b"\x04", "quarantine"),
        (b"\x01", "quarantine"),
    ],
)
def test_an_entry_that_no_sound_leader_writes_stops_this_copy_by_name(
    data: bytes, why: str
) -> None:
    # given a follower whose leader has gone mad
    cluster = Cluster()
    serves(cluster)
    follower = cluster.followers()[0]
    leader = cluster.wait_leader()
    core = follower.group().raft.core
    last = core.log.last_index
    cluster.isolate(follower.number)
    # when it sends an entry that can't be
    bad = Entry(last + 1, core.term, EntryKind.NORMAL, data)
    follower.group().received(
        leader.number,
        Append(
            follower.number, leader.number, core.term, 0, last, core.log.last_term, last + 1, [bad]
        ),
    )
    cluster.run_for(200)
    # then this copy stops, and its node goes on
    assert why in follower.group().status().stopped
    cluster.heal()
    serves(cluster)


# -- slow links -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("by", ["log", "snapshot"])
def test_heartbeats_do_not_wait_behind_bulk_on_a_slow_link(by: str) -> None:
    # given two voters of whom one must catch up, by a link that takes seconds for what it lacks
    limits = TransportLimits(bulk_bytes=60_000)  # a third of an election timeout
    rate = 1_000_000
    cluster = Cluster(config=replace(FAST, rest_ticks=0), transport_limits=limits)
    leader = cluster.wait_leader()
    behind, dead = cluster.followers()
    cluster.isolate(behind.number)
    for number in range(60):
        cluster.propose(put(f"{number}", bytes(50_000)))
    if by == "snapshot":
        leader.group().snapshot()
        cluster.run_until(lambda: leader.group().status().snapshot_index > 0)
    dead.crash()
    cluster.run_until(lambda: behind.group().leader != leader.number)
    cluster.network.weather = Weather(bytes_per_s=rate)
    cluster.heal()
    # when it catches up
    cluster.run_until(lambda: behind.group().leader == leader.number)
    term = leader.group().term
    sent = cluster.network.watch()
    began = cluster.now_ms
    cluster.wait_even(leader.number, behind.number)
    took_ms = cluster.now_ms - began
    # then that takes as long as the link needs, far longer than an election timeout
    bulk = sum(frame.size for frame in sent if frame.to == behind.number)
    assert took_ms > 0.8 * bulk * 1_000 / rate > 10 * cluster.config.election_ms
    # and nobody has missed the other meanwhile
    assert leader.group().leads
    assert {m.group().term for m in (leader, behind)} == {term}
    votes = [item for frame in sent for _, item in frame.items if isinstance(item, Vote)]
    assert votes == []
