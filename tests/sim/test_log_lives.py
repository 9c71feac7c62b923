"""Many lives of a log, each decided by one seed.

`make sim` runs thousands; `make sim SEED=17` replays one and prints its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

import pytest

from log.life import LogLife
from lowmark.inspect import verify_log
from lowmark.log import Damaged
from sim.lives import first_broken, portions, seeds_of
from sim.log_mutants import MUTANTS

STEPS = 150
SEEDS_IN_TEST = 20
SEEDS = seeds_of(100)
SEEDS_PER_TEST = 20
SEEDS_FOR_MUTANTS = 200


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_a_log_keeps_its_promises_through_any_life(first: int) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        live_one_life(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_a_log_keeps_its_promises_though_its_disk_is_sick_for_long(first: int) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        live_one_life(seed, sick=True)


FOUND_BY = {
    "gives a sick folder up": 1,
    "takes an unreadable group for a deleted one": 0,
    "takes a missing folder for a deleted group": 3,
    "takes a group without an entry for a deleted one": 11,
    "goes on with what it could not read": 0,
    "replays a kept file for all": 1,
    "replays a file that came back": 58,
    "trusts the last batch": 92,
    "clears a failed batch away": 565,
}
"""The seed that is known to find a mutant: it is tried first."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_log_is_found(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    first_broken(
        record_property,
        name,
        known=FOUND_BY[name],
        lives_in_all=SEEDS_FOR_MUTANTS,
        broken=lambda seed: broken_promise(seed, MUTANTS[name]),
    )


def broken_promise(seed: int, mutant: Callable[[], AbstractContextManager[None]]) -> str | None:
    """What a life under a mutant breaks, if anything."""
    try:
        with mutant():
            live_one_life(seed, sick=True)
    except (AssertionError, Damaged) as broken:
        return str(broken)
    return None


def live_one_life(seed: int, *, sick: bool = False) -> None:
    """Random steps from one seed; the log agrees with the oracle after each."""
    dice, steps = Random(seed), list[str]()
    try:
        life = LogLife(seed=seed)
        for _ in range(STEPS):
            steps.append(life.any_sick_step(dice) if sick else life.any_step(dice))
            life.check()
        if sick:
            # whatever was bad at the end is well after a restart, and all of it is there
            life.heal()
            life.kill_the_process()
            life.settle()
            life.world.close()
            wrong = {"damage", "missing", "quarantine"}
            assert [f for f in verify_log(life.world.disk) if f.kind in wrong] == []
    except BaseException as failure:
        failure.add_note(f"seed {seed}, after: {', '.join(steps)}")
        failure.add_note(f"replay it: make sim SEED={seed}")
        raise
