"""What a ledger consists of: its files, which of their rows are live, and how it came to be.

A manifest is a JSON document, so that any program can read it: one without Lowmark needs no more
than `files[].path` (docs/formats/ledger.md). It is written once and never changed. Live sets belong
here, never to a file: the next ledger may share the file and have other rows of it live.

The last line has the checksum of all before it, so half a manifest is no manifest.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import date, datetime
from decimal import Decimal
from typing import Final, NamedTuple, Self
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from pyroaring import BitMap

from lowmark.catalog import Table
from lowmark.catalog.types import type_text
from lowmark.catalog.values import Value, value_text
from lowmark.errors import Corrupt, invariant
from lowmark.ledger.claim import missing
from lowmark.ledger.digest import EMPTY, Digest
from lowmark.ledger.errors import LedgerDamaged, LedgerMisplaced
from lowmark.ledger.records import Pointer
from lowmark.runtime import FileMissing
from lowmark.runtime.store import Store
from lowmark.table import Adopted

FORMAT: Final = 1
Mask = npt.NDArray[np.bool_]
_NOTHING: Final = base64.b64encode(EMPTY.form).decode()


class LedgerFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a ledger: rows in the order of their offsets, and an index of their keys."""

    path: str
    """Below the store's root."""
    bytes: int
    rows: int
    first: int
    """The offset of its first row."""
    last: int
    """The offset of its last row."""
    schema: int
    """The schema version that all its rows have."""
    keys_path: str = ""
    """The index of its keys; empty if no row has one."""
    keys_bytes: int = 0
    checksum: int
    """Of the file's bytes: crc32c."""
    footer_bytes: int
    """How long its footer is, with its length and the magic behind it."""
    footer_checksum: int
    chunks: str
    """The checksums of its column chunks, row group by row group, in base64."""
    keys_checksum: int = 0
    dead: str = ""
    """Rows that are not live, by their number in the file: a roaring bitmap in base64."""
    dead_rows: int = 0
    deletes: str = ""
    """Rows that are deletes, dead or not, by their number in the file."""
    digest: str
    """Of the live rows, in base64."""

    @property
    def kept_rows(self) -> int:
        """How many of its rows count, deletes among them."""
        return self.rows - self.dead_rows

    @property
    def live_deletes(self) -> int:
        """How many of those are deletes."""
        return len(self.delete_set() - self.dead_set()) if self.deletes else 0

    @property
    def live_rows(self) -> int:
        """How many of its rows count, without deletes."""
        return self.kept_rows - self.live_deletes

    def dead_set(self) -> BitMap:
        """The rows that are not live."""
        return _bitmap(self.dead)

    def delete_set(self) -> BitMap:
        """The rows that are deletes."""
        return _bitmap(self.deletes)

    def digest_value(self) -> Digest:
        """Of the live rows."""
        return Digest.of_form(base64.b64decode(self.digest))

    def chunk_checksums(self) -> npt.NDArray[np.uint32]:
        """Of its column chunks, row group by row group."""
        return np.frombuffer(base64.b64decode(self.chunks), np.uint32)

    def live_mask(self) -> Mask | None:
        """Which rows are live; None: all of them."""
        return self.without(self.dead_set()) if self.dead_rows else None

    def without(self, dead: BitMap) -> Mask:
        """Which rows are live if these are dead."""
        mask = np.ones(self.rows, np.bool_)
        mask[np.frombuffer(dead.to_array(), np.uint32)] = False
        return mask

    def with_dead(self, dead: BitMap, digest: Digest) -> LedgerFile:
        """The same file with these rows dead."""
        invariant(len(dead) >= self.dead_rows, "what is dead stays dead")
        return msgspec.structs.replace(
            self,
            dead=bitmap_text(dead),
            dead_rows=len(dead),
            digest=digest_text(digest),
        )


