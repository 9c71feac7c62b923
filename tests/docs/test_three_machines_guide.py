"""The guide for three machines: its commands, as they stand there, on hosts with those names."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from hosts.hosts import Host, Hosts, HostsUnavailable, why_none
from hosts.store import ObjectStore

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "three-machines.md").read_text()
READY_S = 120.0
LOWMARK = f'set -e\nlowmark() {{ {sys.executable} -m lowmark "$@"; }}\n'


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


def at(host: Host, text: str) -> str:
    """Commands as they are on a host whose files are in a folder of its own."""
    return text.replace("/etc/lowmark", str(host.folder / "etc"))


def _give_token(host: Host, token: str) -> None:
    file = host.folder / "etc" / "token"
    file.touch(mode=0o600)
    file.write_text(token)


class Machines:
    """Hosts with the guide's names, behind the guide's firewall, and its store."""

    def __init__(self, hosts: Hosts, store: ObjectStore) -> None:
        self._hosts, self._store = hosts, store
        self._up: dict[Host, subprocess.Popen[str]] = {}
        self._token: str | None = None
        self.client = hosts.add("client")
        (self.client.folder / "etc").mkdir()
        self.run(f"cd {self.client.folder}\n{block('sh authority')}")
        shutil.copy(self.client.folder / "tls" / "ca.pem", self.client.folder / "etc")

    def start(self, name: str, *, node: str = "") -> Host:
        """A machine, and its node by the guide's commands; when it is ready."""
        host = self._hosts.add(name)
        host.run("nft", "-f", "-", given=block("nft"))
        text = at(host, block(f"sh {name}")).replace("/var/lib/lowmark", str(host.folder / "data"))
        # given its certificates, and the token, where the guide has them copied to
        shutil.copytree(self.client.folder / "tls" / name, host.folder / "etc" / "tls")
        if self._token is not None:
            _give_token(host, self._token)
        place = re.search(r'"(s3://.*?)"', text)
        if place is not None:
            text = text.replace(place[1], self._store.location("shop"))
        process = subprocess.Popen(
            host.command(["sh", "-c", LOWMARK + text]), stdout=subprocess.PIPE, text=True
        )
        self._up[host] = process
        assert process.stdout is not None
        ready = f"{node or name} listens at"
        assert any(line.startswith(ready) for line in process.stdout)
        if self._token is None:
            self._token = (host.folder / "data" / "admin.token").read_text()
            _give_token(self.client, self._token)
        return host

    def lose(self, host: Host) -> None:
        self._hosts.remove(host)  # with all that runs there: the shell's child, too
        self._up.pop(host).communicate()

    def run(self, script: str) -> str:
        """A script, where the client is."""
        return self.client.run("sh", "-c", LOWMARK + at(self.client, script))

    def tried(self, language: str) -> bool:
        """Whether commands of the guide do what they should by now."""
        try:
            self.run(f"{self.export}\n{block(language)}")
        except HostsUnavailable:
            return False
        return True

    def json(self, *words: str) -> Any:
        return json.loads(self.run(f"{self.export}\nlowmark {' '.join(words)} --json"))

    @property
    def export(self) -> str:
        """Where the nodes are, and what is shown to them."""
        return block("sh").partition("\n")[0]

    def python(self, program: str) -> str:
        return self.run(f"{self.export}\n{sys.executable} -c {shlex.quote(program)}")

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
    machines.run(block("sh"))
    machines.python(block("python"))
    # then all nodes are up, and have every partition
    status = machines.json("status")
    assert [(row["name"], row["up"], row["problem"]) for row in status["nodes"]] == [
        (name, True, "") for name in ("db1", "db2", "db3")
    ]
    assert status["warnings"] == []
    # and a client without the token is not let in
    machines.run(f"{machines.export}\n{block('sh token')}")
    with pytest.raises(HostsUnavailable, match="asks for a token"):
        machines.run(f"{machines.export}\nunset LOWMARK_TOKEN_FILE\nlowmark status")
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
    # and a new one takes its place, with its name and what it held
    eventually(lambda: machines.tried("sh lost"), deadline_s=READY_S)
    assert "no row is lost" in machines.run(f"{machines.export}\n{block('sh lost')}")
    machines.start("db4", node="db3")
    machines.run(block("sh replaced"))

    def replaced() -> bool:
        found = {row["node"]: row["partitions"] for row in machines.json("node", "list")}
        return found == dict.fromkeys(("db1", "db2", "db3"), held["db1"])

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
    shown = (
        block("sh db2").splitlines()[-1].replace("--name db2 ", "").replace(" --join db1:6570", "")
    )
    assert served.removesuffix(" $JOIN") == shown
