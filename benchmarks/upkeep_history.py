"""What is left of a long history of the catalog once it was cut: at a start, and in memory.

One node, with a metastore and a catalog, in a process of its own (`catalog_node`). Its history is
written and cut there; then the metastore is compacted and a snapshot of its group taken, as upkeep
does. A new node has the same tables in as few versions as make them, and is treated in the same
way: so both have one version, and the other history was long.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.catalog_cluster import CatalogCluster
from benchmarks.figure import Compared, Figure, Pair, Round, Side, Target, ratio
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.upkeep_sizes import UpkeepSizes
from lowmark.errors import invariant

KIB = 1 << 10

START = Figure("start_after_cut", Target(1.3, at_least=False), "starts/min", per_unit=1 / 60)
MEMORY = Figure("memory_after_cut", Target(1.2, at_least=False), "KiB")


def _cut(cluster: CatalogCluster, versions: int, tables: int) -> None:
    said = cluster.ask(1, do="fill", versions=versions, tables=tables)
    invariant(said["tables"] == tables, "the history ends with as many tables as asked for")
    cluster.ask(1, do="cut")


@measures(START, runs="start_runs")
def start_after_cut(bench: Bench[UpkeepSizes]) -> Iterator[Plan]:
    """Start nodes again whose history was cut."""
    sizes = bench.sizes
    many, few, tables = sizes.versions, sizes.versions_few, sizes.tables
    with bench.fresh_folder() as long_past, bench.fresh_folder() as short_past:
        for folder, versions in ((long_past, many), (short_past, few)):
            bench.say(f"preparing {versions} versions")
            with CatalogCluster(folder) as cluster:
                _cut(cluster, versions, tables)
                cluster.finish()

        def starting(folder: Path, versions: int) -> Turn:
            def turn(_: Path) -> Side:
                with CatalogCluster(folder) as cluster:
                    cluster.finish()
                    started = cluster.started[1]
                invariant(started.version == versions, "the catalog came back whole")
                invariant(started.versions == 1, "only its last version is there")
                invariant(started.tables == tables, "both sides have as many tables")
                return Side(1, started.up_s)

            return turn

        yield bench.compare(
            starting(long_past, many),
            starting(short_past, few),
            notes=f"a node that had {many:,} versions of the catalog, of which the last is left, in"
            " a new process: from the opening of its log until its metastore answers a linearizable"
            " read and the catalog has the version that this read names; the interpreter and its"
            " imports do not count, and the node stands for election at once; peer: a new node,"
            f" whose {few} versions were cut in the same way; {tables} equal tables on both sides",
            profile=False,
        )


@measures(MEMORY, runs="memory_runs", warm_up=False)
def memory_after_cut(bench: Bench[UpkeepSizes]) -> Iterator[Plan]:
    """Weigh nodes whose history was cut, in the process that had it."""
    sizes = bench.sizes
    many, few, tables = sizes.versions, sizes.versions_few, sizes.tables

    def weighing(versions: int, side: str) -> Turn:
        def turn(folder: Path) -> Round:
            bench.say(f"writing and cutting {versions} versions")
            with CatalogCluster(folder) as cluster:
                _cut(cluster, versions, tables)
                said = cluster.ask(1, do="weigh")
                cluster.finish()
            invariant(said["versions"] == 1, "only its last version is there")
            invariant(said["tables"] == tables, "both sides have as many tables")
            return {
                side: Side(said["history"] / KIB),
                f"{side} process": Side(said["process"] / KIB),
            }

        return turn

    def weights(ours: str, peer: str) -> Pair:
        return ratio(lambda one: one[ours].amount, lambda one: one[peer].amount, ours, peer)

    yield Plan(
        turns=[weighing(many, "cut"), weighing(few, "new")],
        compared={
            MEMORY.name: Compared(
                weights("cut", "new"),
                f"what a node's history of the catalog holds in memory after {many:,} versions, of"
                " which the last is left: all objects that can be reached from it, in the process"
                f" that wrote and cut them; peer: the same with the {few} versions of a new node;"
                f" {tables} equal tables on both sides; variant `process`: all memory of the"
                " process that is not files, with the interpreter and its modules, what the"
                " metastore keeps of commands to tell watchers, and what its allocator does not"
                " give back; 'ours' and 'peer' are in KiB",
                {"process": weights("cut process", "new process")},
            )
        },
    )
