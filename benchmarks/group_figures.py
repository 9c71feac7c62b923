"""What replication costs: against one node, against etcd, against copying, against nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.etcd_peer import Client, EtcdCluster, Puts, etcd_version, find_etcd, run_puts
from benchmarks.figure import Figure, Pair, Round, Side, Target
from benchmarks.group_sizes import GroupSizes
from benchmarks.runner import Bench, Plan, Turn, measures
from clusters.group import Cluster
from lowmark.errors import invariant

KIB, MIB = 1 << 10, 1 << 20
SMALL_BYTES, SMALL_IN_FLIGHT = 100, 64
LARGE_BYTES, LARGE_IN_FLIGHT = 256 * KIB, 16
ENTRY_IN_FLIGHT = 8
CATCH_UP_ENTRY = 64 * KIB
WARM_UP = 50
FILES_DEADLINE_S = 300.0
POLL_S = 0.005


@measures(Figure("replicated_1m_vs_single", Target(0.2, aim=0.3), "MB/s", per_unit=1 / (MIB / 1e6)))
def replicated_1m(bench: Bench[GroupSizes]) -> Iterator[Plan]:
    """1 MiB entries on three nodes against one."""
    sizes = bench.sizes
    yield bench.compare(
        _proposals(3, MIB, ENTRY_IN_FLIGHT, sizes.entries_1m),
        _proposals(1, MIB, ENTRY_IN_FLIGHT, sizes.entries_1m),
        notes=f"{sizes.entries_1m} entries of 1 MiB, {ENTRY_IN_FLIGHT} in flight, each applied on"
        " the leader before it counts; three nodes are three processes on loopback, and their"
        " disks are the same disk, so one third is par; peer: a group of one node, in a process"
        " of its own, too",
        profile=False,
    )


@measures(Figure("small_vs_etcd", Target(0.5), "proposals/s", needs=find_etcd))
def small_vs_etcd(bench: Bench[GroupSizes]) -> Iterator[Plan]:
    """100 bytes, 64 in flight."""
    sizes = bench.sizes
    ours = _proposals(3, SMALL_BYTES, SMALL_IN_FLIGHT, sizes.small)
    yield bench.compare(
        ours,
        _puts(SMALL_BYTES, SMALL_IN_FLIGHT, sizes.small),
        notes=f"{sizes.small} proposals of {SMALL_BYTES} bytes, {SMALL_IN_FLIGHT} in flight, three"
        " nodes; ours are proposed in the leader's process (there is no client protocol yet);"
        f" peer: {_ETCD}",
        variants={
            "by_grpc_aio": (ours, _puts(SMALL_BYTES, SMALL_IN_FLIGHT, sizes.small, by="grpc"))
        },
        profile=False,
    )


@measures(Figure("large_vs_etcd", Target(2.0), "proposals/s", needs=find_etcd))
def large_vs_etcd(bench: Bench[GroupSizes]) -> Iterator[Plan]:
    """256 KiB, 16 in flight."""
    sizes = bench.sizes
    yield bench.compare(
        _proposals(3, LARGE_BYTES, LARGE_IN_FLIGHT, sizes.large),
        _puts(LARGE_BYTES, LARGE_IN_FLIGHT, sizes.large),
        notes=f"{sizes.large} proposals of 256 KiB, {LARGE_IN_FLIGHT} in flight, three nodes; ours"
        f" are proposed in the leader's process (there is no client protocol yet); peer: {_ETCD}",
        profile=False,
    )


_ETCD = (
    f"etcd {etcd_version()} with three members and its default settings (the quota raised); puts"
    " by a bare asynchronous gRPC client (HTTP/2 and nothing more, faster here than grpc.aio) in a"
    " process of its own, connected to the leader"
)


def _proposals(nodes: int, size: int, in_flight: int, count: int) -> Turn:
    def turn(folder: Path) -> Side:
        with Cluster(folder, nodes) as cluster:
            cluster.create("g", members=list(range(1, nodes + 1)))
            cluster.ask(1, do="campaign")
            leader = cluster.leader("g")
            warm = min(WARM_UP, count)
            cluster.propose("g", size=size, in_flight=in_flight, count=warm, at=leader)
            load = cluster.propose("g", size=size, in_flight=in_flight, count=count, at=leader)
        return Side(load.count, load.seconds)

    return turn


def _puts(size: int, in_flight: int, count: int, *, by: Client = "http2") -> Turn:
    def turn(folder: Path) -> Side:
        with EtcdCluster(folder) as cluster:

            def put(puts: int) -> Puts:
                at_once = min(in_flight, puts)
                return run_puts(cluster, value_bytes=size, in_flight=at_once, count=puts, by=by)

            put(min(WARM_UP, count))
            done = put(count)
        return Side(done.count, done.seconds)

    return turn


@measures(
    Figure("failover_in_timeouts", Target(3.0, at_least=False), "timeouts"),
    runs="kills",
    warm_up=False,
)
def failover(bench: Bench[GroupSizes]) -> Iterator[Plan]:
    """Kill the leader; count election timeouts until a proposal is applied."""
    sizes = bench.sizes
    timeout_ms = sizes.kill_tick_ms * 10
    settings = {"tick_ms": sizes.kill_tick_ms}
    with bench.fresh_folder() as folder, Cluster(folder, 3, group=settings) as cluster:
        cluster.create("g", members=[1, 2, 3])

        def kill(_: Path) -> Side:
            leader = cluster.leader("g")
            cluster.propose("g", size=SMALL_BYTES, in_flight=1, count=5, at=leader)
            survivors = [n for n in cluster.nodes if n != leader]
            killed = cluster.kill(leader)
            for survivor in survivors:
                cluster.nodes[survivor].send({"do": "probe", "group": "g"})
            applied = _first_answer(cluster, survivors)
            cluster.start(leader)
            _wait_caught_up(cluster)
            # The one that did not answer goes on trying; it stops when it is asked to lead.
            _settle_probes(cluster, survivors)
            return Side((applied - killed) * 1_000, timeout_ms)

        yield bench.watch(
            kill,
            notes=f"the leader of three is killed with -9 {sizes.kills} times, each time until the"
            f" next proposal is applied; an election timeout is {timeout_ms} ms; 'ours' is in ms",
        )


def _first_answer(cluster: Cluster, survivors: list[int]) -> float:
    ends_at = time.monotonic() + FILES_DEADLINE_S
    while time.monotonic() < ends_at:
        for survivor in survivors:
            if cluster.nodes[survivor].has_answer():
                moment = time.perf_counter()
                cluster.nodes[survivor].receive(dict[str, Any])
                cluster.answered = survivor
                return moment
        time.sleep(0.0005)
    invariant(False, "no proposal was applied after the leader was killed")
    return 0.0


def _settle_probes(cluster: Cluster, survivors: list[int]) -> None:
    """Let the survivor that still waits lead for a moment, so that it has an answer, too."""
    (waiting,) = [n for n in survivors if n != cluster.answered]
    cluster.ask(cluster.answered, do="transfer", to=waiting)
    cluster.nodes[waiting].receive(dict[str, Any], deadline_s=FILES_DEADLINE_S)


def _wait_caught_up(cluster: Cluster) -> None:
    def caught_up() -> bool:
        applied = [cluster.ask(n, do="where")["applied"].get("g") for n in cluster.nodes]
        return len(set(applied)) == 1

    _until(caught_up, "all nodes have applied the same")


def _until(condition: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + FILES_DEADLINE_S
    while not condition():
        invariant(time.monotonic() < ends_at, f"{what}: not in time")
        time.sleep(POLL_S)


@measures(Figure("catch_up_vs_cp", Target(0.3), "MB/s", per_unit=1e6))
def catch_up(bench: Bench[GroupSizes]) -> Iterator[Plan]:
    """A fourth node gets a group whose data is live entries under a snapshot."""
    sizes = bench.sizes
    count = sizes.catch_up_bytes // CATCH_UP_ENTRY

    def ours(folder: Path, *, snapshot: bool) -> Side:
        with Cluster(folder, 2, keep=True) as cluster:
            cluster.create("g", members=[1])
            cluster.leader("g")
            cluster.propose("g", size=CATCH_UP_ENTRY, in_flight=32, count=count, at=1)
            if snapshot:
                cluster.ask(1, do="snapshot", group="g")
            os.sync()
            cluster.ask(2, do="create", groups=["g"], members=[])
            began = time.perf_counter()
            said = cluster.ask(1, do="change", group="g", token=1, peers=[1, 2])
            seconds = time.perf_counter() - began
            invariant("committed" in said, f"the new member did not come in: {said}")
        return Side(count * CATCH_UP_ENTRY, seconds)

    def by_snapshot(folder: Path) -> Side:
        return ours(folder, snapshot=True)

    def by_log(folder: Path) -> Side:
        return ours(folder, snapshot=False)

    def copy(folder: Path) -> Side:
        source, piece = folder / "source", os.urandom(MIB)
        with source.open("wb") as file:
            for _ in range(sizes.catch_up_bytes // MIB):
                file.write(piece)
        os.sync()
        began = time.perf_counter()
        shutil.copyfile(source, folder / "copy")
        with (folder / "copy").open("rb") as copied:
            os.fdatasync(copied.fileno())
        return Side(sizes.catch_up_bytes, time.perf_counter() - began)

    yield bench.compare(
        by_snapshot,
        copy,
        notes=f"{sizes.catch_up_bytes // MIB} MiB in entries of 64 KiB, all live under a snapshot,"
        " from the request to add a member until it is a voter; peer: copy as many bytes"
        " (sendfile), fdatasync once",
        variants={"by_log": (by_log, copy)},
        profile=False,
    )


@measures(
    Figure("idle_500_groups_cpu", Target(0.1, at_least=False), "cores"),
    runs="idle_runs",
    warm_up=False,
)
def idle_groups(bench: Bench[GroupSizes]) -> Iterator[Plan]:
    """What groups that nobody uses cost."""
    sizes = bench.sizes
    names = [f"g{number:04d}" for number in range(sizes.idle_groups)]
    with bench.fresh_folder() as folder, Cluster(folder, 3) as cluster:
        bench.say(f"creating {len(names)} groups on three nodes")
        for at in range(0, len(names), 100):
            cluster.create(*names[at : at + 100], members=[1, 2, 3])
        leads: dict[int, int] = {}

        def all_led() -> bool:
            for number in cluster.nodes:
                leads[number] = len(cluster.ask(number, do="where")["leads"])
            return sum(leads.values()) == len(names)

        _until(all_led, "all groups have a leader")
        _until(
            lambda: all(cluster.ask(n, do="where")["resting"] == len(names) for n in cluster.nodes),
            "all groups rest",
        )

        def rest(_: Path) -> Round:
            before, began = cluster.cpu_seconds(), time.perf_counter()
            time.sleep(sizes.idle_seconds)
            after, seconds = cluster.cpu_seconds(), time.perf_counter() - began
            shares = sorted((after[n] - before[n]) / seconds for n in after)
            return {"calmest": Side(shares[0]), "busiest": Side(shares[-1])}

        def busiest(one: Round) -> float:
            return one["busiest"].amount

        pair = Pair(
            sides=("busiest",),
            value=busiest,
            ours=busiest,
            least=lambda one: one["calmest"].amount,
        )
        notes = (
            f"{len(names)} groups of three members on three nodes, all at rest, watched for"
            f" {sizes.idle_seconds:g} s; the busiest node counts, the spread is over the nodes;"
            f" they lead {', '.join(str(n) for n in sorted(leads.values()))} of them"
        )
        yield bench.plan([rest], pair, notes)
