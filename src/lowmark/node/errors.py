"""What a listener refuses by itself, or says of itself."""

from __future__ import annotations

from collections.abc import Iterable

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.group import OutcomeUnknown


class PermissionDenied(Rejected):
    """A call that its client may not make."""


class ServerFull(Unavailable):
    """A server that has as much under way as it takes."""

    def __init__(self, what: str, *, limit: int) -> None:
        super().__init__(
            f"the server has {limit:,} {what} under way, and takes no more",
            hint="Close readers that you no longer need, or retry in a moment.",
        )
        self.what, self.limit = what, limit


class ServerFailed(OutcomeUnknown):
    """A server that could not answer, by a mistake of its own; what it was asked may be done."""

    def __init__(self, call: str, error: Exception) -> None:
        LowmarkError.__init__(
            self,
            f"the server failed to answer {call}: {type(error).__name__}",
            detail="The request may have been carried out all the same.",
            hint="See the server's log, and report it; look whether it happened before you ask"
            " again.",
        )


class ServerStuck(Unavailable):
    """A server that did not end in time."""

    def __init__(self, address: str, *, waited_s: float) -> None:
        super().__init__(
            f"the server at {address} did not end within {waited_s:g} seconds",
            detail="A client keeps a connection open that could not be cut.",
            hint="What was acknowledged is safe: end the process.",
        )


class ActionUnknown(Rejected):
    """An action that this node does not have."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"there is no action {name[:100]!r}",
            hint=f"Known here: {', '.join(sorted(known))}.",
        )


class NodeStarting(Unavailable):
    """A node that can't do yet what it was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the node is still starting, and can't answer {name[:100]!r} yet",
            hint="Try again in a moment. `lowmark status` says what it waits for.",
        )


class BadRequest(Rejected):
    """A body that is not what its action takes."""
