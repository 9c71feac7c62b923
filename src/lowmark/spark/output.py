"""What the Java process prints, sorted: what nobody can use goes no further than the debug log.

Java and Spark print some lines that no setting keeps them from:

* Java says at every start that an incubating module is used, and which options it picked up.
* Workers wait in a pool for their next task, and after a minute of nothing to do Spark hangs up on
  them. Over a Unix socket a worker notices that at once, when it reports the end of the
  connection to the connection that has ended, and prints a traceback: `BrokenPipeError` in
  `pyspark/daemon.py`. Nothing was lost; it had nothing to do.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from typing import IO

__all__ = ["Output", "Sorter"]

logger = logging.getLogger(__name__)

_KEPT_LINES = 60
_TRACEBACK = "Traceback (most recent call last):"
_HUNG_UP = "BrokenPipeError: [Errno 32] Broken pipe"
_OF_JAVA = re.compile(r"WARNING: |Picked up \w+: ")


class Sorter:
    """Says of every line whether it is worth showing; a traceback is held until its end is seen."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._open = 0  # workers print at the same time, so tracebacks may be interleaved

    def take(self, line: str) -> list[str]:
        """The lines that are worth showing, now that this one was read."""
        if line == _TRACEBACK:
            self._open += 1
            self._held.append(line)
            return []
        if self._open:
            if line == _HUNG_UP and all(_is_daemons(held) for held in self._held):
                self._open -= 1
                if not self._open:
                    self._held.clear()
                return []
            self._held.append(line)
            if _is_daemons(line):
                return []
            return self.rest()
        return [] if _OF_JAVA.match(line) or not line.strip() else [line]

    def rest(self) -> list[str]:
        """What is still held."""
        held, self._held, self._open = self._held, [], 0
        return held


def _is_daemons(line: str) -> bool:
    return line == _TRACEBACK or "pyspark/daemon.py" in line


class Output:
    """Reads what a process prints until it ends, on a thread of its own."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._read, name="spark output", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """The last lines that were worth showing."""
        return "\n".join(self._last)

    def join(self, seconds: float) -> None:
        """Wait until the process has said its last."""
        self._thread.join(seconds)

    def _read(self) -> None:
        sorter = Sorter()
        with self._stream:
            for data in self._stream:
                line = data.decode(errors="replace").rstrip()
                logger.debug("spark said", extra={"line": line})
                self._show(sorter.take(line))
            self._show(sorter.rest())

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self._last.append(line)
            logger.warning("spark: %s", line)
