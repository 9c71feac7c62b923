"""A client that was given several addresses: any of them will do, at its first call and later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lowmark
from clusters.ports import free_ports
from frames.alone import written
from lowmark.backend.connection import addresses_of
from lowmark.cli.app import app
from lowmark.errors import NodeUnreachable, Rejected
from lowmark.frames import LowmarkSource
from lowmark.frames.errors import OptionRefused
from lowmark.frames.options import Options, placed_at
from lowmark.server import Server
from server.world import COLUMNS, Served

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A database with two endpoints: `.address` and `other`."""
    with Served(tmp_path / "db") as served:
        table = served.db.create_table("orders", COLUMNS, key="id", partitions=2)
        table.append([{"id": number, "status": "new"} for number in range(10)])
        yield served


@pytest.fixture
def other(served: Served) -> Iterator[Server]:
    with Server(served.db, "127.0.0.1:0") as other:
        yield other


@pytest.fixture
def nothing() -> str:
    """An address at which no server answers."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def test_the_first_address_that_answers_is_used(served: Served, nothing: str) -> None:
    for given in (
        f"{nothing}, {served.address}",
        [served.address, nothing],
        (nothing, served.address),
    ):
        with lowmark.connect(given) as db:
            assert db["orders"].count() == 10
    with pytest.raises(NodeUnreachable) as away:
        lowmark.connect([nothing, "127.0.0.1:1"], timeout_s=0.2)
    assert "any other that was named" in away.value.detail


def test_another_address_is_used_when_the_one_of_now_is_away(served: Served, other: Server) -> None:
    # given a client of the first of two servers
    with lowmark.connect([served.address, other.address]) as db:
        table = db["orders"]
        assert table.count() == 10
        # when that one is away, then it goes on at the second
        served.server.close()
        table.append([{"id": 10, "status": "new"}])
        assert table.count() == 11


@pytest.mark.parametrize(
    "given", ["", ",", "a,b", "a:1,,b:2", [], ["a:1", 2], 7, "http://a:1", "a:1;b:2"]
)
def test_what_is_no_address_is_refused_by_name(given: object) -> None:
    with pytest.raises(Rejected, match=r"address|host:port"):
        addresses_of(given)


def test_a_command_takes_several_nodes(served: Served, nothing: str) -> None:
    several = f"{nothing},{served.address}"
    for command, said in (("table list", "orders"), ("status", "cluster")):
        for words, env in ((["--node", several], {}), ([], {"LOWMARK_NODE": several})):
            ran = CliRunner().invoke(app, [*command.split(), *words], env=env)
            assert ran.exit_code == 0, ran.output
            assert said in ran.output


def test_a_stream_that_reads_and_writes_goes_on_through_the_loss_of_a_node(
    served: Served, other: Server, tmp_path: Path
) -> None:
    # given a stream from one table into another, by the addresses of two nodes
    served.db.create_table("copy", COLUMNS, key="id", partitions=2)
    place = {"node": f"{served.address},{other.address}"}
    source = LowmarkSource({**place, "table": "orders", "startingOffsets": "earliest"})
    schema = source.schema()
    reader: Any = source.streamReader(schema)

    into = {**place, "table": "copy"}
    try:
        at = written(reader, schema, into, 0, reader.initialOffset())
        # when the first of them is lost while the tasks of a batch are on their way
        served.db["orders"].append([{"id": 100, "status": "new"}])
        at = written(reader, schema, into, 1, at, when_planned=served.server.close)
        # then that batch is stored, and so is the next one
        served.db["orders"].append([{"id": 101, "status": "new"}])
        written(reader, schema, into, 2, at)
    finally:
        reader.stop()
    assert served.db["copy"].count() == served.db["orders"].count() == 12


def test_tasks_have_the_nodes_that_were_known_when_they_were_planned(
    served: Served, other: Server
) -> None:
    # given a plan that knew of two nodes
    plan = LowmarkSource({"node": f"{served.address},{other.address}", "table": "orders"})
    parts = plan.reader(plan.schema()).partitions()
    # when tasks run, whose options name one alone, and that one is gone
    reader: Any = LowmarkSource({"node": served.address, "table": "orders"}).reader(plan.schema())
    served.server.close()
    # then the parts say where to go on
    rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
    assert rows == 10


@pytest.mark.parametrize("given", ["a:1,b:2", " a:1 , b:2 ", "['a:1', 'b:2']", '["a:1", "b:2"]'])
def test_an_option_names_several_nodes(given: str) -> None:
    assert Options.read({"node": given, "table": "t"}).node == "a:1,b:2"
    assert placed_at("", ["a:1", "b:2"]) == {"node": "a:1,b:2"}
    with pytest.raises(OptionRefused, match="node can't be 'a,b'"):
        Options.read({"node": "a,b", "table": "t"})
