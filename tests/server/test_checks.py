"""Nothing that a client sends is believed: what is wrong is refused by name, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from lowmark import errors
from lowmark.backend.protocol import (
    CALL,
    HELLO,
    PROTOCOL,
    Hello,
    Request,
    decode_request,
    encode_request,
)
from lowmark.catalog import AddColumns, NewColumn, parse_type
from lowmark.client import Database, Table
from lowmark.group import COMMAND_BYTES
from lowmark.node.addresses import location_of
from lowmark.server import Server
from lowmark.server.checking import _TOGETHER_ROWS, Checker, Received
from lowmark.table import Change, KeyForm, Outgoing, outgoing
from lowmark.table.commands import encode_batch
from lowmark.table.unpacking import unpacked_bytes
from server.world import Served

COLUMNS = {"id": "int64", "status": "string", "at": "date"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served") / "data") as one:
        yield one


@pytest.fixture(scope="module")
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


@pytest.fixture
def orders(db: Database) -> Table:
    name = f"orders_{os.urandom(4).hex()}"
    return db.create_table(name, COLUMNS, key="id", partitions=3)


def batch(*ids: int | None, status: object = "new") -> pa.RecordBatch:
    columns = [pa.array(ids, pa.int64()), pa.array([status] * len(ids)), pa.nulls(len(ids))]
    return pa.record_batch(
        [columns[0], columns[1].cast(pa.string()), columns[2].cast(pa.date32())],
        names=["id", "status", "at"],
    )


def encoded(rows: pa.RecordBatch, *, schema: int = 1, change: Change = Change.UPSERT) -> Outgoing:
    (out,) = outgoing(rows, schema=schema, change=change, compression="none")
    return out._replace(room=None)


def belonging(table: Table, partition: int, count: int = 3) -> list[int]:
    form = KeyForm.of(table.descriptor)
    return [one for one in range(100) if form.bucket_one(one, 3) == partition][:count]


def sent(table: Table, partition: int, out: Outgoing) -> Any:
    backend = table._backend
    appender = backend.appender(table.descriptor.id, producer=os.urandom(16))
    answers = appender.send([(partition, out)]).answers(30)
    assert answers is not None
    return answers[0]


def test_a_row_of_another_partition_is_refused_with_its_batch(orders: Table) -> None:
    # given rows of one partition, and one more of another
    mine, other = belonging(orders, 1), belonging(orders, 2, 1)
    # when they are sent together, then it is said which row it is
    answer = sent(orders, 1, encoded(batch(*mine, *other)))
    assert isinstance(answer, errors.RowMisplaced)
    assert (answer.row, answer.partition, answer.belongs) == (3, 1, 2)
    assert orders.read().to_pylist() == []
    # and without it they are stored
    assert sent(orders, 1, encoded(batch(*mine))).rows == 3
    assert orders.get(mine[0]) is not None


def test_a_batch_that_unpacks_to_too_much_is_refused_unread(
    orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a batch that is small because it is packed
    (mine,) = belonging(orders, 1, 1)
    rows = batch(mine, status="x" * (5 << 20))
    (out,) = outgoing(rows, schema=1, change=Change.UPSERT, compression="zstd")
    out = out._replace(room=None)
    assert len(out.message) < 10_000
    # when it unpacks to more than a batch may, then it is refused, and not unpacked
    monkeypatch.setattr("lowmark.server.checking.UNPACKED_BYTES_MAX", 4 << 20)
    answer = sent(orders, 1, out)
    assert isinstance(answer, errors.BatchRefused)
    assert "unpacks to 5,24" in answer.message
    assert orders.read().to_pylist() == []
    # and at the bound it is stored
    monkeypatch.undo()
    assert sent(orders, 1, out).rows == 1
    assert orders.get(mine) == {"id": mine, "status": "x" * (5 << 20), "at": None}


def test_rows_that_pack_well_are_split_before_they_unpack_to_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given rows of a megabyte each that pack to almost nothing
    rows = batch(*range(10), status="x" * (1 << 20))
    # when a message may unpack to three of them
    monkeypatch.setattr("lowmark.table.splitting._UNPACKED_BYTES", 3 << 20)
    made = list(outgoing(rows, schema=1, change=Change.UPSERT, compression="zstd"))
    # then none has more, and all rows are there
    assert [one.rows for one in made] == [2, 1, 2, 2, 1, 2]
    assert all(unpacked_bytes(memoryview(one.message)) < 3 << 20 for one in made)
    # and rows that are not packed are split as they were
    whole = outgoing(batch(1, 2), schema=1, change=Change.UPSERT, compression="none")
    assert [one.rows for one in whole] == [2]


@pytest.mark.parametrize("count", [3, _TOGETHER_ROWS // 2 + 1])
def test_of_a_message_only_the_batch_with_a_row_of_another_partition_is_refused(
    orders: Table, count: int
) -> None:
    # given batches for three partitions; their keys are hashed together, or are too many for that
    keys = pa.array(range(10 * count))
    buckets = KeyForm.of(orders.descriptor).buckets(keys, 3)
    ids = [[*np.flatnonzero(buckets == number)[:count].tolist()] for number in range(3)]
    # when the second to last row of the last one belongs to the first
    ids[2][-2] = ids[0][0]
    parts = [(number, encoded(batch(*ids[number]))) for number in range(3)]
    appender = orders._backend.appender(orders.descriptor.id, producer=os.urandom(16))
    answers = appender.send(parts).answers(30)
    # then that is said of it, and the others are stored
    assert answers is not None
    *stored, refused = answers
    assert isinstance(refused, errors.RowMisplaced)
    assert (refused.row, refused.partition, refused.belongs) == (count - 2, 2, 0)
    assert [getattr(one, "rows", one) for one in stored] == [count, count]
    assert orders.count() == 2 * count


def test_batches_of_two_tables_in_one_message_are_each_held_against_their_own(
    db: Database, orders: Table
) -> None:
    # given a table of two partitions beside one of three, so that most keys have other places
    other = db.create_table(f"other_{os.urandom(4).hex()}", COLUMNS, key="id", partitions=2)
    catalog, checker = db.backend.catalog(), Checker()

    def received(table: Table, partitions: int, number: int) -> Received:
        buckets = KeyForm.of(table.descriptor).buckets(pa.array(range(30)), partitions)
        out = encoded(batch(*np.flatnonzero(buckets == number).tolist()))
        command = encode_batch(
            out.message,
            rows=out.rows,
            schema=1,
            change=Change.UPSERT,
            producer=b"p" * 16,
            epoch=0,
            sequence=0,
        )
        room = memoryview(bytes(COMMAND_BYTES) + bytes(command))
        return table.descriptor.id, number, room

    sound = [received(orders, 3, 0), received(other, 2, 1), received(orders, 3, 2)]
    assert checker.check(catalog, sound) == [None, None, None]
    # when the places of one table are taken for those of the other
    mixed = [sound[0], (other.descriptor.id, 0, sound[2][2]), sound[2]]
    # then it is refused, and those beside it are not
    first, second, third = checker.check(catalog, mixed)
    assert (first, third) == (None, None)
    assert isinstance(second, errors.RowMisplaced)
    assert (second.partition, second.belongs) == (0, 1)


def _date_beyond(ids: list[int]) -> pa.RecordBatch:
    rows = batch(*ids)
    far = pa.array([2**31 - 1] * len(ids), pa.int32()).view(pa.date32())
    return rows.set_column(2, "at", far)


def _no_text(ids: list[int]) -> pa.RecordBatch:
    rows = batch(*ids)
    text = pa.array([b"\xff\xfe"] * len(ids), pa.binary()).view(pa.string())
    return rows.set_column(1, "status", text)


def _cut(out: Outgoing, at: int) -> Outgoing:
    return out._replace(message=bytes(out.message)[:at])


WRONG: dict[str, Callable[[list[int]], Outgoing]] = {
    "no Arrow at all": lambda ids: encoded(batch(*ids))._replace(message=b"rubbish" * 20),
    "half of it": lambda ids: _cut(encoded(batch(*ids)), 150),
    "nothing": lambda ids: encoded(batch(*ids))._replace(message=b""),
    "another count": lambda ids: encoded(batch(*ids))._replace(rows=7),
    "no text": lambda ids: encoded(_no_text(ids)),
    "a date beyond the calendar": lambda ids: encoded(_date_beyond(ids)),
    "no key": lambda ids: encoded(batch(*ids, None)),
    "a column less": lambda ids: encoded(batch(*ids).select(["id"])),
    "columns in another order": lambda ids: encoded(batch(*ids).select(["status", "id", "at"])),
    "a schema version to come": lambda ids: encoded(batch(*ids), schema=9),
    "version 0": lambda ids: encoded(batch(*ids), schema=0),
    "neither upsert nor delete": lambda ids: encoded(
        batch(*ids).append_column("_change", pa.array([5] * len(ids), pa.int8())),
        change=Change.MIXED,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_rubbish_is_refused_by_name(orders: Table, name: str) -> None:
    ids = belonging(orders, 0)
    answer = sent(orders, 0, WRONG[name](ids))
    assert isinstance(answer, errors.Rejected), answer
    assert isinstance(answer, errors.BatchRefused | errors.ValueRefused)
    assert orders.read().to_pylist() == []


def test_a_schema_version_that_lacks_what_is_required_is_not_in_force(
    db: Database, orders: Table
) -> None:
    # given a required column that was added since, without a default
    out = encoded(batch(*belonging(orders, 0)))
    assert sent(orders, 0, out).rows == 3
    with_default = NewColumn(name="note", type=parse_type("string"), required=True, default="-")
    db.execute([AddColumns(table=orders.name, columns=(with_default,))])
    assert sent(orders, 0, out).rows == 3
    # when rows come with a version that the table never had
    answer = sent(orders, 0, out._replace(schema=7))
    # then that is said
    assert isinstance(answer, errors.SchemaNotInForce)
    assert answer.version == 7


def test_what_is_no_partition_and_no_table_is_refused(db: Database, orders: Table) -> None:
    out = encoded(batch(*belonging(orders, 0)))
    assert isinstance(sent(orders, 3, out), errors.RequestRefused)
    db.drop_table(orders.name)
    assert isinstance(sent(orders, 0, out), errors.TableUnknown)


# -- requests -----------------------------------------------------------------------------------


@pytest.fixture
def plain(served: Served) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(location_of(served.address)) as client:
        yield client


def said(error: flight.FlightError) -> str:
    fault: dict[str, str] = msgspec.json.decode(error.extra_info)
    return fault["class"]


def test_a_client_of_another_protocol_is_refused_by_name(plain: flight.FlightClient) -> None:
    hello = msgspec.json.encode(Hello(protocol=99, release="9.0"))
    with pytest.raises(flight.FlightError, match="protocol 99") as refused:
        list(plain.do_action(flight.Action(HELLO, hello)))
    assert said(refused.value) == "ProtocolRefused"
    # and so is a request that does not wait for the answer
    request = bytearray(encode_request(Request("x", 1, "now", (), {})))
    request[1] = 99
    with pytest.raises(flight.FlightError) as refused:
        list(plain.do_action(flight.Action(CALL, bytes(request))))
    assert said(refused.value) == "ProtocolRefused"


def _request(cluster: str, call: str, *arguments: object, **named: object) -> bytes:
    return encode_request(Request(cluster, 1, call, arguments, named))


HEAD = b"L" + PROTOCOL.to_bytes(2, "little")

REQUESTS: dict[str, Callable[[str], bytes]] = {
    "nothing": lambda _: b"",
    "rubbish": lambda _: HEAD + b"\xff\xff",
    "no tuple": lambda _: HEAD + b"\x01",
}
ASKED: dict[str, Callable[[str], bytes]] = {
    "a call that there is not": lambda cluster: _request(cluster, "__init__"),
    "closing": lambda cluster: _request(cluster, "close"),
    "too many arguments": lambda cluster: _request(cluster, "now", 1, 2, 3),
    "an unknown name": lambda cluster: _request(cluster, "now", depth=3),
    "a hold without its number": lambda cluster: _request(cluster, "hold_files", ("one",)),
    "a wait for a number": lambda cluster: _request(cluster, "wait", 7, 0.1),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_is_none_is_refused(
    served: Served, plain: flight.FlightClient, name: str
) -> None:
    with pytest.raises(flight.FlightError) as refused:
        list(plain.do_action(flight.Action(CALL, REQUESTS[name]("x"))))
    assert said(refused.value) == "RequestRefused"
    with pytest.raises(pa.ArrowException):
        plain.do_get(flight.Ticket(REQUESTS[name]("x"))).read_all()


@pytest.mark.parametrize("name", ASKED)
def test_a_call_that_is_none_is_refused(db: Database, name: str) -> None:
    backend = db.backend
    body = ASKED[name](backend.info.cluster)
    client = backend._connection._flight  # type: ignore[attr-defined]
    (answer,) = client.do_action(flight.Action(CALL, body))
    request = decode_request(body)
    with pytest.raises(errors.RequestRefused):
        backend._connection._value(request, answer.body.to_pybytes())  # type: ignore[attr-defined]


def test_a_call_with_values_of_the_wrong_kind_harms_no_other(db: Database) -> None:
    backend = db.backend
    for call, *given in (("get", "no bytes"), ("view_since", "orders", 0), ("views", 1, ("a",))):
        with pytest.raises(errors.RequestRefused, match="was called with a"):
            backend._call(call, *given)  # type: ignore[attr-defined]
    assert backend.now().time


def test_only_a_database_of_this_process_can_be_served(db: Database, tmp_path: Path) -> None:
    with pytest.raises(errors.Rejected, match="this process"):
        Server(db)


# -- wrong bytes --------------------------------------------------------------------------------

_FUZZ = """
import datetime, decimal, random, sys
import lowmark
from lowmark.errors import Rejected
from lowmark.server import Server
from lowmark.server.checking import Checker

