"""Has partitions that this node leads adopt what was published for them.

A run has it adopted itself, right after it has published it. This is for a run whose process died
in between: the pointer stands in the metastore, and no other run may come for long. The node hears
of pointers by a watch, waits for a moment, and if the partition still has not adopted it, reads its
manifest, sees that its files are there, and does what the run would have done: adopt, then cut.
Each node sees to the partitions that it leads. A leader that is new finds what the one before has
left, since all nodes that hold the partition wait until it is adopted, also those whose copy has
not been started yet.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, NamedTuple

from lowmark.backend.attached import Attached
from lowmark.catalog import TableId
from lowmark.errors import Corrupt, LowmarkError
from lowmark.ledger import (
    Expected,
    Pointer,
    RunRecord,
    check_there,
    decode_record,
    read_manifest,
    run_key,
)
from lowmark.ledger.records import POINTER_PREFIX
from lowmark.metastore import Entry, Event, Following
from lowmark.table import Adopt, Trim

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 3.0
"""So long a run may take to have it adopted itself."""
_AGAIN_S: Final = 3.0
_AGAIN_S_MAX: Final = 60.0


class _Published(NamedTuple):
    pointer: Pointer
    due_s: float
    waited_s: float


class Adopter:
    """Of one node; made on any thread but the node's."""

    def __init__(self, backend: Attached, *, patience_s: float = PATIENCE_S) -> None:
        self._backend = backend
        self._patience_s = patience_s
        self._lock = threading.Condition()
        self._left: dict[tuple[TableId, int], _Published] = {}
        """What was published and may not be adopted yet, of partitions that have a copy here."""
        self._closed = False
        self._following = backend.ask_now(self._follow)
        threading.Thread(target=self._run, name="lowmark-adopt", daemon=True).start()

    def close(self) -> None:
        """See to nothing more."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._backend.tell(self._following.close)

    # -- on the loop ------------------------------------------------------------------------------

    def _follow(self) -> Following:
        return self._backend.node.cluster.metastore.keep_watching(
            prefix=POINTER_PREFIX,
            start=self._take_all,
            on_event=self._changed,
            name="published ledgers",
        )

    def _take_all(self) -> None:
        for entry in self._backend.node.cluster.metastore.range_local(POINTER_PREFIX).entries:
            self._learn(entry)

    def _changed(self, event: Event) -> None:
        for change in event.changes:
            if change.entry is not None:
                self._learn(change.entry)

    def _learn(self, entry: Entry) -> None:
        place = entry.key.removeprefix(POINTER_PREFIX).split(b".")
        if len(place) != 2 or not all(part.isdigit() for part in place):
            return  # one that was retired
        table, number = TableId(int(place[0])), int(place[1])
        try:
            pointer = decode_record(entry.value, Pointer)
        except Corrupt as error:
            logger.error("a pointer can't be read", extra={"reason": error.message})
            return
        if not self._is_over(table, number, pointer):
            due_s = time.monotonic() + self._patience_s
            with self._lock:
                self._left[table, number] = _Published(pointer, due_s, _AGAIN_S)
                self._lock.notify()

    def _is_over(self, table: TableId, number: int, pointer: Pointer) -> bool:
        """Whether it is adopted, or of no partition that this node holds."""
        copy = self._backend.tables.here(table, number)
        if copy is not None:
            ledger = copy.state.ledger
            return ledger is not None and ledger.epoch >= pointer.epoch
        node = self._backend.node
        nodes = () if node.placement is None else node.placement.routes(table, number)
        if not nodes:  # it may not have heard of them yet
            return self._backend.catalogs.latest.table(table) is None
        return node.info.number not in nodes

    # -- on its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._left and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                place, published = min(self._left.items(), key=lambda item: item[1].due_s)
                wait_s = published.due_s - time.monotonic()
                if wait_s > 0:
                    self._lock.wait(wait_s)
                    continue
            try:
                over = self._see_to(*place, published.pointer)
            except Exception as error:  # whatever it is, the others are seen to
                if self._backend.closed:
                    return
                over = False
                known = isinstance(error, LowmarkError)
                logger.warning(
                    "a ledger that was published can't be adopted",
                    extra={"table": place[0], "partition": place[1], "reason": str(error)},
                    exc_info=None if known else error,
                )
            with self._lock:
                if self._left.get(place) is not published:
                    continue  # a newer one came
                if over:
                    del self._left[place]
                else:
                    due_s = time.monotonic() + published.waited_s
                    waited_s = min(2 * published.waited_s, _AGAIN_S_MAX)
                    self._left[place] = _Published(published.pointer, due_s, waited_s)

    def _see_to(self, table: TableId, number: int, pointer: Pointer) -> bool:
        """Whether nothing is left to do."""

        def look() -> tuple[bool, bool]:
            copy = self._backend.tables.here(table, number)
            leads = copy is not None and copy.group.ready
            # After a reset, a ledger that was published before may have other rows.
            other = copy is not None and copy.lineage != pointer.lineage
            return other or self._is_over(table, number, pointer), leads

        over, leads = self._backend.ask_now(look)
        if over or not leads:
            return over
        store = self._backend.store
        said = Expected.published(table, number, pointer)
        check_there(store, read_manifest(store, pointer.manifest, said).files)
        adopt = Adopt(
            pointer.epoch, pointer.manifest, pointer.horizon, said.digest, pointer.deletes_below
        )
        self._backend.propose(table, {number: adopt})
        logger.info(
            "a ledger was adopted for a run that is gone",
            extra={"table": table, "partition": number, "run": pointer.run},
        )
        noted = self._backend.get(run_key(table, pointer.run))
        if noted is not None and decode_record(noted.value, RunRecord).trim:
            self._backend.propose(table, {number: Trim(pointer.horizon)})
        return True
