"""Ends connections of a Flight server that nothing else can end.

A handler that writes to a client which does not read waits in gRPC for as long as the connection
lives, and so does the server's shutdown. Neither Flight nor gRPC lets a server in Python end one
call. But the connection is a socket of this process: shut down, every call on it ends at once, on
both sides. Our clients connect again; others have asked for rows and did not take them.

So calls that wait for their client are noted (`Waiting`), and one whose client takes nothing for
too long is cut off; and when a listener ends, what does not end by itself in a moment is, too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

logger = logging.getLogger(__name__)

STALL_S: Final = 30.0
"""How long a client may take nothing of what it asked for, before it is cut off."""
_LOOK_S: Final = 0.25
_MOMENT_S: Final = 0.01
_CUT_AGAIN: Final = 25
_HANDLES = "/proc/self/fd"
_TCP_INFO_BYTES: Final = 136
"""Linux's `struct tcp_info` up to and with `tcpi_bytes_received`."""
_RECEIVED_AT: Final = 128
_RECEIVED: Final = struct.Struct("=Q")


class Waiting:
    """What waits for its client to take something, at one port or path. On any thread."""

    def __init__(self) -> None:
        self.port: int | None = None
        self.path: str | None = None
        self.stall_s = STALL_S
        self._since: dict[int, tuple[float, str]] = {}
        self._numbers = itertools.count()
        self._over = threading.Event()

    def start(self, *, port: int | None, path: str | None) -> None:
        """Look after them, from now on."""
        self.port, self.path = port, path
        threading.Thread(target=self._watch, name="lowmark-watch", daemon=True).start()

    @contextlib.contextmanager
    def on(self, peer: str) -> Iterator[None]:
        """While a client, as Flight has it, takes something."""
        number = next(self._numbers)
        self._since[number] = (time.monotonic(), peer)
        try:
            yield
        finally:
            self._since.pop(number, None)

    def _watch(self) -> None:
        while not self._over.wait(min(_LOOK_S, self.stall_s / 2)):
            before = time.monotonic() - self.stall_s
            for number, (since, peer) in list(self._since.items()):
                if since < before and self._since.pop(number, None) is not None:
                    count = cut(port=self.port, path=self.path, peer=peer)
                    logger.warning(
                        "a client took nothing of what it had asked for, and was cut off",
                        extra={"peer": peer, "seconds": self.stall_s, "connections": count},
                    )

    def connections(self) -> frozenset[int]:
        """The connections of now, to be told from later ones."""
        return _numbers(self.port, self.path)

    def end(
        self,
        ended: Callable[[], bool],
        busy: Callable[[], bool],
        *,
        calm_s: float,
        within_s: float,
        of: frozenset[int] | None = None,
    ) -> bool:
        """Wait until all calls have ended; cut off what does not end by itself. Says whether they
        have, within that time. `of`: on these connections; others are left alone.
        """
        ends_at = time.monotonic() + within_s
        calm_until = time.monotonic() + min(calm_s, within_s / 2)
        while not ended() and busy() and time.monotonic() < calm_until:
            time.sleep(_MOMENT_S)
        # What is left waits for rows, or for its client: that would not end by itself.
        while not ended() and time.monotonic() < ends_at:
            cut(port=self.port, path=self.path, of=of)
            for _ in range(_CUT_AGAIN):
                if ended():
                    break
                time.sleep(_MOMENT_S)
        return ended()

    def close(self) -> None:
        """Look after none any more."""
        self._over.set()


def _numbers(port: int | None, path: str | None) -> frozenset[int]:
    """The connections of a server on its port or its path, by the numbers of their sockets."""
    found = set()
    for one in _sockets():
        with contextlib.suppress(OSError):  # it listens, or is gone
            if _is_at(one, port, path):
                found.add(os.fstat(one.fileno()).st_ino)
    return frozenset(found)


def cut(
    *,
    port: int | None = None,
    path: str | None = None,
    peer: str | None = None,
    of: frozenset[int] | None = None,
) -> int:
    """Shut down the connections that a server has on its port or its path; says how many.

    With `peer`, as Flight has it (`ipv4:127.0.0.1:50000`), only that one; on a path, clients have
    no names, so it is all of them. With `of`, only the sockets with these numbers.
    """
    count = 0
    for one in _sockets():
        try:
            known = of is None or os.fstat(one.fileno()).st_ino in of
            if known and _is_at(one, port, path) and _is_of(one, peer):
                one.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:
            continue  # it listens, or is gone
    return count


class Connected(NamedTuple):
    """A connection that a server has."""

    peer: str
    """The client, as Flight has it."""
    socket: socket.socket
    """A handle that is closed when the next connection is asked for."""

    @property
    def number(self) -> int:
        """What this machine knows the socket by."""
        return os.fstat(self.socket.fileno()).st_ino

    @property
    def received(self) -> int:
        """How many bytes have come; 0, if the system does not say."""
        said = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return _RECEIVED.unpack_from(said, _RECEIVED_AT)[0] if len(said) == _TCP_INFO_BYTES else 0


def connections(port: int) -> Iterator[Connected]:
    """Those that a server has on its port."""
    for one in _sockets():
        try:
            if one.family != socket.AF_UNIX and _is_at(one, port, None):
                yield Connected(_peer_of(one), one)
        except OSError:
            continue  # it listens, or is gone


def next_handle() -> int | None:
    """The number that the next handle of this process will have; None: it can't have another.

    As long as it is the same, hardly anything was opened: to list the handles takes a thousand
    times as long where there are many.
    """
    try:
        found = os.open(_HANDLES, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    os.close(found)
    return found


def _sockets() -> Iterator[socket.socket]:
    """All sockets of this process, each by a handle of its own."""
    try:
        names = os.listdir(_HANDLES)
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            handle = os.dup(int(name))
            try:
                one = socket.socket(fileno=handle)
            except OSError:
                os.close(handle)
                continue
            with one:
                yield one


def _is_at(one: socket.socket, port: int | None, path: str | None) -> bool:
    here = one.getsockname()
    one.getpeername()  # raises, if it is not connected
    if one.family == socket.AF_UNIX:
        return path is not None and here == path
    return port is not None and isinstance(here, tuple) and here[1] == port


def _is_of(one: socket.socket, peer: str | None) -> bool:
    if peer is None or one.family == socket.AF_UNIX:
        return True
    return unquote(peer) == _peer_of(one)


def _peer_of(one: socket.socket) -> str:
    host, port = one.getpeername()[:2]
    host = host.removeprefix("::ffff:")  # gRPC listens for both families at once
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
