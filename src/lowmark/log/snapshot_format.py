"""The bytes of a snapshot (docs/formats/snapshot.md): a folder with two files.

    state = header, meta, state bytes, trailer     the machine's state and what it stands for
    live  = header, live set                       rebuilt from the state when it is lost

The state's checksum is in its trailer, so that it can be written in chunks as it comes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.log.errors import Damaged, SnapshotRefused, check_version
from lowmark.runtime import Buffer, File

VERSION = 1
STATE_MAGIC = b"LMSN"
TRAILER_MAGIC = b"LMSt"
LIVE_MAGIC = b"LMLV"
META_BYTES_MAX = 16 << 20
_HEAD = struct.Struct("<4sHHI16s")
_TRAILER = struct.Struct("<4sIQQQQQ")
_LIVE = struct.Struct("<4sHHQ16s")
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
TRAILER_BYTES = _TRAILER.size + _CHECKSUM.size
LIVE_HEAD_BYTES = _LIVE.size + _CHECKSUM.size


class Floor(msgspec.Struct, frozen=True):
    """What an installed snapshot voids of the group's own: it may be stale.

    In the WAL everything up to a place; in segments with lower numbers than the installed ones,
    everything after the snapshot. Later snapshots inherit it, because files may still hold it.
    """

    wal: int = 0
    sequence: int = 0
    segment: int = 0
    index: int = 0

    def voids(self, wal: int, sequence: int) -> bool:
        """Whether a run at that place in the WAL is void."""
        return (wal, sequence) <= (self.wal, self.sequence)


class SnapshotMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot stands for. `members` is the group's own, opaque to the log."""

    index: int
    term: int
    members: bytes = b""
    machine_version: int = 0


@dataclass(frozen=True, slots=True)
class StateTrailer:
    """How much state there is, its checksum, and the floor that was known when it was finished."""

    length: int
    checksum: int
    floor: Floor


def encode_meta(meta: SnapshotMeta, *, incarnation: bytes) -> bytes:
    """The head of a state file."""
    body = msgspec.msgpack.encode(meta)
    if len(body) > META_BYTES_MAX:
        raise SnapshotRefused(
            f"the meta of a snapshot has {len(body)} bytes",
            hint=f"At most {META_BYTES_MAX} are allowed.",
        )
    head = _HEAD.pack(STATE_MAGIC, VERSION, 0, len(body), incarnation)
    return head + _CHECKSUM.pack(crc32c(body, crc32c(head))) + body


def decode_meta(
    path: str, file: File, *, incarnation: bytes | None = None
) -> tuple[SnapshotMeta, int]:
    """The meta of a state file, and where the state begins."""
    head = file.read_at(0, HEAD_BYTES)
    if len(head) < HEAD_BYTES or head[:4] != STATE_MAGIC:
        raise Damaged(path, offset=0, what="this is not a snapshot of Lowmark")
    _, version, _, length, owner = _HEAD.unpack_from(head)
    own, stored = head[: _HEAD.size], _CHECKSUM.unpack_from(head, _HEAD.size)[0]
    body = file.read_at(HEAD_BYTES, min(length, META_BYTES_MAX))
    check_version(path, version, newest=VERSION, head=own, body=body, checksum=stored)
    if length > META_BYTES_MAX:
        raise Damaged(path, offset=8, what="the meta is longer than any can be")
    if len(body) != length or crc32c(body, crc32c(own)) != stored:
        raise Damaged(path, offset=0, what="the meta fails its checksum")
    _check_owner(path, owner, incarnation)
    try:
        return msgspec.msgpack.decode(body, type=SnapshotMeta), HEAD_BYTES + length
    except msgspec.MsgspecError as error:
        raise Damaged(path, offset=HEAD_BYTES, what=f"the meta can't be read: {error}") from error


def encode_trailer(trailer: StateTrailer) -> bytes:
    """The end of a state file."""
    floor = msgspec.structs.astuple(trailer.floor)
    tail = _TRAILER.pack(TRAILER_MAGIC, trailer.checksum, trailer.length, *floor)
    return tail + _CHECKSUM.pack(crc32c(tail))


def read_trailer(path: str, file: File, state_at: int) -> StateTrailer:
    """The end of a state file, checked against its size."""
    size = file.size()
    tail = file.read_at(max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    if len(tail) == TRAILER_BYTES:
        magic, checksum, length, *floor = _TRAILER.unpack_from(tail)
        whole = crc32c(tail[: _TRAILER.size]) == _CHECKSUM.unpack_from(tail, _TRAILER.size)[0]
        if magic == TRAILER_MAGIC and whole and state_at + length + TRAILER_BYTES == size:
            return StateTrailer(length, checksum, Floor(*floor))
    raise Damaged(path, offset=size, what="the snapshot has no valid end")


def encode_live(live: BitMap64, *, incarnation: bytes) -> bytes:
    """A live file."""
    body = live.serialize()
    head = _LIVE.pack(LIVE_MAGIC, VERSION, 0, len(body), incarnation)
    return head + _CHECKSUM.pack(crc32c(body, crc32c(head))) + body


def decode_live(path: str, data: Buffer, *, incarnation: bytes | None = None) -> BitMap64:
    """The live set in a live file."""
    head = bytes(data[:LIVE_HEAD_BYTES])
    if len(head) < LIVE_HEAD_BYTES or head[:4] != LIVE_MAGIC:
        raise Damaged(path, offset=0, what="this is not a live set of Lowmark")
    _, version, _, length, owner = _LIVE.unpack_from(head)
    own, stored = head[: _LIVE.size], _CHECKSUM.unpack_from(head, _LIVE.size)[0]
    body = bytes(data[LIVE_HEAD_BYTES:])
    check_version(path, version, newest=VERSION, head=own, body=body, checksum=stored)
    if len(body) != length or crc32c(body, crc32c(own)) != stored:
        raise Damaged(path, offset=0, what="the live set fails its checksum")
    _check_owner(path, owner, incarnation)
    try:
        return BitMap64.deserialize(body)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise Damaged(path, offset=LIVE_HEAD_BYTES, what="the live set can't be read") from error


def _check_owner(path: str, owner: bytes, incarnation: bytes | None) -> None:
    if incarnation is not None and owner != incarnation:
        what = "it belongs to another group, or to an earlier one of this name"
        raise Damaged(path, offset=0, what=what, hint="Move the file back to where it came from.")
