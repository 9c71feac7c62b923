"""An answer that will come, exactly once: the one way to say "later" on the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from lowmark.errors import LowmarkError, invariant

T = TypeVar("T")
R = TypeVar("R")


class Future(Generic[T]):
    """A value or an error, later. All calls are made on the loop."""

    __slots__ = ("_callbacks", "_value", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: LowmarkError | None = None
        self._value: T | None = None
        self._callbacks: list[Callable[[Future[T]], None]] = []

    def result(self) -> T:
        """The value; raises the error if there is one."""
        if not self.done:
            invariant(False, "a result is asked for when it is there")
        if self.error is not None:
            raise self.error.again()
        return self._value  # type: ignore[return-value]

    def then(self, callback: Callable[[Future[T]], None]) -> None:
        """Call when the answer is there; at once if it is."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def map(self, function: Callable[[T], R]) -> Future[R]:
        """What a function makes of the value; an error it raises, or the error, stays one."""
        mapped: Future[R] = Future()

        def done(future: Future[T]) -> None:
            try:
                mapped.resolve(function(future.result()))
            except LowmarkError as error:
                mapped.reject(error)

        self.then(done)
        return mapped

    @staticmethod
    def of(value: R) -> Future[R]:
        """An answer that is there already."""
        future: Future[R] = Future()
        future.resolve(value)
        return future

    @staticmethod
    def failed(error: LowmarkError) -> Future[R]:
        """An error that is there already."""
        future: Future[R] = Future()
        future.reject(error)
        return future

    def follow(self, other: Future[T]) -> None:
        """Answer as another one did, which has its answer."""
        if other.error is not None:
            self.reject(other.error)
        else:
            self.resolve(other.result())

    def resolve(self, value: T) -> None:
        """Answer with a value; only the first answer counts."""
        if not self.done:
            self.done, self._value = True, value
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self)

    def reject(self, error: LowmarkError) -> None:
        """Answer with an error; only the first answer counts."""
        if not self.done:
            self.done, self.error = True, error
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self)


def when_all(futures: Sequence[Future[T]]) -> Future[list[T]]:
    """All values, when the last one is there; or the first error."""
    whole: Future[list[T]] = Future()
    left = len(futures)

    def done(future: Future[T]) -> None:
        nonlocal left
        left -= 1
        if future.error is not None:
            whole.reject(future.error)
        elif not left and not whole.done:  # one that failed earlier has no value to ask for
            whole.resolve([one.result() for one in futures])

    for future in futures:
        future.then(done)
    if not futures:
        whole.resolve([])
    return whole


def together(futures: Sequence[Future[T]]) -> Future[list[Future[T]]]:
    """When all of these have their answer, whatever it is."""
    whole: Future[list[Future[T]]] = Future()
    left = len(futures)

    def done(_: Future[T]) -> None:
        nonlocal left
        left -= 1
        if not left:
            whole.resolve(list(futures))

    if not futures:
        whole.resolve([])
    for future in futures:
        future.then(done)
    return whole
