"""A plain model of a log: what may be read back after anything that can happen to it.

For every group it remembers what was ever appended at an index, which of it was acknowledged, and
which snapshots may be in force. `check` holds an open log against that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyroaring import BitMap64

from lowmark.log import Dropped, Entry, EntryGone, GroupLog, Log, Written

LEFT_OVERS = (".tmp", ".compacting", ".new", ".link", "installing/", "installed/")


@dataclass
class Version:
    """One version of the entry at an index."""

    term: int
    data: bytes
    acknowledged: bool = False


@dataclass
class GroupOracle:
    """What is known of one group."""

    versions: dict[int, list[Version]] = field(default_factory=dict)
    """Per index what was appended there, oldest first; an overwrite adds to the list."""
    snapshots: list[tuple[int, frozenset[int]]] = field(default_factory=lambda: [(0, frozenset())])
    """The snapshots that may be in force; one, unless one is just being written."""
    meta: dict[int, bytes] = field(default_factory=lambda: {0: b""})
    """The metas that may be in force, numbered as they were put."""
    metas_begun: int = 0
    void_from: int | None = None
    """While a snapshot is being installed: once it is in force, what follows this is its own."""

    def append(self, first: int, term: int, datas: list[bytes]) -> None:
        """Note an append; what it overwrites may be read until the new one is durable."""
        for index, data in enumerate(datas, start=first):
            self.versions.setdefault(index, []).append(Version(term, data))
        for index in [i for i in self.versions if i >= first + len(datas)]:
            # Cut off by a shorter run: it may linger until that is durable, but need not.
            for version in self.versions[index]:
                version.acknowledged = False

    def written(self, event: Written) -> None:
        """Note an acknowledgement: older versions at these indexes are gone for good."""
        for index in [i for i in self.versions if i >= event.first]:
            kept = [v for v in self.versions[index] if v.term >= event.term]
            for version in kept:
                if index <= event.last and version.term == event.term:
                    version.acknowledged = True
            self.versions[index] = kept
            if not kept:
                del self.versions[index]

    def dropped(self, event: Dropped) -> None:
        """Note that appends were given up: what they would have overwritten need not come back.

        Whoever overwrites an entry has said that it does not count, durable or not.
        """
        for index, versions in self.versions.items():
            if index >= event.first and not versions[-1].acknowledged:
                for version in versions:
                    version.acknowledged = False

    def snapshot_begun(self, index: int, live: BitMap64) -> None:
        """From now on that snapshot may be in force."""
        self.snapshots.append((index, frozenset(live)))

    def snapshot_done(self) -> None:
        """The newest snapshot is in force for sure."""
        self.snapshots = self.snapshots[-1:]

    def installed(self, index: int) -> None:
        """An installed snapshot is in force, and replaced everything after it."""
        self.snapshot_done()
        self.versions = {i: v for i, v in self.versions.items() if i <= index}
        self.void_from = None

    def install_begun(self, index: int, live: BitMap64, received: dict[int, Version]) -> None:
        """A snapshot is coming in, with entries of its own."""
        self.snapshot_begun(index, live)
        self.void_from = min(received, default=index + 1)
        for at, version in received.items():
            self.versions.setdefault(at, []).append(version)


class Oracle:
    """What is known of a whole log."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupOracle] = {}

    def __getitem__(self, name: str) -> GroupOracle:
        return self.groups.setdefault(name, GroupOracle())

    def written(self, event: Written) -> None:
        """For `Log.on_written`."""
        self[event.group].written(event)

    def dropped(self, event: Dropped) -> None:
        """For `Log.on_dropped`."""
        self[event.group].dropped(event)

    def check(self, log: Log) -> None:
        """Every promise of the log, held against what is known."""
        for name, known in sorted(self.groups.items()):
            check_group(log.group(name), known)


def check_group(group: GroupLog, known: GroupOracle) -> None:
    """One group: nothing acknowledged is lost, nothing dead comes back, every term is right."""
    assert group.quarantined is None, group.quarantined
    row = group.row
    in_force = (row.snapshot_index, frozenset(row.live))
    assert in_force in known.snapshots, f"{in_force} is not one of {known.snapshots}"
    assert group.meta in known.meta.values(), f"{group.meta!r} is not one of {known.meta}"
    replaced = known.void_from if in_force == known.snapshots[-1] else None
    for index, versions in sorted(known.versions.items()):
        if row.counts(index):
            _check_entry(group, index, versions, replaced=replaced)
    for index in range(1, row.snapshot_index + 1):
        if index not in row.live:
            _check_dead(group, index)
    assert group.written_index <= group.last_index
    _check_range(group, row.snapshot_index + 1, group.last_index)


def _check_range(group: GroupLog, first: int, last: int) -> None:
    """The normal section, read piece by piece, is what single reads give; sizes are right."""
    expected = group.read(range(first, last + 1))
    sizes = [len(entry.data) for entry in expected]
    found, bytes_max = list[Entry](), 1 + sum(sizes) // 3
    while first + len(found) <= last:
        part = group.read_range(first + len(found), last, bytes_max=bytes_max)
        assert len(part) == 1 or sum(len(entry.data) for entry in part) <= bytes_max
        found += part
    assert found == expected
    assert group.size_of(first, last) == sum(sizes)
    third = len(sizes) // 3
    assert group.size_of(first + third, last - third) == sum(sizes[third : len(sizes) - third])


def _check_entry(
    group: GroupLog, index: int, versions: list[Version], *, replaced: int | None
) -> None:
    allowed = versions
    if replaced is not None and index >= replaced:
        allowed = versions[-1:] if index in group.row.live else []
    must = any(v.acknowledged for v in allowed) or index in group.row.live
    if index > group.last_index:
        assert not must, f"acknowledged entry {index} is lost: the log ends at {group.last_index}"
        return
    [entry] = group.read([index])
    found = (entry.term, bytes(entry.data))
    assert found in [(v.term, v.data) for v in allowed], f"entry {index} reads {found}"
    assert group.term_at(index) == entry.term


def _check_dead(group: GroupLog, index: int) -> None:
    try:
        group.read([index])
    except EntryGone:
        return
    raise AssertionError(f"dead entry {index} came back")


def left_overs(tree: list[str]) -> list[str]:
    """Temporaries in a list of paths, but for marks of deletions and somebody's backup."""
    ours = [path for path in tree if not path.startswith(("backup/", "roster/~"))]
    return [path for path in ours if path.endswith(LEFT_OVERS) or "~" in path]
