"""Memory of a live set."""

from __future__ import annotations

import ctypes
import gc
import resource
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from benchmarks.figure import Figure, Side, Target
from benchmarks.log_sizes import LogSizes
from benchmarks.runner import Bench, Plan, measures
from lowmark.errors import invariant
from lowmark.log import LiveRow


@measures(
    Figure("live_set_bytes", Target(40_000_000, at_least=False), "bytes"),
    runs="live_runs",
    warm_up=False,
)
def live_set_bytes(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """What a group's live row takes when a tenth of its indexes is alive, scattered."""
    sizes = bench.sizes

    def load(_: Path) -> Side:
        bench.say("drawing indexes")
        stored = _scattered(sizes.live_indexes, sizes.live_space)
        before = _resident_bytes()
        row = LiveRow(sizes.live_space, 1, BitMap64.deserialize(stored))
        grown = max(0, _resident_bytes() - before)
        invariant(len(row.live) == sizes.live_indexes, "the whole set is there")
        return Side(grown)

    yield bench.watch(
        load,
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
