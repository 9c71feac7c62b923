"""Every option that says where a read of the log, a stream or a change feed begins, where rows are
gone: each is answered by the rows or by the gap. Without a JVM: the source is asked what Spark
asks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frames import alone
from lowmark.client import Database, GapFound, Table
from lowmark.errors import ChangesGone
from lowmark.frames import LowmarkSource
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import OffsetExpired, Trim


def cut(table: Table, kind: str, db: Database) -> None:
    """Of four rows the first three."""
    if kind == "expired":
        db.backend.propose(table.descriptor.id, {0: Trim(3, expire=True)})
        return
    db.advance_watermark("now")
    assert table.compact(engine="local").state == "done"
    table.trim({0: 3})


def batch(options: dict[str, str]) -> list[int]:
    source = LowmarkSource(options)
    reader: Any = source.reader(source.schema())
    rows = [some for part in reader.partitions() for some in reader.read(part)]
    return [one for some in rows for one in some.column("v").to_pylist()]


def stream(options: dict[str, str], folder: Path) -> list[int]:
    found: list[int] = []
    alone.run(
        options,
        checkpoint=folder / "checkpoint",
        into=folder / "rows",
        function=lambda rows, _: found.extend(rows["v"].to_pylist()),
    )
    return found


def tick(table: Table, number: int) -> int:
    """Append a row in a millisecond of its own; gives its time."""
    before = table.snapshot().time
    while millis_of(HybridTime(table.snapshot().time)) == millis_of(HybridTime(before)):
        pass
    table.append([{"id": 0, "v": number}])
    time: int = table.read(columns="_time", start={0: number}).to_arrow()["_time"][0].as_py()
    return time


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["expired", "superseded"])
def test_options_that_name_where_to_begin_are_answered_by_rows_or_the_gap(
    db: Database, place: str, tmp_path: Path, kind: str
) -> None:
    # given a table of four rows of which three are cut
    table = db.create_table("orders", {"id": int, "v": int}, key="id", partitions=1)
    times = [tick(table, number) for number in range(3)]
    behind = table.snapshot().time + 1
    if kind == "superseded":
        cut(table, kind, db)
    times.append(tick(table, 3))
    if kind == "expired":
        cut(table, kind, db)
    # a millisecond stands for all its times: this one is behind the rows that are cut
    late = millis_of(HybridTime(times[3]))
    early = millis_of(HybridTime(times[1]))
    assert millis_of(HybridTime(behind)) <= late
    plain = {"path": place, "table": "orders"}
    cases: list[tuple[dict[str, str], list[int] | None]] = [
        ({"startingOffsets": "earliest"}, [3]),
        ({"startingOffsets": json.dumps({"0": -2})}, [3]),
        ({"startingOffsets": json.dumps({"0": 1})}, None),
        ({"startingOffsets": json.dumps({"0": 3})}, [3]),
        ({"startingOffsets": "latest"}, []),
        ({"startingTimestamp": str(early)}, None),
        ({"startingTimestamp": str(late)}, [3]),
        ({"startingOffsetsByTimestamp": json.dumps({"0": early})}, None),
        ({"startingOffsetsByTimestamp": json.dumps({"0": late})}, [3]),
        (
            {"startingTimestamp": str(early), "startingOffsetsByTimestampStrategy": "latest"},
            None,
        ),
    ]
    for number, (some, rows) in enumerate(cases):
        options = plain | some
        folder = tmp_path / str(number)
        folder.mkdir()
        if rows is not None:
            assert (some, batch(options)) == (some, rows)
            assert (some, stream(options, folder)) == (some, rows)
            continue
        # then what is gone ends a read by name, and a stream before it begins
        with pytest.raises(GapFound, match="of partition 0 are") as found:
            batch(options)
        assert (found.value.gap.kind, found.value.gap.last) == (kind, 2)
        assert "failOnDataLoss" in found.value.hint
        with pytest.raises(OffsetExpired):
            stream(options, folder)
        # unless its user has said that they go on without it
        options["failOnDataLoss"] = "false"
        assert batch(options) == stream(options, folder) == [3]


@pytest.mark.slow
def test_a_change_feed_begins_where_it_is_told_to_or_is_refused(
    db: Database, place: str, tmp_path: Path
) -> None:
    # given a table of which three of four rows are compacted and cut
    table = db.create_table("orders", {"id": int, "v": int}, key="id", partitions=1)
    times = [tick(table, number) for number in range(3)]
    cut(table, "superseded", db)
    times.append(tick(table, 3))
    plain = {"path": place, "table": "orders", "readChangeFeed": "true"}
    for number, (start, rows) in enumerate(
        (
            ({"startingVersion": "earliest"}, [3]),
            ({"startingVersion": str(times[1])}, None),
            ({"startingVersion": str(times[2])}, None),
            ({"startingVersion": str(times[2] + 1)}, [3]),
            ({"startingTimestamp": str(millis_of(HybridTime(times[1])))}, None),
            ({"startingTimestamp": str(millis_of(HybridTime(times[3])))}, [3]),
        )
    ):
        options = plain | start | {"preimages": "false"}
        folder = tmp_path / str(number)
        folder.mkdir()
        if rows is not None:
            assert (start, batch(options)) == (start, rows)
            assert (start, stream(options, folder)) == (start, rows)
            continue
        with pytest.raises(ChangesGone, match="are no longer known"):
            batch(options)
        with pytest.raises(ChangesGone, match="are no longer known"):
            stream(options, folder)
