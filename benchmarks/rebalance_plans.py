"""What a plan costs: the replicas that it moves, and the time that it takes. Without nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

from benchmarks.figure import Compared, Figure, Pair, Round, Side, Target, ratio
from benchmarks.rebalance_sizes import RebalanceSizes
from benchmarks.runner import Bench, Plan, measures
from benchmarks.stopwatch import Stopwatch
from lowmark.errors import invariant
from lowmark.placement.target import Place, plan

REPLICAS = 3
RACKS = 10
TABLE_PARTITIONS = 100

Placed = Mapping[tuple[int, int], tuple[int, ...]]

MOVEMENT = Figure("movement_vs_minimum", Target(1.1, at_least=False), "replicas")
GROWTH = Figure("plan_growth", Target(12.0, at_least=False), "ms")


class Zone:
    """Partitions that are evenly spread over nodes, and nodes that join."""

    def __init__(self, nodes: int, partitions: int, joining: int, *, racks: int = 1) -> None:
        new = {
            (1 + number // TABLE_PARTITIONS, number % TABLE_PARTITIONS): ()
            for number in range(partitions)
        }
        places = [Place(number + 1, _rack(number, racks)) for number in range(nodes + joining)]
        self.nodes = nodes
        self.joining = joining
        self.now: Placed = plan(new, places[:nodes], replicas=REPLICAS)
        self._places = places

    def planned(self) -> tuple[Placed, float]:
        """Where partitions go, and the seconds that it takes to say so."""
        with Stopwatch() as watch:
            then = plan(self.now, self._places, replicas=REPLICAS)
        return then, watch.seconds()

    def minimum(self) -> int:
        """The fewest replicas that have to move: what nodes that join must have to be even."""
        return self.joining * (len(self.now) * REPLICAS // (self.nodes + self.joining))


def _rack(number: int, racks: int) -> str:
    return "" if racks == 1 else f"r{number % racks}"


def moved(before: Placed, after: Placed) -> int:
    """The replicas that are on nodes that did not have them."""
    invariant(before.keys() == after.keys(), "a plan has all partitions")
    invariant(all(len(set(nodes)) == REPLICAS for nodes in after.values()), "and all replicas")
    return sum(len(set(nodes) - set(before[one])) for one, nodes in after.items())


@measures(MOVEMENT, GROWTH, runs="plan_runs")
def plans(bench: Bench[RebalanceSizes]) -> Iterator[Plan]:
    """Nodes join zones of several sizes."""
    sizes = bench.sizes
    bench.say(f"placing {sizes.plan_partitions:,} partitions")
    joining = sizes.plan_joining
    zones = {
        "small": Zone(sizes.joined, sizes.joined_partitions, 1),
        "few": Zone(sizes.plan_nodes, sizes.plan_partitions_few, joining),
        "many": Zone(sizes.plan_nodes, sizes.plan_partitions, joining),
        "few in racks": Zone(sizes.plan_nodes, sizes.plan_partitions_few, joining, racks=RACKS),
        "many in racks": Zone(sizes.plan_nodes, sizes.plan_partitions, joining, racks=RACKS),
    }

    def turn(_: Path) -> Round:
        sides: dict[Hashable, Side] = {}
        for name, zone in zones.items():
            then, seconds = zone.planned()
            sides[name] = Side(seconds * 1e3)
            sides[f"{name} moved"] = Side(moved(zone.now, then))
            sides[f"{name} minimum"] = Side(zone.minimum())
        return sides

    yield Plan(
        turns=[turn],
        compared={
            MOVEMENT.name: _movement(sizes),
            GROWTH.name: Compared(
                _amounts("many", "few"),
                f"the plan when {joining} nodes join {sizes.plan_nodes:,} with"
                f" {sizes.plan_partitions:,} partitions of {REPLICAS} replicas; peer: with"
                f" {sizes.plan_partitions_few:,}; deployment: in this process, no racks; clients,"
                f" batch and window: none; 'ours' and 'peer' are in ms; variant `racks`: the same"
                f" in {RACKS} racks",
                {"racks": _amounts("many in racks", "few in racks")},
            ),
        },
    )


def _movement(sizes: RebalanceSizes) -> Compared:
    names = {"small": "small", "large": "many", "racks": "many in racks"}
    pairs = {key: _amounts(f"{name} moved", f"{name} minimum") for key, name in names.items()}
    return Compared(
        Pair(
            sides=tuple(side for pair in pairs.values() for side in pair.sides),
            value=lambda one: max(pair.value(one) for pair in pairs.values()),
            ours=pairs["large"].ours,
            peer=pairs["large"].peer,
        ),
        f"replicas that move when 1 node joins {sizes.joined} with {sizes.joined_partitions:,}"
        f" partitions (variant `small`), and when {sizes.plan_joining} nodes join"
        f" {sizes.plan_nodes:,} with {sizes.plan_partitions:,} (`large`; in {RACKS} racks: `racks`)"
        f", over the fewest that give each node its share, give or take one; {REPLICAS} replicas;"
        " the greatest counts, 'ours' and 'peer' are those of `large`; deployment: the plan in this"
        " process; clients, batch and window: none",
        pairs,
    )


def _amounts(ours: str, peer: str) -> Pair:
    return ratio(lambda one: one[ours].amount, lambda one: one[peer].amount, ours, peer)
