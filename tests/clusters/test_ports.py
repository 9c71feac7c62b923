"""Ports that are a test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from clusters.ports import free_ports

_TAKE = """
from clusters import ports
print([port for port in map(int, input().split()) if ports._take(port)])
"""


def test_a_port_is_given_to_one_process_and_is_not_one_that_the_kernel_gives() -> None:
    # given ports of this process
    mine = [*free_ports(3), *free_ports(2, adjacent=True)]
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(mine)) == 5
    assert mine[4] == mine[3] + 1
    assert max(mine) < lowest
    # when another process wants these, though none listens there, then it gets none of them
    told = subprocess.run(
        [sys.executable, "-c", _TAKE],
        input=" ".join(map(str, mine)),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[]\n"
