"""A bridge and the hosts at it.

    with Hosts(folder) as hosts:
        one, two = hosts.add("one"), hosts.add("two")
        subprocess.run(one.command(["lowmark", "serve", "--listen", f"{one.address}:6570", …]))

A host has an address (IPv4 and IPv6), a name that all hosts know, and a folder: of the folder of
all hosts it sees its own, and what they share, and nothing else. The rest of the machine's files
are there in every host: the programs, and the tests.

                 ┌───────────── bridge ─────────────┐
                 │  h1          h2          h3      │     a network of its own, without a process
                 └──┼───────────┼───────────┼───────┘
    one: eth0 ──────┘           │           └────── eth0 :three
                               eth0 :two
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from eventually import eventually
from hosts.delay import TUN, Relay, has_netem
from lowmark.errors import Unavailable, invariant

HOSTS_MAX = 64
TOOLS = {
    "ip": "iproute2",
    "bridge": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
}
"""What is run, and the Debian packages that have it."""
BRIDGE = "bridge"

_NETWORK, _NETWORK_6 = "10.77.0", "fd77:"
_CLONE_NEWNET = 0x40000000
_SAID_S = 60.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class HostsUnavailable(Unavailable):
    """Hosts can't be made here, or something in one of them failed."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Those of a host, as files that others open."""

    net: str
    mnt: str
    uts: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, inside."""
        return [_nsenter(), f"--net={self.net}", f"--mount={self.mnt}", f"--uts={self.uts}", *words]

    def run(self, *words: str, given: str = "") -> str:
        """Run a command inside, to its end; what it said."""
        return run(*self.command(words), given=given)


@dataclass(frozen=True, slots=True)
class Host:
    """A host at the bridge."""

    name: str
    number: int
    address: str
    address_6: str
    port: str
    """Its port at the bridge."""
    folder: Path
    """Its files, by the same path inside and outside; the other hosts do not see them."""
    namespaces: Namespaces
    relay: Relay | None

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, in this host: it is entered first, and the process stays the same."""
        return self.namespaces.command(words)

    def run(self, *words: str, given: str = "") -> str:
        """Run a command in this host, to its end; what it said."""
        return self.namespaces.run(*words, given=given)

    def socket(
        self, kind: socket.SocketKind, family: socket.AddressFamily = socket.AF_INET
    ) -> socket.socket:
        """A socket in this host's network, for a process that is not in this host."""
        with open("/proc/thread-self/ns/net", "rb") as here:
            self.enter()
            try:
                return socket.socket(family, kind)
            finally:
                _enter(here.fileno())

    def enter(self) -> None:
        """Have this thread, and every thread and process that it starts from now on, in this host's
        network. Only a process that has one thread is in it as a whole.
        """
        with open(self.namespaces.net, "rb") as there:
            _enter(there.fileno())


