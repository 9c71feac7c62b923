"""Frames between nodes: many messages of many groups in one, data apart from what describes it.

    length of the head (4 bytes, little endian) · head (msgpack) · data of all entries, in order

The head is `[format, boot, items]`; `boot` is drawn when a process starts, so that others notice a
restart. An item is `[group, message]`; a message is an array that begins with its tag. Entries are
described by their terms, kinds and lengths; their data is never copied into the head, nor out of
the frame. A frame without items says that its node is there.

What comes in is checked whole before anything of it is believed (`BadFrame` otherwise).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias, TypeVar

import msgspec

from lowmark.errors import Rejected
from lowmark.ids import GROUP_ID_BYTES_MAX
from lowmark.log import Entry as LogEntry
from lowmark.raft import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    MembershipRefused,
    Message,
    ReadIndex,
    ReadIndexResponse,
    Snapshot,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteResponse,
    membership,
)
from lowmark.runtime import Buffer

FORMAT = 1
ITEMS_MAX = 16_384
"""Messages in one frame."""
CONTEXT_BYTES_MAX = 64
"""What a reader may ask to be told again."""
ANSWER_OUTCOMES = 3
"""How many ways there are to answer a question."""
_LENGTH = struct.Struct("<I")
_U63 = (1 << 63) - 1
_ITEM_BYTES = 160
_ENTRY_BYTES = 24
_MEMBER_BYTES = 32
"""What an item, an entry in it and a member in it take besides their data, at most."""


class BadFrame(Rejected):
    """A frame that no sound peer sends."""


class _Small(msgspec.Struct, gc=False, array_like=True, forbid_unknown_fields=True):
    """What all messages of groups that are not the core's have."""

    to: int
    sender: int


class NotHere(_Small, tag=20):
    """This node has no copy of the group."""


class Rest(_Small, tag=21):
    """Nothing is going on: if you have everything up to `commit`, stop the clock of this group."""

    term: int
    commit: int


class Rested(_Small, tag=22):
    """The clock of this group is stopped here."""

    term: int
    commit: int


class Knows(_Small, tag=23):
    """The newest version of the machine that this member knows.

    In term 0 it says that this copy is here, to a node that was told that it is not.
    """

    term: int
    version: int


class Rejoin(_Small, tag=24):
    """This copy was lost while it had this incarnation: add it again."""

    incarnation: int


class Ask(_Small, tag=25):
    """A question to a service of the node; the item's group is the service's name.

    `to` is 0 if the asker knows only the address.
    """

    number: int
    body: Buffer


class Answer(_Small, tag=26):
    """The answer to a question; `outcome` is 0, or it was not taken: 1 no such service, 2 busy."""

    number: int
    outcome: int
    body: Buffer


class InstallOffer(_Small, tag=30):
    """A snapshot is there to be fetched."""

    session: int
    term: int
    incarnation: int
    snapshot: Snapshot
    machine_version: int
    last_time: int
    entries: int
    """How many live entries there are in all."""
    live_bytes: int
    state_bytes: int
    state_checksum: int
    live_checksum: int


class InstallWant(_Small, tag=31):
    """What to send next: live entries after `previous`, then the state, then the live set.

    `window_bytes` is how much may be sent besides what was asked for before. `rewind` asks for it
    from there on, even if it was sent already, and forgets what was asked for before; `refused`
    ends it.
    """

    session: int
    last_applied: int
    previous: int
    state_at: int
    live_at: int
    window_bytes: int
    rewind: bool = False
    refused: str = ""


class InstallPiece(_Small, tag=32):
    """A piece of a snapshot: live entries, or bytes of the state or of the live set."""

    session: int
    previous: int
    """The live index before the first entry."""
    entries: list[LogEntry]
    at: int
    """Where the bytes belong."""
    state: Buffer
    live: Buffer


class InstallOver(_Small, tag=33):
    """The sender has given up, or has nothing to send any more."""

    session: int
    reason: str


Item: TypeAlias = (
    Message
    | NotHere
    | Rest
    | Rested
    | Knows
    | Rejoin
    | Ask
    | Answer
    | InstallOffer
    | InstallWant
    | InstallPiece
    | InstallOver
)
Routed: TypeAlias = tuple[str, Item]


