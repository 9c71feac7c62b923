"""How a run goes over processes: groups stay together, the longest come first, lines tell of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SUITE = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(4))
def test_of_none(number):
    pass

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(4))
def test_of_a_group(number):
    pathlib.Path(f"{number}.of").write_text(str(os.getpid()))

@pytest.mark.xdist_group("spark")
def test_of_the_longest_group():
    pass
"""
SHARED = """
import os
import pathlib
import pytest

@pytest.fixture(scope="module")
def made():
    pathlib.Path(f"{os.getpid()}.made").touch()

@pytest.mark.parametrize("number", range(4))
def test_of_what_is_made_once(number, made):
    pass
"""
SLOW = """
import pytest

def test_beside_a_slow_one():
    pass

@pytest.mark.slow
def test_slow():
    assert "wrong" == "right"
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Some tests, with the settings that ours have."""
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n")
    (tmp_path / "test_a.py").write_text(SUITE)
    (tmp_path / "test_b.py").write_text(SLOW)
    (tmp_path / "test_c.py").write_text(SHARED)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_tests_of_one_group_run_in_one_process(suite: Path) -> None:
    # when they are run as `make test` runs ours, and one fails
    ran = run(suite, "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    # then one process has run all of the group
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = [path.read_text() for path in suite.glob("*.of")]
    assert len(found) == 4
    assert len(set(found)) == 1
    # and one process has made what the tests of a module share
    assert len(list(suite.glob("*.made"))) == 1
    # and it was seen which one failed, when it did, and how far the run was
    lines = ran.stdout.splitlines()
    failed = lines.index("failed: test_b.py::test_slow")
    told = [line for line in lines if re.fullmatch(r" *\d+ %  \d+ of 15 tests, \d:\d\d.*", line)]
    assert len(told) == 15
    assert re.fullmatch(r"100 %  15 of 15 tests, \d:\d\d, 1 failed", told[-1])
    assert failed < lines.index(told[-1])
    assert "1 failed, 14 passed" in lines[-1]


@pytest.mark.slow
def test_the_longest_come_first(suite: Path) -> None:
    said = run(suite, "-n", "1", "-v", "--dist", "loadgroup", "--no-loadscope-reorder").stdout
    names = re.findall(r"^\[gw0\].* test_\w\.py::(\w+)", said, re.MULTILINE)
    assert list(dict.fromkeys(names)) == [
        "test_of_the_longest_group",
        "test_of_a_group",
        "test_of_what_is_made_once",
        "test_beside_a_slow_one",
        "test_slow",
        "test_of_none",
    ]
