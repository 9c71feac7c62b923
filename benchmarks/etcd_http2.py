"""Puts to etcd with as little around them as can be; a process of its own: see `etcd_peer`.

gRPC is HTTP/2 with five bytes before each message. A client that only ever makes the same call
needs very little of it: the headers are the same bytes every time, and those of an answer need not
be read at all. So a put costs this client about 20 µs, where `grpc.aio` takes 170 and etcd's own
benchmark, in Go, takes 70. On a machine that both sides share, the rest is etcd's to use.

What is left out: the headers of an answer are not decoded. A put that etcd refused is known by an
answer without a message. Whether all puts were taken, the other end checks by etcd's revision; a
transaction whose condition does not hold makes none.
Numbers of frames and settings are from RFC 9113, indexes of headers from RFC 7541, appendix A.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from benchmarks.etcd_wire import PATHS, Done, Go, Kind, Order, Ready
from clusters.processes import Parent
from lowmark.errors import Unavailable

SILENCE_DEADLINE_S = 60.0
READ_BYTES = 256 << 10
OUR_WINDOW_BYTES = 1 << 30
WINDOW_GIVEN_BACK_BYTES = 1 << 20

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS = 4
NO_PUSH, INITIAL_WINDOW, FRAME_BYTES_MAX = 2, 4, 5
_HEAD = struct.Struct(">BHBBI")
_SETTING = struct.Struct(">HI")


class PutFailed(Unavailable):
    """etcd refused a put, or ended the connection."""


class _Rest:
    """What of a put is still to be sent, and how much of it etcd lets us send."""

    __slots__ = ("data", "window")

    def __init__(self, data: memoryview, window: int) -> None:
        self.data = data
        self.window = window


class Http2Puts:
    """One connection, without the socket: bytes in, finished puts and bytes out."""

    def __init__(self, authority: str, puts: Sequence[bytes], *, kind: Kind = "put") -> None:
        self._messages = [b"\0" + len(put).to_bytes(4) + put for put in puts]
        self._headers = b"".join(
            (
                b"\x83\x86",  # :method POST, :scheme http
                _header(b":path", PATHS[kind].encode()),
                _header(b":authority", authority.encode()),
                _header(b"content-type", b"application/grpc"),
                _header(b"te", b"trailers"),
            )
        )
        self._begun = 0
        self._rests: dict[int, _Rest] = {}
        self._answered: set[int] = set()
        self._window = 65_535
        self._initial_window = 65_535
        self._frame_bytes_max = 16_384
        self._heard_bytes = 0
        self._unread = b""
        settings = _SETTING.pack(NO_PUSH, 0) + _SETTING.pack(INITIAL_WINDOW, OUR_WINDOW_BYTES)
        self._out = [
            PREFACE,
            _frame(SETTINGS, 0, 0, settings),
            _frame(WINDOW, 0, 0, OUR_WINDOW_BYTES.to_bytes(4)),
        ]

    def begin(self) -> int:
        """Begin the next put; its number."""
        message = self._messages[self._begun % len(self._messages)]
        stream = 2 * self._begun + 1
        self._begun += 1
        self._out.append(_frame(HEADERS, END_HEADERS, stream, self._headers))
        self._rests[stream] = _Rest(memoryview(message), self._initial_window)
        return stream

    def to_send(self) -> bytes:
        """Everything that may be sent now."""
        for stream in list(self._rests):
            if self._window <= 0:
                break
            self._send_some(stream)
        out, self._out = b"".join(self._out), []
        return out

    def received(self, got: bytes) -> list[int]:
        """The puts that are finished with this."""
        unread, at, finished = self._unread + got, 0, list[int]()
        while len(unread) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(unread, at)
            end = at + _HEAD.size + (high << 16 | low)
            if end > len(unread):
                break
            if kind == DATA:
                self._heard(end - at - _HEAD.size)
                self._answered.add(stream)
            elif kind != HEADERS:
                self._control(kind, flags, stream, unread[at + _HEAD.size : end])
            if kind <= HEADERS and flags & END_STREAM:
                if stream not in self._answered:
                    raise PutFailed("etcd refused a put")
                self._answered.remove(stream)
                finished.append(stream)
            at = end
        self._unread = unread[at:]
        return finished

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW:
            more = int.from_bytes(payload)
            if stream == 0:
                self._window += more
            elif stream in self._rests:
                self._rests[stream].window += more
        elif kind == SETTINGS and not flags & ACK:
            for setting, value in _SETTING.iter_unpack(payload):
                self._set(setting, value)
            self._out.append(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._out.append(_frame(PING, ACK, 0, payload))
        elif kind in (RESET, GO_AWAY):
            raise PutFailed("etcd ended a put or the connection", detail=repr(payload))

    def _set(self, setting: int, value: int) -> None:
        if setting == INITIAL_WINDOW:
            for rest in self._rests.values():  # it holds for what is already under way, too
                rest.window += value - self._initial_window
            self._initial_window = value
        elif setting == FRAME_BYTES_MAX:
            self._frame_bytes_max = value

    def _heard(self, count: int) -> None:
        """Let etcd send as much again, now and then."""
        self._heard_bytes += count
        if self._heard_bytes >= WINDOW_GIVEN_BACK_BYTES:
            self._out.append(_frame(WINDOW, 0, 0, self._heard_bytes.to_bytes(4)))
            self._heard_bytes = 0

    def _send_some(self, stream: int) -> None:
        rest = self._rests[stream]
        while (count := min(self._window, rest.window, self._frame_bytes_max, len(rest.data))) > 0:
            part, rest.data = rest.data[:count], rest.data[count:]
            self._window -= count
            rest.window -= count
            self._out.append(_frame(DATA, 0 if rest.data else END_STREAM, stream, part))
        if not rest.data:
            del self._rests[stream]


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    count = len(payload)
    return b"".join((_HEAD.pack(count >> 16, count & 0xFFFF, kind, flags, stream), payload))


def _header(name: bytes, value: bytes) -> bytes:
    """A header in plain letters that is not to be remembered; both parts are short."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


