"""What a client and a server say to each other over Arrow Flight (docs/formats/flight.md).

    action `hello`      JSON: releases and protocols; what is settled of the database
    action `call`       one call of the port: a request, and one answer
    `DoGet`             a ticket that is a request for batches: commands as they stand in the log
    `DoExchange`        one stream a client: batches with their numbers in, answers out

A request is `L`, the protocol's number (2 bytes, little endian), and a value of the port's codec.
Nothing behind the number is looked at before the number is known. A ticket that is JSON is a plain
Flight client's, and none of this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from lowmark.backend.codec import decode, encode
from lowmark.backend.errors import ProtocolRefused, RequestRefused
from lowmark.errors import Corrupt, LowmarkError
from lowmark.fault import decode_fault, encode_fault
from lowmark.node.messages import BODY_BYTES_MAX
from lowmark.runtime import Buffer
from lowmark.table import Appended
from lowmark.version import __version__

PROTOCOL: Final = 3
HELLO, CALL = "hello", "call"
APPEND: Final = b"lowmark.append"
"""The command of the descriptor of a stream of appends."""
CALLS: Final = b"lowmark.calls"
"""The command of the descriptor of a stream of calls."""
COMMANDS: Final = pa.schema([pa.field("command", pa.large_binary(), nullable=False)])
"""Batches as they stand in the log, or go there."""
KEYS_MAX: Final = 4_096
"""Keys that are looked up at once."""
REQUEST_BYTES_MAX: Final = BODY_BYTES_MAX
_HEAD = struct.Struct("<cH")
_LETTER = b"L"
_NUMBER = struct.Struct("<qqq")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says first."""

    release: str = __version__
    protocol: int = PROTOCOL


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answers."""

    release: str
    protocol: int
    cluster: str
    """The database's id."""
    instance: int
    """Of this start of the server: another one knows no holds of this one."""
    hold_ms: int
    """How long a client that is silent keeps its holds."""
    machine: str
    """Where it runs: a client at the same place can read its files."""
    info: bytes
    """The `DatabaseInfo`, by the port's codec."""
    members: tuple[str, ...] = ()
    """Where clients reach the nodes of its cluster: any of them does."""
    open_at: tuple[str, ...] = ()
    """The addresses at which strangers can come in (`--insecure`)."""
    caller: str = ""
    """The name of the token that the client has shown."""
    fences: bool = False
    """Whether requests may say lineages, and answers do."""


class Request(NamedTuple):
    """One call of the port."""

    cluster: str
    """The database that the client means."""
    session: int
    """Drawn by the client: whose holds these are."""
    call: str
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    lineages: Mapping[str, int] | None = None
    """What its client has seen of resets (`port`); None: it, or the server, is of an earlier
    release, and it is left out."""


def encode_request(request: Request) -> bytes:
    """A request as it travels."""
    return _HEAD.pack(_LETTER, PROTOCOL) + encode(_said(request))


def _said(parts: Request | Reply) -> tuple[Any, ...]:
    return tuple(parts[:-1] if parts.lineages is None else parts)


def _are_lineages(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(one, str) and type(at) is int for one, at in value.items()
    )


def is_request(data: bytes) -> bool:
    """Whether it begins as a request does."""
    return data[:1] == _LETTER


def decode_request(data: bytes) -> Request:
    """What a client has asked."""
    if len(data) < _HEAD.size or not is_request(data):
        raise RequestRefused("a request does not begin as one of Lowmark's clients does")
    _, protocol = _HEAD.unpack_from(data)
    if protocol != PROTOCOL:
        raise ProtocolRefused(theirs=protocol, ours=PROTOCOL, release=__version__)
    try:
        value = decode(data[_HEAD.size :])
        cluster, session, call, arguments, named, *more = value
    except (Corrupt, TypeError, ValueError) as error:
        raise RequestRefused(f"a request can't be read: {error}") from error
    well = (
        isinstance(cluster, str)
        and type(session) is int
        and isinstance(call, str)
        and isinstance(arguments, tuple)
        and isinstance(named, dict)
        and all(isinstance(name, str) for name in named)
        and (not more or (len(more) == 1 and _are_lineages(more[0])))
    )
    if not well:
        raise RequestRefused("a request is not made of a call and its arguments")
    return Request(cluster, session, call, arguments, named, *more)


