"""What an operator may ask of placement: what would move, what shall, and what shall not.

Whatever is asked is written to the metastore, by any node, and heard by all: a node that starts
later finds it there. How far moves are is in `progress`.

    rebalance    {"paused":false,"bytes_per_s":52428800}
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from lowmark.catalog import Catalog, Catalogs, TableId, find_zone
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable
from lowmark.formatting import counted
from lowmark.group import Future, Groups, together
from lowmark.metastore import Cluster, Compare, Entry, NodeInfo, Put, Remove, Revision
from lowmark.metastore.coordinator import known
from lowmark.metastore.state import prefix_end
from lowmark.placement import decisions
from lowmark.placement.assignments import (
    METASTORE,
    STABLE_PREFIX,
    Keys,
    PartitionId,
    parse_key,
)
from lowmark.placement.baseline import Draining, draining_key, open_to
from lowmark.placement.moves import Moves
from lowmark.placement.obstacles import Stuck, last_with, needing, why_stuck
from lowmark.placement.planning import Plan, Wish, planned
from lowmark.placement.progress import bytes_of
from lowmark.placement.writes import carry_out, local_keys
from lowmark.placement.zones import Zones
from lowmark.runtime import Buffer, Loop
from lowmark.table import Tables

REBALANCE_KEY: Final = b"rebalance"
RATE_MAX: Final = 1 << 60
"""What no disk moves in a second."""
_AGAIN_MS = 50
"""A write that another one came before is tried again after this time."""
_DECIDED_MS: Final = 10_000
"""How long an operator that removes a node waits until partitions are decided on without it."""


class RebalanceValue(msgspec.Struct, frozen=True):
    """How moves are made, until an operator says otherwise."""

    paused: bool = False
    bytes_per_s: int | None = None
    """What each node sends to copies that are behind, at most; 0: as fast as it goes; None: as its
    own settings say.
    """

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)


def decode_rebalance(value: Buffer) -> RebalanceValue:
    """As it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=RebalanceValue)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"how moves are made can't be read: {error}") from error


