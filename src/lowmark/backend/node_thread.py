"""A node inside this process: a thread of its own, its start until what is there can be used, and
the ways for others to ask it.

The node's packages know one thread, the loop's; callers come from any. What a caller waits for, it
waits for here, and Ctrl-C ends the waiting. The thread is not one that keeps the interpreter alive:
at exit the node is closed, and a process that is killed loses nothing that was acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lowmark.backend.errors import Closed, Ended, Forked
from lowmark.backend.exits import at_exit
from lowmark.catalog.errors import VersionCompacted
from lowmark.errors import LowmarkError, NoMemory, NoThreads, Unavailable
from lowmark.group import Future
from lowmark.node import Node, NodeClosed, NodeClosing, NodeOptions, NodeSilent, Settings
from lowmark.runtime import HybridTime, by_name

T = TypeVar("T")

_START_S = 60.0
_STOP_S = 30.0
_BEGIN_S = 2.0
SLACK_S = 5.0
_LOOK_S = 0.1
_READY_S = 60.0
_COPIES_S = 30.0
_COPIES_LOOK_S = 0.05

_open: weakref.WeakSet[NodeThread] = weakref.WeakSet()


class NodeThread:
    """Open it by making it; close it once."""

    node: Node

    def __init__(
        self, data: str | os.PathLike[str], settings: Settings, *, read_only: bool = False
    ) -> None:
        self.data = Path(data)
        self._closed = False
        self._failure: BaseException | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._timeout_s = settings.group.request_timeout_ms / 1_000 + SLACK_S
        made, ready = threading.Event(), threading.Event()

        def run() -> None:
            self._begun.set()
            try:
                if self._abandoned:
                    return
                # Made on the thread that runs it: Ctrl-C interrupts no more than the waiting, and
                # never leaves half a node behind.
                options = NodeOptions(data=str(data), embedded=True, read_only=read_only)
                self.node = Node(options, settings)
                made.set()
                self.node.run(ready.set)
            except BaseException as failure:
                self._failure = failure
            finally:
                made.set()
                ready.set()

        self._made = made
        self._begun = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=run, name="lowmark", daemon=True)
        try:
            self._thread.start()
            self._wait_for(ready)
            self._check_started()
        except BaseException as error:
            # A caller that has no database can't close it, and its directory would stay locked.
            if isinstance(error, RuntimeError):  # no thread was started
                raise by_name(error, where=f"the database {data}") from error
            self.abandon()
            raise
        _open.add(self)

    def _wait_for(self, ready: threading.Event) -> None:
        ends_at = time.monotonic() + _START_S
        while not ready.wait(_LOOK_S):
            self.check_writes()  # else it would not be ready either
            if time.monotonic() > ends_at:
                raise Unavailable(
                    f"the node in {self.data} did not start within {_START_S:g} seconds"
                )

    def _check_started(self) -> None:
        if self._failure is not None:
            self._thread.join(_STOP_S)
            raise by_name(self._failure, where=f"the database {self.data}")

    def check_writes(self) -> None:
        """Raise what keeps the node from writing anything, and not just this once."""
        trouble = self._trouble()
        if trouble is not None:
            raise trouble

    def _trouble(self) -> LowmarkError | None:
        there = self._made.is_set() and self._failure is None
        return self.node.log.trouble if there else None

    def check(self) -> None:
        """Refuse to go on in a child process, or after the end."""
        if self._closed:
            raise Closed(str(self.data))
        if os.getpid() != self._pid:
            raise Forked(str(self.data))
        if self._failure is not None:
            where = f"the database {self.data}, and its node has ended"
            cause = by_name(self._failure, where=where)
            if isinstance(cause, NoMemory | NoThreads):
                cause.hint = f"Close the database and open it again. {cause.hint}"
                raise cause
            raise Unavailable(
                f"the node in {self.data} has failed: {self._failure!r}",
                hint="Close the database and open it again.",
            ) from self._failure

    # -- until it can be used -------------------------------------------------------------------

    def wait_for_catalog(self) -> None:
        """Wait for the catalog, which says what there is; raise if the metastore is damaged."""
        catalogs = self.node.catalogs
        assert catalogs is not None
        try:
            self.ask(lambda: catalogs.when_ready(1), timeout_s=_READY_S)
        except VersionCompacted:
            return  # its history was cut: a later version is ready
        except LowmarkError:
            self._check_metastore()
            raise

    def _check_metastore(self) -> None:
        """Raise if it is damaged: that may be found only when it is read."""
        damage = self.ask_now(lambda: self.node.cluster.damage)
        if damage is not None:
            raise damage

    def wait_for_copies(self) -> None:
        """What is there can be used when it is open; what can't be started, its caller hears."""
        ends_at, pause_s = time.monotonic() + _COPIES_S, 0.001
        while not self.ask_now(self._copies_are_there) and time.monotonic() < ends_at:
            self.check_writes()  # else they would not be there either
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _COPIES_LOOK_S)
        self.ask_now(self._catch_up)

    def _copies_are_there(self) -> bool:
        """On the loop."""
        node = self.node
        damage = node.cluster.damage
        if damage is not None:
            raise damage
        assert node.placement is not None
        assert node.catalogs is not None
        assert node.tables is not None
        ready = {
            (one.table, one.number)
            for one in node.tables.all()
            if one.group.ready or one.group.stopped is not None
        }
        wanted = {
            (table.id, number)
            for table in node.catalogs.latest.all_tables()
            for number in range(table.partitions)
        }
        return wanted <= ready or bool(node.placement.problem)

    def _catch_up(self) -> None:
        """On the loop: what is in the log was given by this clock, though it may be behind now."""
        node = self.node
        assert node.tables is not None
        times = [one.view.closed for one in node.tables.all()]
        latest = max([node.cluster.metastore.state.time, *times])
        node.runtime.clock.catch_up(HybridTime(latest))

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, function: Callable[[], Future[T]], *, timeout_s: float | None = None) -> T:
        """What the future comes to that the function gives on the loop; raises its error."""
        self.check()
        try:
            return self.node.bridge.ask(
                function, timeout_s=self._timeout_s if timeout_s is None else timeout_s
            )
        except NodeSilent as silent:
            trouble = self._trouble()
            if trouble is None:
                raise
            trouble.detail = f"{trouble.detail} {silent.detail}".strip()
            raise trouble from silent  # that is why, then
        except NodeClosed:
            raise self.ended() from self._failure
        except NodeClosing:
            if self.ended().failed:
                self.check()
            raise Closed(str(self.data)) from self._failure

    def ended(self) -> Ended:
        """Why there is no answer."""
        if not self._closed:
            self._thread.join(_STOP_S)  # it has failed, and is about to say why
        return Ended(str(self.data), self._failure)

    def ask_now(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """What the function gives on the loop, in one turn."""
        return self.ask(lambda: Future.of(function()), timeout_s=timeout_s)

    def tell(self, function: Callable[[], None]) -> None:
        """Have something done on the loop; the caller does not wait for it, nor for its errors."""

        def call() -> None:
            with contextlib.suppress(LowmarkError):
                function()

        self.node.bridge.call(call)

    def note(self, text: bytes, *, stays: bool = False) -> None:
        """Say in the lock file more of this process; see `DiskLock.note`."""
        self.node.log.note(text, stays=stays)

    @property
    def running(self) -> bool:
        """Whether the loop still answers."""
        return self._thread.is_alive()

    @property
    def closed(self) -> bool:
        """Whether it was closed here, or belongs to another process."""
        return self._closed or os.getpid() != self._pid

    def abandon(self) -> None:
        """Close what could not be opened; the caller has an error already.

        Ctrl-C may come while the thread is being started. One that begins only after this finds
        that it is not wanted any more, and makes no node.
        """
        self._abandoned = True
        if not self._begun.wait(_BEGIN_S):
            return
        self._made.wait(_STOP_S)
        if self._failure is None and hasattr(self, "node"):
            with contextlib.suppress(LowmarkError):
                self.close()

    def close(self) -> None:
        """Stop the node in good order. Closing twice is fine, and so is closing a parent's."""
        with self._lock:
            if self.closed:
                self._closed = True
                return
            self._closed = True
        _open.discard(self)
        self.node.stop()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            raise Unavailable(
                f"the node in {self.data} did not stop within {_STOP_S:g} seconds",
                detail="What was acknowledged is safe.",
            )
        if isinstance(self._failure, LowmarkError):
            raise self._failure


def _close_all() -> None:
    for one in list(_open):
        with contextlib.suppress(LowmarkError):
            one.close()


at_exit("backends", _close_all)
