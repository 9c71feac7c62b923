"""What gets a third smaller is compressed, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ledger.making import made_table, rows_of
from lowmark.ledger.files import FileWriter
from lowmark.runtime.store import Store

ROWS = 5_000
COLUMNS = {
    "id": "int64",
    "drawn": "binary",
    "word": "string",
    "a.b": "string",
    "nothing": "string",
    "flag": "bool",
    "a": "struct<b: binary, l: list<int64>>",
    "m": "map<string, binary>",
}


@pytest.fixture
def codecs(tmp_path: Path) -> dict[str, set[str]]:
    """Of a file with values of all kinds, by the path of the column."""
    chance = random.Random(1)
    table = made_table(COLUMNS, key=["id"])
    values: dict[str, list[Any]] = {
        "id": list(range(ROWS)),
        "drawn": [chance.randbytes(20) for _ in range(ROWS)],
        "word": [chance.choice(["placed", "paid", "shipped"]) for _ in range(ROWS)],
        "a.b": [f"{chance.randrange(1 << 60):015x}" for _ in range(ROWS)],
        "nothing": [None] * ROWS,
        "flag": [bool(chance.randrange(2)) for _ in range(ROWS)],
        "a": [{"b": chance.randbytes(9), "l": [number]} for number in range(ROWS)],
        "m": [[("k", chance.randbytes(9))] for _ in range(ROWS)],
    }
    store = Store(str(tmp_path))
    writer = FileWriter(store, "t/one.parquet", table, table.latest, pace=lambda count: None)
    writer.add(rows_of(table.latest, values, first=0))
    file = writer.finish()
    found: dict[str, set[str]] = {}
    with pq.ParquetFile(tmp_path / file.path) as opened:
        for group in range(opened.metadata.num_row_groups):
            row_group = opened.metadata.row_group(group)
            for at in range(row_group.num_columns):
                chunk = row_group.column(at)
                found.setdefault(chunk.path_in_schema, set()).add(chunk.compression)
    return found


def test_values_that_hardly_get_smaller_are_stored_as_they_are(
    codecs: dict[str, set[str]],
) -> None:
    assert codecs["drawn"] == {"UNCOMPRESSED"}
    assert codecs["flag"] == {"UNCOMPRESSED"}


def test_values_that_repeat_are_compressed_and_so_is_what_is_nested(
    codecs: dict[str, set[str]],
) -> None:
    assert codecs["id"] == codecs["word"] == codecs["nothing"] == {"ZSTD"}
    assert codecs["a.l.list.element"] == codecs["m.key_value.value"] == {"ZSTD"}
    assert codecs["m.key_value.key"] == codecs["_offset"] == {"ZSTD"}
    # of two columns with one path, the later one decides for both
    assert codecs["a.b"] == {"ZSTD"}
