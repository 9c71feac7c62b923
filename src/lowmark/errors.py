"""Errors, sorted by what the caller does next.

    LowmarkError
    ├── Rejected      change the request: it is wrong as it stands
    ├── Conflict      read again, then retry: the world has moved on
    ├── Unavailable   retry later: nothing is wrong with the request
    └── Corrupt       stop and call a person: data is not what was written

Each error says what happened (its message), why (`detail`) and what to do (`hint`).
"""

from __future__ import annotations

from typing import Self, TypeVar

__all__ = [
    "Conflict",
    "Corrupt",
    "InvariantBroken",
    "LowmarkError",
    "NoMemory",
    "NoThreads",
    "Rejected",
    "Unavailable",
    "invariant",
    "named",
]


E = TypeVar("E", bound=BaseException)

_NO_THREAD = "can't start new thread"
"""Python has no error of its own for it."""


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


class NoMemory(Unavailable):
    """This process got no memory for what it was about to do."""

    def __init__(self, what: str = "", *, where: str = "") -> None:
        super().__init__(
            f"there is not enough memory{f' at {where}' if where else ''}",
            detail=f"Python said: {what}." if what else "",
            hint="Ask for less at once (fewer rows or columns, a smaller batch_bytes), or give this"
            " process more memory.",
        )


class NoThreads(Unavailable):
    """This process could not start a thread."""

    def __init__(self, *, where: str = "") -> None:
        super().__init__(
            f"no thread can be started{f' at {where}' if where else ''}",
            detail="The limit of threads of this user, or of this container, is reached; or there"
            " is no memory for one more.",
            hint="End threads or processes, or raise the limit (`ulimit -u`, pids of the"
            " container); then open the database again.",
        )


class Corrupt(LowmarkError):
    """Data is not what was written; stop and call a person."""


class InvariantBroken(AssertionError):
    """A thing that must never happen did. It is a bug of Lowmark, not of its caller."""


def invariant(ok: object, message: str) -> None:
    """Raise if `ok` is false, also under `python -O`."""
    if not ok:
        raise InvariantBroken(message)


def named(error: E, *, where: str = "") -> E | LowmarkError:
    """What Python raises where memory or threads ran out, by our names; anything else as it is."""
    fresh: LowmarkError
    if isinstance(error, MemoryError):  # Arrow's, too
        fresh = NoMemory(str(error), where=where)
    elif isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        fresh = NoThreads(where=where)
    else:
        return error
    fresh.__cause__ = error
    return fresh
