"""One section of the settings: any frozen dataclass, filled from arguments, environment and file.

The dataclass is the only description of a section there is: its fields are the settings, with their
types and defaults, and its `__post_init__` says which values are allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, TypeVar, get_type_hints

from lowmark.errors import Rejected
from lowmark.node.values import Value, from_text, from_toml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SectionT = TypeVar("SectionT", bound="DataclassInstance")


def load_section(
    cls: type[SectionT],
    name: str,
    *,
    arguments: Mapping[str, object],
    environment: Mapping[str, str],
    file: Mapping[str, object],
    file_name: str,
) -> SectionT:
    """Fill a section; what was said closest to the command wins."""
    prefix = f"LOWMARK_{name}_".upper()
    variables = {v.removeprefix(prefix).lower(): v for v in environment if v.startswith(prefix)}
    # The weakest source comes first and each stronger one overwrites it. Each is checked whole,
    # also where it loses: a wrong line must not wait for the day its override is removed.
    sources = (
        _Source(file, parse=from_toml, spell=f"{name}.{{}}".format, where=f"in {file_name}"),
        _Source(
            {key: environment[variable] for key, variable in variables.items()},
            parse=from_text,
            spell=lambda key: f"{prefix}{key.upper()}",
            where="in the environment",
        ),
        _Source(arguments, parse=from_toml, spell=f"{name}.{{}}".format, where="as an argument"),
    )
    given: dict[str, _Given] = {}
    for source in sources:
        given |= source.read(cls)
    try:
        return cls(**{key: each.value for key, each in given.items()})
    except Rejected as error:
        raise _at(_to_blame(cls, given), error) from error


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Offer the nearest name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(wrong, names, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(names)}."


@dataclass(frozen=True, slots=True)
class _Given:
    """A value, and where a person would go to change it."""

    value: Value
    place: str


class _Parse(Protocol):
    def __call__(self, value: object, /, *, kind: type, is_size: bool) -> Value: ...


@dataclass(frozen=True, slots=True)
class _Source:
    values: Mapping[str, object]
    parse: _Parse
    spell: Callable[[str], str]  # how this source writes the name of a field
    where: str

    def read(self, cls: type[DataclassInstance]) -> dict[str, _Given]:
        kinds = get_type_hints(cls)
        known = [field.name for field in fields(cls)]
        given = {}
        for key, value in sorted(self.values.items()):
            place = f"{self.spell(key)} {self.where}"
            if key not in known:
                raise Rejected(
                    f"{place}: there is no such setting",
                    hint=did_you_mean(self.spell(key), map(self.spell, known)),
                )
            # A field in bytes says so in its name, as every quantity here names its unit.
            is_size = "bytes" in key.split("_")
            try:
                parsed = self.parse(value, kind=kinds[key], is_size=is_size)
            except Rejected as error:
                raise _at(place, error) from error
            given[key] = _Given(parsed, place)
        return given


def _to_blame(cls: type[DataclassInstance], given: Mapping[str, _Given]) -> str:
    """Find the value that is refused on its own; else it is how they go together."""
    for key, each in given.items():
        try:
            cls(**{key: each.value})
        except Rejected:
            return each.place
    return ", ".join(each.place for each in given.values())


def _at(place: str, error: Rejected) -> Rejected:
    return Rejected(f"{place}: {error.message}", detail=error.detail, hint=error.hint)
