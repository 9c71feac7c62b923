"""Who makes a call, and the one place that is asked whether a client is let in.

A listener asks its `Callers` at the beginning of every call, with the bearer token of the header
`authorization`, if there is one; what it gives goes with the call. Without any it lets every client
in as the owner: an embedded database, whose socket only its user can reach, and a node on loopback.

What a caller may do is a value beside its token (`Caller.scope`), and is checked in two steps:
here, which of Flight's methods and which actions it may call at all; and in
`lowmark.server.allowing`, which calls of the port, with which table. None of it looks at the kind
of token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, Protocol

from lowmark.tokens import ADMIN_ROLE, BeyondPass, Caller, TokensUnknown

HEADER: Final = "authorization"
_BEARER: Final = "bearer"


OWNER: Final = Caller("owner", ADMIN_ROLE)
WITHOUT_MAJORITY: Final = frozenset(
    {"status", "cluster.peer-address", "partition.list", "partition.reset"}
)
"""Actions that say what is wrong with a cluster that has no majority, and repair it. They take the
tokens that the node last knew."""

_calling: ContextVar[Caller] = ContextVar("who makes the call of this thread", default=OWNER)


def current_caller() -> Caller:
    """Who makes the call that this thread carries out."""
    return _calling.get()


@contextlib.contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """What this thread does in here it does for this caller."""
    before = _calling.set(caller)
    try:
        yield
    finally:
        _calling.reset(before)


METHODS: Final = frozenset({"DO_ACTION", "DO_GET", "DO_EXCHANGE"})
"""Flight's methods that tasks need; by all others, any table can be asked for."""
TASK_ACTIONS: Final = frozenset({"hello", "call"})
"""Actions that tasks need. What a `call` asks for is checked by itself."""


def check_method(caller: Caller, method: str) -> None:
    """Refuse a method of Flight's to a caller who may not do everything."""
    if caller.scope is not None and method not in METHODS:
        raise beyond(caller, method)


def check_action(caller: Caller, name: str) -> None:
    """The same of an action."""
    if caller.scope is not None and name not in TASK_ACTIONS:
        raise beyond(caller, f"the action {name[:100]}")


def beyond(caller: Caller, what: str) -> BeyondPass:
    """What a caller hears that asks for something that its pass does not allow."""
    assert caller.scope is not None
    return BeyondPass(what, table=caller.scope.table, right=caller.scope.right)


class Callers(Protocol):
    """Knows callers by their tokens. It may be asked on any thread, many times a second."""

    def caller(self, bearer: str | None) -> Caller:
        """Whose token this is; None: the client has shown none. Raises a `LowmarkError`, such as
        `Unauthenticated`, if the call is not let in. Each call is checked besides (`check`).
        """

    def check(self, caller: Caller, *, last_known: bool = False) -> None:
        """Raise if a caller is not let in any more: at the beginning of a call, and at each message
        of a stream. `last_known`: by what is known here, though a newer word may be missing.
        """


class AnyCaller:
    """Lets every client in as the owner."""

    def caller(self, bearer: str | None) -> Caller:
        """See `Callers`."""
        del bearer
        return OWNER

    def check(self, caller: Caller, *, last_known: bool = False) -> None:
        """See `Callers`."""


class NoCaller:
    """Lets no client in yet: the node that will know the tokens is being made."""

    def caller(self, bearer: str | None) -> Caller:
        """See `Callers`."""
        raise TokensUnknown(silent_s=None)

    def check(self, caller: Caller, *, last_known: bool = False) -> None:
        """See `Callers`."""
        raise TokensUnknown(silent_s=None)


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
