"""The port, answered by a node of a cluster: of partitions that have no copy here, too.

What belongs to a partition without a copy is asked of a node that has one, as any client asks it,
and passed on. So a client needs to know one node, and may ask any. Nodes are as good as each other
if they hold the same partitions: to each such set there is one connection, which goes to another
node of the set when its node is away, and takes its holds along.

A node that another node asks answers of what it has, or says that it has it not
(`PartitionNotHere`): two nodes that do not know yet what the other one has can't send a question
round in circles. The node that asked looks again where the partition is, until its time is over.
What is asked of all nodes, each of them answers for itself alone (`…_here`).

Partitions move while they are read. A node that is in `stable` serves; one that is being filled, or
is about to lose its copy, does not, and asks the others. A reader that follows a partition is told
of its changes by the node that serves it, and by the next one when it has moved (`_refollow`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias, TypeVar

from lowmark.backend.attached import Attached
from lowmark.backend.errors import Closed, Ended, HoldUnknown, OtherDatabase
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import (
    ALL_FILES,
    BatchRange,
    Found,
    Held,
    Hold,
    Moment,
    PartitionStatus,
    ReadRange,
)
from lowmark.catalog import TableId
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import GroupStopped
from lowmark.ids import group_name
from lowmark.ledger import Tail
from lowmark.metastore import Topology
from lowmark.node import Node, NodeClosing, NodeUnreachable
from lowmark.runtime import Buffer
from lowmark.runtime.network import speaks_tls
from lowmark.runtime.refusals import (
    AuthorityUnusable,
    ServerNotTrusted,
    TlsNeeded,
    TlsNotSpoken,
)
from lowmark.table import Partition, PartitionNotHere, View
from lowmark.tokens import TokensUnknown, Unauthenticated

logger = logging.getLogger(__name__)

_PEER_S = 2.0
_WAIT_S = 20.0
_AGAIN_S = 0.5
_MOVED_S = 0.05
_RETURN_S = 90.0
"""Clients of a node that is gone have taken their holds again at another one by then."""
_CHANGES = ReadRange(0, None, "none")
"""Nothing is kept of a partition; its changes are heard of."""
_MOVED = "it follows partitions that have moved to this node"
_REFUSED = (Unauthenticated, AuthorityUnusable, ServerNotTrusted, TlsNeeded, TlsNotSpoken)
"""A node that has just started shows a token that the others have not heard of yet; one that went
over to TLS is asked without, until this node has heard of that; the certificate of one has ended.
"""
_THEIRS = (NodeUnreachable, NodeClosing, Ended, TokensUnknown, *_REFUSED)
"""What a client would take as said of its own server."""

_PLAIN = "This node asks by TLS alone, and they speak none at their endpoints (--tls-mode allow)."

Nodes: TypeAlias = tuple[int, ...]
T = TypeVar("T")


class CopiesAway(Unavailable):
    """No node answers that holds partitions which this node has no copy of."""

    def __init__(self, nodes: Nodes, *, why: str) -> None:
        names = ", ".join(map(str, nodes))
        super().__init__(
            f"none of the nodes that hold the requested rows answers (nodes {names})",
            detail=why,
            hint="Start one of these nodes, or wait until one is back.",
        )


@dataclass(slots=True)
class _Parts:
    """What other nodes keep of a hold."""

    peers: list[tuple[RemoteBackend, Hold]] = field(default_factory=list)
    """Each has a number of its own there: two sets of partitions may be at the same node."""
    files: list[int] = field(default_factory=list)
    held: Held | None = None
    """What its caller was given."""
    error: LowmarkError | None = None
    """Why nothing will be heard of one of them any more."""
    released: bool = False


class Spread(Attached):
    """See `Attached`."""

    def __init__(
        self, node: Node, data: str | os.PathLike[str], *, runs_on: threading.Thread
    ) -> None:
        self._peers: dict[Nodes, RemoteBackend] = {}
        self._connecting = threading.Lock()
        self._locks: dict[Nodes, threading.Lock] = {}
        self._on_close: list[Callable[[], None]] = []
        self._parts: dict[int, _Parts] = {}
        self._files: dict[int, RemoteBackend] = {}
        """Holds of files that other nodes keep, each by its own number."""
        self._endpoints: dict[int, str] = {}
        """Where clients reach the nodes that are, or were, up."""
        self._up: frozenset[int] = frozenset()
        self._gone_at: dict[int, float] = {}
        """When nodes left that were up."""
        self._requires_tls = node.tls.mode == "require"
        super().__init__(node, data, runs_on=runs_on)
        self.ask_now(lambda: node.cluster.on_topology(self._heard_of_nodes))

    def _heard_of_nodes(self, topology: Topology) -> None:
        """On the loop."""
        found = {one.number: one.endpoint for one in topology.nodes if one.endpoint}
        self._endpoints = {**self._endpoints, **found}  # another one: threads look at it
        left = dict.fromkeys(self._up - found.keys(), time.monotonic())
        self._gone_at = {**self._gone_at, **left}
        self._up = frozenset(found)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this when nothing more is asked of it."""
        self._on_close.append(callback)

    def close(self) -> None:
        """See `Attached`."""
        super().close()
        for callback in self._on_close:
            callback()
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close()

    # -- where partitions are ---------------------------------------------------------------------

    def members(self) -> tuple[str, ...]:
        """See `Embedded`."""
        endpoints, up = self._endpoints, self._up
        order = sorted(endpoints, key=lambda one: one not in up)
        return tuple(endpoints[one] for one in order) if len(order) > 1 else ()

    def endpoint_of(self, table: TableId, partition: int) -> str:
        """Where clients best read a partition: at its leader. A node without a copy asks one."""
        _, away = self._split(table, (partition,), None)
        for nodes in away:
            with contextlib.suppress(LowmarkError), self._at(nodes) as peer:
                return peer.endpoint_here(table, partition)
        return self.endpoint_here(table, partition)

    def endpoint_here(self, table: TableId, partition: int) -> str:
        """The leader's endpoint, as far as this node knows; else that of a node with a copy."""
        placement = self.node.placement
        assert placement is not None

        def look() -> str:
            endpoints, up = self._endpoints, self._up
            copies = [one for one in self.tables.of(table) if one.number == partition]
            leader = copies[0].group.leader if copies and copies[0].group.stopped is None else 0
            for one in (leader, *placement.routes(table, partition)):
                if one in up:
                    return endpoints[one]
            return self.node.info.endpoint

        return self.ask_now(look)

    def addresses_of(self, table: TableId, partition: int) -> tuple[str, ...]:
        """See `Embedded`. This node, which has a copy; then the others that have one."""
        placement = self.node.placement
        assert placement is not None

        def look() -> tuple[str, ...]:
            endpoints, up = self._endpoints, self._up
            nodes = sorted(placement.routes(table, partition), key=lambda one: one not in up)
            others = [endpoints[one] for one in nodes if one in endpoints]
            return tuple(dict.fromkeys([self.node.info.endpoint, *others]))

        return self.ask_now(look)

    def _split(
        self, table: TableId, numbers: Collection[int], timeout_s: float | None
    ) -> tuple[list[int], dict[Nodes, list[int]]]:
        """The partitions that are asked here, and those that are asked elsewhere."""
        if all(self._is_here(table, number) for number in numbers):
            return list(numbers), {}
        placement, own = self.node.placement, self.node.info.number
        assert placement is not None
        asker = self._asker

        def look() -> tuple[list[int], dict[Nodes, list[int]]]:
            here, away = list[int](), dict[Nodes, list[int]]()
            for number in numbers:
                nodes = placement.routes(table, number)
                copy = self.tables.here(table, number)
                sound = copy is not None and (copy.group.stopped is None or copy.group.alone)
                seen = asker.at_least(group_name(table, number))
                if copy is not None and not copy.serves_caller(seen):
                    sound = False
                    if asker.by_node:
                        copy.check_caller(seen)
                others = tuple(one for one in nodes if one != own)
                if not nodes or (own in nodes and (sound or not others)):
                    here.append(number)
                elif asker.by_node:
                    raise PartitionNotHere(table, number)
                else:
                    away.setdefault(others, []).append(number)
            return here, away

        return self.ask_now(look, timeout_s=timeout_s)

    def _is_here(self, table: TableId, number: int) -> bool:
        """Whether there surely is a sound copy here; on any thread."""
        known = self._known.get((table, number))
        copy = None if known is None else known()
        if copy is None or not copy.serves or copy.group.stopped is not None:
            return False
        return copy.serves_caller(self._asker.at_least(copy.name))

    def _rerouted(self, timeout_s: float | None, call: Callable[[], T]) -> T:
        """Ask again while partitions move: where they were, they are not any more."""
        ends_at = self._ends_at(timeout_s)
        while True:
            try:
                return call()
            except (PartitionNotHere, GroupStopped):
                if self._asker.by_node or time.monotonic() >= ends_at:
                    raise
                self.check()
                time.sleep(_MOVED_S)

    def _all(self, table: TableId) -> Collection[int]:
        described = self.catalogs.latest.table(table)
        return () if described is None else range(described.partitions)

    def _peer(self, nodes: Nodes) -> RemoteBackend:
        """A database at one of these nodes."""
        known = self._peers.get(nodes)
        if known is not None and not known.closed:
            return known
        with self._lock_of(nodes):
            known = self._peers.get(nodes)
            if known is not None and not known.closed:
                return known
            if self.closed:
                raise Closed(str(self.data))

            def members() -> list[str]:
                """Those that are up before those that are not; by TLS alone, if it is required."""
                endpoints, up = self._endpoints, self._up
                found = sorted((one for one in nodes if one in endpoints), key=up.__contains__)
                known = [endpoints[one] for one in reversed(found)]
                return [one for one in known if speaks_tls(one) or not self._requires_tls]

            why = "None of them is known."
            if self._requires_tls and not self._endpoints.keys().isdisjoint(nodes):
                why = _PLAIN
            for address in members():
                try:
                    peer = RemoteBackend(
                        address,
                        timeout_s=_PEER_S,
                        members=members,
                        cluster=self.info.cluster,
                        ca=self.node.tls.ca,
                        of_node=True,
                        secret=self.node.tokens_of_callers.own,
                        lineages=self.lineages,
                        asker=lambda: self._asker,
                    )
                except (Unavailable, OtherDatabase, *_REFUSED) as error:
                    why = error.message
                    continue
                self._peers[nodes] = peer
                return peer
            raise CopiesAway(nodes, why=why)

    def _lock_of(self, nodes: Nodes) -> threading.Lock:
        """Held while a connection to these is made: others are not kept waiting."""
        with self._connecting:
            return self._locks.setdefault(nodes, threading.Lock())

    @contextlib.contextmanager
    def _at(self, nodes: Nodes) -> Iterator[RemoteBackend]:
        """Another node, while it is asked. That it is away says nothing of this one. If none of
        them is up, as the cluster knows, that is said at once: a caller may wait by asking again.
        """
        if self._up.isdisjoint(nodes):
            raise CopiesAway(nodes, why="None of them is up.")
        try:
            yield self._peer(nodes)
        except _THEIRS as error:
            raise CopiesAway(nodes, why=error.message) from error

    # -- calls ------------------------------------------------------------------------------------

    def now(
        self, table: TableId | None = None, *, known: int = 0, timeout_s: float | None = None
    ) -> Moment:
        """See `Backend`."""
        return self._rerouted(timeout_s, lambda: self._now(table, known, timeout_s))

    def _now(self, table: TableId | None, known: int, timeout_s: float | None) -> Moment:
        """By the clock of this node, once it follows those of the nodes that were asked."""
        found: list[Moment] = []
        _, away = self._split(table, self._all(table), timeout_s) if table is not None else ((), {})
        for nodes in away:
            with self._at(nodes) as peer:
                found.append(peer.now_here(table, timeout_s=timeout_s))
        known = max(known, self.latest_time())
        found.append(self.now_here(table, known=known, timeout_s=timeout_s))
        return max(found, key=lambda moment: moment.time)

    def latest_time(self) -> int:
        """See `Embedded`. What nodes have answered that were asked from here is passed on."""
        peers = list(self._peers.values())
        return max([super().latest_time(), *(one.latest_time() for one in peers)])

    def epoch_of(
        self,
        table: TableId,
        producer: bytes,
        *,
        partitions: Collection[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Backend`."""
        return self._rerouted(
            timeout_s, lambda: self._epoch_of(table, producer, partitions, timeout_s)
        )

    def _epoch_of(
        self,
        table: TableId,
        producer: bytes,
        partitions: Collection[int] | None,
        timeout_s: float | None,
    ) -> int:
        numbers = self._all(table) if partitions is None else partitions
        here, away = self._split(table, numbers, timeout_s)
        newest = super().epoch_of(table, producer, partitions=here, timeout_s=timeout_s)
        for nodes, some in away.items():
            with self._at(nodes) as peer:
                known = peer.epoch_of(table, producer, partitions=some, timeout_s=timeout_s)
            newest = max(newest, known)
        return newest

    def view(
        self,
        table: TableId,
        partition: int,
        *,
        latest: bool = False,
        timeout_s: float | None = None,
    ) -> View:
        """See `Backend`."""
        return self._rerouted(timeout_s, lambda: self._view(table, partition, latest, timeout_s))

    def _view(self, table: TableId, partition: int, latest: bool, timeout_s: float | None) -> View:
        if not self._is_here(table, partition):
            _, away = self._split(table, (partition,), timeout_s)
            for nodes in away:
                with self._at(nodes) as peer:
                    return peer.view(table, partition, latest=latest, timeout_s=timeout_s)
        return super().view(table, partition, latest=latest, timeout_s=timeout_s)

    def views(
        self,
        table: TableId,
        partitions: Collection[int],
        *,
        closed_at: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, View]:
        """See `Backend`."""
        return self._rerouted(
            timeout_s, lambda: self._views(table, partitions, closed_at, timeout_s)
        )

    def _views(
        self,
        table: TableId,
        partitions: Collection[int],
        closed_at: int | None,
        timeout_s: float | None,
    ) -> dict[int, View]:
        here, away = self._split(table, partitions, timeout_s)
        found = super().views(table, here, closed_at=closed_at, timeout_s=timeout_s)
        for nodes, some in away.items():
            with self._at(nodes) as peer:
                found |= peer.views(table, some, closed_at=closed_at, timeout_s=timeout_s)
        return {number: found[number] for number in partitions}

    def status(
        self,
        table: TableId,
        partitions: Collection[int] | None = None,
        *,
        latest: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, PartitionStatus]:
        """See `Backend`. Of a table that was dropped: of those that are here."""
        return self._rerouted(
            timeout_s, lambda: self._statuses(table, partitions, latest, timeout_s)
        )

    def _statuses(
        self,
        table: TableId,
        partitions: Collection[int] | None,
        latest: bool,
        timeout_s: float | None,
    ) -> dict[int, PartitionStatus]:
        numbers = self._all(table) if partitions is None else partitions
        here, away = self._split(table, numbers, timeout_s)
        if not away:
            return super().status(table, partitions, latest=latest, timeout_s=timeout_s)
        found = super().status(table, here, latest=latest, timeout_s=timeout_s)
        for nodes, some in away.items():
            with self._at(nodes) as peer:
                found |= peer.status(table, some, latest=latest, timeout_s=timeout_s)
        return dict(sorted(found.items()))

    def look_up_there(
        self, table: TableId, keys: Mapping[int, Sequence[int | bytes]]
    ) -> dict[int, Sequence[Found | None]]:
        """The last change of keys, by partition: of those partitions that have no copy here."""
        return self._rerouted(None, lambda: self._look_up_there(table, keys))

    def _look_up_there(
        self, table: TableId, keys: Mapping[int, Sequence[int | bytes]]
    ) -> dict[int, Sequence[Found | None]]:
        _, away = self._split(table, keys, None)
        found: dict[int, Sequence[Found | None]] = {}
        for nodes, some in away.items():
            with self._at(nodes) as peer:
                rows = iter(peer.look_up(table, [key for one in some for key in keys[one]]))
            found |= {one: [next(rows) for _ in keys[one]] for one in some}
        return found

    def batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None = None,
    ) -> Iterator[list[Buffer]]:
        """See `Backend`."""
        left = list(ranges)
        while left:
            rest = tuple(left)  # of its own: the one that gives them counts in it
            some = self._rerouted(
                timeout_s,
                lambda rest=rest: self._some_batches(  # type: ignore[misc]
                    table, partition, rest, held=held, timeout_s=timeout_s
                ),
            )
            try:
                for batches in some:
                    left.pop(0)
                    yield batches
            except LowmarkError as error:
                # A copy that went in the middle: the rest is read where the partition is now.
                if self._is_here(table, partition) or self._asker.by_node:
                    raise
                moved = isinstance(error, PartitionNotHere | GroupStopped)
                if not moved and not self._has_moved(table, partition):
                    raise

    def _has_moved(self, table: TableId, partition: int) -> bool:
        """Whether the copy that was here does not serve any more."""
        known = self._known.get((table, partition))
        copy = None if known is None else known()
        if copy is None or copy.serves:
            return False
        self._known.pop((table, partition), None)
        return True

    def _some_batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None,
    ) -> Iterator[list[Buffer]]:
        """The first batches are fetched before this returns: an error comes at once."""
        _, away = self._split(table, (partition,), timeout_s)
        for nodes in away:
            with self._at(nodes) as peer:
                found = peer.batches(table, partition, ranges, held=held, timeout_s=timeout_s)
                return chain((next(found),), found)
        found = super().batches(table, partition, ranges, held=held, timeout_s=timeout_s)
        return chain((next(found),), found)

    def tail(
        self,
        table: TableId,
        partition: int,
        *,
        low: int,
        high: int,
        timeout_s: float | None = None,
    ) -> Tail:
        """See `Backend`."""
        return self._rerouted(timeout_s, lambda: self._tail(table, partition, low, high, timeout_s))

    def _tail(
        self, table: TableId, partition: int, low: int, high: int, timeout_s: float | None
    ) -> Tail:
        _, away = self._split(table, (partition,), timeout_s)
        for nodes in away:
            with self._at(nodes) as peer:
                return peer.tail(table, partition, low=low, high=high, timeout_s=timeout_s)
        return super().tail(table, partition, low=low, high=high, timeout_s=timeout_s)

    # -- holds ------------------------------------------------------------------------------------

    def hold(
        self,
        table: TableId,
        ranges: Mapping[int, ReadRange],
        *,
        kind: Literal["reader", "run"] = "reader",
        holder: str,
        why: str,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Held:
        """See `Backend`."""
        mine = hold or Hold.drawn()
        return self._rerouted(
            timeout_s,
            lambda: self._hold(
                table, ranges, mine, kind=kind, holder=holder, why=why, timeout_s=timeout_s
            ),
        )

    def _hold(
        self,
        table: TableId,
        ranges: Mapping[int, ReadRange],
        mine: Hold,
        *,
        kind: Literal["reader", "run"],
        holder: str,
        why: str,
        timeout_s: float | None,
    ) -> Held:
        known = self._parts.get(mine.number)
        if known is not None and known.held is not None:
            return known.held  # the client repeats its call
        here, away = self._split(table, ranges, timeout_s)
        named: dict[str, str] = {"holder": holder, "why": why}
        local = super().hold(
            table,
            {number: ranges[number] for number in here},
            kind=kind,
            hold=mine,
            timeout_s=timeout_s,
            **named,
        )
        if not away:
            return local
        parts = _Parts()
        found, files = dict(local.partitions), dict(local.files)
        try:
            for nodes, some in away.items():
                with self._at(nodes) as peer:
                    theirs = Hold.drawn()
                parts.peers.append((peer, theirs))
                wanted = {number: ranges[number] for number in some}
                there = peer.hold(
                    table, wanted, kind=kind, hold=theirs, timeout_s=timeout_s, **named
                )
                found |= there.partitions
                files |= there.files
                numbers = [one.number for one in there.files.values()]
                parts.files += numbers
                self._files |= dict.fromkeys(numbers, peer)
                if any(one.end is None for one in wanted.values()):
                    self._follow(mine, parts, (peer, theirs), table, some)
            parts.held = Held(mine, dict(sorted(found.items())), files)
            if self._parts.setdefault(mine.number, parts) is not parts:
                held = self._parts[mine.number].held  # another attempt was quicker
                assert held is not None
                self._let_go(parts)
                return held
            if mine.number not in self._kept:  # released meanwhile
                raise HoldUnknown(mine.number)
        except BaseException as error:
            if self._parts.get(mine.number) is parts:
                del self._parts[mine.number]
            self._let_go(parts)
            if isinstance(error, _THEIRS):
                asked = tuple(one for nodes in away for one in nodes)
                raise CopiesAway(asked, why=error.message) from error
            raise
        return parts.held

    def _let_go(self, parts: _Parts) -> None:
        """What other nodes keep of a hold."""
        parts.released = True
        for number in parts.files:
            self._files.pop(number, None)
        for peer, theirs in parts.peers:
            peer.release(theirs)

    def _follow(
        self,
        mine: Hold,
        parts: _Parts,
        there: tuple[RemoteBackend, Hold],
        table: TableId,
        numbers: Sequence[int],
    ) -> None:
        """Hear of changes at another node, until the hold is released."""
        kept, (peer, theirs) = self._kept.get(mine.number), there

        def run() -> None:
            seen = 0
            while not parts.released and kept is not None:
                try:
                    now = peer.wait(theirs, _WAIT_S, seen=seen)
                except (PartitionNotHere, GroupStopped):
                    self._refollow(mine, parts, table, numbers)
                    return
                except Unavailable:
                    time.sleep(_AGAIN_S)  # it may be back
                    continue
                except Exception as error:
                    parts.error = (
                        error if isinstance(error, LowmarkError) else Ended("a peer", error)
                    )
                    kept.changes.add()
                    return
                if now != seen:
                    kept.changes.add()
                seen = now

        threading.Thread(target=run, name="lowmark-follow", daemon=True).start()

    def _refollow(self, mine: Hold, parts: _Parts, table: TableId, numbers: Sequence[int]) -> None:
        """Partitions have moved: hear of their changes where they are now."""
        kept, left = self._kept.get(mine.number), list(numbers)
        while left and kept is not None and not parts.released and not self.closed:
            try:
                here, away = self._split(table, left, None)
                if here:
                    self.ask_now(lambda some=here: self.follow_here(kept, table, some))  # type: ignore[misc]
                    left = [one for one in left if one not in here]
                for nodes, some in away.items():
                    with self._at(nodes) as peer:
                        theirs, wanted = Hold.drawn(), dict.fromkeys(some, _CHANGES)
                        peer.hold(table, wanted, holder=kept.holder[0], why=_MOVED, hold=theirs)
                    parts.peers.append((peer, theirs))
                    self._follow(mine, parts, (peer, theirs), table, some)
                    left = [one for one in left if one not in some]
            except LowmarkError as error:
                logger.debug("a partition is not followed yet", extra={"reason": error.message})
                time.sleep(_AGAIN_S)
        if kept is not None:
            kept.changes.add()  # what came meanwhile is looked at

    def wait(self, hold: Hold, timeout_s: float, *, seen: int = 0) -> int:
        """See `Backend`."""
        parts = self._parts.get(hold.number)
        if parts is not None and parts.error is not None:
            raise parts.error.again()
        kept = self._kept.get(hold.number)
        gone = [] if kept is None else [one for one in kept.followed if self._is_gone(one)]
        if kept is None or not gone:
            return super().wait(hold, timeout_s, seen=seen)
        if self._asker.by_node:
            raise PartitionNotHere(gone[0].table, gone[0].number)
        if parts is None:
            parts = self._parts.setdefault(hold.number, _Parts(held=kept.held))
        for table in {one.table for one in gone}:
            numbers = [one.number for one in gone if one.table == table]
            kept.followed = [one for one in kept.followed if one not in gone]
            threading.Thread(
                target=self._refollow,
                args=(hold, parts, table, numbers),
                name="lowmark-refollow",
                daemon=True,
            ).start()
        return seen

    def _is_gone(self, copy: Partition) -> bool:
        """Whether a copy that is followed does not serve any more, and others do."""
        return not copy.serves or (copy.group.stopped is not None and not copy.group.alone)

    def release(self, hold: Hold) -> None:
        """See `Backend`."""
        files = self._files.pop(hold.number, None)
        if files is not None:
            files.release(hold)
            return
        parts = self._parts.pop(hold.number, None)
        if parts is not None:
            self._let_go(parts)
        super().release(hold)

    def files_in_use(self) -> frozenset[str]:
        """See `Backend`. Readers are at any node: each that is up is asked. What is read at one
        that gives no answer, or that is gone and whose clients may be on their way, is not known.
        """
        found = self.files_here()
        for one in sorted(self._up - {self.node.info.number}):
            try:
                with self._at((one,)) as peer:
                    found |= peer.files_here(timeout_s=_PEER_S)
            except LowmarkError as error:
                logger.info("files in use are not known", extra={"node": one, "reason": error})
                found |= {ALL_FILES}
        if any(time.monotonic() - at_s < _RETURN_S for at_s in self._gone_at.values()):
            found |= {ALL_FILES}
        return found
