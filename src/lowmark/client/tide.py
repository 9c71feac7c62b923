"""The tide of a table: where ledger, backlog, watermark and readers stand, and a picture of it.

Each partition is seen as of one moment of its own, its ledger included: nothing is cut or swept
between two looks at it.
"""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lowmark.backend.ledgers import Ledgers, OpenLedger
from lowmark.backend.port import Backend
from lowmark.backend.values import PartitionStatus, ReadRange
from lowmark.catalog import Table
from lowmark.client.explaining import why_kept
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
    table_mark,
)

# What a tide is made of: plain values, one for each partition, and for each reader in it.
#
# A partition's offsets run from 0 to its end. Its ledger covers those below the horizon, its
# backlog those from its start on. Where both have an offset, the backlog is kept for a reader, or
# waits to be cut. From the horizon to the watermark lies what the next run takes; what is later
# than the watermark, or within a history of the table's own, no run may touch.

HolderKind = Literal["cursor", "compacted cursor", "lease", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TideHolder:
    """A reader that stands in a partition: a cursor, a lease, or a run."""

    kind: HolderKind
    name: str
    offset: int
    """The first offset that it has not seen, or still needs."""
    behind_rows: int
    """From there to the end."""
    behind_bytes: int
    """What the backlog has of that."""
    keeps_rows: int
    keeps_bytes: int
    """What the ledger has, too: without it, and those at or before its place, that could go now."""
    overdue: bool = False
    """Whether it fell too far behind, and holds nothing any more."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderTotal:
    """A reader in all partitions together."""

    kind: HolderKind
    name: str
    behind_rows: int
    behind_bytes: int
    keeps_rows: int
    keeps_bytes: int
    overdue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TideLedger:
    """The compacted form of a partition's offsets below the horizon."""

    manifest: str
    epoch: int
    files: int
    bytes: int
    rows: int
    """In its files, dead ones among them."""
    live_rows: int
    """That count, without deletes."""
    deletes: int
    """That count, because a reader may not have got them yet."""
    survivors: tuple[int, ...] = ()
    """Live rows, and deletes, in equal stretches of the offsets from 0 to the horizon; empty: not
    asked for."""

    def shares(self, horizon: int, stretches: int) -> tuple[float, ...]:
        """How much is left of what was written, from 0 to 1, in this many stretches."""
        counts = self.survivors or (self.live_rows + self.deletes,)
        found = []
        for number in range(stretches):
            low = number * len(counts) // stretches
            high = max(low + 1, (number + 1) * len(counts) // stretches)
            # An offset is in the stretch that it begins in, so they differ by one row.
            first, last = (-(-at * horizon // len(counts)) for at in (low, high))
            found.append(sum(counts[low:high]) / (last - first) if last > first else 0.0)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTide:
    """One partition. Always start <= end and horizon <= watermark <= end."""

    partition: int
    start: int
    """Where the backlog begins."""
    horizon: int
    """The ledger covers the offsets below it."""
    watermark: int
    """The first offset that is later than the low watermark; of a table with a history of its own,
    later than that (`lowmark.table.history`)."""
    end: int
    """The next offset to be written."""
    expired: int
    """Below this offset, rows went by retention."""
    backlog_bytes: int
    kept_bytes: int
    """In the backlog though the ledger has it, too."""
    next_bytes: int
    """What the next run takes."""
    young_bytes: int
    """Later than the watermark."""
    ledger: TideLedger | None
    holders: tuple[TideHolder, ...]
    """In the order of their offsets."""

    @property
    def backlog_rows(self) -> int:
        """Rows that can be read one change after another."""
        return self.end - self.start

    @property
    def kept_rows(self) -> int:
        """In the backlog though the ledger has them, or their successors."""
        return max(0, self.horizon - self.start)

    @property
    def next_rows(self) -> int:
        """What the next run takes."""
        return self.watermark - max(self.horizon, self.start)

    @property
    def young_rows(self) -> int:
        """Later than the watermark."""
        return self.end - self.watermark

    @property
    def live_share(self) -> float:
        """How much of what was written below the horizon is left in the ledger."""
        if self.ledger is None or not self.horizon:
            return 0.0
        return (self.ledger.live_rows + self.ledger.deletes) / self.horizon


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
        """Draw it into a PNG file of this many pixels; what is there under that name is replaced.

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
            mark = table_mark(table, watermark=standing.value, wall_ms=status.wall_ms)
            drawn.append(_partition(status, ledger, mark))
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
    """Live rows in each of this many stretches: only offsets are read."""
    horizon = ledger.horizon
    stretches = min(stretches, horizon)  # none is shorter than one row
    if not stretches:
        return ()
    counts = np.zeros(stretches, np.int64)
    for _, offsets in ledger.batches(shape, start=0, end=horizon):
        counts += np.bincount(offsets * stretches // horizon, minlength=stretches)
    return tuple(counts.tolist())


def _partition(status: PartitionStatus, ledger: TideLedger | None, mark: int) -> PartitionTide:
    view, horizon = status.view, status.horizon
    watermark = max(view.offset_after(mark), horizon, view.start)
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
    kind: HolderKind = "cursor" if raw else "compacted cursor"
    holds = raw and not cursor.overdue
    made = _holder(cursor, view, horizon, kind=kind, holds=holds, why=why)
    return replace(made, overdue=cursor.overdue)


def _lease(lease: Lease, view: View, horizon: int) -> TideHolder:
    kind: HolderKind = "run" if lease.kind == "run" else "lease"
    holds = lease.kind != "compacted"
    return _holder(lease, view, horizon, kind=kind, holds=holds, why=lease.why)


def _holder(
    one: Cursor | Lease, view: View, horizon: int, *, kind: HolderKind, holds: bool, why: str
) -> TideHolder:
    rows, size = _kept_for(one.offset, view, horizon) if holds else (0, 0)
    return TideHolder(
        kind=kind,
        name=one.name,
        offset=one.offset,
        behind_rows=max(0, view.end - one.offset),
        behind_bytes=view.bytes_from(one.offset),
        keeps_rows=rows,
        keeps_bytes=size,
        why=why,
    )


def _kept_for(offset: int, view: View, horizon: int) -> tuple[int, int]:
    """Rows and bytes of the backlog from an offset up to the horizon."""
    low = max(offset, view.start)
    if low >= horizon:
        return 0, 0
    return horizon - low, view.bytes_from(low) - view.bytes_from(horizon)
