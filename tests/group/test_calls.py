"""Questions from node to node: each is answered once, or its asker is told why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from group.cluster import FAST, Cluster, Member
from lowmark.errors import LowmarkError
from lowmark.group import CallLost, Future, Groups, NoService, NotAsked, Reply, wire
from lowmark.group.calls import _Lately
from lowmark.group.wire import Answer, Ask, Item, NotHere, Routed
from lowmark.log import Log
from lowmark.raft import Vote
from lowmark.runtime import Buffer, Endpoint
from lowmark.runtime.sim import SimDisk, SimNode, sim_runtime


@dataclass
class Asked:
    """A question as a service got it."""

    address: str
    sender: int
    body: bytes
    reply: Reply


class Desk:
    """A service that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def __call__(self, address: str, sender: int, body: Buffer, reply: Reply) -> None:
        self.asked.append(Asked(address, sender, bytes(body), reply))


def echo(address: str, sender: int, body: Buffer, reply: Reply) -> None:
    del address, sender
    reply(b"heard " + bytes(body))


def nodes(count: int = 2, **options: object) -> Cluster:
    """Nodes that know each other, and have no group whose turns could help."""
    return Cluster(nodes=count, group="", **options)  # type: ignore[arg-type]


def ask(
    cluster: Cluster, asker: int, node: int, question: bytes = b"?", *, service: str = "desk"
) -> Future[bytes]:
    return cluster[asker].here.calls.ask(node, service, question)


def desk_at(member: Member, *, strangers: bool = False) -> Desk:
    desk = Desk()
    member.here.calls.serve("desk", desk, strangers=strangers)
    return desk


def newcomer(cluster: Cluster, number: int = 9) -> Groups:
    """A node that nobody knows, and that knows nobody."""
    life = SimNode(cluster.loop, f"n{number}")
    runtime = sim_runtime(number, disk=SimDisk(), loop=life, network=cluster.network)
    return Groups(
        runtime, Log.open(runtime), node=number, address=f"n{number}:1", config=cluster.config
    )


class Wire:
    """An address from which anything may be sent."""

    def __init__(self, cluster: Cluster, address: str = "n8:1") -> None:
        self.got: list[Routed] = []
        self.endpoint: Endpoint = cluster.network.endpoint(
            address,
            lambda _, frame: self.got.extend(wire.decode(bytes(frame))[1]),
            lambda _a, _b: None,
        )

    def say(self, member: Member, *items: Item, name: str = "desk") -> None:
        self.endpoint.send(member.address, wire.encode(5, [(name, item) for item in items]))


def open_questions(member: Member) -> int:
    return len(member.here.calls._open)


# -- answers --------------------------------------------------------------------------------------


def test_a_question_is_answered_within_a_round_trip() -> None:
    # given nodes that have nothing else to do
    cluster = nodes()
    cluster[2].here.calls.serve("desk", echo)
    # when one asks
    asked_at = cluster.now_ms
    assert cluster.wait(ask(cluster, 1, 2, b"you")) == b"heard you"
    # then nobody waited for a tick
    assert cluster.now_ms - asked_at < 5


def test_a_service_hears_who_asks_and_may_answer_later() -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    future = ask(cluster, 1, 2, b"what")
    cluster.run_until(lambda: bool(desk.asked))
    assert (desk.asked[0].address, desk.asked[0].sender) == ("n1:1", 1)
    assert desk.asked[0].body == b"what"
    cluster.run_for(100)
    assert not future.done
    asked_at = cluster.now_ms
    desk.asked[0].reply(b"that")
    assert cluster.wait(future) == b"that"
    assert cluster.now_ms - asked_at < 5


def test_answers_find_their_questions_in_any_order() -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    futures = [ask(cluster, 1, 2, b"%d" % n) for n in range(20)]
    cluster.run_until(lambda: len(desk.asked) == 20)
    for asked in reversed(desk.asked):
        asked.reply(asked.body * 2)
    assert [cluster.wait(future) for future in futures] == [b"%d%d" % (n, n) for n in range(20)]


