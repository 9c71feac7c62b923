"""One life of a cluster, decided by one seed: trouble, then peace, and everything is judged.

While there is trouble, safety is watched at every turn (`cluster_watch`). When it stops, every
group must make progress, its members must become equal, and what clients were told must be
linearizable.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from group.kv import put
from lowmark.group import Future, Group, GroupConfig
from lowmark.log import LogConfig
from sim.cluster_clients import Clients
from sim.cluster_ledger import Broken, confirm
from sim.cluster_nemesis import MOODS, Nemesis
from sim.cluster_world import ClusterNode, ClusterWorld, Shape
from sim.linearizable import Linearizable, Register, check

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "ClusterLife", "LifeStory", "live"]

SEEDS_IN_TEST = 20
"""Lives in `make test`."""
SEEDS_IN_ALL = 300
"""Lives in `make test-all`."""

TROUBLE_MS = 7_000
PAUSES_MS = (5, 20, 60, 150, 400)
PEACE_MS = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeStory:
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


def shape_of(dice: Random) -> Shape:
    """Draw what a cluster is made of: small limits, so that everything happens often."""
    nodes = dice.choice([3, 3, 4, 5, 5, 7])
    groups = ("a", "b", "c")[: dice.choice([1, 1, 2, 3])]
    numbers = range(1, nodes + 1)
    founders = {
        name: tuple(sorted(dice.sample(numbers, min(nodes, dice.choice([3, 3, 5])))))
        for name in groups
    }
    return Shape(
        nodes=nodes,
        groups=groups,
        founders=founders,
        config=GroupConfig(
            tick_ms=40,
            heartbeat_ticks=dice.choice([1, 2]),
            election_ticks=5,
            rest_ticks=dice.choice([0, 5, 12]),
            request_timeout_ms=dice.choice([600, 1_500]),
            command_bytes_max=2_000,
            waiting_bytes_max=dice.choice([1_500, 64_000]),
            waiting_requests_max=dice.choice([20, 1_000]),
            message_bytes_max=dice.choice([200, 2_000]),
            inflight_max=dice.choice([2, 64]),
            inflight_bytes_max=8_000,
            snapshot_bytes=dice.choice([1_500, 20_000]),
            snapshot_entries=dice.choice([8, 25, 60]),
            snapshot_age_ms=dice.choice([800, 60_000]),
            install_piece_bytes=dice.choice([100, 1_000]),
            install_window_bytes=dice.choice([300, 4_000]),
            install_bytes_per_s=dice.choice([0, 0, 20_000]),
            install_stall_ms=800,
            near_entries=dice.choice([0, 5, 50]),
            near_bytes=dice.choice([500, 50_000]),
            catch_up_stall_ms=dice.choice([600, 1_500]),
            rewrite_chunk_entries=3,
            rewrite_bytes_per_s=dice.choice([0, 2_000]),
        ),
        log_config=LogConfig(
            wal_bytes_max=dice.choice([4_096, 16_384]),
            segment_bytes_max=4_096,
            segment_entries_max=dice.choice([4, 16]),
            large_entry_bytes_min=512,
            compaction_interval_ms=dice.choice([0, 400]),
            compaction_dead_ratio=dice.choice([0.3, 1.0]),
            link_grace_ms=dice.choice([0, 300]),
            disk_reserved_bytes=0,
            disk_low_bytes=0,
            retry_ms=50,
        ),
    )


class ClusterLife:
    """A world, its clients and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = Random(f"life {seed}")
        self.world = ClusterWorld(seed, shape_of(dice))
        self.mood = MOODS[seed % len(MOODS)]
        clients = Random(dice.getrandbits(64))
        self.clients = Clients(self.world, clients, count=dice.choice([3, 5]), keys=3)
        self.nemesis = Nemesis(self.world, self.clients, Random(dice.getrandbits(64)), self.mood)
        self._dice = dice
        self.world.tell(f"mood: {self.mood}; founders: {self.world.shape.founders}")

    def run(self) -> LifeStory:
        """Live it."""
        world, loop = self.world, self.world.loop
        loop.run_for(self._dice.randint(200, 600))
        while loop.elapsed_us() < TROUBLE_MS * 1_000:
            loop.run_for(self._dice.choice(PAUSES_MS))
            self.nemesis.act()
        self.nemesis.stop()
        self.clients.open = False
        for name in world.shape.groups:
            self._wait_for_peace(name)
        for node in world.nodes.values():
            confirm(not node.pending, f"node {node.number} left requests unanswered")
        self._count_ends()
        verdict = check(self.clients.history, Register())
        confirm(isinstance(verdict, Linearizable), str(verdict))
        return LifeStory(
            seed=self.seed,
            virtual_ms=loop.elapsed_us() // 1_000,
            turns=world.turns,
            operations=len(self.clients.history.operations()),
            counts=world.counts,
            digest=loop.digest(),
        )

    def _count_ends(self) -> None:
        for ledger in self.world.ledgers.values():
            self.world.count("election", len(ledger.elections))
            self.world.count("committed entry", ledger.last_committed)
        for copy in self.world.copies.values():
            if copy.group is not None:
                merged = sum(run.merges for run in copy.group.log.runs)
                self.world.count("merge by phase 3", merged)

    # -- the end --------------------------------------------------------------------------------

    def _wait_for_peace(self, name: str) -> None:
        """A put succeeds, then all members become equal; within bounds of virtual time."""
        loop = self.world.loop
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        future: Future[object] | None = None
        asked: tuple[ClusterNode, int] | None = None
        done = False
        while True:
            self.nemesis.tend_all()
            loop.run_for(100)
            group = self._leading(name)
            if asked is not None and asked[0].lives != asked[1]:
                future = asked = None  # a restart ended the process, and the answer with it
            if future is None or future.done:
                done = done or (future is not None and future.error is None)
                if not done and group is not None:
                    future = group[1].propose(put("end", b"end"))
                    asked = group[0], group[0].lives
            if done and group is not None and not any(n.pending for n in self._up()):
                if self._are_equal(name, group[1]):
                    return
            if loop.elapsed_us() > deadline_us:
                raise Broken(f"group {name} finds no peace:\n{self._statuses(name)}")

    def _up(self) -> list[ClusterNode]:
        return [node for node in self.world.nodes.values() if node.up]

    def _leading(self, name: str) -> tuple[ClusterNode, Group] | None:
        leader = self.world.leader(name)
        group = leader.serves(name) if leader is not None else None
        return (leader, group) if leader is not None and group is not None else None

    def _are_equal(self, name: str, leader: Group) -> bool:
        members = leader.members()
        if members.joint:
            return False
        copies = [self.world.copies.get((name, number)) for number in sorted(members.everybody)]
        for copy in copies:
            if copy is None or copy.group is None or copy.machine is None:
                return False
            if copy.group.stopped is not None or copy.group.applied != leader.applied:
                return False
            if copy.group.members() != members:
                return False
        for copy in copies:
            assert copy is not None
            assert copy.machine is not None
            self.world.ledgers[name].stands(leader.applied, copy.machine.digest(), who=copy.who)
            confirm(
                copy.machine.live_indexes() == leader.machine.live_indexes(),
                f"live sets of {name} differ on {copy.who}",
            )
            for key in sorted(copy.machine.rows):
                copy.check_live(key)
        return True

    def _statuses(self, name: str) -> str:
        lines = []
        for node in self.world.nodes.values():
            group = node.group(name)
            broken = node.broken.get(name, "no copy")
            lines.append(f"node {node.number}: {group.status() if group else broken}")
        return "\n".join(lines)


def live(seed: int) -> LifeStory:
    """Live one life; a failure says what happened, and how to see it again."""
    life = None
    try:
        life = ClusterLife(seed)
        return life.run()
    except BaseException as failure:
        if life is not None:
            failure.add_note("\n".join(["the end of the life:", *life.world.events]))
        failure.add_note(f"cluster seed {seed}; replay it: make sim SEED={seed}")
        raise
