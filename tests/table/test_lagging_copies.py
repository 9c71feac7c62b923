"""A copy that lags behind a horizon gives no view from before it: it waits, or says that it can't.

Readers take their views with all that was acknowledged (`Partition.latest`). Of a copy that can't
learn that, a client hears an error that makes it ask another node.
"""

from __future__ import annotations

import pytest

from lowmark.backend.connection import _STUCK
from lowmark.catalog import TableId
from lowmark.table import Adopt, Partition, Trim, Trimmed
from table.test_forwarding import followers, world_of
from table.world import TableNode, TableWorld

HORIZON = 8


@pytest.fixture
def table_of() -> tuple[TableWorld, TableId]:
    """Ten rows, which all copies have."""
    world, table = world_of(3)
    for _ in range(5):
        world.append(table, rows=2)
    world.run_until(lambda: all(copy(node, table).view.end == 10 for node in world.up))
    return world, table


def copy(node: TableNode, table: TableId) -> Partition:
    (found,) = node.tables.of(table)
    return found


def compacted(world: TableWorld, table: TableId) -> None:
    """A ledger is adopted, and the backlog below it is cut, by those that can be reached."""
    lead = world.leading(table)
    world.wait(lead.ask(Adopt(1, "a manifest", HORIZON, b"d" * 16, 0)))
    assert isinstance(world.wait(lead.ask(Trim(HORIZON))), Trimmed)


def test_a_reader_at_a_copy_that_lags_waits_until_the_copy_has_adopted_the_ledger(
    table_of: tuple[TableWorld, TableId],
) -> None:
    world, table = table_of
    behind = followers(world, table)[0]
    lead = world.leading(table)
    # given a copy that does not hear of a ledger, and of a cut, that the others have
    world.network.cut_one_way(world[lead.group.node].address, behind.address)
    compacted(world, table)
    assert copy(behind, table).view.ledger is None
    # when it is asked for a view to read by
    asked = copy(behind, table).latest()
    world.run_for(20)
    # then it gives none from before the horizon
    assert not asked.done
    world.heal()
    view = world.wait(asked)
    assert view.ledger is not None
    assert (view.ledger.horizon, view.start) == (HORIZON, HORIZON)


def test_a_reader_at_a_copy_that_is_cut_off_is_sent_to_another_one(
    table_of: tuple[TableWorld, TableId],
) -> None:
    world, table = table_of
    behind, other = followers(world, table)
    # given a copy that is cut off while the others adopt a ledger and cut their backlogs
    world.isolate(behind.number)
    compacted(world, table)
    assert copy(behind, table).view.start == 0
    # when it is asked for a view, then it says that it can't tell, by an error that makes a client
    # leave its node for the next one
    error = world.wait_error(copy(behind, table).latest(), timeout_ms=600_000)
    assert isinstance(error, _STUCK)
    # and that one has the ledger
    view = world.wait(copy(other, table).latest())
    assert view.ledger is not None
    assert view.start == HORIZON
    # and the one that was cut off has it as soon as it hears of it
    world.heal()
    later = world.wait(copy(behind, table).latest())
    assert later.start == HORIZON
