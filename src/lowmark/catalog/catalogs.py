"""The catalog at one node: its versions as they come, and the way to make another.

`execute` has two phases. *Accept*: the commands are held against the latest version, which a
linearizable read has shown to be here, and their update is appended if that version is still the
latest. Who loses waits for the winner, looks again, and tries a bounded number of times, longer
apart each time. The token of an update tells its author, who may not have heard the answer, that it
went in; as long as he can't know, no other error takes the place of `OutcomeUnknown`. *Apply*:
every node, this one too, takes the update from its watch, makes the version, and tells listeners,
entry by entry; when they are done, the version is ready.

A version comes into force a delay after its write; the delay gives it time to reach every node.
`execute` completes when it is in force by every clock: at its time plus the largest skew. Refusals
wait in the same way, so that who hears "there is a table orders already" can read it at once.
A node whose wall clock is far behind the metastore's time can't wait for that: it says at once that
the version is written, and when it is in force (`NotInForce`).

An embedded node waits for no wall clock, as there is no other clock that could be behind: its own
follows every version that it makes or finds, so what it gives out next is later than that. A node
that is served waits, also while it is the only one: another can join between the answer and the
version's time, and by that one's clock a version that was called in force would not be.

A look-up by time t waits until this node has every update that can be in force at t: those written
up to t minus the delay. A node that can't know that says so. A time that no clock of the cluster
can have reached is refused, unless all that can be in force then is known already.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lowmark.catalog.catalog import Catalog, CatalogVersion
from lowmark.catalog.commands import INITIAL_COMMANDS, Command, Executed, evaluate
from lowmark.catalog.cutting import Cutting
from lowmark.catalog.errors import (
    CatalogBusy,
    CatalogRefused,
    CatalogToCome,
    CutTooEarly,
    NotInForce,
    VersionCompacted,
    VersionUnknown,
)
from lowmark.catalog.history import TOKEN_BYTES, History, Snapshot, Update, replay
from lowmark.catalog.telling import Listener, Telling
from lowmark.catalog.update_log import (
    UPDATE_PREFIX,
    VERSION_KEY,
    Parts,
    append,
    number_in,
    read_log,
)
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future, OutcomeUnknown
from lowmark.metastore import Answer, Condition, Entry, Event, Following, Metastore, NotComplete
from lowmark.runtime import COUNTER_BITS, Runtime, millis_of

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 10
WAITING_MAX = 1_000
"""Lists of commands that wait at one node for their turn."""
READY_MS_MAX = 60_000
"""How long an author waits for listeners of this node to be done with its version."""
_FAR_MS = 60_000
"""No author waits longer than this, beyond delay and skew, for a version to come into force."""
_FOUND_AGAIN_MS = 300
_GIVE_WAY_MS = 2
"""After the first lost race; twice as long after each further one."""


@dataclass(slots=True)
class _Request:
    """A list of commands on its way."""

    commands: tuple[Command, ...]
    delay_ms: int
    token: bytes
    future: Future[Executed]
    founds: bool = False
    by: str = ""
    """The token by which they are asked for."""
    """Whether it makes version 1, or else nothing."""
    attempts: int = 0
    tried: int = 0
    """The version that the last attempt would make."""
    unknown: bool = False
    """Whether an attempt at that version may have gone in, or still may."""
    passed_over: bool = False
    """Whether this node came to a version after that one without having seen it."""
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
        self._following: Following | None = None
        self._telling = Telling(runtime.loop)
        self._when_known: list[tuple[int, Future[None]]] = []
        self._when_active: list[Future[None]] = []
        self._tokens: dict[bytes, int] = {}
        """In which version an update of this node went in, as long as its author waits."""
        self._queue: deque[_Request] = deque()
        self._accepting: _Request | None = None
        self._closed = False
        self.failed: LowmarkError | None = None
        """Why this node's catalog goes no further, if it does not."""

    # -- starting -------------------------------------------------------------------------------

    def start(self) -> None:
        """Take what this node's copy of the metastore has, and follow it from there.

        Listeners get what comes after that: what is there already can be read.
        """
        self._following = self._metastore.keep_watching(
            prefix=UPDATE_PREFIX,
            start=self._take_all,
            on_event=self._changed,
            on_stopped=self._fail,
            name="catalog",
        )
        if self.failed is not None:
            self._following.close()
        self._telling.start_at(self.history.latest.version)
        self._metastore.on_elected(lambda _: self._found())

    def close(self) -> None:
        """Stop; each author that waits gets an error."""
        self._closed = True
        self._telling.close()
        if self._following is not None:
            self._following.close()
        error = _closing()
        self._reject_queued(error)
        self._reject_waiting(error)
        for future in list(self._when_active):
            future.reject(error.again())

    def _take_all(self) -> None:
        """From the state as it is now; also when history was cut away under the watch."""
        try:
            page = self._metastore.range_local(UPDATE_PREFIX)
        except Unavailable:
            raise  # it is looked at again
        except LowmarkError as error:
            self._fail(error)
        else:
            self._take(page.entries, page.revision)

    def _parts_at(self, revision: int) -> Parts:
        """Parts of a snapshot as of the revision that named them: a later cut removes them."""

        def part(key: bytes) -> bytes | None:
            entry = self._metastore.get_local(key, at=revision)
            return entry.value if entry is not None else None

        return part

    def _found(self) -> None:
        """The metastore's leader makes version 1; it is in force at once."""

        def made(future: Future[Executed]) -> None:
            if future.error is not None:  # as long as this node leads, no other would do it
                self._loop.call_later(_FOUND_AGAIN_MS, self._found)

        if self._closed or self.failed is not None or not self._metastore.coordinates:
            return
        if self._metastore.state.find(VERSION_KEY) is None:
            self._execute(INITIAL_COMMANDS, delay_ms=0, founds=True).then(made)

    # -- applying -------------------------------------------------------------------------------

    def _changed(self, event: Event) -> None:
        entries = [change.entry for change in event.changes if change.entry is not None]
        try:
            self._take(entries, event.revision)
        except Unavailable as error:
            if self._following is not None:
                self._following.fail(error)

    def _take(self, entries: Iterable[Entry], revision: int) -> None:
        """Make the versions that are new among these; it can be tried again if it fails."""
        try:
            values = read_log(entries, parts=self._parts_at(revision))
            for value, before, catalog in replay(values, self.history):
                self._made(value, before, catalog, revision)
        except Unavailable:
            raise
        except LowmarkError as error:
            self._fail(error)
        finally:
            self._tell_known()

    def _made(
        self, value: Update | Snapshot, before: Catalog, catalog: Catalog, revision: int
    ) -> None:
        if self._clock.alone:
            self._clock.catch_up(catalog.activates_at)
        if isinstance(value, Snapshot):
            request = self._accepting
            if request is not None and before.version < request.tried <= catalog.version:
                request.passed_over = True
            self._telling.made(before, catalog, (None,), revision)
        else:
            if value.author == self._metastore.node and value.token in self._tokens:
                self._tokens[value.token] = value.version
            self._telling.made(before, catalog, value.entries, revision)

    def _fail(self, error: LowmarkError) -> None:
        """What was written can't be read here: older versions stay, newer ones never come."""
        logger.error("the catalog goes no further", extra={"reason": error.message})
        self.failed = error
        if self._following is not None:
            self._following.close()
        self._reject_waiting(error)

    def _reject_waiting(self, error: LowmarkError) -> None:
        self._telling.reject(error)
        known, self._when_known = self._when_known, []
        for _, future in known:
            future.reject(error.again())

    def _tell_known(self) -> None:
        known = self.history.latest.version
        done = [future for version, future in self._when_known if version <= known]
        self._when_known = [waits for waits in self._when_known if waits[0] > known]
        for future in done:
            future.resolve(None)

    # -- telling --------------------------------------------------------------------------------

    def on_event(self, listener: Listener) -> None:
        """Give a listener every entry of every version that comes from now on, in order.

        The version can be read by then. If the listener answers with a future, the version counts
        as ready, and the next one comes, when that is done.
        """
        self._telling.add(listener)

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
        return self._telling.ready

    def version(self, number: int) -> Catalog:
        """One version."""
        return self.history.version(number)

    def at_local(self, time: int) -> Catalog:
        """The version in force at a time, as far as this node knows: there may be a newer one."""
        return self.history.at(time)

    def at(self, time: int, *, timeout_ms: int | None = None) -> Future[Catalog]:
        """The version in force at a time; waits until this node is sure of that.

        One that is yet to come is refused: the leader would write its time into the log, again and
        again, until then.
        """
        whole: Future[Catalog] = Future()
        if self.failed is not None:
            whole.reject(self.failed.again())
            return whole
        # A version that is in force at `time` was written a delay before; the first one has none.
        written_by = max(time - (self._delay_ms << COUNTER_BITS), 0)
        known = self._metastore.complete_to
        if written_by > known:
            # The metastore's time is ahead of a clock that was put back.
            now_ms = max(self._now_ms(), millis_of(known))
            ahead_ms = millis_of(time) - now_ms
            if ahead_ms > self._max_skew_ms:
                whole.reject(CatalogToCome(ahead_ms=ahead_ms, max_skew_ms=self._max_skew_ms))
                return whole

        def ask(complete_to: int) -> None:
            complete = self._metastore.when_complete(complete_to, timeout_ms=timeout_ms)
            complete.then(lambda future: follow(complete_to, future))

        def follow(complete_to: int, future: Future[None]) -> None:
            if future.error is not None:
                whole.reject(future.error.again())
            else:
                self.when_followed().then(lambda followed: look(complete_to, followed))

        def look(complete_to: int, followed: Future[None]) -> None:
            try:
                followed.result()
                found = self.history.at(time)
            except LowmarkError as error:
                whole.reject(error)
                return
            if found.version == 0 and complete_to < time:
                ask(time)
            else:
                whole.resolve(found)

        ask(written_by)
        return whole

    def when_followed(self) -> Future[None]:
        """When every version that this node's copy of the metastore has now is known here."""
        following, state = self._following, self._metastore.state
        watch = None if following is None else following.watch
        if following is None or (watch is not None and watch.position > state.latest):
            return self._when_latest(0)
        # The watch is about to get it, or is about to be made again. It does not get revisions
        # that have nothing for it, so only a version is something to wait for.
        try:
            entry = self._metastore.get_local(VERSION_KEY)
            return self._when_latest(number_in(entry.value if entry is not None else None))
        except LowmarkError as error:
            return Future.failed(error)

    def when_ready(self, version: int) -> Future[Catalog]:
        """When a version is known here and all listeners of it are done; it may not be in force."""
        future: Future[Catalog] = Future()
        if self._closed or self.failed is not None:
            future.reject(self.failed.again() if self.failed else _closing())
        elif version <= self._telling.ready:
            try:
                future.resolve(self.history.version(version))
            except LowmarkError as error:
                future.reject(error)
        else:
            return self._telling.when_ready(version)
        return future

    # -- executing ------------------------------------------------------------------------------

    def execute(self, commands: Command | Sequence[Command], *, by: str = "") -> Future[Executed]:
        """Carry commands out, all or none, in one version; see the module's docstring. `by`: the
        token by which they are asked for, if by one.
        """
        wanted = tuple(commands) if isinstance(commands, Sequence) else (commands,)
        return self._execute(wanted, delay_ms=self._delay_ms, by=by)

    def _execute(
        self,
        commands: Sequence[Command],
        *,
        delay_ms: int,
        founds: bool = False,
        by: str = "",
    ) -> Future[Executed]:
        future: Future[Executed] = Future()
        if self._closed or self.failed is not None:
            future.reject(self.failed.again() if self.failed else _closing())
            return future
        token = self._random.randbytes(TOKEN_BYTES)
        request = _Request(tuple(commands), delay_ms, token, future, founds, by)
        if founds:
            self._begin(request)  # the first in the queue may wait for it
        elif len(self._queue) == WAITING_MAX:
            future.reject(_busy())
        else:
            self._queue.append(request)
            self._accept_next()
        return future

    def _begin(self, request: _Request) -> None:
        self._tokens[request.token] = 0
        self._attempt(request)

    def _accept_next(self) -> None:
        """One at a time, so that writers of one node do not make each other lose."""
        if self._accepting is None and self._queue and not self._closed:
            self._accepting = self._queue.popleft()
            self._begin(self._accepting)

    def _accepted(self, request: _Request) -> None:
        """The accept phase is over, one way or the other."""
        del self._tokens[request.token]
        if self._accepting is request:
            self._accepting = None
            self._accept_next()

    def _refuse(self, request: _Request, error: LowmarkError) -> None:
        if request.unknown and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown("metastore", why=error.message)
        self._accepted(request)
        request.future.reject(error)

    def _reject_queued(self, error: LowmarkError) -> None:
        queued = list(self._queue)
        self._queue.clear()
        for request in queued:
            request.future.reject(error.again())

    def _attempt(self, request: _Request) -> None:
        """Make sure that the latest version is here, then decide."""

        def read(future: Future[int]) -> None:
            if future.error is not None:
                # The requests behind this one would wait as long, one by one, to get the same.
                self._reject_queued(future.error)
                self._refuse(request, future.error)
                return
            self._when_latest(future.result()).then(known)

        def known(future: Future[None]) -> None:
            if future.error is not None:
                self._refuse(request, future.error)
            elif self._tokens[request.token]:
                self._went_in(request, self._tokens[request.token])
            elif request.unknown and request.passed_over:
                why = f"version {request.tried} was compacted away before this node saw it"
                self._refuse(request, OutcomeUnknown("metastore", why=why))
            else:
                if request.tried <= self.history.latest.version:
                    request.unknown = False  # another author made that version
                self._decide(request)

        self._metastore.get(VERSION_KEY).map(
            lambda entry: number_in(entry.value if entry is not None else None)
        ).then(read)

    def _when_latest(self, version: int) -> Future[None]:
        """When this node has a version that exists."""
        future: Future[None] = Future()
        timeout_ms = self._metastore.config.request_timeout_ms
        if self._closed or self.failed is not None:
            future.reject(self.failed.again() if self.failed else _closing())
        elif version <= self.history.latest.version:
            future.resolve(None)
        else:
            self._when_known.append((version, future))

            def late() -> None:
                self._when_known = [one for one in self._when_known if one[1] is not future]
                future.reject(NotComplete(waited_ms=timeout_ms, behind_ms=timeout_ms))

            timer = self._loop.call_later(timeout_ms, late)
            future.then(lambda _: timer.cancel())
        return future

    def _decide(self, request: _Request) -> None:
        latest = self.history.latest
        if latest.version == 0 and not request.founds:
            # The leader is about to make version 1.
            self._when_latest(1).then(
                lambda future: (
                    self._attempt(request)
                    if future.error is None
                    else self._refuse(request, future.error)
                )
            )
            return
        if latest.version and request.founds:
            self._accepted(request)
            request.future.resolve(Executed(latest, ()))
            return
        try:
            evaluation = evaluate(latest, request.commands)
        except CatalogRefused as error:
            self._accepted(request)
            self._finish_refused(request, latest, error)
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
        try:
            statement = append(update, by=request.by)
        except CatalogRefused as error:
            self._accepted(request)
            self._finish_refused(request, latest, error)
            return
        request.tried, request.passed_over = update.version, False
        request.applied[update.version] = evaluation.applied
        self._metastore.invoke(statement).then(
            lambda future: self._appended(request, update, future)
        )

    def _appended(self, request: _Request, update: Update, future: Future[Answer]) -> None:
        if isinstance(future.error, OutcomeUnknown):
            # If it went in, or goes in before the next attempt, that one loses and finds the token.
            request.unknown = True
            self._attempt(request)
        elif future.error is not None:
            self._refuse(request, future.error)
        elif future.result().answer == 1:
            self._went_in(request, update.version)
        else:
            # Another author is at it, perhaps nearer to the leader and with more to do. One that
            # gives way for longer each time outlasts it.
            wait_ms = _GIVE_WAY_MS * 2**request.attempts * (0.5 + self._random.random())
            self._loop.call_later(wait_ms, lambda: self._attempt(request))

    def _went_in(self, request: _Request, version: int) -> None:
        self._accepted(request)
        applied = request.applied[version]

        def ready(future: Future[Catalog]) -> None:
            if isinstance(future.error, VersionCompacted):
                self._finish(request, self.history.earliest, applied)
            elif future.error is not None:
                request.future.reject(_written(version, future.error))
            else:
                self._finish(request, future.result(), applied)

        self._when_ready_in_time(version).then(ready)

    def _finish(self, request: _Request, catalog: Catalog, applied: tuple[bool, ...]) -> None:
        def done(future: Future[None]) -> None:
            if future.error is None:
                request.future.resolve(Executed(catalog, applied))
            elif isinstance(future.error, NotInForce):
                request.future.reject(future.error)
            else:
                request.future.reject(_written(catalog.version, future.error))

        self._when_seen(catalog).then(done)

    def _finish_refused(self, request: _Request, catalog: Catalog, error: LowmarkError) -> None:
        def done(future: Future[None]) -> None:
            if future.error is None or isinstance(future.error, NotInForce):
                request.future.reject(error)
            else:
                request.future.reject(future.error)

        self._when_seen(catalog).then(done)

    def _when_seen(self, catalog: Catalog) -> Future[None]:
        """When a version is ready here and in force everywhere."""
        seen: Future[None] = Future()

        def ready(future: Future[Catalog]) -> None:
            if future.error is not None and not isinstance(future.error, VersionCompacted):
                seen.reject(future.error)
            else:
                self._when_in_force(catalog).then(active)

        def active(future: Future[None]) -> None:
            if future.error is not None:
                seen.reject(future.error)
            else:
                seen.resolve(None)

        self._when_ready_in_time(catalog.version).then(ready)
        return seen

    def _when_ready_in_time(self, version: int) -> Future[Catalog]:
        """As `when_ready`; a listener that never answers is not waited for, for ever."""
        future = self.when_ready(version)
        if not future.done:
            timer = self._loop.call_later(
                READY_MS_MAX, lambda: self._telling.give_up(future, _not_ready(version))
            )
            future.then(lambda _: timer.cancel())
        return future

    def _when_in_force(self, catalog: Catalog) -> Future[None]:
        """When a version is in force by every clock of the cluster."""
        future: Future[None] = Future()
        due_ms = self._due_ms(catalog)
        patience_ms = self._delay_ms + self._max_skew_ms + _FAR_MS
        until_us = self._loop.elapsed_us() + patience_ms * 1_000

        def look() -> None:
            wait_ms = due_ms - self._now_ms()
            left_ms = (until_us - self._loop.elapsed_us()) / 1_000
            if wait_ms <= 0:
                future.resolve(None)
                return
            # A clock that was put back stands still until the wall has caught up with it: that is
            # what has to be waited for.
            wait_ms = max(wait_ms, due_ms - self._clock.wall_ms())
            if wait_ms > patience_ms or left_ms <= 0:
                future.reject(NotInForce(catalog.version, wait_ms=wait_ms, due_ms=due_ms))
            else:
                self._loop.call_later(min(wait_ms, left_ms), look)

        if self._closed:
            future.reject(_closing())
            return future
        self._when_active.append(future)
        future.then(self._when_active.remove)
        look()
        return future

    # -- cutting --------------------------------------------------------------------------------

    def compact(self, version: int, *, condition: Condition | None = None) -> Future[bool]:
        """Have the log begin with a version: what is before it goes; False if it does already.

        Who still needs an older version must be asked before: this only cuts. What must hold in the
        same write may be given; if it does not, `CutRefused` says so. The version must be in force
        by every clock, so that the present can always be answered.
        """
        if self._closed or self.failed is not None:
            return Future.failed(self.failed.again() if self.failed else _closing())
        latest = self.history.latest.version
        if version > latest:
            return Future.failed(VersionUnknown(version, latest=latest))
        if version > max(self.history.earliest.version, 1):
            wait_ms = self._due_ms(self.history.version(version)) - self._now_ms()
            if wait_ms > 0:
                return Future.failed(CutTooEarly(version, wait_ms=wait_ms))
        cutting = Cutting(
            self._metastore,
            version,
            find=lambda: self.history.version(version),
            condition=condition,
        )
        cutting.attempt()
        return cutting.done

    # -- time -----------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        """By this node's clock."""
        return millis_of(self._clock.now())

    def _due_ms(self, catalog: Catalog) -> int:
        """From when on a version is in force by every clock of the cluster, by this node's."""
        due_ms = millis_of(catalog.activates_at)
        return due_ms if self._clock.alone else due_ms + self._max_skew_ms + 1


def _closing() -> Unavailable:
    return Unavailable("this node is closing", hint="Ask another node.")


def _busy() -> Unavailable:
    return Unavailable(
        f"{WAITING_MAX} lists of commands wait at this node",
        hint="Retry; or send commands that belong together as one list.",
    )


def _not_ready(version: int) -> Unavailable:
    return Unavailable(
        f"version {version} is not ready: a listener did not answer within {READY_MS_MAX} ms",
        hint="Look at this node's log: something that follows the catalog here is stuck.",
    )


def _written(version: int, error: LowmarkError) -> OutcomeUnknown:
    """For the author of a version that was made, who will not hear when it is in force."""
    return OutcomeUnknown("metastore", why=f"version {version} was written, but {error.message}")
