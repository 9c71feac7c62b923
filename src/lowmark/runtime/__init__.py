"""The only package that knows time, disk, network and randomness: real, and simulated.

Every package below `node` takes these four from a `Runtime`, so a whole node, or a whole cluster,
runs either on a real machine or in one thread, in virtual time, from one seed.

How it runs
    Packages are synchronous steppers: events in, effects out. One `Loop` calls them, one at a time,
    so none needs a lock. Work that touches the disk leaves the loop only by
    `lane.submit(step, on_done)`: a lane is one thread with a name, a step is one short run of disk
    calls, and `on_done` comes back on the loop with the step's outcome. Long work is many steps.
    Simulated, a lane runs its steps inline, at a virtual time drawn from the seed; lanes
    interleave, and every disk call that changes something is a place to crash.

What it promises
    1. Steps of one lane run one after another, in the order they were submitted; so do their
       `on_done` calls. A step may run before the loop has heard of the one before it. Nothing is
       promised between lanes.
    2. A callback that raises stops the loop, and the caller of `run_until` gets the exception: no
       error is ever only logged.
    3. `Disk` speaks in paths below one root and in its own errors (`DiskFull`, `DiskFailed`,
       `FileMissing`, `FileExists`), so nobody above needs `os` or `errno`.
    4. One seed gives one trace, whatever PYTHONHASHSEED is and whatever was allocated before.
    5. `HybridClock` never goes back, not even when the wall clock does; one wall clock among three
       that is wrong moves no time, once it has heard of the others.
    6. A frame arrives whole and unchanged or not at all; a peer that breaks the protocol is cut off
       by a named error and harms nobody else. Nothing else is promised of the network.
    7. Nobody is swamped: a full queue refuses, and a paused peer waits at its own end.
    8. With TLS, nobody is heard under a name that is not in its certificate.
    9. Nothing that a simulated node has asked for is called after it has crashed.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.runtime.causes import RAN_OUT, by_name
    from lowmark.runtime.clock import (
        COUNTER_BITS,
        LOG_AHEAD_MS_MAX,
        Agreed,
        ClockSkew,
        HybridClock,
        HybridTime,
        millis_of,
    )
    from lowmark.runtime.disk import (
        Buffer,
        Disk,
        DiskFailed,
        DiskFull,
        DiskLock,
        File,
        FileMissing,
        Locked,
        NoHandles,
        NotAllowed,
    )
    from lowmark.runtime.future import Future, together, when_all
    from lowmark.runtime.loop import Lane, Loop, Outcome, Runtime, Timer
    from lowmark.runtime.machine import real_runtime
    from lowmark.runtime.network import (
        AddressInUse,
        AddressUnusable,
        Endpoint,
        FrameTooLong,
        NetworkLimits,
        PeerMisbehaved,
        PeerRefused,
        host_and_port,
    )
    from lowmark.runtime.place import place_of
    from lowmark.runtime.real_disk import RealDisk
    from lowmark.runtime.real_loop import RealLoop
    from lowmark.runtime.real_network import RealNetwork
    from lowmark.runtime.tls import TlsFiles

__all__ = [
    "COUNTER_BITS",
    "LOG_AHEAD_MS_MAX",
    "RAN_OUT",
    "AddressInUse",
    "AddressUnusable",
    "Agreed",
    "Buffer",
    "ClockSkew",
    "Disk",
    "DiskFailed",
    "DiskFull",
    "DiskLock",
    "Endpoint",
    "File",
    "FileMissing",
    "FrameTooLong",
    "Future",
    "HybridClock",
    "HybridTime",
    "Lane",
    "Locked",
    "Loop",
    "NetworkLimits",
    "NoHandles",
    "NotAllowed",
    "Outcome",
    "PeerMisbehaved",
    "PeerRefused",
    "RealDisk",
    "RealLoop",
    "RealNetwork",
    "Runtime",
    "Timer",
    "TlsFiles",
    "by_name",
    "host_and_port",
    "millis_of",
    "place_of",
    "real_runtime",
    "together",
    "when_all",
]

__getattr__, __dir__ = face(__name__)
