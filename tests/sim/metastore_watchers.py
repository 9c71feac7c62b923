"""Those who follow a simulated metastore, and notice if they are told anything but the truth.

A watcher outlives its watch: when its node dies, or the watch ends, it goes on elsewhere behind the
last revision that it was told of. What it is told over all its lives is every revision that changed
what it wants, once, in order and whole; unless the cut has passed the next one, which it is told.
"""

from __future__ import annotations

from random import Random

from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.metastore import Event, RevisionCompacted, Watch
from sim.cluster_ledger import confirm
from sim.metastore_ledger import Made
from sim.metastore_world import MetastoreNode, MetastoreWorld

__all__ = ["Watchers"]

REST_MS_MAX = 120
SLOW_MS = (5, 60, 400, 1_500)


class _Watcher:
    """One of them."""

    def __init__(
        self, watchers: Watchers, name: str, *, prefix: bytes | None, keys: tuple[bytes, ...]
    ) -> None:
        self._watchers = watchers
        self._world = watchers.world
        self._dice = watchers.dice
        self.name = name
        self.prefix = prefix
        self.keys = keys
        self.next: int | None = None
        """The first revision that it was not told of; None: it begins with what comes next."""
        self.node: MetastoreNode | None = None
        self.life = 0
        self.watch: Watch | None = None
        self.busy_since_ms: int | None = None
        self._watches = 0

    def wants(self, key: bytes) -> bool:
        return key in self.keys or (self.prefix is not None and key.startswith(self.prefix))

    @property
    def here(self) -> bool:
        """Whether its watch is open in a process that lives."""
        node, watch = self.node, self.watch
        if node is None or watch is None or watch.closed:
            return False
        return node.up and node.lives == self.life

    def open(self, node: MetastoreNode) -> None:
        """Go on at a node."""
        metastore, ledger = node.metastore, self._world.ledger
        assert metastore is not None
        self.node, self.life, self.busy_since_ms = node, node.lives, None
        self._watches += 1
        self.watch = None
        begins_with = metastore.state.latest + 1 if self.next is None else self.next
        cut = metastore.state.compacted
        try:
            self.watch = metastore.watch(
                prefix=self.prefix,
                keys=self.keys,
                from_revision=self.next,
                on_event=self._told,
                on_end=self._ended,
                name=self.name,
            )
        except RevisionCompacted as gone:
            confirm(begins_with <= cut <= ledger.compacted, f"{self.name}: {begins_with} is there")
            confirm(gone.first_left == cut + 1, f"{self.name}: {gone.first_left} is not the first")
            self._world.count("watch refused: compacted")
            self.next = gone.first_left
            return
        confirm(begins_with > cut, f"{self.name}: {begins_with} is compacted, and can be watched")
        self.next = begins_with
        self._world.count("watch opened")

    def close(self) -> None:
        """Be told nothing for a while."""
        if self.here:
            assert self.watch is not None
            self.watch.close()
        self.watch = None

    def expected(self) -> Made | None:
        """The next revision that it must be told of, if there is one yet."""
        assert self.next is not None
        return self._world.ledger.next_wanted(self.wants, self.next)

    def _told(self, event: Event) -> Future[None] | None:
        confirm(self.here and self.busy_since_ms is None, f"{self.name} was told too early")
        made = self.expected()
        confirm(made is not None, f"{self.name} was told {event}, which never happened")
        assert made is not None
        confirm(
            made.revision == event.revision,
            f"{self.name} was told revision {event.revision}, and waits for {made.revision}",
        )
        told = {change.key: change.entry for change in event.changes}
        right = {
            key: None if row is None else row.entry(key)
            for key, row in made.changes.items()
            if self.wants(key)
        }
        confirm(
            told == right and len(told) == len(event.changes) and event.time == made.time,
            f"{self.name} was told {event} at {event.time}, and should be told {right}",
        )
        self.next = event.revision + 1
        self._world.count("event told")
        if self._dice.random() < self._watchers.slow_share:
            return self._take_time()
        return None

    def _take_time(self) -> Future[None]:
        node, watch = self.node, self._watches
        assert node is not None
        done: Future[None] = Future()
        self.busy_since_ms = node.loop.elapsed_us() // 1_000

        def go_on() -> None:
            if self._watches == watch:
                self.busy_since_ms = None
            done.resolve(None)

        node.loop.call_later(self._dice.choice(SLOW_MS), go_on)
        return done

    def _ended(self, error: LowmarkError) -> None:
        assert self.node is not None
        assert self.next is not None
        self.watch = None
        if not isinstance(error, RevisionCompacted):
            confirm(self.node.closing, f"{self.name} ended: {error!r}")
            return
        # Whether a lease held it is judged when the cut is made, and what a lease is asked to hold
        # when it is asked: here, it must be true.
        cluster, ledger = self.node.cluster, self._world.ledger
        assert cluster is not None
        cut = cluster.metastore.state.compacted
        confirm(
            self.next <= cut <= ledger.compacted, f"{self.name} ended, and {self.next} is there"
        )
        confirm(
            error.first_left == cut + 1,
            f"{self.name} was told that {error.first_left} is the first left, and it is {cut + 1}",
        )
        self._world.count("watch ended: compacted")
        self.next = error.first_left

    def check_needed(self, first: int, patience_ms: int) -> None:
        """Its node says from which revision on somebody there needs any."""
        assert self.node is not None
        assert self.node.cluster is not None
        state, made = self.node.cluster.metastore.state, self.expected()
        if made is None or not state.compacted < made.revision <= state.latest:
            return
        now_ms = self.node.loop.elapsed_us() // 1_000
        if self.busy_since_ms is None or now_ms - self.busy_since_ms < patience_ms:
            confirm(
                first <= made.revision,
                f"node {self.node.number} needs revisions from {first} on, {self.name} is at"
                f" {made.revision}",
            )


