"""Everything that is there, line by line, for people who need to look with their own eyes.

Nothing is decided here: what is overwritten or dead is shown like the rest. Bad pieces give a line
with their problem, and the next piece follows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from lowmark.errors import Corrupt, LowmarkError
from lowmark.log import files, identity, segment_format, snapshots, wal_format, wal_recovery
from lowmark.log.entries import Entry
from lowmark.log.errors import Damaged, ReferenceExpired
from lowmark.log.roster import read_entries
from lowmark.log.segments import SegmentReader
from lowmark.log.wal_format import Kind
from lowmark.log.wal_recovery import WalFile, WalRecord
from lowmark.runtime import Disk

_PREVIEW_BYTES = 48
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpWal:
    """One record of the WAL."""

    path: str
    offset: int
    """Of its batch."""
    sequence: int
    record: str
    """"run", "large" or "meta"; "?" when it is damaged."""
    group: str
    first: int = 0
    last: int = 0
    term: int = 0
    bytes: int = 0
    data: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpPiece:
    """A segment, a link or a snapshot as a whole."""

    path: str
    group: str
    piece: str
    """"segment", "link", "snapshot" or "group"."""
    first: int = 0
    last: int = 0
    term: int = 0
    entries: int = 0
    bytes: int = 0
    says: str = ""
    """What it stands for, or where it leads."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpEntry:
    """One entry of a segment."""

    path: str
    group: str
    index: int
    term: int
    bytes: int
    place: str
    """"here" or "large"."""
    ok: bool
    """Whether its checksum is right."""
    data: str | None = None
    problem: str = ""


DumpLine = DumpWal | DumpPiece | DumpEntry


def dump_log(
    disk: Disk, group: str | None = None, *, data: bool = False
) -> Generator[DumpLine, None, None]:
    """Every record of the WAL, then every group's pieces and entries, in the order of the files.

    With `data`, each line shows the first bytes: as text if they are text, else in hex.
    """
    lock = disk.lock(files.LOCK, sign=False) if disk.stat(files.LOCK) is not None else None
    try:
        yield from _dump_wals(disk, group, data=data)
        for name in disk.list(files.GROUPS):
            if group in {None, name} and not name.startswith(identity.ASIDE):
                yield from _dump_group(disk, name, data=data)
        for name in sorted(read_entries(disk).keys() - set(disk.list(files.GROUPS))):
            if group in {None, name}:
                path, problem = disk.describe(files.group_dir(name)), "the folder is missing"
                yield DumpPiece(path=path, group=name, piece="group", says="", problem=problem)
    finally:
        if lock is not None:
            lock.release()


def preview(data: bytes | bytearray | memoryview) -> str:
    """The first bytes, readable."""
    head = bytes(data[:_PREVIEW_BYTES])
    more = "…" if len(data) > _PREVIEW_BYTES else ""
    text = head.decode("ascii", errors="ignore")
    if len(text) == len(head) and text.isprintable():
        return text + more
    return f"0x{head.hex()}{more}"


# -- the WAL ------------------------------------------------------------------------------------


def _dump_wals(disk: Disk, group: str | None, *, data: bool) -> Iterator[DumpLine]:
    found: list[WalFile] = []
    try:
        for record in wal_recovery.read_wals(disk, found):
            if group in {None, record.group}:
                yield _wal_line(disk, record, data=data)
    except LowmarkError as error:
        yield DumpPiece(path=disk.describe(files.WAL), group="", piece="wal", problem=error.message)
    for file in found:
        where = disk.describe(files.wal_path(file.number))
        for damage in file.damage:
            yield DumpPiece(path=where, group="", piece="wal", problem=damage.message)
        if file.size > file.durable_bytes > 0:
            says = f"bytes {file.durable_bytes} to {file.size} are an unfinished write"
            yield DumpPiece(
                path=where,
                group="",
                piece="wal",
                bytes=file.size - file.durable_bytes,
                says=says,
            )


def _wal_line(disk: Disk, found: WalRecord, *, data: bool) -> DumpWal:
    where = disk.describe(files.wal_path(found.wal))
    record = found.record
    if record is None:
        problem = found.damage.message if found.damage is not None else "the record is damaged"
        return DumpWal(
            path=where,
            offset=found.offset,
            sequence=found.sequence,
            record="?",
            group=found.group,
            problem=problem,
        )
    payload: bytes | bytearray | memoryview = record.body[0]
    size = len(payload)
    if record.kind is not Kind.META:
        run = wal_format.decode_run(record)
        payload, size = run.payload, int(run.starts()[-1])
    return DumpWal(
        path=where,
        offset=found.offset,
        sequence=found.sequence,
        record=record.kind.name.lower(),
        group=found.group,
        first=record.first,
        last=record.first + record.count - 1 if record.count else 0,
        term=record.term,
        bytes=size,
        data=preview(payload) if data else None,
        problem="" if found.incarnation else "its writer was never named",
    )


