"""What the metastore has of tokens: a record under each name, and one of each node.

    access.token.<name>     a token of a client
    access.node.<number>    what a node shows to the other nodes, drawn at each of its starts
    access.pass.<name>      a pass: what tasks show that a driver with a token has started

When a token was created is the time of the revision that wrote its record, which the metastore's
leader stamped. A record that is written again, because the token is revoked, keeps it. That of a
pass is written again to renew the pass: its time begins anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from lowmark.errors import Rejected

ACCESS_PREFIX: Final = b"access."
"""No client may write a key that begins so, and none sees its value whole."""
ACCESS_END: Final = b"access/"
"""The first key behind all of these."""
TOKEN_PREFIX: Final = b"access.token."
NODE_PREFIX: Final = b"access.node."
PASSES_PREFIX: Final = b"access.pass."
ADMIN: Final = "admin"
"""The name of the first token."""
ADMIN_ROLE: Final = "admin"
NODE_ROLE: Final = "node"
PASS_ROLE: Final = "pass"
NAME_LENGTH_MAX: Final = 64
TTL_MS_MAX: Final = 100 * 366 * 86_400_000
PASS_TTL_MS_MAX: Final = 15 * 60_000
"""A pass that is not renewed ends after this at the latest."""
_DIGEST_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class State(StrEnum):
    """What has become of a token."""

    IN_FORCE = "in force"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Right(StrEnum):
    """What a pass lets its holder do with its table."""

    READ = "read"
    """Read rows and what is needed for it."""
    STAGE = "stage"
    """Stage rows, which no reader sees before the driver commits them."""
    RUN = "run"
    """Read batches for a run of compaction."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One token, as it stands in the metastore, in JSON."""

    digest: bytes
    """Base 64 in JSON."""
    # (Made by a function, so that it is written though it is the default.)
    role: str = msgspec.field(default_factory=lambda: ADMIN_ROLE)
    """What it may do: one value from the start, so that more roles need no other format. It is
    always written, so that what is missing is no right. Releases before left out `admin`."""
    ttl_ms: int = 0
    """How long it is in force, from when it was created; 0: until it is revoked."""
    by: str = ""
    """The token by which it was created; empty: none, it is the first, or of a directory."""
    created_ms: int = 0
    """When it was created, if this is not the revision that did it; 0: it is."""
    revoked_by: str | None = None
    """The token by which it was revoked (empty: none); None: it was not."""
    table: int = 0
    """Of a pass: the id of the only table that its holder may touch."""
    right: str = ""
    """Of a pass: what its holder may do there (`Right`)."""
    of: bytes = b""
    """Of a pass: the digest of the token by which it was made. It ends with that one."""

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(value: bytes) -> Record | None:
        """From the metastore; None if it can't be read: it is not ours, or of a later release."""
        try:
            found = msgspec.json.decode(value, type=Record)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return found if len(found.digest) == _DIGEST_BYTES and found.ttl_ms >= 0 else None


def token_key(name: str) -> bytes:
    """Where a token's record is."""
    return TOKEN_PREFIX + name.encode()


def node_key(number: int) -> bytes:
    """Where the record of a node is."""
    return NODE_PREFIX + b"%d" % number


def pass_key(digest: bytes) -> bytes:
    """Where the record of a pass is: it has no name but a part of its digest."""
    return PASSES_PREFIX + digest[:16].hex().encode()


def check_name(name: str) -> None:
    """Refuse what can't name a token."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise Rejected(
            f"{name[:100]!r} can't name a token",
            hint=f"Use 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' and '-', starting with a"
            " letter or a digit.",
        )


def check_digest(digest: bytes) -> None:
    """Refuse what is no SHA-256."""
    if len(digest) != _DIGEST_BYTES:
        raise Rejected(f"the digest of a token has {_DIGEST_BYTES} bytes, not {len(digest)}")


def check_ttl(ttl_ms: int) -> None:
    """Refuse a time that no token has."""
    if not 0 <= ttl_ms <= TTL_MS_MAX:
        raise Rejected(
            f"a token can't be in force for {ttl_ms} ms",
            hint="Give a time of up to a hundred years, or none: then it is until it is revoked.",
        )


def check_pass_ttl(ttl_ms: int) -> None:
    """Refuse a time that no pass has."""
    if not 0 < ttl_ms <= PASS_TTL_MS_MAX:
        raise Rejected(
            f"a pass can't be in force for {ttl_ms} ms",
            hint=f"Give up to {PASS_TTL_MS_MAX} ms, and renew it.",
        )


def check_open(keys: Iterable[bytes]) -> None:
    """Refuse keys of the metastore that have records of tokens: only what makes and revokes tokens
    may touch them.
    """
    for key in keys:
        if key.startswith(ACCESS_PREFIX):
            raise _closed(key)


def check_open_range(start: bytes, end: bytes) -> None:
    """The same of keys from `start` up to, and without, `end`."""
    if start < ACCESS_END and end > ACCESS_PREFIX:
        raise _closed(start)


def _closed(key: bytes) -> Rejected:
    return Rejected(
        f"key {key!r:.80} belongs to the tokens of the cluster",
        hint="Use `lowmark token create`, `list` and `revoke`.",
    )


def shown(key: bytes, value: bytes) -> bytes:
    """The value of a key as clients see it: of a token, all but digests."""
    if not key.startswith(ACCESS_PREFIX):
        return value
    record = Record.decode(value)
    if record is None:
        return b""
    fields = msgspec.to_builtins(record)
    del fields["digest"]
    fields.pop("of", None)
    return msgspec.json.encode(fields)
