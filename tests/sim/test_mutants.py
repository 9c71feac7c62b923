"""The lives of clusters can fail: each planted fault is found by the lives of `make test-all`.

The seed that is known to find a mutant comes first, then all others in their order; the first life
that breaks ends the search. What a life is made of is the same as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from sim.cluster_ledger import Broken
from sim.cluster_life import SEEDS_IN_ALL, live
from sim.lives import note_seed
from sim.mutants import MUTANTS

FOUND_BY = {
    "acknowledges before the sync": (0, "not durable"),
    "commits old terms by counting": (2, "was committed by counting"),
    "forgets its vote": (0, "a vote left that is not durable"),
    "drops a live entry in phase 3": (2, "entr"),
    "changes members before its first entry": (1, "a change of members before"),
    "counts learners": (8, "is durable only on"),
    "reads without asking": (17, "is not linearizable"),
    "keeps stale entries after an install": (102, "term"),
}
"""The seed, and a part of what is said then."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY[name]
    others = [seed for seed in range(SEEDS_IN_ALL) if seed != first]
    found = next(
        (
            (seed, promise)
            for seed in [first, *others]
            if (promise := broken_promise(seed, MUTANTS[name])) is not None
        ),
        None,
    )
    # then some life of those in `make test-all` breaks, and for the right reason
    assert found is not None, f"no life in {SEEDS_IN_ALL} finds that Lowmark {name}"
    note_seed(record_property, name, known=first, found=found[0])
    assert said in found[1], found


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
