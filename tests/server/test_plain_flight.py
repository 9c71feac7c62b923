"""A Flight client with none of our code: it lists tables, reads one in parallel, appends to one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from eventually import eventually
from lowmark.client import Table
from server.nodes import Nodes
from server.world import COLUMNS, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served") / "data") as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(f"grpc+tcp://{served.address}") as one:
        yield one


@pytest.fixture
def orders(served: Served, request: pytest.FixtureRequest) -> Iterator[Table]:
    yield served.db.create_table("orders", COLUMNS, key="id", partitions=3)
    served.db.drop_table("orders")


def rows(first: int, end: int, status: str = "new") -> pa.Table:
    return pa.table({"id": range(first, end), "status": [status] * (end - first)})


def path(name: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_path(name)


def command(**wanted: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(wanted))


def read(client: flight.FlightClient, info: flight.FlightInfo) -> pa.Table:
    """All endpoints, each on a thread and by a client of its own."""

    def one(endpoint: flight.FlightEndpoint) -> pa.Table:
        with flight.FlightClient(endpoint.locations[0]) as there:
            return there.do_get(endpoint.ticket).read_all()

    with ThreadPoolExecutor(4) as pool:
        return pa.concat_tables(pool.map(one, info.endpoints))


def by_id(table: pa.Table) -> dict[int, str]:
    return dict(zip(table["id"].to_pylist(), table["status"].to_pylist(), strict=True))


def test_tables_are_listed_with_their_columns(
    served: Served, client: flight.FlightClient, orders: Table
) -> None:
    (info,) = client.list_flights()
    assert info.descriptor.path == [b"orders"]
    assert info.schema == orders.schema
    assert len(info.endpoints) == 3
    assert client.get_schema(path("orders")).schema == orders.schema


def test_no_message_is_longer_than_clients_of_other_languages_take(
    served: Served, client: flight.FlightClient
) -> None:
    # given a batch that is nearly as long as one may be stored, and columns that are added to it
    columns = [f"c{number}" for number in range(63)]
    wide = served.db.create_table("wide", dict.fromkeys(columns, "int64"), partitions=1)
    wide.append(pa.table(dict.fromkeys(columns, np.arange(8_192))))
    for wanted in ({}, {"changes": True}):
        info = client.get_flight_info(command(table="wide", **wanted))
        messages = [one.data for one in client.do_get(info.endpoints[0].ticket)]
        assert sum(one.num_rows for one in messages) == 8_192
        sizes = [pa.ipc.get_record_batch_size(one) for one in messages]
        assert 3 << 20 < max(sizes) < (4 << 20) - 1_024  # gRPC puts something before it
    served.db.drop_table("wide")


def test_a_table_is_read_in_parallel_as_it_was_at_one_moment(
    client: flight.FlightClient, orders: Table
) -> None:
    # given rows of which some were replaced and deleted
    orders.append(rows(0, 100))
    orders.append(rows(0, 50, "paid"))
    orders.delete([99])
    # when it is asked for, and changed before it is read
    info = client.get_flight_info(path("orders"))
    orders.append(rows(0, 100, "late"))
    # then all partitions are as they were then
    expected = dict.fromkeys(range(50), "paid") | dict.fromkeys(range(50, 99), "new")
    assert by_id(read(client, info)) == expected
    # and the next one is of its own time
    later = read(client, client.get_flight_info(path("orders")))
    assert by_id(later) == dict.fromkeys(range(100), "late")


def test_a_table_is_read_as_of_a_time(client: flight.FlightClient, orders: Table) -> None:
    orders.append(rows(0, 10))
    then = orders.snapshot().time
    orders.append(rows(0, 10, "paid"))
    info = client.get_flight_info(command(table="orders", as_of=then, columns=["status", "id"]))
    assert info.schema.names == ["status", "id"]
    assert by_id(read(client, info)) == dict.fromkeys(range(10), "new")


def test_changes_are_given_with_their_places(client: flight.FlightClient, orders: Table) -> None:
    orders.append(rows(0, 10))
    orders.delete([3])
    info = client.get_flight_info(command(table="orders", changes=True))
    assert info.total_records == 11
    found = read(client, info)
    assert info.schema == found.schema
    assert sorted(found["_change"].to_pylist()) == ["delete"] + ["upsert"] * 10
    places = zip(found["_partition"].to_pylist(), found["_offset"].to_pylist(), strict=True)
    assert len(set(places)) == 11


def test_rows_are_put_in_whole_batches_and_acknowledged_one_by_one(
    client: flight.FlightClient, orders: Table
) -> None:
    # when batches are put
    schema = rows(0, 1).schema
    writer, answers = client.do_put(path("orders"), schema)
    acks = []
    for first in (0, 100, 200):
        for batch in rows(first, first + 100).to_batches():
            writer.write_batch(batch)
            acks.append(json.loads(answers.read().to_pybytes()))
    writer.close()
    # then each has its answer, with what went where, and when
    assert [ack["rows"] for ack in acks] == [100, 100, 100]
    places = {
        (part["partition"], part["first"] + at)
        for ack in acks
        for part in ack["parts"]
        for at in range(part["rows"])
    }
    found = orders.read(columns=["_partition", "_offset", "_time"]).to_pylist()
    assert places == {(row["_partition"], row["_offset"]) for row in found}
    assert {part["time"] for ack in acks for part in ack["parts"]} == {
        row["_time"] for row in found
    }
    assert orders.get(299) == {"id": 299, "status": "new"}


SCHEMA = pa.schema({"id": pa.int64(), "status": pa.string()})


def put_packed(client: flight.FlightClient, batch: pa.RecordBatch) -> None:
    packed = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, answers = client.do_put(path("orders"), SCHEMA, packed)
    with writer:
        writer.write_batch(batch)
        answers.read()


def zeros(size: int) -> pa.RecordBatch:
    """A row that is small as long as it is packed."""
    values = pa.py_buffer(np.zeros(size, np.uint8))
    ends = pa.py_buffer(np.array([0, size], np.int32).tobytes())
    return pa.record_batch(
        [pa.array([1]), pa.StringArray.from_buffers(1, ends, values)], schema=SCHEMA
    )


@pytest.mark.slow
def test_a_batch_that_is_too_large_is_refused_and_nothing_of_it_is_kept(
    client: flight.FlightClient, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowmark.server.receiving.UNPACKED_BYTES_MAX", 8 << 20)
    put_packed(client, rows(0, 5).to_batches()[0].cast(SCHEMA))
    before = pa.total_allocated_bytes()
    # when a row is put that is too large, then it is refused by its size
    wanted = r"^RequestRefused: a batch of 67,\d+,\d+ bytes is too large"
    with pytest.raises(pa.ArrowInvalid, match=wanted):
        put_packed(client, zeros(64 << 20))
    # and nothing of it stays
    eventually(lambda: pa.total_allocated_bytes() - before < 8 << 20)
    assert orders.count() == 5


# The shorter relative is the test above: it sees that nothing is kept, and this one that a node
# gives the memory back to the system.
@pytest.mark.release
def test_a_node_gives_back_what_a_batch_took_that_it_refused(tmp_path: Path) -> None:
    with Nodes(tmp_path, 1) as nodes:
        with nodes.connect(0) as db:
            db.create_table("orders", COLUMNS, key="id")
        status = Path(f"/proc/{nodes.pid(0)}/status")

        def mebibytes(name: str) -> int:
            return int(status.read_text().split(f"{name}:")[1].split()[0]) >> 10

        before = mebibytes("VmRSS")
        with (
            flight.FlightClient(f"grpc+tcp://{nodes.address(0)}") as client,
            pytest.raises(pa.ArrowInvalid, match="is too large"),
        ):
            put_packed(client, zeros(512 << 20))
        assert mebibytes("VmHWM") - before > 500
        eventually(lambda: mebibytes("VmRSS") - before < 64)


def test_what_can_t_be_stored_is_refused_with_its_batch(
    client: flight.FlightClient, orders: Table
) -> None:
    writer, answers = client.do_put(path("orders"), pa.schema({"id": pa.int64(), "x": pa.int64()}))
    writer.write_batch(pa.record_batch({"id": [1], "x": [2]}))
    assert answers.read() is None  # there is no answer: it ends
    with pytest.raises(pa.ArrowInvalid, match=r"^ColumnRefused: the table has no column x"):
        writer.close()
    assert orders.read().to_pylist() == []


@pytest.mark.parametrize(
    ("descriptor", "error"),
    [
        (path("ordres"), "TableUnknown"),
        (command(tabel="orders"), "RequestRefused"),
        (flight.FlightDescriptor.for_command(b"{"), "RequestRefused"),
        (command(table="orders", columns=["nothing"]), "RequestRefused"),
        (command(table="orders", as_of="3000-01-01T00:00:00Z"), "TimeInFuture"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    client: flight.FlightClient, orders: Table, descriptor: flight.FlightDescriptor, error: str
) -> None:
    kind = pa.ArrowKeyError if error == "TableUnknown" else pa.ArrowInvalid
    with pytest.raises(kind, match=f"^{error}: "):
        read(client, client.get_flight_info(descriptor))
    with pytest.raises(kind, match=f"^{error}: "):
        client.get_schema(descriptor)


def test_a_ticket_that_is_none_is_refused(client: flight.FlightClient, orders: Table) -> None:
    for ticket in (b"", b"{}", b'{"table":"orders","partition":7,"as_of":1}', b"\x00"):
        with pytest.raises(pa.ArrowException):
            client.do_get(flight.Ticket(ticket)).read_all()


def test_many_put_at_once(served: Served, orders: Table) -> None:
    def put(base: int) -> None:
        with flight.FlightClient(f"grpc+tcp://{served.address}") as one:
            writer, answers = one.do_put(path("orders"), rows(0, 1).schema)
            for first in range(base, base + 500, 50):
                writer.write_table(rows(first, first + 50))
            for _ in range(10):
                answers.read()
            writer.close()

    threads = [threading.Thread(target=put, args=(base,)) for base in range(0, 2_000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(orders.read().to_arrow()["id"].to_pylist()) == list(range(2_000))
