"""Phase 4: the leader appends copies of scattered live entries, so that they stand together again.

In chunks, each applied before the next is proposed, and no faster than the limit: ordinary
proposals go in between. What has died before its turn is left out; what dies between being copied
and being applied is the machine's to notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowmark.errors import LowmarkError
from lowmark.group import envelope
from lowmark.group.machine import Machine
from lowmark.log import GroupLog
from lowmark.runtime import Future

if TYPE_CHECKING:
    from lowmark.group.leadership import Leadership


class Rewrite:
    """One run over given indexes; `future` gives how many entries were copied."""

    def __init__(
        self,
        host: Leadership,
        log: GroupLog,
        machine: Machine,
        chunks: list[list[int]],
        *,
        bytes_per_s: int | None = None,
    ) -> None:
        self._host = host
        self._log = log
        self._machine = machine
        self._chunks = chunks
        usual: int = host.config.rewrite_bytes_per_s
        self._bytes_per_s = usual if bytes_per_s is None else bytes_per_s
        live = machine.live_indexes()
        self.planned = sum(index in live for chunk in chunks for index in chunk)
        """How many entries it was to copy when it was made."""
        self.copied = 0
        self.copied_bytes = 0
        self.future: Future[int] = Future()

    def next_chunk(self) -> None:
        """Propose the next chunk, or end."""
        if self.future.done:
            return
        live = self._machine.live_indexes()
        indexes: list[int] = []
        while self._chunks and not indexes:
            indexes = [index for index in self._chunks.pop(0) if index in live]
        if not indexes:
            self.future.resolve(self.copied)
            return
        try:
            datas = self._copies(indexes)
            futures = self._host.propose_wrapped(datas)
        except LowmarkError as error:
            self.future.reject(error)
            return
        waiting = len(futures)
        size = sum(map(len, datas))

        def one(done: Future[object]) -> None:
            nonlocal waiting
            waiting -= 1
            if done.error is not None:
                self.future.reject(done.error)
                return
            self.copied += 1
            if waiting == 0:
                self.copied_bytes += size
                rate = self._bytes_per_s
                delay = size * 1_000 / rate if rate else 0
                self._host.later(delay, self.next_chunk)

        for future in futures:
            future.then(one)

    def _copies(self, indexes: list[int]) -> list[bytes]:
        """Copies of the first entries; what would be too much at once is the next chunk."""
        datas: list[bytes] = []
        size = 0
        for at, index in enumerate(indexes):
            if size >= self._host.config.message_bytes_max:
                self._chunks.insert(0, indexes[at:])
                break
            (entry,) = self._log.read([index])
            datas.append(envelope.copy_of(index, entry.data))
            size += len(datas[-1])
        return datas

    def stop(self, error: LowmarkError) -> None:
        """End it here."""
        self.future.reject(error)
