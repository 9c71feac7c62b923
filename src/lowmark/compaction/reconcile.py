"""A metastore that is older than the partitions, such as a restored backup: its pointers are set
to what the partitions have adopted.

A partition's own word counts: it is in its log, and reads go by it. Everything is looked at before
anything is written; each pointer is one conditional write, so whoever publishes meanwhile wins, and
a call that was interrupted is made again.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Literal

from lowmark.compaction.context import RunContext
from lowmark.compaction.records import SeenPointer
from lowmark.errors import Conflict
from lowmark.ledger import Expected, Pointer, read_manifest
from lowmark.runtime.store import Store
from lowmark.table import Adopted


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What was found of one partition, and what was done about it."""

    partition: int
    state: Literal["same", "ahead", "none", "changed"]
    """`ahead`: what was published is newer, and is adopted by the next run, as it should be."""
    adopted: Adopted | None
    before: Pointer | None
    """What the metastore had."""
    after: Pointer | None
    """What it has now."""


def reconcile_ledgers(context: RunContext) -> list[Reconciled]:
    """Set pointers that are behind what partitions have adopted, or contradict it."""
    table = context.table.id
    found: dict[int, tuple[Adopted | None, SeenPointer, Pointer | None]] = {}
    for number in sorted(context.partitions):
        adopted = context.backend.views(table, [number])[number].ledger
        # Looked up after that: what it has adopted was published before, if all is well.
        seen = context.records.pointer(table, number)
        wrong = adopted is not None and not _follows(adopted, seen)
        found[number] = adopted, seen, None
        if wrong and adopted is not None:
            said = Expected.adopted(table, number, adopted)
            found[number] = adopted, seen, _pointer(context.store, adopted, said)
    return [_reconciled(context, number, *one) for number, one in found.items()]


def _follows(adopted: Adopted, seen: SeenPointer) -> bool:
    """Whether what was published is what was adopted, or newer."""
    if seen.pointer is None or seen.epoch < adopted.epoch:
        return False
    return seen.epoch > adopted.epoch or seen.pointer.manifest == adopted.manifest


def _pointer(store: Store, adopted: Adopted, said: Expected) -> Pointer:
    """What a partition has adopted, as it was published; raises if its manifest can't be read."""
    manifest = read_manifest(store, adopted.manifest, said)
    return Pointer(
        manifest=adopted.manifest,
        horizon=adopted.horizon,
        epoch=adopted.epoch,
        digest=base64.b64encode(adopted.digest).decode(),
        deletes_below=adopted.deletes_below,
        run=manifest.made_by,
    )


def _reconciled(
    context: RunContext,
    number: int,
    adopted: Adopted | None,
    seen: SeenPointer,
    wanted: Pointer | None,
) -> Reconciled:
    before = seen.pointer
    if wanted is not None:
        table, now_ms = context.table, context.now_ms()
        if not context.records.publish(table.id, number, wanted, seen=seen, now_ms=now_ms):
            raise Conflict(
                f"the pointer of partition {number} of table {table.name} has changed meanwhile",
                hint="Run it again.",
            )
        return Reconciled(
            partition=number, state="changed", adopted=adopted, before=before, after=wanted
        )
    state: Literal["same", "ahead", "none"] = "same"
    if before is None:
        state = "none"
    elif adopted is None or before.epoch > adopted.epoch:
        state = "ahead"
    return Reconciled(partition=number, state=state, adopted=adopted, before=before, after=before)
