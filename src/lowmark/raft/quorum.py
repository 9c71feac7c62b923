"""Majorities, and pairs of majorities while members change.

A configuration has one set of voters, or two that must both agree (joint consensus). An empty set
agrees with everything, so that the second set of a plain configuration never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum

EVERYTHING = (1 << 64) - 1
"""What an empty set of voters has committed: it holds nothing back."""


class VoteResult(Enum):
    """How an election stands."""

    PENDING = "pending"
    LOST = "lost"
    WON = "won"


def majority_committed(voters: Collection[int], acked: Callable[[int], int]) -> int:
    """The highest index that a majority has acknowledged."""
    if not voters:
        return EVERYTHING
    matched = sorted(map(acked, voters))
    return matched[(len(matched) - 1) // 2]


def joint_committed(
    incoming: Collection[int], outgoing: Collection[int], acked: Callable[[int], int]
) -> int:
    """The highest index that both majorities have acknowledged."""
    committed = majority_committed(incoming, acked)
    return min(committed, majority_committed(outgoing, acked)) if outgoing else committed


def majority_vote(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """Whether a majority has said yes, can't any more, or still may."""
    if not voters:
        return VoteResult.WON
    needed = len(voters) // 2 + 1
    yes = sum(votes.get(voter) is True for voter in voters)
    missing = sum(voter not in votes for voter in voters)
    if yes >= needed:
        return VoteResult.WON
    return VoteResult.PENDING if yes + missing >= needed else VoteResult.LOST


def joint_vote(
    incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
) -> VoteResult:
    """Won if both majorities are; lost if either is."""
    results = (majority_vote(incoming, votes), majority_vote(outgoing, votes))
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
