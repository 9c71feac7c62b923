"""Work of the lane `compaction` that is not compaction (snapshots, installs, deletes, notes), and
the answers that callers wait for.

Whoever asked for something is told once how it ended, whatever happens. An answer is noted when the
work is taken on, and crossed out when it is given. So when a group goes away, or the log is closed,
those that are left are known, and get an error; and work that ends after that finds its answer
crossed out, and tells nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from lowmark.errors import LowmarkError
from lowmark.log.state import GroupState
from lowmark.runtime import Loop, Outcome, by_name


def by_our_name(outcome: Outcome[object]) -> Outcome[object]:
    """What a step came to, with an error that callers know; any other is a bug and is raised."""
    if outcome.error is None:
        return outcome
    cause = by_name(outcome.error)
    if not isinstance(cause, LowmarkError):
        raise outcome.error
    return Outcome(None, cause)


class Tasks:
    """Steps that are counted while they are under way; after a close none begins or is heard of."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lane = loop.lane("compaction")
        self._count = 0
        self.closed = False

    @property
    def idle(self) -> bool:
        """Whether none is under way."""
        return self._count == 0

    def run(self, step: Callable[[], object], on_done: Callable[..., None]) -> None:
        """Run a step on the lane, then say on the loop what it came to."""
        if self.closed:
            return
        self._count += 1

        def done(outcome: Outcome[object]) -> None:
            self._count -= 1
            named = by_our_name(outcome)
            if not self.closed:
                on_done(named)

        self._lane.submit(step, done)

    def now_and_then(self, delay_ms: float, act: Callable[[], None]) -> None:
        """The same as `later`, but a log that waits for it and nothing else is idle."""
        self._loop.call_later(delay_ms, lambda: None if self.closed else act())

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Do something after a while, unless the log is closed by then."""
        self._count += 1

        def due() -> None:
            self._count -= 1
            if not self.closed:
                act()

        self._loop.call_later(delay_ms, due)


OnDone = Callable[[LowmarkError | None], None]
"""Called once: with None when it is done, or with what kept it from being done."""


class PendingAnswers:
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
        answer = self._open.pop(number, None)
        if answer is not None:
            answer[1](error)
