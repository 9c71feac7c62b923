"""Tables that are drawn: columns of many types, changed again and again, with rows in ledgers (dead
ones among them) and behind them; and a model of what is in them.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations
from random import Random
from typing import Any

from lowmark.catalog import NewColumn
from lowmark.catalog.types import DecimalOf, Plain, parse_type
from lowmark.client import Database, Table

NAN = float("nan")
POOLS: dict[str, list[Any]] = {
    "int8": [-128, -1, 0, 1, 5, 100, 127],
    "int16": [-32_768, -129, 0, 1, 5, 300, 32_767],
    "int32": [-(2**31), -40_000, 0, 1, 5, 70_000, 2**31 - 1],
    "int64": [-(2**63), -(2**53) - 1, 0, 1, 5, 2**53, 2**53 + 1, 2**63 - 1],
    "float32": [-0.0, 0.0, 0.5, -1.5, 2.0**100, float("inf"), float("-inf"), NAN],
    "float64": [-0.0, 0.0, 0.1, -1.5, 1e300, 5e-324, float("inf"), float("-inf"), NAN],
    "bool": [False, True],
    "string": ["", "a", "ab", "abc", "b", "it's", "ä", "\U0001f600", "z" * 300, "%", "A"],
    "binary": [b"", b"\x00", b"\x00\xff", b"a", b"ab", b"\xff" * 70],
    "decimal(9,2)": [
        Decimal(one) for one in ("-9999999.99", "-0.01", "0.00", "1.50", "9999999.99")
    ],
    "decimal(20,2)": [
        Decimal(one) for one in ("-999999999999999999.99", "0.01", "1.50", "100000000000000000.01")
    ],
    "date": [dt.date(*one) for one in ((1582, 12, 31), (1969, 12, 31), (1970, 1, 1), (2026, 2, 3))],
    "timestamp": [
        dt.datetime.fromisoformat(f"{one}+00:00")
        for one in (
            "1580-01-01T00:00:00",
            "1969-12-31T23:59:59.999999",
            "1970-01-01T00:00:00",
            "2026-01-31T12:00:00.123456",
        )
    ],
    "timestamp_ntz": [
        dt.datetime.fromisoformat(one)
        for one in ("1580-01-01", "1970-01-01", "2026-01-31T12:00:00.123456")
    ],
    "uuid": [uuid.UUID(int=one).bytes for one in (0, 7, 2**127)],
}
WIDER = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "float32": ("float64",),
    "decimal(9,2)": ("decimal(20,2)",),
}
KEYS = 80
NULL_SHARE = 0.2


def value_of(dice: Random, kind: str, *, null_share: float = NULL_SHARE) -> Any:
    """A value of a type, or null."""
    return None if dice.random() < null_share else dice.choice(POOLS[kind])


def near(dice: Random, kind: str) -> Any:
    """A value to compare with: one that is there, or one beside it that may not be."""
    one = dice.choice(POOLS[kind])
    if dice.random() < 0.7:
        return one
    match one:
        case bool():
            return one
        case int():
            low, high = POOLS[kind][0], POOLS[kind][-1]
            return min(high, max(low, one + dice.choice((-1, 1))))
        case float():
            return one + 1.0
        case Decimal():
            return one.quantize(Decimal("0.01")) + Decimal("0.00")
        case str():
            return one[:-1] if len(one) > 1 else one + "b"
        case bytes():
            return one if kind == "uuid" else one + b"\x00"
        case dt.datetime():
            return one + dt.timedelta(microseconds=1)
        case dt.date():
            return one + dt.timedelta(days=1)
        case _:
            return one


@dataclass
class Moment:
    """A time, and what the table had then."""

    time: int
    kinds: dict[str, str]
    """The types of its columns."""
    rows: list[dict[str, Any]]


@dataclass
class Drawn:
    """A table, what is in it, and times as of which it may be read."""

    db: Database
    table: Table
    dice: Random
    keyed: bool
    kinds: dict[str, str]
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    """Names that columns had: another column may have one of them now."""
    runs: int = 0
    count: int = 0

    def change(self) -> None:
        """A batch of rows; or something else."""
        match self.dice.randrange(10):
            case 0:
                self.compact()
            case 1:
                self.alter()
            case 2 if self.keyed:
                gone = [self.dice.randrange(KEYS) for _ in range(self.dice.randrange(1, 8))]
                self.table.delete(gone)
                for key in gone:
                    self.rows.pop(key, None)
            case 3:
                self.remember()
            case _:
                self._append()

    def _append(self) -> None:
        # Rows of a batch are alike: then row groups lie apart, and statistics have much to say.
        dice = self.dice
        alike = {name: value_of(dice, kind) for name, kind in self.kinds.items()}
        made = []
        for _ in range(dice.choice((1, 5, 20, 40))):
            row = {
                name: alike[name] if dice.random() < 0.7 else value_of(dice, kind)
                for name, kind in self.kinds.items()
            }
            key = dice.randrange(KEYS) if self.keyed else self.count
            self.count += 1
            made.append({"id": key, **row})
            self.rows[key] = made[-1]
        self.table.append(made)

    def alter(self) -> None:
        """Another version of its columns."""
        dice = self.dice
        names = sorted(self.kinds)
        match dice.choice((0, 1, 2, 2, 3)):
            case 0:
                kind = dice.choice(sorted(POOLS))
                name, default = self._name(), None
                column: Any = (name, kind)
                if dice.random() < 0.5 and kind in {"int32", "int64", "string", "bool"}:
                    default = dice.choice(POOLS[kind])
                    column = NewColumn(name=name, type=_type(kind), default=default)
                self.table.alter(add=[column])
                self.kinds[name] = kind
                for row in self.rows.values():
                    row[name] = default
            case 1 if len(names) > 4:
                name = dice.choice(names)
                self.table.alter(drop=[name])
                del self.kinds[name]
                self.free.append(name)
                for row in self.rows.values():
                    del row[name]
            case 2:
                name, other = dice.choice(self._alike() or [tuple(dice.sample(names, 2))])
                if dice.random() < 0.7:  # the two take each other's name
                    renamed = {name: other, other: name}
                else:
                    renamed = {name: self._name()}
                    self.free.append(name)
                self.table.alter(rename=renamed)
                self.kinds = {renamed.get(one, one): kind for one, kind in self.kinds.items()}
                for key, row in self.rows.items():
                    self.rows[key] = {renamed.get(one, one): v for one, v in row.items()}
            case _:
                able = [name for name in names if self.kinds[name] in WIDER]
                if able:
                    name = dice.choice(able)
                    kind = dice.choice(WIDER[self.kinds[name]])
                    self.table.alter(widen={name: kind})
                    self.kinds[name] = kind

    def _alike(self) -> list[tuple[str, str]]:
        """Pairs of columns of one type."""
        pairs = combinations(sorted(self.kinds), 2)
        return [(one, other) for one, other in pairs if self.kinds[one] == self.kinds[other]]

    def _name(self) -> str:
        """For a column: a new one, or one that another column had."""
        if self.free and self.dice.random() < 0.7:
            return self.free.pop(self.dice.randrange(len(self.free)))
        self.count += 1
        return f"n{self.count}"

    def compact(self) -> None:
        """All rows up to now into ledgers."""
        self.db.advance_watermark("now")
        self.table.compact(engine="local", rewrite=self.dice.random() < 0.2)
        self.moments.clear()  # what was before can't be read any more
        self.runs += 1

    def remember(self) -> None:
        """A time of now."""
        time = self.table.snapshot().time
        rows = [dict(row) for row in self.rows.values()]
        self.moments.append(Moment(time, dict(self.kinds), rows))


def _type(kind: str) -> Plain | DecimalOf:
    found = parse_type(kind)
    assert isinstance(found, Plain | DecimalOf)
    return found


def draw(db: Database, seed: int) -> Drawn:
    """A table with a history."""
    dice = Random(seed)
    keyed = dice.random() < 0.75
    # Several columns of one type may be taken for each other: row groups tell of these.
    several = dice.choices(("int8", "int32", "int64", "timestamp", "date", "bool"), k=3)
    some = [*several, *several[:2], *dice.sample(sorted(POOLS), dice.randrange(3, 7))]
    kinds = {f"c{number}": kind for number, kind in enumerate(some)}
    columns = {"id": "int64", **kinds}
    table = db.create_table(
        f"t{seed}", columns, key="id" if keyed else None, partitions=dice.choice((1, 2))
    )
    drawn = Drawn(db, table, dice, keyed, kinds)
    for turn in range(24):
        drawn.change()
        if turn in {9, 16}:
            drawn.compact()
        if turn in {5, 12, 17, 18, 19}:
            drawn.alter()
    drawn.remember()
    return drawn
