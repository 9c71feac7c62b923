"""Tables of three nodes in Spark: read by any node, streamed over the loss of one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    def options(node: int) -> dict[str, str]:
        return {"node": nodes.address(node), "table": "orders", "columns": "id"}

    def stream(node: int) -> list[dict[str, Any]]:
        query = (
            spark.readStream.format("lowmark")
            .options(**options(node), startingOffsets="earliest", maxRowsPerTrigger="40")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(one["sources"][0]["endOffset"]) for one in query.recentProgress]

    def streamed() -> list[int]:
        return sorted(row["id"] for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    with nodes.connect(0) as db:
        # given a table with a replica on each of three nodes
        table = table_of(db, "orders", replicas=3, partitions=3)
        table.append([{"id": number, "status": "new"} for number in range(100)])
        # then a read by another node sees it, and so does a stream
        assert spark.read.format("lowmark").options(**options(1)).load().count() == 100
        ends = stream(1)
        assert streamed() == list(range(100))
        # when that node is lost, more comes, and the query goes on by way of a third one
        nodes.kill(1)
        table.append([{"id": number, "status": "new"} for number in range(100, 150)])
        ends += stream(2)
    # then each row has come once, and no offset has gone back
    assert streamed() == list(range(150))
    places = [one["offsets"] for one in ends]
    for before, after in itertools.pairwise(places):
        assert all(before[number] <= after[number] for number in before)
