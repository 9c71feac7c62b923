"""The machine's own disk, below one root folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import pwd
import stat as stat_bits
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Literal, ParamSpec, TypeVar

from lowmark.errors import LowmarkError, invariant
from lowmark.runtime.disk import (
    Buffer,
    DiskFailed,
    DiskFull,
    FileExists,
    FileMissing,
    Locked,
    Mode,
    NoHandles,
    NotAllowed,
    Stat,
    bytes_in,
    folder_of,
)

P = ParamSpec("P")
T = TypeVar("T")

_IOV_MAX = 1024
FILE_MODE = 0o600
FOLDER_MODE = 0o700
_KINDS: dict[int, Literal["folder", "symlink"]] = {
    stat_bits.S_IFDIR: "folder",
    stat_bits.S_IFLNK: "symlink",
}
_FLAGS = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


def _in_our_words(error: OSError, path: str, call: str) -> LowmarkError:
    # Raised in each call by itself: a context around them would cost more than the calls.
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFull(path)
        case errno.ENOENT:
            return FileMissing(path)
        case errno.ENOTDIR if call != "rename":  # there it means: a folder onto a file
            return FileMissing(path)
        case errno.EEXIST:
            return FileExists(path)
        case errno.EMFILE | errno.ENFILE:
            return NoHandles(path, call=call, reason=os.strerror(error.errno))
        case errno.EACCES | errno.EPERM:
            return NotAllowed(path, call=call, reason=os.strerror(error.errno))
        case _:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return DiskFailed(path, call=call, reason=reason)


class _RealFile:
    def __init__(self, fd: int, path: str, *, size: int) -> None:
        self._fd = fd
        self._path = path
        self._end = size

    def append(self, buffers: Sequence[Buffer]) -> None:
        self.write_at(self._end, buffers)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        start_at = offset
        try:
            for first in range(0, len(buffers), _IOV_MAX):
                offset += self._write_all(offset, buffers[first : first + _IOV_MAX])
        except OSError as error:
            raise _in_our_words(error, self._path, "write") from error
        if offset > start_at:  # writing nothing far behind the end does not move it
            self._end = max(self._end, offset)

    def _write_all(self, offset: int, buffers: Sequence[Buffer]) -> int:
        wanted = bytes_in(buffers)
        written = os.pwritev(self._fd, buffers, offset)
        if written < wanted:
            # Rare (a signal, a disk about to be full, over 2 GiB): go on from where it stopped.
            rest = memoryview(b"".join(buffers))
            while written < wanted:
                written += os.pwritev(self._fd, [rest[written:]], offset + written)
        return wanted

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._fd, length, offset)
            while data and len(data) < length:
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            raise _in_our_words(error, self._path, "read") from error

    def read_into(self, offset: int, buffer: memoryview) -> int:
        try:
            done = os.preadv(self._fd, [buffer], offset)
            while 0 < done < len(buffer):
                more = os.preadv(self._fd, [buffer[done:]], offset + done)
                if not more:
                    break
                done += more
            return done
        except OSError as error:
            raise _in_our_words(error, self._path, "read") from error

    def map(self) -> memoryview:
        try:
            if os.fstat(self._fd).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise _in_our_words(error, self._path, "map") from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _in_our_words(error, self._path, "truncate") from error
        self._end = size

    def datasync(self) -> None:
        try:
            os.fdatasync(self._open_fd())
        except OSError as error:
            raise _in_our_words(error, self._path, "fdatasync") from error

    def sync(self) -> None:
        try:
            os.fsync(self._open_fd())
        except OSError as error:
            raise _in_our_words(error, self._path, "fsync") from error

    def _open_fd(self) -> int:
        # Python's sync calls answer a closed handle with a ValueError; we want the system's answer.
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fd

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _in_our_words(error, self._path, "stat") from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


_NOTE_AT = 32
"""In a lock file with a note the holder's process number stands before it, with spaces behind."""
_NOTE_MAX = 4_096
_LOOK_S = 1.0
"""A process that looks whether a lock has a holder is through long before."""
_LOOK_PAUSE_S = 0.001


