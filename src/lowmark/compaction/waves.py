"""Several things at the same time, each on a thread: for what mostly waits for the disk.

Plain threads, not a pool of `concurrent.futures`: that refuses work as soon as the main thread has
ended, while a thread of the user's, which the interpreter waits for, may still be in a run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def together(
    function: Callable[[T], U],
    items: Sequence[T],
    *,
    most: int,
    name: str,
    failed: Callable[[], object] = lambda: None,
) -> list[U]:
    """Call a function on all, on this thread and on others, `most` at once; gives the answers in
    order. Where no more threads can be started, those that there are do it all.

    When all have ended, the first error is raised. `failed` is called at once, on whatever thread,
    and may make the others end early. What ends the process, Ctrl-C too, lets none begin any more,
    and goes before other errors.
    """
    todo = deque(enumerate(items))
    answers: dict[int, U] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                at, one = todo.popleft()
            except IndexError:
                return
            try:
                answers[at] = function(one)
            except BaseException as error:
                note(error)

    def note(error: BaseException) -> None:
        if isinstance(error, Exception):
            errors.append(error)
        else:
            errors.insert(0, error)
            todo.clear()
        failed()

    threads: list[threading.Thread] = []
    try:
        for number in range(1, min(len(items), most)):
            run = copy_context().run
            thread = threading.Thread(target=run, args=(work,), name=f"{name} {number}")
            try:
                thread.start()
            except RuntimeError:  # the system has no more of them, or the interpreter ends
                break
            threads.append(thread)
        work()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C between two items, or while the others are waited for
        note(error)
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [answers[at] for at in range(len(items))]
