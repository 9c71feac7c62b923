"""A log's life: anything that can happen to it, as single steps that can come in any order.

Steps start things and leave them under way; `let_time_pass` moves virtual time in small portions.
So snapshots, roll-overs, merges and installs overlap, and a crash can come at any moment. A step
that makes no sense just then does nothing.

In a sick life (`any_sick_step`) a file, a folder or all handles go bad for longer than every retry,
while the log runs or before it starts, and are well again after a while or after a restart. What
the log refuses meanwhile does not count. What it took and acknowledged does, and so does all it
acknowledged before; nothing of it may put a group into quarantine, because nothing is damaged. Or a
folder is away for one start, and back at the next.
"""

from __future__ import annotations

from random import Random

from log.checked import CheckedWorld
from log.oracle import GroupOracle, Version, check_group, left_overs
from lowmark.errors import Unavailable
from lowmark.log import Damaged, GroupLog, SnapshotMeta
from lowmark.log.errors import FolderMissing
from lowmark.runtime import (
    DiskFailed,
)
from lowmark.runtime.sim import (
    SimDisk,
)
from lowmark.runtime.sim.disk import Ailment
from lowmark.runtime.sim.tree import Node

GROUPS = ("a", "b")
ONCE = ("create", "datasync", "rename", "unlink", "write")
LONG_MS = 120_000
"""Longer than every retry, and than every pause between two of them."""


