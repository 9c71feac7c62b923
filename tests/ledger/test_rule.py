"""Another rule is put in: all ways to find the winner follow it, and one that does not is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from compaction.model import Column, Model, Schema
from compaction.model import Row as ModelRow
from ledger.making import made_table
from ledger.tails import PLENTY, Tail
from lowmark.catalog import ColumnId, Table
from lowmark.errors import InvariantBroken
from lowmark.ledger.errors import ProofFailed
from lowmark.ledger.rule import (
    LAST_ROW,
    Rule,
    deletes_to_drop,
    lacks_needed_deletes,
    may_go_below,
    passed_by_readers,
)
from lowmark.table import I64, Mask

LEAST = -(1 << 63)
Row: TypeAlias = tuple[Any, bool, int | None]
"""A key, or None; whether it is deleted; and its value."""
KINDS: dict[str, tuple[Table, list[Any]]] = {
    "close integers": (
        made_table({"k": "int64", "v": "int64"}, key=["k"], options={"keyless_rows": "keep"}),
        [0, 1, -1, 5, 7],
    ),
    "integers": (
        made_table({"k": "int64", "v": "int64"}, key=["k"], options={"keyless_rows": "keep"}),
        [0, 1 << 60, -(1 << 50)],
    ),
    "words": (
        made_table({"v": "int64", "k": "string"}, key=["k"], options={"keyless_rows": "keep"}),
        ["", "a", "größe", "x" * 50],
    ),
}


@dataclass(frozen=True, slots=True)
class GreatestValue(Rule):
    """The greatest value of a column wins; a row without one, such as a delete, loses to all that
    have one. Of equal values, the last one wins.
    """

    of: ColumnId

    @property
    def column(self) -> ColumnId:
        return self.of

    def ranks(self, values: pa.Array | None) -> I64:
        assert values is not None
        ranks: I64 = values.cast(pa.int64()).fill_null(LEAST).to_numpy()
        return ranks


@dataclass(frozen=True, slots=True)
class World:
    """Rows of one partition, as a tail and as a model."""

    tail: Tail
    greatest: Rule
    partition: list[ModelRow]

    @classmethod
    def of(cls, table: Table, batches: list[list[Row]]) -> World:
        column = next(one for one in table.columns if one.name == "v")
        rows = [row for batch in batches for row in batch]
        made = [
            ModelRow(0, at, at, deleted, None if key is None else (key,), 1, {1: key, 2: value})
            for at, (key, deleted, value) in enumerate(rows)
        ]
        return cls(Tail(table, batches), GreatestValue(column.id), made)

    # Each of the four ways says which rows survive, under the rule that it is given.

    def kernel(self, rule: Rule, *, budget: int = PLENTY) -> list[bool]:
        """With the second algorithm beside it: it would raise `ProofFailed` if they differed."""
        folded = self.tail.fold(rule=rule, budget=budget)
        assert folded.checked == len(self.tail.keys())
        return [bool(one) for one in folded.keep]

    def second(self, rule: Rule, *, budget: int = PLENTY) -> list[bool]:
        """It only compares: of all that it is asked, it must agree to one thing."""
        keep = np.array(self.model(rule))
        keyed = self.tail.keys_and_rows()[1]
        self.tail.second(rule=rule, budget=budget).check(keep, partition=0)
        for at in keyed.tolist():
            wrong = keep.copy()
            wrong[at] = not wrong[at]
            with pytest.raises(ProofFailed):
                self.tail.second(rule=rule, budget=budget).check(wrong, partition=0)
        return [bool(one) for one in keep]

    def fold(self, rule: Rule) -> list[bool]:
        return [bool(one) for one in self.tail.fold_alone(rule)]

    def model(self, rule: Rule) -> list[bool]:
        """The rule in plain Python: it shares no line with the others."""
        columns = (Column(1, "k", "?"), Column(2, "v", "int64"))

        def rank(row: ModelRow) -> float:
            value = row.values[2]
            return float("-inf") if value is None else value

        model = Model((1,), [Schema(1, columns)], {0: []}, rank=None if rule is LAST_ROW else rank)
        for row in self.partition:
            model.add(row)
        survivors = {row.offset for row in [*model.last(0).values(), *model.keyless(0)]}
        return [row.offset in survivors for row in self.partition]


def random_world(kind: str, seed: int) -> World:
    chance = random.Random(seed)
    table, keys = KINDS[kind]
    batches: list[list[Row]] = []
    for _ in range(chance.randrange(2, 12)):
        deletes = chance.choice([0.0, 0.0, 1.0, 0.4])
        rows: list[Row] = []
        for _ in range(chance.randrange(1, 9)):
            deleted = chance.random() < deletes
            key = None if not deleted and chance.random() < 0.15 else chance.choice(keys)
            value = None if deleted or chance.random() < 0.3 else chance.randrange(-2, 3)
            rows.append((key, deleted, value))
        batches.append(rows)
    return World.of(table, batches)


def upserts(*rows: tuple[Any, int | None]) -> list[Row]:
    return [(key, False, value) for key, value in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_all_ways_find_the_same_winners_under_either_rule(kind: str, seed: int) -> None:
    # given rows of a few keys, whose values grow and fall
    world = random_world(kind, seed)
    for rule in (LAST_ROW, world.greatest):
        # when the winners are found in four ways
        wanted = world.model(rule)
        # then they are the same
        assert world.fold(rule) == wanted
        assert world.kernel(rule) == wanted
        assert world.second(rule) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_under_another_rule_they_agree_as_well_when_the_memory_is_small(kind: str) -> None:
    # given more rows than fit into the budget, so that they are folded again and again, in ranges
    worlds = [random_world(kind, seed) for seed in range(100, 120)]
    rows = [row for one in worlds for row in one.partition]
    batches: list[list[Row]] = [
        [(None if r.key is None else r.key[0], r.deleted, r.values[2]) for r in rows[at : at + 7]]
        for at in range(0, len(rows), 7)
    ]
    world = World.of(KINDS[kind][0], batches)
    # then what survives is what survives with plenty
    for rule in (LAST_ROW, world.greatest):
        assert world.kernel(rule, budget=900) == world.model(rule)
        keep = np.array(world.model(rule))
        world.tail.second(rule=rule, budget=200).check(keep, partition=0)


def test_the_greatest_value_wins_wherever_it_stands() -> None:
    # given a key whose greatest value comes first, one where it comes last, one with equal values,
    # and rows without a key
    world = World.of(
        KINDS["words"][0],
        [
            upserts(("first", 9), ("last", 1), ("equal", 5), (None, 9)),
            upserts(("first", 1), ("last", 9), ("equal", 5), (None, 1)),
        ],
    )
    # then the rules differ in the first of them, and in nothing else
    for way in (world.model, world.fold, world.kernel, world.second):
        assert way(LAST_ROW) == [False, False, False, True, True, True, True, True]
        assert way(world.greatest) == [True, False, False, True, False, True, True, True]


def test_a_delete_wins_or_loses_like_a_row() -> None:
    # given a key that was deleted last, and one that never had a value and was deleted
    world = World.of(
        KINDS["words"][0],
        [upserts(("valued", 1), ("bare", None)), [("valued", True, None), ("bare", True, None)]],
    )
    for way in (world.model, world.fold, world.kernel, world.second):
        assert way(LAST_ROW) == [False, False, True, True]
        # then a delete, which has no value, loses to a value and wins over an earlier row without
        assert way(world.greatest) == [True, False, False, True]


def test_rows_below_the_tail_have_no_part_in_it_whatever_their_rank() -> None:
    # given a tail that begins within a batch, behind the greatest value of a key
    table = KINDS["integers"][0]
    rows = upserts((1, 9), (2, 0), (1, 3), (1, 2), (2, 1))
    world, tail = World.of(table, [rows]), Tail(table, [rows], skip=1)
    # then the greatest of those wins that are in it
    assert tail.fold(rule=world.greatest).keep.tolist() == [False, False, True, False, True]
    assert tail.fold(rule=LAST_ROW).keep.tolist() == [False, False, False, True, True]


def test_rows_of_the_ledger_before_are_judged_by_the_rule_as_well() -> None:
    # given a ledger before with two keys, and a tail with a lower value of one, a higher of another
    world = World.of(KINDS["words"][0], [upserts(("low", 1), ("high", 9))])
    base, ranks = pa.array([b"low", b"high"]), np.array([5, 5])
    for rule, dead in ((LAST_ROW, [True, True]), (world.greatest, [False, True])):
        given = None if rule is LAST_ROW else ranks
        second = world.tail.second(rule=rule)
        # then the second algorithm agrees to what the rule says, and to nothing else
        second.check_base(base, dead=np.array(dead), partition=0, ranks=given)
        with pytest.raises(ProofFailed):
            second.check_base(base, dead=~np.array(dead), partition=0, ranks=given)
    with pytest.raises(InvariantBroken, match="rows of the ledger have ranks"):
        world.tail.second(rule=world.greatest).check_base(
            base, dead=np.array([True, True]), partition=0
        )


# -- one that ignores the rule ------------------------------------------------------------------


@pytest.mark.parametrize("ignorant", ["kernel", "fold", "model"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_way_that_ignores_the_rule_disagrees_with_the_others(kind: str, ignorant: str) -> None:
    # given one way that takes the last row, whatever rule it is given
    found = 0
    for seed in range(6):
        world = random_world(kind, seed)
        ways: dict[str, Callable[[Rule], list[bool]]] = {
            "kernel": world.kernel,
            "fold": world.fold,
            "model": world.model,
        }
        said = {
            name: way(LAST_ROW if name == ignorant else world.greatest)
            for name, way in ways.items()
        }
        others = [one for name, one in said.items() if name != ignorant]
        # then the others agree with each other, and not with it
        assert others[0] == others[1]
        found += said[ignorant] != others[0]
    assert found > 3


@pytest.mark.parametrize("ignorant", ["first", "second"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_proof_of_a_run_fails_if_one_of_its_algorithms_ignores_the_rule(
    kind: str, ignorant: str
) -> None:
    # given a tail on which the rules differ
    world = next(
        one
        for one in (random_world(kind, seed) for seed in range(20))
        if one.model(LAST_ROW) != one.model(one.greatest)
    )
    rules = (LAST_ROW, world.greatest) if ignorant == "first" else (world.greatest, LAST_ROW)
    # when one algorithm takes the last row, and the other one the greatest value
    keep: Mask = world.tail.fold(rule=rules[0]).keep
    # then what the first one keeps is not proven
    with pytest.raises(ProofFailed, match="two ways to find the last row of a key differ"):
        world.tail.second(rule=rules[1]).check(keep, partition=0)


# -- the order ----------------------------------------------------------------------------------


def test_the_order_goes_from_the_loser_to_the_winner() -> None:
    offsets = np.array([7, 3, 5, 3])
    assert LAST_ROW.order(offsets).tolist() == [1, 3, 2, 0]
    assert LAST_ROW.order(offsets, np.array([0, 9, 9, 1])).tolist() == [0, 3, 1, 2]


def test_the_last_row_needs_no_rank_and_no_column() -> None:
    assert LAST_ROW.column is None
    assert LAST_ROW.ranks(None) is None


def test_sources_are_asked_latest_first_and_only_by_a_rule_that_goes_by_offsets() -> None:
    # given sources that follow each other: the last that has a row of a key has the winner
    assert list(LAST_ROW.sources(3)) == [2, 1, 0]
    assert list(LAST_ROW.sources(0)) == []
    # when the greatest value wins, any of them may have the winner
    with pytest.raises(InvariantBroken, match="goes by a column"):
        GreatestValue(ColumnId(2)).sources(3)


# -- deletes ------------------------------------------------------------------------------------


def test_a_delete_goes_when_readers_and_the_horizon_have_passed_it_and_no_older_row_stays() -> None:
    # given readers that hold deletes from offsets 6 and 9 on, and a horizon at 8
    passed = passed_by_readers([9, 6], end=20)
    below = may_go_below(passed, horizon=8)
    assert (passed, below) == (6, 6)
    # and rows at offsets 2 to 7: all but the one at 3 are deletes, and an older row of the key of
    # the one at 4 stays
    offsets = np.arange(2, 8)
    asked: list[list[int]] = []

    def older_stays(places: I64) -> Mask:
        asked.append(offsets[places].tolist())
        stays: Mask = offsets[places] == 4
        return stays

    gone = deletes_to_drop(offsets, offsets != 3, below=below, older_stays=older_stays)
    # then those go that are passed and alone, and of no other it was asked whether they are
    assert offsets[gone].tolist() == [2, 5]
    assert asked == [[2, 4, 5]]


def test_where_no_reader_holds_deletes_the_horizon_decides() -> None:
    assert may_go_below(passed_by_readers([], end=20), horizon=8) == 8
    assert passed_by_readers([], end=20) == 20


def test_if_no_delete_was_passed_no_file_is_asked() -> None:
    def older_stays(places: I64) -> Mask:
        raise AssertionError(places)

    offsets = np.arange(2, 8)
    none = deletes_to_drop(offsets, offsets > 4, below=5, older_stays=older_stays)
    assert none.tolist() == []


def test_a_ledger_lacks_needed_deletes_from_the_first_offset_that_a_reader_has_not_passed() -> None:
    assert not lacks_needed_deletes(6, passed=6)
    assert lacks_needed_deletes(7, passed=6)