class Reply(NamedTuple):
    """The answer to a call."""

    instance: int
    catalog: int
    """The newest version of the catalog: a client with an older one asks for it."""
    value: Any
    """What the call gave; or the error that it raised."""
    time: int
    """The server has shown no later one: the next server is told of it."""
    lineages: Mapping[str, int] | None = None
    """Those of what answered (`port`), to a client that says its own."""


def encode_reply(reply: Reply) -> bytes:
    """An answer as it travels."""
    return encode(_said(reply))


def decode_reply(data: bytes) -> Reply:
    """What a server has answered."""
    value = decode(data)
    least = len(Reply._fields) - 1
    if not isinstance(value, tuple) or not least <= len(value) <= least + 1:
        raise Corrupt("an answer of the server is not made of its parts")
    if len(value) > least and not _are_lineages(value[least]):
        raise Corrupt("an answer of the server says lineages that are none")
    return Reply(*value)


# -- batches on their way -------------------------------------------------------------------------


def commands_batch(commands: Sequence[Buffer]) -> pa.RecordBatch:
    """Commands as one record batch: bytes in one piece, and where each begins."""
    if len(commands) == 1:
        data = pa.py_buffer(commands[0])
    else:
        data = pa.allocate_buffer(sum(map(len, commands)))
        into, at = memoryview(data).cast("B"), 0
        for command in commands:
            into[at : at + len(command)] = command
            at += len(command)
    ends = np.zeros(len(commands) + 1, np.int64)
    np.cumsum([len(command) for command in commands], out=ends[1:])
    column = pa.Array.from_buffers(
        pa.large_binary(), len(commands), [None, pa.py_buffer(ends), data]
    )
    return pa.RecordBatch.from_arrays([column], schema=COMMANDS)


def commands_of(batch: pa.RecordBatch) -> list[memoryview]:
    """The commands in a record batch; they stay where they are."""
    column = batch.column(0)
    if column.type != pa.large_binary() or column.null_count:
        raise RequestRefused("batches come as one column of bytes")
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RequestRefused(f"batches can't be read: {error}") from error
    _, ends_buffer, data_buffer = column.buffers()
    if not len(column) or data_buffer is None:
        return [memoryview(b"")] * len(column)
    ends = np.frombuffer(ends_buffer, np.int64, len(column) + 1, column.offset * 8).tolist()
    data = memoryview(data_buffer).cast("B")
    return [data[low:high] for low, high in pairwise(ends)]


def encode_places(places: Iterable[tuple[int, int, int]]) -> bytes:
    """The number, the table and the partition of each batch of a message."""
    return b"".join(_NUMBER.pack(*place) for place in places)


def decode_places(data: bytes, count: int) -> list[tuple[int, int, int]]:
    """Number, table and partition of each batch."""
    if len(data) != count * _NUMBER.size:
        raise RequestRefused(f"a message with {count} batches does not say where each goes")
    return list(_NUMBER.iter_unpack(data))


class Acknowledged(msgspec.Struct, frozen=True, array_like=True):
    """What became of one batch of a stream of appends."""

    number: int
    first: int = -1
    rows: int = 0
    time: int = 0
    error: bytes = b""
    """Why it was not stored; see `lowmark.fault`."""
    lineages: dict[str, int] = {}
    """Of its partition, if it was ever reset."""


_acks = msgspec.msgpack.Decoder(list[Acknowledged])


def acknowledged(
    number: int, answer: Appended | LowmarkError, lineages: Mapping[str, int]
) -> Acknowledged:
    """An answer as it travels."""
    if isinstance(answer, LowmarkError):
        return Acknowledged(number, error=encode_fault(answer), lineages=dict(lineages))
    return Acknowledged(number, *answer, lineages=dict(lineages))


def encode_acks(acks: Sequence[Acknowledged]) -> bytes:
    """Answers, as many as there are."""
    return msgspec.msgpack.encode(acks)


def decode_acks(
    data: bytes,
) -> tuple[list[tuple[int, Appended | LowmarkError]], dict[str, int]]:
    """Answers by the number of their message, and the lineages that they are of."""
    try:
        found = _acks.decode(data)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"answers of the server can't be read: {error}") from error
    lineages: dict[str, int] = {}
    for ack in found:
        for group, lineage in ack.lineages.items():
            lineages[group] = max(lineage, lineages.get(group, 0))
    return [(ack.number, _answer(ack)) for ack in found], lineages


def _answer(ack: Acknowledged) -> Appended | LowmarkError:
    if not ack.error:
        return Appended(ack.first, ack.rows, ack.time)
    error = decode_fault(ack.error)
    return Corrupt("an error of the server can't be read") if error is None else error
