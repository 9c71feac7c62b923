"""Errors, sorted by what the caller does next.

    LowmarkError
    ├── Rejected      change the request: it is wrong as it stands
    ├── Conflict      read again, then retry: the world has moved on
    ├── Unavailable   retry later: nothing is wrong with the request
    └── Corrupt       stop and call a person: data is not what was written

Each error says what happened (its message), why (`detail`) and what to do (`hint`).
"""

from __future__ import annotations

from typing import Self

__all__ = [
    "Conflict",
    "Corrupt",
    "InvariantBroken",
    "LowmarkError",
    "Rejected",
    "Unavailable",
    "invariant",
]


class LowmarkError(Exception):
    """The root of everything that Lowmark raises on purpose."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def again(self) -> Self:
        """The same error to raise once more; raised twice, one object would gather tracebacks."""
        fresh = self.__class__.__new__(self.__class__)
        fresh.__dict__.update(self.__dict__)
        fresh.args = self.args
        return fresh

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.detail, self.hint) if part)


class Rejected(LowmarkError):
    """The request is wrong as it stands; change it."""


class Conflict(LowmarkError):
    """The world has moved on; read again and retry."""


class Unavailable(LowmarkError):
    """Nothing is wrong with the request; retry later."""


class Corrupt(LowmarkError):
    """Data is not what was written; stop and call a person."""


class InvariantBroken(AssertionError):
    """A thing that must never happen did. It is a bug of Lowmark, not of its caller."""


def invariant(ok: object, message: str) -> None:
    """Raise if `ok` is false, also under `python -O`."""
    if not ok:
        raise InvariantBroken(message)
