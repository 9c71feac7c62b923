"""One node, or two, in this process: what goes through the endpoint, and how it ends."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from eventually import eventually
from lowmark.errors import Rejected, ServerFull, Unavailable
from lowmark.metastore import ClusterRefused, RevisionCompacted
from lowmark.metastore.errors import InvokeRefused, NotInCluster, RevisionUnknown
from lowmark.node import (
    Node,
    NodeClient,
    NodeOptions,
    NodeUnreachable,
    NotLoopback,
    Settings,
    WatchEvent,
    WatchStarted,
)
from lowmark.node import actions as limits
from lowmark.node.action import reply
from lowmark.node.listener import Listener
from lowmark.node.messages import BODY_BYTES_MAX, Nothing, PeerAddress, PutAsk
from lowmark.runtime import AddressInUse, Locked
from node.running import QUICK, Running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("node") / "data", name="n1") as running:
        yield running


@pytest.fixture
def client(running: Running) -> Iterator[NodeClient]:
    with NodeClient(running.endpoint) as client:
        yield client


# -- keys ---------------------------------------------------------------------------------------


def test_a_value_is_read_as_it_was_written_also_as_of_an_earlier_revision(
    client: NodeClient,
) -> None:
    first = client.put(b"get/\xff", b"\x00\xff")
    second = client.put(b"get/\xff", b"two")
    assert second.revision > first.revision  # the node writes some by itself, too
    now = client.get(b"get/\xff").entry
    assert now is not None
    assert (now.value, now.version, now.created) == (b"two", 2, first.revision)
    then = client.get(b"get/\xff", at=first.revision).entry
    assert then is not None
    assert then.value == b"\x00\xff"
    assert client.remove(b"get/\xff").changed
    assert client.get(b"get/\xff").entry is None
    assert not client.remove(b"get/\xff").changed


def test_a_range_comes_in_pages_all_as_of_one_revision(
    client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given more keys than one result takes
    monkeypatch.setattr(limits, "PAGE_ENTRIES_MAX", 3)
    made = [client.put(b"page/%d" % number, b"v%d" % number) for number in range(8)]
    # when somebody changes them between two pages
    pages = client.range(b"page/")
    found = [next(pages)]
    last = client.put(b"page/7", b"changed")
    client.put(b"page/8", b"new")
    found += pages
    # then nothing of that is seen
    entries = [entry for page in found for entry in page.entries]
    assert [entry.key for entry in entries] == [b"page/%d" % number for number in range(8)]
    assert entries[7].value == b"v7"
    (revision,) = {page.revision for page in found}
    assert made[-1].revision <= revision < last.revision
    assert max(len(page.entries) for page in found) == 3


def test_a_page_holds_few_large_values_but_at_least_one(
    client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAGE_BYTES_MAX", 1_000)
    for number, size in enumerate([400, 400, 400, 5_000, 10]):
        client.put(b"large/%d" % number, b"x" * size)
    sizes = [[e.size for e in page.entries] for page in client.range(b"large/") if page.entries]
    assert sizes == [[400, 400], [400], [5_000], [10]]


def test_a_range_may_be_short_or_without_values(client: NodeClient) -> None:
    for number in range(5):
        client.put(b"few/%d" % number, b"v")
    few = [entry for page in client.range(b"few/", limit=2) for entry in page.entries]
    assert [entry.key for entry in few] == [b"few/0", b"few/1"]
    bare = [entry for page in client.range(b"few/", keys_only=True) for entry in page.entries]
    assert [(entry.size, entry.value) for entry in bare] == [(1, None)] * 5
    [empty] = client.range(b"nothing/")
    assert empty.entries == ()
    with pytest.raises(Rejected, match="limit"):
        list(client.range(limit=0))


def test_a_history_shows_every_value_and_every_removal(client: NodeClient) -> None:
    client.put(b"story", b"a")
    client.put(b"story", b"b")
    client.remove(b"story")
    client.put(b"story", b"c")
    entries = [entry for page in client.history(b"story") for entry in page.entries]
    assert [entry.value for entry in entries] == [b"a", b"b", None, b"c"]
    assert [entry.removed for entry in entries] == [False, False, True, False]
    assert all(entry.time_ms > 1_600_000_000_000 for entry in entries)


# -- refusals -----------------------------------------------------------------------------------


def test_errors_arrive_as_what_they_are(client: NodeClient) -> None:
    with pytest.raises(RevisionUnknown) as unknown:
        client.get(b"a", at=1_000_000)
    assert "1000000" in unknown.value.message
    assert unknown.value.hint
    with pytest.raises(InvokeRefused):
        client.put(b"", b"no key")


def test_an_action_that_nobody_knows_is_refused_by_name(client: NodeClient) -> None:
    with pytest.raises(Rejected) as refused:
        client.ask("meta.forget", Nothing(), Nothing)
    assert type(refused.value).__name__ == "ActionUnknown"
    assert "meta.get" in refused.value.hint


@pytest.mark.parametrize(
    "body", [b"rubbish", b'{"key": 1}', b"{}", b'{"key": "YQ==", "rev": 1}', b"\xff\xff"]
)
def test_a_body_that_is_not_what_the_action_takes_is_refused(running: Running, body: bytes) -> None:
    raw = flight.FlightClient(f"grpc+tcp://{running.endpoint}")
    with raw, pytest.raises(pa.ArrowInvalid, match="BadRequest: a request can't be read"):
        list(raw.do_action(flight.Action("meta.get", body)))


def test_a_body_that_is_too_long_is_refused(client: NodeClient) -> None:
    with pytest.raises(Rejected, match="too long"):
        client.ask("meta.put", PutAsk(key=b"k", value=bytes(BODY_BYTES_MAX)), Nothing)


def test_a_mistake_of_the_node_is_told_without_its_insides(
    running: Running, client: NodeClient, caplog: pytest.LogCaptureFixture
) -> None:
    running.node.server.actions["broken"] = lambda _body, _gone: [b"%d" % (1 // 0)]
    with pytest.raises(Exception, match="ZeroDivisionError") as told:
        client.ask("broken", Nothing(), Nothing)
    assert type(told.value).__name__ == "ServerFailed"
    assert "Traceback" not in str(told.value)
    assert "a call failed" in caplog.text


def test_a_port_without_a_node_is_named() -> None:
    with NodeClient("127.0.0.1:1") as nobody, pytest.raises(NodeUnreachable) as gone:
        nobody.status()
    assert "127.0.0.1:1" in gone.value.message
    assert "lowmark serve" in gone.value.hint


# -- watches ------------------------------------------------------------------------------------


def told(watch: Iterator[WatchStarted | WatchEvent]) -> WatchEvent:
    event = next(watch)
    assert isinstance(event, WatchEvent)
    return event


def test_a_watch_tells_what_happens_after_it_stands(client: NodeClient) -> None:
    watch = client.watch(b"seen/")
    started = next(watch)
    assert isinstance(started, WatchStarted)
    unseen = client.put(b"unseen", b"x")
    first = client.put(b"seen/1", b"a")
    client.remove(b"seen/1")
    event = told(watch)
    assert (event.revision, event.changes[0].value) == (first.revision, b"a")
    assert started.from_revision <= unseen.revision < first.revision
    assert told(watch).changes[0].removed


def test_a_watch_from_the_past_tells_all_of_it_first(client: NodeClient) -> None:
    made = [client.put(b"past", b"%d" % number).revision for number in range(5)]
    watch = client.watch(b"past", from_revision=made[0])
    assert next(watch) == WatchStarted(from_revision=made[0])
    assert [told(watch).revision for _ in made] == made


@pytest.mark.slow
def test_a_watch_whose_client_has_gone_is_closed(running: Running) -> None:
    eventually(lambda: client_watches(running) == 0)  # those of other tests have gone
    with NodeClient(running.endpoint) as leaving:
        watch = leaving.watch(b"")
        next(watch)
        eventually(lambda: client_watches(running) == 1)
        watch.close()  # type: ignore[attr-defined]
        eventually(lambda: client_watches(running) == 0)
        assert leaving.get(b"x").revision


def client_watches(running: Running) -> int:
    """How many watches of clients a node has: its own are there, too."""
    return sum(one.name == "a client" for one in running.node.cluster.metastore.watches())


def test_who_does_not_read_has_little_waiting_for_it_and_loses_nothing(
    running: Running, client: NodeClient
) -> None:
    eventually(lambda: client_watches(running) == 0)  # those of other tests have gone
    # given a watch that nobody reads, and far more than a connection takes
    first = client.put(b"slow", b"first").revision
    with NodeClient(running.endpoint) as slow:
        watch = slow.watch(b"slow", from_revision=first)
        next(watch)
        value = bytes(200_000)
        last = [client.put(b"slow", value) for _ in range(60)][-1].revision
        # then its watch stands still behind the others
        [behind] = [w for w in running.node.cluster.metastore.watches() if w.name == "a client"]
        assert behind.position < last
        # and when it reads, it is told everything
        revisions = [told(watch).revision for _ in range(61)]
        assert revisions == list(range(first, last + 1))


def test_a_watch_that_was_cut_off_ends_with_the_reason(running: Running) -> None:
    metastore = running.node.cluster.metastore
    with NodeClient(running.endpoint) as client:
        first = client.put(b"cut", b"1").revision
        last = client.put(b"cut", b"2").revision
        running.node.bridge.ask(metastore.renew_holds, timeout_s=10)
        running.node.bridge.ask(lambda: metastore.compact(last), timeout_s=10)
        compacted = running.node.bridge.ask_now(lambda: metastore.state.compacted, timeout_s=10)
        assert compacted >= first
        with pytest.raises(RevisionCompacted) as cut:
            list(client.watch(b"cut", from_revision=first))
        assert cut.value.first_left == compacted + 1
        # and what was in force at the cut still has a history
        entries = [entry for page in client.history(b"cut") for entry in page.entries]
        assert [entry.value for entry in entries] == [b"2"]


@pytest.mark.slow
def test_so_many_watches_and_no_more(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    # given as many watches as a node takes
    eventually(lambda: running.node.server.calls == 0)  # those of other tests have gone
    monkeypatch.setattr(limits, "WATCHES_MAX", 2)
    with NodeClient(running.endpoint) as client:
        first, second = client.watch(b"a"), client.watch(b"b")
        next(first), next(second)
        # when there is one more, it is refused by name, and everything else is answered
        with pytest.raises(Unavailable, match="2 watches"):
            next(client.watch(b"c"))
        assert client.status().nodes
        # and when one has gone, there is room again
        first.close()  # type: ignore[attr-defined]

        def room() -> bool:
            try:
                third = client.watch(b"c")
                next(third)
            except Unavailable:
                return False
            return True

        eventually(room)


@pytest.mark.slow
def test_so_many_calls_and_no_more(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    eventually(lambda: running.node.server.calls == 0)
    with NodeClient(running.endpoint) as client:
        watch = client.watch(b"a")
        next(watch)
        monkeypatch.setattr(running.node.server._calls, "_limit", 1)
        with pytest.raises(ServerFull, match="1 calls under way"):
            client.status()
        monkeypatch.setattr(running.node.server._calls, "_limit", 2)
        assert client.status().nodes


# -- status -------------------------------------------------------------------------------------


def test_a_status_says_who_is_there_and_who_leads(running: Running, client: NodeClient) -> None:
    status = client.status()
    [node] = status.nodes
    assert (node.name, node.up, node.role) == ("n1", True, "coordinator")
    assert (node.endpoint, node.address) == (running.endpoint, running.node.info.address)
    [group] = status.groups
    assert (group.group, group.leader_name) == ("metastore", "n1")
    assert group.members[0].entries_behind == 0
    assert status.metastore is not None
    assert status.metastore.revision > 0
    assert status.cluster is not None
    assert client.peer() == PeerAddress(address=node.address, cluster=status.cluster.id)


# -- starting and stopping ----------------------------------------------------------------------


def test_a_node_that_comes_back_knows_everything_at_another_address(tmp_path: Path) -> None:
    with Running(tmp_path, name="n1") as first:
        written = first.client().put(b"k", b"v")
        first_endpoint, number = first.endpoint, first.node.info.number
    with Running(tmp_path) as again:
        assert again.node.info.number == number
        assert again.node.info.name == "n1"
        client = again.client()
        entry = client.get(b"k").entry
        assert entry is not None
        assert entry.revision == written.revision
        # and the cluster learns where it is now
        eventually(lambda: client.status().nodes[0].endpoint == again.endpoint)
        assert again.endpoint != first_endpoint


def test_stopping_ends_watches_with_a_word_and_frees_the_directory(tmp_path: Path) -> None:
    with Running(tmp_path) as running:
        watch = running.client().watch(b"")
        next(watch)
        errors: list[Exception] = []

        def wait() -> None:
            try:
                for _ in watch:  # the node writes keys of its own, which are events, too
                    pass
            except Exception as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        running.stop()
        waiting.join(10)
    assert "closing" in str(errors[0])
    assert not running.node.stuck
    with Running(tmp_path):
        pass


def test_two_nodes_can_t_have_one_directory_or_one_address(tmp_path: Path) -> None:
    with Running(tmp_path / "a") as running:
        with pytest.raises(Locked):
            Node(NodeOptions(data=str(tmp_path / "a"), listen="127.0.0.1:0"), QUICK)
        free, data = "127.0.0.1:0", str(tmp_path / "b")
        for options in (
            NodeOptions(data=data, listen=running.endpoint),
            NodeOptions(data=data, listen=free, peers=running.node.info.address),
        ):
            with pytest.raises(AddressInUse):
                Node(options, QUICK)
    # and what failed left nothing open
    with Running(tmp_path / "b"):
        pass


@pytest.mark.parametrize(("listen", "peers"), [("0.0.0.0:0", ""), ("[::1]:0", "10.1.1.1:0")])
def test_nothing_is_done_for_an_address_that_others_can_reach(
    tmp_path: Path, listen: str, peers: str
) -> None:
    with pytest.raises(NotLoopback):
        Node(NodeOptions(data=str(tmp_path / "data"), listen=listen, peers=peers))
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_second_node_joins_by_the_door_of_the_first(tmp_path: Path) -> None:
    with Running(tmp_path / "1", name="n1") as first:
        one = first.client()
        one.put(b"k", b"v")
        with Running(tmp_path / "2", name="n2", join=first.endpoint) as second:
            two = second.client()
            entry = two.get(b"k").entry
            assert entry is not None
            assert entry.value == b"v"
            two.put(b"k", b"w")  # carried to the leader, wherever that is
            entry = one.get(b"k").entry
            assert entry is not None
            assert entry.value == b"w"
            eventually(lambda: {n.role for n in two.status().nodes} == {"coordinator", "voter"})
            # and both say the same of each member, whoever is asked
            for client in (one, two):
                [group] = client.status().groups
                assert [member.name for member in group.members] == ["n1", "n2"]
                assert all(member.applied for member in group.members)
            # when the name is taken, nobody else gets in under it
            with pytest.raises(ClusterRefused, match="n1"):
                Running(tmp_path / "3", name="n1", join=first.endpoint).__enter__()


def test_a_node_that_nobody_lets_in_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    # given a endpoint that leads nowhere
    nowhere = Listener("127.0.0.1:0")
    address = PeerAddress(address="127.0.0.1:1")
    nowhere.actions["cluster.peer-address"] = reply(Nothing, lambda _: address)
    options = NodeOptions(data=str(tmp_path), listen="127.0.0.1:0", join=nowhere.address)
    node = Node(options, QUICK)
    thread = threading.Thread(target=node.run)
    thread.start()
    # when it is asked
    with NodeClient(node.info.endpoint) as client:
        status = client.status()
        with pytest.raises(NotInCluster):
            client.get(b"k")
        with pytest.raises(NotInCluster):
            next(client.watch(b"k"))
    # then it says that it is nowhere yet
    assert (status.cluster, status.nodes, status.groups) == (None, (), ())
    # and it stops when it is told to
    node.stop()
    thread.join(30)
    assert not thread.is_alive()
    nowhere.close()


def test_what_the_founder_settles_is_kept(tmp_path: Path) -> None:
    # given a founder with settings of its own
    with Running(tmp_path / "1", settings=QUICK) as first:
        cluster = first.client().status().cluster
    assert cluster is not None
    assert (cluster.members, cluster.schema_sync_delay_ms, cluster.clock_max_skew_ms) == (
        3,
        500,
        500,
    )
    # when it comes back with others
    other = dataclasses.replace(QUICK, metastore=dataclasses.replace(QUICK.metastore, members=5))
    with Running(tmp_path / "1", settings=other) as first:
        again = first.client().status().cluster
    # then those of the founding stay
    assert again is not None
    assert (again.id, again.members) == (cluster.id, 3)
    assert Settings().for_founding().members == 3
