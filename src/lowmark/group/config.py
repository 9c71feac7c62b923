"""How groups behave: times, limits, when to take snapshots. All groups of a node share it."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.errors import Rejected

COMMAND_BYTES_LIMIT = 14 << 20
"""A frame has room for one such command, and for what describes it."""

_MAY_BE_ZERO = frozenset(
    {"rest_ticks", "install_bytes_per_s", "rewrite_bytes_per_s", "near_entries", "near_bytes"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of the groups of one node."""

    tick_ms: int = 100
    heartbeat_ticks: int = 1
    election_ticks: int = 10
    rest_ticks: int = 20
    """After so many quiet ticks a group rests: nodes watch over each other instead. 0: never."""
    request_timeout_ms: int = 10_000

    command_bytes_max: int = 8 << 20
    waiting_bytes_max: int = 64 << 20
    """Proposals of one group that are not committed."""
    waiting_requests_max: int = 16_384
    """Proposals and reads of one group that are not answered."""
    message_bytes_max: int = 1 << 20
    inflight_max: int = 256
    inflight_bytes_max: int = 16 << 20
    """Of one group to one member."""

    snapshot_bytes: int = 256 << 20
    """Log since the last snapshot; then another one is taken."""
    snapshot_entries: int = 1_000_000
    snapshot_age_ms: int = 3_600_000
    """A log that is not empty gets a snapshot at least so often."""
    snapshot_entries_min: int = 1
    snapshot_segments: int = 64
    """Segments since the last snapshot, however small: each process that opens a directory, writes
    a little and closes it leaves one, and only what a snapshot covers is merged."""

    install_piece_bytes: int = 1 << 20
    install_window_bytes: int = 8 << 20
    install_bytes_per_s: int = 0
    """Of all groups of a node, to all members that catch up: the rate that `Groups.throttle` begins
    with. 0: as fast as it goes."""
    install_stall_ms: int = 10_000
    """An installation that makes no progress for so long is given up."""

    near_entries: int = 1_000
    near_bytes: int = 16 << 20
    """A learner that is closer than both is near enough to become a voter."""
    catch_up_stall_ms: int = 30_000
    """A learner that makes no progress for so long fails the change of peers."""

    rewrite_chunk_entries: int = 256
    rewrite_bytes_per_s: int = 32 << 20
    """0: as fast as it goes."""

    def __post_init__(self) -> None:
        if self.election_ticks <= self.heartbeat_ticks or self.heartbeat_ticks < 1:
            raise Rejected("group.election_ticks must exceed group.heartbeat_ticks, which is >= 1")
        for name in self.__dataclass_fields__:
            least = 0 if name in _MAY_BE_ZERO else 1
            if getattr(self, name) < least:
                raise Rejected(f"group.{name} must be at least {least}")
        if self.command_bytes_max > COMMAND_BYTES_LIMIT:
            raise Rejected(
                f"group.command_bytes_max can't exceed {COMMAND_BYTES_LIMIT}",
                detail="A command travels in one frame.",
            )
        if self.inflight_bytes_max < self.message_bytes_max:
            raise Rejected("group.inflight_bytes_max must have room for group.message_bytes_max")

    @property
    def election_ms(self) -> int:
        """The election timeout."""
        return self.tick_ms * self.election_ticks

    @property
    def missing_ticks(self) -> int:
        """A member whose node says nothing for this many ticks is missing; see `rest`."""
        return 2 * self.election_ticks
