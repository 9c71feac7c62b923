"""Frames between nodes: what goes in comes out, and rubbish never gets further than `BadFrame`."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowmark.group import BadFrame
from lowmark.group.wire import (
    ANSWER_OUTCOMES,
    Answer,
    Ask,
    InstallOffer,
    InstallOver,
    InstallPiece,
    InstallWant,
    Item,
    Knows,
    NotHere,
    Rejoin,
    Rest,
    Rested,
    Routed,
    decode,
    encode,
    item_bytes,
    parts_of,
)
from lowmark.log import Entry as LogEntry
from lowmark.raft import (
    Append,
    AppendResponse,
    ConfState,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Install,
    ReadIndex,
    ReadIndexResponse,
    Snapshot,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteResponse,
)
from lowmark.raft.messages import Forward

U63 = (1 << 63) - 1
number = st.integers(0, U63)
some = st.integers(1, U63)
node = st.integers(1, U63)
data = st.binary(max_size=40)
head = (node, node, some, number)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    terms = sorted(draw(st.lists(some, max_size=5)))
    log_term = draw(st.integers(0, terms[0] if terms else U63))
    term = draw(st.integers(max([1, log_term, *terms]), U63))
    index = draw(st.integers(0, U63 - 10))
    entries = [
        Entry(index + at, entry_term, draw(st.sampled_from(EntryKind)), draw(data))
        for at, entry_term in enumerate(terms, start=1)
    ]
    return Append(
        draw(node), draw(node), term, draw(number), index, log_term, draw(number), entries
    )


@st.composite
def pieces(draw: st.DrawFn) -> InstallPiece:
    kind = draw(st.sampled_from(["entries", "state", "live"]))
    indexes = sorted(draw(st.sets(some, max_size=5))) if kind == "entries" else []
    previous = draw(st.integers(0, indexes[0] - 1)) if indexes else draw(number)
    entries = [LogEntry(index, draw(some), draw(data)) for index in indexes]
    return InstallPiece(
        draw(node),
        draw(node),
        draw(number),
        previous,
        entries,
        draw(number),
        draw(data) if kind == "state" else b"",
        draw(data) if kind == "live" else b"",
    )


nodes = st.lists(node, max_size=4, unique=True).map(sorted).map(tuple)
conf_states = st.builds(lambda voters: ConfState(voters=voters or (1,)), nodes)
snapshots = st.builds(Snapshot, some, some, conf_states)
items: st.SearchStrategy[Item] = st.one_of(
    appends(),
    pieces(),
    st.builds(AppendResponse, *head, number, st.booleans(), number, number),
    st.builds(Vote, *head, number, number, st.booleans(), st.booleans()),
    st.builds(VoteResponse, *head, st.booleans(), st.booleans()),
    st.builds(Heartbeat, *head, number, number),
    st.builds(HeartbeatResponse, *head, number),
    st.builds(TimeoutNow, *head),
    st.builds(TransferLeader, *head, node),
    st.builds(ReadIndex, node, node, st.just(0), number, data),
    st.builds(ReadIndexResponse, *head, number, data),
    st.builds(NotHere, node, node),
    st.builds(Rest, node, node, some, number),
    st.builds(Rested, node, node, some, number),
    st.builds(Knows, node, node, some, some),
    st.builds(Rejoin, node, node, number),
    st.builds(Ask, number, node, number, data),
    st.builds(Answer, node, node, number, st.integers(0, ANSWER_OUTCOMES - 1), data),
    st.builds(
        InstallOffer,
        *(node, node, number, some, number),
        snapshots,
        *(some, number, number, number, number, number, number),
    ),
    st.builds(
        InstallWant,
        *(node, node, number, number, number, number, number, number),
        st.booleans(),
        st.text(max_size=20),
    ),
    st.builds(InstallOver, node, node, number, st.text(max_size=20)),
)
names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
frames = st.tuples(number, st.lists(st.tuples(names, items), max_size=5))


def frame_of(boot: int, routed: list[Routed]) -> bytes:
    return b"".join(encode(boot, routed))


def plain(item: Item) -> Item:
    """The same with its data as bytes, to be compared."""
    match item:
        case Append():
            entries = [Entry(e.index, e.term, e.kind, bytes(e.data)) for e in item.entries]
            return msgspec.structs.replace(item, entries=entries)
        case InstallPiece():
            found = [LogEntry(e.index, e.term, bytes(e.data)) for e in item.entries]
            return msgspec.structs.replace(
                item, entries=found, state=bytes(item.state), live=bytes(item.live)
            )
        case Ask() | Answer():
            return msgspec.structs.replace(item, body=bytes(item.body))
        case _:
            return item


@pytest.mark.slow
@given(frames)
def test_every_message_arrives_as_it_was_sent(sent: tuple[int, list[Routed]]) -> None:
    boot, routed = sent
    got_boot, got = decode(frame_of(boot, routed))
    assert got_boot == boot
    assert [(group, plain(item)) for group, item in got] == routed


def largest() -> list[Item]:
    """Messages whose every number takes as many bytes as it can."""
    big = U63 - 1_000
    members = ConfState(
        voters=tuple(range(big, big + 5)),
        voters_outgoing=tuple(range(big + 5, big + 9)),
        incarnations=tuple((n, big) for n in range(big, big + 9)),
    )
    entry = Entry(big + 1, big, EntryKind.JOINT_CHANGE, b"x" * 70_000)
    same = (big, big, big, big)
    return [
        Append(*same, big, big, big, [entry] * 5),
        InstallPiece(big, big, big, 1, [LogEntry(big, big, b"x" * 70_000)] * 5, big, b"", b""),
        InstallOffer(*(big, big, big, big, big), Snapshot(big, big, members), *(big,) * 7),
        InstallWant(big, big, big, big, big, big, big, big, refused="ä" * 200),
        InstallOver(big, big, big, "ä" * 500),
        AppendResponse(*same, big, True, big, big),
        Vote(*same, big, big, False),
        ReadIndex(big, big, 0, big, b"x" * 100),
        ReadIndexResponse(*same, big, b"x" * 100),
        Heartbeat(*same, big, big),
        Rest(*same),
        Ask(big, big, big, b"x" * 70_000),
        Answer(big, big, big, 2, b"x" * 70_000),
    ]


@pytest.mark.parametrize("item", largest(), ids=lambda item: type(item).__name__)
def test_no_frame_is_longer_than_its_estimate(item: Item) -> None:
    # Else a frame of very many messages could be longer than the network takes.
    estimate = 16 + 10 * (item_bytes(item) + 64)
    assert len(frame_of(U63, [("g" * 64, item)] * 10)) <= estimate


def test_a_frame_without_messages_is_a_sign_of_life() -> None:
    assert decode(frame_of(7, [])) == (7, [])


def test_data_is_not_copied_out_of_the_frame() -> None:
    entry = Entry(1, 1, EntryKind.NORMAL, b"x" * 1_000)
    frame = frame_of(1, [("g", Append(1, 2, 1, 0, 0, 0, 0, [entry]))])
    ((_, item),) = decode(frame)[1]
    assert isinstance(item, Append)
    view = item.entries[0].data
    assert isinstance(view, memoryview)
    assert view.obj is frame


def decode_or_refuse(frame: bytes) -> bool:
    """Whether it is a frame; anything but a frame or `BadFrame` fails the test."""
    try:
        decode(frame)
    except BadFrame:
        return False
    return True


@pytest.mark.slow
@given(frames, st.randoms(use_true_random=False))
def test_a_frame_with_flipped_bytes_is_refused_or_read(
    sent: tuple[int, list[Routed]], dice: Random
) -> None:
    frame = bytearray(frame_of(*sent))
    for _ in range(20):
        changed = bytearray(frame)
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(len(frame))] = dice.randrange(256)
        decode_or_refuse(bytes(changed))


@pytest.mark.slow
@given(frames, st.integers(0, 1 << 30))
def test_a_frame_that_was_cut_is_refused(sent: tuple[int, list[Routed]], where: int) -> None:
    frame = frame_of(*sent)
    assert not decode_or_refuse(frame[: where % len(frame)])


@pytest.mark.slow
@given(frames, st.binary(min_size=1, max_size=20))
def test_a_frame_with_something_behind_it_is_refused(
    sent: tuple[int, list[Routed]], more: bytes
) -> None:
    assert not decode_or_refuse(frame_of(*sent) + more)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(frame: bytes) -> None:
    decode_or_refuse(frame)


@given(st.binary(max_size=200))
def test_random_heads_are_refused_or_read(content: bytes) -> None:
    decode_or_refuse(struct.pack("<I", len(content)) + content)


class Head(msgspec.Struct, array_like=True):
    """What a hostile peer may put into a head."""

    format: object
    boot: object
    items: object


def hostile(items: object, *, format_: object = 1, boot: object = 1, data: bytes = b"") -> bytes:
    content = msgspec.msgpack.encode(Head(format_, boot, items))
    return struct.pack("<I", len(content)) + content + data


def conf(**parts: object) -> list[object]:
    """A configuration as it goes over the wire, with some parts replaced."""
    whole: dict[str, object] = {
        "voters": [1, 2, 3],
        "voters_outgoing": [],
        "learners": [],
        "learners_next": [],
        "auto_leave": False,
        "incarnations": [],
    }
    return list((whole | parts).values())


def offer(members: object, *, index: object = 5, term: object = 1) -> list[object]:
    return ["g", [30, 1, 2, 9, 1, 0, [index, term, members], 1, 0, 0, 0, 0, 0, 0]]


NESTED: object = 1
for _ in range(500):
    NESTED = [NESTED]

BAD_FRAMES: dict[str, bytes] = {
    "empty": b"",
    "no head": b"\x00\x00",
    "a head that is not there": struct.pack("<I", 1 << 31),
    "a head of nothing": struct.pack("<I", 0),
    "another format": hostile([], format_=2),
    "no format": hostile([], format_="1"),
    "a boot that is no number": hostile([], boot="x"),
    "a negative boot": hostile([], boot=-1),
    "items that are none": hostile(7),
    "items nested without end": hostile(NESTED),
    "a message of no kind": hostile([["g", [99, 1, 2]]]),
    "a message that nodes never send": hostile([["g", [7, 1, 2, 1, 0, [1, 1, conf()]]]]),
    "a group without a name": hostile([["", [20, 1, 2]]]),
    "a group with a long name": hostile([["x" * 65, [20, 1, 2]]]),
    "a group whose name is too long in bytes": hostile([["ä" * 64, [20, 1, 2]]]),
    "a group whose name is no text": hostile([[7, [20, 1, 2]]]),
    "too few fields": hostile([["g", [5, 1, 2]]]),
    "too many fields": hostile([["g", [20, 1, 2, 3]]]),
    "a number that is none": hostile([["g", [20, 1, "2"]]]),
    "a number that is too large": hostile([["g", [21, 1, 2, 1, 1 << 63]]]),
    "a negative number": hostile([["g", [21, 1, 2, 1, -1]]]),
    "a heartbeat of no term": hostile([["g", [5, 1, 2, 0, 0, 0, 0]]]),
    "a vote of a negative term": hostile([["g", [3, 1, 2, -1, 0, 0, 0, False, False]]]),
    "an append of no term": hostile([["g", [1, 1, 2, 0, 0, 0, 0, 0, [], b"", []]]]),
    "lists of different lengths": hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [1], b"\0", []]]]),
    "an entry that is not there": hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [1], b"\0", [5]]]]),
    "an entry of negative length": hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [1], b"\0", [-1]]]]),
    "an entry of no known kind": hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [1], b"\3", [0]]]]),
    "an entry of term 0": hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [0], b"\0", [0]]]]),
    "an entry of a later term": hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [2], b"\0", [0]]]]),
    "terms that fall": hostile([["g", [1, 1, 2, 2, 0, 0, 0, 0, [2, 1], b"\0\0", [0, 0]]]]),
    "a previous term above": hostile([["g", [1, 1, 2, 2, 0, 1, 2, 0, [1], b"\0", [0]]]]),
    "an index beyond any": hostile([["g", [1, 1, 2, 1, 0, U63, 0, 0, [1], b"\0", [0]]]]),
    "bytes that nothing describes": hostile([["g", [20, 1, 2]]], data=b"x"),
    "a piece whose indexes fall": hostile(
        [["g", [32, 1, 2, 9, 0, [5, 4], [1, 1], [0, 0], 0, 0, 0]]]
    ),
    "a piece whose indexes do not follow": hostile(
        [["g", [32, 1, 2, 9, 5, [5], [1], [0], 0, 0, 0]]]
    ),
    "a piece of no term": hostile([["g", [32, 1, 2, 9, 0, [5], [0], [0], 0, 0, 0]]]),
    "a piece that is not there": hostile([["g", [32, 1, 2, 9, 0, [], [], [], 0, 7, 0]]]),
    "a piece of negative size": hostile([["g", [32, 1, 2, 9, 0, [], [], [], 0, -7, 7]]]),
    "a piece of everything at once": hostile(
        [["g", [32, 1, 2, 9, 0, [5], [1], [1], 0, 1, 1]]], data=b"xyz"
    ),
    "a snapshot without voters": hostile([offer(conf(voters=[]))]),
    "a snapshot at no index": hostile([offer(conf(), index=0)]),
    "a snapshot at a negative index": hostile([offer(conf(), index=-5)]),
    "a snapshot beyond any index": hostile([offer(conf(), index=1 << 63)]),
    "a snapshot of no term": hostile([offer(conf(), term=0)]),
    "a member of no number": hostile([offer(conf(voters=[0, 1]))]),
    "a member of a negative number": hostile([offer(conf(voters=[-1, 1]))]),
    "a member with too large a number": hostile([offer(conf(voters=[1, 1 << 63]))]),
    "a member that is voter and learner": hostile([offer(conf(learners=[1]))]),
    "a member on its way to nowhere": hostile([offer(conf(learners_next=[1]))]),
    "a joint configuration that is none": hostile([offer(conf(auto_leave=True))]),
    "an incarnation of nobody": hostile([offer(conf(incarnations=[[9, 1]]))]),
    "a negative incarnation": hostile([offer(conf(incarnations=[[1, -1]]))]),
    "a question that is not there": hostile([["s", [25, 0, 2, 9, 5]]]),
    "a question of negative length": hostile([["s", [25, 0, 2, 9, -1]]]),
    "a question that is longer than said": hostile([["s", [25, 0, 2, 9, 2]]], data=b"xyz"),
    "a question of a negative number": hostile([["s", [25, 0, 2, -9, 0]]]),
    "a question to a negative node": hostile([["s", [25, -1, 2, 9, 0]]]),
    "a question to no service": hostile([["", [25, 0, 2, 9, 0]]]),
    "a question with its body in the head": hostile([["s", [25, 0, 2, 9, b"x"]]]),
    "an answer that is not there": hostile([["s", [26, 1, 2, 9, 0, 5]]]),
    "an answer of negative length": hostile([["s", [26, 1, 2, 9, 0, -1]]]),
    "an answer of no known outcome": hostile([["s", [26, 1, 2, 9, 3, 0]]]),
    "an answer of a negative outcome": hostile([["s", [26, 1, 2, 9, -1, 0]]]),
    "text that is none": hostile([["g", [33, 1, 2, 9, "xx"]]]).replace(b"xx", b"\xff\xfe"),
    "a name that is no text": hostile([["xx", [20, 1, 2]]]).replace(b"xx", b"\xff\xfe"),
}


@pytest.mark.parametrize("kind", BAD_FRAMES)
def test_every_kind_of_malformed_frame_is_refused_by_name(kind: str) -> None:
    with pytest.raises(BadFrame):
        decode(BAD_FRAMES[kind])


def test_what_the_bad_frames_are_made_of_is_sound() -> None:
    """So that each of them is refused for what is said of it."""
    assert decode(hostile([["g", [20, 1, 2]]]))[1] == [("g", NotHere(1, 2))]
    assert decode(hostile([offer(conf())]))[1][0][0] == "g"
    sound = [1, 1, 2, 2, 0, 0, 0, 0, [1, 2], b"\0\1", [1, 2]]
    assert len(decode(hostile([["g", sound]], data=b"xyz"))[1]) == 1
    assert decode(hostile([["g", [32, 1, 2, 9, 0, [5], [1], [1], 0, 0, 0]]], data=b"x"))[1]
    asked = hostile([["s", [25, 0, 2, 9, 1]], ["s", [26, 1, 2, 9, 2, 2]]], data=b"xyz")
    question, answer = (plain(item) for _, item in decode(asked)[1])
    assert (question, answer) == (Ask(0, 2, 9, b"x"), Answer(1, 2, 9, 2, b"yz"))


def test_a_small_frame_never_asks_for_much_memory() -> None:
    # given heads that announce far more than there is
    huge = [
        struct.pack("<I", (1 << 32) - 1) + b"x" * 100,
        struct.pack("<I", 6) + b"\x93\x01\x01\xdd\xff\xff\xff\xff",
        struct.pack("<I", 9) + b"\x93\x01\x01\xdd\x7f\xff\xff\xff\x92",
        struct.pack("<I", 10) + b"\x93\x01\x01\x91\x92\xdb\xff\xff\xff\xff",
        hostile([["g", [1, 1, 2, 1, 0, 0, 0, 0, [1], b"\0", [U63]]]]),
        hostile([["g", [32, 1, 2, 9, 0, [], [], [], 0, U63, U63]]]),
        hostile([["s", [25, 0, 2, 9, U63]]]),
        hostile([["s", [26, 1, 2, 9, 0, U63]]]),
    ]
    tracemalloc.start()
    for frame in huge:
        assert not decode_or_refuse(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # then they cost next to nothing
    assert peak < 1 << 20


def test_messages_that_stay_within_a_node_can_not_be_sent() -> None:
    for item in (
        Install(1, 2, 1, 0, Snapshot(1, 1, ConfState(voters=(1,)))),
        Forward(1, 2, 0, 0, []),
    ):
        assert not decode_or_refuse(frame_of(1, [("g", item)]))


# -- parts ----------------------------------------------------------------------------------------


def test_an_append_in_parts_says_the_same() -> None:
    entries = [Entry(10 + n, 3 + n // 4, EntryKind.NORMAL, bytes([n]) * 100) for n in range(10)]
    whole = Append(2, 1, 9, 7, 9, 2, 12, entries)
    parts = list(parts_of(whole, 250))
    assert len(parts) == 5
    last, term = whole.index, whole.log_term
    for part in parts:
        assert isinstance(part, Append)
        assert (part.index, part.log_term) == (last, term)
        assert (part.to, part.sender, part.term) == (whole.to, whole.sender, whole.term)
        assert (part.incarnation, part.commit) == (whole.incarnation, whole.commit)
        last, term = part.entries[-1].index, part.entries[-1].term
    assert [e for part in parts for e in part.entries] == entries  # type: ignore[union-attr]
    # and a single entry is never parted
    alone = Append(2, 1, 9, 7, 9, 2, 12, entries[:1])
    assert list(parts_of(alone, 10)) == [alone]


def test_a_piece_of_a_snapshot_in_parts_says_the_same() -> None:
    live = [LogEntry(5 * n, 2, bytes(100)) for n in range(1, 8)]
    parts = list(parts_of(InstallPiece(2, 1, 77, 3, live, 0, b"", b""), 300))
    assert [e.index for part in parts for e in part.entries] == [e.index for e in live]  # type: ignore[union-attr]
    assert [part.previous for part in parts] == [3, 10, 20, 30]  # type: ignore[union-attr]
    state = bytes(range(250))
    parts = list(parts_of(InstallPiece(2, 1, 77, 0, [], 1_000, state, b""), 100))
    assert [part.at for part in parts] == [1_000, 1_100, 1_200]  # type: ignore[union-attr]
    assert b"".join(part.state for part in parts) == state  # type: ignore[union-attr]
