"""What processes do, as the system sees it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LISTENS = "0A"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def below(pid: int) -> list[int]:
    """All processes that this one has started, and that those have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, at = [], [pid]
    while at:
        found.extend(more := children.get(at.pop(), []))
        at.extend(more)
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def listening(pids: Iterable[int]) -> set[str]:
    """The addresses at which these processes listen, in the system's hexadecimal."""
    sockets = set()
    for pid in pids:
        try:
            links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        sockets |= {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in sockets:
                addresses.add(fields[1].partition(":")[0])
    return addresses


LOOPBACK_ADDRESSES = {
    "0100007F",  # 127.0.0.1
    "0000000000000000FFFF00000100007F",  # the same, of a socket that speaks both
    "00000000000000000000000001000000",  # ::1
}