def test_a_service_that_answers_twice_is_heard_once() -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    future = ask(cluster, 1, 2)
    cluster.run_until(lambda: bool(desk.asked))
    sent = cluster.network.watch()
    desk.asked[0].reply(b"yes")
    desk.asked[0].reply(b"no")
    assert cluster.wait(future) == b"yes"
    cluster.run_for(100)
    answers = [item for s in sent for service, item in s.items if service == "desk"]
    assert sum(isinstance(item, Answer) for item in answers) == 1
    # and it is counted once, too
    assert cluster[2].here.calls._answering == {}


def test_a_question_that_the_network_doubles_is_heard_once() -> None:
    # given a network that delivers everything twice, and not in order
    cluster = nodes()
    cluster.network.weather.duplicate = 1.0
    cluster.network.weather.overtake = 0.5
    known, blind = desk_at(cluster[2]), desk_at(cluster[1], strangers=True)
    stranger = newcomer(cluster)
    # when questions are asked, also where most of them are refused
    cluster[2].here.calls.waiting_max = 10
    futures = [ask(cluster, 1, 2, b"%d" % n) for n in range(50)]
    other = [stranger.calls.ask_at("n1:1", "desk", b"%d" % n) for n in range(50)]
    cluster.run_for(300)
    # then what was heard was heard once, and whoever was refused was not heard
    refused = {b"%d" % n for n, future in enumerate(futures) if future.error is not None}
    heard = [asked.body for asked in known.asked]
    assert len(refused) == 40
    assert sorted([*heard, *refused]) == sorted(b"%d" % n for n in range(50))
    assert sorted(asked.body for asked in blind.asked) == sorted(b"%d" % n for n in range(50))
    # and answers count once, too
    for asked in (*known.asked, *blind.asked):
        asked.reply(asked.body)
    cluster.run_for(300)
    assert all(future.done for future in (*futures, *other))
    assert open_questions(cluster[1]) == 0


def test_only_so_many_questions_are_remembered() -> None:
    lately = _Lately(3)
    assert all(lately.is_new("a", n) for n in (1, 2, 3))
    # three are remembered, each by its address
    assert not any(lately.is_new("a", n) for n in (1, 2, 3))
    # and the fourth takes the place of the first
    assert lately.is_new("b", 1)
    assert not lately.is_new("a", 2)
    assert lately.is_new("a", 1)
    assert lately.is_new("a", 2)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 8 << 20])
