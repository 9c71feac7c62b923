"""How numbers, times and values are shown to people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import UTC, datetime

_SHOWN_CHARACTERS_MAX = 100


def counted(number: int, what: str, many: str = "") -> str:
    """A number of things, such as "1 row" or "2,000 rows"."""
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


_OF_ONE = {"are": "is", "were": "was", "have": "has"}


def verb(number: int, of_many: str) -> str:
    """The verb behind `counted`: what it is of several, such as "are" or "wait", or of one."""
    return of_many if number != 1 else _OF_ONE.get(of_many, f"{of_many}s")


def bytes_text(count: int) -> str:
    """A number of bytes, for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{count} B"


def times_text(millis: int) -> str:
    """A length of time, for people."""
    seconds = max(0, millis) / 1_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def time_text(time_ms: int) -> str:
    """A time as it is shown everywhere: UTC, to the millisecond."""
    at = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(value: object) -> str:
    """A value as messages show it: its `repr`, cut if it is long."""
    if isinstance(value, str | bytes) and len(value) > _SHOWN_CHARACTERS_MAX:
        value = value[: _SHOWN_CHARACTERS_MAX + 1]  # a huge repr would be made for nothing
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python turns into text
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 1]}…"


def near(wrong: str, known: Iterable[str], *, of: str = "The table has") -> str:
    """A hint: the name that was probably meant, or all of them."""
    names = list(known)
    folded = {name.casefold(): name for name in names}
    found = difflib.get_close_matches(wrong.casefold(), folded, n=1)
    if found:
        return f"Did you mean {folded[found[0]]}?"
    some = ", ".join(names[:20])
    return f"{of} {some}{'' if len(names) <= 20 else ' and others'}."


def insecure_words(node: str, open_at: Iterable[str]) -> str:
    """What a person is told of a node at which strangers can come in."""
    return (
        f"{node} is insecure: other machines can reach {' and '.join(open_at)}, and read and change"
        " all data there without a token"
    )


def by_text(author: str, token: str) -> str:
    """A node or a process, and the name of the token by which it was asked, if by one."""
    return f"{token}@{author}" if token else author
