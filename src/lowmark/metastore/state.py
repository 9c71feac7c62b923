"""What the metastore knows, and the only rules by which that changes. No I/O, no clock, no chance.

Kept is, per key, a record for every revision since the cut, and the one in force at it:
(revision, created, version, place and length of the value, digest). A revision is made by one
command, so its raft index is kept once, with the revision; a rewritten entry changes that index and
nothing else. Values are not here: they are the log's entries, and `live` says which.

    compacted      the cut C: reads at C and later answer as they always did, earlier ones not at
                   all; every change of a revision above C is known
    latest         the last revision made

Invariants
    1. Revisions are dense, and their times rise.
    2. `live` holds the index of every revision that has a record with a value, and no other.
    3. The value in force at the cut stays, as long as it is in force at the cut.
    4. A cut never passes what a lease holds at its time; an expired lease never comes back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from pyroaring import BitMap64

from lowmark.errors import invariant
from lowmark.metastore.commands import (
    AllOf,
    AnyOf,
    Compact,
    Condition,
    Exists,
    LeaseEnds,
    LeaseIsOver,
    Not,
    Release,
    RemoveRange,
    Renew,
    Revision,
    StoredBranch,
    StoredDo,
    StoredPut,
    Take,
    ValueIs,
    Version,
    digest_of,
)
from lowmark.metastore.errors import RevisionCompacted, RevisionUnknown
from lowmark.runtime import COUNTER_BITS, Buffer


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key as one revision left it. Without a digest, it was removed."""

    revision: int
    created: int
    version: int
    at: int
    """Where its value begins in the command."""
    length: int
    digest: bytes

    @property
    def removed(self) -> bool:
        """Whether the key has no value."""
        return not self.digest


