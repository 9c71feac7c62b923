"""The guide for three machines: its commands, as they stand there, on hosts with those names."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from hosts.hosts import Host, Hosts, why_none
from hosts.store import ObjectStore

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "three-machines.md").read_text()
READY_S = 120.0
LOWMARK = f'set -e\nlowmark() {{ {sys.executable} -m lowmark "$@"; }}\n'


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


EXPORTS = "\n".join(block("sh client").splitlines()[:2])


class Machines:
    """Hosts with the guide's names, behind the guide's firewall, and its store."""

    def __init__(self, hosts: Hosts, store: ObjectStore) -> None:
        self._hosts, self._store = hosts, store
        self._up: dict[Host, subprocess.Popen[str]] = {}
        self.client = hosts.add("client")
        self._token = ""
        self.run(f"cd {self.client.folder}\n{block('sh authority')}")
        shutil.copy(self.client.folder / "tls" / "ca.pem", self.client.folder / "ca.pem")

    def start(self, name: str) -> Host:
        """A machine, and its node by the guide's command; when it is ready."""
        host = self._hosts.add(name)
        host.run("nft", "-f", "-", given=block("nft"))
        folder = self.client.folder / "tls" / name
        if not folder.exists():  # a machine that replaces another one
            self.run(f"lowmark tls issue {folder.parent} {name} --host {name}")
        shutil.copytree(folder, host.folder / "tls")
        if self._token:
            (host.folder / "admin.token").write_text(self._token)
        text = self._there(block(f"sh {name}"), host)
        place = re.search(r'"(s3://.*?)"', text)
        if place is not None:
            text = text.replace(place[1], self._store.location("shop"))
        process = subprocess.Popen(
            host.command(["sh", "-c", LOWMARK + text]), stdout=subprocess.PIPE, text=True
        )
        self._up[host] = process
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"{name} listens at")
        if not self._token:
            self._token = (host.folder / "data" / "admin.token").read_text()
            (self.client.folder / "admin.token").write_text(self._token)
        return host

    def _there(self, text: str, host: Host) -> str:
        """With the paths that a machine has here."""
        text = text.replace("/var/lib/lowmark", str(host.folder / "data"))
        return text.replace("/etc/lowmark", str(host.folder))

    def lose(self, host: Host) -> None:
        self._hosts.remove(host)  # with all that runs there: the shell's child, too
        self._up.pop(host).communicate()

    def run(self, script: str) -> str:
        """A script, where the client is."""
        return self.client.run("sh", "-c", LOWMARK + self._there(script, self.client))

    def json(self, *words: str) -> Any:
        return json.loads(self.run(f"{EXPORTS}\nlowmark {' '.join(words)} --json"))

    def python(self, program: str) -> str:
        return self.run(f"{EXPORTS}\n{sys.executable} - <<'END'\n{program}\nEND\n")

    def close(self) -> None:
        for host in list(self._up):
            self.lose(host)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    with Hosts(tmp_path) as hosts, ObjectStore(hosts) as store:
        machines = Machines(hosts, store)
        try:
            yield machines
        finally:
            machines.close()


@pytest.mark.slow
@pytest.mark.release  # `e2e/test_guide_cluster` has the commands of a cluster on loopback
def test_three_machines_are_set_up_and_one_is_replaced(machines: Machines) -> None:
    # given the nodes, each by its command
    db1, _, db3 = [machines.start(name) for name in ("db1", "db2", "db3")]
    # when the other commands are run, and the program
    machines.run(block("sh client"))
    machines.python(block("python"))
    # then all nodes are up, and have every partition
    status = machines.json("status")
    assert [(row["name"], row["up"], row["problem"]) for row in status["nodes"]] == [
        (name, True, "") for name in ("db1", "db2", "db3")
    ]
    assert status["warnings"] == []
    held = {row["node"]: row["partitions"] for row in machines.json("node", "list")}
    assert len(set(held.values())) == 1
    # and the firewall keeps all other ports closed
    with db1.socket(socket.SOCK_STREAM) as server:
        server.bind((db1.address, 0))
        server.listen()
        with machines.client.socket(socket.SOCK_STREAM) as stranger:
            stranger.settimeout(0.2)
            with pytest.raises(TimeoutError):
                stranger.connect(server.getsockname())
    # when a machine is lost, then the others go on
    machines.lose(db3)
    machines.python(block("python").replace('"id": 1', '"id": 2'))
    # and a new one gets what it held
    machines.start("db4")
    machines.run(block("sh replaced"))

    def replaced() -> bool:
        found = {row["node"]: row["partitions"] for row in machines.json("node", "list")}
        return found == dict.fromkeys(("db1", "db2", "db4"), held["db1"])

    eventually(replaced, deadline_s=READY_S)
    eventually(lambda: not machines.json("rebalance", "status")["moves"], deadline_s=READY_S)
    count = 'import lowmark\nprint(lowmark.connect("lowmark+tls://db4:6570")["orders"].count())'
    assert machines.python(count).strip() == "2"


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "lowmark.service"
    program = f"{tmp_path}/lowmark"
    unit.write_text(block("ini").replace("/opt/lowmark/bin/lowmark", program))
    Path(program).touch(mode=0o755)
    found = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_unit_serves_as_the_commands_do() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block("ini"))
    served = unit["Service"]["ExecStart"].replace("/opt/lowmark/bin/", "").replace("%H", "db2")
    shown = block("sh db2").partition(" \\\n")[0].replace("--name db2 ", "")
    assert served.removesuffix(" $JOIN") == shown
