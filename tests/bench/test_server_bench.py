"""What `lowmark bench server` asks of its processes, and its peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from benchmarks.figure import PeerMissing, Target
from benchmarks.nats_wire import BareNats, NatsRefused
from benchmarks.server_bare import BareServer
from benchmarks.server_client import Client, producer_batch
from benchmarks.server_figures import WINDOW
from benchmarks.server_peer_client import payloads_of
from benchmarks.server_peers import BareRedis, Nats, Redis, find_nats, find_redis
from benchmarks.server_sizes import ServerSizes
from benchmarks.server_wire import (
    Append,
    Done,
    Get,
    Go,
    Order,
    Reach,
    Read,
    Ready,
    Rested,
    Send,
    worked,
)
from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES, batch_of, batches_of
from clusters.processes import Child
from lowmark.client.producer import Producer
from lowmark.errors import InvariantBroken

# -- ours -------------------------------------------------------------------------------------


@pytest.fixture
def client(here: Path) -> Iterator[Client]:
    client = Client(Reach(folder=str(here / "data"), wal_bytes=1 << 20))
    yield client
    client.close()


@pytest.mark.slow
def test_every_kind_of_work_says_how_much_it_did(client: Client) -> None:
    # given a table of two batches
    assert client.prepared(Append(first=0, rows=2 * BATCH_ROWS))() == 2 * BATCH_ROWS
    # then all of it is read, and every key of it is found
    assert client.prepared(Read())() == 2 * BATCH_ROWS
    assert client.prepared(Get(keys=2 * BATCH_ROWS, gets=30, seed=1))() == 30
    # and what is sent comes behind it
    sent = Send(first=2 * BATCH_ROWS, rows=1_000, window=80)
    assert client.prepared(sent)() == 1_000
    assert client.prepared(Read())() == 2 * BATCH_ROWS + 1_000
    assert client.rest() > 0


def test_a_key_that_is_not_there_is_no_result(client: Client) -> None:
    client.prepared(Append(first=0, rows=BATCH_ROWS))()
    with pytest.raises(InvariantBroken, match="the row of that key"):
        client.prepared(Get(keys=100 * BATCH_ROWS, gets=50, seed=1))()


def test_a_guest_of_the_directory_does_the_same_work(client: Client, here: Path) -> None:
    guest = Client(Reach(folder=str(here / "data")))
    try:
        assert guest.prepared(Append(first=0, rows=BATCH_ROWS))() == BATCH_ROWS
        assert client.prepared(Read())() == BATCH_ROWS
    finally:
        guest.close()


@pytest.mark.slow
def test_a_producer_has_no_more_than_the_window_sent_and_not_stored(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a look at the producer whenever a row was sent
    send, most = Producer.send, 0

    def watched(producer: Producer, row: dict[str, object]) -> None:
        nonlocal most
        send(producer, row)
        with producer._lock:
            waiting = producer._taken + len(producer._rows) - producer._settled
        most = max(most, waiting)

    monkeypatch.setattr(Producer, "send", watched)
    # when many more rows are sent than that
    client.prepared(Send(first=0, rows=4_000, window=80))()
    # then it was full, and never beyond
    assert 40 < most <= 80


def test_a_window_that_is_not_made_of_whole_batches_is_a_mistake() -> None:
    assert producer_batch(WINDOW) == 500
    with pytest.raises(InvariantBroken):
        producer_batch(WINDOW + 1)


class Worker(Child):
    """Says what a worker would say; without a process."""

    def __init__(self, *said: object) -> None:
        self._said = list(said)
        self.heard: list[object] = []

    def send(self, message: object, *, deadline_s: float = 0.0) -> None:
        self.heard.append(message)

    def receive(self, kind: object, *, deadline_s: float = 0.0) -> object:  # type: ignore[override]
        said = self._said.pop(0)
        assert isinstance(said, kind)  # type: ignore[arg-type]
        return said


def test_a_turn_lasts_from_the_first_that_begins_until_the_server_rests() -> None:
    # given two workers that begin and end at different times
    def workers() -> list[Worker]:
        one = Done(amount=10, began_ns=1_000_000_000, ended_ns=4_000_000_000)
        two = Done(amount=30, began_ns=2_000_000_000, ended_ns=3_000_000_000)
        return [Worker(Ready(), one), Worker(Ready(), two)]

    work = [Append(first=0, rows=10), Append(first=10, rows=30)]
    # then it is as long as both together
    those = workers()
    side = worked(those, work)
    assert (side.amount, side.seconds) == (40, 3.0)
    assert [one.heard for one in those] == [[Order(part), Go()] for part in work]
    # and as long as the server takes to come to rest, if that is waited for
    server = Worker(Rested(at_ns=6_000_000_000))
    assert worked(workers(), work, until_rest_of=server).seconds == 5.0


# -- a bare Flight server ---------------------------------------------------------------------


def test_a_bare_server_streams_the_batches_that_it_was_given() -> None:
    batches = batches_of(25_000)
    with (
        BareServer(pa.Table.from_batches(batches)) as server,
        flight.FlightClient(f"grpc+tcp://127.0.0.1:{server.port}") as client,
    ):
        got = [chunk.data for chunk in client.do_get(flight.Ticket(b""))]
    assert got == batches


# -- NATS -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.release  # what is published is below; Redis is a peer that is started
@pytest.mark.parametrize("always_synced", [True, False])
def test_nats_stores_every_message_and_syncs_as_it_is_told(
    here: Path, *, always_synced: bool
) -> None:
    try:
        find_nats()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    payloads = payloads_of(5, 300)
    with Nats(here, always_synced=always_synced) as nats:
        assert nats.always_synced() is always_synced
        with BareNats(nats.address) as client:
            assert client.publish(payloads, window=7) == 300
            assert nats.count() == 300
            # a stream that is not there stores nothing, and says so
            client.ask("STREAM.DELETE.rows")
            with pytest.raises(NatsRefused, match="stream not found"):
                client.ask("STREAM.INFO.rows")


def test_messages_are_the_same_rows_as_json() -> None:
    (payload,) = payloads_of(7, 1)
    (row,) = batch_of(0).slice(7, 1).to_pylist()
    assert str(row["id"]).encode() in payload
    assert ROW_BYTES < len(payload) < 2 * ROW_BYTES


# -- Redis ------------------------------------------------------------------------------------


def test_redis_gives_what_it_was_filled_with(here: Path) -> None:
    try:
        find_redis()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    pairs = [(b"%d" % i, b"value %d" % i) for i in range(10_005)]
    with Redis(here) as redis, BareRedis(redis.address) as client:
        assert redis.fill(pairs) == len(pairs)
        assert client.get(b"10004") == b"value 10004"
        assert client.get(b"10005") is None


# -- what is declared -------------------------------------------------------------------------


def test_a_figure_without_a_limit_is_only_reported() -> None:
    target = Target(None)
    assert target.met_by(0.0)
    assert str(target) == "reported"


def test_the_wal_rolls_over_as_often_as_promised_whatever_the_clients() -> None:
    sizes = ServerSizes.full()
    assert (sizes.append_clients, sizes.get_clients) == (4, 16)
    for clients in (1, 3, 4):
        rows = sizes.appended(clients)
        assert rows % (clients * BATCH_ROWS) == 0
        assert rows * ROW_BYTES > sizes.roll_overs * sizes.append_wal_bytes
