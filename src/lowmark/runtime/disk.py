"""What a disk can do, and the ways it can refuse.

Files and folders are their user's alone: 0600 and 0700, whatever the umask. A folder that was there
before keeps its mode (`open_to_others` finds those that are wider).

Paths are relative to the disk's root, with `/` between their parts: a data directory can be moved,
and a simulated disk needs no drive. A rename stays within its folder, because only then is it one
step of one directory; to move a file between folders, link it into the new one, sync that, unlink.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from lowmark.errors import Conflict, Unavailable

Buffer = bytes | bytearray | memoryview
Mode = Literal["read", "write", "create"]


class DiskFull(Unavailable):
    """No space is left for this write; or none but what is reserved, which rows may not use."""

    free: int | None = None
    """How many bytes were free, where that was asked."""
    reserved: int = 0
    """How many of them rows may not use."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"no space left on the disk for {path}",
            hint="Free some space; writes go on by themselves when there is enough.",
        )
        self.path = path


class DiskFailed(Unavailable):
    """The operating system refused a disk call."""

    def __init__(self, path: str, *, call: str, reason: str) -> None:
        super().__init__(
            f"{call} of {path} failed: {reason}",
            hint="Check the disk and the system's log, then restart.",
        )
        self.path = path
        self.call = call


class NoHandles(DiskFailed):
    """This process, or the machine, has no file handle left. Nothing is wrong with the disk."""

    def __init__(self, path: str, *, call: str, reason: str) -> None:
        super().__init__(path, call=call, reason=reason)
        self.hint = (
            "Close files or sockets of this process, or raise its limit (`ulimit -n`); lowmark"
            " goes on by itself when there are handles again."
        )


class NotAllowed(DiskFailed):
    """This process may not do that with a file: it is another user's. Nothing is wrong with it."""

    def __init__(self, path: str, *, call: str, reason: str) -> None:
        super().__init__(path, call=call, reason=reason)
        self.hint = "Run this as the user whose directory it is: `ls -ld` names the user."


class StoreFailed(DiskFailed):
    """An object store did not do what it was asked: it is away, or refuses this process."""

    def __init__(self, path: str, *, call: str, reason: str) -> None:
        super().__init__(path, call=call, reason=reason)
        self.hint = (
            "See whether the store is up and reached from here, and takes this process's"
            " credentials (environment, profile or machine); then try again."
        )


class FileMissing(Conflict):
    """The file is not there (any more)."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} does not exist")
        self.path = path


class FileExists(Conflict):
    """The name is taken."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already")
        self.path = path


class Locked(Unavailable):
    """Another process has the directory open."""

    def __init__(
        self,
        path: str,
        *,
        holder: str,
        here: bool = False,
        note: bytes = b"",
        unsigned: bool = False,
    ) -> None:
        where = f"in this process already ({holder})" if here else f"in another process ({holder})"
        super().__init__(
            f"{path} is open {where}",
            detail="One process at a time has a data directory open, and once.",
            hint="Use what is open there, or close it."
            if here
            else "Close the other process, or use another directory.",
        )
        self.path = path
        self.here = here
        self.note = note
        """What the holder says of itself (`DiskLock.note`)."""
        self.unsigned = unsigned
        """Whether the system names a process that is not the one that the lock file names."""
        if unsigned:
            self.detail = (
                f"The system says that this process holds the lock file {path}/LOCK. The file does"
                " not name it: it may be another program, of another user, or in a container."
            )
            self.hint = (
                "End that process. Only users who may open the lock file can lock it: close the"
                f" directory to others with `{closing_command(path)}`."
            )


class Stat(msgspec.Struct, frozen=True, gc=False):
    """What is known of a name without opening it; a symlink is not followed.

    A folder's size and links are whatever the file system says.
    """

    size: int
    device: int
    inode: int
    links: int
    kind: Literal["file", "folder", "symlink"]
    changed_ms: int
    wide: bool = False
    """Whether users of the machine other than its own may do something with it."""
    writable: bool = False
    """Whether they may write to it; of a folder: make, rename and remove what is in it."""


