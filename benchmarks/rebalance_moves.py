"""What it takes to move partitions between served nodes: how fast they go, and what clients feel.

Nodes are processes of `lowmark serve` with the settings that it has by default. A table has its own
zone with one replica; the bench names another node for that zone, as an operator would, and the
partitions go there and, in the next round, back. A move is over when `rebalance.status` has none
left and the new node alone has the partitions. Their rows are read after every move.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from benchmarks.cluster_load import NODES, SMALL_ROWS, Load
from benchmarks.figure import Compared, Figure, Round, Side, Target, rates
from benchmarks.rebalance_sizes import MIB, RebalanceSizes, rows_of
from benchmarks.runner import Bench, Plan, measures
from benchmarks.served import POLL_PAUSE, ServedCluster
from benchmarks.server_figures import Fleet
from benchmarks.server_wire import Done
from benchmarks.table_workload import BATCH_ROWS, COLUMNS, ROW_BYTES, batch_of
from clusters.processes import Children
from lowmark.access import connect
from lowmark.catalog import CreateZone
from lowmark.errors import invariant
from lowmark.node.messages import (
    BaselineAsk,
    BaselineReply,
    ChangeAsk,
    GroupRow,
    Nothing,
    RebalanceReply,
    RebalanceSettings,
)

TABLE = ZONE = "moved"
CONNECT_S = 60.0
LOOK_S = 0.01
"""The bench waits this long before it asks again whether a move is over; longer, if the answer
takes long: it is work for the nodes that move the partitions."""
NS = 1_000_000_000
SHARE = 0.2
"""Of the rate of copying a file: partitions should move at least as fast while clients append;"""
PACE = 0.25
"""they are limited to this share."""

MOVE = Figure("move_vs_cp", Target(0.3), "MB/s", per_unit=1e6)
FOREGROUND = Figure("foreground_during_move", Target(0.7), "rows/s")


@dataclass(frozen=True, slots=True)
class Moved:
    """When a move began and ended, by the machine's monotonic clock."""

    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.began_ns) / NS


class MovedTable:
    """A table in a zone of its own, at one node of a cluster."""

    def __init__(self, cluster: ServedCluster, *, partitions: int, size_bytes: int) -> None:
        self.cluster = cluster
        self.rows = rows_of(size_bytes)
        self.bytes = self.rows * ROW_BYTES
        self.partitions = partitions
        self.at = cluster.names[0]
        self._sum = 0
        endpoint = cluster.endpoint(self.at)
        with connect(endpoint, timeout_s=CONNECT_S) as db:
            zone = CreateZone(name=ZONE, replicas=1, partitions=partitions)
            db.backend.execute([zone])
            self._baseline(self.at)
            table = db.create_table(TABLE, COLUMNS, key="id", partitions=partitions, zone=ZONE)
            cluster.until(lambda: self._only_at(self.at), "the table is at its first node")
            for first in range(0, self.rows, BATCH_ROWS):
                batch = batch_of(first)
                table.append(batch)
                self._sum += pc.sum(batch.column("amount")).as_py()
        self.check()

    def move(self) -> Moved:
        """Have all partitions go to the next node; all of them are there afterwards."""
        names = self.cluster.names[:2]
        to = names[(names.index(self.at) + 1) % 2]
        began_ns = time.monotonic_ns()
        self._baseline(to)
        with self.cluster.client(to) as client:
            ends_ns = began_ns + 300 * NS
            while True:
                asked_at = time.monotonic()
                said = client.ask("rebalance.status", Nothing(), RebalanceReply)
                if not said.moves and self._only_at(to):
                    break
                invariant(time.monotonic_ns() < ends_ns, f"partitions do not get to {to}: {said}")
                time.sleep(max(LOOK_S, POLL_PAUSE * (time.monotonic() - asked_at)))
        ended_ns = time.monotonic_ns()
        self.at = to
        return Moved(began_ns, ended_ns)

    def limit(self, bytes_per_s: int) -> None:
        """Limit what each node sends for moves; 0 lifts the limit."""
        with self.cluster.client(self.at) as client:
            ask = ChangeAsk(bytes_per_s=bytes_per_s)
            client.ask("rebalance.change", ask, RebalanceSettings)

    def check(self) -> None:
        """See that all rows can be read where they are now, each once."""
        rows = total = 0
        with connect(self.cluster.endpoint(self.at), timeout_s=CONNECT_S) as db:
            for batch in db[TABLE].read(columns=["amount"]):
                rows += batch.num_rows
                total += pc.sum(batch.column("amount")).as_py() or 0
        invariant(
            (rows, total) == (self.rows, self._sum),
            f"{rows} rows are there, and {self.rows} were moved",
        )

    def settle(self) -> None:
        """Wait until the copies are gone that a move has left behind."""
        number = self.cluster.numbers[self.at]

        def gone() -> bool:
            return all({m.node for m in row.members} == {number} for row in self._groups())

        self.cluster.until(gone, "the old copies are gone")

    def _baseline(self, name: str) -> None:
        with self.cluster.client(name) as client:
            said = client.ask("zone.baseline", BaselineAsk(zone=ZONE, nodes=(name,)), BaselineReply)
        invariant(said.chosen, f"the nodes of zone {ZONE} are named")

    def _only_at(self, name: str) -> bool:
        rows, number = self._groups(), self.cluster.numbers[name]
        return len(rows) == self.partitions and all(
            row.voters == (number,) and not row.learners and row.leader == number for row in rows
        )

    def _groups(self) -> list[GroupRow]:
        status = self.cluster.status(self.cluster.names[0])
        ids = [table.id for table in status.tables if table.name.endswith(TABLE)]
        return [
            row for row in status.groups if any(row.group.startswith(f"table.{n}.") for n in ids)
        ]


