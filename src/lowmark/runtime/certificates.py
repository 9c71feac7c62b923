"""The certificates that a node uses now: read again when their files change.

Once a second the files are looked at (`stat`), on a lane of their own: a disk that is slow stops no
node, and one that gives no answer does not keep it from ending. What has changed is read whole and
tried, as at the start; then it takes the place of what was in use, at once. New connections use it
from then on. Those that stand are looked at, too: one whose other side's certificate was revoked,
or has ended, is cut.

Files that can't be used change nothing: what was in use stays so, and the node says which file is
wrong, in its log and in its status. That is also what happens in the moment in which a certificate
is there already and its key is not: the next look finds both.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from lowmark.formatting import counted
from lowmark.runtime.loop import Outcome
from lowmark.runtime.real_loop import RealLoop
from lowmark.runtime.tls import KeyMismatch, Tls, TlsFiles, TlsUnusable

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
WARN_DAYS: Final = 30
"""Status names a certificate from this many days before it ends."""
_DAY_S: Final = 86_400
_START_S: Final = 0.5
"""How long a start waits for both files of a pair that is being replaced."""
_AGAIN_S: Final = 0.05

_Marks: TypeAlias = tuple[tuple[int, ...], ...]
"""What tells one version of the files from the next."""


class _Found(NamedTuple):
    marks: _Marks
    tls: Tls | TlsUnusable


class Certificates:
    """Of one node, or one server. Everything but `_look` and `end` is on the loop."""

    def __init__(self, loop: RealLoop, files: TlsFiles, *, look_ms: float = LOOK_MS) -> None:
        self._loop = loop
        self._files = files
        self._look_ms = look_ms
        self._hosts: tuple[str, ...] = ()
        self._unusable: TlsUnusable | None = None
        self._listeners: list[Callable[[], None]] = []
        self._ended = False
        self._lane = loop.lane("certificates", may_hang=True)
        self._marks = _marks(files)
        self.tls = _read_at_start(files)
        """What is used now."""
        self.read_at_ms = loop.wall_ms()
        """When that was read."""
        self._look_later()

    @property
    def files(self) -> TlsFiles:
        """Where it is read from."""
        return self._files

    def check_ours(self, host: str) -> None:
        """Refuse to be known by a host name that no peer would believe; also of files to come."""
        self.tls.check_ours(host)
        if host not in self._hosts:
            self._hosts = (*self._hosts, host)

    def at_look(self, listener: Callable[[], None]) -> None:
        """Have this called after each look at the files, whether `tls` is another one or not:
        certificates end without a change of any file.
        """
        self._listeners.append(listener)

    def problems(self) -> list[str]:
        """What a person should know: files that can't be used, and what ends soon."""
        return [*([] if self._unusable is None else [self._unusable.message]), *self.endings()]

    def endings(self) -> list[str]:
        """What has ended, or ends soon."""
        found, now_s = list[str](), self._loop.wall_ms() / 1_000
        for end in self.tls.ends:
            left_s = end.ends_s - now_s
            day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end.ends_s))
            if left_s <= 0:
                found.append(f"the {end.what} in {end.path} has ended, on {day}")
            elif left_s < WARN_DAYS * _DAY_S:
                left = counted(int(left_s // _DAY_S), "day")
                found.append(f"the {end.what} in {end.path} ends in {left}, on {day}")
        return found

    def end(self) -> None:
        """Look no more; on any thread."""
        self._ended = True

    # -- looking ------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._ended:
            return
        self._loop.call_later(self._look_ms, self._look_now)

    def _look_now(self) -> None:
        known, tls, hosts = self._marks, self.tls, self._hosts
        self._lane.submit(lambda: _look(self._files, known, tls, hosts), self._looked)

    def _looked(self, outcome: Outcome[_Found | None]) -> None:
        try:
            found = outcome.value()
            if found is not None:
                self._take(found)
            for listener in self._listeners:
                listener()
        finally:
            self._look_later()

    def _take(self, found: _Found) -> None:
        self._marks = found.marks
        if isinstance(found.tls, TlsUnusable):
            self._unusable = found.tls
            logger.error(
                "new certificates can't be used; the node goes on with those that it has",
                extra={"path": found.tls.path, "reason": found.tls.message},
            )
            return
        self._unusable = None
        self.tls = found.tls
        self.read_at_ms = self._loop.wall_ms()
        logger.info("certificates were read again", extra={"path": self._files.certificate})


def check_files(files: TlsFiles, host: str) -> None:
    """Refuse files that can't be used, or by which no peer would believe that we are this host."""
    _read_at_start(files).check_ours(host)


def _look(files: TlsFiles, known: _Marks, now: Tls, hosts: tuple[str, ...]) -> _Found | None:
    """On the lane: what the files say, if that is not what they said; None, if it is."""
    marks = _marks(files)
    if marks == known:
        return None
    tls: Tls | TlsUnusable
    try:
        tls = Tls(files)
        for host in hosts:
            tls.check_ours(host)
        if now.knows_revoked and not tls.knows_revoked:
            # Not by accident: what was revoked would be believed again.
            raise TlsUnusable(
                files.revoked, what="list of revoked certificates", reason="it is gone"
            )
    except TlsUnusable as error:
        tls = error
    except Exception as error:  # whatever it is, what is in use goes on, and a person hears of it
        reason = f"reading it, or what belongs to it, failed: {error!r}"
        tls = TlsUnusable(files.certificate, what="certificate", reason=reason)
    # Replaced while it was read, it may be of two versions: the next look takes it as it is then.
    return _Found(marks, tls) if _marks(files) == marks else None


def _marks(files: TlsFiles) -> _Marks:
    found = []
    for path in (files.certificate, files.key, files.authority, files.revoked):
        mark: tuple[int, ...] = ()
        with contextlib.suppress(OSError):
            there = os.stat(path)
            mark = (
                there.st_dev,
                there.st_ino,
                there.st_size,
                there.st_mtime_ns,
                there.st_ctime_ns,
            )
        found.append(mark)
    return tuple(found)


def _read_at_start(files: TlsFiles) -> Tls:
    """Nothing else goes on yet, so it may wait for a pair that is about to be whole."""
    ends_at = time.monotonic() + _START_S
    while True:
        marks = _marks(files)
        try:
            read = Tls(files)
            if _marks(files) == marks or time.monotonic() > ends_at:
                return read
        except KeyMismatch:
            if time.monotonic() > ends_at:
                raise
        time.sleep(_AGAIN_S)