class _WireAppend(Message, tag=1):
    index: int
    log_term: int
    commit: int
    terms: list[int]
    kinds: bytes
    lengths: list[int]
    lineage: int = 0


class _WireAsk(_Small, tag=25):
    number: int
    length: int


class _WireAnswer(_Small, tag=26):
    number: int
    outcome: int
    length: int


class _WirePiece(_Small, tag=32):
    session: int
    previous: int
    indexes: list[int]
    terms: list[int]
    lengths: list[int]
    at: int
    state_bytes: int
    live_bytes: int


_WireItem = (
    _WireAppend
    | AppendResponse
    | Vote
    | VoteResponse
    | Heartbeat
    | HeartbeatResponse
    | TimeoutNow
    | TransferLeader
    | ReadIndex
    | ReadIndexResponse
    | NotHere
    | Rest
    | Rested
    | Knows
    | Rejoin
    | _WireAsk
    | _WireAnswer
    | InstallOffer
    | InstallWant
    | _WirePiece
    | InstallOver
)

_E = TypeVar("_E", Entry, LogEntry)

_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(tuple[int, int, msgspec.Raw])
_items_decoder = msgspec.msgpack.Decoder(list[tuple[str, _WireItem]])


def is_patient(item: Item) -> bool:
    """Whether a message may be large, or must not overtake one that is."""
    return isinstance(item, Append | InstallPiece | Ask | Answer)


def parts_of(item: Item, most: int) -> Iterator[Item]:
    """The same in messages of about this many bytes each, if it can be parted.

    One entry can't. To its receiver it is as if its sender had sent them one after another.
    """
    if isinstance(item, Append) and len(item.entries) > 1:
        index, log_term = item.index, item.log_term
        for entries in _chunks(item.entries, most):
            yield Append(
                item.to,
                item.sender,
                item.term,
                item.incarnation,
                index,
                log_term,
                item.commit,
                entries,
                item.lineage,
            )
            index, log_term = entries[-1].index, entries[-1].term
    elif isinstance(item, InstallPiece) and len(item.entries) > 1:
        previous = item.previous
        for live in _chunks(item.entries, most):
            yield InstallPiece(
                item.to, item.sender, item.session, previous, live, item.at, b"", b""
            )
            previous = live[-1].index
    elif isinstance(item, InstallPiece) and item.state:
        state = memoryview(item.state)
        for at in range(0, len(state), most):
            part = state[at : at + most]
            yield InstallPiece(item.to, item.sender, item.session, 0, [], item.at + at, part, b"")
    else:
        yield item


def until(item: Append, index: int) -> Append:
    """The same without the entries after an index."""
    if not item.entries or item.entries[-1].index <= index:
        return item
    entries = [entry for entry in item.entries if entry.index <= index]
    return msgspec.structs.replace(item, entries=entries)


def _chunks(entries: list[_E], most: int) -> Iterator[list[_E]]:
    chunk: list[_E] = []
    left = most
    for entry in entries:
        size = len(entry.data) + _ENTRY_BYTES
        if chunk and size > left:
            yield chunk
            chunk, left = [], most
        chunk.append(entry)
        left -= size
    yield chunk


def item_bytes(item: Item) -> int:
    """How much of a frame an item takes at most, besides its group's name."""
    size = _ITEM_BYTES
    match item:
        case Append():
            size += sum(len(entry.data) + _ENTRY_BYTES for entry in item.entries)
        case InstallPiece():
            size += sum(len(entry.data) + _ENTRY_BYTES for entry in item.entries)
            size += len(item.state) + len(item.live)
        case Ask() | Answer():
            size += len(item.body)
        case InstallOffer():
            members = item.snapshot.members
            named = (members.voters, members.voters_outgoing, members.learners)
            size += _MEMBER_BYTES * sum(map(len, (*named, members.learners_next)))
            size += _MEMBER_BYTES * len(members.incarnations)
        case ReadIndex() | ReadIndexResponse():
            size += len(item.context)
        case InstallWant():
            size += len(item.refused.encode())
        case InstallOver():
            size += len(item.reason.encode())
        case _:
            pass
    return size


