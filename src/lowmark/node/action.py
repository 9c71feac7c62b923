"""What clients may ask of a node by name: an action takes JSON, and gives results one by one.

Flight calls an action on a thread of its own, and asks for the next result when the client has room
for it. A result that is not asked for is not made: nothing piles up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from lowmark.node.callers import OWNER
from lowmark.node.errors import BadRequest
from lowmark.tokens import Caller


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as its action sees it."""

    gone: Callable[[], bool] = lambda: False
    """Whether the client has gone away."""
    caller: Caller = OWNER
    """Who makes it."""


Action: TypeAlias = Callable[[bytes, Call], Iterable[bytes]]

AskT = TypeVar("AskT", bound=msgspec.Struct)
encode = msgspec.json.Encoder().encode


def reply(kind: type[AskT], answer: Callable[[AskT], msgspec.Struct]) -> Action:
    """An action with one result."""
    decoder = msgspec.json.Decoder(kind)

    def act(body: bytes, call: Call) -> Iterable[bytes]:
        del call
        return [encode(answer(decoded(decoder, body)))]

    return act


def stream(kind: type[AskT], answer: Callable[[AskT, Call], Iterator[msgspec.Struct]]) -> Action:
    """An action with any number of results."""
    decoder = msgspec.json.Decoder(kind)

    def act(body: bytes, call: Call) -> Iterable[bytes]:
        return map(encode, answer(decoded(decoder, body), call))

    return act


def decoded(decoder: msgspec.json.Decoder[AskT], body: bytes) -> AskT:
    """What an action was sent."""
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"a request can't be read: {error}") from error
