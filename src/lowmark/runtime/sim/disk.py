"""A disk that remembers what is durable and what is not, and can be crashed at any call.

Each file keeps its durable bytes and the writes since its last sync; each folder keeps its durable
names and the changes since its last sync. A crash keeps any part of what was not synced:

- of a file: any prefix of its unsynced writes, all but one of them, or a prefix and a part of the
  next write; of the last write, also its end without its beginning, and its size without its bytes;
- of the folders: any subset of their unsynced changes in which the changes of one name keep their
  order. A change is atomic (a rename is one).

`crash_images()` enumerates those worlds; `crashed()` draws one of them. The disk can also fail a
call (after a failed sync the bytes written before it are never durable, as on Linux), run out of
space in the middle of a write, flip a bit, and stop the world at its n-th call.

One failed call is over with the next try. What lasts longer than every retry is `go_bad`: a file or
a folder that can't be written, or read, or neither, or a process without a file handle left; it is
so until `heal`, which stands for a restart, a remount, or another cable. A folder can also be away
for a while (`take_away`, `put_back`).
"""

from __future__ import annotations

import builtins
import itertools
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, assert_never

from lowmark.errors import invariant
from lowmark.runtime.disk import (
    Buffer,
    DiskFailed,
    DiskFull,
    FileExists,
    FileMissing,
    Locked,
    Mode,
    NoHandles,
    Stat,
    folder_of,
    name_of,
)
from lowmark.runtime.sim.crash import (
    Choice,
    choices,
    drawn_choice,
    fingerprint,
    survivor,
    whole_choice,
)
from lowmark.runtime.sim.tree import (
    FileChange,
    FileNode,
    FolderNode,
    LinkNode,
    NameChange,
    Node,
    Truncate,
    Write,
    walk,
)

# What `fail_next` takes: `space` is a write that finds the disk full, the others fail as they are.
FAULTS = frozenset({"create", "link", "mkdir", "rename", "rmdir", "symlink", "unlink"}) | {
    "datasync",
    "read",
    "space",
    "sync_dir",
    "truncate",
    "write",
}
SYMLINKS_FOLLOWED_MAX = 8

Ailment = Literal["unwritable", "unreadable", "broken", "no handles"]
_CHANGES = FAULTS - {"datasync", "read", "space", "sync_dir"} | {"open for writing"}
_READS = frozenset({"open", "read", "list"})
_AILMENTS: dict[Ailment, tuple[frozenset[str], str]] = {
    "unwritable": (_CHANGES, "Read-only file system"),
    "unreadable": (_READS, "Input/output error"),
    "broken": (_CHANGES | _READS | {"datasync", "sync_dir"}, "Input/output error"),
    "no handles": (
        frozenset({"create", "open", "open for writing", "list", "open folder", "lock"}),
        "Too many open files",
    ),
}
"""Which calls each of them refuses, and with which words."""


class WorldStopped(BaseException):
    """The simulated machine lost its power at the call that was asked for.

    Not an Exception, so that no error handling in between can swallow a crash.
    """


@dataclass(frozen=True, slots=True)
class CrashImage:
    """One world that a crash can leave behind, and what was lost in it."""

    label: str
    disk: SimDisk


