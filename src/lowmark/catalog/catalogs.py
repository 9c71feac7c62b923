"""The catalog at one node: its versions as they come, and the way to make another.

`execute` has two phases. *Accept*: the commands are held against the latest version, which a
linearizable read has shown to be here, and their update is appended if that version is still the
latest. Who loses waits for the winner, looks again, and tries a bounded number of times. The token
of an update tells its author, who may not have heard the answer, that it went in. *Apply*: every
node, this one too, takes the update from its watch, makes the version, and tells listeners, entry
by entry; when they are done, the version is ready.

A version comes into force a delay after its write; the delay gives it time to reach every node.
`execute` completes when it is in force by every clock: at its time plus the largest skew. Refusals
wait in the same way, so that who hears "there is a table orders already" can read it at once.

A look-up by time t waits until this node has every update that can be in force at t: those written
up to t minus the delay. A node that can't know that says so.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lowmark.catalog.catalog import Catalog, CatalogVersion
from lowmark.catalog.commands import INITIAL_COMMANDS, Command, evaluate
from lowmark.catalog.entries import Entry
from lowmark.catalog.errors import CatalogBusy, CatalogRefused, NotInForce, VersionUnknown
from lowmark.catalog.history import History, replay
from lowmark.catalog.update import TOKEN_BYTES, Snapshot, Update
from lowmark.catalog.update_log import (
    SNAPSHOT_KEY,
    UPDATE_PREFIX,
    VERSION_KEY,
    append,
    number_in,
    read_log,
    save_snapshot,
)
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future, OutcomeUnknown
from lowmark.metastore import Answer, Event, Metastore, NotComplete, Watch
from lowmark.runtime import COUNTER_BITS, HybridTime, Runtime, millis_of

__all__ = ["ATTEMPTS_MAX", "CatalogEvent", "Catalogs", "Executed", "Listener"]

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 10
_FAR_MS = 60_000
"""Nobody waits longer than this, beyond delay and skew, for a version to come into force."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What became of a list of commands."""

    catalog: Catalog
    """The version in which they are done."""
    applied: tuple[bool, ...]
    """Which of them changed something."""


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """One entry of a version that was just made; without one, versions in between are unknown."""

    entry: Entry | None
    before: Catalog
    catalog: Catalog
    revision: int
    """Of the metastore: what caused it."""


Listener: TypeAlias = Callable[[CatalogEvent], Future[None] | None]


@dataclass(slots=True)
class _Request:
    """A list of commands on its way."""

    commands: tuple[Command, ...]
    delay_ms: int
    token: bytes
    future: Future[Executed]
    attempts: int = 0
    applied: dict[int, tuple[bool, ...]] = field(default_factory=dict)
    """Which commands would change something, by the version that an attempt would make."""


