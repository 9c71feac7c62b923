"""What three served nodes make of appends: their rate, and what a node that is killed does to them.

Nodes are processes of `lowmark serve` with the settings that it has by default, and each client is
a process, too; all of them share the machine's cores and its disk. Clients are connected to
different nodes, so a node that is killed had clients. Every append is numbered, so what a client
sends again is stored once: at the end all rows are read, and there must be as many as were
acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.cluster_sizes import ClusterSizes
from benchmarks.figure import Compared, Figure, Pair, Round, Side, Target, rates, ratio
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.served import ON_LOOPBACK, ServedCluster, where
from benchmarks.server_figures import Fleet, leave, reach
from benchmarks.server_wire import Append, Done, Pace, Reach, Read, Work, done_by
from benchmarks.table_workload import BATCH_ROWS, PARTITIONS
from clusters.closed_loop import percentile
from clusters.processes import Children
from lowmark.errors import invariant
from lowmark.group import GroupConfig

SMALL_ROWS = 1_000
"""Of a batch, where single appends are timed."""
TIMEOUT_MS = GroupConfig().election_ms
MS = 1_000_000
"""In nanoseconds."""


def served_by(network: str) -> str:
    """What nodes are, in words."""
    return (
        "nodes as `lowmark serve` runs them, with its default settings, in processes of their own,"
        f" {network}, all on one disk; {PARTITIONS} partitions"
    )


NODES = served_by(ON_LOOPBACK)

REPLICATED = Figure("replicated_append", Target(0.25), "rows/s")
FAILOVER = Figure("failover_gap_in_timeouts", Target(4.0, at_least=False), "ms")
CATCH_UP = Figure("catch_up", Target(1.0), "rows/s")
ONE_DOWN = Figure("p99_one_node_down", Target(2.0, at_least=False), "ms")


class Load:
    """A cluster, and clients that append to it."""

    def __init__(self, cluster: ServedCluster, fleet: Fleet) -> None:
        self.cluster = cluster
        self._clients = fleet.clients
        self._sent = 0
        """Rows with a number below this were sent."""
        self._acknowledged = 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Have clients at all nodes, each with an append behind it that is not measured."""
        for number, client in enumerate(self._clients):
            name = self.cluster.names[number % len(self.cluster.names)]
            reach([client], Reach(address=self.cluster.endpoint(name), ca=self.cluster.ca))
        self.append(1)
        yield
        leave(self._clients)

    def append(self, batches: int) -> list[Done]:
        """Append batches of 10,000 rows, so many by each client."""
        rows = batches * BATCH_ROWS
        return self._done(rows, lambda first: Append(first=first, rows=rows))

    def pace(
        self, batches: int, seconds: float = 0.0, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Done]:
        """Append small batches one by one, so many by each client, or for so long."""
        return self._done(
            batches * SMALL_ROWS,
            lambda first: Pace(
                first=first, batch_rows=SMALL_ROWS, batches=batches, seconds=seconds
            ),
            meanwhile,
        )

    def _done(
        self,
        rows: int,
        work: Callable[[int], Work],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Done]:
        first, self._sent = self._sent, self._sent + rows * len(self._clients)
        parts = [work(first + rows * number) for number in range(len(self._clients))]
        done = done_by(self._clients, parts, meanwhile=meanwhile)
        self._acknowledged += sum(one.amount for one in done)
        return done

    def check(self) -> None:
        """See that the table has every row that was acknowledged, once."""
        with self.connected():
            [found] = done_by(self._clients[:1], [Read()])
        invariant(
            found.amount == self._acknowledged,
            f"{found.amount} rows are there, and {self._acknowledged} were acknowledged",
        )

    def all_copies_level(self) -> bool:
        """Whether every copy has all that its leader has."""
        rows = self.cluster.partitions(self.cluster.names[0])
        members = [member for row in rows for member in row.members]
        return bool(rows) and all(member.entries_behind == 0 for member in members)

    def busiest_leader(self) -> str:
        """The node that leads the most partitions."""
        leads = [row.leader for row in self.cluster.partitions(self.cluster.names[0])]
        return max(self.cluster.names, key=lambda name: leads.count(self.cluster.numbers[name]))


@measures(REPLICATED, FAILOVER, ONE_DOWN, CATCH_UP, runs="kills", warm_up=False)
def under_load(bench: Bench[ClusterSizes]) -> Iterator[Plan]:
    """Appends to three nodes and to one; then one of the three is killed under way."""
    sizes = bench.sizes
    wanted = {figure.name for figure in bench.wanted}
    turns: list[Turn] = []
    with ExitStack() as stack:
        folder = stack.enter_context(bench.fresh_folder())
        fleet = Fleet(stack.enter_context(Children(folder)), sizes.clients)
        bench.say("making clusters of three nodes and of one")
        three = stack.enter_context(loaded(bench, fleet))
        if REPLICATED.name in wanted:
            one = stack.enter_context(loaded(bench, fleet, nodes=1))
            turns += [appends(three, sizes, "three"), appends(one, sizes, "one")]
        if wanted - {REPLICATED.name}:
            turns.append(_kill(three, sizes))
        yield Plan(turns=turns, compared=_compared(sizes))