def test_questions_and_answers_may_be_large(size: int) -> None:
    cluster = nodes()
    cluster[2].here.calls.serve("desk", lambda _a, _s, body, reply: reply(bytes(body)[::-1]))
    question = b"x" * (size // 2) + b"y" * (size - size // 2)
    assert cluster.wait(ask(cluster, 1, 2, question)) == question[::-1]


def test_two_large_questions_in_one_turn_go_out_in_frames_of_their_own() -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    futures = [ask(cluster, 1, 2, b"x" * (9 << 20)) for _ in range(2)]
    cluster.run_until(lambda: len(desk.asked) == 2)
    for asked in desk.asked:
        asked.reply(b"ok")
    assert [cluster.wait(future) for future in futures] == [b"ok", b"ok"]


def test_a_service_whose_name_a_group_has_is_asked_all_the_same() -> None:
    # given a group that a node was found not to have
    cluster = nodes()
    cluster[1].create("desk", (1, 2))
    cluster[2].here.calls.serve("desk", echo)
    cluster.run_for(500)
    assert cluster[1].here.transport._peer(2).spared
    # when its service of that name is asked, the question goes out
    assert cluster.wait(ask(cluster, 1, 2, b"you")) == b"heard you"


# -- refusals -------------------------------------------------------------------------------------


def test_a_node_without_the_service_says_so() -> None:
    cluster = nodes()
    error = cluster.wait_error(ask(cluster, 1, 2, service="nothing"))
    assert isinstance(error, NoService)
    assert error.message == "node 2 has no service nothing"


def test_a_node_whose_address_nobody_knows_is_not_asked() -> None:
    cluster = nodes()
    error = ask(cluster, 1, 77).error
    assert isinstance(error, NotAsked)


@pytest.mark.parametrize("blind", [False, True])
def test_a_question_that_is_too_long_for_a_frame_is_not_asked(blind: bool) -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    calls = cluster[1].here.calls
    question = b"x" * (cluster.network.limits.frame_bytes_max + 1)
    future = calls.ask_at("n2:1", "desk", question) if blind else calls.ask(2, "desk", question)
    asked_at = cluster.now_ms
    assert isinstance(cluster.wait_error(future), NotAsked)
    assert cluster.now_ms == asked_at
    cluster.run_for(100)
    assert desk.asked == []
    assert calls._open == {}
    assert calls._open_at == {}


@pytest.mark.parametrize("blind", [False, True])
def test_a_question_for_which_the_queue_has_no_room_is_not_asked(blind: bool) -> None:
    # given a node that reads nothing
    cluster = nodes()
    cluster[2].here.transport._endpoint.pause("n1:1")
    calls = cluster[1].here.calls

    def put_question() -> Future[bytes]:
        question = b"x" * (8 << 20)
        return calls.ask_at("n2:1", "desk", question) if blind else calls.ask(2, "desk", question)

    # when more is asked than the queue holds
    count = cluster.network.limits.queued_bytes_max // (8 << 20) + 1
    futures = [put_question() for _ in range(count)]
    cluster.run_for(1)
    # then what did not fit is known at once not to have been asked
    assert isinstance(futures[-1].error, NotAsked)
    assert not futures[0].done


def test_more_questions_than_one_node_may_have_open_are_not_asked() -> None:
    # given a limit of three
    cluster = nodes(3)
    calls = cluster[1].here.calls
    calls.waiting_max = 3
    desk = desk_at(cluster[2])
    desk_at(cluster[3])
    # when there are three, they are open; and one more is refused
    futures = [ask(cluster, 1, 2) for _ in range(3)]
    cluster.run_until(lambda: len(desk.asked) == 3)
    assert isinstance(ask(cluster, 1, 2).error, NotAsked)
    assert isinstance(calls.ask_at("n2:1", "desk", b"").error, NotAsked)
    # but another node can be asked
    assert not ask(cluster, 1, 3).done
    # and this one, when one of them was answered
    desk.asked[0].reply(b"")
    cluster.wait(futures[0])
    assert not ask(cluster, 1, 2).done


def test_a_node_that_asks_more_than_it_may_is_told_to_wait() -> None:
    # given a node that takes three questions of each other node
    cluster = nodes(3)
    cluster[2].here.calls.waiting_max = 3
    desk = desk_at(cluster[2])
    open_ = [ask(cluster, 1, 2) for _ in range(3)]
    cluster.run_until(lambda: len(desk.asked) == 3)
    # when the same one asks once more, it is told so
    error = cluster.wait_error(ask(cluster, 1, 2))
    assert isinstance(error, NoService)
    assert error.message == "node 2 is too busy for desk"
    assert len(desk.asked) == 3
    # but another one is heard
    other = ask(cluster, 3, 2)
    cluster.run_until(lambda: len(desk.asked) == 4)
    # and so is the first when there is room
    desk.asked[0].reply(b"1")
    cluster.wait(open_[0])
    again = ask(cluster, 1, 2)
    cluster.run_until(lambda: len(desk.asked) == 5)
    for asked in desk.asked:
        asked.reply(b"ok")
    assert [cluster.wait(f) for f in [*open_, other, again]] == [b"1", *[b"ok"] * 4]


# -- strangers ------------------------------------------------------------------------------------


def test_a_newcomer_that_knows_only_an_address_is_answered() -> None:
    cluster = nodes()
    desk = desk_at(cluster[1], strangers=True)
    stranger = newcomer(cluster)
    future = stranger.calls.ask_at("n1:1", "desk", b"may I join")
    cluster.run_until(lambda: bool(desk.asked))
    assert (desk.asked[0].address, desk.asked[0].sender) == ("n9:1", 9)
    # also if it is known by the time of the answer
    cluster[1].here.transport.learn(9, "n9:1")
    desk.asked[0].reply(b"welcome")
    assert cluster.wait(future) == b"welcome"
    assert cluster[1].here.calls._strangers == 0


def test_a_newcomer_is_answered_only_where_the_service_says_so() -> None:
    cluster = nodes()
    desk = desk_at(cluster[1])
    stranger = newcomer(cluster)
    error = cluster.wait_error(stranger.calls.ask_at("n1:1", "desk", b""))
    assert isinstance(error, NoService)
    assert error.message == "the node at n1:1 has no service desk"
    assert desk.asked == []
    # and as soon as it is known, it is heard
    cluster[1].here.transport.learn(9, "n9:1")
    future = stranger.calls.ask_at("n1:1", "desk", b"")
    cluster.run_until(lambda: bool(desk.asked))
    desk.asked[0].reply(b"now")
    assert cluster.wait(future) == b"now"


def test_an_address_may_be_asked_that_is_known() -> None:
    cluster = nodes()
    cluster[2].here.calls.serve("desk", echo)
    future = cluster[1].here.calls.ask_at("n2:1", "desk", b"you")
    assert cluster.wait(future) == b"heard you"


def test_a_node_may_be_asked_that_does_not_know_the_asker() -> None:
    cluster = nodes()
    cluster[1].here.calls.serve("desk", echo, strangers=True)
    stranger = newcomer(cluster)
    stranger.transport.learn(1, "n1:1")
    assert cluster.wait(stranger.calls.ask(1, "desk", b"you")) == b"heard you"


def test_only_so_many_strangers_are_heard_at_a_time() -> None:
    # given a node that hears two questions of strangers at a time
    cluster = nodes()
    cluster[1].here.calls.strangers_max = 2
    desk = desk_at(cluster[1], strangers=True)
    one, two = newcomer(cluster, 8), newcomer(cluster, 9)
    first, second = (n.calls.ask_at("n1:1", "desk", b"") for n in (one, two))
    cluster.run_until(lambda: len(desk.asked) == 2)
    # when a third comes, it is told to wait
    error = cluster.wait_error(two.calls.ask_at("n1:1", "desk", b""))
    assert isinstance(error, NoService)
    assert "too busy" in error.message
    # but a node that is known is heard
    known = ask(cluster, 2, 1)
    cluster.run_until(lambda: len(desk.asked) == 3)
    # and so is a stranger when there is room
    next(asked for asked in desk.asked if asked.sender == 8).reply(b"")
    cluster.wait(first)
    third = one.calls.ask_at("n1:1", "desk", b"")
    cluster.run_until(lambda: len(desk.asked) == 4)
    for asked in desk.asked:
        asked.reply(b"")
    for future in (second, known, third):
        cluster.wait(future)


def test_of_a_stranger_only_questions_are_heard() -> None:
    # given a group, and somebody whom nobody knows
    cluster = Cluster()
    cluster.wait_leader()
    cluster[1].here.calls.serve("desk", echo, strangers=True)
    term = cluster[1].group().term
    stranger = Wire(cluster)
    # when it hides a vote between two questions
    vote = Vote(1, 8, 1_000, 0, 1_000, 1_000, pre=False, transfer=True)
    stranger.endpoint.send(
        "n1:1",
        wire.encode(5, [("desk", Ask(1, 8, 1, b"a")), ("g", vote), ("desk", Ask(0, 8, 2, b"b"))]),
    )
    cluster.run_for(500)
    # then these are answered, and the vote is not
    answers = [item for _, item in stranger.got if isinstance(item, Answer)]
    assert len(stranger.got) == len(answers) == 2
    assert [(a.to, a.sender, a.number, bytes(a.body)) for a in answers] == [
        (8, 1, 1, b"heard a"),
        (8, 1, 2, b"heard b"),
    ]
    assert cluster[1].group().term == term


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(Ask(3, 8, 1, b""), id="a question to another node"),
        pytest.param(Answer(0, 8, 1, 0, b""), id="an answer to nobody"),
        pytest.param(NotHere(0, 8), id="something else to nobody"),
    ],
)
def test_who_speaks_to_somebody_else_is_not_heard(item: Item) -> None:
    """It may mean whoever was at this address before, and is no worse for that."""
    cluster = nodes()
    desk = desk_at(cluster[1], strangers=True)
    Wire(cluster).say(cluster[1], item)
    cluster.run_for(100)
    assert "n8:1" not in cluster[1].here.transport.last_cut
    assert desk.asked == []