class Watchers:
    """All of them."""

    def __init__(
        self, world: MetastoreWorld, dice: Random, *, count: int, prefixes: list[bytes]
    ) -> None:
        self.world = world
        self.dice = dice
        self.slow_share = dice.choice([0.0, 0.1, 0.4])
        self.open = True
        keys = [prefix + b"0" for prefix in prefixes if prefix]
        self.all: list[_Watcher] = []
        for number in range(count):
            prefix = dice.choice([*prefixes, None])
            some = tuple(dice.sample(keys, dice.randint(1, 2))) if not prefix else ()
            watcher = _Watcher(self, f"watcher {number}", prefix=prefix, keys=some)
            self.all.append(watcher)
            self._rest(watcher)
        world.on_needed = self._needed

    def _rest(self, watcher: _Watcher) -> None:
        delay_ms = self.dice.randint(1, REST_MS_MAX)
        self.world.loop.call_later(delay_ms, lambda: self._tend(watcher))

    def _tend(self, watcher: _Watcher) -> None:
        if not self.open:
            return
        if not watcher.here:
            self.go_on(watcher)
        elif self.dice.random() < 0.02:
            self._leave(watcher)
        self._rest(watcher)

    def _leave(self, watcher: _Watcher) -> None:
        """Some go on elsewhere; some forget where they were, and choose anew."""
        watcher.close()
        if self.dice.random() < 0.3:
            ledger = self.world.ledger
            low = max(1, ledger.compacted - 5)
            choices = [None, 1, ledger.latest + 3, self.dice.randint(low, ledger.latest + 1)]
            watcher.next = self.dice.choice(choices)

    def go_on(self, watcher: _Watcher) -> None:
        """Open a watch somewhere."""
        serving = self.world.serving()
        if serving:
            node = self.dice.choice(serving)
            node.loop.run(lambda: watcher.open(node))

    def _needed(self, node: MetastoreNode, first: int) -> None:
        patience_ms = self.world.shape.metastore.watch_patience_ms
        for watcher in self.all:
            if watcher.node is node and watcher.here:
                watcher.check_needed(first, patience_ms)

    # -- the end --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Nobody is slow any more, and everybody is somewhere."""
        self.open, self.slow_share = False, 0.0
        for watcher in self.all:
            if not watcher.here:
                self.go_on(watcher)

    def is_told_all(self) -> bool:
        """Whether everybody was told everything."""
        return all(
            watcher.here and watcher.busy_since_ms is None and watcher.expected() is None
            for watcher in self.all
        )

    def shown(self) -> str:
        """For the reader."""
        lines = []
        for watcher in self.all:
            at = watcher.node.number if watcher.node is not None else 0
            lines.append(f"{watcher.name}: at node {at}, next {watcher.next}, {watcher.here}")
        return "\n".join(lines)
