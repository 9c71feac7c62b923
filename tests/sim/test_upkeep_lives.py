"""Many lives of clusters whose catalog's history is cut, each decided by one seed; and mutants.

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
from sim.upkeep_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.upkeep_mutants import UPKEEP_MUTANTS
from sim.upkeep_scenes import SCENES, play

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 4
TESTS = Path(__file__).parents[1]

TRACE = """
import sys
allocated = [object() for _ in range(int(sys.argv[2]))]
from sim.upkeep_life import live
print(live(int(sys.argv[1])))
"""

CROWDED = "decides by the copies that are shown"
"""Found by a life whose nodes have many copies, which takes seconds."""

FOUND_BY_LIFE = {
    "publishes what no snapshot covers": (0, "would replay"),
    "notes at any time what it hears": (6, "would replay"),
    "says now instead of the oldest begin": (0, "and is active"),
    "forgets the transactions of other nodes": (0, "and is active"),
    "takes an answer of an earlier round": (0, "and is active"),
    "cuts one version too many": (0, "would replay"),
    CROWDED: (19, "would replay"),
}
"""The seed, and a part of what is said then."""

FOUND_BY_SCENE = {
    "lets each copy note for itself at rest": ("a leader hands over unheard", "would replay"),
    "ignores a silent node": ("a silent node has a transaction", "and is active"),
    "carries a minimum though a node was silent": (
        "a silent node writes a row later",
        "would replay",
    ),
    CROWDED: ("nodes have hundreds of copies", "would replay"),
    "ignores a missing copy": ("a node is gone for long", "would replay"),
    "ignores an index": ("an index is registered", "needs version"),
    "ignores a rebalance": ("a move takes long", "a move of t needs"),
    "takes an answer of an earlier round": ("a transaction begins between rounds", "and is active"),
    "ignores a run": ("a run takes long", "needs version"),
    "never asks for a snapshot": ("nothing happens", "does not go by itself"),
    "never tells the other members": ("nothing happens", "does not go by itself"),
}
"""The short story, and a part of what is said then."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_history_is_cut_and_nothing_needed_goes_through_any_life(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        story = live(seed)
        # For the summary: see `conftest`.
        record_property("upkeep life", json.dumps(story.as_figures()))


@pytest.mark.parametrize("name", SCENES)
def test_nothing_needed_goes_in_a_story(name: str) -> None:
    play(name)


def test_each_mutant_is_to_be_found() -> None:
    assert {*FOUND_BY_LIFE, *FOUND_BY_SCENE} == UPKEEP_MUTANTS.keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        # The shorter relative: the story "nodes have hundreds of copies" finds the same.
        pytest.param(name, marks=pytest.mark.release) if name == CROWDED else name
        for name in FOUND_BY_LIFE
    ],
)
def test_a_life_finds_a_mutant(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY_LIFE[name]
    found = first_broken(
        record_property,
        name,
        known=first,
        lives_in_all=SEEDS_IN_ALL,
        broken=lambda seed: broken_promise(lambda: live(seed), UPKEEP_MUTANTS[name]),
    )
    # then that life breaks, and for the right reason
    assert said in found


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_BY_SCENE)
def test_a_story_finds_a_mutant(name: str) -> None:
    scene, said = FOUND_BY_SCENE[name]
    promise = broken_promise(lambda: play(scene), UPKEEP_MUTANTS[name])
    assert promise is not None, f"{scene!r} does not find that upkeep {name}"
    assert said in promise


def broken_promise(
    act: Callable[[], object], mutant: Callable[[], AbstractContextManager[None]]
) -> str | None:
    """What is broken under a mutant, if anything."""
    try:
        with mutant():
            act()
    except Broken as broken:
        return str(broken)
    return None


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
def test_one_seed_gives_one_life_of_upkeep_in_any_process(seed: int) -> None:
    # given two fresh processes with other hash seeds and other numbers of objects
    one = trace(seed, hash_seed=1, allocated=10)
    other = trace(seed, hash_seed=4242, allocated=100_003)
    # then the same things happen at the same virtual times, frames and disk calls included
    assert one == other
    assert "digest=" in one
