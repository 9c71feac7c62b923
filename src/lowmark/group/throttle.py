"""How fast a node sends to members that catch up: one budget for all its groups.

Two kinds of streams take from it: a snapshot to a member, and the entries of the log to a learner
that lacks some of them. What else a node sends never waits: entries to voters, heartbeats, votes,
acknowledgements. Nor do new entries to a learner that was sent all there is: that moves no data.

Streams take turns. A turn sends one piece, and the next turn comes when the piece is paid for. A
piece is small: all streams together have one in half an election timeout. Only an entry is never
parted. A stream that waits for long says that it is there (an empty piece of a snapshot; a
heartbeat), so no receiver takes it for a stall.

What holds, at a rate of r bytes a second
    1. In any t seconds at most r * t bytes leave, and one piece. Time in which no stream wanted to
       send is not saved up.
    2. The messages of a stream leave in order. To its receiver it is a slow link.
    3. A new rate counts from the moment that it is set, for all that waits.
    4. Nothing waits that its leader has given up: what goes back in the log replaces what waits
       behind it; what waits for a learner goes at once when that is a voter; and it is dropped with
       the learner, and with the leadership.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from lowmark.errors import Rejected
from lowmark.group import wire
from lowmark.raft import Append, ProgressState

if TYPE_CHECKING:
    from lowmark.group.group import Group

Turn = Callable[[], int]
"""Sends one piece of a stream and says how large it was; 0 if there is nothing to send. A stream
with more to send asks for its next turn within."""


class Throttle:
    """The budget. All calls are made on the loop."""

    def __init__(
        self,
        now_us: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
        *,
        bytes_per_s: int,
        round_ms: int,
    ) -> None:
        self._now_us = now_us
        self._later = later
        self._rate = bytes_per_s
        self._round_ms = round_ms
        self._waiting: deque[Turn] = deque()
        self._paid_at_us = 0
        """When all that was sent is paid for."""
        self._plans = 0
        self._planned = False
        self._serving = False
        self.sent_bytes = 0
        """All that ever took its turn."""

    @property
    def bytes_per_s(self) -> int:
        """The rate; 0 is no limit. It may be set at any time, and counts at once."""
        return self._rate

    @bytes_per_s.setter
    def bytes_per_s(self, rate: int) -> None:
        if rate < 0:
            raise Rejected(f"a rate of {rate} bytes a second can't be", hint="0 is no limit.")
        now = self._now_us()
        owed = max(0, self._paid_at_us - now) * self._rate
        self._paid_at_us = now + (-(-owed // rate) if rate else 0)
        self._rate = rate
        self._plans += 1
        self._planned = False
        self._serve()

    @property
    def waiting(self) -> int:
        """How many streams wait for their turn."""
        return len(self._waiting)

    def piece_bytes(self, most: int) -> int:
        """How much the stream whose turn it is should send."""
        if not self._rate:
            return most
        share = self._rate * self._round_ms // 1_000 // (len(self._waiting) + 1)
        return max(1, min(most, share))

    def wait(self, turn: Turn) -> None:
        """Call a stream when it is its turn, now if no other waits and all is paid for."""
        self._waiting.append(turn)
        self._serve()

    def _serve(self) -> None:
        if self._serving or self._planned:
            return
        self._serving = True
        try:
            while self._waiting:
                now = self._now_us()
                if self._rate and self._paid_at_us > now:
                    self._plan(self._paid_at_us - now)
                    break
                size = self._waiting.popleft()()
                self.sent_bytes += size
                if self._rate:
                    cost = -(-size * 1_000_000 // self._rate)
                    self._paid_at_us = max(self._paid_at_us, now) + cost
        finally:
            self._serving = False

    def _plan(self, wait_us: int) -> None:
        self._planned = True
        plan = self._plans

        def again() -> None:
            if plan == self._plans:
                self._planned = False
                self._serve()

        self._later(wait_us / 1_000, again)


class HeldEntries:
    """Appends of one group that wait for their turn, by learner. Only a leader has any."""

    def __init__(self, host: Group, throttle: Throttle) -> None:
        self._host = host
        self._throttle = throttle
        self._held: dict[int, deque[Append]] = {}
        self._level: set[int] = set()
        """Learners that were sent all there was, and have not been lost sight of since."""

    def holds(self, node: int) -> bool:
        """Whether entries to a learner wait."""
        return node in self._held

    def takes(self, message: Append) -> bool:
        """Whether an append is sent in its turn, and not by the caller now."""
        if not self._throttle.bytes_per_s and not self._held:
            return False
        to = message.to
        progress = self._host.raft.core.progress.get(to)
        if progress is None or not progress.is_learner:
            return False
        held = self._held.get(to)
        if held is not None:
            # A leader that goes back sends all of it again, from there on. One that goes on after
            # the answer to a part of what waits sends the rest of that again.
            while held and held[-1].index >= message.index:
                held.pop()
            if held:
                held[-1] = wire.until(held[-1], message.index)
            held.append(message)
            return True
        if progress.state is not ProgressState.REPLICATE:
            self._level.discard(to)
        if not message.entries or to in self._level or not self._throttle.bytes_per_s:
            return False
        self._held[to] = held = deque([message])
        self._wait(to, held)
        return True

    def _wait(self, to: int, held: deque[Append]) -> None:
        self._throttle.wait(lambda: self._turn(to, held))

    def _turn(self, to: int, held: deque[Append]) -> int:
        if self._held.get(to) is not held:
            return 0  # it was dropped meanwhile
        message = held.popleft()
        most = self._throttle.piece_bytes(self._host.config.message_bytes_max)
        if wire.item_bytes(message) > most:
            message, *rest = wire.parts_of(message, most)  # type: ignore[assignment]
            held.extendleft(reversed(rest))  # type: ignore[arg-type]
        self._host.send(message)
        if held:
            self._wait(to, held)
        else:
            del self._held[to]
            self._look_whether_level(to)
        return wire.item_bytes(message) if message.entries else 0

    def _look_whether_level(self, to: int) -> None:
        core = self._host.raft.core
        progress = core.progress.get(to)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            if progress.next > core.log.last_index:
                self._level.add(to)

    def members_changed(self) -> None:
        """Send what waits for a learner that is a voter now; drop what is for no member."""
        progress = self._host.raft.core.progress
        for to, held in list(self._held.items()):
            known = progress.get(to)
            if known is None or known.incarnation != held[0].incarnation:
                self.drop(to)
            elif not known.is_learner:
                del self._held[to]
                for message in held:
                    self._host.send(message)
        self._level &= progress.keys()

    def drop(self, node: int) -> None:
        """Forget what waits for a member: it gets a snapshot, or is none any more."""
        self._held.pop(node, None)
        self._level.discard(node)

    def clear(self) -> None:
        """This member does not lead any more."""
        self._held.clear()
        self._level.clear()
