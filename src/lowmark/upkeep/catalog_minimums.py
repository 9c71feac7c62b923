"""One node's part in catalog compaction: what it needs of the catalog, and what its copies publish.

The coordinator asks every node of the topology twice in a round.

    catalog.minimums   what it needs, and which copies it spoke for (`Minimums`)
    catalog.begin      the global begin minimum goes to all copies here (`Carry`). A leader proposes
                       it in its group; that of a group that rests notes it without an entry
                       (`table.publication`)

Then leaders ask the nodes of other members.

    catalog.noted      what they have noted without an entry (`Words`): one message for many groups

An entry, and a snapshot before its time, cost something. So a copy does neither unless it holds
versions of the catalog that history alone would not keep (`Carry.goal`). Where there is no version
to cut, a round writes nothing anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from lowmark.errors import Corrupt, LowmarkError
from lowmark.group import Future, Groups, Reply
from lowmark.runtime import Buffer, Runtime
from lowmark.table import LowWatermark, Partition, Tables
from lowmark.table.commands import Begin
from lowmark.table.state import Begun
from lowmark.upkeep.catalog_decision import SHOWN_MAX, Lagging, Minimums, least_published

logger = logging.getLogger(__name__)

MINIMUMS_SERVICE: Final = "catalog.minimums"
BEGIN_SERVICE: Final = "catalog.begin"
NOTED_SERVICE: Final = "catalog.noted"
_NOTED_MS: Final = 10_000
"""How long a node is waited for that hears of notes; one that misses them hears of the next."""
SNAPSHOT_EVERY_MS: Final = 60_000
"""A copy that holds the catalog takes a snapshot for it at most this often, unless an operator asks
for the cut."""
_BEGIN_VERSION: Final = 2
"""Of a partition's machine: members that know it keep begin minimums."""
_SLICE: Final = 100
"""Copies that are looked at in one turn of the loop."""


class Active(msgspec.Struct, frozen=True):
    """The oldest read-write transaction that is active at a node."""

    name: str
    begin: int


