"""What `verify` finds, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from lowmark.errors import LowmarkError
from lowmark.log.errors import Damaged
from lowmark.runtime import Disk

FindingKind = Literal[
    "damage", "missing", "quarantine", "left-over", "unknown file", "open to others"
]
"""`damage`: bytes are not what was written. `missing`: entries that count are in no file.
`quarantine`: the log has found damage before and takes no writes for the group. `left-over`: what
an interrupted step left; the next start removes or finishes it. `unknown file`: not ours. `open to
others`: other users of the machine can look into it."""

Progress = Callable[[int, int, str], None]
"""Bytes looked at, bytes in all, and the file at hand."""

_PER_FILE_MAX = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: FindingKind
    group: str | None
    """None: it concerns the whole log."""
    path: str
    offset: int | None
    what: str
    hint: str = ""


class Meter:
    """Adds up what has been looked at, and calls `progress` with it."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self._total = total_bytes
        self._done = 0
        self._progress = progress

    def looked_at(self, path: str, count: int) -> None:
        """Count bytes of a file."""
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, path)


def finding_of(disk: Disk, path: str, group: str | None, error: LowmarkError) -> Finding:
    """An error of a file as a finding; a disk that refuses to read is damage, too."""
    if isinstance(error, Damaged):
        return Finding("damage", group, error.path, error.offset, error.what, error.hint)
    return Finding("damage", group, disk.describe(path), None, error.message, error.hint)


def left_over(disk: Disk, path: str, group: str | None, what: str) -> Finding:
    """Something that the next start removes or finishes by itself."""
    hint = "Nothing to do: the next start of the log takes care of it."
    return Finding("left-over", group, disk.describe(path), None, what, hint)


def limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The first findings about one file, then one that counts the rest.

    A disk that lost a whole region must not bury the other groups under a million lines.
    """
    more, last = 0, None
    for count, finding in enumerate(findings):
        if count < _PER_FILE_MAX:
            yield finding
        else:
            more, last = more + 1, finding
    if last is not None:
        yield Finding(
            last.kind, last.group, last.path, last.offset, f"and {more} more like these", last.hint
        )
