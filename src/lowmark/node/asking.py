"""One question to several nodes, and what each of them says."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

import msgspec

from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future, Groups

ANSWER_MS = 1_500
"""An operator waits: a node that says nothing by then is shown without an answer."""

T = TypeVar("T")


def ask_each(
    groups: Groups,
    nodes: Collection[int],
    service: str,
    decode: Callable[[bytes], T],
    question: bytes = b"",
) -> Future[dict[int, T | LowmarkError]]:
    """What these nodes say, or why one says nothing. This node is not among them."""
    whole: Future[dict[int, T | LowmarkError]] = Future()
    said: dict[int, T | LowmarkError] = {}

    def answered(node: int, future: Future[bytes]) -> None:
        try:
            said[node] = decode(future.result())
        except LowmarkError as error:
            said[node] = error
        except msgspec.MsgspecError as error:
            said[node] = Unavailable(f"its answer can't be read: {error}")
        if len(said) == len(asked):
            whole.resolve(said)

    asked = sorted(set(nodes))
    if not asked:
        whole.resolve(said)
    for node in asked:
        answer = groups.calls.ask(node, service, question, timeout_ms=ANSWER_MS)
        answer.then(partial(answered, node))
    return whole
