"""What tests look at behind the API: the node inside this process, and its copies of partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lowmark.backend.embedded import Embedded
from lowmark.backend.values import BatchRange, Hold
from lowmark.client import Database, Reader, Table
from lowmark.runtime import Buffer
from lowmark.table import Control, Outcome, Partition, View

T = TypeVar("T")


def backend_of(of: Database | Table | Reader) -> Embedded:
    """The backend of a database that was opened here."""
    backend = of._backend
    assert isinstance(backend, Embedded)
    return backend


def partition_of(table: Table, number: int = 0) -> Partition:
    """This node's copy of a partition."""
    backend = backend_of(table)
    return backend.ask_now(lambda: backend.tables.get(table.descriptor.id, number))


def partitions_of(table: Table) -> list[Partition]:
    """This node's copies of all partitions of a table."""
    backend = backend_of(table)
    return backend.ask_now(lambda: backend.tables.of(table.descriptor.id))


def on_loop(of: Database | Table, function: Callable[[], T]) -> T:
    """What a function gives on the node's loop."""
    return backend_of(of).ask_now(function)


def proposed(table: Table, command: Control, number: int = 0) -> Outcome:
    """What a partition makes of a command."""
    return backend_of(table).propose(table.descriptor.id, {number: command})[number]


def commands_of(table: Table, view: View, low: int, high: int, number: int = 0) -> list[Buffer]:
    """The commands of batches of a view, from position `low` to before `high`."""
    wanted = [BatchRange.of(view, low, high)]
    return next(backend_of(table).batches(table.descriptor.id, number, wanted, held=False))


def lose_history(db: Database, hold: Hold) -> None:
    """Let go of history as when the node is taken for gone: its caller does not know."""
    backend = backend_of(db)
    history = backend._kept[hold.number].history
    assert history is not None
    backend.ask_now(history)
