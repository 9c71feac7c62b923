"""Which node should lead each partition: evenly, the same everywhere, and with few changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowmark.placement.leaders import spread_leaders
from lowmark.placement.target import Place, plan

Partition = tuple[int, int]
Nodes = Mapping[Partition, Sequence[int]]


def placed(
    nodes: int, partitions: int, *, racks: int = 0, now: Nodes | None = None, out: int = 0
) -> Nodes:
    """Partitions of small tables, on all nodes from 1 on but one that is out."""
    places = [
        Place(number, f"r{number % racks}" if racks else "")
        for number in range(1, nodes + 1)
        if number != out
    ]
    new: Nodes = {(1 + number // 8, number % 8): () for number in range(partitions)}
    return plan(new if now is None else now, places, replicas=3)


def loads(led: Mapping[Partition, int]) -> list[int]:
    return sorted(Counter(led.values()).values())


@st.composite
def any_sets(draw: st.DrawFn) -> dict[Partition, list[int]]:
    nodes = st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True)
    return {(at % 2, at): one for at, one in enumerate(draw(st.lists(nodes, max_size=6)))}


def unevenness(led: Sequence[int]) -> int:
    return sum(count * count for count in Counter(led).values())


@pytest.mark.slow
@given(any_sets())
def test_of_whatever_sets_no_choice_is_more_even(sets: dict[Partition, list[int]]) -> None:
    led = spread_leaders(sets)
    assert led.keys() == sets.keys()
    assert all(led[one] in sets[one] for one in sets)
    best = min(unevenness(choice) for choice in product(*sets.values()))
    assert unevenness(list(led.values())) == best


@pytest.mark.parametrize(("nodes", "partitions"), [(3, 1), (6, 60), (7, 64), (20, 400), (50, 510)])
@pytest.mark.parametrize("racks", [0, 3])
def test_every_node_leads_its_share_give_or_take_one(
    nodes: int, partitions: int, racks: int
) -> None:
    led = spread_leaders(placed(nodes, partitions, racks=racks))
    share, more = divmod(partitions, nodes)
    expected = [share] * (nodes - more) + [share + 1] * more
    assert loads(led) == [count for count in expected if count]


def test_the_order_in_which_partitions_come_does_not_matter() -> None:
    sets = placed(9, 200)
    shuffled = list(sets)
    Random(1).shuffle(shuffled)
    assert spread_leaders({one: sets[one] for one in shuffled}) == spread_leaders(sets)


@pytest.mark.parametrize(("nodes", "partitions"), [(6, 60), (20, 400), (100, 1_000)])
def test_when_a_node_comes_or_goes_most_leaders_stay(nodes: int, partitions: int) -> None:
    # given leaders of a zone
    before = placed(nodes, partitions)
    led = spread_leaders(before)
    for after in (
        placed(nodes + 1, partitions, now=before),
        placed(nodes, partitions, now=before, out=1),
    ):
        # when a node comes or goes
        then = spread_leaders(after)
        # then those change that lost their leader, and few others
        changed = sum(led[one] != then[one] for one in led)
        lost = sum(led[one] not in after[one] for one in led)
        assert lost <= changed <= lost + partitions // 6


def test_a_new_table_changes_few_leaders_of_others() -> None:
    sets = placed(20, 400)
    led = spread_leaders(sets)
    more = {**sets, (99, 0): (1, 2, 3)}
    then = spread_leaders(more)
    assert sum(led[one] != then[one] for one in led) <= 8


def test_a_thousand_nodes_with_ten_thousand_partitions() -> None:
    led = spread_leaders(placed(1_000, 10_000, racks=10))
    assert set(loads(led)) == {10}


def test_nodes_without_a_choice_lead_what_they_must() -> None:
    # one replica: there is nothing to choose
    alone = {(1, at): (at % 2 + 1,) for at in range(5)}
    assert spread_leaders(alone) == {one: nodes[0] for one, nodes in alone.items()}
    # node 1 has them all, and 2 and 3 share what they can take
    sets = {(1, 0): (1,), (1, 1): (1,), (1, 2): (1, 2), (1, 3): (1, 2), (1, 4): (1, 3)}
    assert Counter(spread_leaders(sets).values()) == {1: 2, 2: 2, 3: 1}
    assert spread_leaders({}) == {}
