"""From other threads to the loop and back: how the server asks what knows one thread."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

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
        self.detail = "What was asked may have been done all the same."
        self.hint = "Look at another node whether it happened before you ask again."


class NodeSilent(Unavailable):
    """A node whose loop gave no answer."""

    def __init__(self, *, waited_s: float) -> None:
        super().__init__(
            f"this node gave no answer within {waited_s:.3g} seconds",
            detail="What was asked may have been done all the same.",
            hint="See what the node says on stderr; ask another node meanwhile.",
        )


class Bridge:
    """Asks functions on the loop from any other thread."""

    def __init__(self, loop: RealLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: set[concurrent.futures.Future[object]] = set()
        self._closed = False

    def call(self, callback: Callable[[], None]) -> None:
        """Have something done on the loop; the caller does not wait for it."""
        self._loop.call_from_thread(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Have something done on the loop after a while. To be called on the loop."""
        return self._loop.call_later(delay_ms, callback)

    def ask(self, function: Callable[[], Future[T]], *, timeout_s: float) -> T:
        """What the future comes to that the function gives on the loop; raises its error."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            if self._closed:
                raise NodeClosing
            self._waiting.add(answer)  # type: ignore[arg-type]
        try:
            self._loop.call_from_thread(lambda: _run(function, answer))
            return answer.result(timeout_s)
        except concurrent.futures.TimeoutError:
            raise NodeSilent(waited_s=timeout_s) from None
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def ask_now(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """What the function gives on the loop, in one turn."""
        return self.ask(lambda: Future.of(function()), timeout_s=timeout_s)

    def close(self) -> None:
        """End the waiting of all callers."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        for answer in waiting:
            _settle(answer, error=NodeClosed())


def _run(function: Callable[[], Future[T]], answer: concurrent.futures.Future[T]) -> None:
    try:
        future = function()
    except InvariantBroken as broken:
        _settle(answer, error=broken)
        raise  # it ends the loop, as it does wherever it happens
    except Exception as error:
        _settle(answer, error=error)  # of one request, so it is its asker's
    else:
        future.then(lambda done: _pass_on(done, answer))


def _pass_on(future: Future[T], answer: concurrent.futures.Future[T]) -> None:
    error: LowmarkError | None = future.error
    if error is not None:
        _settle(answer, error=error.again())
    else:
        _settle(answer, value=future.result())


def _settle(
    answer: concurrent.futures.Future[T],
    *,
    value: T | None = None,
    error: BaseException | None = None,
) -> None:
    try:
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]
    except concurrent.futures.InvalidStateError:
        pass  # it was answered already, by a close
