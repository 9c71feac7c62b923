"""Where the work of a run is carried out: on Spark, or right here. And the part of it that runs
there.

A runner takes packs of work, one for each task, and gives the answers. It knows nothing of what the
work is; Spark's is in `lowmark.spark`, which is loaded when it is first needed.
"""

from __future__ import annotations

import importlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol

from lowmark.client.failures import Cancelled
from lowmark.errors import Corrupt, LowmarkError
from lowmark.ledger import carry_out
from lowmark.node.faults import encode_fault
from lowmark.runtime import Disk, RealDisk

__all__ = ["HereRunner", "OwnSpark", "Runner", "on_session", "work_off"]


class Runner(Protocol):
    """Carries work out."""

    @property
    def slots(self) -> int:
        """So many tasks run at once."""

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """Call a function on every piece of every pack; gives all answers, in order."""

    def cancel(self) -> None:
        """End what runs; whoever waits for it gets `Cancelled`. From any thread."""

    def close(self) -> None:
        """Nothing more is run."""


_unwanted: ContextVar[threading.Event | None] = ContextVar("unwanted", default=None)


class HereRunner:
    """In this process, one piece after another: no Java, no start, one core."""

    slots = 1

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """See `Runner`."""
        del label
        token = _unwanted.set(self._cancelled)
        try:
            return [function(piece) for pack in packs for piece in pack]
        finally:
            _unwanted.reset(token)
            self._cancelled.clear()

    def cancel(self) -> None:
        """See `Runner`."""
        self._cancelled.set()

    def close(self) -> None:
        """See `Runner`."""


class OwnSpark:
    """A Spark session that this process has opened for its runs: it is slow to start, so it stays
    for the next one. There is one at a time, as Spark has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._master = ""
        self._runner: Runner | None = None

    def get(self, master: str) -> Runner:
        """A runner on that master, with the session that is there, if it still answers."""
        # The only room that knows pyspark, which is optional and slow to import.
        spark = importlib.import_module("lowmark.spark")
        with self._lock:
            if self._runner is not None and (master != self._master or not _answers(self._runner)):
                self._close()
            if self._runner is None:
                self._runner = spark.SparkRunner(spark.open_session(master), owns=True)
                self._master = master
            assert self._runner is not None
            return self._runner

    def finish(self) -> None:
        """The database is about to be closed."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


def _answers(runner: Runner) -> bool:
    try:
        return runner.slots > 0
    except LowmarkError:
        return False


def on_session(session: object) -> Runner:
    """A runner on a Spark session of the caller's."""
    spark = importlib.import_module("lowmark.spark")
    runner: Runner = spark.SparkRunner(session)
    return runner


def work_off(data: bytes) -> bytes:
    """One partition's part of a run, in whatever process this is.

    Damage is an answer, too (`decode_fault` reads it): it must not keep other partitions from
    being compacted.
    """
    try:
        return carry_out(data, _ThisProcess())
    except Corrupt as damage:
        return encode_fault(damage)


class _ThisProcess:
    """See `lowmark.ledger.Here`."""

    def now_s(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        event = _unwanted.get()
        if event is None:
            time.sleep(seconds)
        else:
            event.wait(seconds)
            self.check()

    def draw(self) -> str:
        return secrets.token_hex(4)

    def disk(self, root: str) -> Disk:
        return RealDisk(root, create=False)

    def check(self) -> None:
        event = _unwanted.get()
        if event is not None and event.is_set():
            raise Cancelled("the run was cancelled")
