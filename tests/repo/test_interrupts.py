"""Ctrl-C in tests, however the suite was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASKED = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_processes_that_tests_start_can_be_interrupted() -> None:
    ran = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


@pytest.mark.slow
def test_they_can_also_if_the_suite_ignores_interrupts() -> None:
    # given a suite that was started in the background, with the test above in it
    test = f"{Path(__file__)}::{test_processes_that_tests_start_can_be_interrupted.__name__}"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    # when it runs, then that test passes
    ran = subprocess.run(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout
