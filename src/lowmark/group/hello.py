"""Has each node know each other's starts before one believes what the other says of groups.

A node that hears a process for the first time, by the number that each frame carries (`boot`), asks
it for its start, and says its own. Both keep what they hear, durably, before they go on. So

    1. what a start says of any group is believed only where that start is known, durably
    2. a vote goes only to a node that has kept all starts that this one knows of. So no candidate
       counts the votes of a start that another of its voters knows to be older
    3. a start that is older than what one knows of its node is told so, and not believed; and the
       starts that others know go with each answer, so that it is told soon
    4. a vote that was counted already does not count when its node turns out to be older

While nodes ask each other, their frames wait; there is room for a few. A process of a release
before has no such service: it is believed without a start, and the next process of its node is not,
if it has one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group.calls import Calls, NoService, Reply
from lowmark.group.config import GroupConfig
from lowmark.group.starts import Start, Starts, Verdict, judge
from lowmark.group.transport import Transport
from lowmark.group.wire import Item
from lowmark.runtime import Buffer, Future

logger = logging.getLogger(__name__)

SERVICE = "node.start"
_HELD_MAX = 64
_HELD_BYTES_MAX = 1 << 20
"""Frames that wait for the answer of their sender, per peer."""
_WAIT_MS_MAX = 10_000
"""A node that does not answer is told what is new at least so often."""
_ALL = 1 << 62
"""What a process of a release before has kept: it is told nothing, for it would keep nothing."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What a process says of itself, as a question and as an answer."""

    boot: int
    starts: tuple[tuple[int, Start], ...]
    """All starts that it knows of, with its own."""
    kept: bool = False
    """In an answer: all that the question said is kept."""
    older_than: int = 0
    """In an answer: the asker's directory is older than the start of this number; 0: it is not."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hello).decode


class Link(Protocol):
    """What it needs of its node."""

    config: GroupConfig
    calls: Calls
    transport: Transport

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def now_ms(self) -> int:
        """Time that only grows."""

    def send(self, group: str, item: Item) -> None:
        """Send with this turn's frame."""


class _Peer:
    __slots__ = (
        "asked_at_ms",
        "boot",
        "held",
        "held_bytes",
        "older_than",
        "told",
        "unanswered",
        "votes",
        "wait_ms",
    )

    def __init__(self) -> None:
        self.boot = 0
        """Of the process whose start is known; 0: of none."""
        self.older_than = 0
        """The start by which its node is known here, if that process has an older directory."""
        self.told = 0
        """The revision of what this node knows that the other one has kept."""
        self.asked_at_ms = -_WAIT_MS_MAX
        self.unanswered = 0
        """Questions that are under way."""
        self.wait_ms = 0
        self.votes: dict[str, tuple[int, Item]] = {}
        """The last one of each group that waits until the other one was told."""
        self.held: list[tuple[int, str, Buffer]] = []
        """With the process that each is of: what one that is gone has said is not taken again, for
        the one that came after it would count as restarted."""
        self.held_bytes = 0


