"""What clients did, as JSON lines: docs/formats/history.md says what they mean."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

Type = Literal["invoke", "ok", "fail", "info"]
NEMESIS = "nemesis"
VERSION = 2
"""Of the format. What changed: docs/formats/history.md."""


class Event(msgspec.Struct, omit_defaults=True):
    """The beginning of a call, or its end."""

    process: int | str
    type: Type
    f: str
    value: Any
    time: int
    """Nanoseconds since the run began."""
    error: str = ""
    revision: int = 0
    """Of the metastore."""
    node: str = ""
    """The only node that was asked: it may be away."""
    unknown: bool = False
    """Whether the call may end without saying whether it was done."""
    parts: list[list[int]] | None = None
    """Where the rows of a `write` went: partition, offset, rows."""


class Recorder:
    """Writes the history of one process, and counts what came out well. For any thread."""

    def __init__(self, path: Path, began_ns: int, *, counted_as: str = "") -> None:
        self._file = path.open("ab", buffering=0)
        self._began_ns = began_ns
        self._counted_as = counted_as
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._counts = Counts(path.with_suffix(".counts"))

    def close(self) -> None:
        self._file.close()

    def write(
        self,
        process: int | str,
        kind: Type,
        f: str,
        value: object,
        *,
        error: str = "",
        revision: int = 0,
        node: str = "",
        unknown: bool = False,
        parts: list[list[int]] | None = None,
    ) -> None:
        with self._lock:
            at = time.monotonic_ns() - self._began_ns
            event = Event(process, kind, f, value, at, error, revision, node, unknown, parts)
            self._file.write(self._encode(event) + b"\n")
            if kind == "ok":
                self._counts.add(self._counted_as + f)


KINDS = (
    "append",
    "send",
    "write",
    "read",
    "scan",
    "snapshot",
    "as-of",
    "tail",
    "poll",
    "commit",
    "meta-write",
    "meta-cas",
    "meta-read",
    "meta-watch",
    "final",
)
_COUNTS = struct.Struct(f"<{len(KINDS)}q")


class Counts:
    """How often each call came out well, for the process that watches."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            if not path.stat().st_size:
                file.write(bytes(_COUNTS.size))
                file.flush()
            self._map = mmap.mmap(file.fileno(), _COUNTS.size)

    def add(self, f: str) -> None:
        at = KINDS.index(f) * 8
        (count,) = struct.unpack_from("<q", self._map, at)
        struct.pack_into("<q", self._map, at, count + 1)

    def get(self) -> dict[str, int]:
        return dict(zip(KINDS, _COUNTS.unpack(self._map), strict=True))


def events_of(path: Path) -> Iterator[Event]:
    """What a file has; its last line may be torn."""
    decode = msgspec.json.Decoder(Event).decode
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decode(line)


def merge(paths: Iterable[Path]) -> list[Event]:
    """The events of several files, by their times."""
    found = [event for path in paths for event in events_of(path)]
    found.sort(key=lambda event: event.time)
    return found


def save(path: Path, events: Iterable[Event]) -> None:
    """Write them as one file."""
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for event in events:
            file.write(encode(event) + b"\n")


class Call(msgspec.Struct):
    """A beginning and what came of it; without an end, it is not known."""

    process: int | str
    f: str
    asked: Any
    began: int
    ended: int | None = None
    type: Type = "info"
    value: Any = None
    error: str = ""
    revision: int = 0
    node: str = ""
    unknown: bool = False

    @property
    def ok(self) -> bool:
        return self.type == "ok"


def calls_of(events: Sequence[Event]) -> list[Call]:
    """The calls, in the order in which they began. Raises `ValueError` if it is no history."""
    calls: list[Call] = []
    under_way: dict[int | str, Call] = {}
    over: set[int | str] = set()
    last = 0
    for event in events:
        if event.time < last:
            raise ValueError(f"time goes back at {event}")
        last = event.time
        if event.process == NEMESIS:
            continue
        if event.type == "invoke":
            if event.process in under_way:
                raise ValueError(f"process {event.process} does two things at once: {event}")
            if event.process in over:
                raise ValueError(f"process {event.process} goes on behind an unknown end: {event}")
            call = Call(event.process, event.f, event.value, event.time, node=event.node)
            under_way[event.process] = call
            calls.append(call)
            continue
        call_ended = under_way.pop(event.process, None)
        if call_ended is None or call_ended.f != event.f:
            raise ValueError(f"an end without a beginning: {event}")
        call_ended.ended = event.time
        call_ended.type, call_ended.value, call_ended.error = event.type, event.value, event.error
        call_ended.revision, call_ended.unknown = event.revision, event.unknown
        if event.type == "info":
            over.add(event.process)
    return calls
