"""What a metastore should know, worked out a second time: the judge of its lives.

Every node tells which command it applied at which index, and what came of it. The first one moves a
model that keeps everything (each revision with the whole key space after it, each lease, the cut)
by the plainest code there is; its answer must be the machine's, on this node and on all others.
So a read at any revision, an event of any watch and a compaction can be judged at any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from lowmark.metastore import (
    AllOf,
    Answer,
    AnyOf,
    Condition,
    Exists,
    Lease,
    LeaseIsOver,
    MetastoreMachine,
    Not,
    Revision,
    ValueIs,
    Version,
)
from lowmark.metastore.commands import (
    Compact,
    LeaseEnds,
    Release,
    RemoveRange,
    Renew,
    StoredBranch,
    StoredDo,
    StoredInvoke,
    StoredPut,
    Take,
    Tick,
    decode,
    digest_of,
)
from lowmark.metastore.machine import Outcome
from lowmark.metastore.nodes import (
    NODE_PREFIX,
    TOPOLOGY_KEY,
    Topology,
    decode_node,
    decode_topology,
    node_key,
)
from lowmark.metastore.state import Cut, LeaseAnswer, State, Ticked
from lowmark.metastore.watches import Entry
from lowmark.runtime import COUNTER_BITS, Buffer
from sim.cluster_ledger import confirm

__all__ = ["Made", "MetastoreLedger", "Row", "WatchedMetastore"]

REVISIONS_LOOKED_AT = 12
"""Of a state that is compared, beside the cut and the latest one."""


@dataclass(frozen=True, slots=True)
class Row:
    """A key's value, and where it comes from."""

    value: bytes
    revision: int
    created: int
    version: int
    time: int

    def entry(self, key: bytes) -> Entry:
        """As a client is told of it."""
        return Entry(key, self.value, self.revision, self.created, self.version, self.time)


