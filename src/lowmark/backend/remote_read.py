"""Batches on their way from a server: bounded answers, one after another, resumed by position.

An answer is read to its end whatever its reader does meanwhile: one that takes its time costs the
server nothing. A thread does that while the reader decodes: it is ahead by some bytes, and then it
asks for nothing more before the reader has caught up. A single range needs no thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from lowmark.backend.connection import Connection, is_passing
from lowmark.backend.protocol import commands_of
from lowmark.backend.values import BatchRange
from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer

AHEAD_BYTES: Final = 64 << 20
"""What all reads of a client are ahead of their readers together; each has at least one range."""
ANSWER_BYTES: Final = 16 << 20
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 1.0


class Ahead:
    """How far all reads of a client are ahead. A reader of many partitions has a read for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = 0
        """Read, and not taken."""
        self.reads = 0

    def add(self, *, some: int = 0, reads: int = 0) -> None:
        """Count bytes that were read or taken, reads that have begun or ended."""
        with self._lock:
            self.bytes += some
            self.reads += reads

    @property
    def full(self) -> bool:
        """Whether nothing more is asked for in advance."""
        return self.bytes >= AHEAD_BYTES

    @property
    def share(self) -> int:
        """What one answer may have."""
        return min(ANSWER_BYTES, AHEAD_BYTES // max(1, self.reads))


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
        self._changed = threading.Condition()
        self._found: deque[list[Buffer]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._over = False

    def __iter__(self) -> Iterator[list[Buffer]]:
        if len(self._ranges) <= 1:
            self._run()
            yield from self._found
            if self._error is not None:
                raise self._error
            return
        threading.Thread(target=self._run, name="lowmark-read", daemon=True).start()
        try:
            for _ in self._ranges:
                yield self._next()
        finally:
            with self._changed:
                self._over = True
                self._forget()
                self._changed.notify_all()

    def _forget(self) -> None:
        """Holding the lock: what is there is not wanted any more."""
        self._ahead.add(some=-self._bytes)
        self._found.clear()
        self._bytes = 0

    def _next(self) -> list[Buffer]:
        with self._changed:
            while not self._found and self._error is None:
                self._changed.wait(_LOOK_S)
            if not self._found:
                assert self._error is not None
                raise self._error
            commands = self._found.popleft()
            size = sum(map(len, commands))
            self._bytes -= size
            self._ahead.add(some=-size)
            self._changed.notify_all()
            return commands

    # -- ahead of the reader ----------------------------------------------------------------------

    def _run(self) -> None:
        self._ahead.add(reads=1)
        try:
            self._read_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._ahead.add(reads=-1)

    def _read_all(self) -> None:
        """Answer by answer; one that broke is asked for again from where it was."""
        at, ends_at = 0, time.monotonic() + self._timeout_s
        while at < len(self._ranges) and self._wait_for_room():
            before = at
            try:
                for commands in self._answer(at, ends_at):
                    self._put(commands)
                    at += 1
            except LowmarkError as error:
                over = time.monotonic() + _PAUSE_S >= ends_at
                if not is_passing(error) or (over and at == before):
                    raise
                time.sleep(_PAUSE_S)
            if at > before:
                ends_at = time.monotonic() + self._timeout_s

    def _answer(self, at: int, ends_at: float) -> Iterator[list[Buffer]]:
        """Whole ranges, as many as one answer has."""
        table, partition = self._where
        wanted = tuple(self._ranges[at:])
        left_s = max(0.0, ends_at - time.monotonic())
        commands: list[Buffer] = []
        for chunk in self._connection.read(
            "batches",
            table,
            partition,
            wanted,
            held=self._held,
            timeout_s=left_s,
            bytes_max=self._ahead.share,
        ):
            commands.extend(commands_of(chunk.data))
            if chunk.app_metadata is not None:  # the last of its range
                yield commands
                commands = []

    def _put(self, commands: list[Buffer]) -> None:
        size = sum(map(len, commands))
        with self._changed:
            if self._over:
                return
            self._found.append(commands)
            if len(self._ranges) > 1:
                self._bytes += size
                self._ahead.add(some=size)
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """False if the reader wants no more."""
        with self._changed:
            while (
                self._found and not self._over and (self._bytes >= ANSWER_BYTES or self._ahead.full)
            ):
                self._changed.wait(_LOOK_S)
            return not self._over
