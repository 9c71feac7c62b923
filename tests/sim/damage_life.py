"""One life of a cluster whose files rot, from one seed: no more than one node's at a time.

Bits are turned in, and bytes cut off, whatever file a node has, while it is up and while it is
down; nodes are stopped, killed and cut off, and rows are written, all the time. The node with the
damage is made to lead, if it can. Another one is not damaged before the first one has read all that
it has, and what it found is made good: for as long as nothing reads a file, no one can know. What
is still not found by then is put right.

The end of the WAL is left alone where nothing says that it was synced: whether it was torn by a
crash or rotted later can't be told (docs/design/0055).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from lowmark.catalog import AlterZone, TableId
from lowmark.errors import Corrupt, LowmarkError
from lowmark.group import Future, GroupConfig
from lowmark.group.envelope import open_command
from lowmark.log import LogConfig
from lowmark.log.wal_recovery import WalFile, read_wals
from lowmark.metastore import MetastoreConfig
from lowmark.runtime.sim import SimDisk
from lowmark.runtime.sim.tree import FileNode
from lowmark.table import Appended, Partition, encode_batch
from lowmark.table.commands import HEADER_BYTES
from sim.cluster_ledger import Broken, confirm
from table.world import TableNode, TableWorld, log_table

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "DamageLife", "DamageStory", "live"]

SEEDS_IN_TEST = 2
SEEDS_IN_ALL = 200
STEPS = 200
PARTITIONS = 2
PEACE_MS = 60_000
KINDS = ("wal/", ".segment", ".large", "snapshots/", "/group", "groups/metastore", "starts", "")
"""Parts of the names of files: one of each kind is drawn as often as one of any other."""
SMALL = LogConfig(
    wal_bytes_max=16 << 10,
    segment_bytes_max=4 << 10,
    segment_entries_max=16,
    large_entry_bytes_min=1_024,
    compaction_interval_ms=400,
    disk_reserved_bytes=0,
    disk_low_bytes=0,
    retry_ms=50,
)
OFTEN = GroupConfig(
    tick_ms=20,
    election_ticks=10,
    request_timeout_ms=1_500,
    snapshot_entries=40,
    snapshot_age_ms=1_000,
    install_piece_bytes=2_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageStory:
    """What a life came to."""

    seed: int
    virtual_ms: int
    acknowledged: int
    counts: Counter[str]

    def as_figures(self) -> dict[str, int]:
        """Everything that can be added up over many lives."""
        figures = {"lives": 1, "virtual ms": self.virtual_ms, "turns": 0}
        return {**figures, "operations": self.acknowledged, **self.counts}


@dataclass(slots=True)
class _Damage:
    """What was done to a node's files, and how to put it right."""

    node: int
    file: str
    inode: int
    bits: list[int]
    content: bytes
    """Before anything was cut off; empty: bits were turned."""
    spoilt: dict[int, int]
    """The bytes with turned bits, as they are since."""
    at_ms: float
    named: bool = False


