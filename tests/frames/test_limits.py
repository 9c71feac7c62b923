"""Where a batch of a stream ends, if it is limited, and how tasks share it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowmark
from lowmark.frames.change_stream import fewer_versions
from lowmark.frames.positions import stretches, views_of
from lowmark.frames.stream import fewer_bytes, fewer_rows
from lowmark.table import Backlog

counts = st.lists(st.integers(0, 1_000), min_size=1, max_size=6)


@pytest.mark.slow
@given(counts, st.integers(1, 2_000), st.integers(0, 50))
def test_a_batch_has_as_many_rows_as_it_may(rows: list[int], most: int, first: int) -> None:
    starts = dict.fromkeys(range(len(rows)), first)
    ends = {number: first + count for number, count in enumerate(rows)}
    found = fewer_rows(starts, ends, most)
    # then it has exactly that many, or all there are; and no partition gives what it has not
    assert sum(found[one] - starts[one] for one in found) == min(most, sum(rows))
    assert all(starts[one] <= found[one] <= ends[one] for one in ends)


@pytest.mark.slow
@given(counts, st.integers(1, 12))
def test_tasks_read_each_offset_once(rows: list[int], tasks_min: int) -> None:
    starts = {number: 10 * number for number in range(len(rows))}
    ends = {number: 10 * number + count for number, count in enumerate(rows)}
    found = stretches(starts, ends, tasks_min=tasks_min)
    read = [(one.number, at) for one in found for at in range(one.first, one.end)]
    assert read == [(number, at) for number in starts for at in range(starts[number], ends[number])]
    assert all(one.end > one.first for one in found)
    # and there are at least as many tasks as asked for, if there are rows for them
    assert len(found) >= min(tasks_min, sum(rows))


@given(
    st.lists(st.lists(st.integers(1, 40), max_size=8), min_size=1, max_size=4), st.integers(1, 90)
)
def test_a_batch_of_changes_has_whole_versions(turns: list[list[int]], most: int) -> None:
    # given partitions whose batches have some times in common
    views, backlogs = {}, []
    for number, rows in enumerate(turns):
        backlog = Backlog()
        for at, count in enumerate(rows):
            backlog.add(at + 1, rows=count, time=10 * at + number % 2, schema=1, size=1, change=0)
        backlog.publish(1_000)
        backlogs.append(backlog)
        views[number] = backlog.view
    starts = dict.fromkeys(views, 0)
    last, given_rows = -1, 0
    while any(views[number].end > starts[number] for number in views):
        # when batches follow each other
        until = fewer_versions(starts, views, 1_000, most, by="rows")
        ends = {number: view.offset_after(until) for number, view in views.items()}
        count = sum(ends.values()) - sum(starts.values())
        times = {time for view in views.values() for time in view.time.tolist()}
        inside = [time for time in times if last < time <= until]
        # then each has something, no more than it may unless it is one version, and goes on
        assert count > 0
        assert until > last
        assert count <= most or len(inside) == 1
        starts, last, given_rows = ends, until, given_rows + count
    assert given_rows == sum(map(sum, turns))


def test_bytes_are_counted_in_whole_appends_and_the_earliest_come_first(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "db") as db:
        # given appends of the same size, in turns to two partitions
        table = db.create_table("t", {"id": "int64"}, partitions=2)
        for number in range(6):
            table.append([{"id": number}] * 10)
        views = views_of(db, table)
        starts = dict.fromkeys(views, 0)
        ends = {number: view.end for number, view in views.items()}
        size = int(views[0].size[0])

        def rows(bytes_max: int) -> int:
            found = fewer_bytes(starts, ends, views, bytes_max)
            assert all(starts[one] <= found[one] <= ends[one] for one in ends)
            return sum(found.values())

        # then as many appends come as have room
        everything = sum(ends.values())
        assert rows(1 << 30) == everything
        some = [rows(size * count) for count in range(1, 8)]
        assert some == sorted(some)
        # and at least one, however large
        assert 0 < rows(1) < everything
        # and whoever goes on from there misses nothing
        at, seen = dict(starts), 0
        while at != ends:
            found = fewer_bytes(at, ends, views, 1)
            assert found != at
            seen += sum(found[one] - at[one] for one in found)
            at = found
        assert seen == everything
