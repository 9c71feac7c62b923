"""A cluster of nodes, each a process of its own, by the command; to be killed, paused, started.

They are on loopback, or between hosts (`pytest --hosts`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

import lowmark
from clusters.places import places
from eventually import suspend
from lowmark.client import Database, Table

COLUMNS = {"id": "int64", "status": "string"}
START_S = 60.0
SETTINGS = {"LOWMARK_GROUP_REQUEST_TIMEOUT_MS": "60000", "LOWMARK_METASTORE_LEASE_MS": "5000"}
"""A machine that is busy with other tests takes its time to elect a leader. A lease ends sooner
than by default: a test waits for that until the others know that a node is gone."""


class Nodes:
    """So many nodes in a folder; they end with the `with`."""

    SHARED: ClassVar[Sequence[str]] = ()
    """Folders that all nodes see, also between hosts."""

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
        self._ends = ExitStack()
        folders = [path / f"n{number}" for number in range(count)]
        shared = [path / name for name in self.SHARED]
        for folder in shared:
            folder.mkdir()
        self.places = self._ends.enter_context(places(folders, shared=shared))
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self.more: dict[int, list[str]] = {}
        """Options of nodes besides these."""
        self.ca: str | None = None
        """Whom clients believe, if nodes speak TLS."""
        try:
            for number in range(count if started is None else started):
                self.start(number, join=number > 0)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._processes):
            self.kill(number)
        self._ends.close()

    @property
    def up(self) -> list[int]:
        return sorted(self._processes)

    def start(self, number: int, *, join: bool = False, by: int = 0) -> None:
        """With `join`, by way of another node, the first one unless told otherwise."""
        place, data = self.places[number], self._path / f"n{number}"
        words = ["serve", "--data", str(data), "--json", *place.options]
        if not data.exists() or not any(data.iterdir()):  # else it has its name
            words += ["--name", f"n{number}"]
        words += ["--listen", place.listen, "--peers", place.peers]
        words += ["--join", self.address(by)] if join else []
        words += self.more.get(number, [])
        words += self.options(join=join)
        with (self._path / f"n{number}.stderr").open("ab") as said:
            process = subprocess.Popen(
                place.command([sys.executable, "-m", "lowmark", *words]),
                env=os.environ | place.environment | self._settings,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._processes[number] = process
        assert json.loads(self.line(number))["listen"] == place.listen

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
        return self.places[number].listen

    def connect(self, number: int) -> Database:
        scheme = "lowmark+tls://" if self.ca is not None else ""
        return lowmark.connect(f"{scheme}{self.address(number)}", ca=self.ca, timeout_s=START_S)

    def open(self, number: int) -> Database:
        """As a guest, by the directory of a node."""
        return lowmark.open(self._path / f"n{number}")

    def number_of(self, address: str) -> int:
        return [place.listen for place in self.places].index(address)


def table_of(db: Database, name: str, *, replicas: int, partitions: int = 8) -> Table:
    """A table with so many replicas, in the zone of all such: other tables stay as they are."""
    zone = f"r{replicas}"
    if zone not in db.zones():
        db.create_zone(zone, replicas=replicas)
    return db.create_table(name, COLUMNS, key="id", partitions=partitions, zone=zone)
