"""Answers that are owed: whoever asked for something is told once how it ended, whatever happens.

An answer is noted when the work is taken on, and crossed out when it is given. So when a group goes
away, or the log is closed, those that are left are known, and get an error; and work that ends
after that finds its answer crossed out, and tells nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from lowmark.errors import LowmarkError
from lowmark.log.state import GroupState

OnDone = Callable[[LowmarkError | None], None]
"""Called once: with None when it is done, or with what kept it from being done."""


class Owed:
    """Every answer that one log owes."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[GroupState, OnDone]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def note(self, state: GroupState, on_done: OnDone) -> OnDone:
        """Owe an answer; what is given back gives it, the first time it is called."""
        self._last += 1
        number = self._last
        self._open[number] = (state, on_done)
        return lambda error: self._give(number, error)

    def fail(self, error: LowmarkError, *, of: GroupState | None = None) -> None:
        """Give everybody an error, or those that asked for one group; oldest first."""
        numbers = [n for n, (state, _) in self._open.items() if of is None or state is of]
        with ExitStack() as calls:  # one that raises must not cost the others their answers
            for number in reversed(numbers):
                calls.callback(self._give, number, error.again())

    def _give(self, number: int, error: LowmarkError | None) -> None:
        owed = self._open.pop(number, None)
        if owed is not None:
            owed[1](error)
