"""The update log: which keys of the metastore hold the catalog, and the only writes to them.

    catalog.version                    the latest version, as a decimal number
    catalog.update.<20 digits>         what made that version; or, for the earliest one, all of it
    catalog.snapshot.version           the earliest version, once the log was cut

Both writes are conditional on what their author saw, so of two authors one wins and the other sees
it. An update goes in behind version N only if N is still the latest. A snapshot of version N takes
the place of update N and removes all before it, in the same revision: whoever reads finds either
the updates or the snapshot, never a gap.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.errors import CatalogUnreadable
from lowmark.catalog.serializers import decode, encode_snapshot, encode_update
from lowmark.catalog.update import Snapshot, Update
from lowmark.metastore import (
    Branch,
    Condition,
    Do,
    Put,
    RemoveRange,
    Statement,
    missing,
    value_is,
)
from lowmark.metastore import Entry as StoredEntry

__all__ = [
    "SNAPSHOT_KEY",
    "UPDATE_PREFIX",
    "VERSION_KEY",
    "append",
    "number_in",
    "read_log",
    "save_snapshot",
    "update_key",
]

VERSION_KEY = b"catalog.version"
SNAPSHOT_KEY = b"catalog.snapshot.version"
UPDATE_PREFIX = b"catalog.update."


def update_key(version: int) -> bytes:
    """Where a version stands; the order of keys is the order of versions."""
    return b"%s%020d" % (UPDATE_PREFIX, version)


def number_in(value: bytes | None) -> int:
    """A version as it is stored; 0 if there is none."""
    if value is None:
        return 0
    if not value.isdigit():
        raise CatalogUnreadable(f"{value!r:.40} stands where a version should")
    return int(value)


def _is(key: bytes, number: int) -> Condition:
    return value_is(key, b"%d" % number) if number else missing(key)


def append(update: Update) -> Statement:
    """Write an update, if the version before it is the latest; answers 1 if it was."""
    version = update.version
    written = Do(
        (
            Put(update_key(version), encode_update(update)),
            Put(VERSION_KEY, b"%d" % version),
        ),
        answer=1,
    )
    return Branch(_is(VERSION_KEY, version - 1), written, Do())


def save_snapshot(catalog: Catalog, *, earliest: int) -> Statement:
    """Cut the log at a version, if it still begins with the one that was seen (0: never cut)."""
    version = catalog.version
    written = Do(
        (
            Put(SNAPSHOT_KEY, b"%d" % version),
            Put(update_key(version), encode_snapshot(Snapshot(catalog))),
            RemoveRange(UPDATE_PREFIX, update_key(version)),
        ),
        answer=1,
    )
    return Branch(_is(SNAPSHOT_KEY, earliest), written, Do())


def read_log(entries: Iterable[StoredEntry]) -> Iterable[tuple[Update | Snapshot, int]]:
    """The values of the log in order, each with the time of its write."""
    return ((decode(entry.value), entry.time) for entry in entries)
