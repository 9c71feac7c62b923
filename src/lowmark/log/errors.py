"""What the log refuses, and what it finds broken."""

from __future__ import annotations

from crc32c import crc32c

from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable
from lowmark.runtime import Buffer, DiskFull


class Damaged(Corrupt):
    """A file does not hold what was written to it, or is not ours."""

    def __init__(self, path: str, *, offset: int, what: str, hint: str = "") -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {what}",
            hint=hint
            or "Keep the file for analysis; `lowmark log verify` lists all damage. "
            "The group needs a fresh copy from another node, or from a backup.",
        )
        self.path = path
        self.offset = offset
        self.what = what


class NewerFormat(Damaged):
    """A file that a later release wrote. Nothing is wrong with it."""

    def __init__(self, path: str, *, version: int, newest: int) -> None:
        super().__init__(
            path,
            offset=4,
            what=f"it has format version {version}, and this release reads up to {newest}",
            hint="Use the release that wrote it, or a later one.",
        )


def check_version(
    path: str,
    version: int,
    *,
    newest: int,
    head: bytes = b"",
    body: Buffer = b"",
    checksum: int = 0,
) -> None:
    """Refuse a file whose format this release does not know.

    With the bytes that have a checksum: if it is right with our version at bytes 4 and 5 of the
    head, this is no newer format, but a bit of the version that has turned.
    """
    if version != newest and head:
        ours = head[:4] + newest.to_bytes(2, "little") + head[6:]
        if crc32c(body, crc32c(ours)) == checksum:
            raise Damaged(path, offset=4, what="a bit of the version is wrong")
    if version > newest:
        raise NewerFormat(path, version=version, newest=newest)
    if version < 1:
        raise Damaged(path, offset=4, what=f"there is no format version {version}")


def check_u63(number: int, what: str) -> None:
    """Refuse a number that the formats have no room for."""
    if not 0 <= number < 1 << 63:
        raise Rejected(f"{number} can't be {what}", hint="Use a number from 0 to 2**63 - 1.")


class FolderMissing(Corrupt):
    """The folder of a group that this node has is not there.

    The roster says that it has the group (`entry`); or else a WAL file has records of it, and the
    roster says neither that it is there nor that it was deleted.
    """

    def __init__(
        self,
        group: str,
        *,
        folder: str,
        mark: str,
        entry: str = "",
        wal: str = "",
        how: str = "missing",
    ) -> None:
        given_up = f"rename {entry} to {mark}" if entry else f"make an empty file {mark}"
        why = f"{entry} says so"
        if not entry:
            why = f"{wal} has records of it, and no file {mark} says that it was deleted"
        super().__init__(
            f"the folder {folder} of group {group} is {how}",
            detail=f"This node has the group: {why}. What the WAL holds of it is kept,"
            " and no empty group was made in its place.",
            hint="Put the folder back, or mount its disk, then start again. If it is lost for good,"
            " put the whole directory back from a backup; or, if no other node has a copy of the"
            f" group, {given_up}: the group then begins anew, and its rows are gone.",
        )
        self.group = group
        self.folder = folder


class FolderMistaken(Corrupt):
    """In the place of a group's folder lies another one's."""

    def __init__(self, group: str, *, folder: str, found: bytes, entry: str) -> None:
        super().__init__(
            f"the folder {folder} is not the one that this node made for group {group}",
            detail=f"Its incarnation is {found.hex()}, and {entry} says another. What the WAL holds"
            " of the group is kept, and nothing in the folder was changed.",
            hint="Put the right folder back, then start again. To keep the present folder instead,"
            f" remove {entry}: the next start takes the folder as it is.",
        )
        self.group = group
        self.folder = folder


class GroupQuarantined(Corrupt):
    """A group's files on this node are damaged: it takes no writes here until it is replaced."""

    def __init__(self, group: str, *, cause: str) -> None:
        super().__init__(
            f"group {group} is quarantined on this node",
            detail=f"Cause: {cause}",
            hint="What is intact can still be read. Give it a fresh copy, or delete it here.",
        )
        self.group = group
        self.cause = cause


