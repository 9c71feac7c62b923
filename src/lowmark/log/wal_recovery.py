"""Reading the WAL back: every whole batch in order, and what is wrong with the rest.

A batch that is not whole at the very end of the last file was never acknowledged: it is a torn tail
and is dropped. Anything else that does not read back was acknowledged once, so it is damage: of one
group, when the batch's directory is intact; of every group, when it is not, because then nobody can
say whose entries are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from lowmark.errors import Corrupt
from lowmark.log import files, wal_format
from lowmark.log.errors import Damaged
from lowmark.log.wal_format import BadRecord, Batch, Kind, Record, WalHeader
from lowmark.runtime import Disk

__all__ = ["WalFile", "WalRecord", "list_wals", "read_wals"]


class WalRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as it is replayed: where it stood, whose it is, and what it says."""

    wal: int
    sequence: int
    incarnation: bytes
    group: str
    record: Record | None
    """None: the record is damaged; see `damage`."""
    damage: Corrupt | None = None
    offset: int = 0
    """Where its batch begins in the file."""


@dataclass(slots=True)
class WalFile:
    """One file as it was found."""

    number: int
    durable_bytes: int = 0
    """Up to here it counts."""
    size: int = 0
    damage: list[Corrupt] = field(default_factory=list)
    """Damage that can't be pinned to one group."""


def list_wals(disk: Disk) -> list[int]:
    """The numbers of the WAL files there are."""
    numbers = (files.number_of(name, ".wal") for name in disk.list(files.WAL))
    return sorted(number for number in numbers if number is not None)


def read_wals(disk: Disk, found: list[WalFile]) -> Iterator[WalRecord]:
    """Replay all files, oldest first; `found` is filled with what each of them came to."""
    numbers = list_wals(disk)
    maps: dict[int, memoryview] = {}
    headers: dict[int, WalHeader] = {}
    for number in numbers:
        one = WalFile(number)
        found.append(one)
        path = files.wal_path(number)
        file = disk.open(path, "read")
        maps[number] = file.map()
        file.close()
        one.size = len(maps[number])
        try:
            headers[number] = wal_format.decode_header(disk.describe(path), maps[number])
            if headers[number].number != number:
                what = f"this is WAL file {headers[number].number} under another name"
                raise Damaged(disk.describe(path), offset=8, what=what)
        except Corrupt as damage:
            headers.pop(number, None)
            one.damage.append(damage)
    limits = {h.previous_number: h.previous_bytes for h in headers.values()}
    for one in found:
        if one.number in headers:
            where = disk.describe(files.wal_path(one.number))
            yield from _read_file(where, maps[one.number], one, limits.get(one.number))
        maps.pop(one.number)


def _read_file(
    where: str, data: memoryview, file: WalFile, limit: int | None
) -> Iterator[WalRecord]:
    at, sequence = wal_format.FILE_HEADER_BYTES, 0
    writers: dict[int, tuple[bytes, str]] = {}
    end = len(data) if limit is None else limit
    if limit is not None and limit > len(data):
        file.damage.append(Damaged(where, offset=len(data), what=f"it should have {limit} bytes"))
    while at < end:
        batch = wal_format.decode_batch(data, at, number=file.number, sequence=sequence)
        torn = batch is None or any(isinstance(record, BadRecord) for record in batch.records)
        # A file gets its name when its first batch is durable: that one is never torn.
        if torn and limit is None and sequence > 0:
            later = wal_format.find_batch_after(data, at + 4, number=file.number, sequence=sequence)
            if later is None:
                break  # the torn tail of a write that nobody was told of
        if batch is None:
            file.damage.append(Damaged(where, offset=at, what="a batch can't be read"))
            later = wal_format.find_batch_after(data, at + 4, number=file.number, sequence=sequence)
            if later is None or later >= end:
                break
            at, sequence = later, wal_format.sequence_at(data, later)
            continue
        yield from _records(where, batch, file.number, writers)
        at, sequence = batch.end, batch.sequence + 1
    if sequence == 0 and not file.damage:
        file.damage.append(Damaged(where, offset=at, what="its first batch is missing"))
    file.durable_bytes = min(at, end)


def _records(
    where: str, batch: Batch, number: int, writers: dict[int, tuple[bytes, str]]
) -> Iterator[WalRecord]:
    for record in batch.records:
        if isinstance(record, Record) and record.kind is Kind.WRITER:
            writers[record.writer] = wal_format.decode_writer(record)
            continue
        incarnation, group = writers.get(record.writer, (b"", ""))
        if isinstance(record, BadRecord):
            damage = Damaged(where, offset=record.offset, what=f"a record of group {group} is bad")
            yield WalRecord(number, batch.sequence, incarnation, group, None, damage, batch.offset)
        else:
            yield WalRecord(number, batch.sequence, incarnation, group, record, offset=batch.offset)
