"""Columns in Spark's types: what a table gives is made into what Spark was promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lowmark.frames.errors import ColumnChanged, SchemaRefused


def spark_schema(schema: pa.Schema) -> StructType:
    """Columns as Spark has them. A UUID is its 16 bytes: Spark has no type for it."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Columns as Spark wants them from a source, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def named(name: str, names: Sequence[str]) -> str:
    """A column by a name in any case, as Spark's sessions compare names: no table has two that
    differ in case alone. The name itself, if it is none.
    """
    return next((one for one in names if one.casefold() == name.casefold()), name)


def check_columns(
    wanted: StructType, there: pa.Schema, *, table: str, running: bool = False
) -> None:
    """Refuse columns that a reader was given, if the table has them in another type. In a `running`
    query, one may have been made wider since: it is given in the type that the query began with.
    """
    for field in wanted:
        known = spark_schema(pa.schema([there.field(field.name)]))[0].dataType
        if known == field.dataType:
            continue
        old, new = (
            arrow_schema(StructType().add(field.name, one))[0].type
            for one in (field.dataType, known)
        )
        if not (running and _is_wider(old, new)):
            raise SchemaRefused(
                f"column {field.name} of table {table} is {known.simpleString()},"
                f" not {field.dataType.simpleString()}",
                hint="If the table was altered since, start the query again. If you gave a schema,"
                " leave it out, or give the table's types, and cast afterwards.",
            )


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a column of the old type can have been widened to the new one."""
    types = pa.types
    if types.is_integer(old) and types.is_integer(new):
        return bool(new.bit_width > old.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return bool(types.is_float32(old) and types.is_float64(new))


def fitted(
    batches: Iterator[pa.RecordBatch], wanted: pa.Schema, *, table: str
) -> Iterator[pa.RecordBatch]:
    """Batches with exactly these columns."""
    for batch in batches:
        if batch.schema.equals(wanted):
            yield batch
            continue
        arrays = [_fitted(batch.column(one.name), one, table=table) for one in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _fitted(array: pa.Array, wanted: pa.Field, *, table: str) -> pa.Array:
    if array.type == wanted.type:
        return array
    try:
        made = array.cast(wanted.type)
    except pa.ArrowInvalid as error:
        now, then = (spark_schema(pa.schema([("c", one)]))[0] for one in (array.type, wanted.type))
        raise ColumnChanged(
            table,
            wanted.name,
            then=then.dataType.simpleString(),
            now=now.dataType.simpleString(),
            why=str(error),
        ) from error
    if not pa.types.is_floating(wanted.type):
        return made
    # Arrow rounds these without a word.
    same = pc.or_(pc.equal(made.cast(array.type), array), pc.is_nan(array))
    row = pc.index(same, value=False).as_py()
    if row >= 0:
        raise ColumnChanged(
            table,
            wanted.name,
            then="float",
            now="double",
            why=f"{array[row].as_py()!r} is no float",
        )
    return made