class GroupUnwritable(Unavailable):
    """A group's folder can't be written just now; nothing is damaged, and nothing is lost."""

    def __init__(self, group: str, *, folder: str, cause: str) -> None:
        super().__init__(
            f"group {group} takes no writes now: its folder {folder} can't be written",
            detail=f"Cause: {cause}. What was acknowledged is safe in the WAL.",
            hint="See to the cause; writes go on by themselves when the folder can be written.",
        )
        self.group = group
        self.folder = folder
        self.cause = cause


class EntryGone(Conflict):
    """The entry is not in the log (any more)."""

    def __init__(self, group: str, *, index: int, detail: str) -> None:
        super().__init__(f"entry {index} of group {group} is not in the log", detail=detail)
        self.index = index


class ReferenceExpired(Conflict):
    """The segment that a read reference names went away; the entry may be elsewhere."""

    def __init__(self, segment: str) -> None:
        super().__init__(
            f"segment {segment} was compacted away after the read was planned",
            hint="Plan the read again.",
        )


class NotContiguous(Rejected):
    """An append would leave a gap."""

    def __init__(self, group: str, *, first: int, last: int) -> None:
        super().__init__(
            f"entry {first} would leave a gap in group {group}",
            detail=f"Its last entry is {last}.",
            hint=f"Send the entries from {last + 1} on.",
        )


class TermFell(Rejected):
    """Terms never fall along a log."""

    def __init__(self, group: str, *, term: int, previous: int) -> None:
        super().__init__(
            f"an entry of term {term} can't follow one of term {previous} in group {group}"
        )


class EntryTooLarge(Rejected):
    """An entry is over the limit."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(
            f"{size} bytes are too many for one entry or record",
            detail=f"At most {limit} are allowed (for entries: log.entry_bytes_max).",
            hint="Split it, or raise the limit on every node.",
        )


class LogBusy(Unavailable):
    """More is waiting to be written than the queue allows."""

    def __init__(self, *, waiting: int, limit: int) -> None:
        super().__init__(
            f"{waiting} bytes wait to be written",
            detail=f"At most {limit} may wait (log.wal_queue_bytes_max).",
            hint="Wait for entries to be written, then append again.",
        )


class LogClosed(Unavailable):
    """The log was closed, or opened for reading only."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the log takes no writes: {why}")


class GroupExists(Conflict):
    """The name is taken."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group} exists already")


class GroupLeaving(Unavailable):
    """A group of that name was just deleted, and steps on its files are still under way."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group} is still being deleted", hint="Wait until the log is idle, then retry."
        )


class GroupUnknown(Rejected):
    """There is no such group here."""

    def __init__(self, group: str) -> None:
        super().__init__(f"there is no group {group} in this log")


class SnapshotRefused(Rejected):
    """A snapshot that the log can't stand behind."""


class InstallRefused(Rejected):
    """A piece of a snapshot installation that does not fit."""


def reserve_reached(directory: str, *, free: int, reserved: int) -> DiskFull:
    """Rows would use what is reserved for deletes and compaction."""
    full = DiskFull(directory)
    full.message = (
        f"there is no space for more rows in {directory or 'the data directory'}:"
        f" {_mib(free)} are free, and {_mib(reserved)} are reserved"
    )
    full.detail = (
        "While less than log.disk_reserved_bytes would be free, appends are refused; reads,"
        " deletes and compaction go on."
    )
    full.hint = (
        "Free some space: `lowmark compact` does, if rows were replaced or deleted. Appends go on"
        " by themselves when there is enough."
    )
    full.args = (full.message,)
    full.free, full.reserved = free, reserved
    return full


def in_directory(error: LowmarkError, directory: str) -> LowmarkError:
    """The same error, which says in which data directory."""
    fresh = error.again()
    if directory and directory not in fresh.message:
        fresh.message = f"{fresh.message} (in {directory})"
        fresh.args = (fresh.message,)
    return fresh


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def reason_of(error: BaseException) -> str:
    """An error in one line, for a record."""
    return error.message if isinstance(error, LowmarkError) else f"{type(error).__name__}: {error}"
