"""Where immutable files live that more than one process reads: a folder, or any store that Arrow
can reach by a URL.

Paths are relative to the store's root, with `/` between their parts. A file is written once, whole
or not at all, and never changed: its name appears when all of it is there, and is durable then. On
a local file system that takes a temporary name, two syncs and a rename; object stores do it so by
themselves.

On a local file system files and folders are their user's alone (0600 and 0700), whatever the umask.
If the group may write to the root folder, they are its group's, too: so several users share one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat as stat_bits
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from lowmark.errors import LowmarkError, Rejected
from lowmark.runtime.disk import DiskFailed, DiskFull, FileMissing, NoHandles, StoreFailed
from lowmark.runtime.real_disk import FILE_MODE, FOLDER_MODE

_TEMPORARY = ".tmp"
_GROUP_FILE = 0o040
_GROUP_FOLDER = 0o070


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of a store."""

    path: str
    bytes: int


_USER = re.compile(r"(?<=://)([^/?#]*)@")
_USER_OF_S3 = re.compile(r"(?<=://)([^/?#]*:[^?#]*|[^/?#]*)@")
"""A secret key may have slashes that its author has not encoded; a bucket has no colon."""
_SECRET = re.compile(
    r"(?<=[?&;#])([^=&;]*(?:secret|token|password|signature|key|sig)=)([^&;#]*)", re.IGNORECASE
)
_NAMES = re.compile(r"(?:hdfs|viewfs|abfss?)://[A-Za-z0-9_.-]*@|[a-z]+://anonymous@", re.IGNORECASE)
"""A user's name without a password, as HDFS has it, a container, or `anonymous`."""
_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"']+")


def without_credentials(location: str) -> str:
    """A location as it may be shown: without keys, passwords and tokens."""
    if "://" not in location:
        return location
    s3 = location.lower().startswith("s3")
    user = (_USER_OF_S3 if s3 else _USER).search(location)
    if user is not None and not _NAMES.match(location):
        location = location[: user.start()] + location[user.end() :]
    while (found := _SECRET.search(location)) is not None:
        before, after = location[: found.start()], location[found.end() :]
        more = after[:1] in {"&", ";"}
        location = before + after[1:] if more else before.rstrip("?&;#") + after
    return location


def text_without_credentials(text: str) -> str:
    """Any text with the locations in it as they may be shown."""
    return _ANY_URL.sub(lambda found: without_credentials(found[0]), text)


def place_of_location(location: str) -> str:
    """What of a location is settled for good: where it is, and not how it is reached."""
    return without_credentials(location).partition("?")[0].rstrip("/")


def check_no_credentials(location: str) -> None:
    """Refuse a location with keys in it: it is stored and shown, and keys are neither."""
    shown = without_credentials(location)
    if shown != location:
        raise Rejected(
            f"the location {shown} was given with credentials in it",
            detail="A location is stored in the metastore and named in errors. They would be, too.",
            hint="Leave them out, and give them as AWS's tools take them: in the environment"
            " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), as a profile in ~/.aws (AWS_PROFILE),"
            " or by the role of the machine.",
        )


def whole_location(text: str) -> str:
    """A location that means the same wherever it is read: a URL, or an absolute path."""
    if not text or "://" in text:
        check_no_credentials(text)
        return text
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text)
    if scheme is not None:
        url = f"{scheme[0]}//{text[scheme.end() :].lstrip('/')}"
        check_no_credentials(url)
        raise Rejected(
            f"{text} is neither a path nor a URL",
            hint="Write a URL with its slashes: file:///srv/ledgers, s3://bucket/prefix.",
        )
    return os.path.abspath(os.path.expanduser(text))


