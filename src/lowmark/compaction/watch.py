"""Looks after a run while it works, on a thread: renews what it holds, tells how far it is, and
looks whether another process asks it to end, by a file in the run's folder (see `cancel`).

Progress comes from the files that tasks leave in the same folder, wherever they run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from lowmark.compaction.context import RunContext
from lowmark.compaction.options import Progress
from lowmark.errors import LowmarkError
from lowmark.ledger import PartitionPlan, RunRecord, done_path, progress_path, run_folder
from lowmark.runtime.store import Store

_RENEW_S = 60.0
_LOOK_S, _LOOK_ELSEWHERE_S = 0.25, 2.0
"""How often a run is looked after: each look is a request to the store."""


class RunWatch:
    """Looks after one run."""

    def __init__(self, context: RunContext, renew: Callable[[], None]) -> None:
        self._store = context.store
        self._wanted = context.options.progress
        self._token = context.token
        self._renew = renew
        self._told: Progress | None = None
        self.spoilt: Exception | None = None
        """What the caller's function for progress has raised."""

    @contextlib.contextmanager
    def over(self, record: RunRecord) -> Iterator[None]:
        """Meanwhile the run is looked after."""
        ended = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(record, ended), name=f"lowmark {record.run}", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def tell_whole(self, record: RunRecord) -> None:
        """Say that all of a plan is done."""
        self._tell(_whole(record))

    def _watch(self, record: RunRecord, ended: threading.Event) -> None:
        store, renewed_s = self._store, time.monotonic()
        folder = run_folder(record.table, record.run)
        with contextlib.suppress(LowmarkError):
            # So that whoever has no more than the files can tell that it goes on, and ask it to
            # end. A word from before it was resumed is not meant for it.
            store.delete(f"{folder}/cancel")
            store.hint(f"{folder}/begun", b"")
        while not ended.wait(_LOOK_S if store.local else _LOOK_ELSEWHERE_S):
            with contextlib.suppress(LowmarkError):
                if self._token.cancelled or store.stat(f"{folder}/cancel") is not None:
                    self._token.cancel()  # again: what was about to begin before goes on now
                if time.monotonic() - renewed_s > _RENEW_S:
                    renewed_s = time.monotonic()
                    self._renew()
                if self._wanted is not None:
                    try:
                        self._tell(_progress(store, record))
                    except Exception as error:
                        # The caller's own: it ends the run, and comes out where the caller waits.
                        self.spoilt = error
                        self._token.cancel()
                        return

    def _tell(self, now: Progress) -> None:
        """Say how far it is; never less than before, though a task may begin anew."""
        if self._wanted is None:
            return
        if self._told is not None:
            now = replace(
                now,
                bytes_done=max(now.bytes_done, self._told.bytes_done),
                partitions_done=max(now.partitions_done, self._told.partitions_done),
            )
        self._told = now
        self._wanted(now)


def _progress(store: Store, record: RunRecord) -> Progress:
    """How far a run is, by the files in its folder."""
    done, ready, whole = 0, 0, _whole(record)
    there = {one.path for one in store.files(run_folder(record.table, record.run))}
    for plan in _not_skipped(record):
        if done_path(record.table, record.run, plan.partition) in there:
            done, ready = done + plan.bytes, ready + 1
            continue
        path = progress_path(record.table, record.run, plan.partition)
        if path in there:
            with contextlib.suppress(LowmarkError, ValueError):
                # It reads everything twice: once for the keys, once for the rows.
                done += min(int(store.read(path)) // 2, plan.bytes)
    return replace(
        whole,
        step="compacting",
        bytes_done=min(done, whole.bytes_total),
        partitions_done=ready,
    )


def _whole(record: RunRecord) -> Progress:
    """Of a run that has done all of its plan."""
    plans = _not_skipped(record)
    total = sum(one.bytes for one in plans)
    return Progress("done", total, total, len(plans), len(plans))


def _not_skipped(record: RunRecord) -> list[PartitionPlan]:
    return [one for one in record.partitions if one.state != "skipped"]
