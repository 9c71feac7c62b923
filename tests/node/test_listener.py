"""What a client is told of what went wrong: whether it may just try again, or has to look first."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from pyarrow import flight

from eventually import eventually
from lowmark.catalog import NotInForce
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.group import CallLost, Future, GroupBusy, NoQuorum, OutcomeUnknown, ShuttingDown
from lowmark.metastore import MetastoreConfig
from lowmark.metastore.errors import MetastoreUnreachable, NotInCluster
from lowmark.node import AnswerLost, NodeClient, NodeUnreachable
from lowmark.node.action import Call
from lowmark.node.actions import EXECUTE_S, MetaActions
from lowmark.node.bridge import NodeClosed, NodeClosing, NodeSilent
from lowmark.node.errors import ActionUnknown, NodeStarting, ServerFailed, ServerFull
from lowmark.node.listener import Listener
from lowmark.node.messages import ASKS_FOR_WHOLE, CHANGES, Nothing
from lowmark.node.node import STATUS_S
from node.running import Running

MAY_HAVE_HAPPENED = [
    OutcomeUnknown("g", why="it was sent"),
    NoQuorum("g", waited_ms=10),
    ShuttingDown("g"),
    CallLost("node 2", why="the connection broke"),
    NodeSilent(waited_s=1),
    NodeClosed(),
    ServerFailed("meta.put", KeyError("x")),
    NotInForce(7, wait_ms=60_000),
]
DID_NOT_HAPPEN = [
    GroupBusy("g", why="much to do"),
    MetastoreUnreachable(waited_ms=10, why="nobody leads"),
    NotInCluster(),
    NodeClosing(),
    ServerFull("calls", limit=1),
]


@pytest.fixture
def server() -> Iterator[Listener]:
    server = Listener("127.0.0.1:0")
    yield server
    server.close()


def raising(error: Exception) -> Callable[[bytes, Call], Iterable[bytes]]:
    def act(_body: bytes, _call: Call) -> Iterable[bytes]:
        raise error

    return act


def told(server: Listener, error: LowmarkError) -> flight.FlightError:
    server.actions["fails"] = raising(error)
    raw = flight.FlightClient(f"grpc+tcp://{server.address}")
    ours = flight.FlightCallOptions(headers=ASKS_FOR_WHOLE)
    with raw, pytest.raises(flight.FlightError) as failed:
        list(raw.do_action(flight.Action("fails", b""), ours))
    assert msgspec.json.decode(failed.value.extra_info)["class"] == type(error).__name__
    return failed.value


@pytest.mark.parametrize("error", MAY_HAVE_HAPPENED, ids=lambda error: type(error).__name__)
def test_what_may_have_happened_is_not_told_as_something_to_retry(
    server: Listener, error: LowmarkError
) -> None:
    assert isinstance(error, Unavailable)
    assert type(told(server, error)) is flight.FlightServerError


@pytest.mark.parametrize("error", DID_NOT_HAPPEN, ids=lambda error: type(error).__name__)
def test_what_did_not_happen_may_be_retried_by_any_client(
    server: Listener, error: LowmarkError
) -> None:
    assert type(told(server, error)) is flight.FlightUnavailableError


def test_what_is_wrong_as_it_stands_is_not_retried(server: Listener) -> None:
    assert type(told(server, Rejected("no"))) is flight.FlightServerError


# -- answers that do not come -------------------------------------------------------------------


CHANGING: list[Callable[[NodeClient], object]] = [
    lambda client: client.put(b"k", b"v"),
    lambda client: client.remove(b"k"),
    lambda client: client.execute([]),
]


class Stuck:
    """Actions that have begun, and give no answer."""

    def __init__(self, server: Listener) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        for name in (*CHANGES, "meta.get"):
            server.actions[name] = self._act

    def _act(self, _body: bytes, _call: Call) -> Iterable[bytes]:
        self.begun.set()
        self.go_on.wait(30)
        return []


@pytest.fixture
def stuck(server: Listener) -> Iterator[Stuck]:
    stuck = Stuck(server)
    yield stuck
    stuck.go_on.set()


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGING, ids=["put", "remove", "execute"])
def test_a_change_without_an_answer_in_time_may_have_happened(
    server: Listener, stuck: Stuck, change: Callable[[NodeClient], object]
) -> None:
    with NodeClient(server.address, timeout_s=0.5) as client:
        with pytest.raises(AnswerLost, match="not known whether") as lost:
            change(client)
        assert isinstance(lost.value, OutcomeUnknown)
        assert "before you repeat it" in lost.value.hint
        # and a question without an answer may be asked again
        with pytest.raises(NodeUnreachable, match="no node answers"):
            client.get(b"k")
    assert stuck.begun.is_set()


class Between:
    """Stands between a client and a server, and can break the connection."""

    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._to = (host, int(port))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                to.sendall(data)

    def cut(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # for who waits in another thread
            each.close()


@pytest.mark.parametrize("change", CHANGING, ids=["put", "remove", "execute"])
def test_a_change_whose_connection_broke_may_have_happened(
    server: Listener, stuck: Stuck, change: Callable[[NodeClient], object]
) -> None:
    # given a change that has arrived
    between = Between(server.address)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            change(client)
        except Exception as error:
            errors.append(error)

    with NodeClient(between.address, timeout_s=20) as client:
        asking = threading.Thread(target=ask)
        asking.start()
        assert stuck.begun.wait(10)
        # when the connection breaks
        between.cut()
        asking.join(20)
        # then it is not told as if nobody had been there
        assert [type(error) for error in errors] == [AnswerLost]
    # but what finds nobody there has not been done
    with NodeClient(between.address) as client, pytest.raises(NodeUnreachable):
        change(client)


def test_a_change_under_way_when_its_node_stops_may_have_happened(tmp_path: Path) -> None:
    with Running(tmp_path) as running:
        begun = threading.Event()

        def never() -> Future[None]:
            begun.set()
            return Future()

        def act(_body: bytes, _call: Call) -> Iterable[bytes]:
            running.node.bridge.ask(never, timeout_s=30)
            return []

        running.node.server.actions["meta.put"] = act
        errors: list[Exception] = []

        def ask() -> None:
            try:
                client.put(b"k", b"v")
            except Exception as error:
                errors.append(error)

        with NodeClient(running.endpoint) as client:
            asking = threading.Thread(target=ask)
            asking.start()
            assert begun.wait(10)
            running.stop()
            asking.join(20)
        assert [type(error) for error in errors] == [NodeClosed]
        assert "before you ask again" in str(errors[0])


def test_a_client_waits_longer_than_the_node_does(tmp_path: Path) -> None:
    with Running(tmp_path) as running:
        eventually(lambda: "catalog.execute" in running.node.server.actions)
        names = set(running.node.server.actions)
    # given how long a node with the usual settings takes at most
    meta = MetaActions(_Usual(), running.node.bridge)  # type: ignore[arg-type]
    longest = dict.fromkeys(names, meta._timeout_s) | {
        "status": STATUS_S,
        "catalog.execute": EXECUTE_S,
        "meta.range": meta._page_timeout_s,
    }
    # then its answer, or its word that there is none, is waited for
    client = NodeClient("127.0.0.1:1")
    short = {name for name in names if client.timeout_of(name) < longest[name] + 4}
    assert short == set()
    client.close()


class _Usual:
    """As much of a metastore as it takes."""

    def __init__(self) -> None:
        self.config = MetastoreConfig()


def test_what_a_node_can_t_do_yet_is_not_taken_for_an_unknown_action(server: Listener) -> None:
    # given a node that has not made all its parts
    with NodeClient(server.address) as client:
        with pytest.raises(NodeStarting, match="still starting"):
            client.ask("catalog.execute", Nothing(), Nothing)
        # when it has, then what it does not know it will never know
        server.starting = False
        with pytest.raises(ActionUnknown, match=r"no action 'catalog\.execute'"):
            client.ask("catalog.execute", Nothing(), Nothing)
