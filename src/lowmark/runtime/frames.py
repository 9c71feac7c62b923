"""Bytes on the wire: one hello each way, then frames. No socket here; bytes in, events out.

    hello   magic "LWMK" · version u16 · length of the address u16 · address, UTF-8
    frame   length u32 · CRC-32C of the bytes u32 · bytes

Numbers are little-endian. A frame that fits into the staging buffer is copied out of it once; a
longer one is received straight into memory of its own, and only its beginning, as far as it was
read together with what came before it, is copied. Whoever is given a frame may keep it: it is
memory of its own, and nobody can change it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from lowmark.errors import invariant
from lowmark.runtime.disk import Buffer, bytes_in
from lowmark.runtime.network import FRAME_HEADER_BYTES, NetworkLimits

MAGIC = b"LWMK"
VERSION = 1
STAGING_BYTES = 64 << 10
_TLS_RECORDS = b"\x15\x16"  # the first byte of an alert, and of a handshake

_HELLO = struct.Struct("<4sHH")
_HEADER = struct.Struct("<II")
invariant(_HEADER.size == FRAME_HEADER_BYTES, "the header is as long as the limits say")


class Misread(Exception):
    """What arrived is not what a peer sends; the connection is of no more use."""

    def __init__(self, reason: str, *, greeted: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.greeted = greeted


@dataclass(frozen=True, slots=True)
class Hello:
    """The first thing each side says: its name."""

    address: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A whole frame: bytes, or a read-only view of memory of its own."""

    frame: Buffer


def hello(address: str) -> bytes:
    """The first bytes of a connection."""
    name = address.encode()
    return _HELLO.pack(MAGIC, VERSION, len(name)) + name


def frame_header(buffers: Sequence[Buffer]) -> bytes:
    """What stands before a frame of these buffers."""
    checksum = 0
    for buffer in buffers:
        checksum = crc32c(buffer, checksum)
    return _HEADER.pack(bytes_in(buffers), checksum)


class FrameReader:
    """Takes bytes as they come and gives a hello, then frames.

    Receive into `room()`, then tell `arrived(count)`. After `Misread` it takes nothing any more.
    """

    def __init__(self, limits: NetworkLimits) -> None:
        self._limits = limits
        self.greeted = False
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0
        self._long: memoryview | None = None  # a frame too long for the staging buffer
        self._long_filled = 0
        self._long_checksum = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._long is not None:
            return self._long[self._long_filled :]
        return self._staging[self._staged :]

    def arrived(self, count: int) -> Iterator[Hello | Arrived]:
        """Give what has become whole with the last `count` bytes; take all of it."""
        if self._long is not None:
            self._long_filled += count
            if self._long_filled == len(self._long):
                frame, self._long = self._long, None
                yield self._checked(frame.toreadonly(), self._long_checksum)
            return
        self._staged += count
        at = 0
        if not self.greeted:
            greeting = self._take_hello()
            if greeting is None:
                return
            self.greeted = True
            at = len(hello(greeting.address))
            yield greeting
        while (header_end := at + _HEADER.size) <= self._staged:
            length, checksum = _HEADER.unpack_from(self._staging, at)
            if length > self._limits.frame_bytes_max:
                raise self._misread(
                    f"it sent a frame of {length} bytes, and {self._limits.frame_bytes_max} are"
                    " allowed (network.frame_bytes_max)"
                )
            frame_end = header_end + length
            if frame_end <= self._staged:
                at = frame_end
                yield self._checked(bytes(self._staging[header_end:frame_end]), checksum)
            elif _HEADER.size + length <= STAGING_BYTES:
                break
            else:
                self._start_long(self._staging[header_end : self._staged], length, checksum)
                return
        self._keep_from(at)

    def _take_hello(self) -> Hello | None:
        staged = bytes(self._staging[: self._staged])
        if not MAGIC.startswith(staged[: len(MAGIC)]):
            tls = " (but TLS, it seems)" if staged[0] in _TLS_RECORDS else ""
            raise self._misread(f"it does not speak Lowmark's protocol{tls}")
        if len(staged) < _HELLO.size:
            return None
        _, version, length = _HELLO.unpack_from(staged)
        if version != VERSION:
            raise self._misread(f"it speaks version {version} of the protocol, we speak {VERSION}")
        if not 0 < length <= self._limits.address_bytes_max:
            raise self._misread(f"its address has {length} bytes")
        if len(staged) < _HELLO.size + length:
            return None
        try:
            return Hello(staged[_HELLO.size : _HELLO.size + length].decode())
        except UnicodeDecodeError as error:
            raise self._misread("its address is no text") from error

    def _start_long(self, begun: memoryview, length: int, checksum: int) -> None:
        # Not a bytearray, which would be filled with zeros first: all of it is received into.
        self._long = np.empty(length, np.uint8).data
        self._long[: len(begun)] = begun
        self._long_filled = len(begun)
        self._long_checksum = checksum
        self._staged = 0

    def _keep_from(self, at: int) -> None:
        if at == 0:
            return
        rest = bytes(self._staging[at : self._staged])
        self._staging[: len(rest)] = rest
        self._staged = len(rest)

    def _checked(self, frame: Buffer, checksum: int) -> Arrived:
        if crc32c(frame) != checksum:
            raise self._misread("a frame's checksum is wrong")
        return Arrived(frame)

    def _misread(self, reason: str) -> Misread:
        return Misread(reason, greeted=self.greeted)
