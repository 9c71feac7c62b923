"""The cluster that the guide shows: its commands, as they stand there, on ports that are free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.ports import free_ports
from eventually import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def free_pair() -> int:
    """A port that is free, and the one after it: nodes take it for each other."""
    return free_ports(2, adjacent=True)[0]


@pytest.fixture
def block() -> str:
    text = (ROOT / "docs" / "guide" / "start.md").read_text()
    parts = re.findall(r"^```sh cluster\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = "\n".join(parts)
    for port in ("6570", "6580", "6590"):
        assert port in shown
        shown = shown.replace(port, str(free_pair()))
    return re.sub(r"\blowmark (?=[a-z])", f"{sys.executable} -m lowmark ", shown)


@pytest.fixture
def serving(block: str, tmp_path: Path) -> Iterator[str]:
    """The nodes of the first block, and the second one."""
    lines = [line for line in block.splitlines() if line.endswith("&")]
    endpoints = [re.findall(r"--listen (\S+)", line)[0] for line in lines]
    processes = [
        subprocess.Popen(line.removesuffix("&").split(), cwd=tmp_path, start_new_session=True)
        for line in lines
    ]
    try:
        named = block.splitlines()[0]
        assert f"LOWMARK_NODE={endpoints[0]} " in named
        yield f"{named}\n{block[block.index('echo') :]}"
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait(30)


def test_the_guide_s_cluster_comes_up_and_takes_a_table(serving: str, tmp_path: Path) -> None:
    def run(script: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-c", script]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, check=False, env=env
        )

    # given the three nodes
    head = serving.splitlines()[0]
    status = f"{head}\n{sys.executable} -m lowmark status --json"
    eventually(lambda: run(status).stdout.count('"up": true') == 3, deadline_s=60)
    # when the commands after them are run; a watch has no end of its own
    script = re.sub(r"meta watch ''.*", "meta watch '' --from 1 --count 1", serving)
    ran = run("set -e\n" + script)
    # then the table is there, and every command has said something
    assert ran.returncode == 0, ran.stderr
    assert "version 2 is in force" in ran.stdout
    assert "created table public.orders" in ran.stdout
    assert "9.50" in ran.stdout
