"""What is closed when the interpreter ends, in one order, whatever was imported or opened first.

    rows        producers store what they were given      every database is still open
    sessions    databases are closed, guests' first       a guest may use an owner of this process
    servers     those that no session has
    backends    those that no session has

Python calls hooks backwards. A hook in each module would make their order that of the imports, and
a database could be closed under its producers.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

Step: TypeAlias = Literal["rows", "sessions", "servers", "backends"]
_STEPS: Final[tuple[Step, ...]] = ("rows", "sessions", "servers", "backends")
_closing: Final[dict[Step, list[Callable[[], None]]]] = {step: [] for step in _STEPS}


def at_exit(step: Step, close: Callable[[], None]) -> None:
    """Call this in that step."""
    _closing[step].append(close)
    come_first()


def come_first() -> None:
    """Run before every hook that is there by now: Flight ends its servers in one, and waits for
    their clients.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    failed: list[BaseException] = []
    for close in (one for step in _STEPS for one in _closing[step]):
        try:
            close()
        except BaseException as error:  # the others are closed all the same
            failed.append(error)
    if failed:
        raise failed[0]
