"""Who still needs what: holds, the safe point, and decisions that name who held them back.

Compaction is the same question at every level: which pieces may go? A piece may go when nothing in
it is live and no holder needs it. A *hold* says who needs something, what exactly it pins, since
when and why. Every decision to cut returns both halves of its answer, what was cut and what was
kept, and for each piece kept the holders in order: so `explain` and a dry run are the decision
itself, printed instead of carried out.

Invariants
    1. A cut never passes a hold that was placed before it.
    2. A hold that has been released, or has expired, holds nothing: once the last holder is gone,
       what it held goes in the next run.
    3. A holder has one hold of a kind; placing it again replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyroaring import BitMap64


@dataclass(frozen=True, slots=True)
class Span:
    """Positions from `low` up to and including `high`; an open end holds everything after `low`."""

    low: int
    high: int | None = None


Pins = Span | BitMap64


def _all_of(low: int, high: int) -> BitMap64:
    positions = BitMap64()
    if low <= high:
        positions.add_range(low, high + 1)
    return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A holder needs something that may no longer be live."""

    holder: str
    kind: str
    pins: Pins
    since_ms: int
    why: str
    expires_at_ms: int | None = None

    def pins_any(self, low: int, high: int) -> bool:
        """Whether any position from `low` up to and including `high` is held."""
        if isinstance(self.pins, Span):
            return self.pins.low <= high and (self.pins.high is None or low <= self.pins.high)
        return bool(self.pins.range_cardinality(low, high + 1))

    def within(self, low: int, high: int) -> BitMap64:
        """The held positions from `low` up to and including `high`."""
        if isinstance(self.pins, Span):
            first = max(low, self.pins.low)
            last = high if self.pins.high is None else min(high, self.pins.high)
            return _all_of(first, last)
        return self.pins & _all_of(low, high)

    def lowest(self) -> int | None:
        """The lowest position held, if any."""
        if isinstance(self.pins, Span):
            return self.pins.low
        return self.pins.min() if self.pins else None


class Holds:
    """The holds in force, in the order in which they were placed."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], Hold] = {}

    def place(self, hold: Hold) -> None:
        """Add a hold, or replace the one that this holder has of this kind."""
        self._table[hold.holder, hold.kind] = hold

    def release(self, holder: str, kind: str) -> None:
        """Take a hold away; it is fine if it is gone already."""
        self._table.pop((holder, kind), None)

    def expire(self, now_ms: int) -> list[Hold]:
        """Take away what has run out, and say what that was."""
        gone = [h for h in self if h.expires_at_ms is not None and h.expires_at_ms <= now_ms]
        for hold in gone:
            self.release(hold.holder, hold.kind)
        return gone

    def __iter__(self) -> Iterator[Hold]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)


@dataclass(frozen=True, slots=True)
class SafePoint:
    """Everything below `position` may go; `held_by` are those who stand in the way, lowest
    first.
    """

    position: int
    wanted: int
    held_by: tuple[Hold, ...]


def safe_point(wanted: int, holds: Iterable[Hold]) -> SafePoint:
    """The highest position up to `wanted` below which there is no hold."""
    standing = [
        (low, hold) for hold in holds if (low := hold.lowest()) is not None and low < wanted
    ]
    standing.sort(key=lambda item: (item[0], item[1].holder, item[1].kind))
    position = standing[0][0] if standing else wanted
    return SafePoint(position, wanted, tuple(hold for _, hold in standing))


Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a piece is kept: in words, and by its holder, if it has one."""

    kind: str
    text: str
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Kept(Generic[Piece]):
    """A piece that stays, and every reason for it, the strongest first."""

    piece: Piece
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Decision(Generic[Piece]):
    """What goes, and what stays and why."""

    cut: tuple[Piece, ...]
    kept: tuple[Kept[Piece], ...]
