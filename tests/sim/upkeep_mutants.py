"""Catalog compaction with one thing wrong, on purpose: what lives of upkeep must be able to find.

Each mutant is a context manager; within it, every world that is made has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from heapq import nsmallest
from typing import Any

import msgspec

from lowmark.group import Future, Group
from lowmark.table.publication import Publication
from lowmark.table.state import Begun, State
from lowmark.upkeep import catalog_compaction, catalog_decision, catalog_minimums
from lowmark.upkeep.catalog_compaction import CatalogCompaction
from lowmark.upkeep.catalog_decision import SHOWN_MAX, Decision, Lagging, Minimums, Seen
from lowmark.upkeep.catalog_minimums import CatalogMinimums
from lowmark.upkeep.run_holders import RunHolders
from sim.mutants import replaced

__all__ = ["UPKEEP_MUTANTS"]


def publishes_what_no_snapshot_covers() -> AbstractContextManager[None]:
    def published(self: Publication, state: State, snapshot_index: int) -> int:
        del snapshot_index
        return self.noted(state).time

    return replaced(Publication, "published", published)


def notes_at_any_time_what_it_hears() -> AbstractContextManager[None]:
    """Each copy, whether it rests or not, takes what it has for all there is."""

    def heard(self: Publication, begin: int, group: Group) -> bool:
        self.told(Begun(group.applied, begin))
        return True

    return replaced(Publication, "heard", heard)


def lets_each_copy_note_for_itself_at_rest() -> AbstractContextManager[None]:
    """Not the leader alone, and at once."""
    original = Publication.heard

    def heard(self: Publication, begin: int, group: Group) -> bool:
        if group.resting.resting and group.applied == group.last_index():
            self.told(Begun(group.applied, begin))
            return True
        return original(self, begin, group)

    return replaced(Publication, "heard", heard)


def ignores_a_silent_node() -> AbstractContextManager[None]:
    original = catalog_decision.decide

    def decide(seen: Seen) -> Decision:
        there = {number: name for number, name in seen.nodes.items() if number in seen.answers}
        return original(replace(seen, nodes=there, silent={}))

    return replaced(catalog_compaction, "decide", decide)


def carries_a_minimum_though_a_node_was_silent() -> AbstractContextManager[None]:
    original = catalog_decision.decide

    def decide(seen: Seen) -> Decision:
        begin = min((one.begin for one in seen.answers.values()), default=0)
        return replace(original(seen), begin=begin)

    return replaced(catalog_compaction, "decide", decide)


def decides_by_the_copies_that_are_shown() -> AbstractContextManager[None]:
    """A node answers with some copies that published least, whatever their tables are."""

    def least(copies: Iterable[Lagging]) -> list[Lagging]:
        return nsmallest(SHOWN_MAX, copies, key=lambda one: one.published)

    return replaced(catalog_minimums, "least_published", least)


def ignores_a_missing_copy() -> AbstractContextManager[None]:
    return replaced(catalog_decision, "_missing", _nothing)


def ignores_an_index() -> AbstractContextManager[None]:
    return replaced(catalog_decision, "_indexes", _nothing)


def ignores_a_rebalance() -> AbstractContextManager[None]:
    return replaced(catalog_decision, "_rebalances", _nothing)


def ignores_a_run() -> AbstractContextManager[None]:
    return replaced(RunHolders, "holders", lambda self, earliest: [])


def _nothing(seen: Seen) -> Iterator[Any]:
    del seen
    return iter(())


def says_now_instead_of_the_oldest_begin() -> AbstractContextManager[None]:
    original = CatalogMinimums.minimums

    def minimums(self: CatalogMinimums) -> Minimums:
        now = self._clock.now()
        return msgspec.structs.replace(original(self), begin=now, transaction="")

    return replaced(CatalogMinimums, "minimums", minimums)


def forgets_the_transactions_of_other_nodes() -> AbstractContextManager[None]:
    original = CatalogCompaction._ask

    def ask(self: CatalogCompaction, node: int) -> Future[Minimums]:
        if node == self._node:
            return original(self, node)
        now = self._clock.now()
        return original(self, node).map(
            lambda answer: msgspec.structs.replace(answer, begin=now, transaction="")
        )

    return replaced(CatalogCompaction, "_ask", ask)


def takes_an_answer_of_an_earlier_round() -> AbstractContextManager[None]:
    """The transactions that a node had when it was asked for the first time."""
    original = CatalogCompaction._ask

    def ask(self: CatalogCompaction, node: int) -> Future[Minimums]:
        known: dict[int, str] = self.__dict__.setdefault("first_answers", {})

        def answered(answer: Minimums) -> Minimums:
            before = known.setdefault(node, answer.transaction)
            if before == answer.transaction:
                return answer
            return msgspec.structs.replace(answer, begin=self._clock.now(), transaction=before)

        return original(self, node).map(answered)

    return replaced(CatalogCompaction, "_ask", ask)


def cuts_one_version_too_many() -> AbstractContextManager[None]:
    original = catalog_decision.decide

    def decide(seen: Seen) -> Decision:
        decision = original(seen)
        version = min(decision.version + 1, seen.history.latest.version)
        return replace(decision, version=version)

    return replaced(catalog_compaction, "decide", decide)


def never_asks_for_a_snapshot() -> AbstractContextManager[None]:
    return replaced(CatalogMinimums, "_snapshot", lambda self, one, *, now: None)


def never_tells_the_other_members() -> AbstractContextManager[None]:
    return replaced(CatalogMinimums, "_members_to_tell", lambda self, one: [])


UPKEEP_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "publishes what no snapshot covers": publishes_what_no_snapshot_covers,
    "notes at any time what it hears": notes_at_any_time_what_it_hears,
    "lets each copy note for itself at rest": lets_each_copy_note_for_itself_at_rest,
    "ignores a silent node": ignores_a_silent_node,
    "carries a minimum though a node was silent": carries_a_minimum_though_a_node_was_silent,
    "decides by the copies that are shown": decides_by_the_copies_that_are_shown,
    "ignores a missing copy": ignores_a_missing_copy,
    "ignores an index": ignores_an_index,
    "ignores a rebalance": ignores_a_rebalance,
    "ignores a run": ignores_a_run,
    "says now instead of the oldest begin": says_now_instead_of_the_oldest_begin,
    "forgets the transactions of other nodes": forgets_the_transactions_of_other_nodes,
    "takes an answer of an earlier round": takes_an_answer_of_an_earlier_round,
    "cuts one version too many": cuts_one_version_too_many,
    "never asks for a snapshot": never_asks_for_a_snapshot,
    "never tells the other members": never_tells_the_other_members,
}
