"""A group whose majority is lost for good: one copy goes on alone, as another lineage.

An operator has decided it: all other voters are lost, and what they had acknowledged without this
copy is lost with them. Raft can't decide that. From its copy on the group goes on with one voter,
which `change_peers` may add to.

    1. a record: reset at index r, in term and lineage T    the copy is reset; each way to open it
                                                            carries out the rest first
    2. entry r of term T: the only member is this node,     as before; the entry is not committed
       with incarnation r
    3. a record: committed up to r                          done

The three go to the WAL in this order, so a crash leaves the first none, one or two of them, or all.
Without the first nothing has changed. r follows the last entry of the copy, whatever is known of
it: entries that this copy does not know to be committed are kept and committed with r, because the
lost majority may have acknowledged them. So an entry may come back whose author was told that it
was superseded; none is lost that this copy has.

What keeps the group apart from those it left behind
    - The lineage T. Every message carries its sender's, and a member hears only its own. So former
      members can't lead, vote for, or be counted by the new group, nor the new group by them, even
      if they are alive and a majority, as after an operator's error: then there are two groups, and
      no node takes both for the same.
    - The term T is far above all that this copy has seen, and farther for each node, so that no two
      entries have one index and one term: not if the old members elect leaders for years, and not
      if two nodes reset their copies.
    - A copy of an earlier lineage that a leader of a later one calls, because its node was added
      again, stops (`CopyOutdated`). It is rebuilt from nothing: its log may differ from the group's
      even where it is committed. Only an empty copy takes a new lineage on.

Callers are kept apart by the lineages that they have seen (`lineages`); one that has seen neither
group is served by the one that it reaches. What only the lost copies had is not brought back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from lowmark.errors import LowmarkError, Rejected
from lowmark.group import envelope
from lowmark.group.errors import GroupBusy, GroupUnfinished
from lowmark.group.storage import GroupMeta, SnapshotMembers, raft_entry
from lowmark.log import GroupLog
from lowmark.raft import (
    ConfChange,
    ConfState,
    EntryKind,
    HardState,
    Members,
    MembershipRefused,
    membership,
)

_STEP = 1_000_000
_STEPS = 1_000
_PAGE_BYTES = 1 << 20

OnDone = Callable[[LowmarkError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """What a reset found, and did; for the operator."""

    group: str
    node: int
    last_index: int
    """The last entry of this copy: all up to here is kept. What the lost members had behind it is
    lost."""
    last_term: int
    committed: int
    """Up to here this copy knew that it was committed. What follows may never have been."""
    index: int
    """Of the entry that names this node as the only member; also its incarnation from now on."""
    term: int
    """Of that entry: the lineage."""
    members: Members
    """The last that this copy knew to be in force."""
    lost: tuple[int, ...]
    """The nodes that are members no more: of these, and of changes that this copy has behind."""


def reset_members(log: GroupLog, node: int, *, on_done: OnDone | None = None) -> Reset:
    """Make this copy the only member of its group, which must not be open; all on the loop.

    It is done when `on_done` is called without an error. Also for the directory of a node that is
    stopped: open its log, and run the loop until then. A copy that has nothing is refused, and so
    is one that can't write.
    """
    return begin(log, node, on_done=on_done)[0]


def other_voters(log: GroupLog, node: int) -> frozenset[int]:
    """The nodes besides this one that vote, as far as this copy can tell: by the members that it
    knows to be in force, and by all changes behind them. A reset gives all of them up.
    """
    if not log.meta:
        raise GroupUnfinished(log.name)
    meta = GroupMeta.decode(log.meta)
    known = _members_since(log, meta, _committed(log, meta))
    return frozenset().union(*(one.voters for one in known)) - {node}


def begin(
    log: GroupLog, node: int, *, term: int = 0, on_done: OnDone | None = None
) -> tuple[Reset, GroupMeta]:
    """The same; give also the record that is on its way. `term`: it must lie above this one."""
    if not log.meta:
        raise GroupUnfinished(log.name)
    if not log.last_index:
        raise Rejected(
            f"this node's copy of group {log.name} has nothing of it",
            hint="Reset the group on a node whose copy has its data, or create it anew.",
        )
    if log.state.installing:
        raise GroupBusy(log.name, why="it is taking a snapshot over just now")
    old = GroupMeta.decode(log.meta)
    term = _far_above(max(term, old.hard.term, log.last_term), node)
    committed = _committed(log, old)
    known = _members_since(log, old, committed)
    done = Reset(
        group=log.name,
        node=node,
        last_index=log.last_index,
        last_term=log.last_term,
        committed=committed,
        index=log.last_index + 1,
        term=term,
        members=known[0],
        lost=tuple(sorted(frozenset().union(*(one.everybody for one in known)) - {node})),
    )
    meta = GroupMeta(
        founders=old.founders,
        hard=HardState(term, node, done.committed, done.index, term),
        reset_at=done.index,
    )
    log.put_meta(meta.encode(), lambda _: None)
    return done, finish(log, meta, on_done=on_done)


def finish(log: GroupLog, meta: GroupMeta, *, on_done: OnDone | None = None) -> GroupMeta:
    """Carry out steps 2 and 3, if a crash came before them; give the record that is in force."""
    if not meta.reset_at:
        return meta
    index, term, node = meta.reset_at, meta.hard.lineage, meta.hard.vote
    if log.last_index < index or log.term_at(index) != term:
        members = ConfState(voters=(node,), incarnations=((node, index),))
        log.append(term, [envelope.seal_reset(members)], first=index, reserve=True)
    hard = msgspec.structs.replace(meta.hard, commit=index)
    whole = msgspec.structs.replace(meta, hard=hard, reset_at=0)
    log.put_meta(whole.encode(), on_done or (lambda _: None))
    return whole


def _committed(log: GroupLog, meta: GroupMeta) -> int:
    return max(min(meta.hard.commit, log.last_index), log.row.snapshot_index)


def _far_above(term: int, node: int) -> int:
    """A term that no other group with this log comes to."""
    return term + _STEP * (1 + node % _STEPS)


def _members_since(log: GroupLog, meta: GroupMeta, committed: int) -> list[Members]:
    """The members as of an index, and all that would follow if all of the log was committed."""
    snapshot = log.snapshot
    stored = meta.founders
    if snapshot is not None:
        stored = SnapshotMembers.decode(snapshot.meta.members).members
    known, founded = [membership.restore(stored)], snapshot is not None
    at = log.first_index
    while at <= log.last_index:
        for stored_entry in log.read_range(at, log.last_index, bytes_max=_PAGE_BYTES):
            entry = raft_entry(stored_entry)
            at, data, now = entry.index + 1, entry.data, known[-1]
            if entry.kind is not EntryKind.NORMAL:
                with contextlib.suppress(MembershipRefused):  # it changes nothing, on any member
                    change = ConfChange.decode(data)
                    now, _ = membership.members_after(now, change, index=entry.index)
            elif data and data[0] == envelope.RESET:
                now, founded = membership.restore(envelope.reset_of(data)), True
            elif data and data[0] == envelope.FOUNDING and not founded:
                now, founded = membership.restore(envelope.founders_of(data)), True
            if now is not known[-1]:
                known = [now] if entry.index <= committed else [*known, now]
    return known
