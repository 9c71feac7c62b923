"""Files of ledgers that nobody names any more go: by reference, never by age.

What names a file: the pointer's manifest, and the adopted one's, and all that they refer to; a
manifest that somebody reads; one that was replaced less than the grace time ago; and a run that
goes on or can be resumed, whose name is part of every file it writes.

The files are listed first, and what names them is looked up after that: a run that begins
meanwhile has no file in the list, and one that ends has its pointer by then.
"""

from __future__ import annotations

import logging

from lowmark.catalog import TableId
from lowmark.client.embedded import Embedded
from lowmark.client.ledgers import Ledgers
from lowmark.client.run_records import Records
from lowmark.errors import LowmarkError, Rejected
from lowmark.ledger import LedgerLost, read_manifest, table_folder
from lowmark.runtime import FileMissing
from lowmark.runtime.store import Store
from lowmark.upkeep.dropped import dropped_at

__all__ = ["claim", "sweep", "sweep_dropped"]

_CLAIM = "database"
logger = logging.getLogger(__name__)


def sweep(
    embedded: Embedded, ledgers: Ledgers, records: Records, table: int, grace_ms: int
) -> list[str]:
    """Remove what nobody names of a table; gives what went."""
    store = ledgers.store
    there = [one.path for one in store.files(table_folder(table))]
    runs = [one.run for one in records.runs(table) if one.state in {"running", "failed"}]
    adopted = _adopted(embedded, table)
    pointers = {pointer.manifest for pointer in records.pointers(table).values()}
    in_use = ledgers.in_use()  # after what is adopted: whoever takes an older one took it before
    now_ms = embedded.node.loop.wall_ms()
    retired = records.retired(table)
    over = [
        (partition, epoch, one)
        for partition, epoch, one in retired
        if one.manifest not in pointers | adopted | in_use and now_ms - one.at_ms >= grace_ms
    ]
    names = pointers | adopted | in_use | {one.manifest for _, _, one in retired}
    names -= {one.manifest for _, _, one in over}
    needed = set(names)
    for manifest in sorted(names):
        needed |= _files_of(store, manifest, must=manifest in pointers | adopted)
    gone = [path for path in there if path not in needed and not any(run in path for run in runs)]
    for path in gone:
        ledgers.forget(path)
        store.delete(path)
    for partition, epoch, _ in over:
        records.forget_retired(table, partition, epoch)
    if gone:
        logger.info("files of ledgers removed", extra={"table": table, "files": len(gone)})
    return gone


def claim(store: Store, database: str) -> None:
    """Take a place for the ledgers of one database; refused if another one has it."""
    try:
        owner = store.read(_CLAIM).decode("utf-8", "replace").strip()
    except FileMissing:
        store.write(_CLAIM, f"{database}\n".encode())
        owner = store.read(_CLAIM).decode("utf-8", "replace").strip()
    if owner != database:
        raise Rejected(
            f"{store.location} has the ledgers of another database, {owner}",
            detail=f"This one is {database}. Each would take the other's files for leftovers.",
            hint="Give every database a place of its own (ledger.location).",
        )


def sweep_dropped(embedded: Embedded, store: Store) -> list[str]:
    """Remove the ledgers of tables that were dropped, once nobody can look back to them."""
    node = embedded.node
    catalogs, mark = node.catalogs, node.watermark
    assert catalogs is not None
    assert mark is not None
    gone = []
    for folder in sorted({one.path.partition("/")[0] for one in store.files("")}):
        number = folder.removeprefix("table-")
        if not folder.startswith("table-") or not number.isdigit():
            continue
        at = dropped_at(catalogs, TableId(int(number)))
        if at is not None and mark.current >= at:
            store.delete_folder(folder)
            gone.append(folder)
    return gone


def _adopted(embedded: Embedded, table: int) -> set[str]:
    tables = embedded.node.tables
    assert tables is not None
    copies = embedded.ask_now(lambda: [one for one in tables.all() if one.table == table])
    ledgers = [one.view.ledger for one in copies]
    return {one.manifest for one in ledgers if one is not None}


def _files_of(store: Store, manifest: str, *, must: bool) -> set[str]:
    """What a manifest refers to. One that can't be read stops the sweep, if it counts."""
    try:
        return read_manifest(store, manifest).paths()
    except LedgerLost:
        if must:
            raise
        return set()  # of a retired one, removed by a sweep that was interrupted
    except LowmarkError:
        raise
