"""One life of a partition, decided by one seed: trouble, then peace, and everything is judged.

While there is trouble, every entry that a copy applies is held against a model, and batches are
read from the log (`table_ledger`, `table_world`). When it stops, appends must go through, all
members must become equal and read alike, what clients were told must be so, and once nobody holds
anything, all of it can be cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from lowmark.group import Future, Group, GroupConfig
from lowmark.log import LogConfig
from lowmark.table import Trim
from lowmark.table.commands import Control
from lowmark.table.state import Outcome
from sim.cluster_ledger import Broken, confirm
from sim.table_clients import TableClients
from sim.table_nemesis import MOODS, TableNemesis
from sim.table_world import PartitionNode, PartitionWorld, TableShape

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "TableLife", "TableStory", "live"]

SEEDS_IN_TEST = 10
"""Lives in `make test`."""
SEEDS_IN_ALL = 100
"""Lives in `make test-all`."""

TROUBLE_MS = 5_000
PAUSES_MS = (5, 20, 60, 150, 400)
PEACE_MS = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStory:
    """What a life came to."""

    seed: int
    virtual_ms: int
    turns: int
    operations: int
    counts: Counter[str]
    digest: str

    def as_figures(self) -> dict[str, int]:
        """Everything that can be added up over many lives."""
        figures = {"lives": 1, "virtual ms": self.virtual_ms, "turns": self.turns}
        return {**figures, "operations": self.operations, **self.counts}


def shape_of(dice: Random) -> TableShape:
    """Draw what a world is made of: small limits, so that everything happens often."""
    nodes = dice.choice([1, 3, 3, 3, 4])
    return TableShape(
        nodes=nodes,
        founders=tuple(range(1, min(nodes, 3) + 1)),
        config=GroupConfig(
            tick_ms=40,
            election_ticks=5,
            rest_ticks=dice.choice([0, 5, 12]),
            request_timeout_ms=dice.choice([300, 1_500]),
            command_bytes_max=16_000,
            waiting_bytes_max=dice.choice([4_000, 64_000]),
            waiting_requests_max=dice.choice([20, 1_000]),
            message_bytes_max=dice.choice([500, 4_000]),
            inflight_max=dice.choice([2, 64]),
            inflight_bytes_max=8_000,
            snapshot_bytes=dice.choice([8_000, 80_000]),
            snapshot_entries=dice.choice([20, 60, 1_000]),
            snapshot_age_ms=dice.choice([800, 60_000]),
            install_piece_bytes=dice.choice([500, 4_000]),
            install_window_bytes=8_000,
            install_stall_ms=800,
            near_entries=dice.choice([5, 50]),
            near_bytes=50_000,
            catch_up_stall_ms=1_500,
            rewrite_chunk_entries=3,
            rewrite_bytes_per_s=dice.choice([0, 20_000]),
        ),
        log_config=LogConfig(
            wal_bytes_max=dice.choice([8_192, 65_536]),
            segment_bytes_max=8_192,
            segment_entries_max=dice.choice([4, 16, 64]),
            large_entry_bytes_min=dice.choice([512, 4_096]),
            compaction_interval_ms=dice.choice([0, 400]),
            compaction_dead_ratio=dice.choice([0.3, 1.0]),
            link_grace_ms=dice.choice([0, 300]),
            disk_reserved_bytes=0,
            disk_low_bytes=0,
            retry_ms=50,
        ),
    )


class TableLife:
    """A world, its clients and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = Random(f"table life {seed}")
        self.world = PartitionWorld(seed, shape_of(dice))
        self.mood = MOODS[seed % len(MOODS)]
        self.clients = TableClients(self.world, Random(dice.getrandbits(64)))
        self.nemesis = TableNemesis(
            self.world, self.clients, Random(dice.getrandbits(64)), self.mood
        )
        self._dice = dice
        self.world.tell(f"mood: {self.mood}; {self.world.shape.nodes} nodes")

    def run(self) -> TableStory:
        """Live it."""
        world, loop = self.world, self.world.loop
        loop.run_for(self._dice.randint(100, 600))
        while loop.elapsed_us() < TROUBLE_MS * 1_000:
            loop.run_for(self._dice.choice(PAUSES_MS))
            self.nemesis.act()
        self.clients.open = False
        self.nemesis.stop()
        self._wait_for_peace()
        self.clients.check_end()
        self._count_ends()
        self._free_everything()
        return TableStory(
            seed=self.seed,
            virtual_ms=loop.elapsed_us() // 1_000,
            turns=world.turns,
            operations=self.clients.operations,
            counts=world.counts,
            digest=loop.digest(),
        )

    def _count_ends(self) -> None:
        model, world = self.world.ledger.model, self.world
        world.count("row", len(model.rows))
        world.count("row cut", model.start)
        world.count("row below a horizon", model.horizon)
        for node in world.serving:
            assert node.group is not None
            world.count("merge by phase 3", sum(run.merges for run in node.group.log.runs))

    # -- the end --------------------------------------------------------------------------------

    def _wait_for_peace(self) -> None:
        """Whatever is not answered goes through, and all members become equal."""
        loop = self.world.loop
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        settled = False
        while True:
            self.nemesis.tend()
            loop.run_for(50)
            if loop.elapsed_us() > deadline_us:
                raise Broken(f"there is no peace (settled: {settled}):\n{self._statuses()}")
            leader = self.world.leader()
            if leader is None:
                continue
            settled = self.clients.settle(leader)
            if settled and not any(node.pending for node in self.world.nodes.values()):
                members = self._members()
                if members is not None:
                    self._check_equal(members)
                    return

    def _members(self) -> list[PartitionNode] | None:
        """All members, if they are there and even."""
        leader = self.world.leader()
        if leader is None or leader.group is None:
            return None
        members = leader.group.members()
        nodes = [self.world[number] for number in sorted(members.everybody)]
        groups = [node.group for node in nodes]
        if members.joint or any(group is None for group in groups):
            return None
        if any(g is None or g.members() != members for g in groups):
            return None
        return nodes if len({g.applied for g in groups if g is not None}) == 1 else None

    def _check_equal(self, members: list[PartitionNode]) -> None:
        """All have become the same, and read the same; a machine tells the ledger what it is."""
        first = _state_of(members[0])
        for node in members:
            confirm(_state_of(node) == first, f"node {node.number} has become something else")
            node.check_all()

    def _free_everything(self) -> None:
        """Nobody holds anything any more: all of it can be cut, and dies."""
        loop, model = self.world.loop, self.world.ledger.model
        for command in self.clients.holders():
            self._until_done(command)
        # Leases end by the times in the log, which may be ahead of a clock that was set back.
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        end = len(model.rows)
        while model.start < end:
            confirm(loop.elapsed_us() < deadline_us, f"the backlog begins at {model.start} < {end}")
            loop.run_for(500)
            self._until_done(Trim(end, expire=True))
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        while any(self._is_pinned(node.group) for node in self._members() or self.world.serving):
            for node in self._members() or ():
                assert node.group is not None
                node.group.snapshot()
            loop.run_for(50)
            if loop.elapsed_us() > deadline_us:
                raise Broken(f"there are entries that live on:\n{self._statuses()}")

    def _is_pinned(self, group: Group | None) -> bool:
        return group is None or group.log.row.snapshot_index == 0 or bool(group.log.row.live)

    def _until_done(self, command: Control) -> None:
        """Ask until it is done; nothing stands in its way any more."""
        loop = self.world.loop
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        done: list[Future[Outcome]] = []
        while not done or done[-1].error is not None:
            leader = self.world.leader()
            if leader is not None:
                count = len(done)
                leader.ask(leader.here.ask(command), done.append)
                loop.run_until(lambda count=count: len(done) > count, timeout_ms=PEACE_MS)  # type: ignore[misc]
            else:
                loop.run_for(50)
            if loop.elapsed_us() > deadline_us:
                raise Broken(f"{command} is not done:\n{self._statuses()}")

    def _statuses(self) -> str:
        lines = []
        for node in self.world.nodes.values():
            status = "no copy" if node.partition is None else node.partition.group.status()
            lines.append(f"node {node.number}: pending {node.pending}: {status}")
        return "\n".join(lines)


def _state_of(node: PartitionNode) -> tuple[bytes, list[int]]:
    machine = node.here.machine
    return b"".join(bytes(piece) for piece in machine.snapshot()), list(machine.live_indexes())


def live(seed: int) -> TableStory:
    """Live one life; a failure says what happened, and how to see it again."""
    life = None
    try:
        life = TableLife(seed)
        return life.run()
    except BaseException as failure:
        if life is not None:
            failure.add_note("\n".join(["the end of the life:", *life.world.events]))
        failure.add_note(f"table seed {seed}; replay it: make sim SEED={seed}")
        raise
