"""The writes by which partitions will be moved, said with `invoke`, in every order of two nodes.

Each write is a process: it asks, it changes, and if it lost a race it begins again. A twin does the
same in one step, on plain values. In whatever order the steps of several processes come, what they
answer and what is left must be what the twins leave in some order, one after another.

A trigger is for a revision, and only the highest counts. Conditions on values are equality, so
"absent or lower" is asked first, and the write depends on that key's revision being as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations, product
from typing import TypeAlias

import pytest

from lowmark.metastore import (
    Answer,
    Branch,
    Compare,
    Condition,
    Do,
    Exists,
    Metastore,
    MetastoreMachine,
    Operation,
    Put,
    Remove,
    Revision,
    Statement,
    all_of,
    missing,
    value_is,
)
from lowmark.metastore.commands import Invoke, encode
from metastore.world import World


def key(kind: str) -> bytes:
    return b"partition.assignments.%s.7.0" % kind.encode()


STABLE, PENDING, PLANNED = key("stable"), key("pending"), key("planned")
TRIGGER, LOCK = key("change.trigger.revision"), key("pending.lock")
ALL = [STABLE, PENDING, PLANNED, TRIGGER, LOCK]


@dataclass(frozen=True)
class Read:
    """A value and the revision that wrote it; revision 0: there is none."""

    value: bytes
    revision: int


Step: TypeAlias = list[bytes] | Do | Branch
Process: TypeAlias = Generator[Step, object, bool]


def same(name: bytes, read: Read) -> Condition:
    """The key is as it was read."""
    return Revision(name, Compare.EQ, read.revision)


# -- the writes, as nodes do them ---------------------------------------------------------------

_LOST, _NO, _YES = 0, 1, 2


def _ask(*names: bytes) -> Generator[Step, object, list[Read]]:
    answer = yield list(names)
    assert isinstance(answer, list)
    return answer


def _change(statement: Statement) -> Generator[Step, object, int]:
    answer = yield statement
    assert isinstance(answer, Answer)
    return answer.answer


def trigger(target: bytes, at: int, *, approach: int = 1) -> Process:
    """Partitions shall be at `target`, says the event of revision `at`."""
    while True:
        [last] = yield from _ask(TRIGGER)
        if last.revision and int(last.value) >= at:
            return False
        mark = Put(TRIGGER, b"%d" % at)
        plain = Do((mark, Remove(PLANNED)), _YES)
        moved = Do((mark, Put(PENDING, target), Remove(PLANNED)), _YES)
        later = Do((mark, Put(PLANNED, target)), _YES)
        same_pending = value_is(PENDING, target)
        under_way: Statement = Branch(same_pending, plain, later)
        if approach == 1:
            under_way = Branch(missing(LOCK), Branch(same_pending, plain, moved), under_way)
        answer = yield from _change(
            Branch(
                same(TRIGGER, last),
                Branch(missing(PENDING), Branch(value_is(STABLE, target), plain, moved), under_way),
                Do(answer=_LOST),
            )
        )
        if answer != _LOST:
            return True


def committed(applied: bytes) -> Process:
    """The group has these members now."""
    while True:
        pending, planned = yield from _ask(PENDING, PLANNED)
        if not pending.revision or pending.value != applied:
            return False
        follows: Operation = Remove(PENDING)
        if planned.revision:
            follows = Put(PENDING, planned.value)
        answer = yield from _change(
            Branch(
                all_of(same(PENDING, pending), same(PLANNED, planned)),
                Do((Put(STABLE, applied), Remove(LOCK), follows, Remove(PLANNED)), _YES),
                Do(answer=_LOST),
            )
        )
        if answer != _LOST:
            return True


def try_catch_up_finish(peers: bytes) -> Process:
    """All new members are near: may they be put in force?"""
    answer = yield from _change(
        Branch(
            value_is(PENDING, peers),
            Branch(Exists(LOCK), Do(answer=_YES), Do((Put(LOCK, b""),), _YES)),
            Do(answer=_NO),
        )
    )
    return answer == _YES


def failed() -> Process:
    """The change failed: it may be replaced again."""
    yield from _change(Do((Remove(LOCK),)))
    return True


def adopt_planned() -> Process:
    """Approach 2: the change was cancelled; what is planned takes its place."""
    while True:
        pending, planned = yield from _ask(PENDING, PLANNED)
        if not planned.revision:
            return False
        answer = yield from _change(
            Branch(
                all_of(same(PENDING, pending), same(PLANNED, planned)),
                Do((Put(PENDING, planned.value), Remove(PLANNED)), _YES),
                Do(answer=_LOST),
            )
        )
        if answer != _LOST:
            return True


def stable_if_absent(target: bytes) -> Process:
    """The first assignment, which every node issues."""
    answer = yield from _change(
        Branch(missing(STABLE), Do((Put(STABLE, target),), _YES), Do(answer=_NO))
    )
    return answer == _YES


# -- the same on plain values, in one step ------------------------------------------------------


@dataclass(frozen=True)
class World0:
    """What the keys hold."""

    stable: bytes | None = None
    pending: bytes | None = None
    planned: bytes | None = None
    trigger: int | None = None
    lock: bool = False


def plain_trigger(now: World0, target: bytes, at: int, approach: int) -> tuple[World0, bool]:
    if now.trigger is not None and now.trigger >= at:
        return now, False
    now = replace(now, trigger=at)
    if now.pending is None:
        pending = None if now.stable == target else target
        return replace(now, pending=pending, planned=None), True
    if approach == 1 and not now.lock:
        return replace(now, pending=target, planned=None), True
    return replace(now, planned=None if now.pending == target else target), True


def plain_committed(now: World0, applied: bytes) -> tuple[World0, bool]:
    if now.pending != applied:
        return now, False
    done = replace(now, stable=applied, pending=now.planned, planned=None, lock=False)
    return done, True


def plain_finish(now: World0, peers: bytes) -> tuple[World0, bool]:
    return (replace(now, lock=True), True) if now.pending == peers else (now, False)


def plain_adopt(now: World0) -> tuple[World0, bool]:
    if now.planned is None:
        return now, False
    return replace(now, pending=now.planned, planned=None), True


def plain_stable(now: World0, target: bytes) -> tuple[World0, bool]:
    return (replace(now, stable=target), True) if now.stable is None else (now, False)


@dataclass(frozen=True)
class Write:
    """One of the writes, both ways."""

    name: str
    start: Callable[[], Process]
    plain: Callable[[World0], tuple[World0, bool]]


A, B, C = b"1,2,3", b"2,3,4", b"3,4,5"


def _trigger(target: bytes, at: int, approach: int) -> Write:
    return Write(
        f"trigger {target.decode()} of {at}",
        lambda: trigger(target, at, approach=approach),
        lambda now: plain_trigger(now, target, at, approach),
    )


def writes(approach: int) -> list[Write]:
    some = [
        _trigger(B, 5, approach),
        _trigger(C, 6, approach),
        _trigger(A, 7, approach),
        Write("committed B", lambda: committed(B), lambda now: plain_committed(now, B)),
        Write("committed C", lambda: committed(C), lambda now: plain_committed(now, C)),
        Write("finish B", lambda: try_catch_up_finish(B), lambda now: plain_finish(now, B)),
        Write("failed", failed, lambda now: (replace(now, lock=False), True)),
        Write("stable A", lambda: stable_if_absent(A), lambda now: plain_stable(now, A)),
    ]
    if approach == 2:
        some.append(Write("adopt", adopt_planned, plain_adopt))
    return some


BEGINNINGS = [
    World0(),
    World0(stable=A),
    World0(stable=A, trigger=5),
    World0(stable=A, pending=B, trigger=4),
    World0(stable=A, pending=B, trigger=5, lock=True),
    World0(stable=A, pending=B, planned=C, trigger=5, lock=True),
    World0(stable=A, pending=B, planned=C, trigger=5),
    World0(stable=A, pending=C, planned=B, trigger=4, lock=True),
]


# -- every order --------------------------------------------------------------------------------


class Table:
    """A machine that is asked and changed one step at a time."""

    def __init__(self, begin: World0) -> None:
        self.machine = MetastoreMachine()
        self.log: dict[int, bytes] = {}
        self.index = 0
        trigger = None if begin.trigger is None else b"%d" % begin.trigger
        lock = b"" if begin.lock else None
        values = zip(ALL, [begin.stable, begin.pending, begin.planned, trigger, lock], strict=True)
        self.step(Do(tuple(Put(name, value) for name, value in values if value is not None)))

    def step(self, step: Step) -> object:
        if isinstance(step, list):
            return [self.read(name) for name in step]
        self.index += 1
        data = self.log[self.index] = encode(Invoke(step))
        return self.machine.apply(self.index, self.index, data)

    def read(self, name: bytes) -> Read:
        found = self.machine.state.find(name)
        if found is None:
            return Read(b"", 0)
        record = found.record
        data = self.log[found.index][record.at : record.at + record.length]
        return Read(data, record.revision)

    def world(self) -> World0:
        got = {name: one for name in ALL if (one := self.read(name)).revision}
        value = {name: one.value for name, one in got.items()}
        return World0(
            value.get(STABLE),
            value.get(PENDING),
            value.get(PLANNED),
            int(value[TRIGGER]) if TRIGGER in value else None,
            LOCK in value,
        )


Outcome: TypeAlias = tuple[World0, tuple[bool, ...]]


def run(begin: World0, some: Sequence[Write], order: Sequence[int]) -> tuple[Outcome, list[int]]:
    """Let processes take steps in an order, and the rest one after another; say what was chosen.

    The second answer has, for each step, how many processes could have taken it.
    """
    table = Table(begin)
    processes = [write.start() for write in some]
    steps: dict[int, Step] = {at: next(process) for at, process in enumerate(processes)}
    answers: dict[int, bool] = {}
    choices: list[int] = []
    while steps:
        ready = sorted(steps)
        choices.append(len(ready))
        at = len(choices) - 1
        chosen = ready[order[at] if at < len(order) else 0]
        try:
            steps[chosen] = processes[chosen].send(table.step(steps[chosen]))
        except StopIteration as done:
            answers[chosen] = done.value
            del steps[chosen]
    return (table.world(), tuple(answers[at] for at in range(len(some)))), choices


def every_order(begin: World0, some: Sequence[Write]) -> Iterator[tuple[Outcome, list[int]]]:
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


def one_after_another(begin: World0, some: Sequence[Write]) -> set[Outcome]:
    found = set()
    for order in permutations(range(len(some))):
        now, answers = begin, dict[int, bool]()
        for at in order:
            now, answers[at] = some[at].plain(now)
        found.add((now, tuple(answers[at] for at in range(len(some)))))
    return found


def check_every_order(begin: World0, some: Sequence[Write]) -> int:
    allowed, count = one_after_another(begin, some), 0
    for outcome, order in every_order(begin, some):
        count += 1
        story = f"{begin}: {[write.name for write in some]} in the order {order}"
        assert outcome in allowed, story
        world = outcome[0]
        assert world.planned is None or world.pending is not None, f"{story}: planned for nothing"
        assert world.pending is not None or not world.lock, f"{story}: locked for nothing"
    return count


@pytest.mark.parametrize("approach", [1, 2])
def test_two_nodes_in_any_order_leave_what_one_after_the_other_would_leave(approach: int) -> None:
    count = 0
    for begin, some in product(BEGINNINGS, combinations_with_replacement(writes(approach), 2)):
        count += check_every_order(begin, some)
    assert count > 800


@pytest.mark.parametrize("approach", [1, 2])
def test_three_at_a_time_in_any_order_do_so_too(approach: int) -> None:
    count = 0
    for some in combinations_with_replacement(writes(approach), 3):
        count += check_every_order(BEGINNINGS[5], some)
    assert count > 2_000


def test_an_event_that_every_node_hears_of_counts_once() -> None:
    # given three nodes that hear of the same change
    event = _trigger(B, 5, 1)
    for (world, answers), _ in every_order(World0(stable=A), [event] * 3):
        # then one of them has written it, in whatever order they came
        assert sum(answers) == 1
        assert world == World0(stable=A, pending=B, trigger=5)


def test_a_later_event_is_never_undone_by_an_earlier_one() -> None:
    events = [_trigger(B, 5, 1), _trigger(C, 6, 1)]
    for (world, answers), _ in every_order(World0(stable=A), events):
        assert world == World0(stable=A, pending=C, trigger=6)
        assert answers[1]


def test_what_comes_while_a_change_ends_is_planned_or_pending_and_never_lost() -> None:
    # given a change that ends while the next event comes
    some = [w for w in writes(1) if w.name == "committed B"] + [_trigger(C, 6, 1)]
    begin = World0(stable=A, pending=B, trigger=5, lock=True)
    for (world, answers), _ in every_order(begin, some):
        assert answers == (True, True)
        assert world == World0(stable=B, pending=C, trigger=6)


def drive(metastore: Metastore, process: Process, done: Callable[[bool], None]) -> None:
    """Run a process against a node of a cluster."""

    def go_on(answer: object) -> None:
        try:
            step = next(process) if answer is None else process.send(answer)
        except StopIteration as stopped:
            done(stopped.value)
            return
        if isinstance(step, list):
            names = step

            def read(_: object) -> None:
                entries = {entry.key: entry for entry in asked.result().entries}
                reads = [
                    Read(entries[name].value, entries[name].revision)
                    if name in entries
                    else Read(b"", 0)
                    for name in names
                ]
                go_on(reads)

            asked = metastore.get_all(names)
            asked.then(read)
        else:
            changing = metastore.invoke(step)
            changing.then(lambda future: go_on(future.result()))

    go_on(None)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_of_a_cluster_do_them_at_the_same_time(seed: int) -> None:
    # given a cluster whose nodes all issue the first assignment, then hear of two events
    world = World(seed=seed)
    answers: dict[str, list[bool]] = {}

    def all_do(name: str, start: Callable[[], Process]) -> None:
        for node in world.nodes.values():
            drive(node.metastore, start(), answers.setdefault(name, []).append)

    def wait() -> None:
        world.run_until(lambda: all(len(one) == 3 for one in answers.values()))

    all_do("first", lambda: stable_if_absent(A))
    wait()
    all_do("event 5", lambda: trigger(B, 5))
    all_do("event 6", lambda: trigger(C, 6))
    wait()
    all_do("may finish", lambda: try_catch_up_finish(C))
    wait()
    all_do("event 8", lambda: trigger(A, 8))
    all_do("committed", lambda: committed(C))
    wait()
    # then each counts once, and the last one is still to be done
    assert answers["first"].count(True) == 1
    assert answers["event 6"].count(True) == 1
    assert answers["event 5"].count(True) <= 1
    assert answers["may finish"] == [True] * 3
    assert answers["event 8"].count(True) == 1
    assert answers["committed"].count(True) == 1
    page = world.wait(world[3].metastore.range(b"partition."))
    assert {entry.key: entry.value for entry in page.entries} == {
        STABLE: C,
        PENDING: A,
        TRIGGER: b"8",
    }
