"""Three nodes, each a process; killed, suspended, cut off, their disk filled, their clock put.

They are on loopback, with proxies between them, or each is in a host of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Self

from clusters.places import Place, places, world
from clusters.processes import Children, Program
from lowmark.errors import LowmarkError, invariant
from lowmark.node import NodeClient
from torture.cutting import Cutting, CuttingHosts, Way
from torture.history import NEMESIS, Recorder

START_S = 90.0
DISK_BYTES = 512 << 20
ENVIRONMENT = {
    "LOWMARK_LOG_WAL_BYTES_MAX": str(1 << 20),
    "LOWMARK_LOG_DISK_RESERVED_BYTES": str(16 << 20),
    "LOWMARK_LOG_DISK_LOW_BYTES": str(32 << 20),
}


@dataclass(slots=True)
class _State:
    program: Program | None = None
    said_from: int = 0
    ready: bool = False
    paused: bool = False
    full: bool = False
    ahead_ms: int = 0


class Cluster:
    """The nodes 0, 1, 2 in a folder; they end with the `with`."""

    def __init__(self, folder: Path, children: Children, recorder: Recorder, count: int = 3):
        self.folder = folder
        self.numbers = range(count)
        self.addresses: list[str] = []
        self._places: list[Place] = []
        self._children = children
        self._recorder = recorder
        self._states = [_State() for _ in self.numbers]
        self._cuts: set[Way] = set()
        self._cutting: Cutting | CuttingHosts
        self._ends = ExitStack()
        self._lossy = False
        self._had_majority = False
        self.counts: dict[str, int] = {}
        self.problems: list[str] = []
        self.small = count - 1
        """The node whose disk can be filled."""
        self.has_small_disk = False
        self.unsettled = False
        """Whether a reset is under way: then nodes that run are no majority of what there was."""

    def __enter__(self) -> Self:
        self.has_small_disk = self._mount()
        self._control.mkdir()
        self._ledgers.mkdir()
        homes = [self._home(number) for number in self.numbers]
        self._places = self._ends.enter_context(places(homes, shared=[self._control]))
        self.addresses = [place.listen for place in self._places]
        hosts = [place.host for place in self._places if place.host is not None]
        found = world()
        if found is not None:
            self._cutting = CuttingHosts(found, hosts)
        else:
            self._cutting = Cutting({n: place.peers for n, place in enumerate(self._places)})
        self._ends.enter_context(self._cutting)
        for number in self.numbers:
            (self._control / f"clock-{number}").write_bytes(bytes(8))
            routes = self._cutting.routes(number)
            (self._control / f"routes-{number}").write_text(json.dumps(routes))
        self.start(0)
        self.wait_ready(0)
        for number in self.numbers[1:]:
            self.start(number, join=True)
        for number in self.numbers[1:]:
            self.wait_ready(number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.numbers:
            program = self._states[number].program
            if program is not None:
                program.kill()
        self._ends.close()
        found = world()
        if found is not None:
            self.counts["packet-lost"] = found.faults.lost

    def keep_small_disk(self) -> None:
        """Copy what is on the small disk to beside it: it goes with `unmount`."""
        if self.has_small_disk:
            shutil.copytree(self._disk, self.folder / f"{self._disk.name}-kept")

    def unmount(self) -> None:
        """Give the small disk back; what was on it is gone."""
        if self.has_small_disk:
            subprocess.run(["umount", "--lazy", str(self._disk)], check=False)

    @property
    def _control(self) -> Path:
        """What nodes are told while they run."""
        return self.folder / "control"

    @property
    def _ledgers(self) -> Path:
        """Rows that were compacted, for all nodes on this host; between hosts there is another."""
        return self.folder / "cluster-ledgers"

    def data(self, number: int) -> Path:
        """The directory of a node."""
        home = self._home(number)
        return home / f"n{number}" if number == self.small else home

    def command(self, number: int, words: list[str]) -> list[str]:
        """The same command, where a node is."""
        return self._places[number].command(words)

    def _home(self, number: int) -> Path:
        return self._disk if number == self.small else self.folder / f"n{number}"

    @property
    def _disk(self) -> Path:
        return self.folder / f"disk-{self.small}"

    def _mount(self) -> bool:
        self._disk.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self._disk)]
        try:
            return subprocess.run(words, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    # -- what is done to nodes --------------------------------------------------------------------

    def start(self, number: int, *, join: bool = False) -> None:
        """Start a node; `wait_ready` waits for it."""
        state = self._states[number]
        place, data = self._places[number], self.data(number)
        words = ["-m", "torture.node"]
        words += [str(self._control / f"{one}-{number}") for one in ("clock", "routes")]
        words += ["serve", "--data", str(data), "--json", *place.options]
        words += ["--listen", place.listen, "--peers", place.peers]
        words += ["--join", self.addresses[0]] if join else []
        said = self.folder / f"node-{number}.stderr"
        state.said_from = said.stat().st_size if said.exists() else 0
        path = os.pathsep.join(filter(None, sys.path))
        state.program = self._children.start_program(
            place.command([sys.executable, *words]),
            name=f"node-{number}",
            env={
                **os.environ,
                "PYTHONPATH": path,
                "LOWMARK_LEDGER_LOCATION": str(self._ledgers),
                **place.environment,
                **ENVIRONMENT,
            },
        )
        self.did("start", {"node": number})

    def wait_ready(self, number: int) -> None:
        """Wait until it says that it is ready."""
        self._children.eventually(
            lambda: self._is_ready(number), what=f"node {number} is ready", deadline_s=START_S
        )

    def _is_ready(self, number: int) -> bool:
        state = self._states[number]
        if not state.ready:
            with (self.folder / f"node-{number}.stderr").open("rb") as said:
                said.seek(state.said_from)
                state.ready = any(line.startswith(b'{"name"') for line in said.read().split(b"\n"))
            if state.ready:
                self.did("ready", {"node": number})
        return state.ready

    def kill(self, number: int) -> None:
        """With -9."""
        state = self._states[number]
        if state.program is not None:
            if not state.program.alive:
                self.problems.append(
                    f"node {number} ended by itself; it said: {state.program.said()}"
                )
            state.ready = state.paused = False
            self.did("kill", {"node": number})
            state.program.kill()
            state.program = None

    def pause(self, number: int) -> None:
        """With SIGSTOP."""
        state = self._states[number]
        if state.program is not None:
            state.paused = True
            self.did("pause", {"node": number})
            state.program.send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        state = self._states[number]
        if state.program is not None and state.paused:
            state.program.send_signal(signal.SIGCONT)
            state.paused = False
            self.did("resume", {"node": number})

    def cut(self, ways: Collection[Way], *, aloud: bool) -> None:
        """Nothing passes these ways any more; between hosts, no word of it is said."""
        aloud = aloud and world() is None
        self._cuts |= set(ways)
        self.did("cut", {"ways": sorted(ways), "aloud": aloud})
        self._cutting.cut(ways, aloud=aloud)

    def lose(self, share: float) -> None:
        """Of all packets between nodes, this share is lost from now on."""
        self.did("lose", {"share": share})
        self._between_hosts.lose(share)
        self._lossy = True

    def hide(self, number: int) -> None:
        """No client reaches this node, and it reaches none; other nodes do."""
        self.did("hide", {"node": number})
        self._between_hosts.hide(number)
        self._lossy = True

    @property
    def _between_hosts(self) -> CuttingHosts:
        invariant(isinstance(self._cutting, CuttingHosts), "the nodes are in hosts")
        assert isinstance(self._cutting, CuttingHosts)  # for the type checker
        return self._cutting

    def mend(self) -> None:
        if self._cuts or self._lossy:
            self._cutting.mend()
            self._cuts.clear()
            self._lossy = False
            self.did("mend", None)

    def jump(self, number: int, ahead_ms: int) -> None:
        """Put the wall clock of a node."""
        self._states[number].ahead_ms = ahead_ms
        self.did("jump", {"node": number, "ahead_ms": ahead_ms})
        with (self._control / f"clock-{number}").open("r+b") as file:
            file.write(struct.pack("<q", ahead_ms))

    def fill(self) -> None:
        """Leave no byte on the small disk."""
        self._states[self.small].full = True
        self.did("fill", {"node": self.small})
        with (self._disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def free(self) -> None:
        if self._states[self.small].full:
            (self._disk / "ballast").unlink()
            self._states[self.small].full = False
            self.did("free", {"node": self.small})

    def mend_all(self) -> None:
        """All nodes run, and nothing is in their way."""
        self.mend()
        self.free()
        for number in self.numbers:
            self.resume(number)
            if self._states[number].ahead_ms:
                self.jump(number, 0)
        for number in self.numbers:
            program = self._states[number].program
            if program is not None and not program.alive:
                self.kill(number)  # it is written down as a problem
            if self._states[number].program is None:
                self.start(number)
        for number in self.numbers:
            self.wait_ready(number)

    def did(self, f: str, value: object) -> None:
        """Write down what was done to nodes."""
        self.counts[f] = self.counts.get(f, 0) + 1
        self._recorder.write(NEMESIS, "info", f, value)
        now = self.majority
        if now != self._had_majority:
            self._had_majority = now
            self._recorder.write(NEMESIS, "info", "majority", now)

    def ask_what_they_do(self) -> None:
        """Have every node write the stacks of its threads to what it says."""
        for state in self._states:
            if state.program is not None and state.ready and not state.paused:
                state.program.send_signal(signal.SIGUSR1)

    # -- what is true of them ---------------------------------------------------------------------

    def good(self, number: int) -> bool:
        """Whether it runs, and can write."""
        state = self._states[number]
        return state.ready and not state.paused and not state.full

    @property
    def majority(self) -> bool:
        """Whether two good nodes reach each other."""
        return not self.unsettled and any(
            self.good(a) and self.good(b) and (a, b) not in self._cuts and (b, a) not in self._cuts
            for a, b in combinations(self.numbers, 2)
        )

    def leaders(self) -> dict[str, int]:
        """Which node leads which group, as far as a good node knows."""
        for number in self.numbers:
            if not self.good(number):
                continue
            try:
                with NodeClient(self.addresses[number], timeout_s=5.0) as client:
                    status = client.status()
            except LowmarkError:
                continue
            doors = {row.number: row.endpoint for row in status.nodes}
            return {
                row.group: self.addresses.index(doors[row.leader])
                for row in status.groups
                if doors.get(row.leader) in self.addresses
            }
        return {}
