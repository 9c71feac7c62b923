"""What `lowmark bench rebalance` makes of moves and plans, and that it fails if nothing moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rebalance_moves import Moved, MovedTable, acknowledged, copied
from benchmarks.rebalance_plans import Zone, moved
from benchmarks.rebalance_sizes import MIB, RebalanceSizes, rows_of
from benchmarks.served import ServedCluster
from benchmarks.server_wire import Done
from lowmark.errors import InvariantBroken

S = 1_000_000_000


def client_with(*heard_s: float, ended_s: float) -> Done:
    """A client that began at 0, and whose appends were acknowledged at these seconds."""
    acks = tuple((0, int(at * S)) for at in heard_s)
    return Done(amount=len(acks), began_ns=0, ended_ns=int(ended_s * S), acks=acks)


# -- what is made of times ----------------------------------------------------------------------


def test_appends_beside_a_move_are_told_apart_from_those_before_and_after() -> None:
    # given two clients for 10 seconds, and a move from 2 to 6
    clients = [
        client_with(1, 3, 5, 7, 9, ended_s=10),
        client_with(1.5, 2.5, 8, 9.5, 10.5, ended_s=11),
    ]
    during, without = acknowledged(clients, Moved(2 * S, 6 * S))
    # then what came when one of them had ended does not count
    assert (during.amount, during.seconds) == (3_000, 4.0)
    assert (without.amount, without.seconds) == (6_000, 6.0)


def test_a_move_that_outlasts_the_clients_is_measured_as_long_as_they_append() -> None:
    during, without = acknowledged([client_with(1, 3, 4, ended_s=4)], Moved(2 * S, 9 * S))
    assert (during.amount, during.seconds) == (2_000, 2.0)
    assert (without.amount, without.seconds) == (1_000, 2.0)


def test_a_move_after_the_clients_is_no_measurement() -> None:
    with pytest.raises(InvariantBroken):
        acknowledged([client_with(1, ended_s=2)], Moved(3 * S, 4 * S))


# -- plans --------------------------------------------------------------------------------------


def test_the_fewest_moves_are_the_share_of_what_joins() -> None:
    # given 900 replicas on five nodes
    zone = Zone(5, 300, 1)
    then, seconds = zone.planned()
    # then the sixth node gets 150 of them
    assert zone.minimum() == 150
    assert moved(zone.now, then) == 150
    assert seconds > 0


def test_a_plan_that_lacks_replicas_is_no_plan() -> None:
    with pytest.raises(InvariantBroken):
        moved({(1, 0): (1, 2, 3)}, {(1, 0): (1, 2)})
    with pytest.raises(InvariantBroken):
        moved({(1, 0): (1, 2, 3)}, {})


# -- files and nodes ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MIB, 2_500_000])
def test_the_peer_copies_all_bytes(here: Path, size: int) -> None:
    side = copied(here, size)
    assert side.amount == size == (here / "copy").stat().st_size
    assert (here / "copy").read_bytes() == (here / "source").read_bytes()


def test_sizes_are_whole_batches() -> None:
    assert rows_of(1) == 10_000
    assert rows_of(1_000_000) == 10_000
    assert rows_of(1_000_001) == 20_000
    assert RebalanceSizes.quick().space_needed_bytes < RebalanceSizes.full().space_needed_bytes


@pytest.mark.slow
@pytest.mark.release  # what is made of a move is above, and `tests/server` moves replicas
def test_a_table_moves_to_the_other_node_and_back(here: Path) -> None:
    with ServedCluster(here, 2) as cluster:
        table = MovedTable(cluster, partitions=2, size_bytes=MIB)
        assert table.at == "n1"
        for name in ("n2", "n1"):
            assert table.move().seconds > 0
            assert table.at == name
            table.check()
            table.settle()
        # and a check that finds other rows than were moved fails
        table.rows += 1
        with pytest.raises(InvariantBroken):
            table.check()
