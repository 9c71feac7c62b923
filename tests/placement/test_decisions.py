"""The decision table, row by row; and its writes in every order of several nodes.

A write is a process: it reads the keys, decides, and writes if nothing has changed; if it lost a
race it begins again. A twin does the same in one step. In whatever order the steps of several
processes come, what they answer and what is left must be what the twins leave in some order, one
after another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations, product
from typing import TypeAlias

import pytest

from lowmark.catalog import TableId
from lowmark.metastore import Answer, Do, Entry, MetastoreMachine, Put, Statement
from lowmark.metastore.commands import Invoke, encode
from lowmark.placement import decisions
from lowmark.placement.assignments import KINDS, Assignments, Keys, PartitionId, keys_from
from lowmark.placement.decisions import DONE, LOST, Adjust, Decision, statement
from lowmark.placement.writes import carry_out
from metastore.world import World

P = PartitionId(TableId(7), 0)
UPDATE, CANCEL = Adjust.UPDATE, Adjust.CANCEL


def nodes(*numbers: int) -> Assignments:
    return Assignments(numbers, 3)


A, B, C = nodes(1, 2, 3), nodes(2, 3, 4), nodes(3, 4, 5)


@dataclass(frozen=True)
class Values:
    """What the keys hold, without revisions."""

    stable: Assignments | None = None
    pending: Assignments | None = None
    planned: Assignments | None = None
    trigger: int | None = None
    lock: int | None = None

    @classmethod
    def of(cls, keys: Keys) -> Values:
        return cls(keys.stable, keys.pending, keys.planned, keys.trigger, keys.lock)


class Store:
    """A metastore's machine that is asked and changed one step at a time."""

    def __init__(self, begin: Values) -> None:
        self.machine = MetastoreMachine()
        self.log: dict[int, bytes] = {}
        self.index = 0
        values = (begin.stable, begin.pending, begin.planned, begin.trigger, begin.lock)
        for kind, value in zip(KINDS, values, strict=True):
            if value is not None:
                data = value.encode() if isinstance(value, Assignments) else b"%d" % value
                self.change(Do((Put(P.key(kind), data),)))

    def change(self, step: Statement) -> int:
        self.index += 1
        data = self.log[self.index] = encode(Invoke(step))
        answer = self.machine.apply(self.index, self.index, data)
        assert isinstance(answer, Answer)
        return answer.answer

    def keys(self) -> Keys:
        entries = {}
        for kind in KINDS:
            found = self.machine.state.find(P.key(kind))
            if found is not None:
                one = found.record
                data = self.log[found.index][one.at : one.at + one.length]
                entries[found.key] = Entry(
                    found.key, data, one.revision, one.created, one.version, found.time
                )
        return keys_from(P, entries)


Decide: TypeAlias = Callable[[Keys], Decision]


def decided(begin: Values, decide: Decide) -> tuple[Values, bool]:
    """What one write leaves, and what it answers."""
    store = Store(begin)
    keys = store.keys()
    decision = decide(keys)
    if decision.operations:
        assert store.change(statement(P, keys, decision)) == DONE
    return Values.of(store.keys()), decision.answer


# -- the table, row by row ------------------------------------------------------------------------

A1, A2, A3, A4 = nodes(1), nodes(2), nodes(3), nodes(4)
NONE = None

IGNITE = [
    # given, stable, pending, planned -> stable, pending, planned; the target is A1
    (A2, NONE, NONE, NONE, NONE, A1, NONE),
    (A1, NONE, NONE, NONE, NONE, NONE, NONE),
    (A1, NONE, A3, NONE, NONE, A3, A1),
    (A2, NONE, A3, NONE, NONE, A3, A1),
    (A1, A3, NONE, NONE, A3, A1, NONE),
    (A2, A3, NONE, NONE, A3, A1, NONE),
    (A1, A1, NONE, NONE, A1, NONE, NONE),
    (A2, A1, NONE, NONE, A1, NONE, NONE),
    (A2, A2, NONE, NONE, A2, A1, NONE),
    (A1, A2, A3, NONE, A2, A3, A1),
    (A2, A1, A3, NONE, A1, A3, A1),
    (A1, A1, A3, NONE, A1, A3, A1),
    (A2, A2, A3, NONE, A2, A3, A1),
    (A1, A2, A3, A4, A2, A3, A1),
    (A2, A4, A3, A1, A4, A3, A1),
    (A1, A1, A3, A4, A1, A3, A1),
    (A1, A2, A1, A4, A2, A1, NONE),
    (A2, A3, A1, A1, A3, A1, NONE),
]


