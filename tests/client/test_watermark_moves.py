"""The low watermark is moved to now while a call looks for a time to read as of: right between the
moment at which the call has drawn its time and the one at which history is held for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lowmark
from cli.shop import Shop
from eventually import eventually
from frames import alone
from lowmark.backend.embedded import Embedded
from lowmark.backend.values import Moment
from lowmark.client import Database, Table
from lowmark.errors import BelowWatermark
from lowmark.frames import LowmarkSource
from lowmark.server import Server


class Moves:
    """Moves the watermark before the next holds of history are taken."""

    def __init__(self) -> None:
        self.left = 0

    def next(self, times: int) -> None:
        assert self.left == 0, "the watermark was not moved under every call"
        self.left = times


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Moves:
    moves, hold = Moves(), Embedded.hold_history

    def held(backend: Embedded, time: int, *more: Any, **named: Any) -> Any:
        if moves.left:
            moves.left -= 1
            now = backend.now().time
            # What the call before has held, a client may let go a moment later.
            eventually(lambda: backend.advance_watermark(now).after == now)
            assert now > time
        return hold(backend, time, *more, **named)

    monkeypatch.setattr(Embedded, "hold_history", held)
    return moves


@pytest.fixture
def events(db: Database) -> Table:
    events = db.create_table("events", {"id": int, "v": int}, key="id", partitions=2)
    events.append([{"id": number, "v": 0} for number in range(10)])
    return events


def exported(table: Table, folder: Path) -> int:
    table.export(folder)
    return int(pq.read_table(folder).num_rows)


WAYS: dict[str, Callable[[Table, Path], Any]] = {
    "count": lambda table, _: table.count(),
    "count where": lambda table, _: table.count(where="v = 0"),
    "read": lambda table, _: table.read(as_of="now").to_arrow().num_rows,
    "read, padded": lambda table, _: table.read(as_of=" now ").to_arrow().num_rows,
    "get": lambda table, _: 10 * (table.get(3, as_of="now") is not None),
    "export": exported,
}


@pytest.mark.parametrize("place", ["here", "at a server"])
def test_now_is_drawn_again_if_the_low_watermark_has_passed_it(
    db: Database, events: Table, moves: Moves, tmp_path: Path, place: str
) -> None:
    with contextlib.ExitStack() as stack:
        table = events
        if place == "at a server":
            server = stack.enter_context(Server(db, f"unix:{tmp_path}/s"))
            table = stack.enter_context(lowmark.connect(server.address))["events"]
        # when the watermark passes what a call has drawn, twice, the call has its answer
        for name, way in WAYS.items():
            moves.next(2)
            assert (name, way(table, tmp_path / "to")) == (name, 10)
        moves.next(0)
        # but a time that a caller has given is refused by name
        time = table.snapshot().time
        moves.next(1)
        with pytest.raises(BelowWatermark):
            table.count(as_of=time)


def test_a_node_whose_clock_is_behind_reads_as_of_a_now_that_another_one_has_moved_to(
    db: Database, events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a watermark at the now of a clock that is ahead of the node's own
    watermark, now = db.advance_watermark("now").after, Embedded.now

    def slow(backend: Embedded, *more: Any, known: int = 0, **named: Any) -> Moment:
        moment = now(backend, *more, known=known, **named)
        return replace(moment, time=max(watermark - 1, known + 1))

    monkeypatch.setattr(Embedded, "now", slow)
    # then the node follows that clock as soon as it hears of the watermark
    assert events.count() == 10
    assert events.read(as_of="now").to_arrow().num_rows == 10


def test_what_needs_no_history_does_not_mind_the_low_watermark(
    db: Database, events: Table, moves: Moves
) -> None:
    moves.next(1)
    assert sum(events.snapshot().ends.values()) == 10
    assert events.changes("earliest").to_arrow().num_rows == 10
    assert events.get(3) == {"id": 3, "v": 0}
    assert db.table("events", as_of="now").name == "events"
    # none of them has held any
    assert moves.left == 1


@pytest.mark.slow
def test_spark_and_the_command_line_draw_another_now_too(
    db: Database, events: Table, moves: Moves, tmp_path: Path
) -> None:
    # the source, as Spark asks it
    options = {"path": str(tmp_path / "data"), "table": "events"}
    moves.next(1)
    source = LowmarkSource(options)
    schema = source.schema()
    moves.next(1)
    reader: Any = source.reader(schema)
    parts = reader.partitions()
    moves.next(0)
    rows = [some for part in parts for some in reader.read(part)]
    assert sum(some.num_rows for some in rows) == 10
    # a stream of changes, which holds history from where it begins
    moves.next(2)
    feed = options | {"readChangeFeed": "true", "startingVersion": "earliest"}
    found = alone.run(feed, checkpoint=tmp_path / "checkpoint", into=tmp_path / "rows")
    moves.next(0)
    assert sum(found) == 10
    # and the command line
    shop = Shop(tmp_path / "data")
    moves.next(2)
    assert len(shop.lines("events", "--as-of", "now")) == 10
    moves.next(2)
    shop.run("export", "events", "--to", str(tmp_path / "exported"))
    moves.next(0)
