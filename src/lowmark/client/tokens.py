"""The tokens of a database, for its administrators: `Database.tokens`.

The token is drawn here and only its digest is sent, so the secret is in no other process until its
holder shows it. It also makes a creation safe to ask for again: the record has the digest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from lowmark.backend.errors import OutcomeUnknown
from lowmark.backend.operating import (
    CreateTokenAsk,
    Nothing,
    RevokeTokenAsk,
    TokenReply,
    TokensReply,
    operated,
)
from lowmark.backend.port import Backend
from lowmark.catalog import DURATION_TAKES, parse_duration
from lowmark.client.edges import edge
from lowmark.client.session import Session
from lowmark.errors import Rejected
from lowmark.tokens import check_name, drawn

_LOOKS: Final = 5
_PAUSE_S: Final = 0.2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created. This is the only time that it can be seen."""

    name: str
    token: str = field(repr=False)
    expires_ms: int | None


@edge()
class Tokens:
    """The tokens of clients. See `Database.tokens`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    def create(self, name: str, *, expires: str | timedelta | None = None) -> NewToken:
        """Make a token. `expires` is for how long it is in force: `"30 days"`, say; without it, it
        is in force until it is revoked. A name that has a token in force is refused
        (`TokenExists`).
        """
        check_name(name)
        secret = drawn()
        asked = CreateTokenAsk(name=name, digest=secret.digest(), ttl_ms=_millis(expires))
        made = _until_known(lambda: operated(self._backend, "token.create", asked, TokenReply))
        return NewToken(made.name, secret.reveal(), made.expires_ms)

    def list(self) -> tuple[TokenReply, ...]:
        """All tokens, those that have ended for 30 days more: never the secret."""
        return operated(self._backend, "token.list", Nothing(), TokensReply).tokens

    def revoke(self, name: str) -> TokenReply:
        """Let in no one any more who shows it: within a second, on open connections, too."""
        asked = RevokeTokenAsk(name=name)
        return _until_known(lambda: operated(self._backend, "token.revoke", asked, TokenReply))


def _millis(expires: str | timedelta | None) -> int:
    if expires is None:
        return 0
    millis = parse_duration(expires)
    if not millis:
        raise Rejected(
            f"{expires!r:.60} is no time for a token",
            hint=f"Give {DURATION_TAKES}; a hundred years at most.",
        )
    return millis


def _until_known(ask: Callable[[], T]) -> T:
    """Both changes may be asked again when an answer was lost: what was done is done once."""
    for attempt in range(_LOOKS):
        try:
            return ask()
        except OutcomeUnknown:
            if attempt == _LOOKS - 1:
                raise
        time.sleep(_PAUSE_S)
    raise AssertionError