@pytest.mark.parametrize("row", IGNITE)
@pytest.mark.parametrize(("adjust", "lock"), [(CANCEL, None), (CANCEL, 4), (UPDATE, 4)])
def test_a_trigger_decides_as_in_the_18_rows_of_ignite(
    row: tuple[Assignments | None, ...], adjust: Adjust, lock: int | None
) -> None:
    given, stable, pending, planned, *_ = row
    lock = None if pending is None else lock
    begin = Values(stable, pending, planned, 5, lock)
    found, answer = decided(
        begin, lambda keys: decisions.trigger(P, keys, A1, 6, adjust=adjust, given=given)
    )
    assert answer
    assert found == Values(row[4], row[5], row[6], 6, lock)


@pytest.mark.parametrize("row", [row for row in IGNITE if row[2] is not None])
def test_without_a_lock_a_trigger_updates_pending(row: tuple[Assignments | None, ...]) -> None:
    given, stable, pending, planned = row[:4]
    begin = Values(stable, pending, planned, 5)
    found, _ = decided(
        begin, lambda keys: decisions.trigger(P, keys, A1, 6, adjust=UPDATE, given=given)
    )
    assert found == Values(stable, A1, NONE, 6)


@pytest.mark.parametrize("adjust", Adjust)
@pytest.mark.parametrize("at", [4, 5])
def test_an_outdated_trigger_changes_nothing(adjust: Adjust, at: int) -> None:
    for begin in (Values(A, NONE, NONE, 5), Values(A, B, NONE, 5), Values(A, B, C, 5, 2)):
        assert decided(
            begin, lambda keys: decisions.trigger(P, keys, nodes(8), at, adjust=adjust)
        ) == (begin, False)


def test_a_partition_without_any_set_is_not_decided_on() -> None:
    # a table that was dropped leaves no keys, and gets none by an event that comes late
    for decide in (
        lambda keys: decisions.trigger(P, keys, A, 6, adjust=UPDATE),
        lambda keys: decisions.trigger(P, keys, A, 6, adjust=CANCEL),
    ):
        assert decided(Values(), decide) == (Values(), False)


def test_equal_nodes_of_another_catalog_version_are_equal() -> None:
    newer = Assignments(A.nodes, 99)
    found, _ = decided(
        Values(A, NONE, NONE, 5), lambda keys: decisions.trigger(P, keys, newer, 6, adjust=UPDATE)
    )
    assert found == Values(A, NONE, NONE, 6)
    found, _ = decided(
        Values(B, A, C, 5, 2), lambda keys: decisions.trigger(P, keys, newer, 6, adjust=UPDATE)
    )
    assert found == Values(B, A, NONE, 6, 2)


def test_what_is_committed_is_stable_and_planned_follows() -> None:
    begin = Values(A, B, C, 5, 2)
    token = Store(begin).keys().pending_revision
    done, answer = decided(begin, lambda keys: decisions.committed(P, keys, B.nodes, token))
    assert answer
    assert done == Values(B, C, NONE, 5)
    done, _ = decided(
        Values(A, B, NONE, 5, 2), lambda keys: decisions.committed(P, keys, B.nodes, token)
    )
    assert done == Values(B, NONE, NONE, 5)


