"""How partitions are moved: the settings."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.errors import Rejected
from lowmark.placement.decisions import Adjust


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceConfig:
    """How partitions are moved."""

    adjust: Adjust = Adjust.UPDATE
    """Whether a new target updates the list of a move that copies, or cancels the move first."""
    retry_delay_ms: int = 1_000
    retry_max: int = 10
    """After this many failures in a row, a move is an alarm; see `standing`."""
    moves_max: int = 4
    """This many partitions of those that a node leads copy data at a time."""
    reseed: bool = True
    """Whether damaged copies are made anew by themselves, where the others do without them."""
    reseed_again_ms: int = 60_000
    """How long a copy that is damaged again waits; twice as long each time."""

    @property
    def alarm_ms(self) -> int:
        """What all retries take: a move that does not get on for longer is an alarm, too."""
        return self.retry_delay_ms * self.retry_max

    def __post_init__(self) -> None:
        for name in ("retry_delay_ms", "retry_max", "moves_max", "reseed_again_ms"):
            if getattr(self, name) < 1:
                raise Rejected(f"rebalance.{name} must be at least 1")
