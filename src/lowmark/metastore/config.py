"""How the metastore behaves at one node."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.errors import Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastoreConfig:
    """Settings of the metastore."""

    members: int = 3
    """So many nodes vote; all others follow as learners."""
    lease_ms: int = 10_000
    """A node that is not heard of for so long leaves the topology until it comes back."""
    watch_patience_ms: int = 60_000
    """A watcher that does not move for so long is no longer held for."""
    request_timeout_ms: int = 10_000
    snapshot_entries: int = 20_000
    """After so many entries of its log the metastore takes a snapshot."""

    def __post_init__(self) -> None:
        if not 1 <= self.members <= 7 or self.members % 2 == 0:
            raise Rejected(
                f"metastore.members = {self.members} makes no sound majority",
                hint="Use 1, 3, 5 or 7: an even number survives no more losses than one less.",
            )
        for name in ("lease_ms", "watch_patience_ms", "request_timeout_ms", "snapshot_entries"):
            if getattr(self, name) < 1:
                raise Rejected(f"metastore.{name} must be at least 1")
