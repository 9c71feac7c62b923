from __future__ import annotations

import pytest

from lowmark.errors import Corrupt
from lowmark.placement.assignments import (
    Assignments,
    decode_assignments,
    parse_key,
    removal_of,
    stable_key,
)


def test_what_is_written_is_read_again() -> None:
    value = Assignments((1, 2, 9), 7)
    assert value.encode() == b'{"nodes":[1,2,9],"catalog_version":7}'
    assert decode_assignments(value.encode()) == value
    followed = Assignments((1, 2, 9), 0, (4, 5))
    assert followed.encode() == b'{"nodes":[1,2,9],"catalog_version":0,"learners":[4,5]}'
    assert decode_assignments(followed.encode()) == followed
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


def test_the_removal_of_a_table_are_not_those_of_one_whose_id_begins_so() -> None:
    ranges = removal_of(1)
    for table, within in ((1, True), (10, False), (11, False), (2, False)):
        key = stable_key(table, 5)
        assert any(one.start <= key < one.end for one in ranges) is within
