"""Errors on their way from a task to the driver.

What travels is plain values, so that it can be read wherever the driver is. An error of Lowmark's
comes out as what it was: its class, its words, and what plain values it carried besides.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable

__all__ = ["carried", "revived"]

_KINDS: tuple[type[LowmarkError], ...] = (Rejected, Conflict, Unavailable, Corrupt)
_WORDS = ("message", "detail", "hint")
_PLAIN = (str, int, float, bool, bytes, type(None))


def carried(error: LowmarkError) -> dict[str, Any]:
    """An error as it travels."""
    cls = type(error)
    return {
        "module": cls.__module__,
        "name": cls.__qualname__,
        "kind": next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "Unavailable"),
        **{word: getattr(error, word) for word in _WORDS},
        "fields": {
            key: value
            for key, value in vars(error).items()
            if key not in _WORDS and _is_plain(value)
        },
    }


def revived(parts: Mapping[str, Any]) -> LowmarkError:
    """The error that was sent; of a class that is not known here, one of the same kind."""
    cls = _find(parts["module"], parts["name"])
    if cls is None:
        cls = next((kind for kind in _KINDS if kind.__name__ == parts["kind"]), Unavailable)
    error = cls.__new__(cls)
    LowmarkError.__init__(error, parts["message"], detail=parts["detail"], hint=parts["hint"])
    error.__dict__.update(parts["fields"])
    return error


def _find(module: str, name: str) -> type[LowmarkError] | None:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, LowmarkError) else None


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(each, _PLAIN) for each in value)
    return isinstance(value, _PLAIN)
