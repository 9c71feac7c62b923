"""Lowmark with one thing wrong, on purpose: what the lives of clusters must be able to find.

Each mutant is a context manager; within it, every world that is made has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import msgspec

from lowmark.group.group import Group
from lowmark.group.leadership import Leadership
from lowmark.group.writes import Writes
from lowmark.log import drivers, merge
from lowmark.raft import HardState, ProposalDropped, RaftNode, StorageAppend, changes, replication
from lowmark.raft import reads as raft_reads
from lowmark.raft.membership import ConfChange
from lowmark.raft.messages import NOBODY, ReadIndex
from lowmark.raft.quorum import joint_committed
from lowmark.raft.state import Core

__all__ = ["MUTANTS"]


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Another function in place of one, for a while."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def acknowledges_before_the_sync() -> AbstractContextManager[None]:
    original = Writes.order

    def order(self: Writes, order: StorageAppend) -> None:
        responses, order.responses = order.responses, []
        original(self, order)
        self._release(responses)

    return replaced(Writes, "order", order)


@contextmanager
def commits_old_terms_by_counting() -> Iterator[None]:
    def maybe_commit(core: Core) -> bool:
        index = core.quorum_index()
        return core.log.maybe_commit(index, core.log.term(index) or 0)

    with (
        replaced(replication, "maybe_commit", maybe_commit),
        replaced(changes, "maybe_commit", maybe_commit),
    ):
        yield


def forgets_its_vote() -> AbstractContextManager[None]:
    original = Writes._put_meta

    def put_meta(self: Writes, hard: HardState, on_done: Any) -> None:
        original(self, msgspec.structs.replace(hard, vote=NOBODY), on_done)

    return replaced(Writes, "_put_meta", put_meta)


def drops_a_live_entry_in_phase_3() -> AbstractContextManager[None]:
    original = merge.Merger._open

    def open_source(self: merge.Merger, ref: Any) -> Any:
        source = original(self, ref)
        if ref.number == self.numbers[0] and len(source.rows) > 1:
            source.rows = source.rows[:-1]
        return source

    return replaced(merge.Merger, "_open", open_source)


@contextmanager
def changes_members_before_its_first_entry() -> Iterator[None]:
    new_raft, tick = Group._new_raft, Group._tick

    def careless_raft(self: Group) -> RaftNode:
        raft = new_raft(self)
        raft.core.config.changes_after_noop = False
        return raft

    def propose_change(self: Leadership, change: ConfChange) -> bool:
        host = self._host
        core = host.raft.core
        if not host.leads or core.pending_change > core.log.applied or core.transferee != NOBODY:
            return False
        try:
            host.raft.propose_change(change)
        except ProposalDropped:
            return False
        host.work_soon()
        return core.pending_change == core.log.last_index

    def eager_tick(self: Group) -> None:
        tick(self)
        if self.leads and not self.ready:
            self._leadership.changes.go_on()

    with ExitStack() as stack:
        stack.enter_context(replaced(Group, "_new_raft", careless_raft))
        stack.enter_context(replaced(Leadership, "propose_change", propose_change))
        stack.enter_context(replaced(Group, "_tick", eager_tick))
        yield


def counts_learners() -> AbstractContextManager[None]:
    def quorum_index(self: Core) -> int:
        incoming = self.members.incoming | self.members.learners
        return joint_committed(
            incoming, self.members.outgoing, lambda node: self.progress[node].match
        )

    return replaced(Core, "quorum_index", quorum_index)


def reads_without_asking() -> AbstractContextManager[None]:
    def ask(core: Core, request: ReadIndex) -> None:
        if not core.committed_in_term():
            core.early_reads.append(request)
        else:
            raft_reads._answer(core, request, core.log.committed)

    return replaced(raft_reads, "ask", ask)


def keeps_stale_entries_after_an_install() -> AbstractContextManager[None]:
    original = drivers._take_over

    def take_over(state: Any, new: Any) -> None:
        table, last, term = state.memtable, state.last_index, state.last_term
        view, by_wal = list(table.view), {wal: list(runs) for wal, runs in table.by_wal.items()}
        known = [(run, run.kept, run.wal) for runs in by_wal.values() for run in runs]
        original(state, new)
        index = new.meta.index
        if view and view[0].first <= index + 1 and last > index:
            for run, kept, wal in known:
                run.kept, run.wal = kept, wal
            table.view, table.by_wal = view, by_wal
            state.last_index = state.written_index = last
            state.last_term = term

    return replaced(drivers, "_take_over", take_over)


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "acknowledges before the sync": acknowledges_before_the_sync,
    "commits old terms by counting": commits_old_terms_by_counting,
    "forgets its vote": forgets_its_vote,
    "drops a live entry in phase 3": drops_a_live_entry_in_phase_3,
    "changes members before its first entry": changes_members_before_its_first_entry,
    "counts learners": counts_learners,
    "reads without asking": reads_without_asking,
    "keeps stale entries after an install": keeps_stale_entries_after_an_install,
}
