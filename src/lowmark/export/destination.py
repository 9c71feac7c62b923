"""The directory of an export: everything is written aside, and published by one rename.

    .orders.export-1a2b3c4d/        beside orders/, hidden, and locked by the process that writes it
        .work/                      what tasks write, under names of their own
        part-00000-00000.parquet    what counts
    orders/                         the same, renamed

The lock ends with its process. So the next export to the same directory can tell what a killed one
has left from what another one is writing, and removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lowmark.export.errors import DestinationRefused
from lowmark.export.files import DataFile
from lowmark.runtime import DiskFull

_WORK = ".work"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_FREE_HINT = "Name a directory that is not there yet, or remove that one first."


def destination_of(to: str | os.PathLike[str], *, apart_from: str = "") -> str:
    """The directory of an export, from the root on. Refused, if it is there and not empty, or in
    the directory of the database.
    """
    given = os.fsdecode(to)
    if not given.strip() or "\0" in given:
        raise DestinationRefused(
            f"{given!r} is not a directory", hint="Name one: './export/orders'."
        )
    if "://" in given:
        raise DestinationRefused(
            f"{given} is not a directory of this machine",
            hint="Export to a directory, and copy it from there.",
        )
    path = os.path.realpath(os.path.expanduser(given))
    _check_free(path)
    if apart_from:
        database = os.path.realpath(apart_from)
        if os.path.commonpath([database, path]) == database:
            raise DestinationRefused(
                f"{path} is in the directory of the database",
                detail=f"Everything in {database} belongs to Lowmark.",
                hint="Name a directory outside of it.",
            )
    return path


def _check_free(path: str) -> None:
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise DestinationRefused(
            f"{path} is a file, or lies below one", hint="Name a directory."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from error
    if not names:
        return
    what = "is not empty"
    if "_delta_log" in names:
        what = "is a Delta table already"
    elif os.path.exists(os.path.join(path, "metadata", "version-hint.text")):
        what = "is an Iceberg table already"
    raise DestinationRefused(
        f"{path} {what}", detail="An export changes nothing that is there.", hint=_FREE_HINT
    )


def _unwritable(path: str, error: OSError) -> DestinationRefused:
    return DestinationRefused(
        f"{path} can't be written: {(error.strerror or str(error)).lower()}",
        hint="Name a directory that this process may make and write.",
    )


class Stage:
    """The hidden directory that becomes the destination."""

    def __init__(self, path: str, folder: str) -> None:
        self.path = path
        """Where it will be."""
        self.folder = folder
        self.work = os.path.join(folder, _WORK)
        self.published = False

    def take(self, file: DataFile, name: str) -> DataFile:
        """Let a file of a task count, under this name in the directory."""
        target = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.rename(os.path.join(self.work, file.name), target)
        except FileNotFoundError:
            raise not_shared(self.path) from None
        return DataFile(name, file.rows, file.bytes)

    def publish(self) -> None:
        """Make it the destination. Before it there was none, or an empty one."""
        # What tasks have left that did not count goes; one that still runs can't write here then.
        shutil.rmtree(self.work)
        _sync_all(self.folder)
        with suppress(FileNotFoundError):
            os.chmod(self.folder, stat.S_IMODE(os.stat(self.path).st_mode))
        try:
            os.rename(self.folder, self.path)
        except OSError as error:
            if error.errno in _TAKEN:
                _check_free(self.path)
            raise
        self.published = True
        _sync(os.path.dirname(self.path))


def not_shared(path: str) -> DestinationRefused:
    """What a task has written is not where this process looks for it."""
    return DestinationRefused(
        f"{path} is another directory where tasks run",
        hint="Name a directory that all machines of the Spark cluster see under this path, or"
        " export in this process: --engine local, in Python engine='local'.",
    )


@contextmanager
def staged(path: str) -> Iterator[Stage]:
    """A directory to write to; if it is not published, nothing of it is left."""
    parent, name = os.path.split(path)
    try:
        os.makedirs(parent, exist_ok=True)
        _sweep(parent, name)
        folder, lock = _made(parent, name)
        stage = Stage(path, folder)
        try:
            os.mkdir(stage.work)
            yield stage
        finally:
            if not stage.published:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        if error.errno in _FULL:
            full = DiskFull(path)
            full.hint = "Free some space, and export again. Nothing was left behind."
            raise full from error
        raise _unwritable(path, error) from error


def _prefix(name: str) -> str:
    return f".{name}.export-"


def _made(parent: str, name: str) -> tuple[str, int]:
    """A new directory, and the lock on it."""
    while True:
        folder = os.path.join(parent, f"{_prefix(name)}{secrets.token_hex(4)}")
        os.mkdir(folder)
        # Until it is locked, another export may take it for left behind.
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)


def _sweep(parent: str, name: str) -> None:
    """Remove what exports to this directory have left whose processes are gone."""
    for found in os.listdir(parent):
        if not found.startswith(_prefix(name)):
            continue
        folder = os.path.join(parent, found)
        with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _sync_all(folder: str) -> None:
    for at, _, files in os.walk(folder):
        for name in files:
            _sync(os.path.join(at, name))
        _sync(at)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
