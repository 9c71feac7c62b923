"""Reading the WAL back: every whole batch in order, and what is wrong with the rest.

A batch that is not whole at the very end of the last file is taken for a torn tail, which was never
acknowledged, and is dropped. (That a last batch was synced, and rotted later, nobody can tell,
unless a seal follows it: so a start says how many bytes it dropped.) Anything else that does not
read back was acknowledged once, so it is damage: of one group, when the batch's directory is
intact; of every group, when it is not, because then nobody can say whose entries are gone.

A note beside a file (`kept`) says for which groups it counts; one that counts for none is not read.
A file that was set aside is read, too, unless such a note says that no group is owed it: releases
that wrote no notes set files aside that held what was nowhere else.

Files go in order, and one that stays out of order has a note. So a file without one counts only if
every file after it is there, up to the newest, as their headers name each other: another one was
removed, and came back with a crash because the sync after its removal failed. It is spent.
A file that was never used may have a name that is not durable: the sync after its opening failed,
and the process was killed. Then it has only its first batch, the file before it is there, and older
files say all that it says. So neither a header nor a note relies on such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from lowmark.errors import Corrupt
from lowmark.log import files, wal_format
from lowmark.log.errors import Damaged
from lowmark.log.kept import Kept, read_kept
from lowmark.log.wal_format import BadRecord, Batch, Kind, Record, WalHeader
from lowmark.runtime import Disk

_UNKNOWN = (b"", "")
"""Incarnation and group of a writer that nobody named."""


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
    torn_bytes: int = 0
    """How many bytes at its end were taken for a write that was not finished."""
    damage: list[Corrupt] = field(default_factory=list)
    """Damage that can't be pinned to one group."""
    unsure_from: int = 0
    """Where its last batch begins, if no other file says how much of this one is durable; else 0.
    Of earlier batches the sync worked, or there would be none after them."""
    unused: bool = False
    """It has only its first batch, and the file before it is there: its name may not be durable."""
    aside: bool = False
    """It was set aside: it lies there as `.damaged`."""
    kept: Kept | None = None
    """What the note beside it says, if there is one."""
    rostered: bool = False
    """Its log had a roster: of a group that it deleted there is a mark (see `roster`)."""

    @property
    def path(self) -> str:
        """Where it is."""
        return files.wal_path(self.number) + (files.DAMAGED if self.aside else "")

    @property
    def spent(self) -> bool:
        """Whether it counts for no group."""
        return self.kept is not None and not self.kept.owners

    def counts_for(self, record: WalRecord) -> bool:
        """Whether one of its records may be news to anybody."""
        if self.kept is None or not record.incarnation:
            return True
        return (record.group, record.incarnation) in self.kept.owners


def list_wals(disk: Disk) -> list[int]:
    """The numbers of the WAL files there are."""
    numbers = (files.number_of(name, ".wal") for name in disk.list(files.WAL))
    return sorted(number for number in numbers if number is not None)


def find_wals(disk: Disk) -> list[WalFile]:
    """All WAL files with their notes, oldest first; also those set aside that may be owed."""
    notes, present = read_kept(disk), set(list_wals(disk))
    found = [WalFile(number, kept=notes.get(number)) for number in present]
    for name in disk.list(files.WAL):
        number = files.number_of(name, f".wal{files.DAMAGED}")
        if number is not None and number not in present:
            one = WalFile(number, aside=True, kept=notes.get(number))
            present.add(number)
            found += [] if one.spent else [one]
    # A note without its file: the file may only seem to be gone (see `kept.retire`).
    found += [WalFile(number, kept=notes[number]) for number in notes.keys() - present]
    return sorted(found, key=lambda one: one.number)


