"""The update log: which keys of the metastore hold the catalog, and the only writes to them.

    catalog.version                    the latest version, as a decimal number
    catalog.update.<20 digits>         what made that version; or, for the earliest one, all of it
    catalog.by.<20 digits>             by which token that version was asked for, if by one
    catalog.snapshot.version           the earliest version, once the log was cut
    catalog.snapshot.part.<20 digits>.<6 digits>
                                       a part of all of a version, if that is too large for a value

All writes are conditional on what their author saw, so of two authors one wins and the other sees
it. An update goes in behind version N only if N is still the latest. A snapshot of version N takes
the place of update N and removes all before it, in the same revision: a reader finds either
the updates or the snapshot, never a gap.

The parts of a large snapshot are written before that, one by one. No node reads them until the
snapshot's own write names them, and that one is carried out only if they are all there as its
author wrote them. From then on no write of a part of that version is carried out, however late it
comes. The next cut at a later version removes what an author left that never came so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from lowmark.catalog.catalog import Catalog, CatalogVersion
from lowmark.catalog.errors import CatalogRefused, CatalogUnreadable, Reason
from lowmark.catalog.history import (
    PARTS_MAX,
    SNAPSHOT_DIGEST_BYTES,
    PartedSnapshot,
    Snapshot,
    Update,
)
from lowmark.catalog.serializers import (
    decode,
    decode_snapshot,
    encode_parted,
    encode_snapshot,
    encode_update,
)
from lowmark.metastore import (
    Branch,
    Condition,
    Do,
    Put,
    RemoveRange,
    Statement,
    all_of,
    missing,
    value_is,
)
from lowmark.metastore import Entry as StoredEntry
from lowmark.metastore.commands import VALUE_BYTES_MAX

VERSION_KEY = b"catalog.version"
SNAPSHOT_KEY = b"catalog.snapshot.version"
UPDATE_PREFIX = b"catalog.update."
PART_PREFIX = b"catalog.snapshot.part."
BY_PREFIX = b"catalog.by."
"""Beside the updates, for an earlier release could not read an update that has more in it."""

UPDATE_BYTES_MAX = VALUE_BYTES_MAX
"""Of one update: it is one value of the metastore."""
PART_BYTES_MAX = 4 << 20
"""Of one part of a snapshot; a snapshot that is no larger is in one piece."""

DONE = 1
"""A write answers with this if it was carried out, and with 0 if its author saw something old."""
HELD = 2
"""The log could be cut, but the condition for it did not hold."""

Parts: TypeAlias = Callable[[bytes], bytes | None]
"""The value of a key that holds a part, as of the same revision as the log."""


def update_key(version: int) -> bytes:
    """Where a version stands; the order of keys is the order of versions."""
    return b"%s%020d" % (UPDATE_PREFIX, version)


def by_key(version: int) -> bytes:
    """Where it stands who has asked for a version."""
    return b"%s%020d" % (BY_PREFIX, version)


def version_of(key: bytes) -> int:
    """The version of an update, or of what stands beside it, by its key."""
    return int(key.rpartition(b".")[2])


def part_key(version: int, number: int) -> bytes:
    """Where a part of a version's snapshot stands, counted from 0; in order, as versions are."""
    return b"%s%020d.%06d" % (PART_PREFIX, version, number)


def number_in(value: bytes | None) -> int:
    """A version as it is stored; 0 if there is none."""
    if value is None:
        return 0
    if not value.isdigit():
        raise CatalogUnreadable(f"{value!r:.40} stands where a version should")
    return int(value)


def _is(key: bytes, number: int) -> Condition:
    return value_is(key, b"%d" % number) if number else missing(key)


# -- updates ------------------------------------------------------------------------------------


def append(update: Update, *, by: str = "") -> Statement:
    """Write an update, if the version before it is the latest; one that is too large is refused.
    `by`: the token by which it was asked for.
    """
    version, value = update.version, encode_update(update)
    if len(value) > UPDATE_BYTES_MAX:
        raise CatalogRefused(
            f"a list of commands comes to {len(value)} bytes in one version",
            reason=Reason.LIMIT,
            about=("version", str(version)),
            detail=f"At most {UPDATE_BYTES_MAX} bytes are allowed.",
            hint="Split the list, and send one part of it after the other.",
        )
    puts = [Put(update_key(version), value), Put(VERSION_KEY, b"%d" % version)]
    if by:
        puts.append(Put(by_key(version), by.encode()))
    written = Do(tuple(puts), answer=DONE)
    return Branch(_is(VERSION_KEY, version - 1), written, Do())


