"""Rows on their way into a node inside this process, and the answers on their way back.

A caller's thread hands them to the loop and goes on; the loop numbers them and gives each batch to
the group of its partition. When the last one has its answer, the caller may have them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from lowmark.backend.node_thread import NodeThread
from lowmark.backend.values import Answer
from lowmark.catalog import Table, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future, together
from lowmark.node import ThreadAnswer
from lowmark.table import Appended, Outgoing, Producing, Renewal, Tables

_ANSWER_S = 1.0
"""So often a thread that waits looks whether the loop still runs."""


class EmbeddedSent(ThreadAnswer[list[Future[Appended]]]):
    """See `Sent`. The loop settles it, once."""

    __slots__ = ("_node", "_parts", "bytes")

    def __init__(self, node: NodeThread, parts: Sequence[tuple[int, Outgoing]]) -> None:
        super().__init__()
        self._node = node
        self._parts = len(parts)
        self.bytes = 0
        for _, batch in parts:
            self.bytes += len(batch.message)

    def answers(self, timeout_s: float | None = None) -> list[Answer] | None:
        """See `Sent`."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        left_s = _ANSWER_S if timeout_s is None else max(0.0, min(_ANSWER_S, timeout_s))
        while not self.wait(left_s):
            if not self._node.running and not self.done:
                # What waits when the loop ends is never answered.
                return [self._node.ended()] * self._parts
            if ends_at is not None:
                left_s = min(_ANSWER_S, ends_at - time.monotonic())
                if left_s <= 0:
                    return None
        return [done.error or done.result() for done in self.result(0)]


class EmbeddedAppender:
    """See `Appender`."""

    def __init__(
        self,
        node: NodeThread,
        tables: Tables,
        table: TableId,
        *,
        described: Callable[[], Table | None],
        producer: bytes,
        epoch: int,
    ) -> None:
        self._node = node
        self._tables = tables
        self._table = table
        self._bridge = node.node.bridge
        self._described = described
        self._renewal = Renewal(described)
        self._producing = Producing(
            node.node.runtime,
            producer=producer,
            epoch=epoch,
            timeout_ms=node.node.settings.group.request_timeout_ms,
            renew=self._renew,
        )

    def send(self, parts: Sequence[tuple[int, Outgoing]]) -> EmbeddedSent:
        """See `Appender`."""
        self._node.check()
        for _, batch in parts:
            self._renewal.knows(batch.schema)
        sent = EmbeddedSent(self._node, parts)
        if parts:
            self._bridge.call(partial(self._send, parts, sent))
        else:
            sent.settle([])
        return sent

    def _renew(self, batch: Outgoing) -> Future[Outgoing]:
        """On the loop: rare, and a batch is not large."""
        try:
            return Future.of(self._renewal.renewed(batch, self._described()))
        except LowmarkError as error:
            return Future.failed(error)

    def _send(self, parts: Sequence[tuple[int, Outgoing]], sent: EmbeddedSent) -> None:
        """On the loop."""
        futures: list[Future[Appended]] = []
        for number, batch in parts:
            try:
                futures.append(self._producing.send(self._tables.way(self._table, number), batch))
            except LowmarkError as error:
                futures.append(Future.failed(error))
        together(futures).then(lambda _: sent.settle(futures))
