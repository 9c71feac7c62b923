"""What a manifest says of columns, so that a program without the catalog tells them apart.

A file's columns are named as they were called when it was written. In another file of the same
ledger a name may stand for another column, and a column may have another name, or a wider type.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from lowmark.catalog import Table
from lowmark.catalog.types import type_text
from lowmark.catalog.values import Value, value_text
from lowmark.errors import Corrupt
from lowmark.ledger.manifest import Layout, LedgerColumn


def layout_of(table: Table, version: int) -> Layout:
    """The columns of a schema version of a table."""
    schema = table.schema_version(version)
    if schema is None:
        raise Corrupt(f"table {table.name} has no schema version {version}")
    columns = tuple(
        LedgerColumn(
            id=column.id,
            name=column.name,
            type=type_text(column.type),
            key=column.id in table.key,
            filling=_in_json(table.filling(column.id)),
        )
        for column in schema.columns
    )
    return Layout(schema=version, columns=columns)


def _in_json(value: Value | None) -> bool | int | float | str | None:
    """As it is where JSON has it, else as people write it; bytes as hexadecimal digits."""
    match value:
        case UUID():
            return value.hex
        case bytes() | date() | datetime() | Decimal():
            return value_text(value)
        case _:
            return value
