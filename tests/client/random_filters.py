"""Filters that are drawn, and what they are true of: judged row by row in Python, with SQL's logic
of three values, by code that shares nothing with what it judges.

A filter is a tree. It is told in two languages: as text, as `where` takes it, and as an expression
of Arrow's.
"""

from __future__ import annotations

import datetime as dt
import operator
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from client.random_tables import POOLS, near

Row = Mapping[str, Any]
Truth = bool | None
SYSTEM = {"_partition": "int32", "_offset": "int64", "_change": "string"}
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
UNORDERED = {"bool", "uuid"}


class Tree(ABC):
    """A condition."""

    @abstractmethod
    def of(self, row: Row) -> Truth:
        """What it is of a row; None: it is not known."""

    @abstractmethod
    def text(self) -> str | None:
        """As SQL; None: it can't be said."""

    @abstractmethod
    def arrow(self) -> pc.Expression:
        """As Arrow has it."""


@dataclass(frozen=True)
class Compare(Tree):
    """A column and a value."""

    name: str
    sign: str
    value: Any
    kind: pa.DataType

    def of(self, row: Row) -> Truth:
        """Floats as IEEE has them: NaN is neither equal, below nor above."""
        found = row[self.name]
        return None if found is None else bool(SIGNS[self.sign](found, self.value))

    def text(self) -> str | None:
        return f"{quoted(self.name)} {self.sign} {literal(self.value, self.kind)}"

    def arrow(self) -> pc.Expression:
        found: pc.Expression = SIGNS[self.sign](
            pc.field(self.name), pa.scalar(self.value, self.kind)
        )
        return found


@dataclass(frozen=True)
class Columns(Tree):
    """Two columns of one type."""

    left: str
    sign: str
    right: str

    def of(self, row: Row) -> Truth:
        left, right = row[self.left], row[self.right]
        return None if left is None or right is None else bool(SIGNS[self.sign](left, right))

    def text(self) -> str | None:
        return None

    def arrow(self) -> pc.Expression:
        found: pc.Expression = SIGNS[self.sign](pc.field(self.left), pc.field(self.right))
        return found


@dataclass(frozen=True)
class Among(Tree):
    """`in`, as SQL has it: of null it is not known."""

    name: str
    values: tuple[Any, ...]
    kind: pa.DataType
    negated: bool

    def of(self, row: Row) -> Truth:
        found = row[self.name]
        return None if found is None else any(found == one for one in self.values) != self.negated

    def text(self) -> str | None:
        some = ", ".join(literal(one, self.kind) for one in self.values)
        return f"{quoted(self.name)} {'not ' if self.negated else ''}in ({some})"

    def arrow(self) -> pc.Expression:
        field = pc.field(self.name)
        found = field == pc.scalar(pa.scalar(self.values[0], self.kind))
        for one in self.values[1:]:
            found = found | (field == pc.scalar(pa.scalar(one, self.kind)))
        return ~found if self.negated else found


@dataclass(frozen=True)
class IsIn(Tree):
    """`isin`, as Arrow has it: never null, and null may be among the values."""

    name: str
    values: tuple[Any, ...]
    kind: pa.DataType

    def of(self, row: Row) -> Truth:
        return row[self.name] in self.values

    def text(self) -> str | None:
        return None

    def arrow(self) -> pc.Expression:
        some = list(self.values)
        kind = pa.string() if pa.types.is_dictionary(self.kind) else self.kind
        return pc.field(self.name).isin(pa.array(some, kind))


@dataclass(frozen=True)
class IsNull(Tree):
    name: str
    negated: bool

    def of(self, row: Row) -> Truth:
        return (row[self.name] is None) != self.negated

    def text(self) -> str | None:
        return f"{quoted(self.name)} is {'not ' if self.negated else ''}null"

    def arrow(self) -> pc.Expression:
        field = pc.field(self.name)
        return field.is_valid() if self.negated else field.is_null()


@dataclass(frozen=True)
class Like(Tree):
    """How a text begins, ends, or what it has in it."""

    name: str
    part: str
    way: str

    def of(self, row: Row) -> Truth:
        found = row[self.name]
        if found is None:
            return None
        match self.way:
            case "starts":
                return bool(found.startswith(self.part))
            case "ends":
                return bool(found.endswith(self.part))
            case _:
                return self.part in found

    def text(self) -> str | None:
        return None

    def arrow(self) -> pc.Expression:
        field = pc.field(self.name)
        match self.way:
            case "starts":
                return pc.starts_with(field, pattern=self.part)
            case "ends":
                return pc.ends_with(field, pattern=self.part)
            case _:
                return pc.match_substring(field, pattern=self.part)


