"""A whole runtime in one thread and in virtual time, decided by its seed."""

from __future__ import annotations

from random import Random

from lowmark.runtime.clock import HybridClock
from lowmark.runtime.loop import Runtime
from lowmark.runtime.sim.disk import SimDisk
from lowmark.runtime.sim.loop import SimLoop
from lowmark.runtime.sim.network import SimNetwork
from lowmark.runtime.sim.node import SimNode


def sim_runtime(
    seed: int,
    *,
    disk: SimDisk | None = None,
    loop: SimLoop | SimNode | None = None,
    network: SimNetwork | None = None,
    alone: bool = False,
) -> Runtime:
    """A world in one thread and in virtual time, decided by its seed.

    A disk that outlived a crash is given again, and goes on by the new loop's clock. Nodes of one
    cluster share a network, and each has a disk of its own and, as its loop, a `SimNode` of the
    world's: then it has its own clock, and everything of it ends when that node crashes. A node
    that is `alone` has the only clock.
    """
    if loop is None:
        loop = SimLoop(seed)
    if disk is None:
        disk = SimDisk()
    if network is None:
        network = SimNetwork(loop.world if isinstance(loop, SimNode) else loop)
    disk.wall_ms, disk.note = loop.wall_ms, loop.note
    return Runtime(
        loop=loop,
        disk=disk,
        clock=HybridClock(loop.wall_ms, alone=alone),
        # A stream of its own: a draw of the node must not shift the world's next delay.
        random=Random(f"node {seed}"),
        network=network.of(loop) if isinstance(loop, SimNode) else network,
    )
