"""The calls of the API, where memory, threads and handles that ran out get their names.

They may run out on any line below, and Python's own errors (`MemoryError`, a `RuntimeError` for
threads, an `OSError` for handles) say neither where nor what to do. What went on below is ended as
with any other error; only the name changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from lowmark.backend.port import Backend
from lowmark.runtime import RAN_OUT, by_name

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
