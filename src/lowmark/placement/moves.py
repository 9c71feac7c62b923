"""Moves the partitions that this node leads to where their assignments say, and tries again.

A partition's way from stable to pending, and what is true after each step

    1. pending is written. The nodes in it that have no copy make an empty one, which knows no
       members and is silent until the leader speaks to it: it can't elect itself
    2. the leader of the group calls `change_peers`, with its term and the revision of pending as
       the token. The new nodes learn the log; the old members serve, and nothing else has changed
    3. all are near. The leader sets the lock in the metastore, if pending is still what it moves
       to. From here on pending is not replaced: what comes is planned
    4. the group decides with old and new members together, then with the new ones alone
    5. the leader writes: stable is pending, pending is planned or gone, the lock is gone. One write
    6. nodes that are in neither set any more destroy their copies (`leaving`)

A leader that crashes is followed by another one: when that is ready it begins with step 2 again, by
what the metastore's leader says that pending is. In every stage it finds the group's members as the
log has them: a change that was put in force is found to be, and step 5 is done again.

What holds
    1. Only a leader that is ready calls `change_peers`, in its own term. What another term asked
       for is skipped, and logged; what an older token asked for has failed.
    2. Stable is written only with members that the group says are in force, and only while pending
       has the revision that the change began with.
    3. A change that fails gives its lock back and is tried again, by one task of this node, after
       `retry_delay_ms`; after `retry_max` times that is an alarm, and it is tried less often, but
       never given up: pending stays.
    4. A node that does not lead any more stops: the leader that follows it goes on.
    5. While moves are paused, none begins, and those that still copy are called off; pending stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from lowmark.group import ChangeAnswer, ChangeError, ChangeFailed, Future, Group, Stage
from lowmark.metastore import Metastore
from lowmark.placement import decisions
from lowmark.placement.assignments import METASTORE, Assignments, Keys, PartitionId
from lowmark.placement.config import RebalanceConfig
from lowmark.placement.decisions import Adjust
from lowmark.placement.standing import Failure, Standing, Step, led_standing
from lowmark.placement.writes import Decide, carry_out, read_keys
from lowmark.raft import Members
from lowmark.runtime import Loop, Timer

logger = logging.getLogger(__name__)

LOOKS_PER_TURN = 64
_SLOW_RETRIES = 30
"""After `retry_max` failures a move waits this many times as long before it is tried again."""


@dataclass(slots=True)
class _Move:
    """What this node does about one partition, while it leads it."""

    term: int
    token: int = -1
    """Of the change that was begun last; -1: none."""
    peers: tuple[int, ...] = ()
    asking: bool = False
    """Whether something is being read or written for it."""
    again: bool = False
    """Whether it is to be looked at again after that."""
    locking: int = 0
    """How many writes of the lock, or of its return, are under way. No change begins before their
    end: it could count on a lock that is about to go."""
    held_up: bool = False
    """Whether a change waits for that."""
    target: int = -1
    """The revision of pending that its steps lead to; -1: there is none, or moves are paused."""
    step_at_ms: int = 0
    """When its last step was taken, by the time of the loop."""
    finishing: bool = False
    """Whether all new members are near: they are being put in force."""
    trouble: str = ""
    """Why the metastore could not be asked the last time, if it could not."""

    def took_step(self, now_ms: int, *, finishing: bool = False) -> None:
        """It gets on."""
        self.step_at_ms, self.finishing, self.trouble = now_ms, finishing, ""


class Moves:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        metastore: Metastore,
        *,
        group: Callable[[PartitionId], Group | None],
        keys: Callable[[PartitionId], Keys],
        config: RebalanceConfig,
    ) -> None:
        self._loop = loop
        self._metastore = metastore
        self._copy = group
        """This node's copy of a partition's group, if it has one."""
        self._keys = keys
        """What this node knows of a partition's assignments."""
        self.config = config
        self.paused = False
        self._moves: dict[PartitionId, _Move] = {}
        self._failures: dict[PartitionId, Failure] = {}
        self._waiting: dict[PartitionId, None] = {}
        """Moves that wait for their turn, in order."""
        self._next_soon = False
        self._begun: dict[PartitionId, None] = {}
        """Moves that were begun, and may copy still."""
        self._due: dict[PartitionId, int] = {}
        """When moves that failed are tried again: the one retry task of this node."""
        self._timer: Timer | None = None
        self._to_look: dict[PartitionId, None] = {}
        """Still to be looked at, since moves were paused or go on."""
        self._closed = False

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def listener(self, partition: PartitionId) -> _Listener:
        """What a partition's group tells its changes to."""
        return _Listener(self, partition)

    def failure(self, partition: PartitionId) -> Failure | None:
        """Why a move that this node leads does not get on, if so."""
        return self._failures.get(partition)

    def standing(self, partition: PartitionId) -> Standing | None:
        """Where a move stands that this node leads; None: it leads none."""
        keys, group, move = (
            self._keys(partition),
            self._group(partition),
            self._moves.get(partition),
        )
        if group is None or move is None or move.term != group.term or keys.pending is None:
            return None
        now_ms, failure = self._now_ms(), self._failures.get(partition)
        step = Step(
            age_ms=now_ms - move.step_at_ms,
            finishing=move.finishing,
            paused=self._is_paused(partition),
            waits_for_turn=partition in self._waiting,
            asking=move.asking,
            trouble=move.trouble,
            failure=failure,
            failing_ms=0 if failure is None else now_ms - failure.since_ms,
        )
        return led_standing(group, keys, step, alarm_ms=self.config.alarm_ms)

    def forget(self, partition: PartitionId) -> None:
        """There is nothing to move any more."""
        self._moves.pop(partition, None)
        self._failures.pop(partition, None)
        self._due.pop(partition, None)
        self._waiting.pop(partition, None)
        self._next()

    # -- what happens -----------------------------------------------------------------------------

    def changed(self, partition: PartitionId) -> None:
        """Its assignments are others, or this node leads it now."""
        failure = self._failures.get(partition)
        other = failure is None or failure.token != self._keys(partition).pending_revision
        if partition in self._due and other:
            self._retry_at(partition, self._now_ms())  # another target may work
        self.look(partition)

    def look_at_all(self) -> None:
        """Moves were paused, or go on."""
        begun = bool(self._to_look)
        self._to_look = dict.fromkeys(self._moves)
        if not begun:
            self._look_on()

    def _look_on(self) -> None:
        """A few in each turn of the loop: a node may lead thousands of partitions."""
        for partition in list(islice(self._to_look, LOOKS_PER_TURN)):
            del self._to_look[partition]
            self.look(partition)
        if self._to_look and not self._closed:
            self._loop.call_soon(self._look_on)

    def elected(self, partition: PartitionId, term: int) -> None:
        """This node leads a partition, and is ready: it goes on with what its predecessor left.

        Pending is read from the metastore's leader: what this node has heard of it may be old.
        """
        self._moves[partition] = move = _Move(term, asking=True, step_at_ms=self._now_ms())
        self._failures.pop(partition, None)
        self._due.pop(partition, None)

        def read(future: Future[Keys]) -> None:
            if self._moves.get(partition) is not move or self._closed:
                return
            if future.error is not None:
                move.trouble = future.error.message
                self._loop.call_later(self.config.retry_delay_ms, ask)
                return
            move.trouble = ""
            keys, group = future.result(), self._group(partition)
            again, move.asking, move.again = move.again, False, False
            if group is not None and _never_in_force(keys, group.members(), term):
                # Its successor's own lock is not taken away, should this be written late.
                self._write(partition, lambda now: decisions.failed(partition, now, term - 1))
            self._go_on(partition, move, keys, sure=True)
            if again:  # what was heard of meanwhile may be newer
                self.look(partition)

        def ask() -> None:
            if self._moves.get(partition) is move and not self._closed:
                read_keys(self._metastore, partition).then(read)

        ask()

    def _back(self, partition: PartitionId, move: _Move, stable: Assignments, as_of: int) -> None:
        """Nothing is to be moved. A group that is elsewhere than stable goes back there.

        `as_of`: so says the metastore's leader as of this revision; 0: so this node has heard.
        That is so if a move was withdrawn while its members were put in force by an older leader,
        or while an older leader had others learn the log.
        """
        group = self._group(partition)
        if group is None or group.stage is not Stage.NONE or group.members().joint:
            return
        members = group.members()
        if members.returning:
            return  # a member that lost its copy comes back: the group sees to that
        if members.incoming == set(stable.nodes) and members.learners == set(stable.learners):
            return
        if as_of:  # a target that comes later has a later revision: it replaces this one
            self._begin(partition, move, stable, as_of)
            return
        move.asking = True

        def read(future: Future[Keys]) -> None:
            if self._moves.get(partition) is not move or self._closed:
                return
            again, move.asking, move.again = move.again, False, False
            if future.error is None:
                self._go_on(partition, move, future.result(), sure=True)
            else:
                self._retry_at(partition, self._now_ms() + self.config.retry_delay_ms)
            if again:
                self.look(partition)

        read_keys(self._metastore, partition).then(read)

    def _is_paused(self, partition: PartitionId) -> bool:
        return self.paused and partition != METASTORE

    def look(self, partition: PartitionId) -> None:
        """Do what can be done now."""
        group = self._group(partition)
        if group is None or self._closed:
            self.forget(partition)
            return
        move = self._moves.get(partition)
        if move is None or move.term != group.term:
            return  # `elected` comes, or is on its way
        if move.asking:
            move.again = True
            return
        self._go_on(partition, move, self._keys(partition))

    def _go_on(
        self, partition: PartitionId, move: _Move, keys: Keys, *, sure: bool = False
    ) -> None:
        """`sure`: these are the keys as the metastore's leader knows them."""
        group = self._group(partition)
        if group is None or group.term != move.term or self._closed:
            return
        pending = keys.pending
        if pending is None or self._is_paused(partition):
            move.target = -1
            back = pending is None and keys.stable is not None and keys.stable.nodes == move.peers
            # What a new leader found in force copies nothing: it is about to be written.
            begun = pending is not None and keys.pending_revision == move.token
            in_force = begun and group.members().incoming == set(move.peers)
            if not ((back or in_force) and group.stage is Stage.CATCHING_UP):
                self._call_off(partition, move)
            if pending is None and keys.stable is not None:
                self._back(partition, move, keys.stable, keys.as_of if sure else 0)
            return
        token = keys.pending_revision
        if token != move.target:  # another target, or moves go on
            move.target = token
            move.took_step(self._now_ms())
        if keys.planned is not None and self.config.adjust is Adjust.CANCEL:
            if token == move.token:
                self._replace(partition, move)
                return
            members = group.members()
            if not members.joint and members.incoming != set(pending.nodes):
                # It was not begun by this leader, or has failed: what is planned takes its place.
                term = move.term
                self._ask(
                    partition, move, lambda now: decisions.cancelled(partition, now, token, term)
                )
                return
        if token == move.token or partition in self._due:
            return
        if token < move.token:
            stale = ChangeError.STALE_TOKEN
            self.failed(partition, ChangeFailed(error=stale, token=token, peers=pending.nodes))
            return
        if not self._has_turn(partition, pending.nodes):
            return
        self._begin(partition, move, pending, token)

    def _begin(self, partition: PartitionId, move: _Move, target: Assignments, token: int) -> None:
        group, peers = self._group(partition), target.nodes
        if group is None:
            return
        if move.locking:
            move.held_up = True
            return
        answer = group.change_peers(move.term, token, list(peers), learners=target.learners)
        extra = {
            "table": partition.table,
            "partition": partition.number,
            "token": token,
            "nodes": list(peers),
            "answer": answer.value,
        }
        if answer is ChangeAnswer.RECEIVED:
            logger.info("a partition is moved", extra=extra)
            move.token, move.peers = token, peers
            move.took_step(self._now_ms())
            self._begun[partition] = None
            failure = self._failures.get(partition)
            if failure is not None and failure.token != token:
                del self._failures[partition]
        elif answer is ChangeAnswer.BUSY:
            logger.info("a partition is moved later", extra=extra)
            self._retry_at(partition, self._now_ms() + self.config.retry_delay_ms)
        else:
            logger.warning("a partition is not moved", extra=extra)

    def _call_off(self, partition: PartitionId, move: _Move) -> None:
        """Nothing is to be copied: give up what is."""
        self._waiting.pop(partition, None)
        self._failures.pop(partition, None)
        self._due.pop(partition, None)
        group = self._group(partition)
        if move.token >= 0 and group is not None and group.stage is Stage.CATCHING_UP:
            group.cancel_change_peers()
        if group is None or group.stage is Stage.NONE:
            move.token = -1
        self._next()

    def _replace(self, partition: PartitionId, move: _Move) -> None:
        """Another target is planned: give this one up, if it still can be."""
        group = self._group(partition)
        if group is None or group.members().incoming == set(move.peers):
            return  # it is in force, and about to be written: a new leader may just see to that
        if not group.cancel_change_peers():
            return  # it will be put in force; then what is planned is pending
        token, term = move.token, move.term
        move.token = -1
        self._ask(
            partition,
            move,
            lambda now: decisions.cancelled(partition, now, token, term),
        )

    # -- turns ------------------------------------------------------------------------------------

    def _has_turn(self, partition: PartitionId, nodes: tuple[int, ...]) -> bool:
        """Whether a move may begin now: only a few copy at a time."""
        group = self._group(partition)
        copies = group is not None and bool(set(nodes) - group.members().incoming)
        # If replicas only go, it needs no turn; if it copies for an older target, it has one.
        if copies and not self._copies(partition) and not self._has_room():
            self._waiting[partition] = None
            self._set_timer()
            return False
        self._waiting.pop(partition, None)
        return True

    def _has_room(self) -> bool:
        for partition in [one for one in self._begun if not self._copies(one)]:
            del self._begun[partition]
        return len(self._begun) < self.config.moves_max

    def _copies(self, partition: PartitionId) -> bool:
        group, move = self._group(partition), self._moves.get(partition)
        begun = move is not None and move.token >= 0
        return begun and group is not None and group.stage is Stage.CATCHING_UP

    def _next(self) -> None:
        """A move is over: others may begin."""
        if self._waiting and not self._next_soon:
            self._next_soon = True
            self._loop.call_soon(self._let_begin)

    def _let_begin(self) -> None:
        """In order. One that has no reason to begin any more keeps none of the others waiting."""
        self._next_soon = False
        for partition in list(self._waiting):
            if self._closed or not self._has_room():
                return
            self._waiting.pop(partition, None)  # it waits again, if it must
            self.look(partition)

    # -- told by groups ---------------------------------------------------------------------------

    def finished(self, partition: PartitionId, peers: tuple[int, ...]) -> None:
        """These members are in force; a majority of them will know that after any crash."""
        move = self._moves.get(partition)
        self._next()
        if move is None:
            return
        if move.token < 0:
            self.changed(partition)  # an earlier leader's change was in the way: it is over now
            return
        if self._metastore.node not in peers:
            return  # this node is out: the next leader, which is one of them, says so
        token = move.token
        self._failures.pop(partition, None)
        move.took_step(self._now_ms(), finishing=True)
        self._ask(partition, move, lambda keys: decisions.committed(partition, keys, peers, token))

    def may_finish(
        self, partition: PartitionId, peers: tuple[int, ...], answer: Callable[[bool], None]
    ) -> None:
        """All new members are near: put them in force, unless there is another target by now."""
        move = self._moves.get(partition)
        group = self._group(partition)
        if move is None or group is None or group.term != move.term or self._closed:
            answer(False)
            return
        term, token = move.term, move.token
        move.took_step(self._now_ms(), finishing=True)
        # Of members that an earlier leader put in force, the lock is never given back.
        in_force = group.members().incoming == set(peers)

        def is_over() -> bool:
            """Whether the change that asks was called off, or replaced."""
            now = self._group(partition)
            copies = now is not None and now.stage is Stage.CATCHING_UP
            return self._moves.get(partition) is not move or move.token != token or not copies

        def asked(future: Future[bool]) -> None:
            move.trouble = "" if future.error is None else future.error.message
            if future.error is None:
                if future.result() and is_over() and not in_force and not self._closed:
                    # The lock came too late: without its change, it would bar all others.
                    self._lock(partition, move, lambda now: decisions.failed(partition, now, term))
                answer(future.result())
            elif not is_over() and not self._closed:
                self._loop.call_later(self.config.retry_delay_ms, ask)

        def ask() -> None:
            if not is_over() and not self._closed:
                self._lock(
                    partition, move, lambda now: decisions.may_finish(partition, now, peers, term)
                ).then(asked)

        ask()

    def failed(self, partition: PartitionId, context: ChangeFailed) -> None:
        """A change failed; the old members serve."""
        move = self._moves.get(partition)
        extra = {
            "table": partition.table,
            "partition": partition.number,
            "reason": context.error.value,
            "node": context.node,
        }
        self._next()
        if move is None or context.error is ChangeError.LOST_LEADERSHIP:
            logger.info("a move goes on under another leader", extra=extra)
            self.forget(partition)
            return
        logger.warning("a move failed", extra=extra)
        term, now_ms = move.term, self._now_ms()
        before = self._failures.get(partition)
        attempts = 1 if before is None else before.attempts + 1
        self._failures[partition] = Failure(
            context.error,
            context.token,
            context.node,
            attempts,
            now_ms if before is None else before.since_ms,
            attempts >= self.config.retry_max,
            context.detail,
        )
        delay_ms = self.config.retry_delay_ms
        if attempts >= self.config.retry_max:
            delay_ms *= _SLOW_RETRIES
        self._retry_at(partition, now_ms + delay_ms)
        if context.error is not ChangeError.STALE_TOKEN:  # else none was begun, and none has a lock
            move.token = -1
            move.took_step(now_ms)
            self._ask(partition, move, lambda keys: decisions.failed(partition, keys, term))

    # -- writing ----------------------------------------------------------------------------------

    def _write(self, partition: PartitionId, decide: Decide) -> Future[bool]:
        return carry_out(self._metastore, partition, decide)

    def _lock(self, partition: PartitionId, move: _Move, decide: Decide) -> Future[bool]:
        """Have the lock set or given back; a change that is to begin meanwhile begins after it."""
        move.locking += 1
        written = self._write(partition, decide)

        def settled(_: Future[bool]) -> None:
            move.locking -= 1
            if move.held_up and not move.locking:
                move.held_up = False
                # After what is done about the answer: it may give the lock back.
                self._loop.call_soon(lambda: self.look(partition))

        written.then(settled)
        return written

    def _ask(self, partition: PartitionId, move: _Move, decide: Decide) -> None:
        """Have something written that must be, whatever comes between; then look again."""
        move.asking = True

        def written(future: Future[bool]) -> None:
            if self._moves.get(partition) is not move or self._closed:
                return
            move.trouble = "" if future.error is None else future.error.message
            if future.error is not None:
                logger.info(
                    "an assignment is written later",
                    extra={"table": partition.table, "reason": future.error.message},
                )
                self._loop.call_later(self.config.retry_delay_ms, attempt)
                return
            again, move.asking, move.again = move.again, False, False
            # What was written is known here by the watch. It looks again, unless it came first.
            if again or not future.result():
                self.look(partition)

        def attempt() -> None:
            if self._moves.get(partition) is move and not self._closed:
                self._write(partition, decide).then(written)

        attempt()

    # -- the retry task ---------------------------------------------------------------------------

    def _retry_at(self, partition: PartitionId, due_ms: int) -> None:
        self._due[partition] = due_ms
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = self._now_ms()
        due_ms = min(self._due.values(), default=None)
        if self._waiting:  # they are woken when a move ends; now and then they look by themselves
            look_ms = now_ms + 5 * self.config.retry_delay_ms
            due_ms = look_ms if due_ms is None else min(due_ms, look_ms)
        if due_ms is not None and not self._closed:
            self._timer = self._loop.call_later(max(0, due_ms - now_ms), self._retry)

    def _retry(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        for partition in [one for one, due_ms in self._due.items() if due_ms <= now_ms]:
            del self._due[partition]
            self.look(partition)
        self._next()
        self._set_timer()

    # -- looking ----------------------------------------------------------------------------------

    def _group(self, partition: PartitionId) -> Group | None:
        """The group of a partition that this node leads."""
        group = self._copy(partition)
        return group if group is not None and group.ready else None

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000


def _never_in_force(keys: Keys, members: Members, term: int) -> bool:
    """Whether an earlier leader's lock is over, since its change never got into the group's log.

    One that did stays locked until it is written. Else another target could come between, and no
    key would name the members that the group has.
    """
    if keys.pending is None or members.joint or (keys.lock is not None and keys.lock >= term):
        return False
    left = keys.lock is not None or keys.planned is not None
    return left and members.incoming != set(keys.pending.nodes)


class _Listener:
    """Tells `Moves` what becomes of one group's members (see `PeerListener`)."""

    def __init__(self, moves: Moves, partition: PartitionId) -> None:
        self._moves = moves
        self._partition = partition

    def on_leader_elected(self, term: int) -> None:
        """See `PeerListener`."""
        self._moves.elected(self._partition, term)

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        """See `PeerListener`."""
        self._moves.finished(self._partition, peers)

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        """See `PeerListener`."""
        self._moves.failed(self._partition, context)

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        """See `PeerListener`."""
        self._moves.may_finish(self._partition, peers, answer)
