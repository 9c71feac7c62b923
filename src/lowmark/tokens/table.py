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

from lowmark.tokens.errors import PassEnded, TokenExpired, TokenRevoked, TokenUnknown
from lowmark.tokens.form import check_form, digest_of, is_pass
from lowmark.tokens.records import (
    ADMIN_ROLE,
    NODE_PREFIX,
    NODE_ROLE,
    PASS_ROLE,
    PASSES_PREFIX,
    TOKEN_PREFIX,
    Record,
    Right,
    State,
)

_PLACE_BYTES: Final = 8
_ROLES: Final = {
    TOKEN_PREFIX: frozenset({ADMIN_ROLE}),  # a later release gives others fewer rights than this
    NODE_PREFIX: frozenset({NODE_ROLE}),
    PASSES_PREFIX: frozenset({PASS_ROLE}),
}
"""What a record may be by its key: a token of a client can't be taken for that of a node."""


@dataclass(frozen=True, slots=True)
class Scope:
    """All that the holder of a pass may do."""

    table: int
    right: Right


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has shown a token that is in force."""

    name: str
    role: str
    digest: bytes = field(default=b"", repr=False)
    """Of the token, to look again whether it still is; empty: no token is asked for."""
    scope: Scope | None = None
    """What it may do; None: everything."""

    @property
    def token(self) -> str:
        """The name of its token, or of the one by which its pass was made; empty: none is asked
        for.
        """
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
        prefix = next((one for one in _ROLES if key.startswith(one)), None)
        record = Record.decode(value) if prefix is not None else None
        if prefix is None or record is None or record.role not in _ROLES[prefix]:
            return None
        if prefix == PASSES_PREFIX and not _is_whole(record):
            return None
        name = key.removeprefix(prefix).decode(errors="replace")
        # A pass is in force from when its record was last written: that renews it.
        created_ms = record.created_ms or time_ms
        return Token(name, record, created_ms, revision, time_ms)

    @property
    def of_node(self) -> bool:
        """Whether a node shows it to other nodes."""
        return self.record.role == NODE_ROLE

    @property
    def of_client(self) -> bool:
        """Whether it is a token of a client: no node's, and no pass."""
        return self.record.role not in {NODE_ROLE, PASS_ROLE}

    @property
    def is_pass(self) -> bool:
        """Whether tasks show it."""
        return self.record.role == PASS_ROLE

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
        return next((one for one in self.tokens if one.name == name and one.of_client), None)

    @property
    def clients(self) -> list[Token]:
        """Those of clients."""
        return [one for one in self.tokens if one.of_client]

    @property
    def passes(self) -> list[Token]:
        """Passes, those that have ended and are still there among them."""
        return [one for one in self.tokens if one.is_pass]

    def caller(self, shown: str, now_ms: int) -> Caller:
        """Who shows this; raises by name if it is not in force."""
        check_form(shown)
        return self.caller_of(digest_of(shown), now_ms, of_pass=is_pass(shown))

    def caller_of(self, digest: bytes, now_ms: int, *, of_pass: bool = False) -> Caller:
        """The same by the digest of what was shown, a pass or a token."""
        found = self._found(digest, now_ms)
        if of_pass or (found is not None and found.is_pass):
            return self._holder(found, now_ms)
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

    def pass_in_force(self, one: Token, now_ms: int) -> bool:
        """Whether a pass lets its holder in: it was renewed in time, and its token is in force."""
        return one.state(now_ms) is State.IN_FORCE and self._maker(one, now_ms) is not None

    def _holder(self, found: Token | None, now_ms: int) -> Caller:
        """Who shows a pass: named by the token by which it was made."""
        if found is None or not found.is_pass:
            raise PassEnded(unknown=True)
        if found.state(now_ms) is not State.IN_FORCE:
            raise PassEnded("It was not renewed in time.")
        maker = self._maker(found, now_ms)
        if maker is None:
            raise PassEnded("The token by which it was made has expired, or was revoked.")
        scope = Scope(found.record.table, Right(found.record.right))
        return Caller(maker.name, PASS_ROLE, found.record.digest, scope)

    def _maker(self, one: Token, now_ms: int) -> Token | None:
        """The token by which a pass was made; None: it is not in force."""
        maker = self._found(one.record.of, now_ms)
        if maker is None or not maker.of_client or maker.state(now_ms) is not State.IN_FORCE:
            return None
        return maker

    def _found(self, digest: bytes, now_ms: int) -> Token | None:
        found = None
        for one in self._by_place.get(digest[:_PLACE_BYTES], ()):
            if secrets.compare_digest(one.record.digest, digest):
                # A name may have been given again to a token that was revoked under another one.
                if found is None or one.state(now_ms) is State.IN_FORCE:
                    found = one
        return found


def _is_whole(record: Record) -> bool:
    """Whether a pass says all that one has; a right that is not known is of a later release."""
    known = record.right in set(Right)
    return known and record.table > 0 and record.ttl_ms > 0 and len(record.of) == len(record.digest)
