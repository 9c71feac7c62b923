"""A program that ends without closing anything: what its producers were sent is stored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.world import COLUMNS, Served

PROGRAM = """
import {first}
import {second}
import lowmark, sys
db = lowmark.connect(sys.argv[1])
producer = db["t"].producer(linger_ms=600_000)
producer.send({{"id": 1, "status": "{first}"}})
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "db") as served:
        served.db.create_table("t", COLUMNS, key="id")
        yield served


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "lowmark.client.session",
        pytest.param(  # the order that was never wrong: above is the shorter relative
            "lowmark.backend.remote", marks=pytest.mark.release
        ),
    ],
)
def test_a_producer_is_finished_before_its_backend_in_whichever_order_they_are_imported(
    served: Served, first: str
) -> None:
    # given a program that has sent a row, which waits for others, and ends
    [second] = {"lowmark.client.session", "lowmark.backend.remote"} - {first}
    program = PROGRAM.format(first=first, second=second)
    subprocess.run([sys.executable, "-c", program, served.address], check=True, timeout=120)
    # then the row is stored
    assert served.db["t"].get(1) == {"id": 1, "status": first}
