"""The process that has the namespaces of hosts, and ends all that runs in them.

    python -I -S keeper.py

It is asked by JSON lines on stdin, and answers each with a line on stdout. `make` gives the numbers
of open files: `/proc/<pid of the keeper>/fd/<number>` is how others enter a namespace. When nobody
asks any more, as its parent has closed the pipe or is dead, it kills what is left in its hosts and
ends; a namespace that has no process and no open file any more is removed by the kernel. It has a
session of its own, so that a signal to its parent's group does not end it first.

It runs from its file, without the packages of the tests: it starts in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

KINDS = {"net": 0x40000000, "mnt": 0x00020000, "uts": 0x04000000}
"""Namespaces of a host, and the flags of `unshare` that make them."""
ENDS_S = 20.0

_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    words = (one if one is None else one.encode() for one in (source, target, kind))
    _check(_LIBC.mount(*words, ctypes.c_ulong(flags), None), f"mount {target}")


def _unshare(name: str, hidden: str, seen: list[str], names: str) -> None:
    """Leave the machine: with a name, and of what is in `hidden` with nothing but `seen`."""
    _check(_LIBC.unshare(sum(KINDS.values())), "unshare")
    _check(_LIBC.sethostname(name.encode(), len(name.encode())), "sethostname")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    if names:
        _mount(names, "/etc/hosts", None, _BIND)
    if hidden:
        kept = [(path, os.open(path, os.O_PATH)) for path in seen]
        _mount("tmpfs", hidden, "tmpfs", 0)
        for path, place in kept:
            os.makedirs(path, exist_ok=True)
            _mount(f"/proc/self/fd/{place}", path, None, _BIND | _RECURSIVE)


class Keeper:
    """Open files of namespaces, by the name of their host."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, int]] = {}
        self._spared = {os.getpid(), os.getppid()}

    def make(self, name: str, hidden: str, seen: list[str], names: str) -> dict[str, int]:
        """Namespaces of a host: a child makes them, and they are open here before it ends."""
        told, tell = os.pipe()
        heard, hear = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(hear)
            try:
                _unshare(name, hidden, seen, names)
                os.write(tell, b"+")
            except BaseException as error:
                os.write(tell, str(error).encode())
                os._exit(1)
            os.read(heard, 1)
            os._exit(0)
        os.close(tell)
        os.close(heard)
        said = os.read(told, 4_096)
        try:
            if said != b"+":
                raise OSError(said.decode() or "the child died")
            files = {
                kind: os.open(f"/proc/{child}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                for kind in KINDS
            }
        finally:
            os.close(hear)
            os.close(told)
            os.waitpid(child, 0)
        self._hosts[name] = files
        return files

    def end(self, names: list[str]) -> None:
        """Kill what runs in these hosts, and let their namespaces go."""
        gone = [self._hosts.pop(name) for name in names]
        # The number of a namespace is given to no other while it is open here.
        numbers = {os.fstat(files["net"]).st_ino for files in gone}
        ends_at = time.monotonic() + ENDS_S
        while found := self._inside(numbers):
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > ends_at:
                raise OSError(f"these processes do not end: {found}")
            time.sleep(0.002)
        for files in gone:
            for file in files.values():
                os.close(file)

    def end_all(self) -> None:
        """The same for all of them."""
        self.end(list(self._hosts))

    def _inside(self, numbers: set[int]) -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal() and int(entry) not in self._spared:
                try:
                    number = os.stat(f"/proc/{entry}/ns/net").st_ino
                except OSError:  # it has ended
                    continue
                if number in numbers:
                    found.append(int(entry))
        return found


def main() -> None:
    """Do what is asked, until there is no more."""
    keeper = Keeper()
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match asked.pop("call"):
                case "make":
                    answer = dict(keeper.make(**asked))
                case "end":
                    keeper.end(**asked)
                case other:
                    answer = {"error": f"there is no call {other}"}
        except OSError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            break
    keeper.end_all()


if __name__ == "__main__":
    main()
