"""Many lives of a compacted table, each decided by one seed; and mutants, which must not survive
them.

`make sim` runs thousands; `make sim SEED=17` replays one and prints its end when it fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import pytest

from compaction.life import LIVES_IN_ALL, LIVES_IN_TEST, live
from compaction.model import Broken
from compaction.mutants import COMPACTION_MUTANTS
from lowmark.errors import LowmarkError
from sim.lives import first_broken, portions, seeds_of

SEEDS = seeds_of(LIVES_IN_ALL)
LIVES_PER_TEST = 4

FOUND_BY = {
    "compacts one row too many": (0, ("ends at",)),
    "drops deletes that older rows need": (8, ("the files of partition",)),
    "drops deletes that somebody needs": (6, ("are gone; cursor", "did not say that")),
    "forgets who came while it worked": (33, ("are gone; cursor",)),
    "ignores that a ledger is refused": (6, ("came to",)),
    "takes dead rows for live ones": (0, ("given, horizon",)),
    "supersedes rows of the last file only": (8, ("rows for",)),
    "cuts what a cursor holds": (21, ("was cut above cursor", "a trim to")),
    "sweeps what somebody reads": (2, ("LedgerLost",)),
    "sweeps what a run has written": (0, ("swept, though a run goes on", "LedgerLost")),
    "publishes whatever was published meanwhile": (1, ("LedgerConflict",)),
    "reads a row below the horizon again": (2, ("gave", "after")),
    "stays with an older ledger": (56, ("did not say that", "did not give")),
    "reads without checking": (8, (" for {",)),
    "trusts any manifest with a valid checksum": (
        5,
        ("reading compacted", "is another ledger's"),
    ),
    "leaves the leases of a run that was killed": (2, ("has left a lease",)),
}
"""The seed, and some of what may be said then."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", portions(SEEDS, each=LIVES_PER_TEST, in_test=LIVES_IN_TEST))
def test_a_compacted_table_is_read_like_any_other_through_any_life(
    first: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:LIVES_PER_TEST]:
        story = live(seed, tmp_path / str(seed))
        record_property("compacted life", json.dumps(story.as_figures()))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COMPACTION_MUTANTS)
def test_a_mutant_is_found(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    first, said = FOUND_BY[name]
    folders = (tmp_path / str(number) for number in count())

    def broken(seed: int) -> str | None:
        # Rows have the times of a real clock, and files with other times have other sizes: a bit
        # that is flipped may be one that says nothing. So the seed that is known has three lives.
        lives = 3 if seed == first else 1
        found = (
            broken_promise(seed, next(folders), COMPACTION_MUTANTS[name]) for _ in range(lives)
        )
        return next((promise for promise in found if promise is not None), None)

    found = first_broken(
        record_property, name, known=first, lives_in_all=LIVES_IN_ALL, broken=broken
    )
    # then that life breaks, and for the right reason
    assert any(part in found for part in said), found


def broken_promise(
    seed: int, folder: Path, mutant: Callable[[], AbstractContextManager[None]]
) -> str | None:
    """What a life under a mutant breaks, if anything."""
    try:
        with mutant():
            live(seed, folder)
    except (Broken, AssertionError) as broken:
        return str(broken)
    except LowmarkError as error:  # the product itself has found it
        return f"{type(error).__name__}: {error}"
    return None
