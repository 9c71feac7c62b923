"""Rows that come one at a time, gathered into batches: few syncs, and little to do per row.

A row waits at most `linger_ms`, or until `batch_rows` are there. Batches are made and handed over
on a thread of the producer's own; a bounded number is under way, and `send` waits when there are
more. Rows keep their order within a partition.

Rows are stored in the order in which they were sent, so a number says how far that is: `flush` and
`close` wait until as many are stored as had been sent when they were called. What other threads
send meanwhile does not hold them up.

`send` takes the lock for each row. `send_many` lets the queue take rows from its source without
the lock, as many at a time as make a batch, and looks only after that whether it is still the
producer's queue: one that was closed, or has failed, has a new one that stays empty.

The next call raises what went wrong: a producer that has failed takes nothing more, and
`unsent` are the rows that were not stored, or of which that is not known.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, repeat, starmap
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from lowmark.backend.errors import ProducerClosed
from lowmark.client.appending import Part, Pending
from lowmark.errors import LowmarkError, Rejected
from lowmark.runtime import by_name

_QUEUED_BATCHES = 4
"""Rows that wait for the producer's thread: so many batches of them."""
_LOOK_S = 1.0
_STOP_S = 30.0
_POUR_S = 0.001
"""While `send_many` waits for its source, its rows are looked for at least so far apart."""


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
        self._rows: deque[Mapping[str, Any]] = deque()
        """Rows that wait. Others than the thread only add to it."""
        self._under_way: deque[tuple[Pending, list[Mapping[str, Any]], int]] = deque()
        """What was handed over, with its rows, and how many rows were taken before those."""
        self._taken = 0
        """How many rows the thread has taken, of all that were sent."""
        self._settled = 0
        """How many of those were stored: all before the first that are under way."""
        self._flushing = 0
        self._pouring = 0
        """How many calls of `send_many` are under way."""
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
        self._rows, self._settled = deque(), self._taken
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
        """Have rows stored soon; much quicker than to `send` each of them.

        Rows that were taken from an iterator are sent, also if it fails after them. If the producer
        ends meanwhile, those that it no longer takes are in `unsent`.
        """
        copies = map(dict, rows)  # the caller may use them again
        with self._lock:
            self._pouring += 1
            self._work.notify()
        try:
            while self._pour(copies):
                pass
        finally:
            with self._lock:
                self._pouring -= 1

    def _pour(self, rows: Iterator[Mapping[str, Any]]) -> bool:
        """Let the queue take a batch of rows; False when there are no more."""
        with self._lock:
            self._wait_for_room()
            if self._closing or self._sink.closed:
                self._raise()
            queue = self._rows
        try:
            for first in rows:
                # Each row is there for the thread as soon as the source has given it.
                queue.append(first)
                queue.extend(islice(rows, self._batch_rows - 1))
                return True
            return False
        finally:
            with self._lock:
                if queue is not self._rows:
                    # Others may add to it right now: what they add, they take out themselves.
                    self.unsent += _some(queue, len(queue))
                    self._raise()
                self._work.notify()

    def _wait_for_room(self) -> None:
        while len(self._rows) >= self._queued_max and self._error is None:
            self._room.wait(_LOOK_S)
        if self._error is not None:
            self._raise()

    def flush(self) -> None:
        """Wait until all that was sent before is stored."""
        with self._lock:
            self._wait_until_stored(self._taken + len(self._rows))

    def _wait_until_stored(self, rows: int) -> None:
        """Holding the lock: wait for the first rows of all that were sent."""
        self._flushing += 1
        self._work.notify()
        try:
            while self._error is None and self._settled < rows:
                self._room.wait(_LOOK_S)
                self._sink.check()
        finally:
            self._flushing -= 1
        if self._error is not None:
            self._raise()

    def close(self) -> None:
        """Store what was sent, and take nothing more."""
        with self._lock:
            if self._closing:
                return
            self._end_queue()
        try:
            with self._lock:
                self._wait_until_stored(self._taken + len(self._rows))
        finally:
            self._thread.join(_STOP_S)

    def finish(self) -> None:
        """Its database is about to close: store what was sent."""
        if self._error is None:
            self.flush()

    def _stop(self) -> None:
        with self._lock:
            self._end_queue()
        self._thread.join(_STOP_S)

    def _end_queue(self) -> None:
        """Holding the lock: take nothing more, and leave behind those that still add to it."""
        self._closing = True
        self._rows = deque(_some(self._rows, len(self._rows)))
        self._work.notify()

    def _raise(self) -> None:
        if self._error is None:
            self._sink.check()
            raise ProducerClosed
        error = self._error
        error = by_name(error, where="a producer")
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
                for _, rows, _ in self._under_way:
                    if rows is not last:  # rows that were handed over in several parts
                        self.unsent += rows
                    last = rows
                if self._handing is not last:
                    self.unsent += self._handing
                self.unsent += _some(self._rows, len(self._rows))
                self._rows = deque()
                self._under_way.clear()
                self._room.notify_all()

    def _step(self) -> bool:
        """Send what is there, or wait for it; False when all is done."""
        with self._lock:
            if not self._rows and not self._under_way:
                if self._closing:
                    return False
                self._work.wait(max(self._linger_s, _POUR_S) if self._pouring else _LOOK_S)
                if self._sink.closed and not self._rows:
                    self._rows = deque()  # a database that was closed has no producers
                    return False
            if self._rows and not self._under_way:
                self._linger()
            before = self._taken
            rows = self._take()
        if rows:
            self._handing = rows
            for pending in self._sink.submit(rows):
                self._under_way.append((pending, rows, before))
            self._handing = []
        self._collect(wait=not rows)
        with self._lock:
            self._settled = self._under_way[0][2] if self._under_way else self._taken
            self._room.notify_all()
        return True

    def _linger(self) -> None:
        """Wait for more rows, unless a caller waits for these."""
        ends_at = time.monotonic() + self._linger_s
        while len(self._rows) < self._batch_rows and not self._flushing and not self._closing:
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                return
            self._work.wait(left_s)

    def _take(self) -> list[Mapping[str, Any]]:
        if len(self._under_way) >= self._in_flight:
            return []
        rows = _some(self._rows, min(len(self._rows), self._batch_rows))
        self._taken += len(rows)
        return rows

    def _collect(self, *, wait: bool) -> None:
        """Take the answers that are there; or wait for the first one."""
        while self._under_way:
            pending = self._under_way[0][0]
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
            # A caller that left by an error must not wait, and must not get another error instead.
            self._stop()


def _some(queue: deque[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """The first rows of a queue, out of it. Not by a loop over it: others may add to it."""
    return list(starmap(queue.popleft, repeat((), count)))


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _forked() -> None:
    # No thread would ever take what is sent in the child, and callers would wait for ever.
    for producer in list(_producers):
        producer.stay_behind()


os.register_at_fork(after_in_child=_forked)
