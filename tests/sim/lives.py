"""How lives are portioned out to tests: `make test` lives the first ones, `make test-all` all.

`SEED=17` lives that one only, and `LOWMARK_SIM_SEEDS=2000` so many, as `make sim` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

__all__ = ["OUTDATED", "first_broken", "portions", "seeds_of"]

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


OTHERS_IN_TEST = 3


def first_broken(
    record_property: Callable[[str, object], None],
    mutant: str,
    *,
    known: int,
    lives_in_all: int,
    broken: Callable[[int], str | None],
) -> str:
    """What a life breaks under a mutant: the one that is known to, or one of a few others.

    Lives change with what they live in, and then another one finds it. To search all of them takes
    minutes: `make sim` does, and says at the end which seed it is.
    """
    others = [seed for seed in range(lives_in_all) if seed != known]
    searched = others if os.environ.get("LOWMARK_SIM_SEEDS") else others[:OTHERS_IN_TEST]
    for seed in [known, *searched]:
        promise = broken(seed)
        if promise is None:
            continue
        if seed != known:
            outdated = f"{mutant}: seed {seed} finds it, and {known} no longer does"
            record_property(OUTDATED, outdated)
        return promise
    if len(searched) == len(others):
        raise AssertionError(f"of {lives_in_all} lives none finds the mutant {mutant!r}")
    raise AssertionError(
        f"seed {known} does not find the mutant {mutant!r}, and {OTHERS_IN_TEST} others don't:"
        " `make sim` searches all, and names one for FOUND_BY"
    )
