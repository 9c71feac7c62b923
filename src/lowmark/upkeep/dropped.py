"""Removes what is left of dropped tables, on every node, when no read can see them any more.

Steps, and what is true after each

    1. a version of the catalog without the table is in force. Its copies go on, so that it can be
       read as of earlier times; it takes no rows
    2. the low watermark reaches the time from which that version is in force. At no time that may
       still be read was the table there
    3. each node destroys its copies. A crash before a folder is gone leaves the copy as it was: it
       is on the disk, and the next look destroys it, started or not. No note of it stays: ids are
       never used again, and a node that starts makes no copy before it has heard of the drop again
       (`Placement._catch_up`), however far behind its copy of the metastore begins
    4. the coordinator removes the table's assignments, and what is noted of its ledgers and runs,
       at any time after 2. A node that was down finds copies without assignments at its next
       start. It needs none to destroy them: the catalog says that the table was dropped, and ids
       are never used again. A run that went on meanwhile, or a node that is far behind, may write
       a key once more: the next look finds it, whichever kind it is
    5. each node forgets by which way it reached partitions of the table that it has no copy of

Files of ledgers are removed by processes that can reach them (`compaction.sweep`): the owner of a
directory when it opens it, runs, and workers.

A table that this node's catalog does not have may also be one that it has not heard of yet. Those
have ids that its catalog has not given out.
"""

from __future__ import annotations

import logging
from bisect import bisect_left

from lowmark.catalog import Catalogs, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future, together
from lowmark.ledger.records import (
    CLAIM_PREFIX,
    POINTER_PREFIX,
    RETIRED_PREFIX,
    RUN_PREFIX,
    ledger_keys,
)
from lowmark.metastore import Metastore
from lowmark.metastore.state import State as MetastoreState
from lowmark.placement import Placement
from lowmark.table import LowWatermark, Tables

logger = logging.getLogger(__name__)


def dropped_at(catalogs: Catalogs, table: TableId) -> int | None:
    """From when on a table is no more; None: it is there, or was not heard of yet.

    If no version is left that had it, that of the earliest one: it was dropped then or before.
    """

    def is_gone(version: int) -> bool:
        catalog = catalogs.version(version)
        return table < catalog.next_id and table not in catalog.tables

    if not is_gone(catalogs.latest.version):
        return None
    versions = range(catalogs.earliest.version, catalogs.latest.version + 1)
    first = versions[bisect_left(versions, True, key=is_gone)]
    return catalogs.version(first).activates_at


def tables_noted(state: MetastoreState) -> set[TableId]:
    """The tables of which ledgers, runs or claims are noted: a look for the first key of each."""
    found = set()
    for prefix in (POINTER_PREFIX, RETIRED_PREFIX, RUN_PREFIX, CLAIM_PREFIX):
        start, end = prefix + b"0", prefix + b":"  # behind it stands the id, in digits
        while there := state.find_range(start, end, limit=1):
            digits = there[0].key.removeprefix(prefix).partition(b".")[0]
            start = prefix + digits + b"/"  # which follows `.`
            if digits.isdigit():
                found.add(TableId(int(digits)))
    return found


class Dropped:
    """Finds and removes what is left of them."""

    def __init__(
        self,
        metastore: Metastore,
        catalogs: Catalogs,
        tables: Tables,
        placement: Placement,
        watermark: LowWatermark,
    ) -> None:
        self._metastore = metastore
        self._catalogs = catalogs
        self._tables = tables
        self._placement = placement
        self._watermark = watermark

    def destroy_copies(self) -> list[tuple[TableId, int]]:
        """Steps 3 and 5, at this node; gives what went."""
        gone = []
        passed: dict[TableId, bool] = {}
        for table in self._tables.distant():
            if self._has_passed(table):
                self._tables.forget_ways(table)
        for table, number in self._tables.on_disk():
            if table not in passed:
                passed[table] = self._has_passed(table)
            if not passed[table]:
                continue
            try:
                self._tables.destroy(table, number)
            except LowmarkError as error:
                logger.warning(
                    "a copy of a dropped table could not be destroyed",
                    extra={"table": table, "partition": number, "reason": error.message},
                )
            else:
                gone.append((table, number))
        return gone

    def remove_assignments(self) -> Future[list[Future[TableId]]]:
        """Step 4, for the cluster; gives the tables whose keys went."""
        noted = {*self._placement.assigned(), *tables_noted(self._metastore.state)}
        passed = [table for table in sorted(noted) if self._has_passed(table)]
        return together([self._remove(table) for table in passed])

    def _remove(self, table: TableId) -> Future[TableId]:
        return self._placement.remove(table, ledger_keys(table)).map(lambda _: table)

    def _has_passed(self, table: TableId) -> bool:
        at = dropped_at(self._catalogs, table)
        return at is not None and self._watermark.current >= at
