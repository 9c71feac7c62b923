"""One setting's value: from TOML or from text to the type that its field has.

Errors here speak only of the value; who wrote it, and where, is added by `section`, which knows.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from types import MappingProxyType

from lowmark.errors import Rejected, invariant

Value = int | float | str | bool

_UNIT_BYTES = MappingProxyType(
    {
        "b": 1,
        "kb": 1000,
        "mb": 1000**2,
        "gb": 1000**3,
        "tb": 1000**4,
        "kib": 1024,
        "mib": 1024**2,
        "gib": 1024**3,
        "tib": 1024**4,
    }
)
_SIZE = re.compile(r"([0-9][0-9_]*)\s*([a-z]+)", re.IGNORECASE)
_BOOLS = MappingProxyType({"true": True, "1": True, "false": False, "0": False})


def from_toml(value: object, *, kind: type, is_size: bool) -> Value:
    """Take a value that TOML has typed already; only a size, or a choice, is still text."""
    if issubclass(kind, StrEnum):
        return _choice(value, kind)
    if kind is int and is_size and isinstance(value, str):
        return size_bytes(value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(float(value))
    # Not isinstance: True is an int to Python, and never to the person who wrote it.
    if type(value) is kind and isinstance(value, int | str):
        return value
    raise _not_a(value, kind=kind, is_size=is_size)


def from_text(value: object, *, kind: type, is_size: bool) -> Value:
    """Take a value from the environment, where everything is text."""
    text = str(value)
    if issubclass(kind, StrEnum):
        return _choice(text, kind)
    if kind is str:
        return text
    if kind is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if kind is int and is_size and _SIZE.fullmatch(text.strip()):
        return size_bytes(text)
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return _finite(float(text))
    except ValueError:
        pass
    raise _not_a(text, kind=kind, is_size=is_size)


def size_bytes(text: str) -> int:
    """Turn `256MiB` into bytes. A bare `M` is refused: half the world means 1000, half 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match and match[2].lower() in _UNIT_BYTES:
        return int(match[1]) * _UNIT_BYTES[match[2].lower()]
    raise _not_a(text, kind=int, is_size=True)


def _choice(value: object, kind: type[StrEnum]) -> StrEnum:
    choices = [str(choice) for choice in kind]
    if isinstance(value, str) and value.lower() in choices:
        return kind(value.lower())
    raise Rejected(f"{value!r} is not a choice here", hint=f"Use one of: {', '.join(choices)}.")


def _finite(number: float) -> float:
    if math.isfinite(number):
        return number
    raise _not_a(number, kind=float, is_size=False)


def _not_a(value: object, *, kind: type, is_size: bool) -> Rejected:
    allowed = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
    }
    invariant(kind in allowed, f"a setting can't be of type {kind.__name__}")
    what = 'a size: a whole number of bytes, or text such as "256MiB"' if is_size else allowed[kind]
    return Rejected(f"{value!r} is not {what}", hint=f"Give {what}.")
