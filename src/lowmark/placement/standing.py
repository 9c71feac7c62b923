"""Where a move stands: its stage, and what keeps it from getting on, since when. Pure.

A move gets on by steps: its leader begins with it, new nodes copy its rows, old and new members
agree, the metastore says that they are stable. Each step is tried until it is taken; pending stays.
What keeps a move from its next step has a reason and an age. It is an alarm when it has lasted for
all retries:

    a change failed            `retry_max` times in a row
    the next step is not taken     for `retry_max` times `retry_delay_ms`

A move that copies makes progress, or fails. One that waits for its turn waits for others that copy.
A paused one stands still because an operator wants that. None of these is an alarm by its age.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lowmark.group import ChangeError, Group, Stage
from lowmark.placement.assignments import Keys


class MoveStage(StrEnum):
    """How far a move is."""

    WAITING = "waiting"
    COPYING = "copying"
    SWITCHING = "switching"
    FAILED = "failed"
    PAUSED = "paused"
    NO_LEADER = "no leader"


class Obstacle(StrEnum):
    """Why the next step of a move is not taken, if no change of members has failed."""

    TURN = "it waits for its turn"
    NOT_BEGUN = "its leader has not begun with it"
    METASTORE = "its leader waits for the metastore"
    MEMBERS_AWAY = "old and new members must agree, and not all of them are up"
    NOT_IN_FORCE = "its new members are not in force yet"
    NO_LEADER = "no node leads the partition"
    NO_NODE = "no node that may lead the partition is up"
    NO_ANSWER = "no node that leads the partition answers"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the change of a group's members failed, and how often."""

    error: ChangeError
    token: int
    """Of the move that failed."""
    node: int
    """By which node it failed; 0: by none in particular."""
    attempts: int
    since_ms: int
    """When it failed for the first time in a row, by the time of the loop."""
    alarm: bool
    detail: str = ""
    """What that node said, if it said anything."""

    @property
    def words(self) -> str:
        """The reason, in words."""
        return f"{self.error.value}: {self.detail}" if self.detail else self.error.value


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a move stands."""

    stage: MoveStage
    reason: str = ""
    """What keeps it from getting on, in words; empty: nothing does."""
    node: int = 0
    """The node that it is kept by, if it is one."""
    attempts: int = 0
    """How often it has failed in a row."""
    age_ms: int = 0
    """How long that has been so."""
    alarm: bool = False
    """Whether a person should look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a leader knows of a move's next step."""

    age_ms: int
    """How long ago the last one was taken."""
    finishing: bool
    """Whether all new members are near: they are being put in force."""
    paused: bool
    waits_for_turn: bool
    asking: bool
    """Whether the metastore was asked, and has not answered."""
    trouble: str
    """Why the metastore could not be asked the last time, if it could not."""
    failure: Failure | None
    failing_ms: int


def led_standing(group: Group, keys: Keys, step: Step, *, alarm_ms: int) -> Standing:
    """Of a move whose partition is led here; `alarm_ms`: what all retries would take."""
    stage, failure = _stage(group, keys, step), step.failure
    attempts = 0 if failure is None else failure.attempts
    if stage is MoveStage.SWITCHING or (stage is MoveStage.WAITING and not step.waits_for_turn):
        reason, node = _obstacle(group, step, stage)
        return Standing(stage, reason, node, attempts, step.age_ms, step.age_ms >= alarm_ms)
    if stage is MoveStage.PAUSED:
        return Standing(stage)
    if failure is not None:
        words, node = failure.words, failure.node
        return Standing(stage, words, node, attempts, step.failing_ms, failure.alarm)
    if step.waits_for_turn:
        return Standing(stage, Obstacle.TURN, age_ms=step.age_ms)
    return Standing(stage)


def _stage(group: Group, keys: Keys, step: Step) -> MoveStage:
    members, pending = group.members(), keys.pending
    in_force = pending is not None and members.incoming == set(pending.nodes)
    switches = members.joint or group.stage in (Stage.JOINT, Stage.STABLE)
    if in_force or switches or (step.finishing and group.stage is Stage.CATCHING_UP):
        return MoveStage.SWITCHING
    if step.paused:
        return MoveStage.PAUSED
    if group.stage is Stage.CATCHING_UP:
        return MoveStage.COPYING
    return MoveStage.WAITING if step.failure is None else MoveStage.FAILED


def _obstacle(group: Group, step: Step, stage: MoveStage) -> tuple[str, int]:
    """In words, and by which node."""
    lock = step.finishing and group.stage is Stage.CATCHING_UP
    if step.trouble or step.asking or lock:
        detail = f": {step.trouble}" if step.trouble else ""
        return Obstacle.METASTORE + detail, 0
    if stage is MoveStage.WAITING:
        return Obstacle.NOT_BEGUN, 0
    voters = group.members().voters - {group.node}
    away = sorted(node for node in voters if not group.hears(node))
    if away and group.members().joint:
        return Obstacle.MEMBERS_AWAY, away[0]
    return Obstacle.NOT_IN_FORCE, 0