def test_another_set_or_the_same_of_another_change_is_not_committed() -> None:
    begin = Values(A, B, C, 5, 2)
    token = Store(begin).keys().pending_revision
    for peers, by in ((C.nodes, token), (B.nodes, token - 1), (B.nodes, token + 1)):
        found = decided(begin, lambda keys, p=peers, t=by: decisions.committed(P, keys, p, t))  # type: ignore[misc]
        assert found == (begin, False)
    assert decided(Values(A), lambda keys: decisions.committed(P, keys, A.nodes, token)) == (
        Values(A),
        False,
    )


@pytest.mark.parametrize(
    ("lock", "term", "after", "answer"),
    [(None, 4, 4, True), (3, 4, 4, True), (4, 4, 4, True), (5, 4, 5, False)],
)
def test_a_leader_locks_what_it_puts_in_force(
    lock: int | None, term: int, after: int, answer: bool
) -> None:
    begin = Values(A, B, C, 5, lock)
    found = decided(begin, lambda keys: decisions.may_finish(P, keys, B.nodes, term))
    assert found == (Values(A, B, C, 5, after), answer)
    found = decided(begin, lambda keys: decisions.may_finish(P, keys, C.nodes, term))
    assert found == (begin, False)


def test_a_group_that_is_elsewhere_may_go_back_to_stable() -> None:
    begin = Values(A, NONE, NONE, 5)
    for peers, answer in ((A.nodes, True), (B.nodes, False)):
        found = decided(begin, lambda keys, p=peers: decisions.may_finish(P, keys, p, 4))  # type: ignore[misc]
        assert found == (begin, answer)


def test_a_former_leader_takes_no_lock_of_its_successor_away() -> None:
    begin = Values(A, B, C, 5, 4)
    assert decided(begin, lambda keys: decisions.failed(P, keys, 3)) == (begin, False)
    for term in (4, 5):
        # what was planned takes the place of what failed: that may have failed for good
        found, _ = decided(begin, lambda keys, t=term: decisions.failed(P, keys, t))  # type: ignore[misc]
        assert found == Values(A, C, NONE, 5)
        locked = Values(A, B, NONE, 5, 4)
        found, _ = decided(locked, lambda keys, t=term: decisions.failed(P, keys, t))  # type: ignore[misc]
        assert found == Values(A, B, NONE, 5)
    planned = Values(A, B, C, 5)
    assert decided(planned, lambda keys: decisions.failed(P, keys, 3))[0] == Values(A, C, NONE, 5)
    pending = Values(A, B, NONE, 5)
    assert decided(pending, lambda keys: decisions.failed(P, keys, 3)) == (pending, False)


def test_a_cancelled_change_is_replaced_by_what_is_planned() -> None:
    for lock, term, done in ((None, 4, True), (4, 4, True), (5, 4, False)):
        begin = Values(A, B, C, 5, lock)
        token = Store(begin).keys().pending_revision
        found = decided(
            begin,
            lambda keys, t=token, m=term: decisions.cancelled(P, keys, t, m),  # type: ignore[misc]
        )
        assert found == ((Values(A, C, NONE, 5), True) if done else (begin, False))
    begin = Values(A, B, NONE, 5)
    assert decided(begin, lambda keys: decisions.cancelled(P, keys, 2, 4)) == (begin, False)


def test_an_operator_withdraws_what_is_not_put_in_force_yet() -> None:
    found, answer = decided(Values(A, B, C, 5), lambda keys: decisions.withdrawn(P, keys))
    assert (found, answer) == (Values(A, NONE, NONE, 5), True)
    for begin in (Values(A, B, C, 5, 2), Values(A, NONE, NONE, 5)):
        assert decided(begin, lambda keys: decisions.withdrawn(P, keys)) == (begin, False)


def test_a_reset_leaves_the_survivor_and_has_the_last_event_count_again() -> None:
    one = nodes(2)
    found, _ = decided(Values(A, B, C, 5, 2), lambda keys: decisions.reset(P, keys, one))
    assert found == Values(one)
    found, answer = decided(Values(), lambda keys: decisions.reset(P, keys, one))
    assert (found, answer) == (Values(), False)


# -- every order ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    """One of the writes."""

    name: str
    decide: Callable[[Keys], Decision]


Process: TypeAlias = Generator["Statement | None", object, bool]


