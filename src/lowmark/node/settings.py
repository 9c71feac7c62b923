"""All settings of a process, and the file they come from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from lowmark.errors import Rejected
from lowmark.group import GroupConfig, TransportLimits
from lowmark.log import LogConfig
from lowmark.metastore import ClusterSettings, MetastoreConfig
from lowmark.node.logs import Logging
from lowmark.node.section import SectionT, did_you_mean, load_section
from lowmark.runtime.store import whole_location

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
    """One field per section; a package that can be tuned adds its own, also in `load_settings`."""

    clock: ClockLimits = field(default_factory=ClockLimits)
    group: GroupConfig = field(default_factory=GroupConfig)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    log: LogConfig = field(default_factory=LogConfig)
    logging: Logging = field(default_factory=Logging)
    metastore: MetastoreConfig = field(default_factory=MetastoreConfig)
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
        )


_SECTIONS = tuple(each.name for each in fields(Settings))


def load_settings(
    path: Path | None = None,
    *,
    arguments: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Gather the settings from arguments (by section), the environment and one file.

    The file is the one at `path`, else the one that LOWMARK_SETTINGS names, else `lowmark.toml` in
    the working directory if there is one.
    """
    environment = os.environ if environment is None else environment
    arguments = arguments or {}
    found = _find_file(path, environment=environment)
    file = _read_file(found) if found else {}

    def section(cls: type[SectionT], name: str) -> SectionT:
        return load_section(
            cls,
            name,
            arguments=arguments.get(name, {}),
            environment=environment,
            file=file.get(name, {}),
            file_name=str(found),
        )

    return Settings(
        clock=section(ClockLimits, "clock"),
        group=section(GroupConfig, "group"),
        ledger=section(LedgerSettings, "ledger"),
        log=section(LogConfig, "log"),
        logging=section(Logging, "logging"),
        metastore=section(MetastoreConfig, "metastore"),
        schema_sync=section(SchemaSync, "schema_sync"),
        transport=section(TransportLimits, "transport"),
        watermark=section(WatermarkSettings, "watermark"),
    )


def _find_file(path: Path | None, *, environment: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    here = Path(FILE_NAME)
    return here if here.exists() else None


def _read_file(path: Path) -> Mapping[str, Mapping[str, object]]:
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
                hint=did_you_mean(f"[{name}]", [f"[{known}]" for known in _SECTIONS]),
            )
    return content
