"""Which worlds a crash can leave: the choices, and the tree that follows from each of them.

A choice says which unsynced name changes went through, and what each file with unsynced changes
holds now. Every name is a cell: changes of one name keep their order, so a change went through only
if the earlier ones of its names did. Otherwise a new file could wipe out the old one whose rename
was lost, and no file system does that. Changes of different names know no order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import assert_never

from lowmark.runtime.sim.tree import (
    FileChange,
    FileNode,
    FolderNode,
    LinkNode,
    Node,
    Write,
    assign,
    reachable,
)

# Beyond this many unsynced folder changes, subsets are sampled instead of enumerated.
FOLDER_CHANGES_ENUMERATED_MAX = 6
# Beyond this many unsynced changes of one file, the places where they end are sampled.
FILE_CHANGES_ENUMERATED_MAX = 64

NameChangeId = tuple[int, int]  # the folder's inode, and which of its unsynced changes
Names = frozenset[NameChangeId]


@dataclass(frozen=True, slots=True)
class Choice:
    """What one crash let through."""

    label: str
    names: Names
    contents: dict[int, bytes]  # by inode, for each file with unsynced changes


def choices(root: FolderNode, dice: Random, *, samples: int) -> Iterator[Choice]:
    """Every choice that a crash at this moment has, the gentlest first, each world once."""
    seen: set[object] = set()
    for choice in _all_choices(root, dice, samples):
        world = _world(root, choice)
        if world not in seen:
            seen.add(world)
            yield choice


def _all_choices(root: FolderNode, dice: Random, samples: int) -> Iterator[Choice]:
    nodes = reachable(root)
    files = [node for node in nodes if isinstance(node, FileNode) and node.unsynced]
    needs = _needs(nodes)
    kept = {file.inode: file.survives(file.unsynced) for file in files}
    lost = {file.inode: file.survives([]) for file in files}
    for names in _subsets(needs, dice, samples):
        label = f"names kept {sorted(names)} of {len(needs)}"
        yield Choice(f"bytes kept, {label}", names, kept)
        yield Choice(f"bytes lost, {label}", names, lost)
    everything = frozenset(needs)
    for file in files:
        for label, changes in _parts(file.unsynced, dice):
            contents = {**kept, file.inode: file.survives(changes)}
            yield Choice(f"file {file.inode}: {label}", everything, contents)


def _world(root: FolderNode, choice: Choice) -> object:
    """Equal for choices that leave equal trees.

    It looks only at what can differ: the names in folders with unsynced changes, and the files with
    unsynced changes that still have a name. Trees are large, and most of each is the same.
    """
    differs: list[object] = []
    files: dict[int, int] = {}
    todo = [root]
    for folder in todo:
        entries = _entries(folder, choice.names)
        if folder.unsynced:
            names = sorted(entries)
            differs.append((folder.inode, tuple((name, entries[name].inode) for name in names)))
        for node in entries.values():
            if isinstance(node, FolderNode):
                todo.append(node)
            elif node.inode in choice.contents:
                files[node.inode] = hash(choice.contents[node.inode])  # kept by the bytes, so cheap
    return tuple(differs), tuple(sorted(files.items()))


def _entries(folder: FolderNode, kept: Names) -> dict[str, Node]:
    if not folder.unsynced:
        return folder.durable
    entries = dict(folder.durable)
    for i, change in enumerate(folder.unsynced):
        if (folder.inode, i) in kept:
            assign(entries, change)
    return entries


def drawn_choice(root: FolderNode, dice: Random) -> Choice:
    """One choice, drawn at random; here every file has a fate of its own."""
    nodes = reachable(root)
    contents: dict[int, bytes] = {}
    for node in nodes:
        if isinstance(node, FileNode) and node.unsynced:
            fates = [node.unsynced, [], dice.choice(_parts(node.unsynced, dice))[1]]
            contents[node.inode] = node.survives(dice.choice(fates))
    needs = _needs(nodes)
    wanted = [change for change in needs if dice.randrange(2)]
    return Choice("drawn", _possible(wanted, needs), contents)


def whole_choice(root: FolderNode) -> Choice:
    """All that can be seen now."""
    nodes = reachable(root)
    files = (node for node in nodes if isinstance(node, FileNode) and node.unsynced)
    contents = {file.inode: file.survives(file.unsynced) for file in files}
    return Choice("an image", frozenset(_needs(nodes)), contents)


def survivor(root: FolderNode, choice: Choice) -> tuple[FolderNode, int]:
    """The tree after the crash, all of it durable, and how many bytes its files hold."""
    copies: dict[int, Node] = {}
    used_bytes = 0

    def copy_folder(folder: FolderNode) -> FolderNode:
        nonlocal used_bytes
        names: dict[str, Node] = {}
        for name, node in _entries(folder, choice.names).items():
            made = copies.get(node.inode)
            if made is None:
                match node:
                    case FileNode():
                        content = choice.contents.get(node.inode)
                        if content is None:
                            content = node.survives([])
                        made = FileNode(node.inode, node.changed_ms, 0, content, content)
                        used_bytes += len(content)
                    case LinkNode():
                        made = LinkNode(node.inode, node.changed_ms, 0, node.target)
                    case FolderNode():
                        made = copy_folder(node)
                    case _:
                        assert_never(node)
                copies[node.inode] = made
            made.links += 1
            names[name] = made
        return FolderNode(folder.inode, folder.changed_ms, 0, names, dict(names))

    return copy_folder(root), used_bytes


def fingerprint(node: Node) -> int:
    """Equal for equal trees, within one process."""
    match node:
        case FileNode():
            return hash((node.inode, node.seen()))
        case FolderNode():
            return hash(tuple((n, fingerprint(node.names[n])) for n in sorted(node.names)))
        case LinkNode():
            return hash(node.target)
        case _:
            assert_never(node)


def _parts(unsynced: list[FileChange], dice: Random) -> list[tuple[str, list[FileChange]]]:
    """Ways in which a part of a file's unsynced changes can go through."""
    parts: list[tuple[str, list[FileChange]]] = []
    for n in _places(len(unsynced), dice):
        change, before, after = unsynced[n], unsynced[:n], unsynced[n + 1 :]
        parts.append((f"first {n} of {len(unsynced)} writes", before))
        if after:
            parts.append((f"write {n} lost", before + after))
        if isinstance(change, Write):
            half, end = len(change.data) // 2, change.offset + len(change.data)
            if half:
                torn = Write(change.offset, change.data[:half])
                parts.append((f"write {n} torn", [*before, torn]))
            if not after:
                # The size went through before the bytes did, as on file systems that allocate late.
                late = Write(change.offset + half, change.data[half:])
                parts.append((f"write {n} without its first half", [*before, late]))
                parts.append((f"write {n} as zeros", [*before, Write(end, b"")]))
    return parts


