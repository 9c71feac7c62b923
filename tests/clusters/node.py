"""What every node that is a child has: a runtime, a log, and orders of its parent to carry out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from clusters.processes import Parent
from lowmark.runtime import RealLoop, real_runtime

SWITCH_INTERVAL_SECONDS = 0.0005
RETRY_MS = 1


class Node:
    """An order `{"do": "x", ...}` calls `_do_x` on the loop, which says the answer in its time."""

    def __init__(self, folder: Path) -> None:
        self._parent = Parent()
        self._over = False
        self._runtime = real_runtime(str(folder))
        loop = self._runtime.loop
        assert isinstance(loop, RealLoop)
        self._loop = loop

    def run(self) -> None:
        """Carry orders out until the parent says no more."""
        self._loop.asyncio.add_reader(self._parent.fileno(), self._hear)
        self._loop.run_until(lambda: self._over, timeout_ms=86_400_000)
        self.close()
        self._loop.close()

    def close(self) -> None:
        """Close what was opened."""
        raise NotImplementedError

    def say(self, what: dict[str, Any]) -> None:
        """Tell the parent."""
        self._parent.send(what)

    def _hear(self) -> None:
        try:
            orders = self._parent.arrived(dict[str, Any])
        except SystemExit:
            self._over = True
            self._loop.call_soon(lambda: None)
            return
        for order in orders:
            self._loop.call_soon(lambda order=order: self._do(**order))  # type: ignore[misc]

    def _do(self, do: str, **what: Any) -> None:
        getattr(self, f"_do_{do}")(**what)

    def _when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        if condition():
            then()
        else:
            self._loop.call_later(RETRY_MS, lambda: self._when(condition, then))


def run_node(kind: Callable[[int, Path, dict[str, Any]], Node]) -> None:
    """`python -m MODULE NUMBER FOLDER SETTINGS`."""
    number, folder, settings = sys.argv[1:]
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    kind(int(number), Path(folder), msgspec.json.decode(settings)).run()
