"""What a column may hold: the types that Arrow, Spark and Parquet all have.

There are no unsigned integers, no time of day and no intervals: Spark has none, so a table with
them could not be compacted there. Fields of a struct have no ids of their own: a struct is one
value, and it is replaced whole. Elements of lists and values of maps may be null; keys of maps may
not.

    bool  int8 int16 int32 int64  float32 float64  decimal(10,2)  string  binary  uuid
    date  timestamp (an instant, UTC)  timestamp_ntz (a date and a time of day, no zone)
    list<int32>  struct<a: int64, b: string not null>  map<string, float64>

Times are in microseconds. A field's name that is no plain word stands in backticks.

Words of SQL and Spark are read, too (`bigint`, `varchar`, `double`), and mean what they mean there:
`int` is int32, `float` is float32. A type is always written in the words above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, assert_never

from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.names import (
    TYPE_DEPTH_MAX,
    TYPE_PARTS_MAX,
    check_column_name,
    check_distinct,
)

DECIMAL_DIGITS_MAX = 38


class Plain(Enum):
    """A type without parameters; its value is its text."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    STRING = "string"
    BINARY = "binary"
    UUID = "uuid"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"


INTEGER_BITS: Final = {Plain.INT8: 8, Plain.INT16: 16, Plain.INT32: 32, Plain.INT64: 64}

_KEYS = frozenset(
    {
        *INTEGER_BITS,
        Plain.STRING,
        Plain.BINARY,
        Plain.UUID,
        Plain.DATE,
        Plain.TIMESTAMP,
        Plain.TIMESTAMP_NTZ,
    }
)


@dataclass(frozen=True, slots=True)
class DecimalOf:
    """Exact numbers of `precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= DECIMAL_DIGITS_MAX or not 0 <= self.scale <= self.precision:
            raise _refused(
                f"decimal({self.precision},{self.scale})",
                "its digits are out of range",
                hint=f"Use a precision from 1 to {DECIMAL_DIGITS_MAX},"
                " and a scale from 0 to the precision.",
            )


@dataclass(frozen=True, slots=True)
class ListOf:
    """Any number of elements of one type."""

    element: ColumnType

    def __post_init__(self) -> None:
        _check_size(self)


@dataclass(frozen=True, slots=True)
class StructField:
    """A part of a struct."""

    name: str
    type: ColumnType
    required: bool = False


@dataclass(frozen=True, slots=True)
class StructOf:
    """Named parts, in order."""

    fields: tuple[StructField, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise _refused("struct<>", "it has no fields", hint="Give it at least one.")
        for field in self.fields:
            check_column_name(field.name, kind="struct field")
        names = [field.name for field in self.fields]
        check_distinct(names, kind="field", of="struct", of_kind="type", fold=True)
        _check_size(self)


@dataclass(frozen=True, slots=True)
class MapOf:
    """Values by key; a key is never null and of a type that a key column could have."""

    key: ColumnType
    value: ColumnType

    def __post_init__(self) -> None:
        if not can_be_key(self.key):
            raise _refused(
                f"map<{type_text(self.key)}, …>",
                "its key is of a type that can't be one",
                hint=_KEY_HINT,
            )
        _check_size(self)


ColumnType = Plain | DecimalOf | ListOf | StructOf | MapOf

_KEY_HINT = (
    "Keys are integers, strings, binary, decimals, dates, timestamps or UUIDs: types whose equal"
    " values have equal bytes."
)


def can_be_key(column_type: ColumnType) -> bool:
    """Whether equal values of the type have one form, so that they can be bucketed and compared."""
    return isinstance(column_type, DecimalOf) or column_type in _KEYS


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type is one of the new type, read from the same files."""
    match old, new:
        case Plain(), Plain() if old in INTEGER_BITS and new in INTEGER_BITS:
            return INTEGER_BITS[new] > INTEGER_BITS[old]
        case Plain.FLOAT32, Plain.FLOAT64:
            return True
        case DecimalOf(), DecimalOf():
            return new.scale == old.scale and new.precision > old.precision
        case _:
            return False


