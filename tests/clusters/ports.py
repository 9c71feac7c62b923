"""Ports for processes that a test starts, and starts again at the same place.

A port that was found by binding to port 0 is one that the kernel gives to the next connection of
any program, as soon as it is let go: a node that is started a moment later, or again, finds it in
use. So these are below the range from which the kernel takes them, and no other process that asks
here is given the same one as long as this process lives: it has a lock on a file for each.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from random import SystemRandom

_LOWEST = 10_240
_TRIES = 1_000
_locks: dict[int, int] = {}
"""File descriptors by port: a lock goes with its process."""


def free_ports(count: int, *, adjacent: bool = False) -> list[int]:
    """Ports of loopback that are this process's from now on, all different."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    random, found = SystemRandom(), list[int]()
    for _ in range(_TRIES):
        first = random.randrange(_LOWEST, highest - count)
        wanted = range(first, first + count) if adjacent else range(first, first + 1)
        if all(_take(port) for port in wanted):
            found += wanted
        if len(found) >= count:
            return found
    raise AssertionError(f"no {count} ports are free")


def _take(port: int) -> bool:
    if port in _locks:
        return False
    folder = Path(tempfile.gettempdir()) / f"lowmark-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        return False
    _locks[port] = lock
    return True
