"""Many lives of clusters whose lost nodes are replaced, each decided by one seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lowmark.group import Future
from lowmark.metastore.coordinator import Coordinator
from sim.cluster_ledger import Broken
from sim.lives import portions, seeds_of
from sim.replacing_life import SEEDS_IN_ALL, SEEDS_IN_TEST, live

SEEDS = seeds_of(SEEDS_IN_ALL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", portions(SEEDS, each=1, in_test=SEEDS_IN_TEST))
def test_no_node_that_is_replaced_costs_an_acknowledged_row(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    story = live(seed)
    # For the summary: see `conftest`.
    record_property("replacing life", json.dumps(story.as_figures()))


@pytest.mark.slow
@pytest.mark.release  # `placement/test_replacing` finds it as well
def test_lives_notice_that_no_node_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a leader that only lets the new node in
    def take_place(self: Coordinator, lost: Any, node: Any, same: Any, puts: Any) -> Future[bool]:
        return self._metastore.invoke_if(same, puts)

    monkeypatch.setattr(Coordinator, "_take_place", take_place)
    # then a life ends without peace
    with pytest.raises(Broken, match="no peace"):
        live(0)
