"""The values of the update log: what made a version, and a whole version, in one piece or not."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.catalog.catalog import Catalog, CatalogVersion
from lowmark.catalog.entries import Entry, apply
from lowmark.catalog.errors import CatalogUnreadable
from lowmark.errors import invariant
from lowmark.runtime import COUNTER_BITS, HybridTime

TOKEN_BYTES = 16
DELAY_MS_MAX = 10 * 365 * 24 * 3600 * 1000
"""Ten years: more is a slip, or damage."""
PARTS_MAX = 1_000
"""Of one snapshot: the write that names them has a condition for each."""
SNAPSHOT_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one version changes.

    It is in force `delay_ms` after its write. The token is drawn once, for all attempts to write
    these commands, so that an author who never heard the answer finds out whether they went in.
    """

    version: CatalogVersion
    delay_ms: int
    author: int
    token: bytes
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        invariant(len(self.token) == TOKEN_BYTES, f"a token has {TOKEN_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole version; it stands in for all updates up to it. The catalog has its own times, so a
    start from a snapshot gives the versions the same times as a start from the updates.
    """

    catalog: Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedSnapshot:
    """Stands for a snapshot that is too large for one value: its bytes are in parts elsewhere."""

    version: CatalogVersion
    parts: int
    length: int
    """Of all parts together, in bytes."""
    digest: bytes
    """BLAKE2b of all parts together."""

    def __post_init__(self) -> None:
        invariant(1 <= self.parts <= PARTS_MAX, f"a snapshot has 1 to {PARTS_MAX} parts")
        invariant(len(self.digest) == SNAPSHOT_DIGEST_BYTES, "a digest has its length")


def apply_update(catalog: Catalog, update: Update, *, time: HybridTime) -> Catalog:
    """The catalog after an update that was written at this time.

    Versions come into force in order: one whose delay would put it before its predecessor comes
    right behind it.
    """
    if update.version != catalog.version + 1:
        raise CatalogUnreadable(f"version {update.version} follows version {catalog.version}")
    if update.delay_ms > DELAY_MS_MAX:
        raise CatalogUnreadable(f"version {update.version} has a delay of {update.delay_ms} ms")
    due = time + (update.delay_ms << COUNTER_BITS)
    return apply(
        catalog,
        update.entries,
        version=update.version,
        time=time,
        activates_at=HybridTime(max(due, catalog.activates_at + 1)),
    )
