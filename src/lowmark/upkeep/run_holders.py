"""Runs of compaction that can go on: each holds the catalog's version that it was planned with."""

from __future__ import annotations

import msgspec

from lowmark.ledger.records import RUN_PREFIX, UNDECIDED, decode_record
from lowmark.metastore import Metastore
from lowmark.metastore.state import prefix_end
from lowmark.upkeep.catalog_decision import Holder


class _Noted(msgspec.Struct, frozen=True):
    """What matters here of a `RunRecord`."""

    run: str
    table_name: str
    state: str
    began_at_ms: int
    catalog: int = 0


class RunHolders:
    """By what the metastore says at this node."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._known: dict[bytes, tuple[int, _Noted]] = {}
        """By the revision that wrote it: values are read once."""

    def holders(self, earliest: int) -> list[Holder]:
        """What they pin."""
        found = self._metastore.state.find_range(RUN_PREFIX, prefix_end(RUN_PREFIX))
        there = {one.key: one for one in found}
        self._known = {key: known for key, known in self._known.items() if key in there}
        news = [
            one
            for key, one in there.items()
            if key not in self._known or self._known[key][0] != one.record.revision
        ]
        for entry in self._metastore.entries(news):
            noted = decode_record(entry.value, _Noted)
            self._known[entry.key] = (entry.revision, noted)
        return [
            Holder(
                holder=f"run {one.run} of {one.table_name}",
                kind="run",
                version=max(one.catalog, earliest),
                since_ms=one.began_at_ms,
                why=f"it is {one.state}, and was planned with version {one.catalog}",
            )
            for _, one in self._known.values()
            if one.state in UNDECIDED and one.catalog
        ]
