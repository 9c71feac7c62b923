"""Columns in Spark's types: what a table gives is made into what Spark was promised."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lowmark.errors import Rejected
from lowmark.frames.errors import SchemaRefused


def spark_schema(schema: pa.Schema) -> StructType:
    """Columns as Spark has them. A UUID is its 16 bytes: Spark has no type for it."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Columns as Spark wants them from a source, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def check_columns(wanted: StructType, there: pa.Schema, *, table: str) -> None:
    """Refuse columns that a reader was given, if the table has them in another type."""
    for field in wanted:
        known = spark_schema(pa.schema([there.field(field.name)]))[0].dataType
        if known != field.dataType:
            raise SchemaRefused(
                f"column {field.name} of table {table} is {known.simpleString()},"
                f" not {field.dataType.simpleString()}",
                hint="Leave the schema out, or give the table's types, and cast afterwards.",
            )


def fitted(batches: Iterator[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches with exactly these columns."""
    for batch in batches:
        if batch.schema.equals(wanted):
            yield batch
            continue
        try:
            arrays = [
                batch.column(field.name).cast(field.type)
                if batch.schema.field(field.name).type != field.type
                else batch.column(field.name)
                for field in wanted
            ]
        except pa.ArrowInvalid as error:
            raise Rejected(
                f"a value does not fit the type that its column had: {error}",
                hint="Start the query again: it then has the columns as they are now.",
            ) from error
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
