"""What the ledgers of a table consist of, and which older ones wait to be removed: for people, and
for programs that read the files themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.backend.port import Backend
from lowmark.compaction.context import RunContext
from lowmark.errors import LowmarkError, Unavailable
from lowmark.ledger import Expected, Manifest, Pointer, Retired, read_manifest
from lowmark.runtime.store import Store
from lowmark.table import Adopted


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredLedger:
    """A ledger that another one has replaced, and that was not removed yet."""

    epoch: int
    manifest: str
    """As other programs open it."""
    retired_at_ms: int
    by: str
    """The run that has replaced it."""
    removable_at_ms: int
    """When its grace time is over."""
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDescription:
    """The ledger of one partition: what was published, what is read, what it consists of."""

    partition: int
    adopted: Adopted | None
    """What reads go by; None: everything is in the backlog."""
    published: Pointer | None
    """What the metastore names; a partition may adopt it late."""
    location: str = ""
    """The manifest that is described, as other programs open it: the one that is adopted, else the
    one that was published."""
    manifest: Manifest | None = None
    problem: str = ""
    """Why the manifest can't be read."""
    files: tuple[str, ...] = ()
    """The manifest's files, in its order, as other programs open them."""
    key_files: tuple[str, ...] = ()
    """The indexes of their keys, in the same order; empty where no row has a key."""
    retired: tuple[RetiredLedger, ...] = ()


def describe_ledgers(context: RunContext) -> list[LedgerDescription]:
    """The ledgers of some partitions of a table, in the order of their numbers."""
    backend, store, table = context.backend, context.store, context.table.id
    pointers = context.records.pointers(table)
    adopted = {number: backend.view(table, number).ledger for number in context.partitions}
    named = {one.manifest for one in adopted.values() if one is not None}
    waiting = _Waiting(backend, store, named)
    retired: dict[int, list[RetiredLedger]] = {}
    for number, epoch, one in context.records.retired(table):
        retired.setdefault(number, []).append(waiting.of(epoch, one))
    return [
        _described(
            store,
            table,
            number,
            adopted[number],
            pointers.get(number),
            tuple(retired.get(number, ())),
        )
        for number in sorted(context.partitions)
    ]


def _described(
    store: Store,
    table: int,
    number: int,
    adopted: Adopted | None,
    published: Pointer | None,
    retired: tuple[RetiredLedger, ...],
) -> LedgerDescription:
    shown = adopted if adopted is not None else published
    said = None
    if adopted is not None:
        said = Expected.adopted(table, number, adopted)
    elif published is not None:
        said = Expected.published(table, number, published)
    location, manifest, problem = "", None, ""
    if shown is not None:
        location = store.url(shown.manifest)
        try:
            manifest = read_manifest(store, shown.manifest, said)
        except LowmarkError as error:
            problem = error.message
            if isinstance(error, Unavailable):  # of the whole place, not of this file
                problem = f"{problem}: {error.detail}"
    files = manifest.files if manifest is not None else ()
    return LedgerDescription(
        partition=number,
        adopted=adopted,
        published=published,
        location=location,
        manifest=manifest,
        problem=problem,
        files=tuple(store.url(file.path) for file in files),
        key_files=tuple(store.url(file.keys_path) if file.keys_path else "" for file in files),
        retired=retired,
    )


class _Waiting:
    """Says why a ledger is still there; the order is that of the sweep."""

    def __init__(self, backend: Backend, store: Store, adopted: set[str]) -> None:
        self._store = store
        self._adopted = adopted
        self._in_use = backend.files_in_use()
        self._grace_ms = backend.info.grace_ms
        self._now_ms = backend.now().wall_ms

    def of(self, epoch: int, one: Retired) -> RetiredLedger:
        ends_ms = one.at_ms + self._grace_ms
        if one.manifest in self._adopted:
            why = "the partition still reads it: it has not adopted a newer one"
        elif one.manifest in self._in_use:
            why = "a reader in this process reads it"
        elif self._now_ms < ends_ms:
            why = "its grace time"
        else:
            why = "the next sweep"
        return RetiredLedger(
            epoch=epoch,
            manifest=self._store.url(one.manifest),
            retired_at_ms=one.at_ms,
            by=one.by,
            removable_at_ms=ends_ms,
            waits_for=why,
        )
