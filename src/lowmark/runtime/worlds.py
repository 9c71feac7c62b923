"""The two worlds a node can live in: the machine's, and one that is drawn from a seed."""

from __future__ import annotations

from random import Random, SystemRandom

from lowmark.runtime.clock import HybridClock
from lowmark.runtime.lone_network import LONE_NETWORK
from lowmark.runtime.loop import Runtime
from lowmark.runtime.network import NetworkLimits
from lowmark.runtime.real_disk import RealDisk
from lowmark.runtime.real_loop import RealLoop
from lowmark.runtime.real_network import RealNetwork
from lowmark.runtime.sim_disk import SimDisk
from lowmark.runtime.sim_loop import SimLoop
from lowmark.runtime.sim_network import SimNetwork
from lowmark.runtime.sim_node import SimNode
from lowmark.runtime.tls import TlsFiles, TlsUnusable

__all__ = ["real_runtime", "sim_runtime"]


def real_runtime(
    root: str,
    *,
    tls: TlsFiles | None = None,
    limits: NetworkLimits | None = None,
    alone: bool = False,
) -> Runtime:
    """The machine's clock, threads, network and chance, and its disk below `root`.

    With `tls` its network speaks only with those who can prove who they are; `alone`, it has none,
    and its clock is the only one.
    Whoever builds it closes its loop.
    """
    disk = RealDisk(root)
    loop = RealLoop()
    random = Random(SystemRandom().getrandbits(128))
    try:
        network = (
            LONE_NETWORK if alone else RealNetwork(loop, random=random, limits=limits, tls=tls)
        )
    except TlsUnusable:
        loop.close()
        raise
    return Runtime(
        loop=loop,
        disk=disk,
        clock=HybridClock(loop.wall_ms, alone=alone),
        random=random,
        network=network,
    )


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
