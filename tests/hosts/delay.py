"""What leaves a host arrives later: by `netem` where the kernel has it, else by a relay.

The relay is a process between two TAP devices: `eth0` of a host, and its port at the bridge.

    python -I -S delay.py NET-OF-HOST NET-OF-BRIDGE PORT DELAY_MS

A frame from the host waits for its time, at most `FRAMES_MAX` of them, and what comes then is lost,
as in a network; frames to the host pass at once. So the way from a host to another takes the delay
of the first one, and a round trip that of both. The devices hand over TCP's segments uncut, up to
64 KiB, with the header that says so (`IFF_VNET_HDR`): the relay carries some hundred MB/s.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

TUN = "/dev/net/tun"
FRAMES_MAX = 20_000
AT_ONCE = 64

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02 | 0x04  # TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6
_FRAME_BYTES_MAX = 66_000


class Relay:
    """The process, as its parent has it. Its devices go with it."""

    def __init__(self, host: str, bridge: str, *, port: str, delay_ms: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, host, bridge, port, str(delay_ms)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise OSError(f"the relay did not start: it needs {TUN}")

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def has_netem(run: Callable[..., str]) -> bool:
    """Whether the kernel delays by itself; tried by `run`, inside a network of ours."""
    try:
        run("tc", *["qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except Exception:
        return False
    run("tc", *["qdisc", "del", "dev", "lo", "root"])
    return True


def main() -> None:
    """Carry frames, until somebody ends this process."""
    host_net, bridge_net, port, delay_ms = sys.argv[1:]
    host = _tap(host_net, "eth0")
    bridge = _tap(bridge_net, port)  # from here on the process is in the bridge's network
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(host, bridge, delay_s=float(delay_ms) / 1_000)


def carry(host: int, bridge: int, *, delay_s: float) -> None:
    """From one to the other, later; and back, at once."""
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _write(bridge, waiting.popleft()[1])
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([host, bridge], [], [], left)
        if host in ready:
            due = time.monotonic() + delay_s
            frames = _read(host)
            waiting.extend((due, one) for one in frames[: FRAMES_MAX - len(waiting)])
        if bridge in ready:
            for frame in _read(bridge):
                _write(host, frame)


def _read(tap: int) -> list[bytes]:
    found = []
    for _ in range(AT_ONCE):
        try:
            found.append(os.read(tap, _FRAME_BYTES_MAX))
        except BlockingIOError:
            break
    return found


def _write(tap: int, frame: bytes) -> None:
    try:
        os.write(tap, frame)
    except OSError:
        return  # the device is down, or full: the frame is lost


def _tap(net: str, name: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(net).open("rb") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    return tap


if __name__ == "__main__":
    main()
