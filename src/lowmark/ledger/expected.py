"""Whether a manifest is the one that should lie where it lies.

A manifest's checksum tells that it is as it was written, not that it is the right one: a restored
backup, or a copy to the wrong name, puts a valid manifest of another partition, table or epoch in
its place. So whoever opens one holds it against what is noted elsewhere: by the partition that has
adopted it, by the pointer that has published it, or by the answer of the work that wrote it. Where
nothing is noted, its name still says table, partition and epoch; and all its files lie beside it.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, Self

from lowmark.ledger.errors import LedgerDamaged, LedgerLost, LedgerMisplaced
from lowmark.ledger.manifest import Manifest, decode_manifest, folder_of, place_of
from lowmark.ledger.records import Pointer
from lowmark.runtime import FileMissing
from lowmark.runtime.store import Store
from lowmark.table import Adopted


class Expected(NamedTuple):
    """What is noted of a ledger elsewhere."""

    table: int
    partition: int
    epoch: int
    horizon: int
    digest: bytes

    @classmethod
    def adopted(cls, table: int, partition: int, ledger: Adopted) -> Self:
        """What a partition has adopted."""
        return cls(table, partition, ledger.epoch, ledger.horizon, ledger.digest)

    @classmethod
    def published(cls, table: int, partition: int, pointer: Pointer) -> Self:
        """What a pointer says."""
        return cls.noted(
            table,
            partition,
            epoch=pointer.epoch,
            horizon=pointer.horizon,
            digest=pointer.digest,
        )

    @classmethod
    def noted(cls, table: int, partition: int, *, epoch: int, horizon: int, digest: str) -> Self:
        """What is noted of a ledger in JSON, with its digest in base64."""
        try:
            form = base64.b64decode(digest, validate=True)
        except binascii.Error:
            form = digest.encode()  # no manifest has such a one
        return cls(table, partition, epoch, horizon, form)

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """What a manifest says of itself."""
        return cls(
            manifest.table,
            manifest.partition,
            manifest.epoch,
            manifest.horizon,
            manifest.digest_value().form,
        )

    def __str__(self) -> str:
        return (
            f"table {self.table}, partition {self.partition}, epoch {self.epoch}, horizon"
            f" {self.horizon} and digest {self.digest.hex()}"
        )


def read_manifest(store: Store, path: str, expected: Expected | None = None) -> Manifest:
    """A manifest that should be there: the one that is expected, or at least one that has this
    name. Another one is `LedgerMisplaced`.
    """
    where = store.url(path)
    try:
        data = store.read(path)
    except FileMissing as missing:
        raise LedgerLost(where) from missing
    manifest = decode_manifest(data, path=where)
    _check_right(manifest, expected, path=path, where=where)
    return manifest


def _check_right(manifest: Manifest, expected: Expected | None, *, path: str, where: str) -> None:
    """Raise if a manifest that is whole is not the one that should lie there."""
    found = Expected.of(manifest)
    if expected is not None and found != expected:
        raise LedgerMisplaced(where, found=str(found), expected=str(expected))
    place = place_of(path)
    if place is not None:
        named = Expected(
            place.table,
            place.partition,
            found.epoch if place.epoch is None else place.epoch,
            found.horizon,
            found.digest,
        )
        if found != named:
            raise LedgerMisplaced(where, found=str(found), expected=str(named))
    folder = f"{folder_of(manifest.table, manifest.partition)}/"
    for one in sorted(manifest.paths()):
        if not one.startswith(folder):
            raise LedgerDamaged(where, f"it names {one}, which is no file of its partition")


def read_adopted(store: Store, ledger: Adopted) -> Manifest:
    """The manifest of the ledger that a partition has adopted. Whose partition that is, its name
    says: none is adopted that lies elsewhere.
    """
    place = place_of(ledger.manifest)
    if place is None:
        raise LedgerDamaged(store.url(ledger.manifest), "no manifest has such a name")
    return read_manifest(
        store, ledger.manifest, Expected.adopted(place.table, place.partition, ledger)
    )
