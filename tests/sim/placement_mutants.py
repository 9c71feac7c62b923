"""Placement with one thing wrong, on purpose: what the lives of moving partitions must find.

Each mutant is a context manager; within it, every world that is made has the fault. Decisions on
the metastore's own members stay right: without it, a life tells nothing of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from lowmark.catalog import TableId
from lowmark.group import Future, Groups
from lowmark.group.leadership import Leadership
from lowmark.metastore import Put, Remove
from lowmark.placement import decisions
from lowmark.placement.assignments import (
    LOCK,
    METASTORE,
    PLANNED,
    TRIGGER,
    Assignments,
    Keys,
    PartitionId,
)
from lowmark.placement.copies import Copies
from lowmark.placement.decisions import Decision
from lowmark.placement.leaving import Leaving
from lowmark.placement.moves import Moves
from lowmark.placement.operations import Operations
from lowmark.placement.placement import Placement
from lowmark.placement.zones import Zones
from lowmark.raft import RaftNode
from lowmark.raft.messages import Message, Vote
from sim.mutants import replaced

__all__ = ["PLACEMENT_MUTANTS"]


def writes_stable_for_any_token() -> AbstractContextManager[None]:
    """What the group has is taken for pending, whatever pending is by now."""
    original = decisions.committed

    def committed(
        partition: PartitionId, keys: Keys, peers: tuple[int, ...], token: int
    ) -> Decision:
        if partition == METASTORE:
            return original(partition, keys, peers, token)
        if keys.pending is None:
            return Decision((), False)
        found = Assignments(peers, keys.pending.catalog_version)
        pinned = Keys(
            stable=keys.stable, pending=found, planned=keys.planned, revisions=keys.revisions
        )
        return original(partition, pinned, peers, keys.pending_revision)

    return replaced(decisions, "committed", committed)


def takes_any_lock_away() -> AbstractContextManager[None]:
    """A new leader opens what its predecessor has put in force."""
    original = decisions.failed

    def failed(partition: PartitionId, keys: Keys, term: int) -> Decision:
        if partition == METASTORE:
            return original(partition, keys, term)
        if keys.lock is None:
            return Decision((), False)
        return Decision((Remove(partition.key(LOCK)),), True)

    @contextmanager
    def both() -> Iterator[None]:
        from lowmark.placement import moves  # noqa: PLC0415

        def over(keys: Keys, members: object, term: int) -> bool:
            del members, term
            return keys.lock is not None

        with (
            replaced(decisions, "failed", failed),
            replaced(moves, "_never_in_force", over),
        ):
            yield

    return both()


def destroys_without_asking_the_leader() -> AbstractContextManager[None]:
    def attempt(
        self: Leaving, partition: PartitionId, asked: tuple[int, ...] = (), next_: int = 0
    ) -> None:
        del asked, next_
        if not self._closed and self._leaving.get(partition) is not None:
            self._destroy(partition)

    return replaced(Leaving, "_try", attempt)


def destroys_what_is_pending() -> AbstractContextManager[None]:
    """A node that is in pending only takes its copy for one that was moved away."""
    original = Leaving.look

    @contextmanager
    def both() -> Iterator[None]:
        apply = Placement._apply

        def is_out(self: Leaving, partition: PartitionId) -> bool:
            stable = self._keys(partition).stable
            return stable is not None and self._node not in stable.nodes

        def attempt(
            self: Leaving, partition: PartitionId, asked: tuple[int, ...] = (), next_: int = 0
        ) -> None:
            del asked, next_
            if not self._closed and self._leaving.get(partition) is not None:
                self._destroy(partition)

        def applied(self: Any, partitions: Any, on_disk: Any) -> None:
            found = list(partitions)
            apply(self, found, on_disk)
            for one in found:
                if self._tables.here(*one) is not None:
                    original(self.leaving, one)

        with (
            replaced(Leaving, "_is_out", is_out),
            replaced(Leaving, "_try", attempt),
            replaced(Placement, "_apply", applied),
        ):
            yield

    return both()


def writes_stable_before_it_is_kept() -> AbstractContextManager[None]:
    def when_kept(self: Leadership, callback: Callable[[], None]) -> None:
        del self
        callback()

    return replaced(Leadership, "when_kept", when_kept)


def forgets_the_trigger() -> AbstractContextManager[None]:
    original = decisions.trigger

    def trigger(partition: PartitionId, *given: Any, **more: Any) -> Decision:
        decision = original(partition, *given, **more)
        if partition == METASTORE:
            return decision
        kept = tuple(
            one
            for one in decision.operations
            if not (isinstance(one, Put) and one.key == partition.key(TRIGGER))
        )
        return Decision(kept, decision.answer)

    return replaced(decisions, "trigger", trigger)


def leaves_planned_behind() -> AbstractContextManager[None]:
    original = decisions.committed

    def committed(partition: PartitionId, *given: Any) -> Decision:
        decision = original(partition, *given)
        if partition == METASTORE:
            return decision
        kept = tuple(
            one
            for one in decision.operations
            if not (isinstance(one, Remove) and one.key == partition.key(PLANNED))
        )
        return Decision(kept, decision.answer)

    return replaced(decisions, "committed", committed)


def forgets_its_incarnation_when_it_leaves() -> AbstractContextManager[None]:
    def leave(self: Groups, name: str) -> None:
        self._delete(name)

    return replaced(Groups, "leave", leave)


def founds_what_it_joins() -> AbstractContextManager[None]:
    """A new copy takes the nodes in pending for the members of its group."""
    original = Copies.want

    @contextmanager
    def both() -> Iterator[None]:
        from lowmark.placement.placement import Placement  # noqa: PLC0415

        apply = Placement._apply

        def applied(self: Any, partitions: Any, on_disk: Any) -> None:
            def want(
                copies: Copies,
                table: TableId,
                number: int,
                *,
                founders: tuple[int, ...],
                alone: bool,
            ) -> None:
                pending = self.keys(PartitionId(table, number)).pending
                if not founders and pending is not None and self._node in pending.nodes:
                    founders = pending.nodes
                original(copies, table, number, founders=founders, alone=alone)

            with replaced(Copies, "want", want):
                apply(self, partitions, on_disk)

        with replaced(Placement, "_apply", applied):
            yield

    return both()


def cancels_what_is_in_force() -> AbstractContextManager[None]:
    """Another target is planned: it is adopted, though the group has moved."""

    def replace(self: Moves, partition: PartitionId, move: Any) -> None:
        group = self._group(partition)
        if group is None:
            return
        group.cancel_change_peers()
        token, term = move.token, move.term
        move.token = -1
        self._ask(partition, move, lambda now: decisions.cancelled(partition, now, token, term))

    return replaced(Moves, "_replace", replace)


def decides_by_the_latest_revision() -> AbstractContextManager[None]:
    """The mark is when it was decided, not the event that it was decided by."""

    def write(self: Zones) -> None:
        while self._queue:
            partition, target, revision = self._queue.popleft()
            self._queue.append((partition, target, max(revision, self._metastore.state.latest)))
            original(self)

    original = Zones._write
    return replaced(Zones, "_write", write)


def lets_a_node_leave_by_hearsay() -> AbstractContextManager[None]:
    """Whether a node is needed is judged by what a node has heard, which may be old."""

    def may_leave(self: Operations, node: int) -> Future[Any]:
        return Future.of(self.refusal(node))

    return replaced(Operations, "may_leave", may_leave)


def votes_as_an_earlier_incarnation() -> AbstractContextManager[None]:
    """A new copy votes when the copy that it was before is asked."""
    original = RaftNode._may_hear

    def may_hear(self: RaftNode, message: Message) -> bool:
        if isinstance(message, Vote):
            present = max(message.incarnation, self.core.incarnation)
            return original(self, msgspec.structs.replace(message, incarnation=present))
        return original(self, message)

    return replaced(RaftNode, "_may_hear", may_hear)


def makes_copies_before_it_has_caught_up() -> AbstractContextManager[None]:
    """A node that starts goes by what its copy of the metastore begins with."""
    return replaced(Placement, "_may_start", lambda self, table, number: True)


PLACEMENT_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "writes stable for any token": writes_stable_for_any_token,
    "takes any lock away": takes_any_lock_away,
    "destroys without asking the leader": destroys_without_asking_the_leader,
    "destroys what is pending": destroys_what_is_pending,
    "writes stable before it is kept": writes_stable_before_it_is_kept,
    "forgets the trigger": forgets_the_trigger,
    "leaves planned behind": leaves_planned_behind,
    "forgets its incarnation when it leaves": forgets_its_incarnation_when_it_leaves,
    "founds what it joins": founds_what_it_joins,
    "cancels what is in force": cancels_what_is_in_force,
    "decides by the latest revision": decides_by_the_latest_revision,
    "lets a node leave by hearsay": lets_a_node_leave_by_hearsay,
    "votes as an earlier incarnation": votes_as_an_earlier_incarnation,
    "makes copies before it has caught up": makes_copies_before_it_has_caught_up,
}