class _RealLock:
    def __init__(self, fd: int, *, signed: bool, left: bytes) -> None:
        self._fd = fd
        self._signed = signed
        self._stays = False
        self._using = threading.Lock()
        """Held while the handle is used: another thread may close it, and its number is taken."""
        self.left = left
        _held.add(self)

    def sign(self, text: bytes) -> None:
        # In one call, over what stands there: a caller that is refused meanwhile, and a crash, has
        # the old text or this one. It is for others to read; a full disk must not keep a node from
        # starting.
        with self._using, contextlib.suppress(OSError):
            if self._fd >= 0:
                os.pwrite(self._fd, text.ljust(os.fstat(self._fd).st_size), 0)
                os.ftruncate(self._fd, len(text))

    def note(self, text: bytes, *, stays: bool = False) -> None:
        self.sign(str(os.getpid()).encode().ljust(_NOTE_AT) + text)
        self._stays = stays

    def release(self) -> None:
        with self._using:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                # The next holder may be one that does not sign: our name must not stand for it.
                with contextlib.suppress(OSError):
                    if self._signed and not self._stays:
                        os.ftruncate(fd, 0)
                os.close(fd)

    def stay_behind(self) -> None:
        """In a child process: the claim is the parent's, and must end with the parent."""
        self._using = threading.Lock()  # a thread of the parent's may have it
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.release()


_held: weakref.WeakSet[_RealLock] = weakref.WeakSet()


def _forked() -> None:
    # A lock lives as long as any copy of its handle: a child would keep it for its parent.
    for lock in list(_held):
        lock.stay_behind()


os.register_at_fork(after_in_child=_forked)


