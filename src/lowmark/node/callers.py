"""Who makes a call, and the one place that is asked whether a client is let in.

A listener asks its `Callers` at the beginning of every call, with the bearer token of the header
`authorization`, if there is one; what it gives goes with the call. Without any it lets every client
in as the owner: an embedded database, whose socket only its user can reach, and a node on loopback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

HEADER: Final = "authorization"
_BEARER: Final = "bearer"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call."""

    name: str
    role: str


OWNER: Final = Caller("owner", "admin")


class Callers(Protocol):
    """Knows callers by their tokens. It may be asked on any thread, many times a second."""

    def caller(self, bearer: str | None) -> Caller:
        """Whose token this is; None: the client has shown none. Raises a `LowmarkError`, such as
        `Unauthenticated`, if the call is not let in.
        """


class AnyCaller:
    """Lets every client in as the owner."""

    def caller(self, bearer: str | None) -> Caller:
        """See `Callers`."""
        del bearer
        return OWNER


def bearer_of(headers: Mapping[str, Sequence[str | bytes]]) -> str | None:
    """The bearer token of a call: names of headers, and the word `Bearer`, in any case."""
    for name, values in headers.items():
        if name.lower() != HEADER:
            continue
        for value in values:
            kind, _, token = str(value).strip().partition(" ")
            if kind.lower() == _BEARER and token.strip():
                return token.strip()
    return None
