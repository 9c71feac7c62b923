"""What a long history and many tables cost, and what the metastore does beside etcd."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.catalog_cluster import CatalogCluster, Started
from benchmarks.catalog_sizes import CatalogSizes
from benchmarks.catalog_workload import adding, catalog_with, creating, history_of
from benchmarks.etcd_peer import Client, EtcdCluster, Puts, etcd_version, find_etcd, run_puts
from benchmarks.figure import Figure, Pair, Round, Side, Target
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.stopwatch import Stopwatch
from clusters.group import Load
from lowmark.catalog import Catalog, Command, History
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.commands import evaluate
from lowmark.catalog.history import TOKEN_BYTES, Update, apply_update
from lowmark.errors import invariant
from lowmark.runtime import HybridTime

VALUE_BYTES, IN_FLIGHT = 100, 32
WATCHERS = 50
LOOKED_UP_AT_ONCE = 1_000
WARM_UP = 200
NO_SNAPSHOTS = {"snapshot_entries": 1 << 40}


# -- starts -----------------------------------------------------------------------------------


@measures(
    Figure("restart_after_snapshot", Target(1.5, at_least=False), "starts/min", per_unit=1 / 60),
    runs="start_runs",
)
def restart_after_snapshot(bench: Bench[CatalogSizes]) -> Iterator[Plan]:
    """Many versions behind a snapshot against few."""
    sizes = bench.sizes
    many, few, tables = sizes.restart_versions, sizes.restart_versions_few, sizes.history_tables
    with bench.fresh_folder() as long_past, bench.fresh_folder() as short_past:
        for folder, versions in ((long_past, many), (short_past, few)):
            bench.say(f"preparing {versions} versions")
            with CatalogCluster(folder) as cluster:
                _fill(cluster, versions, tables)
                cluster.ask(1, do="cut")
                cluster.finish()

        def starting(folder: Path, versions: int) -> Turn:
            def turn(_: Path) -> Side:
                started = _restarted(folder)
                invariant(started.version == versions, "the catalog came back whole")
                invariant(started.versions == 1, "it came back from its snapshot")
                invariant(started.tables == tables, "both sides have as many tables")
                return Side(1, started.up_s)

            return turn

        yield bench.compare(
            starting(long_past, many),
            starting(short_past, few),
            notes=f"a node that had {many:,} versions of the catalog, in a new process: from the"
            " opening of its log until its metastore answers a linearizable read and the catalog"
            " has the version that this read names; the interpreter and its imports do not count,"
            " and the node stands for election at once; before, the update log was cut at its"
            " latest version, the metastore compacted up to its latest revision, and a snapshot of"
            " its group taken, as upkeep does; peer: the same"
            f" with {few} versions; {tables} equal tables on both sides",
            profile=False,
        )


@measures(Figure("replay_per_s", Target(5_000), "versions/s"), runs="start_runs")
def replay_rate(bench: Bench[CatalogSizes]) -> Iterator[Plan]:
    """A restart without any snapshot."""
    sizes = bench.sizes
    versions, tables = sizes.replay_versions, sizes.history_tables
    with bench.fresh_folder() as folder, bench.fresh_folder() as other:
        bench.say(f"preparing {versions} versions")
        with CatalogCluster(folder, metastore=NO_SNAPSHOTS) as cluster:
            _fill(cluster, versions, tables)
            cluster.finish()
        turns: list[Turn] = [lambda _: _replayed(folder, versions)]
        variants = {}
        if sizes.variants:
            shutil.copytree(folder, other, dirs_exist_ok=True)
            with CatalogCluster(other, metastore=NO_SNAPSHOTS) as cluster:
                cluster.ask(1, do="snapshot")
                cluster.finish()
            turns.append(lambda _: {"after": Side(versions, _restarted(other).up_s)})
            variants["after_a_snapshot_of_the_group"] = _rate_beside("after")
        notes = (
            f"{versions:,} versions over {tables} tables, one command each; the start is timed as"
            " in restart_after_snapshot, but neither the update log nor the metastore's group has"
            " a snapshot, so every entry of the log is applied and every update read, decoded and"
            " applied; peer: only decode and apply them, in memory"
        )
        yield bench.plan(turns, _rate_beside("from_log"), notes, variants)


def _replayed(folder: Path, versions: int) -> Round:
    """One start; once it is up, it decodes and applies the same again."""
    with CatalogCluster(folder, metastore=NO_SNAPSHOTS) as cluster:
        said = cluster.ask(1, do="replay")
        cluster.finish()
        started = cluster.started[1]
    invariant(started.version == versions, "the catalog came back whole")
    alone = Side(said["count"], said["seconds"])
    return {"from_log": Side(versions, started.up_s), "alone": alone}


def _rate_beside(side: str) -> Pair:
    """A rate, and that of decoding and applying alone."""

    def rate(one: Round) -> float:
        return one[side].rate

    return Pair(sides=(side, "alone"), value=rate, ours=rate, peer=lambda one: one["alone"].rate)


def _fill(cluster: CatalogCluster, versions: int, tables: int) -> None:
    said = cluster.ask(1, do="fill", versions=versions, tables=tables)
    invariant(said["tables"] == tables, "the history ends with as many tables as asked for")


def _restarted(folder: Path) -> Started:
    with CatalogCluster(folder, metastore=NO_SNAPSHOTS) as cluster:
        cluster.finish()
        return cluster.started[1]


# -- in memory --------------------------------------------------------------------------------


@measures(Figure("lookup_growth", Target(2.0, at_least=False), "look-ups/s"), runs="short_runs")
def lookup_growth(bench: Bench[CatalogSizes]) -> Iterator[Plan]:
    """Look-ups by time in a long history against a short one."""
    sizes = bench.sizes
    many, few, tables = sizes.lookup_versions, sizes.lookup_versions_few, sizes.lookup_tables
    bench.say(f"making {many} versions")

    @cache
    def drawn(versions: int) -> tuple[History, list[int]]:
        history, dice = history_of(versions=versions, tables=tables), Random(versions)
        first, last = history.version(1).activates_at, history.latest.activates_at
        return history, [dice.randint(first, last) for _ in range(sizes.lookups)]

    def looking(versions: int) -> Turn:
        def turn(_: Path) -> Side:
            history, times = drawn(versions)
            look_up, took, found = history.at, list[float](), list[int]()
            with Stopwatch():
                for at in range(0, len(times), LOOKED_UP_AT_ONCE):
                    some = times[at : at + LOOKED_UP_AT_ONCE]
                    began = time.perf_counter()
                    versions_then = [look_up(moment) for moment in some]
                    took.append((time.perf_counter() - began) / len(some))
                    found += [catalog.version for catalog in versions_then]
            _check_found(history.version(1), found, versions)
            return Side(1, median(took))

        return turn

    with bench.fresh_folder() as folder, CatalogCluster(folder) as cluster:
        yield bench.compare(
            _at_a_node(cluster, sizes, many),
            _at_a_node(cluster, sizes, few),
            notes=f"{sizes.lookups // 10:,} look-ups of the version in force at a time, drawn"
            f" evenly from a history of {many:,} versions, as a node offers them: with the check"
            f" that it knows enough to answer; peer: the same with {few} versions, in the same"
            " process; bare: only the search in memory, the median of runs of"
            f" {LOOKED_UP_AT_ONCE:,}",
            variants={"bare": (looking(many), looking(few))},
            profile=False,
        )


def _check_found(first: Catalog, found: Sequence[int], versions: int) -> None:
    invariant(first.version <= min(found) <= max(found) <= versions, "what is found was there")
    # Versions are a second apart, so each is found about as often as the others.
    spread = max(found) - min(found)
    invariant(len(found) < 100 or spread > versions // 2, "look-ups reach all of the history")


def _at_a_node(cluster: CatalogCluster, sizes: CatalogSizes, versions: int) -> Turn:
    """The look-up that a node offers: it makes sure first that it knows enough."""

    def turn(_: Path) -> Side:
        count, tables = sizes.lookups // 10, sizes.lookup_tables
        said = cluster.ask(1, do="look_up", count=count, versions=versions, tables=tables)
        return Side(said["count"], said["seconds"])

    return turn


@measures(Figure("apply_growth", Target(5.0, at_least=False), "pairs/s"), runs="short_runs")
def apply_growth(bench: Bench[CatalogSizes]) -> Iterator[Plan]:
    """One more command on many tables against few."""
    sizes = bench.sizes
    many, few = sizes.apply_tables, sizes.apply_tables_few
    bench.say(f"making {many} tables")

    def applying(tables: int) -> Turn:
        catalog, dice = catalog_with(tables), Random(tables)
        # A table that is not there, and a column for one that is.
        todo = [(creating(tables), adding(dice.randrange(tables))) for _ in range(sizes.applied)]

        def turn(_: Path) -> Side:
            took = []
            with Stopwatch():
                for commands in todo:
                    for command in commands:
                        began = time.perf_counter()
                        made = _applied(catalog, command)
                        took.append(time.perf_counter() - began)
                        invariant(made.version == catalog.version + 1, "it made a version")
            return Side(1, median(took[::2]) + median(took[1::2]))

        return turn

    yield bench.compare(
        applying(many),
        applying(few),
        notes="a pair is: create one more table, and add a column to one; evaluate the command and"
        f" apply its update, on a catalog of {many:,} tables, the median of {sizes.applied:,} each;"
        f" peer: the same with {few}",
    )


def _applied(catalog: Catalog, command: Command) -> Catalog:
    update = Update(
        version=CatalogVersion(catalog.version + 1),
        delay_ms=0,
        author=1,
        token=bytes(TOKEN_BYTES),
        entries=evaluate(catalog, (command,)).entries,
    )
    return apply_update(catalog, update, time=HybridTime(catalog.time + 1))


# -- the metastore ----------------------------------------------------------------------------


@measures(Figure("invoke_vs_etcd", Target(0.5), "transactions/s", needs=find_etcd))
def invoke_vs_etcd(bench: Bench[CatalogSizes]) -> Iterator[Plan]:
    """Conditional transactions against etcd's."""
    sizes = bench.sizes
    count = sizes.transactions
    ours = _transactions(count)
    yield bench.compare(
        ours,
        _etcd_transactions(count),
        notes=f"{count:,} transactions, {IN_FLIGHT} in flight, three nodes: put {VALUE_BYTES} bytes"
        " under a key if its revision is the one seen last; all conditions hold, and that is"
        " checked; ours are submitted in the leader's process; peer:"
        f" etcd {etcd_version()} with three members and its default settings (the quota raised),"
        " the same condition on a key's version, by a bare asynchronous gRPC client (HTTP/2 and"
        " nothing more, faster here than grpc.aio) in a process of its own, connected to the"
        " leader",
        variants={
            "by_grpc_aio": (ours, _etcd_transactions(count, by="grpc")),
            "through_a_follower": (
                _transactions(count, through_follower=True),
                _etcd_transactions(count, through_follower=True),
            ),
        },
        profile=False,
    )


