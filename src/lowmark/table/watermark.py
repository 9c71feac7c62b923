"""The low watermark: the cluster's one agreed time. History at or after it is exact.

    watermark               the time, and when it was moved there
    watermark.hold.<node>   the earliest time that a reader at that node needs
    watermark.holds         written whenever a hold is taken, or goes back to an earlier time
    watermark.history       how far behind the clock it follows, if that was altered since the
                            cluster was founded; read anew for each move. A shorter one lets the
                            next move go further; a longer one moves nothing back

Invariants
    1. It never falls: a move is written only if the value is the one that the move was made from.
    2. It never passes a hold in force. A hold is taken only if the watermark is where its taker saw
       it, and with it `watermark.holds` is written; a move is written only if `watermark.holds` is
       as its mover saw it. So of a taker and a mover that do not know of each other, one loses,
       reads again, and knows.
    3. A hold is in force for as long as its node's lease: only a node that has its lease takes one.
       A mover removes what others left behind, in the write that moves, and only if their leases
       are over by the time of that write.
    4. What a node has published is at or below the times of all its readers, from before a reader
       hears that it holds until it lets go. A later reader needs no write; letting go is published
       by and by, or when this node moves the watermark.
    5. A node has one write of its hold under way, and each names the revisions that it was made
       from. While one may still come late, no reader relies on what stands there: the next
       one writes again, and then the late one does nothing.

`AsOfHold.lost` tells a reader that its node lost its lease: what it read by then may be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.faces import deferred
from lowmark.group import Future, OutcomeUnknown
from lowmark.holds import Hold, Span, safe_point
from lowmark.metastore import (
    Compare,
    Entry,
    LeaseIsOver,
    Not,
    Operation,
    Put,
    Remove,
    Revision,
    all_of,
)
from lowmark.metastore.nodes import lease_of
from lowmark.runtime import COUNTER_BITS, HybridTime, Runtime, Timer, millis_of
from lowmark.table.errors import BelowWatermark, TimeInFuture

if TYPE_CHECKING:  # a client has the watermark's values, and no metastore
    from lowmark.metastore import Following, Metastore, Page, name_of
else:
    (name_of,) = deferred("lowmark.metastore.coordinator", "name_of")

logger = logging.getLogger(__name__)

WATERMARK_KEY = b"watermark"
HOLD_PREFIX = b"watermark.hold."
HOLDS_KEY = b"watermark.holds"
HISTORY_KEY = b"watermark.history"
ATTEMPTS_MAX = 10
"""How often a move, or a hold, is tried against others that get there first."""
_LET_GO_MS = 500
"""So much later it is published that readers have let go."""
_KEEP_MS = 5_000
"""So often a node with readers looks whether its hold still stands."""
_AGAIN_MS_MAX = 30_000
_GONE_MAX = 256
"""This many nodes that are gone are cleaned up after in one write."""

T = TypeVar("T")


class WatermarkValue(msgspec.Struct, frozen=True):
    """What stands under `watermark`."""

    time: int
    moved_at: int


class HoldValue(msgspec.Struct, frozen=True):
    """What stands under `watermark.hold.<node>`: the earliest of that node's readers."""

    time: int
    since: int
    why: str


class HistoryValue(msgspec.Struct, frozen=True):
    """What stands under `watermark.history`."""

    availability_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkStanding:
    """Where the low watermark is, as far as a node knows, and who keeps it there."""

    value: int
    """History at or after this time is exact; 0: it was never moved."""
    moved_at: int
    goal: int
    """Where it would be without holders."""
    holds: tuple[Hold, ...]
    """All holders, the earliest first; those below the goal keep it from there."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What became of a move."""

    before: int
    after: int
    wanted: int
    held_by: tuple[Hold, ...]
    """Who kept it from getting there, the earliest first."""


