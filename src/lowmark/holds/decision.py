"""A decision to cut, with both halves of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from lowmark.holds.hold import Hold

Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a piece is kept: in words, and by whom if somebody holds it."""

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
