"""A bare Flight server: it streams batches that it has in memory, and does nothing else.

The batches are those that a table gives, one for each that is stored, read before it listens. They
are handed to Flight as a table, so that no Python runs between two of them.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import pyarrow as pa
from pyarrow import flight

from benchmarks.server_wire import Order, There
from benchmarks.table_workload import COLUMNS
from clusters.processes import Parent
from lowmark.access import connect


class BareServer(flight.FlightServerBase):  # type: ignore[misc]
    """Gives the same table for every ticket."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        super().__init__("grpc+tcp://127.0.0.1:0")

    def do_get(self, context: Any, ticket: Any) -> Any:
        """See Flight."""
        del context, ticket
        return flight.RecordBatchStream(self._rows)


def main() -> None:
    """Read a table from a server of ours, and serve it until the parent says no more."""
    parent = Parent()
    with connect(sys.argv[1]) as db:
        rows = db.table("rows").read(columns=list(COLUMNS)).to_arrow()
    server = BareServer(rows)
    threading.Thread(target=server.serve, daemon=True).start()
    parent.send(There(address=f"127.0.0.1:{server.port}"))
    for _ in parent.messages(Order):
        pass
    server.shutdown()


if __name__ == "__main__":
    main()
