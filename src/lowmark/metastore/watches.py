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
from lowmark.metastore.state import Found, Record, State

_REVISIONS_PER_TURN = 512
_MADE_AT_ONCE = 128
_MADE_BYTES_MAX = 4 << 20
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


class Interest:
    """A prefix and keys that are watched. Watchers with the same one share what they are told.

    Most of them want the same revisions in the same turn, so what is made is kept for one turn.
    """

    def __init__(
        self, source: Source, values: Values, prefix: bytes | None, keys: frozenset[bytes]
    ):
        self._source = source
        self._values = values
        self._prefix = prefix
        self._keys = keys
        self._made: dict[int, Event | None] = {}
        self._made_bytes = 0
        self.watchers = 0

    def wants(self, key: bytes) -> bool:
        """Whether changes of a key are told."""
        return key in self._keys or (self._prefix is not None and key.startswith(self._prefix))

    def event(self, revision: int) -> Event | None:
        """What a revision above the cut has for these watchers, if anything."""
        if revision not in self._made:
            self._make(revision)
        return self._made[revision]

    def forget(self) -> None:
        """The turn is over."""
        self._made.clear()
        self._made_bytes = 0

    def _make(self, first: int) -> None:
        """Make a few at once: their values are read from the log in one go."""
        if self._made_bytes > _MADE_BYTES_MAX:
            self.forget()
        state, size = self._source.state, 0
        wanted: dict[int, list[tuple[bytes, Record]]] = {}
        found: list[Found] = []
        for revision in range(first, min(state.latest, first + _MADE_AT_ONCE - 1) + 1):
            made = state.changes(revision)
            records = [(k, state.record_in(k, revision)) for k in made.keys if self.wants(k)]
            size += sum(record.length for _, record in records)
            if found and size > _MADE_BYTES_MAX:
                break
            wanted[revision] = records
            found += [Found(k, r, made.index, made.time) for k, r in records if not r.removed]
        entries = iter(self._values.entries(found))
        for revision, records in wanted.items():
            changes = tuple(
                Change(key, None if record.removed else next(entries)) for key, record in records
            )
            time = state.changes(revision).time
            self._made[revision] = Event(revision, time, changes) if changes else None
        self._made_bytes += size


class Watch:
    """One watcher. Close it when done."""

    __slots__ = (
        "_busy",
        "_on_end",
        "_on_event",
        "_watches",
        "closed",
        "interest",
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
        interest: Interest,
        position: int,
        on_event: OnEvent,
        on_end: OnEnd,
    ) -> None:
        self._watches = watches
        self._on_event = on_event
        self._on_end = on_end
        self._busy = False
        self.interest = interest
        self.number = number
        self.closed = False
        self.name = name
        self.position = position
        """The next revision to look at."""
        self.moved_at_ms = watches.source.now_ms()
        """When it last went on, or had nothing to wait for."""

    def close(self) -> None:
        """Tell nothing more; `on_end` is not called."""
        self.closed = True
        self._watches.forget(self)

    def end(self, error: LowmarkError) -> None:
        """This watch goes no further."""
        if not self.closed:
            self.close()
            self._on_end(error)

    def moves(self, since_ms: int) -> bool:
        """Whether it has gone on since a time; one that waits for no caller goes on in its turn."""
        return not self._busy or self.moved_at_ms > since_ms

    def go_on(self) -> None:
        """Tell what there is to tell, for this turn."""
        source = self._watches.source
        if self._cut_off(source.state) or self._busy:
            return
        self.moved_at_ms = source.now_ms()
        # The state changes only between turns, so these hold for all of this one.
        latest, next_event, tell = source.state.latest, self.interest.event, self._on_event
        stop = min(latest, self.position + _REVISIONS_PER_TURN - 1)
        while self.position <= stop:
            try:
                event = next_event(self.position)
            except LowmarkError as error:  # a value that can't be read is no value to pass over
                self.end(error)
                return
            self.position += 1
            if event is None:
                continue
            waits = tell(event)
            if waits is not None and not waits.done:
                self._wait_for(waits)
                return
            if self.closed:
                return
        if stop < latest:
            self._watches.again(self)

    def _cut_off(self, state: State) -> bool:
        """Whether it has to be told, also while it is busy, that what it needs next is gone."""
        if self.position > state.compacted or self.closed:
            return self.closed
        wanted = f"revision {self.position}"
        self.end(RevisionCompacted(wanted=wanted, first_left=state.compacted + 1))
        return True

    def _wait_for(self, waits: Future[None]) -> None:
        self._busy = True

        def done(_: Future[None]) -> None:
            self._busy = False
            self._watches.again(self)

        waits.then(done)


class Watches:
    """All watches of a node."""

    def __init__(self, source: Source, values: Values) -> None:
        self.source = source
        self._values = values
        self._all: dict[int, Watch] = {}
        self._interests: dict[tuple[bytes | None, frozenset[bytes]], Interest] = {}
        self._numbers = 0
        self._again: dict[int, Watch] = {}
        self._scheduled = False

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
        wanted = (prefix, frozenset(keys))
        interest = self._interests.get(wanted)
        if interest is None:
            interest = self._interests[wanted] = Interest(self.source, self._values, *wanted)
        interest.watchers += 1
        watch = Watch(
            self,
            self._numbers,
            name=name,
            interest=interest,
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
        if self._all.pop(watch.number, None) is not None:
            watch.interest.watchers -= 1
            if not watch.interest.watchers:
                self._interests = {k: i for k, i in self._interests.items() if i.watchers}

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
        for interest in self._interests.values():
            interest.forget()
