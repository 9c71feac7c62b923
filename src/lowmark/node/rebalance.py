"""Moves of partitions for clients: what all nodes say of them, put together; and what an operator
asks for.

A node knows how far those moves are that it leads. The node that is asked asks all that are up,
waits for them a short while, and lays their answers beside what the metastore says is to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from lowmark.catalog import Catalogs, TableId, find_zone
from lowmark.errors import LowmarkError, Rejected
from lowmark.group import Future, Groups, OutcomeUnknown, Reply
from lowmark.ledger.home import HOME_KEY, keep_of
from lowmark.metastore import Cluster, NodeInfo
from lowmark.node.asking import ask_each
from lowmark.node.homes import find_table, name_of
from lowmark.node.messages import (
    BaselineAsk,
    BaselineReply,
    CancelAsk,
    CancelledReply,
    ChangeAsk,
    DrainAsk,
    DrainReply,
    MoveRow,
    NodeReply,
    Nothing,
    PartitionName,
    PlanAsk,
    PlannedRow,
    PlanReply,
    RebalanceReply,
    RebalanceSettings,
    RemoveNodeAsk,
    StuckDrain,
)
from lowmark.node.operating import Answers
from lowmark.node.status import FailingMove
from lowmark.placement import Placement
from lowmark.placement.assignments import PartitionId
from lowmark.placement.progress import Move
from lowmark.runtime import Buffer
from lowmark.table import Tables, group_name

T = TypeVar("T")
SERVICE = "node.moves"


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of the partitions that it leads."""

    moves: list[Move]
    sizes: list[tuple[int, int, int]] = []
    """Table, partition and bytes."""
    leads: int = 0


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Said).decode


