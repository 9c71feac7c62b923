"""A listener that closes and opens again in place: clients ask again, and nothing is done twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from eventually import eventually
from lowmark.client import Database
from lowmark.errors import AddressUnusable, LowmarkError
from lowmark.node import NodeClient
from lowmark.node.bridge import NodeClosing
from lowmark.node.listener import Certificates, Listener
from runtime.certificates import Authority
from server.test_on_node import Node1
from server.world import COLUMNS, Served


@pytest.fixture(params=["tcp", "unix"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    address = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/socket"
    with Served(tmp_path / "data", address) as one:
        yield one


@pytest.fixture
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


def rows(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "status": "new"} for number in range(first, end)]


class Work:
    """Appends, follows and asks all the time, and keeps the errors."""

    def __init__(self, db: Database) -> None:
        self.events = db.create_table("events", COLUMNS, partitions=2)
        self.producer = self.events.producer(linger_ms=0, batch_rows=20, in_flight=16)
        self.reader = self.events.read(follow=True, start="earliest", columns=["id"])
        self.failed: list[BaseException] = []
        self.seen: list[int] = []
        self.sent = self.asked = 0
        self._over = threading.Event()
        self._last = threading.Event()
        """Whether `sent` grows no more; the reader goes on until it has that many."""
        jobs = (self._send, self._ask, self._follow)
        self._threads = [threading.Thread(target=self._run, args=(job,)) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.failed.append(error)

    def _send(self) -> None:
        while not self._over.is_set():
            self.producer.send_many(rows(self.sent, self.sent + 20))
            self.sent += 20
            self._over.wait(0.01)

    def _ask(self) -> None:
        while not self._over.is_set():
            self.events.snapshot()
            self.asked += 1
            self._over.wait(0.01)

    def _follow(self) -> None:
        for batch in self.reader:
            self.seen.extend(batch["id"].to_pylist())
            if self._last.is_set() and len(self.seen) >= self.sent:
                return

    def goes_on(self) -> None:
        """Wait until each has done something more."""
        written, asked, seen = self.producer.rows, self.asked, len(self.seen)
        eventually(lambda: bool(self.failed) or self.producer.rows > written)
        eventually(lambda: bool(self.failed) or self.asked > asked)
        eventually(lambda: bool(self.failed) or len(self.seen) > seen)
        assert self.failed == []

    def end(self) -> None:
        self._over.set()
        *asking, following = self._threads
        for thread in asking:
            thread.join(60)
        self.sent += 1
        self._last.set()
        self.producer.send_many(rows(self.sent - 1, self.sent))
        self.producer.flush()
        following.join(60)
        self.producer.close()
        self.reader.close()


def test_clients_go_on_when_a_listener_opens_again(served: Served, db: Database) -> None:
    # given a client that appends, follows and asks
    work = Work(db)
    work.goes_on()
    # when the listener closes and opens again, more than once
    for _ in range(2):
        served.server.listener.reopen()
        work.goes_on()
    work.end()
    # then no call has failed, and every row is there once, for the reader that followed, too
    assert work.failed == []
    found = work.events.read(columns=["id"]).to_arrow()["id"].to_pylist()
    assert Counter(found) == Counter(work.seen) == Counter(range(work.sent))


def test_a_node_keeps_its_actions_and_its_data_when_it_opens_again(tmp_path: Path) -> None:
    with Node1(tmp_path / "n1") as node, lowmark.connect(node.address) as db:
        orders = db.create_table("orders", COLUMNS, key="id")
        with NodeClient(node.address) as client:
            watch = client.watch(b"")
            next(watch)
            # when its listener opens again beside a call that would not end
            node.node.server.reopen()
            # then that has ended, and everything else goes on at the same address
            with pytest.raises(LowmarkError):
                list(watch)
            assert client.status().nodes
        orders.append(rows(0, 3))
        assert orders.count() == 3
        with flight.FlightClient(f"grpc+tcp://{node.address}") as plain:
            assert len(list(plain.list_flights())) == 1


def test_a_listener_that_is_closed_does_not_open_again() -> None:
    listener = Listener("127.0.0.1:0")
    listener.close()
    with pytest.raises(NodeClosing):
        listener.reopen()
    listener.close()  # twice is fine


# -- certificates -------------------------------------------------------------------------------


def certificates(authority: Authority, *, mutual: bool = False) -> Certificates:
    files = authority.files("127.0.0.1")
    read = {"certificate": Path(files.certificate), "key": Path(files.key)}
    root = Path(files.authority).read_bytes() if mutual else b""
    return Certificates(root=root, **{name: path.read_bytes() for name, path in read.items()})


def names(listener: Listener, authority: Authority, **more: bytes) -> list[str]:
    root = Path(authority.path).read_bytes()
    with flight.FlightClient(listener.location, tls_root_certs=root, **more) as client:
        options = flight.FlightCallOptions(timeout=10)
        return [one.type for one in client.list_actions(options)]


def test_a_listener_opens_again_with_other_certificates(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path), Authority(tmp_path / "new")
    listener = Listener("127.0.0.1:0", certificates=certificates(old))
    listener.actions["x"] = lambda _body, _call: []
    try:
        assert names(listener, old) == ["x"]
        with pytest.raises(flight.FlightUnavailableError):
            names(listener, new)
        # when it opens again with another authority's
        address = listener.address
        listener.reopen(certificates(new))
        # then it shows those, at the same address
        assert listener.address == address
        assert names(listener, new) == ["x"]
        with pytest.raises(flight.FlightUnavailableError):
            names(listener, old)
        # when those it is given can't be used, then it goes on with the ones before
        with pytest.raises(AddressUnusable):
            listener.reopen(Certificates(certificate=b"rubbish", key=b"rubbish"))
        assert names(listener, new) == ["x"]
    finally:
        listener.close()


def test_a_listener_may_want_a_certificate_of_its_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    listener = Listener("127.0.0.1:0", certificates=certificates(authority, mutual=True))
    try:
        with pytest.raises(flight.FlightUnavailableError):
            names(listener, authority)
        mine = certificates(authority)
        shown = {"cert_chain": mine.certificate, "private_key": mine.key}
        assert names(listener, authority, **shown) == []
    finally:
        listener.close()


# -- rows of plain clients ----------------------------------------------------------------------


def test_a_stream_of_rows_that_is_ended_says_what_it_has_stored(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client of another language that has put a batch
    orders = db.create_table("orders", COLUMNS, key="id")
    with flight.FlightClient(served.server.listener.location) as client:
        batch = pa.table(rows_of(0, 3)).to_batches()[0]
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("orders"), batch.schema)
        writer.write_batch(batch)
        assert answers.read() is not None
        # when the server takes nothing new any more, for a moment
        monkeypatch.setattr(served.server.endpoint._service, "closing", True)
        writer.write_batch(batch)
        # then the client does not hear that nothing was done
        while answers.read() is not None:  # it may have been stored before the end came
            pass
        with pytest.raises(flight.FlightServerError, match=r"PutEnded: .* after [12] batches"):
            writer.close()
    monkeypatch.undo()
    assert orders.count() == 3


def rows_of(first: int, end: int) -> dict[str, list[object]]:
    return {"id": list(range(first, end)), "status": ["new"] * (end - first)}
