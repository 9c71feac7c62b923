"""The metastore for clients: reads in pages, writes, and watches that wait for a reader."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lowmark.catalog import Catalogs, Executed, check_buildable, read_commands
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.group import Future
from lowmark.metastore import Answer, Entry, Event, Metastore, Watch
from lowmark.metastore.nodes import CLUSTER_KEY, NODE_PREFIX, TOPOLOGY_KEY
from lowmark.metastore.state import Found, Record, State, prefix_end
from lowmark.node.action import Action, Call, reply, stream
from lowmark.node.bridge import Bridge
from lowmark.node.callers import current_caller
from lowmark.node.messages import (
    CatalogStatus,
    ExecuteAsk,
    ExecutedReply,
    GetAsk,
    GetReply,
    HistoryAsk,
    HistoryPage,
    PutAsk,
    RangeAsk,
    RangePage,
    RemoveAsk,
    StoredEntry,
    WatchAlive,
    WatchAsk,
    WatchEvent,
    WatchStarted,
    WrittenReply,
)
from lowmark.runtime import Timer, millis_of
from lowmark.tokens import ACCESS_PREFIX, shown

PAGE_ENTRIES_MAX = 512
PAGE_BYTES_MAX = 4 << 20
"""Of values in one result; or one entry."""
WATCH_EVENTS_MAX = 64
WATCH_BYTES_MAX = 1 << 20
"""What may wait for the reader of one watch; or one event."""
ALIVE_S = 0.5
"""So often a watch that has nothing to tell says so."""
WATCHES_MAX = 256
"""Of clients at one node: each has a thread of Flight's."""
RESERVED = (
    ACCESS_PREFIX,
    CLUSTER_KEY,
    NODE_PREFIX,
    TOPOLOGY_KEY,
    b"catalog.",
    b"compaction",
    b"ledger.",
    b"partition.",
    b"rebalance",
    b"watermark",
    b"zone.",
)
"""What keys of clients may not begin with."""
SLACK_S = 5.0
"""A request gives up by itself; this is for a loop that is stuck."""


class TooManyWatches(Unavailable):
    """As many clients watch at this node as it takes."""

    def __init__(self) -> None:
        super().__init__(
            f"{WATCHES_MAX} watches are open at this node, and it takes no more",
            hint="Close some of them, or watch at another node.",
        )


def stored(entry: Entry) -> StoredEntry:
    """An entry as it goes to a client."""
    return StoredEntry(
        key=entry.key,
        revision=entry.revision,
        time_ms=millis_of(entry.time),
        time=entry.time,
        created=entry.created,
        version=entry.version,
        size=len(entry.value),
        value=shown(entry.key, entry.value),
    )


def _check_free(key: bytes) -> None:
    if key.startswith(RESERVED):
        raise Rejected(
            f"key {key!r:.80} belongs to Lowmark itself",
            detail="What a client wrote there would be taken for what the cluster has decided.",
            hint="Choose a key with another beginning.",
        )


def _removed(key: bytes, revision: int, time: int) -> StoredEntry:
    return StoredEntry(key=key, revision=revision, time_ms=millis_of(time), time=time, removed=True)


def bare(found: Found) -> StoredEntry:
    """An entry without its value."""
    record = found.record
    return StoredEntry(
        key=found.key,
        revision=record.revision,
        time_ms=millis_of(found.time),
        time=found.time,
        created=record.created,
        version=record.version,
        size=record.length,
    )


ReadValues = Callable[[Iterable[Found]], list[Entry]]
"""The values of what was found, in its order, read at once."""


def page_of(state: State, asked: RangeAsk, *, start: bytes, at: int, left: int) -> list[Found]:
    """The next keys of a range: so many that they and their values make one result."""
    limit = min(left, PAGE_ENTRIES_MAX)
    found = state.find_range(start, prefix_end(asked.prefix), at=at, limit=limit)
    if asked.keys_only:
        return found
    return found[: _fitting([one.record for one in found])]


def _fitting(records: list[Record]) -> int:
    size = 0
    for count, record in enumerate(records):
        size += record.length
        if size > PAGE_BYTES_MAX and count:
            return count
    return len(records)


