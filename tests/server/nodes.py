"""A cluster of nodes, each a process of its own, by the command; to be killed, paused, started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import lowmark
from clusters.ports import free_ports
from eventually import suspend
from lowmark.client import Database, Table

COLUMNS = {"id": "int64", "status": "string"}
START_S = 60.0
SETTINGS = {"LOWMARK_GROUP_REQUEST_TIMEOUT_MS": "60000", "LOWMARK_METASTORE_LEASE_MS": "5000"}
"""A machine that is busy with other tests takes its time to elect a leader. A lease ends sooner
than by default: a test waits for that until the others know that a node is gone."""


class Nodes:
    """So many nodes in a folder; they end with the `with`."""

    def __init__(
        self,
        path: Path,
        count: int,
        *,
        started: int | None = None,
        **settings: str,
    ) -> None:
        """With these settings in the environment, besides `SETTINGS`; the first are started."""
        self._path = path
        self._settings = SETTINGS | settings
        ports = free_ports(2 * count)
        self._listen = [f"127.0.0.1:{port}" for port in ports[:count]]
        self._peers = [f"127.0.0.1:{port}" for port in ports[count:]]
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self.more: dict[int, list[str]] = {}
        """Options of nodes besides these."""
        self.ca: str | None = None
        """Whom clients believe, if nodes speak TLS."""
        for number in range(count if started is None else started):
            self.start(number, join=number > 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._processes):
            self.kill(number)

    @property
    def up(self) -> list[int]:
        return sorted(self._processes)

    def start(self, number: int, *, join: bool = False, by: int = 0) -> None:
        """With `join`, by way of another node, the first one unless told otherwise."""
        words = ["serve", "--data", str(self._path / f"n{number}"), "--json"]
        if not (self._path / f"n{number}").exists():  # else it has its name
            words += ["--name", f"n{number}"]
        words += ["--listen", self._listen[number], "--peers", self._peers[number]]
        words += ["--join", self._listen[by]] if join else []
        words += self.more.get(number, [])
        with (self._path / f"n{number}.stderr").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "lowmark", *words, *self.options(join=join)],
                env=os.environ | self._settings,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._processes[number] = process
        assert json.loads(self.line(number))["listen"] == self._listen[number]

    def options(self, *, join: bool) -> list[str]:
        """What else the command says."""
        del join
        return []

    def said(self, number: int) -> str:
        """What a node has said on stderr."""
        return (self._path / f"n{number}.stderr").read_text()

    def line(self, number: int) -> str:
        """What a node says next on stdout: that it is ready."""
        stdout = self._processes[number].stdout
        assert stdout is not None
        said = stdout.readline()
        assert said, f"node {number} did not start"
        return said

    def stop(self, number: int) -> None:
        """In good order."""
        process = self._processes.pop(number)
        process.terminate()
        process.communicate()

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.communicate()

    def pause(self, number: int) -> None:
        suspend(self._processes[number].pid)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    def address(self, number: int) -> str:
        return self._listen[number]

    def connect(self, number: int) -> Database:
        scheme = "lowmark+tls://" if self.ca is not None else ""
        return lowmark.connect(f"{scheme}{self._listen[number]}", ca=self.ca, timeout_s=START_S)

    def open(self, number: int) -> Database:
        """As a guest, by the directory of a node."""
        return lowmark.open(self._path / f"n{number}")

    def number_of(self, address: str) -> int:
        return self._listen.index(address)


def table_of(db: Database, name: str, *, replicas: int, partitions: int = 8) -> Table:
    """A table with so many replicas, in the zone of all such: other tables stay as they are."""
    zone = f"r{replicas}"
    if zone not in db.zones():
        db.create_zone(zone, replicas=replicas)
    return db.create_table(name, COLUMNS, key="id", partitions=partitions, zone=zone)
