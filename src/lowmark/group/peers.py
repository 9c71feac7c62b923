"""Changing who belongs to a group: `change_peers`, by stages.

    NONE         nothing is under way
    CATCHING_UP  new members are learners until they are near; a newer list replaces this one
    JOINT        old and new members must both agree; from here on there is no way back
    STABLE       the new members alone are being put in force

Learners are added and redundant ones removed by changes of their own; only then, and only if
`try_catch_up_finish` says so, the joint configuration is proposed. A change that fails or is
cancelled takes its learners away again: the old members serve all the time.

A newcomer would be sent the whole log since the last snapshot. So the leader takes a snapshot
first, if that is more than a learner may lack that is near: its live entries are fewer, and go to
where they stay, while entries go through the newcomer's WAL.

Some groups have learners for good: nodes that follow without a vote. They are named with the
voters; nothing waits until they are near. A change that ends early keeps those that its list names,
and one that it was to make a voter; who was a learner before, and is not named, is none any more.

A new member whose disk is full says so with each answer to a heartbeat, whether it refuses a
snapshot or can't write entries. It has a third of the stall time to make space, which compaction
may do by itself; if it still says so then, the change fails by `DISK_FULL`. What it said is
forgotten only when it has come farther than it was when it first said so: a snapshot that fills
the disk again and again is no progress.

A leader that is elected in the middle leaves a joint configuration by itself, and says so; learners
that it finds wait for a new list (the caller learns of the election and asks again).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from lowmark.raft import (
    Change,
    ChangeKind,
    ConfChange,
    Members,
    Progress,
    ProgressState,
    Transition,
)

if TYPE_CHECKING:
    from lowmark.group.leadership import Leadership


_FULL_SHARE = 3
"""A new member whose disk is full has this part of the stall time (1/3)."""


class Stage(Enum):
    """How far a change of peers is."""

    NONE = "none"
    CATCHING_UP = "catching up"
    JOINT = "joint"
    STABLE = "stable"


class ChangeAnswer(Enum):
    """What became of a request to change peers."""

    RECEIVED = "received"
    BUSY = "busy"
    OTHER_TERM = "ignored: it is for another term"
    STALE_TOKEN = "ignored: its token is older than the last one"
    NOT_LEADER = "ignored: this node does not lead"


class ChangeError(Enum):
    """Why a change of peers failed."""

    NOT_STARTED = "a new member is not there"
    STALLED = "a new member makes no progress"
    LOST_LEADERSHIP = "leadership was lost"
    TOO_OLD = "a new member does not know the machine's version"
    DISK_FULL = "the disk of a new member is full"
    NO_MAJORITY = "a majority of the new members is not up"
    STALE_TOKEN = "the group has begun a change that was asked for later"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFailed:
    """The context of a failed change."""

    error: ChangeError
    token: int
    peers: tuple[int, ...]
    node: int = 0
    """The member that it failed by, if it was one."""
    detail: str = ""
    """What that member said, if it said anything."""


class PeerListener(Protocol):
    """Who drives changes of peers from outside. Called on the loop."""

    def on_leader_elected(self, term: int) -> None:
        """This node leads, and has applied the first entry of its term."""

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        """The new members are in force.

        If this node is one of them, a majority of them will know that after any crash: whoever is
        none of them may go. If it is not, wait until one of them leads.
        """

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        """A change failed; the old members serve.

        One with a stale token was not begun: if another one is under way, that goes on.
        """

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        """All new members are near. Answer True, now or later, to go on; False to wait."""


@dataclass(slots=True)
class _Watched:
    """How a learner comes along."""

    progressed_at_ms: int
    position: tuple[int, int] = (0, 0)
    goal: int = 0
    """It must have this index before it is near: the last one when the change began. A member that
    can't write is never near, however little it lacks."""
    here: bool = False
    """Whether its copy gave a sign of life, and did not say since that it is gone."""
    full_since_ms: int | None = None
    """When it first said that its disk is full, without having come farther since."""
    full_at: tuple[int, int] = (0, 0)
    """The farthest position by then."""


