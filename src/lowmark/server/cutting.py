"""Ends connections of a Flight server that nothing else can end.

A handler that writes to a client which does not read waits in gRPC for as long as the connection
lives, and so does the server's shutdown. Neither Flight nor gRPC lets a server in Python end one
call. But the connection is a socket of this process: shut down, every call on it ends at once, on
both sides. Our clients connect again; others have asked for rows and did not take them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import unquote

_HANDLES = "/proc/self/fd"


def cut(*, port: int | None = None, path: str | None = None, peer: str | None = None) -> int:
    """Shut down the connections that a server has on its port or its path; says how many.

    With `peer`, as Flight has it (`ipv4:127.0.0.1:50000`), only that one; on a path, clients have
    no names, so it is all of them.
    """
    count = 0
    for one in _sockets():
        try:
            if _is_at(one, port, path) and _is_of(one, peer):
                one.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:
            continue  # it listens, or is gone
    return count


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
    host, port = one.getpeername()[:2]
    host = host.removeprefix("::ffff:")  # gRPC listens for both families at once
    return unquote(peer) in {f"ipv4:{host}:{port}", f"ipv6:[{host}]:{port}"}
