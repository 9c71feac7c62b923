"""Compacts tables that are due, on a thread of the process that has the database open.

A run that fails is told in the log and by `problems`, and its table is left alone for a while, for
longer each time; the others go on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from lowmark.backend.port import Backend, HasBackend
from lowmark.backend.values import PartitionStatus
from lowmark.catalog import Table
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import RunOptions
from lowmark.compaction.plan import old_enough
from lowmark.compaction.runner import Runners
from lowmark.errors import Corrupt, LowmarkError
from lowmark.ledger import REBUILD
from lowmark.ledger.policy import Dirt, due
from lowmark.runtime import millis_of

logger = logging.getLogger(__name__)

LOOK_S = 5.0
_BACK_OFF_S = 30.0
_BACK_OFF_S_MAX = 3_600.0
_STOP_S = 20.0


class Automatic:
    """Looks every few seconds; `look` looks at once, at the backend of now.

    The thread ends if it finds its backend closed: a backend that is to be looked after is put in
    the other one's place before that one is closed.
    """

    def __init__(self, session: HasBackend, compactor: Compactor, runners: Runners) -> None:
        self._session = session
        self._compactor = compactor
        self._runners = runners
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lowmark compaction", daemon=True)
        self._waits: dict[int, tuple[float, float]] = {}
        """Tables that failed: until when they are left alone, and for how long next time."""
        self._known: set[int] = set()
        """Tables of which an earlier process has left no run in the middle, any more."""
        self.problems: dict[str, str] = {}
        """What went wrong last, by table; a run that succeeds takes it away."""

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    def start(self) -> None:
        """Look every few seconds from now on."""
        self._thread.start()

    def finish(self) -> None:
        """Look no more; a run under way is left to be resumed."""
        self._over.set()
        self._compactor.finish()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            if self._backend.closed:
                return
            self.look()

    def look(self) -> list[str]:
        """Compact what is due, now; gives the names of the runs."""
        runs = []
        for table in self._backend.catalog().all_tables():
            if self._over.is_set():
                break
            until_s, _ = self._waits.get(table.id, (0.0, 0.0))
            if table.settings.compaction != "auto" or time.monotonic() < until_s:
                continue
            try:
                run = self._one(table)
            except Exception as error:  # whatever it is, the other tables and this thread go on
                if self._over.is_set() or self._backend.closed:
                    break
                self._failed(table, error)
            else:
                self._waits.pop(table.id, None)
                if run is not None:
                    self.problems.pop(table.name, None)
                    runs.append(run)
        return runs

    def _failed(self, table: Table, error: Exception) -> None:
        _, wait_s = self._waits.get(table.id, (0.0, _BACK_OFF_S))
        self._waits[table.id] = (time.monotonic() + wait_s, min(2 * wait_s, _BACK_OFF_S_MAX))
        said = error.one_line() if isinstance(error, LowmarkError) else repr(error)
        self.problems[table.name] = said
        logger.warning(
            "a table could not be compacted",
            extra={
                "table": table.name,
                "reason": error.message if isinstance(error, LowmarkError) else repr(error),
            },
            exc_info=None if isinstance(error, LowmarkError) else error,
        )

    def _one(self, table: Table) -> str | None:
        if self._compactor.active(table.id) is not None:
            return None
        left = self._left_over(table)
        if left is not None:
            record = self._compactor.resume(
                table,
                self._runners.get,
                RunOptions(engine=self._runners.engine, where=self._runners.where),
                run=left,
            )
        else:
            there = self._backend.status(table.id, latest=False)
            watermark = self._backend.watermark().value
            why = due(table.settings, [self._dirt(table, one, watermark) for one in there.values()])
            if why is None:
                return None
            options = RunOptions(
                trigger=why, engine=self._runners.engine, where=self._runners.where
            )
            record = self._compactor.compact(table, list(there), self._runners.get, options)
        return record.run

    def _left_over(self, table: Table) -> str | None:
        """A run that was under way when the process before this one ended; asked for once."""
        if table.id in self._known:
            return None
        runs = self._compactor.records.runs(table.id)
        self._known.add(table.id)
        left = [one for one in runs if one.state == "running" and one.trigger != REBUILD]
        return left[0].run if left else None

    def _dirt(self, table: Table, status: PartitionStatus, watermark: int) -> Dirt:
        view, wall_ms = status.view, status.wall_ms
        low = max(view.start, view.readable.horizon if view.readable is not None else 0)
        high = max(low, old_enough(view, table, watermark=watermark, wall_ms=wall_ms))
        dirty = view.bytes_from(low) - view.bytes_from(high)
        ledger = 0
        if view.readable is not None:
            # One that can't be read is told by the run, which leaves no other partition out.
            with contextlib.suppress(Corrupt):
                ledgers = self._compactor.ledgers
                ledger = ledgers.open(view.readable, lambda: table).manifest.bytes
        age_ms = 0
        if high > low:
            written = millis_of(int(view.columns.time[view.batch_at(low)]))
            age_ms = max(0, wall_ms - written)
        return Dirt(dirty, view.bytes_from(low) + ledger, age_ms)
