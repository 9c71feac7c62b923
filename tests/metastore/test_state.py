"""The state machine against a twin that keeps everything and forgets nothing.

The twin holds every value of every revision in plain dicts. Whatever the machine says of a revision
that can still be read must be what the twin says, whatever was cut, moved, snapshot or restored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lowmark.errors import Corrupt
from lowmark.metastore import (
    AllOf,
    Answer,
    AnyOf,
    Branch,
    Compare,
    Condition,
    Do,
    Exists,
    LeaseIsOver,
    MetastoreMachine,
    Not,
    Operation,
    Put,
    Remove,
    RemoveRange,
    Revision,
    RevisionCompacted,
    Statement,
    ValueIs,
    Version,
    all_of,
    any_of,
    missing,
    value_is,
)
from lowmark.metastore.commands import (
    Command,
    Compact,
    Invoke,
    LeaseEnds,
    Release,
    Renew,
    Take,
    Tick,
    encode,
)
from lowmark.metastore.errors import RevisionUnknown
from lowmark.metastore.state import Cut, LeaseAnswer, prefix_end
from lowmark.runtime import COUNTER_BITS

KEYS = [b"a", b"aa", b"ab", b"b", b"\xff", b"\xff\xff"]
VALUES = [b"", b"one", b"two-two-two", bytes(range(64))]
LEASES = ["x", "y"]


def ms(count: int) -> int:
    return count << COUNTER_BITS


@dataclass
class Written:
    """A key as a revision left it, with the value itself."""

    revision: int
    created: int
    version: int
    value: bytes


@dataclass
class Held:
    holder: int
    ttl: int
    hold: int
    until: int


@dataclass
class Twin:
    """Every revision, whole, for ever."""

    worlds: list[dict[bytes, Written]] = field(default_factory=lambda: [{}])
    """What there is as of each revision."""
    changes: list[dict[bytes, bytes | None]] = field(default_factory=lambda: [{}])
    times: list[int] = field(default_factory=lambda: [0])
    indexes: list[int] = field(default_factory=lambda: [0])
    """Where the command of each revision stands now."""
    leases: dict[str, Held] = field(default_factory=dict)
    cut: int = 0
    now: int = 0

    @property
    def latest(self) -> int:
        return len(self.worlds) - 1

    # -- conditions -----------------------------------------------------------------------------

    def holds(self, condition: Condition, values: dict[bytes, bytes]) -> bool:
        world = self.worlds[-1]
        match condition:
            case Exists(key=key):
                return key in world
            case ValueIs(key=key, digest=digest):
                return key in world and world[key].value == values[digest]
            case Revision(key=key, compare=compare, number=number):
                return compare.holds(world[key].revision if key in world else 0, number)
            case Version(key=key, compare=compare, number=number):
                return compare.holds(world[key].version if key in world else 0, number)
            case AllOf(conditions=conditions):
                return all(self.holds(one, values) for one in conditions)
            case AnyOf(conditions=conditions):
                return any(self.holds(one, values) for one in conditions)
            case Not(condition=inner):
                return not self.holds(inner, values)
            case LeaseIsOver(name=name):
                return name not in self.leases or self.leases[name].until <= self.now
            case LeaseEnds(name=name, expires_at=until):
                return (self.leases[name].until if name in self.leases else 0) == until

    # -- commands -------------------------------------------------------------------------------

    def invoke(self, statement: Statement, index: int, values: dict[bytes, bytes]) -> Answer:
        while isinstance(statement, Branch):
            held = self.holds(statement.condition, values)
            statement = statement.then if held else statement.otherwise
        world, number = dict(self.worlds[-1]), self.latest + 1
        changed: dict[bytes, bytes | None] = {}
        for operation in statement.operations:
            match operation:
                case Put(key=key, value=value):
                    old = world.get(key)
                    created = old.created if old is not None else number
                    count = old.version + 1 if old is not None else 1
                    world[key] = Written(number, created, count, bytes(value))
                    changed[key] = bytes(value)
                case Remove(key=key):
                    if world.pop(key, None) is not None:
                        changed[key] = None
                case RemoveRange(start=start, end=end):
                    for key in sorted(world):
                        if start <= key < end:
                            del world[key]
                            changed[key] = None
        if not changed:
            return Answer(self.latest, self.times[-1], changed=False, answer=statement.answer)
        self.worlds.append(world)
        self.changes.append(changed)
        self.times.append(self.now)
        self.indexes.append(index)
        return Answer(number, self.now, changed=True, answer=statement.answer)

    def needed(self) -> set[int]:
        """The indexes of all revisions of which a value can be read."""
        revisions = {written.revision for written in self.worlds[self.cut].values()}
        for number in range(self.cut + 1, self.latest + 1):
            if any(value is not None for value in self.changes[number].values()):
                revisions.add(number)
        return {self.indexes[number] for number in revisions}


# -- what is drawn ------------------------------------------------------------------------------

keys = st.sampled_from(KEYS)
compares = st.sampled_from(Compare)
numbers = st.integers(0, 12)
conditions: st.SearchStrategy[Condition] = st.recursive(
    st.one_of(
        keys.map(Exists),
        keys.map(missing),
        st.builds(value_is, keys, st.sampled_from(VALUES)),
        st.builds(Revision, keys, compares, numbers),
        st.builds(Version, keys, compares, st.integers(0, 4)),
        st.sampled_from(LEASES).map(LeaseIsOver),
        st.builds(LeaseEnds, st.sampled_from(LEASES), st.just(0)),
    ),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, max_size=3).map(lambda parts: all_of(*parts)),
        st.lists(inner, max_size=3).map(lambda parts: any_of(*parts)),
    ),
    max_leaves=5,
)


def _without_clashes(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Leave out what would change a key twice."""
    kept: list[Operation] = []
    for operation in operations:
        if isinstance(operation, RemoveRange):
            span = (operation.start, operation.end)
            if not any(
                not isinstance(one, RemoveRange) and span[0] <= one.key < span[1] for one in kept
            ):
                kept.append(operation)
        elif not any(
            one.start <= operation.key < one.end
            if isinstance(one, RemoveRange)
            else one.key == operation.key
            for one in kept
        ):
            kept.append(operation)
    return tuple(kept)