class PeerChange:
    """The change that is under way, if any. It exists on the leader only."""

    def __init__(
        self,
        leader: Leadership,
        listener: PeerListener,
        *,
        near_entries: int,
        near_bytes: int,
        stall_ms: int,
    ) -> None:
        self._leader = leader
        self._listener = listener
        self._near_entries = near_entries
        self._near_bytes = near_bytes
        self._stall_ms = stall_ms
        self.stage = Stage.NONE
        self.token = -1
        self.peers: tuple[int, ...] = ()
        self.learners: tuple[int, ...] = ()
        self._standing: frozenset[int] = frozenset()
        """Learners for good, as far as this leader knows: of the last list that was finished."""
        self._replacing = 0
        """A member whose copy was lost: it leaves first, and comes back as a new one."""
        self._own = False
        """Nobody asked for this change: nobody is asked or told about it."""
        self._asked = 0
        self._rounds = 0
        self._may_finish = False
        self._cut_short = False
        """Whether a snapshot was asked for in this round, if one was worth it."""
        self._clean = True
        self._watched: dict[int, _Watched] = {}
        self._short_since_ms: int | None = None
        """Since when too few of the new members are up to decide alone."""

    # -- requests -------------------------------------------------------------------------------

    def change(
        self, token: int, peers: tuple[int, ...], learners: tuple[int, ...] = ()
    ) -> ChangeAnswer:
        """Move the group to these voters and learners."""
        if token < self.token:
            # Nothing was begun, and what is under way goes on: only the one who asked has failed.
            error = ChangeError.STALE_TOKEN
            self._listener.on_change_peers_error(
                ChangeFailed(error=error, token=token, peers=tuple(sorted(set(peers))))
            )
            return ChangeAnswer.STALE_TOKEN
        if self.stage in {Stage.JOINT, Stage.STABLE} or self._leader.members().joint:
            return ChangeAnswer.BUSY
        peers = tuple(sorted(set(peers)))
        same = not self._own and (peers, learners) == (self.peers, self.learners)
        newer, self.token = token > self.token, token
        if self.stage is Stage.CATCHING_UP and same:
            if newer and not self._may_finish:
                self._asked = 0  # who said no to it then may say yes now
            return ChangeAnswer.RECEIVED  # again: that is no reason to wait longer for anybody
        self._begin(peers, learners)
        return ChangeAnswer.RECEIVED

    def replace(self, node: int) -> bool:
        """Take a member out and in again: its copy was lost. False if something else goes on.

        That it shall come back stands in the log: the next leader goes on with it (`bring_back`).
        """
        members = self._leader.members()
        if self.stage is not Stage.NONE or members.joint or members.incoming == {node}:
            return False
        self._begin(tuple(sorted(members.incoming)), tuple(sorted(members.learners)))
        self._own = True
        self._replacing = node if node in members.everybody else 0
        return True

    def bring_back(self) -> None:
        """Add those again that were taken out for a while, if nothing else goes on."""
        members = self._leader.members()
        if members.returning and self.stage is Stage.NONE and self._clean and not members.joint:
            peers = members.incoming | members.returning
            self._begin(tuple(sorted(peers)), tuple(sorted(members.learners - peers)))
            self._own = True

    def cancel(self) -> bool:
        """Give up a change that is still catching up; True if none is left."""
        if self.stage is Stage.CATCHING_UP:
            self._end()
        return self.stage is Stage.NONE and not self._leader.members().joint

    def lost_leadership(self) -> None:
        """Whoever leads now knows nothing of this change."""
        if self.stage in {Stage.CATCHING_UP, Stage.JOINT}:
            self._fail(ChangeError.LOST_LEADERSHIP)
        self.stage, self._clean = Stage.NONE, True
        self._standing = frozenset()

    def not_here(self, node: int) -> None:
        """A node says that it has no copy."""
        if node in self._watched:
            self._watched[node].here = False

    def heard(self, node: int) -> None:
        """A node has a copy now."""
        if node in self._watched:
            self._watched[node].here = True

    # -- going on -------------------------------------------------------------------------------

    def _begin(self, peers: tuple[int, ...], learners: tuple[int, ...]) -> None:
        self.stage = Stage.CATCHING_UP
        self.peers = peers
        self.learners = learners
        self._own = False
        self._replacing = 0
        self._asked = 0
        self._may_finish = False
        self._cut_short = False
        self._rounds += 1
        self._clean = True
        now = self._leader.now_ms()
        old = self._watched
        self._watched = {n: old.get(n) or _Watched(now) for n in self._new_nodes()}
        for watched in self._watched.values():
            watched.progressed_at_ms = now
            watched.goal = watched.goal or self._leader.last_index()
            watched.full_since_ms = None
        self._short_since_ms = None

    def _new_nodes(self) -> list[int]:
        voters = self._leader.members().incoming
        return [node for node in self.peers if node not in voters or node == self._replacing]

    def _end(self) -> None:
        self.stage = Stage.NONE
        self._rounds += 1
        self._asked = 0
        self._may_finish = False
        self._clean = False
        self._watched.clear()

    def _fail(self, error: ChangeError, node: int = 0, detail: str = "") -> None:
        context = ChangeFailed(
            error=error, token=self.token, peers=self.peers, node=node, detail=detail
        )
        own = self._own
        self._end()
        if not own:
            self._listener.on_change_peers_error(context)

    def applied(self, members: Members, *, was_joint: bool) -> None:
        """A change of members is in force."""
        if members.joint:
            self.stage = Stage.STABLE
            self.peers = tuple(sorted(members.incoming))
        elif was_joint:
            self._finish(tuple(sorted(members.incoming)))
        self.go_on()

    def go_on(self) -> None:
        """Do what can be done now. Called with every tick, and when members have changed."""
        members = self._leader.members()
        if members.joint:
            return
        if self.stage is Stage.NONE:
            # A learner that is still on its way into the log must be waited for, too.
            if not self._clean and not self._leader.change_pending():
                keep = frozenset(self.learners) | (self._standing & frozenset(self.peers))
                self._clean = self._drop_learners(members, keep=keep)
            return
        if self.stage is not Stage.CATCHING_UP:
            return
        if self._replacing and self._replacing in members.everybody:
            self._replace(self._replacing, members)
            return
        wanted = (*self.peers, *self.learners)
        if not self._drop_learners(members, keep=frozenset(wanted)):
            return
        missing = [node for node in wanted if node not in members.everybody]
        if missing:
            if not self._cut_short:
                self._cut_short = True
                self._leader.cut_log_short()
            if self._leader.takes_snapshot():
                return  # it is soon over, and then this goes on
            self._propose(Transition.AUTO, [Change(ChangeKind.ADD_LEARNER, n) for n in missing])
            return
        if not self._check_new() or not self._has_majority():
            return
        if self._may_finish or self._own:
            self._enter_joint()
        elif not self._asked:
            self._ask()

    def _replace(self, node: int, members: Members) -> None:
        if node in members.incoming:
            if self._propose(Transition.AUTO, [Change(ChangeKind.REPLACE, node)]):
                self._watched[node] = _Watched(self._leader.now_ms())
                self._replacing = 0
            return
        # A learner leaves and comes back with one entry: between two, a new leader would not know
        # that it shall come back.
        again = [Change(ChangeKind.REMOVE, node), Change(ChangeKind.ADD_LEARNER, node)]
        if self._propose_joint(again):
            self.stage = Stage.JOINT

    def _drop_learners(self, members: Members, *, keep: frozenset[int]) -> bool:
        extra = sorted(members.learners - keep)
        if extra:
            self._propose(Transition.AUTO, [Change(ChangeKind.REMOVE, node) for node in extra])
        return not extra

    def _propose(self, transition: Transition, changes: list[Change]) -> bool:
        if transition is Transition.AUTO and len(changes) > 1:
            # Learners one at a time: several at once would need a joint configuration.
            changes = changes[:1]
        return self._leader.propose_change(ConfChange(transition, tuple(changes)))

    def _check_new(self) -> bool:
        """Whether all new members are near; gives up if one is beyond hope."""
        now, all_near = self._leader.now_ms(), True
        for node in self._new_nodes():
            progress = self._leader.progress().get(node)
            watched = self._watched.setdefault(node, _Watched(now))
            if progress is None:
                all_near = False
                continue
            position = (progress.match, self._leader.installed_bytes(node))
            if position > watched.position or self._leader.is_throttled(node):
                watched.progressed_at_ms = now
            # A snapshot that is sent anew counts from its beginning.
            watched.position = position
            known = self._leader.known_version(node)
            if 0 < known < self._leader.version:
                self._fail(ChangeError.TOO_OLD, node)
                return False
            # One that has not said what it knows may stop as a voter: it is not near yet.
            caught_up = progress.match >= watched.goal and not progress.disk_full
            near = known > 0 and caught_up and self.is_near(node, progress)
            all_near = all_near and near
            if near:
                watched.progressed_at_ms = now
            elif self._is_full(progress, watched, position, now):
                self._fail(ChangeError.DISK_FULL, node, self._leader.install_refusal(node))
                return False
            elif now - watched.progressed_at_ms >= self._stall_ms:
                error = ChangeError.STALLED if watched.here else ChangeError.NOT_STARTED
                self._fail(error, node)
                return False
        return all_near

    def _has_majority(self) -> bool:
        """Whether the new members could decide alone; gives up if they can't for long.

        Those that stay may be down, too. Put in force without a majority that is up, they would end
        a group that serves.
        """
        away = [node for node in self.peers if not self._leader.hears(node)]
        if 2 * len(away) < len(self.peers):
            self._short_since_ms = None
            return True
        now = self._leader.now_ms()
        if self._short_since_ms is None:
            self._short_since_ms = now
        elif now - self._short_since_ms >= self._stall_ms:
            self._fail(ChangeError.NO_MAJORITY, away[0])
        return False

    def _is_full(
        self, progress: Progress, watched: _Watched, position: tuple[int, int], now_ms: int
    ) -> bool:
        """Whether a member says that its disk is full, and has had its time to make space."""
        if not progress.disk_full:
            if position > watched.full_at:
                watched.full_since_ms, watched.full_at = None, position
            return False
        if watched.full_since_ms is None:
            watched.full_since_ms = now_ms
        watched.full_at = max(watched.full_at, position)
        return now_ms - watched.full_since_ms >= self._stall_ms // _FULL_SHARE

    def is_near(self, node: int, progress: Progress) -> bool:
        """Whether a learner could become a voter without holding the group up."""
        return (
            progress.state is ProgressState.REPLICATE
            and self._leader.last_index() - progress.match <= self._near_entries
            and self._leader.bytes_behind(node) <= self._near_bytes
        )

    def _ask(self) -> None:
        self._rounds += 1
        asked = self._asked = self._rounds

        def answer(go: bool) -> None:
            if self._asked != asked or self.stage is not Stage.CATCHING_UP:
                return  # the list has changed, or the change is over
            if go:
                self._may_finish = True
                self.go_on()  # now, or when a member that fell back meanwhile is near again
            # Else a newer list is on its way; until it is here, nothing is asked.

        self._listener.try_catch_up_finish(self.peers, answer)

    def _enter_joint(self) -> None:
        members = self._leader.members()
        changes = [Change(ChangeKind.ADD_VOTER, n) for n in self.peers if n not in members.incoming]
        changes += [
            Change(ChangeKind.ADD_LEARNER, n) for n in self.learners if n in members.incoming
        ]
        gone = (members.everybody | members.returning) - {*self.peers, *self.learners}
        changes += [Change(ChangeKind.REMOVE, node) for node in sorted(gone)]
        if not changes:
            self._finish(self.peers)
        elif self._propose_joint(changes):
            self.stage = Stage.JOINT
        # Else the way is barred; it is tried again with the next tick.

    def _finish(self, peers: tuple[int, ...]) -> None:
        self._end()
        self._clean = True
        self._standing = self._leader.members().learners
        # Who hears of it may delete the copies of those who left. A member that forgot in a crash
        # that the new members are in force would then wait for them for ever.
        self._leader.when_kept(lambda: self._listener.on_change_peers_committed(peers))

    def _propose_joint(self, changes: list[Change]) -> bool:
        return self._leader.propose_change(ConfChange(Transition.JOINT_IMPLICIT, tuple(changes)))
