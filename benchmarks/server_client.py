"""A process that uses a database: as its owner, as a guest of its directory, or over TCP.

It does what its parent says (see `server_wire`). What the work takes is built before the clock
starts, and what it should have come to is checked after.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from random import Random
from typing import assert_never

from benchmarks.server_wire import (
    Append,
    Done,
    Get,
    Go,
    Leave,
    Order,
    Pace,
    Reach,
    Read,
    Ready,
    Rest,
    Rested,
    Send,
    There,
    Work,
)
from benchmarks.table_workload import (
    BATCH_ROWS,
    COLUMNS,
    PARTITIONS,
    Opened,
    batch_of,
    batches_of,
    dicts_of,
    id_of,
)
from clusters.processes import Parent
from lowmark.access import connect, open_database
from lowmark.client import Database, Table
from lowmark.client.producer import _QUEUED_BATCHES
from lowmark.errors import invariant
from lowmark.log import LogConfig
from lowmark.node import Settings

LINGER_MS = 5
IN_FLIGHT = 4
COLUMN_NAMES = list(COLUMNS)
CONNECT_S = 60.0


def producer_batch(window: int) -> int:
    """The rows of a producer's batch, so that no more than the window is sent and not stored."""
    rows = window // (IN_FLIGHT + _QUEUED_BATCHES)
    invariant(rows * (IN_FLIGHT + _QUEUED_BATCHES) == window, "a window is made of whole batches")
    return rows


Acks = list[tuple[int, int]]
"""When each append was made, and when it was acknowledged."""


class Client:
    """A database that is open here, and what is done with it."""

    def __init__(self, reach: Reach) -> None:
        self.acks: Acks = []
        """Of the last work, if it noted any."""
        self._opened: Opened | None = None
        with ExitStack() as stack:
            db = stack.enter_context(self._database(reach))
            self._table = _table(db)
            if reach.wal_bytes:
                self._opened = Opened(db, self._table)
            self._stack = stack.pop_all()

    def _database(self, reach: Reach) -> Database:
        if reach.address:
            token = Path(reach.token_file).read_text().strip() if reach.token_file else None
            return connect(reach.address, ca=reach.ca or None, token=token, timeout_s=CONNECT_S)
        if reach.wal_bytes:
            log = LogConfig(wal_bytes_max=reach.wal_bytes)
            return open_database(Path(reach.folder), owner=True, settings=Settings(log=log))
        return open_database(Path(reach.folder), create=False)

    def close(self) -> None:
        """Close it."""
        self._stack.close()

    def rest(self) -> int:
        """Wait until nothing is left to do; when that was."""
        assert self._opened is not None
        self._opened.rest()
        return time.monotonic_ns()

    def prepared(self, work: Work) -> Callable[[], int]:
        """What is to be done when the clock starts; it gives how much was done."""
        table = self._table
        self.acks = []
        match work:
            case Append(first=first, rows=rows):
                return _append(table, first, rows)
            case Pace():
                return _pace(table, work, self.acks)
            case Send(first=first, rows=rows, window=window):
                return _send(table, first, rows, window)
            case Read():
                return lambda: sum(one.num_rows for one in table.read(columns=COLUMN_NAMES))
            case Get(keys=keys, gets=gets, seed=seed):
                return _get(table, keys, gets, seed)
            case _:
                assert_never(work)


def _table(db: Database) -> Table:
    return db.create_table("rows", COLUMNS, key="id", partitions=PARTITIONS, if_not_exists=True)


def _append(table: Table, first: int, rows: int) -> Callable[[], int]:
    invariant(rows % BATCH_ROWS == 0, "batches are whole")
    batches = [batch_of(at) for at in range(first, first + rows, BATCH_ROWS)]

    def append() -> int:
        return sum(table.append(batch).rows for batch in batches)

    return append


def _pace(table: Table, work: Pace, acks: Acks) -> Callable[[], int]:
    size = work.batch_rows
    batches = [batch_of(work.first + at * size, size) for at in range(work.batches)]

    def pace() -> int:
        rows = 0
        ends_ns = time.monotonic_ns() + int(work.seconds * 1e9)
        for batch in cycle(batches) if work.seconds else batches:
            made_ns = time.monotonic_ns()
            if work.seconds and made_ns > ends_ns:
                break
            rows += table.append(batch).rows
            acks.append((made_ns, time.monotonic_ns()))
        return rows

    return pace


def _send(table: Table, first: int, rows: int, window: int) -> Callable[[], int]:
    dicts = [row for batch in batches_of(first + rows) for row in dicts_of(batch)][first:]
    batch_rows = producer_batch(window)

    def send() -> int:
        with table.producer(
            linger_ms=LINGER_MS, batch_rows=batch_rows, in_flight=IN_FLIGHT
        ) as producer:
            for row in dicts:
                producer.send(row)
        return producer.rows

    return send


def _get(table: Table, keys: int, gets: int, seed: int) -> Callable[[], int]:
    dice = Random(seed)
    wanted = [id_of(dice.randrange(keys)) for _ in range(gets)]

    def get() -> int:
        for key in wanted:
            row = table.get(key)
            invariant(row is not None and row["id"] == key, "the row of that key was found")
        return len(wanted)

    return get


def begin(parent: Parent) -> int:
    """Say that it is ready, and wait for the word; when that came."""
    gc.collect()
    parent.send(Ready())
    parent.receive(Go)
    return time.monotonic_ns()


def end(parent: Parent, began_ns: int, amount: int, acks: Acks | None = None) -> None:
    """Say what it came to."""
    ended_ns = time.monotonic_ns()
    parent.send(Done(amount=amount, began_ns=began_ns, ended_ns=ended_ns, acks=tuple(acks or ())))


def main() -> None:
    """Do what the parent says, until it says no more."""
    parent = Parent()
    client: Client | None = None
    for order in parent.messages(Order):
        said = order.what
        if isinstance(said, Reach):
            client = Client(said)
            parent.send(There())
            continue
        assert client is not None
        match said:
            case Leave():
                client.close()
                client = None
                parent.send(There())
            case Rest():
                parent.send(Rested(at_ns=client.rest()))
            case _:
                do = client.prepared(said)
                end(parent, begin(parent), do(), client.acks)
    if client is not None:
        client.close()


if __name__ == "__main__":
    main()
