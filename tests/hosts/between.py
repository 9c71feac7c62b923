"""A run of tests in a process of its own, which goes into a host: see `clusters/places.py`.

A test that is skipped there has tried nothing. So each file and each test that is named must have
one that has passed, whatever its exit code is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hosts.hosts import why_none

TESTS = Path(__file__).parents[1]
ENDS_S = 280.0


def passes_between_hosts(tmp_path: Path, *words: str, ends_s: float = ENDS_S) -> None:
    """Fail if these tests do not pass between hosts, or if none of them was made."""
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    passes_alone(tmp_path, "--hosts", *words, ends_s=ends_s)


def passes_alone(tmp_path: Path, *words: str, ends_s: float = ENDS_S) -> None:
    """Fail if these tests do not pass in a process of their own, or if none of them was made."""
    report = tmp_path / "report.xml"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
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
    not_made = named_and_not_made(report, words)
    assert not not_made, f"none of {', '.join(not_made)} was made: {found.stdout[-2_000:]}"


def named_and_not_made(report: Path, words: Sequence[str]) -> list[str]:
    """The files and tests among these words of which no test has passed."""
    made = []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            module = case.get("classname", "").replace(".", "/")
            made.append((module, case.get("name", "").partition("[")[0]))
    missing = []
    for word in words:
        path, _, test = word.partition("::")
        if not path.endswith(".py"):
            continue
        stem, name = path.removesuffix(".py"), test.rpartition("::")[2].partition("[")[0]
        if not any(stem.endswith(module) and name in {"", one} for module, one in made):
            missing.append(word)
    return missing
