from __future__ import annotations

from collections import Counter

import pytest

from lowmark.errors import Corrupt
from lowmark.metastore import NodeInfo
from lowmark.placement.assignments import (
    Assignments,
    decode_assignments,
    keys_of,
    parse_key,
    stable_key,
    target,
)


def nodes(*numbers: int) -> list[NodeInfo]:
    return [NodeInfo(number=n, name=f"n{n}", address=f"n{n}:1") for n in numbers]


def test_a_target_is_the_same_whatever_order_the_nodes_are_given_in() -> None:
    forward, backward = nodes(1, 2, 3, 4, 5), nodes(5, 4, 3, 2, 1)
    for number in range(50):
        chosen = target(7, number, forward, replicas=3)
        assert chosen == target(7, number, backward, replicas=3)
        assert chosen == tuple(sorted(set(chosen)))
        assert len(chosen) == 3


def test_the_hash_is_fixed_for_good() -> None:
    # Another one would give tables that exist another target than they were given.
    chosen = [target(7, number, nodes(1, 2, 3, 4, 5), replicas=2) for number in range(6)]
    assert chosen == [(3, 4), (1, 3), (4, 5), (2, 4), (2, 4), (3, 4)]


def test_fewer_nodes_than_replicas_are_all_taken() -> None:
    assert target(1, 0, nodes(4, 9), replicas=3) == (4, 9)
    assert target(1, 0, [], replicas=3) == ()


def test_a_node_that_comes_takes_only_what_becomes_its_own() -> None:
    # given the targets of many partitions on five nodes
    before = [target(7, number, nodes(1, 2, 3, 4, 5), replicas=2) for number in range(200)]
    # when a sixth one comes
    after = [target(7, number, nodes(1, 2, 3, 4, 5, 6), replicas=2) for number in range(200)]
    # then a partition has either what it had, or the new one in the place of one of them
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert moved
    for old, new in moved:
        assert set(new) - set(old) == {6}
    # and all have about as much
    counts = Counter(node for chosen in after for node in chosen)
    assert min(counts.values()) > 400 / 6 / 2


def test_what_is_written_is_read_again() -> None:
    value = Assignments((1, 2, 9), 7)
    assert value.encode() == b'{"nodes":[1,2,9],"catalog_version":7}'
    assert decode_assignments(value.encode()) == value
    with pytest.raises(Corrupt):
        decode_assignments(b'{"nodes":"all"}')


def test_keys_are_read_as_they_are_written() -> None:
    assert stable_key(12, 3) == b"partition.assignments.stable.12.3"
    assert parse_key(stable_key(12, 3)) == ("stable", 12, 3)
    assert parse_key(b"partition.assignments.change.trigger.revision.1.0") == (
        "change.trigger.revision",
        1,
        0,
    )
    for other in (b"partition.assignments.stable.x.1", b"partition.assignments.stable.1", b"other"):
        assert parse_key(other) is None
    for other in (b"partition.assignments.stable.01.1", b"partition.assignments.else.1.1"):
        assert parse_key(other) is None


def test_the_keys_of_a_table_are_not_those_of_one_whose_id_begins_so() -> None:
    ranges = keys_of(1)
    for table, within in ((1, True), (10, False), (11, False), (2, False)):
        key = stable_key(table, 5)
        assert any(one.start <= key < one.end for one in ranges) is within
