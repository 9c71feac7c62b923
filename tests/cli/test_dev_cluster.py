"""`lowmark serve --dev N`: a cluster by one command."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowmark
from clusters.ports import free_ports
from eventually import eventually
from lowmark.cli.app import app

PATIENT = {"LOWMARK_GROUP_REQUEST_TIMEOUT_MS": "60000"}


def dev(data: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lowmark", "serve", "--data", str(data), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | PATIENT
    )


def free_base() -> str:
    """A port such that the next three are free, too."""
    return f"127.0.0.1:{free_ports(4, adjacent=True)[0]}"


def said(process: subprocess.Popen[str], lines: int) -> list[dict[str, object]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(lines)]


def gone(pid: object) -> bool:
    assert isinstance(pid, int)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_one_command_starts_a_cluster_and_ends_it_and_it_is_there_again(tmp_path: Path) -> None:
    # given two nodes by one command
    listen = free_base()
    process = dev(tmp_path, "--dev", "2", "--listen", listen, "--json")
    try:
        nodes = said(process, 2)
        with lowmark.connect(str(nodes[1]["listen"]), timeout_s=60) as db:
            orders = db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
            orders.append([{"id": 1}])
        # when it is interrupted, then all of them end
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
        eventually(lambda: all(gone(node["pid"]) for node in nodes))
        # and a second start finds what was there
        process = dev(tmp_path, "--dev", "2", "--listen", listen)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in nodes]
        # and says in words, too, which processes they are
        found = [
            re.fullmatch(r"(n\d) listens at (\S+), data in .*, process (\d+)\n", line)
            for line in lines
        ]
        nodes = [{"listen": one[2], "pid": int(one[3])} for one in found if one is not None]
        assert [gone(node["pid"]) for node in nodes] == [False, False]
        assert "2 nodes are up" in process.stdout.readline()
        with lowmark.connect(str(nodes[0]["listen"]), timeout_s=60) as db:
            assert db["orders"].get(1) == {"id": 1}
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
        eventually(lambda: all(gone(node["pid"]) for node in nodes))
    finally:
        process.terminate()  # it ends its nodes
        process.communicate()


@pytest.mark.slow
@pytest.mark.release  # shorter: the test above, and tests/server/test_tls.py
def test_the_nodes_of_one_command_may_have_tls_and_tokens(tmp_path: Path) -> None:
    tls, data = tmp_path / "tls", tmp_path / "data"
    words = ("--dev", "2", "--listen", free_base(), "--tls", str(tls), "--tokens")
    certificates = []
    for _ in range(2):  # and it starts again with what was made
        process = dev(data, *words)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            # the command that it shows works
            assert "2 nodes are up" in lines[-1], lines
            shown = shlex.split(lines[-1].partition("Try: lowmark ")[2])
            done = CliRunner().invoke(app, [*shown, "--json"])
            assert done.exit_code == 0, done.output
            nodes = json.loads(done.stdout)["nodes"]
            assert [(node["name"], node["up"]) for node in nodes] == [("n1", True), ("n2", True)]
            # and no one gets in without the token, or without the authority
            where = ["--node", nodes[1]["door"], "--ca", str(tls / "ca.pem")]
            refused = CliRunner().invoke(app, ["status", *where])
            assert "asks for a token" in refused.stderr
            where = ["--node", nodes[1]["door"].removeprefix("lowmark+tls://")]
            refused = CliRunner().invoke(app, ["status", *where])
            assert "speaks TLS" in refused.stderr
            certificates.append((tls / "n2" / "cert.pem").read_bytes())
        finally:
            process.terminate()
            process.communicate()
    assert certificates[0] == certificates[1]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--dev", "0"), "too few"),
        (("--dev", "10"), "too many"),
        (("--dev", "2", "--join", "127.0.0.1:1"), "--dev starts nodes of its own"),
        (("--dev", "2", "--listen", "8.8.8.8:1"), "loopback"),
        (("--dev", "2", "--listen", "8.8.8.8:1", "--tokens"), "no TLS"),
        (("--dev", "2", "--tls", "t", "--tls-mode", "allow"), "--dev starts nodes of its own"),
        (("--dev", "2", "--listen", "127.0.0.1:0"), "needs a port"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: tuple[str, ...], wrong: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "d"), *words])
    assert done.exit_code == 2
    assert wrong in done.stderr
    assert not (tmp_path / "d").exists()
