"""Memory that the system has free: how much of it a turn takes, and touching it beforehand.

On a virtual machine the first touch of a page that its host has not given yet costs many times what
later ones cost, whoever makes them (measured: 2.6 s per GiB, then 0.15). Without this the side that
comes first, or uses more, would pay for it. Pages count for the whole machine, so it is enough to
touch them here and to give them back, whichever process takes them next, or the file cache does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np

PAGE_BYTES = 4_096
LOOKS_EVERY_S = 0.02
TOUCHED_BYTES_MAX = 4 << 30
LEFT_BYTES = 256 << 20
"""Of what is free so much is never touched: others are running, too."""


def free_bytes() -> int:
    """What no process holds and no file's pages fill; 0 if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree:")), 0)


def touch(wanted: int) -> int:
    """Write to so many bytes of free memory, as far as there are, and give them back; how many.

    What is not free needs no touch: somebody has used it.
    """
    count = max(0, min(wanted, free_bytes() - LEFT_BYTES, TOUCHED_BYTES_MAX))
    memory = np.empty(count, np.uint8)
    memory[::PAGE_BYTES] = 1
    return count


class Taken:
    """Looks, while its `with` lasts, how far free memory falls."""

    def __init__(self, look: Callable[[], int] = free_bytes) -> None:
        self._look = look
        self._first = look()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="lowmark bench", daemon=True)
        self.bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_often(self) -> None:
        while True:
            over = self._over.wait(LOOKS_EVERY_S)
            self.bytes = max(self.bytes, self._first - self._look())
            if over:
                return