@dataclass(frozen=True, slots=True)
class Made:
    """A revision, and the key space after it."""

    revision: int
    time: int
    changes: dict[bytes, Row | None] = field(default_factory=dict)
    rows: dict[bytes, Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the metastore was after the command of one time."""

    latest: int
    compacted: int
    leases: tuple[Lease, ...]


class MetastoreLedger:
    """Everything that was ever true of one metastore."""

    def __init__(self) -> None:
        self.made = [Made(0, 0)]
        self.time = 0
        self.compacted = 0
        self.cuts: list[tuple[int, int]] = []
        """The revisions that became the cut, and the times when they did."""
        self.leases: dict[str, Lease] = {}
        self.last_index = 0
        self.applied: dict[int, tuple[int, bytes, Outcome]] = {}
        self.by_command: dict[bytes, list[tuple[int, Outcome]]] = {}
        """Where a command was applied, and what came of it."""
        self.marks: dict[int, Mark] = {0: Mark(0, 0, ())}
        self.coordinators: dict[int, int] = {}
        self.topology = Topology()
        self.on_cut: Callable[[int], None] = lambda cut: None
        """Called with a cut before it is made."""
        self.on_lease: Callable[[Take | Renew], None] = lambda asked: None

    @property
    def latest(self) -> int:
        return len(self.made) - 1

    # -- commands -------------------------------------------------------------------------------

    def became(self, index: int, time: int, command: bytes, outcome: Outcome, *, who: str) -> None:
        """A machine has applied a command."""
        known = self.applied.get(index)
        if known is None:
            confirm(index > self.last_index, f"{who} applied {index}, which nobody has seen")
            confirm(time > self.time, f"the command at {index} is not later than those before it")
            self.last_index, self.time = index, time
            expected = self._carry_out(command)
            self.applied[index] = known = (time, command, expected)
            self.by_command.setdefault(command, []).append((index, expected))
            leases = tuple(self.leases[name] for name in sorted(self.leases))
            self.marks[time] = Mark(self.latest, self.compacted, leases)
        confirm(known[:2] == (time, command), f"{who} applied another command at {index}")
        confirm(
            known[2] == outcome,
            f"{who}: the command at {index} came to {outcome}, and should come to {known[2]}",
        )

    def _carry_out(self, command: bytes) -> Outcome:
        asked, at = decode(command)
        match asked:
            case StoredInvoke(statement=statement):
                return self._invoke(statement, command, at)
            case Take() | Renew():
                self.on_lease(asked)
                return self._take(asked) if isinstance(asked, Take) else self._renew(asked)
            case Release():
                lease = self.leases.get(asked.name)
                if lease is not None and lease.holder == asked.holder:
                    del self.leases[asked.name]
                return LeaseAnswer("ok", 0, self.compacted)
            case Compact():
                return self._compact(asked)
            case Tick():
                return Ticked(self.time)

    def _invoke(self, statement: StoredDo | StoredBranch, command: bytes, at: int) -> Answer:
        while isinstance(statement, StoredBranch):
            if self._holds(statement.condition):
                statement = statement.then
            else:
                at += sum(put.length for put in _puts(statement.then))
                statement = statement.otherwise
        rows, revision = dict(self.made[-1].rows), self.latest + 1
        changes: dict[bytes, Row | None] = {}
        for operation in statement.operations:
            if isinstance(operation, RemoveRange):
                for key in [key for key in rows if operation.start <= key < operation.end]:
                    changes[key] = None
                    del rows[key]
                continue
            old = rows.get(operation.key)
            if isinstance(operation, StoredPut):
                value = command[at : at + operation.length]
                at += operation.length
                created, version = (old.created, old.version + 1) if old else (revision, 1)
                row = Row(value, revision, created, version, self.time)
                rows[operation.key] = changes[operation.key] = row
            elif old is not None:
                changes[operation.key] = None
                del rows[operation.key]
        if not changes:
            return Answer(self.latest, self.made[-1].time, changed=False, answer=statement.answer)
        self._check_cluster(changes, rows)
        self.made.append(Made(revision, self.time, changes, rows))
        return Answer(revision, self.time, changed=True, answer=statement.answer)

    def _holds(self, condition: Condition) -> bool:
        rows = self.made[-1].rows
        match condition:
            case Exists():
                return condition.key in rows
            case ValueIs():
                row = rows.get(condition.key)
                return row is not None and digest_of(row.value) == condition.digest
            case Revision():
                row = rows.get(condition.key)
                return condition.compare.holds(row.revision if row else 0, condition.number)
            case Version():
                row = rows.get(condition.key)
                return condition.compare.holds(row.version if row else 0, condition.number)
            case AllOf():
                return all(self._holds(one) for one in condition.conditions)
            case AnyOf():
                return any(self._holds(one) for one in condition.conditions)
            case Not():
                return not self._holds(condition.condition)
            case LeaseIsOver():
                return self.in_force(condition.name) is None
            case LeaseEnds():
                lease = self.leases.get(condition.name)
                return (lease.expires_at if lease else 0) == condition.expires_at

    def _check_cluster(self, changes: dict[bytes, Row | None], rows: dict[bytes, Row]) -> None:
        """What nodes write about themselves is consistent after every revision."""
        if not any(key == TOPOLOGY_KEY or key.startswith(NODE_PREFIX) for key in changes):
            return
        topology = decode_topology(rows[TOPOLOGY_KEY].value)
        if TOPOLOGY_KEY in changes:
            confirm(
                topology.version == self.topology.version + 1,
                f"the topology went from {self.topology.version} to {topology.version}",
            )
            self.topology = topology
        nodes = {
            key: decode_node(row.value) for key, row in rows.items() if key.startswith(NODE_PREFIX)
        }
        for node in topology.nodes:
            confirm(
                nodes.get(node_key(node.number)) == node,
                f"topology {topology.version} has {node}, its record is"
                f" {nodes.get(node_key(node.number))}",
            )
        confirm(len({node.name for node in nodes.values()}) == len(nodes), "two nodes of one name")

    # -- leases and the cut ---------------------------------------------------------------------

    def in_force(self, name: str) -> Lease | None:
        """A lease that is not over by the time of the last command."""
        lease = self.leases.get(name)
        return lease if lease is not None and lease.expires_at > self.time else None

    def _take(self, asked: Take) -> LeaseAnswer:
        lease = self.in_force(asked.name)
        if lease is not None and lease.holder != asked.holder:
            return LeaseAnswer("taken", lease.expires_at, self.compacted)
        if 0 < asked.hold <= self.compacted:
            return LeaseAnswer("compacted", 0, self.compacted)
        until = self.time + (asked.ttl_ms << COUNTER_BITS)
        self.leases[asked.name] = Lease(
            asked.name, asked.holder, asked.ttl_ms, asked.hold, asked.why, self.time, until
        )
        return LeaseAnswer("ok", until, self.compacted)

    def _renew(self, asked: Renew) -> LeaseAnswer:
        lease = self.in_force(asked.name)
        if lease is None or lease.holder != asked.holder:
            return LeaseAnswer("over", 0, self.compacted)
        if 0 < asked.hold <= self.compacted:
            return LeaseAnswer("compacted", lease.expires_at, self.compacted)
        until = self.time + (lease.ttl_ms << COUNTER_BITS)
        self.leases[asked.name] = Lease(
            lease.name, lease.holder, lease.ttl_ms, asked.hold, lease.why, lease.taken_at, until
        )
        return LeaseAnswer("ok", until, self.compacted)

    def _compact(self, asked: Compact) -> Cut:
        self.leases = {name: one for name, one in self.leases.items() if self.in_force(name)}
        goal = min(asked.revision, self.latest)
        held = [one for one in self.leases.values() if 0 < one.hold <= goal]
        cut = min([goal, *(lease.hold - 1 for lease in held)])
        if cut > self.compacted:
            self.on_cut(cut)
            self.compacted = cut
            self.cuts.append((cut, self.time))
        held.sort(key=lambda lease: (lease.hold, lease.name))
        return Cut(asked.revision, self.compacted, tuple(held))

    # -- who leads ------------------------------------------------------------------------------

    def elected(self, term: int, node: int) -> None:
        """A node says that it coordinates."""
        first = self.coordinators.setdefault(term, node)
        confirm(first == node, f"nodes {first} and {node} both coordinate in term {term}")

    # -- judging --------------------------------------------------------------------------------

    def outcomes(self, command: bytes, *, since: int) -> list[Outcome]:
        """What came of a command, everywhere that it was applied after an index."""
        return [outcome for index, outcome in self.by_command.get(command, ()) if index > since]

    def page(self, keys: Iterable[bytes], revision: int) -> tuple[Entry, ...]:
        """What these keys were as of a revision, in their order."""
        rows = self.made[revision].rows
        return tuple(rows[key].entry(key) for key in sorted(keys) if key in rows)

    def next_wanted(self, wants: Callable[[bytes], bool], since: int) -> Made | None:
        """The first revision from one on that changed a key of these."""
        for made in self.made[since:]:
            if any(wants(key) for key in made.changes):
                return made
        return None

    def revision_at(self, time: int) -> int:
        """The last revision made at a time or before."""
        return bisect_right(self.made, time, key=lambda made: made.time) - 1

    def check_state(self, state: State, *, who: str, every: bool = False) -> None:
        """A machine knows what it should, as of the last command that it has applied."""
        mark = self.marks.get(state.time)
        confirm(mark is not None, f"{who} is at a time that no command has")
        assert mark is not None
        leases = tuple(state.leases[name] for name in sorted(state.leases))
        confirm(
            Mark(state.latest, state.compacted, leases) == mark,
            f"{who} is at revision {state.latest}, cut {state.compacted}, with leases {leases};"
            f" it should be {mark}",
        )
        above = range(state.compacted, state.latest + 1)
        step = 1 if every else max(1, len(above) // REVISIONS_LOOKED_AT)
        for revision in {*above[::step], state.latest}:
            made = self.made[revision]
            known = {
                found.key: (found.record.revision, found.record.version, found.record.digest)
                for found in state.find_range(b"", None, at=revision)
            }
            right = {
                key: (row.revision, row.version, digest_of(row.value))
                for key, row in made.rows.items()
            }
            confirm(known == right, f"{who} has other keys at revision {revision}: {known}")
            confirm(state.time_of(revision) == made.time, f"{who}: time of {revision} is wrong")
            if revision > state.compacted:
                keys = set(state.changes(revision).keys)
                confirm(keys == set(made.changes), f"{who}: revision {revision} changed {keys}")


def _puts(statement: StoredDo | StoredBranch) -> Iterator[StoredPut]:
    if isinstance(statement, StoredBranch):
        yield from _puts(statement.then)
        yield from _puts(statement.otherwise)
    else:
        yield from (one for one in statement.operations if isinstance(one, StoredPut))


class WatchedMetastore(MetastoreMachine):
    """Tells the ledger what every command came to."""

    def __init__(self, ledger: MetastoreLedger, who: str) -> None:
        super().__init__()
        self._ledger = ledger
        self._who = who

    def apply(self, index: int, time: int, command: Buffer) -> Outcome:
        outcome = super().apply(index, time, command)
        self._ledger.became(index, time, bytes(command), outcome, who=self._who)
        return outcome

    def snapshot(self) -> Iterable[Buffer]:
        now, later = b"".join(super().snapshot()), super().snapshot()

        def chunks() -> Iterator[Buffer]:
            taken: list[Buffer] = []
            for chunk in later:
                taken.append(chunk)
                yield chunk
            confirm(b"".join(taken) == now, f"{self._who}: a snapshot is not of one moment")

        return chunks()

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        super().restore(chunks, version)
        self._ledger.check_state(self.state, who=self._who)
