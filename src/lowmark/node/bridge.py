"""From other threads to the loop and back: how the server, and the backend of a node in this
process, ask what knows one thread.

On the loop an answer that comes later is a `Future`; a thread waits for it by a `ThreadAnswer`.
What a call from outside gives the groups of this node to do, they do right behind it, in the same
turn of the loop: that is the loop's business, and their scheduler's (`RealLoop.around`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from lowmark.errors import InvariantBroken, LowmarkError, Unavailable
from lowmark.group import Future
from lowmark.runtime import RealLoop, Timer

T = TypeVar("T")


class NodeClosing(Unavailable):
    """A node that is being stopped."""

    def __init__(self) -> None:
        super().__init__("this node is closing", hint="Ask another node.")


class NodeClosed(NodeClosing):
    """A node that was stopped between a question and its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.detail = "The request may have been carried out all the same."
        self.hint = "Look at another node whether it happened before you ask again."


class NodeSilent(Unavailable):
    """A node whose loop gave no answer."""

    def __init__(self, *, waited_s: float) -> None:
        super().__init__(
            f"this node gave no answer within {waited_s:.3g} seconds",
            detail="The request may have been carried out all the same.",
            hint="See what the node says on stderr; ask another node meanwhile.",
        )


class ThreadAnswer(Generic[T]):
    """What other threads wait for, and the loop settles. A bare lock is its latch: Ctrl-C in the
    waiting ends the waiting, and leaves no lock behind that the loop would then wait for.
    (Waking by a future of `concurrent.futures` costs ten times as much.)
    """

    __slots__ = ("_came_to", "_latch")

    def __init__(self) -> None:
        self._came_to: tuple[T | None, BaseException | None] | None = None
        self._latch = threading.Lock()
        self._latch.acquire()

    @property
    def done(self) -> bool:
        """Whether it is answered."""
        return self._came_to is not None

    def settle(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Answer it; only the first time counts."""
        if self._came_to is None:
            self._came_to = value, error
            with contextlib.suppress(RuntimeError):  # a close came at the same moment
                self._latch.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it is answered before that time has passed. Any number of threads may wait."""
        if self._came_to is None and self._latch.acquire(timeout=timeout_s):
            with contextlib.suppress(RuntimeError):
                self._latch.release()  # for the next one
        return self._came_to is not None

    def result(self, timeout_s: float) -> T:
        """The value; raises the error, or `TimeoutError`."""
        if not self.wait(timeout_s) or self._came_to is None:
            raise TimeoutError
        value, error = self._came_to
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


class Bridge:
    """Asks functions on the loop from any other thread."""

    def __init__(self, loop: RealLoop) -> None:
        self._loop = loop
        self.call = loop.call_from_thread
        """Have something done on the loop; the caller does not wait for it."""
        # No lock guards it: adding, discarding and copying are each one step of the interpreter.
        self._waiting: set[ThreadAnswer[Any]] = set()
        self._closed = False

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Have something done on the loop after a while. To be called on the loop."""
        return self._loop.call_later(delay_ms, callback)

    def ask(self, function: Callable[[], Future[T]], *, timeout_s: float) -> T:
        """What the future comes to that the function gives on the loop; raises its error."""
        answer: ThreadAnswer[T] = ThreadAnswer()
        try:
            self._waiting.add(answer)
            if self._closed:  # looked at after that: a close that comes now finds the answer
                raise NodeClosing
            self.call(partial(_run, function, answer))
            return answer.result(timeout_s)
        except TimeoutError:
            raise NodeSilent(waited_s=timeout_s) from None
        finally:
            self._waiting.discard(answer)

    def ask_now(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """What the function gives on the loop, in one turn."""
        return self.ask(lambda: Future.of(function()), timeout_s=timeout_s)

    def close(self) -> None:
        """End the waiting of all callers."""
        self._closed = True
        for answer in list(self._waiting):
            answer.settle(error=NodeClosed())


def _run(function: Callable[[], Future[T]], answer: ThreadAnswer[T]) -> None:
    try:
        future = function()
    except InvariantBroken as broken:
        answer.settle(error=broken)
        raise  # it ends the loop, as it does wherever it happens
    except Exception as error:
        answer.settle(error=error)  # of one request, so it is its asker's
    else:
        future.then(partial(_pass_on, answer))


def _pass_on(answer: ThreadAnswer[T], future: Future[T]) -> None:
    error: LowmarkError | None = future.error
    if error is not None:
        answer.settle(error=error.again())
    else:
        answer.settle(future.result())
