"""One change at a time and all of them by a joint configuration come to the same."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from lowmark.raft import Change, ChangeKind, ConfChange, Members, MembershipRefused, Transition
from lowmark.raft.membership import enter_joint, leave_joint, members_after, restore, simple

CASES = 1_000


def some_changes(dice: Random) -> list[Change]:
    """Anything may happen to nodes 2 to 10; node 1 always stays a voter."""
    return [
        Change(dice.choice(list(ChangeKind)), dice.randrange(2, 11))
        for _ in range(dice.randrange(1, 10))
    ]


def a_group(dice: Random) -> Members:
    members, _ = simple(Members(), [Change(ChangeKind.ADD_VOTER, 1)], index=1)
    for _ in range(dice.randrange(1, 6)):
        change = Change(ChangeKind.ADD_VOTER, dice.randrange(1, 6))
        members, _ = simple(members, [change], index=2)
    return members


def without_incarnations(members: Members) -> Members:
    return replace(members, incarnations={})


def one_by_one(members: Members, changes: list[Change]) -> Members:
    for change in changes:
        members, _ = simple(members, [change], index=3)
    return members


def jointly(members: Members, changes: list[Change], *, auto_leave: bool) -> Members:
    joint, _ = enter_joint(members, changes, auto_leave=auto_leave, index=3)
    assert joint.joint
    assert joint.outgoing == members.incoming
    assert joint.auto_leave is auto_leave
    assert restore(joint.stored()) == joint
    after, fresh = leave_joint(joint)
    assert not fresh
    return after


def test_changes_one_by_one_and_by_a_joint_configuration_come_to_the_same() -> None:
    dice = Random(1_000)
    for case in range(CASES):
        # given a group and some changes
        members, changes = a_group(dice), some_changes(dice)
        # when they are made one by one, and all at once
        plain = one_by_one(members, changes)
        left = jointly(members, changes, auto_leave=False)
        # then the members are the same, however the joint configuration was left
        assert left == jointly(members, changes, auto_leave=True)
        # (a node removed and added again is a new member if that happens one by one)
        assert without_incarnations(plain) == without_incarnations(left), f"case {case}"
        assert 1 in plain.incoming
        assert not plain.joint
        assert not plain.learners & plain.voters
        assert plain.incarnations.keys() <= plain.everybody
        assert restore(plain.stored()) == plain


def test_a_member_that_stays_keeps_its_incarnation_and_a_new_one_gets_the_entrys_index() -> None:
    dice = Random(2_000)
    for _ in range(CASES):
        members, changes = a_group(dice), some_changes(dice)
        after, fresh = enter_joint(members, changes, auto_leave=True, index=50)
        for node in after.everybody:
            was_there = node in members.everybody
            assert (node in fresh) is not was_there
            assert after.incarnation(node) == (members.incarnation(node) if was_there else 50)


def test_a_node_that_is_removed_and_added_again_has_a_higher_incarnation() -> None:
    members = Members(incoming=frozenset({1, 2, 3}))
    removed, _ = simple(members, [Change(ChangeKind.REMOVE, 3)], index=8)
    assert 3 not in removed.everybody
    again, fresh = simple(removed, [Change(ChangeKind.ADD_LEARNER, 3)], index=9)
    assert again.incarnation(3) == 9
    assert fresh == {3}
    # and it keeps it when it is promoted
    promoted, fresh = simple(again, [Change(ChangeKind.ADD_VOTER, 3)], index=10)
    assert promoted.incarnation(3) == 9
    assert not fresh


@pytest.mark.parametrize(
    ("changes", "transition", "joint", "auto_leave"),
    [
        ("v4", Transition.AUTO, False, False),
        ("v4", Transition.JOINT_IMPLICIT, True, True),
        ("v4", Transition.JOINT_EXPLICIT, True, False),
        ("v4 r1", Transition.AUTO, True, True),
        ("v4 r1", Transition.JOINT_EXPLICIT, True, False),
    ],
)
def test_a_transition_says_how_a_change_is_made(
    changes: str, transition: Transition, joint: bool, auto_leave: bool
) -> None:
    kinds = {"v": ChangeKind.ADD_VOTER, "r": ChangeKind.REMOVE}
    change = ConfChange(
        transition, tuple(Change(kinds[word[0]], int(word[1:])) for word in changes.split())
    )
    assert ConfChange.decode(change.encode()) == change
    after, _ = members_after(Members(incoming=frozenset({1, 2, 3})), change, index=4)
    assert (after.joint, after.auto_leave) == (joint, auto_leave)


def test_to_leave_is_empty_and_a_change_that_can_not_be_read_is_refused() -> None:
    assert ConfChange().encode() == b""
    assert ConfChange.decode(b"") == ConfChange()
    with pytest.raises(MembershipRefused):
        ConfChange.decode(b"\xc1")
