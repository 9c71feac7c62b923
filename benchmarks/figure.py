"""The maths of a figure: what is declared of it, rounds, ratios, the median, the verdict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from lowmark.errors import Unavailable, invariant


@dataclass(frozen=True, slots=True)
class Side:
    """One turn: how much was done, how long it took, and what else some figures ask for."""

    amount: float
    seconds: float = 1.0
    bytes_moved: int = 0
    """Read and written."""
    held_bytes: int = 0
    """The most memory that its processes held at a time."""

    @property
    def rate(self) -> float:
        """How much a second."""
        return self.amount / self.seconds


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should come to; without a limit it is only reported."""

    limit: float | None
    at_least: bool = True
    aim: float | None = None

    def met_by(self, value: float) -> bool:
        """Whether a value is good enough."""
        if self.limit is None:
            return True
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        if self.limit is None:
            return "reported"
        sign = "≥" if self.at_least else "≤"
        aim = f", aim {self.aim:g}" if self.aim is not None else ""
        return f"{sign} {self.limit:,.10g}{aim}"


class PeerMissing(Unavailable):
    """What a figure is compared with is not here, or can't be run here: the figure is left out."""


def nothing() -> None:
    """Most figures need nothing that may be missing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What is declared of a figure."""

    name: str
    target: Target
    unit: str
    per_unit: float = 1.0
    """What a rate is divided by to be shown."""
    needs: Callable[[], object] = nothing
    """Raises `PeerMissing` if what it is compared with is not here."""


Round = Mapping[Hashable, Side]
"""What the turns of a round came to, by side."""
Take = Callable[[Round], float]
"""A number of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What is made of a round: the value, the two numbers behind it, and whose turns it takes."""

    sides: tuple[Hashable, ...]
    value: Take
    ours: Take
    peer: Take | None = None
    least: Take | None = None
    """The low end of a round's spread, where that is not its value."""


def ratio(ours: Take, peer: Take, *sides: Hashable) -> Pair:
    """Our number by the peer's."""
    return Pair(sides=sides, value=lambda one: ours(one) / peer(one), ours=ours, peer=peer)


def rates(figure: Figure, ours: Hashable, peer: Hashable) -> Pair:
    """Our rate by the peer's; where less is better, our time by its time."""

    def value(one: Round) -> float:
        found = one[ours].rate / one[peer].rate
        return found if figure.target.at_least else 1 / found

    return Pair(
        sides=(ours, peer),
        value=value,
        ours=lambda one: one[ours].rate / figure.per_unit,
        peer=lambda one: one[peer].rate / figure.per_unit,
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """What a figure is made of."""

    pair: Pair
    notes: str
    variants: Mapping[str, Pair] = field(default_factory=dict)


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
class Result:
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


def result_of(figure: Figure, compared: Compared, rounds: Sequence[Round]) -> Result:
    """The median of the rounds' values, and of what is behind them."""
    pair, taken = compared.pair, _with_all(compared.pair, rounds)
    invariant(len(taken) > 0, f"{figure.name} has a round that counts")
    values = [pair.value(one) for one in taken]
    return Result(
        name=figure.name,
        value=median(values),
        target=figure.target,
        unit=figure.unit,
        ours=median(map(pair.ours, taken)),
        peer=None if pair.peer is None else median(map(pair.peer, taken)),
        spread=(min(map(pair.least or pair.value, taken)), max(values)),
        runs=len(values),
        notes=compared.notes,
        variants={
            name: _variant(variant, shared)
            for name, variant in compared.variants.items()
            if (shared := _with_all(variant, rounds))
        },
    )


def _with_all(pair: Pair, rounds: Sequence[Round]) -> list[Round]:
    """The rounds in which all of its sides had a turn."""
    return [one for one in rounds if all(side in one for side in pair.sides)]


def _variant(pair: Pair, rounds: Sequence[Round]) -> Variant:
    invariant(pair.peer is not None, "a variant has a peer")
    assert pair.peer is not None
    return Variant(
        median(map(pair.value, rounds)),
        median(map(pair.ours, rounds)),
        median(map(pair.peer, rounds)),
    )


def rounded(value: float) -> float:
    """Four digits that mean something; whole numbers stay whole."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else float(round(value))
