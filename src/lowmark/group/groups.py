"""All groups of a node: one clock, one link to the other nodes, one turn for all that has work."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.group import doubts, reset
from lowmark.group.calls import Calls
from lowmark.group.clocks import Clocks
from lowmark.group.config import GroupConfig
from lowmark.group.doubts import Doubts
from lowmark.group.errors import GroupStopped, GroupUnfinished
from lowmark.group.group import Group
from lowmark.group.hello import Hellos
from lowmark.group.machine import Machine, Observer, SilentObserver
from lowmark.group.peers import ChangeFailed, PeerListener
from lowmark.group.rejoin import Lost, forget_lost, lost_copy, note_lost
from lowmark.group.reset import Reset
from lowmark.group.starts import Starts
from lowmark.group.storage import GroupMeta
from lowmark.group.throttle import Throttle
from lowmark.group.transport import Transport, TransportLimits
from lowmark.group.wire import Answer, Ask, Item, NotHere
from lowmark.log import Dropped, GroupLeaving, GroupLog, GroupUnknown, Log, Written
from lowmark.log.errors import NewerFormat
from lowmark.raft import ConfState, HardState, Vote, VoteResponse
from lowmark.runtime import Future, Runtime

logger = logging.getLogger(__name__)

_ANNOUNCEMENTS = 3
_LOOK_MS = 10_000
"""So often groups that rest are looked at all the same: their snapshots grow old."""
_NONE: frozenset[int] = frozenset()
_PRESENCE = "presence"
"""What a node is asked that groups rest without."""
_OVERHEAD_BYTES = 1 << 10
"""What a command takes besides itself, in the log and in a frame, at most."""


class SilentListener:
    """For groups whose members nobody changes from outside: every change may finish."""

    def on_leader_elected(self, term: int) -> None:
        """Nothing to do."""

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        """Nothing to do."""

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        """Nothing to do."""

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        """Go on."""
        answer(True)


def _check_room(name: str, limit: int, config: GroupConfig, *fields: str) -> None:
    for field in fields:
        size = getattr(config, field)
        if limit < size + _OVERHEAD_BYTES:
            raise Rejected(
                f"{name} = {limit} has no room for group.{field}",
                detail=f"{size} bytes need {size + _OVERHEAD_BYTES}.",
                hint=f"Raise {name}, or lower group.{field}.",
            )


class _Rests(NamedTuple):
    """Which nodes matter to the groups that rest; in order, so that a seed gives one history."""

    on: tuple[int, ...] = ()
    without: tuple[int, ...] = ()

    @classmethod
    def of(cls, groups: Iterable[Group]) -> _Rests:
        on: set[int] = set()
        without: set[int] = set()
        for group in groups:
            if group.resting.resting:
                on |= group.resting.rests_on(group.raft)
                without |= group.resting.without
        return cls(tuple(sorted(on)), tuple(sorted(without)))


class Groups:
    """Opens, creates and deletes the groups of one node, and drives them."""

    def __init__(
        self,
        runtime: Runtime,
        log: Log,
        *,
        node: int,
        address: str,
        listen: str | None = None,
        config: GroupConfig | None = None,
        limits: TransportLimits | None = None,
    ) -> None:
        if not 0 < node < 1 << 63:
            raise Rejected(f"{node} can't be a node's number", hint="Use 1 to 2^63 - 1.")
        self.node = node
        self.config = config or GroupConfig()
        limits = limits or TransportLimits()
        _check_room(
            "log.entry_bytes_max", log.config.entry_bytes_max, self.config, "command_bytes_max"
        )
        _check_room(
            "transport.frame_bytes_max",
            limits.frame_bytes_max,
            self.config,
            "command_bytes_max",
            "message_bytes_max",
            "install_piece_bytes",
        )
        self.clock = runtime.clock
        self.random = runtime.random
        self.elapsed_us = runtime.loop.elapsed_us
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._log = log
        self._groups: dict[str, Group] = {}
        self._busy: dict[str, Group] = {}
        self._scheduled = False
        self._closed = False
        self._ticks = 0
        self._cut: dict[int, int] = {}
        """When the connections of nodes broke that gave no sign of life since."""
        self._heard_at_tick: dict[int, int] = {}
        """Ticks do not pass while this process is held up: what came meanwhile is not silence."""
        self._watched_since: dict[int, int] = {}
        """The tick since which groups rest on a node without a break."""
        self._present: AbstractSet[int] = frozenset()
        """Nodes that have spoken lately, as of the last tick."""
        self._rests = _Rests()
        self._rests_changed = False
        self._look_at_ms = 0
        self._announcements = _ANNOUNCEMENTS
        self.transport = Transport(
            runtime, node=node, address=address, listen=listen, receiver=self, limits=limits
        )
        self.throttle = Throttle(
            self.elapsed_us,
            self.later,
            bytes_per_s=self.config.install_bytes_per_s,
            round_ms=self.config.election_ms // 2,
        )
        """How fast this node's groups send to members that catch up; its rate may be set."""
        self.unthrottled: set[str] = set()
        """Groups that it does not count for: those by which the rate itself is heard of."""
        self._no_throttle = Throttle(self.elapsed_us, self.later, bytes_per_s=0, round_ms=1)
        self.calls = Calls(
            self.transport,
            send=self.send,
            now_ms=self.now_ms,
            timeout_ms=self.config.request_timeout_ms,
        )
        self.clocks = Clocks(
            self.calls,
            self.clock,
            nodes=lambda: self.transport.addresses.keys() - {self.transport.node},
            wall_ms=runtime.loop.wall_ms,
            elapsed_us=self.elapsed_us,
        )
        self.starts = Starts(runtime.disk, node=node, draw=lambda: runtime.random.getrandbits(62))
        """Which starts of nodes this directory knows; see `starts`."""
        self._uncounted = ""
        """Why its start could not be counted, the last time."""
        self._came_in_doubt = False
        """Whether a copy was opened or made in doubt, maybe long after others were made good."""
        self.hellos = Hellos(self, self.starts, older=self._is_older, doubt=self._doubt)
        self._doubts = Doubts(self, log, self.starts, begun_anew=self._began_anew)
        self.when_begun_anew: Callable[[], None] = lambda: None
        """Told when it was found that this directory is older than what others know of this node,
        and all copies in it are in doubt. Then `settle` is to be called."""
        self.transport.on_learned = self._learned
        self.transport.admits = self.hellos.admits
        log.on_written = self._written
        log.on_dropped = self._dropped
        log.on_writable = self._writable
        self._loop.call_later(self.config.tick_ms, self._tick)

    # -- groups ---------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        machine: Machine,
        *,
        members: Iterable[int] = (),
        listener: PeerListener | None = None,
        observer: Observer | None = None,
    ) -> Group:
        """Make a copy of a group here.

        Founders name all first members, the same on each. Who joins a group that exists names
        nobody: it waits until the group's leader speaks to it. A name is used once: copies of an
        earlier group of the same name, on nodes that were away when it was deleted, would take
        themselves for members of this one.
        """
        founders = tuple(sorted(set(members)))
        if any(node <= 0 for node in founders):
            raise Rejected("nodes have positive numbers")
        if founders and self.node not in founders:
            founders = ()
        meta = GroupMeta(founders=ConfState(voters=founders))
        return self._create(name, machine, listener, meta, observer)

    def _create(
        self,
        name: str,
        machine: Machine,
        listener: PeerListener | None,
        meta: GroupMeta,
        observer: Observer | None,
    ) -> Group:
        alone = meta.founders.voters == (self.node,)
        lost = lost_copy(self._disk, name)
        if lost is not None:
            meta = GroupMeta(
                hard=HardState(lineage=lost.lineage),
                rejoin_above=lost.incarnation,
                ask=lost.ask,
                rejoin_lineage=lost.lineage,
                in_doubt=lost.in_doubt,
            )
        if (self.starts.unsettled or self.starts.lost) and not alone:
            # It may be one of those that this directory lacks, and its node had made promises.
            meta = doubts.in_doubt(meta, None)
        log = self._unfinished(name) or self._log.create_group(name)

        def durable(error: LowmarkError | None) -> None:
            if lost is not None:
                self._forget_when_durable(name, error)

        log.put_meta(meta.encode(), durable)
        return self._add(log, machine, listener, meta, observer)

    def _unfinished(self, name: str) -> GroupLog | None:
        """A copy that a crash left without its first record: it never took part in anything."""
        if name in self._groups:
            return None
        try:
            log = self._log.group(name)
        except GroupUnknown:
            return None
        return None if log.meta else log

    def recreate(
        self,
        name: str,
        machine: Machine,
        *,
        ask: Iterable[int],
        incarnation: int,
        lineage: int = 0,
        listener: PeerListener | None = None,
        observer: Observer | None = None,
    ) -> Group:
        """Make a copy in place of one that was lost here, files and all, as that incarnation.

        If the group was ever reset, the lineage that the lost copy had is needed, too.
        """
        others = tuple(sorted({*ask} - {self.node}))
        note_lost(self._disk, name, incarnation=incarnation, ask=others, lineage=lineage)
        return self._create(name, machine, listener, GroupMeta(), observer)

    def rebuild(
        self,
        name: str,
        machine: Machine,
        *,
        ask: Iterable[int] = (),
        listener: PeerListener | None = None,
        observer: Observer | None = None,
    ) -> Future[Group]:
        """Throw this node's copy away and get a new one from the others.

        The new copy asks the members (and `ask`, if this copy no longer knows them) to be added
        again, and says nothing else before it is; see `rejoin`. What a damaged copy was may have
        been lost with its last record: then the new copy is in doubt, see `doubts`.
        """
        future: Future[Group] = Future()
        lost = self._lost_identity(name)
        others = tuple(sorted({*lost.ask, *ask} - {self.node}))
        if not others:
            raise Rejected(
                f"group {name} has no other copy to rebuild from",
                hint="Restore the data directory from a backup.",
            )
        note_lost(
            self._disk,
            name,
            incarnation=lost.incarnation,
            ask=others,
            lineage=lost.lineage,
            in_doubt=lost.in_doubt,
        )
        self._delete(name)

        def again() -> None:
            try:
                future.resolve(self._create(name, machine, listener, GroupMeta(), observer))
            except GroupLeaving:
                self.later(self.config.tick_ms, again)
            except LowmarkError as error:
                future.reject(error)

        again()
        return future

    def open(
        self,
        name: str,
        machine: Machine,
        *,
        listener: PeerListener | None = None,
        observer: Observer | None = None,
    ) -> Group:
        """Go on with a copy that this node has in its log."""
        log = self._log.group(name)
        if not log.meta:
            raise GroupUnfinished(name)
        if name in self._groups:
            raise Rejected(f"group {name} is open already")
        meta = reset.finish(log, GroupMeta.decode(log.meta))
        if log.quarantined is None:
            meta = self._noted(log, meta)
        return self._add(log, machine, listener, meta, observer)

    def _noted(self, log: GroupLog, meta: GroupMeta) -> GroupMeta:
        """The record of a copy that could not be put in doubt when its node was found to have an
        older directory, and can be now.
        """
        try:
            lost = lost_copy(self._disk, log.name)
        except NewerFormat:
            raise
        except Corrupt as damage:  # it may have said so
            logger.error("a copy is in doubt", extra={"group": log.name, "why": damage.message})
        else:
            if lost is None or not lost.in_doubt:
                return meta
        meta = doubts.in_doubt(meta, None)
        log.put_meta(meta.encode(), partial(self._forget_when_durable, log.name))
        return meta

    def _forget_when_durable(self, name: str, error: LowmarkError | None) -> None:
        if error is None:
            with contextlib.suppress(LowmarkError):  # a note that stays says nothing wrong
                forget_lost(self._disk, name)

    def reset(
        self,
        name: str,
        machine: Machine,
        *,
        listener: PeerListener | None = None,
        observer: Observer | None = None,
    ) -> tuple[Group, Reset]:
        """All other voters are lost for good: have this node's copy go on as the only member.

        An operator decides that. What only the others had is lost; see `reset` for what is kept,
        and what is not protected. The copy is closed, if it is open, and opened again with this
        machine, which is empty. It is over when the group is `ready`; a crash before that leaves
        the copy as it was, or reset. Then `change_peers` gives the group other members, new nodes
        or former ones; copies that those still have must be rebuilt (`CopyOutdated`).
        """
        log = self._log.group(name)
        found = self._groups.get(name)
        term = 0 if found is None else found.term
        # This copy is not given up, nor in doubt any more, as soon as its record says so.
        durable = partial(self._forget_when_durable, name)
        done, meta = reset.begin(log, self.node, term=term, on_done=durable)
        self.close_group(name)
        return self._add(log, machine, listener, meta, observer), done

    def _add(
        self,
        log: GroupLog,
        machine: Machine,
        listener: PeerListener | None,
        meta: GroupMeta,
        observer: Observer | None,
    ) -> Group:
        if log.name in self._groups:
            raise Rejected(f"group {log.name} is open already")
        group = Group(
            self, log, machine, listener or SilentListener(), meta, observer or SilentObserver()
        )
        self._groups[log.name] = group
        self._came_in_doubt |= meta.in_doubt
        for node in self.transport.told_not_here(log.name):
            group.tell_it_is_here(node)
        return group

    def throttle_of(self, name: str) -> Throttle:
        """What holds a group back that sends to members that catch up."""
        return self._no_throttle if name in self.unthrottled else self.throttle

    def group(self, name: str) -> Group:
        """A group that is open here."""
        if name not in self._groups:
            raise GroupStopped(name)
        return self._groups[name]

    def groups(self) -> list[Group]:
        """All groups that are open here, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def close_group(self, name: str) -> None:
        """Stop a copy; its log stays."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.close()

    def leave(self, name: str) -> None:
        """This node is no member any more: stop its copy and remove everything it has.

        If the node is added to the group again, its new copy will be another incarnation.
        """
        lost = self._lost_identity(name)
        note_lost(
            self._disk,
            name,
            incarnation=lost.incarnation,
            ask=(),
            lineage=lost.lineage,
            in_doubt=lost.in_doubt,
        )
        self._delete(name)

    def delete(self, name: str) -> None:
        """The group is no more, on any node: stop its copy and remove everything it has."""
        forget_lost(self._disk, name)
        self._delete(name)

    def _delete(self, name: str) -> None:
        self.close_group(name)
        self._log.delete_group(name)

    def _identity(self, name: str) -> Lost:
        """What this node's copy is, and all members that it knows of, if it is given up."""
        found = self._groups.get(name)
        meta = GroupMeta.decode(self._log.group(name).meta)
        known = {*meta.founders.voters, *meta.ask}
        lineage, incarnation = meta.hard.lineage, meta.hard.incarnation
        if found is not None:
            core = found.raft.core
            known |= core.members.everybody
            lineage, incarnation = max((lineage, incarnation), (core.lineage, core.incarnation))
        # A copy may replace one of a later lineage than its own: one that was lost in doubt.
        replaced = meta.rejoin_lineage, meta.rejoin_above
        lineage, incarnation = max((lineage, incarnation), replaced)
        return Lost(
            incarnation=incarnation,
            ask=tuple(sorted(known)),
            lineage=lineage,
            # The record of one that is being made is on its way.
            in_doubt=meta.in_doubt or (found is not None and found.in_doubt),
        )

    def _lost_identity(self, name: str) -> Lost:
        """As `_identity`; in doubt where the copy is damaged. Its last record may be what was: one
        that can be read says the least that it was, and one that can't says nothing.
        """
        try:
            log, known = self._log.group(name), self._identity(name)
        except Corrupt:
            return Lost(incarnation=0, ask=(), in_doubt=True)
        if log.quarantined is None and log.meta:
            return known
        return msgspec.structs.replace(known, in_doubt=True)

    def save_commits(self) -> Future[None]:
        """Have all copies write down how far their logs are committed; when that is durable."""
        left, whole = 1, Future[None]()

        def done(_: LowmarkError | None) -> None:
            nonlocal left
            left -= 1
            if not left:
                whole.resolve(None)

        for group in self.groups():
            left += group.save_commit(done)
        done(None)
        return whole

    def close(self) -> None:
        """Stop everything; whoever waits is told. The log is its owner's to close."""
        if self._closed:
            return
        self._closed = True
        for name in list(self._groups):
            self.close_group(name)
        self.calls.close()
        self.transport.close()
        self._log.on_written = lambda _: None
        self._log.on_dropped = lambda _: None
        self._log.on_writable = lambda: None

    # -- a directory that is older than what others know of it ----------------------------------

    def note_doubtful(self, name: str) -> None:
        """This node may have had a copy of a group that its directory lacks, or one that can't be
        put in doubt as it is: one that is made or opened here later is. Durable when it returns.
        """
        try:
            known = lost_copy(self._disk, name)
        except NewerFormat:
            raise
        except Corrupt:
            return  # with a damaged note none is made, and one that is opened is in doubt
        if known is None:
            note_lost(self._disk, name, incarnation=0, ask=(), in_doubt=True)
        elif not known.in_doubt:
            note_lost(
                self._disk,
                name,
                incarnation=known.incarnation,
                ask=known.ask,
                lineage=known.lineage,
                in_doubt=True,
            )

    def settle(self) -> None:
        """All groups of which copies may be missing here have a note (`note_doubtful`)."""
        self.starts.settle()

    @property
    def older_words(self) -> str:
        """What there is to say of this directory to people, if it is older than it should be."""
        starts = self.starts
        if self._uncounted:
            return f"this node is silent, for its start can't be counted: {self._uncounted}"
        if not starts.older_than and not starts.lost:
            return ""
        waiting = sum(one.waits for one in self.groups() if one.stopped is None)
        words = (
            "the directory of this node is older than what other nodes have seen of it: an image or"
            " a backup was put back"
        )
        if starts.lost:
            why = f" ({self._doubts.waits_for})" if self._doubts.waits_for else ""
            return f"{words}. It says nothing until all its copies are in doubt{why}"
        made_good = "are made good from other nodes, and have no vote until then"
        return f"{words}. {waiting} of its copies {made_good}"

    def _learned(self) -> None:
        """Another node is known: from here on something may be said to it."""
        if not self.starts.counted:
            self._count()

    def _count(self) -> None:
        try:
            self.starts.count()
            self._uncounted = ""
        except LowmarkError as error:  # it is tried again with the next tick
            if error.message != self._uncounted:
                logger.error("a start can't be counted", extra={"reason": error.message})
            self._uncounted = error.message

    def _is_older(self, number: int) -> None:
        self._doubts.begin(number)

    def _doubt(self, node: int) -> None:
        """What a node has said before may have been said by an older directory."""
        for group in self._groups.values():
            group.doubt(node)

    def _began_anew(self) -> None:
        self.hellos.begin_anew()
        self.when_begun_anew()

    def _look_at_doubts(self) -> None:
        if not self.starts.counted:
            if self.transport.addresses:
                self._count()
            return
        self.hellos.tick()
        if self.starts.lost:
            self._doubts.tick()
        elif (
            self.starts.older_than or self._came_in_doubt
        ) and self._ticks % self.config.election_ticks == 0:
            self._doubts.ask()
            if not self.starts.unsettled and self._doubts.is_over():
                self._came_in_doubt = False
                with contextlib.suppress(LowmarkError):  # it is tried again by and by
                    self.starts.all_is_well()

    # -- services for groups --------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def now_ms(self) -> int:
        """Time that only grows."""
        return self.elapsed_us() // 1_000

    def later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        """Call back, unless everything is closed by then."""
        self._loop.call_later(delay_ms, lambda: None if self._closed else callback())

    def send(self, group: str, item: Item) -> None:
        """Send with this turn's frame."""
        if not isinstance(item, Ask | Answer):
            if not self.hellos.open:
                return
            if isinstance(item, Vote | VoteResponse) and not self.hellos.may_vote(
                item.to, group, item
            ):
                return
        self.transport.send(group, item)
        self._schedule()

    def wake(self, group: Group) -> None:
        """A group has work."""
        self._busy[group.name] = group
        if not self._scheduled:
            self._schedule()

    def cut(self, node: int, reason: str) -> None:
        """A node sent what no sound one sends."""
        self.transport.cut(node, reason)

    def quarantine(self, group: str, cause: LowmarkError) -> None:
        """A group's copy is damaged; one that is gone meanwhile is none any more."""
        with contextlib.suppress(GroupUnknown):
            self._log.quarantine(self._log.group(group).state, cause)

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self.turn)

    def turn(self, step: Callable[[], None] | None = None) -> None:
        """Have groups do all they have to do; first of all a step of a caller outside.

        So what the step proposes goes to the log in this turn of the loop, not in the next.
        """
        self._scheduled = True  # what wakes a group from here on is done below: no turn is planned
        try:
            if step is not None:
                step()
            while self._busy and not self._closed:
                busy, self._busy = self._busy, {}
                for group in busy.values():
                    group.work()
        finally:
            self._scheduled = False
            if self._busy:  # something was raised: the others' work is not forgotten
                self._schedule()
        if not self._closed:
            self.transport.flush()

    # -- time -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        self._loop.call_later(self.config.tick_ms, self._tick)
        self.calls.tick()
        self.clocks.tick()
        if self._announcements:
            # Whoever rests on a process that is no more shall know at once.
            self._announcements -= 1
            for node in sorted(self.transport.addresses):
                self.transport.pulse(node)
        self._ticks += 1
        self._look_at_doubts()
        self._look_around()
        now = self.now_ms()
        look = now >= self._look_at_ms
        if look:
            self._look_at_ms = now + min(_LOOK_MS, self.config.snapshot_age_ms)
        for group in list(self._groups.values()):  # who is told something may close one
            if not group.resting.resting:
                group.tick()
            elif look:
                group.rest_tick()
        self._watch_nodes()

    @property
    def ticks(self) -> int:
        """How many ticks this node has counted: silence of others is counted in them."""
        return self._ticks

    def rest_changed(self) -> None:
        """A group rests, or does not any more."""
        self._rests_changed = True

    def missing(self, nodes: Mapping[int, object]) -> AbstractSet[int]:
        """Which of these are down, as far as this node knows: they have been silent for long."""
        return nodes.keys() - self._present if self._ticks >= self.config.missing_ticks else _NONE

    def silent_ms(self, node: int) -> int | None:
        """For how long nothing has come from a node, by ticks: this process may have been held up.
        None: nothing has come from it since this one started.
        """
        heard = self._heard_at_tick.get(node)
        return None if heard is None else (self._ticks - heard) * self.config.tick_ms

    def _look_around(self) -> None:
        """Who has spoken lately."""
        since = self._ticks - self.config.missing_ticks
        heard = {node for node, tick in self._heard_at_tick.items() if tick > since}
        self._present = heard | {self.node}

    def _watch_nodes(self) -> None:
        """Watch over those nodes that groups rest on, and look for those they rest without."""
        before = self._rests.on
        if self._rests_changed:
            self._rests_changed = False
            self._rests = _Rests.of(self._groups.values())
        for node in self._rests.on:
            if node == self.node:
                continue
            if node not in before:
                self._watched_since[node] = self._ticks  # it had no reason to speak before
            elif self._silent_ticks(node) >= self.config.election_ticks:
                self._fell_silent(node)
            self.transport.pulse(node)
        for node in self._rests.without:
            if node in self._present:
                self._wake_without(node)
            elif self._ticks % self.config.election_ticks == 0:
                # If it is there, it answers: that it has no such service, if nothing else.
                self.calls.ask(node, _PRESENCE, b"", timeout_ms=self.config.election_ms)

    def _silent_ticks(self, node: int) -> int:
        since = max(self._heard_at_tick.get(node, 0), self._watched_since.get(node, 0))
        return self._ticks - since

    def _wake_without(self, node: int) -> None:
        for group in self._groups.values():
            if node in group.resting.without:
                group.resting.wake()

    def _fell_silent(self, node: int) -> None:
        missing = node not in self._present and self._ticks >= self.config.missing_ticks
        for group in self._groups.values():
            if group.resting.resting and node in group.resting.rests_on(group.raft):
                group.resting.fell_silent(node, group.raft, missing=missing)

    def _wake_resting(self, node: int) -> None:
        for group in self._groups.values():
            if group.resting.resting and node in group.resting.rests_on(group.raft):
                group.resting.wake()

    # -- events ---------------------------------------------------------------------------------

    def received(self, sender: int, group: str, item: Item) -> bool:
        """A message has come; False if the group is not here."""
        found = self._groups.get(group)
        if found is None:
            return False
        found.received(sender, item)
        return True

    def refused(self, to: int, group: str, item: Item) -> None:
        """A message could not be sent."""
        del to
        if isinstance(item, Ask):
            self.calls.refused(item)
        found = self._groups.get(group)
        if found is not None and not isinstance(item, NotHere):
            found.refused(item)

    def heard(self, sender: int, *, restarted: bool) -> None:
        """A node gave a sign of life."""
        self._heard_at_tick[sender] = self._ticks
        self._cut.pop(sender, None)
        if sender not in self._present:
            self._present |= {sender}
        if restarted:
            self._wake_resting(sender)

    def called(self, address: str, service: str, item: Ask | Answer, *, known: bool) -> None:
        """A question or an answer has come."""
        if isinstance(item, Ask):
            self.calls.asked(address, service, item, known=known)
        else:
            self.calls.answered(address, service, item)
        self._schedule()

    def reaches(self, node: int) -> bool:
        """Whether it is worth asking a node: its connection has not just broken. After a while it
        is again: not every node has a reason to speak to this one.
        """
        cut_at_ms = self._cut.get(node)
        return cut_at_ms is None or self.now_ms() - cut_at_ms >= self.config.election_ms

    def lost(self, node: int, address: str) -> None:
        """The connection with a node broke."""
        self.calls.lost(address)
        if node:
            self._cut[node] = self.now_ms()
            for group in self._groups.values():
                group.lost(node)

    def _written(self, event: Written) -> None:
        group = self._groups.get(event.group)
        if group is not None:
            group.written(event)

    def _dropped(self, event: Dropped) -> None:
        group = self._groups.get(event.group)
        if group is not None:
            group.dropped(event)

    def _writable(self) -> None:
        for group in list(self._groups.values()):
            group.writable()
