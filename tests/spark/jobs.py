"""Work for tests, which Spark's workers import by name."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from lowmark.errors import Corrupt, Rejected

TESTS = Path(__file__).parent.parent
ON_WORKERS = {"spark.executorEnv.PYTHONPATH": str(TESTS)}
"""Settings with which workers find this module."""


class Spoilt(Corrupt):
    """An error with words and fields of its own."""

    def __init__(self, *, file: str, offset: int) -> None:
        super().__init__(f"{file} is spoilt", detail=f"At {offset}.", hint="Throw it away.")
        self.file = file
        self.offset = offset
        self.marks = ("a", "b")
        self.secret = object()


def shout(data: bytes) -> bytes:
    return data.upper()


def who(data: bytes) -> bytes:
    """Which process, and which task."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    assert context is not None
    return f"{os.getpid()} {context.partitionId()}".encode()


def origin(data: bytes) -> bytes:
    """What this process has imported, and what it was forked from."""
    parent = Path("/proc", str(os.getppid()))
    maps = (parent / "maps").read_text().splitlines()
    facts = {
        "modules": sorted(sys.modules),
        "command": (parent / "cmdline").read_bytes().decode().split("\0"),
        "threads": len(list((parent / "task").iterdir())),
        "libraries": sorted({Path(line.split()[-1]).name for line in maps if ".so" in line}),
    }
    return json.dumps(facts).encode()


def draw(data: bytes) -> bytes:
    """Which process, and what its NumPy draws."""
    import numpy as np  # noqa: PLC0415

    return f"{os.getpid()} {np.random.random()}".encode()


def spoil(data: bytes) -> bytes:
    if data == b"bad":
        raise Spoilt(file="leaf", offset=7)
    return data


def stumble(data: bytes) -> bytes:
    return str(1 // int(data)).encode()


def refuse_or_wait(data: bytes) -> bytes:
    """Refuse, or leave a mark and go on for a very long time."""
    if data == b"refuse":
        raise Rejected("not this one")
    return wait_forever(data)


def wait_forever(data: bytes) -> bytes:
    """Leave a file with this process's number, and go on until somebody ends the process."""
    Path(data.decode(), f"{os.getpid()}.waiting").touch()
    while True:
        time.sleep(0.01)


def die_once(data: bytes) -> bytes:
    """Die at the first attempt, as if the system had killed us for want of memory."""
    mark = Path(data.decode())
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return b"alive"


def die(data: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return data


def wait_for_go(data: bytes) -> bytes:
    """Say where we are by a file, and wait for another."""
    folder, _, name = data.decode().rpartition("/")
    Path(folder, f"{name}.{os.getpid()}.begun").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return name.encode()
