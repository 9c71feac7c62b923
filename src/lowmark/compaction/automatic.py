"""Compacts tables that are due, and runs that wait for a worker, on a thread: of the process that
has the database open, or of one that does nothing else (`lowmark worker`).

Any number of processes may do this for one database. Each claims a table before it compacts it (see
`claims`), so no two make the same run. A run whose process has died is resumed by another one, once
that one has seen its claim unchanged for the time of its lease.

Tables that were altered are looked at now and then, too, for schema versions that nothing needs any
more (`schemas`): rows may have gone by other ways than a run. And so are files of tables that were
dropped.

A run that fails is told in the log and by `problems`, and its table is left alone for a while, for
longer each time; the others go on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from lowmark.backend.errors import Cancelled, RunUnderWay
from lowmark.backend.port import Backend, HasBackend
from lowmark.backend.values import PartitionStatus
from lowmark.catalog import Table
from lowmark.compaction.claims import ClaimWatch, SeenClaim
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import RunOptions
from lowmark.compaction.plan import old_enough
from lowmark.compaction.runner import Runners
from lowmark.errors import Corrupt, LowmarkError
from lowmark.ledger import REBUILD, RunRecord
from lowmark.ledger.policy import Dirt, due
from lowmark.runtime import millis_of

logger = logging.getLogger(__name__)

LOOK_S = 5.0
_LOOKS_IN_LEASE = 4
"""A worker looks at least this often in the time of a lease: it has to see claims change."""
_BACK_OFF_S = 30.0
_BACK_OFF_S_MAX = 3_600.0
_STOP_S = 20.0
_DROPPED_S = 60.0
_SCHEMAS_S = 60.0
_SCHEMAS_S_MAX = 3_600.0
"""A table whose old schema versions are needed is looked at again after this long; twice that if
they still are, and so on."""


def _now_s() -> float:
    return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of a run, or of a table that was looked at."""

    event: Literal["began", "resumed", "done", "failed", "cancelled", "left"]
    """`left`: the process ends, and the run stays to be resumed."""
    table: str
    run: str
    """Empty, if it failed before there was one."""
    record: RunRecord | None = None
    """Of one that is done."""
    why: str = ""