def _transactions(count: int, *, through_follower: bool = False) -> Turn:
    def turn(folder: Path) -> Side:
        with CatalogCluster(folder, 3) as cluster:
            leader = cluster.leader()
            others = [number for number in cluster.nodes if number != leader]
            at = others[0] if through_follower else leader

            def transact(todo: int) -> Load:
                return cluster.run(
                    at, do="transact", size=VALUE_BYTES, in_flight=IN_FLIGHT, count=todo
                )

            transact(min(WARM_UP, count))
            load = transact(count)
        return Side(load.count, load.seconds)

    return turn


def _etcd_transactions(count: int, *, by: Client = "http2", through_follower: bool = False) -> Turn:
    def turn(folder: Path) -> Side:
        with EtcdCluster(folder) as cluster:

            def transact(todo: int) -> Puts:
                return run_puts(
                    cluster,
                    value_bytes=VALUE_BYTES,
                    in_flight=IN_FLIGHT,
                    count=todo,
                    by=by,
                    kind="txn",
                    through_follower=through_follower,
                )

            transact(min(WARM_UP, count))
            done = transact(count)
        return Side(done.count, done.seconds)

    return turn


@measures(Figure("watchers_50", Target(0.5), "puts/s"))
def watchers_50(bench: Bench[CatalogSizes]) -> Iterator[Plan]:
    """Writes that 50 watchers are told of against writes that nobody watches."""
    sizes = bench.sizes
    count = sizes.watched_puts
    yield bench.compare(
        _puts(count, nodes=3, watchers=WATCHERS),
        _puts(count, nodes=3, watchers=0),
        notes=f"{count:,} puts of {VALUE_BYTES} bytes, {IN_FLIGHT} in flight, three nodes, in the"
        f" leader's process, where {WATCHERS} watchers follow the keys' prefix; it ends when each"
        " of them was told every revision, once and in order, which is checked; peer: the same"
        " without watchers",
        variants={
            "one_node": (
                _puts(count, nodes=1, watchers=WATCHERS),
                _puts(count, nodes=1, watchers=0),
            )
        },
        profile=False,
    )


def _puts(count: int, *, nodes: int, watchers: int) -> Turn:
    def turn(folder: Path) -> Side:
        with CatalogCluster(folder, nodes) as cluster:
            leader = cluster.leader()

            def put(todo: int) -> Load:
                return cluster.run(
                    leader,
                    do="put",
                    size=VALUE_BYTES,
                    in_flight=IN_FLIGHT,
                    count=todo,
                    watchers=watchers,
                )

            put(min(WARM_UP, count))
            load = put(count)
        return Side(load.count, load.seconds)

    return turn
