"""What rounds of catalog compaction cost a cluster: their time, their entries, what clients feel.

Nodes are processes of `lowmark serve` with the settings that it has by default. A round has
something to do if there is a version to cut: so the bench alters a table, waits until that version
is in force, moves the low watermark to it, and asks a node for a round, as an operator would. That
begins with rounds that carry the begin minimum to all copies, until all have published it; the last
one cuts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Self

from benchmarks.cluster_load import NODES, SMALL_ROWS, Load
from benchmarks.figure import Compared, Figure, Pair, Round, Side, Target, rates, ratio
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.served import PARTITIONS, ServedCluster
from benchmarks.server_figures import Fleet
from benchmarks.server_wire import Done
from benchmarks.upkeep_sizes import UpkeepSizes
from clusters.processes import Children
from lowmark.access import connect
from lowmark.backend.operating import CatalogRound
from lowmark.errors import invariant
from lowmark.node.messages import CompactCatalogAsk, GroupRow

CONNECT_S = 60.0
CUT_S = 120.0
"""A version that is not cut in this time is an error."""
ALTERED = "altered"
MS = 1_000

GROWTH = Figure("round_growth", Target(12.0, at_least=False), "ms")
ENTRIES = Figure("entries_per_idle_group", Target(0.0, at_least=False), "entries")
BESIDE = Figure("append_beside_rounds", Target(0.95), "rows/s")


@dataclass(frozen=True, slots=True)
class Version:
    """One that was made to be cut."""

    number: int
    activates_at: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A version that rounds have made the earliest."""

    took_s: float
    """The round that cut: from its first question to the write that cuts, as it says itself."""
    asked_s: float
    """From an operator's request to the answer, with the rounds before it."""
    copies: int
    """Of partitions that nodes spoke for."""


