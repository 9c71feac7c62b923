"""Majorities, against a definition so naive that it can't be wrong."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from lowmark.raft.quorum import (
    EVERYTHING,
    VoteResult,
    joint_committed,
    joint_vote,
    majority_committed,
    majority_vote,
)


def naive_committed(voters: frozenset[int], acked: dict[int, int]) -> int:
    """The highest index that more than half have, by trying each."""
    best = 0
    for index in acked.values():
        have = [voter for voter in voters if acked[voter] >= index]
        if 2 * len(have) > len(voters):
            best = max(best, index)
    return best if voters else EVERYTHING


def naive_vote(voters: frozenset[int], votes: dict[int, bool]) -> VoteResult:
    """By trying every way in which those who are silent could still vote."""
    silent = sorted(voter for voter in voters if voter not in votes)
    outcomes = set()
    for rest in product((True, False), repeat=len(silent)):
        final = {**votes, **dict(zip(silent, rest, strict=True))}
        yes = sum(final[voter] for voter in voters)
        outcomes.add(2 * yes > len(voters) or not voters)
    if len(outcomes) > 1:
        return VoteResult.PENDING
    return VoteResult.WON if outcomes.pop() else VoteResult.LOST


@pytest.mark.parametrize("size", range(6))
def test_a_majority_commits_what_more_than_half_have(size: int) -> None:
    voters = frozenset(range(1, size + 1))
    for indexes in product(range(4), repeat=size):
        acked = dict(zip(sorted(voters), indexes, strict=True))
        assert majority_committed(voters, acked.__getitem__) == naive_committed(voters, acked)


@pytest.mark.parametrize("size", range(6))
def test_a_vote_is_decided_when_those_who_are_silent_can_not_change_it(size: int) -> None:
    voters = frozenset(range(1, size + 1))
    for said in product((True, False, None), repeat=size):
        votes = {n: v for n, v in zip(sorted(voters), said, strict=True) if v is not None}
        assert majority_vote(voters, votes) is naive_vote(voters, votes)


def test_a_stranger_has_no_vote() -> None:
    assert majority_vote(frozenset({1, 2, 3}), {1: True, 8: True, 9: True}) is VoteResult.PENDING


def test_two_majorities_must_both_agree() -> None:
    dice = Random(4)
    for _ in range(5_000):
        nodes = range(1, dice.randrange(2, 12))
        incoming = frozenset(dice.sample(nodes, dice.randrange(1, len(nodes) + 1)))
        outgoing = frozenset(dice.sample(nodes, dice.randrange(len(nodes) + 1)))
        acked = {node: dice.randrange(10) for node in nodes}
        both = min(naive_committed(incoming, acked), naive_committed(outgoing, acked))
        assert joint_committed(incoming, outgoing, acked.__getitem__) == both
        assert joint_committed(outgoing, incoming, acked.__getitem__) == both

        votes = {node: dice.random() < 0.6 for node in nodes if dice.random() < 0.7}
        results = {majority_vote(incoming, votes), majority_vote(outgoing, votes)}
        joint = joint_vote(incoming, outgoing, votes)
        assert joint is joint_vote(outgoing, incoming, votes)
        if VoteResult.LOST in results:
            assert joint is VoteResult.LOST
        else:
            assert (joint is VoteResult.WON) is (results == {VoteResult.WON})


def test_large_groups_commit_by_the_same_rule() -> None:
    dice = Random(7)
    for _ in range(1_000):
        voters = frozenset(range(dice.randrange(6, 60)))
        acked = {voter: dice.randrange(30) for voter in voters}
        assert majority_committed(voters, acked.__getitem__) == naive_committed(voters, acked)