def _exchange(
    wire: socket.socket,
    puts: Http2Puts,
    *,
    in_flight: int,
    count: int | None = None,
    seconds: float | None = None,
) -> Done:
    """So many puts, or puts for so long, and wait for the last."""
    latencies_us: list[int] = []
    begun_ns: dict[int, int] = {}
    cpu_before, now_ns = time.process_time(), time.monotonic_ns()
    began_ns = now_ns
    ends_ns = None if seconds is None else began_ns + int(seconds * 1e9)
    left = count
    while True:
        while (
            len(begun_ns) < in_flight
            and (left is None or left > 0)
            and (ends_ns is None or now_ns < ends_ns)
        ):
            begun_ns[puts.begin()] = now_ns
            left = None if left is None else left - 1
        if not begun_ns:
            break
        wire.sendall(puts.to_send())
        got = wire.recv(READ_BYTES)
        if not got:
            raise PutFailed("etcd closed the connection")
        finished = puts.received(got)
        now_ns = time.monotonic_ns()
        latencies_us.extend((now_ns - begun_ns.pop(put)) // 1_000 for put in finished)
    return Done(
        began_ns=began_ns,
        ended_ns=now_ns,
        latencies_us=latencies_us,
        cpu_seconds=time.process_time() - cpu_before,
    )


def _work(parent: Parent) -> None:
    order = parent.receive(Order)
    host, _, port = order.address.partition(":")
    puts = Http2Puts(order.address, order.feed(), kind=order.kind)
    with socket.create_connection((host, int(port)), timeout=SILENCE_DEADLINE_S) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The first puts meet a window that etcd has yet to open: they are not measured.
        _exchange(wire, puts, in_flight=order.in_flight, count=order.in_flight)
        parent.send(Ready(warmed_up_with=order.in_flight))
        parent.receive(Go)
        done = _exchange(
            wire, puts, in_flight=order.in_flight, count=order.count, seconds=order.seconds
        )
    parent.send(done)


if __name__ == "__main__":
    _work(Parent())
