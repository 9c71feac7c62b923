"""The versions of the catalog that a node knows, by number and by time.

They are dense from the earliest to the latest. The earliest moves up when the update log is cut; a
version below it is gone, and a time before it came into force can't be answered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from lowmark.catalog.catalog import EMPTY, Catalog, CatalogVersion
from lowmark.catalog.entries import Entry, apply
from lowmark.catalog.errors import (
    CatalogUnreadable,
    VersionCompacted,
    VersionUnknown,
)
from lowmark.errors import invariant
from lowmark.formatting import time_text
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of

# The values of the update log: what made a version, and a whole version, in one piece or not.

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


_activates_at = attrgetter("activates_at")


class History:
    """Grows at its end, is cut at its start.

    One thread changes it; any thread may look, each time at one moment of it: a list that is there
    only grows, and a cut puts another one in its place.
    """

    def __init__(self) -> None:
        self._versions: list[Catalog] = [EMPTY]

    @property
    def earliest(self) -> Catalog:
        """The oldest version left."""
        return self._versions[0]

    @property
    def latest(self) -> Catalog:
        """The newest version; it may not be in force yet."""
        return self._versions[-1]

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[Catalog]:
        return iter(self._versions)

    def version(self, number: int) -> Catalog:
        """One version."""
        versions = self._versions
        first, latest = versions[0].version, versions[-1].version
        if number > latest or number < 0:
            raise VersionUnknown(number, latest=latest)
        if number < first:
            raise VersionCompacted(f"version {number}", earliest=first)
        return versions[number - first]

    def at(self, time: int) -> Catalog:
        """The version in force at a time."""
        versions = self._versions
        place = bisect_right(versions, time, key=_activates_at)
        if not place:
            first = versions[0]
            wanted = time_text(millis_of(HybridTime(time)))
            raise VersionCompacted(wanted, earliest=first.version, since=first.activates_at)
        return versions[place - 1]

    def add(self, catalog: Catalog) -> None:
        """One more version."""
        latest = self.latest
        invariant(catalog.version == latest.version + 1, "versions are dense")
        invariant(catalog.activates_at > latest.activates_at, "versions come into force in order")
        self._versions.append(catalog)

    def cut(self, version: int) -> None:
        """Forget the versions below this one."""
        gone = version - self.earliest.version
        if gone > 0:
            invariant(gone < len(self._versions), "the latest version stays")
            self._versions = self._versions[gone:]

    def begin_at(self, catalog: Catalog) -> None:
        """Forget everything, and begin with this version."""
        self._versions = [catalog]


def replay(
    values: Iterable[tuple[Update | Snapshot, int]], history: History
) -> Iterator[tuple[Update | Snapshot, Catalog, Catalog]]:
    """Go through an update log, oldest first: what was written, and the catalogs around it.

    Each value comes with the time of its write. What the history has already is passed over; a
    snapshot that is ahead of it replaces it.
    """
    for value, time in values:
        before = history.latest
        if isinstance(value, Snapshot):
            if value.catalog.version > before.version:
                history.begin_at(value.catalog)
                yield value, before, value.catalog
            elif value.catalog.version > history.earliest.version:
                history.cut(value.catalog.version)
        elif value.version > before.version:
            if value.version != before.version + 1:
                raise CatalogUnreadable(
                    f"version {value.version} follows version {before.version} in the update log"
                )
            history.add(apply_update(before, value, time=HybridTime(time)))
            yield value, before, history.latest