def encode(boot: int, items: Sequence[Routed]) -> list[Buffer]:
    """One frame, as buffers to be sent one after another."""
    wire: list[tuple[str, object]] = []
    data: list[Buffer] = []
    for group, item in items:
        if isinstance(item, Append):
            wire.append((group, _flat_append(item, data)))
        elif isinstance(item, InstallPiece):
            wire.append((group, _flat_piece(item, data)))
        elif isinstance(item, Ask):
            data.append(item.body)
            wire.append((group, _WireAsk(item.to, item.sender, item.number, len(item.body))))
        elif isinstance(item, Answer):
            data.append(item.body)
            flat = _WireAnswer(item.to, item.sender, item.number, item.outcome, len(item.body))
            wire.append((group, flat))
        else:
            wire.append((group, item))
    head = _encoder.encode((FORMAT, boot, wire))
    return [_LENGTH.pack(len(head)) + head, *data]


def _flat_append(item: Append, data: list[Buffer]) -> _WireAppend:
    entries = item.entries
    data += [entry.data for entry in entries]
    return _WireAppend(
        item.to,
        item.sender,
        item.term,
        item.incarnation,
        item.index,
        item.log_term,
        item.commit,
        [entry.term for entry in entries],
        bytes([entry.kind for entry in entries]),
        [len(entry.data) for entry in entries],
        item.lineage,
    )


def _flat_piece(item: InstallPiece, data: list[Buffer]) -> _WirePiece:
    entries = item.entries
    data += [entry.data for entry in entries]
    data += [item.state, item.live]
    return _WirePiece(
        item.to,
        item.sender,
        item.session,
        item.previous,
        [entry.index for entry in entries],
        [entry.term for entry in entries],
        [len(entry.data) for entry in entries],
        item.at,
        len(item.state),
        len(item.live),
    )


def decode(frame: Buffer) -> tuple[int, list[Routed]]:
    """The boot of the sender, and its items. The data stays where it is, in the frame."""
    view = memoryview(frame)
    if len(view) < _LENGTH.size:
        raise BadFrame("a frame without a head")
    (length,) = _LENGTH.unpack_from(view)
    at = _LENGTH.size + length
    if at > len(view):
        raise BadFrame("a frame that ends within its head")
    try:
        number, boot, raw = _frame_decoder.decode(view[_LENGTH.size : at])
        if number != FORMAT:
            # Before its messages are looked at: a newer format may have others.
            raise BadFrame(f"a frame of format {number}; this is format {FORMAT}")
        wire = _items_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"the head of a frame can't be read: {error}") from error
    if not 0 <= boot <= _U63:
        raise BadFrame("a frame of a process that can't be")
    if len(wire) > ITEMS_MAX:
        raise BadFrame(f"a frame with {len(wire)} messages; at most {ITEMS_MAX} are allowed")
    items: list[Routed] = []
    for group, item in wire:
        if not 0 < len(group) <= GROUP_ID_BYTES_MAX or not group.isascii():
            raise BadFrame("a message for a group without a proper name")
        match item:
            case _WireAppend():
                whole, at = _whole_append(item, view, at)
                items.append((group, whole))
            case _WirePiece():
                piece, at = _whole_piece(item, view, at)
                items.append((group, piece))
            case _WireAsk():
                (body,), at = _cut(view, at, [item.length])
                items.append((group, Ask(item.to, item.sender, item.number, body)))
            case _WireAnswer():
                (body,), at = _cut(view, at, [item.length])
                answer = Answer(item.to, item.sender, item.number, item.outcome, body)
                items.append((group, answer))
            case _:
                items.append((group, item))
        _check_numbers(items[-1][1])
    if at != len(view):
        raise BadFrame(f"a frame with {len(view) - at} bytes that nothing describes")
    return boot, items


