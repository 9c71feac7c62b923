"""Memory of a live set."""

from __future__ import annotations

import ctypes
import gc
import resource
from array import array
from contextlib import suppress
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from benchmarks.figure import Figure, Target
from benchmarks.turns import Bench
from lowmark.errors import invariant
from lowmark.log import LiveRow

__all__ = ["live_set_bytes"]


def live_set_bytes(bench: Bench) -> Figure:
    """What a group's live row takes when a tenth of its indexes is alive, scattered."""
    sizes = bench.sizes
    bench.say("live_set_bytes: drawing indexes")
    stored = _scattered(sizes.live_indexes, sizes.live_space)
    before = _resident_bytes()
    row = LiveRow(sizes.live_space, 1, BitMap64.deserialize(stored))
    value = max(0, _resident_bytes() - before)
    invariant(len(row.live) == sizes.live_indexes, "the whole set is there")
    return Figure(
        name="live_set_bytes",
        value=value,
        target=Target(40_000_000, at_least=False),
        unit="bytes",
        ours=value,
        spread=(value, value),
        runs=1,
        notes=f"{sizes.live_indexes:,} live indexes, drawn evenly, out of {sizes.live_space:,}:"
        " what the process grows by (resident bytes) when it loads the set, as at start-up; a plain"
        f" array would take {8 * sizes.live_indexes:,}",
    )


def _scattered(count: int, space: int) -> bytes:
    """A set of so many, spread evenly; drawn part by part, because a draw needs room for all."""
    dice, parts = np.random.default_rng(1), 100
    live = BitMap64()
    for part in range(parts):
        drawn = dice.choice(space // parts, count // parts, replace=False, shuffle=False)
        live |= BitMap64(array("Q", (drawn + part * (space // parts) + 1).tolist()))
    return live.serialize()


def _resident_bytes() -> int:
    gc.collect()
    with suppress(OSError, AttributeError):  # not every C library keeps freed memory, or has this
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
