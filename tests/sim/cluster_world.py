"""A cluster in one process and in virtual time, watched at every turn: nodes that come and go, with
disks and clocks of their own, and copies of groups on them.

The world does what it is told and judges what it sees; who tells it is `cluster_nemesis`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lowmark.errors import LowmarkError
from lowmark.group import (
    ChangeFailed,
    Future,
    Group,
    GroupConfig,
    Groups,
    GroupStopped,
    GroupUnfinished,
    MachineTooOld,
)
from lowmark.group.storage import GroupMeta
from lowmark.group.wire import Item
from lowmark.log import Log, LogConfig
from lowmark.raft import NOBODY
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    SimNode,
    sim_runtime,
)
from sim.cluster_ledger import GroupLedger, WatchedMachine, confirm
from sim.cluster_watch import CopyWatch

__all__ = ["ClusterNode", "ClusterWorld", "Shape", "WatchedLoop"]

EVENTS_KEPT = 200
LIVE_EVERY = 40
"""One live entry is read after so many turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a world is made of."""

    nodes: int
    groups: tuple[str, ...]
    founders: dict[str, tuple[int, ...]]
    config: GroupConfig
    log_config: LogConfig


class WatchedLoop(SimNode):
    """A node's loop; whoever watches is called after each of its turns."""

    def __init__(
        self,
        world: SimLoop,
        name: str,
        *,
        watch: Callable[[], None],
        skew_ms: int = 0,
        rate: float = 1.0,
    ) -> None:
        super().__init__(world, name, skew_ms=skew_ms, rate=rate)
        self._watch = watch

    def run(self, callback: Callable[[], None]) -> None:
        if not self.crashed:
            super().run(callback)
            self._watch()

    def restarted(self) -> WatchedLoop:
        return WatchedLoop(
            self.world, self.name, watch=self._watch, skew_ms=self.skew_ms, rate=self.rate
        )


class Listener:
    """Asked whether a change of peers may finish, it answers later if it is told to."""

    def __init__(self, node: ClusterNode, group: str) -> None:
        self._node = node
        self._group = group
        self.waiting: list[Callable[[bool], None]] = []

    def on_leader_elected(self, term: int) -> None:
        self._node.world.tell(f"node {self._node.number} leads {self._group} in term {term}")

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        self._node.world.count("change of peers done")
        self._node.world.tell(f"peers of {self._group} are {peers}")
        if self._node.number in peers:
            self._node.world.announced[self._group] = frozenset(peers)

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        self._node.world.count("change of peers failed")
        self._node.world.tell(f"change of {self._group} failed: {context.error.value}")

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        del peers
        if self._node.world.hesitates:
            self.waiting.append(answer)
        else:
            answer(True)


