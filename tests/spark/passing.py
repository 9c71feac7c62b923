"""A driver with a token whose executors have none: it reads, writes, streams and compacts, and
keeps all that Spark shows of it.

python -m spark.passing MASTER FOLDER NODE
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lowmark
from eventually import eventually
from lowmark.errors import LowmarkError
from spark.drivers import SMALL

ROWS = 200
PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")


class Shown:
    """What Spark, and the system, show of a session."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._count = 0

    def keep(self, what: str, text: str) -> None:
        self._count += 1
        (self._folder / f"{self._count:03}-{what}").write_text(text)

    def plans_of(self, frame: Any, what: str) -> None:
        """All that `explain` can say of a frame, and its plans as they print themselves."""
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            said = self._spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), mode)
            self.keep(f"{what}-{mode}", said)
        execution = frame._jdf.queryExecution()
        for plan in (execution.optimizedPlan(), execution.executedPlan()):
            self.keep(f"{what}-plan", plan.toString())
            self.keep(f"{what}-json", plan.toJSON())
            self.keep(f"{what}-numbered", plan.numberedTreeString())

    def system(self) -> None:
        """The arguments of every process of this machine."""
        for place in Path("/proc").iterdir():
            if place.name.isdecimal():
                try:
                    words = (place / "cmdline").read_bytes()
                except OSError:
                    continue
                self.keep("cmdline", words.replace(b"\0", b" ").decode(errors="replace"))

    def pages(self) -> None:
        """The pages of Spark, and what its REST API says."""
        context = self._spark.sparkContext
        root = context.uiWebUrl
        api = f"{root}/api/v1/applications/{context.applicationId}"
        for page in PAGES:
            self.keep(f"page-{page.strip('/')}", _fetched(f"{root}/{page}"))
        for name in ("environment", "jobs", "stages", "executors", "sql?details=true&length=100"):
            said = _fetched(f"{api}/{name}")
            self.keep(f"api-{name.partition('?')[0]}", said)
            for one in json.loads(said) if name == "stages" else ():
                part = f"stages/{one['stageId']}/{one['attemptId']}"
                self.keep("api-stage", _fetched(f"{api}/{part}?details=true"))
                of = f"{root}/stages/stage/?id={one['stageId']}&attempt={one['attemptId']}"
                self.keep("page-stage", _fetched(of))
            for one in json.loads(said) if name.startswith("sql") else ():
                self.keep("page-query", _fetched(f"{root}/SQL/execution/?id={one['id']}"))
        self.keep("conf", repr(context.getConf().getAll()))


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body.decode(errors="replace")


def _error_of(call: Callable[[], object]) -> Iterator[str]:
    """The words of an error, of its cause and of Java's."""
    try:
        call()
    except Exception as error:
        yield f"{type(error).__name__}: {error}"
        java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        if java is not None:
            yield str(java.toString())
    else:
        raise AssertionError("it succeeded")


def _drive(master: str, folder: str, node: str) -> None:
    spark_room = __import__("lowmark.spark", fromlist=["open_session"])
    for name in ("events", "shown"):
        (Path(folder) / name).mkdir()
    config = SMALL | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.sql.streaming.checkpointLocation": f"{folder}/checkpoints",
        "spark.cleaner.referenceTracking": "false",
    }
    spark = spark_room.open_session(master, config=config)
    shown = Shown(spark, Path(folder) / "shown")
    answer: dict[str, object] = {}
    try:
        with lowmark.connect(node) as db:
            orders = db.create_table("orders", {"id": "int64", "status": "string"}, key="id")
            db.create_table("copies", {"id": "int64", "status": "string"}, key="id")
            # a sink
            made = spark.range(ROWS, numPartitions=3).selectExpr("id", "'paid' status")
            made.write.format("lowmark").options(node=node, table="orders").mode("append").save()
            answer["written"] = len(_ids(orders))
            # a source
            frame = spark.read.format("lowmark").options(node=node, table="orders").load()
            answer["read"] = frame.where("id >= 0").count()
            read = frame.where("status = 'paid'")
            answer["collected"] = len(read.collect())
            shown.plans_of(read, "read")
            # a stream, from a table into a table
            query = (
                spark.readStream.format("lowmark")
                .options(node=node, table="orders", startingOffsets="earliest")
                .load()
                .writeStream.format("lowmark")
                .options(node=node, table="copies")
                .queryName("copying")
                .start()
            )
            eventually(lambda: _ids(db["copies"]) == list(range(ROWS)), deadline_s=120)
            shown.keep("stream", json.dumps([dict(one) for one in query.recentProgress]))
            java = query._jsq.streamingQuery() if hasattr(query._jsq, "streamingQuery") else None
            if java is not None:
                shown.keep("stream-explain", java.explainInternal(True))
            shown.system()
            shown.pages()
            query.stop()
            answer["streamed"] = len(_ids(db["copies"]))
            # a run of compaction, whose tasks ask the node for batches; only here does history end
            # at once, for what is planned must be there when its tasks begin
            db.set_history("1 ms")

            def compacted() -> bool:
                db.advance_watermark()
                orders.compact(spark=spark, read="flight")
                return any(one.rows_read for one in orders.runs())

            eventually(compacted, deadline_s=120)
            answer["compacted"] = max(one.rows_read for one in orders.runs())
            db.set_history("1 day")
            # an error of a task whose pass ends, since the token is revoked that made it
            again = frame.where("id >= 1")
            again._jdf.queryExecution().executedPlan().toString()
            planned = again.rdd
            planned.getNumPartitions()  # that is when it is planned
            for one in db.tokens.list():
                if one.name == "driver":
                    db.tokens.revoke(one.name)
        for text in _error_of(planned.collect):
            shown.keep("error", text)
            answer["error"] = text[:20_000]
        for text in _error_of(frame.count):
            shown.keep("error", text)
        shown.system()
        shown.pages()
    except LowmarkError as error:
        shown.keep("error", f"{error} {error.detail} {error.hint}")
        raise
    finally:
        spark_room.close_session(spark)
    sys.stdout.write(json.dumps(answer))


def _ids(table: Any) -> list[int]:
    return sorted(row["id"] for row in table.read(as_of="now").to_pylist())


if __name__ == "__main__":
    _drive(*sys.argv[1:])
