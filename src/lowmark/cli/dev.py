"""`lowmark serve --dev N`: a cluster on this machine, for people who want to try one.

Each node is a process of its own, as by `lowmark serve`: it can be killed and started by hand
while the others go on. A second start with the same directory finds its nodes there again; they
are started together, since none of them is ready before a majority is.

With TLS, an authority in a directory of its own issues what they need: it is on the machine of the
nodes, where the authority of a cluster that matters is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from lowmark.cli.session import wrong_use
from lowmark.cli.tls import needed
from lowmark.errors import Rejected, Unavailable
from lowmark.formatting import counted, verb
from lowmark.node.first_token import PATH as FIRST_TOKEN
from lowmark.runtime import host_and_port
from lowmark.runtime.certificates import WARN_DAYS
from lowmark.runtime.network import TLS_SCHEME

NODES_MAX: Final = 9
_STOP_S = 15.0


def serve_dev(
    count: int, data: str, listen: str, *, tls: str = "", tokens: bool = False, as_json: bool
) -> None:
    """Run nodes until Ctrl-C or SIGTERM, or until all have ended. `tls`: the directory of their
    authority.
    """
    with wrong_use():
        if not 1 <= count <= NODES_MAX:
            raise Rejected(f"--dev {count} is too many or too few", hint=f"Use 1 to {NODES_MAX}.")
        addresses = _addresses(listen, count)
    if tls:
        _issue(tls, [f"n{at}" for at in range(1, count + 1)], host_and_port(listen)[0])
    token_file = str(Path(data) / "n1" / FIRST_TOKEN) if tokens else ""
    cluster = _Cluster(tls, token_file)

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        cluster.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        nodes = [
            (f"n{at}", Path(data) / f"n{at}", address) for at, address in enumerate(addresses, 1)
        ]
        known = [node for node in nodes if node[1].exists()]
        for node in known:
            cluster.start(*node)
        first = ""
        for node in [*known, *(one for one in nodes if one not in known)]:
            if node not in known:
                cluster.start(*node, join=first)
            facts = cluster.ready(node[0])
            if facts is None:
                break
            first = first or str(facts["listen"])
            _say(facts, as_json=as_json)
        else:
            if not as_json:
                up = f"{counted(count, 'node')} {verb(count, 'are')} up. Ctrl-C ends all of them."
                words = ["--node", f"{TLS_SCHEME if tls else ''}{first}"]
                words += ["--ca", f"{tls}/ca.pem"] if tls else []
                words += ["--token-file", token_file] if tokens else []
                print(f"{up} Try: lowmark status {shlex.join(words)}", flush=True)
        cluster.wait()
    finally:
        cluster.stop()
        cluster.wait()


def _addresses(listen: str, count: int) -> list[str]:
    """Where clients reach each node: every second port, since nodes reach it at the next one."""
    host, port = host_and_port(listen)
    if not port:
        raise Rejected(
            "--dev needs a port to begin with: nodes look for each other where they were last",
            hint="Write --listen 127.0.0.1:6570.",
        )
    shown = f"[{host}]" if ":" in host else host
    return [f"{shown}:{port + 2 * at}" for at in range(count)]


def _issue(folder: str, names: list[str], host: str) -> None:
    """A certificate for each node that has none for this host, or one that ends soon, by an
    authority that is made if there is none.
    """
    with needed():
        from lowmark.authority import Authority  # noqa: PLC0415 (it is optional)
    there = (Path(folder) / "ca.key").exists() and (Path(folder) / "ca.pem").exists()
    authority = Authority.of(folder) if there else Authority.found(folder)
    soon_ms = (time.time() + WARN_DAYS * 86_400) * 1_000
    for name in names:
        before = authority.issued(name)[-1:]
        good = [one for one in before if one.hosts == (host,) and one.ends_at_ms > soon_ms]
        if not good or not (Path(folder) / name / "cert.pem").exists():
            authority.issue(name, [host])


def _say(facts: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, ensure_ascii=False), flush=True)
    else:
        where = f"{facts['name']} listens at {facts['listen']}, data in {facts['data']}"
        print(f"{where}, process {facts['pid']}", flush=True)


class _Cluster:
    """The nodes' processes."""

    def __init__(self, tls: str, token_file: str) -> None:
        self._tls = tls
        self._token_file = token_file
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stopping = False

    def start(self, name: str, data: Path, listen: str, *, join: str = "") -> None:
        """Start a node."""
        words = ["serve", "--data", str(data), "--listen", listen, "--name", name, "--json"]
        words += ["--tls", f"{self._tls}/{name}"] if self._tls else []
        words += ["--tokens"] if self._token_file else []
        words += ["--join", join] if join else []
        words += ["--token-file", self._token_file] if join and self._token_file else []
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "lowmark", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches all processes of a terminal's group: here one stops the others.
            start_new_session=True,
        )

    def ready(self, name: str) -> dict[str, object] | None:
        """Wait until a node is ready, and give what it says; None if it was stopped meanwhile."""
        process = self._processes[name]
        assert process.stdout is not None
        said = process.stdout.readline()
        if self._stopping:
            return None
        if not said:
            raise Unavailable(
                f"node {name} did not start",
                detail="See the node's output above.",
                hint="Fix the cause, then start again.",
            )
        facts: dict[str, object] = json.loads(said)
        threading.Thread(target=self._look_after, args=(name, process), daemon=True).start()
        return facts

    def _look_after(self, name: str, process: subprocess.Popen[str]) -> None:
        ended = process.wait()
        if not self._stopping:
            print(f"{name} has ended ({ended}); the others go on", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Have all nodes end in good order: the last ones first, which lead no metastore."""
        self._stopping = True
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)

    def wait(self) -> None:
        """Until all have ended."""
        for process in self._processes.values():
            try:
                process.wait(_STOP_S if self._stopping else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