def read_wals(
    disk: Disk, found: list[WalFile], wanted: list[WalFile] | None = None
) -> Iterator[WalRecord]:
    """Replay files, oldest first; `found` is filled with what each of them came to.

    Unless it is said which ones, all that lie there under their own name are read, whole.
    """
    wanted = [WalFile(number) for number in list_wals(disk)] if wanted is None else wanted
    maps: dict[int, memoryview] = {}
    headers: dict[int, WalHeader] = {}
    for one in wanted:
        number, path = one.number, one.path
        found.append(one)
        if one.spent or disk.stat(path) is None:
            continue
        file = disk.open(path, "read")
        maps[number] = file.map()
        file.close()
        one.size = len(maps[number])
        try:
            headers[number] = wal_format.decode_header(disk.describe(path), maps[number])
            if headers[number].number != number:
                what = f"this is WAL file {headers[number].number} under another name"
                raise Damaged(disk.describe(path), offset=8, what=what)
            one.rostered = bool(headers[number].flags & wal_format.ROSTERED)
        except Corrupt as damage:
            headers.pop(number, None)
            one.damage.append(damage)
    _mark_unused(wanted, headers, maps)
    _mark_returned(wanted, headers)
    limits = {h.previous_number: h.previous_bytes for h in headers.values()}
    for one in found:
        if one.number in headers and not one.spent:
            # The file that tells how much of it counts may be gone by now; the note tells, too.
            limit = limits.get(one.number, one.kept.bytes or None if one.kept else None)
            yield from _read_file(disk.describe(one.path), maps[one.number], one, limit)
        maps.pop(one.number, None)


def _mark_unused(
    files_there: list[WalFile], headers: dict[int, WalHeader], maps: dict[int, memoryview]
) -> None:
    """Find files that may have been opened only by half (see `WalFile.unused`)."""
    uncut = {one.number: one for one in files_there if one.kept is None and not one.aside}
    for number in uncut.keys() & headers.keys():
        first = wal_format.FILE_HEADER_BYTES
        batch = wal_format.decode_batch(maps[number], first, number=number, sequence=0)
        used = batch is None or batch.end < len(maps[number])
        uncut[number].unused = not used and headers[number].previous_number in uncut


def _mark_returned(files_there: list[WalFile], headers: dict[int, WalHeader]) -> None:
    """Say of files that came back from their removal that they are spent."""
    present = {one.number for one in files_there if one.size and not (one.aside or one.spent)}
    at = lowest = max(present & headers.keys(), default=0)
    while at in headers:
        lowest, at = at, headers[at].previous_number
    if at and at in present:
        return  # it can't be read: nobody knows what came before it
    for one in files_there:
        if at and one.kept is None and not one.aside and one.number < lowest:
            one.kept = Kept(frozenset(), 0)


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
        torn = batch is None or batch.torn
        # A file gets its name when its first batch is durable: that one is never torn.
        if torn and limit is None and sequence > 0:
            later = wal_format.find_batch_after(data, at + 4, number=file.number, sequence=sequence)
            if later is None:
                # The torn tail of a write that nobody was told of; or the last batch has rotted.
                file.torn_bytes = end - at
                break
        if batch is None:
            file.damage.append(Damaged(where, offset=at, what="a batch can't be read"))
            later = wal_format.find_batch_after(data, at + 4, number=file.number, sequence=sequence)
            if later is None or later >= end:
                break
            at, sequence = later, wal_format.sequence_at(data, later)
            continue
        file.unsure_from = batch.offset if limit is None else 0
        yield from _records(where, batch, file.number, writers)
        at, sequence = batch.end, batch.sequence + 1
    if sequence == 0 and not file.damage:
        file.damage.append(Damaged(where, offset=at, what="its first batch is missing"))
    file.durable_bytes = min(at, end)


def _records(
    where: str, batch: Batch, number: int, writers: dict[int, tuple[bytes, str]]
) -> Iterator[WalRecord]:
    sequence, offset = batch.sequence, batch.offset
    for record in batch.records:
        if isinstance(record, BadRecord):
            incarnation, group = writers.get(record.writer, _UNKNOWN)
            damage = Damaged(where, offset=record.offset, what=f"a record of group {group} is bad")
            yield WalRecord(number, sequence, incarnation, group, None, damage, offset)
        elif record.kind is Kind.WRITER:
            writers[record.writer] = wal_format.decode_writer(record)
        else:
            incarnation, group = writers.get(record.writer, _UNKNOWN)
            yield WalRecord(number, sequence, incarnation, group, record, None, offset)