class RealDisk:
    """A folder of the machine. The folder is created when it is not there."""

    def __init__(self, root: str, *, create: bool = True) -> None:
        self._root = os.path.abspath(root)
        if create:
            try:
                os.makedirs(self._root, FOLDER_MODE, exist_ok=True)
            except OSError as error:
                raise _in_our_words(error, root, "create") from error
        elif not os.path.isdir(self._root):
            raise FileMissing(root)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _call(self, call: Callable[P, T], path: str, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            raise _in_our_words(error, path, call.__name__) from error

    def open(self, path: str, mode: Mode) -> _RealFile:
        try:
            fd = os.open(self._at(path), _FLAGS[mode] | os.O_CLOEXEC, FILE_MODE)
            if mode == "create":
                return _RealFile(fd, path, size=0)
            found = os.fstat(fd)
            file = _RealFile(fd, path, size=found.st_size)
            if stat_bits.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return file
        except OSError as error:
            raise _in_our_words(error, path, "open") from error

    def rename(self, old: str, new: str) -> None:
        invariant(folder_of(old) == folder_of(new), "a rename stays within its folder")
        self._call(os.rename, old, self._at(old), self._at(new))

    def link(self, old: str, new: str) -> None:
        missing = new if self.stat(old) else old
        self._call(os.link, missing, self._at(old), self._at(new), follow_symlinks=False)

    def symlink(self, target: str, path: str) -> None:
        self._call(os.symlink, path, target, self._at(path))

    def read_link(self, path: str) -> str:
        return self._call(os.readlink, path, self._at(path))

    def unlink(self, path: str) -> None:
        self._call(os.unlink, path, self._at(path))

    def make_dir(self, path: str) -> None:
        self._call(os.mkdir, path, self._at(path), FOLDER_MODE)

    def remove_dir(self, path: str) -> None:
        self._call(os.rmdir, path, self._at(path))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(self._call(os.listdir, path, self._at(path)))
        except FileMissing:
            return []

    def stat(self, path: str) -> Stat | None:
        try:
            found = self._call(os.lstat, path, self._at(path))
        except FileMissing:
            return None
        return Stat(
            found.st_size,
            found.st_dev,
            found.st_ino,
            found.st_nlink,
            _KINDS.get(stat_bits.S_IFMT(found.st_mode), "file"),
            found.st_ctime_ns // 1_000_000,
            bool(found.st_mode & 0o077) and not stat_bits.S_ISLNK(found.st_mode),
            bool(found.st_mode & 0o022) and not stat_bits.S_ISLNK(found.st_mode),
        )

    def sync_dir(self, path: str) -> None:
        try:
            fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _in_our_words(error, path, "fsync") from error

    def free_bytes(self) -> int:
        found = self._call(os.statvfs, "", self._root)
        return found.f_bavail * found.f_frsize

    def lock(
        self, path: str, *, sign: bool = True, note: Callable[[bytes], bytes] | None = None
    ) -> _RealLock:
        flags = os.O_RDWR | os.O_CREAT if sign else os.O_RDONLY
        fd = self._call(os.open, path, self._at(path), flags | os.O_CLOEXEC, FILE_MODE)
        try:
            _lock(fd)
        except OSError as error:
            raise self._refused(fd, path, error) from error
        lock = _RealLock(fd, signed=sign, left=os.pread(fd, _NOTE_MAX, _NOTE_AT))
        if note is not None:
            lock.note(note(lock.left))
        elif sign:
            lock.sign(str(os.getpid()).encode())
        return lock

    def holder(self, path: str) -> Locked | None:
        """The process that has a lock file claimed, as its refusal says it; None: there is none, or
        no such file. Nothing is claimed or written.
        """
        try:
            fd = self._call(os.open, path, self._at(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileMissing:
            return None
        try:
            # A process that claims it at this moment waits for the end of this look (`_lock`).
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            refused = self._refused(fd, path, error)
            if isinstance(refused, Locked):
                return refused
            raise refused from error
        os.close(fd)
        return None

    def _refused(self, fd: int, path: str, error: OSError) -> LowmarkError:
        """Why a lock can't be had; its handle is closed."""
        pid = os.pread(fd, _NOTE_AT, 0).decode(errors="replace").strip()
        note = os.pread(fd, _NOTE_MAX, _NOTE_AT)
        found = _holder_of(fd, "READ" if isinstance(error, _Shared) else "WRITE")
        os.close(fd)
        if not isinstance(error, BlockingIOError):
            return _in_our_words(error, path, "lock")
        here = pid == str(os.getpid())
        unsigned = bool(found) and found != pid
        if unsigned:
            holder, here = f"process {_described(found)}", found == str(os.getpid())
        else:
            holder = f"process {pid}" if pid else "one that only reads"
        return Locked(
            self.describe(folder_of(path)), holder=holder, here=here, note=note, unsigned=unsigned
        )

    def describe(self, path: str) -> str:
        return self._at(path)


class _Shared(BlockingIOError):
    """A lock that others share, for longer than any that only looks."""


def _holder_of(fd: int, wanted: str) -> str:
    """The number of the process that has an open file locked for itself ("WRITE"), or shares its
    lock ("READ"), if the system tells; else empty.

    One that shares it while the other kind is in the way only looks, and is not its holder. The
    system does not tell for a process outside of this one's container, nor on each file system.
    """
    found = os.fstat(fd)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        for line in file:
            # 1: FLOCK  ADVISORY  WRITE 3329 00:1b:50236 0 EOF
            match line.split():
                case [_, "FLOCK", _, kind, pid, where, *_] if (kind, where) == (wanted, place):
                    if int(pid) > 0:
                        return pid
    return ""


def _described(pid: str) -> str:
    """A process as its user would look it up: its number, program and user."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            program = file.read().strip()
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return pid
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return f"{pid}, {program} of user {user}"


def _lock(fd: int) -> None:
    """Claim an open lock file, or raise `BlockingIOError`.

    One that only looks for a holder shares the lock for an instant: that is waited for.
    """
    ends_at = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises, if it is a holder
            fcntl.flock(fd, fcntl.LOCK_UN)
            if time.monotonic() > ends_at:
                raise _Shared(*error.args) from error
        time.sleep(_LOOK_PAUSE_S)
