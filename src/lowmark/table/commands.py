"""What is proposed to a partition, as bytes (docs/formats/table.md).

The first byte says what it is. Batches come with a fixed header, so that applying one costs no
more than reading it; everything else is rare, and msgpack.

    1  append   header, Arrow IPC message
    2  stage    the same; its rows wait for a finish
    3  control  msgpack of one of the structs below

Header (47 bytes, little endian; behind the group's own 9 bytes the message is aligned to 8)

    kind 1, change 1, flags 1, rows 4, schema version 4, producer 16, epoch 4, sequence 8,
    transaction 8

`change` says what all rows are: 0 upserts, 1 deletes (the message has key columns only), 2 both
(the message has a column more, `_change`). A producer of sixteen zero bytes is none: such batches
are not numbered. `transaction` is 0 in an append. `flags` are 0 so far.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from lowmark.errors import Corrupt
from lowmark.group import COMMAND_BYTES
from lowmark.runtime import Buffer

APPEND, STAGE, CONTROL = 1, 2, 3
_HEADER = struct.Struct("<BBBII16sIQQ")
HEADER_BYTES: Final = _HEADER.size
NO_PRODUCER: Final = bytes(16)
ROOM_BYTES: Final = COMMAND_BYTES + HEADER_BYTES
"""What stands in front of a message in the log."""
ROWS_MAX: Final = 1 << 24
"""Of one batch."""


class Change(IntEnum):
    """What the rows of a batch are."""

    UPSERT = 0
    DELETE = 1
    MIXED = 2


class Batch(NamedTuple):
    """The header of a batch."""

    kind: int
    change: int
    flags: int
    rows: int
    schema: int
    producer: bytes
    epoch: int
    sequence: int
    transaction: int


class _Control(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Written as an array. One with more in it is refused unseen: it may be nested without end."""


class Finish(_Control, frozen=True, tag=1):
    """Give a transaction's staged rows their offsets, or drop them."""

    transaction: int
    commit: bool


class CreateCursor(_Control, frozen=True, tag=2):
    """Have a cursor, at an offset; `token` tells a repeat from another one's cursor."""

    name: str
    token: int
    kind: Literal["raw", "compacted"]
    offset: int | None
    """None: at the end."""
    earliest: bool = False
    """At the start, wherever that is; a compacted one at 0."""
    max_lag_rows: int = 0
    max_lag_ms: int = 0


class MoveCursor(_Control, frozen=True, tag=3):
    """Move a cursor forward; or anywhere, if it is reset."""

    name: str
    offset: int
    reset: bool = False


class DeleteCursor(_Control, frozen=True, tag=4):
    """Forget a cursor; with a token, only the one that was created with it, if it is there."""

    name: str
    token: int = 0
    """0: of any author."""


class TakeLease(_Control, frozen=True, tag=5):
    """Hold what lies from an offset on, for a while."""

    name: str
    holder: int
    offset: int
    ttl_ms: int
    why: str = ""
    kind: Literal["raw", "compacted", "run"] = "raw"
    """Who reads: the backlog; the ledger, then the backlog; or a run that makes a ledger."""


class RenewLease(_Control, frozen=True, tag=6):
    """Hold it for as long again, from an offset on that does not fall."""

    name: str
    holder: int
    offset: int


class ReleaseLease(_Control, frozen=True, tag=7):
    """Hold nothing any more."""

    name: str
    holder: int


class Trim(_Control, frozen=True, tag=8):
    """Cut the backlog below an offset, as far as the horizon and the holds allow.

    With `expire` the horizon does not count: that is retention, and leaves an expired gap.
    """

    offset: int
    expire: bool = False


class Tick(_Control, frozen=True, tag=9):
    """Nothing but its time."""


class Fence(_Control, frozen=True, tag=10):
    """A producer begins an epoch: what is still sent in an older one is refused."""

    producer: bytes
    epoch: int


class Adopt(_Control, frozen=True, tag=11):
    """Read from this ledger from now on; it was published, and its files are there."""

    epoch: int
    manifest: str
    horizon: int
    digest: bytes
    deletes_below: int


class Begin(_Control, frozen=True, tag=12):
    """Every transaction of the cluster that is active, or will be, began at this time or later.

    Proposed only once all members know version 2 of the machine.
    """

    time: int


class KeepSchemas(_Control, frozen=True, tag=13):
    """Take no batch of a schema version below this one any more; answers which ones the rows that
    are here still need (`SchemasKept`).

    Takes effect only once all members know version 3 of the machine.
    """

    keep_from: int


