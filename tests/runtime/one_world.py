"""A small world in which everything is in use, run from a seed; prints its trace's fingerprint.

Run by `test_determinism.py` in processes of its own: `one_world.py SEED OBJECTS`.
"""

from __future__ import annotations

import sys
from random import Random

from lowmark.errors import LowmarkError
from lowmark.runtime import (
    Buffer,
    DiskFailed,
    NetworkLimits,
    Outcome,
    Runtime,
)
from lowmark.runtime.sim import (
    SimLoop,
    SimNetwork,
    Weather,
    sim_runtime,
)
from lowmark.runtime.sim.node import SimNode

NAMES = ("ann", "bob", "cid")
NUMBERED = tuple(enumerate(NAMES))


class Node:
    """Writes what it hears to its disk, lane by lane, and gossips on."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._name = name
        self._files = {lane: runtime.disk.open(lane, "create") for lane in ("wal", "segments")}
        self._endpoint = runtime.network.endpoint(name, self._on_frame, self._on_cut)
        self.log: list[str] = []

    def start(self) -> None:
        self._runtime.loop.call_later(1, self._tick)

    def _tick(self) -> None:
        peer = self._runtime.random.choice(NAMES)
        self._endpoint.send(peer, [f"{self._name} at {self._runtime.clock.now()}".encode()])
        self._runtime.loop.call_later(self._runtime.random.randrange(1, 20), self._tick)

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        data = bytes(frame)
        lane = self._runtime.random.choice(sorted(self._files))

        def write() -> int:
            self._files[lane].append([sender.encode(), data])
            self._files[lane].datasync()
            return len(data)

        self._runtime.loop.lane(lane).submit(write, self._on_done)
        mood = self._runtime.random.randrange(20)
        if mood == 0:
            self._endpoint.cut(sender, "it is disliked")
        elif mood <= 2:
            self._endpoint.pause(sender)
            self._runtime.loop.call_later(10, lambda: self._endpoint.resume(sender))

    def _on_done(self, outcome: Outcome[int]) -> None:
        error = outcome.error
        if error is not None and not isinstance(error, DiskFailed):
            raise error
        self.log.append(f"{outcome.result} {error}")

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        self.log.append(f"{peer} {error}")


def run(seed: int) -> str:
    """The whole story of one seed, in short."""
    loop = SimLoop(seed)
    network = SimNetwork(
        loop,
        limits=NetworkLimits(rest_ms_max=50),
        weather=Weather(drop=0.1, duplicate=0.1, overtake=0.2),
    )
    nodes: dict[str, Node] = {}
    machines = {name: SimNode(loop, name, skew_ms=n, rate=0.9 + n / 10) for n, name in NUMBERED}
    for n, name in NUMBERED:
        runtime = sim_runtime(seed * 10 + n, loop=machines[name], network=network)
        nodes[name] = Node(runtime, name)
        nodes[name].start()
    loop.run_for(100)
    network.cut(["ann"], ["bob", "cid"])
    loop.run_for(100)
    network.heal()
    machines["cid"].crash()
    loop.run_for(100)
    lines = [loop.digest(), str(loop.events)]
    for name in NAMES:
        lines += nodes[name].log
    after = sim_runtime(seed, loop=loop)
    lines.append(str(after.random.getrandbits(64)))
    lines += crash(seed)
    return "\n".join(lines)


def crash(seed: int) -> list[str]:
    """Labels and trees of crash images: their order is part of the story too."""
    disk = sim_runtime(seed).disk
    for n in range(8):
        disk.open(f"{n}", "create").append([b"abc", b"def"])
    images = disk.crash_images(Random(seed))  # type: ignore[attr-defined]
    return [f"{image.label} {image.disk.tree()}" for image in images]


if __name__ == "__main__":
    ballast = [object() for _ in range(int(sys.argv[2]))]
    sys.stdout.write(run(int(sys.argv[1])))
