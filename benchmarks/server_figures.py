"""What a server costs: against the owner's own process, SQLite, NATS, a bare Flight server, Redis.

Every process is a real one: a server, and each client, has one of its own. They share the machine's
cores, on both sides. A server is a node as `lowmark serve` runs it, at TCP on loopback; only the
owner of a directory is a process that called `lowmark.open`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from benchmarks.figure import Compared, Figure, Pair, PeerMissing, Side, Target, rates
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.server_client import IN_FLIGHT, LINGER_MS, producer_batch
from benchmarks.server_peers import Nats, Redis, find_nats, nats_version, redis_version
from benchmarks.server_sizes import ServerSizes
from benchmarks.server_wire import Append, Get, Leave, Order, Reach, Read, Send, There, Work, worked
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_figures import ONE_AT_A_TIME, ROWS, SQLITE
from benchmarks.table_peers import sqlite_insert, sqlite_opened
from benchmarks.table_workload import (
    BATCH_ROWS,
    PARTITIONS,
    batches_of,
    dicts_of,
    tuples_of,
)
from clusters.processes import Child, Children
from lowmark.errors import invariant

MIB = 1 << 20
START_DEADLINE_S = 60.0
WINDOW = 4_000
"""Rows that are sent and not acknowledged, at most; nats-py has the same by default."""
NODE = f"a node as `lowmark serve` runs it, in a process of its own, {PARTITIONS} partitions"


# -- processes --------------------------------------------------------------------------------


class Fleet:
    """The processes of a measurement: clients that stay, and servers that come and go."""

    def __init__(self, children: Children, clients: int) -> None:
        self._children = children
        self._started = 0
        self.clients = [self.start("benchmarks.server_client") for _ in range(clients)]
        self.address = ""
        """Where the node listens that the clients are connected to."""

    def start(self, module: str, *args: str) -> Child:
        """A process of its own."""
        self._started += 1
        name = f"{module.rpartition('.')[2]}-{self._started}"
        return self._children.start(module, *args, name=name)

    def serve(self, module: str, *args: str) -> tuple[Child, str]:
        """A server, and where it listens."""
        server = self.start(module, *args)
        return server, server.receive(There, deadline_s=START_DEADLINE_S).address

    @contextmanager
    def node(
        self, folder: Path, wal_bytes: int, *, tls: str = "", tokens: bool = False
    ) -> Iterator[Child]:
        """A node, and all clients connected to it. `tls`: a folder of certificates for it."""
        data = folder / "data"
        words = [str(data), str(wal_bytes), tls, "tokens" if tokens else ""]
        server, self.address = self.serve("benchmarks.server_node", *words)
        how = Reach(
            address=self.address,
            ca=f"{tls}/ca.pem" if tls else "",
            token_file=str(data / "admin.token") if tokens else "",
        )
        reach(self.clients, how)
        yield server
        leave(self.clients)
        server.finish(deadline_s=START_DEADLINE_S)


def reach(clients: Sequence[Child], how: Reach) -> None:
    """Have all of them open a database."""
    for client in clients:
        client.send(Order(how))
    for client in clients:
        client.receive(There, deadline_s=START_DEADLINE_S)


def leave(clients: Sequence[Child]) -> None:
    """Have all of them close it."""
    for client in clients:
        client.send(Order(Leave()))
    for client in clients:
        client.receive(There, deadline_s=START_DEADLINE_S)


@contextmanager
def fleet(bench: Bench[ServerSizes], clients: int) -> Iterator[Fleet]:
    """Clients, for as long as a measurement takes."""
    with bench.fresh_folder() as folder, Children(folder) as children:
        yield Fleet(children, clients)


def checked(side: Side, rows: int) -> Side:
    invariant(side.amount == rows, f"{side.amount} were done, not {rows}")
    return side


# -- appending --------------------------------------------------------------------------------


def appended(sizes: ServerSizes, clients: int) -> str:
    return (
        f"{sizes.appended(clients) // BATCH_ROWS} batches of {BATCH_ROWS:,} {ROWS}, durable, over"
        f" {PARTITIONS} partitions, until idle, over roll-overs of a WAL of"
        f" {sizes.append_wal_bytes // MIB} MiB"
    )


@measures(Figure("socket_append_vs_embedded", Target(0.6), "rows/s"))
def socket_append_vs_embedded(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """Appends of a guest, against the owner's own."""
    sizes = bench.sizes
    rows = sizes.appended(1)
    with fleet(bench, 2) as ours:
        owner, guest = ours.clients

        def appending(*, by_guest: bool) -> Turn:
            def turn(folder: Path) -> Side:
                data = str(folder / "data")
                reach([owner], Reach(folder=data, wal_bytes=sizes.append_wal_bytes))
                using = [guest] if by_guest else []
                reach(using, Reach(folder=data))
                work = [Append(first=0, rows=rows)]
                side = worked(using or [owner], work, until_rest_of=owner)
                leave([*using, owner])
                return checked(side, rows)

            return turn

        yield bench.compare(
            appending(by_guest=True),
            appending(by_guest=False),
            notes=f"{appended(sizes, 1)}; deployment: one process has called lowmark.open, and a"
            " second one uses the directory through its socket; batch: 10,000 rows as Arrow;"
            f" clients: 1; window: 1 append, {ONE_AT_A_TIME}; peer: the same appends by the owner,"
            " in a process of its own, too",
            profile=False,
        )


