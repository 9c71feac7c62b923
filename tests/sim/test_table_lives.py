"""Many lives of a partition, each decided by one seed; and mutants, which must not survive them.

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
from sim.table_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.table_mutants import TABLE_MUTANTS

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 5
TESTS = Path(__file__).parents[1]

TRACE = """
import sys
allocated = [object() for _ in range(int(sys.argv[2]))]
from sim.table_life import live
print(live(int(sys.argv[1])))
"""

FOUND_BY = {
    "forgets producers in snapshots": (0, ("its snapshot says",)),
    "forgets answers in snapshots": (21, ("RepeatTooOld",)),
    "cuts what a cursor holds": (0, ("cut at",)),
    "cuts what a lease holds": (3, ("cut at",)),
    "counts leases that are over": (0, ("'Trimmed'",)),
    "leaves a gap behind a finish": (6, ("the backlog on",)),
    "finishes twice": (8, ("'Finished'",)),
    "binds an epoch twice": (2, ("'Bound'", "'StagedRowsMissing'")),
    "forgets epochs in snapshots": (7, ("its snapshot says", "'Bound'", "'StagedRowsMissing'")),
    "keeps what has lost": (2, ("for live",)),
    "closes more time than has passed": (0, ("'Ticked'",)),
    "closes time by what it has not applied": (0, ("a view that is closed up to",)),
    "lets staged rows die": (0, ("for live",)),
    "looks for a batch where it was": (1, ("for live", "can't be read")),
    "forgets that staged rows have moved": (7, ("for live",)),
    "drops a batch that straddles the cut": (3, ("'Trimmed'", "for live")),
    "stores a repeat again": (4, ("'Appended'",)),
    "takes batches out of order": (0, ("'OutOfSequence'",)),
    "knows the latest without asking": (1, ("the latest at",)),
    "takes its snapshot later": (7, ("copies differ",)),
    "numbers a batch anew that may be stored": (52, ("was told that they are not", "twice")),
    "forgets where cursors moved to": (0, ("its snapshot says",)),
    "adopts what lacks held deletes": (5, ("let deletes go",)),
    "lets only raw cursors hold deletes": (17, ("let deletes go",)),
    "lets the horizon fall": (17, ("the horizon falls",)),
    "cuts above the horizon": (5, ("cut at",)),
    "forgets the ledger in snapshots": (0, ("has lost the ledger", "the ledger on")),
    "shows a ledger one command late": (0, ("the ledger on",)),
    "begins where deletes are gone": (26, ("'DeletesGone'",)),
    "takes rows of versions that are not kept": (0, ("'SchemaNotInForce'",)),
    "forgets in snapshots which versions are kept": (0, ("its snapshot says", "others did not")),
    "overlooks versions of staged rows": (19, ("'SchemasKept'",)),
}
"""The seed, and some of what may be said then."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_a_table_keeps_its_promises_through_any_life(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        story = live(seed)
        # For the summary: see `conftest`.
        record_property("table life", json.dumps(story.as_figures()))


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
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TABLE_MUTANTS)
def test_a_mutant_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY[name]
    found = first_broken(
        record_property,
        name,
        known=first,
        lives_in_all=SEEDS_IN_ALL,
        broken=lambda seed: broken_promise(seed, TABLE_MUTANTS[name]),
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
