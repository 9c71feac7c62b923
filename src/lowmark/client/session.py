"""A database as this process has it open: its backend, and what is finished before it is closed.

Tables, compaction and producers without a name keep the session and ask it for the backend each
time, so they go on when the backend is replaced by another one of the same database. What a backend
keeps something for ends with it: a reader, a run under way, a producer that has fenced others off.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Protocol

from lowmark.backend.exits import at_exit
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
        self.storing: weakref.WeakSet[Finishing] = weakref.WeakSet()
        """What has rows that are not stored yet: producers."""
        self.finishing: weakref.WeakSet[Finishing] = weakref.WeakSet()
        """What else has something to finish."""
        self._last: Finishing | None = None
        self.behind = False
        _open.add(self)

    def finish_last(self, one: Finishing, *, behind: bool = False) -> None:
        """Have something finished behind all others, before the backend is closed or `behind` it:
        what lets other processes in.
        """
        self._last, self.behind = one, behind

    def store(self) -> None:
        """Have rows stored that were given to producers."""
        self._finish(self.storing)

    def finish(self) -> None:
        """Finish what is under way."""
        self._finish([*self.storing, *self.finishing])

    def _finish(self, some: Iterable[Finishing]) -> None:
        if self.backend.closed:
            return
        for one in list(some):
            with contextlib.suppress(LowmarkError):
                one.finish()

    def close(self) -> None:
        """Finish what is under way, and close the backend. Closing twice is fine."""
        here = not self.backend.closed  # after a fork it is the parent's
        self.finish()
        _open.discard(self)
        last = self._last.finish if here and self._last is not None else _nothing
        first, second = (self.backend.close, last) if self.behind else (last, self.backend.close)
        try:
            first()
        finally:
            second()


def _nothing() -> None:
    pass


def _store_all() -> None:
    with contextlib.ExitStack() as stack:  # what one raises keeps no other from it
        for one in list(_open):
            stack.callback(one.store)


def _close_all() -> None:
    # A guest that has taken its directory over closes the database that it opened for that.
    for one in sorted(_open, key=lambda session: not session.behind):
        with contextlib.suppress(LowmarkError):
            one.close()


at_exit("rows", _store_all)
at_exit("sessions", _close_all)
