"""The tokens as one node knows them, and who shows one of them. A table never changes.

A caller is found by the first bytes of the digest of what it shows, and then all of the digest is
compared in constant time. How long that takes says at most something about digests, and a digest
says nothing about a token.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lowmark.tokens.errors import TokenExpired, TokenRevoked, TokenUnknown
from lowmark.tokens.form import check_form, digest_of
from lowmark.tokens.records import (
    ADMIN_ROLE,
    NODE_PREFIX,
    NODE_ROLE,
    TOKEN_PREFIX,
    Record,
    State,
)

_PLACE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has shown a token that is in force."""

    name: str
    role: str
    digest: bytes = field(default=b"", repr=False)
    """Of the token, to look again whether it still is; empty: no token is asked for."""

    @property
    def token(self) -> str:
        """The name of its token; empty: none is asked for."""
        return self.name if self.digest else ""


@dataclass(frozen=True, slots=True)
class Token:
    """One token, as of a revision of the metastore."""

    name: str
    record: Record
    created_ms: int
    revision: int
    """The one that wrote the record."""
    written_ms: int
    """When that was."""

    @staticmethod
    def of(key: bytes, value: bytes, *, revision: int, time_ms: int) -> Token | None:
        """From a key of the metastore; None if it is none that can be read."""
        prefix = TOKEN_PREFIX if key.startswith(TOKEN_PREFIX) else NODE_PREFIX
        record = Record.decode(value) if key.startswith(prefix) else None
        if record is None:
            return None
        name = key.removeprefix(prefix).decode(errors="replace")
        if (prefix == NODE_PREFIX) != (record.role == NODE_ROLE):
            return None  # a token of a client can't be taken for that of a node
        if record.role not in {ADMIN_ROLE, NODE_ROLE}:
            return None  # of a later release, which gives it fewer rights than this one would
        created_ms = record.created_ms or time_ms
        return Token(name, record, created_ms, revision, time_ms)

    @property
    def of_node(self) -> bool:
        """Whether a node shows it to other nodes."""
        return self.record.role == NODE_ROLE

    @property
    def expires_ms(self) -> int | None:
        """When it ends by itself; None: never."""
        return self.created_ms + self.record.ttl_ms if self.record.ttl_ms else None

    def state(self, now_ms: int) -> State:
        """What has become of it by a time of the metastore."""
        if self.record.revoked_by is not None:
            return State.REVOKED
        expires_ms = self.expires_ms
        return State.IN_FORCE if expires_ms is None or now_ms < expires_ms else State.EXPIRED

    def ended_ms(self, now_ms: int) -> int | None:
        """Since when it is not in force; None: it is."""
        if self.record.revoked_by is not None:
            return self.written_ms
        return self.expires_ms if self.state(now_ms) is State.EXPIRED else None


class Table:
    """See the module's docstring."""

    __slots__ = ("_by_place", "tokens")

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens: tuple[Token, ...] = tuple(tokens)
        by_place: dict[bytes, list[Token]] = {}
        for one in self.tokens:
            by_place.setdefault(one.record.digest[:_PLACE_BYTES], []).append(one)
        self._by_place = by_place

    def named(self, name: str) -> Token | None:
        """The token of a client, by its name."""
        return next((one for one in self.tokens if one.name == name and not one.of_node), None)

    def caller(self, shown: str, now_ms: int) -> Caller:
        """Who shows this; raises by name if it is not in force."""
        check_form(shown)
        return self.caller_of(digest_of(shown), now_ms)

    def caller_of(self, digest: bytes, now_ms: int) -> Caller:
        """The same by the digest of what was shown."""
        found = None
        for one in self._by_place.get(digest[:_PLACE_BYTES], ()):
            if secrets.compare_digest(one.record.digest, digest):
                # A name may have been given again to a token that was revoked under another one.
                if found is None or one.state(now_ms) is State.IN_FORCE:
                    found = one
        match found and found.state(now_ms):
            case State.IN_FORCE:
                assert found is not None
                return Caller(found.name, found.record.role, digest)
            case State.REVOKED:
                raise TokenRevoked
            case State.EXPIRED:
                raise TokenExpired
            case _:
                raise TokenUnknown