def parts_of(column_type: ColumnType) -> tuple[ColumnType, ...]:
    """The types that a type is directly made of."""
    match column_type:
        case Plain() | DecimalOf():
            return ()
        case ListOf(element):
            return (element,)
        case StructOf(fields):
            return tuple(field.type for field in fields)
        case MapOf(key, value):
            return (key, value)
        case _:
            assert_never(column_type)


def _check_size(column_type: ColumnType) -> None:
    # Parts were checked when they were made, so this goes at most one level too deep.
    if _depth(column_type) > TYPE_DEPTH_MAX:
        raise _refused(
            type_text(column_type),
            f"it is more than {TYPE_DEPTH_MAX} deep",
            hint="Nest less, or spread it over columns.",
        )
    if sum(1 for _ in _walk(column_type)) > TYPE_PARTS_MAX:
        raise _refused(
            type_text(column_type),
            f"it is made of more than {TYPE_PARTS_MAX} types",
            hint="Spread it over columns.",
        )


def _depth(column_type: ColumnType) -> int:
    return 1 + max((_depth(part) for part in parts_of(column_type)), default=0)


def _walk(column_type: ColumnType) -> Iterator[ColumnType]:
    yield column_type
    for part in parts_of(column_type):
        yield from _walk(part)


# -- text ---------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*)|(\d+)|`((?:[^`]|``)*)`|([<>(),:]))")
_PLAIN = {plain.value: plain for plain in Plain}
_ALSO: Final = {
    "boolean": Plain.BOOL,
    "byte": Plain.INT8,
    "tinyint": Plain.INT8,
    "short": Plain.INT16,
    "smallint": Plain.INT16,
    "int": Plain.INT32,
    "integer": Plain.INT32,
    "bigint": Plain.INT64,
    "long": Plain.INT64,
    "float": Plain.FLOAT32,
    "real": Plain.FLOAT32,
    "double": Plain.FLOAT64,
    "str": Plain.STRING,
    "text": Plain.STRING,
    "varchar": Plain.STRING,
    "bytes": Plain.BINARY,
    "varbinary": Plain.BINARY,
    "timestamp_ltz": Plain.TIMESTAMP,
    "timestamptz": Plain.TIMESTAMP,
}
"""Words of SQL and Spark; they are read, and never written."""
_HINTS: Final = {
    "datetime": "Use timestamp for an instant, or timestamp_ntz for a date and a time of day"
    " without a zone.",
    "char": "Use string; it has no length.",
    "date32": "Use date.",
    "json": "Use string, or a struct<…> of its fields.",
    "time": "There is no time of day: use int64 for microseconds, or timestamp_ntz.",
    "uint8": "Use int16: there are no unsigned integers.",
    "uint16": "Use int32: there are no unsigned integers.",
    "uint32": "Use int64: there are no unsigned integers.",
    "uint64": "Use decimal(20,0), or int64 if the values fit: there are no unsigned integers.",
}
"""For words that are types elsewhere."""
_TEXT_CHARACTERS_MAX = 200_000
_KNOWN = ", ".join([*_PLAIN, "decimal(p,s)", "list<…>", "struct<…>", "map<…>"])


def type_text(column_type: ColumnType) -> str:
    """The type as text; `parse_type` reads it back."""
    match column_type:
        case Plain():
            return str(column_type.value)
        case DecimalOf(precision, scale):
            return f"decimal({precision},{scale})"
        case ListOf(element):
            return f"list<{type_text(element)}>"
        case StructOf(fields):
            return f"struct<{', '.join(_field_text(field) for field in fields)}>"
        case MapOf(key, value):
            return f"map<{type_text(key)}, {type_text(value)}>"
        case _:
            assert_never(column_type)


