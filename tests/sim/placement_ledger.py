"""What a whole cluster knows of its partitions, over all nodes and all lives: the judge of moves.

Every revision of the metastore is read once, from the first node that has it. Every copy tells
which members its group has, who leads it and what it takes for committed. Every copy that goes is
judged when it goes, and every batch that a client was answered for is remembered. The ledger keeps
the first word on each and breaks the life when a later one differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lowmark.catalog import TableId
from lowmark.group import Group
from lowmark.group.storage import GroupMeta
from lowmark.metastore import Metastore
from lowmark.placement.assignments import (
    METASTORE,
    NO_KEYS,
    STABLE,
    Keys,
    PartitionId,
    parse_key,
)
from lowmark.placement.baseline import Baseline, decode_baseline, parse_baseline_key
from lowmark.raft import Entry, Members
from sim.cluster_ledger import confirm

__all__ = ["Batch", "PlacementLedger"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a client was told of its rows."""

    first: int
    rows: int
    payload: bytes


class PlacementLedger:
    """Everything that was ever true of the partitions of a cluster."""

    def __init__(self) -> None:
        self.latest = 0
        """The last revision of the metastore that was read."""
        self.keys: dict[PartitionId, Keys] = {}
        self.firsts: set[PartitionId] = set()
        """Partitions whose stable set is still the first one."""
        self.withdrawn: set[PartitionId] = set()
        """Partitions whose move was called off, and that were not decided on since."""
        self.baselines: dict[int, dict[int, Baseline]] = {}
        """Of each zone, by revision."""
        self.zones: dict[TableId, int] = {}
        """In which zone a table is."""
        self.dropped: set[TableId] = set()
        """Tables that somebody may have dropped."""
        self.writes: Counter[tuple[PartitionId, int | None]] = Counter()
        """This many revisions changed the keys of each, by the event that was decided on last."""
        self.moves = 0
        self.counts: Counter[str] = Counter()
        self.members: dict[PartitionId, tuple[int, Members]] = {}
        """The newest configuration that any copy has applied, with its index."""
        self.groups: dict[tuple[PartitionId, int], Group] = {}
        """The copies that are open, by node."""
        self.copies: set[tuple[PartitionId, int]] = set()
        """The copies that were made and not destroyed, by node."""
        self._lost: dict[tuple[PartitionId, int], int] = {}
        """The incarnations of copies that had entries and were destroyed."""
        self.left: set[int] = set()
        """Nodes that have left for good, with all they had."""
        self.acknowledged: dict[PartitionId, dict[int, Batch]] = {}
        """By offset."""
        self.ends: dict[PartitionId, int] = {}
        """The offset behind the last batch that a client was answered for."""
        self._leaders: dict[tuple[PartitionId, int], int] = {}
        self._committed: dict[PartitionId, dict[int, int]] = {}
        self._looked: dict[tuple[PartitionId, int], tuple[Group, int]] = {}

    # -- the metastore ----------------------------------------------------------------------------

    @property
    def moving(self) -> list[PartitionId]:
        """The partitions that are on their way."""
        return [one for one, keys in self.keys.items() if keys.pending is not None]

    def read(self, metastore: Metastore) -> None:
        """Read the revisions that a node has and no node had before."""
        state = metastore.state
        for revision in range(self.latest + 1, state.latest + 1):
            self.latest = revision
            changed: dict[PartitionId, Keys] = {}
            for key in state.changes(revision).keys:
                zone = parse_baseline_key(key)
                parsed = parse_key(key)
                if parsed is not None and parsed[1] == METASTORE.table:
                    parsed = None  # its members are judged by the lives of the metastore
                if zone is None and parsed is None:
                    continue
                found = state.find(key, revision)
                (entry,) = metastore.entries([found]) if found is not None else (None,)
                if zone is not None and entry is not None:
                    value = decode_baseline(entry.value)
                    self.baselines.setdefault(zone, {})[revision] = value
                if parsed is not None:
                    kind, table, number = parsed
                    partition = PartitionId(table, number)
                    before = changed.get(partition, self.keys.get(partition, NO_KEYS))
                    changed[partition] = before.with_entry(kind, entry)
                    if kind == STABLE and entry is not None:
                        self._note_first(partition, changed[partition], entry.version == 1)
            for partition, keys in changed.items():
                self._changed(partition, self.keys.get(partition, NO_KEYS), keys, revision)

    def _note_first(self, partition: PartitionId, keys: Keys, is_first: bool) -> None:
        if is_first:
            assert keys.stable is not None
            self.firsts.add(partition)
            self.members[partition] = 0, Members(incoming=frozenset(keys.stable.nodes))
        else:
            self.firsts.discard(partition)

    def _changed(self, partition: PartitionId, before: Keys, now: Keys, revision: int) -> None:
        name = f"partition {partition.number} of table {partition.table} at revision {revision}"
        self.writes[partition, now.trigger] += 1
        if now.stable is None:
            confirm(partition.table in self.dropped, f"{name} has lost its stable set: {now}")
            confirm(
                not any((now.pending, now.planned, now.lock, now.trigger)),
                f"{name} is dropped, and has {now}",
            )
            self.keys.pop(partition, None)
            return
        self.keys[partition] = now
        confirm(
            now.pending is not None or (now.planned is None and now.lock is None),
            f"{name}: planned or a lock without pending: {now}",
        )
        confirm(
            (now.trigger or 0) >= (before.trigger or 0), f"{name}: the trigger fell: {before} {now}"
        )
        if now.trigger != before.trigger:
            self.withdrawn.discard(partition)
            self._check_decided(name, partition, before, now)
        if now.lock is not None and before.lock is not None:
            confirm(now.lock >= before.lock, f"{name}: an older leader took the lock: {now}")
        was_moved = before.stable is not None and now.revisions[0] != before.revisions[0]
        if was_moved:
            self._check_moved(name, partition, before, now)
        elif before.lock is not None:
            self._check_unlocked(name, partition, before, now)
        if now.pending is not None and now.revisions[1] != before.revisions[1] and not was_moved:
            then = None if before.planned is None else before.planned.nodes
            confirm(
                now.trigger != before.trigger or now.pending.nodes == then,
                f"{name} was sent on by no event: {now}",
            )
        if before.pending is not None and now.pending is None and not was_moved:
            self.withdrawn.add(partition)

    def _check_decided(self, name: str, partition: PartitionId, before: Keys, now: Keys) -> None:
        """The event that was decided on is a baseline, and sends it to nodes of that baseline."""
        assert now.trigger is not None
        zone = self.zones.get(partition.table)
        if zone is None:
            return
        baseline = self.baselines.get(zone, {}).get(now.trigger)
        if before.stable is None:
            confirm(baseline is not None or now.trigger == 0, f"{name}: no such event: {now}")
            return
        confirm(baseline is not None, f"{name} was decided on by no event: {now}")
        assert baseline is not None
        heading = now.heading
        assert heading is not None
        wanted = min(baseline.replicas, len(baseline.nodes))
        confirm(
            set(heading.nodes) <= set(baseline.numbers) and len(heading.nodes) == wanted,
            f"{name} was sent to {heading.nodes}, by {baseline}",
        )

    def _check_moved(self, name: str, partition: PartitionId, before: Keys, now: Keys) -> None:
        assert now.stable is not None
        self.moves += 1
        stable, pending = now.stable, before.pending
        confirm(
            pending is not None and pending.nodes == stable.nodes,
            f"{name}: stable is {stable.nodes}, pending was {pending}",
        )
        after = None if before.planned is None else before.planned.nodes
        then = None if now.pending is None else now.pending.nodes
        confirm(then == after, f"{name}: pending is {then}, planned was {after}")
        confirm(now.planned is None, f"{name}: planned stayed behind: {now}")
        confirm(now.lock is None, f"{name}: the lock stayed behind: {now}")
        index, members = self.members.get(partition, (0, Members()))
        confirm(
            members.incoming == set(stable.nodes) and not members.joint,
            f"{name}: stable is {stable.nodes}, the group has {members}",
        )
        know = [node for node in stable.nodes if self._knows(partition, node, index)]
        confirm(
            2 * len(know) > len(stable.nodes),
            f"{name}: stable is {stable.nodes}, of which only {know} know durably of {index}",
        )

    def _knows(self, partition: PartitionId, node: int, index: int) -> bool:
        """Whether a copy would know after a crash that members are in force; if it is down, yes."""
        group = self.groups.get((partition, node))
        if group is None:
            return (partition, node) in self.copies or node in self.left
        commit = GroupMeta.decode(group.log.meta).hard.commit
        return max(commit, group.log.row.snapshot_index) >= index

    def _check_unlocked(self, name: str, partition: PartitionId, before: Keys, now: Keys) -> None:
        """A lock is taken away, and pending replaced, only if the group is not on its way there."""
        if now.pending is None:
            confirm(False, f"{name}: a move that is being put in force was withdrawn")
        _, members = self.members.get(partition, (0, Members()))
        if now.revisions[1] != before.revisions[1]:
            then = None if before.planned is None else before.planned.nodes
            assert now.pending is not None
            confirm(now.pending.nodes == then, f"{name}: a locked target was replaced: {now}")
            confirm(
                before.pending is not None and members.incoming != set(before.pending.nodes),
                f"{name}: what is in force was cancelled: {before}",
            )
        if now.lock is None:
            confirm(not members.joint, f"{name}: the lock went, and the group is at {members}")

    # -- groups -----------------------------------------------------------------------------------

    def opened(self, partition: PartitionId, node: int, group: Group) -> None:
        """A copy is open."""
        lost = self._lost.get((partition, node), -1)
        if not group.log.last_index and partition.table not in self.dropped:
            confirm(
                group.raft.core.config.rejoin_above >= lost,
                f"node {node} has a new copy of {group.name}, and forgot that it was {lost}",
            )
        self.groups[partition, node] = group
        self.copies.add((partition, node))
        applier = group._applier
        apply_change = applier._apply_change

        def applied(entry: Entry) -> None:
            apply_change(entry)
            self._in_force(partition, entry.index, group.members())

        applier._apply_change = applied  # type: ignore[method-assign]

    def _in_force(self, partition: PartitionId, index: int, members: Members) -> None:
        if index > self.members.get(partition, (0, members))[0]:
            self.members[partition] = index, members

    def closed(self, node: int) -> None:
        """A node is down; its copies are on its disk."""
        for key in [key for key in self.groups if key[1] == node]:
            del self.groups[key]

    def look(self) -> None:
        """Who leads, and what is committed: all copies agree."""
        for (partition, node), group in self.groups.items():
            if group.stopped is not None:
                continue
            if group.leads:
                leader = self._leaders.setdefault((partition, group.term), node)
                confirm(
                    leader == node, f"{group.name}: {leader} and {node} lead in term {group.term}"
                )
            self._look_at_committed(partition, node, group)

    def _look_at_committed(self, partition: PartitionId, node: int, group: Group) -> None:
        known, last = self._looked.get((partition, node), (group, 0))
        last = last if known is group else 0
        view = group.raft.core.log
        committed = view.committed
        if committed <= last:
            return
        self._looked[partition, node] = group, committed
        ledger = self._committed.setdefault(partition, {})
        for index in range(max(last + 1, 1), committed + 1):
            term = view.term(index)
            if term is not None:
                said = ledger.setdefault(index, term)
                confirm(
                    said == term,
                    f"{group.name}: entry {index} is of term {term} at node {node}, and of {said}"
                    " elsewhere",
                )

    # -- copies that go ---------------------------------------------------------------------------

    def leaves(self, partition: PartitionId, node: int) -> None:
        """A node is about to destroy its copy, for it was moved away."""
        _, members = self.members.get(partition, (0, Members()))
        name = f"partition {partition.number} of table {partition.table}"
        confirm(
            node not in members.voters,
            f"node {node} destroys its copy of {name}, and votes: {members}",
        )
        group = self.groups.get((partition, node))
        if group is not None and group.log.last_index:
            self._lost[partition, node] = group.raft.core.incarnation
        self.gone(partition, node)
        stable = self.keys.get(partition, NO_KEYS).stable
        if stable is not None:
            there = [n for n in stable.nodes if (partition, n) in self.copies or n in self.left]
            confirm(
                2 * len(there) > len(stable.nodes),
                f"node {node} destroyed its copy of {name}: of {stable.nodes} {there} are left",
            )

    def gone(self, partition: PartitionId, node: int) -> None:
        """A copy is no more."""
        self.groups.pop((partition, node), None)
        self.copies.discard((partition, node))

    # -- rows -------------------------------------------------------------------------------------

    def appended(self, partition: PartitionId, batch: Batch) -> None:
        """A client was told where its rows are."""
        there = self.acknowledged.setdefault(partition, {})
        confirm(batch.first not in there, f"{partition}: two batches at offset {batch.first}")
        there[batch.first] = batch
        self.ends[partition] = max(self.ends.get(partition, 0), batch.first + batch.rows)

    def check_rows(
        self,
        partition: PartitionId,
        batches: Iterable[tuple[int, int, bytes]],
        *,
        who: str,
        end: int | None = None,
    ) -> None:
        """What a copy has, all of it: with all that was acknowledged below `end`, once."""
        found: dict[int, tuple[int, bytes]] = {}
        payloads: set[bytes] = set()
        for first, rows, payload in batches:
            confirm(payload not in payloads, f"{who}: {partition} has {payload[:20]!r} twice")
            payloads.add(payload)
            found[first] = rows, payload
        for first, batch in self.acknowledged.get(partition, {}).items():
            if end is None or first < end:
                confirm(
                    found.get(first) == (batch.rows, batch.payload),
                    f"{who}: {partition} has {found.get(first)} at {first}, not {batch}",
                )
