"""How lives are portioned out to tests: `make test` lives the first ones, `make test-all` all.

`SEED=17` lives that one only, and `LOWMARK_SIM_SEEDS=2000` so many, as `make sim` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

__all__ = ["OUTDATED", "note_seed", "portions", "seeds_of"]

OUTDATED = "outdated seed"
"""The property in which a test leaves that it had to search for the life that finds a mutant."""


def seeds_of(lives_in_all: int) -> Sequence[int]:
    """The seeds of all lives, unless the environment asks for others."""
    if os.environ.get("SEED"):
        return [int(os.environ["SEED"])]
    return range(int(os.environ.get("LOWMARK_SIM_SEEDS", lives_in_all)))


def portions(seeds: Sequence[int], *, each: int, in_test: int) -> list[Any]:
    """The first seed of each test's portion; whatever `make test` has no time for is marked."""
    return [
        pytest.param(seed, marks=pytest.mark.release if at * each >= in_test else ())
        for at, seed in enumerate(seeds[::each])
    ]


def note_seed(
    record_property: Callable[[str, object], None], mutant: str, *, known: int, found: int
) -> None:
    """Leave a note for the summary if another seed than the known one has found a mutant.

    Lives change with what they live in. A search for another seed takes minutes, each time.
    """
    if found != known:
        record_property(OUTDATED, f"{mutant}: seed {found} finds it, and {known} no longer does")
