"""Those who follow the metastore: every revision once, in order, whole.

A watch is a position, nothing more: the next revision to look at. Revisions above the cut are all
in the state, and their values in the log, so there is no queue that a slow watcher could fill. It
is called with one event at a time; if it answers with a future, the next one comes when that is
done. Its node's lease holds the revisions that it has not seen; a watcher that does not move for
too long is no longer held for, and is told (`RevisionCompacted`) when the cut passes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lowmark.errors import LowmarkError
from lowmark.group import Command, Future
from lowmark.metastore.errors import RevisionCompacted
from lowmark.metastore.state import Found, Made, Record, State

__all__ = ["Change", "Entry", "Event", "OnEnd", "OnEvent", "Values", "Watch", "Watches"]

_REVISIONS_PER_TURN = 512
_EVENTS_KEPT_MAX = 512
_CACHED_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value, and where it comes from."""

    key: bytes
    value: bytes
    revision: int
    """The one that wrote it."""
    created: int
    version: int
    time: int


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one key; without an entry, it was removed."""

    key: bytes
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Event:
    """All that one revision changed, as far as a watcher asked for it."""

    revision: int
    time: int
    changes: tuple[Change, ...]

    @property
    def value_bytes(self) -> int:
        """How much its values take."""
        return sum(len(change.entry.value) for change in self.changes if change.entry is not None)


OnEvent: TypeAlias = Callable[[Event], Future[None] | None]
OnEnd: TypeAlias = Callable[[LowmarkError], None]


class Source(Protocol):
    """What watches need of their node."""

    @property
    def state(self) -> State: ...
    def read_commands(self, indexes: list[int]) -> list[Command]: ...
    def soon(self, callback: Callable[[], None]) -> None: ...
    def now_ms(self) -> int: ...


class Values:
    """Reads values from the log; what many watchers want at the same time is read once."""

    def __init__(self, source: Source, *, cached_bytes_max: int = _CACHED_BYTES_MAX) -> None:
        self._source = source
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        """Commands by the revision that they made, which never changes; their index may."""
        self._cached_bytes = 0
        self._cached_bytes_max = cached_bytes_max

    def entries(self, found: Iterable[Found]) -> list[Entry]:
        """The values that were found in the state, in their order."""
        wanted = list(found)
        commands = self._commands({one.record.revision: one.index for one in wanted})
        return [_entry(one, commands[one.record.revision]) for one in wanted]

    def event(self, revision: int, made: Made, records: list[tuple[bytes, Record]]) -> Event:
        """A revision with its values."""
        commands: dict[int, bytes] = {}
        if any(not record.removed for _, record in records):
            commands = self._commands({revision: made.index})
        changes = []
        for key, record in records:
            entry = None
            if not record.removed:
                entry = _entry(Found(key, record, made.index, made.time), commands[revision])
            changes.append(Change(key, entry))
        return Event(revision, made.time, tuple(changes))

    def _commands(self, indexes: dict[int, int]) -> dict[int, bytes]:
        got: dict[int, bytes] = {}
        missing: list[tuple[int, int]] = []
        for revision, index in indexes.items():
            known = self._cache.get(revision)
            if known is None:
                missing.append((index, revision))
            else:
                self._cache.move_to_end(revision)
                got[revision] = known
        if missing:
            missing.sort()
            commands = self._source.read_commands([index for index, _ in missing])
            for (_, revision), command in zip(missing, commands, strict=True):
                got[revision] = data = bytes(command.data)
                self._keep(revision, data)
        return got

    def _keep(self, revision: int, data: bytes) -> None:
        self._cache[revision] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > self._cached_bytes_max:
            _, old = self._cache.popitem(last=False)
            self._cached_bytes -= len(old)


def _entry(found: Found, command: bytes) -> Entry:
    record = found.record
    value = command[record.at : record.at + record.length]
    return Entry(found.key, value, record.revision, record.created, record.version, found.time)


class Watch:
    """One watcher. Close it when done."""

    __slots__ = (
        "_busy",
        "_keys",
        "_on_end",
        "_on_event",
        "_prefix",
        "_watches",
        "closed",
        "moved_at_ms",
        "name",
        "number",
        "position",
    )

    def __init__(
        self,
        watches: Watches,
        number: int,
        *,
        name: str,
        prefix: bytes | None,
        keys: frozenset[bytes],
        position: int,
        on_event: OnEvent,
        on_end: OnEnd,
    ) -> None:
        self._watches = watches
        self._prefix = prefix
        self._keys = keys
        self._on_event = on_event
        self._on_end = on_end
        self._busy = False
        self.number = number
        self.closed = False
        self.name = name
        self.position = position
        """The next revision to look at."""
        self.moved_at_ms = watches.source.now_ms()
        """When it last went on, or had nothing to wait for."""

    def wants(self, key: bytes) -> bool:
        """Whether changes of a key are told."""
        return key in self._keys or (self._prefix is not None and key.startswith(self._prefix))

    def close(self) -> None:
        """Tell nothing more; `on_end` is not called."""
        self.closed = True
        self._watches.forget(self)

    def end(self, error: LowmarkError) -> None:
        """This watch goes no further."""
        if not self.closed:
            self.close()
            self._on_end(error)

    def go_on(self) -> None:
        """Tell what there is to tell, for this turn."""
        source, scanned = self._watches.source, 0
        if self._busy:
            return
        self.moved_at_ms = source.now_ms()
        while not self.closed and self.position <= source.state.latest:
            cut = source.state.compacted
            if self.position <= cut:
                wanted = f"revision {self.position}"
                self.end(RevisionCompacted(wanted=wanted, first_left=cut + 1))
                return
            if scanned == _REVISIONS_PER_TURN:
                self._watches.again(self)
                return
            scanned += 1
            event = self._next_event(source.state)
            self.position += 1
            if event is not None and not self._tell(event):
                return

    def _next_event(self, state: State) -> Event | None:
        wanted = [key for key in state.changes(self.position).keys if self.wants(key)]
        if not wanted:
            return None
        event = self._watches.event(self.position)
        if len(wanted) == len(event.changes):
            return event
        changes = tuple(change for change in event.changes if self.wants(change.key))
        return Event(event.revision, event.time, changes)

    def _tell(self, event: Event) -> bool:
        """Whether the next one may follow at once."""
        waits = self._on_event(event)
        if waits is None or waits.done:
            return True
        self._busy = True

        def done(_: Future[None]) -> None:
            self._busy = False
            self._watches.again(self)

        waits.then(done)
        return False


class Watches:
    """All watches of a node."""

    def __init__(self, source: Source, values: Values) -> None:
        self.source = source
        self._values = values
        self._all: dict[int, Watch] = {}
        self._numbers = 0
        self._again: dict[int, Watch] = {}
        self._scheduled = False
        self._events: OrderedDict[int, Event] = OrderedDict()
        """The last ones that were told: watchers mostly want the same at the same time."""
        self._event_bytes = 0

    def add(
        self,
        *,
        prefix: bytes | None,
        keys: Iterable[bytes],
        from_revision: int,
        name: str,
        on_event: OnEvent,
        on_end: OnEnd,
    ) -> Watch:
        """Watch from a revision on; it may be one that was not made yet."""
        self._numbers += 1
        watch = Watch(
            self,
            self._numbers,
            name=name,
            prefix=prefix,
            keys=frozenset(keys),
            position=from_revision,
            on_event=on_event,
            on_end=on_end,
        )
        self._all[watch.number] = watch
        self.again(watch)
        return watch

    def all(self) -> list[Watch]:
        """Those that are open."""
        return list(self._all.values())

    def forget(self, watch: Watch) -> None:
        """It was closed."""
        self._all.pop(watch.number, None)

    def event(self, revision: int) -> Event:
        """A revision, with all that it changed."""
        known = self._events.get(revision)
        if known is None:
            state = self.source.state
            made = state.changes(revision)
            records = [(key, state.record_in(key, revision)) for key in made.keys]
            known = self._values.event(revision, made, records)
            self._keep(known)
        return known

    def _keep(self, event: Event) -> None:
        self._events[event.revision] = event
        self._event_bytes += event.value_bytes
        while len(self._events) > _EVENTS_KEPT_MAX or self._event_bytes > _CACHED_BYTES_MAX:
            _, old = self._events.popitem(last=False)
            self._event_bytes -= old.value_bytes

    def moved_on(self) -> None:
        """There may be new revisions."""
        self._again.update(self._all)
        self._schedule()

    def again(self, watch: Watch) -> None:
        """A watch may have more to tell."""
        if not watch.closed:
            self._again[watch.number] = watch
            self._schedule()

    def end_all(self, error: LowmarkError) -> None:
        """Nothing will be told any more."""
        for watch in self.all():
            watch.end(error.again())

    def _schedule(self) -> None:
        if self._again and not self._scheduled:
            self._scheduled = True
            self.source.soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        waiting, self._again = self._again, {}
        for watch in waiting.values():
            watch.go_on()
