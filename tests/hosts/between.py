"""A run of tests in a process of its own, which goes into a host: see `clusters/places.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.hosts import why_none

TESTS = Path(__file__).parents[1]
ENDS_S = 280.0


def passes_between_hosts(tmp_path: Path, *words: str, ends_s: float = ENDS_S) -> None:
    """Fail if these tests do not pass, or if there are none."""
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    run = [sys.executable, "-m", "pytest", "--hosts", "-q", "-p", "no:cacheprovider"]
    ours = {key: one for key, one in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    found = subprocess.run(
        [*run, f"--basetemp={tmp_path / 'tests'}", *words],
        cwd=TESTS.parent,
        env=ours,
        capture_output=True,
        text=True,
        timeout=ends_s,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8_000:] + found.stderr[-2_000:]