class Made(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A revision: where its command is, and which keys it changed. `live` records have a value."""

    index: int
    time: int
    keys: tuple[bytes, ...]
    live: int


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Its holder is there, and may need old revisions, until a time."""

    name: str
    holder: int
    ttl_ms: int
    hold: int
    """The first revision whose changes it needs; 0 for none. Who reads at r asks for r + 1."""
    why: str
    taken_at: int
    expires_at: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What became of an invoke."""

    revision: int
    """The one that it made; the latest one, if it changed nothing."""
    time: int
    changed: bool
    answer: int


class LeaseAnswer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What became of a request about a lease."""

    outcome: str
    """`ok`, `taken` by another holder, `over`, or `compacted`: what it would hold is gone."""
    expires_at: int
    compacted: int


class Cut(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What became of a compaction."""

    asked: int
    compacted: int
    """Where the cut is now."""
    held_by: tuple[Lease, ...]
    """Who kept it from going further."""


class Ticked(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Time has passed."""

    time: int


@dataclass(frozen=True, slots=True)
class Found:
    """A key that has a value, and where that value is."""

    key: bytes
    record: Record
    index: int
    time: int


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all that begin so; None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] < 0xFF:
            return prefix[:at] + bytes([prefix[at] + 1])
    return None


@dataclass(slots=True)
class State:
    """See the module's docstring."""

    latest: int = 0
    compacted: int = 0
    time: int = 0
    """Of the last command, whatever it was."""
    histories: dict[bytes, list[Record]] = field(default_factory=dict)
    """Lists only grow at their end, or are replaced: who has one and its length has a copy."""
    keys: list[bytes] = field(default_factory=list)
    """All keys that have a history, in order."""
    made: dict[int, Made] = field(default_factory=dict)
    by_index: dict[int, int] = field(default_factory=dict)
    """Which revision is made by the live entry at an index."""
    times: list[int] = field(default_factory=lambda: [0])
    """Of the revisions from the cut on."""
    leases: dict[str, Lease] = field(default_factory=dict)
    live: BitMap64 = field(default_factory=BitMap64)

    # -- looking --------------------------------------------------------------------------------

    def check_readable(self, revision: int) -> None:
        """Refuse a revision that is gone, or not there yet."""
        if revision < self.compacted:
            raise RevisionCompacted(wanted=f"revision {revision}", first_left=self.compacted)
        if revision > self.latest:
            raise RevisionUnknown(wanted=revision, latest=self.latest)

    def record(self, key: bytes, at: int | None = None) -> Record | None:
        """A key's record, now or as of a revision that can be read."""
        history = self.histories.get(key)
        if history is None:
            return None
        if at is None or history[-1].revision <= at:
            return history[-1]
        place = bisect_right(history, at, key=lambda record: record.revision)
        return history[place - 1] if place else None

    def record_in(self, key: bytes, revision: int) -> Record:
        """The record of a key that a revision above the cut changed."""
        record = self.record(key, revision)
        invariant(record and record.revision == revision, "a revision has a record of its keys")
        return record  # type: ignore[return-value]

    def find(self, key: bytes, at: int | None = None) -> Found | None:
        """A key's value, now or as of a revision that can be read."""
        record = self.record(key, at)
        if record is None or record.removed:
            return None
        made = self.made[record.revision]
        return Found(key, record, made.index, made.time)

    def find_range(
        self, start: bytes, end: bytes | None, *, at: int | None = None, limit: int | None = None
    ) -> list[Found]:
        """The values of keys from `start` up to, and without, `end`, in the order of keys."""
        found: list[Found] = []
        place = bisect_left(self.keys, start)
        stop = len(self.keys) if end is None else bisect_left(self.keys, end)
        while place < stop and (limit is None or len(found) < limit):
            value = self.find(self.keys[place], at)
            if value is not None:
                found.append(value)
            place += 1
        return found

    def history(self, key: bytes) -> list[Record]:
        """Every record of a key that is still there, oldest first."""
        return list(self.histories.get(key, ()))

    def changes(self, revision: int) -> Made:
        """A revision above the cut."""
        invariant(self.compacted < revision <= self.latest, "the revision is above the cut")
        return self.made[revision]

    def time_of(self, revision: int) -> int:
        """When a revision was made."""
        self.check_readable(revision)
        return self.times[revision - self.compacted]

    def revision_at(self, time: int) -> int:
        """The last revision that was made at a time or before."""
        place = bisect_right(self.times, time)
        if not place:
            raise RevisionCompacted(wanted=f"time {time}", first_left=self.compacted)
        return self.compacted + place - 1

    def lease(self, name: str, time: int) -> Lease | None:
        """A lease that is in force at a time."""
        lease = self.leases.get(name)
        return lease if lease is not None and lease.expires_at > time else None

    # -- changing -------------------------------------------------------------------------------

    def invoke(
        self, statement: StoredDo | StoredBranch, *, index: int, command: Buffer, at: int
    ) -> Answer:
        """Carry a statement out; `at` is where its values begin in the command."""
        while isinstance(statement, StoredBranch):
            if self._holds(statement.condition):
                statement = statement.then
            else:
                at += statement.then.value_bytes
                statement = statement.otherwise
        return self._do(statement, index=index, command=command, at=at)

    def _holds(self, condition: Condition) -> bool:
        match condition:
            case Exists(key=key):
                record = self.record(key)
                return record is not None and not record.removed
            case ValueIs(key=key):
                record = self.record(key)
                return (
                    record is not None
                    and not record.removed
                    and record.digest == condition.digest
                    and record.length == condition.length
                )
            case Revision(key=key, compare=compare, number=number):
                record = self.record(key)
                there = record is not None and not record.removed
                return compare.holds(record.revision if there and record else 0, number)
            case Version(key=key, compare=compare, number=number):
                record = self.record(key)
                return compare.holds(record.version if record is not None else 0, number)
            case AllOf(conditions=conditions):
                return all(map(self._holds, conditions))
            case AnyOf(conditions=conditions):
                return any(map(self._holds, conditions))
            case Not(condition=inner):
                return not self._holds(inner)
            case LeaseIsOver(name=name):
                return self.lease(name, self.time) is None
            case LeaseEnds(name=name, expires_at=expires_at):
                lease = self.leases.get(name)
                return (0 if lease is None else lease.expires_at) == expires_at
            case _:
                assert_never(condition)

    def _do(self, todo: StoredDo, *, index: int, command: Buffer, at: int) -> Answer:
        revision, view = self.latest + 1, memoryview(command)
        changed: list[bytes] = []
        live = 0
        for operation in todo.operations:
            if isinstance(operation, RemoveRange):
                changed += self._remove_range(operation, revision)
                continue
            key = operation.key
            history = self.histories.get(key)
            last = history[-1] if history is not None else None
            if isinstance(operation, StoredPut):
                length = operation.length
                fresh = last is None or last.removed
                record = Record(
                    revision,
                    revision if fresh or last is None else last.created,
                    1 if last is None else last.version + 1,
                    at,
                    length,
                    digest_of(view[at : at + length]),
                )
                at += length
                live += 1
            elif last is None or last.removed:
                continue
            else:
                record = Record(revision, 0, 0, 0, 0, b"")
            if history is None:
                self.histories[key] = [record]
                insort(self.keys, key)
            else:
                history.append(record)
            changed.append(key)
        if not changed:
            return Answer(self.latest, self.times[-1], changed=False, answer=todo.answer)
        self.latest = revision
        self.made[revision] = Made(index, self.time, tuple(changed), live)
        self.times.append(self.time)
        if live:
            self.live.add(index)
            self.by_index[index] = revision
        return Answer(revision, self.time, changed=True, answer=todo.answer)

    def _remove_range(self, wanted: RemoveRange, revision: int) -> list[bytes]:
        first, last = bisect_left(self.keys, wanted.start), bisect_left(self.keys, wanted.end)
        removed = []
        for key in self.keys[first:last]:
            history = self.histories[key]
            if not history[-1].removed:
                history.append(Record(revision, 0, 0, 0, 0, b""))
                removed.append(key)
        return removed

    def moved(self, old: int, new: int) -> None:
        """The entry at `old` was copied to `new`."""
        revision = self.by_index.pop(old, None)
        if revision is None:
            return  # it died meanwhile, and so has its copy
        self.made[revision] = msgspec.structs.replace(self.made[revision], index=new)
        self.by_index[new] = revision
        self.live.discard(old)
        self.live.add(new)

    # -- leases ---------------------------------------------------------------------------------

    def take(self, asked: Take) -> LeaseAnswer:
        """Take a lease, unless another holder has it."""
        known = self.lease(asked.name, self.time)
        if known is not None and known.holder != asked.holder:
            return LeaseAnswer("taken", known.expires_at, self.compacted)
        if 0 < asked.hold <= self.compacted:
            return LeaseAnswer("compacted", 0, self.compacted)
        expires_at = self.time + (asked.ttl_ms << COUNTER_BITS)
        self.leases[asked.name] = Lease(
            asked.name, asked.holder, asked.ttl_ms, asked.hold, asked.why, self.time, expires_at
        )
        return LeaseAnswer("ok", expires_at, self.compacted)

    def renew(self, asked: Renew) -> LeaseAnswer:
        """Keep a lease, unless it is over."""
        known = self.lease(asked.name, self.time)
        if known is None or known.holder != asked.holder:
            return LeaseAnswer("over", 0, self.compacted)
        if 0 < asked.hold <= self.compacted:
            return LeaseAnswer("compacted", known.expires_at, self.compacted)
        expires_at = self.time + (known.ttl_ms << COUNTER_BITS)
        self.leases[asked.name] = msgspec.structs.replace(
            known, hold=asked.hold, expires_at=expires_at
        )
        return LeaseAnswer("ok", expires_at, self.compacted)

    def release(self, asked: Release) -> LeaseAnswer:
        """Give a lease back; it is fine if it is over already."""
        known = self.leases.get(asked.name)
        if known is not None and known.holder == asked.holder:
            del self.leases[asked.name]
        return LeaseAnswer("ok", 0, self.compacted)

    # -- compaction -----------------------------------------------------------------------------

    def compact(self, asked: Compact) -> Cut:
        """Move the cut as far as asked, or as leases allow."""
        for name in [name for name, lease in self.leases.items() if lease.expires_at <= self.time]:
            del self.leases[name]
        goal = min(asked.revision, self.latest)
        held = [lease for lease in self.leases.values() if 0 < lease.hold <= goal]
        cut = min([goal, *(lease.hold - 1 for lease in held)])
        if cut > self.compacted:
            self._cut(cut)
        first = tuple(sorted(held, key=lambda lease: (lease.hold, lease.name)))
        return Cut(asked.revision, self.compacted, first)

    def _cut(self, cut: int) -> None:
        old = self.compacted
        touched: dict[bytes, None] = {}
        for revision in range(old + 1, cut + 1):
            touched.update(dict.fromkeys(self.made[revision].keys))
        self.compacted = cut
        self.times = self.times[cut - old :]
        gone: dict[int, set[bytes]] = {}
        for key in touched:
            history = self.histories[key]
            place = bisect_right(history, cut, key=lambda record: record.revision)
            # Everything before the record in force at the cut; and that one, if it is a removal.
            keep_from = place if history[place - 1].removed else place - 1
            for record in history[:keep_from]:
                gone.setdefault(record.revision, set()).add(key)
            if keep_from == len(history):
                del self.histories[key]
                del self.keys[bisect_left(self.keys, key)]
            elif keep_from:
                self.histories[key] = history[keep_from:]
        for revision, keys in sorted(gone.items()):
            self._thin(revision, keys)

    def _thin(self, revision: int, gone: set[bytes]) -> None:
        """Forget these keys of a revision at or below the cut; the last one takes it along."""
        made = self.made[revision]
        left = tuple(key for key in made.keys if key not in gone)
        if left:
            self.made[revision] = Made(made.index, made.time, left, len(left))
            return
        del self.made[revision]
        if made.live:
            del self.by_index[made.index]
            self.live.discard(made.index)
