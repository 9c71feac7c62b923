"""Entries of the log for a caller's thread: planned on the loop, read and checked here."""

from __future__ import annotations

from functools import partial

from lowmark.backend.embedded import Embedded
from lowmark.errors import Unavailable
from lowmark.group import open_command
from lowmark.log import Damaged, EntryGone, ReadPlan, ReferenceExpired
from lowmark.runtime import Buffer
from lowmark.runtime.memory import Memory
from lowmark.table import Partition, View

__all__ = ["Moved", "fetch", "plan_ahead"]

_ATTEMPTS = 20


class Moved(Exception):
    """What a view names is no longer there: take a newer view."""


_memory = Memory()


def fetch(
    backend: Embedded,
    partition: Partition,
    view: View,
    low: int,
    high: int,
    *,
    held: bool,
    plan: ReadPlan | None = None,
) -> list[Buffer]:
    """The commands of batches `low` to `high` of a view, every checksum checked.

    Compaction may move entries between planning and reading: then it is planned again. Neighbours
    are read into one piece of memory; whoever keeps a few of them for long takes a copy.
    """
    indexes = view.places[low:high].tolist()
    disk = backend.node.runtime.disk
    for _ in range(_ATTEMPTS):
        try:
            if plan is None:
                plan = backend.ask_now(partial(partition.plan, indexes, held=held))
            entries = plan.execute(disk, allocate=_memory.allocate)
            return [open_command(entry.data).data for entry in entries]
        except ReferenceExpired:
            plan = None
        except Damaged as damage:
            # As when the loop reads: nothing more is written behind what can't be read.
            backend.tell(partial(backend.node.groups.quarantine, partition.group.name, damage))
            raise
        except EntryGone:
            plan, fresh, first = None, partition.view, int(view.columns.first[low])
            if fresh.start > first:
                raise Moved from None
            # A copy at another place has taken over: the view of now names it.
            at = fresh.batch_at(first)
            indexes = fresh.places[at : at + high - low].tolist()
    raise Unavailable(
        f"batches of partition {partition.number} can't be read: they move all the time",
        hint="Read again.",
    )


def plan_ahead(
    backend: Embedded, partition: Partition, view: View, ranges: list[tuple[int, int]]
) -> list[ReadPlan]:
    """How to read several runs of batches that are held, found out in one turn of the loop.

    A turn may take as long as reading much: whoever is busy keeps the loop from the interpreter.
    """
    places = [view.places[low:high].tolist() for low, high in ranges]
    try:
        return backend.ask_now(lambda: [partition.plan(indexes, held=True) for indexes in places])
    except EntryGone:
        return []  # each is planned by itself, and says what became of it