columns = {
    "id": "string", "price": "decimal(12,2)", "at": "timestamp", "day": "date",
    "tags": "list<string>", "parts": "map<string, date>", "note": "string",
}
db = lowmark.open(sys.argv[1])
db.create_table("t", columns, key="id", partitions=2)
seen, check = [], Checker.check
def seeing(self, catalog, batches):
    seen.extend((catalog, table, partition, bytes(room)) for table, partition, room in batches)
    return check(self, catalog, batches)
Checker.check = seeing
day = datetime.date(2026, 7, 1)
with Server(db) as server, lowmark.connect(server.address) as client:
    client["t"].append([
        {
            "id": f"k{n}", "price": decimal.Decimal("1.50"), "day": day, "note": "h\\u00e9" * n,
            "at": datetime.datetime(2026, 7, 1, tzinfo=datetime.timezone.utc),
            "tags": ["a", "b"], "parts": {"a": day},
        }
        for n in range(20)
    ])
catalog, table, partition, room = seen[0]
drawn, checker, refused = random.Random(3), Checker(), 0
for _ in range(int(sys.argv[2])):
    wrong = bytearray(room)
    for _ in range(drawn.choice([1, 1, 2, 4])):
        wrong[drawn.randrange(9, len(wrong))] = drawn.choice([0, 128, 255, drawn.randrange(256)])
    # beside a sound one, which is not refused with it
    both = [(table, partition, memoryview(each)) for each in (room, bytes(wrong))]
    sound, why = check(checker, catalog, both)
    assert sound is None and (why is None or isinstance(why, Rejected)), (sound, why)
    refused += why is not None
db.close()
print(refused)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [3_000, pytest.param(20_000, marks=pytest.mark.release)])
def test_wrong_bytes_are_refused_and_never_end_the_server(tmp_path: Path, count: int) -> None:
    # in a process of its own: what Arrow does with wrong offsets can end it
    words = [sys.executable, "-X", "faulthandler", "-c", _FUZZ, str(tmp_path / "data"), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > count // 20
