"""What two hosts say to each other in tests, by sockets that this process has in both."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self

from hosts.hosts import Host

SAID_S = 60.0
_SO_RCVBUFFORCE = 33
_ROOM_BYTES = 8 << 20


class Datagrams:
    """From one host to another; what is lost, is lost."""

    def __init__(self, here: Host, there: Host, family: socket.AddressFamily = socket.AF_INET):
        self._from = here.socket(socket.SOCK_DGRAM, family)
        self._to = there.socket(socket.SOCK_DGRAM, family)
        self._to.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
        self._to.bind((there.address if family == socket.AF_INET else there.address_6, 0))
        self._to.setblocking(False)
        self.sent = self._heard = 0

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self._from.sendto(b"hello", self._to.getsockname())
        self.sent += count

    @property
    def heard(self) -> int:
        """How many have arrived so far."""
        while True:
            try:
                self._to.recv(100)
            except BlockingIOError:
                return self._heard
            self._heard += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._from.close()
        self._to.close()


class Line:
    """A connection from one host to another."""

    def __init__(self, here: Host, there: Host) -> None:
        with there.socket(socket.SOCK_STREAM) as server:
            server.bind((there.address, 0))
            server.listen()
            self.here = here.socket(socket.SOCK_STREAM)
            self.here.settimeout(SAID_S)
            self.here.connect(server.getsockname())
            self.there, _ = server.accept()
        self.there.settimeout(SAID_S)
        for end in (self.here, self.there):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round(self) -> None:
        """A byte there and one back."""
        self.here.sendall(b"?")
        assert self.there.recv(1) == b"?"
        self.there.sendall(b"!")
        assert self.here.recv(1) == b"!"

    @contextlib.contextmanager
    def sends(self, data: bytes) -> Iterator[None]:
        """Send it from a thread, while this one hears."""
        thread = threading.Thread(target=self.here.sendall, args=(data,))
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def hear(self, count: int) -> bytes:
        """So many bytes."""
        found = bytearray()
        while len(found) < count:
            some = self.there.recv(count - len(found))
            assert some, f"the connection ended after {len(found)} bytes"
            found += some
        return bytes(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.here.close()
        self.there.close()
