"""What is done to the nodes: one trouble after another, leaders preferred.

A trouble begins, clients go on under it (it waits for that, and a long run for some time more), and
it ends: the node is started, the way is mended, the clock is right again. Then clients go on again.
If they do not go on though two good nodes reach each other, that is a violation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from threading import Thread

from clusters.places import world
from lowmark.errors import LowmarkError
from torture.cluster import Cluster
from torture.operating import Operator

PROGRESS_S = 30.0
PROGRESS = {
    "append": 5,
    "send": 3,
    "write": 3,
    "scan": 2,
    "read": 5,
    "tail": 3,
    "as-of": 1,
    "commit": 1,
    "meta-write": 1,
    "meta-read": 1,
}
"""So many more calls came out well: then clients have gone on."""
TROUBLES = (
    "kill-leader",
    "kill-any",
    "kill-twice",
    "cut-two",
    "cut-in",
    "cut-out",
    "cut-link",
    "cut-link-one-way",
    "pause-leader",
    "pause-and-kill",
    "jump-near",
    "jump-far",
    "full-disk",
    "kill-all",
)
OPERATED = ("alter", "cut-catalog", "compact", "compact-and-kill", "move", "reset")
"""What an operator does (`operating`)."""
NEED_OLD_TIMES = ("cut-catalog", "compact", "compact-and-kill")
"""Which cut nothing while clients may still ask for every time there was."""
BETWEEN_HOSTS = ("lossy", "hide-leader")
"""What else is done where each node is in a host of its own."""
LOST = (0.02, 0.1)
_OPERATED_SHARE = 0.35
_RUN_S = 0.5
_SURE_S = 10.0
"""What clients may be behind when they ask for a time that is about to be too old."""
FAR_MS = (-3_600_000, -5_000, 5_000, 3_600_000)
NEAR_MS = (-400, -200, 200, 400)


class Nemesis:
    """Makes trouble by a plan that is drawn from a seed."""

    def __init__(
        self,
        cluster: Cluster,
        operator: Operator,
        random: Random,
        counts: Callable[[], dict[str, int]],
        say: Callable[[str], None],
        *,
        dwell_s: float = 0.0,
        as_of_s: float = 240.0,
    ) -> None:
        self._cluster = cluster
        self._operator = operator
        self._as_of_s = as_of_s
        self._random = random
        self._counts = counts
        self._say = say
        self._dwell_s = dwell_s
        self.troubles: dict[str, int] = {}
        self.violations: list[str] = []

    def draw(self) -> str:
        """The next trouble. Of what an operator does, a reset is the rarest: it takes longest."""
        if self._random.random() < _OPERATED_SHARE:
            found = self._random.choices(OPERATED, (2, 2, 2, 2, 2, 1))[0]
            too_early = not self._operator.old_times(self._as_of_s + _SURE_S)
            return "alter" if too_early and found in NEED_OLD_TIMES else found
        return self._random.choice(TROUBLES if world() is None else TROUBLES + BETWEEN_HOSTS)

    def make(self, trouble: str) -> None:
        """One trouble, from its beginning to its end."""
        cluster, random = self._cluster, self._random
        if trouble == "full-disk" and not cluster.has_small_disk:
            return
        self.troubles[trouble] = self.troubles.get(trouble, 0) + 1
        began = time.monotonic()
        leader = self._leader()
        others = [number for number in cluster.numbers if number != leader]
        aloud = random.random() < 0.5
        match trouble:
            case "kill-leader":
                cluster.kill(leader)
            case "kill-any":
                cluster.kill(random.choice(cluster.numbers))
            case "kill-twice":
                cluster.kill(leader)
                self.go_on(trouble)
                cluster.start(leader)
                cluster.wait_ready(leader)
                cluster.kill(self._leader())
            case "cut-two":
                cluster.cut([*_ways(leader, others), *_ways(others, leader)], aloud=aloud)
            case "cut-in":
                cluster.cut(_ways(others, leader), aloud=aloud)
            case "cut-out":
                cluster.cut(_ways(leader, others), aloud=aloud)
            case "cut-link":
                other = random.choice(others)
                cluster.cut([(leader, other), (other, leader)], aloud=aloud)
            case "cut-link-one-way":
                cluster.cut([random.choice([(one, leader) for one in others])], aloud=aloud)
            case "lossy":
                cluster.lose(random.choice(LOST))
            case "hide-leader":
                cluster.hide(leader)
            case "pause-leader":
                cluster.pause(leader)
            case "pause-and-kill":
                cluster.pause(leader)
                self.go_on(trouble)
                cluster.resume(leader)  # an old leader wakes up, and the new one dies
                self.go_on(trouble)
                cluster.kill(self._leader())
            case "jump-near":
                cluster.jump(leader, random.choice(NEAR_MS))
            case "jump-far":
                cluster.jump(leader, random.choice(FAR_MS))
            case "full-disk":
                cluster.fill()
            case "kill-all":
                for number in cluster.numbers:
                    cluster.kill(number)
            case "alter":
                self._operated(self._operator.alter)
            case "cut-catalog":
                self._operated(self._operator.alter)
                self._operated(lambda: self._operator.cut_catalog(self._as_of_s + _SURE_S))
            case "compact":
                self._operated(lambda: self._operator.compact(self._as_of_s + _SURE_S))
            case "compact-and-kill":
                self._compact_and_kill(leader)
            case "move":
                self._operator.replicas(len(cluster.numbers) - 1)
                self.go_on(trouble)
                self._operator.replicas(len(cluster.numbers))
            case "reset":
                self._operator.reset(random.choice(cluster.numbers))
            case other:
                known = ", ".join((*TROUBLES, *OPERATED, *BETWEEN_HOSTS))
                raise ValueError(f"there is no trouble {other}; there are: {known}")
        if trouble != "kill-all":
            self.go_on(trouble)
        time.sleep(self._dwell_s * random.random() ** 3)  # few are long
        cluster.mend_all()
        self.go_on(f"the end of {trouble}")
        with suppress(LowmarkError):  # a clock may have been far ahead: then the next time will do
            self._operator.remember()
        self._say(f"{trouble} at node {leader}: {time.monotonic() - began:.1f} s")

    def _operated(self, call: Callable[[], None]) -> None:
        """An operator hears of an error by name, and goes on: what it has done is written down."""
        try:
            call()
        except LowmarkError as error:
            self._cluster.did("refused", f"{type(error).__name__}: {error}")

    def _compact_and_kill(self, leader: int) -> None:
        """A run begins, and a node dies under it."""
        failed: list[BaseException] = []

        def compact() -> None:
            try:
                self._operator.compact(self._as_of_s + _SURE_S)
            except LowmarkError:
                pass  # its own node may be the one that dies
            except BaseException as error:
                failed.append(error)

        run = Thread(target=compact, name="compact")
        run.start()
        time.sleep(_RUN_S * self._random.random())
        self._cluster.kill(leader)
        run.join()
        self.violations += [f"the run under which a node died: {error!r}" for error in failed]

    def _leader(self) -> int:
        """A node that leads something: the metastore, or a partition."""
        leaders = self._cluster.leaders()
        if not leaders:
            return self._random.choice(self._cluster.numbers)
        return leaders[self._random.choice(sorted(leaders))]

    def go_on(self, under: str) -> None:
        """Wait until clients have done more."""
        before, ends_at = self._counts(), time.monotonic() + PROGRESS_S
        while True:
            now = self._counts()
            stuck = [f for f, more in PROGRESS.items() if now[f] < before[f] + more]
            if not stuck:
                return
            if time.monotonic() > ends_at:
                self._cluster.ask_what_they_do()
                self.violations.append(
                    f"under {under} these did not go on for {PROGRESS_S:g} s: {', '.join(stuck)}"
                )
                return
            time.sleep(0.02)


def _ways(here: int | list[int], there: int | list[int]) -> list[tuple[int, int]]:
    many = here if isinstance(here, list) else [here]
    targets = there if isinstance(there, list) else [there]
    return [(a, b) for a in many for b in targets]