class Lost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Offsets of which rows could not be brought back when a ledger was rebuilt."""

    first: int
    last: int
    rows: int | None = None
    """This many of them counted, at most; None: unknown."""
    stale: bool = False
    """Whether rows before it are as they were then: a later row of their key may be among these."""


class LedgerColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column as a schema version has it. Ids tell columns of several versions apart, or that two
    are the same; names may be used again, and types may be widened.
    """

    id: int
    name: str
    type: str
    key: bool = False
    """Whether it is in the key."""
    filling: bool | int | float | str | None = None
    """What rows show that were written before the column was there."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a schema version, in their order."""

    schema: int
    columns: tuple[LedgerColumn, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One ledger of one partition."""

    format: int = FORMAT
    table: int
    table_name: str
    partition: int
    epoch: int
    horizon: int
    """It covers the offsets below this one."""
    deletes_below: int = 0
    """Deletes below this offset may be gone from it."""
    expired: int = 0
    """Rows below this offset went by retention before they could be compacted."""
    files: tuple[LedgerFile, ...] = ()
    """In the order of offsets; their ranges do not overlap."""
    schemas: tuple[int, ...] = ()
    """The schema versions of its files."""
    layouts: tuple[Layout, ...] = ()
    """The columns of each of them, for programs that have no catalog."""
    digest: str = _NOTHING
    """Of all live rows, in base64."""
    made_by: str
    """The run that made it."""
    made_at: str
    """When, for people."""
    watermark: int = 0
    """No row below the horizon is later: the low watermark that it was planned at or, of a table
    with a history of its own, a time before that (`lowmark.table.history`)."""
    based_on: str = ""
    """The manifest that the run began with."""
    release: str = ""
    """The release of Lowmark that wrote it."""
    lost: tuple[Lost, ...] = ()
    """What it should have and has not, in the order of offsets: a read across it fails."""

    @property
    def live_rows(self) -> int:
        """How many rows count, without deletes."""
        return sum(file.live_rows for file in self.files)

    @property
    def live_deletes(self) -> int:
        """How many deletes count: a reader may not have seen them yet."""
        return sum(file.live_deletes for file in self.files)

    @property
    def rows(self) -> int:
        """This many rows are in its files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """What its files take."""
        return sum(file.bytes + file.keys_bytes for file in self.files)

    def digest_value(self) -> Digest:
        """Of all live rows."""
        return Digest.of_form(base64.b64decode(self.digest))

    def digest_of_files(self) -> Digest:
        """The same, put together from what the files say."""
        whole = EMPTY
        for file in self.files:
            whole = whole.joined(file.digest_value())
        return whole

    def summed_up(self) -> Manifest:
        """With the digest and the schema versions of its files."""
        return msgspec.structs.replace(
            self,
            schemas=tuple(sorted({file.schema for file in self.files})),
            digest=digest_text(self.digest_of_files()),
        )

    def paths(self) -> set[str]:
        """All files that it needs."""
        return {path for file in self.files for path in (file.path, file.keys_path) if path}


def bitmap_text(rows: BitMap) -> str:
    """A set of rows as a manifest has it."""
    return base64.b64encode(rows.serialize()).decode() if rows else ""


def _bitmap(text: str) -> BitMap:
    return BitMap.deserialize(base64.b64decode(text)) if text else BitMap()


def checksums_text(checksums: npt.NDArray[np.uint32]) -> str:
    """Checksums as a manifest has them: 32 bits each, the lowest byte first."""
    return base64.b64encode(checksums.tobytes()).decode()


def digest_text(digest: Digest) -> str:
    """A digest as a manifest has it."""
    return base64.b64encode(digest.form).decode()


class _Head(msgspec.Struct):
    """What every manifest has, whatever format the rest has."""

    format: int


_decoder = msgspec.json.Decoder(Manifest)
_head_decoder = msgspec.json.Decoder(_Head)


def encode_manifest(manifest: Manifest) -> bytes:
    """As it is written: the document, and a line with its checksum."""
    # The format is said even though it is the default: another release has another default.
    document = {"format": manifest.format, **msgspec.to_builtins(manifest)}
    body = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    return body + b"# crc32c %08x\n" % crc32c(body)


def decode_manifest(data: bytes, *, path: str) -> Manifest:
    """What `encode_manifest` gave; raises `LedgerDamaged` for anything else."""
    body, mark, tail = data.rpartition(b"# crc32c ")
    if not mark or tail != b"%08x\n" % crc32c(body):
        raise LedgerDamaged(path, "its checksum is wrong")
    try:
        found = _head_decoder.decode(body).format
        if found != FORMAT:
            raise LedgerDamaged(path, f"it has format {found}, not {FORMAT}")
        manifest: Manifest = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise LedgerDamaged(path, str(error)) from error
    if manifest.digest_of_files() != manifest.digest_value():
        raise LedgerDamaged(path, "its files' digests do not add up to its own")
    return manifest


def table_folder(table: int) -> str:
    """Where everything of a table is."""
    return f"table-{table}"


def folder_of(table: int, partition: int) -> str:
    """Where a partition's ledgers are."""
    return f"{table_folder(table)}/{partition}"


class Place(NamedTuple):
    """Whose a manifest is, as its name has it."""

    table: int
    partition: int
    epoch: int | None
    """None: the base of a rebuild, which has none."""


_MANIFEST_NAME: Final = re.compile(r"table-(\d+)/(\d+)/(?:(\d+)-)?[^/]*\.json")


def place_of(path: str) -> Place | None:
    """Whose manifest has a name; None: no manifest of a ledger has it."""
    named = _MANIFEST_NAME.fullmatch(path)
    if named is None:
        return None
    table, partition, epoch = named.groups()
    return Place(int(table), int(partition), None if epoch is None else int(epoch))


def run_folder(table: int, run: str) -> str:
    """Where a run notes what is finished, while it runs."""
    return f"{table_folder(table)}/runs/{run}"


def is_run(path: str) -> bool:
    """Whether this is a run's folder: held, it says that the run goes on."""
    return "/runs/" in path


# Whether a manifest is the one that should lie where it lies.
#
# A manifest's checksum tells that it is as it was written, not that it is the right one: a restored
# backup, or a copy to the wrong name, puts a valid manifest of another partition, table or epoch in
# its place. So the code that opens one holds it against what is noted elsewhere: by the partition
# that has adopted it, by the pointer that has published it, or by the answer of the work that wrote
# it. Where nothing is noted, its name still says table, partition and epoch; and all its files lie
# beside it.


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
    except FileMissing as gone:
        raise missing(store, path) from gone
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


# What a manifest says of columns, so that a program without the catalog tells them apart.
#
# A file's columns are named as they were called when it was written. In another file of the same
# ledger a name may stand for another column, and a column may have another name, or a wider type.


def layout_of(table: Table, version: int) -> Layout:
    """The columns of a schema version of a table."""
    schema = table.schema_version(version)
    if schema is None:
        raise Corrupt(f"table {table.name} has no schema version {version}")
    columns = tuple(
        LedgerColumn(
            id=column.id,
            name=column.name,
            type=type_text(column.type),
            key=column.id in table.key,
            filling=_in_json(table.filling(column.id)),
        )
        for column in schema.columns
    )
    return Layout(schema=version, columns=columns)


def _in_json(value: Value | None) -> bool | int | float | str | None:
    """As it is where JSON has it, else as people write it; bytes as hexadecimal digits."""
    match value:
        case UUID():
            return value.hex
        case bytes() | date() | datetime() | Decimal():
            return value_text(value)
        case _:
            return value
