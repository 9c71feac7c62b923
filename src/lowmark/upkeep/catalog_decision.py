"""Up to which version the catalog's history may be cut, and what holds the rest. Pure.

A version goes when nothing in the cluster can ask for it again. Each holder pins a version: it
needs that one, and all that follow. The cut goes up to the lowest of them; that version becomes the
snapshot, and is the earliest one left.

    holder           pins
    the present      the version that is in force now
    history          the version in force at the low watermark: reads as of a time begin there
    table history    the version in force at the mark of a table that keeps its own past for longer
    transactions     the version in force when the oldest active one began
    log replay       the version in force at a copy's published begin minimum (`table.publication`),
                     but not one before the first version that has its table: no transaction that
                     began earlier knows the table. Of a copy that has published nothing, that first
                     version. So of the copies of a table at a node, the one that published least
                     has the lowest pin, and an answer has that one of each table, however many
                     copies the node has. The others in an answer are there to be shown
    node behind      the version in force at the low watermark as a node knows it
    no answer        all: a node of the topology that did not say what it needs
    node down        the first version that has a table, if a node that the table's assignments name
                     is not in the topology
    missing copy     the same, if such a node did not speak for its copy
    index            the version in which an index was registered that is not built yet
    rebalance        the version that a pending or planned set was computed for
    run              the version that a run of compaction was planned with, while it can go on

So a holder never stops a cut: it stops the versions from its own on. Version 0, the catalog before
the first one, is nothing that could be cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache

import msgspec

from lowmark.catalog import Catalog, History, TableId
from lowmark.catalog.descriptors import Index, IndexStatus
from lowmark.holds import Hold, Span, safe_point
from lowmark.placement import Keys, PartitionId
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import table_mark

SHOWN_MAX = 20
"""This many holders are named, those of the lowest versions first."""
MARGIN_MS = 60_000
"""Marks of tables follow wall clocks, which differ: versions are kept for a little longer."""
_NOT_BUILT = (IndexStatus.REGISTERED, IndexStatus.BUILDING)
_HINTS = {
    "history": "It moves by itself; `lowmark watermark` names readers that hold it.",
    "table history": "Shorten it with `lowmark table alter`; the next run and cut let go.",
    "transactions": "End it, or wait until it is over.",
    "log replay": "The copy publishes when its next snapshot is taken. `lowmark catalog compact`"
    " asks for one now.",
    "node behind": "It hears of the low watermark by itself, as soon as it hears of other nodes.",
    "no answer": "Start the node again, or take it out with `lowmark node remove`.",
    "node down": "Start the node again, or take it out with `lowmark node remove`.",
    "missing copy": "Start the node again, or rebuild its copy with `lowmark partition rebuild`.",
    "index": "Drop the index, or wait until it is built.",
    "rebalance": "`lowmark rebalance status` shows how far it is.",
    "run": "Resume the run, or cancel it with `lowmark runs cancel`.",
}


class Lagging(msgspec.Struct, frozen=True, array_like=True):
    """A copy at a node: what it has published, or that it can't say anything."""

    table: int
    number: int
    published: int
    """0: nothing."""
    why: str = ""
    """Why it can't say anything; empty: it can."""


class Minimums(msgspec.Struct, frozen=True, array_like=True):
    """What a node needs of the catalog."""

    begin: int
    """When its oldest active transaction began; its clock's time, if there is none."""
    required: int
    """The least of the low watermark, as it knows it, and what each of its copies has published.
    0: one of them has published nothing."""
    groups: dict[int, list[int]]
    """The partitions that it spoke for, by table."""
    lagging: tuple[Lagging, ...] = ()
    """Of each table, the copy that published least; some others, and some that it can't speak
    for."""
    transaction: str = ""
    """Which transaction is the oldest; empty: there is none."""
    watermark: int = -1
    """The low watermark, as it knows it. Below 0: it is of a release that did not say so, and that
    listed the `SHOWN_MAX` copies that published least and no others, whatever their tables."""