@contextmanager
def loaded(
    bench: Bench[ClusterSizes], fleet: Fleet, *, nodes: int = 3, tls: bool = False
) -> Iterator[Load]:
    """A cluster whose table is made and led, and has some rows; they are counted at the end."""
    with bench.fresh_folder() as folder, ServedCluster(folder, nodes, tls=tls) as cluster:
        load = Load(cluster, fleet)
        with load.connected():
            load.append(bench.sizes.load_batches)
        yield load
        load.check()


def appends(load: Load, sizes: ClusterSizes, side: str) -> Turn:
    """Until all copies have all rows, those that no client has waited for, too."""

    def turn(_: Path) -> Round:
        with load.connected():
            load.cluster.until(load.all_copies_level, "all copies have the rows before")
            done = load.append(sizes.load_batches)
            load.cluster.until(load.all_copies_level, "all copies have all rows")
            ended_ns = time.monotonic_ns()
        began_ns = min(one.began_ns for one in done)
        return {side: Side(sum(one.amount for one in done), (ended_ns - began_ns) / 1e9)}

    return turn


def _kill(load: Load, sizes: ClusterSizes) -> Turn:
    """Append with all nodes, while a leader is killed, and without it; then bring it back."""
    batches, seconds = sizes.paced_batches, sizes.kill_seconds

    def turn(_: Path) -> Round:
        with load.connected():
            up = load.pace(batches)
            killed = load.busiest_leader()
            killed_ns = 0

            def kill() -> None:
                nonlocal killed_ns
                time.sleep(seconds / 2)
                killed_ns = time.monotonic_ns()
                load.cluster.kill(killed)

            during = load.pace(batches, seconds, kill)
            down = load.pace(batches)
        load.cluster.start(killed)
        began = time.perf_counter()
        load.cluster.until(load.all_copies_level, f"{killed} has caught up")
        took = time.perf_counter() - began
        before, after = longest_gaps_ms(during, killed_ns)
        since = sum(heard > killed_ns for one in during for _, heard in one.acks)
        rows = sum(one.amount for one in down)
        return {
            "missed": Side(rows, seconds_of(down)),
            "caught up": Side(rows + since * SMALL_ROWS, took),
            "gap": Side(after),
            "gap before": Side(before),
            "up": Side(p99_ms(up)),
            "down": Side(p99_ms(down)),
        }

    return turn


def _compared(sizes: ClusterSizes) -> dict[str, Compared]:
    nodes = served_by(where())
    clients = (
        f"clients: {sizes.clients} processes, spread over the nodes; window: 1 append each, by a"
        " numbered producer"
    )
    small = (
        f"deployment: three {nodes}; batch: {SMALL_ROWS:,} rows of 100 bytes as Arrow; {clients}"
    )
    return {
        REPLICATED.name: Compared(
            rates(REPLICATED, "three", "one"),
            f"{sizes.clients * sizes.load_batches} batches, each durable at two of three nodes"
            " before it is acknowledged, until all three have all rows; deployment: three"
            f" {nodes}; batch: {BATCH_ROWS:,} rows of 100 bytes as Arrow; {clients}; peer: the same"
            " clients append as much to a cluster of one node; both clusters stay up, and rest when"
            " it is not their turn",
        ),
        FAILOVER.name: Compared(
            Pair(
                sides=("gap", "gap before"),
                value=lambda one: one["gap"].amount / TIMEOUT_MS,
                ours=lambda one: one["gap"].amount,
                peer=lambda one: one["gap before"].amount,
            ),
            f"clients append for {sizes.kill_seconds:g} s, and in the middle of that the node that"
            f" leads the most partitions is killed with -9, {sizes.kills} times; the longest time"
            " without an acknowledged append, of the client that waits longest, by the election"
            f" timeout of {TIMEOUT_MS} ms; {small}; 'ours' is that time in ms, 'peer' the longest"
            " one before the kill",
        ),
        ONE_DOWN.name: Compared(
            ratio(lambda one: one["down"].amount, lambda one: one["up"].amount, "down", "up"),
            "the time that 99 of 100 appends do not exceed, of"
            f" {sizes.clients * sizes.paced_batches} with one of three nodes killed, when its"
            " clients have gone on at another one; peer: of as many before, with all three;"
            f" {sizes.kills} times; {small}; 'ours' and 'peer' are in ms",
        ),
        CATCH_UP.name: Compared(
            rates(CATCH_UP, "caught up", "missed"),
            "a node that was killed is started, and gets the rows that it has missed, from when it"
            " says that it is ready until all its copies have them; peer: the rate at which"
            f" clients have appended them without it; {sizes.kills} times; {small}",
        ),
    }


def seconds_of(done: Sequence[Done]) -> float:
    """From the first beginning to the last end."""
    return (max(one.ended_ns for one in done) - min(one.began_ns for one in done)) / 1e9


def longest_gaps_ms(done: Sequence[Done], killed_ns: int) -> tuple[float, float]:
    """How long a client had no append acknowledged, at most: before a moment, and across it or
    after it.
    """
    before, after = [0], [0]
    for one in done:
        for last, following in pairwise([one.began_ns, *(heard for _, heard in one.acks)]):
            (before if following < killed_ns else after).append(following - last)
    return max(before) / MS, max(after) / MS


def p99_ms(done: Sequence[Done]) -> float:
    """The time that 99 of 100 appends do not exceed."""
    took = sorted(heard - made for one in done for made, heard in one.acks)
    return percentile(took, 0.99) / MS