class Operations:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        groups: Groups,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        *,
        zones: Zones,
        moves: Moves,
        keys: Callable[[PartitionId], Keys],
        moving: Callable[[], Sequence[PartitionId]],
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._catalogs = catalogs
        self._tables = tables
        self._zones = zones
        self._moves = moves
        self._keys = keys
        self._moving = moving
        self._drained_to_leave: set[int] = set()
        """Nodes that were drained because they were to leave, and for no other reason."""
        self._own_rate = groups.throttle.bytes_per_s
        """What this node's settings say."""

    # -- what would move --------------------------------------------------------------------------

    def plan(
        self,
        *,
        add: Sequence[NodeInfo] = (),
        remove: Collection[int] = (),
        replicas: Mapping[str, int] | None = None,
        sizes: Mapping[PartitionId, int] | None = None,
    ) -> Plan:
        """What would move if nodes came or went, or zones had other replicas.

        Without any of these, what the next event would move. `sizes` are those of partitions that
        this node has no copy of.
        """
        for number in remove:
            self._check_belongs(number)
        wish = Wish(add, remove, replicas or {})
        return planned(
            self._zones, self._catalogs.latest, wish, sizes={**(sizes or {}), **self.sizes_here()}
        )

    def sizes_here(self) -> dict[PartitionId, int]:
        """The bytes of the partitions that this node has copies of."""
        copies = [one for one in self._tables.all() if one.group.stopped is None]
        return {PartitionId(one.table, one.number): bytes_of(one) for one in copies}

    # -- changing ---------------------------------------------------------------------------------

    @property
    def value(self) -> RebalanceValue:
        """How moves are made now, as this node knows."""
        entry = self._metastore.get_local(REBALANCE_KEY)
        return RebalanceValue() if entry is None else decode_rebalance(entry.value)

    def heard(self) -> None:
        """How moves are made may have changed: do so."""
        value, own = self.value, self._own_rate
        self._groups.throttle.bytes_per_s = own if value.bytes_per_s is None else value.bytes_per_s
        if self._moves.paused != value.paused:
            self._moves.paused = value.paused
            self._moves.look_at_all()

    def change(
        self, *, paused: bool | None = None, bytes_per_s: int | None = None
    ) -> Future[RebalanceValue]:
        """Pause moves or have them go on, or limit what each node sends for them."""
        if bytes_per_s is not None and bytes_per_s < 0:
            raise Rejected("a rate is at least 0 bytes a second", hint="0 lifts the limit.")
        if bytes_per_s is not None and bytes_per_s > RATE_MAX:
            raise Rejected(f"a rate is at most {RATE_MAX:,} bytes a second")
        written = RebalanceValue()

        def attempt() -> Future[bool]:
            whole: Future[bool] = Future()

            def read(future: Future[Entry | None]) -> None:
                nonlocal written
                if future.error is not None:
                    whole.reject(future.error)
                    return
                entry = future.result()
                now = RebalanceValue() if entry is None else decode_rebalance(entry.value)
                written = RebalanceValue(
                    now.paused if paused is None else paused,
                    now.bytes_per_s if bytes_per_s is None else bytes_per_s,
                )
                self._metastore.invoke_if(
                    Revision(REBALANCE_KEY, Compare.EQ, 0 if entry is None else entry.revision),
                    [Put(REBALANCE_KEY, written.encode())],
                ).then(whole.follow)

            self._metastore.get(REBALANCE_KEY).then(read)
            return whole

        # If another operator is faster, what this one did not name stays as that one wants.
        return self._again(attempt).map(lambda _: written)

    def cancel(self, partitions: Collection[PartitionId] | None = None) -> Future[Cancelled]:
        """Have partitions stay where they are, if their move is not being put in force yet."""
        chosen = [one for one in self._moving() if partitions is None or one in partitions]

        def withdraw(partition: PartitionId) -> Future[bool]:
            return carry_out(
                self._metastore, partition, lambda keys: decisions.withdrawn(partition, keys)
            )

        def done(answers: list[Future[bool]]) -> Cancelled:
            went = [one for one, got in zip(chosen, answers, strict=True) if got.result()]
            late = [one for one in chosen if one not in went]
            return Cancelled(tuple(map(tuple, went)), tuple(map(tuple, late)))  # type: ignore[arg-type]

        return together([withdraw(one) for one in chosen]).map(done)

    def choose(self, zone: str, nodes: Sequence[int] | None) -> Future[None]:
        """Name the nodes of a zone; None: they come and go by themselves."""
        described = find_zone(self._catalogs.latest, zone)
        if nodes is not None:
            belongs = {node.number for node in self._cluster.nodes()}
            if not nodes:
                raise Rejected(
                    f"zone {zone} needs at least one node", hint="Name nodes, or use `auto`."
                )
            for number in nodes:
                if number not in belongs:
                    raise Rejected(f"there is no node {number} in this cluster")
        return self._again(
            lambda: self._zones.choose(described, None if nodes is None else tuple(nodes))
        )

    def drain(self, node: int) -> Future[None]:
        """Have all partitions leave a node; it may come back by `fill`."""
        self._check_belongs(node)
        draining = self._zones.draining() | {node}
        if all(one.number in draining for one in self._cluster.nodes()):
            raise Rejected(
                f"node {self._name(node)} can't be drained: no other node would be left",
                hint="Let another node join first.",
            )
        if node in self._zones.draining():
            self._zones.decide_again(node)  # what was cancelled before is decided on once more
        key, value = draining_key(node), Draining(self._loop.wall_ms())
        put = self._metastore.invoke_if(Revision(key, Compare.EQ, 0), [Put(key, value.encode())])
        return put.map(lambda _: None)

    def fill(self, node: int) -> Future[None]:
        """Let a node that was drained have partitions again."""
        self._check_belongs(node)
        key = draining_key(node)
        removed = self._metastore.invoke_if(Revision(key, Compare.GT, 0), [Remove(key)])
        return removed.map(lambda _: None)

    def left_on(self, node: int) -> list[PartitionId]:
        """The partitions that a node still has, or is to have."""
        return [one for one, keys in self.assigned() if node in keys.nodes]

    def stuck(self, node: int) -> list[Stuck]:
        """Why partitions stay on a node that is drained, by zone; empty if they can go."""
        presence, catalog, found = self._zones.presence(), self._catalogs.latest, []
        for zone in sorted(catalog.zones.values(), key=lambda one: one.id):
            partitions = self._zones.partitions(catalog, zone.id)
            left = sum(node in self._keys(one).nodes for one in partitions)
            baseline, _ = self._zones.baseline(zone.id)
            chosen = None if baseline is None else baseline.chosen
            if left and node in presence.draining and not open_to(zone, chosen, presence):
                undrained = replace(presence, draining=frozenset())
                others = open_to(zone, chosen, undrained)
                found.append(
                    Stuck(node, zone.name, left, *why_stuck(zone, node, others, chosen is not None))
                )
        return found

    def may_leave(self, node: int) -> Future[LowmarkError | None]:
        """Why a node can't be removed from the cluster now; None: it can.

        An answer by what this node has heard may be old, and a partition may be given to the node a
        moment later. So it is drained first: when every partition was decided on without it, none
        is given to it any more, and what a linearizable read then shows only gets better.
        """
        whole: Future[LowmarkError | None] = Future()
        refused = self.refusal(node)
        if refused is not None:
            return Future.of(refused)
        mine, deadline_ms = node not in self._zones.draining(), self._now_ms() + _DECIDED_MS
        if mine:
            self._drained_to_leave.add(node)

        def drained(future: Future[None]) -> None:
            if future.error is not None:
                whole.resolve(future.error)
            else:
                look()

        def look() -> None:
            self._catalogs.at(self._metastore.clock.now()).then(heard)

        def heard(future: Future[Catalog]) -> None:
            if future.error is not None:
                answer(future.error)
            else:
                self._metastore.read(lambda _: None).then(read)

        def read(future: Future[None]) -> None:
            if future.error is not None:
                answer(future.error)
            elif self._is_decided(node):
                answer(self.refusal(node, fresh=True))
            elif self._now_ms() >= deadline_ms:
                name = self._name(node)
                answer(
                    Unavailable(
                        f"node {name} can't be removed yet: not all partitions are decided on",
                        hint=f"Run `lowmark node drain {name}`, and try again when it is done.",
                    )
                )
            else:
                self._loop.call_later(_AGAIN_MS, look)

        def answer(error: LowmarkError | None) -> None:
            if error is not None:
                self.stays(node)
            whole.resolve(error)

        try:
            self.drain(node).then(drained)
        except LowmarkError as error:
            whole.resolve(error)
        return whole

    def stays(self, node: int) -> None:
        """A node that was to leave stays: it may have partitions again, if it might before."""
        if node in self._drained_to_leave:
            self._drained_to_leave.discard(node)
            with contextlib.suppress(LowmarkError):
                self.fill(node)

    def _is_decided(self, node: int) -> bool:
        """Whether all partitions were decided on by baselines without a node."""
        catalog = self._catalogs.latest
        for zone in catalog.zones:
            partitions = self._zones.partitions(catalog, zone)
            baseline, revision = self._zones.baseline(zone)
            if not partitions:
                continue
            if baseline is None or node in baseline.numbers:
                return False
            for partition in partitions:
                keys = local_keys(self._metastore, partition)
                if keys.stable is None or (keys.trigger or 0) < revision:
                    return False
        return True

    def refusal(self, node: int, *, fresh: bool = False) -> LowmarkError | None:
        """The same, by what this node has heard; `fresh`: by what its copy of the metastore has."""
        topology = known(self._metastore).topology if fresh else self._cluster.topology
        name, up = self._name(node), {one.number for one in topology.nodes} - {node}
        refused = f"node {name} can't be removed now"
        alone, last = needing(node, self.assigned(fresh=fresh), up)
        if alone or last:
            detail = f"Without it, {self._words(last)} would have no majority that is up."
            if alone:
                detail = f"It has the only copy of {self._words(alone)}."
            return Rejected(
                refused,
                detail=detail,
                hint=f"Run `lowmark node drain {name}` and wait until it is done; start nodes that"
                " are down.",
            )
        alone, last = needing(node, self.dropped(), up)
        if alone or last:
            return Rejected(
                refused,
                detail=f"It has copies of dropped tables that others can't do without:"
                f" {self._words(alone + last)}. They do not move, and reads as of a time before the"
                " drop need them until the low watermark has passed it.",
                hint="Try again then: `lowmark watermark` shows where it is and what holds it, and"
                " `lowmark watermark history` changes how far back it stays.",
            )
        return None

    def _words(self, counts: Mapping[int, int]) -> str:
        found = []
        for table, count in sorted(counts.items())[:3]:
            catalog = last_with(self._catalogs, TableId(table))
            described = None if catalog is None else catalog.table(TableId(table))
            name = f"table {table}"
            if catalog is not None and described is not None:
                name = catalog.name_of(described)
            found.append(f"{counted(count, 'partition')} of {name}")
        more = len(counts) - len(found)
        return ", ".join(found) + (f" and {counted(more, 'more table')}" if more > 0 else "")

    # -- looking up -------------------------------------------------------------------------------

    def assigned(self, *, fresh: bool = False) -> list[tuple[PartitionId, Keys]]:
        """Where all partitions are, by what this node has heard; `fresh`: by what its copy of the
        metastore has.
        """
        catalog = self._catalogs.latest
        found = []
        for zone in sorted(catalog.zones):
            for partition in self._zones.partitions(catalog, zone):
                keys = local_keys(self._metastore, partition) if fresh else self._keys(partition)
                if keys.stable is not None:
                    found.append((partition, keys))
        return found

    def dropped(self) -> list[tuple[PartitionId, Keys]]:
        """Partitions of dropped tables that may still be read as of earlier times."""
        catalog = self._catalogs.latest
        stored = self._metastore.state.find_range(STABLE_PREFIX, prefix_end(STABLE_PREFIX))
        parsed = [one for one in (parse_key(stable.key) for stable in stored) if one is not None]
        gone = [
            PartitionId(table, number)
            for _, table, number in parsed
            if table not in catalog.tables and METASTORE.table < table < catalog.next_id
        ]
        return [(one, local_keys(self._metastore, one)) for one in gone]

    def node_named(self, text: str) -> int:
        """A node's number, by its name or its number."""
        for node in self._cluster.nodes():
            if text in (node.name, str(node.number)):
                return node.number
        names = ", ".join(sorted(node.name for node in self._cluster.nodes()))
        raise Rejected(f"there is no node {text} in this cluster", hint=f"Its nodes are: {names}.")

    def member_named(self, partition: PartitionId, text: str) -> int:
        """The same, of a node that may be out of the cluster, and a member all the same: it has no
        name any more.
        """
        members = {str(one): one for one in self._keys(partition).nodes}
        return members[text] if text in members else self.node_named(text)

    def _name(self, number: int) -> str:
        return next(
            (node.name for node in self._cluster.nodes() if node.number == number), str(number)
        )

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000

    def _check_belongs(self, number: int) -> None:
        if all(node.number != number for node in self._cluster.nodes()):
            raise Rejected(f"there is no node {number} in this cluster")

    def _again(self, attempt: Callable[[], Future[bool]], tries: int = 10) -> Future[None]:
        """Until a conditional write goes through.

        It is made from what this node knows, which may be old for a while.
        """
        whole: Future[None] = Future()

        def done(future: Future[bool]) -> None:
            nonlocal tries
            tries -= 1
            if future.error is not None:
                whole.reject(future.error)
            elif future.result():
                whole.resolve(None)
            elif not tries:
                whole.reject(Conflict("others change the same all the time", hint="Try again."))
            else:
                self._loop.call_later(_AGAIN_MS, ask)

        def ask() -> None:
            try:
                attempt().then(done)
            except LowmarkError as error:
                whole.reject(error)

        ask()
        return whole


class Cancelled(msgspec.Struct, frozen=True):
    """What became of moves that were to be called off: table and partition of each."""

    cancelled: tuple[tuple[int, int], ...]
    too_late: tuple[tuple[int, int], ...]
    """They are being put in force, or are done."""
