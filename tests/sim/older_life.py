"""One life of a group whose nodes get older images of their directories put back, from one seed.

Nodes are stopped, killed and cut off, and rows are written, all the time. Now and then an earlier
image takes the place of a directory, while the cluster can tell: enough other voters have heard of
a later start that each majority has one of them (`recognisable`; `group.starts` says what can't be
told). The ledger knows what was acknowledged, and who must have heard of which start, by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import put
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.runtime.sim import SimDisk, Weather
from sim.cluster_ledger import Broken, confirm

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "OlderLife", "OlderStory", "live"]

SEEDS_IN_TEST = 4
SEEDS_IN_ALL = 400
STEPS = 140
PEACE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderStory:
    """What a life came to."""

    seed: int
    virtual_ms: int
    acknowledged: int
    counts: Counter[str]

    def as_figures(self) -> dict[str, int]:
        """Everything that can be added up over many lives."""
        figures = {"lives": 1, "virtual ms": self.virtual_ms, "turns": 0}
        return {**figures, "operations": self.acknowledged, **self.counts}


@dataclass(frozen=True, slots=True)
class _Image:
    disk: SimDisk
    number: int
    """Of the last start that was counted in it."""


class OlderLife:
    """A cluster, what was acknowledged, and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(f"older {seed}")
        self.count = self.dice.choice([3, 3, 5])
        self.cluster = Cluster(seed, nodes=self.count, config=FAST, log_config=TINY_LOG)
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[str, None] = {}
        self.heard: dict[tuple[int, int], int] = {}
        """By (who, of whom): the last start that a node must know, as it has believed it."""
        self.images: dict[int, list[_Image]] = {n: [] for n in self.cluster.members}
        self.suspect: Member | None = None
        """A node whose copy is not known to be made good yet; one at a time."""
        self._above = 0
        """What a new incarnation of that copy is above."""
        self._writes = 0
        for member in self.cluster.members.values():
            self._started(member)

    # -- what is known --------------------------------------------------------------------------

    def _started(self, member: Member) -> None:
        here = member.here
        here.when_begun_anew = here.settle  # it has the only group that there is

    def look(self) -> None:
        """Note who has believed which start; and that the leader has all that was acknowledged."""
        up = [member for member in self.cluster.members.values() if member.up]
        for one in up:
            for other in up:
                peer = one.here.hellos._peers.get(other.number)
                there = other.here
                believed = peer is not None and peer.boot == there.transport.boot
                if believed and one is not other and not there.starts.lost:
                    key = one.number, other.number
                    self.heard[key] = max(self.heard.get(key, 0), self._believed[key])
        leader = self.cluster.leader()
        if leader is not None:
            missing = self.acknowledged.keys() - leader.machine.rows.keys()
            confirm(
                not missing,
                f"node {leader.number} leads term {leader.group().term} without {len(missing)} of"
                f" {len(self.acknowledged)} acknowledged rows",
            )

    @property
    def _believed(self) -> dict[tuple[int, int], int]:
        """What each process was told by each other one that is up."""
        return {
            (one.number, other.number): known.number
            for one in self.cluster.members.values()
            for other in self.cluster.members.values()
            if one.up and one is not other
            for known in [one.here.starts.known(other.number)]
            if known is not None
        }

    def recognisable(self, number: int, image: _Image) -> bool:
        """Whether each majority has another voter that must know a later start of a node."""
        know = sum(
            self.heard.get((other, number), 0) > image.number
            for other in self.cluster.members
            if other != number
        )
        majority = self.count // 2 + 1
        return know >= self.count - majority + 1

    # -- what happens ---------------------------------------------------------------------------

    def run(self) -> OlderStory:
        """Live it."""
        cluster, dice = self.cluster, self.dice
        cluster.run_for(1_000)
        for _ in range(STEPS):
            self.look()
            self._tend()
            dice.choices(
                [
                    self._write,
                    self._down,
                    self._up,
                    self._image,
                    self._put_back,
                    self._cut,
                    self._heal,
                    self._weather,
                ],
                [12, 4, 6, 3, 6, 2, 4, 1],
            )[0]()
            cluster.run_for(dice.choice([5, 20, 60, 200, 600]))
        self._peace()
        return OlderStory(
            seed=self.seed,
            virtual_ms=int(cluster.now_ms),
            acknowledged=len(self.acknowledged),
            counts=self.counts,
        )

    def _some(self, *, up: bool) -> Member | None:
        found = [member for member in self.cluster.members.values() if member.up is up]
        return self.dice.choice(found) if found else None

    def _write(self) -> None:
        leader = self.cluster.leader()
        for _ in range(self.dice.choice([1, 3, 20]) if leader is not None else 0):
            assert leader is not None
            self._writes += 1
            key = f"row {self._writes}"

            def answered(future: Future[object], key: str = key) -> None:
                if future.error is None:
                    self.acknowledged[key] = None

            leader.group().propose(put(key, b"x" * self.dice.choice([1, 200]))).then(answered)

    def _down(self) -> None:
        member = self._some(up=True)
        if member is None:
            return
        how = self.dice.choice(["stop", "kill", "power cut"])
        if how == "stop":
            member.stop()
        else:
            member.crash(killed=how == "kill")
        self.counts[how] += 1

    def _up(self) -> None:
        member = self._some(up=False)
        if member is not None:
            self._start(member)

    def _start(self, member: Member) -> None:
        member.start()
        self._started(member)

    def _image(self) -> None:
        member = self.dice.choice(list(self.cluster.members.values()))
        if member is self.suspect or (member.up and not member.has()):
            return
        if member.up:
            number = member.here.starts.own.number
            image = _Image(member.disk.image(), number)
            self.images[member.number] = [*self.images[member.number][-2:], image]
            self.counts["image"] += 1

    def _put_back(self) -> None:
        if self.suspect is not None:
            return
        fitting = [
            (number, image)
            for number, images in self.images.items()
            for image in images
            if self.recognisable(number, image)
        ]
        if not fitting:
            return
        number, image = self.dice.choice(fitting)
        member = self.cluster[number]
        if member.up:
            member.crash(killed=True)
        member.disk = image.disk.image()
        self.suspect, self._above = member, self._incarnation(number)
        self.counts["image put back"] += 1
        others = [other for other in self.cluster.members.values() if other is not member]
        if self.dice.random() < 0.6:  # those that may have the rest are away for a while
            for other in self.dice.sample(others, self.count // 2):
                if other.up:
                    other.crash(killed=True)
            for other in others:
                if not other.up and self.dice.random() < 0.5:
                    self._start(other)
        if self.dice.random() < 0.7:
            self._start(member)

    def _incarnation(self, number: int) -> int:
        """The highest as which any copy knows a node."""
        up = [member for member in self.cluster.members.values() if member.up]
        return max(member.group().members().incarnation(number) for member in up) if up else 0

    def _tend(self) -> None:
        """See whether the copy of the last image is made good."""
        member, leader = self.suspect, self.cluster.leader()
        if member is None or leader is None or not member.up or leader is member:
            return
        group, members = member.group(), leader.group().members()
        if members.incarnation(member.number) <= self._above or group.waits or members.joint:
            return
        if member.number in members.incoming and group.applied >= leader.group().applied:
            self.suspect = None
            self.counts["made good"] += 1

    def _cut(self) -> None:
        self.cluster.isolate(*self.dice.sample(list(self.cluster.members), self.count // 2))
        self.counts["partition"] += 1

    def _heal(self) -> None:
        self.cluster.heal()

    def _weather(self) -> None:
        calm = self.dice.random() < 0.5
        self.cluster.network.weather = (
            Weather()
            if calm
            else Weather(delay_us_max=40_000, drop=0.1, duplicate=0.1, overtake=0.3)
        )

    def _peace(self) -> None:
        """All are there: they become equal, and have all that was acknowledged."""
        cluster = self.cluster
        cluster.heal()
        cluster.network.weather = Weather()
        for member in cluster.members.values():
            if not member.up:
                self._start(member)
        self._write()

        def over() -> bool:
            self.look()
            leader = cluster.leader()
            if leader is None or leader.group().members().joint:
                return False
            goal, members = leader.group().applied, leader.group().members()
            return members.incoming == set(cluster.members) and all(
                member.group().applied == goal and not member.group().waits
                for member in cluster.members.values()
            )

        try:
            cluster.run_until(over, timeout_ms=PEACE_MS)
        except TimeoutError:
            states = [
                f"{m.number}: {m.group().status()} {m.here.older_words}"
                for m in cluster.members.values()
            ]
            raise Broken("the group finds no peace:\n" + "\n".join(states)) from None
        for member in cluster.members.values():
            missing = self.acknowledged.keys() - member.machine.rows.keys()
            confirm(not missing, f"node {member.number} lacks {len(missing)} acknowledged rows")


def live(seed: int) -> OlderStory:
    """Live one life; a failure says how to see it again."""
    try:
        return OlderLife(seed).run()
    except (Broken, LowmarkError) as failure:
        failure.add_note(f"older seed {seed}; replay it: make sim SEED={seed}")
        raise