class Catalogs:
    """See the module's docstring. All calls are made on the loop."""

    def __init__(
        self, runtime: Runtime, metastore: Metastore, *, delay_ms: int, max_skew_ms: int
    ) -> None:
        self.history = History()
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._random = runtime.random
        self._metastore = metastore
        self._delay_ms = delay_ms
        self._max_skew_ms = max_skew_ms
        self._watch: Watch | None = None
        self._listeners: list[Listener] = []
        self._untold: deque[tuple[Catalog, Catalog, tuple[Entry | None, ...], int]] = deque()
        self._telling = False
        self._ready = 0
        self._when_ready: list[tuple[int, Future[Catalog]]] = []
        self._when_known: list[tuple[int, Future[None]]] = []
        self._tokens: dict[bytes, int] = {}
        """In which version an update of this node went in, as long as its author waits."""
        self._queue: deque[_Request] = deque()
        self._accepting: _Request | None = None
        self._closed = False
        self.failed: LowmarkError | None = None
        """Why this node's catalog goes no further, if it does not."""

    # -- starting -------------------------------------------------------------------------------

    def start(self) -> None:
        """Take what this node's copy of the metastore has, and follow it from there."""
        self._follow()
        self._ready = self.history.latest.version
        self._metastore.on_elected(lambda _: self._found())

    def close(self) -> None:
        """Whoever waits is told."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        error = Unavailable("this node is closing", hint="Ask another node.")
        waiting = [future for _, future in self._when_ready]
        known = [future for _, future in self._when_known]
        requests = [request.future for request in self._queue]
        self._when_ready, self._when_known = [], []
        self._queue.clear()
        for ready in waiting:
            ready.reject(error.again())
        for one in known:
            one.reject(error.again())
        for request in requests:
            request.reject(error.again())

    def _follow(self) -> None:
        """From the state as it is now; also when history was cut away under the watch."""
        if self._closed or self._metastore.group.stopped is not None:
            return
        try:
            page = self._metastore.range_local(UPDATE_PREFIX)
            for value, before, catalog in replay(read_log(page.entries), self.history):
                self._made(value, before, catalog, page.revision)
            self._watch = self._metastore.watch(
                prefix=UPDATE_PREFIX,
                from_revision=page.revision + 1,
                on_event=self._changed,
                on_end=lambda _: self._loop.call_soon(self._follow),
                name="catalog",
            )
        except LowmarkError as error:
            self._fail(error)
        self._tell_known()

    def _found(self) -> None:
        """The metastore's leader makes version 1; it is in force at once."""
        if not self._closed and self._metastore.state.find(VERSION_KEY) is None:
            self._execute(INITIAL_COMMANDS, delay_ms=0)

    # -- applying -------------------------------------------------------------------------------

    def _changed(self, event: Event) -> None:
        entries = [change.entry for change in event.changes if change.entry is not None]
        try:
            for value, before, catalog in replay(read_log(entries), self.history):
                self._made(value, before, catalog, event.revision)
        except LowmarkError as error:
            self._fail(error)
        self._tell_known()

    def _made(
        self, value: Update | Snapshot, before: Catalog, catalog: Catalog, revision: int
    ) -> None:
        if isinstance(value, Snapshot):
            self._untold.append((before, catalog, (None,), revision))
        else:
            if value.author == self._metastore.node and value.token in self._tokens:
                self._tokens[value.token] = value.version
            self._untold.append((before, catalog, value.entries, revision))
        self._tell()

    def _fail(self, error: LowmarkError) -> None:
        """What was written can't be read here: older versions stay, newer ones never come."""
        logger.error("the catalog goes no further", extra={"reason": error.message})
        self.failed = error
        if self._watch is not None:
            self._watch.close()
        waiting = [future for _, future in self._when_ready]
        known = [future for _, future in self._when_known]
        self._when_ready, self._when_known = [], []
        for ready in waiting:
            ready.reject(error.again())
        for one in known:
            one.reject(error.again())

    def _tell_known(self) -> None:
        known = self.history.latest.version
        done = [future for version, future in self._when_known if version <= known]
        self._when_known = [waits for waits in self._when_known if waits[0] > known]
        for future in done:
            future.resolve(None)

    # -- telling --------------------------------------------------------------------------------

    def on_event(self, listener: Listener) -> None:
        """Be told every entry of every version that comes from now on, in order.

        The version can be read by then. If the listener answers with a future, the version counts
        as ready, and the next one is told, when that is done.
        """
        self._listeners.append(listener)

    def _tell(self) -> None:
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell_next)

    def _tell_next(self) -> None:
        if self._closed or not self._untold:
            self._telling = False
            return
        before, catalog, entries, revision = self._untold.popleft()
        waits: list[Future[None]] = []
        for entry in entries:
            event = CatalogEvent(entry, before, catalog, revision)
            for listener in self._listeners:
                try:
                    answer = listener(event)
                except LowmarkError as error:
                    self._listener_failed(catalog, error)
                else:
                    if answer is not None:
                        waits.append(answer)
        left = len(waits)

        def done(future: Future[None]) -> None:
            nonlocal left
            left -= 1
            if future.error is not None:
                self._listener_failed(catalog, future.error)
            if not left:
                self._told(catalog)

        if not waits:
            self._told(catalog)
        for one in waits:
            one.then(done)

    def _listener_failed(self, catalog: Catalog, error: LowmarkError) -> None:
        # The version is made, on every node: that somebody could not follow does not undo it.
        logger.error(
            "a listener failed",
            extra={"catalog_version": catalog.version, "reason": error.message},
        )

    def _told(self, catalog: Catalog) -> None:
        self._ready = catalog.version
        done = [future for version, future in self._when_ready if version <= self._ready]
        self._when_ready = [waits for waits in self._when_ready if waits[0] > self._ready]
        for future in done:
            future.resolve(catalog)
        self._loop.call_soon(self._tell_next)

    # -- looking --------------------------------------------------------------------------------

    @property
    def latest(self) -> Catalog:
        """The newest version that this node knows; it may not be in force yet."""
        return self.history.latest

    @property
    def earliest(self) -> Catalog:
        """The oldest version left."""
        return self.history.earliest

    @property
    def ready_version(self) -> int:
        """Up to this version, all listeners were told and are done."""
        return self._ready

    def version(self, number: int) -> Catalog:
        """One version."""
        return self.history.version(number)

    def at_local(self, time: int) -> Catalog:
        """The version in force at a time, as far as this node knows: there may be a newer one."""
        return self.history.at(time)

    def at(self, time: int, *, timeout_ms: int | None = None) -> Future[Catalog]:
        """The version in force at a time; waits until this node is sure of that."""
        whole: Future[Catalog] = Future()
        if self.failed is not None:
            whole.reject(self.failed.again())
            return whole
        # A version that is in force at `time` was written by then: the first one without a delay.
        written_by = max(time - (self._delay_ms << COUNTER_BITS), 0)

        def complete(future: Future[None]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            elif self._watch is not None and self._watch.position <= self._metastore.state.latest:
                self._loop.call_soon(lambda: complete(future))  # the watch is about to be told
            else:
                look()

        def look() -> None:
            try:
                if self.failed is not None:
                    raise self.failed.again()
                whole.resolve(self.history.at(time))
            except LowmarkError as error:
                whole.reject(error)

        self._metastore.when_complete(written_by, timeout_ms=timeout_ms).then(complete)
        return whole

    def when_ready(self, version: int) -> Future[Catalog]:
        """When a version is known here and all listeners of it are done; it may not be in force."""
        future: Future[Catalog] = Future()
        if self._closed or self.failed is not None:
            future.reject(self.failed.again() if self.failed else Unavailable("closing"))
        elif version <= self._ready:
            try:
                future.resolve(self.history.version(version))
            except LowmarkError as error:
                future.reject(error)
        else:
            self._when_ready.append((version, future))
        return future

    # -- executing ------------------------------------------------------------------------------

    def execute(self, commands: Command | Sequence[Command]) -> Future[Executed]:
        """Carry commands out, all or none, in one version; see the module's docstring."""
        wanted = tuple(commands) if isinstance(commands, Sequence) else (commands,)
        return self._execute(wanted, delay_ms=self._delay_ms)

    def _execute(self, commands: Sequence[Command], *, delay_ms: int) -> Future[Executed]:
        future: Future[Executed] = Future()
        if self._closed or self.failed is not None:
            future.reject(self.failed.again() if self.failed else Unavailable("closing"))
            return future
        token = self._random.randbytes(TOKEN_BYTES)
        self._queue.append(_Request(tuple(commands), delay_ms, token, future))
        self._accept_next()
        return future

    def _accept_next(self) -> None:
        """One at a time, so that writers of one node do not make each other lose."""
        if self._accepting is None and self._queue and not self._closed:
            self._accepting = request = self._queue.popleft()
            self._tokens[request.token] = 0
            self._attempt(request)

    def _accepted(self, request: _Request) -> None:
        """The accept phase is over, one way or the other."""
        del self._tokens[request.token]
        self._accepting = None
        self._accept_next()

    def _refuse(self, request: _Request, error: LowmarkError) -> None:
        self._accepted(request)
        request.future.reject(error)

    def _attempt(self, request: _Request) -> None:
        """Make sure that the latest version is here, then decide."""

        def read(future: Future[int]) -> None:
            if future.error is not None:
                self._refuse(request, future.error)
                return
            self._when_latest(future.result()).then(known)

        def known(future: Future[None]) -> None:
            if future.error is not None:
                self._refuse(request, future.error)
            elif self._tokens[request.token]:
                self._went_in(request, self._tokens[request.token])
            else:
                self._decide(request)

        self._metastore.get(VERSION_KEY).map(
            lambda entry: number_in(entry.value if entry is not None else None)
        ).then(read)

    def _when_latest(self, version: int) -> Future[None]:
        """When this node has a version that exists."""
        future: Future[None] = Future()
        timeout_ms = self._metastore.config.request_timeout_ms
        if self.failed is not None:
            future.reject(self.failed.again())
        elif version <= self.history.latest.version:
            future.resolve(None)
        else:
            self._when_known.append((version, future))
            late = NotComplete(waited_ms=timeout_ms, behind_ms=timeout_ms)
            self._loop.call_later(timeout_ms, lambda: future.reject(late))
        return future

    def _decide(self, request: _Request) -> None:
        latest = self.history.latest
        if latest.version == 0 and request.commands != INITIAL_COMMANDS:
            # The leader is about to make version 1.
            self._when_latest(1).then(
                lambda future: (
                    self._attempt(request)
                    if future.error is None
                    else self._refuse(request, future.error)
                )
            )
            return
        if latest.version and request.commands == INITIAL_COMMANDS:
            self._accepted(request)
            request.future.resolve(Executed(latest, ()))
            return
        try:
            evaluation = evaluate(latest, request.commands)
        except CatalogRefused as error:
            refused = error
            self._accepted(request)
            self._when_in_force(latest, lambda _: request.future.reject(refused))
            return
        except LowmarkError as error:
            self._refuse(request, error)
            return
        if not evaluation.entries:
            self._accepted(request)
            self._finish(request, latest, evaluation.applied)
            return
        if request.attempts == ATTEMPTS_MAX:
            self._refuse(request, CatalogBusy(request.attempts))
            return
        request.attempts += 1
        update = Update(
            version=CatalogVersion(latest.version + 1),
            delay_ms=request.delay_ms,
            author=self._metastore.node,
            token=request.token,
            entries=evaluation.entries,
        )
        request.applied[update.version] = evaluation.applied
        self._metastore.invoke(append(update)).then(
            lambda future: self._appended(request, update, future)
        )

    def _appended(self, request: _Request, update: Update, future: Future[Answer]) -> None:
        if isinstance(future.error, OutcomeUnknown):
            # If it went in, or goes in before the next attempt, that one loses and finds the token.
            self._attempt(request)
        elif future.error is not None:
            self._refuse(request, future.error)
        elif future.result().answer == 1:
            self._went_in(request, update.version)
        else:
            self._attempt(request)

    def _went_in(self, request: _Request, version: int) -> None:
        self._accepted(request)
        applied = request.applied[version]

        def ready(future: Future[Catalog]) -> None:
            if future.error is not None:
                request.future.reject(OutcomeUnknown("metastore", why=future.error.message))
            else:
                try:
                    self._finish(request, self.history.version(version), applied)
                except LowmarkError:
                    self._finish(request, self.history.latest, applied)  # it is cut already

        self.when_ready(version).then(ready)

    def _finish(self, request: _Request, catalog: Catalog, applied: tuple[bool, ...]) -> None:
        def done(error: LowmarkError | None) -> None:
            if error is not None:
                request.future.reject(error)
            else:
                request.future.resolve(Executed(catalog, applied))

        self._when_in_force(catalog, done)

    def _when_in_force(self, catalog: Catalog, then: Callable[[LowmarkError | None], None]) -> None:
        """When a version is in force by every clock of the cluster."""
        due_ms = millis_of(catalog.activates_at) + self._max_skew_ms + 1
        wait_ms = due_ms - millis_of(HybridTime(self._clock.now()))
        if wait_ms <= 0 or self._closed:
            then(None)
        elif wait_ms > self._delay_ms + self._max_skew_ms + _FAR_MS:
            then(NotInForce(catalog.version, wait_ms=wait_ms))
        else:
            self._loop.call_later(wait_ms, lambda: self._when_in_force(catalog, then))

    # -- cutting --------------------------------------------------------------------------------

    def compact(self, version: int) -> Future[bool]:
        """Have the log begin with a version: what is before it goes; False if it does already.

        Who still needs an older version must be asked before: this only cuts.
        """
        whole: Future[bool] = Future()

        def read(future: Future[int]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            earliest = future.result()
            try:
                if version <= max(earliest, 1):
                    whole.resolve(False)
                    return
                catalog = self.history.version(version)
            except LowmarkError as error:
                whole.reject(error)
                return
            written = self._metastore.invoke(save_snapshot(catalog, earliest=earliest))
            written.then(done)

        def done(future: Future[Answer]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            elif future.result().answer == 1:
                whole.resolve(True)
            else:
                self.compact(version).then(again)  # somebody else has cut meanwhile

        def again(future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            else:
                whole.resolve(future.result())

        if version > self.history.latest.version:
            whole.reject(VersionUnknown(version, latest=self.history.latest.version))
            return whole
        self._metastore.get(SNAPSHOT_KEY).map(
            lambda entry: number_in(entry.value if entry is not None else None)
        ).then(read)
        return whole
