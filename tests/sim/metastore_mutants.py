"""The metastore with one thing wrong, on purpose: what its lives must be able to find.

Each mutant is a context manager; within it, every world that is made has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group import CallLost, Future
from lowmark.metastore import AllOf, Condition, Metastore, MetastoreMachine, Revision
from lowmark.metastore.commands import Compact
from lowmark.metastore.coordinator import Coordinator, JoinReply, Left
from lowmark.metastore.forwarding import Forwarding
from lowmark.metastore.nodes import TOPOLOGY_KEY
from lowmark.metastore.state import Cut, State
from lowmark.runtime import Buffer
from sim.mutants import replaced

__all__ = ["METASTORE_MUTANTS"]


def skips_a_revision_when_the_leader_changes() -> AbstractContextManager[None]:
    original = Metastore.on_leader_changed

    def on_leader_changed(self: Metastore, leader: int, term: int) -> None:
        for watch in self.watches():
            if watch.name.startswith("watcher"):
                watch.position += 1
        original(self, leader, term)

    return replaced(Metastore, "on_leader_changed", on_leader_changed)


def drops_the_value_in_force_at_the_cut() -> AbstractContextManager[None]:
    original = State._cut

    def cut(self: State, cut: int) -> None:
        original(self, cut)
        for key, history in self.histories.items():
            if len(history) > 1 and history[0].revision <= cut:
                self.histories[key] = history[1:]

    return replaced(State, "_cut", cut)


def asks_again_after_a_lost_call() -> AbstractContextManager[None]:
    original = Forwarding._answered

    def answered(self: Forwarding, request: Any, future: Future[bytes]) -> None:
        if isinstance(future.error, CallLost):
            self._again(request, future.error.message)
        else:
            original(self, request, future)

    return replaced(Forwarding, "_answered", answered)


def reads_without_asking_the_leader() -> AbstractContextManager[None]:
    def read(self: Metastore, query: Callable[[State], Any]) -> Future[Any]:
        try:
            return Future.of(query(self.state))
        except LowmarkError as error:
            return Future.failed(error)

    return replaced(Metastore, "read", read)


def looks_for_a_value_where_it_was() -> AbstractContextManager[None]:
    original = State.moved

    def moved(self: State, old: int, new: int) -> None:
        original(self, old, new)
        revision = self.by_index.get(new)
        if revision is not None:
            self.made[revision] = msgspec.structs.replace(self.made[revision], index=old)

    return replaced(State, "moved", moved)


def ignores_that_an_entry_has_moved() -> AbstractContextManager[None]:
    """Harmless if all did so; but a snapshot that one of them took goes to others."""
    original, moves = State.moved, 0

    def moved(self: State, old: int, new: int) -> None:
        nonlocal moves
        moves += 1
        if moves % 5:
            original(self, old, new)

    return replaced(State, "moved", moved)


def counts_leases_that_are_over() -> AbstractContextManager[None]:
    original = State.compact

    def compact(self: State, asked: Compact) -> Cut:
        time, self.time = self.time, 0
        cut = original(self, asked)
        self.time = time
        return cut

    return replaced(State, "compact", compact)


def cuts_what_a_lease_holds() -> AbstractContextManager[None]:
    original = State.compact

    def compact(self: State, asked: Compact) -> Cut:
        leases = dict(self.leases)
        for name, lease in leases.items():
            self.leases[name] = msgspec.structs.replace(lease, hold=0)
        cut = original(self, asked)
        self.leases = {name: leases[name] for name in self.leases}
        return cut

    return replaced(State, "compact", compact)


def takes_its_snapshot_later() -> AbstractContextManager[None]:
    original = MetastoreMachine.snapshot

    def snapshot(self: MetastoreMachine) -> Iterator[Buffer]:
        yield from original(self)

    return replaced(MetastoreMachine, "snapshot", snapshot)


def changes_the_topology_without_a_condition() -> AbstractContextManager[None]:
    original = Metastore.invoke_if

    def without(condition: Condition) -> Condition:
        if isinstance(condition, AllOf):
            return AllOf(tuple(without(one) for one in condition.conditions))
        is_about_it = isinstance(condition, Revision) and condition.key == TOPOLOGY_KEY
        return AllOf(()) if is_about_it else condition

    def invoke_if(
        self: Metastore, condition: Condition, then: Iterable[Any], otherwise: Iterable[Any] = ()
    ) -> Future[bool]:
        return original(self, without(condition), then, otherwise)

    return replaced(Metastore, "invoke_if", invoke_if)


def holds_nothing_for_watchers() -> AbstractContextManager[None]:
    def needed_from(self: Metastore) -> int:
        return min([self.state.latest + 1, *self._readers.values()])

    return replaced(Metastore, "needed_from", needed_from)


def sends_nodes_away_by_hearsay() -> AbstractContextManager[None]:
    def may_go(self: Coordinator, number: int) -> Future[JoinReply]:
        del number
        return Future.of(Left())

    return replaced(Coordinator, "_may_go", may_go)


METASTORE_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "skips a revision when the leader changes": skips_a_revision_when_the_leader_changes,
    "drops the value in force at the cut": drops_the_value_in_force_at_the_cut,
    "asks again after a lost call": asks_again_after_a_lost_call,
    "reads without asking the leader": reads_without_asking_the_leader,
    "looks for a value where it was": looks_for_a_value_where_it_was,
    "ignores that an entry has moved": ignores_that_an_entry_has_moved,
    "counts leases that are over": counts_leases_that_are_over,
    "cuts what a lease holds": cuts_what_a_lease_holds,
    "takes its snapshot later": takes_its_snapshot_later,
    "changes the topology without a condition": changes_the_topology_without_a_condition,
    "holds nothing for watchers": holds_nothing_for_watchers,
    "sends nodes away by hearsay": sends_nodes_away_by_hearsay,
}
