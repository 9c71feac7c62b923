"""The calls of the API, where memory, threads and handles that ran out get their names, and so do
arguments that a call does not take.

They may run out on any line below, and Python's own errors (`MemoryError`, a `RuntimeError` for
threads, an `OSError` for handles) say neither where nor what to do. What went on below is ended as
with any other error; only the name changes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from lowmark.backend.port import Backend
from lowmark.errors import Rejected
from lowmark.formatting import near
from lowmark.runtime import RAN_OUT, by_name

T = TypeVar("T")


class ArgumentRefused(Rejected, TypeError):
    """An argument that a call does not take, or one that it lacks."""


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
        except TypeError:
            _check_arguments(function, self, args, kwargs)
            raise

    return call


def _check_arguments(
    function: Callable[..., Any], this: object, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Refuse by name what a function does not take; with what it takes, nothing happens."""
    signature = inspect.signature(function)
    takes = list(signature.parameters)[1:]
    if any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        return  # what it passes on is for others to refuse
    unknown = [name for name in named if name not in takes]
    if unknown:
        raise ArgumentRefused(
            f"{function.__name__} takes no argument {unknown[0]}",
            hint=near(unknown[0], takes, of="It takes") if takes else "It takes none.",
        ) from None
    named_only = [one.name for one in signature.parameters.values() if one.kind is one.KEYWORD_ONLY]
    first = [name for name in takes if name not in named_only]
    ways = [", ".join(first)] if first else []
    ways += [f"by name: {', '.join(named_only)}"] if named_only else []
    try:
        signature.bind(this, *args, **named)
    except TypeError as error:
        raise ArgumentRefused(
            f"{function.__name__} can't be called like this: {error}",
            hint=f"It takes {'; '.join(ways) or 'none'}.",
        ) from None


def raise_by_name(error: BaseException, name: object) -> NoReturn:
    """Raise what ran out by its name, with the database; any other error as it is."""
    found = by_name(error, where=f"the database {name}")
    if found is error:
        raise error
    raise found from error
