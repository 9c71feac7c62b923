"""One life of a metastore, decided by one seed: trouble, then peace, and everything is judged.

While there is trouble, every command, answer, event and cut is judged as it comes (see
`metastore_ledger`). When it stops, all nodes must become equal, every watcher must have been told
everything, the right nodes must vote, and a compaction up to the latest revision must succeed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from lowmark.group import Future, GroupConfig
from lowmark.log import LogConfig
from lowmark.metastore import MetastoreConfig
from lowmark.metastore.state import Cut
from sim.cluster_ledger import Broken, confirm
from sim.linearizable import Linearizable, Register, check
from sim.metastore_clients import PREFIXES, MetastoreClients
from sim.metastore_nemesis import MOODS, MetastoreNemesis
from sim.metastore_watchers import Watchers
from sim.metastore_world import MetastoreNode, MetastoreShape, MetastoreWorld

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "MetastoreLife", "MetastoreStory", "live"]

SEEDS_IN_TEST = 10
"""Lives in `make test`."""
SEEDS_IN_ALL = 100
"""Lives in `make test-all`."""

TROUBLE_MS = 5_000
PAUSES_MS = (5, 20, 60, 150, 400)
PEACE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastoreStory:
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


def shape_of(dice: Random) -> MetastoreShape:
    """Draw what a cluster is made of: small limits, so that everything happens often."""
    return MetastoreShape(
        nodes=dice.choice([1, 3, 3, 3, 5]),
        members=dice.choice([1, 3, 3, 3, 5]),
        config=GroupConfig(
            tick_ms=40,
            heartbeat_ticks=dice.choice([1, 2]),
            election_ticks=5,
            rest_ticks=dice.choice([0, 5, 12]),
            request_timeout_ms=dice.choice([600, 1_500]),
            command_bytes_max=8_000,
            waiting_bytes_max=dice.choice([8_000, 64_000]),
            waiting_requests_max=dice.choice([20, 1_000]),
            message_bytes_max=dice.choice([500, 4_000]),
            inflight_max=dice.choice([2, 64]),
            inflight_bytes_max=8_000,
            snapshot_bytes=dice.choice([4_000, 40_000]),
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
        metastore=MetastoreConfig(
            lease_ms=dice.choice([600, 1_500]),
            request_timeout_ms=dice.choice([700, 2_000]),
            watch_patience_ms=dice.choice([300, 5_000]),
            snapshot_entries=dice.choice([15, 50]),
        ),
        log_config=LogConfig(
            wal_bytes_max=dice.choice([8_192, 65_536]),
            segment_bytes_max=8_192,
            segment_entries_max=dice.choice([4, 16, 64]),
            large_entry_bytes_min=512,
            compaction_interval_ms=dice.choice([0, 400]),
            compaction_dead_ratio=dice.choice([0.3, 1.0]),
            link_grace_ms=dice.choice([0, 300]),
            disk_reserved_bytes=0,
            disk_low_bytes=0,
            retry_ms=50,
        ),
    )


class MetastoreLife:
    """A world, its clients, its watchers and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = Random(f"metastore life {seed}")
        self.world = MetastoreWorld(seed, shape_of(dice))
        self.mood = MOODS[seed % len(MOODS)]
        self.clients = MetastoreClients(
            self.world, Random(dice.getrandbits(64)), count=dice.choice([3, 5])
        )
        self.watchers = Watchers(
            self.world, Random(dice.getrandbits(64)), count=6, prefixes=[b"", *PREFIXES]
        )
        self.nemesis = MetastoreNemesis(
            self.world, self.clients, Random(dice.getrandbits(64)), self.mood
        )
        self._dice = dice
        self._cut = False
        """Whether everything could be compacted, at the end."""
        shape = self.world.shape
        self.world.tell(f"mood: {self.mood}; {shape.nodes} nodes, {shape.members} members")

    def run(self) -> MetastoreStory:
        """Live it."""
        world, loop = self.world, self.world.loop
        until_us = loop.elapsed_us() + TROUBLE_MS * 1_000
        loop.run_for(self._dice.randint(100, 400))
        while loop.elapsed_us() < until_us:
            loop.run_for(self._dice.choice(PAUSES_MS))
            self.nemesis.act()
        self.nemesis.stop()
        self.clients.open = False
        self._wait_for_peace()
        self.clients.check_end()
        verdict = check(self.clients.history, Register())
        confirm(isinstance(verdict, Linearizable), str(verdict))
        world.count("revision", world.ledger.latest)
        world.count("revision compacted", world.ledger.compacted)
        world.count("topology", world.ledger.topology.version)
        return MetastoreStory(
            seed=self.seed,
            virtual_ms=loop.elapsed_us() // 1_000,
            turns=world.turns,
            operations=self.clients.operations,
            counts=world.counts,
            digest=loop.digest(),
        )

    # -- the end --------------------------------------------------------------------------------

    def _wait_for_peace(self) -> None:
        """All is well within bounds of virtual time."""
        loop = self.world.loop
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        self.clients.let_all_go()
        while True:
            self.nemesis.tend()
            loop.run_for(50)
            self.watchers.settle()
            if loop.elapsed_us() > deadline_us:
                raise Broken(f"there is no peace (cut: {self._cut}):\n{self._statuses()}")
            if not self._cut and not any(node.pending for node in self.world.nodes.values()):
                self._compact()
            if self._cut and self._is_settled() and self.watchers.is_told_all():
                self._check_equal()
                return

    def _compact(self) -> None:
        """Nobody holds anything but nodes, and they need nothing old."""
        serving = self.world.serving()
        if not serving:
            return
        node, goal = self._dice.choice(serving), self.world.ledger.latest
        assert node.metastore is not None

        def answered(cut: Future[Cut]) -> None:
            self._cut |= cut.done and cut.error is None and cut.result().compacted >= goal

        node.ask(node.metastore.compact(goal), answered)

    def _is_settled(self) -> bool:
        """Whether everybody is in, the right ones vote, and all have applied the same."""
        world, leader = self.world, self.world.leader()
        if leader is None or leader.group is None:
            return False
        here = world.present()
        if any(node.group is None or node.leaving or node.closing for node in here):
            return False
        numbers = {node.number for node in here}
        if {node.number for node in world.ledger.topology.nodes} != numbers:
            return False
        members = leader.group.members()
        voters = min(world.shape.members, len(numbers))
        if members.joint or len(members.incoming) != voters or members.everybody != numbers:
            return False
        groups = [node.group for node in here if node.group is not None]
        if any(group.members() != members for group in groups):
            return False
        return len({group.applied for group in groups}) == 1

    def _check_equal(self) -> None:
        here = self.world.present()
        first = here[0]
        bytes_of = {node.number: _state_bytes(node) for node in here}
        for node in here:
            who = f"node {node.number}"
            assert node.metastore is not None
            state = node.metastore.state
            confirm(bytes_of[node.number] == bytes_of[first.number], f"{who} has another state")
            confirm(
                _live(node) == _live(first),
                f"{who} takes {_live(node)} for live, node {first.number} {_live(first)}",
            )
            for key in state.keys:
                node.check_value(key, state.latest)
                node.check_value(key, state.compacted)
            self.world.ledger.check_state(state, who=who, every=node is first)

    def _statuses(self) -> str:
        ledger = self.world.ledger
        lines = [f"topology: {ledger.topology}", f"leases: {list(ledger.leases.values())}"]
        lines.append(f"latest {ledger.latest}, cut {ledger.compacted}, time {ledger.time >> 16}")
        for node in self.world.nodes.values():
            group = node.group
            flags = f"up {node.up} gone {node.gone} leaving {node.leaving} here {node.belongs}"
            lines.append(f"node {node.number}: {flags} pending {len(node.pending)}")
            if group is not None:
                lines.append(f"  {group.status()}")
        return "\n".join([*lines, self.watchers.shown()])


def _state_bytes(node: MetastoreNode) -> bytes:
    assert node.cluster is not None
    return b"".join(node.cluster.metastore._machine.snapshot())


def _live(node: MetastoreNode) -> list[int]:
    assert node.cluster is not None
    return list(node.cluster.metastore._machine.live_indexes())


def live(seed: int) -> MetastoreStory:
    """Live one life; a failure says what happened, and how to see it again."""
    life = None
    try:
        life = MetastoreLife(seed)
        return life.run()
    except BaseException as failure:
        if life is not None:
            failure.add_note("\n".join(["the end of the life:", *life.world.events]))
        failure.add_note(f"metastore seed {seed}; replay it: make sim SEED={seed}")
        raise