def test_a_new_node_where_another_one_was_is_a_stranger() -> None:
    # given an address that is known to be node 8's
    cluster = nodes()
    cluster[1].here.transport.learn(8, "n8:1")
    closed, porch = desk_at(cluster[1]), Desk()
    cluster[1].here.calls.serve("porch", porch, strangers=True)
    wire = Wire(cluster)
    # when node 9 asks from there
    wire.say(cluster[1], Ask(0, 9, 1, b"let me in"))
    wire.say(cluster[1], Ask(0, 9, 2, b"let me in"), name="porch")
    cluster.run_for(100)
    # then it is heard where strangers are, and nowhere else
    assert closed.asked == []
    assert len(porch.asked) == 1


# -- what is not believed -------------------------------------------------------------------------


def test_an_answer_of_another_node_or_service_is_not_believed() -> None:
    # given a question that is open
    cluster = nodes(3)
    desk = desk_at(cluster[2])
    future = ask(cluster, 1, 2)
    cluster.run_until(lambda: bool(desk.asked))
    (number,) = cluster[1].here.calls._open
    # when somebody else answers it, known or not
    cluster[3].here.transport.send("desk", Answer(1, 3, number, 0, b"wrong"))
    cluster[3].here.transport.flush()
    Wire(cluster).say(cluster[1], Answer(1, 8, number, 0, b"wrong"))
    # or the right one, but for another service, or another question
    cluster[2].here.transport.send("other", Answer(1, 2, number, 0, b"wrong"))
    cluster[2].here.transport.send("desk", Answer(1, 2, number + 1, 0, b"wrong"))
    cluster[2].here.transport.flush()
    cluster.run_for(100)
    # then it stays open, until the right answer comes
    assert not future.done
    desk.asked[0].reply(b"right")
    assert cluster.wait(future) == b"right"


