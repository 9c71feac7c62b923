"""Times as callers give them: hybrid times, wall-clock times, and text."""

from __future__ import annotations

from datetime import UTC, datetime

from lowmark import formatting
from lowmark.catalog.durations import TAKES, parse_duration
from lowmark.errors import Rejected
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of

TimeLike = int | str | datetime

_COUNTER_MAX = (1 << COUNTER_BITS) - 1
_MILLIS_BEFORE_HYBRID = 1 << 45
"""A smaller integer is milliseconds since 1970; as a hybrid time it would be of 1970, too."""


_TIME_END = 1 << 63
"""No clock gives a time as late as this, and no message can carry it."""


def is_hybrid(number: int) -> bool:
    """Whether an integer is a hybrid time: no offset comes near one."""
    return number >= _MILLIS_BEFORE_HYBRID


def known_in(given: object) -> int:
    """The hybrid time that a caller gives: it may have it from another node. 0: it gives none."""
    return given if isinstance(given, int) and is_hybrid(given) and given < _TIME_END else 0


def parse_time(given: TimeLike, *, now: int) -> int:
    """A hybrid time: the last one of the millisecond that a caller means, or exactly the one given.

    An integer is a hybrid time, as `_time` gives it; a small one milliseconds since 1970. Text is
    `now`, `5 minutes ago`, or ISO 8601, which is UTC without a zone. A datetime without a zone is
    refused: it may mean local time, as `datetime.now()` does, or UTC.
    """
    if isinstance(given, bool) or not isinstance(given, int | str | datetime):
        raise Rejected(f"{given!r} is not a time", hint=_HINT)
    if isinstance(given, datetime) and given.tzinfo is None:
        raise Rejected(
            f"{given!r} has no time zone, so it is no point in time",
            hint="Give it its zone: datetime.now(UTC), or moment.replace(tzinfo=UTC) if it is UTC;"
            " moment.astimezone() if it is local time.",
        )
    if isinstance(given, int):
        if given < 0:
            raise Rejected(f"{given} is not a time", hint=_HINT)
        return given if is_hybrid(given) else _last_of(given, now)
    if isinstance(given, str):
        if given.strip() == "now":
            return now
        if is_ago(given):
            millis = millis_of(HybridTime(now)) - _ago(given)
            if millis < 0:
                raise Rejected(f"{given} lies before 1970", hint=_HINT)
            return _last_of(millis, now)
        try:
            given = datetime.fromisoformat(given.strip())
        except ValueError as error:
            raise Rejected(f"{given!r} is not a time", hint=_HINT) from error
    if given.tzinfo is None:  # it was text
        given = given.replace(tzinfo=UTC)
    # Whole milliseconds, rounded down: floats lose the last digits.
    since = given - datetime(1970, 1, 1, tzinfo=UTC)
    millis = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
    if millis < 0:
        raise Rejected(f"{given} lies before 1970", hint=_HINT)
    return _last_of(millis, now)


def is_ago(text: str) -> bool:
    """Whether a text means a time by how long ago it was: `5 minutes ago`."""
    return text.rstrip().endswith(" ago")


def _ago(text: str) -> int:
    millis = parse_duration(text.rstrip().removesuffix(" ago"))
    if millis is None:
        raise Rejected(f"{text!r} is not a time", hint=f"Before 'ago' stands {TAKES}.")
    return millis


_HINT = (
    "Give a datetime, ISO 8601 text such as 2026-01-31T12:00:00Z, 'now', '5 minutes ago', or a"
    " row's _time."
)


def _last_of(millis: int, now: int) -> int:
    """The last time of a millisecond: all that happened in it is included; of this one, so far."""
    last = millis << COUNTER_BITS | _COUNTER_MAX
    return min(last, now) if millis == millis_of(now) else last


def datetime_of(time: int) -> datetime:
    """The wall-clock part of a time."""
    return datetime.fromtimestamp(millis_of(time) / 1_000, UTC)


def time_text(time: int) -> str:
    """The wall-clock part of a time, for people."""
    return formatting.time_text(millis_of(time))
