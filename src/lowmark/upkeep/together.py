"""Several answers as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lowmark.group import Future

T = TypeVar("T")


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
