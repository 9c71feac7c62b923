"""How files get into the directory of an authority: whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from lowmark.authority.errors import AuthorityRefused

OWNER_ALONE = 0o600
FOR_ALL = 0o644
FOLDER = 0o700
_OTHERS = 0o077


@contextlib.contextmanager
def in_our_words(what: str) -> Iterator[None]:
    """A failure of the file system by its name."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise AuthorityRefused(
            f"{what}: {error.strerror or error}{where and f' ({where.strip()})'}",
            hint="Look at the directory, who owns it, and whether its disk is full.",
        ) from error


def make_folder(path: str) -> None:
    """A folder for its owner alone. One that is there is taken if it is that already, or is ours
    and empty: to close any other would lock others out of what is theirs.
    """
    try:
        os.mkdir(path, FOLDER)
        sync_folder(os.path.dirname(os.path.abspath(path)))
    except FileExistsError:
        there = os.stat(path)
        if not there.st_mode & _OTHERS:
            return
        shared = there.st_mode & stat.S_ISVTX or there.st_uid != os.geteuid()
        if shared or os.listdir(path):
            raise AuthorityRefused(
                f"other users of this machine can enter {path}",
                detail="The key of an authority is for its owner alone.",
                hint="Give a directory that is not there yet. If this one is to be yours alone,"
                f" close it: chmod 700 {path}",
            ) from None
    os.chmod(path, FOLDER)


def put(path: str, content: bytes, *, mode: int = FOR_ALL) -> None:
    """Write a file beside its place, have it on the disk, and then put it there."""
    beside = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)  # of a command that was killed; it may have another mode
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the mask is
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_folder(os.path.dirname(path))


def append(path: str, line: bytes) -> None:
    """Add a line to a file, and have it on the disk; it begins one, whatever was left before."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ALONE)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + line + b"\n")
        os.fsync(file.fileno())
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def in_turn(folder: str) -> Iterator[None]:
    """One command at a time works on a directory."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
