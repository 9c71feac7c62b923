"""Removes files of ledgers that nothing names any more: by reference, never by age.

What names a file: the pointer's manifest, and the adopted one's, and all that they refer to; a
manifest that a reader reads; one that was replaced less than the grace time ago; and a run that
goes on or can be resumed, whose name is part of every file it writes. Nothing goes while holds may
be missing (`ALL_FILES`): readers that another owner of the directory knew are not back yet. A copy
of a partition may be old, and not know what others have adopted: so a ledger that was replaced goes
only if this one has adopted a newer one.

No sweep removes what a run needs that may still publish. What the run has written has its name, and
stays until the run is noted as over; it can't publish after that, for to publish has the condition
that its note is as it was (`Records.publish`). Its ledger also refers to files of the one that it
began with, which was adopted then. Those go only when the partition has adopted a newer one; that
was published before, so the pointer is not what the run has seen, and it can't publish, either. So
a run that finds such files gone was overtaken, and no row is lost (see `run`).

The files are listed first, and what names them is looked up after that: a run that begins
meanwhile has no file in the list, and one that ends has its pointer by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.backend.values import ALL_FILES
from lowmark.catalog import TableId
from lowmark.compaction.records import Records
from lowmark.ledger import Expected, LedgerDamaged, LedgerLost, read_manifest, table_folder
from lowmark.ledger.manifest import is_run
from lowmark.runtime.store import Store

logger = logging.getLogger(__name__)


def sweep(
    backend: Backend,
    ledgers: Ledgers,
    records: Records,
    table: TableId,
    *,
    dry_run: bool = False,
) -> list[str]:
    """Remove what nothing names of a table; gives what went, or what would go."""
    store = ledgers.store
    there = [one.path for one in store.files(table_folder(table))]
    runs = [one.run for one in records.runs(table) if one.state in {"running", "failed"}]
    epochs, expected = _adopted(backend, table)
    adopted = set(expected)
    pointers = set()
    for number, pointer in records.pointers(table).items():
        pointers.add(pointer.manifest)
        expected.setdefault(pointer.manifest, Expected.published(table, number, pointer))
    # After what is adopted: a reader of an older one came before. Runs are known by their records.
    in_use = {name for name in backend.files_in_use() if not is_run(name)}
    if ALL_FILES in in_use:
        return []
    now_ms, grace_ms = backend.now().wall_ms, backend.info.grace_ms
    retired = records.retired(table)
    over = [
        (partition, epoch, one)
        for partition, epoch, one in retired
        if one.manifest not in pointers | adopted | in_use
        and now_ms - one.at_ms >= grace_ms
        and epoch < epochs.get(partition, 0)
    ]
    names = pointers | adopted | in_use | {one.manifest for _, _, one in retired}
    names -= {one.manifest for _, _, one in over}
    needed = set(names)
    for manifest in sorted(names):
        needed |= _files_of(
            store,
            manifest,
            there,
            counts=manifest in pointers | adopted | in_use,
            expected=expected.get(manifest),
        )
    gone = [path for path in there if path not in needed and not any(run in path for run in runs)]
    if dry_run:
        return gone
    for path in gone:
        ledgers.forget(path)
        store.delete(path)
    for folder in sorted({path.rpartition("/")[0] for path in gone if "/runs/" in path}):
        store.delete_folder(folder)  # a run's own, which is empty now
    for partition, epoch, _ in over:
        records.forget_retired(table, partition, epoch)
    if gone:
        logger.info("files of ledgers removed", extra={"table": table, "files": len(gone)})
    return gone


def sweep_dropped(
    backend: Backend,
    ledgers: Ledgers,
    records: Records,
    *,
    busy: Collection[int],
    check_place: Callable[[], None],
) -> list[int]:
    """Remove the ledgers of tables that were dropped, once no read can look back to them; gives
    which tables. Those in `busy` are being compacted: they are left for another time. `check_place`
    raises if the place is another one: there, the same number is another database's table.

    Their records go as well: a run that went on when its table was dropped may have written one
    after all others had gone.
    """
    store = ledgers.store
    folders = store.folders("")
    numbers = {one.removeprefix("table-") for one in folders if one.startswith("table-")}
    known = {int(number) for number in numbers if number.isdigit()} | records.tables()
    in_use = backend.files_in_use()
    if ALL_FILES in in_use:
        return []
    read = {manifest.partition("/")[0] for manifest in in_use}
    watermark = backend.watermark().value
    gone: list[int] = []
    for table in sorted(known.difference(busy)):
        at = backend.dropped_at(TableId(table))
        if at is None or watermark < at or table_folder(table) in read:
            continue
        if not gone:
            check_place()
        ledgers.forget_all(f"{table_folder(table)}/")
        store.delete_folder(table_folder(table))
        records.forget_table(table)
        gone.append(table)
    return gone


def _adopted(backend: Backend, table: TableId) -> tuple[dict[int, int], dict[str, Expected]]:
    """What partitions have adopted: epochs by number, and manifests with what is noted of them."""
    ledgers = {
        number: one.ledger
        for number, one in backend.status(table, latest=False).items()
        if one.ledger is not None
    }
    epochs = {number: ledger.epoch for number, ledger in ledgers.items()}
    return epochs, {
        ledger.manifest: Expected.adopted(table, number, ledger)
        for number, ledger in ledgers.items()
    }


def _files_of(
    store: Store,
    manifest: str,
    there: Sequence[str],
    *,
    counts: bool,
    expected: Expected | None,
) -> set[str]:
    """What a manifest refers to. Of one that can't be read, or that another one has taken the place
    of, that is not known: nothing of its partition goes, and the others are swept all the same.
    """
    try:
        return read_manifest(store, manifest, expected).paths()
    except (LedgerLost, LedgerDamaged) as damage:
        if not counts and isinstance(damage, LedgerLost):
            return set()  # of a retired one, removed by a sweep that was interrupted
        logger.warning(
            "a partition's ledgers are not swept",
            extra={"manifest": manifest, "reason": damage.message},
        )
        folder = f"{manifest.rpartition('/')[0]}/"
        return {path for path in there if path.startswith(folder)}
