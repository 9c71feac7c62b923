"""What `lowmark bench upkeep` makes of rounds, and that it counts what it says it counts."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from benchmarks.catalog_workload import history_of
from benchmarks.figure import Side
from benchmarks.held_memory import bytes_of
from benchmarks.upkeep_rounds import beside, entries_between
from lowmark.errors import InvariantBroken
from lowmark.node.messages import GroupRow, MemberRow


def group(number: int, *, term: int, last: int, behind: int = 0) -> GroupRow:
    """A group of two copies; node 1 leads it."""
    return GroupRow(
        group=f"table.1.{number}",
        leader=1,
        leader_name="n1",
        term=term,
        voters=(1, 2),
        learners=(),
        stage="",
        members=(
            MemberRow(node=2, name="n2", role="voter", committed=last - behind),
            MemberRow(node=1, name="n1", role="leader", committed=last),
        ),
    )


def test_entries_are_counted_where_a_group_kept_its_leader() -> None:
    # given three groups, of which one elects a leader meanwhile
    before = [group(0, term=1, last=3), group(1, term=1, last=3), group(2, term=1, last=3)]
    after = [group(0, term=1, last=3), group(1, term=1, last=5, behind=1), group(2, term=2, last=4)]
    # then the two entries of the others count, as their leader has them
    assert entries_between(before, after) == (2, 2)


def test_entries_of_groups_that_all_elected_leaders_are_no_measurement() -> None:
    with pytest.raises(InvariantBroken):
        entries_between([group(0, term=1, last=3)], [group(0, term=2, last=4)])


def test_too_few_rounds_lower_the_figure_in_proportion() -> None:
    sides: dict[Hashable, Side] = {"beside": Side(90), "without": Side(100)}
    assert beside({**sides, "rounds": Side(3, 3)}) == pytest.approx(0.9)
    assert beside({**sides, "rounds": Side(4, 3)}) == pytest.approx(0.9)
    assert beside({**sides, "rounds": Side(1, 2)}) == pytest.approx(0.45)


def test_the_weight_of_a_history_falls_when_it_is_cut() -> None:
    # given a long history, and one that is as short as its tables allow
    long, short = history_of(versions=500, tables=10), history_of(versions=5, tables=10)
    whole = bytes_of(long)
    assert whole > 10 * bytes_of(short)
    # when both are cut at their last version
    for one in (long, short):
        one.cut(one.latest.version)
    # then nothing of the versions before is found
    assert bytes_of(long) < 2 * bytes_of(short)


def test_what_is_reached_twice_is_weighed_once() -> None:
    piece = bytes(1_000)
    assert bytes_of([piece, piece]) - bytes_of([]) < 1_500
    assert bytes_of([piece, bytes(1_001)]) > 2_000
