"""Rounds of catalog compaction for operators: have one made, and read what the last came to."""

from __future__ import annotations

import msgspec

from lowmark.group import Future
from lowmark.metastore import Metastore
from lowmark.node.messages import CompactCatalogAsk, Nothing
from lowmark.node.operating import Answers
from lowmark.upkeep import CatalogCompaction, Round


class RoundsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The last rounds that cut something, or that other holders than before kept from it."""

    rounds: tuple[Round, ...]


class CatalogRounds:
    """One node's answers. All calls are made on the loop."""

    def __init__(self, metastore: Metastore, compaction: CatalogCompaction) -> None:
        self._metastore = metastore
        self._compaction = compaction
        self.answers: Answers = {
            "catalog.compact": (CompactCatalogAsk, self._compact),
            "catalog.rounds": (Nothing, self._rounds),
        }

    def _compact(self, asked: CompactCatalogAsk) -> Future[Round]:
        return self._compaction.compact(dry_run=asked.dry_run)

    def _rounds(self, _: Nothing) -> Future[RoundsReply]:
        # This node knows of all that was written before, then.
        read = self._metastore.read(lambda _: None)
        return read.map(lambda _: RoundsReply(rounds=tuple(self._compaction.rounds())))
