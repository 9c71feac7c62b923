"""The tide of a table: where ledger, backlog, watermark and readers stand, and a picture of it.

Each partition is seen as of one moment of its own, its ledger included: nothing is cut or swept
between two looks at it.
"""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowmark.catalog import Table
from lowmark.client.embedded import Embedded
from lowmark.client.explaining import why_kept
from lowmark.client.ledgers import Ledgers, OpenLedger
from lowmark.client.tide_values import (
    HolderTotal,
    PartitionTide,
    TideHolder,
    TideLedger,
)
from lowmark.client.times import time_text
from lowmark.errors import Rejected
from lowmark.group import when_all
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import (
    CHANGE,
    OFFSET,
    Cursor,
    Lease,
    Partition,
    Shape,
    State,
    View,
)

__all__ = ["STRETCHES", "Tide", "tide_of"]

STRETCHES = 200
"""So finely a picture shows which rows are left."""
_WIDTH, _HEIGHT = 1_600, 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Tide:
    """A table's tide: plain values, and a picture of them."""

    table: str
    at: str
    """When it was looked at."""
    watermark: str
    """The low watermark; empty: it was never moved."""
    watermark_held_by: tuple[str, ...]
    """Who keeps it from moving on."""
    compacts: bool
    """Whether rows of this table go into ledgers."""
    kept_because: str
    """Why the backlog is kept apart from any holder."""
    partitions: tuple[PartitionTide, ...]

    @property
    def changes(self) -> int:
        """All that were ever written."""
        return sum(one.end for one in self.partitions)

    @property
    def backlog_rows(self) -> int:
        """Changes that are still there one by one."""
        return sum(one.backlog_rows for one in self.partitions)

    @property
    def backlog_bytes(self) -> int:
        """What they take in the log."""
        return sum(one.backlog_bytes for one in self.partitions)

    @property
    def kept_bytes(self) -> int:
        """What of the backlog is in the ledger, too."""
        return sum(one.kept_bytes for one in self.partitions)

    @property
    def ledger_bytes(self) -> int:
        """What the files of all ledgers take."""
        return sum(one.ledger.bytes for one in self.partitions if one.ledger is not None)

    @property
    def ledger_rows(self) -> int:
        """Live rows of all ledgers, deletes among them."""
        return sum(one.ledger.live_rows for one in self.partitions if one.ledger is not None)

    @property
    def ledger_deletes(self) -> int:
        """Deletes that ledgers still have."""
        return sum(one.ledger.deletes for one in self.partitions if one.ledger is not None)

    @property
    def holders(self) -> tuple[HolderTotal, ...]:
        """Everybody who stands in it, all partitions together; who keeps most comes first."""
        found: dict[tuple[str, str], list[TideHolder]] = defaultdict(list)
        for partition in self.partitions:
            for holder in partition.holders:
                found[holder.kind, holder.name].append(holder)
        totals = [
            HolderTotal(
                kind=places[0].kind,
                name=places[0].name,
                behind_rows=sum(one.behind_rows for one in places),
                behind_bytes=sum(one.behind_bytes for one in places),
                keeps_rows=sum(one.keeps_rows for one in places),
                keeps_bytes=sum(one.keeps_bytes for one in places),
                overdue=any(one.overdue for one in places),
            )
            for places in found.values()
        ]
        totals.sort(key=lambda one: (-one.keeps_bytes, -one.behind_rows, one.kind, one.name))
        return tuple(totals)

    def save(
        self, path: str | os.PathLike[str], *, width: int = _WIDTH, height: int = _HEIGHT
    ) -> None:
        """Draw it into a PNG file of so many pixels; what is there under that name is replaced.

        Needs matplotlib (`pip install 'lowmark[pictures]'`), and no display.
        """
        if not (400 <= width <= 10_000 and 300 <= height <= 10_000):
            raise Rejected(
                f"a picture can't be {width} pixels wide and {height} high",
                hint="Use 400 to 10,000 by 300 to 10,000.",
            )
        data = _picture().png_of(self, holders=self.holders, width=width, height=height)
        try:
            with open(path, "wb") as file:
                file.write(data)
        except OSError as error:
            raise Rejected(
                f"the picture can't be written to {os.fspath(path)}: {error.strerror}",
                hint="Name a file in a folder that is there.",
            ) from error


def _picture() -> Any:
    """What draws. Matplotlib is optional, and takes its time to import."""
    try:
        return importlib.import_module("lowmark.client.tide_picture")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise Rejected(
            "a picture needs matplotlib, and it is not installed",
            hint="Install it: pip install 'lowmark[pictures]'. Without it, `lowmark tide` draws"
            " with letters.",
        ) from error


@dataclass(frozen=True, slots=True)
class _Seen:
    """A partition at one moment."""

    view: View
    cursors: tuple[Cursor, ...]
    leases: tuple[Lease, ...]
    expired: int


def tide_of(
    embedded: Embedded,
    table: Table,
    partitions: Mapping[int, Partition],
    *,
    ledgers: Ledgers,
    newest: Callable[[], Table],
    stretches: int,
) -> Tide:
    """See where everything of a table stands."""
    mark = embedded.node.watermark
    assert mark is not None
    standing = embedded.ask_now(mark.standing)
    now_ms = embedded.node.loop.wall_ms()
    asked = list(partitions.values())
    ends: list[Callable[[], None]] = []

    def look(state: State) -> _Seen:
        if state.ledger is not None:
            ends.append(ledgers.take(state.ledger.manifest))  # its files stay while we count
        at_ms = max(now_ms, millis_of(HybridTime(state.closed)))
        leases = tuple(lease for lease in state.leases.values() if lease.ends_ms > at_ms)
        return _Seen(state.backlog.view, tuple(state.cursors.values()), leases, state.expired)

    try:
        found: Sequence[_Seen] = embedded.ask(lambda: when_all([one.read(look) for one in asked]))
        shape = Shape(table, [OFFSET, CHANGE], newest=newest)
        drawn = [
            _partition(one.number, seen, _ledger(seen, ledgers, newest, shape, stretches), standing)
            for one, seen in zip(asked, found, strict=True)
        ]
    finally:
        for end in ends:
            end()
    return Tide(
        table=table.name,
        at=time_text(now_ms << _COUNTER_BITS),
        watermark=time_text(standing.value) if standing.value else "",
        watermark_held_by=tuple(f"{one.holder}: {one.why}" for one in standing.holds),
        compacts=bool(table.key) and table.settings.compaction != "off",
        kept_because=why_kept(table),
        partitions=tuple(drawn),
    )
