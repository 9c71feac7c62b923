"""The tide of a table: where ledger, backlog, watermark and readers stand, and a picture of it.

Each partition is seen as of one moment of its own, its ledger included: nothing is cut or swept
between two looks at it.
"""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowmark.backend.ledgers import Ledgers, OpenLedger
from lowmark.backend.port import Backend
from lowmark.backend.values import PartitionStatus, ReadRange
from lowmark.catalog import Table
from lowmark.client.explaining import why_kept
from lowmark.client.tide_values import (
    HolderTotal,
    PartitionTide,
    TideHolder,
    TideLedger,
)
from lowmark.convert.times import time_text
from lowmark.errors import Rejected
from lowmark.runtime import COUNTER_BITS
from lowmark.table import (
    CHANGE,
    OFFSET,
    Cursor,
    Lease,
    Shape,
    View,
    WatermarkStanding,
)

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
        """Live rows of all ledgers, without deletes."""
        return sum(one.ledger.live_rows for one in self.partitions if one.ledger is not None)

    @property
    def ledger_deletes(self) -> int:
        """Deletes that ledgers still have."""
        return sum(one.ledger.deletes for one in self.partitions if one.ledger is not None)

    @property
    def holders(self) -> tuple[HolderTotal, ...]:
        """All readers in it, all partitions together; the one that keeps most comes first."""
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

        Needs matplotlib (`pip install matplotlib`), and no display.
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
            hint="Install it: `pip install matplotlib`. Without it, `lowmark tide` draws with"
            " letters.",
        ) from error


def tide_of(
    backend: Backend,
    table: Table,
    partitions: Collection[int],
    *,
    ledgers: Ledgers,
    newest: Callable[[], Table],
    stretches: int,
) -> Tide:
    """See where everything of a table stands."""
    standing = backend.watermark()
    now_ms = backend.now().wall_ms
    held = backend.hold(
        table.id,
        {number: ReadRange(0, 0, ledger="beside") for number in partitions},
        holder="tide",
        why="rows of its ledger are counted",
    )
    try:
        shape = Shape(table, [OFFSET, CHANGE], newest=newest)
        drawn = []
        for number in partitions:
            status = held.partitions[number]
            if status.stopped is not None:
                raise status.stopped.again()
            ledger = _ledger(status, ledgers, newest, shape, stretches)
            drawn.append(_partition(status, ledger, standing))
    finally:
        backend.release(held.hold)
    return Tide(
        table=table.name,
        at=time_text(now_ms << COUNTER_BITS),
        watermark=time_text(standing.value) if standing.value else "",
        watermark_held_by=tuple(f"{one.holder}: {one.why}" for one in standing.holds),
        compacts=any(one.ledger is not None for one in drawn)
        or (bool(table.key) and table.settings.compaction != "off"),
        kept_because=why_kept(table),
        partitions=tuple(drawn),
    )


def _ledger(
    status: PartitionStatus,
    ledgers: Ledgers,
    newest: Callable[[], Table],
    shape: Shape,
    stretches: int,
) -> TideLedger | None:
    adopted = status.ledger
    if adopted is None:
        return None
    opened = ledgers.open(adopted, newest)
    manifest = opened.manifest
    return TideLedger(
        manifest=adopted.manifest,
        epoch=adopted.epoch,
        files=len(manifest.files),
        bytes=manifest.bytes,
        rows=manifest.rows,
        live_rows=manifest.live_rows,
        deletes=manifest.live_deletes,
        survivors=_survivors(opened, shape, stretches),
    )


def _survivors(ledger: OpenLedger, shape: Shape, stretches: int) -> tuple[int, ...]:
    """Live rows in each of so many stretches: only offsets are read."""
    horizon = ledger.horizon
    stretches = min(stretches, horizon)  # none is shorter than one row
    if not stretches:
        return ()
    counts = np.zeros(stretches, np.int64)
    for _, offsets in ledger.batches(shape, start=0, end=horizon):
        counts += np.bincount(offsets * stretches // horizon, minlength=stretches)
    return tuple(counts.tolist())


def _partition(
    status: PartitionStatus, ledger: TideLedger | None, standing: WatermarkStanding
) -> PartitionTide:
    view, horizon = status.view, status.horizon
    watermark = max(view.offset_after(standing.value), horizon, view.start)
    behind = view.bytes_from(view.start)
    next_on = min(behind, view.bytes_from(horizon))
    young = view.bytes_from(watermark)
    holders = [_cursor(one, view, horizon) for one in status.cursors]
    holders += [_lease(one, view, horizon) for one in status.live_leases()]
    holders.sort(key=lambda one: (one.offset, one.kind, one.name))
    return PartitionTide(
        partition=status.partition,
        start=view.start,
        horizon=horizon,
        watermark=watermark,
        end=view.end,
        expired=status.expired,
        backlog_bytes=behind,
        kept_bytes=behind - next_on,
        next_bytes=next_on - young,
        young_bytes=young,
        ledger=ledger,
        holders=tuple(holders),
    )


def _cursor(cursor: Cursor, view: View, horizon: int) -> TideHolder:
    raw = cursor.kind == "raw"
    why = "has not read on from here" if raw else "gets every delete from here on"
    rows, size = _kept_for(cursor.offset, view, horizon) if raw and not cursor.overdue else (0, 0)
    return TideHolder(
        kind="cursor" if raw else "compacted cursor",
        name=cursor.name,
        offset=cursor.offset,
        behind_rows=max(0, view.end - cursor.offset),
        behind_bytes=view.bytes_from(cursor.offset),
        keeps_rows=rows,
        keeps_bytes=size,
        overdue=cursor.overdue,
        why=why,
    )


def _lease(lease: Lease, view: View, horizon: int) -> TideHolder:
    holds = lease.kind != "compacted"
    rows, size = _kept_for(lease.offset, view, horizon) if holds else (0, 0)
    return TideHolder(
        kind="run" if lease.kind == "run" else "lease",
        name=lease.name,
        offset=lease.offset,
        behind_rows=max(0, view.end - lease.offset),
        behind_bytes=view.bytes_from(lease.offset),
        keeps_rows=rows,
        keeps_bytes=size,
        why=lease.why,
    )


def _kept_for(offset: int, view: View, horizon: int) -> tuple[int, int]:
    """Rows and bytes of the backlog from an offset up to the horizon."""
    low = max(offset, view.start)
    if low >= horizon:
        return 0, 0
    return horizon - low, view.bytes_from(low) - view.bytes_from(horizon)
