"""Batches on their way from a server: bounded answers, one after another, resumed by position.

An answer is read to its end before any of it is given: a reader that takes its time costs the
server nothing. While it works on one answer the next one is fetched by a thread of the client's,
unless all reads of the client together are ahead by too much. The threads are kept: memory that a
new thread gets from the operating system costs more than the rows that go into it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

from lowmark.backend.connection import Connection, is_left_behind, is_passing
from lowmark.backend.errors import Closed
from lowmark.backend.protocol import commands_of
from lowmark.backend.values import BatchRange
from lowmark.catalog import TableId
from lowmark.errors import Corrupt, LowmarkError
from lowmark.runtime import Buffer

AHEAD_BYTES: Final = 64 << 20
"""What all reads of a client may have fetched and not given, before they fetch nothing ahead."""
ANSWER_BYTES: Final = 16 << 20
THREADS: Final = 2
_PAUSE_S: Final = 0.05

Answer: TypeAlias = list[list[Buffer]]
"""Whole ranges, the commands of each."""


class Ahead:
    """What all reads of a client are ahead by, and the threads that fetch it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self.bytes = 0
        """Fetched, or being fetched, and not given."""
        self.reads = 0

    def add(self, *, some: int = 0, reads: int = 0) -> None:
        """Count bytes that were fetched or given, reads that have begun or ended."""
        with self._lock:
            self.bytes += some
            self.reads += reads

    @property
    def share(self) -> int:
        """What one answer may have."""
        return min(ANSWER_BYTES, AHEAD_BYTES // max(1, self.reads))

    def pool(self) -> ThreadPoolExecutor | None:
        """Threads that fetch; None if there is enough already."""
        with self._lock:
            if self._closed or self.bytes >= AHEAD_BYTES:
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "lowmark-read")
            return self._pool

    def close(self) -> None:
        """Fetch nothing more."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


class _Following(NamedTuple):
    """An answer that is being fetched, and what it was counted with."""

    answer: Future[Answer]
    reserved: int


class RemoteRead:
    """The batches of ranges of one partition."""

    def __init__(
        self,
        connection: Connection,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float,
        ahead: Ahead,
    ) -> None:
        self._connection = connection
        self._ahead = ahead
        self._where = table, partition
        self._ranges = ranges
        self._held = held
        self._timeout_s = timeout_s

    def __iter__(self) -> Iterator[list[Buffer]]:
        at = 0
        following: _Following | None = None
        self._ahead.add(reads=1)
        try:
            while at < len(self._ranges):
                answer = deque(self._fetch(at) if following is None else self._fetched(following))
                at += len(answer)
                if following is not None:
                    self._ahead.add(some=-following.reserved)
                following = self._begin(at)
                while answer:
                    yield answer.popleft()  # it is its reader's alone from here on
        finally:
            self._ahead.add(reads=-1)
            if following is not None:
                following.answer.cancel()
                self._ahead.add(some=-following.reserved)

    def _begin(self, at: int) -> _Following | None:
        """Have the next answer fetched while the reader works on this one."""
        pool = self._ahead.pool() if at < len(self._ranges) else None
        if pool is None:
            return None
        reserved = self._ahead.share
        try:
            following = _Following(pool.submit(self._fetch, at), reserved)
        except RuntimeError:  # closed just now
            return None
        self._ahead.add(some=reserved)
        return following

    def _fetched(self, following: _Following) -> Answer:
        try:
            return following.answer.result()
        except CancelledError:  # the client was closed before a thread began with it
            raise Closed(self._connection.address) from None

    def _fetch(self, at: int) -> Answer:
        """One answer; if it breaks before it has anything, it is asked for again."""
        ends_at = time.monotonic() + self._timeout_s
        found: Answer = []
        while True:
            try:
                self._read(at, ends_at, found)
            except LowmarkError as error:
                over = time.monotonic() + _PAUSE_S >= ends_at
                elsewhere = self._connection.has_others and is_left_behind(error)
                if not found and (over or not (is_passing(error) or elsewhere)):
                    raise
                if not found:
                    time.sleep(_PAUSE_S)
            else:
                if not found:
                    raise Corrupt(f"the server at {self._connection.address} gave no batches")
            if found:
                return found  # what broke behind it is asked for next

    def _read(self, at: int, ends_at: float, found: Answer) -> None:
        table, partition = self._where
        left_s = max(0.0, ends_at - time.monotonic())
        commands: list[Buffer] = []
        for chunk in self._connection.read(
            "batches",
            table,
            partition,
            tuple(self._ranges[at:]),
            held=self._held,
            timeout_s=left_s,
            bytes_max=self._ahead.share,
        ):
            commands.extend(commands_of(chunk.data))
            if chunk.app_metadata is not None:  # the last of its range
                found.append(commands)
                commands = []
