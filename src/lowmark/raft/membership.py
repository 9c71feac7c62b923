"""Who belongs to a group, and how that changes: one voter at a time, or by a joint configuration.

A configuration takes effect when its entry is applied, never before, so nothing has to be rolled
back when a log is overwritten. In a joint configuration both majorities must agree; a voter that is
to become a learner waits in `learners_next` until the joint configuration is left.

A member's *incarnation* is the index of the entry that added it (0 for founders). Indexes only
grow, so a node that is removed and added again has a higher one. What a node says as an earlier
incarnation is no news about the present one, and a node that lost its copy must not speak until it
was added again.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from lowmark.errors import Rejected
from lowmark.raft.messages import Buffer, ConfState


class MembershipRefused(Rejected):
    """A change of members that can't be made from the present configuration."""


class ChangeKind(IntEnum):
    """What happens to one node."""

    ADD_VOTER = 0
    REMOVE = 1
    UPDATE = 2
    """Nothing, as far as consensus is concerned."""
    ADD_LEARNER = 3
    REPLACE = 4
    """Remove it, and remember that it shall come back."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One node."""

    kind: ChangeKind
    node: int


class Transition(IntEnum):
    """How a joint configuration is entered and left."""

    AUTO = 0
    """Only if more than one voter changes; then left by itself."""
    JOINT_IMPLICIT = 1
    """In any case; left by itself."""
    JOINT_EXPLICIT = 2
    """In any case; left by a change of its own."""


class ConfChange(msgspec.Struct, frozen=True, array_like=True):
    """What an entry that changes members says. Without changes, it leaves a joint configuration."""

    transition: Transition = Transition.AUTO
    changes: tuple[Change, ...] = ()
    context: bytes = b""

    @property
    def leaves_joint(self) -> bool:
        """Whether it leaves a joint configuration."""
        return not self.changes and self.transition is Transition.AUTO

    @property
    def enters_joint(self) -> bool:
        """Whether it needs a joint configuration on its way."""
        return self.transition is not Transition.AUTO or len(self.changes) > 1

    def encode(self) -> bytes:
        """As an entry's data; leaving is empty, so that no limit on sizes can refuse it."""
        return b"" if self == _LEAVE else msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: Buffer) -> ConfChange:
        """Of an entry's data."""
        if not data:
            return _LEAVE
        try:
            return msgspec.msgpack.decode(data, type=ConfChange)
        except msgspec.MsgspecError as error:
            raise MembershipRefused(f"a change of members can't be read: {error}") from error


