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

AHEAD_BYTES: Final = 16 << 20
"""Read, and not taken: then the next answer is not asked for yet."""
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 1.0


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
    ) -> None:
        self._connection = connection
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
                self._changed.notify_all()

    def _next(self) -> list[Buffer]:
        with self._changed:
            while not self._found and self._error is None:
                self._changed.wait(_LOOK_S)
            if not self._found:
                assert self._error is not None
                raise self._error
            commands = self._found.popleft()
            self._bytes -= sum(map(len, commands))
            self._changed.notify_all()
            return commands

    # -- ahead of the reader ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._read_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

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
            "batches", table, partition, wanted, held=self._held, timeout_s=left_s
        ):
            commands.extend(commands_of(chunk.data))
            if chunk.app_metadata is not None:  # the last of its range
                yield commands
                commands = []

    def _put(self, commands: list[Buffer]) -> None:
        with self._changed:
            self._found.append(commands)
            self._bytes += sum(map(len, commands))
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """False if the reader wants no more."""
        with self._changed:
            while self._bytes > AHEAD_BYTES and not self._over and len(self._ranges) > 1:
                self._changed.wait(_LOOK_S)
            return not self._over
