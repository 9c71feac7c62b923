"""Hosts on one machine: what they reach and see, and that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusters.processes import Children
from eventually import eventually
from hosts import hosts as module
from hosts.hosts import Host, Hosts, HostsUnavailable, why_none
from hosts.talking import Datagrams, Line
from lowmark.errors import InvariantBroken
from spark.processes import is_alive


def test_hosts_reach_each_other_by_address_and_by_name(pair: tuple[Host, Host]) -> None:
    one, two = pair
    with Line(one, two) as line:
        line.round()
    with Datagrams(two, one, socket.AF_INET6) as datagrams:
        datagrams.send()
        eventually(lambda: datagrams.heard == 1)
    # and they have names, their own and each other's
    assert one.run("hostname").strip() == "one"
    assert one.run("getent", "ahosts", "two").split()[0] in {two.address, two.address_6}


def test_a_host_reaches_nothing_but_hosts(pair: tuple[Host, Host]) -> None:
    one, _ = pair
    # given a server of this machine, then a host does not reach it: its loopback is another one
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        one.socket(socket.SOCK_STREAM) as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect(server.getsockname())
    # nor anything else that is not at its bridge
    with one.socket(socket.SOCK_STREAM) as client, pytest.raises(OSError, match="unreachable"):
        client.connect(("192.0.2.1", 80))


def test_a_host_sees_its_own_files_and_those_that_are_shared(tmp_path: Path) -> None:
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    for name in ("shared", "apart"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with Hosts(tmp_path, shared=[tmp_path / "shared"]) as hosts:
        one, two = hosts.add("one"), hosts.add("two")
        (two.folder / "mine").write_text("two")
        # then of the folder of all hosts it has its own and the shared one, by the same paths
        assert set(one.run("ls", str(tmp_path)).split()) == {"one", "shared"}
        assert one.run("cat", str(tmp_path / "shared" / "file")) == "shared"
        one.run("touch", str(one.folder / "made"), str(tmp_path / "shared" / "made"))
        assert (one.folder / "made").exists()
        assert two.run("ls", str(tmp_path / "shared")).split() == ["file", "made"]
        with pytest.raises(HostsUnavailable, match="failed"):
            one.run("cat", str(two.folder / "mine"))


def test_a_process_in_a_host_is_started_and_killed_like_any_other(
    hosts: Hosts, tmp_path: Path
) -> None:
    one = hosts.add("one")
    with Children(tmp_path) as children:
        program = children.start_program(
            one.command(
                [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(99)"]
            ),
            name="sleeps",
        )
        eventually(lambda: program.said() == "1")
        assert network_of(program.pid) == os.stat(one.namespaces.net).st_ino
        program.kill()
        assert not is_alive(program.pid)


def test_what_runs_in_a_host_ends_with_it(hosts: Hosts) -> None:
    # given processes of two hosts that have left the session and the parent that they had
    one, two = hosts.add("one"), hosts.add("two")
    first, second = left_running(one), left_running(two)
    # when one host is taken away, then its processes end, and no others
    hosts.remove(one)
    assert not is_alive(first)
    assert is_alive(second)
    # and the other host is as it was, and another one takes the name
    again = hosts.add("one")
    with Line(two, again) as line:
        line.round()


def test_nothing_is_left_and_the_machine_is_as_it_was(tmp_path: Path) -> None:
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    before = machine()
    with Hosts(tmp_path) as hosts:
        pids = [left_running(hosts.add("one")), left_running(hosts.add("two", delay_ms=1))]
        keeper = Path(hosts.bridge.net).parents[1]
        assert machine() == before
        assert mounts_in(tmp_path) == []
    assert not any(is_alive(pid) for pid in pids)
    assert not keeper.exists()
    assert machine() == before


CRASHES = """
import os, sys, time
from pathlib import Path
from hosts.hosts import Hosts
from hosts.test_hosts import left_running
with Hosts(Path(sys.argv[1])) as hosts:
    one, two = hosts.add("one"), hosts.add("two", delay_ms=1, by_relay=True)
    keeper = Path(hosts.bridge.net).parts[2]
    print(left_running(one), left_running(two), two.relay.pid, keeper, flush=True)
    time.sleep(99)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_killed(
    hosts: Hosts, tmp_path: Path, number: signal.Signals
) -> None:
    # given a run of tests with hosts, beside ours
    one = hosts.add("one")
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHES, str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pids = [int(one) for one in process.stdout.readline().split()]
    assert len(pids) == 4
    assert all(is_alive(pid) for pid in pids)
    networks = {network_of(pid) for pid in pids[:3]}
    # when it is killed, with all of its group
    process.send_signal(number)
    process.communicate()
    # then what ran in its hosts ends, its keeper last, and no process is in their networks
    eventually(lambda: not any(is_alive(pid) for pid in pids))
    left = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
    assert not networks & {network_of(pid) for pid in left}
    # and our hosts are as they were
    with Line(one, hosts.add("two")) as line:
        line.round()


def test_two_runs_beside_each_other_have_the_same_addresses_and_do_not_meet(
    hosts: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with Hosts(tmp_path / "other") as others:
        one, two, other = hosts.add("one"), others.add("two"), others.add("one")
        assert (one.address, one.port) == (two.address, two.port)
        # given a server in one of them
        with one.socket(socket.SOCK_STREAM) as server, other.socket(socket.SOCK_STREAM) as client:
            server.bind((one.address, 0))
            server.listen()
            # then a host of the other finds none at that address
            with pytest.raises(ConnectionRefusedError):
                client.connect(server.getsockname())


def test_there_is_a_limit_and_names_are_given_once(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.add("one")
    with pytest.raises(InvariantBroken, match="one host is called one"):
        hosts.add("one")
    monkeypatch.setattr(module, "HOSTS_MAX", 1)
    with pytest.raises(InvariantBroken, match="no more than 1"):
        hosts.add("two")


def test_where_no_hosts_can_be_made_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("ip", "bridge", "tc", "nsenter"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    why_none.cache_clear()
    try:
        assert why_none() == "install nftables (Debian's names)"
    finally:
        why_none.cache_clear()


def left_running(host: Host) -> int:
    """A process in a host that is nobody's child any more."""
    words = f"setsid sleep 99 >{host.folder}/said 2>&1 & echo $!"
    pid = int(host.run("sh", "-c", words))
    eventually(lambda: network_of(pid) == os.stat(host.namespaces.net).st_ino)
    return pid


def network_of(pid: int) -> int:
    """The number of the network that a process is in."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def machine() -> list[str]:
    """What the machine has: interfaces, addresses, routes, rules, named networks, its name."""
    commands = ("ip -o link", "ip -o -4 address", "ip route", "nft list ruleset", "ip netns")
    found = [module.run(*words.split()) for words in commands]
    return [*found, socket.gethostname()]


def mounts_in(folder: Path) -> list[str]:
    """What is mounted there; other tests beside this one mount things, too."""
    mounts = Path("/proc/self/mounts").read_text()
    return [line for line in mounts.splitlines() if str(folder) in line]
