"""Every way to begin, by every kind of reader, where rows are gone in every way: each is answered
by the rows or by the gap. Spark's options are in `tests/frames/test_starts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import lowmark
from compaction.damage import damage, small_groups
from compaction.world import World
from inside import proposed
from lowmark.client import Database, Gap, GapFound
from lowmark.client.changes import ChangesGone
from lowmark.client.table_reading import Start
from lowmark.server import Server
from lowmark.table import CursorOverdue, OffsetToCome, Trim

Answer: TypeAlias = "list[int] | tuple[str, int, int] | str"
"""The offsets of rows; the gap; or why a feed or a cursor is refused."""
READERS = ("bounded", "follow", "compacted", "compacted follow", "changes")


class Story:
    """A table of one partition, row by row, and the time that each row has or had."""

    def __init__(self, path: Path) -> None:
        self.world = World(path, batched=False)
        self.times: list[int] = []

    def write(self, *changes: tuple[str, int | None]) -> None:
        self.world.write(*changes)
        view = self.world.view()
        known = dict(zip(view.first.tolist(), view.time.tolist(), strict=True))
        self.times += [known[at] for at in range(len(self.times), view.end)]

    def places(self) -> dict[str, Start]:
        """Ways to begin; a time by the row that has it."""
        ends = self.world.table.snapshot().ends
        times = {f"time of {at}": time for at, time in enumerate(self.times)}
        behind = {f"behind {at}": time + 1 for at, time in enumerate(self.times)}
        offsets = {f"offset {at}": {0: at} for at in range(len(self.times))}
        fixed: dict[str, Start] = {"earliest": "earliest", "latest": "latest", "end": ends}
        return {**fixed, **offsets, "before all": self.times[0] - 1, **times, **behind}

    def answer(self, reader: str, start: Start | None, **how: Any) -> Answer:
        table = self.world.table
        columns = ["_offset"] if reader == "changes" else ["_offset", "_change"]
        try:
            if reader == "changes":
                assert start is not None
                feed = table.changes(start, columns=columns)
                return list(feed.to_arrow()["_offset"].to_pylist())
            how |= {"compacted": "compacted" in reader, "follow": "follow" in reader}
            with table.read(columns=columns, start=start, **how) as opened:
                rows: list[int] = []
                while opened.position[0] < len(self.times):
                    batch = next(opened, None)
                    if batch is None:
                        break
                    rows += batch.column("_offset").to_pylist()
                return rows
        except GapFound as found:
            gap = found.gap
            assert type(gap) is Gap
            return (gap.kind, gap.first, gap.last)
        except ChangesGone as gone:
            return gone.kind
        except CursorOverdue:
            return "overdue"


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    one = Story(tmp_path / "data")
    with one.world:
        yield one


def compacted(story: Story) -> None:
    """Of k0 and k1 the last rows are in the ledger, 0 and 3; all four are cut."""
    story.write(("k0", 0), ("k1", 1), ("k1", 2), ("k1", 3))
    story.world.compact()
    story.write(("k4", 4))


def deleted(story: Story) -> None:
    """The ledger has 1 and 3. The delete of k0, which was 2, is gone from it."""
    story.write(("k0", 0), ("k1", 1), ("k0", None), ("k3", 3))
    story.world.compact()
    story.write(("k4", 4))


def expired(story: Story) -> None:
    """The first two rows went by retention."""
    story.write(*[(f"k{at}", at) for at in range(4)])
    story.world.ask(Trim(2, expire=True))


def lost(story: Story) -> None:
    """Of the ledger, the first row group was lost: rows 0 to 9."""
    story.write(*[(f"k{at}", at) for at in range(12)])
    story.world.compact()
    damage(story.world, "file flipped in its rows", file=0)
    story.world.table.rebuild_ledger(accept_loss=True)
    story.write(("k12", 12))


# By the place: what a reader of the backlog says, one that reads compacted, and a change feed.
Said: TypeAlias = dict[str, tuple[Answer, Answer, Answer]]


def gap(kind: str, first: int, last: int) -> tuple[str, int, int]:
    return (kind, first, last)


COMPACTED: Said = {
    "earliest": ([4], [0, 3, 4], [4]),
    "latest": ([], [], []),
    "end": ([], [], []),
    "offset 0": (gap("superseded", 0, 3), [0, 3, 4], "compacted"),
    "offset 1": (gap("superseded", 1, 3), [3, 4], "compacted"),
    "offset 3": (gap("superseded", 3, 3), [3, 4], "compacted"),
    "offset 4": ([4], [4], [4]),
    "before all": (gap("superseded", 0, 3), [0, 3, 4], "compacted"),
    "time of 0": (gap("superseded", 0, 3), [0, 3, 4], "compacted"),
    "behind 0": (gap("superseded", 1, 3), [3, 4], "compacted"),
    "time of 1": (gap("superseded", 1, 3), [3, 4], "compacted"),
    # how late 2 was is not known any more: it is named, though it was earlier
    "time of 3": (gap("superseded", 1, 3), [3, 4], "compacted"),
    "behind 3": ([4], [4], [4]),
    "time of 4": ([4], [4], [4]),
    "behind 4": ([], [], []),
}
DELETED: Said = {
    "earliest": ([4], [1, 3, 4], [4]),
    "offset 0": (gap("superseded", 0, 3), [1, 3, 4], "compacted"),
    "offset 2": (gap("superseded", 2, 3), gap("deleted", 2, 2), "compacted"),
    "offset 3": (gap("superseded", 3, 3), [3, 4], "compacted"),
    # whether something came before is not known any more, so a reader may know k0
    "before all": (gap("superseded", 0, 3), gap("deleted", 0, 2), "compacted"),
    "time of 1": (gap("superseded", 0, 3), gap("deleted", 0, 2), "compacted"),
    "behind 1": (gap("superseded", 2, 3), gap("deleted", 2, 2), "compacted"),
    "time of 2": (gap("superseded", 2, 3), gap("deleted", 2, 2), "compacted"),
    "behind 3": ([4], [4], [4]),
    "behind 4": ([], [], []),
}
EXPIRED: Said = {
    "earliest": ([2, 3], gap("expired", 0, 1), "expired"),
    "latest": ([], [], []),
    "offset 1": (gap("expired", 1, 1), gap("expired", 1, 1), "expired"),
    "before all": (gap("expired", 0, 1), gap("expired", 0, 1), "expired"),
    "time of 1": (gap("expired", 0, 1), gap("expired", 0, 1), "expired"),
    # what keys were before them, a feed does not know from anywhere on
    "behind 1": ([2, 3], [2, 3], "expired"),
    "time of 2": ([2, 3], [2, 3], "expired"),
    "behind 3": ([], [], []),
}
LOST: Said = {
    "earliest": ([12], gap("lost", 0, 9), "lost"),
    "offset 5": (gap("superseded", 5, 11), gap("lost", 5, 9), "compacted"),
    "offset 10": (gap("superseded", 10, 11), [10, 11, 12], "compacted"),
    "before all": (gap("superseded", 0, 11), gap("lost", 0, 9), "compacted"),
    "time of 9": (gap("superseded", 0, 11), gap("lost", 0, 9), "compacted"),
    "behind 10": (gap("superseded", 11, 11), [11, 12], "compacted"),
    "behind 11": ([12], [12], "lost"),
}


def check(story: Story, said: Said) -> None:
    places = story.places()
    for name, (backlog, ledger, feed) in said.items():
        told = {reader: story.answer(reader, places[name]) for reader in READERS}
        expected = dict(zip(READERS, (backlog, backlog, ledger, ledger, feed), strict=True))
        assert {name: told} == {name: expected}


@pytest.mark.slow
@pytest.mark.parametrize(("happens", "said"), [(compacted, COMPACTED), (deleted, DELETED)])
def test_a_start_where_rows_were_compacted_is_answered_by_rows_or_the_gap(
    story: Story, happens: Callable[[Story], None], said: Said
) -> None:
    happens(story)
    check(story, said)
    # without a start all changes are meant
    assert story.answer("bounded", None) == gap("superseded", 0, 3)
    # and so it stays after a restart
    story.world.reopen()
    check(story, said)


def test_a_start_where_rows_went_by_retention_is_answered_by_rows_or_the_gap(story: Story) -> None:
    expired(story)
    check(story, EXPIRED)


@pytest.mark.slow
def test_a_start_where_rows_were_lost_is_answered_by_rows_or_the_gap(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    lost(story)
    check(story, LOST)


def test_a_start_at_a_time_before_a_table_whose_rows_are_all_there_is_no_gap(story: Story) -> None:
    # given a table without rows, and then with some
    before = story.world.table.snapshot().time
    for reader in READERS:
        assert story.answer(reader, before) == []
    story.write(("k0", 0), ("k0", None))
    for reader in READERS:
        assert story.answer(reader, before) == [0, 1]
    # and a ledger beside them changes nothing
    story.world.settle()
    story.world.table.compact(engine="local", trim=False)
    assert story.answer("bounded", before) == [0, 1]


def test_rows_without_a_key_that_were_cut_are_given_from_the_ledger_or_named(db: Database) -> None:
    # given rows without a key, of which the first three are in the ledger alone
    events = db.create_table("events", {"n": int}, partitions=1)
    for number in range(3):
        events.append([{"n": number}])
    times = events.read(columns="_time").to_arrow()["_time"].to_pylist()
    db.advance_watermark("now")
    assert events.compact(engine="local").state == "done"
    events.append([{"n": 3}])
    # then a start at the time of one of them is exactly there
    for number, time in enumerate(times):
        assert events.offsets(time) == {0: number}
        rows = events.read(start=time, compacted=True).to_arrow()["n"].to_pylist()
        assert rows == [0, 1, 2, 3][number:]
        with pytest.raises(GapFound) as found:
            events.read(start=time).to_arrow()
        assert found.value.gap == Gap(0, number, 2, "superseded")
    # and behind all of them nothing is missing
    assert events.read(start=times[2] + 1).to_arrow()["n"].to_pylist() == [3]


def test_a_cut_within_a_batch_is_a_gap_at_the_time_of_the_batch(db: Database) -> None:
    # given a batch of which retention has cut the first row, and one behind it
    events = db.create_table("events", {"n": int}, partitions=1)
    for some in ([0, 1], [2]):
        events.append([{"n": number} for number in some])
    first, _, last = events.read(columns="_time").to_arrow()["_time"].to_pylist()
    proposed(events, Trim(1, expire=True))
    # then a start at its time comes to that row
    with pytest.raises(GapFound) as found:
        events.read(start=first).to_arrow()
    assert found.value.gap == Gap(0, 0, 0, "expired")
    assert events.read(start=first + 1).to_arrow()["n"].to_pylist() == [2]
    assert events.read(start=last).to_arrow()["n"].to_pylist() == [2]


def test_a_client_of_a_server_is_told_of_the_same_gap(db: Database, tmp_path: Path) -> None:
    # given a table whose first row went by retention
    events = db.create_table("events", {"n": int}, partitions=1)
    for number in range(3):
        events.append([{"n": number}])
    first = events.read(columns="_time").to_arrow()["_time"][0].as_py()
    proposed(events, Trim(1, expire=True))
    with Server(db, f"unix:{tmp_path}/s") as server, lowmark.connect(server.address) as distant:
        there = distant["events"]
        # then a start at its time names it there, too, and one behind it names nothing
        with pytest.raises(GapFound) as found:
            there.read(start=first).to_arrow()
        assert found.value.gap == Gap(0, 0, 0, "expired")
        with there.read(start=first + 1, follow=True, limit=2) as follower:
            assert follower.to_arrow()["n"].to_pylist() == [1, 2]
        # also if the client had a view of it before
        events.append([{"n": 3}])
        proposed(events, Trim(2, expire=True))
        with there.read(start=first + 1, follow=True) as follower, pytest.raises(GapFound):
            next(follower)


def test_a_cursor_says_for_itself_what_it_missed(story: Story) -> None:
    # given a cursor with a limit, and one that begins behind the cut
    cursors = story.world.table.cursors
    cursors.create("limited", max_lag_rows=1)
    compacted(story)
    cursors.create("late")
    # then it is not taken for one that has seen what is gone
    assert story.answer("bounded", None, cursor="limited") == "overdue"
    assert story.answer("bounded", None, cursor="late") == [4]


@pytest.mark.parametrize("how", [{}, {"follow": True}, {"compacted": True}])
def test_a_start_that_no_row_has_reached_is_refused(db: Database, how: dict[str, Any]) -> None:
    # given a partition of two rows
    table = db.create_table("t", {"id": int}, key="id", partitions=1)
    table.append([{"id": 1}, {"id": 2}])
    # then a reader may begin where the next one will be, and no further: it would miss what comes
    table.read(start={0: 2}, **how).close()
    for start in ({0: 3}, 3):
        with pytest.raises(OffsetToCome, match="offset 3 of partition 0 is not written yet") as why:
            table.read(start=start, **how)
        assert why.value.hint == "Use an offset up to 2, or the latest."
