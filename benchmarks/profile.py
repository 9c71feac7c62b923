"""A profile good enough to show why a figure misses: where each thread is, looked at often."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Self

import lowmark
from benchmarks.figure import Spot
from benchmarks.stopwatch import Stopwatch

_INTERVAL_SECONDS = 0.002
_SPOTS = 12
_OURS = tuple(f"{Path(file).parent}{os.sep}" for file in (lowmark.__file__, __file__))
_WAITING = frozenset({"select", "wait", "get", "_work", "run_forever", "_run_once"})


class Sampler:
    """Looks at all threads from one of its own; use it around the work."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, str]] = Counter()
        self._looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def spots(self) -> list[Spot]:
        """Where the threads were found most often; one that waits for work does not count."""
        looks = max(1, self._looks)
        most = self._found.most_common(_SPOTS)
        return [Spot(thread, where, seen / looks) for (thread, where), seen in most]

    def _look_often(self) -> None:
        me = threading.get_ident()
        while not self._over.wait(_INTERVAL_SECONDS):
            if not Stopwatch.running:
                continue
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            self._looks += 1
            for ident, frame in sys._current_frames().items():
                if ident != me and frame.f_code.co_name not in _WAITING:
                    self._found[names.get(ident, "?"), _where(frame)] += 1


def _where(frame: FrameType) -> str:
    """The innermost function of ours, and the one it called if that is somebody else's."""
    inner, ours = frame, frame
    while not ours.f_code.co_filename.startswith(_OURS) and ours.f_back is not None:
        ours = ours.f_back
    file = Path(ours.f_code.co_filename)
    package = next((Path(root) for root in _OURS if file.is_relative_to(root)), file.parent)
    where = f"{file.relative_to(package)}:{ours.f_code.co_qualname}:{ours.f_lineno}"
    return where if inner is ours else f"{where} > {inner.f_code.co_name}"
