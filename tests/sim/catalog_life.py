"""One life of a cluster with a catalog, decided by a seed: writers, cutters, trouble, and peace.

Names come from a small pool, so writers race and are refused. Clocks differ by no more than the
cluster allows, except in lives in which some of them jump by a day: then only safety is claimed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random

from catalog.world import table
from group.cluster import FAST
from lowmark.catalog import (
    UPDATE_PREFIX,
    AddColumns,
    CatalogRefused,
    Command,
    CreateIndex,
    CreateSchema,
    CreateZone,
    DropColumns,
    DropIndex,
    DropSchema,
    DropTable,
    DropZone,
    Executed,
    NewColumn,
    NotInForce,
    RenameTable,
    catalogs,
    update_log,
)
from lowmark.catalog.errors import VersionUnknown
from lowmark.errors import Unavailable
from lowmark.group import Future
from lowmark.group.wire import Answer, Ask, Item
from lowmark.metastore import ClusterSettings, Event, MetastoreConfig
from lowmark.runtime.sim.network import Weather
from sim.catalog_ledger import Asked, Ledger, Looked
from sim.catalog_world import DAY_MS, DrivenNode, DrivenWorld, Told, bytes_of, check_told, late, ms
from sim.cluster_ledger import Broken, confirm
from sim.mutants import replaced

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "CatalogLife", "CatalogStory", "live"]

SEEDS_IN_TEST = 10
"""Lives in `make test`."""
SEEDS_IN_ALL = 80
"""Lives in `make test-all`."""
TROUBLE_MS = 2_000
STRAND_MS = 100
"""How long an update may take to go in, before its author is not cut off for it any more."""
EVENTS_KEPT = 60
NAMES = ("a", "b", "c")
COLUMNS = ("p", "q")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStory:
    """What a life came to."""

    seed: int
    versions: int
    counts: Counter[str]
    digest: str


class LivingNode(DrivenNode):
    """A node that shows its log to the ledger."""

    checked: int = 0

    def _listen(self) -> None:
        super()._listen()
        self.checked = 0
        world = self.world
        assert isinstance(world, LivingWorld)
        world.lives.append(self.heard)
        self._show(self.life)

    def _show(self, life: int) -> None:
        world = self.world
        assert isinstance(world, LivingWorld)
        if not self.up or life != self.life or self.metastore.group.stopped is not None:
            return
        who = f"node {self.number}"

        def changed(event: Event) -> None:
            for change in event.changes:
                if change.entry is not None:
                    world.ledger.shown(change.entry.value, change.entry.time, who=who)

        page = self.metastore.range_local(UPDATE_PREFIX)
        for entry in page.entries:
            world.ledger.shown(entry.value, entry.time, who=who)
        self.metastore.watch(
            prefix=UPDATE_PREFIX,
            from_revision=page.revision + 1,
            on_event=changed,
            on_end=lambda _: self.clock.call_soon(lambda: self._show(life)),
            name="ledger",
        )

    def look(self) -> None:
        """Hold what this node knows against the ledger."""
        if self.catalogs is None:
            return
        world = self.world
        assert isinstance(world, LivingWorld)
        history = self.catalog.history
        who = f"node {self.number}"
        confirm(self.catalog.failed is None, f"{who} stopped: {self.catalog.failed}")
        confirm(self.catalog.ready_version <= history.latest.version, f"{who} is ahead")
        after = history.latest.version + 1
        for version in range(max(self.checked, history.earliest.version), after):
            catalog = history.version(version)
            confirm(version <= world.ledger.latest, f"{who} has version {version}, nobody else")
            same = world.ledger.bytes_of(version) == bytes_of(catalog)
            confirm(same, f"{who} has another version {version}, or at another time")
        self.checked = after


class LivingWorld(DrivenWorld):
    """Nodes that are watched."""

    ledger: Ledger

    def __init__(self, seed: int, *, ledger: Ledger, **more: object) -> None:
        self.ledger = ledger
        self.lives: list[Told] = []
        super().__init__(seed, **more)  # type: ignore[arg-type]

    def new_node(self, number: int) -> LivingNode:
        return LivingNode(self, number)

    def __getitem__(self, number: int) -> LivingNode:
        node = self.nodes[number]
        assert isinstance(node, LivingNode)
        return node

    def living(self) -> list[LivingNode]:
        """Those that are up and have a catalog."""
        return [self[number] for number in self.nodes if self[number].catalogs is not None]


@dataclass
class CatalogLife:
    """A world, its writers and its trouble."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    asked: list[Asked] = field(default_factory=list)
    looked: list[Looked] = field(default_factory=list)
    told: deque[str] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    calm: bool = False

    def __post_init__(self) -> None:
        self.dice = dice = Random(f"catalog life {self.seed}")
        self.jumps = self.seed % 4 == 3
        # An answer is seldom lost by chance at the one moment that leaves its author in doubt.
        self.strands = self.seed % 6 == 3
        self.ledger = Ledger()
        settings = ClusterSettings(
            id="",
            schema_sync_delay_ms=dice.choice([20, 100, 400]),
            clock_max_skew_ms=dice.choice([20, 100, 400]),
        )
        self.skew_ms = settings.clock_max_skew_ms // 2
        timeout_ms = dice.choice([400, 900])
        self.world = LivingWorld(
            self.seed,
            ledger=self.ledger,
            nodes=dice.choice([1, 3, 3, 3, 4]),
            config=replace(FAST, request_timeout_ms=timeout_ms, install_stall_ms=600),
            metastore_config=MetastoreConfig(
                lease_ms=500,
                request_timeout_ms=timeout_ms,
                watch_patience_ms=1_500,
                snapshot_entries=dice.choice([15, 60, 20_000]),
            ),
            settings=settings,
        )
        slow_ms = dice.choice([0, 0, 40, 300])
        if slow_ms:
            slow = Random(dice.getrandbits(64))
            self.world.answer = lambda node: (
                late(node, slow.uniform(0, slow_ms)) if slow.random() < 0.3 else None
            )

    # -- living ---------------------------------------------------------------------------------

    def run(self) -> CatalogStory:
        """Live it."""
        world, dice = self.world, self.dice
        until_us = world.loop.elapsed_us() + TROUBLE_MS * 1_000
        while world.loop.elapsed_us() < until_us:
            world.run_for(dice.choice([2, 5, 20, 60]))
            dice.choice([self.write, self.write, self.write, self.look_up, self.trouble])()
            for node in world.living():
                node.look()
        self.make_peace()
        self.in_peace()
        self.judge()
        return CatalogStory(
            seed=self.seed,
            versions=self.ledger.latest,
            counts=self.counts,
            digest=world.loop.digest(),
        )

    def tell(self, what: str) -> None:
        self.told.append(f"{self.world.loop.elapsed_us() / 1_000:10.3f} {what}")

    def write(self) -> None:
        """Have some commands carried out somewhere; at times everywhere at once."""
        nodes = self.world.living()
        if not nodes:
            return
        burst = self.dice.random()
        if burst < 0.1:
            commands = self.draw_commands()
            for node in nodes:
                self.execute(node, commands)
        else:
            for _ in range(3 if burst < 0.2 else 1):
                self.execute(self.dice.choice(nodes), self.draw_commands())

    def execute(self, node: LivingNode, commands: tuple[Command, ...]) -> Asked:
        token = node.next_token()
        future = node.catalog.execute(commands)
        number = len(self.asked) + 1
        asked = Asked(number, node.number, commands, token, self.ledger.told_of, future)
        self.asked.append(asked)
        self.tell(f"{asked}")
        life, calm = node.life, self.calm

        def answered(done: Future[Executed]) -> None:
            if asked.died:
                return
            asked.ceiling = self.ledger.latest
            self.tell(f"command {number} came to {done.error or done.result().catalog.version}")
            if done.error is None:
                version = done.result().catalog.version
                self.ledger.told_of = max(self.ledger.told_of, version)
                confirm(
                    node.life != life or node.catalog.ready_version >= version or not node.up,
                    f"command {number} is done, and version {version} is not ready",
                )
                self.look_everywhere(at_least=version, calm=calm)
            elif isinstance(done.error, CatalogRefused):
                self.look_everywhere(after=asked, calm=calm)

        future.then(answered)
        return asked

    def look_everywhere(
        self, *, at_least: int = 0, after: Asked | None = None, calm: bool = False
    ) -> None:
        for node in self.world.living():
            self.look_at(node, node.now(), at_least=at_least, after=after, calm=calm)

    def look_at(
        self,
        node: LivingNode,
        time: int,
        *,
        at_least: int = 0,
        after: Asked | None = None,
        calm: bool = False,
    ) -> None:
        future = node.catalog.at(time)
        self.looked.append(Looked(node.number, time, future, at_least, after, calm))

    def look_up(self) -> None:
        nodes = self.world.living()
        if nodes:
            node = self.dice.choice(nodes)
            self.look_at(node, max(node.now() + ms(self.dice.randint(-1_500, 300)), 1))

    def draw_commands(self) -> tuple[Command, ...]:
        count = self.dice.choice([0, 1, 1, 1, 1, 1, 2, 3])
        return tuple(self.draw_command() for _ in range(count))

    def draw_command(self) -> Command:
        dice = self.dice
        name, gently = dice.choice(NAMES), dice.random() < 0.3
        column = dice.choice(COLUMNS)
        draws: list[Callable[[], Command]] = [
            lambda: table(name, if_not_exists=gently),
            lambda: table(name, if_not_exists=gently),
            lambda: DropTable(name=name, if_exists=gently),
            lambda: RenameTable(name=name, to=dice.choice(NAMES), if_exists=gently),
            lambda: AddColumns(
                table=name, columns=(NewColumn.of(column, "int64"),), if_not_exists=gently
            ),
            lambda: DropColumns(table=name, columns=(column,), if_exists=gently),
            lambda: CreateIndex(name=f"{name}_index", table=name, columns=("note",)),
            lambda: DropIndex(name=f"{name}_index", if_exists=gently),
            lambda: CreateZone(name=f"zone_{name}", if_not_exists=gently),
            lambda: DropZone(name=f"zone_{name}", if_exists=gently),
            lambda: CreateSchema(name=f"schema_{name}", if_not_exists=gently),
            lambda: DropSchema(name=f"schema_{name}", if_exists=gently),
        ]
        return dice.choice(draws)()

    # -- trouble --------------------------------------------------------------------------------

    def trouble(self) -> None:
        acts = [
            self.crash,
            self.crash,
            self.come_back,
            self.come_back,
            self.cut_off,
            self.heal,
            self.heal,
            self.transfer,
            self.compact,
            self.compact,
            self.compact,
            self.compact_metastore,
            self.compact_metastore,
            self.set_clock,
            self.set_clock,
            self.lose,
            self.change_weather,
        ]
        if self.jumps:
            acts += [self.jump, self.jump]
        if self.strands:
            acts += [self.strand, self.strand, self.strand]
        act = self.dice.choice(acts)
        self.counts[act.__name__.replace("_", " ")] += 1
        act()

    def crash(self) -> None:
        up = [node for node in self.world.nodes.values() if node.up]
        if len(up) * 2 <= len(self.world.nodes) and self.dice.random() < 0.8:
            return
        if up:
            node = self.world[self.dice.choice(up).number]
            how = self.dice.choice(["power", "killed", "stopped"])
            self.tell(f"node {node.number}: {how}")
            if how == "stopped" and node.catalogs is not None:
                node.stop()
            else:
                node.crash(killed=how == "killed")
            self.buried(node)

    def buried(self, node: LivingNode) -> None:
        for asked in self.asked:
            if asked.node == node.number and not asked.future.done:
                asked.died = True

    def come_back(self) -> None:
        for number in self.world.nodes:
            if not self.world[number].up:
                self.tell(f"node {number} comes back")
                self.world[number].start()

    def cut_off(self) -> None:
        numbers = list(self.world.nodes)
        some = self.dice.sample(numbers, self.dice.randint(1, max(len(numbers) - 1, 1)))
        self.tell(f"cut off: {some}")
        self.world.isolate(*some)

    def strand(self) -> None:
        """Cut an author off when its update has gone in, and before it can hear so."""
        leader = self.world.leader()
        nodes = [node for node in self.world.living() if node is not leader]
        if leader is None or not nodes:
            return
        node = self.dice.choice(nodes)
        asked = self.execute(node, (table(f"stranded{len(self.asked)}"),))

        def went_in() -> bool:
            return asked.token in self.ledger.tokens

        with suppress(TimeoutError):
            self.world.run_until(lambda: went_in() or asked.future.done, timeout_ms=STRAND_MS)
        if went_in() and node.up:
            self.tell(f"cut off with command {asked.number}: {node.number}")
            self.world.isolate(node.number)

    def heal(self) -> None:
        self.tell("heal")
        self.world.heal()

    def transfer(self) -> None:
        leader = self.world.leader()
        if leader is not None:
            voters = sorted(leader.metastore.group.raft.core.members.voters)
            to = self.dice.choice(voters)
            self.tell(f"node {leader.number} gives way to {to}")
            leader.metastore.group.transfer(to)

    def compact(self) -> None:
        """Cut the log at some place; at times at several at once."""
        nodes = self.world.living()
        if not nodes:
            return
        for _ in range(self.dice.choice([1, 3])):
            node = self.dice.choice(nodes)
            latest = node.catalog.latest.version
            version = max(latest - self.dice.randint(0, 6), 0)
            self.tell(f"node {node.number} cuts at {version}")

            def cut(future: Future[bool], version: int = version) -> None:
                self.tell(f"cut at {version}: {future.error or future.result()}")
                expected = isinstance(future.error, Unavailable | VersionUnknown | type(None))
                confirm(expected, f"a cut at {version} came to {future.error!r}")

            node.catalog.compact(version).then(cut)

    def compact_metastore(self) -> None:
        nodes = self.world.living()
        if nodes:
            metastore = self.dice.choice(nodes).metastore
            self.tell("cut the metastore")
            metastore.compact(metastore.state.latest)

    def set_clock(self) -> None:
        node = self.world[self.dice.choice(list(self.world.nodes))]
        if node.sim_node is not None and not self.jumps:
            node.clock.skew_ms = self.dice.randint(-self.skew_ms, self.skew_ms)

    def jump(self) -> None:
        node = self.world[self.dice.choice(list(self.world.nodes))]
        if node.sim_node is not None:
            node.clock.skew_ms = self.dice.choice([-DAY_MS, 0, 0, DAY_MS])
            self.tell(f"node {node.number}: clock {node.clock.skew_ms}")

    def lose(self) -> None:
        chance = self.dice.choice([0.0, 0.0, 0.1, 0.4])
        dice = Random(self.dice.getrandbits(64))

        def loses(_: int, __: int, item: Item) -> bool:
            return isinstance(item, Ask | Answer) and dice.random() < chance

        self.tell(f"lose {chance}")
        self.world.network.loses = loses if chance else None

    def change_weather(self) -> None:
        dice = self.dice
        self.world.network.weather = dice.choice(
            [Weather(), Weather(delay_us_max=20_000), Weather(overtake=0.05, drop=0.01)]
        )

    # -- peace ----------------------------------------------------------------------------------

    def make_peace(self) -> None:
        self.tell("peace")
        world = self.world
        world.network.loses, world.network.weather = None, Weather()
        world.heal()
        for number in world.nodes:
            node = world[number]
            if node.sim_node is not None:
                node.clock.skew_ms = (
                    0 if self.jumps else self.dice.randint(-self.skew_ms, self.skew_ms)
                )
        self.come_back()
        world.answer = lambda node: late(node, 5)
        self.wait("a leader", lambda: world.leader() is not None)
        self.wait("all catalogs", lambda: len(world.living()) == len(world.nodes))
        self.wait("all answers", lambda: all(one.future.done or one.died for one in self.asked))

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        try:
            self.world.run_until(condition, timeout_ms=20_000)
        except TimeoutError:
            for node in self.world.living():
                node.look()  # what it says is the cause, and what is waited for is not
            raise Broken(f"in peace, no {what}") from None

    def in_peace(self) -> None:
        """Now everything that is promised is due."""
        world, self.calm = self.world, True
        # Leaders may still change for a moment, and somebody may have much to catch up with; what
        # is asked after that is answered.
        world.run_for(600)
        self.wait("chance to catch up", self.caught_up)
        asked = [self.execute(node, (table(f"peace{node.number}"),)) for node in world.living()]
        self.wait("answers in peace", lambda: all(one.future.done for one in asked))
        for one in asked:
            error = one.future.error
            allowed = isinstance(error, NotInForce) if self.jumps else False
            confirm(error is None or allowed, f"in peace: {error!r}: {one}")
        self.wait("look-ups", self.all_found)
        self.even("in peace")
        for number in world.nodes:
            world[number].restart()
        self.wait("all catalogs", lambda: len(world.living()) == len(world.nodes))
        self.even("after a start")

    def caught_up(self) -> bool:
        latest = self.ledger.latest
        return all(node.catalog.latest.version == latest for node in self.world.living())

    def all_found(self) -> bool:
        return all(look.future.done for look in self.looked if look.calm)

    def even(self, when: str) -> None:
        world = self.world

        def even() -> bool:
            known = {
                (
                    node.catalog.earliest.version,
                    node.catalog.latest.version,
                    node.catalog.ready_version,
                )
                for node in world.living()
            }
            return len(known) == 1 and known.pop()[1:] == (self.ledger.latest, self.ledger.latest)

        self.wait(f"agreement {when}", even)
        for node in world.living():
            node.look()
        try:
            world.check_even()
        except AssertionError as failure:
            raise Broken(f"{when}: {failure}") from failure

    def judge(self) -> None:
        for asked in self.asked:
            self.counts[f"command {self.ledger.judge(asked)}"] += 1
        for look in self.looked:
            came_to = self.ledger.judge_look(look, skewed=self.jumps)
            self.counts[f"look-up {came_to}"] += 1
            if look.calm and not self.jumps:
                confirm(came_to == "found", f"in peace, a look-up came to {came_to}")
        living = {id(node.heard) for node in self.world.living()}
        for told in self.world.lives:
            try:
                check_told(told, self.ledger.entries.__getitem__, done=id(told) in living)
            except AssertionError as failure:
                raise Broken(f"listeners: {failure}") from failure
            self.counts["jump over versions"] += sum(one.entry is None for one in told.events)


@contextmanager
def patience(far_ms: int) -> Iterator[None]:
    """Nobody waits long for a clock that was a day off."""
    before = catalogs._FAR_MS
    catalogs._FAR_MS = far_ms
    try:
        yield
    finally:
        catalogs._FAR_MS = before


def live(seed: int) -> CatalogStory:
    """Live one life; a failure says what happened, and how to see it again."""
    life = None
    try:
        # In a third of all lives, a snapshot is in parts, as that of a large catalog is.
        part_bytes_max = 400 if seed % 3 == 1 else update_log.PART_BYTES_MAX
        with patience(1_500), replaced(update_log, "PART_BYTES_MAX", part_bytes_max):
            life = CatalogLife(seed)
            return life.run()
    except BaseException as failure:
        if life is not None:
            failure.add_note("\n".join(["the end of the life:", *life.told]))
        failure.add_note(f"catalog seed {seed}; replay it: make sim SEED={seed}")
        raise