class Operator:
    """Makes versions, and has them cut."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._name = cluster.names[0]
        self._db = connect(cluster.endpoint(self._name), timeout_s=CONNECT_S)
        self._table = self._db.create_table(ALTERED, {"id": "int64"}, key="id", partitions=1)
        self._compressions = cycle(("zstd", "lz4"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def alter(self) -> Version:
        """Make a version that is in force by every clock."""
        done = self._table.alter(options={"compression": next(self._compressions)})
        invariant(all(done.applied), "there is a version more")
        return Version(done.catalog.version, done.catalog.activates_at)

    def ask(self) -> CatalogRound:
        """A round, by hand; the last of them, if copies had to publish first."""
        with self._cluster.client(self._name) as client:
            return client.ask("catalog.compact", CompactCatalogAsk(), CatalogRound)

    def rounds_between(self, first_ms: float, last_ms: float) -> int:
        """How many rounds that began then were written down: not fewer were made."""
        return sum(first_ms <= one.began_ms < last_ms for one in self._db.catalog.rounds())

    def move_to(self, version: Version) -> None:
        """Let the low watermark reach a version: what is before it may go."""
        self._db.advance_watermark(version.activates_at)

    def cut(self) -> Cut:
        """Make a version and have the one before it cut."""
        version = self.alter()
        self.move_to(version)
        began, ends_at = time.perf_counter(), time.monotonic() + CUT_S
        while (made := self.ask()).version < version.number:
            invariant(not made.error, f"a round came to an end: {made.error}")
            invariant(time.monotonic() < ends_at, f"version {version.number} is not reached")
        asked_s = time.perf_counter() - began
        # The move of the low watermark begins a round, too: if all copies had published, that one
        # has cut. Rounds that cut are written down.
        rounds = self._db.catalog.rounds()
        [cutting] = [one for one in rounds if one.cut and one.version == version.number]
        return Cut(cutting.took_us / 1e6, asked_s, cutting.groups)


# -- rounds alone -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """A cluster whose partitions have no rows."""

    cluster: ServedCluster
    operator: Operator
    groups: int


@measures(GROWTH, ENTRIES, warm_up=False)
def rounds(bench: Bench[UpkeepSizes]) -> Iterator[Plan]:
    """Two clusters, with many partitions and with few: cut the catalog again and again."""
    sizes = bench.sizes
    with ExitStack() as stack:
        many = stack.enter_context(_idle(bench, sizes.groups))
        few = stack.enter_context(_idle(bench, sizes.groups_few))
        shape = (
            f"deployment: three {NODES.rpartition(';')[0]}; {PARTITIONS} partitions a table, three"
            " replicas, no rows and no clients"
        )
        yield Plan(
            turns=[_cuts(few, "few"), _cuts(many, "many")],
            compared={
                GROWTH.name: Compared(
                    _times("many", "few"),
                    f"a round that cuts a version, with {sizes.groups:,} partitions: from its first"
                    " question to a node until the update log is cut, by the coordinator's clock"
                    " (`took_us`); before each, a table is altered, the low watermark moved to that"
                    " version, and a round asked for by hand, so that all copies have published"
                    f" anew; peer: the same with {sizes.groups_few:,}; variant `asked`: from the"
                    " operator's request to the answer, with the rounds that carry the begin"
                    f" minimum and the pauses between them; {shape}; 'ours' and 'peer' are in ms",
                    {"asked": _times("many asked", "few asked")} if sizes.variants else {},
                ),
                ENTRIES.name: Compared(
                    Pair(
                        sides=("many entries",),
                        value=lambda one: one["many entries"].rate,
                        ours=lambda one: one["many entries"].amount,
                    ),
                    f"entries in the logs of {sizes.groups:,} partitions after such a cut, with all"
                    " rounds that it took, less those before the table was altered, by partition;"
                    " partitions whose leader has changed meanwhile do not count, since an election"
                    f" writes an entry; {shape}; 'ours' is their number in all partitions",
                ),
            },
        )


def _times(ours: str, peer: str) -> Pair:
    return ratio(lambda one: one[ours].amount, lambda one: one[peer].amount, ours, peer)


@contextmanager
def _idle(bench: Bench[UpkeepSizes], groups: int) -> Iterator[Idle]:
    """A cluster with so many partitions, which rest, and whose copies have published once."""
    with bench.fresh_folder() as folder, ServedCluster(folder) as cluster:
        bench.say(f"making {groups} partitions on three nodes")
        cluster.fill(groups)
        with Operator(cluster) as operator:
            bench.say(f"having {groups} partitions publish for the first time")
            operator.cut()
            cluster.calm(bench.sizes.look_seconds)
            yield Idle(cluster, operator, groups)


def _cuts(idle: Idle, side: str) -> Turn:
    def turn(_: Path) -> Round:
        before = _rows(idle)
        cut = idle.operator.cut()
        entries, groups = entries_between(before, _rows(idle))
        invariant(cut.copies >= 3 * idle.groups, f"{cut.copies} copies took part")
        return {
            side: Side(cut.took_s * MS),
            f"{side} asked": Side(cut.asked_s * MS),
            f"{side} entries": Side(entries, groups),
        }

    return turn


def _rows(idle: Idle) -> list[GroupRow]:
    """All partitions, once all of them are led and their leaders say where they are."""
    found: list[GroupRow] = []

    def known() -> bool:
        found[:] = idle.cluster.partitions(idle.cluster.names[0])
        return len(found) > idle.groups and all(_last(row) is not None for row in found)

    idle.cluster.until(known, "all partitions are led")
    return found


def _last(row: GroupRow) -> int | None:
    """The last entry that the group has agreed on, as its leader sees it."""
    return next(
        (one.committed for one in row.members if row.leader and one.node == row.leader), None
    )


def entries_between(before: Sequence[GroupRow], after: Sequence[GroupRow]) -> tuple[int, int]:
    """Entries that were written into groups under the leaders that they had, and those groups."""
    then = {(row.group, row.term): _last(row) or 0 for row in before}
    now = {(row.group, row.term): _last(row) or 0 for row in after}
    same = then.keys() & now.keys()
    invariant(len(same) > 0, "some groups still have their leaders")
    return sum(now[one] - then[one] for one in same), len(same)


# -- clients meanwhile --------------------------------------------------------------------------


@measures(BESIDE, runs="load_runs", warm_up=False)
def append_beside_rounds(bench: Bench[UpkeepSizes]) -> Iterator[Plan]:
    """Clients append to three nodes; meanwhile the catalog is cut every second."""
    sizes = bench.sizes
    with ExitStack() as stack:
        folder = stack.enter_context(bench.fresh_folder())
        cluster = stack.enter_context(ServedCluster(folder))
        load = Load(cluster, Fleet(stack.enter_context(Children(folder)), sizes.clients))
        stack.enter_context(_loaded(load))
        operator = stack.enter_context(Operator(cluster))
        operator.cut()

        def without(_: Path) -> Round:
            return {"without": _rate(load.pace(sizes.paced_batches, sizes.load_seconds))}

        def altered(_: Path) -> Round:
            def alter() -> None:
                every_second(sizes.load_seconds, operator.alter)

            return {"altered": _rate(load.pace(sizes.paced_batches, sizes.load_seconds, alter))}

        def triggered(_: Path) -> Round:
            def move() -> None:
                every_second(sizes.load_seconds, lambda: operator.move_to(operator.alter()))

            return {"triggered": _rate(load.pace(sizes.paced_batches, sizes.load_seconds, move))}

        def with_rounds(_: Path) -> Round:
            work = EverySecond(operator, sizes.load_seconds)
            done = load.pace(sizes.paced_batches, sizes.load_seconds, work.run)
            return {"beside": _rate(done), "rounds": work.rounds}

        yield Plan(
            turns=[without, with_rounds, *([altered, triggered] if sizes.variants else [])],
            compared={BESIDE.name: _beside(sizes)},
        )


@contextmanager
def _loaded(load: Load) -> Iterator[None]:
    """Clients are connected inside; afterwards all that was acknowledged is there."""
    with load.connected():
        yield
    load.check()


def _beside(sizes: UpkeepSizes) -> Compared:
    return Compared(
        Pair(
            sides=("beside", "without", "rounds"),
            value=beside,
            ours=lambda one: one["beside"].rate,
            peer=lambda one: one["without"].rate,
        ),
        f"rows that are acknowledged in {sizes.load_seconds:g} s while another table is altered"
        " every second, the low watermark moved to that version, and a round asked for by hand"
        " every second or when the last is answered; a request comes to several rounds, and has"
        " copies take snapshots at once; if fewer rounds were written down than one a second, the"
        " ratio counts in proportion; peer: the same clients alone, without rounds,"
        " versions and moves of the low watermark; variant `altered`: against the same clients"
        " while a table is altered every second, and no version is cut; variant `triggered`: rounds"
        " that moves of the low watermark begin by themselves, after which copies take snapshots"
        " once a minute, against the same clients alone; deployment: three"
        f" {NODES}, three replicas; batch: {SMALL_ROWS:,} rows of 100 bytes as Arrow; clients:"
        f" {sizes.clients} processes, spread over the nodes; window: 1 append each, by a numbered"
        " producer",
        {
            "altered": rates(BESIDE, "beside", "altered"),
            "triggered": rates(BESIDE, "triggered", "without"),
        }
        if sizes.variants
        else {},
    )


def beside(one: Round) -> float:
    """The rate of appends beside rounds, against without; less if there were too few rounds."""
    share = one["beside"].rate / one["without"].rate
    return share * min(1.0, one["rounds"].rate)


def _rate(done: Sequence[Done]) -> Side:
    began_ns, ended_ns = min(one.began_ns for one in done), max(one.ended_ns for one in done)
    return Side(sum(one.amount for one in done), (ended_ns - began_ns) / 1e9)


class EverySecond:
    """A table is altered every second, and a round asked for every second."""

    def __init__(self, operator: Operator, seconds: float) -> None:
        self._operator = operator
        self._seconds = seconds
        self._latest = operator.alter()
        self.rounds = Side(0)
        """Those that began in that time and were written down."""

    def run(self) -> None:
        """Go on for that time."""
        began_ms = time.time() * MS
        with ThreadPoolExecutor(1) as altering:
            done = altering.submit(every_second, self._seconds, self._alter)
            every_second(self._seconds, self._ask)
            done.result()
        count = self._operator.rounds_between(began_ms, began_ms + self._seconds * MS)
        self.rounds = Side(count, self._seconds)

    def _alter(self) -> None:
        self._latest = self._operator.alter()

    def _ask(self) -> None:
        self._operator.move_to(self._latest)
        said = self._operator.ask()
        invariant(not said.error, f"a round came to an end: {said.error}")


def every_second(seconds: float, do: Callable[[], object]) -> None:
    """Do something at every second of a time; a turn that is late begins at once."""
    began, count = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        if now < count:
            time.sleep(count - now)
            continue
        do()
        count += 1
