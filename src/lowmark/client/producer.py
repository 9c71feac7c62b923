"""Rows that come one at a time, gathered into batches: few syncs, and little to do per row.

A row waits at most `linger_ms`, or until `batch_rows` are there. Batches are made and handed over
on a thread of the producer's own; a bounded number is under way, and `send` waits when there are
more. Rows keep their order within a partition.

What goes wrong is told at the next call: a producer that has failed takes nothing more, and
`unsent` are the rows that were not stored, or of which that is not known.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from lowmark.client.appending import Part, Pending
from lowmark.client.failures import ProducerClosed
from lowmark.errors import LowmarkError, Rejected

__all__ = ["Producer"]

_QUEUED_BATCHES = 4
"""Rows that wait for the producer's thread: so many batches of them."""


class Sink(Protocol):
    """Where a producer's rows go."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    def check(self) -> None:
        """Raise if nothing can be sent any more."""

    def submit(self, rows: list[Mapping[str, Any]]) -> list[Pending]:
        """Hand rows over."""

    def wait(self, pending: Pending) -> list[Part]:
        """Where they went."""


class Producer:
    """Made by `Table.producer`; close it, best by `with`: what was sent is stored then."""

    def __init__(self, sink: Sink, *, linger_ms: float, batch_rows: int, in_flight: int) -> None:
        if linger_ms < 0 or batch_rows < 1 or in_flight < 1:
            raise Rejected(
                "a producer lingers for 0 ms or longer, with batches of at least one row",
                hint="Use linger_ms >= 0, batch_rows >= 1 and in_flight >= 1.",
            )
        self._sink = sink
        self._linger_s = linger_ms / 1_000
        self._batch_rows = batch_rows
        self._in_flight = in_flight
        self._queued_max = batch_rows * _QUEUED_BATCHES
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """There is something to do for the thread."""
        self._room = threading.Condition(self._lock)
        """Something was done."""
        self._rows: list[Mapping[str, Any]] = []
        self._under_way: deque[tuple[Pending, list[Mapping[str, Any]]]] = deque()
        self._busy = False
        self._flushing = 0
        self._closing = False
        self._error: BaseException | None = None
        self._handing: list[Mapping[str, Any]] = []
        """Rows that are being handed over."""
        self.unsent: list[Mapping[str, Any]] = []
        """After a failure, in order: all rows of batches of which not everything is known to be
        stored. Some of them may be: look before you send them again.
        """
        self.rows = 0
        """How many were stored."""
        # With its first list Arrow imports pandas, where there is one. The first rows may be made
        # into a batch when the interpreter ends, and then nothing can be imported any more.
        pa.array([0])
        self._thread = threading.Thread(target=self._run, name="lowmark-producer", daemon=True)
        self._thread.start()
        _producers.add(self)

    def stay_behind(self) -> None:
        """In a child process: its thread, and what was sent, are the parent's."""
        # The thread may have held the lock when it was left behind.
        self._lock = threading.Lock()
        self._work, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._rows, self._busy = [], False
        self._under_way.clear()
        try:
            self._sink.check()
        except LowmarkError as error:
            self._error = error

    def send(self, row: Mapping[str, Any]) -> None:
        """Have a row stored soon; `flush` to know that it is."""
        with self._lock:
            if self._error is not None or self._closing or self._sink.closed:
                self._raise()
            rows = self._rows
            rows.append(dict(row))  # the caller may use it again
            count = len(rows)
            if count in {1, self._batch_rows}:
                self._work.notify()
            elif count >= self._queued_max:
                self._wait_for_room()

    def send_many(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Have rows stored soon."""
        for row in rows:
            self.send(row)

    def _wait_for_room(self) -> None:
        while len(self._rows) >= self._queued_max and self._error is None:
            self._room.wait(1.0)
        if self._error is not None:
            self._raise()

    def flush(self) -> None:
        """Wait until all that was sent is stored."""
        with self._lock:
            self._flushing += 1
            self._work.notify()
            try:
                while self._error is None and (self._rows or self._busy or self._under_way):
                    self._room.wait(1.0)
                    self._sink.check()
            finally:
                self._flushing -= 1
            if self._error is not None:
                self._raise()

    def close(self) -> None:
        """Store what was sent, and take nothing more."""
        if self._closing:
            return
        try:
            self.flush()
        finally:
            self._stop()

    def finish(self) -> None:
        """Its database is about to close: store what was sent."""
        if self._error is None and not self._closing:
            self.flush()

    def _stop(self) -> None:
        with self._lock:
            self._closing = True
            self._work.notify()
        self._thread.join(30.0)

    def _raise(self) -> None:
        if self._error is None:
            self._sink.check()
            raise ProducerClosed
        error = self._error
        raise error.again() if isinstance(error, LowmarkError) else error

    # -- on its own thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self._lock:
                self._error = error
                last: list[Mapping[str, Any]] | None = None
                for _, rows in self._under_way:
                    if rows is not last:  # rows that were handed over in several parts
                        self.unsent += rows
                    last = rows
                if self._handing is not last:
                    self.unsent += self._handing
                self.unsent += self._rows
                self._rows = []
                self._under_way.clear()
                self._busy = False
                self._room.notify_all()

    def _step(self) -> bool:
        """Send what is there, or wait for it; False when all is done."""
        with self._lock:
            if not self._rows and not self._under_way:
                if self._closing:
                    return False
                self._work.wait(1.0)
                if self._sink.closed and not self._rows:
                    return False  # a database that was closed has no producers
            if self._rows and not self._under_way:
                self._linger()
            rows = self._take()
            self._busy = bool(rows)
        if rows:
            self._handing = rows
            self._hand_over(rows)
            self._handing = []
        self._collect(wait=not rows)
        with self._lock:
            self._busy = False
            self._room.notify_all()
        return True

    def _linger(self) -> None:
        """Wait for more rows, unless somebody waits for these."""
        if len(self._rows) < self._batch_rows and not self._flushing and not self._closing:
            self._work.wait(self._linger_s)

    def _take(self) -> list[Mapping[str, Any]]:
        if len(self._under_way) >= self._in_flight:
            return []
        rows = self._rows
        if len(rows) <= self._batch_rows:
            self._rows = []
            return rows
        self._rows = rows[self._batch_rows :]
        return rows[: self._batch_rows]

    def _hand_over(self, rows: list[Mapping[str, Any]]) -> None:
        for pending in self._sink.submit(rows):
            self._under_way.append((pending, rows))

    def _collect(self, *, wait: bool) -> None:
        """Take the answers that are there; or wait for the first one."""
        while self._under_way:
            pending, _ = self._under_way[0]
            if not pending.done and not wait:
                return
            parts = self._sink.wait(pending)
            self._under_way.popleft()
            self.rows += sum(part.rows for part in parts)
            wait = False

    # -- with -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Whoever left by an error must not wait, and must not get another error instead.
            self._stop()


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _forked() -> None:
    # Nobody would ever take what is sent in the child, and whoever waits would wait for ever.
    for producer in list(_producers):
        producer.stay_behind()


os.register_at_fork(after_in_child=_forked)