def process(write: Write) -> Process:
    """As a node does it: a step reads, or changes."""
    while True:
        keys = yield None
        assert isinstance(keys, Keys)
        decision = write.decide(keys)
        if not decision.operations:
            return decision.answer
        if (yield statement(P, keys, decision)) != LOST:
            return decision.answer


def _trigger(target: Assignments, at: int, adjust: Adjust) -> Write:
    name = f"trigger {target.nodes} of {at}"
    return Write(name, lambda keys: decisions.trigger(P, keys, target, at, adjust=adjust))


def _committed(peers: Assignments) -> Write:
    """By the leader that began the change of the token that is there now."""
    return Write(
        f"committed {peers.nodes}",
        lambda keys: decisions.committed(P, keys, peers.nodes, keys.pending_revision),
    )


def writes(adjust: Adjust) -> list[Write]:
    some = [
        _trigger(B, 15, adjust),
        _trigger(C, 16, adjust),
        _trigger(A, 17, adjust),
        _committed(B),
        _committed(C),
        Write("finish B in 3", lambda keys: decisions.may_finish(P, keys, B.nodes, 3)),
        Write("finish B in 4", lambda keys: decisions.may_finish(P, keys, B.nodes, 4)),
        Write("failed in 3", lambda keys: decisions.failed(P, keys, 3)),
        Write("withdrawn", lambda keys: decisions.withdrawn(P, keys)),
        Write("first A", lambda keys: decisions.first(P, keys, A, 12)),
        Write("reset", lambda keys: decisions.reset(P, keys, nodes(2))),
    ]
    if adjust is CANCEL:
        some.append(
            Write("cancelled", lambda keys: decisions.cancelled(P, keys, keys.pending_revision, 3))
        )
    return some


BEGINNINGS = [
    Values(),
    Values(A),
    Values(A, trigger=15),
    Values(A, B, trigger=14),
    Values(A, B, trigger=15, lock=3),
    Values(A, B, C, trigger=15, lock=3),
    Values(A, B, C, trigger=15),
    Values(A, C, B, trigger=14, lock=4),
]

Outcome: TypeAlias = tuple[Values, tuple[bool, ...]]


def run(begin: Values, some: Sequence[Write], order: Sequence[int]) -> tuple[Outcome, list[int]]:
    """Let processes take steps in an order, and the rest one after another; say what was chosen.

    The second answer has, for each step, how many processes could have taken it.
    """
    store = Store(begin)
    processes = [process(write) for write in some]
    steps: dict[int, Statement | None] = {at: next(one) for at, one in enumerate(processes)}
    answers: dict[int, bool] = {}
    choices: list[int] = []
    while steps:
        ready = sorted(steps)
        choices.append(len(ready))
        at = len(choices) - 1
        chosen = ready[order[at] if at < len(order) else 0]
        step = steps[chosen]
        try:
            answer = store.keys() if step is None else store.change(step)
            steps[chosen] = processes[chosen].send(answer)
        except StopIteration as done:
            answers[chosen] = done.value
            del steps[chosen]
    return (Values.of(store.keys()), tuple(answers[at] for at in range(len(some)))), choices


def every_order(begin: Values, some: Sequence[Write]) -> Iterator[tuple[Outcome, list[int]]]:
    order: list[int] = []
    while True:
        outcome, choices = run(begin, some, order)
        order += [0] * (len(choices) - len(order))
        yield outcome, list(order)
        while order and order[-1] == choices[len(order) - 1] - 1:
            order.pop()
        if not order:
            return
        order[-1] += 1


def one_after_another(begin: Values, some: Sequence[Write]) -> set[Outcome]:
    found = set()
    for order in permutations(range(len(some))):
        store, answers = Store(begin), dict[int, bool]()
        for at in order:
            keys = store.keys()
            decision = some[at].decide(keys)
            if decision.operations:
                store.change(statement(P, keys, decision))
            answers[at] = decision.answer
        found.add((Values.of(store.keys()), tuple(answers[at] for at in range(len(some)))))
    return found


