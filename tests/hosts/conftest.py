"""Hosts for a test; where they can't be made, it is skipped, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.faults import Faults
from hosts.hosts import Host, Hosts, why_none


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    with Hosts(tmp_path) as hosts:
        yield hosts


@pytest.fixture
def pair(hosts: Hosts) -> tuple[Host, Host]:
    return hosts.add("one"), hosts.add("two")


@pytest.fixture
def faults(hosts: Hosts) -> Faults:
    return Faults(hosts)
