"""What a newcomer sees when something is missing, on a machine faked by a PATH of scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Machine:
    """A PATH that holds nothing but the shell's own tools and what a test puts there."""

    bin: Path

    def has(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def has_python(self, version: str, *, name: str = "python3", venv: bool = True) -> None:
        answers = f"*version_info*) echo {version} ;; *ensurepip*) exit {0 if venv else 1} ;;"
        self.has(name, f'case "$2" in {answers} *) exit 1 ;; esac')

    def has_java(self, version: str, *, name: str = "java") -> None:
        self.has(name, f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")

    def preflight(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [REPO / "scripts" / "preflight.sh", *words],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "sed"):
        found = shutil.which(tool)
        assert found is not None
        os.symlink(found, tools / tool)
    return Machine(tools)


def first_line(result: subprocess.CompletedProcess[str]) -> str:
    return result.stderr.splitlines()[0]


def test_a_machine_with_everything_gets_the_name_of_its_python(machine: Machine) -> None:
    # given a machine with exactly what is needed
    machine.has_python("3.11")
    machine.has_java("17.0.15")
    # when we look
    result = machine.preflight()
    # then it is told which Python will be used, and nothing else
    assert (result.returncode, result.stdout, result.stderr) == (0, "python3\n", "")
    # and of Java nothing
    result = machine.preflight("java")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_java_a_venv_can_be_made(machine: Machine) -> None:
    machine.has_python("3.11")
    assert machine.preflight().stdout == "python3\n"


def test_missing_java_is_named_in_the_first_line_with_the_way_to_get_it(machine: Machine) -> None:
    result = machine.preflight("java")
    assert result.returncode == 1
    needed = "lowmark: Java 17 or newer is needed for the tests on Spark, found none: install"
    assert first_line(result).startswith(needed)
    assert "apt-get install openjdk-17-jre-headless" in first_line(result)


def test_all_suites_ask_for_java_before_anything_else_and_the_tour_does_not() -> None:
    makefile = (REPO / "Makefile").read_text()
    needs = dict(re.findall(r"^([a-z-]+):([^#=\n]*)##", makefile, re.MULTILINE))
    for suite in ("test", "test-all", "check"):
        assert needs[suite].split()[0] == "java"
    assert needs["quickstart"].split() == ["$(READY)"]
    assert re.search(r"^java:\n\t@scripts/preflight.sh java$", makefile, re.MULTILINE)


def test_an_argument_that_is_not_known_is_refused(machine: Machine) -> None:
    result = machine.preflight("jaba")
    assert (result.returncode, result.stdout) == (1, "")
    assert "jaba" in first_line(result)


@pytest.mark.parametrize(
    ("version", "named"),
    [("11.0.22", "11"), ("1.8.0_412", "8"), ("16", "16"), ("9-internal", "9")],
)
def test_java_that_is_too_old_is_named_by_its_version(
    machine: Machine, version: str, named: str
) -> None:
    machine.has_java(version)
    result = machine.preflight("java")
    assert result.returncode == 1
    assert f"Java 17 or newer is needed for the tests on Spark, found {named}:" in first_line(
        result
    )


@pytest.mark.parametrize("version", ["17", "21.0.1", "25-ea"])
def test_newer_java_will_do(machine: Machine, version: str) -> None:
    machine.has_java(version)
    assert machine.preflight("java").returncode == 0


def test_java_home_comes_before_the_path(machine: Machine, tmp_path: Path) -> None:
    # given an old Java on the PATH and a new one at JAVA_HOME
    machine.has_java("11.0.22")
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    Machine(home / "bin").has_java("21.0.1")
    # then the new one counts
    assert machine.preflight("java", JAVA_HOME=str(home)).returncode == 0


def test_missing_python_is_named_in_the_first_line_with_the_way_to_get_it(machine: Machine) -> None:
    result = machine.preflight()
    assert result.returncode == 1
    assert first_line(result).startswith("lowmark: Python 3.11 or newer is needed, found none:")
    assert "apt-get install python3" in first_line(result)


@pytest.mark.parametrize("version", ["3.10", "3.9", "2.7"])
def test_python_that_is_too_old_is_named_by_its_version(machine: Machine, version: str) -> None:
    machine.has_python(version)
    result = machine.preflight()
    assert result.returncode == 1
    assert f"Python 3.11 or newer is needed, found {version}:" in first_line(result)


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine) -> None:
    # given a python3 that is too old, and a newer one under its own name
    machine.has_python("3.9")
    machine.has_python("3.12", name="python3.12")
    # then the newer one is used
    assert machine.preflight().stdout == "python3.12\n"


def test_a_python_asked_for_by_name_is_refused_rather_than_replaced(machine: Machine) -> None:
    # given a good python3, and a wish for an older one
    machine.has_python("3.12")
    machine.has_python("3.10", name="python3.10")
    # when we look
    result = machine.preflight(PYTHON="python3.10")
    # then the wish is refused, not quietly passed over
    assert result.returncode == 1
    assert "found 3.10:" in first_line(result)


def test_python_without_venv_is_told_which_package_brings_it(machine: Machine) -> None:
    machine.has_python("3.11", venv=False)
    result = machine.preflight()
    assert result.returncode == 1
    assert first_line(result).startswith("lowmark: Python's venv module is needed")
    assert "apt-get install python3-venv" in first_line(result)


def test_the_lock_names_no_place_it_was_made_at() -> None:
    # The lock must mean the same on every machine: no index, no folder, nothing without a hash.
    lines = (REPO / "requirements.lock").read_text().splitlines()
    requirements = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert all("==" in line and line.endswith("\\") for line in requirements)
    assert not [line for line in lines if "://" in line or line.startswith("-")]
