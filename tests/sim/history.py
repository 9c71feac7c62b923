"""What clients asked for and what they were told, in the order in which it happened.

A simulated world runs in one thread, so the order of the calls to a `History` is real-time order,
and that order is what counts: many things happen at the same virtual microsecond, and a client's
next operation still comes after its last. Times are for the reader.

How an operation ends
    returned   the client was told a result: it took effect once, between start and end
    unknown    timed out, leadership lost, never answered: it may have taken effect at any moment
               after its start, or never
    refused    it certainly never took effect: it is no part of the history
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from lowmark.errors import invariant

__all__ = ["Append", "Cas", "Get", "History", "Operation", "Put", "Returned", "Unknown", "shown"]

SHOWN_CHARS_MAX = 72


def shown(value: object) -> str:
    """A value for the reader; of a long one both ends, for a list's news is at its end."""
    text = repr(value)
    if len(text) <= SHOWN_CHARS_MAX:
        return text
    half = (SHOWN_CHARS_MAX - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


@dataclass(frozen=True, slots=True)
class Put:
    """Set the value; returns None."""

    value: Hashable

    def __str__(self) -> str:
        return f"put({self.value!r})"


@dataclass(frozen=True, slots=True)
class Get:
    """Returns the value, or None if there is none; of a list, a tuple of its values."""

    def __str__(self) -> str:
        return "get()"


@dataclass(frozen=True, slots=True)
class Cas:
    """Set the value if it is the expected one; returns whether it was."""

    expected: Hashable
    new: Hashable

    def __str__(self) -> str:
        return f"cas({self.expected!r}, {self.new!r})"


@dataclass(frozen=True, slots=True)
class Append:
    """Put a value at the end of the list; returns the new length."""

    value: Hashable

    def __str__(self) -> str:
        return f"append({self.value!r})"


@dataclass(frozen=True, slots=True)
class Returned:
    """The client was told this result."""

    result: Hashable
    order: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody was told a result; the client gave up for this reason, or it still waits."""

    why: str = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request of one client, from its start to its outcome."""

    number: int
    client: str
    key: str
    command: Hashable  # Put, Get, …: whatever the model understands; `str` of it is for the reader
    order: int  # its start's place among all starts and returns of the history
    started_us: int
    outcome: Returned | Unknown = Unknown()

    def __str__(self) -> str:
        begin, outcome = f"{self.started_us / 1_000:10.3f}", self.outcome
        if isinstance(outcome, Returned):
            end, told = f"{outcome.at_us / 1_000:10.3f}", shown(outcome.result)
        else:
            end, told = f"{'?':>10}", f"? ({outcome.why})"
        return f"[{begin} .. {end} ms] #{self.number:<4} {self.client:<8} {self.command} -> {told}"


class History:
    """Operations as they start and end. An operation that has not ended counts as unknown."""

    def __init__(self) -> None:
        self._operations: dict[int, Operation] = {}
        self._open: set[int] = set()
        self._numbers = 0
        self._order = 0
        self._now_us = 0

    def start(self, client: str, key: str, command: Hashable, *, at_us: int) -> int:
        """A client asks; returns the operation's number, by which it is ended."""
        order = self._next(at_us)
        number = self._numbers
        self._numbers += 1
        self._open.add(number)
        self._operations[number] = Operation(
            number=number, client=client, key=key, command=command, order=order, started_us=at_us
        )
        return number

    def returned(self, number: int, result: Hashable, *, at_us: int) -> None:
        """The client was told a result."""
        self._end(number)
        outcome = Returned(result, self._next(at_us), at_us)
        self._operations[number] = replace(self._operations[number], outcome=outcome)

    def unknown(self, number: int, why: str) -> None:
        """The client gave up: the operation may have taken effect, may still do so, or never."""
        self._end(number)
        self._operations[number] = replace(self._operations[number], outcome=Unknown(why))

    def refused(self, number: int) -> None:
        """The operation certainly never took effect. Say so only if the code promises it."""
        self._end(number)
        del self._operations[number]

    def operations(self) -> tuple[Operation, ...]:
        """Everything that was not refused, in order of start."""
        return tuple(self._operations.values())

    def by_key(self) -> dict[str, tuple[Operation, ...]]:
        """The operations of each key, in order of start; keys in order of first use."""
        keys: dict[str, list[Operation]] = {}
        for operation in self._operations.values():
            keys.setdefault(operation.key, []).append(operation)
        return {key: tuple(operations) for key, operations in keys.items()}

    def _next(self, at_us: int) -> int:
        invariant(at_us >= self._now_us, f"time went back from {self._now_us} to {at_us} us")
        self._now_us = at_us
        self._order += 1
        return self._order

    def _end(self, number: int) -> None:
        invariant(number in self._open, f"operation {number} is not under way")
        self._open.remove(number)