def test_an_answer_to_what_an_earlier_life_asked_is_not_believed() -> None:
    # given a node that crashed before its question was answered
    cluster = nodes()
    desk = desk_at(cluster[2])
    ask(cluster, 1, 2, b"of the first life")
    cluster.run_until(lambda: len(desk.asked) == 1)
    cluster[1].crash()
    cluster[1].start()
    # when its next life has a question open, and the old answer comes
    future = ask(cluster, 1, 2, b"of the second life")
    cluster.run_until(lambda: len(desk.asked) == 2)
    desk.asked[0].reply(b"to the first")
    cluster.run_for(200)
    # then it is not taken for the new one's
    assert not future.done
    desk.asked[1].reply(b"to the second")
    assert cluster.wait(future) == b"to the second"


# -- silence --------------------------------------------------------------------------------------


def test_without_an_answer_the_call_is_lost_at_its_deadline() -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    asked_at = cluster.now_ms
    short = cluster[1].here.calls.ask(2, "desk", b"", timeout_ms=300)
    error = cluster.wait_error(short)
    assert isinstance(error, CallLost)
    assert 300 <= cluster.now_ms - asked_at <= 300 + FAST.tick_ms + 1
    # by default, it is that of any request
    asked_at = cluster.now_ms
    assert isinstance(cluster.wait_error(ask(cluster, 1, 2)), CallLost)
    waited = cluster.now_ms - asked_at
    assert FAST.request_timeout_ms <= waited <= FAST.request_timeout_ms + FAST.tick_ms + 1
    # and an answer that comes then is dropped
    for asked in desk.asked:
        asked.reply(b"late")
    cluster.run_for(100)
    assert isinstance(short.error, CallLost)
    assert open_questions(cluster[1]) == 0