class File(Protocol):
    """An open file. Reads and writes name their position; there is no file pointer.

    A file has one writer at a time: a handle knows of the bytes, but not of the new end, that
    another one wrote.
    """

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write the buffers, one after another, at the end.

        A write that failed half-way does not move the end: the next append overwrites its remains.
        """

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers, one after another, from `offset` on."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """The same into memory that is there already; gives how many bytes were read."""

    def map(self) -> memoryview:
        """The whole file as read-only memory, valid also after close and unlink.

        What is written afterwards may or may not show in it; do not truncate a mapped file.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def datasync(self) -> None:
        """Make the bytes, and the size needed to read them, durable."""

    def sync(self) -> None:
        """Make bytes and all metadata durable."""

    def size(self) -> int:
        """The present size in bytes, whoever wrote them."""

    def close(self) -> None:
        """Give the handle back."""


class DiskLock(Protocol):
    """An exclusive claim on a directory. May be used on any thread."""

    @property
    def left(self) -> bytes:
        """What the holder before this one said of itself: of one that died, or let it stay."""

    def note(self, text: bytes, *, stays: bool = False) -> None:
        """Say more of the holder, for callers that are refused. It goes with the claim, unless it
        `stays`: then the next holder finds it.
        """

    def release(self) -> None:
        """Give it up."""


class Disk(Protocol):
    """A tree of folders, files and symlinks below one root."""

    def open(self, path: str, mode: Mode) -> File:
        """Open for reading, for writing an existing file, or create a new one."""

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same folder, replacing a file there."""

    def link(self, old: str, new: str) -> None:
        """Make a second name for a file or a symlink; an existing name is refused."""

    def symlink(self, target: str, path: str) -> None:
        """Make a symlink that says `target` (relative to its own folder)."""

    def read_link(self, path: str) -> str:
        """What a symlink says."""

    def unlink(self, path: str) -> None:
        """Remove a file's or symlink's name."""

    def make_dir(self, path: str) -> None:
        """Create a folder; its parent must exist."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; an absent folder has none."""

    def stat(self, path: str) -> Stat | None:
        """What is at this name, or None."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""

    def free_bytes(self) -> int:
        """How much more can be written."""

    def lock(
        self, path: str, *, sign: bool = True, note: Callable[[bytes], bytes] | None = None
    ) -> DiskLock:
        """Claim a lock file, or raise `Locked`.

        Signed, the file names its holder; unsigned, it must exist and not a byte of it changes.
        `note` makes what stands there from the beginning, of what the holder before it left: a
        crash leaves the one or the other.
        """

    def describe(self, path: str) -> str:
        """The path as a person would look it up."""


def open_to_others(disk: Disk, folder: str = "", *, deep: bool = True) -> list[str]:
    """What other users of the machine may look into: the root ("") and names below it.

    Nothing, if they can't enter the root. Not `deep`, only the names right in it are looked at.
    """
    found = disk.stat(folder)
    if found is None or not found.wide:
        return []
    wide = [folder]
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        stat = disk.stat(path)
        if stat is None or not stat.wide:
            continue
        if deep and stat.kind == "folder":
            wide += open_to_others(disk, path)
        else:
            wide.append(path)
    return wide


def what_others_may(disk: Disk, wide: Sequence[str]) -> str:
    """The worst that other users may do with what `open_to_others` has found."""
    stats = [disk.stat(path) for path in wide]
    if any(stat is not None and stat.writable for stat in stats):
        return "change and remove files in"
    return "read rows in" if len(wide) > 1 else "see the names of files in"


def closing_command(path: str) -> str:
    """What closes a directory to other users, with all that is in it."""
    return f"chmod -R go= {shlex.quote(path)}"


def bytes_in(buffers: Sequence[Buffer]) -> int:
    """How many bytes the buffers hold; a view of wider items counts its bytes, not its items."""
    return sum(b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers)


def folder_of(path: str) -> str:
    """The folder part of a path ('' for the root)."""
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]