class Store:
    """A root folder of a file system. May be used on any thread, and made anew in any process."""

    def __init__(self, location: str, *, owner: str = "") -> None:
        """`location`: an absolute path, or a URL such as `s3://bucket/prefix`. `owner`: whose files
        are there, if that is noted in the place itself; a file that is missing may then mean that
        this is another place.
        """
        self.owner = owner
        self.address = location
        """As it was given: what another process needs to open it. It may have credentials in it, of
        a database of an earlier release: it is shown nowhere."""
        self.location = without_credentials(location)
        """As it may be shown."""
        try:
            if "://" in location:
                system, root = fs.FileSystem.from_uri(location)
            else:
                system, root = fs.LocalFileSystem(), os.path.abspath(location)
        except (pa.ArrowInvalid, OSError, ValueError) as error:
            why = self._hidden(str(error))
            raise Rejected(
                f"{self.location} is not a place that Arrow can reach: {why}",
                hint="Use a folder, or a URL such as s3://bucket/prefix.",
            ) from None if why != str(error) else error
        if isinstance(system, fs.LocalFileSystem):
            system = fs.LocalFileSystem(use_mmap=True)
        self._system = system
        self._root = root.rstrip("/")
        self.local = isinstance(system, fs.LocalFileSystem)
        """Whether its files are files of this machine."""

    def full_path(self, path: str) -> str:
        """As other programs name it: a path of this machine, or what stands behind the scheme."""
        return f"{self._root}/{path}"

    def url(self, path: str) -> str:
        """As other programs open it."""
        if "://" in self.location and not self.local:
            place, mark, options = self.location.partition("?")
            return f"{place.rstrip('/')}/{path}{mark}{options}"
        return self.full_path(path)

    # -- reading --------------------------------------------------------------------------------

    def open(self, path: str) -> pa.NativeFile:
        """A file to read from, at any place; of this machine, its pages are not copied."""
        with self.told(path, "open"):
            return self._system.open_input_file(self.full_path(path))

    def read(self, path: str) -> bytes:
        """All of a file."""
        with self.told(path, "read"), self._system.open_input_file(self.full_path(path)) as file:
            data: bytes = file.read()
            return data

    def stat(self, path: str) -> Stored | None:
        """A file's size; None if it is not there."""
        with self.told(path, "stat"):
            info = self._system.get_file_info(self.full_path(path))
        if info.type is not fs.FileType.File:
            return None
        return Stored(path, info.size)

    def files(self, folder: str) -> list[Stored]:
        """All files below a folder, in the order of their names; unfinished ones too."""
        selector = fs.FileSelector(self.full_path(folder), allow_not_found=True, recursive=True)
        with self.told(folder, "list"):
            infos = self._system.get_file_info(selector)
        found = [
            Stored(info.path[len(self._root) + 1 :], info.size)
            for info in infos
            if info.type is fs.FileType.File
        ]
        return sorted(found, key=lambda one: one.path)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders right below a folder."""
        selector = fs.FileSelector(self.full_path(folder).rstrip("/"), allow_not_found=True)
        with self.told(folder, "list"):
            infos = self._system.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type is fs.FileType.Directory)

    # -- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def create(self, path: str, *, settled: bool = True) -> Iterator[pa.NativeFile]:
        """A file to write, that is there and durable when the block ends; never half of it.

        Not `settled`, its content is durable, and its name with the next file of its folder that
        is: for files that count only when that one is there.
        """
        target = self.full_path(path)
        with self.told(path, "write"):
            if not self.local:
                yield from self._streamed(target)
                return
            folder = os.path.dirname(target)
            self._make_folder(folder)
            unfinished = f"{target}{_TEMPORARY}"
            try:
                with self._made(unfinished) as stream:
                    yield stream
                _sync(unfinished)
                os.replace(unfinished, target)
                if settled:
                    _sync(folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(unfinished)
                raise

    def _streamed(self, target: str) -> Iterator[pa.NativeFile]:
        """Elsewhere a file appears when its stream is closed, whatever was written by then."""
        try:
            with self._system.open_output_stream(target) as stream:
                yield stream
        except BaseException:
            with contextlib.suppress(OSError):
                self._system.delete_file(target)
            raise

    def write(self, path: str, data: bytes) -> None:
        """A small file at once."""
        with self.create(path) as stream:
            stream.write(data)

    def hint(self, path: str, data: bytes) -> None:
        """A small file that nothing depends on: it may be lost, or be there in part."""
        with self.told(path, "write"):
            target = self.full_path(path)
            if self.local:
                self._make_folder(os.path.dirname(target))
                with self._made(target) as stream:
                    stream.write(data)
                return
            with self._system.open_output_stream(target) as stream:
                stream.write(data)

    def delete(self, path: str) -> None:
        """Remove a file; it is fine if it is gone already."""
        with self.told(path, "delete"), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(self.full_path(path))

    def delete_folder(self, path: str) -> None:
        """Remove a folder with all that is in it; it is fine if it is gone already."""
        with self.told(path, "delete"), contextlib.suppress(FileNotFoundError):
            self._system.delete_dir(self.full_path(path))

    def _make_folder(self, folder: str) -> None:
        """Make a folder, and see to it that its name is durable, and those above it."""
        made = []
        while not os.path.isdir(folder):
            made.append(folder)
            folder = os.path.dirname(folder)
        for one in reversed(made):
            with contextlib.suppress(FileExistsError):
                if not f"{one}/".startswith(f"{self._root}/"):
                    os.mkdir(one)  # above the root: not ours
                else:
                    os.mkdir(one, FOLDER_MODE)
                    if self._of_group(one):
                        os.chmod(one, stat_bits.S_IMODE(os.stat(one).st_mode) | _GROUP_FOLDER)
            _sync(os.path.dirname(one))

    def _made(self, target: str) -> pa.NativeFile:
        """A local file to write. Arrow makes files for all users: so it is made before."""
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            if self._of_group(target):
                os.fchmod(handle, FILE_MODE | _GROUP_FILE)
        finally:
            os.close(handle)
        return self._system.open_output_stream(target)

    def _of_group(self, path: str) -> bool:
        """Whether what is made below the root is for its group, too."""
        return path != self._root and bool(os.stat(self._root).st_mode & stat_bits.S_IWGRP)

    @contextlib.contextmanager
    def told(self, path: str, call: str) -> Iterator[None]:
        """Give what the file system says its name; for whoever has a file of it in hand, too."""
        where = self.url(path)
        try:
            yield
        except LowmarkError:
            raise
        except FileNotFoundError as error:
            raise FileMissing(where) from error
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFull(where) from error
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                raise NoHandles(where, call=call, reason=os.strerror(error.errno)) from error
            reason = str(error)
            if not self.local:
                raise StoreFailed(where, call=call, reason=self._hidden(reason)) from error
            raise DiskFailed(where, call=call, reason=reason) from error

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Around reads of a file that is open. Elsewhere it is read over a line, which may go away
        in the middle: that is the store's failure, and says nothing of the file.
        """
        if self.local:
            yield
            return
        with self.told(path, "read"):
            yield

    def _hidden(self, text: str) -> str:
        """What Arrow says, as it may be shown."""
        if self.address != self.location:
            text = text.replace(self.address, self.location)
        return text_without_credentials(text)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
