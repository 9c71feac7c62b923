"""Work of the lane `compaction` that is not compaction: snapshots, installs, deletes, notes."""

from __future__ import annotations

from collections.abc import Callable

from lowmark.errors import LowmarkError
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

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Do something after a while, unless the log is closed by then."""
        self._count += 1

        def due() -> None:
            self._count -= 1
            if not self.closed:
                act()

        self._loop.call_later(delay_ms, due)
