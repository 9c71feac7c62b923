"""The ledger that docs/formats/ledger.md shows: three live rows of four, in one file."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lowmark.ledger import (
    Claim,
    Done,
    LedgerFile,
    Manifest,
    PartitionPlan,
    Pointer,
    Retired,
    RunRecord,
)
from lowmark.ledger.digest import EMPTY, row_hashes
from lowmark.ledger.manifest import Layout, LedgerColumn, bitmap_text, checksums_text, digest_text

__all__ = ["CLAIM", "DONE", "HASHES", "MANIFEST", "POINTER", "RETIRED", "ROWS", "RUN", "Row"]

Row = tuple[int, bool, dict[int, object]]
"""Offset, whether it is a delete, and values by the ids of their columns."""

ROWS: list[Row] = [
    (4, False, {1: "o-1", 3: Decimal("9.50")}),
    (6, True, {1: "o-2"}),
    (9, False, {1: "o-3", 3: Decimal("-0.01")}),
]
HASHES = row_hashes(
    [
        pa.array([values.get(1) for _, _, values in ROWS]),
        pa.array([values.get(3) for _, _, values in ROWS], pa.decimal128(12, 2)),
    ],
    [1, 3],
    offsets=np.array([offset for offset, _, _ in ROWS]),
    deletes=np.array([delete for _, delete, _ in ROWS]),
)

_BASE = "table-3/0/1-20260701T090000-4d5e6f-00112233"
_RUN = "20260701T120000-1a2b3c"
_TOKEN = f"{_RUN}-8899aabb"
_DIGEST = digest_text(EMPTY.plus(HASHES))

MANIFEST = Manifest(
    table=3,
    table_name="orders",
    partition=0,
    epoch=2,
    horizon=12,
    deletes_below=3,
    files=(
        LedgerFile(
            path=f"table-3/0/{_TOKEN}-0.parquet",
            bytes=1104,
            rows=4,
            first=4,
            last=9,
            schema=1,
            keys_path=f"table-3/0/{_TOKEN}-0.keys",
            keys_bytes=1122,
            checksum=0x4EC9D394,
            footer_bytes=616,
            footer_checksum=0x6239233E,
            chunks=checksums_text(np.arange(0xA0, 0xA5, dtype=np.uint32)),
            keys_checksum=0xC167D2CA,
            dead=bitmap_text(BitMap([1])),
            dead_rows=1,
            deletes=bitmap_text(BitMap([2])),
            digest=_DIGEST,
        ),
    ),
    schemas=(1,),
    layouts=(
        Layout(
            schema=1,
            columns=(
                LedgerColumn(id=1, name="id", type="string", key=True),
                LedgerColumn(id=3, name="amount", type="decimal(12,2)", filling="0.00"),
            ),
        ),
    ),
    digest=_DIGEST,
    made_by=_RUN,
    made_at="2026-07-01T12:00:00.250+00:00",
    watermark=1_782_907_199_000 << 16,
    based_on=f"{_BASE}.json",
    release="0.1.0",
)
POINTER = Pointer(
    manifest=f"table-3/0/2-{_TOKEN}.json",
    horizon=MANIFEST.horizon,
    epoch=MANIFEST.epoch,
    digest=MANIFEST.digest,
    deletes_below=MANIFEST.deletes_below,
    run=_RUN,
)
RETIRED = Retired(manifest=f"{_BASE}.json", at_ms=1_782_907_200_300, by=_RUN)
CLAIM = Claim(run=_RUN, holder="db1:4711:9f8e7d6c", lease_ms=20_000)
RUN = RunRecord(
    run=_RUN,
    table=3,
    table_name="orders",
    state="done",
    began_at_ms=1_782_907_200_000,
    ended_at_ms=1_782_907_200_400,
    watermark=MANIFEST.watermark,
    engine="spark",
    where="local[*]",
    by="db1:4711",
    seconds=0.4,
    partitions=(
        PartitionPlan(
            partition=0,
            state="adopted",
            base_epoch=1,
            base=f"{_BASE}.json",
            low=8,
            horizon=12,
            rows=4,
            bytes=662,
            manifest=POINTER.manifest,
            rows_read=4,
            rows_live=2,
            rows_died=1,
            deletes=1,
            bytes_read=2446,
            bytes_written=2900,
            files_written=1,
            ledger_bytes=2226,
            rows_checked=2,
            read_from="segments",
            trimmed_bytes=331,
            trimmed_to=10,
            held_by=("cursor billing",),
        ),
    ),
)
DONE = Done(
    partition=0,
    manifest=POINTER.manifest,
    epoch=2,
    horizon=12,
    digest=MANIFEST.digest,
    deletes_below=3,
    rows_read=4,
    rows_live=2,
    rows_died=1,
    deletes=1,
    bytes_read=2446,
    bytes_written=2900,
    files_written=1,
    files_dropped=1,
    rows_checked=2,
    ledger_bytes=2226,
    read_from="segments",
)
