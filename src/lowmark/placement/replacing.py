"""What a lost node leaves behind when another one takes its place: asked by an operator before, and
by the metastore's leader when that node comes in (`lowmark.metastore.replacing`).

It is refused while there is any sign that the lost node is up: it is in the topology, a node has
heard it since its lease was last renewed, its lease is not over, or it answers. It is also refused
while a partition has no majority without it: what becomes of its rows is for a person to decide,
who says so by a command of its own, and nothing begins empty by itself.

What has been looked at only gets better until it is written: a node that is down and has no lease
catches up with nothing, so no group can come to need it. That nothing else has come between is a
condition of the write.

Baselines get the new node in the same write, where they had the lost one, also those that an
operator has named. So its replicas go to the new node in one step, and no other one moves. Were it
two events, partitions would first shrink to the nodes that are left, and one more of these that
goes down would be one too many, though the lost one might be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lowmark.catalog import Catalog, Catalogs, TableId
from lowmark.errors import LowmarkError, Rejected
from lowmark.formatting import counted, verb
from lowmark.group import Future, Groups, NoService, Reply
from lowmark.metastore import Cluster, Compare, NodeInfo, Operation, Put, Revision
from lowmark.metastore.coordinator import Known, known
from lowmark.metastore.nodes import lease_of
from lowmark.metastore.replacing import Taken, not_yet, still_up
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.placement.baseline import Baseline, BaselineNode, baseline_key
from lowmark.placement.obstacles import last_with, needed
from lowmark.placement.operations import Operations
from lowmark.placement.zones import Zones
from lowmark.runtime import Buffer

HEARS: Final = "node.hears"
"""The service by which nodes ask each other whether a third one is there."""
_ASK_MS: Final = 2_000
_TRY_MS: Final = 1_000
_NAMED_MAX: Final = 3


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    """Is that node there, as far as you know?"""

    node: int
    tries: bool = False
    """Ask it, too, at the address that is known of it."""


class _Heard(msgspec.Struct, frozen=True, array_like=True):
    silent_ms: int | None = None
    """For how long nothing has come from it; None: nothing ever has."""
    answers: bool = False
    """Whether it answered when it was asked."""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_heard = msgspec.msgpack.Decoder(_Heard).decode


def _said(body: bytes) -> _Heard:
    try:
        return _decode_heard(body)
    except msgspec.MsgspecError:
        return _Heard()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that has no majority without a node."""

    table: str
    partition: int
    only: bool
    """Its only copy was there."""
    left: tuple[str, ...] = ()
    """Other nodes that have a copy, and are up."""
    down: tuple[str, ...] = ()
    """Others that are down."""
    dropped: bool = False
    """Its table was dropped: only reads as of a time before that need it."""
    hint: str = ""
    """What to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a node leaves behind."""

    node: NodeInfo
    refused: LowmarkError | None = None
    """Why no other node may take its place now."""
    voter: bool = False
    """Whether it votes in the metastore."""
    zones: tuple[str, ...] = ()
    """Those that have it among their nodes."""
    partitions: tuple[PartitionId, ...] = ()
    """Those that have a copy there, or were to have one."""
    losses: tuple[Loss, ...] = field(default=())