def _check_numbers(item: Item) -> None:
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if type(value) is int and not 0 <= value <= _U63:
            raise BadFrame(f"{name} of {type(item).__name__} is no number that a peer may send")
    if isinstance(item, Message) and not item.term and not isinstance(item, ReadIndex):
        raise BadFrame(f"a message of no term: {type(item).__name__}")
    if isinstance(item, Answer) and item.outcome >= ANSWER_OUTCOMES:
        # Whoever reads it as a refusal might ask again what was done.
        raise BadFrame(f"an answer with the outcome {item.outcome}")
    if isinstance(item, InstallOffer):
        _check_snapshot(item.snapshot)
    if isinstance(item, ReadIndex | ReadIndexResponse) and len(item.context) > CONTEXT_BYTES_MAX:
        raise BadFrame(f"a read with a context of {len(item.context)} bytes")


def _check_snapshot(snapshot: Snapshot) -> None:
    members = snapshot.members
    numbers = [snapshot.index, snapshot.term, *members.voters, *members.voters_outgoing]
    numbers += [*members.learners, *members.learners_next]
    numbers += [index + 1 for _, index in members.incarnations]  # a founder's is 0
    if not members.voters or not all(0 < number <= _U63 for number in numbers):
        raise BadFrame("a snapshot that can't be")
    try:
        membership.restore(members)
    except MembershipRefused as refused:
        raise BadFrame(f"a snapshot of members that can't be: {refused.message}") from refused


def _cut(view: memoryview, at: int, lengths: list[int]) -> tuple[list[memoryview], int]:
    if any(length < 0 for length in lengths):
        raise BadFrame("an entry of negative length")
    bounds = [at, *(at + size for size in accumulate(lengths))]
    if bounds[-1] > len(view):
        raise BadFrame("a frame that ends within an entry")
    return [view[a:b] for a, b in pairwise(bounds)], bounds[-1]


def _whole_append(item: _WireAppend, view: memoryview, at: int) -> tuple[Append, int]:
    terms, count = item.terms, len(item.terms)
    if len(item.kinds) != count or len(item.lengths) != count:
        raise BadFrame("an append whose entries are not all described")
    if count:
        rising = all(a <= b for a, b in pairwise(terms))
        if not rising or not 0 < terms[0] or not item.log_term <= terms[0] or terms[-1] > item.term:
            raise BadFrame("an append whose terms fall, or exceed its own")
        if max(item.kinds) > EntryKind.JOINT_CHANGE:
            raise BadFrame("an append with an entry of an unknown kind")
        if not 0 <= item.index <= _U63 - count:
            raise BadFrame("an append beyond any index")
    datas, at = _cut(view, at, item.lengths)
    first = item.index + 1
    entries = [
        Entry(first + offset, term, EntryKind(kind), data)
        for offset, (term, kind, data) in enumerate(zip(terms, item.kinds, datas, strict=True))
    ]
    whole = Append(
        item.to,
        item.sender,
        item.term,
        item.incarnation,
        item.index,
        item.log_term,
        item.commit,
        entries,
        item.lineage,
    )
    return whole, at


def _whole_piece(item: _WirePiece, view: memoryview, at: int) -> tuple[InstallPiece, int]:
    count = len(item.indexes)
    if len(item.terms) != count or len(item.lengths) != count:
        raise BadFrame("a piece of a snapshot whose entries are not all described")
    numbers = [item.previous, *item.indexes]
    if any(a >= b for a, b in pairwise(numbers)) or numbers[-1] > _U63:
        raise BadFrame("a piece of a snapshot whose indexes do not rise")
    if any(not 0 < term <= _U63 for term in item.terms):
        raise BadFrame("a piece of a snapshot with an entry of no term")
    if (count > 0) + (item.state_bytes != 0) + (item.live_bytes != 0) > 1:
        raise BadFrame("a piece of a snapshot that is of several kinds")
    datas, at = _cut(view, at, [*item.lengths, item.state_bytes, item.live_bytes])
    entries = [
        LogEntry(index, term, data)
        for index, term, data in zip(item.indexes, item.terms, datas, strict=False)
    ]
    piece = InstallPiece(
        item.to, item.sender, item.session, item.previous, entries, item.at, datas[-2], datas[-1]
    )
    return piece, at
