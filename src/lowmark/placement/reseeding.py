"""Has damaged copies made anew from the others, by themselves, where that is safe.

A copy that fails a checksum is in quarantine: it neither votes nor acknowledges. As long as it is
one, a partition with three copies stands still when it loses one more. So its node asks for what
an operator would (`rebuilding`), until the copy is sound:

    1. only damage counts. What a newer release wrote, or the disk refuses to read, stays
    2. the copy goes only if another node leads the partition, and has just confirmed with a
       majority that it does, and who is a member. The copy is in no majority, so all that was ever
       acknowledged is in that one
    3. without such a leader it stays as it is, and is asked for again: later, or by an operator
    4. a few at a time, as with moves: a damaged directory of a WAL batch takes all copies of a node
    5. one that is damaged again and again waits longer each time: its disk is sick, and its
       neighbours should not send everything once a second

The log says what was damaged, and where, before it goes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Final

from lowmark.errors import CopySound, LowmarkError
from lowmark.group import Future
from lowmark.placement.assignments import PartitionId
from lowmark.placement.config import RebalanceConfig
from lowmark.placement.rebuilding import Rebuild, Rebuilding
from lowmark.runtime import Loop
from lowmark.table import Tables

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
STANDS_MS: Final = 30_000
"""One that was thrown away, and that no leader has added since, leaves its turn to others."""
RETRY_MS: Final = 2_000
RETRY_MS_MAX: Final = 60_000
AGAIN_MS_MAX: Final = 6 * 3_600_000


@dataclass(slots=True)
class _Damaged:
    """A copy that is in quarantine, or is made anew."""

    due_ms: int
    """When it is asked for, or was thrown away."""
    tries: int = 0
    asking: bool = False
    began: Rebuild | None = None
    """How the new copy began; None: the damaged one is there."""
    stage: str = ""

    def takes_a_turn(self, now_ms: int) -> bool:
        """Whether it is one of those that are made anew at a time."""
        if self.began is None:
            return self.asking
        return self.stage == "learner" or now_ms - self.due_ms < STANDS_MS


class Reseeding:
    """One node's. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        node: int,
        tables: Tables,
        rebuilding: Rebuilding,
        *,
        config: RebalanceConfig,
    ) -> None:
        self._loop = loop
        self._node = node
        self._tables = tables
        self._rebuilding = rebuilding
        self._at_once = config.moves_max
        self._again_ms = config.reseed_again_ms
        self._damaged: dict[PartitionId, _Damaged] = {}
        self._made: dict[PartitionId, tuple[int, int]] = {}
        """How often a copy was made anew in a row, and when it was the last time."""
        self._looking = False
        self._closed = False

    def close(self) -> None:
        """Make nothing anew any more."""
        self._closed = True

    def look(self, partition: PartitionId) -> None:
        """A copy was opened, or has stopped: if it is damaged, it is made anew."""
        if partition in self._damaged or self._closed or not self._is_damaged(partition):
            return
        self._damaged[partition] = _Damaged(self._now_ms() + self._wait_ms(partition))
        self._soon()

    def _is_damaged(self, partition: PartitionId) -> bool:
        return bool(self._tables.damage(*partition))

    def _wait_ms(self, partition: PartitionId) -> int:
        times, at_ms = self._made.get(partition, (0, 0))
        if self._now_ms() - at_ms > AGAIN_MS_MAX:
            times = 0
            self._made.pop(partition, None)
        wait_ms = min(self._again_ms << min(times - 1, 20), AGAIN_MS_MAX) if times else 0
        return max(0, at_ms + wait_ms - self._now_ms())

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000

    # -- one after another ------------------------------------------------------------------------

    def _soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_MS, self._look_at_all)

    def _look_at_all(self) -> None:
        self._looking = False
        if self._closed:
            return
        now_ms = self._now_ms()
        for partition, one in list(self._damaged.items()):
            if one.began is not None:
                self._rebuilding.look(partition, one.began).then(partial(self._seen, partition))
        free = self._at_once - sum(one.takes_a_turn(now_ms) for one in self._damaged.values())
        waiting = [
            (one.due_ms, partition)
            for partition, one in self._damaged.items()
            if one.began is None and not one.asking and one.due_ms <= now_ms
        ]
        for _, partition in nsmallest(max(0, free), waiting):  # those that have waited longest
            self._begin(partition, self._damaged[partition])
        if self._damaged:
            self._soon()

    def _begin(self, partition: PartitionId, one: _Damaged) -> None:
        if not self._is_damaged(partition):
            del self._damaged[partition]  # it was thrown away, by an operator or with its table
            return
        one.tries += 1
        one.asking = True
        self._rebuilding.begin(partition, node=self._node).then(partial(self._began, partition))

    def _began(self, partition: PartitionId, future: Future[Rebuild]) -> None:
        one = self._damaged.get(partition)
        if one is None or self._closed:
            return
        one.asking = False
        now_ms = self._now_ms()
        one.due_ms = now_ms
        if isinstance(future.error, CopySound):
            del self._damaged[partition]
        elif future.error is not None:
            one.due_ms += min(RETRY_MS << min(one.tries, 10), RETRY_MS_MAX)
            self._stays(partition, one, future.error)
        else:
            one.began = future.result()
            times, _ = self._made.get(partition, (0, 0))
            self._made[partition] = times + 1, now_ms

    def _stays(self, partition: PartitionId, one: _Damaged, why: LowmarkError) -> None:
        said = logger.warning if one.tries == 1 else logger.info
        said(
            "a damaged copy stays for the moment",
            extra={
                "table": partition.table,
                "partition": partition.number,
                "reason": why.message,
            },
        )

    def _seen(self, partition: PartitionId, future: Future[Rebuild]) -> None:
        one = self._damaged.get(partition)
        if one is None or self._closed:
            return
        if future.error is None:
            one.stage = future.result().stage
        if future.error is not None or one.stage == "voter":
            # If it has stopped again, it is looked at as any that stops.
            del self._damaged[partition]
            self.look(partition)
