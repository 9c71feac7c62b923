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


# -- passes ---------------------------------------------------------------------------------------


class MakePassAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accept the pass of this digest, for one table and one right: `pass.make`. Asked again with
    the same, its time begins anew. The same to renew it, if it has not ended: `pass.renew`.
    """

    digest: bytes
    table: int
    right: str
    """`read`, `stage` or `run`."""
    ttl_ms: int


class EndPassAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Refuse the pass of this digest from now on. Asked twice, it is done once."""

    digest: bytes


class PassReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    there: bool
    """Whether there is such a pass now. There is none where no token is asked for."""
    expires_ms: int = 0
    """When it ends unless it is renewed, by the time of the metastore."""