class Hellos:
    """One node's part of it. All calls are made on the loop."""

    def __init__(
        self,
        groups: Link,
        starts: Starts,
        *,
        older: Callable[[int], None],
        doubt: Callable[[int], None],
    ) -> None:
        self._groups = groups
        self._calls = groups.calls
        self._transport = groups.transport
        self._starts = starts
        self._older = older
        """Told that this node's directory is older than a start of it."""
        self._doubt = doubt
        """Told that another node's may be: what it said before does not count."""
        self._again_ms = groups.config.election_ms // 4
        self._timeout_ms = 2 * groups.config.election_ms
        self._peers: dict[int, _Peer] = {}
        self._calls.serve(SERVICE, self._asked, strangers=True)
        self._transport.urgent.add(SERVICE)

    @property
    def open(self) -> bool:
        """Whether this node may say and hear anything of groups."""
        return self._starts.counted and not self._starts.lost

    @property
    def older_peers(self) -> dict[int, int]:
        """Nodes that are not believed, with the start by which they are known here."""
        return {n: one.older_than for n, one in sorted(self._peers.items()) if one.older_than}

    # -- what goes through it ---------------------------------------------------------------------

    def admits(self, node: int, boot: int, address: str, frame: Buffer) -> bool:
        """Whether what a frame says of groups is believed; if not yet, it may be given again."""
        if not self.open:
            return False
        peer = self._peer(node)
        if peer.boot == boot:
            return not peer.older_than
        self._ask_soon(node, peer)
        if (
            peer.unanswered
            and len(peer.held) < _HELD_MAX
            and peer.held_bytes + len(frame) <= _HELD_BYTES_MAX
        ):
            peer.held.append((boot, address, frame))
            peer.held_bytes += len(frame)
        return False

    def may_vote(self, node: int, group: str, vote: Item) -> bool:
        """Whether a node has kept all that this one knows; if not, the vote is sent when it has."""
        peer = self._peer(node)
        if peer.told < self._starts.revision:
            self._ask_soon(node, peer)
            peer.votes[group] = self._groups.now_ms(), vote
            return False
        return True

    def tick(self) -> None:
        """Tell others what they have not kept yet; those that do not answer less and less often."""
        if not self._starts.counted:
            return
        now_ms = self._groups.now_ms()
        for node in sorted(self._transport.addresses):
            peer = self._peer(node)
            if peer.told < self._starts.revision and now_ms >= peer.asked_at_ms + peer.wait_ms:
                peer.wait_ms = min(2 * peer.wait_ms + self._again_ms, _WAIT_MS_MAX)
                self._ask(node, peer)

    def begin_anew(self) -> None:
        """This node has another start: others shall know it at once."""
        for peer in self._peers.values():
            peer.wait_ms = 0
        self.tick()

    # -- asking -----------------------------------------------------------------------------------

    def _peer(self, node: int) -> _Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer()
        return peer

    def _ask_soon(self, node: int, peer: _Peer) -> None:
        if self._groups.now_ms() >= peer.asked_at_ms + self._again_ms:
            self._ask(node, peer)

    def _ask(self, node: int, peer: _Peer) -> None:
        revision = self._starts.revision
        peer.asked_at_ms = self._groups.now_ms()
        peer.unanswered += 1
        question = _encode(Hello(self._transport.boot, self._starts.all_known()))

        def answered(future: Future[bytes]) -> None:
            peer.unanswered -= 1
            if self._groups.closed:
                return
            if self._answered(node, peer, revision, future):
                peer.wait_ms = 0
            held, peer.held, peer.held_bytes = peer.held, [], 0
            votes, peer.votes = peer.votes, {}
            for group, (since_ms, vote) in votes.items():
                if self._groups.now_ms() < since_ms + 2 * self._again_ms:  # else it is over
                    self._groups.send(group, vote)  # or it waits again
            if peer.boot and not peer.older_than:
                for boot, address, frame in held:
                    if boot == peer.boot:
                        self._transport.take_again(address, frame)

        self._calls.ask(node, SERVICE, question, timeout_ms=self._timeout_ms).then(answered)

    def _answered(self, node: int, peer: _Peer, revision: int, future: Future[bytes]) -> bool:
        """Whether the other one has kept what it was told."""
        error = future.error
        if isinstance(error, NoService) and not error.busy:
            peer.boot, peer.told, peer.older_than = self._transport.boot_of(node), _ALL, 0
            return True
        if error is not None:
            return False
        try:
            answer = _decode(future.result())
        except msgspec.MsgspecError as unread:
            logger.warning("a start can't be read", extra={"peer": node, "reason": str(unread)})
            return False
        if not self._take(node, answer):
            return False
        if answer.kept and not answer.older_than:
            peer.told = max(revision, peer.told if peer.told < _ALL else 0)
            with contextlib.suppress(LowmarkError):  # the next answer says it again
                self._starts.was_heard()
        if answer.older_than >= self._starts.own.number:  # else it is of the start before this one
            self._older(answer.older_than)
        return answer.kept

    def _asked(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        try:
            asked = _decode(question)
        except msgspec.MsgspecError:
            reply(b"")
            return
        # A stranger is heard when its address is known: it may be any node's until then.
        known = self._transport.addresses.get(sender) == address
        kept = known and self._take(sender, asked)
        older_than = self._peer(sender).older_than if kept else 0
        starts = self._starts.all_known() if self._starts.counted else ()
        reply(_encode(Hello(self._transport.boot, starts, kept, older_than)))

    def _take(self, node: int, hello: Hello) -> bool:
        """Keep what another node says; whether that is done."""
        starts, peer = self._starts, self._peer(node)
        claimed = dict(hello.starts).get(node)
        if claimed is None or not starts.counted:
            return False
        known = starts.known(node)
        try:
            older, news = starts.heard(hello.starts, of=node)
        except LowmarkError as error:
            logger.warning("a start was not kept", extra={"peer": node, "reason": error.message})
            return False
        for other in news - {node}:
            # Its process is a new one, or its directory is older: in either case it says so itself.
            self._peer(other).boot = 0
            self._doubt(other)
        if known is not None and judge(claimed, known) is Verdict.OLDER:
            if not peer.older_than:
                logger.error(
                    "a node's directory is older than what was seen of it: it is not believed",
                    extra={"peer": node, "start": claimed.number, "known": known.number},
                )
            peer.older_than = known.number
            self._doubt(node)
        else:
            peer.older_than = 0
        if hello.boot != peer.boot:
            # Another process, or one of another directory: what the one before was told, or would
            # not have kept, says nothing of what this one knows.
            peer.told, peer.wait_ms = 0, 0
        peer.boot = hello.boot
        if older:
            self._older(older)
        return True
