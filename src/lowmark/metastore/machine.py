"""The metastore as a group's state machine: commands in, answers out, snapshots without values.

A snapshot is a run of blocks, each a length (4 bytes, little endian) and msgpack: first a header,
then revisions, then keys with their histories, at most `_BLOCK` of them in a block. It is made
while it is asked for, a block at a time, from copies that share what does not change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeAlias, TypeVar, cast

import msgspec
from pyroaring import BitMap64

from lowmark.errors import Corrupt
from lowmark.metastore.commands import (
    Compact,
    Release,
    Renew,
    StoredInvoke,
    Take,
    Tick,
    decode_checked,
)
from lowmark.metastore.errors import InvokeRefused
from lowmark.metastore.state import Answer, Cut, Lease, LeaseAnswer, Made, Record, State, Ticked
from lowmark.runtime import Buffer

FORMAT = 1
_BLOCK = 2_048
_LENGTH = struct.Struct("<I")

T = TypeVar("T")


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A command that could not be understood: every member says so."""

    why: str


Outcome: TypeAlias = Answer | LeaseAnswer | Cut | Ticked | Refused


class _Header(msgspec.Struct, frozen=True, array_like=True):
    format: int
    latest: int
    compacted: int
    compacted_time: int
    time: int
    revisions: int
    keys: int
    leases: tuple[Lease, ...]


_Revisions: TypeAlias = list[tuple[int, Made]]
_Histories: TypeAlias = list[tuple[bytes, list[Record]]]
_encoder = msgspec.msgpack.Encoder()
_decode_revisions = msgspec.msgpack.Decoder(_Revisions)
_decode_histories = msgspec.msgpack.Decoder(_Histories)


class MetastoreMachine:
    """Applies commands to a `State`."""

    newest_version = 1

    def __init__(self) -> None:
        self.state = State()

    def apply(self, index: int, time: int, command: Buffer) -> Outcome:
        """Carry a command out."""
        state = self.state
        state.time = max(state.time, time)
        try:
            # The node that proposed it has checked it. But no bytes may stop members, or divide
            # them.
            asked, at = decode_checked(command)
        except (Corrupt, InvokeRefused) as error:
            return Refused(error.message)
        match asked:
            case StoredInvoke(statement=statement):
                return state.invoke(statement, index=index, command=command, at=at)
            case Take():
                return state.take(asked)
            case Renew():
                return state.renew(asked)
            case Release():
                return state.release(asked)
            case Compact():
                return state.compact(asked)
            case Tick():
                return Ticked(state.time)

    def may_use_reserve(self, command: Buffer) -> bool:
        """Nothing that frees space can be done without it."""
        del command
        return True

    def moved(self, old: int, new: int) -> None:
        """An entry was copied."""
        self.state.moved(old, new)

    def upgrade(self, version: int) -> None:
        """There is only one version yet."""

    def live_indexes(self) -> BitMap64:
        """The entries that hold a value."""
        return self.state.live.copy()

    def read(self, query: object) -> object:
        """A query is a function of the state."""
        return cast("Callable[[State], object]", query)(self.state)

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[Buffer]:
        """The state as it is now."""
        state = self.state
        header = _Header(
            FORMAT,
            state.latest,
            state.compacted,
            state.times[0],
            state.time,
            len(state.made),
            len(state.keys),
            tuple(state.leases[name] for name in sorted(state.leases)),
        )
        # Revisions are in order: above the cut they were added so, and below it none is added.
        made = list(state.made.items())
        histories = [(key, state.histories[key], len(state.histories[key])) for key in state.keys]
        return _blocks(header, made, histories)

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        """Become what a snapshot says."""
        del version
        data = memoryview(b"".join(chunks))
        try:
            self.state = _restored(data)
        except (struct.error, msgspec.MsgspecError, StopIteration, KeyError) as error:
            raise Corrupt(f"a snapshot of the metastore can't be read: {error!r}") from error


def _block(values: object) -> bytes:
    body = _encoder.encode(values)
    return _LENGTH.pack(len(body)) + body


def _blocks(
    header: _Header,
    made: list[tuple[int, Made]],
    histories: list[tuple[bytes, list[Record], int]],
) -> Iterator[bytes]:
    yield _block(header)
    for start in range(0, len(made), _BLOCK):
        yield _block(made[start : start + _BLOCK])
    for start in range(0, len(histories), _BLOCK):
        some = histories[start : start + _BLOCK]
        yield _block([(key, records[:count]) for key, records, count in some])


def _bodies(data: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise Corrupt("a snapshot of the metastore ends within a block")
        yield data[at : at + length]
        at += length


def _restored(data: memoryview) -> State:
    bodies = _bodies(data)
    header = msgspec.msgpack.decode(next(bodies), type=_Header)
    if header.format != FORMAT:
        raise Corrupt(f"a snapshot of the metastore is of format {header.format}, not {FORMAT}")
    state = State(latest=header.latest, compacted=header.compacted, time=header.time)
    for body in islice(bodies, -(-header.revisions // _BLOCK)):
        state.made.update(_decode_revisions.decode(body))
    for body in islice(bodies, -(-header.keys // _BLOCK)):
        state.histories.update(_decode_histories.decode(body))
    state.keys = list(state.histories)
    state.by_index = {made.index: revision for revision, made in state.made.items() if made.live}
    state.live = BitMap64(state.by_index)
    state.leases = {lease.name: lease for lease in header.leases}
    above = range(header.compacted + 1, header.latest + 1)
    state.times = [header.compacted_time, *(state.made[revision].time for revision in above)]
    if len(state.made) != header.revisions or len(state.keys) != header.keys:
        raise Corrupt("a snapshot of the metastore has fewer revisions or keys than it says")
    return state
