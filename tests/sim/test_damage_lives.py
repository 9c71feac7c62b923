"""Many lives of clusters whose files rot, one node's at a time, each decided by one seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lowmark.placement.reseeding import Reseeding
from sim.cluster_ledger import Broken
from sim.damage_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.lives import first_broken, portions, seeds_of
from sim.mutants import replaced

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 2


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_no_file_that_rots_costs_an_acknowledged_row(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        story = live(seed)
        # For the summary: see `conftest`.
        record_property("damage life", json.dumps(story.as_figures()))


@contextmanager
def leaves_copies_to_the_operator() -> Iterator[None]:
    with replaced(Reseeding, "look", lambda *_: None):
        yield


@pytest.mark.slow
@pytest.mark.release  # `tests/placement/test_reseeding.py` says it of one copy
def test_copies_that_nobody_makes_anew_are_found(
    record_property: Callable[[str, object], None],
) -> None:
    def broken(seed: int) -> str | None:
        try:
            with leaves_copies_to_the_operator():
                live(seed)
        except Broken as promise:
            return str(promise)
        return None

    found = first_broken(
        record_property,
        "leaves copies to the operator",
        known=1,
        lives_in_all=SEEDS_IN_ALL,
        broken=broken,
    )
    assert "no peace" in found