def _field_text(field: StructField) -> str:
    plain = _WORD.fullmatch(field.name)
    name = field.name if plain else f"`{field.name.replace('`', '``')}`"
    return f"{name}: {type_text(field.type)}{' not null' if field.required else ''}"


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ColumnType:
    """Read a type; blanks and the case of type names do not matter."""
    if len(text) > _TEXT_CHARACTERS_MAX:
        raise _refused(text[:20] + "…", "it is too long", hint="Spread it over columns.")
    parser = _Parser(text)
    column_type = parser.type(depth=1)
    parser.end()
    return column_type


class _Parser:
    """Reads a type from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def type(self, *, depth: int) -> ColumnType:
        if depth > TYPE_DEPTH_MAX:
            raise self._error(f"it is more than {TYPE_DEPTH_MAX} deep")
        word = self._word().lower()
        match word:
            case "decimal" | "numeric":
                return self._decimal()
            case "list" | "array":
                self._sign("<")
                element = self.type(depth=depth + 1)
                self._sign(">")
                return ListOf(element)
            case "map":
                self._sign("<")
                key = self.type(depth=depth + 1)
                self._sign(",")
                value = self.type(depth=depth + 1)
                self._sign(">")
                return MapOf(key, value)
            case "struct":
                return self._struct(depth=depth)
            case _ if word in _PLAIN:
                return _PLAIN[word]
            case _ if word in _ALSO:
                if _ALSO[word] is Plain.STRING and self._peek() == "(":
                    raise self._error("text has no length", hint="Write string without a length.")
                return _ALSO[word]
            case _:
                raise self._error(f"there is no type {word}", hint=_HINTS.get(word, ""))

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise self._error(f"unexpected text after character {self._at}")

    def _decimal(self) -> DecimalOf:
        self._sign("(")
        precision = self._number()
        self._sign(",")
        scale = self._number()
        self._sign(")")
        return DecimalOf(precision, scale)

    def _struct(self, *, depth: int) -> StructOf:
        self._sign("<")
        fields = [self._field(depth=depth)]
        while self._peek() == ",":
            self._sign(",")
            fields.append(self._field(depth=depth))
        self._sign(">")
        return StructOf(tuple(fields))

    def _field(self, *, depth: int) -> StructField:
        name = self._name()
        self._sign(":")
        column_type = self.type(depth=depth + 1)
        if self._peek() != "not":
            return StructField(name, column_type)
        self._word()
        if self._word() != "null":
            raise self._error("after `not` comes `null`")
        return StructField(name, column_type, required=True)

    def _next(self) -> re.Match[str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error(f"it can't be read from character {self._at} on")
        self._at = match.end()
        return match

    def _peek(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        return "" if match is None else match[0].strip()

    def _word(self) -> str:
        word: str | None = self._next()[1]
        if word is None:
            raise self._error(f"a name is missing before character {self._at}")
        return word

    def _name(self) -> str:
        match = self._next()
        if match[1] is None and match[3] is None:
            raise self._error(f"a field's name is missing before character {self._at}")
        return str(match[1]) if match[1] is not None else str(match[3]).replace("``", "`")

    def _number(self) -> int:
        digits: str | None = self._next()[2]
        if digits is None or len(digits) > 4 or not digits.isascii():
            raise self._error(f"a small number is missing before character {self._at}")
        return int(digits)

    def _sign(self, sign: str) -> None:
        if self._next()[4] != sign:
            raise self._error(f"{sign!r} is missing before character {self._at}")

    def _error(self, what: str, *, hint: str = "") -> CatalogRefused:
        return _refused(self._text, what, hint=hint or f"Types are {_KNOWN}.")


def _refused(text: str, what: str, *, hint: str) -> CatalogRefused:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    return CatalogRefused(
        f"{shown!r} can't be a type: {what}",
        reason=Reason.TYPE,
        about=("type", shown),
        hint=hint,
    )
