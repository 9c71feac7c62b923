"""Tables of three nodes in Spark: read, compacted, streamed over the loss of a node.

With `pytest --hosts --store` nodes, Spark's master and its workers are each in a host of their own,
and no file is common to any two of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.client import Table
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, 3) as started:
        yield started


@pytest.mark.release
def test_a_table_is_read_and_streamed_while_a_node_is_lost(
    spark: Any, nodes: Nodes, tmp_path: Path
) -> None:
    def options(node: int, table: str) -> dict[str, str]:
        return {"node": nodes.address(node), "table": table}

    def stream(node: int) -> list[dict[str, Any]]:
        query = (
            spark.readStream.format("lowmark")
            .options(**options(node, "orders"), columns="id,status")
            .options(startingOffsets="earliest", maxRowsPerTrigger="40")
            .load()
            .writeStream.format("lowmark")
            .options(**options(node, "copies"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(one["sources"][0]["endOffset"]) for one in query.recentProgress]

    with nodes.connect(0) as db:
        # given a table with a replica on each of three nodes, and one that it is copied to
        table = table_of(db, "orders", replicas=3, partitions=3)
        copies = table_of(db, "copies", replicas=3, partitions=2)

        def streamed() -> list[int]:
            return sorted(row["id"] for row in copies.read().to_pylist())

        table.append([{"id": number, "status": "new"} for number in range(100)])
        # then a read by another node sees it, and so does a stream
        assert spark.read.format("lowmark").options(**options(1, "orders")).load().count() == 100
        ends = stream(1)
        assert streamed() == list(range(100))
        # when that node is lost, more comes, and the query goes on by way of a third one
        nodes.kill(1)
        table.append([{"id": number, "status": "new"} for number in range(100, 150)])
        ends += stream(2)
        assert streamed() == list(range(150))
    # then each row has come once, and no offset has gone back
    places = [one["offsets"] for one in ends]
    for before, after in itertools.pairwise(places):
        assert all(before[number] <= after[number] for number in before)


@pytest.mark.release  # `server/test_several_nodes` compacts without Spark, also by Flight
def test_a_table_is_written_and_compacted_by_executors(spark: Any, nodes: Nodes) -> None:
    with nodes.connect(0) as db:
        table = table_of(db, "orders", replicas=3, partitions=3)
        # given rows that tasks have written by one node, twice for each key
        for status in ("new", "paid"):
            frame = spark.range(600, numPartitions=3).selectExpr("id", f"'{status}' AS status")
            frame.write.format("lowmark").mode("append").options(
                node=nodes.address(1), table="orders"
            ).save()
        compactable(table)
        # when they compact the table, then what is read is what is left
        assert table.compact(spark=spark).state == "done"
        assert {run.rows_live for run in table.runs()} == {600}
        found = spark.read.format("lowmark").options(node=nodes.address(2), table="orders").load()
        assert found.where("status = 'paid'").count() == 600


def compactable(table: Table) -> None:
    """Wait until the low watermark has passed all rows that are there."""
    backend = table._backend
    time = backend.now(table.descriptor.id).time
    eventually(lambda: backend.advance_watermark(time).after >= time)