class _SimFile:
    def __init__(self, disk: SimDisk, node: FileNode, *, path: str, mode: Mode) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._mode = mode
        self._end = len(node.content)
        self._closed = False

    def append(self, buffers: Sequence[Buffer]) -> None:
        self.write_at(self._end, buffers)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check("write")
        writes: list[Write] = []
        for data in map(bytes, buffers):
            if data:  # writing nothing far behind the end does not move it
                writes.append(Write(offset, data))
                offset += len(data)
        self._disk._called("write", self._path)
        self._disk._write(self._path, self._node, writes)
        if writes:
            self._end = max(self._end, offset)

    def read_at(self, offset: int, length: int) -> bytes:
        self._check("read")
        return bytes(memoryview(self._node.content)[offset : offset + length])

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read_at(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        self._check("read")
        return memoryview(self._node.seen())

    def truncate(self, size: int) -> None:
        self._check("truncate")
        self._disk._called("truncate", self._path)
        self._disk._alter(self._node, Truncate(size))
        self._end = size

    def datasync(self) -> None:
        self._check("datasync")
        self._disk._called("datasync", self._path, fails=False)
        try:
            self._disk._refuse("datasync", self._path)
            self._disk._fail("datasync", self._path)
        except DiskFailed:
            # Linux marks the pages clean after a failed sync: a later one succeeds, and saves
            # nothing of what was written before.
            self._node.unsynced.clear()
            raise
        self._node.sync()

    def sync(self) -> None:
        self.datasync()

    def size(self) -> int:
        self._check("stat")
        return len(self._node.content)

    def close(self) -> None:
        self._closed = True

    def _check(self, call: str) -> None:
        changes = call in {"write", "truncate"}
        if self._closed or (changes and self._mode == "read"):
            raise DiskFailed(self._path, call=call, reason="Bad file descriptor")
        if call == "read":
            self._disk._refuse("read", self._path)
            self._disk._fail("read", self._path)


class _SimLock:
    def __init__(self, disk: SimDisk, path: str, left: bytes) -> None:
        self._disk = disk
        self._path = path
        self._stays = False
        self.left = left
        self.noted = b""

    def note(self, text: bytes, *, stays: bool = False) -> None:
        self.noted, self._stays = text, stays

    def release(self) -> None:
        if self._disk._locks.get(self._path) is self:
            del self._disk._locks[self._path]
            self._disk._left[self._path] = self.noted if self._stays else b""


class SimDisk:
    """A file system in memory with an honest idea of durability."""

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.calls = 0
        self.capacity_bytes = capacity_bytes
        self.stop_at_call: int | None = None
        self.before_call: Callable[[str, str], None] | None = None
        self.wall_ms = wall_ms
        self.note = note
        self._inodes = itertools.count(1)
        self._root = FolderNode(0)
        self._used_bytes = 0
        self._locks: dict[str, _SimLock] = {}
        self._left: dict[str, bytes] = {}
        """What holders of locks left; it does not outlive a crash of the machine."""
        self._faults: list[tuple[str, str]] = []
        self._ailing: list[tuple[Ailment, str]] = []

    # -- faults ---------------------------------------------------------------------------------

    def fail_next(self, call: str, path_part: str) -> None:
        """Let the next such call on a path that contains `path_part` fail."""
        invariant(call in FAULTS, f"{call} is a call that can fail: {sorted(FAULTS)}")
        self._faults.append((call, path_part))

    def go_bad(self, ailment: Ailment, path: str = "") -> None:
        """Let a file, a folder with all in it, or ('') the whole disk be so until `heal`."""
        self._ailing.append((ailment, path))

    def heal(self) -> None:
        """Let everything that went bad be well again; faults that were asked for once, too."""
        self._ailing.clear()
        self._faults.clear()

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a file where it lies, behind everybody's back."""
        self._file(path).flip_bit(bit)

    def take_away(self, path: str) -> Node:
        """Let a file or folder not be there, as when its disk is not mounted; gives it away."""
        folder, name = self._folder(folder_of(path)), name_of(path)
        node = folder.names.pop(name)
        folder.durable.pop(name, None)
        for change in folder.unsynced:
            change.pop(name, None)
        return node

    def put_back(self, path: str, node: Node) -> None:
        """Let what was taken away be there again, as it was, in place of what is there now."""
        folder, name = self._folder(folder_of(path)), name_of(path)
        folder.names[name] = folder.durable[name] = node

    def _takes_fault(self, call: str, path: str) -> bool:
        for fault in self._faults:
            if fault[0] == call and fault[1] in path:
                self._faults.remove(fault)
                return True
        return False

    def _fail(self, call: str, path: str) -> None:
        if self._faults and self._takes_fault(call, path):
            raise _failed(path, call)

    def _refuse(self, call: str, path: str) -> None:
        for ailment, root in self._ailing:
            calls, reason = _AILMENTS[ailment]
            if call in calls and (not root or path == root or path.startswith(f"{root}/")):
                kind = NoHandles if ailment == "no handles" else DiskFailed
                raise kind(path, call=call, reason=reason)

    def _called(self, call: str, path: str, *, fails: bool = True) -> None:
        if self.before_call is not None:
            self.before_call(call, path)
        self.calls += 1
        self.note(f"disk {call} {path}")
        if self.stop_at_call is not None and self.calls >= self.stop_at_call:
            raise WorldStopped(f"call {self.calls}: {call} {path}")
        if fails:
            self._refuse(call, path)
            self._fail(call, path)

    def _write(self, path: str, node: FileNode, writes: builtins.list[Write]) -> None:
        """Write as far as there is space, as the kernel does."""
        fits = writes
        if self._takes_fault("space", path):
            fits = _beginning(writes, sum(len(write.data) for write in writes) // 2)
        elif self.capacity_bytes is not None:
            size_max = len(node.content) + self.free_bytes()
            if any(write.offset + len(write.data) > size_max for write in writes):
                fits = _beginning(writes, size_max - writes[0].offset)
        for write in fits:
            self._alter(node, write)
        if fits is not writes:
            raise DiskFull(path)

    def _alter(self, node: FileNode, change: FileChange) -> None:
        size_before = len(node.content)
        node.change(change)
        node.changed_ms = self.wall_ms()
        if node.links:
            self._used_bytes += len(node.content) - size_before

    # -- names ----------------------------------------------------------------------------------

    def _lookup(self, path: str) -> Node | None:
        node: Node = self._root
        for part in path.split("/") if path else ():
            found = node.names.get(part) if isinstance(node, FolderNode) else None
            if found is None:
                return None
            node = found
        return node

    def _folder(self, path: str) -> FolderNode:
        node = self._lookup(path)
        if not isinstance(node, FolderNode):
            raise FileMissing(path)
        return node

    def _file(self, path: str) -> FileNode:
        for _ in range(SYMLINKS_FOLLOWED_MAX):
            match self._lookup(path):
                case None:
                    raise FileMissing(path)
                case FileNode() as file:
                    return file
                case FolderNode():
                    raise DiskFailed(path, call="open", reason="Is a directory")
                case LinkNode(target=target):
                    path = posixpath.normpath(posixpath.join(folder_of(path), target))
        raise DiskFailed(path, call="open", reason="Too many levels of symbolic links")

    def _free(self, path: str) -> None:
        if self._lookup(path) is not None:
            raise FileExists(path)

    def _change(self, call: str, path: str, change: NameChange) -> None:
        folder = self._folder(folder_of(path))
        self._called(call, path)
        gone = folder.change(change)
        folder.changed_ms = now_ms = self.wall_ms()
        for node in (*gone, *change.values()):
            if node is not None:
                node.changed_ms = now_ms
        for node in gone:
            if isinstance(node, FileNode) and not node.links:
                self._used_bytes -= len(node.content)

    # -- what a disk can do ---------------------------------------------------------------------

    def open(self, path: str, mode: Mode) -> _SimFile:
        if mode == "create":
            self._free(path)
            self._change("create", path, {name_of(path): FileNode(next(self._inodes))})
        elif self._ailing:
            self._file(path)  # what is not there is not there, whatever ails the disk
            self._refuse("open" if mode == "read" else "open for writing", path)
        return _SimFile(self, self._file(path), path=path, mode=mode)

    def rename(self, old: str, new: str) -> None:
        invariant(folder_of(old) == folder_of(new), "a rename stays within its folder")
        node, there = self._lookup(old), self._lookup(new)
        if node is None:
            raise FileMissing(old)
        if there is node:  # as POSIX has it: two names of one file, neither goes
            self._called("rename", new)
            return
        if there is not None and isinstance(there, FolderNode) != isinstance(node, FolderNode):
            raise DiskFailed(new, call="rename", reason="a folder and a file can't replace another")
        if isinstance(there, FolderNode) and there.names:
            raise DiskFailed(new, call="rename", reason="Directory not empty")
        self._change("rename", new, {name_of(old): None, name_of(new): node})

    def link(self, old: str, new: str) -> None:
        node = self._lookup(old)
        if node is None:
            raise FileMissing(old)
        self._free(new)
        if isinstance(node, FolderNode):
            raise DiskFailed(old, call="link", reason="Operation not permitted")
        self._change("link", new, {name_of(new): node})

    def symlink(self, target: str, path: str) -> None:
        self._free(path)
        self._change("symlink", path, {name_of(path): LinkNode(next(self._inodes), target=target)})

    def read_link(self, path: str) -> str:
        match self._lookup(path):
            case None:
                raise FileMissing(path)
            case LinkNode(target=target):
                return target
            case _:
                raise DiskFailed(path, call="readlink", reason="Invalid argument")

    def unlink(self, path: str) -> None:
        match self._lookup(path):
            case None:
                raise FileMissing(path)
            case FolderNode():
                raise DiskFailed(path, call="unlink", reason="Is a directory")
            case _:
                self._change("unlink", path, {name_of(path): None})

    def make_dir(self, path: str) -> None:
        self._free(path)
        self._change("mkdir", path, {name_of(path): FolderNode(next(self._inodes))})

    def remove_dir(self, path: str) -> None:
        if self._folder(path).names:
            raise DiskFailed(path, call="rmdir", reason="Directory not empty")
        self._change("rmdir", path, {name_of(path): None})

    def list(self, path: str) -> list[str]:
        node = self._lookup(path)
        if isinstance(node, FolderNode):
            self._refuse("list", path)
        return sorted(node.names) if isinstance(node, FolderNode) else []

    def stat(self, path: str) -> Stat | None:
        match self._lookup(path):
            case None:
                return None
            case FileNode() as node:
                size = len(node.content)
                return Stat(size, 1, node.inode, node.links, "file", node.changed_ms)
            case FolderNode() as node:
                return Stat(0, 1, node.inode, 1, "folder", node.changed_ms)
            case LinkNode() as node:
                size = len(node.target.encode())
                return Stat(size, 1, node.inode, node.links, "symlink", node.changed_ms)
            case node:
                assert_never(node)

    def sync_dir(self, path: str) -> None:
        folder = self._folder(path)
        self._called("sync_dir", path, fails=False)
        self._refuse("open folder", path)  # then nothing was synced, and nothing is spoilt
        try:
            self._refuse("sync_dir", path)
            self._fail("sync_dir", path)
        except DiskFailed:
            folder.unsynced.clear()
            raise
        folder.sync()

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 50
        return max(0, self.capacity_bytes - self._used_bytes)

    def lock(
        self, path: str, *, sign: bool = True, note: Callable[[bytes], bytes] | None = None
    ) -> _SimLock:
        self._refuse("lock", path)
        if path in self._locks:
            noted = self._locks[path].noted
            raise Locked(folder_of(path), holder="this simulation", note=noted)
        if not sign:
            self._file(path)
        elif self._lookup(path) is None:
            self.open(path, "create")
        left = self._left.get(path, b"")
        lock = self._locks[path] = _SimLock(self, path, left)
        if note is not None:
            lock.note(note(left))
        return lock

    def describe(self, path: str) -> str:
        return path

    # -- crashes --------------------------------------------------------------------------------

    def crash_images(self, dice: Random, *, samples: int = 16) -> Iterator[CrashImage]:
        """Every world that a crash at this moment may leave (see the head of this file)."""
        for choice in choices(self._root, dice, samples=samples):
            yield CrashImage(choice.label, self._after(choice))

    def crashed(self, dice: Random) -> SimDisk:
        """One world after a crash, drawn at random."""
        return self._after(drawn_choice(self._root, dice))

    def killed(self) -> SimDisk:
        """The world after the process alone died: nothing is lost, nothing more is durable."""
        self._locks.clear()
        self.stop_at_call = None
        return self

    def image(self) -> SimDisk:
        """A disk of its own with all that is here now, as a copy or a snapshot of a machine."""
        return self._after(whole_choice(self._root))

    def _after(self, choice: Choice) -> SimDisk:
        disk = SimDisk(capacity_bytes=self.capacity_bytes, wall_ms=self.wall_ms, note=self.note)
        disk._root, disk._used_bytes = survivor(self._root, choice)
        disk._inodes = itertools.count(next(self._inodes))
        return disk

    def fingerprint(self) -> int:
        """Equal for equal trees, within one process."""
        return fingerprint(self._root)

    def tree(self) -> builtins.list[str]:
        """Every path there is, sorted; folders end in a slash."""
        return sorted(walk("", self._root))


def _failed(path: str, call: str) -> DiskFailed:
    return DiskFailed(path, call=call, reason="simulated failure")


def _beginning(writes: list[Write], length: int) -> list[Write]:
    """The first bytes of some writes."""
    part: list[Write] = []
    for write in writes:
        if length > 0:
            part.append(Write(write.offset, write.data[:length]))
            length -= len(write.data)
    return part
