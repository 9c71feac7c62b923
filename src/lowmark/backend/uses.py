"""Whose files are read: manifests of ledgers that no sweep may take away, and how often each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable


class FileUses:
    """Counts who reads which ledger. May be used on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: Counter[str] = Counter()

    def take(self, manifest: str) -> Callable[[], None]:
        """It is read from now on; gives what ends that. Nothing is opened here."""
        with self._lock:
            self._uses[manifest] += 1
        ended = False

        def end() -> None:
            nonlocal ended
            with self._lock:
                if not ended:
                    ended = True
                    self._uses[manifest] -= 1
                    if not self._uses[manifest]:
                        del self._uses[manifest]

        return end

    def in_use(self) -> set[str]:
        """The manifests that are read."""
        with self._lock:
            return set(self._uses)
