"""Look at a whole data directory and change nothing: every checksum, every link, every left-over.

What the log does at a start is done here again on its own, from the same formats: pieces first, the
WAL on top, then the question whether every entry that counts is somewhere. It goes on where a start
would stop at the first damage of a group, and it reads what a start leaves unread: every byte.

The directory is locked meanwhile, if it ever was opened; the lock file is not changed either.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from crc32c import crc32c

from lowmark.errors import LowmarkError
from lowmark.inspect.findings import Finding, Meter, Progress, finding_of, left_over
from lowmark.inspect.group import GroupPieces, check_group
from lowmark.inspect.pieces import COPY_NEEDED
from lowmark.log import files, identity, wal_format, wal_recovery
from lowmark.log.entries import Run
from lowmark.log.errors import FolderMissing
from lowmark.log.opening import extension, replay_run, take_run
from lowmark.log.roster import Roster, read_entries
from lowmark.log.state import GroupState
from lowmark.log.wal_format import Kind
from lowmark.log.wal_recovery import WalFile, WalRecord
from lowmark.runtime import Disk

_ROOT_NAMES = {
    files.LOCK,
    files.WAL,
    files.GROUPS,
    files.QUARANTINE,
    files.ROSTER,
    files.REJOIN,
    files.NODE,
    f"{files.NODE}~",
    files.STARTS,
    f"{files.STARTS}~",
    f"{files.STARTS}.damaged",
    files.LEDGERS,
    files.ENDPOINT,
    files.ADMIN_TOKEN,
    f"{files.ADMIN_TOKEN}{files.NEW}",
    f"{files.ADMIN_TOKEN}{files.NEW}~",
    "lost+found",
}
_PUT_BACK = (
    "Put the folder back, or mount its disk, then start again. If it is lost for good, put the"
    " whole directory back from a backup."
)


def verify_log(
    disk: Disk, progress: Progress | None = None, *, recorded: set[str] | None = None
) -> Iterator[Finding]:
    """Everything that is wrong, as it is found; an intact directory gives nothing.

    `recorded` gets the names of the groups whose own record (`GroupLog.meta`) is in a WAL file: the
    log can't tell whether a group ever had one.

    Raises `Locked` if another process has the directory open; bad files never make it raise.
    """
    lock = disk.lock(files.LOCK, sign=False) if disk.stat(files.LOCK) is not None else None
    try:
        yield from _verify(
            disk,
            Meter(_bytes_below(disk, ""), progress),
            recorded=recorded if recorded is not None else set(),
        )
    finally:
        if lock is not None:
            lock.release()


def _verify(disk: Disk, meter: Meter, *, recorded: set[str]) -> Iterator[Finding]:
    yield from _check_root(disk)
    groups: list[GroupPieces] = []
    named = read_entries(disk).keys()
    for name in disk.list(files.GROUPS):
        path = files.group_dir(name)
        if name.startswith(identity.ASIDE):
            what = "a group whose creation or deletion was interrupted"
            yield left_over(disk, path, None, what)
        elif name in named and _is_away(disk, path):
            pass  # what lies in its place is told with the roster
        elif files.is_folder(disk, path):
            yield from check_group(disk, name, found=groups, meter=meter)
        else:
            yield _unknown(disk, path)
    yield from _check_roster(disk, {pieces.name: pieces.state for pieces in groups})
    yield from _check_wals(disk, {pieces.name: pieces for pieces in groups}, meter)
    for pieces in groups:
        yield from pieces.settle(disk)
    recorded.update(pieces.name for pieces in groups if pieces.state.meta)


def _check_root(disk: Disk) -> Iterator[Finding]:
    for name in disk.list(""):
        if name not in _ROOT_NAMES:
            yield _unknown(disk, name)
    for folder in (files.WAL, files.GROUPS):
        if not files.is_folder(disk, folder):
            what = f"the folder is {files.no_folder_text(disk, folder)}"
            yield Finding("missing", None, disk.describe(folder), None, what, _PUT_BACK)
    for name in disk.list(files.WAL):
        path = f"{files.WAL}/{name}"
        if name.endswith(files.TEMPORARY):
            yield left_over(disk, path, None, "a WAL file that was not finished")
        elif name.endswith(files.DAMAGED):
            what = "a damaged WAL file that was set aside; its groups are in quarantine"
            hint = "Keep it for analysis. Delete it when those groups have been replaced."
            yield Finding("damage", None, disk.describe(path), None, what, hint)
        elif files.number_of(name, ".wal") is None and files.number_of(name, files.KEPT) is None:
            yield _unknown(disk, path)


def _check_roster(disk: Disk, there: dict[str, GroupState]) -> Iterator[Finding]:
    """Whether the groups that are written down are those whose folders lie there."""
    for entry in disk.list(files.ROSTER):
        if files.entry_of(entry) is None and files.mark_of(entry) is None:
            yield _unknown(disk, f"{files.ROSTER}/{entry}")
    roster = Roster(disk)
    roster.read()
    for name in sorted(roster.names()):
        where = disk.describe(files.group_dir(name))
        mistaken = roster.mistaken(name, there[name].incarnation) if name in there else None
        if mistaken is not None:
            what = f"this is not the folder that this node made for group {name}"
            yield Finding("damage", name, where, None, what, mistaken.hint)
        elif name not in there and _is_away(disk, files.group_dir(name)):
            what = f"the folder is {files.no_folder_text(disk, files.group_dir(name))}"
            hint = _hint_of_missing(disk, roster.missing(name))
            yield Finding("missing", name, where, None, what, hint)
    if disk.stat(files.ROSTER) is not None:
        for name in sorted(there.keys() - roster.names()):
            path = files.entry_path(name, there[name].incarnation)
            what = "the file is missing that says that this node has the group"
            yield left_over(disk, path, name, what)


def _is_away(disk: Disk, folder: str) -> bool:
    """Whether there is no such folder, or nothing in it."""
    try:
        return not (files.is_folder(disk, folder) and disk.list(folder))
    except LowmarkError:
        return False  # it is there, and can't be read


def _hint_of_missing(disk: Disk, missing: FolderMissing) -> str:
    """What to do about one group; where all of them are away, that is what to do about."""
    return missing.hint if files.is_folder(disk, files.GROUPS) else _PUT_BACK


def _unknown(disk: Disk, path: str) -> Finding:
    hint = "Lowmark does not look at it. Move it away if you do not need it here."
    return Finding("unknown file", None, disk.describe(path), None, "not a file of ours", hint)


# -- the WAL ------------------------------------------------------------------------------------


def _check_wals(disk: Disk, groups: dict[str, GroupPieces], meter: Meter) -> Iterator[Finding]:
    found: list[WalFile] = []
    aside: dict[str, list[Run]] = {}
    roster = Roster(disk)
    roster.read()
    # A record whose writer was never named is told apart.
    known = {"", *groups, *disk.list(files.GROUPS), *roster.names()}
    wal = at = 0
    try:
        wanted = {file.number: file for file in wal_recovery.find_wals(disk)}
        for record in wal_recovery.read_wals(disk, found, list(wanted.values())):
            file = wanted[record.wal]
            if record.wal != wal and wal:
                yield from _check_aside(disk, groups, wanted[wal], aside)
            at = at if record.wal == wal else 0
            meter.looked_at(file.path, record.offset - at)
            wal, at = record.wal, record.offset
            if not file.counts_for(record):
                continue
            yield from _check_record(disk, groups, file, record, aside)
            owner = (record.group, record.incarnation)
            if record.group not in known and file.rostered and not roster.was_deleted(owner):
                known.add(record.group)
                missing = roster.lost(owner, file.path)
                where, what = missing.folder, "the folder is missing"
                hint = _hint_of_missing(disk, missing)
                yield Finding("missing", record.group, where, None, what, hint)
        if wal:
            yield from _check_aside(disk, groups, wanted[wal], aside)
    except LowmarkError as error:
        yield finding_of(disk, files.WAL, None, error)
    for file in found:
        yield from _check_kept(disk, file)
        for damage in file.damage:
            yield finding_of(disk, file.path, None, damage)
        if file.size > file.durable_bytes > 0:
            what = f"the bytes from {file.durable_bytes} on are an unfinished write"
            yield left_over(disk, file.path, None, what)


def _check_kept(disk: Disk, file: WalFile) -> Iterator[Finding]:
    """What the note beside a file says of it."""
    if file.kept is None:
        return
    if file.spent:
        yield left_over(disk, file.path, None, "a file, or its note, that counts for no group")
    gone = disk.stat(file.path) is None
    for name, _ in sorted(file.kept.owners):
        if gone:
            what = (
                "the file is gone, and the note beside it says that it holds entries of this group"
            )
            yield Finding("missing", name, disk.describe(file.path), None, what, COPY_NEEDED)
        elif not file.aside:
            what = "kept for this group, whose folder could not be written or read"
            yield left_over(disk, file.path, name, what)


def _check_aside(
    disk: Disk, groups: dict[str, GroupPieces], file: WalFile, aside: dict[str, list[Run]]
) -> Iterator[Finding]:
    """After a file that was set aside: which groups have entries nowhere else."""
    for name, runs in aside.items():
        state = groups[name].state
        first, last = state.last_index + 1, runs[-1].last
        beyond = extension(state, disk, runs)
        if beyond is None:
            what = (
                f"entries {first} to {last} are in this file alone, and do not follow the group's"
            )
            yield Finding("missing", name, disk.describe(file.path), None, what, COPY_NEEDED)
        elif beyond:
            what = f"entries {first} to {last} are in this file alone"
            yield left_over(disk, file.path, name, what)
            for run in beyond:
                take_run(state, file.number, run)
    aside.clear()


def _check_record(
    disk: Disk,
    groups: dict[str, GroupPieces],
    file: WalFile,
    found: WalRecord,
    aside: dict[str, list[Run]],
) -> Iterator[Finding]:
    path = file.path
    if found.damage is not None:
        yield finding_of(disk, path, found.group or None, found.damage)
        return
    if not found.incarnation:
        what = "a record of a writer that was never named"
        yield Finding("damage", None, disk.describe(path), found.offset, what, COPY_NEEDED)
        return
    pieces = groups.get(found.group)
    if pieces is None or pieces.state.incarnation != found.incarnation:
        return  # the group was deleted, and perhaps made anew
    if found.record is not None and found.record.kind is Kind.META:
        if not file.aside:
            pieces.state.meta = bytes(found.record.body[0])
    elif found.record is not None:
        run = wal_format.decode_run(found.record)
        for what in _run_mistakes(run):
            yield Finding("damage", found.group, disk.describe(path), found.offset, what)
        if file.aside:
            if not pieces.floor.voids(found.wal, found.sequence):
                aside.setdefault(found.group, []).append(run)
            return
        gap = replay_run(pieces.state, found, run)
        if gap is None:
            pieces.gap = None
        elif pieces.gap is None:
            where = disk.describe(path)
            pieces.gap = Finding("missing", found.group, where, found.offset, gap, COPY_NEEDED)


def _run_mistakes(run: Run) -> Iterator[str]:
    """Entries of a run whose record is sound, but which were spoilt before they were written."""
    if run.large is not None:
        return
    if int(run.starts()[-1]) != len(run.payload):
        yield f"the lengths of entries {run.first} to {run.last} do not fit their data"
        return
    stored = np.frombuffer(run.checksums, np.uint32).tolist()
    for entry, checksum in zip(run.entries(run.first, run.last), stored, strict=True):
        if crc32c(entry.data) != checksum:
            yield f"entry {entry.index} fails its checksum"


def _bytes_below(disk: Disk, folder: str) -> int:
    total = 0
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        stat = disk.stat(path)
        links = folder in {"", files.GROUPS}  # where a start follows them, too
        if stat is not None and (stat.kind == "folder" or (links and files.is_folder(disk, path))):
            total += _bytes_below(disk, path)
        elif stat is not None and stat.kind == "file":
            total += stat.size
    return total
