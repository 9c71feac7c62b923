"""The simulated runtime: one thread, virtual time, and every fault drawn from a seed.

It is for tests. `lowmark.runtime` does not import it, so a program that uses Lowmark does not load
it.
"""

from lowmark.runtime.sim.disk import SimDisk, WorldStopped
from lowmark.runtime.sim.loop import SimLoop
from lowmark.runtime.sim.network import SimNetwork, Weather
from lowmark.runtime.sim.node import SimNode
from lowmark.runtime.sim.world import sim_runtime

__all__ = [
    "SimDisk",
    "SimLoop",
    "SimNetwork",
    "SimNode",
    "Weather",
    "WorldStopped",
    "sim_runtime",
]
