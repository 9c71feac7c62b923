"""What operators ask for, by name: over a node's server, and by a caller in its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from lowmark.group import Future
from lowmark.node.action import Action, Call, decoded, encode
from lowmark.node.bridge import Bridge
from lowmark.node.callers import OWNER, calling
from lowmark.node.errors import ActionUnknown
from lowmark.tokens import Caller

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
        decoder = msgspec.json.Decoder(kind)

        def act(body: bytes, call: Call) -> Iterable[bytes]:
            asked = decoded(decoder, body)

            def on_loop() -> Future[Any]:
                with calling(call.caller):
                    return answer(asked)

            return [encode(self._bridge.ask(on_loop, timeout_s=TIMEOUT_S))]

        return act

    def operate(self, action: str, body: bytes, caller: Caller = OWNER) -> Future[bytes]:
        """Carry one of these actions out for a caller in this process. On the loop. What answers
        it knows for whom it is by `current_caller`, while it begins.
        """
        if action not in self._answers:
            raise ActionUnknown(action, self._answers)
        kind, answer = self._answers[action]
        with calling(caller):
            return answer(decoded(msgspec.json.Decoder(kind), body)).map(encode)