class LogLife:
    """Two groups, small limits, one disk."""

    def __init__(self, *, seed: int = 1) -> None:
        self.world = CheckedWorld(SimDisk(), seed=seed)
        for name in GROUPS:
            self.world.create(name)
        self.opened = seed
        self.ailing = False
        """Whether something of the disk is bad just now."""
        self.litter = False
        """Whether something was, since the log was opened."""
        self.unreadable: set[str] = set()
        """Groups that the last start could not read; the next one shall."""
        self.has_mounts = seed % 4 == 3
        """Whether folders can be away; only in some lives, so that others stay as they were."""
        self.away: dict[str, Node] = {}
        """Folders that are not there; they are back at the next start."""

    def check(self) -> None:
        """The log agrees with the oracle."""
        for name, known in sorted(self.world.oracle.groups.items()):
            if name not in self.unreadable:
                try:
                    check_group(self.world.log.group(name), known)
                except DiskFailed:
                    assert self.ailing, f"{name} can't be read, and nothing ails the disk"

    def group(self, name: str) -> tuple[GroupLog, GroupOracle]:
        return self.world.log.group(name), self.world.oracle[name]

    # -- what happens ---------------------------------------------------------------------------

    def append(self, name: str, count: int, *, newer: bool) -> None:
        group, known = self.group(name)
        if known.void_from is None:
            self.world.append(name, count, term=max(1, group.last_term + newer))

    def append_large(self, name: str) -> None:
        group, known = self.group(name)
        if known.void_from is None:
            self.world.append_large(name, term=max(1, group.last_term))

    def overwrite(self, name: str, back: int, count: int) -> None:
        group, known = self.group(name)
        floor = max(index for index, _ in known.snapshots)
        first = max(floor + 1, group.last_index - back)
        if known.void_from is None and first <= group.last_index:
            self.world.append(name, count, term=group.last_term + 1, first=first)

    def put_meta(self, name: str, data: bytes) -> None:
        self.world.put_meta(name, data)

    def snapshot(self, name: str, back: int, seed: int, share: float) -> None:
        group, known = self.group(name)
        index = group.written_index - back
        if len(known.snapshots) > 1 or index <= group.row.snapshot_index:
            return
        dice = Random(seed)
        candidates = [*group.row.live, *range(group.row.snapshot_index + 1, index + 1)]
        self.world.snapshot(name, index, [i for i in candidates if dice.random() < share])

    def compact(self, name: str) -> None:
        self.group(name)[0].compact()

    def install(self, name: str, seed: int, ahead: int, back: int) -> None:
        group, known = self.group(name)
        applied = max(group.row.snapshot_index, group.written_index - back)
        if len(known.snapshots) > 1 or known.void_from is not None:
            return
        dice, index = Random(seed), group.last_index + ahead
        own = [*group.row.live, *range(group.row.snapshot_index + 1, applied + 1)]
        live = [i for i in [*own, *range(applied + 1, index + 1)] if dice.random() < 0.3]
        meta = SnapshotMeta(index=index, term=group.last_term + 1)
        self.world.install(name, meta, live, applied=applied)

    def replace(self, name: str) -> None:
        writable = self.world.log.wal.refusal is None  # else no group can be made just now
        if writable and not self.ailing and name not in self.unreadable:
            self.world.replace(name)

    def let_time_pass(self, turns: int) -> None:
        for _ in range(turns):
            self.world.runtime.loop.turn()  # type: ignore[attr-defined]

    def settle(self) -> None:
        if not self.ailing:
            self.world.settle()
            assert self.litter or left_overs(self.world.disk.tree()) == []

    # -- what ends it, and begins it again ------------------------------------------------------

    def restart(self) -> None:
        self.world.close()
        self.reopen(self.world.disk)

    def lose_power(self, seed: int) -> None:
        self.reopen(self.world.disk.crashed(Random(seed)))

    def kill_the_process(self) -> None:
        self.reopen(self.world.disk.killed())

    def reopen(self, disk: SimDisk) -> None:
        self.opened += 1
        for path, folder in self.away.items():
            disk.put_back(path, folder)
        self.away.clear()
        self.open_log(disk)

    def open_log(self, disk: SimDisk) -> None:
        self.ailing = self.ailing and disk is self.world.disk
        self.litter = self.ailing
        try:
            self.world.open(disk, seed=self.opened)
        except DiskFailed:
            assert self.ailing, "it does not start, and nothing ails the disk"
            self.heal()
            self.world.open(disk.killed(), seed=self.opened)
        self.unreadable = set(self.world.log.unreadable)
        for name, error in self.world.log.unreadable.items():
            away = f"groups/{name}" in self.away and isinstance(error, FolderMissing)
            assert away or self.ailing, f"{name}: {error}, and nothing ails the disk"
        for name in sorted({*GROUPS} - self.unreadable):
            if name not in {group.name for group in self.world.log.groups()}:
                self.world.log.create_group(name)  # as placement does
        self.check()
        for name in sorted({*GROUPS} - self.unreadable):
            try:
                self.learn(name)
            except DiskFailed:
                assert self.ailing, f"{name} can't be read, and nothing ails the disk"

    # -- a disk that is sick for long -----------------------------------------------------------

    def go_bad(self, ailment: Ailment, path: str) -> None:
        self.world.disk.go_bad(ailment, path)
        self.ailing = self.litter = self.world.may_fail = True

    def fail_once(self, call: str, path: str) -> None:
        self.world.disk.fail_next(call, path)
        self.ailing = self.litter = self.world.may_fail = True

    def heal(self) -> None:
        self.world.disk.heal()
        self.ailing = False

    def let_long_time_pass(self) -> None:
        self.world.runtime.loop.run_for(LONG_MS)  # type: ignore[attr-defined]

    def get_well(self) -> None:
        """The disk is well again: after a while the log is, too, without a restart."""
        self.heal()
        self.let_long_time_pass()
        for name in sorted({*GROUPS} - self.unreadable):
            group, known = self.group(name)
            self.append(name, 1, newer=False)
            self.let_long_time_pass()
            assert known.void_from is not None or group.written_index == group.last_index

    def die(self, dice: Random) -> SimDisk:
        """The process ends in one way or another; gives what is left of its disk."""
        match dice.randrange(3):
            case 0:
                self.world.close()
                return self.world.disk.killed()
            case 1:
                return self.world.disk.killed()
            case _:
                return self.world.disk.crashed(Random(dice.randrange(1 << 20)))

    def start_without_a_folder(self, dice: Random) -> str:
        """The process dies; at the next start a folder is not there; at the one after, it is."""
        disk, path = self.die(dice), f"groups/{dice.choice(GROUPS)}"
        disk.heal()
        self.ailing = False
        for other, folder in self.away.items():
            disk.put_back(other, folder)
        self.away = {path: disk.take_away(path)}
        if self.has_a_vote(path) and dice.random() < 0.5:
            self.lose_entries(disk, path, dice)
        self.world.disk, self.world.may_fail = disk, True
        self.opened += 1
        self.open_log(disk)
        self.litter = True
        return path

    def has_a_vote(self, folder: str) -> bool:
        """Whether every WAL file of this process names a group: it repeats what is not empty."""
        known = self.world.oracle.groups.get(folder.removeprefix("groups/"))
        return known is not None and b"" not in known.meta.values()

    def lose_entries(self, disk: SimDisk, folder: str, dice: Random) -> None:
        """Nothing but the WAL says that the group was ever there, or all the others, too."""
        if dice.random() < 0.5 and disk.stat("roster") is not None:
            disk.take_away("roster")
        for entry in disk.list("roster"):
            if f"groups/{entry.partition('@')[0]}" == folder:
                disk.unlink(f"roster/{entry}")

    def start_sick(self, dice: Random) -> None:
        """The process dies; at the next start something can't be read; then it is well again."""
        disk = self.die(dice)
        for path, folder in self.away.items():
            disk.put_back(path, folder)
        self.away.clear()
        paths = [path for path in disk.tree() if path.startswith("groups/")]
        name = dice.choice(GROUPS)
        path = dice.choice([f"groups/{name}/group", f"groups/{name}", *paths]).rstrip("/")
        disk.heal()
        self.ailing = True
        self.world.disk, self.world.may_fail = disk, True
        match dice.randrange(4):
            case 0:
                for _ in range(dice.randrange(1, 4)):
                    disk.fail_next("read", path)
            case 1:
                # One bit of an identity reads wrong, and is right at the next start.
                path = f"groups/{name}/group"
                bit = dice.randrange(8 * 16)
                disk.flip_bit(path, bit)
                self.reopen(disk)
                disk.flip_bit(path, bit)
                self.ailing, self.litter = False, True
                return
            case _:
                disk.go_bad(dice.choice(["unreadable", "unwritable", "broken"]), path)
        self.reopen(disk)
        self.litter = True

    def any_sick_step(self, dice: Random) -> str:
        """One step of a life in which things go bad for long; give its name."""
        try:
            match dice.randrange(16 + self.has_mounts):
                case 0:
                    name = dice.choice(GROUPS)
                    ailment: Ailment = dice.choice(["unwritable", "unwritable", "broken"])
                    path = dice.choice([f"groups/{name}", f"groups/{name}", "groups", "wal"])
                    self.go_bad(ailment, path)
                    return f"{path} is {ailment}"
                case 1:
                    self.go_bad("no handles", "")
                    return "no handles are left"
                case 2:
                    self.heal()
                    return "heal"
                case 3:
                    self.get_well()
                    return "get well"
                case 4:
                    self.let_long_time_pass()
                    return "let long time pass"
                case 5:
                    self.start_sick(dice)
                    return f"start sick, {sorted(self.unreadable)} unreadable"
                case 6:
                    self.heal()
                    self.kill_the_process()
                    return "heal, kill the process"
                case 7 | 8:
                    call = dice.choice(["sync_dir", "sync_dir", *ONCE])
                    path = dice.choice(["wal", "wal", f"groups/{dice.choice(GROUPS)}"])
                    for _ in range(dice.randrange(1, 4)):
                        self.fail_once(call, path)
                    return f"{call} of {path} fails once or more"
                case 16:
                    return f"{self.start_without_a_folder(dice)} is away"
                case _:
                    return self.any_step(dice)
        except Unavailable as refused:
            return f"refused: {refused.message}"
        except (Damaged, FolderMissing) as refused:
            # An identity with a wrong bit is damage, and its group says so to each caller.
            if not self.unreadable:
                raise
            return f"refused: {refused.message}"

    def learn(self, name: str) -> None:
        """Of what may have been, only what is remains; and it is durable now."""
        group, known = self.group(name)
        known.snapshots = [(group.row.snapshot_index, frozenset(group.row.live))]
        known.meta = {known.metas_begun: group.meta}
        known.void_from = None
        counting = [i for i in range(1, group.last_index + 1) if group.row.counts(i)]
        known.versions = {
            entry.index: [Version(entry.term, bytes(entry.data), acknowledged=True)]
            for entry in group.read(counting)
        }

    def any_step(self, dice: Random) -> str:
        """Take one step that the dice choose; give its name."""
        name, few = dice.choice(GROUPS), dice.randrange(1, 10)
        match dice.randrange(41):
            case 0:
                self.restart()
                return "restart"
            case 1:
                self.lose_power(dice.randrange(1 << 20))
                return "lose power"
            case 2:
                self.kill_the_process()
                return "kill the process"
            case 3:
                self.settle()
                return "settle"
            case 40:
                self.replace(name)
                return f"replace {name}"
            case 4 | 5:
                self.world.log.roll()
                return "roll"
            case 6 | 7:
                self.compact(name)
                return f"compact {name}"
            case 8 | 9:
                self.install(name, dice.randrange(999), dice.randrange(1, 30), few)
                return f"install {name}"
            case 10 | 11 | 12:
                self.overwrite(name, dice.randrange(12), few)
                return f"overwrite {name}"
            case 13 | 14 | 15:
                self.append_large(name)
                return f"append large {name}"
            case 16 | 17:
                self.put_meta(name, dice.randbytes(4))
                return f"put meta {name}"
            case 18 | 19 | 20 | 21:
                share = dice.choice([0.0, 0.1, 0.5, 1.0])
                self.snapshot(name, dice.randrange(20), dice.randrange(999), share)
                return f"snapshot {name} {share}"
            case n if n < 29:
                self.append(name, few, newer=dice.randrange(4) == 0)
                return f"append {name}"
            case _:
                self.let_time_pass(dice.randrange(1, 40))
                return "let time pass"
