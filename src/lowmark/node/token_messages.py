"""What clients say to a node about tokens, and what it answers. The secret is in none of it: the
client draws the token, and sends its digest.
"""

from __future__ import annotations

import msgspec


class CreateTokenAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let in those who show the token of this digest. Asked twice with the same, it is done once:
    so a client whose answer was lost asks again.
    """

    name: str
    digest: bytes
    ttl_ms: int = 0
    """How long it is in force; 0: until it is revoked."""


class RevokeTokenAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let in no one any more who shows the token of this name. Asked twice, it is done once."""

    name: str


class TokenReply(msgspec.Struct, frozen=True, kw_only=True):
    """One token."""

    name: str
    role: str
    state: str
    """`in force`, `expired` or `revoked`, by the time of the metastore."""
    created_ms: int
    expires_ms: int | None
    by: str
    """The token by which it was created; empty: none, it is the first, or of a directory."""
    revoked_ms: int | None = None
    revoked_by: str | None = None


class TokensReply(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens of clients, in the order of their names."""

    tokens: tuple[TokenReply, ...]
