"""Tests of one group run in one process: they share a Spark session, and what else takes long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

SUITE = """
import os
import pathlib
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(4))
def test_of_a_group(number):
    pathlib.Path(f"{number}.of").write_text(str(os.getpid()))

@pytest.mark.parametrize("number", range(4))
def test_of_none(number):
    pass
"""


def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    # given some tests that are of one group, and the settings that ours have
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(SUITE)
    # when they are run as `make test` runs ours
    words = ["-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    # then one process has run all of the group
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = [path.read_text() for path in tmp_path.glob("*.of")]
    assert len(found) == 4
    assert len(set(found)) == 1