def _places(count: int, dice: Random) -> list[int]:
    if count <= FILE_CHANGES_ENUMERATED_MAX:
        return list(range(count))
    some = dice.sample(range(1, count - 1), FILE_CHANGES_ENUMERATED_MAX - 2)
    return [0, *sorted(some), count - 1]


def _needs(nodes: list[Node]) -> dict[NameChangeId, Names]:
    """Each unsynced name change, and the earlier ones that must have gone through with it."""
    needs: dict[NameChangeId, Names] = {}
    for folder in nodes:
        if not isinstance(folder, FolderNode):
            continue
        for i, change in enumerate(folder.unsynced):
            earlier = enumerate(folder.unsynced[:i])
            shared = (j for j, other in earlier if not other.keys().isdisjoint(change))
            needs[folder.inode, i] = frozenset((folder.inode, j) for j in shared)
    return needs


def _possible(wanted: list[NameChangeId], needs: dict[NameChangeId, Names]) -> Names:
    kept: set[NameChangeId] = set()
    for change in wanted:  # in order, so what a change needs was decided before it
        if needs[change] <= kept:
            kept.add(change)
    return frozenset(kept)


def _subsets(needs: dict[NameChangeId, Names], dice: Random, samples: int) -> Iterator[Names]:
    changes = list(needs)
    if len(changes) <= FOLDER_CHANGES_ENUMERATED_MAX:
        for size in range(len(changes), -1, -1):
            for wanted in itertools.combinations(changes, size):
                names = frozenset(wanted)
                if all(needs[change] <= names for change in wanted):
                    yield names
        return
    yield frozenset(changes)
    yield frozenset()
    for n in range(len(changes)):
        yield _possible(changes[:n], needs)
        yield _possible(changes[:n] + changes[n + 1 :], needs)
    for _ in range(samples):
        yield _possible([change for change in changes if dice.randrange(2)], needs)