@dataclass(frozen=True)
class Not(Tree):
    one: Tree

    def of(self, row: Row) -> Truth:
        found = self.one.of(row)
        return None if found is None else not found

    def text(self) -> str | None:
        said = self.one.text()
        return None if said is None else f"not ({said})"

    def arrow(self) -> pc.Expression:
        return ~self.one.arrow()


@dataclass(frozen=True)
class Join(Tree):
    """`and` or `or` of several."""

    every: bool
    some: tuple[Tree, ...]

    def of(self, row: Row) -> Truth:
        found = [one.of(row) for one in self.some]
        deciding = not self.every
        if deciding in found:
            return deciding
        return None if None in found else not deciding

    def text(self) -> str | None:
        said = [one.text() for one in self.some]
        if None in said:
            return None
        return (" and " if self.every else " or ").join(f"({one})" for one in said)

    def arrow(self) -> pc.Expression:
        found = self.some[0].arrow()
        for one in self.some[1:]:
            found = found & one.arrow() if self.every else found | one.arrow()
        return found


def quoted(name: str) -> str:
    return f"`{name}`" if len(name) % 2 else name


def literal(value: Any, kind: pa.DataType) -> str:
    """As SQL text has it."""
    match value:
        case bool():
            return str(value).lower()
        case int() | Decimal():
            return str(value)
        case float():
            return f"'{value!r}'"
        case bytes() if pa.types.is_fixed_size_binary(kind):
            return f"'{uuid.UUID(bytes=value)}'"
        case bytes():
            return f"'{value.hex()}'"
        case dt.datetime() | dt.date():
            return f"'{value.isoformat()}'"
        case _:
            return "'" + str(value).replace("'", "''") + "'"


def tree(dice: Random, kinds: Mapping[str, str], schema: pa.Schema, *, depth: int = 3) -> Tree:
    """A filter on columns of these types."""
    if depth and dice.random() < 0.6:
        if dice.random() < 0.25:
            return Not(tree(dice, kinds, schema, depth=depth - 1))
        some = tuple(
            tree(dice, kinds, schema, depth=depth - 1) for _ in range(dice.choice((2, 2, 3)))
        )
        return Join(dice.random() < 0.5, some)
    return leaf(dice, kinds, schema)


def leaf(dice: Random, kinds: Mapping[str, str], schema: pa.Schema) -> Tree:
    """One condition on one column."""
    name = dice.choice(sorted(kinds))
    kind, arrow = kinds[name], schema.field(name).type
    value = value_for(dice, name, kind)
    draw = dice.random()
    if draw < 0.1:
        return IsNull(name, dice.random() < 0.5)
    if draw < 0.3:
        some = tuple(value_for(dice, name, kind) for _ in range(dice.randrange(1, 5)))
        if dice.random() < 0.4 and not kind.startswith("float") and kind != "uuid":
            more = (None,) if dice.random() < 0.3 else ()
            return IsIn(name, (*some, *more), arrow)
        return Among(name, some, arrow, dice.random() < 0.4)
    if draw < 0.4:
        alike = [other for other in sorted(kinds) if kinds[other] == kind and other != name]
        if alike and kind not in UNORDERED:
            return Columns(name, dice.choice(sorted(SIGNS)), dice.choice(alike))
    if kind == "string" and name != "_change" and draw < 0.65:
        part = value[: dice.randrange(3)]
        return Like(name, part, dice.choice(("starts", "ends", "in")))
    if draw < 0.8 and kind not in UNORDERED:  # between
        other = value_for(dice, name, kind)
        return Join(True, (Compare(name, ">=", value, arrow), Compare(name, "<=", other, arrow)))
    signs = ("=", "!=") if kind in UNORDERED else sorted(SIGNS)
    return Compare(name, dice.choice(signs), value, arrow)


def value_for(dice: Random, name: str, kind: str) -> Any:
    """A value to compare a column with."""
    match name:
        case "id":
            return dice.randrange(60)
        case "_partition":
            return dice.randrange(3)
        case "_offset":
            return dice.randrange(300)
        case "_change":
            return dice.choice(("upsert", "delete"))
        case _:
            return near(dice, kind)


def passing(filter_: Tree, rows: Sequence[Row]) -> list[Row]:
    """The rows that it is true of."""
    return [row for row in rows if filter_.of(row) is True]


def exact(rows: Sequence[Row], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows so that -0.0 is not 0.0, and NaN is NaN."""
    return [tuple(_exact(row[name]) for name in columns) for row in rows]


def _exact(value: Any) -> str:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat()
    return repr(value)


__all__ = [
    "POOLS",
    "SYSTEM",
    "Tree",
    "exact",
    "leaf",
    "passing",
    "tree",
]
