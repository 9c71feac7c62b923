"""Many lives of nodes of which one has a wrong clock, each decided by one seed; and mutants.

`make sim` lives more of them; `make sim SEED=17` replays one and says how it broke.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from sim.clock_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.clock_mutants import CLOCK_MUTANTS
from sim.cluster_ledger import Broken
from sim.lives import first_broken, portions, seeds_of

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 4

FOUND_BY = {
    "believes its own clock": (0, "can't be read"),
    "believes the latest clock": (0, "ms ahead"),
    "follows no log": (1, "can't be read"),
    "takes nothing back": (4, "can't be read"),
}
"""The seed, and a part of what is said then."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_the_present_is_read_and_no_time_moves_whatever_one_clock_says(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        record_property("clock life", json.dumps(live(seed).as_figures()))


@pytest.mark.slow
@pytest.mark.release  # the shorter relative: tests/sim/test_determinism.py
def test_one_seed_gives_one_life_of_clocks() -> None:
    assert live(2).digest == live(2).digest


def test_each_mutant_of_clocks_is_to_be_found() -> None:
    assert FOUND_BY.keys() == CLOCK_MUTANTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_life_with_a_wrong_clock_finds_a_mutant(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    seed, said = FOUND_BY[name]

    def broken(seed: int) -> str | None:
        try:
            with CLOCK_MUTANTS[name]():
                live(seed)
        except Broken as promise:
            return str(promise)
        return None

    found = first_broken(
        record_property, name, known=seed, lives_in_all=SEEDS_IN_ALL, broken=broken
    )
    # then that life breaks, and for the right reason
    assert said in found
