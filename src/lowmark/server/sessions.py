"""What is kept for clients, and for how long: a client that dies must not hold the log for ever.

A client draws the numbers of its holds, and a number for itself. Every call of it is a sign of
life. One that gives none for its time has all its holds released; it hears `HoldUnknown` when it
next asks for one of them.

A client ends only what it has taken. Its numbers are drawn from the system's source of secrets, and
no answer has those of another one. Whoever learns them all the same, and shows another token or
pass, is refused: a session belongs to the token that was shown with its first call, and a hold to
the session that took it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from lowmark.backend.values import Hold

logger = logging.getLogger(__name__)

_REMEMBERED = 20
"""The server forgets a client that has nothing after this many times its time."""


class Holding(NamedTuple):
    """What clients hold."""

    sessions: frozenset[int] = frozenset()
    """The clients that hold anything."""
    history: bool = False
    """Whether one of them holds history, which keeps the low watermark."""


@dataclass(slots=True)
class _Session:
    heard_s: float
    shown: bytes = b""
    """The digest of its token; empty: none is asked for."""
    holds: set[int] = field(default_factory=set)
    history: set[int] = field(default_factory=set)
    """Those of them that are of history."""
    lost: int | None = None
    """One of the holds that were released because nothing was heard."""


class Sessions:
    """May be used on any thread."""

    def __init__(
        self,
        release: Callable[[Hold], None],
        *,
        hold_ms: int,
        clock: Callable[[], float] = time.monotonic,
        on_held: Callable[[Holding], None] = lambda _: None,
    ) -> None:
        """`on_held` is told which clients hold anything: before the first hold of one is there, and
        before the first of history, every now and then while there are any, a moment after one has
        none any more, and at the end.
        """
        self._release = release
        self._on_held = on_held
        self._told = Holding()
        self._told_s = 0.0
        self._hold_s = hold_ms / 1_000
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[int, _Session] = {}
        self._holders: dict[int, int] = {}
        """Whose a hold is: sessions by the numbers of holds."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lowmark-sessions", daemon=True)
        self._thread.start()

    def hear(self, session: int, shown: bytes) -> bool:
        """A sign of life, of a client that shows the token with this digest. False: the session
        belongs to another token.
        """
        now = self._clock()
        with self._lock:
            there = self._sessions.get(session)
            if there is None:
                self._sessions[session] = _Session(now, shown)
            elif there.shown != shown:
                return False
            else:
                there.heard_s = now
            return True

    def add(self, session: int, hold: Hold, *, history: bool = False, shown: bytes = b"") -> bool:
        """A client is about to have this hold; at the end, none gets any. False: another client has
        it.
        """
        with self._lock:
            if self._over.is_set():
                return True
            if self._holders.setdefault(hold.number, session) != session:
                return False
            there = self._sessions.setdefault(session, _Session(self._clock(), shown))
            there.holds.add(hold.number)
            if history:
                there.history.add(hold.number)
            if session not in self._told.sessions or (history and not self._told.history):
                self._tell()
            return True

    def has(self, session: int, hold: Hold) -> bool:
        """Whether a client has this hold still: what ends its session takes it away."""
        with self._lock:
            return self._holders.get(hold.number) == session

    def discard(self, session: int, hold: Hold) -> bool:
        """It has released it; says whether it had it."""
        with self._lock:
            if self._holders.get(hold.number) != session:
                return False
            there = self._sessions[session]
            there.holds.discard(hold.number)
            there.history.discard(hold.number)
            del self._holders[hold.number]
            return True

    def leave(self, session: int) -> None:
        """A client is closed: release all that it holds."""
        with self._lock:
            there = self._sessions.pop(session, None)
            over = self._taken_from(there) if there is not None else ()
        for one in over:
            self._release(Hold(one))

    def _taken_from(self, session: _Session) -> list[int]:
        """With the lock: what a client had; it has nothing more."""
        over = list(session.holds)
        for one in over:
            del self._holders[one]
        session.holds, session.history = set(), set()
        return over

    def lost(self, session: int) -> int | None:
        """A hold that a client has lost because nothing was heard of it; None if it has not."""
        with self._lock:
            there = self._sessions.get(session)
            return None if there is None else there.lost

    def expire(self) -> int:
        """Release what silent clients hold; says how many holds that were."""
        now, over = self._clock(), list[int]()
        with self._lock:
            for number, session in list(self._sessions.items()):
                silent_s = now - session.heard_s
                if silent_s <= self._hold_s:
                    continue
                if session.holds:
                    session.lost = next(iter(session.holds))
                    over += self._taken_from(session)
                if silent_s > _REMEMBERED * self._hold_s:
                    del self._sessions[number]
        for one in over:
            self._release(Hold(one))
        if over:
            logger.warning(
                "holds of a client that is silent were released", extra={"holds": len(over)}
            )
        return len(over)

    def close(self) -> None:
        """Release all."""
        self._over.set()
        with self._lock:
            left = [one for session in self._sessions.values() for one in session.holds]
            self._tell()
            self._sessions.clear()
            self._holders.clear()
        for one in left:
            self._release(Hold(one))

    def _run(self) -> None:
        while not self._over.wait(min(1.0, self._hold_s / 4)):
            self.expire()
            self._tell_again()

    def _tell(self) -> None:
        """With the lock: what is told is so until more is told."""
        self._told, self._told_s = self._holding(), self._clock()
        self._on_held(self._told)

    def _holding(self) -> Holding:
        return Holding(
            frozenset(number for number, one in self._sessions.items() if one.holds),
            any(one.history for one in self._sessions.values()),
        )

    def _tell_again(self) -> None:
        with self._lock:
            if not self._told.sessions or self._over.is_set():
                return
            late = self._clock() - self._told_s >= self._hold_s / 4
            if late or self._holding() != self._told:
                self._tell()
