"""Turns and rounds: who runs when, in which folder, and what is made of it."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figure import Figure, Side, Target, Variant, compared, median_rate
from benchmarks.profile import Sampler
from benchmarks.sizes import Sizes
from lowmark.log import Log, LogConfig
from lowmark.runtime import RealDisk, Runtime, real_runtime

__all__ = ["TIMEOUT_MS", "Bench", "Turn", "opened"]

Turn = Callable[[Path], Side]
"""One side's turn in a fresh folder."""

TIMEOUT_MS = 600_000


class _Hasty(RealDisk):
    """A disk that does not wait for its bytes: to build what a turn will find, never to measure."""

    def open(self, path: str, mode: Any) -> Any:
        file = super().open(path, mode)
        file.datasync = file.sync = lambda: None  # type: ignore[method-assign]
        return file

    def sync_dir(self, path: str) -> None:
        del path


@contextlib.contextmanager
def opened(
    folder: Path, config: LogConfig, *, hasty: bool = False
) -> Iterator[tuple[Runtime, Log]]:
    """A log in that folder, on a loop of its own."""
    runtime = real_runtime(str(folder))
    if hasty:
        runtime = replace(runtime, disk=_Hasty(str(folder)))
    try:
        log = Log.open(runtime, config)
        try:
            yield runtime, log
        finally:
            log.close()
    finally:
        runtime.loop.close()


@dataclass(slots=True)
class Bench:
    """What every figure is given."""

    root: Path
    sizes: Sizes
    say: Callable[[str], None]
    runs: int | None = None
    """In place of the sizes'."""
    variants: bool | None = None
    _folders: int = field(default=0)

    def compare(
        self,
        name: str,
        ours: Turn,
        peer: Turn,
        *,
        target: Target,
        unit: str,
        per_unit: float = 1.0,
        notes: str,
        variants: Mapping[str, tuple[Turn, Turn]] | None = None,
        runs: int | None = None,
        profile: bool = True,
    ) -> Figure:
        """Let the sides take turns; variants have theirs in the same rounds.

        A miss is profiled, unless the work is done in other processes.
        """
        wanted = self.sizes.variants if self.variants is None else self.variants
        variants = (variants or {}) if wanted else {}
        pairs = {name: (ours, peer), **variants}
        # A variant that shares a side with the figure shares its turns, too.
        sides: dict[Turn, list[Side]] = {turn: [] for pair in pairs.values() for turn in pair}
        runs = runs or self.runs or self.sizes.runs
        for number in range(runs + 1):
            self.say(f"{name}: round {number} of {runs}")
            for turn, taken in sides.items():
                side = self._take(turn)
                if number:  # the first round is there to warm both sides up
                    taken.append(side)
        values = compared(sides[ours], sides[peer], target)
        figure = Figure(
            name=name,
            value=median(values),
            target=target,
            unit=unit,
            ours=median_rate(sides[ours]) / per_unit,
            peer=median_rate(sides[peer]) / per_unit,
            spread=(min(values), max(values)),
            runs=len(values),
            notes=notes,
            variants={
                variant: Variant(
                    median(compared(sides[a], sides[b], target)),
                    median_rate(sides[a]) / per_unit,
                    median_rate(sides[b]) / per_unit,
                )
                for variant, (a, b) in variants.items()
            },
        )
        if figure.met or not profile:
            return figure
        return replace(figure, profile=self._profile(name, ours).spots())

    def _take(self, turn: Turn) -> Side:
        with self.fresh_folder() as folder:
            gc.collect()
            os.sync()
            return turn(folder)

    def _profile(self, name: str, turn: Turn) -> Sampler:
        self.say(f"{name}: missed its target, profiling one more turn")
        with Sampler() as sampler:
            self._take(turn)
        return sampler

    @contextlib.contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """An empty folder that goes when it is no longer needed."""
        self._folders += 1
        folder = self.root / f"{self._folders:04d}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
