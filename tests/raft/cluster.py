"""A few cores with disks and a wire between them, moved by hand.

Nothing happens by itself: `Cluster.run` lets everything go on until it rests, and a test may hold
back a member's writes, cut wires, or play a message itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from lowmark.raft import (
    Append,
    AppendResponse,
    Change,
    ChangeKind,
    ConfChange,
    Config,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    Message,
    ProgressState,
    RaftNode,
    Role,
    Snapshot,
    StorageAppend,
    StorageAppended,
    StorageApplied,
    Transition,
    VoteResponse,
)
from lowmark.raft.state import Core, ReadState
from raft.memory_storage import MemoryStorage

__all__ = [
    "ELECTION_TICKS",
    "Cluster",
    "Member",
    "a_leader",
    "acknowledge",
    "append_to",
    "change",
    "entry",
    "heartbeat_to",
]

ELECTION_TICKS = 10


def entry(index: int, term: int, data: bytes = b"") -> Entry:
    return Entry(index, term, EntryKind.NORMAL, data)


class Member:
    """One core, its disk, and the orders on their way to it."""

    def __init__(
        self,
        node: int,
        voters: tuple[int, ...] = (1, 2, 3),
        *,
        learners: tuple[int, ...] = (),
        members: ConfState | None = None,
        log: tuple[int, ...] = (),
        first: int = 1,
        hard: HardState | None = None,
        **options: Any,
    ) -> None:
        """`log` gives the terms of entries from `first` on; what is before it is a snapshot."""
        self.node = node
        self.options = options
        members = members or ConfState(voters=voters, learners=learners)
        term_before = min(log, default=1) if first > 1 else 0
        self.storage = MemoryStorage(Snapshot(first - 1, term_before, members))
        self.storage.append([entry(first + at, term) for at, term in enumerate(log)])
        self.storage.hard = hard or HardState(term=max(log, default=0), commit=first - 1)
        self.holds_writes = False
        self.start()

    def start(self) -> None:
        """Begin from what is durable: what was ordered and not written is forgotten."""
        self.orders: deque[StorageAppend] = deque()
        self.applied: list[Entry] = []
        self.reads: list[ReadState] = []
        self.sent: list[Message] = []
        settings: dict[str, Any] = {
            "election_ticks": ELECTION_TICKS,
            "heartbeat_ticks": 1,
            "draw": lambda below: 0,
            "applied": self.storage.base.index,
        }
        config = Config(node=self.node, storage=self.storage, **(settings | self.options))
        self.raft = RaftNode(config)

    @property
    def core(self) -> Core:
        return self.raft.core

    def role(self) -> Role:
        return self.core.role

    def state_of(self, node: int) -> ProgressState:
        """How this leader deals with a member."""
        return self.core.progress[node].state

    @property
    def terms(self) -> list[int | None]:
        """The log, as terms."""
        log = self.core.log
        return [log.term(index) for index in range(log.first_index, log.last_index + 1)]

    def step(self, *messages: Message) -> list[Message]:
        """Take messages, do all work; what was sent."""
        for message in messages:
            self.raft.step(message)
        return self.work()

    def tick(self, times: int = 1) -> list[Message]:
        for _ in range(times):
            self.raft.tick()
        return self.work()

    def work(self) -> list[Message]:
        """Do everything that is to be done (writes only if they are not held); what was sent."""
        while self.raft.has_ready() or (self.orders and not self.holds_writes):
            if self.raft.has_ready():
                ready = self.raft.ready()
                self.sent += ready.messages
                self.reads += ready.read_states
                if ready.append is not None:
                    self.orders.append(ready.append)
                if ready.apply is not None:
                    self._apply(ready.apply.entries)
            while self.orders and not self.holds_writes:
                self.write()
        sent, self.sent = self.sent, []
        return sent

    def write(self) -> None:
        """Carry out the first order, and release what waited for it."""
        order = self.orders.popleft()
        self.storage.write(order.hard, order.entries, order.snapshot)
        for response in order.responses:
            if isinstance(response, StorageAppended):
                self.raft.appended(response)
            elif response.to == self.node:
                self.raft.step(response)
            else:
                self.sent.append(response)

    def _apply(self, entries: list[Entry]) -> None:
        self.applied += entries
        for one in entries:
            if one.kind is not EntryKind.NORMAL:
                self.raft.apply_change(ConfChange.decode(one.data), index=one.index)
        self.raft.applied(StorageApplied(entries))

    def compact(self, *, keep: int = 0) -> None:
        """Take a snapshot of what is applied, and cut the log behind it."""
        index = self.core.log.applied
        term = self.core.log.term(index)
        assert term is not None
        self.storage.base = Snapshot(index, term, self.core.members.stored())
        self.storage.compact(index - keep)


class Cluster:
    """Members, and a wire."""

    def __init__(self, *members: Member) -> None:
        self.members = {member.node: member for member in members}
        self.mail: list[Message] = []
        self.passes: Callable[[Message], bool] = lambda message: True
        """Which messages arrive; others are lost."""

    @staticmethod
    def of(size: int, **options: Any) -> Cluster:
        voters = tuple(range(1, size + 1))
        return Cluster(*(Member(node, voters, **options) for node in voters))

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    def isolate(self, *nodes: int) -> None:
        """What these send to others, or others to them, is lost."""
        alone = frozenset(nodes)
        self.passes = lambda m: (m.sender in alone) is (m.to in alone)

    def heal(self) -> None:
        self.passes = lambda message: True

    def run(self) -> None:
        """Until nothing is left to do."""
        for _ in range(1_000):
            for member in self.members.values():
                self.mail += member.work()
            if not self.mail:
                return
            mail, self.mail = self.mail, []
            for message in mail:
                if self.passes(message) and message.to in self.members:
                    self.members[message.to].raft.step(message)
        raise AssertionError("it does not come to rest")

    def tick(self, times: int = 1, *nodes: int) -> None:
        for _ in range(times):
            for node in nodes or self.members:
                self.members[node].raft.tick()
            self.run()

    def elect(self, node: int) -> Member:
        """Let a member win an election."""
        for other in self.members.values():
            if other.node != node:
                other.raft.forget_leader()
        self.members[node].raft.campaign()
        self.run()
        assert self.members[node].role() is Role.LEADER
        return self.members[node]

    def propose(self, node: int, *datas: bytes) -> None:
        self.members[node].raft.propose(datas)
        self.run()


def a_leader(node: int = 1, voters: tuple[int, ...] = (1, 2, 3), **options: Any) -> Member:
    """A member that has just won an election; all it sent so far is lost."""
    member = Member(node, voters, pre_vote=False, **options)
    member.raft.campaign()
    member.work()
    for other in member.core.members.voters - {node}:
        member.step(VoteResponse(node, other, member.core.term, 0, pre=False))
    assert member.role() is Role.LEADER
    return member


def acknowledge(leader: Member, node: int, index: int, incarnation: int = 0) -> list[Message]:
    term = leader.core.term
    return leader.step(AppendResponse(leader.node, node, term, incarnation, index))


def change(word: str, transition: Transition = Transition.AUTO) -> ConfChange:
    kinds = {"v": ChangeKind.ADD_VOTER, "l": ChangeKind.ADD_LEARNER, "r": ChangeKind.REMOVE}
    changes = tuple(Change(kinds[one[0]], int(one[1:])) for one in word.split())
    return ConfChange(transition, changes)


def append_to(
    node: int,
    *entries: Entry,
    after: tuple[int, int] = (0, 0),
    term: int = 1,
    commit: int = 0,
    leader: int = 2,
) -> Append:
    """What a leader sends; `after` is the (index, term) that must be there."""
    return Append(node, leader, term, 0, after[0], after[1], commit, list(entries))


def heartbeat_to(node: int, *, term: int = 1, commit: int = 0, leader: int = 2) -> Heartbeat:
    return Heartbeat(node, leader, term, 0, commit)
