"""A client that sends only a part of its request: HTTP/2, as far as that needs."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from lowmark.runtime import host_and_port

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_WINDOW = (1 << 16) - 1
_FRAME_BYTES = 1 << 14
_ENDLESS = struct.pack(">BI", 0, (1 << 32) - 1)
"""Before a message of gRPC that has 4 GiB."""


class HalfSent:
    """One connection, in plain text. What it sends stays a part, so that its call never begins."""

    def __init__(self, one: socket.socket) -> None:
        self._one = one
        self._read = b""
        self._windows = {0: _WINDOW}
        """How much may be sent: together, and of each call."""
        self._stream = -1
        one.settimeout(30)
        one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, b""))

    def begin(self, *, bearer: str = "") -> None:
        """Begin a call of an action, with a token or without."""
        self._stream += 2
        self._windows[self._stream] = _WINDOW
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/arrow.flight.protocol.FlightService/DoAction",
            ":authority": "node",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        headers |= {"authorization": f"Bearer {bearer}"} if bearer else {}
        encoded = b"".join(map(_literal, headers, headers.values()))
        self._one.sendall(_frame(_HEADERS, encoded, flags=_END_HEADERS, stream=self._stream))

    def ask(self, name: str, *, bearer: str) -> None:
        """A whole call, whose answer is not waited for."""
        self.begin(bearer=bearer)
        message = b"\x0a" + bytes([len(name)]) + name.encode()
        whole = struct.pack(">BI", 0, len(message)) + message
        self._one.sendall(_frame(_DATA, whole, flags=_END_STREAM, stream=self._stream))

    def send(self, count: int) -> bool:
        """So many bytes of the request of the call that was begun last, as the server takes them.
        False: it was cut off.
        """
        rest = _ENDLESS + bytes(count)
        try:
            while rest:
                while (room := min(self._windows[0], self._windows[self._stream])) <= 0:
                    self._take()
                part, rest = rest[: min(room, _FRAME_BYTES)], rest[min(room, _FRAME_BYTES) :]
                self._one.sendall(_frame(_DATA, part, stream=self._stream))
                self._windows[0] -= len(part)
                self._windows[self._stream] -= len(part)
        except ConnectionError:
            return False
        return True

    def _take(self) -> None:
        """What the server says next."""
        header = self._bytes(9)
        kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big")
        payload = self._bytes(int.from_bytes(header[:3], "big"))
        if kind == _WINDOW_UPDATE and stream in self._windows:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:  # the window of each call
                    self._windows[self._stream] += value - _WINDOW
            self._one.sendall(_frame(_SETTINGS, b"", flags=_ACK))
        elif kind == _PING and not flags & _ACK:
            self._one.sendall(_frame(_PING, payload, flags=_ACK))
        elif kind == _GOAWAY:
            raise ConnectionError("the server lets this connection go")

    def _bytes(self, count: int) -> bytes:
        while len(self._read) < count:
            got = self._one.recv(1 << 16)
            if not got:
                raise ConnectionError("the server has ended this connection")
            self._read += got
        found, self._read = self._read[:count], self._read[count:]
        return found


@contextlib.contextmanager
def half_sent(address: str) -> Iterator[tuple[HalfSent, socket.socket]]:
    """A connection, and its socket."""
    with socket.create_connection(host_and_port(address), timeout=20) as one:
        yield HalfSent(one), one


def _frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def _literal(name: str, value: str) -> bytes:
    """A header that no table has."""
    assert max(len(name), len(value)) < 127
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
