"""What a cluster of three served nodes takes: to start, to rest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.cluster_sizes import ClusterSizes
from benchmarks.figure import Compared, Figure, Pair, Round, Side, Target, ratio
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.served import PARTITIONS, ServedCluster

LOOK_SECONDS = 1.0

START_GROWTH = Figure("start_growth", Target(10.0, at_least=False), "seconds")
IDLE = Figure("idle_2400_groups_cpu", Target(0.1, at_least=False), "cores")


@measures(START_GROWTH, IDLE, warm_up=False)
def many_groups(bench: Bench[ClusterSizes]) -> Iterator[Plan]:
    """Two clusters, with many partitions and with few: start a node again, and do nothing."""
    sizes = bench.sizes
    wanted = {figure.name for figure in bench.wanted}
    with ExitStack() as stack:
        many = stack.enter_context(_cluster(bench, sizes.groups))
        turns: list[Turn] = []
        if START_GROWTH.name in wanted:
            few = stack.enter_context(_cluster(bench, sizes.groups_few))
            turns += [
                _starts(few, sizes, sizes.groups_few, "few"),
                _starts(many, sizes, sizes.groups, "many"),
            ]
        if IDLE.name in wanted:
            turns.append(_rests(many, sizes))
        yield Plan(
            turns=turns,
            compared={
                START_GROWTH.name: Compared(
                    ratio(
                        lambda one: one["many"].amount,
                        lambda one: one["few"].amount,
                        "many",
                        "few",
                    ),
                    "`lowmark serve` on the directory of a node that was stopped, one of three,"
                    f" until it says that it has its copies of all {sizes.groups:,} partitions and"
                    f" knows their leaders; peer: the same with {sizes.groups_few:,}; {PARTITIONS}"
                    " partitions a table, three replicas, no rows; 'ours' and 'peer' are in"
                    " seconds",
                ),
                IDLE.name: Compared(
                    Pair(
                        sides=("up", "down", "calmest"),
                        value=lambda one: max(one["up"].amount, one["down"].amount),
                        ours=lambda one: one["up"].amount,
                        peer=lambda one: one["down"].amount,
                        least=lambda one: one["calmest"].amount,
                    ),
                    f"{sizes.groups:,} partitions of three replicas on three nodes, {PARTITIONS} a"
                    " table, no rows and no clients; processor time per second of the busiest"
                    f" node, watched for {sizes.idle_seconds:g} s: 'ours' with all nodes up, 'peer'"
                    " with one of them killed; the greater one counts",
                ),
            },
        )


def _starts(cluster: ServedCluster, sizes: ClusterSizes, groups: int, side: str) -> Turn:
    """Stop one node and start it again; the time until it has all its copies."""

    def start(_: Path) -> Round:
        name = cluster.names[-1]
        cluster.stop(name)
        began = time.perf_counter()
        cluster.start(name)
        cluster.until(lambda: cluster.has_all(name, groups), f"{name} has its partitions")
        seconds = time.perf_counter() - began
        _calm(cluster, sizes)
        return {side: Side(seconds)}

    return start


def _rests(cluster: ServedCluster, sizes: ClusterSizes) -> Turn:
    """What nodes take that have nothing to do: all of them, then without one that was killed."""

    def rest(_: Path) -> Round:
        _calm(cluster, sizes)
        up = cluster.shares(sizes.idle_seconds)
        down = cluster.names[-1]
        cluster.kill(down)
        cluster.until(
            lambda: (
                sizes.groups
                <= sum(
                    row.leader not in {0, cluster.numbers[down]}
                    for row in cluster.partitions(cluster.names[0])
                )
            ),
            "others lead what the killed node led",
        )
        _calm(cluster, sizes)
        without = cluster.shares(sizes.idle_seconds)
        cluster.start(down)
        return {"up": Side(up[-1]), "down": Side(without[-1]), "calmest": Side(up[0])}

    return rest


@contextmanager
def _cluster(bench: Bench[ClusterSizes], groups: int) -> Iterator[ServedCluster]:
    """A cluster in a folder of its own, with so many partitions, all of them led, and calm."""
    with bench.fresh_folder() as folder, ServedCluster(folder) as cluster:
        bench.say(f"making {groups} partitions on three nodes")
        cluster.fill(groups)
        _calm(cluster, bench.sizes)
        yield cluster


def _calm(cluster: ServedCluster, sizes: ClusterSizes) -> None:
    cluster.calm(min(LOOK_SECONDS, sizes.idle_seconds))
