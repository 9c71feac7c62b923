"""How fast members catch up, for those who watch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lowmark.raft import Progress

_SAMPLE_MS = 1_000
_WEIGHT = 0.3


class Leader(Protocol):
    """Who knows how much is missing."""

    def bytes_behind(self, node: int) -> int: ...
    def installed_bytes(self, node: int) -> int: ...


class Tracking:
    """A smoothed rate for each member that is behind."""

    def __init__(self) -> None:
        self._samples: dict[int, tuple[int, int, int]] = {}
        self._rates: dict[int, float] = {}

    def clear(self) -> None:
        """Another leader's figures are not ours."""
        self._samples.clear()
        self._rates.clear()

    def bytes_per_s(self, node: int) -> float:
        """How fast a member was lately; 0 if it is not known."""
        return self._rates.get(node, 0.0)

    def tick(self, now_ms: int, progress: Mapping[int, Progress], leader: Leader) -> None:
        """Look again, about once a second, at members that are behind."""
        for node in progress:
            last = self._samples.get(node)
            if last is not None and now_ms - last[0] < _SAMPLE_MS:
                continue
            behind, sent = leader.bytes_behind(node), leader.installed_bytes(node)
            self._samples[node] = (now_ms, behind, sent)
            if not behind and not sent:
                self._rates.pop(node, None)
            elif last is not None:
                gained = max(0, last[1] - behind) + max(0, sent - last[2])
                rate = gained * 1_000 / (now_ms - last[0])
                old = self._rates.get(node, rate)
                self._rates[node] = old + _WEIGHT * (rate - old)
        for node in [node for node in self._samples if node not in progress]:
            self._samples.pop(node)
            self._rates.pop(node, None)