# -- a move alone -------------------------------------------------------------------------------


@measures(MOVE)
def move_vs_cp(bench: Bench[RebalanceSizes]) -> Iterator[Plan]:
    """One partition to the other of two nodes, and back; beside a file of as many bytes."""
    sizes = bench.sizes
    with bench.fresh_folder() as folder, ServedCluster(folder, 2) as cluster:
        bench.say(f"filling a partition with {sizes.move_bytes // MIB} MiB")
        table = MovedTable(cluster, partitions=1, size_bytes=sizes.move_bytes)

        def move(_: Path) -> Side:
            moved = table.move()
            table.check()
            table.settle()
            return Side(table.bytes, moved.seconds)

        def copy(folder: Path) -> Side:
            return copied(folder, table.bytes)

        yield bench.compare(
            move,
            copy,
            notes=f"one partition of {table.bytes / MIB:.0f} MiB ({table.rows:,} rows of 100 bytes)"
            " to a node that has none of it, without a limit, from the operator's request until it"
            " is at the new node alone and nothing moves; all rows are read afterwards, outside the"
            f" measured time; deployment: two {NODES.rpartition(';')[0]}, 1 partition, 1 replica;"
            f" batch: {BATCH_ROWS:,} rows as Arrow, appended before; clients: none while it moves;"
            " window: the default of a node; peer: copy a file of as many bytes (sendfile) on the"
            " same disk, and fsync it",
            profile=False,
        )


def copied(folder: Path, size_bytes: int) -> Side:
    """Copy a file of this size and sync it."""
    source, piece = folder / "source", os.urandom(MIB)
    with source.open("wb") as file:
        for at in range(0, size_bytes, MIB):
            file.write(piece[: size_bytes - at])
    os.sync()
    began = time.perf_counter()
    shutil.copyfile(source, folder / "copy")
    with (folder / "copy").open("rb") as made:
        os.fsync(made.fileno())
    seconds = time.perf_counter() - began
    invariant((folder / "copy").stat().st_size == size_bytes, "all of the file was copied")
    return Side(size_bytes, seconds)


# -- clients meanwhile --------------------------------------------------------------------------


@measures(FOREGROUND, warm_up=False)
def foreground_during_move(bench: Bench[RebalanceSizes]) -> Iterator[Plan]:
    """Clients append to three nodes; meanwhile partitions of another table move."""
    sizes = bench.sizes
    with ExitStack() as stack:
        folder = stack.enter_context(bench.fresh_folder())
        cluster = stack.enter_context(ServedCluster(folder, 3))
        clients = Fleet(stack.enter_context(Children(folder)), sizes.clients)
        load = Load(cluster, clients)
        bench.say(f"filling {sizes.load_partitions} partitions, {sizes.load_bytes // MIB} MiB")
        table = MovedTable(cluster, partitions=sizes.load_partitions, size_bytes=sizes.load_bytes)
        stack.enter_context(_loaded(load))

        def turn(folder: Path) -> Round:
            copy = copied(folder, table.bytes)
            table.limit(int(PACE * copy.rate))
            seconds = 2 * sizes.load_seconds + 2 * table.bytes / (SHARE * copy.rate)
            moved: list[Moved] = []

            def move() -> None:
                time.sleep(sizes.load_seconds)
                moved.append(table.move())

            done = load.pace(sizes.paced_batches, seconds, move)
            table.check()
            table.settle()
            [one] = moved
            during, without = acknowledged(done, one)
            return {
                "copied": copy,
                "moved": Side(table.bytes, one.seconds),
                "during": during,
                "without": without,
            }

        yield Plan(
            turns=[turn],
            compared={FOREGROUND.name: _foreground(sizes, table)},
        )


@contextmanager
def _loaded(load: Load) -> Iterator[None]:
    """Clients are connected inside; afterwards all that was acknowledged is there."""
    with load.connected():
        yield
    load.check()


def _foreground(sizes: RebalanceSizes, table: MovedTable) -> Compared:
    return Compared(
        rates(FOREGROUND, "during", "without"),
        f"rows that are acknowledged while {table.partitions} partitions of another table move,"
        f" {table.bytes / MIB:.0f} MiB in all; peer: the same clients, for {sizes.load_seconds:g} s"
        " before they move, and after; partitions move from one node to another, limited to"
        f" {PACE:g} of the rate of copying a file of as many bytes in this round; variant `moved`:"
        " the rate at which they did, beside the copy's, from the request to its end (below"
        f" {SHARE:g} they were too slow for the figure to count); deployment: three {NODES}, three"
        " replicas; the table"
        f" that moves has one; batch: {SMALL_ROWS:,} rows of 100 bytes as Arrow; clients:"
        f" {sizes.clients} processes, spread over the nodes; window: 1 append each, by a numbered"
        " producer",
        {"moved": rates(MOVE, "moved", "copied")},
    )


def acknowledged(done: Sequence[Done], moved: Moved) -> tuple[Side, Side]:
    """The rows that clients heard of while partitions moved, and in the rest of their time."""
    began_ns = min(one.began_ns for one in done)
    ended_ns = min(one.ended_ns for one in done)
    invariant(began_ns < moved.began_ns < ended_ns, "partitions move while clients append")
    move_ended_ns = min(moved.ended_ns, ended_ns)
    heard = [at for one in done for _, at in one.acks if at <= ended_ns]
    during = sum(moved.began_ns <= at <= move_ended_ns for at in heard)
    during_s = (move_ended_ns - moved.began_ns) / NS
    without_s = (ended_ns - began_ns) / NS - during_s
    return (
        Side(during * SMALL_ROWS, during_s),
        Side((len(heard) - during) * SMALL_ROWS, without_s),
    )
