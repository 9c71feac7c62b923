"""What operators ask for, by name: over a node's server, and by a caller in its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from lowmark.group import Future
from lowmark.node.action import Action, ActionUnknown, decoded, encode, reply
from lowmark.node.bridge import Bridge

TIMEOUT_S = 60.0

Answers: TypeAlias = Mapping[str, tuple[type[msgspec.Struct], Callable[[Any], Future[Any]]]]
"""By the action's name: what it is asked with, and what answers it, on the loop."""


class Operating:
    """One node's answers."""

    def __init__(self, bridge: Bridge, *answers: Answers) -> None:
        self._bridge = bridge
        self._answers = {name: how for some in answers for name, how in some.items()}

    def actions(self) -> dict[str, Action]:
        """For a server; called on its threads."""
        return {name: self._action(*how) for name, how in self._answers.items()}

    def _action(self, kind: type[msgspec.Struct], answer: Callable[[Any], Future[Any]]) -> Action:
        ask = self._bridge.ask
        return reply(kind, lambda asked: ask(lambda: answer(asked), timeout_s=TIMEOUT_S))

    def operate(self, action: str, body: bytes) -> Future[bytes]:
        """Carry one of these actions out for a caller in this process. On the loop."""
        if action not in self._answers:
            raise ActionUnknown(action, self._answers)
        kind, answer = self._answers[action]
        return answer(decoded(msgspec.json.Decoder(kind), body)).map(encode)
