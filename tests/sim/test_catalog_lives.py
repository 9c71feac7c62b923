"""Many lives of a cluster with a catalog, each decided by one seed; and that they can fail.

`make sim` runs thousands; `make sim SEED=17` replays one and prints its end when it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sim.catalog_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.catalog_mutants import CATALOG_MUTANTS
from sim.cluster_ledger import Broken
from sim.lives import first_broken, portions, seeds_of

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 5
TESTS = Path(__file__).parents[1]

TRACE = """
import sys
allocated = [object() for _ in range(int(sys.argv[2]))]
from sim.catalog_life import live
print(live(int(sys.argv[1])))
"""

FOUND_BY = {
    "appends unconditionally": (0, ("was made twice",)),
    "cuts unconditionally": (69, ("the log has",)),
    "reads parts as they are now": (10, ("is missing",)),
    "ignores its token": (9, ("a command is in version", ", but it is in version")),
    "looks without waiting": (1, ("is in force",)),
    "takes times from its own clock": (0, ("at another time",)),
    "answers without the skew": (0, ("was said to be done",)),
    "refuses at once": (0, ("does not show why",)),
    "says that nothing was written": (57, (", but it is in ",)),
    "tells a jump to nobody": (5, ("was told after",)),
}
"""The seed, and some of what may be said then."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_a_catalog_keeps_its_promises_through_any_life(first: int) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        live(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CATALOG_MUTANTS)
def test_a_mutant_of_the_catalog_is_found(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    first, said = FOUND_BY[name]
    found = first_broken(
        record_property,
        name,
        known=first,
        lives_in_all=SEEDS_IN_ALL,
        broken=lambda seed: broken_promise(seed, CATALOG_MUTANTS[name]),
    )
    # then that life breaks, and for the right reason
    assert any(part in found for part in said), found


def broken_promise(seed: int, mutant: Callable[[], AbstractContextManager[None]]) -> str | None:
    """What a life under a mutant breaks, if anything."""
    try:
        with mutant():
            live(seed)
    except (Broken, AssertionError) as broken:
        return str(broken)
    return None


def trace(seed: int, *, hash_seed: int, allocated: int) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", TRACE, str(seed), str(allocated)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, pytest.param(6, marks=pytest.mark.release)])
def test_one_seed_gives_one_catalog_life_in_any_process(seed: int) -> None:
    # given two fresh processes with other hash seeds and other numbers of objects
    one = trace(seed, hash_seed=1, allocated=10)
    other = trace(seed, hash_seed=4242, allocated=100_003)
    # then the same things happen at the same virtual times, frames and disk calls included
    assert one == other
    assert "digest=" in one
