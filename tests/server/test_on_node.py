"""A node that is served by the command gives rows out at its address for clients."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyarrow import flight

import lowmark
from lowmark.backend.attached import Attached
from lowmark.backend.embedded import Embedded
from lowmark.node import NodeClient
from server.world import COLUMNS


def serve(data: Path, listen: str = "127.0.0.1:0") -> tuple[subprocess.Popen[str], str]:
    words = ["serve", "--data", str(data), "--listen", listen, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lowmark", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["listen"]


@pytest.mark.slow
def test_a_served_node_gives_rows_out_at_its_address(tmp_path: Path) -> None:
    # given a node, by the command
    process, address = serve(tmp_path / "n1")
    try:
        with lowmark.connect(address, timeout_s=30) as db:
            # then its tables can be used, by our client and by any other, beside its actions
            orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
            orders.append([{"id": number, "status": "new"} for number in range(10)])
            assert orders.get(3) == {"id": 3, "status": "new"}
            with flight.FlightClient(f"grpc+tcp://{address}") as plain:
                (info,) = plain.list_flights()
                tables = [plain.do_get(one.ticket).read_all() for one in info.endpoints]
                assert sum(table.num_rows for table in tables) == 10
            with NodeClient(address) as client:
                assert client.status().tables
            # when it is killed and started again, then a client goes on
            process.kill()
            process.communicate()
            process, again = serve(tmp_path / "n1", address)
            assert again == address
            orders.append([{"id": 10, "status": "new"}])
            assert sorted(row["id"] for row in orders.read().to_pylist()) == list(range(11))
            # and it ends in time beside a reader that follows
            reader = orders.read(follow=True)
            next(reader)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert time.monotonic() - began < 15
            reader.close()
    finally:
        process.kill()
        process.communicate()


def test_a_served_node_does_not_wait_for_copies_that_other_nodes_have() -> None:
    assert Attached.wait_for_copies is not Embedded.wait_for_copies
    own = {name for name in vars(Attached) if not name.startswith("__")}
    assert all(hasattr(Embedded, name) for name in own)
