"""Offsets that a place by times stands for: as Kafka's source has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark
from lowmark.client import Database
from lowmark.errors import Rejected
from lowmark.frames.errors import OptionRefused
from lowmark.frames.options import Strategy, Times
from lowmark.frames.positions import offsets_of, views_of
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of
from lowmark.table import View


class World:
    """Two partitions with three batches each, and their times."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.table = db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
        for _ in range(3):
            self.table.append([{"id": number} for number in range(20)])

    @property
    def views(self) -> dict[int, View]:
        return views_of(self._db, self.table)

    def times(self, number: int) -> list[int]:
        return [int(time) for time in self.views[number].columns.time[:3]]

    def firsts(self, number: int) -> list[int]:
        return [int(first) for first in self.views[number].columns.first[:3]]

    def start(
        self, times: dict[int, int], everywhere: int | None = None, strategy: Strategy = "error"
    ) -> dict[int, int]:
        return offsets_of(Times(times, everywhere, strategy), self.table, self.views, end=False)

    def end(self, times: dict[int, int]) -> dict[int, int]:
        return offsets_of(Times(times), self.table, self.views, end=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with lowmark.open(tmp_path / "db") as db:
        yield World(db)


def test_a_start_and_an_end_are_the_first_row_of_a_time_or_behind_it(world: World) -> None:
    # each partition has its own time
    times = {0: world.times(0)[1], 1: world.times(1)[1] + 1}
    places = {0: world.firsts(0)[1], 1: world.firsts(1)[2]}
    assert world.start(times) == places
    # and as an end it is the first offset that is not given
    assert world.end(times) == places
    # before all rows it is the first one
    assert world.start({0: 0, 1: 0}) == world.end({0: 0, 1: 0}) == {0: 0, 1: 0}


def test_partitions_that_are_not_named_are_read_whole(world: World) -> None:
    last = world.times(0)[2]
    ends = {number: view.end for number, view in world.views.items()}
    assert world.start({0: last}) == {0: world.firsts(0)[2], 1: 0}
    assert world.end({0: last}) == {0: world.firsts(0)[2], 1: ends[1]}
    # unless there is a time for them
    assert world.start({0: last}, world.times(1)[1])[1] == world.firsts(1)[1]


def test_a_start_behind_all_rows_is_an_error_or_the_latest(world: World) -> None:
    late = world.times(1)[2] + 1
    ends = {number: view.end for number, view in world.views.items()}
    # of one partition, and of all of them
    with pytest.raises(OptionRefused, match="partition 1 of table orders has no row of"):
        world.start({1: late})
    with pytest.raises(OptionRefused, match="partition 0 of table orders has no row of"):
        world.start({}, late)
    assert world.start({1: late}, strategy="latest") == {0: 0, 1: ends[1]}
    assert world.start({}, late, "latest") == ends
    # and an end there is the latest, whatever the strategy is
    assert world.end({0: late, 1: late}) == ends
    # and so it is in a partition without rows
    empty = world._db.create_table("empty", {"id": "int64"}, partitions=1)
    views = views_of(world._db, empty)
    with pytest.raises(OptionRefused, match="table empty has no row of 1970-01-01"):
        offsets_of(Times({0: 0}), empty, views, end=False)
    assert offsets_of(Times({0: 0}, strategy="latest"), empty, views, end=False) == {0: 0}


def test_a_partition_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(Rejected, match="partition 7"):
        world.start({7: 0})


def test_rows_of_a_millisecond_belong_to_it(world: World) -> None:
    # a millisecond stands for the first of its times, so none of its rows is left out
    time = world.times(0)[1]
    first = millis_of(HybridTime(time)) << COUNTER_BITS
    there = [at for at, one in zip(world.firsts(0), world.times(0), strict=True) if one >= first]
    assert world.start({0: first})[0] == there[0]