operations = st.lists(
    st.one_of(
        st.builds(Put, keys, st.sampled_from(VALUES)),
        st.builds(Put, keys, st.sampled_from(VALUES)),
        st.builds(Remove, keys),
        st.builds(RemoveRange, keys, keys),
    ),
    max_size=4,
).map(_without_clashes)
statements: st.SearchStrategy[Statement] = st.recursive(
    st.builds(Do, operations, st.integers(0, 3)),
    lambda inner: st.builds(Branch, conditions, inner, inner),
    max_leaves=4,
)


def values_by_digest() -> dict[bytes, bytes]:
    found = {}
    for value in VALUES:
        condition = value_is(b"a", value)
        assert isinstance(condition, ValueIs)
        found[condition.digest] = value
    return found


BY_DIGEST = values_by_digest()


class MachineAndTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = MetastoreMachine()
        self.twin = Twin()
        self.log: dict[int, bytes] = {}
        """The commands, by index: values are read from here."""
        self.index = 0
        self.died: set[int] = set()
        self.seen_live: set[int] = set()
        self.early: tuple[object, bytes, bytes] | None = None

    def apply(self, command: Command) -> object:
        self.index += 1
        self.twin.now += 1
        data = encode(command)
        self.log[self.index] = data
        answer = self.machine.apply(self.index, self.twin.now, data)
        assert self.machine.state.time == self.twin.now
        return answer

    # -- rules ----------------------------------------------------------------------------------

    @rule(statement=statements)
    def invoke(self, statement: Statement) -> None:
        got = self.apply(Invoke(statement))
        assert got == self.twin.invoke(statement, self.index, BY_DIGEST)

    @rule(key=keys, value=st.sampled_from(VALUES))
    def put(self, key: bytes, value: bytes) -> None:
        self.invoke(Do((Put(key, value),)))

    @rule(
        name=st.sampled_from(LEASES),
        holder=st.integers(1, 2),
        ttl_ms=st.integers(1, 3),
        hold=st.integers(0, 12),
    )
    def take(self, name: str, holder: int, ttl_ms: int, hold: int) -> None:
        got = self.apply(Take(name, holder, ttl_ms, hold, "a test"))
        twin, now = self.twin, self.twin.now
        known = twin.leases.get(name)
        if known is not None and known.until > now and known.holder != holder:
            assert got == LeaseAnswer("taken", known.until, twin.cut)
        elif 0 < hold <= twin.cut:
            assert got == LeaseAnswer("compacted", 0, twin.cut)
        else:
            twin.leases[name] = Held(holder, ms(ttl_ms), hold, now + ms(ttl_ms))
            assert got == LeaseAnswer("ok", now + ms(ttl_ms), twin.cut)

    @rule(name=st.sampled_from(LEASES), holder=st.integers(1, 2), hold=st.integers(0, 12))
    def renew(self, name: str, holder: int, hold: int) -> None:
        got = self.apply(Renew(name, holder, hold))
        twin, now = self.twin, self.twin.now
        known = twin.leases.get(name)
        if known is None or known.until <= now or known.holder != holder:
            assert got == LeaseAnswer("over", 0, twin.cut)
        elif 0 < hold <= twin.cut:
            assert got == LeaseAnswer("compacted", known.until, twin.cut)
        else:
            twin.leases[name] = Held(holder, known.ttl, hold, now + known.ttl)
            assert got == LeaseAnswer("ok", now + known.ttl, twin.cut)

    @rule(name=st.sampled_from(LEASES), holder=st.integers(1, 2))
    def release(self, name: str, holder: int) -> None:
        got = self.apply(Release(name, holder))
        assert got == LeaseAnswer("ok", 0, self.twin.cut)
        known = self.twin.leases.get(name)
        if known is not None and known.holder == holder:
            del self.twin.leases[name]

    @rule(milliseconds=st.integers(0, 2))
    def time_passes(self, milliseconds: int) -> None:
        self.twin.now += ms(milliseconds)
        self.apply(Tick())

    @rule(back=st.integers(-1, 4))
    def compact(self, back: int) -> None:
        twin = self.twin
        goal = max(1, twin.latest - back)
        cut = self.apply(Compact(goal))
        live = {name: one for name, one in twin.leases.items() if one.until > twin.now}
        reach = min(goal, twin.latest)
        holders = sorted((one.hold, name) for name, one in live.items() if 0 < one.hold <= reach)
        twin.cut = max(twin.cut, min([reach, *(hold - 1 for hold, _ in holders)]))
        assert isinstance(cut, Cut)
        assert (cut.asked, cut.compacted) == (goal, twin.cut)
        assert [(lease.hold, lease.name) for lease in cut.held_by] == holders

    @precondition(lambda self: self.twin.latest > 0)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """An entry is copied; of a dead one, nothing comes of it."""
        old = data.draw(st.sampled_from(sorted({*self.twin.indexes[1:], *self.died})))
        self.index += 1
        self.log[self.index] = self.log[old]
        live = old in self.machine.live_indexes()
        self.machine.moved(old, self.index)
        if live:
            at = self.twin.indexes.index(old)
            self.twin.indexes[at] = self.index

    @rule()
    def restore(self) -> None:
        before = b"".join(map(bytes, self.machine.snapshot()))
        other = MetastoreMachine()
        other.restore([before[:7], before[7:]], 1)
        assert other.state == self.machine.state
        assert b"".join(map(bytes, other.snapshot())) == before
        self.machine = other

    @rule()
    def snapshot_for_later(self) -> None:
        """Ask for a snapshot now, and read it after who knows what."""
        whole = b"".join(map(bytes, self.machine.snapshot()))
        self.early = (self.machine.snapshot(), whole, b"")

    @precondition(lambda self: self.early is not None)
    @rule()
    def read_the_early_snapshot(self) -> None:
        assert self.early is not None
        blocks, whole, _ = self.early
        assert b"".join(map(bytes, blocks)) == whole  # type: ignore[call-overload]
        self.early = None

    # -- what must hold -------------------------------------------------------------------------

    @invariant()
    def every_revision_that_can_be_read_says_what_it_always_said(self) -> None:
        state, twin = self.machine.state, self.twin
        assert (state.latest, state.compacted) == (twin.latest, twin.cut)
        for at in range(twin.cut, twin.latest + 1):
            state.check_readable(at)
            world = twin.worlds[at]
            found = state.find_range(b"", None, at=at)
            assert [one.key for one in found] == sorted(world)
            for one in found:
                assert state.find(one.key, at) == one
                written, record = world[one.key], one.record
                data = self.log[one.index]
                assert data[record.at : record.at + record.length] == written.value
                assert (record.revision, record.created, record.version) == (
                    written.revision,
                    written.created,
                    written.version,
                )
                assert one.time == twin.times[written.revision]
                assert one.index == twin.indexes[written.revision]
            for key in KEYS:
                assert (state.find(key, at) is not None) == (key in world)
            for prefix in (b"a", b"\xff"):
                end = prefix_end(prefix)
                wanted = sorted(key for key in world if key.startswith(prefix))
                assert [one.key for one in state.find_range(prefix, end, at=at)] == wanted
                some = state.find_range(prefix, end, at=at, limit=1)
                assert [one.key for one in some] == wanted[:1]
            assert state.time_of(at) == twin.times[at]
        if twin.cut:
            with pytest.raises(RevisionCompacted) as gone:
                state.check_readable(twin.cut - 1)
            assert gone.value.first_left == twin.cut
        with pytest.raises(RevisionUnknown):
            state.check_readable(twin.latest + 1)

    @invariant()
    def every_change_above_the_cut_is_known(self) -> None:
        state, twin = self.machine.state, self.twin
        for number in range(twin.cut + 1, twin.latest + 1):
            made = state.changes(number)
            assert set(made.keys) == set(twin.changes[number])
            assert len(made.keys) == len(set(made.keys))
            for key in made.keys:
                removed = state.record_in(key, number).removed
                assert removed == (twin.changes[number][key] is None)

    @invariant()
    def times_and_revisions_agree(self) -> None:
        state, times = self.machine.state, self.twin.times
        for at in range(self.twin.cut, self.twin.latest + 1):
            assert state.revision_at(times[at]) == at
            if at > self.twin.cut:
                assert state.revision_at(times[at] - 1) == at - 1
        if self.twin.cut:
            with pytest.raises(RevisionCompacted):
                state.revision_at(times[self.twin.cut] - 1)

    @invariant()
    def exactly_the_entries_that_are_needed_live(self) -> None:
        live = set(self.machine.live_indexes())
        assert live == self.twin.needed()
        self.died |= self.seen_live - live
        self.seen_live |= live
        assert not live & self.died, "an index came back to life"

    @invariant()
    def nothing_is_kept_that_nobody_can_ask_for(self) -> None:
        state, twin = self.machine.state, self.twin
        known = set(twin.worlds[twin.cut])
        for number in range(twin.cut + 1, twin.latest + 1):
            known |= set(twin.changes[number])
        assert set(state.keys) == set(state.histories) == known
        assert state.keys == sorted(known)
        below = {written.revision for written in twin.worlds[twin.cut].values()}
        assert set(state.made) == below | set(range(twin.cut + 1, twin.latest + 1))


