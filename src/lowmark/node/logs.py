"""What a process says about itself, on stderr: `key=value` for people, JSON lines for machines.

Log calls give a plain sentence and fields, `log.info("segment sealed", extra={"group": group})`;
the fields are kept apart from the sentence, so that both forms can be searched by them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO, assert_never


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    """The settings of the section `logging`."""

    level: LogLevel = LogLevel.WARNING
    format: LogFormat = LogFormat.TEXT


def configure_logging(config: Logging, *, stream: TextIO | None = None) -> None:
    """Send the logs of this process to stderr; called again, it replaces what it did before.

    Only a process of our own calls this. A node that is embedded in another program leaves
    logging to that program.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    match config.format:
        case LogFormat.TEXT:
            handler.setFormatter(_TextLines())
        case LogFormat.JSON:
            handler.setFormatter(_JsonLines())
        case _:
            assert_never(config.format)
    root.addHandler(handler)
    # The level is ours alone: `debug` must not bring out the chatter of every library.
    logging.getLogger("lowmark").setLevel(config.level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """A type of its own, so that ours differs from what others have added to the root logger."""


# What logging itself puts on a record; everything else on it is a field that the caller gave.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    at = datetime.fromtimestamp(record.created, UTC)
    fields: dict[str, object] = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    for key, value in vars(record).items():
        if key not in _OWN_ATTRIBUTES:
            fields[f"{key}_" if key in fields else key] = value
    return fields


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = _key_values(_fields(record))
        if record.exc_info:
            # People read a traceback in lines; machines have the JSON form.
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _key_values(fields: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_word(str(value))}" for key, value in fields.items())


def _word(text: str) -> str:
    # Quoted as JSON where a bare word would be ambiguous: a line break in a value must not become
    # a line of its own in the log.
    plain = text.isprintable() and text and not any(c in text for c in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