class DamageLife:
    """A cluster, what was acknowledged, and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(f"damage {seed}")
        self.world = TableWorld(
            seed,
            config=OFTEN,
            metastore_config=MetastoreConfig(
                lease_ms=1_500, request_timeout_ms=3_000, snapshot_entries=100, renew_again_ms=1
            ),
            log_config=SMALL,
        )
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[int, dict[int, bytes]] = {n: {} for n in range(PARTITIONS)}
        """By partition and offset: one row each."""
        self.damage: _Damage | None = None
        self._writes = 0
        self.table = self._begin()

    def _begin(self) -> TableId:
        world = self.world
        world.execute(1, AlterZone(name="default", replicas=3))
        world.run_for(3_000)
        table = world.create(1, log_table("events", partitions=PARTITIONS))
        world.run_until(lambda: all(self._missing(n) == "" for n in world.nodes))
        return table

    # -- what is known --------------------------------------------------------------------------

    def _copies(self, node: TableNode) -> Iterator[Partition]:
        tables = node.tables_
        for number in range(PARTITIONS):
            copy = None if tables is None else tables.here(self.table, number)
            if copy is not None:
                yield copy

    def _leading(self, number: int) -> Partition | None:
        found = [
            copy
            for node in self.world.up
            for copy in self._copies(node)
            if copy.number == number and copy.group.ready
        ]
        return max(found, key=lambda copy: copy.group.term, default=None)

    def _missing(self, number: int) -> str:
        """What a node does not have yet of what all have; empty: nothing."""
        node, coordinator = self.world[number], self.world.leader()
        if not node.up or node.tables_ is None or coordinator is None:
            return f"node {number} is not up, or no node coordinates"
        mine, theirs = node.metastore.group, coordinator.metastore.group
        if (
            mine.log.quarantined
            or mine.stopped
            or theirs.members().joint
            or mine.applied < theirs.applied
        ):
            return f"the metastore at node {number} stopped, or is behind: {mine.stopped}"
        if number not in theirs.members().incoming:
            return f"node {number} does not vote in the metastore"
        if not hasattr(self, "table"):
            return ""
        for part in range(PARTITIONS):
            leader = self._leading(part)
            copy = node.tables_.here(self.table, part)
            if leader is None or copy is None:
                return f"partition {part} has no leader, or no copy at node {number}"
            members = leader.group.members()
            stopped = copy.group.stopped or copy.group.log.quarantined
            if members.joint or number not in members.voters or stopped:
                return f"the copy of {part} at node {number} does not vote: {stopped}"
            if copy.group.applied < leader.group.applied:
                return f"the copy of {part} at node {number} is behind"
        return ""

    def _check(self, node: TableNode) -> None:
        """A copy that says that it is sound has all that was acknowledged before it was asked, as
        it was; what it can't read it says by name.
        """
        for copy in self._copies(node):
            if copy.group.stopped is not None:
                continue
            known = dict(self.acknowledged[copy.number])
            try:
                found = self._rows(node, copy)
            except Corrupt as damage:
                assert node.groups is not None
                self.counts["damage found by a reader"] += 1
                node.groups.quarantine(copy.group.name, damage)  # as a reader at a node does
                continue
            wrong = {at for at, payload in found.items() if known.get(at, payload) != payload}
            confirm(not wrong, f"node {node.number} has other rows at {sorted(wrong)[:5]}")
            if copy is self._leading(copy.number):
                missing = known.keys() - found.keys()
                confirm(not missing, f"leader {node.number} lacks {sorted(missing)[:5]}")

    def _rows(self, node: TableNode, copy: Partition) -> dict[int, bytes]:
        view = copy.view
        places = [int(place) for place in view.places]
        entries = copy.plan(sorted(places)).execute(node.disk)
        data = {entry.index: bytes(open_command(entry.data).data) for entry in entries}
        return {
            int(first): data[place][HEADER_BYTES:]
            for first, place in zip(view.first.tolist(), places, strict=True)
        }

    # -- what happens ---------------------------------------------------------------------------

    def run(self) -> DamageStory:
        """Live it."""
        world, dice = self.world, self.dice
        for _ in range(STEPS):
            self._tend()
            dice.choices(
                [self._write, self._down, self._up, self._rot, self._lead, self._roll, self._cut],
                [12, 2, 8, 12, 4, 4, 2],
            )[0]()
            world.run_for(dice.choice([5, 20, 60, 200, 600]))
        self._peace()
        return DamageStory(
            seed=self.seed,
            virtual_ms=world.loop.elapsed_us() // 1_000,
            acknowledged=sum(map(len, self.acknowledged.values())),
            counts=self.counts,
        )

    def _tend(self) -> None:
        """What an operator does: starts again what has to be, and judges what there is to see."""
        for node in list(self.world.nodes.values()):
            assert isinstance(node, TableNode)
            if node.up and node.here.renewed is not None:
                self.counts["metastore made anew"] += 1
                node.crash(killed=True)
                self._start(node)
            elif node.up and node.clock.crashed:
                node.crash()
            if node.up:
                assert node.log is not None
                node.log.seal()
                self._check(node)
        damage = self.damage
        if damage is None:
            return
        node = self.world[damage.node]
        if node.up and self._missing(damage.node) == "":
            self._check(node)
            if self._missing(damage.node) == "":
                self._put_right(damage)

    def _put_right(self, damage: _Damage) -> None:
        self.damage = None
        file = next(
            (one for one in _files(self.world[damage.node].disk) if one[1].inode == damage.inode),
            None,
        )
        if file is not None and _is_as_left(file[1], damage):
            self.counts["not read by then"] += 1
            _mend(file[1], damage)
        else:
            self.counts["made good"] += 1

    def _write(self) -> None:
        number = self.dice.randrange(PARTITIONS)
        leader = self._leading(number)
        for _ in range(self.dice.choice([1, 3, 20]) if leader is not None else 0):
            assert leader is not None
            self._writes += 1
            size = self.dice.choice([20, 200, 2_000])
            payload = f"row {self._writes} ".encode().ljust(size, b".")

            def answered(future: Future[Appended], payload: bytes = payload) -> None:
                if future.error is None:
                    self.acknowledged[number][future.result().first] = payload

            try:
                leader.append(encode_batch(payload, rows=1, schema=1)).then(answered)
            except LowmarkError:
                return

    def _some(self, *, up: bool) -> TableNode | None:
        found = [self.world[n] for n, node in self.world.nodes.items() if node.up is up]
        return self.dice.choice(found) if found else None

    def _down(self) -> None:
        node = self._some(up=True)
        # A majority without the damage is there: what else could it be made good from?
        others = [n for n, one in self.world.nodes.items() if not one.up]
        if node is None or others:
            return
        how = self.dice.choice(["stop", "kill", "power cut"])
        if how == "stop" and node.tables_ is not None:
            node.stop()
        else:
            node.crash(killed=how == "kill")
        self.counts[how] += 1

    def _up(self) -> None:
        node = self._some(up=False)
        if node is not None:
            self._start(node)

    def _start(self, node: TableNode) -> None:
        try:
            node.start()
        except LowmarkError as error:
            damage = self.damage
            confirm(
                damage is not None and damage.node == node.number,
                f"node {node.number} does not start: {error.message}",
            )
            assert damage is not None
            self.counts[f"named at a start: {type(error).__name__}"] += 1
            node.crash(killed=True)
            self._restore(node, damage)
            node.start()

    def _restore(self, node: TableNode, damage: _Damage) -> None:
        """The operator puts the file back that the error names."""
        found = [file for _, file in _files(node.disk) if file.inode == damage.inode]
        confirm(bool(found), f"{damage.file} is gone, and node {node.number} does not start")
        _mend(found[0], damage)
        self.damage = None

    def _rot(self) -> None:
        world = self.world
        if self.damage is not None or any(self._missing(n) for n in world.nodes):
            return
        node = world[self.dice.choice(list(world.nodes))]
        was = self.dice.choice(["up", "stopped", "killed"])
        if was == "stopped":
            node.stop()
        elif was == "killed":
            node.crash(killed=True)
        kind = self.dice.choice(KINDS)
        fitting = [one for one in _files(node.disk) if kind in one[0] and one[1].content]
        if not fitting:
            return
        path, file = self.dice.choice(fitting)
        size, before = len(file.content), bytes(file.content)
        torn = _torn(node.disk)
        bits: list[int] = []
        if was != "up" and self.dice.random() < 0.3:
            file.content = file.durable = before[: self.dice.randrange(size)]
        else:
            first = self.dice.randrange(8 * size)
            bits = [first, *([first + 1] if first + 1 < 8 * size else [])][
                : self.dice.choice([1, 2])
            ]
            for bit in bits:
                file.flip_bit(bit)
        cut = b"" if bits else before
        spoilt = {bit // 8: file.content[bit // 8] for bit in bits}
        at_ms = world.loop.elapsed_us() / 1_000
        damage = _Damage(node.number, path, file.inode, bits, cut, spoilt, at_ms)
        if _torn(node.disk) != torn:
            _mend(file, damage)
            self.counts["end of the WAL left alone"] += 1
            return
        self.damage = damage
        self.counts[f"rot while {was}"] += 1
        if was != "up" and self.dice.random() < 0.8:
            self._start(node)

    def _lead(self) -> None:
        damage = self.damage
        number = self.dice.choice(list(self.world.nodes)) if damage is None else damage.node
        leader = self._leading(self.dice.randrange(PARTITIONS))
        if leader is not None and leader.group.node != number:
            with contextlib.suppress(LowmarkError):  # it may not vote just now
                leader.group.transfer(number)

    def _roll(self) -> None:
        """Have the log write what it has into segments, and compact them."""
        node = self._some(up=True)
        if node is None or node.log is None:
            return
        for copy in self._copies(node):
            if copy.group.stopped is None and self.dice.random() < 0.5:
                copy.group.snapshot()
        if self.dice.random() < 0.5:
            node.log.roll()

    def _cut(self) -> None:
        if self.dice.random() < 0.3:
            self.world.isolate(self.dice.choice(list(self.world.nodes)))
        else:
            self.world.heal()

    def _peace(self) -> None:
        """All are there: what is damaged is made good, and all have what was acknowledged."""
        world = self.world
        world.heal()
        until_ms = world.loop.elapsed_us() / 1_000 + PEACE_MS
        while True:
            for number in world.nodes:
                if not world[number].up:
                    self._start(world[number])
            self._tend()
            missing = {n: self._missing(n) for n in world.nodes}
            if not any(missing.values()):
                break
            if world.loop.elapsed_us() / 1_000 > until_ms:
                raise Broken(f"the cluster finds no peace: {missing}, after {self.damage}")
            world.run_for(100)
        for number in world.nodes:
            for copy in self._copies(world[number]):
                missed = (
                    self.acknowledged[copy.number].keys() - self._rows(world[number], copy).keys()
                )
                confirm(not missed, f"node {number} lacks {sorted(missed)[:5]}")


def _files(disk: SimDisk) -> list[tuple[str, FileNode]]:
    """All files of a directory, by path."""
    found = []
    for path in disk.tree():
        node = disk._lookup(path)
        if isinstance(node, FileNode) and path != "LOCK":
            found.append((path, node))
    return found


def _torn(disk: SimDisk) -> list[int]:
    """How much at the end of WAL files a start would take for writes that were not finished."""
    found: list[WalFile] = []
    try:
        for _ in read_wals(disk.killed(), found):
            pass
    except LowmarkError:
        return []
    return [one.torn_bytes for one in found]


def _is_as_left(file: FileNode, damage: _Damage) -> bool:
    """Whether nothing was written over it."""
    if damage.content:
        return file.content == damage.content[: len(file.content)]
    size = len(file.content)
    return all(at < size and file.content[at] == byte for at, byte in damage.spoilt.items())


def _mend(file: FileNode, damage: _Damage) -> None:
    for bit in damage.bits:
        file.flip_bit(bit)
    if damage.content:
        file.content = file.durable = damage.content


def live(seed: int) -> DamageStory:
    """Live one life; a failure says how to see it again."""
    try:
        return DamageLife(seed).run()
    except (Broken, LowmarkError) as failure:
        failure.add_note(f"damage seed {seed}; replay it: make sim SEED={seed}")
        raise
