"""Places in the log by partition, and stretches of it between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lowmark.client import Database, Table
from lowmark.convert.times import time_text
from lowmark.frames.errors import OptionRefused
from lowmark.frames.opening import Part
from lowmark.frames.options import EARLIEST, LATEST, Position, Times
from lowmark.table import OffsetToCome, View


@dataclass
class Stretch(Part):
    """Offsets of one partition that a task reads: from the first to before the end."""

    number: int
    first: int
    end: int
    cursor: str = ""
    """Of a stream: the cursor that holds these rows until its batch is done."""


def views_of(database: Database, table: Table) -> dict[int, View]:
    """Backlogs, with all that was acknowledged before."""
    return database.backend.views(table.descriptor.id, range(table.partitions))


def offsets_of(
    where: Position | str | int, table: Table, views: Mapping[int, View], *, end: bool
) -> dict[int, int]:
    """Offsets that a position stands for, of every partition. One that is not named begins at the
    earliest, and ends with the latest.
    """
    if isinstance(where, Times):
        return _offsets_of_times(where, table, views, end=end)
    if not isinstance(where, Mapping):
        return table.offsets(where, end=end)
    table.offsets({number: max(at, 0) for number, at in where.items()}, end=end)  # it checks them
    given = dict.fromkeys(views, LATEST if end else EARLIEST) | dict(where)
    for number, at in given.items():
        if at > views[number].end:
            raise OffsetToCome(wanted=at, end=views[number].end, partition=number)
    special = {number: {EARLIEST: view.start, LATEST: view.end} for number, view in views.items()}
    return {number: special[number].get(at, at) for number, at in given.items()}


def _offsets_of_times(
    where: Times, table: Table, views: Mapping[int, View], *, end: bool
) -> dict[int, int]:
    table.offsets(dict.fromkeys(where.by_partition, 0), end=end)  # it checks the numbers
    times = {number: where.by_partition.get(number, where.everywhere) for number in views}
    given = {number: time for number, time in times.items() if time is not None}
    starts = {} if end else table.offsets_from(given)  # it knows what was cut
    found: dict[int, int] = {}
    for number, view in views.items():
        time = given.get(number)
        if time is None:
            found[number] = view.end if end else view.start
            continue
        found[number] = view.offset_from(time) if end else starts[number]
        if found[number] >= view.end and not end and where.strategy == "error":
            raise OptionRefused(
                f"partition {number} of table {table.name} has no row of {time_text(time)} or"
                " later",
                hint='Use .option("startingOffsetsByTimestampStrategy", "latest") to begin there'
                " with what comes, or give an earlier time.",
            )
    return found


def stretches(
    starts: Mapping[int, int], ends: Mapping[int, int], *, tasks_min: int, cursor: str = ""
) -> list[Stretch]:
    """What tasks read: a partition each; if that is too few, long ones are taken apart."""
    there = [(number, starts[number], ends[number]) for number in sorted(ends)]
    there = [one for one in there if one[2] > one[1]]
    rows = sum(end - first for _, first, end in there)
    if not rows:
        return []
    most = rows if tasks_min <= len(there) else max(1, rows // tasks_min)
    return [Stretch(*one, cursor) for whole in there for one in _parts(*whole, most)]


def _parts(number: int, first: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    count = -(-(end - first) // most)
    for part in range(count):
        yield (
            number,
            first + (end - first) * part // count,
            first + (end - first) * (part + 1) // count,
        )