class Hosts:
    """All hosts of one bridge, in a folder; they end with the `with`, and all that runs in them."""

    def __init__(self, folder: Path, *, shared: Sequence[Path] = ()) -> None:
        """Every host sees the folders that are `shared`, as by a file system in the network."""
        self.folder = folder
        self.bridge: Namespaces
        self._shared = list(shared)
        self._hosts: dict[str, Host] = {}
        self._names = folder / "names"
        self._keeper: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self._write_names()
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.bridge = self._make(BRIDGE, hidden="", seen=[])
            self.bridge.run("ip", "-batch", "-", given=_batch(_BRIDGE))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def add(
        self,
        name: str = "",
        *,
        folder: Path | None = None,
        hidden: Path | None = None,
        shared: Sequence[Path] = (),
        delay_ms: float = 0.0,
        by_relay: bool | None = None,
    ) -> Host:
        """A host more. Of what is `hidden`, it sees its own folder and what is `shared`; else the
        folder is hidden that has its own one. What leaves it arrives `delay_ms` later; by the relay
        if `netem` is not there, unless it is said which of them.
        """
        taken = {host.number for host in self._hosts.values()}
        number = next(one for one in range(1, HOSTS_MAX + 2) if one not in taken)
        invariant(number <= HOSTS_MAX, f"there are no more than {HOSTS_MAX} hosts at once")
        name, port = name or f"host-{number}", f"h{number}"
        invariant(name not in self._hosts and name != BRIDGE, f"one host is called {name}")
        folder = folder or self.folder / name
        folder.mkdir(exist_ok=True)
        address, address_6 = f"{_NETWORK}.{number}", f"{_NETWORK_6}:{number}"
        seen = [str(one) for one in (folder, *self._shared, *shared)]
        inside = self._make(name, hidden=str(hidden or folder.parent), seen=seen)
        relay = None
        if delay_ms and (by_relay if by_relay is not None else not has_netem(self.bridge.run)):
            relay = Relay(inside.net, self.bridge.net, port=port, delay_ms=delay_ms)
        else:
            cable = f"link add {port} type veth peer name eth0 netns {inside.net}"
            self.bridge.run("ip", "-batch", "-", given=_batch([cable]))
        self.bridge.run("ip", "-batch", "-", given=_batch(_PORT, port=port))
        words = _batch(_HOST, address=address, address_6=address_6, number=f"{number:02x}")
        inside.run("ip", "-batch", "-", given=words)
        if delay_ms and relay is None:
            late = f"qdisc add dev eth0 root handle 1: netem delay {delay_ms:g}ms limit 100000"
            inside.run("tc", *late.split())
        # A bridge may hear of a carrier a second late, and loses what comes before.
        eventually(lambda: "state forwarding" in self.bridge.run(*_SHOWN, port))
        host = Host(name, number, address, address_6, port, folder, inside, relay)
        self._hosts[name] = host
        self._write_names()
        return host

    def remove(self, host: Host) -> None:
        """Take a host away, with all that runs in it; its folder stays."""
        del self._hosts[host.name]
        if host.relay is None:  # the kernel would come to it later
            self.bridge.run("ip", "link", "delete", host.port)
        self._ask({"call": "end", "names": [host.name]})
        if host.relay is not None:
            host.relay.close()
        self._write_names()

    def _write_names(self) -> None:
        # The same file: it is `/etc/hosts` of all hosts.
        lines = [f"{host.address} {host.name}\n" for host in self._hosts.values()]
        lines += [f"{host.address_6} {host.name}\n" for host in self._hosts.values()]
        self._names.write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(lines))

    def _make(self, name: str, *, hidden: str, seen: list[str]) -> Namespaces:
        asked = {"call": "make", "name": name, "hidden": hidden, "seen": seen}
        found = self._ask({**asked, "names": str(self._names) if hidden else ""})
        files = {kind: f"/proc/{self._keeper.pid}/fd/{file}" for kind, file in found.items()}
        return Namespaces(**files)

    def _ask(self, asked: dict[str, object]) -> dict[str, Any]:
        to, back = self._keeper.stdin, self._keeper.stdout
        assert to is not None
        assert back is not None
        to.write(json.dumps(asked) + "\n")
        to.flush()
        answer: dict[str, Any] = json.loads(back.readline() or '{"error": "its keeper died"}')
        if "error" in answer:
            raise HostsUnavailable(f"{asked} failed", detail=answer["error"])
        return answer

    def _end(self) -> None:
        relays = [host.relay for host in self._hosts.values() if host.relay is not None]
        self._hosts.clear()
        # The keeper ends when nobody can ask it any more, and what runs in the hosts before it.
        with contextlib.suppress(BrokenPipeError):
            self._keeper.communicate(timeout=_SAID_S)
        for relay in relays:
            relay.close()
        if self._keeper.returncode:
            raise HostsUnavailable(f"the keeper of hosts ended with {self._keeper.returncode}")


_SHOWN = ("bridge", "link", "show", "dev")
_BRIDGE = (
    "link set lo up",
    "link add bridge type bridge",
    "link set bridge up",
)
_PORT = (
    "link set {port} master bridge",
    "link set {port} up",
)
_HOST = (
    "link set lo up",
    # The same for each host of that number: others remember who has an address.
    "link set eth0 address 02:00:00:00:00:{number}",
    "link set eth0 up",
    "address add {address}/24 dev eth0",
    "address add {address_6}/64 dev eth0 nodad",
)


def _batch(lines: Sequence[str], **words: str) -> str:
    return "".join(line.format(**words) + "\n" for line in lines)


def run(*words: str, given: str = "") -> str:
    """Run a command to its end; what it said. Raises with its error."""
    try:
        found = subprocess.run(
            words, input=given, capture_output=True, text=True, timeout=_SAID_S, check=False
        )
    except FileNotFoundError as error:
        raise HostsUnavailable(f"{words[0]} is not installed") from error
    if found.returncode != 0:
        said = (found.stderr or found.stdout).strip()
        raise HostsUnavailable(f"{' '.join(words)} failed", detail=f"{said} {given}".strip())
    return found.stdout


@functools.cache
def _nsenter() -> str:
    return shutil.which("nsenter") or "nsenter"


def _enter(net: int) -> None:
    if _LIBC.setns(net, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


@functools.cache
def why_none() -> str:
    """Why no hosts can be made here; empty, if they can."""
    missing = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if missing:
        return f"install {', '.join(sorted(missing))} (Debian's names)"
    if os.geteuid() != 0:
        return "it takes root to make network namespaces"
    if not Path(TUN).exists():
        return f"there is no {TUN}"
    with tempfile.TemporaryDirectory(prefix="lowmark-hosts-") as folder:
        try:
            with Hosts(Path(folder)) as hosts:
                one, two = hosts.add("one"), hosts.add("two")
                hosts.bridge.run("nft", "-f", "-", given="table bridge trial { }")
                _meet(one, two)
        except (OSError, Unavailable) as error:
            return f"namespaces can't be made here: {error}"
    return ""


def _meet(one: Host, two: Host) -> None:
    with one.socket(socket.SOCK_STREAM) as server, two.socket(socket.SOCK_STREAM) as client:
        server.bind((one.address, 0))
        server.listen()
        client.settimeout(_SAID_S)
        client.connect(server.getsockname())