_LEAVE = ConfChange()


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration."""

    incoming: frozenset[int] = frozenset()
    outgoing: frozenset[int] = frozenset()
    learners: frozenset[int] = frozenset()
    learners_next: frozenset[int] = frozenset()
    auto_leave: bool = False
    incarnations: dict[int, int] = {}
    returning: frozenset[int] = frozenset()

    @property
    def joint(self) -> bool:
        """Whether two majorities must agree."""
        return bool(self.outgoing)

    @property
    def voters(self) -> frozenset[int]:
        """All that vote, in either majority."""
        return self.incoming | self.outgoing

    @property
    def everybody(self) -> frozenset[int]:
        """Voters and learners."""
        return self.incoming | self.outgoing | self.learners

    def incarnation(self, node: int) -> int:
        """The index of the entry that added a node."""
        return self.incarnations.get(node, 0)

    def stored(self) -> ConfState:
        """As it goes into a snapshot."""
        return ConfState(
            voters=tuple(sorted(self.incoming)),
            voters_outgoing=tuple(sorted(self.outgoing)),
            learners=tuple(sorted(self.learners)),
            learners_next=tuple(sorted(self.learners_next)),
            auto_leave=self.auto_leave,
            incarnations=tuple(sorted(self.incarnations.items())),
            returning=tuple(sorted(self.returning)),
        )


class _Draft:
    """A configuration in the making. `tracked` are nodes whose progress a leader follows."""

    def __init__(self, members: Members) -> None:
        self.incoming = set(members.incoming)
        self.outgoing = set(members.outgoing)
        self.learners = set(members.learners)
        self.learners_next = set(members.learners_next)
        self.auto_leave = members.auto_leave
        self.tracked = set(members.everybody)
        self.fresh: set[int] = set()
        self.incarnations = dict(members.incarnations)
        self.returning = set(members.returning)

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.node == 0:
                continue  # the proposer thought better of it
            match change.kind:
                case ChangeKind.ADD_VOTER:
                    self._make_voter(change.node)
                case ChangeKind.ADD_LEARNER:
                    self._make_learner(change.node)
                case ChangeKind.REMOVE:
                    self._remove(change.node)
                case ChangeKind.REPLACE:
                    self._remove(change.node)
                    self.returning.add(change.node)
                case ChangeKind.UPDATE:
                    pass
        if not self.incoming:
            raise MembershipRefused("removed all voters")

    def _track(self, node: int) -> None:
        self.tracked.add(node)
        self.fresh.add(node)

    def _make_voter(self, node: int) -> None:
        self.returning.discard(node)
        if node not in self.tracked:
            self._track(node)
        self.learners.discard(node)
        self.learners_next.discard(node)
        self.incoming.add(node)

    def _make_learner(self, node: int) -> None:
        if node not in self.tracked:
            self._track(node)
            self.learners.add(node)
        elif node not in self.learners:
            self.incoming.discard(node)
            # It can't be counted as a voter and as a learner at once.
            (self.learners_next if node in self.outgoing else self.learners).add(node)

    def _remove(self, node: int) -> None:
        if node not in self.learners:  # a learner that goes may be one that will be tried again
            self.returning.discard(node)
        if node not in self.tracked:
            return
        self.incoming.discard(node)
        self.learners.discard(node)
        self.learners_next.discard(node)
        if node not in self.outgoing:
            self.tracked.discard(node)
            self.fresh.discard(node)
            self.incarnations.pop(node, None)

    def done(self, index: int) -> tuple[Members, frozenset[int]]:
        if index:
            self.incarnations.update(dict.fromkeys(self.fresh, index))
        members = Members(
            incoming=frozenset(self.incoming),
            outgoing=frozenset(self.outgoing),
            learners=frozenset(self.learners),
            learners_next=frozenset(self.learners_next),
            auto_leave=self.auto_leave,
            incarnations={n: i for n, i in sorted(self.incarnations.items()) if n in self.tracked},
            returning=frozenset(self.returning),
        )
        return members, frozenset(self.fresh)


Changed = tuple[Members, frozenset[int]]
"""The new configuration, and who is in it that was not before."""


def simple(members: Members, changes: Iterable[Change], *, index: int = 0) -> Changed:
    """Change at most one voter, and any learners."""
    if members.joint:
        raise MembershipRefused("can't apply simple config change in joint config")
    draft = _Draft(members)
    draft.apply(changes)
    if len(members.incoming ^ draft.incoming) > 1:
        raise MembershipRefused("more than one voter changed without entering joint config")
    return draft.done(index)


def enter_joint(
    members: Members, changes: Iterable[Change], *, auto_leave: bool, index: int = 0
) -> Changed:
    """Old and new voters must both agree from now on."""
    if members.joint:
        raise MembershipRefused("config is already joint")
    if not members.incoming:
        raise MembershipRefused("can't make a zero-voter config joint")
    draft = _Draft(members)
    draft.outgoing = set(draft.incoming)
    draft.apply(changes)
    draft.auto_leave = auto_leave
    return draft.done(index)


def leave_joint(members: Members) -> Changed:
    """The new voters decide alone; voters that were demoted are learners now."""
    if not members.joint:
        raise MembershipRefused("can't leave a non-joint config")
    draft = _Draft(members)
    draft.learners |= draft.learners_next
    draft.learners_next = set()
    draft.tracked -= draft.outgoing - draft.incoming - draft.learners
    draft.outgoing = set()
    draft.auto_leave = False
    return draft.done(0)


def members_after(members: Members, change: ConfChange, *, index: int = 0) -> Changed:
    """The configuration once a change at an index is applied."""
    if change.leaves_joint:
        return leave_joint(members)
    if change.enters_joint:
        auto_leave = change.transition is not Transition.JOINT_EXPLICIT
        return enter_joint(members, change.changes, auto_leave=auto_leave, index=index)
    return simple(members, change.changes, index=index)


def restore(stored: ConfState) -> Members:
    """A configuration as a snapshot has it; refused if it is none."""
    members = Members(
        incoming=frozenset(stored.voters),
        outgoing=frozenset(stored.voters_outgoing),
        learners=frozenset(stored.learners),
        learners_next=frozenset(stored.learners_next),
        auto_leave=stored.auto_leave,
        incarnations=dict(stored.incarnations),
        returning=frozenset(stored.returning),
    )
    if members.learners & members.voters:
        raise MembershipRefused("a node is both a voter and a learner")
    if not members.learners_next <= members.outgoing - members.incoming:
        raise MembershipRefused("only a voter on its way out can be waiting to be a learner")
    if not members.joint and members.auto_leave:
        raise MembershipRefused("a configuration that is not joint can't be left")
    if members.outgoing and not members.incoming:
        raise MembershipRefused("a joint configuration needs new voters")
    if not members.incarnations.keys() <= members.everybody:
        raise MembershipRefused("an incarnation of a node that is no member")
    return members
