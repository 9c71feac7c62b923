"""A running stream of Spark from a table, against one from a topic of Kafka.

Both streams have the same rows before them, in as many partitions, and take as many in each
micro-batch; rows end in a sink that does nothing. Spark says itself how long each batch took, from
its planning to its commit. The first batch is not counted: the stream is running then. Nor is the
last one: at the end of a topic Kafka's consumers wait half a second for more (`fetch.max.wait.ms`),
and a batch with that took three times as long. A node of ours and Kafka's broker are processes of
their own, with one copy of the rows, reached by TCP.

A row of Kafka's is bytes, and its columns are JSON in them. Its stream is measured with bytes as
they are, which is less work than ours has; with the columns taken out of them it is a variant.

Spark's connector for Kafka decides which Spark it is, for both (see `kafka_peer`): the driver is a
process of that environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

import lowmark
from benchmarks.compact_session import FAST_CODE, MASTER
from benchmarks.figure import Figure, Round, Side, Target, rates
from benchmarks.kafka_peer import BROKER, SPARK, Kafka, broker, find_kafka
from benchmarks.runner import Bench, Plan, measures
from benchmarks.served import ServedCluster
from benchmarks.spark_sizes import SparkSizes
from benchmarks.table_workload import (
    COLUMNS,
    PARTITIONS,
    ROW_BYTES,
    batches_of,
)
from clusters.processes import Child, Children, Parent
from lowmark.errors import invariant
from lowmark.spark import close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = Figure("stream_vs_kafka", Target(1.0), "rows/s", needs=find_kafka)
TOPIC = TABLE = "rows"
BATCHES = 6
"""Full micro-batches of a stream; the first and the last one are not counted."""
DEADLINE_S = 600.0
REPOSITORY = Path(__file__).parents[1]


class Where(msgspec.Struct, frozen=True):
    """What the driver works with."""

    node: str
    broker: str
    rows: int


class Run(msgspec.Struct, frozen=True):
    """A stream to be run, with a folder for its checkpoint."""

    source: str
    """`lowmark`, `kafka`, or `kafka decoded`."""
    checkpoint: str


class Ran(msgspec.Struct, frozen=True):
    """What came of it: all rows, and those of the batches that count."""

    all_rows: int
    rows: int
    seconds: float


# -- the bench --------------------------------------------------------------------------------


@measures(STREAM, runs="stream_runs")
def streams(bench: Bench[SparkSizes]) -> Iterator[Plan]:
    """Follow a table, and a topic."""
    rows, kafka = bench.sizes.stream_rows, find_kafka()
    with bench.fresh_folder() as root, Children(root) as children:
        bench.say(f"preparing {rows:,} rows in a node and in Kafka")
        with _started(kafka, children, root, rows) as driver:
            sources = {"ours": "lowmark", "kafka": "kafka"}
            variants = {}
            if bench.sizes.variants:
                sources["decoded"] = "kafka decoded"
                variants["columns_of_json"] = rates(STREAM, "ours", "decoded")
            turns = [partial(_turn, driver, rows, *one) for one in sources.items()]
            yield bench.plan(turns, rates(STREAM, "ours", "kafka"), _words(rows), variants)


@contextmanager
def _started(kafka: Kafka, children: Children, root: Path, rows: int) -> Iterator[Child]:
    path = os.pathsep.join(str(REPOSITORY / name) for name in ("src", "tests", "."))
    driver = children.start(
        "benchmarks.spark_streams",
        kafka.jars("connector"),
        name="driver",
        env=os.environ | {"PYTHONPATH": path},
        python=str(kafka.python),
    )
    with (
        broker(kafka, children, root, partitions=PARTITIONS) as at,
        ServedCluster(root, nodes=1) as cluster,
    ):
        node = cluster.endpoint(cluster.names[0])
        _fill(node, rows)
        driver.ask(Where(node, at, rows), bool, deadline_s=DEADLINE_S)
        yield driver
        driver.finish(deadline_s=DEADLINE_S)


def _fill(node: str, rows: int) -> None:
    with lowmark.connect(node) as database:
        table = database.create_table(TABLE, COLUMNS, key="id", partitions=PARTITIONS)
        table.append(iter(batches_of(rows)))


def _turn(driver: Child, rows: int, side: str, source: str, folder: Path) -> Round:
    ran = driver.ask(Run(source, str(folder / "checkpoint")), Ran, deadline_s=DEADLINE_S)
    invariant(ran.all_rows == rows, f"{side} has given {ran.all_rows} rows, not {rows}")
    return {side: Side(ran.rows, ran.seconds)}


def _words(rows: int) -> str:
    return (
        f"`readStream` of {rows:,} rows of {ROW_BYTES} bytes and four columns, {PARTITIONS}"
        f" partitions, {rows // BATCHES:,} rows a micro-batch, from a node of its own by TCP, into"
        " a sink that does nothing; the time is Spark's own of each batch but the first and the"
        " last; peer: its source of Kafka on the same rows, keys and JSON as bytes, from one broker"
        f" of Kafka {BROKER} with its own settings; Spark {SPARK}, {MASTER}, for both;"
        " columns of JSON: Spark takes the same columns out of the bytes"
    )


# -- the driver, in an environment of its own -------------------------------------------------


def main() -> None:
    """Fill a topic, and run streams as the parent asks for."""
    parent = Parent()
    jars = {"spark.driver.extraClassPath": sys.argv[1]}
    session = open_session(MASTER, config=jars | FAST_CODE, archive=False)
    try:
        where = parent.receive(Where)
        _fill_topic(session, where)
        parent.send(True)
        for run in parent.messages(Run):
            parent.send(_ran(_source(session, where, run.source), run.checkpoint))
    finally:
        close_session(session)


def _fill_topic(session: SparkSession, where: Where) -> None:
    rows = session.createDataFrame(pa.Table.from_batches(batches_of(where.rows)))
    columns = [name for name in COLUMNS if name != "id"]
    values = rows.selectExpr("id AS key", f"to_json(struct({', '.join(columns)})) AS value")
    writer = values.write.format("kafka").option("kafka.bootstrap.servers", where.broker)
    writer.option("topic", TOPIC).save()


def _source(session: SparkSession, where: Where, source: str) -> DataFrame:
    reader, most = session.readStream, str(where.rows // BATCHES)
    if source == "lowmark":
        options = {"node": where.node, "table": TABLE, "startingOffsets": "earliest"}
        return reader.format("lowmark").options(maxRowsPerTrigger=most, **options).load()
    options = {"kafka.bootstrap.servers": where.broker, "subscribe": TOPIC}
    reader = reader.format("kafka").options(startingOffsets="earliest", **options)
    rows = reader.option("maxOffsetsPerTrigger", most).load()
    if source == "kafka":
        return rows
    return rows.selectExpr(
        "CAST(key AS STRING) AS id",
        "from_json(CAST(value AS STRING), 'customer BIGINT, amount BIGINT, note STRING') AS row",
    ).select("id", "row.*")


def _ran(rows: DataFrame, checkpoint: str) -> Ran:
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        query.processAllAvailable()
        batches: list[Any] = [one for one in query.recentProgress if one.numInputRows]
    finally:
        query.stop()
    # Kafka's source rounds what each partition gives, and may have a batch of a few rows left.
    counted = batches[1 : BATCHES - 1]
    return Ran(
        sum(one.numInputRows for one in batches),
        sum(one.numInputRows for one in counted),
        sum(one.batchDuration for one in counted) / 1e3,
    )


if __name__ == "__main__":
    main()