MachineAndTwin.TestCase.settings = settings(deadline=None, stateful_step_count=30, max_examples=60)
test_the_machine_says_what_its_twin_says = MachineAndTwin.TestCase


# -- single facts -------------------------------------------------------------------------------


class Filled:
    """A machine, with commands one after another."""

    def __init__(self) -> None:
        self.machine = MetastoreMachine()
        self.index = 0

    def do(self, *operations: Operation) -> Answer:
        answer = self.run(Invoke(Do(operations)))
        assert isinstance(answer, Answer)
        return answer

    def run(self, command: Command) -> object:
        self.index += 1
        return self.machine.apply(self.index, self.index, encode(command))


def test_a_snapshot_holds_no_value() -> None:
    # given keys with values that nobody could mistake
    filled = Filled()
    secret = b"a value that is long enough to be found"
    for at in range(20):
        filled.do(Put(b"key-%d" % (at % 7), secret + b"%d" % at))
    # when a snapshot is taken
    data = b"".join(map(bytes, filled.machine.snapshot()))
    # then the keys are in it, and nothing of any value
    assert b"key-3" in data
    assert all(secret[at : at + 8] not in data for at in range(len(secret) - 8))


def test_a_snapshot_that_is_read_late_says_what_was_there_when_it_was_asked_for() -> None:
    # given a snapshot that was asked for, and another that was read at once
    filled = Filled()
    filled.do(Put(b"a", b"1"), Put(b"b", b"1"))
    filled.do(Put(b"a", b"2"))
    late, whole = filled.machine.snapshot(), b"".join(map(bytes, filled.machine.snapshot()))
    # when keys are overwritten, removed, made and moved, and the history is cut
    filled.do(Put(b"a", b"3"), Remove(b"b"), Put(b"c", b"1"))
    filled.run(Take("l", 1, 1, 0, ""))
    filled.machine.moved(1, 9)
    filled.run(Compact(3))
    # then the first says the same as the second
    assert b"".join(map(bytes, late)) == whole