class Automatic:
    """Looks every few seconds; `look` looks at once, at the backend of now.

    The thread ends if it finds its backend closed: a backend that is to be looked after is put in
    the other one's place before that one is closed.
    """

    def __init__(
        self,
        session: HasBackend,
        compactor: Compactor,
        runners: Runners,
        *,
        options: RunOptions | None = None,
        tell: Callable[[Told], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._compactor = compactor
        self._runners = runners
        self._options = replace(options or RunOptions(), engine=runners.engine, where=runners.where)
        """How runs are made, but for why."""
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lowmark compaction", daemon=True)
        self._waits: dict[int, tuple[float, float]] = {}
        """Tables that failed: until when they are left alone, and for how long next time."""
        self._schemas: dict[int, tuple[int, float, float]] = {}
        """Tables with schema versions that were needed: how many, until when they are left alone,
        and for how long next time."""
        self._dropped_at_s = 0.0
        """When to look for what is left of dropped tables."""
        self._known: set[int] = set()
        """Tables of which an earlier process has left no run without a claim, any more."""
        self._watch = ClaimWatch(compactor.claims, _now_s)
        self._once = False
        self._told = ""
        """The run that was begun last, as long as it goes on."""
        self.problems: dict[str, str] = {}
        """What went wrong last, by table; a run that succeeds takes it away. Without a table: why
        none could be looked at."""

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    def start(self, *, once: bool = False) -> None:
        """Look every few seconds from now on; or `once`, at once."""
        self._once = once
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for its thread; whether that has ended: it was finished, or its backend closed."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Look no more; a run under way is left to be resumed."""
        self._over.set()
        self._compactor.finish()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        every_s = min(LOOK_S, self._options.lease_ms / 1_000 / _LOOKS_IN_LEASE)
        while not self._over.wait(0 if self._once else every_s):
            if self._backend.closed:
                return
            try:
                self.look()
                self.problems.pop("", None)
            except LowmarkError as error:
                # No node may be there for a while; the next look finds the next one.
                if not self._over.is_set() and not self._backend.closed:
                    self.problems[""] = error.one_line()
                    logger.warning("tables can't be looked at", extra={"reason": error.message})
            if self._once:
                return

    def look(self) -> list[str]:
        """Compact what is due, and what waits for a worker, now; gives the names of the runs."""
        runs = []
        free, held = self._watch.look()
        for table in self._backend.catalog().all_tables():
            if self._over.is_set():
                break
            until_s, _ = self._waits.get(table.id, (0.0, 0.0))
            seen = free.get(table.id, SeenClaim())
            wanted = table.settings.compaction == "auto" or seen.detached
            if not wanted or table.id in held or time.monotonic() < until_s:
                continue
            try:
                run = self._one(table, seen)
            except RunUnderWay:
                continue  # another process was quicker
            except Exception as error:  # whatever it is, the other tables and this thread go on
                if self._over.is_set() or self._compactor.closing or self._backend.closed:
                    self._tell_end("left", table)
                    break
                self._failed(table, error)
            else:
                self._waits.pop(table.id, None)
                if run is not None:
                    self.problems.pop(table.name, None)
                    runs.append(run)
        for table in self._backend.catalog().all_tables():
            if table.id not in held:
                self._forget_schemas(table)
        if not self._over.is_set() and time.monotonic() >= self._dropped_at_s:
            self._dropped_at_s = time.monotonic() + _DROPPED_S
            self._compactor.sweep_dropped()
        return runs

    def _forget_schemas(self, table: Table) -> None:
        """Forget old schema versions of a table, if it has any and was not looked at lately."""
        count, until_s, wait_s = self._schemas.get(table.id, (0, 0.0, 0.0))
        if len(table.schemas) != count:  # it was altered since
            until_s, wait_s = 0.0, _SCHEMAS_S
        if len(table.schemas) == 1 or time.monotonic() < until_s or self._over.is_set():
            return
        until_s = time.monotonic() + wait_s
        self._schemas[table.id] = len(table.schemas), until_s, min(2 * wait_s, _SCHEMAS_S_MAX)
        try:
            self._compactor.trim_schemas(table)
        except RunUnderWay:
            pass  # it looks at its end
        except LowmarkError as error:
            if not self._compactor.closing and not self._backend.closed:
                logger.warning(
                    "schema versions could not be forgotten",
                    extra={"table": table.name, "reason": error.message},
                )

    def _failed(self, table: Table, error: Exception) -> None:
        _, wait_s = self._waits.get(table.id, (0.0, _BACK_OFF_S))
        self._waits[table.id] = (time.monotonic() + wait_s, min(2 * wait_s, _BACK_OFF_S_MAX))
        said = error.one_line() if isinstance(error, LowmarkError) else repr(error)
        self.problems[table.name] = said
        self._tell_end("cancelled" if isinstance(error, Cancelled) else "failed", table, why=said)
        logger.warning(
            "a table could not be compacted",
            extra={
                "table": table.name,
                "reason": error.message if isinstance(error, LowmarkError) else repr(error),
            },
            exc_info=None if isinstance(error, LowmarkError) else error,
        )

    def _one(self, table: Table, seen: SeenClaim) -> str | None:
        if self._compactor.active(table.id) is not None:
            return None
        left = self._left_over(table, seen)
        if left is not None and seen.cancelled:
            # Its process died before it could end it.
            self._compactor.cancel(table, left.run, over=seen)
            return None
        if left is not None:
            options = self._begun(table, resumed=left.state == "running", why=left.trigger)
            record = self._compactor.resume(
                table, self._runners.get, options, run=left.run, over=seen
            )
        else:
            if seen.claim is not None:  # its run is over, or was never noted
                self._compactor.claims.forget(table.id, seen)
            why, partitions = self._why(table)
            if why is None:
                return None
            options = replace(self._begun(table, why=why), trigger=why)
            record = self._compactor.compact(
                table, partitions, self._runners.get, options, over=SeenClaim()
            )
            if record.state != "done":
                return None  # another process has just compacted it
        self._tell_end("done", table, record=record)
        return record.run

    def _left_over(self, table: Table, seen: SeenClaim) -> RunRecord | None:
        """A run that waits for a worker, or was under way when its process ended. One without a
        claim is of an earlier release: such a one is asked for once.
        """
        records = self._compactor.records
        if seen.claim is not None:
            found = records.find_run(table.id, seen.claim.run)
            left = [] if found is None else [found]
        elif table.id in self._known:
            return None
        else:
            left = [one for one in records.runs(table.id) if one.state == "running"]
            self._known.add(table.id)
        can_go_on = {"planned", "running"}
        left = [one for one in left if one.state in can_go_on and one.trigger != REBUILD]
        return left[0] if left else None

    # -- telling --------------------------------------------------------------------------------

    def _begun(self, table: Table, *, why: str, resumed: bool = False) -> RunOptions:
        """How a run is made that tells when it begins."""

        def step(name: str) -> None:
            if name == "note the run":
                run = self._compactor.active(table.id) or ""
                self._told = run
                event: Literal["began", "resumed"] = "resumed" if resumed else "began"
                self._tell(Told(event=event, table=table.name, run=run, why=why))

        self._told = ""
        return replace(self._options, step=step)

    def _tell_end(
        self,
        event: Literal["done", "failed", "cancelled", "left"],
        table: Table,
        *,
        record: RunRecord | None = None,
        why: str = "",
    ) -> None:
        """Say what became of the run that was begun last; `left`, only if there is one."""
        run, self._told = self._told, ""
        if run or event != "left":
            self._tell(Told(event=event, table=table.name, run=run, record=record, why=why))

    # -- when a table is due --------------------------------------------------------------------

    def _why(self, table: Table) -> tuple[str | None, list[int]]:
        """Why a table is to be compacted now, and its partitions; None if it is not."""
        if table.settings.compaction != "auto":
            return None, []
        there = self._backend.status(table.id, latest=False)
        watermark = self._backend.watermark().value
        why = due(table.settings, [self._dirt(table, one, watermark) for one in there.values()])
        return why, list(there)

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
