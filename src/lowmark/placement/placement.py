"""Assigns new tables to nodes, has this node's copies started, and follows where partitions go.

See the package's docstring. The steps of a new table, and what is true after each:

    1. the version of the catalog that has it is written. No node has a copy. A crash of all nodes
       here is made good at the next start: a table of the catalog without a stable set gets it
    2. a stable set is written. It is never computed again; a node that crashes before its copy
       is made makes it at its next start, when it has heard of all that it knew before: it may
       have been destroyed since
    3. the copy's first record is durable. From here on it is opened, not made: the stable set says
       only that it is wanted

What moves later is decided by `zones`, done by `moves`, and cleaned up by `leaving`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

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
from lowmark.catalog.entries import DroppedZone, NewZone
from lowmark.catalog.update_log import update_key
from lowmark.errors import LowmarkError
from lowmark.faces import deferred
from lowmark.group import Future, Group, Groups, Reply
from lowmark.metastore import (
    Cluster,
    Do,
    Entry,
    Event,
    Following,
    NodeInfo,
    Operation,
    Topology,
)
from lowmark.metastore.coordinator import name_of
from lowmark.metastore.nodes import TOPOLOGY_KEY, decode_topology
from lowmark.metastore.state import prefix_end
from lowmark.placement import decisions
from lowmark.placement.assignments import (
    ASSIGNMENTS_PREFIX,
    METASTORE,
    NO_KEYS,
    STABLE,
    Assignments,
    Keys,
    PartitionId,
    parse_key,
    removal_of,
)
from lowmark.placement.config import RebalanceConfig
from lowmark.placement.copies import Copies
from lowmark.placement.leaving import Leaving
from lowmark.placement.moves import Moves
from lowmark.placement.operations import REBALANCE_KEY, Operations
from lowmark.placement.progress import Progress
from lowmark.placement.rebuilding import Rebuilding
from lowmark.placement.resetting import Outdated, Resetting
from lowmark.placement.target import Place, first
from lowmark.placement.writes import carry_out
from lowmark.placement.zones import Zones
from lowmark.runtime import Buffer, Runtime, Timer
from lowmark.table import Tables, group_name

if TYPE_CHECKING:
    from lowmark.placement.replacing import Replacing
    from lowmark.placement.reseeding import Reseeding
else:
    (Replacing,) = deferred("lowmark.placement.replacing", "Replacing")
    (Reseeding,) = deferred("lowmark.placement.reseeding", "Reseeding")

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


@dataclass(frozen=True, slots=True)
class _Home:
    """What a new table is placed by."""

    catalog: Catalog
    zone: Zone
    nodes: list[NodeInfo]
    baseline: int
    """The revision of the zone's baseline that this is as of."""