@measures(Figure("tcp_append_vs_sqlite", Target(2.5), "rows/s"))
def tcp_append_vs_sqlite(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """Appends of four clients over TCP, against SQLite in process."""
    sizes = bench.sizes
    clients = sizes.append_clients
    rows = sizes.appended(clients)
    share = rows // clients
    batches = [tuples_of(batch) for batch in batches_of(rows)]
    with fleet(bench, clients) as ours:

        def appending(folder: Path) -> Side:
            work = [Append(first=i * share, rows=share) for i in range(clients)]
            with ours.node(folder, sizes.append_wal_bytes) as node:
                return checked(worked(ours.clients, work, until_rest_of=node), rows)

        def sqlite(folder: Path) -> Side:
            with sqlite_opened(folder / "peer.sqlite") as db, Stopwatch() as watch:
                sqlite_insert(db, batches)
            return Side(rows, watch.seconds())

        yield bench.compare(
            appending,
            sqlite,
            notes=f"{appended(sizes, clients)}; deployment: {NODE}, TCP on loopback; batch:"
            f" 10,000 rows as Arrow; clients: {clients} processes; window: 1 append each,"
            f" {ONE_AT_A_TIME}; peer: {SQLITE}, in process, by one connection, a transaction of"
            f" {BATCH_ROWS:,} at a time by executemany, from tuples that are made before, and a"
            " last checkpoint in the measured time",
            profile=False,
        )


# -- sending ----------------------------------------------------------------------------------


SEND = Figure("send_vs_nats", Target(2.0), "rows/s", needs=find_nats)
SEND_DEFAULT = Figure("send_vs_nats_default_sync", Target(None), "rows/s", needs=find_nats)


@measures(SEND, SEND_DEFAULT)
def send_vs_nats(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """Single rows over TCP, against messages to a stream of NATS JetStream."""
    sizes = bench.sizes
    with fleet(bench, 1) as ours:
        publisher = ours.start("benchmarks.server_peer_client")

        def send(folder: Path) -> Side:
            work = [Send(first=0, rows=sizes.sent, window=WINDOW)]
            with ours.node(folder, sizes.append_wal_bytes) as node:
                return checked(worked(ours.clients, work, until_rest_of=node), sizes.sent)

        def publish(*, always_synced: bool, bare: bool = False) -> Turn:
            def turn(folder: Path) -> Side:
                with Nats(folder, always_synced=always_synced) as nats:
                    work = Send(
                        first=0,
                        rows=sizes.published,
                        window=WINDOW,
                        address=nats.address,
                        bare=bare,
                    )
                    side = checked(worked([publisher], [work]), sizes.published)
                    invariant(nats.count() == sizes.published, "NATS has every message once")
                    synced = nats.always_synced()
                    invariant(synced is always_synced, "NATS syncs as it is said of it")
                return side

            return turn

        turns = [send, publish(always_synced=True), publish(always_synced=False)]
        bare: list[Turn] = []
        if sizes.variants:
            bare = [publish(always_synced=one, bare=True) for one in (True, False)]
        both = (
            f"deployment: {NODE}, TCP on loopback; {sizes.sent:,} {ROWS}, each a Python dict given"
            f" to producer.send, which lingers for {LINGER_MS} ms; it ends when all are durable and"
            f" the segment writer is idle; batch: single rows, gathered by the producer into"
            f" {producer_batch(WINDOW)} at most; clients: 1 process; window: {WINDOW:,} rows"
            f" ({IN_FLIGHT} batches under way, the rest waits in the producer); peer: NATS"
            f" {nats_version()} in a process of its own, one stream on disk, TCP on loopback,"
            f" {sizes.published:,} messages, each a row as JSON that is made before, by nats-py's"
            f" publish_async in a process of its own; batch: single messages; clients: 1; window:"
            f" {WINDOW:,} messages"
        )
        notes = {
            SEND.name: "`sync_interval: always`: what is acknowledged is on the disk, as ours is",
            SEND_DEFAULT.name: "its default: synced every two minutes, so what is acknowledged"
            " may be lost with the machine",
        }
        by = "; by a bare client: the peer's client has nothing around the protocol"
        compared = {}
        for number, figure in enumerate((SEND, SEND_DEFAULT)):
            compared[figure.name] = Compared(
                rates(figure, turns[0], turns[1 + number]),
                f"{both}, {notes[figure.name]}{by if bare else ''}",
                {"by_a_bare_client": rates(figure, turns[0], bare[number])} if bare else {},
            )
        yield Plan(turns=[*turns, *bare], compared=compared)


# -- reading ----------------------------------------------------------------------------------


@measures(Figure("read_vs_flight", Target(0.5), "rows/s"), runs="short_runs")
def read_vs_flight(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """A table read back over TCP, against a bare Flight server with the same batches in memory."""
    sizes = bench.sizes
    rows = sizes.read_rows
    bench.say(f"preparing {rows} rows")
    with (
        fleet(bench, 1) as ours,
        bench.fresh_folder() as folder,
        ours.node(folder, sizes.append_wal_bytes) as node,
    ):
        checked(
            worked(ours.clients, [Append(first=0, rows=rows)], until_rest_of=node),
            rows,
        )
        server, address = ours.serve("benchmarks.server_bare", ours.address)
        taker = ours.start("benchmarks.server_peer_client")

        def read(_: Path) -> Side:
            return checked(worked(ours.clients, [Read()]), rows)

        def bare(_: Path) -> Side:
            return checked(worked([taker], [Read(address=address)]), rows)

        yield bench.compare(
            read,
            bare,
            notes=f"{rows:,} {ROWS}, written in batches of {BATCH_ROWS:,}, so that a stored batch"
            f" has about {BATCH_ROWS // PARTITIONS:,}; deployment: {NODE}, TCP on loopback, rows"
            " read from segments that the system has in memory; batch: as stored; clients: 1"
            " process, which counts the rows; window: one answer of up to 16 MiB at a time, the"
            " next is fetched meanwhile; peer: a Flight server of pyarrow's in a process of its"
            " own, with the same batches in memory, as one stream, to one client that counts the"
            " rows; window: gRPC's",
            profile=False,
        )
        server.finish()


# -- looking up -------------------------------------------------------------------------------


@measures(Figure("get_per_s", Target(None), "gets/s"), runs="short_runs")
def get_per_s(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """Single look-ups of 16 clients; Redis beside it, where there is one."""
    sizes = bench.sizes
    count, clients = sizes.keys, sizes.get_clients
    bench.say(f"preparing {count} keys")
    with ExitStack() as stack:
        ours = stack.enter_context(fleet(bench, clients))
        folder = stack.enter_context(bench.fresh_folder())
        node = stack.enter_context(ours.node(folder, sizes.append_wal_bytes))
        writer = ours.clients[:1]
        checked(worked(writer, [Append(first=0, rows=count)], until_rest_of=node), count)
        # Some keys of every partition: the index is built when a key is looked up first.
        worked(writer, [Get(keys=count, gets=200, seed=0)])

        def work(address: str = "") -> list[Work]:
            return [
                Get(keys=count, gets=sizes.gets, seed=i, address=address)
                for i in range(1, clients + 1)
            ]

        def get(_: Path) -> Side:
            return checked(worked(ours.clients, work()), clients * sizes.gets)

        turns: list[Turn] = [get]
        try:
            redis = stack.enter_context(Redis(folder))
        except PeerMissing as missing:
            beside = missing.one_line()
        else:
            beside = (
                f"peer: {redis_version()}, in a process of its own, TCP on loopback, with the same"
                f" rows as JSON in memory; GET, as many, by {clients} processes with nothing around"
                " the protocol"
            )
            pairs = (
                (row["id"].encode(), msgspec.json.encode(row))
                for batch in batches_of(count)
                for row in dicts_of(batch)
            )
            invariant(redis.fill(pairs) == count, "Redis has every key")
            askers = [ours.start("benchmarks.server_peer_client") for _ in range(clients)]

            def redis_get(_: Path) -> Side:
                done = worked(askers, work(redis.address))
                return checked(done, clients * sizes.gets)

            turns.append(redis_get)
        pair = Pair(
            sides=tuple(turns),
            value=lambda one: one[get].rate,
            ours=lambda one: one[get].rate,
            peer=(lambda one: one[turns[1]].rate) if len(turns) > 1 else None,
        )
        notes = (
            f"{sizes.gets:,} look-ups by each client among {count:,} keys, drawn evenly; the value"
            f" is the rate; deployment: {NODE}, TCP on loopback; batch: 1 key; clients: {clients}"
            f" processes, which get dicts; window: 1 get each; {beside}"
        )
        yield bench.plan(turns, pair, notes)
