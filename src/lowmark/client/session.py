"""A database as this process has it open: its backend, and what is finished before it is closed.

Tables, compaction and producers without a name keep the session and ask it for the backend each
time, so they go on when the backend is replaced by another one of the same database. What a backend
keeps something for ends with it: a reader, a run under way, a producer that has fenced others off.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn, Protocol, TypeVar

from lowmark.backend.port import Backend
from lowmark.errors import LowmarkError
from lowmark.runtime import RAN_OUT, by_name

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
        _open.add(self)

    def close(self) -> None:
        """Finish what is under way, and close the backend. Closing twice is fine."""
        if not self.backend.closed:
            for one in list(self.finishing):
                with contextlib.suppress(LowmarkError):
                    one.finish()
        _open.discard(self)
        self.backend.close()


@atexit.register
def _close_all() -> None:
    # Before the backends are closed, which was registered before this.
    for one in list(_open):
        with contextlib.suppress(LowmarkError):
            one.close()


# The calls of the API, where memory, threads and handles that ran out get their names.
#
# They may run out on any line below, and Python's own errors (`MemoryError`, a `RuntimeError` for
# threads, an `OSError` for handles) say neither where nor what to do. What went on below is ended
# as with any other error; only the name changes.

T = TypeVar("T")


def edge(*, but: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Of a class with an `_backend`, whose public methods users call; `but` do without it."""

    def wrap(cls: type[T]) -> type[T]:
        for name, found in list(vars(cls).items()):
            public = not name.startswith("_") or name in {"__next__", "__getitem__"}
            if isinstance(found, FunctionType) and public and name not in but:
                setattr(cls, name, _edge(found))
        return cls

    return wrap


def _edge(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except RAN_OUT as error:
            backend: Backend = self._backend  # type: ignore[attr-defined]
            raise_by_name(error, backend.info.name)

    return call


def raise_by_name(error: BaseException, name: object) -> NoReturn:
    """Raise what ran out by its name, with the database; any other error as it is."""
    found = by_name(error, where=f"the database {name}")
    if found is error:
        raise error
    raise found from error