# -- snapshots ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pieces:
    """A snapshot as it is written."""

    version: CatalogVersion
    value: bytes
    """What stands in the log: all of it, or a value that names its parts."""
    parts: tuple[bytes, ...] = ()


def in_pieces(catalog: Catalog) -> Pieces:
    """All of a version, in as few pieces as the metastore takes."""
    whole, size = encode_snapshot(Snapshot(catalog)), PART_BYTES_MAX
    if len(whole) <= size:
        return Pieces(catalog.version, whole)
    parts = tuple(whole[at : at + size] for at in range(0, len(whole), size))
    if len(parts) > PARTS_MAX:
        raise CatalogRefused(
            f"version {catalog.version} has {len(whole)} bytes",
            reason=Reason.LIMIT,
            about=("version", str(catalog.version)),
            detail=f"At most {PARTS_MAX} parts of {size} bytes are allowed.",
            hint="Drop tables, or old schema versions of tables, before the log is cut.",
        )
    parted = PartedSnapshot(
        version=catalog.version, parts=len(parts), length=len(whole), digest=_digest(whole)
    )
    return Pieces(catalog.version, encode_parted(parted), parts)


def save_part(pieces: Pieces, number: int, *, earliest: int) -> Statement:
    """Write a part, if the log still begins with the version that was seen (0: never cut).

    Without that condition a write that comes late could change a snapshot that is in use.
    """
    put = Put(part_key(pieces.version, number), pieces.parts[number])
    return Branch(_is(SNAPSHOT_KEY, earliest), Do((put,), answer=DONE), Do())


def save_snapshot(
    pieces: Pieces, *, earliest: int, condition: Condition | None = None
) -> Statement:
    """Cut the log at a version, if it still begins with the one that was seen (0: never cut).

    All parts must be there as they were written: a node with another release, which cuts at the
    same version, may write other bytes.
    """
    version = pieces.version
    cut = Do(
        (
            Put(SNAPSHOT_KEY, b"%d" % version),
            Put(update_key(version), pieces.value),
            RemoveRange(UPDATE_PREFIX, update_key(version)),
            RemoveRange(BY_PREFIX, by_key(version + 1)),
            RemoveRange(PART_PREFIX, part_key(version, 0)),
            RemoveRange(part_key(version, len(pieces.parts)), part_key(version + 1, 0)),
        ),
        answer=DONE,
    )
    seen = _is(SNAPSHOT_KEY, earliest)
    if pieces.parts:
        there = [value_is(part_key(version, n), part) for n, part in enumerate(pieces.parts)]
        seen = all_of(seen, *there)
    return Branch(seen, cut if condition is None else Branch(condition, cut, Do((), HELD)), Do())


# -- reading ------------------------------------------------------------------------------------


def read_log(
    entries: Iterable[StoredEntry], *, parts: Parts = lambda _: None
) -> Iterator[tuple[Update | Snapshot, int]]:
    """The values of the log in order, each with the time of its write."""
    for entry in entries:
        value = decode(entry.value)
        if isinstance(value, PartedSnapshot):
            value = _joined(value, parts)
        yield value, entry.time


def _joined(parted: PartedSnapshot, parts: Parts) -> Snapshot:
    found = []
    for number in range(parted.parts):
        part = parts(part_key(parted.version, number))
        if part is None:
            raise CatalogUnreadable(
                f"part {number} of {parted.parts} of the snapshot of version {parted.version}"
                " is missing"
            )
        found.append(part)
    whole = b"".join(found)
    if len(whole) != parted.length or _digest(whole) != parted.digest:
        raise CatalogUnreadable(
            f"the parts of the snapshot of version {parted.version} are not those that were written"
        )
    snapshot = decode_snapshot(whole)
    if snapshot.catalog.version != parted.version:
        raise CatalogUnreadable(
            f"a snapshot of version {snapshot.catalog.version} stands for version {parted.version}"
        )
    return snapshot


def _digest(whole: bytes) -> bytes:
    return blake2b(whole, digest_size=SNAPSHOT_DIGEST_BYTES).digest()