class Bind(_Control, frozen=True, tag=14):
    """Have rows that an epoch of a query has staged here be read from now on, once: a repeat gets
    the first answer, and what it has staged is dropped.

    Takes effect only once all members know version 4 of the machine.
    """

    query: bytes
    epoch: int
    transactions: tuple[int, ...]
    """Whose rows these are, in this order; one that has staged nothing here counts for nothing."""
    rows: int
    """How many they are here: if it is another number, some were dropped, and nothing changes."""
    families: tuple[int, ...] = ()
    """Of attempts (`binding.family`): what else these have staged here is not needed, and goes."""
    plan: tuple[int, ...] = ()
    """How many they are in each partition, where the epoch is decided; elsewhere nothing."""
    keep_ms: int = 0
    """How long after its last epoch the query is known here."""


class Drop(_Control, frozen=True, tag=15):
    """Drop what attempts of these families have staged; unless the epoch is bound here, which is
    the answer then, and nothing changes.

    Takes effect only once all members know version 4 of the machine.
    """

    query: bytes
    epoch: int
    families: tuple[int, ...]


class RenewCursor(_Control, frozen=True, tag=16):
    """Have a cursor expire when it was idle for this long from here on: it did not move, and was
    not renewed.

    Takes effect only once all members know version 5 of the machine.
    """

    name: str
    idle_ms: int
    """0: it never expires."""


class Abandon(_Control, frozen=True, tag=17):
    """Decide no epoch with any of these transactions for a day: their rows are about to be
    dropped. If one of them counts for an epoch that was decided here, that is the answer, and
    nothing changes.

    Takes effect only once all members know version 6 of the machine.
    """

    transactions: tuple[int, ...]


Control: TypeAlias = (
    Finish
    | CreateCursor
    | MoveCursor
    | DeleteCursor
    | TakeLease
    | RenewLease
    | ReleaseLease
    | Trim
    | Tick
    | Fence
    | Adopt
    | Begin
    | KeepSchemas
    | Bind
    | Drop
    | RenewCursor
    | Abandon
)
Command: TypeAlias = Batch | Control

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Control)


def encode_batch(
    message: Buffer,
    *,
    rows: int,
    schema: int,
    change: Change = Change.UPSERT,
    producer: bytes = NO_PRODUCER,
    epoch: int = 0,
    sequence: int = 0,
    transaction: int = 0,
) -> bytes:
    """A batch as it is proposed; with a transaction, it is staged."""
    kind = STAGE if transaction else APPEND
    header = _HEADER.pack(kind, change, 0, rows, schema, producer, epoch, sequence, transaction)
    return b"".join((header, message))


def encode_header_in_place(
    room: memoryview,
    *,
    rows: int,
    schema: int,
    change: Change,
    producer: bytes,
    epoch: int,
    sequence: int,
    transaction: int = 0,
) -> None:
    """Write the header of a batch where a buffer has room for it, right before the message."""
    kind = STAGE if transaction else APPEND
    fields = (kind, change, 0, rows, schema, producer, epoch, sequence, transaction)
    _HEADER.pack_into(room, COMMAND_BYTES, *fields)


def encode_control(command: Control) -> bytes:
    """Anything else as it is proposed."""
    return bytes([CONTROL]) + _encoder.encode(command)


def header_of(command: Buffer) -> Batch:
    """The header of a batch that was stored: the message begins right behind it."""
    try:
        return Batch(*_HEADER.unpack_from(command))
    except struct.error as error:
        raise Corrupt(f"a batch has no header: {error}") from error


def decode(command: Buffer) -> Command:
    """A command as the machine takes it; raises `Corrupt` for what is none."""
    kind = command[0] if len(command) else 0
    if kind in {APPEND, STAGE}:
        batch = header_of(command)
        well = batch.change <= Change.MIXED and 0 < batch.rows <= ROWS_MAX and batch.flags == 0
        if not well or (kind == STAGE) != (batch.transaction != 0):
            raise Corrupt("a batch has a header that says nothing")
        return batch
    if kind != CONTROL:
        raise Corrupt(f"there is no command of kind {kind}")
    try:
        control: Control = _decoder.decode(memoryview(command)[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # Text that is no UTF-8 is a ValueError of Python's; nesting without end is the last one.
        raise Corrupt(f"a command can't be read: {error}") from error
    return control


def frees_space(command: Buffer) -> bool:
    """Whether it is anything but rows: only those are refused when the disk is full.

    Deletes take space, too, but less than compaction frees because of them.
    """
    return len(command) < HEADER_BYTES or command[0] == CONTROL or command[1] == Change.DELETE


def is_text(text: str, characters_max: int) -> bool:
    """Whether something may have this name.

    Clients take printable names only; but what is printable, each Python's Unicode says.
    """
    return 0 < len(text) <= characters_max and not any(
        character < " " or character == "\x7f" for character in text
    )
