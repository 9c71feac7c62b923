"""Which directory a path leads to: the same answer in every process that sees the same one.

A path alone does not say so. On another machine it may lead to a directory of another node, and in
a container to one of the container's own. Two processes see the same directory if one kernel says
so: it has started once, and gives a directory one number on one device.
"""

from __future__ import annotations

import os
import socket

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def place_of(path: str) -> str:
    """The directory that a path leads to here; empty, if there is none that can be read."""
    try:
        there = os.stat(path)
    except (OSError, ValueError):
        return ""
    if not os.access(path, os.R_OK | os.X_OK):
        return ""
    return f"{_kernel()} {there.st_dev}:{there.st_ino}"


def _kernel() -> str:
    """The kernel that runs, until the machine is started again."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()
