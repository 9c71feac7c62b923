"""A database in one process, asked by callers that have seen a later reset than it knows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.conftest import embedded
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import PartitionReset
from lowmark.backend.values import NOBODY, Asker, BatchRange, ReadRange
from lowmark.client import Database, Table
from lowmark.group import CopyOutdated
from lowmark.ids import group_name
from lowmark.table import Tick

LATER = 7


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Embedded]:
    made = embedded(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def orders(backend: Embedded) -> Table:
    table = Database(backend).create_table("orders", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": number} for number in range(3)])
    return table


ASKED: dict[str, Callable[[Embedded, Any, Any], object]] = {
    "view": lambda backend, table, _: backend.view(table, 0),
    "views": lambda backend, table, _: backend.views(table, [0]),
    "status": lambda backend, table, _: backend.status(table, [0]),
    "hold": lambda backend, table, _: backend.hold(
        table, {0: ReadRange(0, None)}, holder="a test", why="it asks"
    ),
    "batches": lambda backend, table, view: list(
        backend.batches(table, 0, [BatchRange.of(view, 0, 1)], held=False)
    ),
    "tail": lambda backend, table, _: backend.tail(table, 0, low=0, high=1),
    "epoch_of": lambda backend, table, _: backend.epoch_of(table, b"p" * 16),
    "propose": lambda backend, table, _: backend.propose(table, {0: Tick()}),
    "now": lambda backend, table, _: backend.now(table),
}


def test_a_copy_answers_no_caller_that_has_seen_a_later_reset(
    backend: Embedded, orders: Table
) -> None:
    table = orders.descriptor.id
    view, group = backend.view(table, 0), group_name(table, 0)
    for name, ask in ASKED.items():
        # given a client of a server that has seen a reset which this copy is not of
        backend.asked_by(Asker(lineages={group: LATER}))
        # then it gets no answer, whatever it asks
        with pytest.raises(CopyOutdated, match="reset in term 7"):
            pytest.fail(f"{name} gave {ask(backend, table, view)}")
        # and others do: its word binds its own calls alone
        backend.asked_by(Asker(lineages={group_name(table, 1): LATER}))
        assert ask(backend, table, view) is not None
        backend.asked_by(NOBODY)


def test_a_reader_of_a_ledger_gives_no_row_after_a_reset_that_it_has_heard_of(
    backend: Embedded, orders: Table
) -> None:
    # given a reader whose rows come from a ledger, which nobody is asked for
    orders.append([{"id": number} for number in range(3, 6)])
    backend.advance_watermark(backend.now().time)
    assert orders.compact(engine="local").state == "done"
    with orders.read(compacted=True) as reader, orders.read(compacted=True) as sound:
        assert reader._parts[0].reads_ledger
        assert sound.to_arrow().num_rows == 6
        # when its program hears of a reset
        backend.lineages.learn({group_name(orders.descriptor.id, 0): LATER})
        # then it gives none of them
        with pytest.raises(PartitionReset, match="had come to offset 0"):
            reader.to_arrow()
