"""What the members of a new table do not know yet, asked until they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from lowmark.table import MembersBehind

T = TypeVar("T")
AGREED_S: Final = 15.0
"""So long a caller waits until the members of a new table have agreed on what they know. Members of
an earlier release never do."""
_RETRY_S: Final = 0.2


def agreed(ask: Callable[[], T], *, patience_s: float = AGREED_S) -> T:
    """What is answered when all members know how; `MembersBehind`, if that takes too long."""
    ends_at = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except MembersBehind:
            if time.monotonic() >= ends_at:
                raise
            time.sleep(_RETRY_S)