class Replacing:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        groups: Groups,
        cluster: Cluster,
        catalogs: Catalogs,
        operations: Operations,
        zones: Zones,
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._catalogs = catalogs
        self._operations = operations
        self._zones = zones

    # -- whether it is there ----------------------------------------------------------------------

    def asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        """Another node asks whether a node is there (`HEARS`)."""
        del address, sender
        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError:
            answer(_encode(_Heard()))
            return
        self._hear(asked).then(lambda future: answer(_encode(future.result())))

    def _hear(self, asked: _Ask) -> Future[_Heard]:
        if asked.node == self._groups.node:
            return Future.of(_Heard(0, True))
        silent_ms = self._groups.silent_ms(asked.node)
        if not asked.tries:
            return Future.of(_Heard(silent_ms))
        whole: Future[_Heard] = Future()

        def tried(future: Future[bytes]) -> None:
            # That it knows no such service is an answer, too: of an earlier release.
            answers = future.error is None or isinstance(future.error, NoService)
            whole.resolve(_Heard(silent_ms, answers))

        self._groups.calls.ask(
            asked.node, HEARS, _encode(_Ask(asked.node)), timeout_ms=_TRY_MS
        ).then(tried)
        return whole

    def _signs(self, lost: NodeInfo, *, tries: bool) -> Future[LowmarkError | None]:
        """What shows nodes that are up that this one is, or may be; None: nothing."""
        ask = _Ask(lost.number, tries)
        others = [
            node
            for node in self._cluster.topology.nodes
            if node.number not in (lost.number, self._groups.node)
        ]
        nodes = [self._cluster.node, *others]
        asked = [self._hear(ask)]
        for node in others:
            call = self._groups.calls.ask(node.number, HEARS, _encode(ask), timeout_ms=_ASK_MS)
            asked.append(call.map(_said))

        def said() -> LowmarkError | None:
            found: LowmarkError | None = None
            for node, one in zip(nodes, asked, strict=True):
                heard = _Heard() if one.error is not None else one.result()
                if heard.answers:
                    return still_up(lost, f"it answers node {node.name}, at {lost.address}")
                silent_ms = heard.silent_ms
                if silent_ms is not None and silent_ms < self._cluster.config.lease_ms:
                    found = not_yet(lost, f"node {node.name} heard it {silent_ms / 1e3:.1f} s ago")
            return found

        whole: Future[LowmarkError | None] = Future()
        left = len(asked)

        def one_more(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                whole.resolve(said())

        for one in asked:
            one.then(one_more)
        return whole

    # -- what it leaves ---------------------------------------------------------------------------

    def look(self, number: int, *, tries: bool) -> Future[Standing]:
        """What a node leaves behind, and why it can't be replaced now, if so; `tries`: also ask
        the node itself.
        """
        whole: Future[Standing] = Future()
        lost = next(node for node in self._cluster.nodes() if node.number == number)

        def heard(future: Future[LowmarkError | None]) -> None:
            signs = future.result()
            self._catalogs.at(self._metastore.clock.now()).then(
                lambda catalog: current(signs, catalog)
            )

        def current(signs: LowmarkError | None, catalog: Future[Catalog]) -> None:
            if catalog.error is not None:
                whole.reject(catalog.error)
            else:
                self._metastore.read(lambda _: None).then(lambda done: read(signs, done))

        def read(signs: LowmarkError | None, done: Future[None]) -> None:
            try:
                done.result()
                whole.resolve(self._standing(lost, signs))
            except LowmarkError as error:
                whole.reject(error)

        self._signs(lost, tries=tries).then(heard)
        return whole

    def _standing(self, lost: NodeInfo, signs: LowmarkError | None) -> Standing:
        now, number = known(self._metastore), lost.number
        held = self._operations.assigned(fresh=True)
        losses = self._losses(lost, now, held)
        lease = self._metastore.state.lease(lease_of(number), self._metastore.clock.now())
        refused: LowmarkError | None = None
        if now.topology.find(number) is not None:
            refused = still_up(lost, "the cluster counts it as up: its lease was renewed")
        elif signs is not None:
            refused = signs
        elif lease is not None:
            refused = not_yet(lost, "its lease is not over")
        else:
            refused = _needed(lost, [one for one in losses if not one.dropped])
        zones = [
            zone.name
            for zone in self._catalogs.latest.zones.values()
            if (baseline := self._zones.baseline(zone.id)[0]) is not None
            and number in (*baseline.numbers, *(baseline.chosen or ()))
        ]
        return Standing(
            node=lost,
            refused=refused,
            voter=number in self._metastore.group.members().voters,
            zones=tuple(sorted(zones)),
            partitions=tuple(one for one, keys in held if number in keys.nodes),
            losses=losses,
        )

    def _losses(
        self, lost: NodeInfo, now: Known, held: Sequence[tuple[PartitionId, Keys]]
    ) -> tuple[Loss, ...]:
        up = {node.number for node in now.topology.nodes} - {lost.number}
        found = list[Loss]()
        for some, dropped in ((held, False), (self._operations.dropped(), True)):
            # Members to be count only if they may be in force: a move to a lost node ends nowhere.
            in_force = [
                (
                    one,
                    keys if keys.lock is not None else msgspec.structs.replace(keys, pending=None),
                )
                for one, keys in some
            ]
            alone, last = needed(lost.number, in_force, up)
            by_id = dict(in_force)
            for one in sorted({*alone, *last}):
                others = sorted(by_id[one].nodes - {lost.number})
                names = {n: node.name for n, node in now.nodes.items()}
                found.append(
                    self._loss(
                        lost,
                        one,
                        left=tuple(names.get(n, str(n)) for n in others if n in up),
                        down=tuple(names.get(n, str(n)) for n in others if n not in up),
                        dropped=dropped,
                    )
                )
        return tuple(found)

    def _loss(
        self,
        lost: NodeInfo,
        partition: PartitionId,
        *,
        left: tuple[str, ...],
        down: tuple[str, ...],
        dropped: bool,
    ) -> Loss:
        catalog = last_with(self._catalogs, TableId(partition.table))
        described = None if catalog is None else catalog.table(TableId(partition.table))
        table = f"table {partition.table}"
        if catalog is not None and described is not None:
            table = catalog.name_of(described)
        if dropped:
            hint = "Reads as of a time before the drop can't be answered any more."
        elif not left and not down:
            hint = (
                f"Its only copy was there: start {lost.name} from its directory, if there is any"
                f" copy of it; else its rows are gone: `lowmark table drop {table}`."
            )
        elif not left:
            hint = f"Start {', '.join(down)}."
        else:
            words = " ".join(f"--lost {name}" for name in (lost.name, *down))
            reset = f"partition reset {table} {partition.number} --from {left[0]} {words}"
            start = "Have a copy that is left go on alone"
            if down:
                start = f"Start {', '.join(down)}; or, if that is lost, too, have one go on alone"
            hint = f"{start}: `lowmark {reset}`."
        return Loss(
            table=table,
            partition=partition.number,
            only=not left and not down,
            left=left,
            down=down,
            dropped=dropped,
            hint=hint,
        )

    # -- at the leader ----------------------------------------------------------------------------

    def taking(self, lost: NodeInfo, node: NodeInfo) -> Future[Taken]:
        """See `Judge`."""
        whole: Future[Taken] = Future()

        def looked(future: Future[Standing]) -> None:
            try:
                refused = future.result().refused
                if refused is not None:
                    raise refused
                whole.resolve(self._taken(lost, node))
            except LowmarkError as error:
                whole.reject(error)

        self.look(lost.number, tries=False).then(looked)
        return whole

    def still_has(self, number: int) -> bool:
        """Whether a node that was replaced is a member of a partition's group still."""
        return any(number in keys.nodes for _, keys in self._operations.assigned())

    def _taken(self, lost: NodeInfo, node: NodeInfo) -> Taken:
        """The baselines with the new node in place of the lost one."""
        conditions, operations = list[Revision](), list[Operation]()
        for zone in self._catalogs.latest.zones.values():
            now, revision = self._zones.baseline(zone.id)
            if now is None:
                continue
            then = swapped(now, lost.number, node, matches=zone.matches(node.all_attributes))
            if then != now:
                key = baseline_key(zone.id)
                conditions.append(Revision(key, Compare.EQ, revision))
                operations.append(Put(key, then.encode()))
        return Taken(tuple(conditions), tuple(operations))


def _in_force(keys: Keys) -> Keys:
    """Without members that are not yet: a move to a lost node ends nowhere."""
    return keys if keys.lock is not None else msgspec.structs.replace(keys, pending=None)


def swapped(baseline: Baseline, lost: int, node: NodeInfo, *, matches: bool) -> Baseline:
    """A baseline with another node in place of a lost one. Pure.

    A node that the zone does not match comes in only by hand; then the lost one goes as any that
    has left.
    """
    chosen = baseline.chosen
    if chosen is not None:
        chosen = tuple(sorted(node.number if one == lost else one for one in chosen))
        matches = node.number in chosen
    nodes = baseline.nodes
    if matches and lost in baseline.numbers:
        kept = (one for one in nodes if one.number != lost)
        came = BaselineNode(node.number, node.rack)
        nodes = tuple(sorted((*kept, came), key=lambda one: one.number))
    return msgspec.structs.replace(baseline, nodes=nodes, chosen=chosen)


def _needed(lost: NodeInfo, losses: Sequence[Loss]) -> LowmarkError | None:
    """Why a node can't be replaced without a word of a person about these, if there are any."""
    if not losses:
        return None
    words = ", ".join(f"{one.table} {one.partition}" for one in losses[:_NAMED_MAX])
    more = len(losses) - _NAMED_MAX
    words += f" and {more} more" if more > 0 else ""
    count = counted(len(losses), "partition")
    return Rejected(
        f"node {lost.name} can't be replaced yet: {count} {verb(len(losses), 'have')} no"
        " majority without it",
        detail=f"These are: {words}. What becomes of their rows is for you to say: none begins"
        " empty by itself.",
        hint=f"{losses[0].hint} `lowmark node replace {lost.name} --dry-run` lists all, with what"
        " to do.",
    )
