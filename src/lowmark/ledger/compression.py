"""Which columns of a ledger file are compressed: those that get a third smaller, by a sample.

A ledger is written once, and everybody who comes new reads all of it. Unpacking costs a reader more
than anything else that it does; for what hardly gets smaller, such as keys that were drawn, hashes
or encrypted values, it costs four times as much as it saves on the disk. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

LEVEL: Final = 1
_SAMPLES: Final = 3
_SAMPLE_ROWS: Final = 1_024
_SAMPLE_BYTES: Final = 64 << 10
_CODEC = pa.Codec("zstd", compression_level=LEVEL)


def codecs_of(rows: pa.Table) -> Mapping[str, str]:
    """The codec of each leaf, by its path as Parquet has it; judged by these rows."""
    found: dict[str, str] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        codec = "zstd" if _pays(column) else "none"
        found |= dict.fromkeys(_paths(field), codec)
    return found


def _pays(column: pa.ChunkedArray) -> bool:
    """Whether a third is saved. Of nested values that is taken for granted."""
    if column.type.num_fields:
        return True
    before = after = 0
    for part in _samples(column):
        # Its values, as they lie in memory: that is nearly how Parquet has them.
        data = part.buffers()[-1]
        if data is not None and data.size:
            data = data.slice(0, min(data.size, _SAMPLE_BYTES))
            before += data.size
            after += len(_CODEC.compress(data, asbytes=True))
    return 3 * after <= 2 * before


def _samples(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Some rows from the beginning, the middle and the end."""
    if pa.types.is_dictionary(column.type):
        return
    last = max(0, len(column) - _SAMPLE_ROWS)
    for at in sorted({last * place // (_SAMPLES - 1) for place in range(_SAMPLES)}):
        # Put together anew: a slice has all bytes of what it was cut from.
        yield pa.concat_arrays(column.slice(at, _SAMPLE_ROWS).chunks)


def _paths(field: pa.Field) -> Iterator[str]:
    kind = field.type
    if pa.types.is_map(kind):
        names, inner = ["key_value.key", "key_value.value"], [kind.key_field, kind.item_field]
    elif pa.types.is_list(kind):
        names, inner = ["list.element"], [kind.value_field]
    elif pa.types.is_struct(kind):
        names, inner = [one.name for one in kind.fields], kind.fields
    else:
        yield field.name
        return
    for name, one in zip(names, inner, strict=True):
        for path in _paths(one.with_name(name)):
            yield f"{field.name}.{path}"
