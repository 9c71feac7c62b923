"""A session whose Arrow batches have no limit: what Spark's own worker says, and what we say."""

from __future__ import annotations

import io
import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import BinaryType, StructType
from pyspark.sql.worker import plan_data_source_read

from lowmark.client import Database
from lowmark.errors import NoRecordsMax
from lowmark.frames import LowmarkSource
from lowmark.frames.scan import RECORDS_MAX
from lowmark.spark import table


class Asked(LowmarkSource):
    """A source that tells when Spark asks it for a reader."""

    def reader(self, schema: StructType) -> Any:
        raise LookupError("a reader was asked for")


def plan(place: str, records_max: int) -> None:
    """What Spark's worker does to plan a read, as Spark calls it."""
    said: Any = io.BytesIO()
    CPickleSerializer()._write_with_length(Asked({"path": place, "table": "t"}), said)  # type: ignore[no-untyped-call]
    for schema in (StructType().add("partition", BinaryType()), StructType().add("id", "long")):
        text = json.dumps(schema.jsonValue()).encode()
        said.write(struct.pack("!i", len(text)) + text)
    said.write(struct.pack("!i", records_max))
    said.write(bytes(3))  # pushes no filters; is no stream; bytes are bytearrays
    plan_data_source_read._main(io.BytesIO(said.getvalue()), io.BytesIO())


def test_spark_refuses_a_session_without_a_limit_before_it_asks_a_source(
    db: Database, place: str
) -> None:
    # given a table, and a worker of Spark that plans a read of it
    db.create_table("t", {"id": "int64"})
    with pytest.raises(LookupError, match="a reader was asked for"):
        plan(place, 10_000)
    # when the session has no limit, then no code of a source is asked: Lowmark can't mend that.
    # (If this fails, Spark has: then NoRecordsMax and the guide's row on it can go.)
    with pytest.raises(AssertionError, match="should be greater than 0, but got '0'"):
        plan(place, 0)
    # and where Lowmark has the session, it says what to set
    with pytest.raises(NoRecordsMax, match="maxRecordsPerBatch is 0"):
        table(SimpleNamespace(conf={RECORDS_MAX: "0"}), "t", path=place)
