"""A disk over a folder that must not change: what is there is read, and what is written is kept in
memory.

A name leads to what this disk has in memory, else to the folder's. The names of a folder are listed
once, when it is first asked for: what another process makes there later is not seen. A file is read
where it is, so one that another process removes is missing (`FileMissing`) unless it is open; the
first change of a file takes it into memory, whole. Nothing outlives the process.

No lock is taken: the folder may belong to another process at any moment. A caller that cares looks
at the lock file itself.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from lowmark.errors import LowmarkError, invariant
from lowmark.runtime.disk import (
    Buffer,
    DiskFailed,
    File,
    FileExists,
    FileMissing,
    Mode,
    Stat,
    folder_of,
    name_of,
)
from lowmark.runtime.real_disk import RealDisk

_FREE_BYTES = 1 << 50
"""A disk that is full must not keep a node from starting that leaves it alone."""
_FIRST_INODE = 1 << 62
"""Beyond those that file systems give."""
_HOPS_MAX = 40


def _failed(path: str, call: str, number: int) -> DiskFailed:
    return DiskFailed(path, call=call, reason=os.strerror(number))


class _Node:
    """A file or a symlink; of the folder (`below`), until it is changed."""

    __slots__ = ("below", "changed_ms", "content", "device", "inode", "kind", "links", "target")

    def __init__(self, kind: Literal["file", "symlink"], *, device: int, inode: int) -> None:
        self.kind: Literal["file", "symlink"] = kind
        self.device = device
        self.inode = inode
        self.links = 0
        self.changed_ms = time.time_ns() // 1_000_000
        self.below: str | None = None
        self.content: bytearray | None = None
        self.target = ""


class _Folder:
    """A folder; its names are known once they were asked for."""

    __slots__ = ("below", "names")

    def __init__(self, below: str | None) -> None:
        self.below = below
        self.names: dict[str, _Node | _Folder] | None = {} if below is None else None


class _OverlayFile:
    def __init__(self, disk: OverlayDisk, node: _Node, path: str, *, writes: bool) -> None:
        self._disk = disk
        self._node: _Node | None = node
        self._path = path
        self._writes = writes
        self._below: File | None = None
        if node.content is None and node.below is not None:
            self._below = disk.below.open(node.below, "read")

    def _open(self, call: str) -> _Node:
        if self._node is None:
            raise _failed(self._path, call, errno.EBADF)
        return self._node

    def _changing(self, call: str) -> bytearray:
        """What is in it, to be changed; the disk's lock is held."""
        node = self._open(call)
        if not self._writes:
            raise _failed(self._path, call, errno.EBADF)
        if node.content is None:
            below = self._below
            node.content = bytearray(b"" if below is None else below.read_at(0, below.size()))
        node.changed_ms = time.time_ns() // 1_000_000
        return node.content

    def append(self, buffers: Sequence[Buffer]) -> None:
        with self._disk.lock_of_names:
            self._changing("write").extend(b"".join(buffers))

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        with self._disk.lock_of_names:
            content, data = self._changing("write"), b"".join(buffers)
            if data:
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data

    def read_at(self, offset: int, length: int) -> bytes:
        node = self._open("read")
        if node.content is None and self._below is not None:
            return self._below.read_at(offset, length)
        with self._disk.lock_of_names:
            return bytes((node.content or b"")[offset : offset + length])

    def read_into(self, offset: int, buffer: memoryview) -> int:
        node = self._open("read")
        if node.content is None and self._below is not None:
            return self._below.read_into(offset, buffer)
        data = self.read_at(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        node = self._open("map")
        if node.content is None and self._below is not None:
            return self._below.map()
        with self._disk.lock_of_names:
            return memoryview(bytes(node.content or b""))

    def truncate(self, size: int) -> None:
        with self._disk.lock_of_names:
            content = self._changing("truncate")
            del content[size:]
            content.extend(bytes(size - len(content)))

    def datasync(self) -> None:
        self._open("fdatasync")

    def sync(self) -> None:
        self._open("fsync")

    def size(self) -> int:
        node = self._open("stat")
        if node.content is None and self._below is not None:
            return self._below.size()
        return len(node.content or b"")

    def close(self) -> None:
        self._node = None
        below, self._below = self._below, None
        if below is not None:
            below.close()


class _NoLock:
    """Nothing is locked: see above."""

    left = b""

    def note(self, text: bytes, *, stays: bool = False) -> None:
        del text, stays

    def release(self) -> None:
        pass


class OverlayDisk:
    """See above. May be used on any thread."""

    def __init__(self, below: RealDisk) -> None:
        self.below = below
        self.lock_of_names = threading.RLock()
        self._root = _Folder("")
        self._made = _FIRST_INODE
        found = below.stat("")
        self._device = 0 if found is None else found.device

    # -- names ----------------------------------------------------------------------------------

    def _names(self, folder: _Folder) -> dict[str, _Node | _Folder]:
        if folder.names is None:
            assert folder.below is not None
            names: dict[str, _Node | _Folder] = {}
            for name in self.below.list(folder.below):
                path = f"{folder.below}/{name}" if folder.below else name
                found = self._found(path)
                if found is not None:
                    names[name] = found
            folder.names = names
        return folder.names

    def _found(self, path: str) -> _Node | _Folder | None:
        """What the folder has at a path; None: it went just now."""
        stat = self.below.stat(path)
        if stat is None:
            return None
        if stat.kind == "folder":
            return _Folder(path)
        node = _Node(stat.kind, device=stat.device, inode=stat.inode)
        node.links, node.changed_ms, node.below = stat.links, stat.changed_ms, path
        if stat.kind == "symlink":
            try:
                node.target = self.below.read_link(path)
            except LowmarkError:
                return None
        return node

    def _folder(self, path: str, hops: int = 0) -> _Folder | None:
        """A folder by its path; symlinks on the way are followed."""
        at, here = self._root, ""
        for part in path.split("/") if path else ():
            if part == "..":
                parent = self._folder(folder_of(here), hops)
                if parent is None:
                    return None
                at, here = parent, folder_of(here)
                continue
            found = self._names(at).get(part)
            if isinstance(found, _Node) and found.kind == "symlink":
                found = self._linked_folder(at, here, part, found, hops)
            if not isinstance(found, _Folder):
                return None
            at, here = found, f"{here}/{part}" if here else part
        return at

    def _linked_folder(
        self, at: _Folder, here: str, name: str, link: _Node, hops: int
    ) -> _Folder | None:
        if hops > _HOPS_MAX:
            raise _failed(here, "open", errno.ELOOP)
        if not link.target.startswith("/"):
            found = self._folder(f"{here}/{link.target}" if here else link.target, hops + 1)
            if found is not None:
                return found
        if link.below is None:
            return None
        # It leads out of here: a folder that an administrator has put on another disk.
        outside = self._names(at)[name] = _Folder(link.below)
        return outside

    def _parent(self, path: str) -> dict[str, _Node | _Folder]:
        """The names beside a path, to be changed."""
        folder = self._folder(folder_of(path))
        if folder is None:
            raise FileMissing(path)
        return self._names(folder)

    def _get(self, path: str) -> _Node | _Folder | None:
        if not path:
            return self._root
        folder = self._folder(folder_of(path))
        return None if folder is None else self._names(folder).get(name_of(path))

    def _new(self, kind: Literal["file", "symlink"]) -> _Node:
        self._made += 1
        node = _Node(kind, device=self._device, inode=self._made)
        node.links = 1
        return node

    # -- calls ----------------------------------------------------------------------------------

    def open(self, path: str, mode: Mode) -> _OverlayFile:
        """See `Disk`."""
        with self.lock_of_names:
            if mode == "create":
                names = self._parent(path)
                if name_of(path) in names:
                    raise FileExists(path)
                node = names[name_of(path)] = self._new("file")
                node.content = bytearray()
                return _OverlayFile(self, node, path, writes=True)
            at = path
            for _ in range(_HOPS_MAX):
                found = self._get(at)
                if found is None:
                    raise FileMissing(path)
                if isinstance(found, _Folder):
                    raise _failed(path, "open", errno.EISDIR)
                if found.kind == "file":
                    return _OverlayFile(self, found, path, writes=mode == "write")
                at = f"{folder_of(at)}/{found.target}" if folder_of(at) else found.target
            raise _failed(path, "open", errno.ELOOP)

    def rename(self, old: str, new: str) -> None:
        """See `Disk`."""
        invariant(folder_of(old) == folder_of(new), "a rename stays within its folder")
        with self.lock_of_names:
            names = self._parent(old)
            found, there = names.get(name_of(old)), names.get(name_of(new))
            if found is None:
                raise FileMissing(old)
            if found is there or _same(found, there):
                return
            if isinstance(found, _Folder):
                if isinstance(there, _Node):
                    raise _failed(old, "rename", errno.ENOTDIR)
                if there is not None and self._names(there):
                    raise _failed(old, "rename", errno.ENOTEMPTY)
            elif isinstance(there, _Folder):
                raise _failed(old, "rename", errno.EISDIR)
            elif there is not None:
                there.links -= 1
            del names[name_of(old)]
            names[name_of(new)] = found

    def link(self, old: str, new: str) -> None:
        """See `Disk`."""
        with self.lock_of_names:
            found = self._get(old)
            if found is None:
                raise FileMissing(old)
            if isinstance(found, _Folder):
                raise _failed(old, "link", errno.EPERM)
            names = self._parent(new)
            if name_of(new) in names:
                raise FileExists(new)
            names[name_of(new)] = found
            found.links += 1

    def symlink(self, target: str, path: str) -> None:
        """See `Disk`."""
        with self.lock_of_names:
            names = self._parent(path)
            if name_of(path) in names:
                raise FileExists(path)
            node = names[name_of(path)] = self._new("symlink")
            node.target = target

    def read_link(self, path: str) -> str:
        """See `Disk`."""
        with self.lock_of_names:
            found = self._get(path)
            if found is None:
                raise FileMissing(path)
            if isinstance(found, _Folder) or found.kind != "symlink":
                raise _failed(path, "readlink", errno.EINVAL)
            return found.target

    def unlink(self, path: str) -> None:
        """See `Disk`."""
        with self.lock_of_names:
            names = self._parent(path)
            found = names.get(name_of(path))
            if found is None:
                raise FileMissing(path)
            if isinstance(found, _Folder):
                raise _failed(path, "unlink", errno.EISDIR)
            del names[name_of(path)]
            found.links -= 1

    def make_dir(self, path: str) -> None:
        """See `Disk`."""
        with self.lock_of_names:
            names = self._parent(path)
            if name_of(path) in names:
                raise FileExists(path)
            names[name_of(path)] = _Folder(None)

    def remove_dir(self, path: str) -> None:
        """See `Disk`."""
        with self.lock_of_names:
            names = self._parent(path)
            found = names.get(name_of(path))
            if found is None:
                raise FileMissing(path)
            if isinstance(found, _Node):
                raise _failed(path, "rmdir", errno.ENOTDIR)
            if self._names(found):
                raise _failed(path, "rmdir", errno.ENOTEMPTY)
            del names[name_of(path)]

    def list(self, path: str) -> list[str]:
        """See `Disk`."""
        with self.lock_of_names:
            folder = self._folder(path)
            return [] if folder is None else sorted(self._names(folder))

    def stat(self, path: str) -> Stat | None:
        """See `Disk`."""
        with self.lock_of_names:
            found = self._get(path)
            if found is None:
                return None
            if isinstance(found, _Folder):
                below = None if found.below is None else self.below.stat(found.below)
                return below or Stat(0, self._device, id(found), 2, "folder", 0)
            if found.content is None and found.below is not None:
                below = self.below.stat(found.below)
                size = 0 if below is None else below.size
            else:
                size = len(found.content or b"")
            return Stat(size, found.device, found.inode, found.links, found.kind, found.changed_ms)

    def sync_dir(self, path: str) -> None:
        """See `Disk`. There is nothing to sync."""
        with self.lock_of_names:
            if self._folder(path) is None:
                raise FileMissing(path)

    def free_bytes(self) -> int:
        """See `Disk`."""
        return _FREE_BYTES

    def lock(
        self, path: str, *, sign: bool = True, note: Callable[[bytes], bytes] | None = None
    ) -> _NoLock:
        """See above: nothing is claimed."""
        del path, sign, note
        return _NoLock()

    def describe(self, path: str) -> str:
        """See `Disk`."""
        return self.below.describe(path)


def _same(one: _Node | _Folder, other: _Node | _Folder | None) -> bool:
    """Whether both names are of one file: two that the folder has are two nodes here."""
    return (
        isinstance(one, _Node)
        and isinstance(other, _Node)
        and (one.device, one.inode) == (other.device, other.inode)
    )
