"""All settings of a process, and the file they come from."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar, get_type_hints

from lowmark.errors import Rejected, invariant
from lowmark.formatting import near
from lowmark.group import GroupConfig, TransportLimits
from lowmark.log import LogConfig
from lowmark.metastore import ClusterSettings, MetastoreConfig
from lowmark.node.logs import Logging
from lowmark.placement import RebalanceConfig
from lowmark.runtime.profiles import profile_in_use
from lowmark.runtime.store import whole_location

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# One setting's value: from TOML or from text to the type that its field has.
#
# Errors here speak only of the value; `load_section` adds where it was written.

Value = int | float | str | bool

_UNIT_BYTES = MappingProxyType(
    {
        "b": 1,
        "kb": 1000,
        "mb": 1000**2,
        "gb": 1000**3,
        "tb": 1000**4,
        "kib": 1024,
        "mib": 1024**2,
        "gib": 1024**3,
        "tib": 1024**4,
    }
)
_SIZE = re.compile(r"([0-9][0-9_]*)\s*([a-z]+)", re.IGNORECASE)
_BOOLS = MappingProxyType({"true": True, "1": True, "false": False, "0": False})


def from_toml(value: object, *, kind: type, is_size: bool) -> Value:
    """Take a value that TOML has typed already; only a size, or a choice, is still text."""
    if issubclass(kind, StrEnum):
        return _choice(value, kind)
    if kind is int and is_size and isinstance(value, str):
        return size_bytes(value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(float(value))
    # Not isinstance: True is an int to Python, and never to the person who wrote it.
    if type(value) is kind and isinstance(value, int | str):
        return value
    raise _not_a(value, kind=kind, is_size=is_size)


def from_text(value: object, *, kind: type, is_size: bool) -> Value:
    """Take a value from the environment, where everything is text."""
    text = str(value)
    if issubclass(kind, StrEnum):
        return _choice(text, kind)
    if kind is str:
        return text
    if kind is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if kind is int and is_size and _SIZE.fullmatch(text.strip()):
        return size_bytes(text)
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return _finite(float(text))
    except ValueError:
        pass
    raise _not_a(text, kind=kind, is_size=is_size)


def size_bytes(text: str) -> int:
    """Turn `256MiB` into bytes. A bare `M` is refused: half the world means 1000, half 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match and match[2].lower() in _UNIT_BYTES:
        return int(match[1]) * _UNIT_BYTES[match[2].lower()]
    raise _not_a(text, kind=int, is_size=True)


def _choice(value: object, kind: type[StrEnum]) -> StrEnum:
    choices = [str(choice) for choice in kind]
    if isinstance(value, str) and value.lower() in choices:
        return kind(value.lower())
    raise Rejected(f"{value!r} is not a choice here", hint=f"Use one of: {', '.join(choices)}.")


def _finite(number: float) -> float:
    if math.isfinite(number):
        return number
    raise _not_a(number, kind=float, is_size=False)


def _not_a(value: object, *, kind: type, is_size: bool) -> Rejected:
    allowed = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
    }
    invariant(kind in allowed, f"a setting can't be of type {kind.__name__}")
    what = 'a size: a whole number of bytes, or text such as "256MiB"' if is_size else allowed[kind]
    return Rejected(f"{value!r} is not {what}", hint=f"Give {what}.")


