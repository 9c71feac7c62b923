"""Times as callers write them."""

from __future__ import annotations

import pytest

from lowmark.convert.times import parse_time
from lowmark.errors import Rejected
from lowmark.runtime import COUNTER_BITS

NOW_MS = 1_800_000_000_000
NOW = NOW_MS << COUNTER_BITS | 7


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("5 minutes ago", 300_000), (" 1 second ago ", 1_000), ("36h ago", 36 * 3_600_000)],
)
def test_how_long_ago_is_the_last_time_of_that_millisecond(text: str, ago_ms: int) -> None:
    assert parse_time(text, now=NOW) == (NOW_MS - ago_ms + 1 << COUNTER_BITS) - 1


def test_no_time_ago_is_now_and_no_later() -> None:
    assert parse_time("0 ms ago", now=NOW) == NOW


@pytest.mark.parametrize(
    "text", ["3 moons ago", "ago", " ago", "-1 day ago", "long ago", "1.5 h ago"]
)
def test_another_word_before_ago_is_refused_with_what_may_stand_there(text: str) -> None:
    with pytest.raises(Rejected, match="is not a time"):
        parse_time(text, now=NOW)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(Rejected, match="before 1970"):
        parse_time("5000 weeks ago", now=NOW)
