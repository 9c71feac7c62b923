"""Bounded reads for clients of ours: the batches of ranges, as they stand in the log.

An answer ends after some bytes, with a whole range; its client asks again for the rest. So a client
that takes its time between two answers costs nothing here, and one that stops within an answer a
bounded amount.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import BatchesMoved, HoldUnknown, RequestRefused
from lowmark.backend.protocol import Request, commands_batch
from lowmark.backend.values import Asker, BatchRange
from lowmark.runtime import Buffer
from lowmark.server.sessions import Sessions

ANSWER_BYTES: Final = 16 << 20
"""An answer ends with the range that takes it to this."""
MESSAGE_BYTES: Final = 8 << 20
_LAST = pa.py_buffer(b"1")
"""Said of the last message of a range."""


def check_read(request: Request) -> tuple[int, int, tuple[BatchRange, ...], bool, float | None]:
    """What is to be read; refused if it is not a read."""
    named = dict(request.named)
    held, timeout_s = named.pop("held", None), named.pop("timeout_s", None)
    bytes_max = named.pop("bytes_max", ANSWER_BYTES)
    if request.call != "batches" or len(request.arguments) != 3 or named:
        raise RequestRefused("a ticket is not for batches")
    table, partition, ranges = request.arguments
    well = (
        type(table) is int
        and type(partition) is int
        and isinstance(ranges, tuple)
        and all(isinstance(one, BatchRange) for one in ranges)
        and isinstance(held, bool)
        and (timeout_s is None or isinstance(timeout_s, int | float))
        and type(bytes_max) is int
    )
    if not well:
        raise RequestRefused("a ticket does not say which batches are meant")
    return table, partition, ranges, held, timeout_s


def read(backend: Embedded, sessions: Sessions, request: Request) -> Iterator[tuple[Any, Any]]:
    """Record batches of commands, with what is said of each."""
    table, partition, ranges, held, timeout_s = check_read(request)
    sent, bytes_max = 0, min(request.named.get("bytes_max", ANSWER_BYTES), ANSWER_BYTES)
    found = backend.batches(table, partition, ranges, held=held, timeout_s=timeout_s)  # type: ignore[arg-type]
    while sent < max(1, bytes_max):
        # Flight asks for each message anew: what was noted of its thread before is not there.
        backend.asked_by(Asker(request.session < 0, request.lineages))
        try:
            commands = next(found, None)
        except BatchesMoved:
            lost = sessions.lost(request.session) if held else None
            if lost is None:
                raise
            raise HoldUnknown(lost) from None  # nothing was heard of its client for too long
        if commands is None:
            return
        sent += sum(map(len, commands))
        yield from _messages(commands)


def _messages(commands: Sequence[Buffer]) -> Iterator[tuple[Any, Any]]:
    """One range; a message has at least one command, and not much more than it may."""
    some: list[Buffer] = []
    size = 0
    for command in commands:
        if some and size + len(command) > MESSAGE_BYTES:
            yield commands_batch(some), None
            some, size = [], 0
        some.append(command)
        size += len(command)
    yield commands_batch(some), _LAST