# -- groups -------------------------------------------------------------------------------------


def _dump_group(disk: Disk, name: str, *, data: bool) -> Iterator[DumpLine]:
    folder = files.group_dir(name)
    incarnation: bytes | None = None
    cause: str | None = None
    problem = ""
    try:
        incarnation = identity.read_identity(disk, name)
        cause = identity.read_quarantine(disk, name, incarnation)
    except LowmarkError as error:
        problem = error.message
    says = f"incarnation {incarnation.hex()}" if incarnation is not None else ""
    yield DumpPiece(
        path=disk.describe(folder),
        group=name,
        piece="group",
        says=says if cause is None else f"{says}, in quarantine: {cause}",
        problem=problem,
    )
    for _, _, snapshot in snapshots.snapshot_folders(disk, folder):
        yield _snapshot_line(disk, name, snapshot)
    for file in disk.list(folder):
        number = files.number_of(file, files.SEGMENT)
        if number is None:
            continue
        stat = disk.stat(f"{folder}/{file}")
        if stat is not None and stat.kind == "symlink":
            says = f"leads to {disk.read_link(f'{folder}/{file}')}"
            where = disk.describe(f"{folder}/{file}")
            yield DumpPiece(path=where, group=name, piece="link", says=says)
        else:
            yield from _dump_segment(disk, name, number, incarnation, data=data)


def _snapshot_line(disk: Disk, group: str, folder: str) -> DumpPiece:
    where = disk.describe(folder)
    try:
        found = snapshots.load_snapshot(disk, folder, incarnation=None)
    except LowmarkError as error:
        return DumpPiece(path=where, group=group, piece="snapshot", problem=error.message)
    live = "unknown: its file is lost" if found.live is None else f"{len(found.live)} live"
    return DumpPiece(
        path=where,
        group=group,
        piece="snapshot",
        last=found.meta.index,
        term=found.meta.term,
        entries=0 if found.live is None else len(found.live),
        bytes=found.state_bytes,
        says=f"{live}, machine version {found.meta.machine_version},"
        f" floor {found.floor.wal}:{found.floor.sequence}",
    )


def _dump_segment(
    disk: Disk, group: str, number: int, incarnation: bytes | None, *, data: bool
) -> Iterator[DumpLine]:
    path = f"{files.group_dir(group)}/{files.segment_name(number)}"
    where = disk.describe(path)
    try:
        reader = SegmentReader(disk, files.group_dir(group), number, incarnation=incarnation)
    except (Corrupt, ReferenceExpired) as error:
        yield DumpPiece(path=where, group=group, piece="segment", problem=error.message)
        return
    header = reader.header
    says, problem = "", ""
    try:
        members = segment_format.read_trailer(where, reader.file, header)
        says = f"stands for {', '.join(map(str, members))}"
    except Corrupt as error:
        problem = error.message
    yield DumpPiece(
        path=where,
        group=group,
        piece="segment",
        first=header.first,
        last=header.last,
        entries=header.count,
        bytes=header.data_bytes + header.large_bytes,
        says=says,
        problem=problem,
    )
    try:
        for start in range(0, len(reader.rows), _ROWS_AT_ONCE):
            yield from _dump_rows(where, group, reader, start, data=data)
    finally:
        reader.close()


def _dump_rows(
    where: str, group: str, reader: SegmentReader, start: int, *, data: bool
) -> Iterator[DumpEntry]:
    rows = reader.rows[start : start + _ROWS_AT_ONCE]
    entries: list[Entry | Damaged | LowmarkError] = []
    try:
        entries += reader.read(rows)
    except LowmarkError:
        # One of them is bad: look at each by itself, so that its neighbours are shown.
        entries = [_read_one(reader, start + i) for i in range(len(rows))]
    for row, entry in zip(rows, entries, strict=True):
        sound = isinstance(entry, Entry)
        yield DumpEntry(
            path=where,
            group=group,
            index=int(row["index"]),
            term=int(row["term"]),
            bytes=int(row["length"]),
            place="large" if int(row["place"]) & segment_format.IN_LARGE else "here",
            ok=sound,
            data=preview(entry.data) if data and isinstance(entry, Entry) else None,
            problem="" if isinstance(entry, Entry) else entry.message,
        )


def _read_one(reader: SegmentReader, at: int) -> Entry | LowmarkError:
    try:
        return reader.read(reader.rows[at : at + 1])[0]
    except LowmarkError as error:
        return error
