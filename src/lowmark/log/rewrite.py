"""Phase 4: choose scattered live entries to be written again at the head of the log.

A live set without neighbours costs memory, and its entries pin one segment each. Written again,
they stand side by side, and their old places die with the next snapshot. The machine above decides
what a rewritten entry means (it keeps its offsets, times and revisions); the log chooses, reads,
appends.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

_BLOCK_BITS = 10


def plan_rewrite(
    live: BitMap64, *, dense_share: float = 0.5, chunk_entries: int = 1_024
) -> list[list[int]]:
    """The live indexes in thinly populated blocks of the log, lowest first, in chunks.

    A block of 1,024 indexes in which at least `dense_share` are live is left alone.
    """
    indexes = np.frombuffer(live.to_array(), np.uint64)
    if not len(indexes):
        return []
    blocks, at, counts = np.unique(
        indexes >> np.uint64(_BLOCK_BITS), return_inverse=True, return_counts=True
    )
    del blocks
    scattered = indexes[counts[at] < dense_share * (1 << _BLOCK_BITS)].tolist()
    return [scattered[i : i + chunk_entries] for i in range(0, len(scattered), chunk_entries)]