@dataclass(frozen=True, slots=True)
class _Published:
    """A hold as it stands in the metastore."""

    value: HoldValue
    revision: int
    in_force: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the metastore has of all this, as of one moment."""

    watermark: WatermarkValue
    revision: int
    """Of the watermark; 0: it was never moved."""
    holds_revision: int
    holds: dict[int, _Published]
    """By node."""


@dataclass(slots=True, eq=False)
class _Reader:
    """A reader at this node as of a time."""

    time: int
    since: int
    why: str
    waits: Future[AsOfHold] | None
    """Until it holds."""


class AsOfHold:
    """Keeps history from a time on exact; call it to let go. It is fine to do so twice."""

    __slots__ = ("_reader", "_watermark", "time")

    def __init__(self, watermark: LowWatermark, reader: _Reader) -> None:
        self._watermark = watermark
        self._reader = reader
        self.time = reader.time

    def __call__(self) -> None:
        """Let go."""
        self._watermark._let_go(self._reader)

    @property
    def lost(self) -> bool:
        """Whether the watermark has passed it: its node was taken for gone."""
        return self._watermark.current > self.time

    @property
    def passed_by(self) -> int:
        """Where the watermark is."""
        return self._watermark.current


class LowWatermark:
    """See the module's docstring. All calls are made on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        metastore: Metastore,
        *,
        node: int,
        availability_ms: int,
        max_skew_ms: int,
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._metastore = metastore
        self._node = node
        self._founded_ms = availability_ms
        self._history = (0, availability_ms)
        """How far behind the clock it follows, by the revision that says so; 0: none does."""
        self._max_skew_ms = max_skew_ms
        self._known = (0, WatermarkValue(0, 0))
        """The value by its revision."""
        self._readers: list[_Reader] = []
        self._busy = False
        self._attempts = 0
        self._let_go_since = True
        """Whether what stands in the metastore may be lower than it need be; at first, what an
        earlier process of this node left."""
        self._late: set[tuple[int, int]] | None = None
        """Writes that may still come, by the revisions they name: of the watermark, of our hold."""
        self._settled: list[Future[None]] = []
        """Those who wait for the end of this round; and of the next one."""
        self._settled_next: list[Future[None]] = []
        self._timer: Timer | None = None
        self._again_ms = _LET_GO_MS
        self._settle_in(0)

    # -- asking ---------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """The watermark, as far as this node knows; 0: it was never moved."""
        return self._value().time

    @property
    def goal(self) -> int:
        """Where it would be now without holders."""
        # With its counter: of the millisecond of now, answers may have been given already.
        behind_ms = self.availability_ms + self._max_skew_ms
        time = int(self._clock.now())
        if not self._clock.alone:
            # Where a log's times are far ahead of all clocks, history is no older for it.
            time = min(time, ((self._clock.wall_ms() + 1) << COUNTER_BITS) - 1)
        return max(time - (behind_ms << COUNTER_BITS), 0)

    @property
    def availability_ms(self) -> int:
        """How far back history stays exact, as far as this node knows."""
        found = self._metastore.state.find(HISTORY_KEY)
        revision = 0 if found is None else found.record.revision
        if revision != self._history[0]:
            value = self._founded_ms
            if found is not None:
                [entry] = self._metastore.entries([found])
                value = read_history(entry.value)
            self._history = revision, value
        return self._history[1]

    def read(self) -> Future[int]:
        """The watermark, linearizably."""
        return self._look().map(lambda seen: seen.watermark.time)

    def check(self, time: int) -> None:
        """Refuse a time that can't be read: it is before the watermark, or has not come yet."""
        watermark, now = self.current, self._clock.now()
        if time < watermark:
            raise BelowWatermark(time=time, watermark=watermark)
        # Another node, whose clock is ahead, may have given it out.
        if millis_of(HybridTime(time)) > millis_of(now) + self._max_skew_ms:
            raise TimeInFuture(time=time, now=now)

    def standing(self) -> WatermarkStanding:
        """Where it is and who holds it, as far as this node knows."""
        seen = self._seen(self._metastore.range_local(WATERMARK_KEY))
        value = seen.watermark
        in_force = {node for node, hold in seen.holds.items() if hold.in_force}
        holds = self._holds_of(seen, in_force)
        return WatermarkStanding(value.time, value.moved_at, self.goal, holds)

    def _holds_of(self, seen: _Seen, nodes: AbstractSet[int]) -> tuple[Hold, ...]:
        """The holds of these nodes, the earliest first."""
        standing = [(seen.holds[node].value.time, node) for node in nodes]
        return tuple(
            Hold(
                holder=f"node {name_of(self._metastore, node)}",
                kind="as-of reads",
                pins=Span(time),
                since_ms=millis_of(HybridTime(seen.holds[node].value.since)),
                why=seen.holds[node].value.why,
            )
            for time, node in sorted(standing)
        )

    def _value(self) -> WatermarkValue:
        found = self._metastore.state.find(WATERMARK_KEY)
        if found is not None and found.record.revision != self._known[0]:
            [entry] = self._metastore.entries([found])
            self._known = entry.revision, _decode(entry.value, WatermarkValue)
        return self._known[1]

    def _look(self) -> Future[_Seen]:
        # A page comes in the turn in which the state was asked: leases are of the same moment.
        return self._metastore.range(WATERMARK_KEY).map(self._seen)

    def _seen(self, page: Page) -> _Seen:
        state = self._metastore.state
        by_key = {entry.key: entry for entry in page.entries}
        value, bump = by_key.get(WATERMARK_KEY), by_key.get(HOLDS_KEY)
        return _Seen(
            WatermarkValue(0, 0) if value is None else _decode(value.value, WatermarkValue),
            0 if value is None else value.revision,
            0 if bump is None else bump.revision,
            {
                node: _Published(
                    _decode(entry.value, HoldValue),
                    entry.revision,
                    state.lease(lease_of(node), state.time) is not None,
                )
                for node, entry in _by_node(page.entries)
            },
        )

    def on_moved(self, callback: Callable[[], None]) -> Following:
        """Have this called now, and whenever it has moved, as this node hears of it."""
        return self._metastore.keep_watching(
            keys=[WATERMARK_KEY],
            start=callback,  # it may have moved while it was not followed
            on_event=lambda _: callback(),
            name="low watermark",
        )

    # -- moving ---------------------------------------------------------------------------------

    def advance(self, to: int | None = None, *, at_least: int = 0) -> Future[Advanced]:
        """Move it to where it should be by now, or to a time, as far as its holders allow.

        `at_least`: further than it should be by now, if this is later.
        """
        now = self._clock.now()
        if to is not None and to > now:
            return Future.failed(TimeInFuture(time=to, now=now))
        wanted = max(self.goal, min(at_least, now)) if to is None else to
        whole: Future[Advanced] = Future()
        # Readers that let go at this node must not be in the way.
        self._settle_now().then(lambda _: self._move(wanted, whole, None, ATTEMPTS_MAX))
        return whole

    def _move(self, wanted: int, whole: Future[Advanced], before: int | None, left: int) -> None:
        def looked(future: Future[_Seen]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            seen = future.result()
            begun = seen.watermark.time if before is None else before
            gone = [node for node, hold in seen.holds.items() if not hold.in_force][:_GONE_MAX]
            # What this write does not remove counts, whether or not it is in force.
            safe = safe_point(wanted, self._holds_of(seen, seen.holds.keys() - gone))
            after = max(seen.watermark.time, safe.position)
            done = Advanced(begun, after, wanted, safe.held_by)
            if after == seen.watermark.time and not gone:
                whole.resolve(done)
                return
            operations: list[Operation] = [Remove(hold_key(node)) for node in gone]
            if after > seen.watermark.time:
                value = WatermarkValue(after, self._clock.now())
                operations.append(Put(WATERMARK_KEY, msgspec.json.encode(value)))
            condition = all_of(
                Revision(WATERMARK_KEY, Compare.EQ, seen.revision),
                Revision(HOLDS_KEY, Compare.EQ, seen.holds_revision),
                *(LeaseIsOver(lease_of(node)) for node in gone),
            )
            self._metastore.invoke_if(condition, operations).then(
                lambda written: moved(done, written)
            )

        def moved(done: Advanced, written: Future[bool]) -> None:
            if written.error is None and written.result():
                whole.resolve(done)
            elif written.error is not None and not isinstance(written.error, OutcomeUnknown):
                whole.reject(written.error)
            elif left <= 1:
                whole.reject(written.error or _busy("the low watermark could not be moved"))
            else:
                self._move(wanted, whole, done.before, left - 1)

        self._look().then(looked)

    # -- holding --------------------------------------------------------------------------------

    def hold(self, time: int, why: str) -> Future[AsOfHold]:
        """Keep history from a time on exact; gives what lets go of it, when it is held.

        Refused with `BelowWatermark` if it is too late for that.
        """
        waits: Future[AsOfHold] = Future()
        try:
            self.check(time)
        except LowmarkError as error:
            waits.reject(error)
            return waits
        self._readers.append(_Reader(time, self._clock.now(), why, waits))
        self._turn()
        return waits

    def _let_go(self, reader: _Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            self._let_go_since = True
            self._settle_in(_LET_GO_MS)

    def _settle_now(self) -> Future[None]:
        """Publish what is needed here and no more; resolves when that was tried."""
        future: Future[None] = Future()
        if self._busy:
            self._settled_next.append(future)
        elif self._let_go_since:
            self._settled.append(future)
            self._turn()
        else:
            future.resolve(None)
        return future

    def _settle_in(self, delay_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ms, self._turn)

    def _turn(self) -> None:
        """Look what stands, then write if it must be; one at a time."""
        if not self._busy:
            self._busy, self._attempts = True, 0
            self._attempt()

    def _attempt(self) -> None:
        self._attempts += 1
        self._look().then(self._looked)

    def _looked(self, future: Future[_Seen]) -> None:
        if future.error is not None:
            self._give_up(future.error)
            return
        seen = future.result()
        own = seen.holds.get(self._node)
        named = seen.revision, own.revision if own is not None else 0
        self._late = _still_to_come(self._late, named)
        self._drop_passed(seen.watermark.time)
        newcomers = [reader for reader in self._readers if reader.waits is not None]
        least = min(self._readers, key=lambda reader: reader.time, default=None)
        wanted = None if least is None else least.time
        stands = own.value.time if own is not None else None
        exact = stands == wanted
        if newcomers and own is not None:
            enough = own.in_force and own.value.time <= min(one.time for one in newcomers)
        else:
            enough = exact and not newcomers
        self._let_go_since = not exact and enough
        if enough and (least is None or named not in self._late):
            self._done(newcomers)
        elif least is None:
            self._write(seen, named, [Remove(hold_key(self._node))], newcomers)
        else:
            value = msgspec.json.encode(HoldValue(least.time, least.since, least.why))
            operations: list[Operation] = [Put(hold_key(self._node), value)]
            if stands is None or least.time < stands:
                operations.append(Put(HOLDS_KEY, b"%d" % self._node))
            self._write(seen, named, operations, newcomers)

    def _drop_passed(self, watermark: int) -> None:
        """Fail readers that come too late; those that held until a lease was lost can ask."""
        passed = [reader for reader in self._readers if reader.time < watermark]
        self._readers = [reader for reader in self._readers if reader.time >= watermark]
        for reader in passed:
            if reader.waits is not None:
                reader.waits.reject(BelowWatermark(time=reader.time, watermark=watermark))

    def _write(
        self,
        seen: _Seen,
        named: tuple[int, int],
        operations: list[Operation],
        newcomers: list[_Reader],
    ) -> None:
        key = hold_key(self._node)
        up = Not(LeaseIsOver(lease_of(self._node)))
        condition = all_of(
            Revision(WATERMARK_KEY, Compare.EQ, seen.revision),
            Revision(key, Compare.EQ, named[1]),
            *([up] if isinstance(operations[0], Put) else []),
        )

        def written(future: Future[bool]) -> None:
            if future.error is None and future.result():
                self._done(newcomers)
                return
            self._let_go_since = True
            unknown = isinstance(future.error, OutcomeUnknown)
            if unknown and self._late is not None:
                self._late.add(named)
            if self._attempts == ATTEMPTS_MAX or (future.error is not None and not unknown):
                self._give_up(future.error or _busy("history could not be held"))
            else:
                self._try_again()

        self._metastore.invoke_if(condition, operations).then(written)

    def _try_again(self) -> None:
        """The watermark has moved; or this node is taken for gone, and says that it is not."""
        state = self._metastore.state
        if state.lease(lease_of(self._node), state.time) is None:
            self._metastore.renew_holds().then(lambda _: self._attempt())
        else:
            self._attempt()

    def _done(self, newcomers: Iterable[_Reader]) -> None:
        """What stands is at or below the times of these, and of all others."""
        self._again_ms = min(2 * self._again_ms, _AGAIN_MS_MAX) if self._late else _LET_GO_MS
        for reader in newcomers:
            waits, reader.waits = reader.waits, None
            if waits is not None:
                waits.resolve(AsOfHold(self, reader))
        self._go_on()

    def _give_up(self, error: LowmarkError) -> None:
        self._again_ms = min(2 * self._again_ms, _AGAIN_MS_MAX)
        self._let_go_since = True
        waiting = [reader for reader in self._readers if reader.waits is not None]
        self._readers = [reader for reader in self._readers if reader.waits is None]
        for reader in waiting:
            if reader.waits is not None:
                reader.waits.reject(error.again())
        logger.debug("a hold was not published", extra={"reason": error.message})
        self._go_on()

    def _go_on(self) -> None:
        """A round is over; begin the next one, or say when."""
        settled, self._settled, self._settled_next = self._settled, self._settled_next, []
        for future in settled:
            future.resolve(None)
        self._busy = False
        if self._settled or any(reader.waits is not None for reader in self._readers):
            self._turn()
        elif self._let_go_since or (self._late and not self._readers):
            self._settle_in(self._again_ms)
        elif self._readers:
            self._settle_in(_KEEP_MS)


def _still_to_come(
    late: set[tuple[int, int]] | None, named: tuple[int, int]
) -> set[tuple[int, int]]:
    """Which writes of a hold may still be carried out, now or later.

    None that names another watermark: that one never comes back. None that names another revision
    of the hold, unless it names that there is none, which may be so again.
    """
    if late is None:
        return {named}  # an earlier process of this node may have left one under way
    return {one for one in late if one[0] == named[0] and one[1] in {0, named[1]}}


def hold_key(node: int) -> bytes:
    """Where a node publishes its hold."""
    return b"%s%d" % (HOLD_PREFIX, node)


def _by_node(entries: Iterable[Entry]) -> Iterable[tuple[int, Entry]]:
    for entry in entries:
        node = entry.key.removeprefix(HOLD_PREFIX)
        if entry.key.startswith(HOLD_PREFIX) and node.isdigit():
            yield int(node), entry


def read_watermark(value: bytes) -> int:
    """The time that stands under `WATERMARK_KEY`."""
    return _decode(value, WatermarkValue).time


def write_history(availability_ms: int) -> Put:
    """What alters how far back history stays exact."""
    return Put(HISTORY_KEY, msgspec.json.encode(HistoryValue(availability_ms)))


def read_history(value: bytes) -> int:
    """How far back history stays exact, as it stands under `HISTORY_KEY`."""
    return _decode(value, HistoryValue).availability_ms


def _decode(value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a {kind.__name__} in the metastore can't be read: {error}") from error


def _busy(what: str) -> Unavailable:
    return Unavailable(
        f"{what}: others were faster {ATTEMPTS_MAX} times", hint="Retry after a short while."
    )
