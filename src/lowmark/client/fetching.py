"""Entries of the log for a caller's thread: planned on the loop, read and checked here."""

from __future__ import annotations

from functools import partial

from lowmark.client.embedded import Embedded
from lowmark.errors import Unavailable
from lowmark.group import open_command
from lowmark.log import Damaged, EntryGone, ReferenceExpired
from lowmark.runtime import Buffer
from lowmark.table import Partition, View

__all__ = ["Moved", "fetch"]

_ATTEMPTS = 20


class Moved(Exception):
    """What a view names is no longer there: take a newer view."""


def fetch(
    embedded: Embedded,
    partition: Partition,
    view: View,
    low: int,
    high: int,
    *,
    held: bool,
    mapped: bool = True,
) -> list[Buffer]:
    """The commands of batches `low` to `high` of a view, every checksum checked.

    Compaction may move entries between planning and reading: then it is planned again. Mapped, they
    are where the operating system keeps the file; whoever keeps them for long takes a copy.
    """
    mappings = embedded.mappings if mapped else None
    indexes = view.places[low:high].tolist()
    disk = embedded.node.runtime.disk
    for _ in range(_ATTEMPTS):
        try:
            plan = embedded.ask_now(partial(partition.plan, indexes, held=held))
            return [open_command(entry.data).data for entry in plan.execute(disk, mapped=mappings)]
        except ReferenceExpired:
            continue
        except Damaged as damage:
            # As when the loop reads: nothing more is written behind what can't be read.
            embedded.tell(partial(embedded.node.groups.quarantine, partition.group.name, damage))
            raise
        except EntryGone:
            fresh, first = partition.view, int(view.columns.first[low])
            if fresh.start > first:
                raise Moved from None
            # A copy at another place has taken over: the view of now names it.
            at = fresh.batch_at(first)
            indexes = fresh.places[at : at + high - low].tolist()
    raise Unavailable(
        f"batches of partition {partition.number} can't be read: they move all the time",
        hint="Read again.",
    )