def history_entries(state: State, key: bytes, read: ReadValues, *, after: int) -> list[StoredEntry]:
    """What became of a key behind a revision, oldest first: so much that it makes one result."""
    records = [record for record in state.history(key) if record.revision > after]
    records = records[:PAGE_ENTRIES_MAX]
    records = records[: _fitting(records)]
    # The record in force at the cut is older than the cut, and readable there.
    found = [
        state.find(key, max(record.revision, state.compacted))
        for record in records
        if not record.removed
    ]
    values = {entry.revision: entry for entry in read(one for one in found if one is not None)}
    entries = []
    for record in records:
        if record.removed:
            time = state.made[record.revision].time
            entries.append(_removed(key, record.revision, time))
        elif record.revision in values:
            entries.append(stored(values[record.revision]))
    return entries


class MetaActions:
    """What clients may ask of the metastore."""

    def __init__(self, metastore: Metastore, bridge: Bridge) -> None:
        self._metastore = metastore
        self._bridge = bridge
        self._lock = threading.Lock()
        self._watching = 0
        self._timeout_s = metastore.config.request_timeout_ms / 1_000 + SLACK_S
        self._page_timeout_s = 2 * self._timeout_s - SLACK_S
        """For a page is read, and its revision held."""

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {
            "meta.get": reply(GetAsk, self._get),
            "meta.range": stream(RangeAsk, self._range),
            "meta.history": stream(HistoryAsk, self._history),
            "meta.watch": stream(WatchAsk, self._watch),
            "meta.put": reply(PutAsk, self._put),
            "meta.remove": reply(RemoveAsk, self._remove),
        }

    # -- reading --------------------------------------------------------------------------------

    def _get(self, asked: GetAsk) -> GetReply:
        def get() -> Future[GetReply]:
            page = self._metastore.get_all([asked.key], at=asked.at)
            return page.map(
                lambda found: GetReply(
                    revision=found.revision,
                    entry=stored(found.entries[0]) if found.entries else None,
                )
            )

        return self._bridge.ask(get, timeout_s=self._timeout_s)

    def _range(self, asked: RangeAsk, call: Call) -> Iterator[RangePage]:
        start, at = asked.prefix, asked.at
        left = _limit(asked.limit)
        held = _Held(self._metastore, self._bridge)
        try:
            while True:
                page = self._page(asked, held, start=start, at=at, left=left)
                yield page.page
                if not page.more or call.gone():
                    return
                # The next page is as of the same revision, and begins right behind this one.
                start, at = page.page.entries[-1].key + b"\0", page.page.revision
                left -= len(page.page.entries)
        finally:
            self._bridge.call(held.let_go)

    def _page(
        self, asked: RangeAsk, held: _Held, *, start: bytes, at: int | None, left: int
    ) -> _Page:
        metastore = self._metastore

        def query(state: State) -> _FoundPage:
            revision = state.latest if at is None else at
            state.check_readable(revision)
            found = page_of(state, asked, start=start, at=revision, left=left)
            if not found or len(found) >= left:
                return _FoundPage(revision, found, more=False)
            behind, end = found[-1].key + b"\0", prefix_end(asked.prefix)
            more = bool(state.find_range(behind, end, at=revision, limit=1))
            return _FoundPage(revision, found, more=more)

        def page(there: _FoundPage) -> _Page:
            # Still in the turn in which the state was asked: no value has gone or moved since.
            if asked.keys_only:
                entries = tuple(map(bare, there.found))
            else:
                entries = tuple(map(stored, metastore.entries(there.found)))
            return _Page(RangePage(revision=there.revision, entries=entries), there.more)

        def ask() -> Future[_Page]:
            whole: Future[_Page] = Future()

            def answered(future: Future[_Page]) -> None:
                if future.error is not None:
                    whole.reject(future.error)
                    return
                made = future.result()
                if made.more:
                    held.hold(made.page.revision).then(lambda _: whole.resolve(made))
                else:
                    whole.resolve(made)

            metastore.read(query).map(page).then(answered)
            return whole

        return self._bridge.ask(ask, timeout_s=self._page_timeout_s)

    def _history(self, asked: HistoryAsk, call: Call) -> Iterator[HistoryPage]:
        metastore, after = self._metastore, 0

        def page(after: int) -> HistoryPage:
            state = metastore.state
            entries = history_entries(state, asked.key, metastore.entries, after=after)
            latest, compacted = state.latest, state.compacted
            return HistoryPage(revision=latest, compacted=compacted, entries=tuple(entries))

        while True:
            found = self._bridge.ask(
                lambda after=after: metastore.read(lambda _: None).map(  # type: ignore[misc]
                    lambda _: page(after)
                ),
                timeout_s=self._timeout_s,
            )
            yield found
            if len(found.entries) == 0 or call.gone():
                return
            after = found.entries[-1].revision

    # -- changing -------------------------------------------------------------------------------

    def _put(self, asked: PutAsk) -> WrittenReply:
        _check_free(asked.key)
        return self._written(lambda: self._metastore.put(asked.key, asked.value))

    def _remove(self, asked: RemoveAsk) -> WrittenReply:
        _check_free(asked.key)
        return self._written(lambda: self._metastore.remove(asked.key))

    def _written(self, change: Callable[[], Future[Answer]]) -> WrittenReply:
        answer = self._bridge.ask(change, timeout_s=self._timeout_s)
        time_ms = millis_of(answer.time)
        return WrittenReply(revision=answer.revision, time_ms=time_ms, changed=answer.changed)

    # -- following ------------------------------------------------------------------------------

    def _watch(
        self, asked: WatchAsk, call: Call
    ) -> Iterator[WatchStarted | WatchEvent | WatchAlive]:
        told = _Told(self._bridge)
        with self._lock:
            if self._watching >= WATCHES_MAX:
                raise TooManyWatches
            self._watching += 1
        try:
            first = self._bridge.ask(lambda: self._open(asked, told), timeout_s=self._timeout_s)
            yield WatchStarted(from_revision=first)
            while not call.gone():
                event = told.next(ALIVE_S)
                if event is None:
                    yield WatchAlive()
                else:
                    yield watch_event(event)
                    told.taken(event)  # Flight has come back for more: the client has room
        finally:
            with self._lock:
                self._watching -= 1
            self._bridge.call(told.close)

    def _open(self, asked: WatchAsk, told: _Told) -> Future[int]:
        """Begin where the whole cluster is, not where this node happens to be; say where."""

        def start(latest: int) -> int:
            first = latest + 1 if asked.from_revision is None else asked.from_revision
            watch = self._metastore.watch(
                prefix=asked.prefix,
                from_revision=first,
                on_event=told.on_event,
                on_end=told.on_end,
                name="a client",
            )
            told.opened(watch)
            return first

        if asked.from_revision is not None and asked.from_revision < 1:
            raise Rejected("revisions begin with 1")
        return self._metastore.read(lambda state: state.latest).map(start)


