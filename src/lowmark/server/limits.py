"""What clients of a database may have under way at its server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one server."""

    calls: int = 256
    """Carried out at a time; a stream on which no request waits costs none of them."""
    call_streams: int = 4_096
    """Open streams of calls: each client keeps a few."""
    waits: int = 256
    """Readers that wait for more rows."""
    reads: int = 64
    """Answers with rows that are being sent."""
    streams: int = 256
    """Clients that append."""
    append_bytes: int = 256 << 20
    """Rows that were received and are not stored yet."""
    stall_ms: int = 30_000
    """How long a client may take nothing of what it asked for, before it is cut off."""