def least_published(copies: Iterable[Lagging]) -> list[Lagging]:
    """What an answer has of copies that can say what they published, the least first."""
    least = sorted(copies, key=lambda one: (one.published, one.table, one.number))
    tables: set[int] = set()
    found: list[Lagging] = []
    for one in least:
        if one.table not in tables or len(found) < SHOWN_MAX:
            tables.add(one.table)
            found.append(one)
    return found


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What needs a version, since when, why, and what an operator can do about it."""

    holder: str
    kind: str
    version: int
    since_ms: int
    why: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that a decision depends on."""

    history: History
    now: int
    """By the coordinator's clock."""
    watermark: int
    nodes: Mapping[int, str]
    """The topology as it was when the round began: names by number."""
    answers: Mapping[int, Minimums]
    down: Mapping[int, str] = field(default_factory=dict)
    """The other nodes of the cluster: names by number."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Nodes of the topology that did not answer, and why."""
    assignments: Mapping[PartitionId, Keys] = field(default_factory=dict)
    moved_at: Callable[[PartitionId], int] = lambda _: 0
    """When a pending or planned set was written, in milliseconds; 0: not known."""
    runs: Iterable[Holder] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What may go, and what holds the rest."""

    version: int
    """The earliest version that must stay."""
    begin: int
    """The global begin minimum; 0: a node did not say."""
    present: int
    """The version that is in force now."""
    goal: int
    """When the version that history alone would keep came into force: a copy that has published
    this time, or a later one, holds nothing back."""
    holders: tuple[Holder, ...]
    """Those that need a version before the present one, the lowest first."""

    @property
    def held_by(self) -> tuple[Holder, ...]:
        """Those that need the earliest version that stays."""
        return tuple(one for one in self.holders if one.version == self.version)


def decide(seen: Seen) -> Decision:
    """Find the holders, and what they leave."""
    history = seen.history
    present = _at(history, seen.now)
    reached = _at(history, seen.watermark)
    pins = [_with_hint(one) for one in _pins(seen) if one.version < present.version]
    pins.sort(key=lambda one: (one.version, one.kind, one.holder))
    holds = [
        Hold(
            holder=one.holder,
            kind=one.kind,
            pins=Span(one.version),
            since_ms=one.since_ms,
            why=one.why,
        )
        for one in pins
    ]
    safe = safe_point(present.version, holds)
    spoke = not seen.silent and bool(seen.answers)
    return Decision(
        version=max(safe.position, history.earliest.version, 1),
        begin=min((one.begin for one in seen.answers.values()), default=0) if spoke else 0,
        present=present.version,
        goal=reached.activates_at,
        holders=tuple(pins),
    )


def _with_hint(one: Holder) -> Holder:
    version, hint = max(one.version, 1), one.hint or _HINTS.get(one.kind, "")
    return msgspec.structs.replace(one, version=version, hint=hint)


def _of_time(history: History, time: int, *, holder: str, kind: str, why: str) -> Holder:
    """What needs the version that was in force at a time: since then, or since it was made."""
    found = _at(history, time)
    since_ms = _millis(max(time, found.activates_at)) if time else 0
    return Holder(holder=holder, kind=kind, version=found.version, since_ms=since_ms, why=why)


def _at(history: History, time: int) -> Catalog:
    """The version in force at a time; the earliest one, if that came into force later."""
    earliest = history.earliest
    return earliest if time < earliest.activates_at else history.at(time)


def _pins(seen: Seen) -> Iterator[Holder]:
    history, earliest = seen.history, seen.history.earliest.version
    yield _of_time(
        history,
        seen.watermark,
        holder="the low watermark",
        kind="history",
        why="rows can be read as of any time since then",
    )
    for table in history.latest.all_tables():
        if any(name == "history" for name, _ in table.options):
            wall_ms = max(_millis(seen.now) - MARGIN_MS, 0)
            mark = table_mark(table, watermark=seen.watermark, wall_ms=wall_ms)
            yield _of_time(
                history,
                mark,
                holder=f"table {history.latest.name_of(table)}",
                kind="table history",
                why="its rows can be read as of any time since then, by its option history",
            )
    for number, why in sorted(seen.silent.items()):
        yield Holder(
            holder=_node(seen, number),
            kind="no answer",
            version=earliest,
            since_ms=0,
            why=f"it did not say what it needs: {why}",
        )
    for number, answer in sorted(seen.answers.items()):
        yield from _of_node(seen, number, answer)
    yield from _missing(seen)
    yield from _indexes(seen)
    yield from _rebalances(seen)
    yield from seen.runs


def _of_node(seen: Seen, number: int, answer: Minimums) -> Iterator[Holder]:
    history, node = seen.history, _node(seen, number)
    if answer.transaction:
        yield _of_time(
            history,
            answer.begin,
            holder=f"{answer.transaction} at {node}",
            kind="transactions",
            why="it began then, and is active",
        )
    # A copy that has published the global begin minimum can publish no more: then the transaction
    # is what holds, and the copies follow it.
    possible = min(seen.watermark, *(one.begin for one in seen.answers.values()))
    firsts: dict[int, int] = {}
    for one in _least(answer):
        if one.published >= possible:
            continue
        copy = _copy(seen, one.table, one.number)
        if one.why:
            why = one.why
        elif one.published:
            why = "its log since its last snapshot may belong to transactions that began then"
        else:
            why = "no snapshot of its log says yet from when on it needs the catalog"
        holder = _of_time(
            history, one.published, holder=f"{copy} at {node}", kind="log replay", why=why
        )
        first = firsts.setdefault(one.table, _first_with_table(history, TableId(one.table)))
        yield msgspec.structs.replace(holder, version=max(holder.version, first))
    watermark = answer.required if answer.watermark < 0 else answer.watermark
    if watermark < seen.watermark:
        yield _of_time(
            history,
            watermark,
            holder=node,
            kind="node behind",
            why="it has not heard yet that the low watermark has moved on from there"
            if answer.watermark >= 0
            else "its release does not say how far it has heard of the low watermark",
        )


def _least(answer: Minimums) -> list[Lagging]:
    """Of each table, the copy that published least, and others that are shown.

    An answer of an earlier release lists only some copies. Those that it leaves out published as
    much as the last one that it lists, or more.
    """
    listed = [one for one in answer.lagging if not one.why]
    if answer.watermark >= 0:
        return listed
    least = max((one.published for one in listed), default=answer.required)
    there = {(one.table, one.number) for one in listed}
    why = "its node runs an earlier release, and did not say what it has published"
    return listed + [
        Lagging(table, left_out[0], least, why)
        for table, numbers in sorted(answer.groups.items())
        if (left_out := [number for number in numbers if (table, number) not in there])
    ]


def _missing(seen: Seen) -> Iterator[Holder]:
    """Copies that assignments name, and that no answer contained."""
    spoke = {
        number: {table: set(partitions) for table, partitions in answer.groups.items()}
        for number, answer in seen.answers.items()
    }
    nothing: AbstractSet[int] = frozenset()
    first = cache(lambda table: _first_with_table(seen.history, table))
    for table in seen.history.latest.all_tables():
        for number in range(table.partitions):
            keys = seen.assignments.get(PartitionId(table.id, number))
            if keys is None or keys.stable is None:
                yield Holder(
                    holder=_copy(seen, table.id, number),
                    kind="missing copy",
                    version=first(table.id),
                    since_ms=0,
                    why="it is assigned to no node yet, and is placed as of the version that"
                    " made its table",
                    hint="`lowmark status` says what keeps it from being placed.",
                )
    for partition, keys in sorted(seen.assignments.items()):
        for node in sorted(keys.nodes):
            there = spoke.get(node)
            if there is not None and partition.number in there.get(partition.table, nothing):
                continue
            if node in seen.silent:
                continue  # it holds all, and is named
            if there is None:
                kind = "node down"
                why = "a node that its assignments name is not in the topology"
            else:
                kind = "missing copy"
                broken = _broken(seen.answers[node], partition)
                why = f"its node did not speak for it: {broken or 'it has no copy that runs'}"
            yield Holder(
                holder=f"{_copy(seen, *partition)} at {_node(seen, node)}",
                kind=kind,
                version=first(partition.table),
                since_ms=0,
                why=why,
            )


def _broken(answer: Minimums, partition: PartitionId) -> str:
    found = (one.why for one in answer.lagging if (one.table, one.number) == partition and one.why)
    return next(found, "")


def _indexes(seen: Seen) -> Iterator[Holder]:
    history, latest = seen.history, seen.history.latest
    for index in latest.all_indexes():
        if index.status in _NOT_BUILT:
            first = _first_with_index(history, index)
            yield Holder(
                holder=f"index {index.name}",
                kind="index",
                version=first.version,
                since_ms=_millis(first.activates_at),
                why=f"it is {index.status.name.lower()}, and is built as of the version that"
                " registered it",
            )


def _rebalances(seen: Seen) -> Iterator[Holder]:
    earliest = seen.history.earliest.version
    for partition, keys in sorted(seen.assignments.items()):
        sets = [one for one in (keys.pending, keys.planned) if one is not None]
        if sets:
            oldest = min(one.catalog_version for one in sets)
            yield Holder(
                holder=f"the rebalance of {_copy(seen, *partition)}",
                kind="rebalance",
                version=max(oldest, earliest),
                since_ms=seen.moved_at(partition),
                why=f"its target was computed for version {oldest}",
            )


def _first(history: History, has: Callable[[Catalog], bool]) -> Catalog:
    """The first version that has something that the latest one has."""
    versions = range(history.earliest.version, history.latest.version + 1)
    found = bisect_left(versions, True, key=lambda number: has(history.version(number)))
    return history.version(versions[min(found, len(versions) - 1)])


def _first_with_index(history: History, index: Index) -> Catalog:
    return _first(history, lambda catalog: index.id in catalog.indexes)


def _first_with_table(history: History, table: TableId) -> int:
    """Ids are given out in order: a version that had given it out may have dropped it since."""
    return _first(history, lambda catalog: table < catalog.next_id).version


def _node(seen: Seen, number: int) -> str:
    name = seen.nodes.get(number, "") or seen.down.get(number, "")
    return f"node {name or number}"


def _copy(seen: Seen, table: int, number: int) -> str:
    catalog = seen.history.latest
    found = catalog.table(TableId(table))
    name = f"table {table}, which was dropped" if found is None else catalog.name_of(found)
    return f"partition {number} of {name}"


def _millis(time: int) -> int:
    return millis_of(HybridTime(time))
