"""What a simulated disk is made of: nodes, and for each what is durable and what is not yet.

Contents are `bytes` while several worlds share them and a `bytearray` once one world writes, so a
crash image costs its nodes and not its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Write:
    """Bytes that were written at an offset."""

    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Do to a content what this write did."""
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(slots=True)
class Truncate:
    """A file that was cut, or stretched with zeros, to a size."""

    size: int

    def apply(self, content: bytearray) -> None:
        """Do to a content what this call did."""
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


FileChange = Write | Truncate


@dataclass(slots=True, eq=False)
class FileNode:
    """A file: as everybody sees it now, as it is durable, and the changes between the two."""

    inode: int
    changed_ms: int = 0
    links: int = 0
    content: bytes | bytearray = b""
    durable: bytes | bytearray = b""
    unsynced: list[FileChange] = field(default_factory=list)

    def change(self, change: FileChange) -> None:
        """Change what everybody sees; durable it becomes with the next sync."""
        self.content = owned = _owned(self.content)
        change.apply(owned)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Make durable what was changed since the last sync."""
        if self.unsynced:
            self.durable = owned = _owned(self.durable)
            for change in self.unsynced:
                change.apply(owned)
            self.unsynced.clear()

    def flip_bit(self, bit: int) -> None:
        """Change a bit of both contents where they lie."""
        self.content, self.durable = bytearray(self.content), bytearray(self.durable)
        for content in (self.content, self.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << (bit % 8)

    def seen(self) -> bytes:
        """The content, as bytes that will not change."""
        if not isinstance(self.content, bytes):
            self.content = bytes(self.content)
        return self.content

    def survives(self, changes: list[FileChange]) -> bytes:
        """The content after a crash that let through these changes of the unsynced ones."""
        if not isinstance(self.durable, bytes):
            self.durable = bytes(self.durable)
        if not changes:
            return self.durable
        content = bytearray(self.durable)
        for change in changes:
            change.apply(content)
        return bytes(content)


@dataclass(slots=True, eq=False)
class LinkNode:
    """A symlink; it is never half there."""

    inode: int
    changed_ms: int = 0
    links: int = 0
    target: str = ""


@dataclass(slots=True, eq=False)
class FolderNode:
    """A folder: its names now, its durable names, and the changes between the two."""

    inode: int
    changed_ms: int = 0
    links: int = 0
    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    unsynced: list[NameChange] = field(default_factory=list)

    def change(self, change: NameChange) -> list[Node]:
        """Change the names; gives the nodes that went from a name."""
        gone = [self.names[name] for name in change if name in self.names]
        for node in gone:
            node.links -= 1
        for new in change.values():
            if new is not None:
                new.links += 1
        assign(self.names, change)
        self.unsynced.append(change)
        return gone

    def sync(self) -> None:
        """Make the names durable."""
        for change in self.unsynced:
            assign(self.durable, change)
        self.unsynced.clear()


Node = FileNode | FolderNode | LinkNode
NameChange = dict[str, Node | None]  # the names that one call changes at once; None: gone


def assign(names: dict[str, Node], change: NameChange) -> None:
    """Do to names what a call did."""
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def walk(path: str, folder: FolderNode) -> Iterator[str]:
    """Every path below a folder; folders end in a slash."""
    for name, node in folder.names.items():
        if isinstance(node, FolderNode):
            yield f"{path}{name}/"
            yield from walk(f"{path}{name}/", node)
        else:
            yield f"{path}{name}"


def reachable(root: FolderNode) -> list[Node]:
    """Nodes by present, durable or unsynced names: all that a crash can bring to light."""
    found: dict[int, Node] = {}
    todo: list[Node] = [root]
    while todo:
        node = todo.pop()
        if node.inode in found:
            continue
        found[node.inode] = node
        if isinstance(node, FolderNode):
            todo += node.names.values()
            todo += node.durable.values()
            todo += [n for change in node.unsynced for n in change.values() if n is not None]
    return [found[inode] for inode in sorted(found)]


def _owned(content: bytes | bytearray) -> bytearray:
    return content if isinstance(content, bytearray) else bytearray(content)
