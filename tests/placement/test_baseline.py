"""What the partitions of a zone are placed by, and when that changes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lowmark.catalog import Zone
from lowmark.catalog.descriptors import ZoneId
from lowmark.metastore import NodeInfo
from lowmark.placement.baseline import (
    Baseline,
    BaselineNode,
    Presence,
    baseline_key,
    decode_baseline,
    draining_key,
    next_baseline,
    parse_baseline_key,
    parse_draining_key,
)

UP, DOWN = 10_000, 700_000


def zone(**more: object) -> Zone:
    given: dict[str, object] = {"replicas": 3, "partitions": 8, **more}
    return Zone(id=ZoneId(2), name="z", **given)  # type: ignore[arg-type]


def node(number: int, rack: str = "", **attributes: str) -> NodeInfo:
    return NodeInfo(
        number=number, name=f"n{number}", address=f"n{number}:1", rack=rack, attributes=attributes
    )


def presence(
    *nodes: NodeInfo | int,
    up_ms: Mapping[int, int] | None = None,
    down_ms: Mapping[int, int] | None = None,
    draining: tuple[int, ...] = (),
    holders: tuple[int, ...] = (),
) -> Presence:
    """All are up for long, but for those that are said to be otherwise."""
    infos = [node(one) if isinstance(one, int) else one for one in nodes]
    down = dict(down_ms or {})
    up = {one.number: UP for one in infos if one.number not in down} | dict(up_ms or {})
    return Presence(
        nodes=infos,
        up_ms=up,
        down_ms=down,
        draining=frozenset(draining),
        holders=lambda _: frozenset(holders),
    )


def of(*numbers: int, replicas: int = 3, chosen: tuple[int, ...] | None = None) -> Baseline:
    return Baseline(
        nodes=tuple(BaselineNode(n) for n in numbers),
        replicas=replicas,
        catalog_version=1,
        chosen=chosen,
    )


def numbers(now: Baseline | None, of_zone: Zone, there: Presence) -> tuple[int, ...]:
    return next_baseline(now, of_zone, 7, there).baseline.numbers


def test_a_new_zone_has_all_nodes_that_match_its_filter() -> None:
    there = presence(node(1, ssd="yes"), node(2, ssd="no"), node(3, ssd="yes"))
    assert numbers(None, zone(node_filter="ssd = yes"), there) == (1, 3)
    found = next_baseline(None, zone(), 7, presence(1, 2)).baseline
    assert (found.replicas, found.catalog_version, found.chosen) == (3, 7, None)


def test_a_node_that_comes_waits_a_while_and_others_that_came_meanwhile_come_with_it() -> None:
    # given two nodes that have just come
    there = presence(1, 2, 3, up_ms={2: 1_000, 3: 4_000})
    look = next_baseline(of(1), zone(scale_up_ms=5_000), 7, there)
    assert look.baseline == of(1)
    assert look.again_ms == 1_000
    # when the first of them is due, then both come
    there = presence(1, 2, 3, up_ms={2: 2_000, 3: 5_000})
    assert numbers(of(1), zone(scale_up_ms=5_000), there) == (1, 2, 3)


def test_a_change_for_another_reason_takes_along_all_that_are_up() -> None:
    there = presence(1, 2, 3, up_ms={3: 1})
    assert numbers(of(1, 2, replicas=1), zone(replicas=3), there) == (1, 2, 3)


def test_a_node_that_is_down_stays_for_a_while() -> None:
    for down_ms, left, again in ((0, (1, 2, 3, 4), 600_000), (599_000, (1, 2, 3, 4), 1_000)):
        look = next_baseline(of(1, 2, 3, 4), zone(), 7, presence(1, 2, 3, 4, down_ms={4: down_ms}))
        assert (look.baseline.numbers, look.again_ms) == (left, again)
    assert numbers(of(1, 2, 3, 4), zone(), presence(1, 2, 3, 4, down_ms={4: DOWN})) == (1, 2, 3)
    never = zone(scale_down_ms=None)
    there = presence(1, 2, 3, 4, down_ms={4: DOWN})
    assert next_baseline(of(1, 2, 3, 4), never, 7, there).baseline == of(1, 2, 3, 4)


def test_nodes_that_are_down_stay_if_replicas_could_go_nowhere_else() -> None:
    # of two that are down for too long, the one that was up last
    there = presence(1, 2, 3, 4, down_ms={3: DOWN + 5, 4: DOWN})
    assert numbers(of(1, 2, 3, 4), zone(), there) == (1, 2, 4)
    assert numbers(of(1, 2, 3, 4), zone(replicas=5), there) == (1, 2, 3, 4)


def test_a_node_that_was_given_a_table_before_it_came_in_stays_while_it_is_down() -> None:
    there = presence(1, 2, 3, down_ms={3: 1_000}, holders=(1, 3))
    assert numbers(of(1, replicas=2), zone(), there) == (1, 2, 3)
    there = presence(1, 2, 3, down_ms={3: 1_000}, holders=(1,))
    assert numbers(of(1, replicas=2), zone(), there) == (1, 2)


def test_nodes_that_leave_do_not_match_or_are_drained_go_at_once() -> None:
    assert numbers(of(1, 2, 3), zone(), presence(1, 2)) == (1, 2)
    assert numbers(of(1, 2, 3), zone(), presence(1, 2, 3, draining=(2,))) == (1, 3)
    there = presence(node(1, ssd="yes"), node(2, ssd="no"))
    assert numbers(of(1, 2), zone(node_filter="ssd = yes"), there) == (1,)


def test_another_rack_is_a_change() -> None:
    there = presence(node(1, rack="a"), node(2, rack="b"))
    found = next_baseline(of(1, 2), zone(), 7, there).baseline
    assert [one.rack for one in found.nodes] == ["a", "b"]


def test_chosen_nodes_stay_whatever_becomes_of_the_others() -> None:
    chosen = of(1, 2, chosen=(1, 2, 3))
    # one that is down, or does not match, stays; one that comes does not come in
    there = presence(1, 2, 3, 4, down_ms={2: DOWN})
    assert numbers(chosen, zone(node_filter="ssd = yes"), there) == (1, 2, 3)
    # one that is drained or has left goes, and is back when it is
    assert numbers(chosen, zone(), presence(1, 3, draining=(3,))) == (1,)


def test_a_zone_keeps_its_nodes_if_none_would_be_left() -> None:
    there = presence(1, 2, draining=(1, 2))
    assert next_baseline(of(1, 2), zone(), 7, there).baseline == of(1, 2)


def test_what_stays_as_it_is_is_not_written_again_for_another_catalog() -> None:
    now = of(1, 2)
    assert next_baseline(now, zone(), 99, presence(1, 2)).baseline is now


@pytest.mark.parametrize("number", [0, 7, 12])
def test_keys_are_read_as_they_are_written(number: int) -> None:
    assert parse_baseline_key(baseline_key(number)) == number
    assert parse_draining_key(draining_key(number)) == number
    assert parse_baseline_key(draining_key(number)) is None
    assert parse_draining_key(baseline_key(number)) is None
    assert decode_baseline(of(1, 2, chosen=(2,)).encode()) == of(1, 2, chosen=(2,))
