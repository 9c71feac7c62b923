"""Rows that do not have all columns of the table: stored, or refused before any task."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lowmark.client import Database
from lowmark.errors import ColumnsMissing
from lowmark.frames.options import Options
from lowmark.frames.sink import BatchWriter, StreamWriter


@pytest.fixture
def options(db: Database, place: str) -> dict[str, str]:
    db.create_table("t", {"id": "int64", "a": "string", "b": "string"}, key="id")
    return {"path": place, "table": "t"}


def writer(options: dict[str, str], columns: str, *, stream: bool) -> Any:
    types = {"id": LongType()}
    fields = [StructField(name, types.get(name, StringType())) for name in columns.split()]
    wanted = Options.write(options, stream=stream)
    kind = StreamWriter if stream else BatchWriter
    return kind(wanted, StructType(fields), overwrite=False)


@pytest.mark.parametrize("stream", [False, True], ids=["write", "stream"])
def test_rows_with_fewer_columns_are_refused_if_the_user_says_so(
    options: dict[str, str], stream: bool
) -> None:
    strict = {**options, "failOnMissingColumns": "true"}
    with pytest.raises(ColumnsMissing, match="the rows have no columns a, b of table t"):
        writer(strict, "id", stream=stream)
    with pytest.raises(ColumnsMissing, match="the rows have no column b of table t"):
        writer(strict, "_change id a", stream=stream)
    # and all columns in any order are taken, and fewer of them if nothing is said
    writer(strict, "b id a _change", stream=stream)
    writer(options, "id", stream=stream)
