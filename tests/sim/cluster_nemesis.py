"""What happens to a cluster: faults, changes and chores, drawn one after another from the seed.

Each life has a mood that makes some of them frequent; all of them can always come. What an
operator does is here, too: damaged copies are thrown away and made anew, removed ones deleted, new
members get a copy. Disks lie on one node at a time: Raft promises nothing if a majority lies.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lowmark.errors import LowmarkError
from lowmark.group import ChangeAnswer, GroupUnfinished, MachineTooOld, Stage
from lowmark.log.files import GROUPS, LARGE, SEGMENT, WAL
from lowmark.runtime.sim import Weather
from sim.cluster_clients import Clients
from sim.cluster_world import ClusterNode, ClusterWorld

__all__ = ["MOODS", "Nemesis"]

MOODS = ("crashes", "partitions", "members", "disks", "clocks", "logs", "all")
DOWN_MS = (20, 900)
VERSION_MAX = 3


class Nemesis:
    """One source of trouble."""

    def __init__(self, world: ClusterWorld, clients: Clients, dice: Random, mood: str) -> None:
        self.world = world
        self.clients = clients
        self.dice = dice
        self.mood = mood
        self._up_at_ms: dict[int, float] = {}
        self._suspect: ClusterNode | None = None
        self._suspect_until_ms = 0.0
        self._token = 0
        world.on_elected = self._elected
        self._actions: list[tuple[str, int, Callable[[], bool]]] = [
            ("power cut", self._weight("crashes", 5), self._lose_power),
            ("kill", self._weight("crashes", 4), self._kill),
            ("power cut at a disk call", self._weight("crashes", 5), self._stop_at_call),
            ("power cut for all", self._weight("crashes", 1), self._lose_all_power),
            ("restart", 2, self._restart),
            ("partition", self._weight("partitions", 5), self._partition),
            ("leader cut off", self._weight("partitions", 5), self._isolate_leader),
            ("stranded tail", self._weight("logs", 4), self._strand_tail),
            ("one-way cut", self._weight("partitions", 4), self._cut_one_way),
            ("healing", self._weight("partitions", 8), self._heal),
            ("weather", 6, self._change_weather),
            ("burst", 8, self._burst),
            ("transfer", 4, self._transfer),
            ("change of peers", self._weight("members", 7), self._change_peers),
            ("cancel", self._weight("members", 2), self._cancel),
            ("hesitation", self._weight("members", 2), self._hesitate),
            ("snapshot", self._weight("logs", 5), self._snapshot),
            ("roll", self._weight("logs", 4), self._roll),
            ("phase 3", self._weight("logs", 5), self._compact),
            ("phase 4", self._weight("logs", 3), self._rewrite),
            ("failing disk", self._weight("disks", 3), self._fail_disk),
            ("full disk", self._weight("disks", 3), self._fill_disk),
            ("flipped bit", self._weight("disks", 3), self._flip_bit),
            ("clock rate", self._weight("clocks", 4), self._drift),
            ("clock jump", self._weight("clocks", 3), self._jump),
        ]

    def _weight(self, mood: str, weight: int) -> int:
        return weight * 4 if self.mood == mood else weight

    @property
    def now_ms(self) -> float:
        return self.world.loop.elapsed_us() / 1_000

    def act(self) -> None:
        """One thing happens, and chores are done."""
        self._chores()
        names = [name for name, _, _ in self._actions]
        weights = [weight for _, weight, _ in self._actions]
        (chosen,) = self.dice.choices(range(len(names)), weights)
        name, _, action = self._actions[chosen]
        if action():
            self.world.count(name)

    # -- chores ---------------------------------------------------------------------------------

    def _chores(self) -> None:
        for node in self.world.nodes.values():
            if not node.up and self._up_at_ms.setdefault(node.number, 0.0) <= self.now_ms:
                self.start(node)
            if node.up:
                self._tend(node)
            for name in self.world.shape.groups:
                group = node.serves(name)
                if (
                    group is not None
                    and node.version < VERSION_MAX
                    and group.status().install_refused
                ):
                    node.version = VERSION_MAX
                    self._down(node, None)
        self._tend_suspect()
        if self.world.hesitates and self.dice.random() < 0.3:
            self.stop_hesitating()

    def start(self, node: ClusterNode) -> None:
        """Start a node that is down."""
        if self.dice.random() < 0.1 and node.version < VERSION_MAX:
            node.version += 1
            self.world.count("upgrade")
        if node.start():
            self.world.count("start")
        else:
            self._up_at_ms[node.number] = self.now_ms + self.dice.randint(*DOWN_MS)

    def _tend(self, node: ClusterNode) -> None:
        """An operator's work: members have a copy, a sound one; others have none for long."""
        if node.log is not None:
            node.broken |= node.log.unreadable  # also what could not be deleted
        for name in self.world.shape.groups:
            has = (name, node.number) in self.world.copies
            is_member = node.number in self.world.members(name)
            group = node.group(name)
            copy = self.world.copies.get((name, node.number))
            lost = name in node.broken or (group is not None and group.stopped is not None)
            if copy is not None and copy.damaged and self.now_ms >= self._suspect_until_ms:
                lost = True
            if lost and (not has or self.dice.random() < 0.4):
                self.replace(node, name)
            elif has and not is_member and self.dice.random() < 0.05:
                members = self.world.ledgers[name].members
                if self.world.announced.get(name) == members.everybody and self._is_settled(name):
                    node.discard(name)
                    self.world.count("removed copy deleted")
            elif not has and is_member and name not in node.broken and self.dice.random() < 0.3:
                founders = self.world.shape.founders[name]
                is_founder = node.number in founders and (name, node.number) not in self.world.past
                node.create(name, founders if is_founder else ())

    def _is_settled(self, name: str) -> bool:
        """Whether nobody is being added just now."""
        leader = self.world.leader(name)
        group = leader.serves(name) if leader is not None else None
        return group is not None and group.status().stage is Stage.NONE

    def replace(self, node: ClusterNode, name: str) -> None:
        """Throw a copy away; it is made anew when its name is free."""
        if node.log is None:
            return
        group = node.group(name)
        why = node.broken.get(name) if group is None else group.stopped
        if isinstance(why, MachineTooOld) and node.version < VERSION_MAX:
            node.version = VERSION_MAX
            self._down(node, None)
            return
        if isinstance(why, GroupUnfinished) and (name, node.number) not in self.world.past:
            node.discard(name)  # it never took part in anything: it is made as at first
        elif self.dice.random() < 0.5 and name not in node.log.unreadable:
            node.rebuild(name)
        else:
            node.discard(name)
        self.world.count("copy thrown away")

    def stop_hesitating(self) -> None:
        """Changes of peers may finish."""
        self.world.hesitates = False
        for node in self.world.nodes.values():
            for listener in node.listeners.values():
                waiting, listener.waiting = listener.waiting, []
                for answer in waiting:
                    if node.up:
                        answer(True)

    # -- crashes --------------------------------------------------------------------------------

    def _some_up(self) -> ClusterNode | None:
        up = [node for node in self.world.nodes.values() if node.up]
        return self.dice.choice(up) if up else None

    def _leader_of_some(self) -> tuple[ClusterNode, str] | None:
        name = self.dice.choice(self.world.shape.groups)
        leader = self.world.leader(name)
        return (leader, name) if leader is not None else None

    def _down(self, node: ClusterNode, dice: Random | None) -> None:
        node.crash(dice)
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(*DOWN_MS)

    def _victim(self) -> ClusterNode | None:
        found = self._leader_of_some() if self.dice.random() < 0.5 else None
        return found[0] if found is not None else self._some_up()

    def _lose_power(self) -> bool:
        node = self._victim()
        if node is not None:
            self._down(node, Random(self.dice.getrandbits(32)))
        return node is not None

    def _kill(self) -> bool:
        node = self._victim()
        if node is not None:
            self._down(node, None)
        return node is not None

    def _stop_at_call(self) -> bool:
        node = self._victim()
        if node is None or node.disk.stop_at_call is not None:
            return False
        node.disk.stop_at_call = node.disk.calls + self.dice.randint(1, 40)
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(*DOWN_MS)
        return True

    def _lose_all_power(self) -> bool:
        for node in self.world.nodes.values():
            if node.up:
                self._down(node, Random(self.dice.getrandbits(32)))
        return True

    def _restart(self) -> bool:
        node = self._some_up()
        if node is None or node.disk.stop_at_call is not None or node is self._suspect:
            return False
        if node.disk.capacity_bytes is not None:
            return False
        node.close()
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(0, 200)
        return True

    # -- the network ----------------------------------------------------------------------------

    def _addresses(self) -> list[str]:
        return [node.address for node in self.world.nodes.values()]

    def _partition(self) -> bool:
        addresses = self._addresses()
        self.dice.shuffle(addresses)
        at = self.dice.randint(1, len(addresses) - 1)
        self.world.tell(f"partition: {addresses[:at]} | {addresses[at:]}")
        self.world.network.cut(addresses[:at], addresses[at:])
        return True

    def _isolate_leader(self) -> bool:
        found = self._leader_of_some()
        if found is None:
            return False
        leader, name = found
        others = [address for address in self._addresses() if address != leader.address]
        friends = self.dice.sample(others, self.dice.choice([0, 0, 1]))
        self.world.tell(f"leader {leader.number} of {name} is cut off with {friends}")
        cut = [address for address in others if address not in friends]
        self.world.network.cut([leader.address, *friends], cut)
        if self.dice.random() < 0.6:
            # It goes on to take proposals that nobody will ever have; its clock may be slow, too.
            self._burst_at(leader, name)
        if self.dice.random() < 0.4:
            leader.loop.rate = 0.3
        if self.dice.random() < 0.6:
            self._ask_both(leader, name, self.dice.randint(5, 25))
        return True

    def _strand_tail(self) -> bool:
        """A leader is cut off with a long tail of its own; the others go on, and take snapshots
        that end somewhere beside that tail. Then it comes back."""
        found = self._leader_of_some()
        if found is None:
            return False
        old, name = found
        others = [address for address in self._addresses() if address != old.address]
        self.world.tell(f"leader {old.number} of {name} is cut off with a tail")
        self.world.network.cut([old.address], others)
        self._burst_at(old, name, 30)
        later, delay_ms = self.world.loop.call_later, self.dice.randint(450, 800)

        def go_on() -> None:
            leader = self.world.leader(name)
            if leader is not None and leader is not old and self.clients.open:
                self._burst_at(leader, name, self.dice.randint(2, 10))

        def cover() -> None:
            for node in self.world.nodes.values():
                group = node.serves(name)
                if node is not old and group is not None:
                    group.snapshot()

        later(delay_ms, go_on)
        later(delay_ms + 100, cover)
        later(delay_ms + 200, self.world.network.heal)
        return True

    def _ask_both(self, old: ClusterNode, name: str, times: int) -> None:
        """For a while, somebody writes at whoever leads by then, then reads at the old leader."""
        if not self.clients.open or not times:
            return
        key, leader = self.dice.choice(self.clients.keys), self.world.leader(name)
        if leader is not None and leader is not old:
            self.clients.write(leader, name, key, client="")
        if old.serves(name) is not None:
            self.clients.read(old, name, key, client="")
        self.world.loop.call_later(50, lambda: self._ask_both(old, name, times - 1))

    def _cut_one_way(self) -> bool:
        one, other = self.dice.sample(self._addresses(), 2)
        self.world.tell(f"cut: {one} to {other}")
        self.world.network.cut_one_way(one, other)
        return True

    def _heal(self) -> bool:
        self.world.tell("the network heals")
        self.world.network.heal()
        return True

    def _change_weather(self) -> bool:
        dice = self.dice
        if dice.random() < 0.4:
            weather = Weather()
        else:
            weather = Weather(
                delay_us_max=dice.choice([2_000, 20_000, 120_000]),
                drop=dice.choice([0.0, 0.02, 0.2]),
                duplicate=dice.choice([0.0, 0.05, 0.3]),
                overtake=dice.choice([0.0, 0.1, 0.5]),
                detour_us_max=dice.choice([50_000, 300_000]),
            )
        self.world.tell(f"weather: {weather}")
        self.world.network.weather = weather
        return True

    # -- requests -------------------------------------------------------------------------------

    def _burst(self) -> bool:
        leaders = [
            (node, name)
            for node in self.world.nodes.values()
            for name in self.world.shape.groups
            if (group := node.serves(name)) is not None and group.leads
        ]
        if not leaders:
            return False
        self._burst_at(*self.dice.choice(leaders))
        return True

    def _burst_at(self, node: ClusterNode, name: str, count: int = 0) -> None:
        for _ in range(count or self.dice.choice([2, 5, 10, 30])):
            if node.serves(name) is not None:
                self.clients.write(node, name, self.dice.choice(self.clients.keys), client="")

    def _transfer(self) -> bool:
        found = self._leader_of_some()
        group = found[0].serves(found[1]) if found is not None else None
        if found is None or group is None:
            return False
        to = self.dice.choice(sorted(self.world.nodes))
        try:
            group.transfer(to)
        except LowmarkError:
            return False
        self.world.tell(f"node {found[0].number} hands {found[1]} to {to}")
        return True

    # -- members --------------------------------------------------------------------------------

    def _change_peers(self) -> bool:
        found = self._leader_of_some()
        return found is not None and self._change_at(*found)

    def _change_at(self, leader: ClusterNode, name: str) -> bool:
        group, nodes = leader.serves(name), sorted(self.world.nodes)
        if group is None or not group.leads:
            return False
        count = self.dice.choice([1, 2, 3, 3, 3, 4, 5])
        peers = sorted(self.dice.sample(nodes, min(count, len(nodes))))
        if self._suspect is not None and len(peers) < 3:
            return False  # it might leave the group to a copy that is lost
        for number in peers:
            node = self.world.nodes[number]
            if node.up and (name, number) not in self.world.copies and self.dice.random() < 0.8:
                if name not in node.broken:
                    node.create(name)
        self._token += self.dice.choice([0, 1, 1])
        answer = group.change_peers(group.term, self._token, peers)
        self.world.tell(f"change peers of {name} to {peers}: {answer.value}")
        return answer is ChangeAnswer.RECEIVED

    def _elected(self, name: str, node: int) -> None:
        """A leader that has committed nothing yet: somebody is in a hurry, or it is cut off."""
        if not self.clients.open or self.mood not in {"partitions", "members", "all"}:
            return
        loop, leader = self.world.loop, self.world.nodes[node]
        chance = self.dice.random()
        if chance < 0.4:
            loop.call_later(self.dice.choice([0, 1, 20]), lambda: self._hurry(leader, name))
        if chance < 0.2 or chance > 0.8:
            self.world.tell(f"leader {node} of {name} is cut off as soon as it is one")
            self.world.count("leader cut off at once")
            others = [address for address in self._addresses() if address != leader.address]
            self.world.network.cut([leader.address], others)
            loop.call_later(self.dice.randint(50, 500), self.world.network.heal)

    def _hurry(self, leader: ClusterNode, name: str) -> None:
        if self._change_at(leader, name):
            self.world.count("change of peers at a new leader")

    def _cancel(self) -> bool:
        found = self._leader_of_some()
        group = found[0].serves(found[1]) if found is not None else None
        if group is None or group.status().stage is Stage.NONE:
            return False
        self.world.tell(f"cancel the change of {group.name}: {group.cancel_change_peers()}")
        return True

    def _hesitate(self) -> bool:
        self.world.hesitates = True
        return True

    # -- the log --------------------------------------------------------------------------------

    def _some_group(self) -> tuple[ClusterNode, str] | None:
        serving = [
            (node, name)
            for node in self.world.nodes.values()
            for name in self.world.shape.groups
            if node.serves(name) is not None
        ]
        return self.dice.choice(serving) if serving else None

    def _snapshot(self) -> bool:
        found = self._some_group()
        group = found[0].serves(found[1]) if found is not None else None
        if found is None or group is None:
            return False
        self.world.tell(f"node {found[0].number} takes a snapshot of {found[1]}")
        group.snapshot()
        return True

    def _roll(self) -> bool:
        node = self._some_up()
        if node is None or node.log is None:
            return False
        try:
            node.log.roll()
        except LowmarkError:
            return False
        return True

    def _compact(self) -> bool:
        found = self._some_group()
        group = found[0].serves(found[1]) if found is not None else None
        return group is not None and group.log.compact()

    def _rewrite(self) -> bool:
        found = self._leader_of_some()
        group = found[0].serves(found[1]) if found is not None else None
        if found is None or group is None:
            return False
        live = list(group.log.row.live)
        indexes = self.dice.sample(live, len(live) // 2) if self.dice.random() < 0.7 else None
        future = group.rewrite(indexes)
        done = future.done

        def ended(_: object) -> None:
            if future.done and future.error is None:
                self.world.count("entries copied by phase 4", future.result())

        found[0].ask(future, ended)  # type: ignore[arg-type]
        return not done

    # -- disks ----------------------------------------------------------------------------------

    def _may_suspect(self) -> ClusterNode | None:
        """A node whose disk may lie now: nobody else's does, and nobody depends on it alone."""
        node = self._some_up()
        if self._suspect is not None or node is None or node.disk.capacity_bytes is not None:
            return None
        for name in self.world.shape.groups:
            members = self.world.ledgers[name].members
            if members.joint or len(members.incoming) < 3 or not self._is_settled(name):
                return None
        self._suspect = node
        self._suspect_until_ms = self.now_ms + self.dice.randint(300, 1_500)
        node.tainted = True
        return node

    def _tend_suspect(self) -> None:
        node = self._suspect
        if node is None or not node.up or self.now_ms < self._suspect_until_ms:
            return
        node.disk._faults.clear()
        if self.is_sound(node):
            self._suspect, node.tainted = None, False

    def is_sound(self, node: ClusterNode) -> bool:
        """Whether all its copies serve again, as members of their groups or as nobody."""
        if node.broken or any(copy.damaged for copy in self.world.copies_on(node.number)):
            return False
        for name in self.world.shape.groups:
            members = self.world.ledgers[name].members
            copy = self.world.copies.get((name, node.number))
            if node.number not in members.everybody:
                continue
            if copy is None or node.serves(name) is None:
                return False
            if members.incarnation(node.number) <= copy.above or members.joint:
                return False
            if node.number not in members.incoming:
                return False
        return True

    def _fail_disk(self) -> bool:
        node = self._may_suspect()
        if node is None:
            return False
        call = self.dice.choice(["write", "datasync", "rename", "create", "sync_dir", "space"])
        where = self.dice.choice([WAL, GROUPS, ""])
        for _ in range(self.dice.choice([1, 1, 3])):
            node.disk.fail_next(call, where)
        self.world.tell(f"disk of node {node.number} will fail: {call} in {where!r}")
        return True

    def _fill_disk(self) -> bool:
        node = self._some_up()
        if node is None or node is self._suspect or node.disk.capacity_bytes is not None:
            return False
        disk = node.disk
        disk.capacity_bytes = disk._used_bytes + self.dice.randint(0, 8_000)
        self.world.tell(f"disk of node {node.number} is full")
        number = node.number

        def empty() -> None:
            self.world.nodes[number].disk.capacity_bytes = None

        self.world.loop.call_later(self.dice.randint(50, 1_000), empty)
        return True

    def _flip_bit(self) -> bool:
        node = self._may_suspect()
        if node is None:
            return False
        paths = [
            path
            for path in node.disk.tree()
            if path.endswith((SEGMENT, LARGE, "/state", "/live", "/group"))
            and "installing" not in path
            and "~" not in path  # it is being deleted
        ]
        # Of a WAL, only what has something behind it: a bad end is what a power cut leaves.
        walls = [path for path in node.disk.tree() if path.endswith(".wal")][:-1]
        if not paths and not walls:
            return False
        path = self.dice.choice(paths + walls)
        stat = node.disk.stat(path)
        if stat is None or stat.kind != "file" or stat.size < 64:
            return False
        bit = self.dice.randrange(stat.size * 8 if path in paths else stat.size * 4)
        node.disk.flip_bit(path, bit)
        self.world.tell(f"bit {bit} of {path} on node {node.number} flips")
        if self.dice.random() < 0.5:
            self._down(node, None)
        # Whether anybody noticed or not: an operator replaces the disk.
        self._suspect_until_ms = self.now_ms + self.dice.randint(100, 1_200)
        part = path.split("/")
        for name in (part[1],) if part[0] == GROUPS else self.world.shape.groups:
            key = (name, node.number)
            for copy in (self.world.copies.get(key), *self.world.past.get(key, ())[-1:]):
                if copy is not None:
                    copy.damaged = True
        return True

    # -- clocks ---------------------------------------------------------------------------------

    def _drift(self) -> bool:
        node = self.dice.choice(list(self.world.nodes.values()))
        node.loop.rate = self.dice.choice([0.3, 0.7, 0.95, 1.0, 1.0, 1.05, 1.5, 3.0])
        self.world.tell(f"clock of node {node.number} runs at {node.loop.rate}")
        return True

    def _jump(self) -> bool:
        node = self.dice.choice(list(self.world.nodes.values()))
        node.loop.skew_ms = self.dice.choice([-5_000, -200, 0, 200, 5_000])
        self.world.tell(f"clock of node {node.number} is {node.loop.skew_ms} ms off")
        return True

    # -- the end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """No more trouble: everything is whole, and everybody is there."""
        world = self.world
        world.tell("faults stop")
        world.network.heal()
        world.network.weather = Weather()
        self.stop_hesitating()
        for node in world.nodes.values():
            node.disk.capacity_bytes = None
            node.disk.stop_at_call = None
            node.disk._faults.clear()
            node.loop.rate = 1.0
            node.loop.skew_ms = 0
            self._up_at_ms[node.number] = 0.0

    def tend_all(self) -> None:
        """What an operator does until all is well."""
        for node in self.world.nodes.values():
            if not node.up:
                node.version = VERSION_MAX
                node.start()
            if node.up:
                self._tend(node)
            for name in self.world.shape.groups:
                group = node.serves(name)
                if (
                    group is not None
                    and node.version < VERSION_MAX
                    and group.status().install_refused
                ):
                    node.version = VERSION_MAX
                    self._down(node, None)
        self._tend_suspect()
