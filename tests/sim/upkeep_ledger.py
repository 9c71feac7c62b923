"""What a whole cluster knows of its catalog's history: the judge of lives in which it is cut.

The ledger knows when each transaction began, which entries of which logs it wrote, and where the
last snapshot of each copy is. From that it says, for itself, what a cut may not take away.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from lowmark.catalog import History
from lowmark.catalog.descriptors import IndexStatus
from lowmark.catalog.update_log import SNAPSHOT_KEY, number_in
from lowmark.ledger.records import RUN_PREFIX, RunRecord
from lowmark.metastore import Metastore
from lowmark.metastore.state import prefix_end
from lowmark.placement import PartitionId
from lowmark.placement.writes import local_keys
from lowmark.table.watermark import WATERMARK_KEY, WatermarkValue
from sim.cluster_ledger import confirm

__all__ = ["Transaction", "UpkeepLedger"]


@dataclass(eq=False, slots=True)
class Transaction:
    """A read-write transaction of a node."""

    number: int
    node: int
    begin: int
    """It has the catalog of this time from its beginning to its end."""

    def __str__(self) -> str:
        return f"transaction {self.number} of node {self.node}"


@dataclass(slots=True)
class UpkeepLedger:
    """Everything that a cut is held against."""

    transactions: dict[int, Transaction] = field(default_factory=dict)
    """Those that are active, by number."""
    begins: dict[int, tuple[PartitionId, int]] = field(default_factory=dict)
    """By the number of a batch: where it went, and when its transaction began."""
    entries: defaultdict[PartitionId, dict[int, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """When the transaction began that wrote an entry, by its index."""
    activations: dict[int, int] = field(default_factory=dict)
    """When each version came into force."""
    indexes: dict[int, int] = field(default_factory=dict)
    """The first version that had an index."""
    tables: dict[int, int] = field(default_factory=dict)
    """The first version that had a table."""
    left: dict[tuple[int, PartitionId], int] = field(default_factory=dict)
    """Up to where a copy went that its node was told to remove: nothing held versions for it from
    then on. A power cut may bring it back, and what it replays up to there is not judged."""
    snapshots: dict[tuple[int, PartitionId], int] = field(default_factory=dict)
    """Up to where the last snapshot of a copy goes, by node, also while the node is down. A copy
    that has nothing yet is not among them: it is given what other copies have kept."""
    floor: int = 0
    """The earliest version left."""
    latest: int = 0
    """The metastore's revision that was seen last."""
    cuts: int = 0
    metastore: Metastore | None = None
    """A copy that has that revision."""

    @property
    def since(self) -> int:
        """When the earliest version left came into force."""
        return self.activations.get(self.floor, 0)

    # -- told by nodes ----------------------------------------------------------------------------

    def learned(self, history: History, *, after: int, who: str) -> None:
        """A node knows of versions."""
        for catalog in history:
            if catalog.version <= after:
                continue
            known = self.activations.setdefault(catalog.version, catalog.activates_at)
            confirm(
                known == catalog.activates_at,
                f"{who} has version {catalog.version} since {catalog.activates_at},"
                f" others since {known}",
            )
            for index in catalog.indexes:
                self.indexes.setdefault(int(index), catalog.version)
            for table in catalog.all_tables():
                self.tables.setdefault(int(table.id), catalog.version)

    def knows(self, transaction: Transaction, table: int) -> bool:
        """Whether a table is in the catalog that a transaction has."""
        version = self.tables.get(table)
        return version is not None and self.activations[version] <= transaction.begin

    def is_member(self, node: int, partition: PartitionId) -> bool:
        """Whether a node should have a copy, by all that was written so far."""
        if self.metastore is None:
            return False
        return node in local_keys(self.metastore, partition).nodes

    def opened(self, node: int, partition: PartitionId, snapshot: int) -> None:
        """A copy begins with its snapshot, and applies what stands behind that."""
        self.snapshots[node, partition] = snapshot
        if self.is_member(node, partition):
            self._check_copy(node, partition, "replays")

    def gone(self, node: int, partition: PartitionId) -> None:
        """A node has no copy any more."""
        self.snapshots.pop((node, partition), None)
        self.left[node, partition] = max(self.entries[partition], default=0)

    def applied(self, node: int, partition: PartitionId, *, index: int, batch: int) -> None:
        """A copy applies a batch, for the first time or again."""
        there, begin = self.begins[batch]
        confirm(there == partition, f"batch {batch} is in {partition}, and was meant for {there}")
        self.entries[partition][index] = begin
        judged = index > self.left.get((node, partition), 0) and self.is_member(node, partition)
        if begin < self.since and judged:
            confirm(False, f"node {node} applies {index} of {partition}, begun before {self.floor}")

    def read(self, metastore: Metastore) -> None:
        """A node has revisions that no other had before."""
        self.metastore, self.latest = metastore, metastore.state.latest
        found = metastore.state.find(SNAPSHOT_KEY)
        if found is None:
            return
        [entry] = metastore.entries([found])
        version = number_in(entry.value)
        if version > self.floor:
            self.cuts += 1
            self.floor = version
            self._check_cut(metastore)

    # -- judging ----------------------------------------------------------------------------------

    def _check_cut(self, metastore: Metastore) -> None:
        since = self.activations.get(self.floor)
        confirm(since is not None, f"version {self.floor} was cut to, and is known to no node")
        found = metastore.state.find(WATERMARK_KEY)
        confirm(found is not None, f"version {self.floor} was cut to, and there is no watermark")
        [entry] = metastore.entries([] if found is None else [found])
        watermark = msgspec.json.decode(entry.value, type=WatermarkValue).time
        confirm(watermark >= self.since, f"{self.floor} is cut to before the watermark is there")
        for one in self.transactions.values():
            confirm(one.begin >= self.since, f"{one} began before {self.floor}, and is active")
        for node, partition in sorted(self.snapshots):
            if self.is_member(node, partition):
                self._check_copy(node, partition, "would replay")

    def _check_copy(self, node: int, partition: PartitionId, what: str) -> None:
        snapshot = max(self.snapshots[node, partition], self.left.get((node, partition), 0))
        for index, begin in self.entries[partition].items():
            confirm(
                index <= snapshot or begin >= self.since,
                f"node {node} {what} {index} of {partition}, begun before {self.floor}",
            )

    def check_decision(self, version: int, history: History, metastore: Metastore) -> None:
        """What the coordinator would cut to, held against what its metastore says."""
        earliest = history.earliest.version
        for index in history.latest.all_indexes():
            if index.status in {IndexStatus.REGISTERED, IndexStatus.BUILDING}:
                first = self.indexes[int(index.id)]
                confirm(version <= max(first, earliest), f"{index.name} needs version {first}")
        for table in history.latest.all_tables():
            for number in range(table.partitions):
                keys = local_keys(metastore, PartitionId(table.id, number))
                for one in (keys.pending, keys.planned):
                    confirm(
                        one is None or version <= max(one.catalog_version, earliest),
                        f"a move of {table.name} needs what {version} cuts: {one}",
                    )
        found = metastore.state.find_range(RUN_PREFIX, prefix_end(RUN_PREFIX))
        for entry in metastore.entries(found):
            run = msgspec.json.decode(entry.value, type=RunRecord)
            confirm(
                run.state == "done" or version <= max(run.catalog, earliest),
                f"run {run.run} needs version {run.catalog}",
            )
