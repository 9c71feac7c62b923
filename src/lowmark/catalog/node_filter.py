"""Which nodes may hold a zone's partitions, said in terms of the nodes' attributes.

    rack = r1 and disk in (ssd, nvme) and retired != yes and gpu exists

Terms are joined by `and`, and all must hold; an empty filter takes every node. A value that is no
plain word stands in single quotes. A node without an attribute is not equal to any value, so it
passes `!=`. `rack` is an attribute like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.names import NODE_FILTER_CHARACTERS_MAX

_TOKEN = re.compile(r"\s*(?:(!=|=|\(|\)|,)|'((?:[^']|'')*)'|([A-Za-z0-9_./:-]+))")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORD = re.compile(r"[A-Za-z0-9_./:-]+")
_KEYWORDS = frozenset({"and", "in", "exists"})


@dataclass(frozen=True, slots=True)
class Equal:
    """The attribute has this value."""

    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class NotEqual:
    """The attribute has another value, or the node doesn't have it."""

    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """The attribute has one of these values."""

    attribute: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """The node has the attribute, whatever its value."""

    attribute: str


Term = Equal | NotEqual | OneOf | Exists


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """A filter that was read; all its terms must hold."""

    terms: tuple[Term, ...] = ()

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Whether a node with these attributes may hold partitions."""
        return all(_holds(term, attributes) for term in self.terms)

    def __str__(self) -> str:
        return " and ".join(_text(term) for term in self.terms)


def _holds(term: Term, attributes: Mapping[str, str]) -> bool:
    match term:
        case Equal(attribute, value):
            return attributes.get(attribute) == value
        case NotEqual(attribute, value):
            return attributes.get(attribute) != value
        case OneOf(attribute, values):
            return attributes.get(attribute) in values
        case Exists(attribute):
            return attribute in attributes
        case _:
            assert_never(term)


def _text(term: Term) -> str:
    match term:
        case Equal(attribute, value):
            return f"{attribute} = {_quoted(value)}"
        case NotEqual(attribute, value):
            return f"{attribute} != {_quoted(value)}"
        case OneOf(attribute, values):
            return f"{attribute} in ({', '.join(_quoted(value) for value in values)})"
        case Exists(attribute):
            return f"{attribute} exists"
        case _:
            assert_never(term)


def _quoted(value: str) -> str:
    if _WORD.fullmatch(value) and value.lower() not in _KEYWORDS:
        return value
    return f"'{value.replace(chr(39), chr(39) * 2)}'"


@lru_cache(maxsize=1024)
def parse_filter(text: str) -> NodeFilter:
    """Read a filter; its text, `str(filter)`, is then in one form."""
    if len(text) > NODE_FILTER_CHARACTERS_MAX:
        raise _refused(text, f"it is longer than {NODE_FILTER_CHARACTERS_MAX} characters")
    parser = _Parser(text)
    terms: list[Term] = []
    while not parser.at_end:
        if terms:
            parser.keyword("and")
        terms.append(parser.term())
    return NodeFilter(tuple(terms))


class _Parser:
    """Reads a filter from left to right."""

    def __init__(self, text: str) -> None:
        self._whole = text
        self._text = text.strip()
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._text)

    def term(self) -> Term:
        attribute = self._next()[3]
        if not attribute or attribute.lower() in _KEYWORDS or not _ATTRIBUTE.fullmatch(attribute):
            raise self._error("an attribute's name is missing")
        match = self._next()
        match match[1] or (match[3] or "").lower():
            case "=":
                return Equal(attribute, self._value())
            case "!=":
                return NotEqual(attribute, self._value())
            case "exists":
                return Exists(attribute)
            case "in":
                return OneOf(attribute, self._values())
            case _:
                raise self._error("`=`, `!=`, `in` or `exists` is missing")

    def keyword(self, word: str) -> None:
        if (self._next()[3] or "").lower() != word:
            raise self._error(f"`{word}` is missing")

    def _values(self) -> tuple[str, ...]:
        if self._next()[1] != "(":
            raise self._error("`(` is missing")
        values = [self._value()]
        while (sign := self._next()[1]) == ",":
            values.append(self._value())
        if sign != ")":
            raise self._error("`)` is missing")
        return tuple(dict.fromkeys(values))

    def _value(self) -> str:
        match = self._next()
        if match[2] is not None:
            # Printable text has no lone surrogates, so it can be encoded.
            if not match[2].isprintable():
                raise self._error("a value has characters that can't be shown")
            return str(match[2]).replace("''", "'")
        word: str | None = match[3]
        if word is None or word.lower() in _KEYWORDS:
            raise self._error("a value is missing")
        return word

    def _next(self) -> re.Match[str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error(
                "it ends too early" if self.at_end else "a character has no meaning here"
            )
        self._at = match.end()
        return match

    def _error(self, why: str) -> CatalogRefused:
        return _refused(self._whole, f"{why} (at character {self._at})")


def _refused(text: str, why: str) -> CatalogRefused:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    return CatalogRefused(
        f"{shown!r} is not a node filter: {why}",
        reason=Reason.FILTER,
        about=("node filter", shown),
        hint="Join by `and`: `rack = r1`, `rack != r1`, `disk in (ssd, nvme)`, `gpu exists`.",
    )
