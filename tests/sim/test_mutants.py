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
from sim.lives import OUTDATED, first_broken
from sim.mutants import MUTANTS

FOUND_BY = {
    "acknowledges before the sync": (0, "not durable"),
    "commits old terms by counting": (2, "was committed by counting"),
    "forgets its vote": (0, "a vote left that is not durable"),
    "drops a live entry in phase 3": (7, "entr"),
    "changes members before its first entry": (2, "a change of members before"),
    "counts learners": (1, "is durable only on"),
    "reads without asking": (17, "is not linearizable"),
    "keeps stale entries after an install": (94, "term"),
}
"""The seed, and a part of what is said then."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    first, said = FOUND_BY[name]
    found = first_broken(
        record_property,
        name,
        known=first,
        lives_in_all=SEEDS_IN_ALL,
        broken=lambda seed: broken_promise(seed, MUTANTS[name]),
    )
    # then that life breaks, and for the right reason
    assert said in found, found


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


def test_a_stale_seed_is_not_searched_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWMARK_SIM_SEEDS", raising=False)
    notes: dict[str, object] = {}

    def search(finds: int) -> tuple[str, list[int]]:
        lived: list[int] = []

        def broken(seed: int) -> str | None:
            lived.append(seed)
            return "a promise" if seed == finds else None

        said = first_broken(notes.__setitem__, "a mutant", known=1, lives_in_all=50, broken=broken)
        return said, lived

    # given that another life finds it than the known one, then a note says so
    assert search(2) == ("a promise", [1, 0, 2])
    assert notes == {OUTDATED: "a mutant: seed 2 finds it, and 1 no longer does"}
    # when none of the next few does, then it fails and says what would
    with pytest.raises(AssertionError, match="`make sim` searches all"):
        search(40)
    # and that does
    monkeypatch.setenv("LOWMARK_SIM_SEEDS", "2000")
    assert search(40)[1][-1] == 40
    with pytest.raises(AssertionError, match="of 50 lives none"):
        search(50)
