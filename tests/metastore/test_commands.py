"""Commands as bytes: what is refused before it enters the log, and what no bytes may do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowmark.errors import Corrupt, Rejected
from lowmark.metastore import (
    Branch,
    Compare,
    Condition,
    Do,
    Exists,
    MetastoreMachine,
    Not,
    Operation,
    Put,
    Remove,
    RemoveRange,
    Revision,
    Statement,
    ValueIs,
    Version,
    all_of,
    missing,
    value_is,
)
from lowmark.metastore.commands import (
    DEPTH_MAX,
    FORMAT,
    KEY_BYTES_MAX,
    LEASE_MS_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Command,
    Compact,
    Invoke,
    LeaseIsOver,
    Release,
    Renew,
    StoredBranch,
    StoredDo,
    StoredInvoke,
    StoredPut,
    Take,
    Tick,
    check,
    decode,
    encode,
)
from lowmark.metastore.errors import InvokeRefused
from lowmark.metastore.machine import Refused


def raw(command: object, values: bytes = b"") -> bytes:
    """A command that was not checked."""
    head = msgspec.msgpack.encode((FORMAT, command))
    return len(head).to_bytes(4, "little") + head + values


def do(*operations: Operation) -> Command:
    return Invoke(Do(operations))


def nested(depth: int) -> Statement:
    statement: Statement = Do((Put(b"k", b"v"),))
    for _ in range(depth - 1):
        statement = Branch(Exists(b"k"), statement, Do())
    return statement


def nots(depth: int) -> Condition:
    condition: Condition = Exists(b"k")
    for _ in range(depth - 1):
        condition = Not(condition)
    return condition


def when(condition: Condition) -> Command:
    return Invoke(Branch(condition, Do(), Do()))


ALLOWED = {
    "the longest key": do(Put(b"k" * KEY_BYTES_MAX, b"")),
    "the longest value": do(Put(b"k", bytes(VALUE_BYTES_MAX))),
    "as many operations as there may be": do(
        *(Put(b"%d" % at, b"v") for at in range(OPERATIONS_MAX))
    ),
    "operations and conditions together": Invoke(
        Branch(
            all_of(*(Exists(b"k") for _ in range(10))),
            Do(tuple(Remove(b"%d" % at) for at in range(OPERATIONS_MAX - 11))),
            Do(),
        )
    ),
    "branches as deep as they may be": Invoke(nested(DEPTH_MAX)),
    "conditions as deep as they may be": when(nots(DEPTH_MAX)),
    "the same key in two branches": Invoke(
        Branch(missing(b"k"), Do((Put(b"k", b"1"),)), Do((Put(b"k", b"2"),)))
    ),
    "a range beside its neighbours": do(
        Put(b"a", b""), RemoveRange(b"b", b"c"), Put(b"c", b""), Remove(b"d")
    ),
    "nothing to do": do(),
    "the longest lease": Take("l" * KEY_BYTES_MAX, 1, LEASE_MS_MAX, 0, "w" * KEY_BYTES_MAX),
    "the shortest lease": Take("l", 1, 1, 0, ""),
    "renewing": Renew("l", 1, 7),
    "releasing": Release("l", 1),
    "compacting the first revision": Compact(1),
    "a tick": Tick(),
}
REFUSED = {
    "an empty key": do(Put(b"", b"v")),
    "a key that is too long": do(Put(b"k" * (KEY_BYTES_MAX + 1), b"v")),
    "a removal of a key that is too long": do(Remove(b"k" * (KEY_BYTES_MAX + 1))),
    "a value that is too long": do(Put(b"k", bytes(VALUE_BYTES_MAX + 1))),
    "one operation too many": do(*(Remove(b"%d" % at) for at in range(OPERATIONS_MAX + 1))),
    "one operation too many, over the branches": Invoke(
        Branch(
            Exists(b"k"),
            Do(tuple(Remove(b"%d" % at) for at in range(OPERATIONS_MAX // 2))),
            Do(tuple(Remove(b"%d" % at) for at in range(OPERATIONS_MAX // 2))),
        )
    ),
    "branches that are too deep": Invoke(nested(DEPTH_MAX + 1)),
    "conditions that are too deep": when(nots(DEPTH_MAX + 1)),
    "a key twice": do(Put(b"k", b"1"), Put(b"k", b"2")),
    "a key put and removed": do(Put(b"k", b"1"), Remove(b"k")),
    "a key within a range": do(RemoveRange(b"a", b"z"), Put(b"k", b"1")),
    "a range without a start": do(RemoveRange(b"", b"z")),
    "a condition on no key": when(Exists(b"")),
    "a comparison on no key": when(Version(b"", Compare.EQ, 1)),
    "a negative revision": when(Revision(b"k", Compare.EQ, -1)),
    "a digest that is none": when(ValueIs(b"k", 0, b"")),
    "a negative length": when(ValueIs(b"k", -1, bytes(16))),
    "a condition on a lease without a name": when(LeaseIsOver("")),
    "a lease without a name": Take("", 1, 1, 0, ""),
    "a lease whose name is too long": Take("l" * (KEY_BYTES_MAX + 1), 1, 1, 0, ""),
    "a lease that gives too long a reason": Take("l", 1, 1, 0, "w" * (KEY_BYTES_MAX + 1)),
    "a lease for no time": Take("l", 1, 0, 0, ""),
    "a lease for too long": Take("l", 1, LEASE_MS_MAX + 1, 0, ""),
    "a lease that holds a negative revision": Take("l", 1, 1, -1, ""),
    "renewing for a negative revision": Renew("l", 1, -1),
    "releasing no name": Release("", 1),
    "compacting before the first revision": Compact(0),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_within_the_limits_is_encoded_checked_and_decoded(name: str) -> None:
    data = encode(ALLOWED[name])
    check(data)
    decoded, at = decode(data)
    assert at <= len(data)
    if not isinstance(ALLOWED[name], Invoke):
        assert decoded == ALLOWED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_beyond_the_limits_is_refused_before_it_is_bytes(name: str) -> None:
    with pytest.raises(InvokeRefused):
        encode(REFUSED[name])


def stored(statement: Statement) -> StoredDo | StoredBranch:
    if isinstance(statement, Branch):
        then, otherwise = stored(statement.then), stored(statement.otherwise)
        return StoredBranch(statement.condition, then, otherwise)
    operations = tuple(
        StoredPut(one.key, len(one.value)) if isinstance(one, Put) else one
        for one in statement.operations
    )
    return StoredDo(operations, statement.answer)


def values_of(statement: Statement) -> bytes:
    if isinstance(statement, Branch):
        return values_of(statement.then) + values_of(statement.otherwise)
    return b"".join(bytes(one.value) for one in statement.operations if isinstance(one, Put))


@pytest.mark.parametrize("name", REFUSED)
def test_the_same_as_bytes_of_somebody_else_is_refused_and_changes_nothing(name: str) -> None:
    # given bytes that `encode` would not have made
    command = REFUSED[name]
    if isinstance(command, Invoke):
        data = raw(StoredInvoke(stored(command.statement)), values_of(command.statement))
    else:
        data = raw(command)
    # then they are not let in
    with pytest.raises(InvokeRefused):
        check(data)
    # and if they were in the log all the same, they would do nothing
    machine = MetastoreMachine()
    assert isinstance(machine.apply(1, 1, data), Refused)
    assert (machine.state.latest, machine.state.leases) == (0, {})


def test_a_command_with_too_few_or_too_many_values_is_refused() -> None:
    data = encode(do(Put(b"a", b"123"), Put(b"b", b"4567")))
    for wrong in (data[:-1], data[:-7], data + b"!"):
        with pytest.raises(InvokeRefused):
            check(wrong)
        assert isinstance(MetastoreMachine().apply(1, 1, wrong), Refused)


def test_values_stand_one_after_another_those_of_then_first() -> None:
    # given a statement with values in three places
    data = encode(
        Invoke(
            Branch(
                Exists(b"no"),
                Do((Put(b"a", b"AAA"), Remove(b"x"))),
                Branch(missing(b"no"), Do((Put(b"b", b"B"), Put(b"c", b"CC"))), Do()),
            )
        )
    )
    assert data.endswith(b"AAABCC")
    # when the middle one is carried out
    machine = MetastoreMachine()
    machine.apply(9, 1, data)
    # then its values are found at their places in the command, and nowhere else
    for key, value in ((b"b", b"B"), (b"c", b"CC")):
        found = machine.state.find(key)
        assert found is not None
        assert data[found.record.at : found.record.at + found.record.length] == value
        assert found.index == 9
    assert machine.state.find(b"a") is None


def test_a_value_condition_carries_no_value() -> None:
    data = encode(when(value_is(b"k", b"a value of some length")))
    assert b"a value" not in data


def test_another_format_is_refused_by_name() -> None:
    head = msgspec.msgpack.encode((2, Tick()))
    with pytest.raises(Corrupt, match="format 2, not 1"):
        check(len(head).to_bytes(4, "little") + head)


def never_hurts(data: bytes) -> None:
    refused = False
    try:
        check(data)
    except (Rejected, Corrupt):
        refused = True
    machine = MetastoreMachine()
    machine.apply(1, 1, encode(do(Put(b"k", b"v"))))
    outcome = machine.apply(2, 2, data)
    assert isinstance(outcome, Refused) == refused
    msgspec.msgpack.encode(outcome)
    other = MetastoreMachine()
    other.restore([bytes(block) for block in machine.snapshot()], 1)
    assert other.state == machine.state


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_machine(data: bytes) -> None:
    never_hurts(data)
    never_hurts(len(data).to_bytes(4, "little") + data)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.sampled_from([n for n in ALLOWED if "value" not in n]), st.data())
def test_no_damage_to_a_command_stops_the_machine(name: str, data: st.DataObject) -> None:
    good = bytearray(encode(ALLOWED[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, min(len(good), 80) - 1))] = data.draw(st.integers(0, 255))
    never_hurts(bytes(good))


trees = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(),
        st.binary(max_size=8),
        st.text(max_size=4),
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(trees, st.binary(max_size=8))
def test_no_message_that_is_built_right_and_says_nonsense_stops_the_machine(
    tree: object, values: bytes
) -> None:
    never_hurts(raw(tree, values))
    never_hurts(raw([1, tree], values))
    never_hurts(raw([1, [1, tree, 0]], values))
    never_hurts(raw([1, [2, tree, [1, [], 0], [1, [], 0]]], values))


@pytest.mark.parametrize("depth", [17, 100, 400, 5_000, 100_000])
def test_no_depth_of_nesting_stops_the_machine(depth: int) -> None:
    # given conditions, and branches, within each other as bytes
    condition = b"\x92\x07" * depth + b"\x92\x01\xc4\x01k"
    leaf = b"\x93\x01\x90\x00"
    for body in (
        b"\x92\x01\x92\x01\x94\x02" + condition + leaf + leaf,
        b"\x92\x01\x92\x01" + b"\x94\x02\x92\x01\xc4\x01k" * depth + leaf + leaf * depth,
    ):
        never_hurts(len(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize("compare", Compare)
def test_every_comparison_compares(compare: Compare) -> None:
    expected = {
        Compare.EQ: [False, True, False],
        Compare.NE: [True, False, True],
        Compare.LT: [True, False, False],
        Compare.LE: [True, True, False],
        Compare.GT: [False, False, True],
        Compare.GE: [False, True, True],
    }
    assert [compare.holds(left, 5) for left in (4, 5, 6)] == expected[compare]
    assert isinstance(Revision(b"k", compare, 5), Revision)


@pytest.mark.parametrize(
    "command",
    [
        Invoke(Do((Put(b"key", "text"),))),  # type: ignore[arg-type]
        Invoke(Do((Put(b"key", None),))),  # type: ignore[arg-type]
        when(Revision(b"key", Compare.EQ, 2**70)),
        Take("lease", 2**70, 1_000, 0, ""),
        Take("lease \ud800", 1, 1_000, 0, ""),
    ],
)
def test_what_can_not_be_written_down_is_refused_by_name(command: Command) -> None:
    with pytest.raises(InvokeRefused):
        encode(command)


def test_branches_without_end_are_refused_by_name() -> None:
    statement: Do | Branch = Do()
    for _ in range(5_000):
        statement = Branch(missing(b"key"), statement, Do())
    with pytest.raises(InvokeRefused):
        encode(Invoke(statement))
