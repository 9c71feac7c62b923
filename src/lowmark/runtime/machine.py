"""The two worlds a node can live in: the machine's, and one that is drawn from a seed."""

from __future__ import annotations

from random import Random, SystemRandom

from lowmark.runtime.clock import HybridClock
from lowmark.runtime.disk import Disk
from lowmark.runtime.loop import Runtime
from lowmark.runtime.network import LONE_NETWORK, NetworkLimits
from lowmark.runtime.overlay_disk import OverlayDisk
from lowmark.runtime.real_disk import RealDisk
from lowmark.runtime.real_loop import RealLoop
from lowmark.runtime.real_network import RealNetwork
from lowmark.runtime.tls import TlsFiles


def real_runtime(
    root: str,
    *,
    tls: TlsFiles | None = None,
    tls_optional: bool = False,
    limits: NetworkLimits | None = None,
    alone: bool = False,
    read_only: bool = False,
) -> Runtime:
    """The machine's clock, threads, network and chance, and its disk below `root`.

    With `tls` its network speaks only with those who can prove who they are; with `tls_optional`,
    with those who speak no TLS, too; `alone`, it has none, and its clock is the only one.
    `read_only`, what is written to its disk stays in memory.
    Whoever builds it closes its loop.
    """
    disk: Disk = OverlayDisk(RealDisk(root, create=False)) if read_only else RealDisk(root)
    loop = RealLoop()
    random = Random(SystemRandom().getrandbits(128))
    try:
        network = (
            LONE_NETWORK
            if alone
            else RealNetwork(loop, random=random, limits=limits, tls=tls, tls_optional=tls_optional)
        )
    except BaseException:
        loop.close()
        raise
    return Runtime(
        loop=loop,
        disk=disk,
        clock=HybridClock(loop.wall_ms, alone=alone),
        random=random,
        network=network,
    )
