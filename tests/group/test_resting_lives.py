"""Groups with little to do, on nodes that come and go and hear each other now and then.

Each seed is another life: nodes die for long or for a moment, and are cut off, both ways or one;
now and then a command is proposed. Most of the time everybody who can rests. In the end all is
whole, and nobody asks for anything: the copies must find together by themselves.
"""

from __future__ import annotations

from random import Random

import pytest

from group.cluster import Cluster, Member
from group.kv import put
from lowmark.group import Future
from lowmark.runtime.sim import Weather

GROUPS = ("g", "h")
STEPS = 24
PAUSES_MS = (10, 60, 300, 1_500, 4_000)
PEACE_MS = 15_000


class Life:
    """A cluster, its trouble, and what was answered."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"resting life {seed}")
        self.cluster = Cluster(seed, nodes=self.dice.choice([3, 3, 5]), group="")
        self.numbers = sorted(self.cluster.members)
        for name in GROUPS:
            for number in self.numbers:
                self.cluster[number].create(name, self.numbers)
        self.acknowledged = dict.fromkeys(GROUPS, 0)
        self.asked: list[tuple[str, Future[object]]] = []
        self.leaders: dict[tuple[str, int], int] = {}
        self.rests = self.rests_without = 0

    def run(self) -> None:
        for name in GROUPS:
            self.cluster.wait_leader(name)
        for _ in range(STEPS):
            self.dice.choice([self._kill, self._start, self._cut, self._heal, self._put])()
            self._pass(self.dice.choice(PAUSES_MS))
        self._end()

    # -- what happens ---------------------------------------------------------------------------

    def _some(self, *, up: bool) -> Member | None:
        found = [m for m in self.cluster.members.values() if m.up is up]
        return self.dice.choice(found) if found else None

    def _kill(self) -> None:
        member = self._some(up=True)
        if member is not None:
            member.crash(killed=self.dice.random() < 0.5)
            if self.dice.random() < 0.3:
                self._pass(10)
                member.start()

    def _start(self) -> None:
        member = self._some(up=False)
        if member is not None:
            member.start()

    def _cut(self) -> None:
        one, two = (self.cluster[n].address for n in self.dice.sample(self.numbers, 2))
        self.cluster.network.cut_one_way(one, two)
        if self.dice.random() < 0.5:
            self.cluster.network.cut_one_way(two, one)

    def _heal(self) -> None:
        self.cluster.heal()
        drop = self.dice.choice([0.0, 0.0, 0.1])
        self.cluster.network.weather = Weather(drop=drop, duplicate=drop, overtake=drop)

    def _put(self) -> None:
        name = self.dice.choice(GROUPS)
        leader = self.cluster.leader(name)
        if leader is not None:
            self.asked.append((name, leader.group(name).propose(put("a", b"1"))))

    # -- what holds -----------------------------------------------------------------------------

    def _pass(self, ms: int) -> None:
        tick = self.cluster.config.tick_ms
        for _ in range(max(1, ms // tick)):
            self.cluster.run_for(tick)
            self._look()

    def _look(self) -> None:
        for name, future in self.asked:
            if future.done and future.error is None:
                version = future.result()
                assert isinstance(version, int)
                self.acknowledged[name] = max(self.acknowledged[name], version)
        self.asked = [(name, future) for name, future in self.asked if not future.done]
        for member in self.cluster.members.values():
            for group in member.here.groups() if member.up else ():
                if group.leads:
                    leader = self.leaders.setdefault((group.name, group.term), member.number)
                    assert leader == member.number, "two leaders in a term"
                if group.resting.resting:
                    self.rests += 1
                    self.rests_without += bool(group.resting.without)
                if group.resting.resting and group.leads:
                    # Who leads and rests has all that was ever acknowledged, or its term is over.
                    others = [m.group(group.name).term for m in self._up() if m.has(group.name)]
                    if max(others) == group.term:
                        row = member.machines[group.name].rows.get("a")
                        assert (row.version if row else 0) >= self.acknowledged[group.name]

    def _up(self) -> list[Member]:
        return [m for m in self.cluster.members.values() if m.up]

    def _end(self) -> None:
        cluster = self.cluster
        cluster.heal()
        cluster.network.weather = Weather()
        for member in cluster.members.values():
            if not member.up:
                member.start()
        cluster.run_until(
            lambda: all(self._found_together(name) for name in GROUPS), timeout_ms=PEACE_MS
        )
        self._look()
        for name in GROUPS:
            for member in cluster.members.values():
                row = member.machines[name].rows.get("a")
                assert (row.version if row else 0) >= self.acknowledged[name]

    def _found_together(self, name: str) -> bool:
        groups = [member.group(name) for member in self.cluster.members.values()]
        same = {(group.leader, group.term, group.applied) for group in groups}
        led = any(group.leads for group in groups)
        return led and len(same) == 1 and all(group.resting.resting for group in groups)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 4, 7])
def test_copies_find_together_by_themselves_whatever_kept_them_apart(first: int) -> None:
    rests_without = 0
    for seed in range(first, first + 3):
        life = Life(seed)
        life.run()
        rests_without += life.rests_without
    assert rests_without > 0
