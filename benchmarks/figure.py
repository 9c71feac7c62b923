"""The maths of a figure: rounds, ratios, the median, the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from lowmark.errors import invariant

__all__ = ["Figure", "Side", "Spot", "Target", "Variant", "compared", "rounded"]


@dataclass(frozen=True, slots=True)
class Side:
    """One turn: how much was done, and how long it took."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        """How much a second."""
        return self.amount / self.seconds


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should come to."""

    limit: float
    at_least: bool = True
    aim: float | None = None

    def met_by(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        aim = f", aim {self.aim:g}" if self.aim is not None else ""
        return f"{sign} {self.limit:,.10g}{aim}"


@dataclass(frozen=True, slots=True)
class Variant:
    """The same figure with one thing done otherwise, measured in the same rounds."""

    value: float
    ours: float
    peer: float


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one thread was found in a share of a profile's samples."""

    thread: str
    where: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured figure; rates and values are medians over the rounds."""

    name: str
    value: float
    target: Target
    unit: str
    ours: float
    peer: float | None = None
    spread: tuple[float, float]
    """The least and the greatest of the rounds' values."""
    runs: int
    notes: str = ""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    profile: Sequence[Spot] = ()

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.target.met_by(self.value)

    def details(self) -> dict[str, object]:
        """Everything, for JSON."""
        shown: dict[str, object] = {
            "value": rounded(self.value),
            "target": self.target.limit,
            "at_least": self.target.at_least,
            "aim": self.target.aim,
            "met": self.met,
            "ours": rounded(self.ours),
            "peer": None if self.peer is None else rounded(self.peer),
            "unit": self.unit,
            "spread": [rounded(value) for value in self.spread],
            "runs": self.runs,
            "notes": self.notes,
        }
        if self.variants:
            shown["variants"] = {
                name: {"value": rounded(v.value), "ours": rounded(v.ours), "peer": rounded(v.peer)}
                for name, v in self.variants.items()
            }
        if self.profile:
            shown["profile"] = [
                {"thread": spot.thread, "where": spot.where, "share": rounded(spot.share)}
                for spot in self.profile
            ]
        return shown


def compared(ours: Sequence[Side], peer: Sequence[Side], target: Target) -> list[float]:
    """Each round's value: our rate by the peer's; where less is better, our time by its time."""
    invariant(len(ours) == len(peer) > 0, "every round has two sides")
    ratios = (a.rate / b.rate for a, b in zip(ours, peer, strict=True))
    return [ratio if target.at_least else 1 / ratio for ratio in ratios]


def median_rate(sides: Sequence[Side]) -> float:
    """The median of the rates."""
    return median(side.rate for side in sides)


def rounded(value: float) -> float:
    """Four digits that mean something; whole numbers stay whole."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else float(round(value))