class Carry(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator tells all nodes in a round."""

    begin: int
    """The global begin minimum."""
    goal: int
    """A copy that has published this time, or a later one, holds nothing back."""
    now: bool = False
    """Whether an operator waits: snapshots are taken at once."""


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What the leader of a partition has noted without an entry."""

    table: int
    number: int
    place: int
    time: int


class Words(msgspec.Struct, frozen=True, array_like=True):
    """What leaders at one node tell those of their members that are at another."""

    words: tuple[Word, ...]
    goal: int
    """As in `Carry`."""
    now: bool = False


class CatalogMinimums:
    """Answers for one node. All calls are made on the loop."""

    def __init__(
        self, runtime: Runtime, groups: Groups, tables: Tables, watermark: LowWatermark
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._groups = groups
        self._tables = tables
        self._watermark = watermark
        self.active: Callable[[], Active | None] = lambda: None
        """The oldest read-write transaction here. The loop is the lock: what begins later gets a
        later time than `minimums` has said."""
        self._proposing: set[tuple[int, int]] = set()
        self._snapshot_at_ms: dict[tuple[int, int], int] = {}
        """When a copy was asked for a snapshot."""
        groups.calls.serve(MINIMUMS_SERVICE, self._asked)
        groups.calls.serve(BEGIN_SERVICE, self._told)
        groups.calls.serve(NOTED_SERVICE, self._noted)

    # -- what is needed here ----------------------------------------------------------------------

    def minimums(self) -> Minimums:
        """What this node needs of the catalog."""
        oldest = self.active()
        groups: dict[int, list[int]] = {}
        published: list[Lagging] = []
        broken: list[Lagging] = []
        for one in self._tables.all():
            if one.group.stopped is not None:
                broken.append(Lagging(one.table, one.number, 0, one.group.stopped.message))
                continue
            groups.setdefault(one.table, []).append(one.number)
            published.append(Lagging(one.table, one.number, one.published))
        least = least_published(published)
        watermark = self._watermark.current
        return Minimums(
            begin=self._clock.now() if oldest is None else oldest.begin,
            required=min(watermark, least[0].published) if least else watermark,
            groups=groups,
            lagging=(*least, *broken[:SHOWN_MAX]),
            transaction="" if oldest is None else oldest.name,
            watermark=watermark,
        )

    # -- what is published here -------------------------------------------------------------------

    def carry(self, carry: Carry) -> None:
        """Have every copy here note a begin minimum, as far as it needs one."""
        copies = self._tables.all()
        here = {(one.table, one.number) for one in copies}
        self._snapshot_at_ms = {
            key: at_ms for key, at_ms in self._snapshot_at_ms.items() if key in here
        }

        def some(first: int) -> None:
            words: dict[int, list[Word]] = {}
            for one in copies[first : first + _SLICE]:
                self._carry_to(one, carry)
                for node in self._members_to_tell(one):
                    noted = one.publication.word
                    word = Word(one.table, one.number, noted.place, noted.time)
                    words.setdefault(node, []).append(word)
            for node, some_words in sorted(words.items()):
                question = msgspec.msgpack.encode(Words(tuple(some_words), carry.goal, carry.now))
                self._groups.calls.ask(node, NOTED_SERVICE, question, timeout_ms=_NOTED_MS)
            if first + _SLICE < len(copies):
                self._loop.call_soon(lambda: some(first + _SLICE))

        some(0)

    def _carry_to(self, one: Partition, carry: Carry) -> None:
        if one.group.stopped is not None:
            return
        rests = one.publication.heard(carry.begin, one.group)
        noted = one.publication.noted(one.state)
        if not rests and max(noted.time, one.published) < min(carry.goal, carry.begin):
            self._propose(one, carry.begin)
        self._cover(one, carry.goal, now=carry.now)

    def _members_to_tell(self, one: Partition) -> list[int]:
        """The other members, if this copy leads them and has something to tell."""
        group = one.group
        if not group.ready or not one.publication.word.time:
            return []
        return sorted(group.members().everybody - {group.node})

    def _cover(self, one: Partition, goal: int, *, now: bool) -> None:
        """Have what was noted covered by a snapshot, so that it is published, if that is needed."""
        published = one.published
        if published < goal and one.publication.noted(one.state).time > published:
            self._snapshot(one, now=now)

    def _propose(self, one: Partition, begin: int) -> None:
        key = (one.table, one.number)
        group = one.group
        if not group.ready or group.version < _BEGIN_VERSION or key in self._proposing:
            return

        def done(future: Future[object]) -> None:
            self._proposing.discard(key)
            if future.error is not None:
                logger.debug("a begin minimum waits", extra={"reason": future.error.message})

        self._proposing.add(key)
        try:
            one.ask(Begin(begin)).then(done)  # type: ignore[arg-type]
        except LowmarkError as error:
            done(Future.failed(error))

    def _snapshot(self, one: Partition, *, now: bool) -> None:
        key, now_ms = (one.table, one.number), self._now_ms()
        before_ms = self._snapshot_at_ms.get(key)
        if now or before_ms is None or now_ms - before_ms >= SNAPSHOT_EVERY_MS:
            self._snapshot_at_ms[key] = now_ms
            one.group.snapshot()

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000

    # -- asked by the coordinator -----------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address, sender, question
        try:
            answer = msgspec.msgpack.encode(self.minimums())
        except LowmarkError as error:  # its copy of the metastore can't be read
            logger.warning(
                "this node can't say what it needs of the catalog", extra={"reason": error.message}
            )
            answer = b""  # that is no answer: the coordinator cuts nothing
        reply(answer)

    def _told(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address, sender
        try:
            self.carry(msgspec.msgpack.decode(question, type=Carry))
        except msgspec.MsgspecError as error:
            logger.warning("a begin minimum can't be read", extra={"reason": str(error)})
        reply(b"")

    def _noted(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address, sender
        try:
            told = msgspec.msgpack.decode(question, type=Words)
        except msgspec.MsgspecError as error:
            logger.warning("notes of leaders can't be read", extra={"reason": str(error)})
            told = Words((), 0)
        for word in told.words:
            one = self._tables.here(word.table, word.number)
            if one is not None and one.group.stopped is None:
                one.publication.told(Begun(word.place, word.time))
                self._cover(one, told.goal, now=told.now)
        reply(b"")


def read_minimums(answer: bytes) -> Minimums:
    """What a node has answered."""
    try:
        return msgspec.msgpack.decode(answer, type=Minimums)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"what a node needs of the catalog can't be read: {error}") from error
