"""Many lives of clusters whose partitions move, each decided by one seed; and mutants of placement.

`make sim` runs thousands; `make sim SEED=17` replays one and prints its end when it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sim.cluster_ledger import Broken
from sim.lives import first_broken, portions, seeds_of
from sim.placement_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.placement_mutants import PLACEMENT_MUTANTS

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 5
TESTS = Path(__file__).parents[1]

TRACE = """
import sys
allocated = [object() for _ in range(int(sys.argv[2]))]
from sim.placement_life import live
print(live(int(sys.argv[1])))
"""

FOUND_BY = {
    "writes stable for any token": (16, ("pending was",)),
    "takes any lock away": (100, ("the lock went",)),
    "destroys without asking the leader": (12, ("destroys its copy",)),
    "destroys what is pending": (0, ("destroys its copy",)),
    "writes stable before it is kept": (0, ("know durably of",)),
    "forgets the trigger": (0, ("was sent on by no event",)),
    "leaves planned behind": (3, ("planned stayed behind",)),
    "forgets its incarnation when it leaves": (3, ("forgot that it was",)),
    "founds what it joins": (0, ("lead in term", "the group has")),
    "cancels what is in force": (3, ("what is in force was cancelled",)),
    "decides by the latest revision": (0, ("decided on by no event",)),
    "lets a node leave by hearsay": (142, ("there is no peace",)),
    "votes as an earlier incarnation": (45, ("two batches at offset", "elsewhere")),
    "makes copies before it has caught up": (7000076, ("lead in term",)),
}
"""The seed, and some of what may be said then."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_partitions_move_and_keep_their_promises_through_any_life(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        story = live(seed)
        # For the summary: see `conftest`.
        record_property("placement life", json.dumps(story.as_figures()))


def trace(seed: int, *, hash_seed: int, allocated: int) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", TRACE, str(seed), str(allocated)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": _path()},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def _path() -> str:
    return os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, pytest.param(11, marks=pytest.mark.release)])
def test_one_seed_gives_one_life_in_any_process(seed: int) -> None:
    # given two fresh processes with other hash seeds and other numbers of objects
    one = trace(seed, hash_seed=1, allocated=10)
    other = trace(seed, hash_seed=4242, allocated=100_003)
    # then the same things happen at the same virtual times, frames and disk calls included
    assert one == other
    assert "digest=" in one


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLACEMENT_MUTANTS)
def test_a_mutant_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY[name]
    found = first_broken(
        record_property,
        name,
        known=first,
        lives_in_all=SEEDS_IN_ALL,
        broken=lambda seed: broken_promise(seed, PLACEMENT_MUTANTS[name]),
    )
    # then that life breaks, and for the right reason
    assert any(part in found for part in said), found


def broken_promise(seed: int, mutant: Callable[[], AbstractContextManager[None]]) -> str | None:
    """What a life under a mutant breaks, if anything."""
    try:
        with mutant():
            live(seed)
    except Broken as broken:
        return str(broken)
    except AssertionError as broken:  # one of Lowmark's own invariants
        return str(broken)
    return None
