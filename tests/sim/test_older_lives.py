"""Many lives of groups whose nodes get older images put back, each decided by one seed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from group import test_older_directories as scenes
from sim.cluster_ledger import Broken
from sim.lives import first_broken, portions, seeds_of
from sim.older_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live
from sim.older_mutants import MUTANTS

SEEDS = seeds_of(SEEDS_IN_ALL)
SEEDS_PER_TEST = 4
FOUND_BY = {
    "believes any start": (0, "no peace"),
    "forgets starts with its process": (46, "acknowledged rows"),
    "begins anew with the copies that it has": (0, "no peace"),
}
"""The seed, and a part of what is said then."""
SCENES = {
    "takes votes of those who were not told": (
        scenes.test_a_vote_goes_only_to_a_candidate_that_knows_what_the_voter_knows
    ),
    "counts starts that none heard of": (
        scenes.test_an_older_directory_that_is_started_often_is_older_all_the_same
    ),
    "keeps the first of two starts of one number": (
        scenes.test_a_start_that_two_nodes_know_by_other_identities_is_known_by_both
    ),
    "tells only of itself": scenes.test_what_one_node_has_heard_the_others_hear_from_it,
}
"""Rules that too few lives come by have a scene of their own, which finds them."""


@pytest.mark.slow
@pytest.mark.parametrize("first", portions(SEEDS, each=SEEDS_PER_TEST, in_test=SEEDS_IN_TEST))
def test_no_image_that_can_be_recognised_costs_an_acknowledged_row(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        story = live(seed)
        # For the summary: see `conftest`.
        record_property("older life", json.dumps(story.as_figures()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "believes any start",
        # Shorter relatives: `test_what_is_heard_is_kept_over_a_restart_and_never_goes_back`, and
        # `test_an_older_directory_elects_no_leader_that_lacks_what_was_acknowledged`.
        pytest.param("forgets starts with its process", marks=pytest.mark.release),
        pytest.param("begins anew with the copies that it has", marks=pytest.mark.release),
    ],
)
def test_a_broken_rule_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY[name]

    def broken(seed: int) -> str | None:
        try:
            with MUTANTS[name]():
                live(seed)
        except Broken as promise:
            return str(promise)
        return None

    found = first_broken(
        record_property, name, known=first, lives_in_all=SEEDS_IN_ALL, broken=broken
    )
    assert said in found or "acknowledged rows" in found, found


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_a_broken_rule_is_found_by_its_scene(name: str) -> None:
    with MUTANTS[name](), pytest.raises((AssertionError, TimeoutError)):
        SCENES[name]()


def test_each_broken_rule_is_looked_for() -> None:
    assert MUTANTS.keys() == FOUND_BY.keys() | SCENES.keys()
