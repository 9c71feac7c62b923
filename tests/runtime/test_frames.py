"""The wire format, without a wire."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lowmark.runtime import Buffer, NetworkLimits
from lowmark.runtime.frames import (
    STAGING_BYTES,
    Arrived,
    FrameReader,
    Hello,
    Misread,
    frame_header,
    hello,
)

LIMITS = NetworkLimits(frame_bytes_max=200_000)
# Lengths at which the reader changes its mind: it stages short frames and not long ones.
EDGES = [0, 1, STAGING_BYTES - 9, STAGING_BYTES - 8, STAGING_BYTES - 7, STAGING_BYTES, 200_000]


def framed(data: bytes) -> bytes:
    return frame_header([data]) + data


def read(reader: FrameReader, data: bytes, *, at_most: int = 1 << 30) -> list[str | bytes]:
    """Feed bytes in pieces, as far as the reader has room; gives names and frames."""
    found: list[str | bytes] = []
    while data:
        room = reader.room()
        count = min(len(room), len(data), at_most)
        assert count > 0
        room[:count] = data[:count]
        data = data[count:]
        for event in reader.arrived(count):
            match event:
                case Hello(address=address):
                    found.append(address)
                case Arrived(frame=frame):
                    found.append(bytes(frame))
    return found


def greeted_reader() -> FrameReader:
    reader = FrameReader(LIMITS)
    assert read(reader, hello("a:1")) == ["a:1"]
    return reader


def test_the_bytes_on_the_wire_are_as_written_down() -> None:
    assert hello("a:1") == b"LWMK\x01\x00\x03\x00a:1"
    assert frame_header([b"ab", b"c"]) == struct.pack("<II", 3, crc32c(b"abc"))


@pytest.mark.parametrize("length", EDGES)
def test_a_frame_of_any_length_comes_out_as_it_went_in(length: int) -> None:
    data = bytes(n % 251 for n in range(length))
    stream = hello("a:1") + framed(data) + framed(b"next") + framed(data)
    assert read(FrameReader(LIMITS), stream) == ["a:1", data, b"next", data]


def test_a_stream_may_come_byte_by_byte() -> None:
    stream = hello("a:1") + framed(b"one") + framed(b"") + framed(b"two")
    assert read(FrameReader(LIMITS), stream, at_most=1) == ["a:1", b"one", b"", b"two"]


LENGTHS = st.sampled_from(EDGES) | st.integers(0, 300)


@pytest.mark.slow
@given(st.lists(LENGTHS, max_size=6), st.sampled_from([997, 65_000, 1 << 20]))
def test_where_a_stream_is_broken_makes_no_difference(lengths: list[int], at_most: int) -> None:
    frames = [bytes([n % 256]) * length for n, length in enumerate(lengths)]
    stream = hello("a:1") + b"".join(map(framed, frames))
    assert read(FrameReader(LIMITS), stream, at_most=at_most) == ["a:1", *frames]


def test_a_long_frame_is_memory_of_its_own_that_nobody_can_change() -> None:
    data = b"x" * 200_000
    reader = greeted_reader()
    events = []
    for start in range(0, 200_008, STAGING_BYTES):
        piece = framed(data)[start : start + STAGING_BYTES]
        reader.room()[: len(piece)] = piece
        events += list(reader.arrived(len(piece)))
    (event,) = events
    assert isinstance(event, Arrived)
    assert isinstance(event.frame, memoryview)
    assert event.frame.readonly


def test_of_a_frame_of_a_mebibyte_only_the_beginning_is_ever_copied() -> None:
    limits = NetworkLimits()
    reader = FrameReader(limits)
    read(reader, hello("a:1"))
    stream = memoryview(framed(b"x" * (1 << 20)))
    # given the beginning, which comes into the staging buffer together with whatever is before it
    reader.room()[:1_000] = stream[:1_000]
    assert list(reader.arrived(1_000)) == []
    # when the rest comes, then it comes into the memory that the frame is given in
    room = reader.room()
    assert len(room) == len(stream) - 1_000
    room[:] = stream[1_000:]
    (event,) = reader.arrived(len(room))
    assert isinstance(event, Arrived)
    assert isinstance(event.frame, memoryview)
    assert event.frame.obj is room.obj
    assert event.frame.readonly


@pytest.mark.parametrize("length", [0, 5, 50_000, 200_000])
def test_a_frame_that_was_given_stays_as_it_is_whatever_comes_after(length: int) -> None:
    reader = greeted_reader()
    data = b"a" * length
    stream = memoryview(framed(data) + framed(b"b" * 200_000) + framed(b"c" * 60_000))
    kept: list[Buffer] = []
    while stream:
        count = min(len(reader.room()), len(stream))
        reader.room()[:count] = stream[:count]
        stream = stream[count:]
        kept += [event.frame for event in reader.arrived(count) if isinstance(event, Arrived)]
    assert kept[0] == data
    assert isinstance(kept[0], bytes) or memoryview(kept[0]).readonly


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\x16\x03\x01\x02\x00", "but TLS, it seems"),
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak"),
        (b"L!", "does not speak"),
        (b"LWMK\x02\x00\x03\x00a:1", "version 2"),
        (b"LWMK\x01\x00\x00\x00", "address has 0 bytes"),
        (b"LWMK\x01\x00\x00\x01", "address has 256 bytes"),
        (b"LWMK\x01\x00\x02\x00\xff\xff", "no text"),
    ],
)
def test_a_wrong_hello_is_noticed_at_once(stream: bytes, reason: str) -> None:
    with pytest.raises(Misread, match=reason) as misread:
        read(FrameReader(LIMITS), stream)
    assert not misread.value.greeted


def test_an_address_of_the_greatest_length_is_taken() -> None:
    assert read(FrameReader(LIMITS), hello("a" * 255)) == ["a" * 255]


def test_a_frame_above_the_limit_is_refused_by_its_header() -> None:
    reader = greeted_reader()
    with pytest.raises(Misread, match="frame of 200001 bytes") as misread:
        read(reader, struct.pack("<II", 200_001, 0))
    assert misread.value.greeted


@pytest.mark.parametrize("length", [3, 100_000])
def test_a_changed_byte_is_noticed(length: int) -> None:
    stream = bytearray(framed(b"x" * length))
    stream[-1] ^= 1
    with pytest.raises(Misread, match="checksum"):
        read(greeted_reader(), bytes(stream))


@given(st.binary(max_size=300))
def test_rubbish_is_refused_or_waits_for_more_and_never_breaks_the_reader(rubbish: bytes) -> None:
    for reader in (FrameReader(LIMITS), greeted_reader()):
        try:
            read(reader, rubbish)
        except Misread:
            continue
