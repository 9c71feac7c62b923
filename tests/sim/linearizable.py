"""Did every operation take effect at one instant between its start and its end?

The search is Wing and Gong's with Lowe's memoisation ("Testing for linearizability", 2017), as in
Porcupine: starts and returns of one key form a linked list; any operation that started before the
first return in the list may be next; it is lifted out, and the search goes on with the rest. What
it comes to depends only on which operations are left and on the state, so no such pair is entered
twice. Keys are independent, so each is searched alone.

Four things keep the search small, and none of them changes its answer:

    Looking first.  An operation that only looks (a get, a cas that failed) and fits the state is
        taken at once and never reconsidered: it takes nothing from any other order.
    Just in time.  An operation of unknown outcome has no end, so it can always wait. It is taken
        only right before a returned operation that would come out differently without it: not if
        that operation leaves the same state either way, nor if the two can change places.
    The fewer the better.  Unknown operations may be left out. With the same returned operations
        done and the same state, having used fewer of them is never worse; of those with the same
        command, the first to start is never worse. So 30 unknown writes are not 2^30 cases.
    Foresight.  A model may say which state an operation needs and which it makes. A state that is
        still needed, and that nothing left can make again, is not left. And it may rewrite commands
        first: values that nobody asks about are all alike; a read of a list tells every place.

A search that takes too long ends as `Undecided`. That is not a pass: `assert_linearizable` fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, TypeVar

from lowmark.errors import invariant
from sim.history import Append, Cas, Get, History, Operation, Put, Returned, Unknown, shown

__all__ = [
    "STATES_MAX",
    "AppendList",
    "Linearizable",
    "Model",
    "NotLinearizable",
    "Register",
    "Undecided",
    "Verdict",
    "assert_linearizable",
    "check",
]

STATES_MAX = 1_000_000  # per key: some seconds
SHRINK_STATES_MAX = 1_000_000  # for all attempts at a smaller conflict together
ATTEMPT_STATES_MAX = 100_000  # for each of them
SHOW_STATES_MAX = 20_000  # to find a long order to show
ORDER_LINES_MAX = 12
LEFT_LINES_MAX = 8

S = TypeVar("S", bound=Hashable)


# -- models ----------------------------------------------------------------------------------------


class Model(ABC, Generic[S]):
    """The object as it would be if it did one thing at a time."""

    @abstractmethod
    def initial(self) -> S:
        """The state before the first operation."""

    @abstractmethod
    def step(self, state: S, operation: Operation) -> tuple[bool, S]:
        """Whether the operation can come out as it did in this state, and the state after it.
        One of unknown outcome has no result to fit; it just takes effect.
        """

    @abstractmethod
    def only_looks(self, operation: Operation) -> bool:
        """Whether it leaves every state in which it fits as it is."""

    def needs(self, operation: Operation) -> Sequence[S]:
        """The one state in which it fits, or in which an unknown one changes anything, if there is
        only one. A model that tells this must tell of every operation what it makes.
        """
        return ()

    def makes(self, operation: Operation) -> Sequence[S]:
        """The states it can change another state to."""
        return ()

    def prepare(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """The same operations with commands that tell the search more, or tell less apart."""
        return operations


class _Any(Enum):
    """Stands for every value that nobody asks about."""

    ANY = "any"


_ANY = _Any.ANY


class Register(Model[Hashable]):
    """One value, at first None: `Put`, `Get`, `Cas`. Unique values make it quick and strict."""

    def initial(self) -> Hashable:
        return None

    def step(self, state: Hashable, operation: Operation) -> tuple[bool, Hashable]:
        outcome = operation.outcome
        match operation.command:
            case Put(value=value):
                return True, value
            case Get():
                return isinstance(outcome, Unknown) or outcome.result == state, state
            case Cas(expected=expected, new=new):
                swapped = state == expected
                fits = isinstance(outcome, Unknown) or outcome.result == swapped
                return fits, new if swapped else state
            case other:
                raise TypeError(f"a register knows no {other}")

    def only_looks(self, operation: Operation) -> bool:
        match operation.command, operation.outcome:
            case (Get(), _) | (Cas(), Returned(result=False)):
                return True
            case _:
                return False

    def needs(self, operation: Operation) -> Sequence[Hashable]:
        match operation.command, operation.outcome:
            case Get(), Returned(result=value):
                return (value,)
            case Cas(expected=value), Unknown() | Returned(result=True):
                return (value,)
            case _:
                return ()

    def makes(self, operation: Operation) -> Sequence[Hashable]:
        match operation.command:
            case Put(value=value) | Cas(new=value) if not self.only_looks(operation):
                return (value,)
            case _:
                return ()

    def prepare(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """One value that nobody asks about is as good as any other."""
        asked: set[Hashable] = {self.initial()}
        links: dict[Hashable, list[Hashable]] = {}  # by unknown cas, from new to expected
        for operation in operations:
            match operation.command, operation.outcome:
                case Get(), Returned(result=value):
                    asked.add(value)
                case Cas(expected=value), Returned():
                    asked.add(value)
                case Cas(expected=value, new=new), Unknown():
                    links.setdefault(new, []).append(value)
                case _:
                    pass
        reached = list(asked)
        while reached:
            for value in links.pop(reached.pop(), ()):
                asked.add(value)
                reached.append(value)

        def merged(value: Hashable) -> Hashable:
            return value if value in asked else _ANY

        def plain(operation: Operation) -> Operation:
            match operation.command:
                case Put(value=value) if value not in asked:
                    return replace(operation, command=Put(_ANY))
                case Cas(expected=expected, new=new) if not {expected, new} <= asked:
                    return replace(operation, command=Cas(merged(expected), merged(new)))
                case _:
                    return operation

        return [plain(operation) for operation in operations]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A value whose place in the longest read is known."""

    value: Hashable
    before: tuple[Hashable, ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Behind:
    """Any value that the longest read does not show, so it comes behind its end."""

    length: int


class AppendList(Model[tuple[Hashable, ...]]):
    """A list that only grows: `Append` of values that are all different, and `Get` of all of it.

    The strictest of objects: a read shows every write before it, and their order.
    """

    def initial(self) -> tuple[Hashable, ...]:
        return ()

    def step(
        self, state: tuple[Hashable, ...], operation: Operation
    ) -> tuple[bool, tuple[Hashable, ...]]:
        outcome = operation.outcome
        match operation.command:
            case Append(value=value):
                fits = isinstance(outcome, Unknown) or outcome.result == len(state) + 1
                if isinstance(value, _Placed):
                    fits = fits and len(state) == len(value.before)
                    value = value.value
                elif isinstance(value, _Behind):
                    fits = fits and len(state) >= value.length
                return fits, (*state, value) if fits else state
            case Get():
                return isinstance(outcome, Unknown) or outcome.result == state, state
            case other:
                raise TypeError(f"an append list knows no {other}")

    def only_looks(self, operation: Operation) -> bool:
        return isinstance(operation.command, Get)

    def needs(self, operation: Operation) -> Sequence[tuple[Hashable, ...]]:
        match operation.command, operation.outcome:
            case Append(value=_Placed(before=before)), _:
                return (before,)
            case Get(), Returned(result=tuple(values)):
                return (values,)
            case _:
                return ()

    def makes(self, operation: Operation) -> Sequence[tuple[Hashable, ...]]:
        match operation.command:
            case Append(value=_Placed(value=value, before=before)):
                return ((*before, value),)
            case _:
                return ()  # longer than anything that anyone needs

    def prepare(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """The longest read tells the place of every value in it."""
        longest: tuple[Hashable, ...] = ()
        values = set[Hashable]()
        for operation in operations:
            match operation.command, operation.outcome:
                case Append(value=value), _:
                    invariant(value not in values, f"{value!r} is appended to one list twice")
                    values.add(value)
                case Get(), Returned(result=tuple(result)) if len(result) > len(longest):
                    longest = result
                case _:
                    pass
        places: dict[Hashable, int] = {}
        for place, value in enumerate(longest):
            places.setdefault(value, place)

        def placed(operation: Operation) -> Operation:
            match operation.command:
                case Append(value=value) if value in places:
                    known = _Placed(value, longest[: places[value]])
                    return replace(operation, command=Append(known))
                case Append():
                    return replace(operation, command=Append(_Behind(len(longest))))
                case _:
                    return operation

        return [placed(operation) for operation in operations]


# -- verdicts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearizable:
    """There is an order; here is one for each key."""

    orders: Mapping[str, tuple[Operation, ...]]
    states: int

    def __str__(self) -> str:
        count = sum(len(order) for order in self.orders.values())
        return f"linearizable: {count} operations, {len(self.orders)} keys, {self.states} states"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLinearizable:
    """There is no order. Of several keys this is the one that went wrong first."""

    key: str
    conflict: tuple[Operation, ...]  # they contradict each other, whatever the others did
    prefix: tuple[
        Operation, ...
    ]  # the shortest that fails; what is under way at its end is unknown
    last: Operation  # the one with whose return the prefix ends
    order: tuple[Operation, ...]  # the longest that was found
    other_keys: tuple[str, ...]  # that went wrong later, or were not decided
    states: int
    explanation: str

    def __str__(self) -> str:
        return self.explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The search was given up. Look at it: raise the bound, or let clients overlap less."""

    keys: tuple[str, ...]
    states: int
    states_max: int

    def __str__(self) -> str:
        return (
            f"undecided: gave up at {self.states_max} states per key, on {', '.join(self.keys)}; "
            "this is not a pass: raise states_max, use unique values, or have fewer operations "
            "overlap"
        )


Verdict = Linearizable | NotLinearizable | Undecided


def check(history: History, model: Model[S], *, states_max: int = STATES_MAX) -> Verdict:
    """Search each key of the history for an order in which the model does the same."""
    orders: dict[str, tuple[Operation, ...]] = {}
    stuck: dict[str, _Stuck] = {}
    undecided: list[str] = []
    states = 0
    by_key = history.by_key()
    for key, operations in by_key.items():
        search = _Search(model, operations, states_max=states_max)
        match search.run():
            case _Found(order=order):
                orders[key] = order
            case _Stuck() as found:
                stuck[key] = found
            case None:
                undecided.append(key)
        states += search.states
    if stuck:
        prefixes = {
            key: _shortest_prefix(model, by_key[key], found, states_max=states_max)
            for key, found in stuck.items()
        }
        first, *others = sorted(prefixes, key=lambda key: prefixes[key].end_order)
        return _explained(
            model,
            prefixes[first],
            operations=len(by_key[first]),
            other_keys=(*others, *undecided),
            states=states,
        )
    if undecided:
        return Undecided(keys=tuple(undecided), states=states, states_max=states_max)
    return Linearizable(orders=orders, states=states)


def assert_linearizable(history: History, model: Model[S], *, states_max: int = STATES_MAX) -> None:
    """Fail, and say why, unless there certainly is an order."""
    verdict = check(history, model, states_max=states_max)
    if not isinstance(verdict, Linearizable):
        raise AssertionError(str(verdict))


# -- the search ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    order: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class _Stuck:
    """How far the search got: nothing gets past the return that has this place."""

    order: tuple[Operation, ...]
    first_return: int


class _TooManyStates(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Move(Generic[S]):
    """Take these unknown operations, then this returned one."""

    unknown: tuple[int, ...]
    returned: int
    used: int  # bits of all unknown operations used so far
    left: tuple[S, ...]  # the states that it leaves
    state: S


@dataclass(slots=True)
class _Wanted:
    """A state that is needed: by how many of the operations left, and what can still make it."""

    needed: int = 0
    made: int = 0
    made_by_unknown: int = 0  # bits of unknown operations, used or not


class _Search(Generic[S]):
    """One key. Returned operations and unknown ones are numbered apart, each in order of start."""

    def __init__(
        self,
        model: Model[S],
        operations: Sequence[Operation],
        *,
        states_max: int,
        foresight: bool = True,
    ) -> None:
        self.states = 0
        self._states_max = states_max
        self._model = model
        self._originals = {operation.number: operation for operation in operations}
        prepared = model.prepare(operations) if foresight else operations
        self._returned = [op for op in prepared if isinstance(op.outcome, Returned)]
        self._looks = [model.only_looks(op) for op in self._returned]
        self._unknown = [
            op for op in prepared if isinstance(op.outcome, Unknown) and not model.only_looks(op)
        ]
        # Unknown operations with the same command, in order of start: of those that change only one
        # state, by that state; and all others.
        self._alike_at: dict[S, list[list[int]]] = {}
        self._alike_anywhere: list[list[int]] = []
        self._group_unknown(foresight=foresight)
        self._wanted: dict[S, _Wanted] = {}  # states that someone needs
        self._needs: list[list[_Wanted]] = [[] for _ in self._returned]
        self._makes: list[list[_Wanted]] = [[] for _ in self._returned]
        if foresight:
            self._foresee()
        self._link()
        self._done = 0  # bits of the returned operations that are lifted out
        self._entered: dict[tuple[int, int, S], list[int]] = {}
        self._path: list[_Move[S]] = []
        self._other_moves: list[Iterator[_Move[S]]] = []  # for each step of the path
        self._best: tuple[int, int, list[_Move[S]]] = (-1, -1, [])

    def _group_unknown(self, *, foresight: bool) -> None:
        groups: dict[Hashable, list[int]] = {}
        for u, op in enumerate(self._unknown):
            groups.setdefault(op.command, []).append(u)
        for group in groups.values():
            states = self._model.needs(self._unknown[group[0]]) if foresight else ()
            for state in states:
                self._alike_at.setdefault(state, []).append(group)
            if not states:
                self._alike_anywhere.append(group)

    def _foresee(self) -> None:
        for i, op in enumerate(self._returned):
            for state in self._model.needs(op):
                wanted = self._wanted.setdefault(state, _Wanted())
                wanted.needed += 1
                self._needs[i].append(wanted)
        for i, op in enumerate(self._returned):
            for state in self._model.makes(op):
                if state in self._wanted:
                    self._wanted[state].made += 1
                    self._makes[i].append(self._wanted[state])
        for u, op in enumerate(self._unknown):
            for state in self._model.makes(op):
                if state in self._wanted:
                    self._wanted[state].made_by_unknown |= 1 << u

    def run(self) -> _Found | _Stuck | None:
        """An order, the proof that there is none, or None if that would take too long."""
        try:
            found = self._search()
        except _TooManyStates:
            return None
        return _Found(self._order(self._path)) if found else self.stuck()

    def stuck(self) -> _Stuck:
        """The dead end that was hardest to reach."""
        first_return, _, path = self._best
        return _Stuck(self._order(path), first_return)

    def _search(self) -> bool:
        moves = self._moves(self._model.initial(), 0) if self._returned else iter(())
        while self._after[0] != 0:
            move = next((move for move in moves if self._enter(move)), None)
            if move is not None:
                self._path.append(move)
                self._other_moves.append(moves)
                moves = self._moves(move.state, move.used) if self._after[0] != 0 else iter(())
            else:
                self._note_dead_end()
                if not self._path:
                    return False
                self._put_back(self._path.pop().returned)
                moves = self._other_moves.pop()
        return True

    def _enter(self, move: _Move[S]) -> bool:
        """Lift the operation out, unless that leads nowhere, or where the search was before."""
        self._lift(move.returned)
        if any(self._is_doomed(state, move) for state in move.left):
            self._put_back(move.returned)
            return False
        first = self._operation[self._after[0]]
        # What is done below the first that is left needs no bits: it is all done.
        place = (first, self._done >> first, move.state)
        if _is_covered(self._entered.setdefault(place, []), move.used):
            self._put_back(move.returned)
            return False
        self._count()
        return True

    def _is_doomed(self, left: S, move: _Move[S]) -> bool:
        """Whether a state that the move leaves is needed again, and never comes back."""
        wanted = self._wanted.get(left)
        return (
            wanted is not None
            and left != move.state
            and wanted.needed > 0
            and not wanted.made
            and not wanted.made_by_unknown & ~move.used
        )

    def _moves(self, state: S, used: int) -> Iterator[_Move[S]]:
        """Whatever can be next, the likely first."""
        step, returned = self._model.step, self._returned
        window, first_return = self._window()
        for i in window:
            if self._looks[i] and step(state, returned[i])[0]:
                yield _Move((), i, used, (), state)
                return
        for i in window:
            fits, then = step(state, returned[i])
            if fits:
                yield _Move((), i, used, (state,), then)
        yield from self._moves_by_unknown(state, used, window, first_return)

    def _moves_by_unknown(
        self, state: S, used: int, window: Sequence[int], first_return: int
    ) -> Iterator[_Move[S]]:
        """First those that one unknown operation makes possible, then those that need two, …"""
        step = self._model.step
        covered: dict[S, list[int]] = {state: [used]}
        chains: list[tuple[tuple[int, ...], int, S]] = [((), used, state)]
        while chains:
            longer: list[tuple[tuple[int, ...], int, S]] = []
            for chain, used_before, before in chains:
                for u in self._usable(before, used_before, first_return):
                    self._count()
                    unknown, used_now = self._unknown[u], used_before | 1 << u
                    fits, now = step(before, unknown)
                    if not fits or now == before:
                        continue
                    if _is_covered(covered.setdefault(now, []), used_now):
                        continue
                    longer.append(((*chain, u), used_now, now))
                    for i in window:
                        fits, then = step(now, self._returned[i])
                        if fits and not self._can_wait(unknown, before, self._returned[i], then):
                            yield _Move((*chain, u), i, used_now, (state, now), then)
            chains = longer

    def _can_wait(self, unknown: Operation, before: S, returned: Operation, then: S) -> bool:
        """Whether all is the same if the unknown operation comes later, or not at all."""
        fits, without = self._model.step(before, returned)
        return fits and (without == then or self._model.step(without, unknown) == (True, then))

    def _usable(self, state: S, used: int, first_return: int) -> Iterator[int]:
        for alike in (*self._alike_at.get(state, ()), *self._alike_anywhere):
            for u in alike:
                if not used >> u & 1:
                    if self._unknown[u].order < first_return:
                        yield u
                    break

    def _count(self) -> None:
        self.states += 1
        if self.states > self._states_max:
            raise _TooManyStates

    def _note_dead_end(self) -> None:
        _, first_return = self._window()
        if (first_return, len(self._path)) > self._best[:2]:
            self._best = (first_return, len(self._path), self._path.copy())

    def _order(self, path: Sequence[_Move[S]]) -> tuple[Operation, ...]:
        order: list[Operation] = []
        for move in path:
            order.extend(self._unknown[u] for u in move.unknown)
            order.append(self._returned[move.returned])
        return tuple(self._originals[operation.number] for operation in order)

    # -- the linked list: 0 is both its head and its end ---------------------------------------

    def _link(self) -> None:
        events = [(op.order, i, False) for i, op in enumerate(self._returned)]
        events += [
            (op.outcome.order, i, True)
            for i, op in enumerate(self._returned)
            if isinstance(op.outcome, Returned)
        ]
        events.sort()
        self._after = [*range(1, len(events) + 1), 0]
        self._before = [len(events), *range(len(events))]
        self._operation = [len(self._returned), *(i for _, i, _ in events)]
        self._return_order = [0, *(order if ends else 0 for order, _, ends in events)]
        self._nodes = [[0, 0] for _ in self._returned]
        for node, (_, i, ends) in enumerate(events, start=1):
            self._nodes[i][ends] = node

    def _window(self) -> tuple[list[int], int]:
        """The operations that may be next, and the place of the return that ends the window."""
        window: list[int] = []
        node = self._after[0]
        while not self._return_order[node]:
            window.append(self._operation[node])
            node = self._after[node]
        return window, self._return_order[node]

    def _lift(self, i: int) -> None:
        for node in self._nodes[i]:
            before, after = self._before[node], self._after[node]
            self._after[before] = after
            self._before[after] = before
        self._done ^= 1 << i
        for wanted in self._needs[i]:
            wanted.needed -= 1
        for wanted in self._makes[i]:
            wanted.made -= 1

    def _put_back(self, i: int) -> None:
        for node in reversed(self._nodes[i]):
            self._after[self._before[node]] = node
            self._before[self._after[node]] = node
        self._done ^= 1 << i
        for wanted in self._needs[i]:
            wanted.needed += 1
        for wanted in self._makes[i]:
            wanted.made += 1


def _is_covered(known: list[int], used: int) -> bool:
    """Whether some known set is part of `used`; if not, `used` is known from now on."""
    for smaller in known:
        if smaller & used == smaller:
            return True
    known[:] = [larger for larger in known if larger & used != used]
    known.append(used)
    return False


# -- what to tell an engineer at three in the morning ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefix:
    operations: tuple[Operation, ...]
    last: Operation
    end_order: int


def _shortest_prefix(
    model: Model[S], operations: Sequence[Operation], stuck: _Stuck, *, states_max: int
) -> _Prefix:
    """The prefix that fails by what was known at its end. It rarely is longer than where the search
    got stuck; it can be, because the search also knew what was returned later.
    """
    ends = sorted(
        (op.outcome.order, op.number) for op in operations if isinstance(op.outcome, Returned)
    )
    low = next(i for i, (order, _) in enumerate(ends) if order == stuck.first_return)
    middle, high = low, len(ends) - 1
    while low < high:
        prefix = _until(operations, ends[middle][0])
        if isinstance(_Search(model, prefix, states_max=states_max).run(), _Stuck):
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    end_order, number = ends[high]
    return _Prefix(
        operations=_until(operations, end_order),
        last=next(op for op in operations if op.number == number),
        end_order=end_order,
    )


def _until(operations: Sequence[Operation], end_order: int) -> tuple[Operation, ...]:
    return tuple(
        replace(op, outcome=Unknown("under way"))
        if isinstance(op.outcome, Returned) and op.outcome.order > end_order
        else op
        for op in operations
        if op.order < end_order
    )


def _explained(
    model: Model[S],
    prefix: _Prefix,
    *,
    operations: int,
    other_keys: tuple[str, ...],
    states: int,
) -> NotLinearizable:
    conflict = _conflict(model, prefix.operations)
    # Foresight stops long before the place where a person sees that something is wrong.
    plain = _Search(model, prefix.operations, states_max=SHOW_STATES_MAX, foresight=False)
    plain.run()
    order = plain.stuck().order
    lines = [
        f"key {prefix.last.key!r} is not linearizable",
        "",
        f"{len(conflict)} in conflict: whether and when, after its start, any other operation took",
        "effect, these cannot be put into one order:",
        *(f"  {operation}" for operation in conflict),
        "",
        f"The shortest prefix that fails has {len(prefix.operations)} of {operations} operations.",
        "It ends with this return:",
        f"  {prefix.last}",
        "",
        *_order_lines(model, prefix, order),
    ]
    if other_keys:
        lines += ["", f"Also wrong, later, or not decided: {', '.join(other_keys)}"]
    return NotLinearizable(
        key=prefix.last.key,
        conflict=conflict,
        prefix=prefix.operations,
        last=prefix.last,
        order=order,
        other_keys=other_keys,
        states=states,
        explanation="\n".join(lines),
    )


def _order_lines(model: Model[S], prefix: _Prefix, order: Sequence[Operation]) -> list[str]:
    state = model.initial()
    steps: list[str] = []
    for operation in order:
        _, state = model.step(state, operation)
        steps.append(f"  {operation!s:<76} then {shown(state)}")
    hidden = max(0, len(steps) - ORDER_LINES_MAX)
    taken = {operation.number for operation in order}
    left = [op for op in prefix.operations if op.number not in taken]
    returned = [op for op in left if isinstance(op.outcome, Returned)]
    unknown = [op for op in left if isinstance(op.outcome, Unknown) and not model.only_looks(op)]
    lines = [f"The longest order found has {len(steps)}; the state after each:"]
    if hidden:
        lines.append(f"  … {hidden} before these")
    lines += steps[hidden:]
    lines += ["", f"The state is then {shown(state)}, and in no order do these go on from there:"]
    lines += _first_lines(returned, "after")
    if unknown:
        lines += ["", "The unknown ones that were not used are no help, the latest first:"]
        lines += _first_lines(unknown[::-1], "before")
    return lines


def _first_lines(operations: Sequence[Operation], where: str) -> list[str]:
    lines = [f"  {operation}" for operation in operations[:LEFT_LINES_MAX]]
    if len(operations) > LEFT_LINES_MAX:
        lines.append(f"  … and {len(operations) - LEFT_LINES_MAX} {where} these")
    return lines


def _conflict(model: Model[S], prefix: Sequence[Operation]) -> tuple[Operation, ...]:
    """The fewest returned operations that still contradict each other if nothing is known of how
    the others ended. To know less never makes a good history bad, so what is found is true; it may
    be more than needed if the attempts took too long.
    """
    kept = [operation for operation in prefix if isinstance(operation.outcome, Returned)]
    states_left = SHRINK_STATES_MAX
    size = len(kept)
    while size > 1 and states_left > 0:
        size = (size + 1) // 2
        start = 0
        while start < len(kept) and states_left > 0:
            fewer = kept[:start] + kept[start + size :]
            search = _Search(
                model,
                _knowing_only(model, prefix, fewer),
                states_max=min(states_left, ATTEMPT_STATES_MAX),
            )
            if isinstance(search.run(), _Stuck):
                kept = fewer
            else:
                start += size
            states_left -= search.states + 1
    return tuple(kept)


def _knowing_only(
    model: Model[S], prefix: Sequence[Operation], kept: Sequence[Operation]
) -> list[Operation]:
    known = {operation.number for operation in kept}
    return [
        operation if operation.number in known else replace(operation, outcome=Unknown())
        for operation in prefix
        if operation.number in known or not model.only_looks(operation)
    ]
