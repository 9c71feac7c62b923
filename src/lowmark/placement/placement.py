"""Assigns new tables to nodes, and has this node's copies started. See the package's docstring.

Steps of a new table, and what is true after each

    1. the version of the catalog that has it is written. No node has a copy. A crash of all nodes
       here is made good at the next start: a table of the catalog without a stable set gets it
    2. a stable set is written. It is never computed again; a node that crashes before its copy
       is made makes it at its next start
    3. the copy's first record is durable. From here on it is opened, not made: the stable set says
       only that it is wanted
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from lowmark.catalog import (
    Catalog,
    CatalogEvent,
    Catalogs,
    ChangedZone,
    DroppedTable,
    NewTable,
    Table,
    TableId,
    Zone,
)
from lowmark.catalog.update_log import update_key
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.metastore import (
    Cluster,
    Do,
    Entry,
    Event,
    NodeInfo,
    Operation,
    Put,
    Topology,
    Watch,
    missing,
)
from lowmark.metastore.nodes import TOPOLOGY_KEY, decode_topology
from lowmark.metastore.state import prefix_end
from lowmark.placement.assignments import (
    ASSIGNMENTS_PREFIX,
    STABLE_PREFIX,
    Assignments,
    decode_assignments,
    keys_of,
    parse_key,
    stable_key,
    target,
)
from lowmark.placement.copies import Copies
from lowmark.runtime import Runtime, Timer
from lowmark.table import Tables

logger = logging.getLogger(__name__)

WRITES_MAX = 256
"""This many stable sets are on their way to the metastore at a time."""
PATIENCE_MS = 10_000
"""How long a version waits until its tables are assigned; then it is told that one is not."""
_RETRY_MS = 300

_OnDisk: TypeAlias = Callable[[], frozenset[tuple[TableId, int]]]


@dataclass(slots=True, eq=False)
class _Waiting:
    """Those who wait for a table's assignments, and for which partitions still."""

    left: set[int]
    future: Future[None]
    timer: Timer


