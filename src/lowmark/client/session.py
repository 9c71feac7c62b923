"""A database as this process has it open: its backend, and what is finished before it is closed.

Tables, compaction and producers without a name keep the session and ask it for the backend each
time, so they go on when the backend is replaced by another one of the same database. What a backend
keeps something for ends with it: a reader, a run under way, a producer that has fenced others off.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol

from lowmark.backend.port import Backend
from lowmark.errors import LowmarkError

_open: weakref.WeakSet[Session] = weakref.WeakSet()


class Finishing(Protocol):
    """Has something to finish before the database is closed."""

    def finish(self) -> None:
        """Finish it; what can't be is an error of its next call."""


class Session:
    """Made by `open`; ended once."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.finishing: weakref.WeakSet[Finishing] = weakref.WeakSet()
        self._last: Finishing | None = None
        self._behind = False
        _open.add(self)
        _close_first()

    def finish_last(self, one: Finishing, *, behind: bool = False) -> None:
        """Have something finished behind all others, before the backend is closed or `behind` it:
        what lets other processes in.
        """
        self._last, self._behind = one, behind
        # A server of Flight's ends itself when the interpreter does, and waits for its clients.
        _close_first()

    def close(self) -> None:
        """Finish what is under way, and close the backend. Closing twice is fine."""
        here = not self.backend.closed  # after a fork it is the parent's
        if here:
            for one in list(self.finishing):
                with contextlib.suppress(LowmarkError):
                    one.finish()
        _open.discard(self)
        last = self._last.finish if here and self._last is not None else _nothing
        first, second = (self.backend.close, last) if self._behind else (last, self.backend.close)
        try:
            first()
        finally:
            second()


def _nothing() -> None:
    pass


def _close_all() -> None:
    for one in list(_open):
        with contextlib.suppress(LowmarkError):
            one.close()


def _close_first() -> None:
    """Have sessions closed before anything that is there by now: their backends close themselves
    when the interpreter ends, and what producers still have is handed to them before. Hooks go
    backwards, and modules may be imported in any order.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)