class Rebalance:
    """Says what moves, and takes what operators ask for. All calls are made on the loop."""

    def __init__(
        self,
        groups: Groups,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        placement: Placement,
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._catalogs = catalogs
        self._tables = tables
        self._placement = placement
        self._operations = placement.operations
        self.answers: Answers = {
            "rebalance.status": (Nothing, lambda _: self.status()),
            "rebalance.plan": (PlanAsk, self.plan),
            "rebalance.change": (ChangeAsk, self._change),
            "rebalance.cancel": (CancelAsk, self._cancel),
            "node.drain": (DrainAsk, self._drain),
            "node.remove": (RemoveNodeAsk, self._remove),
            "zone.baseline": (BaselineAsk, self._baseline),
        }
        groups.calls.serve(SERVICE, self._asked)

    def _up_to_date(self, _: object = None) -> Future[None]:
        """Done when this node knows of all that was written before."""
        return self._cluster.metastore.read(lambda _: None)

    # -- asking all nodes -------------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender, question
        answer(_pack(self._said()))

    def _said(self) -> _Said:
        led = [one for one in self._tables.all() if one.group.leads]
        sizes = self._operations.sizes_here()
        return _Said(
            self._placement.progress.here(),
            [
                (one.table, one.number, sizes.get(PartitionId(one.table, one.number), 0))
                for one in led
            ],
            len(led),
        )

    def _gather(self) -> Future[dict[int, _Said | None]]:
        """What each node that is up says; None: it did not answer."""
        own = self._groups.node
        others = [node.number for node in self._cluster.topology.nodes if node.number != own]

        def with_own(said: dict[int, _Said | LowmarkError]) -> dict[int, _Said | None]:
            found = {n: one if isinstance(one, _Said) else None for n, one in said.items()}
            return found | {own: self._said()}

        return ask_each(self._groups, others, SERVICE, _unpack).map(with_own)

    # -- what moves -------------------------------------------------------------------------------

    def status(self) -> Future[RebalanceReply]:
        """All moves, as far as nodes answer."""
        return self._gather().map(self._merged)

    def _merged(self, said: dict[int, _Said | None]) -> RebalanceReply:
        moves = {(one.table, one.partition): one for one in self._placement.progress.known()}
        # The word of the node that leads a partition counts more than that of those that miss it.
        spoken = [move for each in said.values() if each is not None for move in each.moves]
        for move in sorted(spoken, key=lambda one: (bool(one.leader), one.failing_ms)):
            moves[move.table, move.partition] = move
        value = self._operations.value
        names = self._names()
        return RebalanceReply(
            settings=RebalanceSettings(paused=value.paused, bytes_per_s=value.bytes_per_s),
            draining=self._named(sorted(self._placement.zones.draining())),
            moves=tuple(self._row(moves[key], names) for key in sorted(moves)),
            silent=self._named(sorted(node for node, each in said.items() if each is None)),
            stuck=self._stuck(sorted(self._placement.zones.draining())),
        )

    def _stuck(self, nodes: Iterable[int]) -> tuple[StuckDrain, ...]:
        names = self._names()
        return tuple(
            StuckDrain(
                node=names.get(node, str(node)),
                zone=one.zone,
                partitions=one.partitions,
                reason=one.reason,
                hint=one.hint,
            )
            for node in nodes
            for one in self._operations.stuck(node)
        )

    def _row(self, move: Move, names: dict[int, str]) -> MoveRow:
        reason = move.reason
        if reason and move.node:
            reason += f" (node {names.get(move.node, str(move.node))})"
        return MoveRow(
            table=self._table(move.table),
            partition=move.partition,
            stage=move.stage,
            stable=_some(names, move.stable),
            pending=_some(names, move.pending),
            planned=_some(names, move.planned),
            leader=names.get(move.leader, ""),
            bytes_done=move.bytes_done,
            bytes_left=move.bytes_left,
            bytes_per_s=move.bytes_per_s,
            seconds_left=move.seconds_left,
            reason=reason,
            attempts=move.attempts,
            failing_ms=move.failing_ms,
            alarm=move.alarm,
        )

    def failing(self) -> list[FailingMove]:
        """The moves that this node speaks for, and that a person should look at."""
        names = self._names()
        found = []
        for move in self._placement.progress.alarms():
            row = self._row(move, names)
            without = "" if move.leader else group_name(move.table, move.partition)
            found.append(
                FailingMove(
                    row.table,
                    row.partition,
                    row.pending,
                    row.reason,
                    row.attempts,
                    row.failing_ms,
                    without,
                )
            )
        return found

    # -- what would move --------------------------------------------------------------------------

    def plan(self, asked: PlanAsk) -> Future[PlanReply]:
        """What would move, with the sizes that all nodes say."""
        remove = [self._operations.node_named(text) for text in asked.remove]
        taken = {node.name for node in self._cluster.nodes()}
        for new in asked.add:
            if not new.name or new.name in taken:
                why = f"there is a node {new.name} already" if new.name else "a node has no name"
                raise Rejected(why, hint="Name another one.")
            taken.add(new.name)
        add = [
            NodeInfo(
                number=-at, name=new.name, address="?", rack=new.rack, attributes=new.attributes
            )
            for at, new in enumerate(asked.add, start=1)
        ]

        def planned(sizes: dict[PartitionId, int]) -> PlanReply:
            made = self._operations.plan(
                add=add, remove=remove, replicas=asked.replicas, sizes=sizes
            )
            names = self._names() | {node.number: node.name for node in add}
            rows = tuple(
                PlannedRow(
                    table=self._table(one.table),
                    partition=one.partition,
                    now=_some(names, one.now),
                    then=_some(names, one.then),
                    bytes=one.bytes,
                )
                for one in made.moves
            )
            return PlanReply(
                moves=rows, replicas=made.replicas, bytes=made.bytes, warnings=made.warnings
            )

        return self.sizes().map(planned)

    def sizes(self) -> Future[dict[PartitionId, int]]:
        """The bytes of partitions, as far as nodes that lead them answer."""

        def found(said: dict[int, _Said | None]) -> dict[PartitionId, int]:
            return {
                PartitionId(TableId(table), number): size
                for each in said.values()
                for table, number, size in (each.sizes if each is not None else ())
            }

        return self._gather().map(found)

    # -- asked by operators -----------------------------------------------------------------------

    def _change(self, asked: ChangeAsk) -> Future[RebalanceSettings]:
        done = self._operations.change(paused=asked.paused, bytes_per_s=asked.bytes_per_s)
        return done.map(
            lambda value: RebalanceSettings(paused=value.paused, bytes_per_s=value.bytes_per_s)
        )

    def _cancel(self, asked: CancelAsk) -> Future[CancelledReply]:
        chosen = None
        if asked.table is None and asked.partition is not None:
            raise Rejected("a partition is named, but no table", hint="Name the table, too.")
        if asked.table is not None:
            table = find_table(self._catalogs.latest, asked.table, asked.partition)
            chosen = [
                one
                for one in self._placement.moving()
                if one.table == table.id and asked.partition in (None, one.number)
            ]

        def names(some: Iterable[tuple[int, int]]) -> tuple[PartitionName, ...]:
            return tuple(
                PartitionName(table=self._table(table), partition=number) for table, number in some
            )

        return self._operations.cancel(chosen).map(
            lambda done: CancelledReply(
                cancelled=names(done.cancelled), too_late=names(done.too_late)
            )
        )

    def _drain(self, asked: DrainAsk) -> Future[DrainReply]:
        node = self._operations.node_named(asked.node)

        def look(_: object) -> Future[DrainReply]:
            return self._gather().map(lambda said: self._drained(node, said))

        if asked.look:
            return look(None)
        done = self._operations.fill(node) if asked.stop else self._operations.drain(node)
        return _then(done, lambda _: _answered(_then(self._up_to_date(), look)))

    def _drained(self, node: int, said: dict[int, _Said | None]) -> DrainReply:
        own = said.get(node)
        moves = [
            move
            for each in said.values()
            if each is not None
            for move in each.moves
            if node in move.stable and node not in move.pending
        ]
        return DrainReply(
            node=self._names().get(node, str(node)),
            draining=node in self._placement.zones.draining(),
            partitions=len(self._operations.left_on(node)),
            leads=0 if own is None else own.leads,
            bytes_left=sum(move.bytes_left for move in moves),
            stuck=self._stuck([node]),
        )

    def _remove(self, asked: RemoveNodeAsk) -> Future[NodeReply]:
        number = self._operations.node_named(asked.node)
        name = self._names()[number]

        def done(_: object) -> NodeReply:
            entry = self._cluster.metastore.get_local(HOME_KEY)
            keep = keep_of(None if entry is None else entry.value, number)
            return NodeReply(node=name, number=number, keep=keep)

        # Whether it is needed is decided by what this node knows.
        return _then(self._up_to_date(), lambda _: self._cluster.remove(number)).map(done)

    def _baseline(self, asked: BaselineAsk) -> Future[BaselineReply]:
        zone = find_zone(self._catalogs.latest, asked.zone)
        if asked.auto and asked.nodes:
            raise Rejected("name nodes, or use `auto`: not both")

        def shown(_: object) -> BaselineReply:
            baseline, _revision = self._placement.zones.baseline(zone.id)
            nodes = () if baseline is None else self._named(baseline.numbers)
            return BaselineReply(
                zone=zone.name,
                nodes=nodes,
                replicas=zone.replicas,
                chosen=baseline is not None and baseline.chosen is not None,
            )

        if not asked.auto and not asked.nodes:
            return Future.of(shown(None))
        nodes = sorted({self._operations.node_named(text) for text in asked.nodes})
        chosen = self._operations.choose(asked.zone, None if asked.auto else nodes)
        return _then(chosen, lambda _: _answered(self._up_to_date())).map(shown)

    # -- names ------------------------------------------------------------------------------------

    def _names(self) -> dict[int, str]:
        return {node.number: node.name for node in self._cluster.nodes()}

    def _named(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return _some(self._names(), numbers)

    def _table(self, table: int) -> str:
        catalog = self._catalogs.latest
        described = catalog.table(TableId(table))
        return f"table {table}" if described is None else name_of(catalog, described)


def _some(names: dict[int, str], numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(sorted(names.get(number, str(number)) for number in numbers))


def _then(first: Future[Any], following: Callable[[Any], Future[Any]]) -> Future[Any]:
    """What comes of the second, which begins when the first is done."""
    whole: Future[Any] = Future()

    def done(future: Future[Any]) -> None:
        try:
            following(future.result()).then(whole.follow)
        except LowmarkError as error:
            whole.reject(error)

    first.then(done)
    return whole


def _answered(look: Future[T]) -> Future[T]:
    """What a change came to that is done: an error of the look must not say that it was refused,
    nor have it asked for again.
    """
    whole: Future[T] = Future()

    def looked(future: Future[T]) -> None:
        if future.error is None:
            whole.resolve(future.result())
        else:
            why = f"it was written, and its answer could not be read: {future.error.message}"
            whole.reject(OutcomeUnknown("metastore", why=why))

    look.then(looked)
    return whole
