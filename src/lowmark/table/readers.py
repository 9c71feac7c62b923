"""Who reads a partition and holds what it needs for that: cursors, and leases.

Who reads raw, and a run that makes a ledger, holds the backlog from its offset on. Who reads, raw
or compacted, holds the deletes from there on: it must be given those of the keys it has seen.

Both are plain records of the partition's state. Whether a lease is over, and whether a cursor is
overdue or has expired, is decided by times that stand in the log, never by a clock: all members
agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from lowmark.catalog import duration_text
from lowmark.holds import Hold, Span
from lowmark.runtime import HybridTime, millis_of

CURSORS_MAX = 1_024
LEASES_MAX = 4_096
"""Of one partition."""
LEASE_MS_MAX = 1 << 40
"""Who needs longer has a cursor. A time that can't be written down must not get into the state."""
IDLE_MS_MAX = LEASE_MS_MAX
"""The same for how long a cursor may be idle."""
NAME_CHARACTERS_MAX = 128


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A named durable reader, where it stands in one partition."""

    name: str
    token: int
    kind: Literal["raw", "compacted"]
    offset: int
    """The next row that it has not seen."""
    created: int
    moved: int
    """When it last moved."""
    max_lag_rows: int = 0
    max_lag_ms: int = 0
    """How far it may fall behind; 0: as far as it likes."""
    overdue: bool = False
    """Whether it fell further behind, or expired, and holds nothing since."""
    idle_ms: int = 0
    """How long it may neither move nor be renewed; 0: as long as it likes."""
    renewed: int = 0
    """When its reader last said that it is still there."""
    expired: bool = False
    """Whether it was idle for longer. It is overdue by that."""

    @property
    def expires_ms(self) -> int | None:
        """When it expires, unless it moves or is renewed; None: never."""
        if not self.idle_ms:
            return None
        return _millis(max(self.moved, self.renewed)) + self.idle_ms


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A hold that ends by itself."""

    name: str
    holder: int
    offset: int
    ttl_ms: int
    since: int
    ends_ms: int
    why: str = ""
    kind: Literal["raw", "compacted", "run"] = "raw"


def holds_of(
    cursors: dict[str, Cursor], leases: dict[str, Lease], *, now_ms: int
) -> Iterator[Hold]:
    """What holds the backlog at a time, and from which offset on."""
    for cursor in cursors.values():
        if cursor.kind == "raw" and not cursor.overdue:
            yield _of_cursor(cursor)
    for lease in leases.values():
        if lease.kind != "compacted" and lease.ends_ms > now_ms:
            yield _of_lease(lease)


def deletes_held(
    cursors: dict[str, Cursor], leases: dict[str, Lease], *, now_ms: int
) -> Iterator[Hold]:
    """What holds deletes at a time, and from which offset on."""
    for cursor in cursors.values():
        if not cursor.overdue:
            yield _of_cursor(cursor)
    for lease in leases.values():
        if lease.kind != "run" and lease.ends_ms > now_ms:
            yield _of_lease(lease)


def _of_cursor(cursor: Cursor) -> Hold:
    return Hold(
        holder=cursor.name,
        kind="cursor",
        pins=Span(cursor.offset),
        since_ms=_millis(cursor.moved),
        why=f"a {cursor.kind} cursor stands here"
        + (f"; cursor.idle_expiry is {duration_text(cursor.idle_ms)}" if cursor.idle_ms else ""),
        expires_at_ms=cursor.expires_ms,
    )


def _of_lease(lease: Lease) -> Hold:
    return Hold(
        holder=lease.name,
        kind="lease",
        pins=Span(lease.offset),
        since_ms=_millis(lease.since),
        why=lease.why or ("a run reads it" if lease.kind == "run" else "a reader holds it"),
        expires_at_ms=lease.ends_ms,
    )


def _millis(time: int) -> int:
    return millis_of(HybridTime(time))