class ClusterNode:
    """One machine: its disk and its clock outlive its processes."""

    def __init__(self, world: ClusterWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.address = f"n{number}:1"
        self.disk = SimDisk()
        self.lives = 0
        self.version = 1
        self.tainted = False
        """Whether its disk was made to lie: a copy here may be in quarantine."""
        self.loop = WatchedLoop(world.loop, f"n{number}", watch=self._turned)
        self.log: Log | None = None
        self.groups: Groups | None = None
        self.listeners: dict[str, Listener] = {}
        self.broken: dict[str, LowmarkError] = {}
        """Copies that could not even be opened."""
        self.pending: dict[int, Callable[[], None]] = {}
        """Requests that wait for an answer of this process; called when it dies."""

    @property
    def up(self) -> bool:
        return self.groups is not None

    def group(self, name: str) -> Group | None:
        """A copy that is open here, stopped or not."""
        if self.groups is None:
            return None
        try:
            return self.groups.group(name)
        except GroupStopped:
            return None

    def serves(self, name: str) -> Group | None:
        """A copy that is open here and has not stopped."""
        group = self.group(name)
        return group if group is not None and group.stopped is None else None

    # -- life and death -------------------------------------------------------------------------

    def start(self) -> bool:
        """Start a process; False if its disk does not let it."""
        world = self.world
        self.lives += 1
        if self.loop.crashed:
            self.loop = self.loop.restarted()
        runtime = sim_runtime(
            world.seed * 10_000 + self.number * 1_000 + self.lives,
            disk=self.disk,
            loop=self.loop,
            network=world.network,
        )
        try:
            log = Log.open(runtime, world.shape.log_config)
        except LowmarkError as error:
            confirm(self.tainted, f"node {self.number} can't open its log: {error}")
            world.tell(f"node {self.number} can't start: {error.message}")
            self.loop.crash()
            self.disk = self.disk.killed()
            return False
        self.log = log
        self.groups = Groups(
            runtime, log, node=self.number, address=self.address, config=world.shape.config
        )
        self._watch_messages(self.groups)
        for other in world.nodes.values():
            if other is not self:
                self.groups.transport.learn(other.number, other.address)
        self.broken = dict(sorted(log.unreadable.items()))
        world.tell(f"node {self.number} starts, life {self.lives}, machine {self.version}")
        for stored in log.groups():
            self._open(stored.name)
        return True

    def _watch_messages(self, groups: Groups) -> None:
        send = groups.transport.send

        def watched(group: str, item: Item) -> None:
            copy = self.world.copies.get((group, self.number))
            if copy is not None:
                copy.leaves(item)
            send(group, item)

        groups.transport.send = watched  # type: ignore[method-assign]

    def _parts(self, name: str) -> tuple[WatchedMachine, Listener]:
        ledger = self.world.ledgers[name]
        machine = WatchedMachine(self.version, ledger, f"node {self.number}")
        self.listeners[name] = Listener(self, name)
        return machine, self.listeners[name]

    def _open(self, name: str) -> None:
        assert self.groups is not None
        assert self.log is not None
        copy = self.world.copy_of(name, self.number, self.log.group(name).incarnation)
        machine, listener = self._parts(name)
        try:
            group = self.groups.open(name, machine, listener=listener)
        except LowmarkError as error:
            unfinished = isinstance(error, GroupUnfinished) and (
                copy is None or copy.discarded or not copy.spoke
            )
            damaged = self.tainted or (copy is not None and copy.damaged)
            confirm(
                damaged or unfinished or isinstance(error, MachineTooOld),
                f"node {self.number} can't open {name}: {error}",
            )
            self.broken[name] = error
            self.world.tell(f"node {self.number} can't open {name}: {error.message}")
            return
        confirm(copy is not None, f"node {self.number} has a copy of {name} that nobody made")
        assert copy is not None
        copy.born(group, machine)

    def create(self, name: str, founders: tuple[int, ...] = ()) -> None:
        """Make a copy, if that can be now; one that replaces an earlier one says so."""
        self.loop.run(lambda: self._create(name, founders))

    def _create(self, name: str, founders: tuple[int, ...]) -> None:
        assert self.groups is not None
        above = self._above(name)
        machine, listener = self._parts(name)
        try:
            if above < 0:
                group = self.groups.create(name, machine, members=founders, listener=listener)
            else:
                group = self.groups.recreate(
                    name, machine, ask=self._others(), incarnation=above, listener=listener
                )
        except LowmarkError as error:
            self.world.tell(f"node {self.number} can't create {name}: {error.message}")
            return
        self._created(name, group, machine, above)

    def _created(self, name: str, group: Group, machine: WatchedMachine, above: int) -> None:
        world = self.world
        world.tell(f"node {self.number} creates {name}, above {above}")
        copy = CopyWatch(
            world.ledgers[name],
            self.number,
            above=above,
            others=world.durable(name),
            count=world.count,
            elected=lambda node: world.on_elected(name, node),
        )
        world.copies[name, self.number] = copy
        copy.born(group, machine)

    def _above(self, name: str) -> int:
        past = self.world.past.get((name, self.number), ())
        return max((copy.known_as for copy in past), default=-1)

    def _others(self) -> tuple[int, ...]:
        return tuple(number for number in self.world.nodes if number != self.number)

    def discard(self, name: str) -> None:
        """Throw a copy away: it is no member, or damaged."""
        self.loop.run(lambda: self._discard(name))

    def _discard(self, name: str) -> None:
        assert self.groups is not None
        assert self.log is not None
        self._note_lost(name, self._known_incarnation(name))
        try:
            if name in self.log.unreadable or (name, self.number) not in self.world.past:
                self.groups.delete(name)
            else:
                self.groups.leave(name)
        except LowmarkError as error:
            self.world.tell(f"node {self.number} can't discard {name}: {error.message}")
        self.broken.pop(name, None)

    def rebuild(self, name: str) -> None:
        """Throw a copy away and make it anew, in one go."""
        self.loop.run(lambda: self._rebuild(name))

    def _rebuild(self, name: str) -> None:
        assert self.groups is not None
        self._note_lost(name, self._own_incarnation(name))
        above = self._above(name)
        machine, listener = self._parts(name)
        try:
            future = self.groups.rebuild(name, machine, ask=self._others(), listener=listener)
        except LowmarkError as error:
            self.world.tell(f"node {self.number} can't rebuild {name}: {error.message}")
            return
        self.broken.pop(name, None)

        def done(made: Future[Group]) -> None:
            if made.error is None:
                self._created(name, made.result(), machine, above)

        future.then(done)

    def _note_lost(self, name: str, incarnation: int) -> None:
        """A copy is thrown away that may have spoken as that."""
        world, key = self.world, (name, self.number)
        copy = world.copies.pop(key, None)
        if copy is not None:
            world.tell(f"node {self.number} throws {name} away")
            copy.known_as = max(copy.known_as, incarnation)
            copy.discarded = True
            copy.died()
            world.past.setdefault(key, []).append(copy)

    def _known_incarnation(self, name: str) -> int:
        """As what a copy may have spoken that can't be asked any more: what it knows itself, or
        what anybody else knows of it. The operator gives the copy in its place that number.
        """
        known = [
            other_group.members().incarnation(self.number)
            for other in self.world.nodes.values()
            if (other_group := other.group(name)) is not None
        ]
        return max([*known, self._own_incarnation(name)])

    def _own_incarnation(self, name: str) -> int:
        """What a copy knows of itself, if it is open. (What it has said, its watch knows.)"""
        group = self.group(name)
        if group is None:
            return 0
        return max(group.raft.core.incarnation, GroupMeta.decode(group.log.meta).hard.incarnation)

    def crash(self, dice: Random | None) -> None:
        """End the process; with dice the machine loses power, too."""
        self.world.tell(f"node {self.number} {'loses power' if dice else 'is killed'}")
        self.loop.crash()
        self._buried(dice)

    def _buried(self, dice: Random | None) -> None:
        self.disk = self.disk.killed() if dice is None else self.disk.crashed(dice)
        self.log = self.groups = None
        for copy in self.world.copies_on(self.number):
            copy.died()
        pending, self.pending = self.pending, {}
        for dead in pending.values():
            dead()

    def close(self) -> None:
        """End the process in good order. Call it from outside the loop."""
        assert self.groups is not None
        assert self.log is not None
        self.world.tell(f"node {self.number} shuts down")
        self.groups.close()
        for copy in self.world.copies_on(self.number):
            copy.died()
        confirm(not self.pending, f"node {self.number} shut down and left requests unanswered")
        log, self.groups = self.log, None
        log.close()
        self.loop.close()
        self.log = None
        self.disk = self.disk.killed()

    def ask(self, future: Future[object], answered: Callable[[Future[object]], None]) -> None:
        """Wait for an answer; `answered` gets a future that is not done if the process dies."""
        world = self.world
        world.requests += 1
        number = world.requests

        def done(future: Future[object]) -> None:
            self.pending.pop(number, None)
            answered(future)

        self.pending[number] = lambda: answered(future)
        future.then(done)

    # -- watching -------------------------------------------------------------------------------

    def _turned(self) -> None:
        world = self.world
        world.turns += 1
        if self.groups is None:
            return
        if self.loop.crashed:
            # Its disk stopped it in the middle of a call.
            world.tell(f"node {self.number} loses power at a disk call")
            self._buried(world.dice)
            return
        for group in self.groups.groups():
            copy = world.copies.get((group.name, self.number))
            if copy is not None:
                if group.stopped is not None and not self.tainted and not copy.damaged:
                    confirm(
                        isinstance(group.stopped, GroupStopped | MachineTooOld),
                        f"node {self.number}: {group.name} stopped without a cause:"
                        f" {group.stopped}",
                    )
                copy.look()
        if world.turns % LIVE_EVERY == 0:
            world.check_some_live(self.number)


class ClusterWorld:
    """Nodes, a network, and what is known of each group."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.dice = Random(f"world {seed}")
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop)
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.counts: Counter[str] = Counter()
        self.turns = 0
        self.requests = 0
        self.on_elected: Callable[[str, int], None] = lambda name, node: None
        """Called in the turn in which a node begins to lead a group."""
        self.announced: dict[str, frozenset[int]] = {}
        """The peers that a leader among them has called committed: others may go."""
        self.hesitates = False
        """Whether changes of peers are kept waiting when they could finish."""
        self.ledgers = {name: GroupLedger(name) for name in shape.groups}
        self.copies: dict[tuple[str, int], CopyWatch] = {}
        self.past: dict[tuple[str, int], list[CopyWatch]] = {}
        self.nodes = {number: ClusterNode(self, number) for number in range(1, shape.nodes + 1)}
        for node in self.nodes.values():
            node.start()
        for name, founders in shape.founders.items():
            for number in founders:
                self.nodes[number].create(name, founders)

    def tell(self, what: str) -> None:
        """Add to what people read, and to the trace."""
        self.events.append(f"{self.loop.elapsed_us() / 1_000:10.3f} ms  {what}")
        self.loop.note(what)

    def count(self, what: str, times: int = 1) -> None:
        """Count something that happened to this world."""
        self.counts[what] += times

    def copy_of(self, name: str, node: int, incarnation: bytes) -> CopyWatch | None:
        """The copy that a node's log has; a crash may have brought a deleted one back."""
        key = (name, node)
        copy = self.copies.get(key)
        if copy is not None and copy.drawn == incarnation:
            return copy
        for past in self.past.get(key, ()):
            if past.drawn == incarnation:
                if copy is not None:
                    self.past[key].append(copy)
                self.past[key].remove(past)
                self.copies[key] = past
                return past
        return None

    def copies_on(self, node: int) -> list[CopyWatch]:
        """The copies that a node has."""
        return [copy for (_, number), copy in sorted(self.copies.items()) if number == node]

    def durable(self, name: str) -> Callable[[int, int, int, int], bool]:
        """Who has what durable: by node, incarnation, index and term."""

        def has(node: int, incarnation: int, index: int, term: int) -> bool:
            copies = [*self.past.get((name, node), ())]
            if (name, node) in self.copies:
                copies.append(self.copies[name, node])
            # The copy that a configuration means is the last one that was made below its number.
            meant = [copy for copy in copies if copy.above < incarnation]
            return bool(meant) and meant[-1].has_durable(index, term)

        return has

    def leader(self, name: str) -> ClusterNode | None:
        """Who leads, in the highest term; it may not know that it is over."""
        found = [
            (group.term, node)
            for node in self.nodes.values()
            if (group := node.serves(name)) is not None and group.leads
        ]
        return max(found, key=lambda one: one[0])[1] if found else None

    def check_some_live(self, number: int) -> None:
        """Read one live entry, somewhere on a node."""
        copies = [copy for copy in self.copies_on(number) if copy.machine and copy.machine.rows]
        if copies:
            copy = self.dice.choice(copies)
            assert copy.machine is not None
            copy.check_live(self.dice.choice(sorted(copy.machine.rows)))

    def members(self, name: str) -> frozenset[int]:
        """Everybody whom the newest configuration names."""
        return self.ledgers[name].members.everybody - {NOBODY}
