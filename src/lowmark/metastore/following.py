"""What a node follows of the metastore for as long as it runs: when a watch ends, another begins.

A watch ends by an error: a revision that it needed was compacted away, a value can't be read for
the moment. A node that would follow no more goes on with what it knew last, and nothing says so.
So whatever the error was, it begins again, and takes first what is there by then. The log says so
each time; if it lasts, it is a problem of the node, which `lowmark status` shows.

It is over when the node closes, and when its copy of the metastore goes no further. The latter the
node says itself, and it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from lowmark.errors import LowmarkError
from lowmark.group import Group
from lowmark.metastore.errors import RevisionCompacted
from lowmark.metastore.watches import OnEnd, OnEvent, Watch
from lowmark.runtime import Loop, Timer

logger = logging.getLogger(__name__)

RETRY_MS: Final = 300
"""After this time it begins again; twice as long after each further failure."""
RETRY_MS_MAX: Final = 10_000
LASTS_MS: Final = 30_000
"""What fails for longer than this is a problem; what goes well for longer has ended it."""


class Source(Protocol):
    """What is needed of the metastore."""

    @property
    def group(self) -> Group: ...
    def watch(
        self,
        *,
        prefix: bytes | None,
        keys: Iterable[bytes],
        on_event: OnEvent,
        on_end: OnEnd,
        name: str,
    ) -> Watch: ...
    def forget(self, following: Following) -> None: ...


class Following:
    """One thing that is followed; `Metastore.keep_watching` makes it. All calls on the loop."""

    def __init__(
        self,
        loop: Loop,
        metastore: Source,
        *,
        name: str,
        prefix: bytes | None,
        keys: tuple[bytes, ...],
        start: Callable[[], None],
        on_event: OnEvent,
        on_stopped: Callable[[LowmarkError], None],
    ) -> None:
        self._loop = loop
        self._metastore = metastore
        self._name = name
        self._prefix = prefix
        self._keys = keys
        self._start = start
        self._on_event = on_event
        self._on_stopped = on_stopped
        self.watch: Watch | None = None
        """The one that is open."""
        self._timer: Timer | None = None
        self._began_us = 0
        """When the last watch began."""
        self._error: LowmarkError | None = None
        """Why the one before it ended."""
        self._failing_us = 0
        """Since when it fails."""
        self._wait_ms = RETRY_MS
        self._closed = False

    def begin(self) -> None:
        """Take what is there, and follow what comes; nothing, if it does so or is about to."""
        if self._closed or self.watch is not None or self._timer is not None:
            return
        try:
            if self._is_over():
                return
            # The state changes only between turns: what `start` finds is what the watch goes on
            # from.
            self.watch = self._metastore.watch(
                prefix=self._prefix,
                keys=self._keys,
                on_event=self._on_event,
                on_end=self._ended,
                name=self._name,
            )
            self._began_us = self._loop.elapsed_us()
            self._start()
        except LowmarkError as error:
            self.fail(error)

    def close(self) -> None:
        """Follow no more."""
        self._closed = True
        self._stop()
        self._metastore.forget(self)

    def fail(self, error: LowmarkError) -> None:
        """What was told can't be taken: begin again in a while, with what is there by then."""
        self._stop()
        if self._closed:
            return
        now_us = self._loop.elapsed_us()
        if not self._fails(now_us):
            self._failing_us, self._wait_ms = now_us, RETRY_MS
        self._error, self._began_us = error, now_us
        logger.warning(
            "what the metastore says is not followed for a moment",
            extra={"of": self._name, "reason": error.message, "again_ms": self._wait_ms},
        )
        self._timer = self._loop.call_later(self._wait_ms, self._again)
        self._wait_ms = min(2 * self._wait_ms, RETRY_MS_MAX)

    @property
    def problem(self) -> str:
        """That it has failed for long, in words; empty if it does not."""
        now_us = self._loop.elapsed_us()
        lasts_ms = (now_us - self._failing_us) // 1_000
        if self._error is None or not self._fails(now_us) or lasts_ms < LASTS_MS:
            return ""
        return (
            f"it can't follow what the metastore says of {self._name}, for {lasts_ms // 1_000} s:"
            f" {self._error.message}"
        )

    def _fails(self, now_us: int) -> bool:
        """Whether it has not gone well for long enough since the last failure."""
        if self._error is None:
            return False
        return self.watch is None or now_us - self._began_us < LASTS_MS * 1_000

    def _ended(self, error: LowmarkError) -> None:
        self.watch = None
        if self._closed or self._is_over():
            return
        if isinstance(error, RevisionCompacted):  # it was slow, or others were fast: no failure
            logger.info("revisions were passed over", extra={"of": self._name})
            self._timer = self._loop.call_later(0, self._again)
        else:
            self.fail(error)

    def _is_over(self) -> bool:
        stopped = self._metastore.group.stopped
        if stopped is not None:
            self._on_stopped(stopped)
        return stopped is not None

    def _again(self) -> None:
        self._timer = None
        self.begin()

    def _stop(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
