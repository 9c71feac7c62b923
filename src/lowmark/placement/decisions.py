"""What is written when something happens to a partition's assignments: the decision table. Pure.

Each function takes the five keys as they were read, and says what one conditional write changes and
what the caller is answered. `statement` makes that write: it is carried out only if all five keys
are still as they were read; else the caller reads again and decides again. So a decision is always
about what is there, and two nodes that decide at the same time come one after the other.

The table. `T` is the target of an event, `S`, `P` and `N` are other sets, `-` is no value, `*` is
any. A trigger also writes its revision, unless it is outdated.

    happens                    if                            stable  pending  planned  lock   answer
    trigger T of revision r    trigger.revision >= r         as is   as is    as is    as is  no
                               no pending, stable = T        T       -        -        as is  yes
                               no pending, stable = S        S       T        -        as is  yes
      adjust=update, no lock   pending = T                   *       T        -        -      yes
      adjust=update, no lock   pending = P                   *       T        -        -      yes
      lock, or adjust=cancel   pending = T                   *       T        -        as is  yes
      lock, or adjust=cancel   pending = P                   *       P        T        as is  yes
    committed P of token t     pending = P, written by t     P       planned  -        -      yes
                               else                          as is   as is    as is    as is  no
    may finish P in term m     pending = P, no lock above m  *       P        as is    m      yes
                               no pending, stable = P        P       -        -        -      yes
                               else                          as is   as is    as is    as is  no
    failed in term m           planned = N, no lock above m  *       N        -        -      yes
                               a lock, not above m           *       as is    -        -      yes
                               else                          as is   as is    as is    as is  no
    cancelled t in term m      planned = N, pending by t,    *       N        -        -      yes
      (adjust=cancel)            no lock above m
                               else                          as is   as is    as is    as is  no
    withdrawn, by hand         pending, no lock              *       -        -        -      yes
                               else                          as is   as is    as is    as is  no

Without a stable set, `given` stands for it: the set that the partition would be given first.

Invariants, of every order of writes
    1. An event acts at most once; of two events the later one wins.
    2. `planned` and the lock are there only beside `pending`.
    3. `stable` is written by `committed` alone, after its first value: to a set that the
       partition's group has put in force.
    4. Only a leader of the same term, or of a later one, takes a lock away. So a former leader that
       is late can't open a change that its successor is putting in force.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from lowmark.metastore import (
    Branch,
    Compare,
    Do,
    Operation,
    Put,
    Remove,
    Revision,
    Statement,
    all_of,
)
from lowmark.placement.assignments import (
    KINDS,
    LOCK,
    PENDING,
    PLANNED,
    STABLE,
    TRIGGER,
    Assignments,
    Keys,
    PartitionId,
)


class Adjust(StrEnum):
    """How a move that still copies is replaced by another one."""

    UPDATE = "update"
    """The list of its members is updated."""
    CANCEL = "cancel"
    """It is cancelled; then the next one begins."""


LOST, DONE = 0, 1
"""Answers of a statement: the keys have changed since they were read; it was carried out."""


class Decision(NamedTuple):
    """What to write, if anything, and what that means to the caller."""

    operations: tuple[Operation, ...]
    answer: bool


_NO: Final = Decision((), False)


def statement(partition: PartitionId, keys: Keys, decision: Decision) -> Statement:
    """Carry a decision out, if all that it was made from is as it was."""
    unchanged = all_of(
        *(
            Revision(partition.key(kind), Compare.EQ, revision)
            for kind, revision in zip(KINDS, keys.revisions, strict=True)
        )
    )
    return Branch(unchanged, Do(decision.operations, DONE), Do(answer=LOST))


def first(partition: PartitionId, keys: Keys, target: Assignments, at: int) -> Decision:
    """A new partition is given its nodes, as of an event that it needs no other move for."""
    if keys.stable is not None:
        return _NO
    return Decision((_put(partition, STABLE, target), _mark(partition, at)), True)


def trigger(
    partition: PartitionId,
    keys: Keys,
    target: Assignments,
    at: int,
    *,
    adjust: Adjust,
    given: Assignments | None = None,
) -> Decision:
    """The event of a revision says that a partition shall be at `target`."""
    if keys.trigger is not None and keys.trigger >= at:
        return _NO
    if keys.stable is keys.pending is given is None:
        return _NO  # the table was dropped, or is about to be given its first nodes
    mark = _mark(partition, at)
    no_plan = Remove(partition.key(PLANNED))
    moved = Decision((mark, _put(partition, PENDING, target), no_plan), True)
    stays = Decision((mark, no_plan), True)
    if keys.pending is None:
        now = keys.stable or given
        return stays if now is not None and _same(now, target) else moved
    if _same(keys.pending, target):
        return stays
    if adjust is Adjust.UPDATE and keys.lock is None:
        return moved
    return Decision((mark, _put(partition, PLANNED, target)), True)


def committed(partition: PartitionId, keys: Keys, peers: tuple[int, ...], token: int) -> Decision:
    """The group has these members now, by the change that this token began."""
    pending = keys.pending
    if pending is None or pending.nodes != peers or keys.pending_revision != token:
        return _NO
    follows: Operation = Remove(partition.key(PENDING))
    if keys.planned is not None:
        follows = _put(partition, PENDING, keys.planned)
    return Decision(
        (
            _put(partition, STABLE, pending),
            follows,
            Remove(partition.key(PLANNED)),
            Remove(partition.key(LOCK)),
        ),
        True,
    )


def may_finish(partition: PartitionId, keys: Keys, peers: tuple[int, ...], term: int) -> Decision:
    """All new members are near: the leader of this term wants to put them in force.

    A group that is elsewhere than stable, and has no other target, may always go back there.
    """
    pending = keys.pending
    if pending is None:
        return Decision((), keys.stable is not None and keys.stable.nodes == peers)
    if pending.nodes != peers:
        return _NO
    if keys.lock is not None and keys.lock > term:
        return _NO
    if keys.lock == term:
        return Decision((), True)
    return Decision((Put(partition.key(LOCK), b"%d" % term),), True)


def failed(partition: PartitionId, keys: Keys, term: int) -> Decision:
    """The change of this term failed, or a new leader found that it was never put in force.

    What was planned meanwhile takes its place: the change may have failed for good.
    """
    if keys.lock is not None and keys.lock > term:
        return _NO
    if keys.lock is None and keys.planned is None:
        return _NO
    unlocked = Remove(partition.key(LOCK))
    if keys.planned is None:
        return Decision((unlocked,), True)
    follows = _put(partition, PENDING, keys.planned)
    return Decision((follows, Remove(partition.key(PLANNED)), unlocked), True)


def cancelled(partition: PartitionId, keys: Keys, token: int, term: int) -> Decision:
    """The leader of this term has given up the change of this token: what is planned follows."""
    if keys.planned is None or keys.pending_revision != token:
        return _NO
    if keys.lock is not None and keys.lock > term:
        return _NO
    return Decision(
        (
            _put(partition, PENDING, keys.planned),
            Remove(partition.key(PLANNED)),
            Remove(partition.key(LOCK)),
        ),
        True,
    )


def withdrawn(partition: PartitionId, keys: Keys) -> Decision:
    """An operator wants the partition to stay where it is."""
    if keys.pending is None or keys.lock is not None:
        return _NO
    return Decision((Remove(partition.key(PENDING)), Remove(partition.key(PLANNED))), True)


def reset(partition: PartitionId, keys: Keys, survivor: Assignments) -> Decision:
    """An operator has given the other members up: one is left, and the partition is placed anew.

    Without a trigger's revision, the zone's last event counts as a new one.
    """
    if keys.stable is None:
        return _NO
    gone = (PENDING, PLANNED, TRIGGER, LOCK)
    removals = tuple(Remove(partition.key(kind)) for kind in gone)
    return Decision((_put(partition, STABLE, survivor), *removals), True)


def _same(one: Assignments, other: Assignments) -> bool:
    return (one.nodes, one.learners) == (other.nodes, other.learners)


def _put(partition: PartitionId, kind: str, value: Assignments) -> Put:
    return Put(partition.key(kind), value.encode())


def _mark(partition: PartitionId, at: int) -> Put:
    return Put(partition.key(TRIGGER), b"%d" % at)
