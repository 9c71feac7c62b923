"""How far something that is cut from below may be cut, and who holds it back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowmark.holds.hold import Hold


@dataclass(frozen=True, slots=True)
class SafePoint:
    """Everything below `position` may go; `held_by` are those who stand in the way, lowest
    first.
    """

    position: int
    wanted: int
    held_by: tuple[Hold, ...]


def safe_point(wanted: int, holds: Iterable[Hold]) -> SafePoint:
    """The highest position up to `wanted` below which nobody holds anything."""
    standing = [
        (low, hold) for hold in holds if (low := hold.lowest()) is not None and low < wanted
    ]
    standing.sort(key=lambda item: (item[0], item[1].holder, item[1].kind))
    position = standing[0][0] if standing else wanted
    return SafePoint(position, wanted, tuple(hold for _, hold in standing))
