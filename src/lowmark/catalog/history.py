"""The versions of the catalog that a node knows, by number and by time.

They are dense from the earliest to the latest. The earliest moves up when the update log is cut; a
version below it is gone, and a time before it came into force can't be answered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter

from lowmark.catalog.catalog import EMPTY, Catalog
from lowmark.catalog.errors import (
    CatalogUnreadable,
    VersionCompacted,
    VersionUnknown,
)
from lowmark.catalog.update import Snapshot, Update, apply_update
from lowmark.errors import invariant
from lowmark.runtime import HybridTime

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
            raise VersionCompacted(f"time {time}", earliest=versions[0].version)
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
