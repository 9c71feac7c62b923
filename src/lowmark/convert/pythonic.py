"""Rows as Python's values: a UUID is a `uuid.UUID`, and a map is a dict, at any depth.

Arrow has no type of its own for the one that survives every way that rows travel, so it is sixteen
bytes there, and gives maps as lists of pairs. Of a map that has a key twice, the last value counts,
as in a dict. All other values are as Arrow gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]
Converts: TypeAlias = Mapping[str, Convert]
"""By column; those that are not named stay as they are."""


def converts_of(schema: pa.Schema) -> Converts:
    """What the columns of a schema need: of most schemas, nothing."""
    return {
        field.name: convert for field in schema if (convert := _converting(field.type)) is not None
    }


def convert_rows(rows: Sequence[dict[str, Any] | None], converts: Converts) -> None:
    """Convert rows in place."""
    for name, convert in converts.items():
        for row in rows:
            if row is not None:
                value = row[name]
                if value is not None:
                    row[name] = convert(value)


def _converting(kind: pa.DataType) -> Convert | None:
    """What turns a value that Arrow gave into ours; None: it is that."""
    if pa.types.is_fixed_size_binary(kind):
        return _uuid
    if pa.types.is_map(kind):
        return _map(_converting(kind.key_type), _converting(kind.item_type))
    if pa.types.is_list(kind):
        return _list(_converting(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct(converts_of(pa.schema(list(kind))))
    return None


def _uuid(value: bytes) -> UUID:
    return UUID(bytes=value)


def _map(of_key: Convert | None, of_item: Convert | None) -> Convert:
    def one(pairs: Any) -> dict[Any, Any]:
        made = {
            key if of_key is None else of_key(key): item
            for key, item in (pairs.items() if isinstance(pairs, dict) else pairs)
        }
        if of_item is not None:
            made = {key: None if item is None else of_item(item) for key, item in made.items()}
        return made

    return one


def _list(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct(converts: Converts) -> Convert | None:
    if not converts:
        return None

    def one(value: dict[str, Any]) -> dict[str, Any]:
        made = dict(value)
        convert_rows([made], converts)
        return made

    return one