# One section of the settings: any frozen dataclass, filled from arguments, environment and file.
#
# The dataclass is the only description of a section there is: its fields are the settings, with
# their types and defaults, and its `__post_init__` says which values are allowed.

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
        if not self.values:
            return {}
        kinds = get_type_hints(cls)
        known = [field.name for field in fields(cls)]
        given = {}
        for key, value in sorted(self.values.items()):
            place = f"{self.spell(key)} {self.where}"
            if key not in known:
                raise Rejected(
                    f"{place}: there is no such setting",
                    hint=near(self.spell(key), sorted(map(self.spell, known)), of="Known here:"),
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


FILE_NAME = "lowmark.toml"
FILE_VARIABLE = "LOWMARK_SETTINGS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSync:
    """How long a version of the catalog waits before it is in force; settled by the founder."""

    delay_ms: int = 500

    def __post_init__(self) -> None:
        if self.delay_ms < 1:
            raise Rejected("schema_sync.delay_ms must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLimits:
    """How far the clocks of two nodes may be apart; settled by the founder."""

    max_skew_ms: int = 500

    def __post_init__(self) -> None:
        if self.max_skew_ms < 0:
            raise Rejected("clock.max_skew_ms can't be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSettings:
    """How far back history stays exact, and how often that moves on; settled by the founder."""

    availability_ms: int = 600_000
    interval_ms: int = 10_000

    def __post_init__(self) -> None:
        if self.availability_ms < 0:
            raise Rejected("watermark.availability_ms can't be negative")
        if self.interval_ms < 10:
            raise Rejected("watermark.interval_ms must be at least 10")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Where ledgers are, settled by the founder; and how long a replaced one stays."""

    location: str = ""
    """A folder or a URL; empty: a folder in the data directory."""
    grace_ms: int = 600_000
    """How long files of a replaced ledger stay, for readers that Lowmark does not know."""

    def __post_init__(self) -> None:
        if self.grace_ms < 0:
            raise Rejected("ledger.grace_ms can't be negative")
        # What is settled must mean the same from whatever folder the database is opened next.
        object.__setattr__(self, "location", whole_location(self.location))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field per section; a package that can be tuned adds its own."""

    clock: ClockLimits = field(default_factory=ClockLimits)
    group: GroupConfig = field(default_factory=GroupConfig)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    log: LogConfig = field(default_factory=LogConfig)
    logging: Logging = field(default_factory=Logging)
    metastore: MetastoreConfig = field(default_factory=MetastoreConfig)
    rebalance: RebalanceConfig = field(default_factory=RebalanceConfig)
    schema_sync: SchemaSync = field(default_factory=SchemaSync)
    transport: TransportLimits = field(default_factory=TransportLimits)
    watermark: WatermarkSettings = field(default_factory=WatermarkSettings)

    def for_founding(self) -> ClusterSettings:
        """What a cluster that is founded with these settings keeps; it draws its own id."""
        return ClusterSettings(
            id="",
            members=self.metastore.members,
            schema_sync_delay_ms=self.schema_sync.delay_ms,
            clock_max_skew_ms=self.clock.max_skew_ms,
            watermark_availability_ms=self.watermark.availability_ms,
            watermark_interval_ms=self.watermark.interval_ms,
            ledger_location=self.ledger.location,
            rebalance_adjust=self.rebalance.adjust.value,
        )


# Resolved once: it takes longer than all else that opening a directory does with settings.
_SECTIONS = get_type_hints(Settings)


def chosen(settings: Settings) -> dict[str, str]:
    """What differs from the defaults, by section and field; how logs look does not count."""
    return {
        f"{section}.{each.name}": str(getattr(getattr(settings, section), each.name))
        for section in _SECTIONS
        if section != "logging"
        for each in fields(getattr(settings, section))
        if getattr(getattr(settings, section), each.name)
        != getattr(getattr(_DEFAULTS, section), each.name)
    }


_DEFAULTS = Settings()


def load_settings(
    path: Path | None = None,
    *,
    arguments: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
    by_profile: bool = True,
) -> Settings:
    """Gather the settings from arguments (by section), the environment and one file.

    The file is the one at `path`, else the one that LOWMARK_SETTINGS names, else that of the
    profile in use (`by_profile`), else `lowmark.toml` in the working directory if there is one.
    """
    environment = os.environ if environment is None else environment
    arguments = arguments or {}
    found = _find_file(path, environment=environment, by_profile=by_profile)
    file = _read_file(found) if found else {}

    sections = {
        name: load_section(
            _SECTIONS[name],
            name,
            arguments=arguments.get(name, {}),
            environment=environment,
            file=file.get(name, {}),
            file_name=str(found),
        )
        for name in _SECTIONS
    }
    return Settings(**sections)


def _find_file(
    path: Path | None, *, environment: Mapping[str, str], by_profile: bool
) -> Path | None:
    if path is not None:
        return path
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    profile = profile_in_use() if by_profile and environment is os.environ else None
    if profile and profile.settings:
        return Path(profile.settings)
    here = Path(FILE_NAME)
    return here if here.exists() else None


def _read_file(path: Path) -> Mapping[str, Mapping[str, object]]:
    import tomllib  # noqa: PLC0415 (few directories have a settings file)

    try:
        with path.open("rb") as opened:
            content = tomllib.load(opened)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "It is not UTF-8 text."
        raise Rejected(
            f"the settings file {path} can't be read",
            detail=str(reason),
            hint=f"Check --settings and {FILE_VARIABLE}, or leave out both to run with defaults.",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise Rejected(
            f"the settings file {path} is not TOML",
            detail=f"{error}.",
            hint='Write sections and keys: [log], then wal_bytes_max = "256MiB".',
        ) from error
    for name, section in content.items():
        if name not in _SECTIONS or not isinstance(section, dict):
            raise Rejected(
                f"{name} in {path}: there is no such section",
                detail="A settings file holds sections of keys, and nothing outside of them.",
                hint=near(f"[{name}]", [f"[{known}]" for known in _SECTIONS], of="Known here:"),
            )
    return content
