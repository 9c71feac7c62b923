"""The options of a table, each with what it takes and what it is for.

A table keeps only what was set, as text. So a release may change a default, and an option of a
newer release goes through an older one unharmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from lowmark.catalog.durations import TAKES, duration_text, parse_duration
from lowmark.catalog.errors import CatalogRefused, Reason

OptionValue = str | int
_NUMBER_MAX = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What one option takes: one of some words, a length of time, or a whole number."""

    name: str
    words: tuple[str, ...] = ()
    duration: bool = False
    """Whether it takes a length of time."""
    default: str | None
    help: str

    @property
    def takes(self) -> str:
        """What may be given, for people."""
        if self.duration:
            return TAKES
        return " | ".join(self.words) if self.words else "a whole number from 0 on"


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            name="compaction",
            words=("off", "manual", "auto"),
            default="manual",
            help="what starts compaction: nothing (off), you (manual), triggers too (auto)",
        ),
        Option(
            name="compression",
            words=("none", "lz4", "zstd"),
            default="none",
            help="how batches of rows are compressed on their way into the log",
        ),
        Option(
            name="dirty_bytes",
            default=str(64 << 20),
            help="triggered compaction waits until a run could compact this many bytes",
        ),
        Option(
            name="dirty_percent",
            default="50",
            help="and until they are this many percent of backlog and ledger together",
        ),
        Option(
            name="history",
            duration=True,
            default=None,
            help="the table stays exact for this long, if that is longer than the database's",
        ),
        Option(
            name="keyless_rows",
            words=("keep", "refuse"),
            default="refuse",
            help="what a table with a key does with a row without one: refuse it, or keep it",
        ),
        Option(
            name="max_lag_ms",
            default=None,
            help="triggered compaction runs at the latest this long after a row was written",
        ),
        Option(
            name="min_lag_ms",
            default="0",
            help="compaction leaves rows alone that are younger than this",
        ),
        Option(
            name="retention_bytes",
            default=None,
            help="rows go, oldest first, when a partition is larger than this",
        ),
        Option(
            name="retention_ms",
            default=None,
            help="rows go when they are older than this",
        ),
    )
}


def check_option(name: str, *, table: str) -> Option:
    """The option with this name, or a refusal that lists those there are."""
    option = OPTIONS.get(name)
    if option is None:
        known = ", ".join(sorted(OPTIONS))
        raise _refused(table, f"there is no table option {name!r}", hint=f"Options are {known}.")
    return option


def option_text(name: str, value: OptionValue, *, table: str) -> str:
    """A value in the one form that is kept, or a refusal that says what the option takes."""
    option = check_option(name, table=table)
    text = str(value).strip()
    if option.duration:
        millis = parse_duration(value)
        if millis is not None:
            return duration_text(millis)
    elif option.words:
        if text in option.words:
            return text
    elif (
        not isinstance(value, bool) and text.isascii() and text.isdigit() and len(text) <= 19
    ) and int(text) < _NUMBER_MAX:
        return str(int(text))
    raise _refused(table, f"option {name} can't be {value!r}", hint=f"It takes {option.takes}.")


def check_together(options: Iterable[tuple[str, str]], *, table: str, has_key: bool) -> None:
    """Refuse options that contradict each other, or what the table is."""
    values = TableOptions.of(options)
    retention = values.retention_ms is not None or values.retention_bytes is not None
    if retention and has_key and values.compaction != "off":
        raise _refused(
            table,
            "retention is for tables without a key or with compaction=off",
            detail="With a key, compaction decides which rows go.",
            hint="Set compaction=off too, or unset retention_ms and retention_bytes.",
        )
    if values.history_ms is not None and values.retention_ms is not None:
        if values.retention_ms < values.history_ms:
            raise _refused(
                table,
                f"history={duration_text(values.history_ms)} is longer than"
                f" retention_ms={values.retention_ms}",
                detail="Rows that went by retention are missing in the past, too.",
                hint="Shorten history, or raise retention_ms.",
            )
    if values.max_lag_ms is not None and values.max_lag_ms < values.min_lag_ms:
        raise _refused(
            table,
            f"max_lag_ms={values.max_lag_ms} is below min_lag_ms={values.min_lag_ms}",
            hint="Rows can't be compacted before they may be: raise max_lag_ms.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options in force for a table: what was set, and defaults for the rest."""

    compaction: Literal["off", "manual", "auto"]
    compression: Literal["none", "lz4", "zstd"]
    dirty_bytes: int
    dirty_percent: int
    history_ms: int | None
    keyless_rows: Literal["keep", "refuse"]
    max_lag_ms: int | None
    min_lag_ms: int
    retention_bytes: int | None
    retention_ms: int | None

    @classmethod
    def of(cls, options: Iterable[tuple[str, str]]) -> TableOptions:
        """Read what a table keeps; what a newer release set is passed over."""
        texts = {name: option.default for name, option in OPTIONS.items()}
        texts.update((name, text) for name, text in options if name in texts)
        return cls(
            compaction=cast("Literal['off', 'manual', 'auto']", texts["compaction"]),
            compression=cast("Literal['none', 'lz4', 'zstd']", texts["compression"]),
            dirty_bytes=_number(texts["dirty_bytes"]) or 0,
            dirty_percent=_number(texts["dirty_percent"]) or 0,
            history_ms=parse_duration(texts["history"] or ""),
            keyless_rows=cast("Literal['keep', 'refuse']", texts["keyless_rows"]),
            max_lag_ms=_number(texts["max_lag_ms"]),
            min_lag_ms=_number(texts["min_lag_ms"]) or 0,
            retention_bytes=_number(texts["retention_bytes"]),
            retention_ms=_number(texts["retention_ms"]),
        )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _refused(table: str, what: str, *, hint: str, detail: str = "") -> CatalogRefused:
    return CatalogRefused(
        f"table {table} can't have these options: {what}",
        reason=Reason.OPTION,
        about=("table", table),
        detail=detail,
        hint=hint,
    )