def check_every_order(begin: Values, some: Sequence[Write]) -> int:
    allowed, count = one_after_another(begin, some), 0
    for outcome, order in every_order(begin, some):
        count += 1
        story = f"{begin}: {[write.name for write in some]} in the order {order}"
        assert outcome in allowed, story
        left = outcome[0]
        assert left.planned is None or left.pending is not None, f"{story}: planned for nothing"
        assert left.pending is not None or left.lock is None, f"{story}: locked for nothing"
    return count


@pytest.mark.slow
@pytest.mark.parametrize("adjust", Adjust)
def test_two_nodes_in_any_order_leave_what_one_after_the_other_would_leave(adjust: Adjust) -> None:
    count = 0
    for begin, some in product(BEGINNINGS, combinations_with_replacement(writes(adjust), 2)):
        count += check_every_order(begin, some)
    assert count > 800


@pytest.mark.release  # the one before has two of all kinds
@pytest.mark.parametrize("adjust", Adjust)
def test_three_at_a_time_in_any_order_do_so_too(adjust: Adjust) -> None:
    count = 0
    for some in combinations_with_replacement(writes(adjust)[:9], 3):
        count += check_every_order(BEGINNINGS[5], some)
    assert count > 2_000


def test_an_event_that_every_node_hears_of_counts_once() -> None:
    # given three nodes that hear of the same change
    event = _trigger(B, 15, UPDATE)
    for (left, answers), _ in every_order(Values(A), [event] * 3):
        # then one of them has written it, in whatever order they came
        assert sum(answers) == 1
        assert left == Values(A, B, trigger=15)


def test_a_later_event_is_never_undone_by_an_earlier_one() -> None:
    events = [_trigger(B, 15, UPDATE), _trigger(C, 16, UPDATE)]
    for (left, answers), _ in every_order(Values(A), events):
        assert left == Values(A, C, trigger=16)
        assert answers[1]


def test_what_comes_while_a_change_ends_is_planned_or_pending_and_never_lost() -> None:
    # given a change that ends while the next event comes
    begin = Values(A, B, trigger=15, lock=3)
    for (left, answers), _ in every_order(begin, [_committed(B), _trigger(C, 16, UPDATE)]):
        assert answers == (True, True)
        assert left == Values(B, C, trigger=16)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_of_a_cluster_do_them_at_the_same_time(seed: int) -> None:
    # given a cluster whose nodes all issue the first assignment, then hear of two events
    world = World(seed=seed)
    answers: dict[str, list[bool]] = {}

    def all_do(name: str, decide: Callable[[Keys], Decision]) -> None:
        told = answers.setdefault(name, [])
        for node in world.nodes.values():
            carry_out(node.metastore, P, decide).then(lambda future: told.append(future.result()))

    def wait() -> None:
        world.run_until(lambda: all(len(one) == 3 for one in answers.values()))

    all_do("first", lambda keys: decisions.first(P, keys, A, 4))
    wait()
    all_do("event 5", lambda keys: decisions.trigger(P, keys, B, 5, adjust=UPDATE))
    all_do("event 6", lambda keys: decisions.trigger(P, keys, C, 6, adjust=UPDATE))
    wait()
    all_do("may finish", lambda keys: decisions.may_finish(P, keys, C.nodes, 2))
    wait()
    all_do("event 8", lambda keys: decisions.trigger(P, keys, A, 8, adjust=UPDATE))
    all_do("committed", lambda keys: decisions.committed(P, keys, C.nodes, keys.pending_revision))
    wait()
    # then each counts once, and the last one is still to be done
    assert answers["first"].count(True) == 1
    assert answers["event 6"].count(True) == 1
    assert answers["event 5"].count(True) <= 1
    assert answers["may finish"].count(True) == 3
    assert answers["event 8"].count(True) == 1
    assert answers["committed"].count(True) == 1
    page = world.wait(world[3].metastore.range(b"partition."))
    keys = keys_from(P, {entry.key: entry for entry in page.entries})
    assert Values.of(keys) == Values(C, A, trigger=8)
