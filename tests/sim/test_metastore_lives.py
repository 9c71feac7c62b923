"""Many lives of a metastore, each decided by one seed; and mutants, which must not survive them.

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
from sim.metastore_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.metastore_mutants import METASTORE_MUTANTS

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 5
TESTS = Path(__file__).parents[1]

TRACE = """
import sys
allocated = [object() for _ in range(int(sys.argv[2]))]
from sim.metastore_life import live
print(live(int(sys.argv[1])))
"""

FOUND_BY = {
    "skips a revision when the leader changes": (0, ("waits for", "needs revisions from")),
    "drops the value in force at the cut": (
        1,
        ("should be", "has other keys", "was told", "history of"),
    ),
    "asks again after a lost call": (5, ("carried out", "came to")),
    "reads without asking the leader": (2, ("superseded long ago", "was known before")),
    "looks for a value where it was": (6, ("not in the log", "can't read")),
    "ignores that an entry has moved": (
        1,
        ("has another state", "for live", "not in the log", "there is no peace"),
    ),
    "counts leases that are over": (0, ("should come to", "with leases")),
    "cuts what a lease holds": (0, ("should come to", "should be")),
    "takes its snapshot later": (7, ("not of one moment",)),
    "changes the topology without a condition": (8, ("the topology went from", "its record is")),
    "holds nothing for watchers": (2, ("needs revisions from",)),
    "sends nodes away by hearsay": (19, ("there is no peace", "for gone", "may go")),
}
"""The seed, and some of what may be said then."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_a_metastore_keeps_its_promises_through_any_life(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        story = live(seed)
        # For the summary: see `conftest`.
        record_property("metastore life", json.dumps(story.as_figures()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1_000_315])
def test_a_life_that_once_broke_stays_mended(seed: int) -> None:
    live(seed)


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
@pytest.mark.parametrize("seed", [2, pytest.param(11, marks=pytest.mark.release)])
def test_one_seed_gives_one_life_in_any_process(seed: int) -> None:
    # given two fresh processes with other hash seeds and other numbers of objects
    one = trace(seed, hash_seed=1, allocated=10)
    other = trace(seed, hash_seed=4242, allocated=100_003)
    # then the same things happen at the same virtual times, frames and disk calls included
    assert one == other
    assert "digest=" in one


@pytest.mark.slow
def test_an_install_leaves_a_compaction_what_it_reads() -> None:
    """A snapshot came in while phase 3 read segments that it replaced: their large file went."""
    live(3255)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", METASTORE_MUTANTS)
def test_a_mutant_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY[name]
    found = first_broken(
        record_property,
        name,
        known=first,
        lives_in_all=SEEDS_IN_ALL,
        broken=lambda seed: broken_promise(seed, METASTORE_MUTANTS[name]),
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
