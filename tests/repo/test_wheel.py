"""What is in a built wheel, and what it says of what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what an installed package has, and nothing of the checkout."""
    made, installed = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)],
        cwd=REPO,
        capture_output=True,
        check=True,
    )
    [wheel] = made.iterdir()
    with zipfile.ZipFile(wheel) as file:
        file.extractall(installed)
    return installed


def lowmark(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lowmark", *words],
        cwd=installed.parent,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_wheel_has_the_package_and_no_benchmarks(installed: Path) -> None:
    tops = {path.name.partition("-")[0] for path in installed.iterdir()}
    assert tops == {"lowmark", "pyspark_lowmark.py"}
    named = [path for path in installed.rglob("*") if "bench" in path.name]
    assert named == [installed / "lowmark" / "cli" / "bench.py"]


@pytest.mark.slow
def test_a_wheel_says_in_one_line_how_to_get_the_benchmarks(installed: Path) -> None:
    ran = lowmark(installed, "bench", "log", "--quick")
    assert (ran.returncode, ran.stdout) == (2, "")
    [line] = ran.stderr.splitlines()
    assert "not in the installed package: clone" in line
    # and programs are told the same
    ran = lowmark(installed, "bench", "--json")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert json.loads(ran.stderr)["error"] in line


@pytest.mark.slow
def test_the_help_of_a_wheel_lists_the_command(installed: Path) -> None:
    ran = lowmark(installed, "--help")
    assert ran.returncode == 0
    assert "needs a checkout" in ran.stdout
