"""What operators ask for, by name: over a node's server, and by a caller in its process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from lowmark.group import Future
from lowmark.node.action import Action, Call, decoded, encode
from lowmark.node.bridge import Bridge
from lowmark.node.callers import OWNER, calling
from lowmark.node.errors import ActionUnknown
from lowmark.node.messages import only_looks
from lowmark.tokens import Caller

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
_NOTED: Final = frozenset(
    {"rebalance.change", "rebalance.cancel", "node.drain", "node.remove", "zone.baseline"}
)

Answers: TypeAlias = Mapping[str, tuple[type[msgspec.Struct], Callable[[Any], Future[Any]]]]
"""By the action's name: what it is asked with, and what answers it, on the loop."""


class Operating:
    """One node's answers."""

    def __init__(self, bridge: Bridge, *answers: Answers) -> None:
        self._bridge = bridge
        self._answers = {name: how for some in answers for name, how in some.items()}

    def actions(self) -> dict[str, Action]:
        """For a server; called on its threads."""
        return {name: self._action(name, *how) for name, how in self._answers.items()}

    def _action(
        self, name: str, kind: type[msgspec.Struct], answer: Callable[[Any], Future[Any]]
    ) -> Action:
        decoder = msgspec.json.Decoder(kind)

        def act(body: bytes, call: Call) -> Iterable[bytes]:
            asked = decoded(decoder, body)

            def on_loop() -> Future[Any]:
                with calling(call.caller):
                    _note(name, body, call.caller)
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
        asked = decoded(msgspec.json.Decoder(kind), body)
        with calling(caller):
            _note(action, body, caller)
            return answer(asked).map(encode)


def _note(action: str, body: bytes, caller: Caller) -> None:
    """Say in the log who asked for a change whose record has no place for it."""
    if action in _NOTED and not only_looks(action, body):
        logger.info(
            "a change was asked for",
            extra={"action": action, "asked": body.decode(), "by": caller.name},
        )
