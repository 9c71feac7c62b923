"""Starts this node's copies of partitions: a few in each turn of the loop, until all are there.

Making a copy works on the disk in place. So a node does not make a thousand of them in one turn:
other groups have their heartbeats to send in between. One that can't be made (the disk is full) is
tried again by and by; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.group import PeerListener
from lowmark.placement.assignments import PartitionId
from lowmark.runtime import Loop
from lowmark.table import Partition, Tables

logger = logging.getLogger(__name__)

PER_TURN = 8
RETRY_MS = 1_000
"""After this time a copy that could not be started is tried again; twice as long each time."""
RETRY_MS_MAX = 60_000


class Copies:
    """The copies that this node should have."""

    def __init__(
        self,
        loop: Loop,
        tables: Tables,
        *,
        listener: Callable[[PartitionId], PeerListener],
        on_there: Callable[[TableId, int], None],
    ) -> None:
        self._loop = loop
        self._tables = tables
        self._listener = listener
        self._on_there = on_there
        self._wanted: dict[tuple[TableId, int], tuple[tuple[int, ...], bool]] = {}
        """Not started yet: with the founders, and whether it is the only copy."""
        self._there: set[tuple[TableId, int]] = set()
        self._failed: dict[tuple[TableId, int], tuple[LowmarkError, int]] = {}
        """Why, and how often before."""
        self._scheduled = False
        self._closed = False

    def want(self, table: TableId, number: int, *, founders: tuple[int, ...], alone: bool) -> None:
        """Have a copy; `on_there` is called when it is started, and leads if it is the only one."""
        if (table, number) not in self._there:
            self._wanted[table, number] = founders, alone
            self._schedule()

    def cancel(self, table: TableId, number: int) -> None:
        """It is not wanted any more, if it is not there yet."""
        self._wanted.pop((table, number), None)
        self._failed.pop((table, number), None)

    def forget(self, table: TableId, number: int) -> None:
        """It is not to be started any more."""
        self._wanted.pop((table, number), None)
        self._failed.pop((table, number), None)
        self._there.discard((table, number))

    def is_there(self, table: TableId, number: int) -> bool:
        """Whether `on_there` was called for it."""
        return (table, number) in self._there

    @property
    def problems(self) -> list[str]:
        """Which copies can't be started, and why."""
        return [
            f"partition {number} of table {table} can't be started here: {error.message}"
            for (table, number), (error, _) in sorted(
                self._failed.items(), key=lambda item: item[0]
            )
        ]

    def close(self) -> None:
        """Start nothing more."""
        self._closed = True

    def _schedule(self) -> None:
        if self._wanted and not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        for table, number in list(self._wanted)[:PER_TURN]:
            self._start(table, number)
        self._schedule()

    def _start(self, table: TableId, number: int) -> None:
        founders, alone = self._wanted.pop((table, number))
        try:
            partition = self._tables.start(
                table,
                number,
                members=founders,
                listener=self._listener(PartitionId(table, number)),
            )
        except LowmarkError as error:
            logger.warning(
                "a copy can't be started",
                extra={"table": table, "partition": number, "reason": error.message},
            )
            tries = self._failed[table, number][1] + 1 if (table, number) in self._failed else 0
            self._failed[table, number] = error, tries
            wait_ms = min(RETRY_MS << tries, RETRY_MS_MAX)
            self._loop.call_later(wait_ms, lambda: self._again(table, number, founders, alone))
            return
        self._failed.pop((table, number), None)
        if alone:
            self._when_ready(partition)
        else:
            self._is_there(table, number)

    def _again(self, table: TableId, number: int, founders: tuple[int, ...], alone: bool) -> None:
        if (table, number) in self._failed:  # it was not forgotten meanwhile
            self.want(table, number, founders=founders, alone=alone)

    def _when_ready(self, partition: Partition) -> None:
        """A copy without others elects itself, as soon as its vote is durable."""
        ended = False

        def look() -> None:
            nonlocal ended
            group = partition.group
            if not ended and (group.ready or group.stopped is not None):
                ended = True
                end()
                self._is_there(partition.table, partition.number)

        end = partition.follow(look)
        look()

    def _is_there(self, table: TableId, number: int) -> None:
        self._there.add((table, number))
        self._on_there(table, number)
