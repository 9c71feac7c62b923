"""Keeps the zones' baselines, and decides for every partition where a new one sends it.

The coordinator does both. Other nodes decide, too, if it has not after a while: each decision is
made once, whichever node writes it (`decisions`). The steps, and what is true after each:

    1. the baseline is written, if it is still the one that was read. A coordinator that dies here
       is followed by one that finds partitions which were not decided on since
    2. the targets of all partitions of the zone are computed from the metastore as of the
       baseline's revision. So every node that computes them comes to the same
    3. each partition's decision is written, with the baseline's revision as its mark. Those that
       are written begin to move; the others follow, or are done by the next coordinator
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from lowmark.catalog import Catalog, Catalogs, Zone
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.metastore import Cluster, Compare, Entry, Following, Put, Revision
from lowmark.metastore.nodes import TOPOLOGY_KEY, decode_topology
from lowmark.metastore.state import State, prefix_end
from lowmark.placement import decisions
from lowmark.placement.assignments import (
    ASSIGNMENTS_PREFIX,
    PENDING,
    PLANNED,
    STABLE,
    Assignments,
    Keys,
    PartitionId,
    decode_assignments,
    parse_key,
)
from lowmark.placement.baseline import (
    DRAINING_PREFIX,
    ZONE_PREFIX,
    Baseline,
    Presence,
    baseline_key,
    decode_baseline,
    draining_key,
    next_baseline,
    parse_baseline_key,
    parse_draining_key,
)
from lowmark.placement.decisions import Adjust
from lowmark.placement.target import Place, plan
from lowmark.placement.waiting import NOTE_MS, Waiting
from lowmark.placement.writes import carry_out
from lowmark.runtime import Loop, Timer

logger = logging.getLogger(__name__)

WRITES_MAX = 64
"""This many decisions are on their way to the metastore at a time."""
OTHERS_MS = 5_000
"""The node next to the coordinator decides after this time, the one after it after twice as long.
"""
_RETRY_MS = 300


@dataclass(frozen=True, slots=True)
class ZoneTarget:
    """Where all partitions of a zone should be, by one baseline."""

    baseline: Baseline
    revision: int
    nodes: Mapping[PartitionId, tuple[int, ...]]


def draining_in(state: State, *, at: int | None = None) -> frozenset[int]:
    """The nodes that are drained, by what a metastore says, or said as of a revision."""
    found = state.find_range(DRAINING_PREFIX, prefix_end(DRAINING_PREFIX), at=at)
    nodes = (parse_draining_key(one.key) for one in found)
    return frozenset(node for node in nodes if node is not None)


class Zones:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        catalogs: Catalogs,
        *,
        keys: Callable[[PartitionId], Keys],
        heard: Callable[[], int],
        adjust: Adjust,
    ) -> None:
        """`heard` counts what this node has heard of `keys`."""
        self._loop = loop
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._catalogs = catalogs
        self._keys = keys
        self._keys_heard = heard
        self._adjust = adjust
        self._waiting = Waiting(loop, self._metastore)
        self.drained: frozenset[int] = frozenset()
        """The nodes that are drained, as this node has heard."""
        self._revisions: dict[int, int] = {}
        """Of the baselines that this node knows, by zone."""
        self._came_back: dict[int, tuple[int, AbstractSet[int]]] = {}
        """The nodes that tables passed over while they were away, by zone: as of which baseline."""
        self._looked: dict[int, tuple[object, AbstractSet[int]]] = {}
        """Those of them that would get partitions, by zone, and what that was worked out from."""
        self._topologies: dict[int, frozenset[int]] = {}
        """Which nodes were up, by the revision that says so, as far as it was asked for."""
        self._writing: set[int] = set()
        """Zones whose baseline is being written."""
        self._queue: deque[tuple[PartitionId, Assignments, int]] = deque()
        self._queued: dict[PartitionId, int] = {}
        """The revision that each is to be decided for."""
        self._in_flight = 0
        self._timer: Timer | None = None
        self._others: Timer | None = None
        self._scheduled = False
        self._following: Following | None = None
        self._closed = False

    def start(self) -> None:
        """Look after zones from now on."""
        self._cluster.on_topology(lambda _: self.look_soon())
        self._metastore.on_elected(lambda _: self._elected())
        self._following = self._metastore.keep_watching(
            prefix=ZONE_PREFIX,
            start=self._take_all,
            on_event=lambda event: self._heard(
                [(change.key, change.entry) for change in event.changes]
            ),
            name="zones",
        )

    def close(self) -> None:
        """Decide nothing more."""
        self._closed = True
        if self._following is not None:
            self._following.close()
        for timer in (self._timer, self._others):
            if timer is not None:
                timer.cancel()

    def revision(self, zone: int) -> int:
        """The revision of a zone's baseline, as this node knows it; 0: it has none yet."""
        return self._revisions.get(zone, 0)

    # -- when to look -----------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Something has changed that zones depend on."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._look)

    def _elected(self) -> None:
        try:
            self._waiting.elected()
        except LowmarkError as error:
            logger.warning("zones begin to wait anew", extra={"reason": error.message})
        self.look_soon()

    def _take_all(self) -> None:
        """Take all baselines, and nodes that are drained, as they are now."""
        page = self._metastore.range_local(ZONE_PREFIX)
        self._revisions.clear()
        self.drained = frozenset()
        self._heard([(entry.key, entry) for entry in page.entries])

    def _heard(self, entries: Iterable[tuple[bytes, Entry | None]]) -> None:
        for key, entry in entries:
            zone, node = parse_baseline_key(key), parse_draining_key(key)
            if node is not None:
                self.drained = self.drained - {node} if entry is None else self.drained | {node}
            if zone is None:
                continue
            if entry is None:
                self._revisions.pop(zone, None)
            else:
                self._revisions[zone] = entry.revision
        self.look_soon()

    def _look(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        if self._metastore.coordinates:
            try:
                self._look_after_baselines()
                self.decide()
            except LowmarkError as error:
                logger.warning("zones wait", extra={"reason": error.message})
                self._loop.call_later(_RETRY_MS, self.look_soon)
        elif self._others is None:
            # The coordinator decides. If it does not, this node does.
            up = sorted(node.number for node in self._cluster.topology.nodes)
            own = self._metastore.node
            rank = up.index(own) if own in up else len(up)
            self._others = self._loop.call_later(OTHERS_MS * (rank + 1), self._decide_for_it)

    def _decide_for_it(self) -> None:
        self._others = None
        if not self._closed:
            try:
                self.decide()
            except LowmarkError as error:
                logger.info("zones wait", extra={"reason": error.message})

    # -- baselines --------------------------------------------------------------------------------

    def presence(self) -> Presence:
        """The nodes of the cluster, as this node sees them."""
        nodes = self._cluster.nodes()
        up = {node.number for node in self._cluster.topology.nodes}
        ages = self._waiting.ages([node.number for node in nodes], up)
        return Presence(
            nodes=nodes,
            up_ms={node: age for node, age in ages.items() if node in up},
            down_ms={node: age for node, age in ages.items() if node not in up},
            draining=self.draining(),
            holders=self._holders,
        )

    def down_ms(self, nodes: Collection[int]) -> int | None:
        """For how long none of these has been up, as this coordinator knows; None: one is."""
        up = {node.number for node in self._cluster.topology.nodes}
        if not up.isdisjoint(nodes):
            return None
        ages = self.presence().down_ms
        return min((ages.get(node, 0) for node in nodes), default=0)

    def _holders(self, zone: Zone) -> frozenset[int]:
        partitions = self.partitions(self._catalogs.latest, zone.id)
        return frozenset(node for one in partitions for node in self._keys(one).nodes)

    def draining(self, *, at: int | None = None) -> frozenset[int]:
        """The nodes that are drained, as this node knows, or knew as of a revision."""
        return draining_in(self._metastore.state, at=at)

    def baseline(self, zone: int, *, at: int | None = None) -> tuple[Baseline | None, int]:
        """A zone's baseline and its revision, as this node knows it, or as of a revision."""
        entry = self._metastore.get_local(baseline_key(zone), at=at)
        return (None, 0) if entry is None else (decode_baseline(entry.value), entry.revision)

    def _look_after_baselines(self) -> None:
        presence, latest = self.presence(), self._catalogs.latest
        waits: list[int] = []
        settled = set(presence.up_ms)
        for zone in sorted(latest.zones.values(), key=lambda one: one.id):
            now, revision = self.baseline(zone.id)
            look = next_baseline(now, zone, latest.version, presence)
            if look.again_ms is not None:
                waits.append(look.again_ms)
                settled.intersection_update(look.baseline.numbers)
            came_back = False
            for node in sorted(self._passed_over(zone, look.baseline, revision, presence)):
                left_ms = zone.scale_up_ms - presence.up_ms[node]
                if left_ms > 0:
                    waits.append(left_ms)
                    settled.discard(node)
                else:
                    came_back = True
            if (look.baseline != now or came_back) and zone.id not in self._writing:
                self._write_baseline(zone, look.baseline, revision)
        for number in [n for n in self._revisions if n not in latest.zones]:
            if number < latest.next_id:  # else this node has not heard of the zone yet
                self._metastore.remove(baseline_key(number))
        for number in sorted(presence.draining - {node.number for node in presence.nodes}):
            self._metastore.remove(draining_key(number))  # it has left
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.note(waits=bool(waits), settled=settled)
        if waits:
            self._timer = self._loop.call_later(min(*waits, NOTE_MS) + 1, self.look_soon)

    def _passed_over(
        self, zone: Zone, baseline: Baseline, revision: int, presence: Presence
    ) -> set[int]:
        """The nodes that were away when a table was made, are back, and would get partitions.

        A table is placed on nodes that are up. So the baseline, which counts in a node that is down
        for a while, has to count as another event when that node is back, as if it had joined. One
        that was away while no table was made is no reason, nor is one that has its partitions: the
        zone is not evened out because a node was started again.

        A look takes what the last one found, unless anything is new that it depends on: it may have
        to go through thousands of revisions and partitions.
        """
        up = frozenset(baseline.numbers) & presence.up_ms.keys()
        made = self._metastore.state.find(TOPOLOGY_KEY)
        topology, catalog = 0 if made is None else made.record.revision, self._catalogs.latest
        of = (topology, self._keys_heard(), catalog.version, revision, baseline, up)
        if zone.id not in self._looked or self._looked[zone.id][0] != of:
            self._looked[zone.id] = of, self._look_back(zone, baseline, revision, up)
        return {*self._looked[zone.id][1]}

    def _look_back(
        self, zone: Zone, baseline: Baseline, revision: int, up: AbstractSet[int]
    ) -> set[int]:
        # The history of the topology may go while the zone waits: what was found stays.
        known_at, known = self._came_back.get(zone.id, (0, frozenset()))
        found = set(known) if known_at == revision else set()
        state, away = self._metastore.state, self._away(up, since=revision)
        for partition in self.partitions(self._catalogs.latest, zone.id) if away else ():
            keys = self._keys(partition)
            placed = keys.revisions[0]
            if keys.stable is None or placed <= max(revision, keys.trigger or 0):
                continue  # it was decided on by a whole baseline since, or is about to be
            record = state.find(partition.key(STABLE))
            if record is not None and record.record.version == 1:  # else it has moved since
                placed = max(placed, state.compacted)
                nodes = next((absent for first, absent in away if first <= placed), frozenset())
                found |= nodes - keys.nodes
        self._came_back[zone.id] = revision, frozenset(found)
        found &= up
        if found:
            current, holding = self.standing(zone.id)
            places = [Place(node.number, node.rack) for node in baseline.nodes]
            targets = plan(current, places, replicas=baseline.replicas, holding=holding)
            found &= {
                node for one, nodes in targets.items() for node in nodes if node not in current[one]
            }
        return found

    def _away(self, nodes: AbstractSet[int], *, since: int) -> list[tuple[int, AbstractSet[int]]]:
        """Which of these nodes were not up, from which revision on, the latest first; empty if all
        of them have been up since a revision, as far as the metastore's history goes back.
        """
        state = self._metastore.state
        found: list[tuple[int, AbstractSet[int]]] = []
        last = state.latest
        while last >= max(since, state.compacted):
            made = state.find(TOPOLOGY_KEY, last)
            if made is None:
                break
            first = made.record.revision
            if first not in self._topologies:  # its value is in the log: it is read once
                [entry] = self._metastore.entries([made])
                nodes_then = decode_topology(entry.value).nodes
                self._topologies[first] = frozenset(node.number for node in nodes_then)
            found.append((first, nodes - self._topologies[first]))
            last = first - 1
        oldest = state.find(TOPOLOGY_KEY, state.compacted)
        for gone in [one for one in self._topologies if oldest and one < oldest.record.revision]:
            del self._topologies[gone]
        return found if any(absent for _, absent in found) else []

    def _write_baseline(self, zone: Zone, baseline: Baseline, revision: int) -> None:
        self._writing.add(zone.id)
        key = baseline_key(zone.id)

        def written(future: Future[bool]) -> None:
            self._writing.discard(zone.id)
            if future.error is not None or not future.result():
                self._loop.call_later(_RETRY_MS, self.look_soon)

        logger.info(
            "a zone has another baseline",
            extra={
                "zone": zone.name,
                "nodes": list(baseline.numbers),
                "replicas": baseline.replicas,
            },
        )
        self._metastore.invoke_if(
            Revision(key, Compare.EQ, revision), [Put(key, baseline.encode())]
        ).then(written)

    # -- targets ----------------------------------------------------------------------------------

    def partitions(self, catalog: Catalog, zone: int) -> list[PartitionId]:
        """All partitions of a zone's tables."""
        return [
            PartitionId(table.id, number)
            for table in catalog.all_tables()
            if table.zone_id == zone
            for number in range(table.partitions)
        ]

    def target(self, zone: int) -> ZoneTarget | None:
        """Where the partitions of a zone should be: as of the revision of its baseline."""
        baseline, revision = self.baseline(zone)
        if baseline is None or not baseline.nodes:
            return None
        current, holding = self.standing(zone, at=revision)
        places = [Place(node.number, node.rack) for node in baseline.nodes]
        nodes = plan(current, places, replicas=baseline.replicas, holding=holding)
        return ZoneTarget(baseline, revision, nodes)

    def standing(
        self, zone: int, *, at: int | None = None
    ) -> tuple[dict[PartitionId, tuple[int, ...]], dict[PartitionId, tuple[int, ...]]]:
        """Where partitions were heading as of a revision, and which nodes had some of their rows.

        A partition that was assigned later counts as it is now.
        """
        state, catalog = self._metastore.state, self._catalogs.latest
        readable = None if at is None else max(at, state.compacted)
        then: dict[PartitionId, dict[str, tuple[int, ...]]] = {}
        for kind in (STABLE, PENDING, PLANNED):
            prefix = ASSIGNMENTS_PREFIX + kind.encode() + b"."
            for entry in self._metastore.range_local(prefix, at=readable).entries:
                parsed = parse_key(entry.key)
                if parsed is not None and parsed[0] == kind:
                    nodes = decode_assignments(entry.value).nodes
                    then.setdefault(PartitionId(parsed[1], parsed[2]), {})[kind] = nodes
        current, holding = {}, {}
        for partition in self.partitions(catalog, zone):
            sets = then.get(partition, {})
            if STABLE not in sets:
                keys = self._keys(partition)
                if keys.stable is None:
                    continue
                sets = {STABLE: keys.stable.nodes}
            current[partition] = sets.get(PLANNED) or sets.get(PENDING) or sets[STABLE]
            holding[partition] = tuple(sorted({*sets[STABLE], *sets.get(PENDING, ())}))
        return current, holding

    def decide(self) -> None:
        """Decide on every partition that was not decided on since its zone's baseline changed."""
        for zone, revision in sorted(self._revisions.items()):
            due = [
                partition
                for partition in self.partitions(self._catalogs.latest, zone)
                if self._is_due(partition, revision)
            ]
            target = self.target(zone) if due else None
            if target is None or target.revision != revision:
                continue
            for partition in due:
                if partition in target.nodes:
                    nodes = target.nodes[partition]
                    assigned = Assignments(nodes, target.baseline.catalog_version)
                    self._queued[partition] = revision
                    self._queue.append((partition, assigned, revision))
        self._write()

    def _is_due(self, partition: PartitionId, revision: int) -> bool:
        keys = self._keys(partition)
        if keys.stable is None or self._queued.get(partition, -1) >= revision:
            return False
        return keys.trigger is None or keys.trigger < revision

    def _write(self) -> None:
        while self._queue and self._in_flight < WRITES_MAX and not self._closed:
            partition, target, revision = self._queue.popleft()
            self._in_flight += 1
            known = self._keys(partition) if self._metastore.coordinates else None
            decide = partial(
                decisions.trigger, partition, target=target, at=revision, adjust=self._adjust
            )
            carry_out(self._metastore, partition, decide, known=known).then(
                partial(self._written, partition, revision)
            )

    def _written(self, partition: PartitionId, revision: int, future: Future[bool]) -> None:
        self._in_flight -= 1
        if self._queued.get(partition) == revision:
            del self._queued[partition]
        if future.error is not None and not self._closed:
            self._loop.call_later(_RETRY_MS, self.look_soon)
        self._write()

    # -- by hand ----------------------------------------------------------------------------------

    def decide_again(self, node: int) -> None:
        """Have the baselines of zones count as new events that still have partitions on a node."""
        catalog = self._catalogs.latest
        for zone in catalog.zones:
            if any(node in self._keys(one).nodes for one in self.partitions(catalog, zone)):
                baseline, revision = self.baseline(zone)
                if baseline is not None:
                    key = baseline_key(zone)
                    self._metastore.invoke_if(
                        Revision(key, Compare.EQ, revision), [Put(key, baseline.encode())]
                    )

    def choose(self, zone: Zone, nodes: tuple[int, ...] | None) -> Future[bool]:
        """Name the nodes of a zone, or let them come and go by themselves; False: ask again."""
        now, revision = self.baseline(zone.id)
        presence, version = self.presence(), self._catalogs.latest.version
        before = now or Baseline(nodes=(), replicas=zone.replicas, catalog_version=version)
        wished = Baseline(
            nodes=before.nodes,
            replicas=before.replicas,
            catalog_version=before.catalog_version,
            chosen=None if nodes is None else tuple(sorted(nodes)),
        )
        found = next_baseline(wished, zone, version, presence).baseline
        key = baseline_key(zone.id)
        return self._metastore.invoke_if(
            Revision(key, Compare.EQ, revision), [Put(key, found.encode())]
        )
