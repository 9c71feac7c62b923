"""Lengths of time as people write them: `7 days`, `36 hours`, `90 min`, `500 ms`."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "week": 7 * 86_400_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1_000,
    "ms": 1,
}
_WORDS = {
    **_UNITS,
    **{f"{name}s": size for name, size in _UNITS.items() if name != "ms"},
    "w": _UNITS["week"],
    "d": _UNITS["day"],
    "h": _UNITS["hour"],
    "min": _UNITS["minute"],
    "s": _UNITS["second"],
}
_WRITTEN = re.compile(r"\s*(\d{1,15})\s*([a-z]+)\s*")
DURATION_MS_MAX = 100 * 366 * 86_400_000
TAKES = "a number and a unit: 7 days, 36 hours, 90 minutes, 30 seconds, 500 ms"


def parse_duration(given: object) -> int | None:
    """In milliseconds; None if it is no length of time, or one of more than a hundred years."""
    if isinstance(given, timedelta):
        millis = given // timedelta(milliseconds=1)
    elif not isinstance(given, str):
        return None
    else:
        found = _WRITTEN.fullmatch(given.lower())
        if found is None or found[2] not in _WORDS:
            return None
        millis = int(found[1]) * _WORDS[found[2]]
    return millis if 0 <= millis <= DURATION_MS_MAX else None


def duration_text(millis: int) -> str:
    """The one form in which it is written: in the largest unit that has no remainder but weeks."""
    for name, size in _UNITS.items():
        if name != "week" and millis and millis % size == 0:
            count = millis // size
            return f"{count} {name}" if name == "ms" or count == 1 else f"{count} {name}s"
    return "0 ms"
