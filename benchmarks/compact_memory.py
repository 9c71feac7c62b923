"""The most anonymous memory that some processes had together, looked at again and again.

Anonymous memory (`RssAnon`) is what processes hold themselves, without the pages of files that the
system keeps for them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self

LOOKS_EVERY_S = 0.01
LOOKS_FOR_EVERY = 20
"""After so many looks it is found out anew which processes there are."""
PYTHON_TASK = b"pyspark.worker"
"""What the command line of a daemon has, PySpark's or ours; its workers are forks of it."""


class Peak:
    """Looks while its `with` lasts."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lowmark bench memory", daemon=True)
        self.bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        pids: list[int] = []
        for number in count():
            if number % LOOKS_FOR_EVERY == 0 or not pids:
                pids = list(self._pids())
            self.bytes = max(self.bytes, sum(map(anonymous_bytes_of, pids)))
            if self._over.wait(LOOKS_EVERY_S):
                return


def anonymous_bytes_of(pid: int) -> int:
    """What a process holds; nothing if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "RssAnon":
                return int(value.split()[0]) << 10
    return 0


def python_tasks() -> list[int]:
    """The processes of Spark's Python tasks that this process, or its Java process, has started."""
    return [pid for pid in _descendants(os.getpid()) if PYTHON_TASK in _command_of(pid)]


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            parents.setdefault(_parent_of(int(entry.name)), []).append(int(entry.name))
    found, at = [pid], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return found[1:]


def _parent_of(pid: int) -> int:
    with suppress(OSError):
        # The second field is the program's name, which may have spaces; the fourth is the parent.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
