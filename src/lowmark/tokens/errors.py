"""What is wrong with a token. None of these errors has the token in it, or a part of it."""

from __future__ import annotations

from lowmark.errors import Conflict, Rejected, Unavailable

_NEW = "An administrator makes a new one with `lowmark token create NAME`."


class Unauthenticated(Rejected):
    """The caller has not shown a token that is in force."""


class TokenMissing(Unauthenticated):
    """A call without a token, where one is asked for."""

    def __init__(self) -> None:
        super().__init__(
            "this server asks for a token, and the call has none",
            hint="Set LOWMARK_TOKEN, or LOWMARK_TOKEN_FILE to a file that has it; in Python:"
            " lowmark.connect(ADDRESS, token=TOKEN). A plain Flight client sends the header"
            " `authorization: Bearer TOKEN`.",
        )


class TokenMalformed(Unauthenticated):
    """Text that is no token: a letter is wrong, or a part is missing."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"what was given as a token is none: {why}",
            detail="A token is `lm1_` and 49 letters and digits; the last six of them are a check.",
            hint="Copy it again, whole.",
        )


class TokenUnknown(Unauthenticated):
    """A well-formed token that this cluster does not know."""

    def __init__(self) -> None:
        super().__init__(
            "this cluster does not know the token",
            hint=f"It may be of another cluster. {_NEW}",
        )


class TokenExpired(Unauthenticated):
    """A token whose time is over."""

    def __init__(self) -> None:
        super().__init__("the token has expired", hint=_NEW)


class TokenRevoked(Unauthenticated):
    """A token that was revoked."""

    def __init__(self) -> None:
        super().__init__("the token was revoked", hint=_NEW)


class PassEnded(Unauthenticated):
    """A pass that is not in force: it ends with the query or the run for which it was made."""

    def __init__(self, why: str = "", *, unknown: bool = False) -> None:
        """`unknown`: there is no record of it, here and now."""
        super().__init__(
            "the pass has ended",
            detail=why or "It ended with the query or the run for which it was made.",
            hint="Start the query or the run again. Its driver makes and renews the pass, and needs"
            " a token that is in force.",
        )
        self.unknown = unknown


class BeyondPass(Rejected):
    """A call that a pass does not allow: it is for one table, and for one thing to do there."""

    def __init__(self, what: str, *, table: int, right: str) -> None:
        super().__init__(
            f"a pass to {right} table {table} does not allow {what}",
            detail="A pass is for one table and one thing to do, and makes no other passes.",
            hint="Show a token for it.",
        )


class PassesFull(Rejected):
    """As many passes as a cluster keeps."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"this cluster has {most:,} passes in force, and makes no more",
            detail="Each query and run of Spark has one, until it ends.",
            hint="Run fewer queries at a time, or give executors a token.",
        )


class TokensUnknown(Unavailable):
    """A node that can't tell which tokens are in force: it does not hear the metastore."""

    def __init__(self, *, silent_s: float | None) -> None:
        since = "yet" if silent_s is None else f"for {silent_s:.3g} s"
        super().__init__(
            f"this node has not heard the metastore {since}, so it does not know which tokens are"
            " in force",
            detail="A token may have been revoked meanwhile. The status of the node, and the calls"
            " that repair a cluster without a majority, take the tokens that it last knew.",
            hint="Ask another node; `lowmark status` says what is wrong with this one.",
        )


class TokenExists(Conflict):
    """A name that has a token in force."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is a token {name} already",
            hint=f"Choose another name, or revoke it first: `lowmark token revoke {name}`.",
        )
        self.name = name


class NoSuchToken(Rejected):
    """A name that has no token."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no token {name[:100]}", hint="`lowmark token list` shows all of them."
        )


class TokensFull(Rejected):
    """As many tokens as a cluster keeps."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"this cluster has {most:,} tokens, and keeps no more",
            detail="Those that have expired, or were revoked, count for 30 days.",
            hint="Use a token again for several clients, or reuse the name of one that has ended.",
        )
