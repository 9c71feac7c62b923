"""A log's life: anything that can happen to it, as single steps that can come in any order.

Steps start things and leave them under way; `let_time_pass` moves virtual time in small portions.
So snapshots, roll-overs, merges and installs overlap, and a crash can come at any moment. A step
that makes no sense just then does nothing.
"""

from __future__ import annotations

from random import Random

from log.checked import CheckedWorld
from log.oracle import GroupOracle, Version, left_overs
from lowmark.log import GroupLog, SnapshotMeta
from lowmark.runtime import SimDisk

GROUPS = ("a", "b")


class LogLife:
    """Two groups, small limits, one disk."""

    def __init__(self, *, seed: int = 1) -> None:
        self.world = CheckedWorld(SimDisk(), seed=seed)
        for name in GROUPS:
            self.world.create(name)
        self.opened = seed

    def check(self) -> None:
        """The log agrees with the oracle."""
        self.world.oracle.check(self.world.log)

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
        self.world.replace(name)

    def let_time_pass(self, turns: int) -> None:
        for _ in range(turns):
            self.world.runtime.loop.turn()  # type: ignore[attr-defined]

    def settle(self) -> None:
        self.world.settle()
        assert left_overs(self.world.disk.tree()) == []

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
        self.world.open(disk, seed=self.opened)
        self.check()
        for name in GROUPS:
            self.learn(name)

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