class Placement:
    """One node's part. `start` it once, before or after the catalog; all calls on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        groups: Groups,
        *,
        config: RebalanceConfig | None = None,
    ) -> None:
        config = config or RebalanceConfig()
        self._loop = runtime.loop
        self._groups = groups
        groups.when_begun_anew = self._begun_anew
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._catalogs = catalogs
        self._tables = tables
        self._node = cluster.node.number
        self.zones = Zones(
            runtime.loop,
            cluster,
            catalogs,
            keys=self.keys,
            heard=lambda: self.heard,
            adjust=config.adjust,
        )
        self.moves = Moves(
            runtime.loop, cluster.metastore, group=self._group, keys=self.keys, config=config
        )
        self.leaving = Leaving(
            runtime.loop,
            groups,
            cluster.metastore,
            tables,
            keys=self.keys,
            on_gone=self._gone,
        )
        self.operations = Operations(
            runtime.loop,
            groups,
            cluster,
            catalogs,
            tables,
            zones=self.zones,
            moves=self.moves,
            keys=self.keys,
            moving=self.moving,
        )
        self.progress = Progress(
            runtime.loop,
            cluster,
            tables,
            zones=self.zones,
            moves=self.moves,
            keys=self.keys,
            moving=self.moving,
        )
        self.resetting = Resetting(
            runtime.loop, groups, cluster, tables, moves=self.moves, started=self._opened
        )
        self.rebuilding = Rebuilding(
            groups,
            cluster,
            tables,
            moves=self.moves,
            leaving=self.leaving,
            started=self._opened,
        )
        self._outdated = Outdated(
            runtime.loop, cluster, tables, moves=self.moves, started=self._opened
        )
        self._reseeding: Reseeding | None = None
        """Made when the first copy is damaged."""
        self._config = config
        self._copies = Copies(
            runtime.loop, tables, listener=self.moves.listener, on_there=self._there
        )
        cluster.holding_back = self.operations.may_leave
        cluster.stays = self.operations.stays
        cluster.judge_replacing(lambda: self.replacing)
        groups.calls.serve("node.hears", self._hears)
        self._keys: dict[TableId, dict[int, Keys]] = {}
        self.heard = 0
        """How often assignments have changed here."""
        self._writes: deque[tuple[TableId, int, Assignments, int]] = deque()
        self._writing: set[tuple[TableId, int]] = set()
        """Waiting to be written, or on their way."""
        self._in_flight = 0
        self._waiting: dict[TableId, _Waiting] = {}
        self._founded: dict[PartitionId, bool] = {}
        """Whether the stable set of a partition is its first one: then it names the founders."""
        self._homeless: dict[TableId, str] = {}
        """Tables that no node may hold, and why."""
        self._following: Following | None = None
        self._up_to_date = False
        """Whether this node has heard of everything that it knew before it was started."""
        self._not_made: dict[PartitionId, None] = {}
        """Copies that are made as soon as it has, if they are wanted then."""
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
        self.zones.close()
        self.moves.close()
        self.leaving.close()
        self.resetting.close()
        self._outdated.close()
        if self._reseeding is not None:
            self._reseeding.close()
        if self._following is not None:
            self._following.close()
        for table in list(self._waiting):
            self._end_wait(table)

    # -- asking ---------------------------------------------------------------------------------

    @cached_property
    def replacing(self) -> Replacing:
        """What lost nodes leave behind: seldom asked."""
        return Replacing(self._groups, self._cluster, self._catalogs, self.operations, self.zones)

    def _hears(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        self.replacing.asked(address, sender, question, answer)

    def routes(self, table: int, number: int) -> tuple[int, ...]:
        """The nodes that hold a partition, as far as this node knows; empty if it does not.

        Those that it moves to are not among them yet: they may have next to no row.
        """
        stable = self.keys(PartitionId(TableId(table), number)).stable
        return () if stable is None else stable.nodes

    def keys(self, partition: PartitionId) -> Keys:
        """What this node knows of a partition's assignments."""
        return self._keys.get(partition.table, {}).get(partition.number, NO_KEYS)

    def all_keys(self) -> Iterator[tuple[PartitionId, Keys]]:
        """The same, of all partitions that it knows of."""
        for table, numbers in self._keys.items():
            for number, keys in numbers.items():
                yield PartitionId(table, number), keys

    def moving(self) -> list[PartitionId]:
        """The partitions that are to be on other nodes than they are."""
        return sorted(partition for partition, keys in self.all_keys() if keys.moving)

    def _group(self, partition: PartitionId) -> Group | None:
        copy = self._tables.here(*partition)
        return None if copy is None else copy.group

    def assigned(self) -> list[TableId]:
        """The tables that have any assignments in the metastore, as far as this node knows."""
        found = self._metastore.state.find_range(ASSIGNMENTS_PREFIX, prefix_end(ASSIGNMENTS_PREFIX))
        parsed = (parse_key(one.key) for one in found)
        return sorted({one[1] for one in parsed if one is not None} - {METASTORE.table})

    def remove(self, table: TableId, also: Iterable[Operation] = ()) -> Future[None]:
        """Remove all assignments of a table that is not needed any more, and what else there is of
        it, in one revision.
        """
        return self._metastore.invoke(Do((*removal_of(table), *also))).map(lambda _: None)

    @property
    def problem(self) -> str:
        """What is wrong with assignments and copies, in words; empty if nothing is."""
        homeless = [text for _, text in sorted(self._homeless.items())]
        return "; ".join([*homeless, *self._copies.problems, *self.alarms])

    @property
    def alarms(self) -> list[str]:
        """The moves that this node speaks for, and that a person should look at."""
        return [
            f"partition {move.partition} of table {move.table} can't be moved"
            f"{f' to node {name_of(self._metastore, move.node)}' if move.node else ''}:"
            f" {move.reason}"
            f" ({f'{move.attempts} attempts in ' if move.attempts else ''}"
            f"{move.failing_ms // 1_000} s)"
            for move in self.progress.alarms()
        ]

    # -- what the metastore says ----------------------------------------------------------------

    def _begin(self) -> None:
        if not self._closed:
            self._following = self._metastore.keep_watching(
                prefix=ASSIGNMENTS_PREFIX,
                keys=[REBALANCE_KEY],
                start=self._take_all,
                on_event=self._changed,
                name="assignments",
            )
            self._cluster.on_topology(lambda _: self._complete())
            self.zones.start()
            self._catch_up()

    def _catch_up(self) -> None:
        """Hear of everything that this node knew when it ended; copies are made only then.

        Its copy of the metastore begins with a snapshot, and may not know yet that a table was
        dropped whose copies this node has destroyed. If it made them anew, they would vote a second
        time in a term in which they had voted. What it knew was committed, so one linearizable read
        brings all of it.
        """

        def known(future: Future[None]) -> None:
            if self._closed:
                return
            if future.error is not None:
                logger.info("copies are not made yet", extra={"reason": future.error.message})
                self._loop.call_later(_RETRY_MS, self._catch_up)
                return
            try:
                settled = self._settle()
            except LowmarkError as error:
                logger.warning("copies are not made yet", extra={"reason": error.message})
                settled = False
            if not settled:
                self._loop.call_later(_RETRY_MS, self._catch_up)
                return
            self._up_to_date = True
            waiting, self._not_made = self._not_made, {}
            self._apply(waiting, self._on_disk())

        def read(future: Future[None]) -> None:
            if future.error is not None:
                known(future)
            else:
                self._catalogs.when_followed().then(known)

        self._metastore.read(lambda _: None).then(read)

    def _begun_anew(self) -> None:
        """This directory is older than what other nodes know of it."""
        self._loop.call_soon(lambda: None if self._closed else self._catch_up())

    def _settle(self) -> bool:
        """Note which copies this node may once have had that its directory lacks, if it is older
        than what others know of this node; False if that can't be told yet.

        One that is made in such a place is in doubt (`group.doubts`). All that come later are not.
        For a copy that is the only one there is no other to make it good: it begins with nothing.
        """
        starts = self._groups.starts
        if starts.lost:
            return False
        if not starts.unsettled:
            return True
        found: dict[PartitionId, frozenset[int]] = {}
        for entry in self._metastore.range_local(ASSIGNMENTS_PREFIX).entries:
            parsed = parse_key(entry.key)
            if parsed is None or parsed[1] == METASTORE.table:
                continue
            kind, table, number = parsed
            partition = PartitionId(table, number)
            try:
                nodes = NO_KEYS.with_entry(kind, entry).nodes
            except LowmarkError:
                continue  # no copy is made by it
            found[partition] = found.get(partition, frozenset()) | nodes
        for partition, holders in found.items():
            if self._node in holders and len(holders) > 1 and not self._tables.is_made(*partition):
                self._groups.note_doubtful(group_name(*partition))
        self._groups.settle()
        return True

    def _take_all(self) -> None:
        """Take all assignments as they are now."""
        page = self._metastore.range_local(ASSIGNMENTS_PREFIX)
        self.operations.heard()  # it may fail: then what is known stays until the next attempt
        known = [partition for partition, _ in self.all_keys()]
        self._keys.clear()
        self.heard += 1
        changed = self._take((entry.key, entry) for entry in page.entries)
        self._apply(dict.fromkeys([*known, *changed]), self._on_disk())
        # What lies here of partitions that were moved away while this node was down.
        for table, number in self._tables.on_disk():
            self.leaving.look(PartitionId(table, number))

    def _changed(self, event: Event) -> None:
        changed = self._take((change.key, change.entry) for change in event.changes)
        if any(change.key == REBALANCE_KEY for change in event.changes):
            self.operations.heard()
        self._apply(changed, self._on_disk())

    def _take(self, entries: Iterable[tuple[bytes, Entry | None]]) -> dict[PartitionId, None]:
        """Take note of what the metastore says; gives the partitions that it is about."""
        changed: dict[PartitionId, None] = {}
        for key, entry in entries:
            parsed = parse_key(key)
            if parsed is None or parsed[1] == METASTORE.table:  # see `members`
                continue
            kind, table, number = parsed
            partition = PartitionId(table, number)
            try:
                keys = self.keys(partition).with_entry(kind, entry)
            except LowmarkError as error:
                logger.error("an assignment can't be read", extra={"reason": error.message})
                continue
            if kind == STABLE and entry is not None:
                self._founded[partition] = entry.version == 1
            self._keys.setdefault(table, {})[number] = keys
            self.heard += 1
            changed[partition] = None
        return changed

    def _apply(self, partitions: Iterable[PartitionId], on_disk: _OnDisk) -> None:
        """Do what assignments ask of this node."""
        for partition in partitions:
            keys = self.keys(partition)
            if keys.stable is None:
                self._forget(partition)
                continue
            table, number = partition
            self._homeless.pop(table, None)
            nodes = keys.stable.nodes
            if self._node in keys.nodes and not self._may_start(table, number):
                self._not_made[partition] = None
            elif self._node in keys.nodes and self._is_wanted(table, number, on_disk):
                # Only the first value names founders. Who comes by a later one joins what is there.
                is_first = self._founded.get(partition, False) and self._node in nodes
                founders = nodes if is_first else ()
                self._copies.want(table, number, founders=founders, alone=nodes == (self._node,))
            else:
                self._settled(table, number)
            self._serve(partition)
            if self._node not in keys.nodes:
                self._copies.cancel(table, number)
                if self._tables.has_copy(table, number):
                    self.leaving.look(partition)
            else:
                self._look_at_copy(partition)
            self.moves.changed(partition)
            self._is_behind(partition, keys)

    def _serve(self, partition: PartitionId) -> None:
        """Rows are read at the nodes of stable: others have not all of them, or are about to go."""
        copy = self._tables.here(*partition)
        if copy is not None:
            copy.serve(self._node in self.routes(*partition))

    def _is_behind(self, partition: PartitionId, keys: Keys) -> None:
        """A table that was made while its zone's baseline changed is decided on once more."""
        described = self._catalogs.latest.table(partition.table)
        if described is not None:
            revision = self.zones.revision(described.zone_id)
            if keys.trigger is None or keys.trigger < revision:
                self.zones.look_soon()

    def _forget(self, partition: PartitionId) -> None:
        table, number = partition
        numbers = self._keys.get(table, {})
        numbers.pop(number, None)
        if not numbers:
            self._keys.pop(table, None)
        self._founded.pop(partition, None)
        self.moves.forget(partition)
        self._copies.forget(table, number)

    def _gone(self, partition: PartitionId) -> None:
        """This node's copy was destroyed; if it was given another one meanwhile, it is made."""
        self._copies.forget(*partition)
        self._apply([partition], self._on_disk())

    def _may_start(self, table: TableId, number: int) -> bool:
        """A copy that is here is opened at any time, one that is not is made: see `_catch_up`."""
        return self._up_to_date or self._tables.is_made(table, number)

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
            case None | ChangedZone() | NewZone() | DroppedZone():
                self._complete()
                self.zones.look_soon()
            case _:
                pass
        return None

    def _new_table(self, table: Table, event: CatalogEvent) -> Future[None]:
        future = self._when_home(table)
        try:
            home = self._home(event.catalog, table, at=event.revision)
        except LowmarkError as error:  # a damaged copy of the metastore
            logger.warning("a table waits for its assignments", extra={"reason": error.message})
            self._complete_later()
            return future
        self._assign(table, home)
        return future

    def _assign(self, table: Table, home: _Home) -> None:
        """Have those stable sets of a table written that are not there yet."""
        zone = home.zone
        if not home.nodes:
            name = home.catalog.name_of(table)
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
        places = [Place(node.number, node.rack) for node in home.nodes]
        chosen = first(table.id, range(table.partitions), places, replicas=zone.replicas)
        for number in self._without_home(table):
            assignments = Assignments(chosen[number], home.catalog.version)
            self._writes.append((table.id, number, assignments, home.baseline))
            self._writing.add((table.id, number))
        self._write()

    def _without_home(self, table: Table) -> list[int]:
        return [
            number
            for number in range(table.partitions)
            if not self.routes(table.id, number) and (table.id, number) not in self._writing
        ]

    def _write(self) -> None:
        while self._writes and self._in_flight < WRITES_MAX and not self._closed:
            table, number, assignments, baseline = self._writes.popleft()
            if self.routes(table, number):  # another node was faster
                self._writing.discard((table, number))
                continue
            partition = PartitionId(table, number)
            self._in_flight += 1
            decide = partial(decisions.first, partition, target=assignments, at=baseline)
            carry_out(self._metastore, partition, decide, known=NO_KEYS).then(
                partial(self._written, partition)
            )

    def _written(self, partition: PartitionId, future: Future[bool]) -> None:
        """Won or lost, the watch says what is there. Without an answer, it is looked at again."""
        self._in_flight -= 1
        self._writing.discard((partition.table, partition.number))
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
                    self._assign(table, self._home_of(table))
        except LowmarkError as error:
            logger.warning("tables wait for their assignments", extra={"reason": error.message})
            self._complete_later()

    def _home_of(self, table: Table) -> _Home:
        """As it would have been computed when the table was made, if that still can be.

        So a table that was made while all nodes were up gets as many replicas as it should have,
        whichever node comes back first. Nodes that have left the cluster since don't count.
        """
        earliest = self._first_version(table)
        found = self._metastore.state.find(update_key(earliest.version))
        if found is not None:
            home = self._home(earliest, table, at=found.record.revision)
            if home.nodes:
                return home
        return self._home(self._catalogs.latest, table, at=None)

    def _home(self, catalog: Catalog, table: Table, *, at: int | None) -> _Home:
        """What a table is placed by, as of a revision: its zone, and the nodes that may hold it."""
        zone = catalog.zones[table.zone_id]
        readable = None if at is None else max(at, self._metastore.state.compacted)
        baseline, revision = self.zones.baseline(zone.id, at=readable)
        out = self.zones.draining(at=readable)
        chosen = None if baseline is None else baseline.chosen

        def may_hold(node: NodeInfo) -> bool:
            if node.number in out:
                return False
            if chosen is not None:
                return node.number in chosen
            return zone.matches(node.all_attributes)

        belong = {node.number: node for node in self._cluster.nodes()}
        up = [node for node in self._topology(at=readable).nodes if node.number in belong]
        nodes = [node for node in up if may_hold(node)]
        here = {node.number for node in nodes}
        down = [n for n in belong.values() if n.number not in here and may_hold(n)]
        # If too few are up for its replicas, some that are down: they have their copies when they
        # are back. Those that are up stay a majority, which the table needs.
        nodes += down[: max(0, min(zone.replicas - len(nodes), len(nodes) - 1))]
        return _Home(catalog, zone, nodes, revision)

    def _first_version(self, table: Table) -> Catalog:
        """The version that made a table which is in the latest; or the earliest one left."""
        catalogs = self._catalogs
        versions = range(catalogs.earliest.version, catalogs.latest.version + 1)
        at = bisect_left(
            versions, True, key=lambda version: table.id in catalogs.version(version).tables
        )
        return catalogs.version(versions[at])

    def _topology(self, *, at: int | None) -> Topology:
        """As of a revision that can be read."""
        entry = self._metastore.get_local(TOPOLOGY_KEY, at=at)
        return Topology() if entry is None else decode_topology(entry.value)

    # -- waiting for assignments ----------------------------------------------------------------

    def _when_home(self, table: Table) -> Future[None]:
        """When all partitions are assigned, and this node's copies are started."""
        left = {
            number
            for number in range(table.partitions)
            if not (nodes := self.routes(table.id, number))
            or (self._node in nodes and not self._copies.is_there(table.id, number))
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
        self._opened(PartitionId(table, number))
        self._settled(table, number)

    def _opened(self, partition: PartitionId) -> None:
        """A copy was opened, or made anew."""
        copy = self._tables.here(*partition)
        if copy is not None:
            copy.when_stopped = lambda _: self._look_at_copy(partition)
            self._look_at_copy(partition)
        self._serve(partition)

    def _look_at_copy(self, partition: PartitionId) -> None:
        """One that has stopped may have to be made anew."""
        self._outdated.look(partition)
        if not self._config.reseed or not self._tables.damage(*partition):
            return
        if self._reseeding is None:
            self._reseeding = Reseeding(
                self._loop,
                self._node,
                self._tables,
                self.rebuilding,
                config=self._config,
            )
        self._reseeding.look(partition)

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