def test_a_call_is_lost_with_its_connection() -> None:
    cluster = nodes(3)
    desk = desk_at(cluster[2])
    other = desk_at(cluster[3])
    lost = [ask(cluster, 1, 2), cluster[1].here.calls.ask_at("n2:1", "desk", b"")]
    kept = ask(cluster, 1, 3)
    cluster.run_until(lambda: len(desk.asked) == 2 and len(other.asked) == 1)
    # when the other process dies
    cluster[2].crash()
    cluster.run_for(200)
    # then whoever asked it knows, long before the deadline
    assert [type(future.error) for future in lost] == [CallLost, CallLost]
    # and nobody else is affected
    assert not kept.done
    other.asked[0].reply(b"here")
    assert cluster.wait(kept) == b"here"


def test_nobody_at_an_address_is_a_call_lost() -> None:
    cluster = nodes()
    asked_at = cluster.now_ms
    error = cluster.wait_error(cluster[1].here.calls.ask_at("n7:1", "desk", b""))
    assert isinstance(error, CallLost)
    assert cluster.now_ms - asked_at < 200


def test_who_is_told_that_a_call_is_lost_may_ask_again_at_once() -> None:
    cluster = nodes()
    calls = cluster[1].here.calls
    again: list[Future[bytes]] = []

    def once_more(_: Future[bytes]) -> None:
        if len(again) < 3:
            again.append(calls.ask(2, "desk", b"", timeout_ms=100))
            again[-1].then(once_more)

    desk = desk_at(cluster[2])
    calls.ask(2, "desk", b"", timeout_ms=100).then(once_more)
    cluster.run_until(lambda: len(again) == 3 and again[-1].done)
    assert len(desk.asked) == 4
    cluster.run_until(lambda: open_questions(cluster[1]) == 0)
    assert calls._open_at == {}


# -- the end --------------------------------------------------------------------------------------


def test_closing_answers_everybody() -> None:
    cluster = nodes(3)
    desk_at(cluster[2])
    calls = cluster[1].here.calls
    told: list[LowmarkError | None] = []
    futures = [ask(cluster, 1, 2), ask(cluster, 1, 3), calls.ask_at("n2:1", "desk", b"")]
    for future in futures:
        # One who asks again when told is refused, not kept waiting.
        future.then(lambda _: told.append(ask(cluster, 1, 2).error))
    cluster.run_for(50)
    assert [f.done for f in futures] == [False, True, False]  # node 3 has no such service
    cluster[1].here.close()
    assert [type(f.error) for f in futures] == [CallLost, NoService, CallLost]
    assert [type(error) for error in told if error is not None] == [NotAsked, NotAsked]
    assert open_questions(cluster[1]) == 0


def test_who_asked_a_node_that_closes_is_told() -> None:
    cluster = nodes()
    desk = desk_at(cluster[2])
    future = ask(cluster, 1, 2)
    cluster.run_until(lambda: bool(desk.asked))
    cluster[2].stop()
    assert isinstance(cluster.wait_error(future, timeout_ms=500), CallLost)
    # and an answer that comes to mind now says nothing to anybody
    desk.asked[0].reply(b"too late")
    cluster.run_for(100)


def test_a_node_that_closes_within_a_frame_serves_nothing_more_of_it() -> None:
    cluster = nodes()
    here, heard = cluster[2].here, 0

    def service(address: str, sender: int, body: Buffer, reply: Callable[[bytes], None]) -> None:
        nonlocal heard
        del address, sender, body
        heard += 1
        here.close()
        reply(b"")

    here.calls.serve("desk", service)
    futures = [ask(cluster, 1, 2) for _ in range(3)]
    for future in futures:
        assert isinstance(cluster.wait_error(future, timeout_ms=500), CallLost)
    assert heard == 1
