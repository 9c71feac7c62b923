"""Rows that `bench spark` feeds to tables and their peers: five columns, one of them the key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

COLUMNS = {"id": "int64", "name": "string", "count": "int64", "share": "float64", "note": "string"}
PIECE = 500_000
"""Rows that are made at a time."""


def pieces_of(keys: range) -> Iterator[range]:
    """Some keys at a time."""
    for at in range(0, len(keys), PIECE):
        yield keys[at : at + PIECE]


def rows_of(ids: range | npt.NDArray[np.int64], *, seed: int) -> pa.Table:
    """A row for each id; other seeds give other values."""
    ids = np.asarray(ids, np.int64)
    dice = np.random.default_rng([seed, int(ids[0])])
    return pa.table(
        {
            "id": ids,
            "name": np.char.add("name-", (ids % 1_000).astype(str)),
            "count": dice.integers(0, 1 << 40, len(ids)),
            "share": dice.random(len(ids)),
            "note": np.char.add("note ", dice.integers(0, 10**6, len(ids)).astype(str)),
        }
    )