def _limit(asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise Rejected("a limit is at least 1")
    return asked if asked is not None else 1 << 62


def watch_event(event: Event) -> WatchEvent:
    """An event as it goes to a client."""
    time_ms = millis_of(event.time)
    changes = tuple(
        _removed(change.key, event.revision, event.time)
        if change.entry is None
        else stored(change.entry)
        for change in event.changes
    )
    return WatchEvent(revision=event.revision, time_ms=time_ms, changes=changes)


def _value_bytes(event: Event) -> int:
    return sum(len(change.entry.value) for change in event.changes if change.entry is not None)


@dataclass(frozen=True, slots=True)
class _FoundPage:
    """Keys of one page, in the turn in which they were found."""

    revision: int
    found: list[Found]
    more: bool


@dataclass(frozen=True, slots=True)
class _Page:
    """One page, and whether there is another one behind it."""

    page: RangePage
    more: bool


class _Held:
    """Keeps the revision of a range for the client that pages through it. All on the loop.

    Not for ever: a client that asks for no further page for as long as a watch may stand still is
    no longer held for. It gets `RevisionCompacted` if the cut has passed it meanwhile.
    """

    def __init__(self, metastore: Metastore, bridge: Bridge) -> None:
        self._metastore = metastore
        self._bridge = bridge
        self._release: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._over = False

    def hold(self, revision: int) -> Future[None]:
        """Hold it from now on, or for longer; done when it is held, or can't be."""
        if self._over:
            return Future.of(None)
        if self._timer is not None:
            self._timer.cancel()
        patience_ms = self._metastore.config.watch_patience_ms
        self._timer = self._bridge.call_later(patience_ms, self._let_loose)
        if self._release is not None:
            return Future.of(None)
        done: Future[None] = Future()
        self._metastore.hold(revision).then(lambda future: self._holds(future, done))
        return done

    def _holds(self, future: Future[Callable[[], None]], done: Future[None]) -> None:
        # Without a hold the pages go on: should one be cut away, it is refused by name.
        if future.error is None:
            self._release = future.result()
            if self._timer is None:  # it was let go meanwhile
                self._let_loose()
        done.resolve(None)

    def let_go(self) -> None:
        """The client has all, or has gone."""
        self._over = True
        self._let_loose()

    def _let_loose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        release, self._release = self._release, None
        if release is not None:
            release()


class _Told:
    """What the loop has told a watch, and its stream has not taken yet: a bounded amount."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._queue: queue.SimpleQueue[Event | LowmarkError] = queue.SimpleQueue()
        # Only the loop's thread looks at these:
        self._events = 0
        self._bytes = 0
        self._room: Future[None] | None = None
        self._watch: Watch | None = None
        self._closed = False

    def opened(self, watch: Watch) -> None:
        """The watch stands; the client may have gone before it did."""
        self._watch = watch
        if self._closed:
            watch.close()

    def close(self) -> None:
        """Take no more events."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()

    def on_event(self, event: Event) -> Future[None] | None:
        """Take an event; the future is there when there is room for the next."""
        self._events += 1
        self._bytes += _value_bytes(event)
        self._queue.put(event)
        if self._events < WATCH_EVENTS_MAX and self._bytes < WATCH_BYTES_MAX:
            return None
        self._room = Future()
        return self._room

    def on_end(self, error: LowmarkError) -> None:
        """The watch goes no further; the stream says so when it has come to that."""
        self._queue.put(error)

    def next(self, timeout_s: float) -> Event | None:
        """The next event, on the stream's thread; None if there is none yet."""
        try:
            told = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(told, LowmarkError):
            raise told
        return told

    def taken(self, event: Event) -> None:
        """The client has it."""
        self._bridge.call(lambda: self._taken(_value_bytes(event)))

    def _taken(self, size: int) -> None:
        self._events -= 1
        self._bytes -= size
        room, self._room = self._room, None
        if room is not None:
            room.resolve(None)


# The catalog for clients: commands to carry out. Versions are read from the metastore.

EXECUTE_S = 120.0
"""Longer than the catalog itself waits for anything."""


class CatalogActions:
    """What clients may ask of a node's catalog."""

    def __init__(self, catalogs: Catalogs, bridge: Bridge) -> None:
        self._catalogs = catalogs
        self._bridge = bridge

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {"catalog.execute": reply(ExecuteAsk, self._execute)}

    def status(self) -> CatalogStatus:
        """Which versions there are here. On the loop."""
        catalogs = self._catalogs
        failed = catalogs.failed
        return CatalogStatus(
            version=catalogs.latest.version,
            earliest=catalogs.earliest.version,
            problem=failed.message if failed is not None else "",
        )

    def _execute(self, asked: ExecuteAsk) -> ExecutedReply:
        commands = read_commands(asked.commands)
        check_buildable(commands)
        by = current_caller().token

        def execute() -> Future[Executed]:
            return self._catalogs.execute(commands, by=by)

        done = self._bridge.ask(execute, timeout_s=EXECUTE_S)
        return ExecutedReply(
            version=done.catalog.version,
            active_from_ms=millis_of(done.catalog.activates_at),
            applied=done.applied,
        )