class Placement:
    """One node's part. `start` it once, before or after the catalog; all calls on the loop."""

    def __init__(
        self, runtime: Runtime, cluster: Cluster, catalogs: Catalogs, tables: Tables
    ) -> None:
        self._loop = runtime.loop
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._catalogs = catalogs
        self._tables = tables
        self._node = cluster.node.number
        self._copies = Copies(runtime.loop, tables, on_there=self._there)
        self._stable: dict[TableId, dict[int, tuple[int, ...]]] = {}
        self._writes: deque[tuple[TableId, int, Assignments]] = deque()
        self._writing: set[tuple[TableId, int]] = set()
        """Waiting to be written, or on their way."""
        self._in_flight = 0
        self._waiting: dict[TableId, _Waiting] = {}
        self._homeless: dict[TableId, str] = {}
        """Tables that no node may hold, and why."""
        self._watch: Watch | None = None
        self._closed = False

    def start(self) -> None:
        """Start what this node should have, and follow what comes."""
        self._catalogs.on_event(self._told)
        # In the next turn, when the catalog has taken what this node knows of it.
        self._loop.call_soon(self._begin)

    def close(self) -> None:
        """Start and write nothing more; copies go on until their groups are closed."""
        self._closed = True
        self._copies.close()
        if self._watch is not None:
            self._watch.close()
        for table in list(self._waiting):
            self._end_wait(table)

    # -- asking ---------------------------------------------------------------------------------

    def routes(self, table: int, number: int) -> tuple[int, ...]:
        """The nodes that hold a partition, as far as this node knows; empty if it does not."""
        return self._stable.get(TableId(table), {}).get(number, ())

    def assigned(self) -> list[TableId]:
        """The tables that have any assignments in the metastore, as far as this node knows."""
        found = self._metastore.state.find_range(ASSIGNMENTS_PREFIX, prefix_end(ASSIGNMENTS_PREFIX))
        parsed = (parse_key(one.key) for one in found)
        return sorted({one[1] for one in parsed if one is not None})

    def remove(self, table: TableId, also: Iterable[Operation] = ()) -> Future[None]:
        """Remove all assignments of a table that is not needed any more, and what else there is of
        it, in one revision.
        """
        return self._metastore.invoke(Do((*keys_of(table), *also))).map(lambda _: None)

    @property
    def problem(self) -> str:
        """What is wrong with assignments and copies, in words; empty if nothing is."""
        homeless = [text for _, text in sorted(self._homeless.items())]
        return "; ".join([*homeless, *self._copies.problems])

    # -- what the metastore says ----------------------------------------------------------------

    def _begin(self) -> None:
        if not self._closed:
            self._follow()
            self._cluster.on_topology(lambda _: self._complete())

    def _follow(self) -> None:
        """Take all stable sets as they are now, and watch for others."""
        if self._closed or self._metastore.group.stopped is not None:
            return
        try:
            page = self._metastore.range_local(STABLE_PREFIX)
            self._watch = self._metastore.watch(
                prefix=STABLE_PREFIX,
                from_revision=page.revision + 1,
                on_event=self._changed,
                on_end=self._follow_later,
                name="stable assignments",
            )
        except LowmarkError as error:
            self._follow_later(error)
            return
        self._stable.clear()
        on_disk = self._on_disk()
        for entry in page.entries:
            self._learn(entry, on_disk)

    def _follow_later(self, error: LowmarkError) -> None:
        if not self._closed:
            logger.warning(
                "assignments are not followed for a moment", extra={"reason": error.message}
            )
            self._loop.call_later(_RETRY_MS, self._follow)

    def _changed(self, event: Event) -> None:
        on_disk = self._on_disk()
        for change in event.changes:
            if change.entry is not None:
                self._learn(change.entry, on_disk)
            elif (parsed := parse_key(change.key)) is not None:
                _, table, number = parsed
                self._forget(table, number)

    def _learn(self, entry: Entry, on_disk: _OnDisk) -> None:
        parsed = parse_key(entry.key)
        if parsed is None:
            return
        _, table, number = parsed
        try:
            nodes = decode_assignments(entry.value).nodes
        except LowmarkError as error:
            logger.error("an assignment can't be read", extra={"reason": error.message})
            return
        self._stable.setdefault(table, {})[number] = nodes
        self._homeless.pop(table, None)
        if self._node in nodes and self._is_wanted(table, number, on_disk):
            # Only the first value names founders. Who comes by a later one joins what is there.
            founders = nodes if entry.version == 1 else ()
            self._copies.want(table, number, founders=founders, alone=nodes == (self._node,))
        else:
            self._settled(table, number)

    def _forget(self, table: TableId, number: int) -> None:
        assigned = self._stable.get(table, {})
        assigned.pop(number, None)
        if not assigned:
            self._stable.pop(table, None)
        self._copies.forget(table, number)

    def _is_wanted(self, table: TableId, number: int, on_disk: _OnDisk) -> bool:
        """A copy of a dropped table goes on, for reads as of earlier times; none is made."""
        latest = self._catalogs.latest
        if table in latest.tables or table >= latest.next_id:  # this node may hear of it later
            return True
        return (table, number) in on_disk()

    def _on_disk(self) -> _OnDisk:
        """What is on this node's disk, looked up once, when it is first asked for."""
        return cache(lambda: frozenset(self._tables.on_disk()))

    # -- new tables -----------------------------------------------------------------------------

    def _told(self, event: CatalogEvent) -> Future[None] | None:
        match event.entry:
            case NewTable(table=table) if table.id in event.catalog.tables:
                return self._new_table(table, event)
            case DroppedTable(table_id=table_id):
                self._homeless.pop(table_id, None)
                self._end_wait(table_id)
            case None | ChangedZone():
                self._complete()
            case _:
                pass
        return None

    def _new_table(self, table: Table, event: CatalogEvent) -> Future[None]:
        future = self._when_home(table)
        try:
            zone = event.catalog.zones[table.zone_id]
            nodes = self._for(zone, self._topology(at=event.revision).nodes)
        except LowmarkError as error:  # a damaged copy of the metastore
            logger.warning("a table waits for its assignments", extra={"reason": error.message})
            self._complete_later()
            return future
        self._assign(event.catalog, table, zone, nodes)
        return future

    def _assign(self, catalog: Catalog, table: Table, zone: Zone, nodes: list[NodeInfo]) -> None:
        """Have those stable sets of a table written that are not there yet."""
        if not nodes:
            name = catalog.name_of(table)
            text = (
                f"table {name} has no assignments: no node that is up matches the filter"
                f" {zone.node_filter!r} of zone {zone.name}"
            )
            if self._homeless.get(table.id) != text:
                logger.warning(
                    "a table has no assignments", extra={"table": name, "zone": zone.name}
                )
            self._homeless[table.id] = text
            self._end_wait(table.id)  # it is not known how long that would take
            return
        for number in self._without_home(table):
            chosen = target(table.id, number, nodes, replicas=zone.replicas)
            self._writes.append((table.id, number, Assignments(chosen, catalog.version)))
            self._writing.add((table.id, number))
        self._write()

    def _without_home(self, table: Table) -> list[int]:
        known = self._stable.get(table.id, {})
        return [
            number
            for number in range(table.partitions)
            if number not in known and (table.id, number) not in self._writing
        ]

    def _write(self) -> None:
        while self._writes and self._in_flight < WRITES_MAX and not self._closed:
            table, number, assignments = self._writes.popleft()
            if self.routes(table, number):  # another node was faster
                self._writing.discard((table, number))
                continue
            key = stable_key(table, number)
            self._in_flight += 1
            self._metastore.invoke_if(missing(key), [Put(key, assignments.encode())]).then(
                lambda future, table=table, number=number: self._written(  # type: ignore[misc]
                    table, number, future
                )
            )

    def _written(self, table: TableId, number: int, future: Future[bool]) -> None:
        """Won or lost, the watch says what is there. Without an answer, it is looked at again."""
        self._in_flight -= 1
        self._writing.discard((table, number))
        if future.error is not None and not self._closed:
            self._complete_later()
        self._write()

    # -- making good ----------------------------------------------------------------------------

    def _complete_later(self) -> None:
        self._loop.call_later(_RETRY_MS, self._complete)

    def _complete(self) -> None:
        """Assign every table of the catalog that is not assigned, if a node may hold it."""
        if self._closed:
            return
        latest = self._catalogs.latest
        try:
            for table in latest.all_tables():
                if self._without_home(table):
                    catalog, zone, nodes = self._home_of(table)
                    self._assign(catalog, table, zone, nodes)
        except LowmarkError as error:
            logger.warning("tables wait for their assignments", extra={"reason": error.message})
            self._complete_later()

    def _home_of(self, table: Table) -> tuple[Catalog, Zone, list[NodeInfo]]:
        """As it would have been computed when the table was made, if that still can be.

        So a table that was made while all nodes were up gets as many replicas as it should have,
        whichever node comes back first. Nodes that have left the cluster since don't count.
        """
        first = self._first_version(table)
        zone = first.zones[table.zone_id]
        found = self._metastore.state.find(update_key(first.version))
        if found is not None:
            belong = {node.number for node in self._cluster.nodes()}
            up = self._topology(at=found.record.revision).nodes
            nodes = self._for(zone, [node for node in up if node.number in belong])
            if nodes:
                return first, zone, nodes
        latest = self._catalogs.latest
        zone = latest.zones[table.zone_id]
        return latest, zone, self._for(zone, self._topology(at=None).nodes)

    def _for(self, zone: Zone, up: Iterable[NodeInfo]) -> list[NodeInfo]:
        """The nodes that a new table of a zone may be on: those that are up.

        If there are too few for its replicas, some that are down, too: they have their copies when
        they are back. Those that are up stay a majority, which the table needs.
        """
        nodes = [node for node in up if zone.matches(node.all_attributes)]
        here = {node.number for node in nodes}
        down = [
            node
            for node in self._cluster.nodes()
            if node.number not in here and zone.matches(node.all_attributes)
        ]
        return nodes + down[: max(0, min(zone.replicas - len(nodes), len(nodes) - 1))]

    def _first_version(self, table: Table) -> Catalog:
        """The version that made a table which is in the latest; or the earliest one left."""
        catalogs = self._catalogs
        versions = range(catalogs.earliest.version, catalogs.latest.version + 1)
        at = bisect_left(
            versions, True, key=lambda version: table.id in catalogs.version(version).tables
        )
        return catalogs.version(versions[at])

    def _topology(self, *, at: int | None) -> Topology:
        """As of a revision; if that was compacted away, as of the earliest that is left."""
        state = self._metastore.state
        readable = None if at is None else max(at, state.compacted)
        entry = self._metastore.get_local(TOPOLOGY_KEY, at=readable)
        return Topology() if entry is None else decode_topology(entry.value)

    # -- waiting for assignments ----------------------------------------------------------------

    def _when_home(self, table: Table) -> Future[None]:
        """When all partitions are assigned, and this node's copies are started."""
        known = self._stable.get(table.id, {})
        left = {
            number
            for number in range(table.partitions)
            if number not in known
            or (self._node in known[number] and not self._copies.is_there(table.id, number))
        }
        if not left or self._closed:
            return Future.of(None)

        def late() -> None:
            logger.warning("a table waits for its assignments", extra={"table": table.name})
            self._end_wait(table.id)

        waiting = _Waiting(left, Future(), self._loop.call_later(PATIENCE_MS, late))
        self._waiting[table.id] = waiting
        return waiting.future

    def _there(self, table: TableId, number: int) -> None:
        self._settled(table, number)

    def _settled(self, table: TableId, number: int) -> None:
        waiting = self._waiting.get(table)
        if waiting is not None:
            waiting.left.discard(number)
            if not waiting.left:
                self._end_wait(table)

    def _end_wait(self, table: TableId) -> None:
        waiting = self._waiting.pop(table, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.future.resolve(None)