def test_a_key_that_was_removed_and_put_again_begins_anew_whatever_was_cut_between() -> None:
    for cut in (False, True):
        filled = Filled()
        filled.do(Put(b"k", b"1"))
        filled.do(Put(b"k", b"2"))
        filled.do(Remove(b"k"))
        if cut:
            filled.run(Compact(3))
            assert filled.machine.state.keys == []
        filled.do(Put(b"k", b"3"))
        found = filled.machine.state.find(b"k")
        assert found is not None
        assert (found.record.created, found.record.version) == (4, 1)


def test_a_removed_key_has_no_value_to_be_equal_to_before_and_after_the_cut() -> None:
    # given a key that was removed
    filled = Filled()
    filled.do(Put(b"k", b""))
    filled.do(Remove(b"k"))
    holds = Branch(value_is(b"k", b""), Do(answer=1), Do(answer=2))
    # then no value is its value, with its record and without it
    for _ in range(2):
        answer = filled.run(Invoke(holds))
        assert isinstance(answer, Answer)
        assert answer.answer == 2
        filled.run(Compact(2))


def test_two_values_of_one_command_die_with_the_last_of_them() -> None:
    # given a command with two values
    filled = Filled()
    filled.do(Put(b"a", b"1"), Put(b"b", b"2"))
    filled.do(Put(b"a", b"3"))
    filled.run(Compact(2))
    assert set(filled.machine.live_indexes()) == {1, 2}
    # when the second is overwritten, too, and the cut passes that
    filled.do(Put(b"b", b"4"))
    assert set(filled.machine.live_indexes()) == {1, 2, 4}
    filled.run(Compact(3))
    # then its entry is dead
    assert set(filled.machine.live_indexes()) == {2, 4}


@pytest.mark.parametrize("count", [0, 1, 2_047, 2_048, 2_049, 4_096])
def test_a_snapshot_of_any_number_of_keys_is_restored(count: int) -> None:
    # given so many keys and revisions
    filled = Filled()
    for at in range(count):
        filled.do(Put(b"%06d" % at, b"x"))
    whole = b"".join(map(bytes, filled.machine.snapshot()))
    # when it is restored
    other = MetastoreMachine()
    other.restore([whole], 1)
    # then nothing is missing
    assert other.state == filled.machine.state


def test_a_snapshot_that_is_cut_short_is_refused() -> None:
    filled = Filled()
    for at in range(5):
        filled.do(Put(b"%d" % at, b"x"))
    whole = b"".join(map(bytes, filled.machine.snapshot()))
    for size in range(len(whole)):
        with pytest.raises(Corrupt):
            MetastoreMachine().restore([whole[:size]], 1)
