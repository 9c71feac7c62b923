"""`lowmark serve` as it is, in a world of the torture's: its wall clock is off by what a file says
at each moment, and it reaches its peers through proxies that cut.

    python -m torture.node CLOCK ROUTES serve --data ...

CLOCK is a file of eight bytes: how many milliseconds the wall clock is ahead (little endian,
signed). ROUTES is a JSON file: where each peer's address is dialled instead.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import mmap
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowmark.cli import main as lowmark
from lowmark.runtime.real_loop import RealLoop
from lowmark.server import on_node

_AHEAD = struct.Struct("<q")
HOLD_MS = 8_000


def main() -> None:
    """Bend clock and ways, then be the command."""
    clock, routes = sys.argv[1:3]
    with open(clock, "r+b") as file:
        ahead = mmap.mmap(file.fileno(), _AHEAD.size)

    def wall_ms(loop: RealLoop) -> int:
        del loop
        moved: int = _AHEAD.unpack(ahead)[0]
        return time.time_ns() // 1_000_000 + moved

    RealLoop.wall_ms = wall_ms  # type: ignore[method-assign, assignment]
    run = RealLoop.run_until

    def run_until(
        loop: RealLoop, condition: Callable[[], bool], *, timeout_ms: float = 60_000
    ) -> None:
        try:
            run(loop, condition, timeout_ms=timeout_ms)
        except BaseException:
            traceback.print_exc()  # the command says what has ended it, and not where
            raise

    RealLoop.run_until = run_until  # type: ignore[method-assign, assignment]
    ways = json.loads(Path(routes).read_text())

    class Loop(asyncio.SelectorEventLoop):
        async def create_connection(  # type: ignore[override]
            self, factory: Any, host: str, port: int, **more: Any
        ) -> Any:
            there = ways.get(f"{host}:{port}", f"{host}:{port}")
            host, _, number = there.rpartition(":")
            return await super().create_connection(factory, host, int(number), **more)

    asyncio.new_event_loop = Loop
    # A node that was killed keeps history for its clients from before, for longer than a short run
    # lasts: then nothing would ever be compacted. These clients ask for no time that is so old.
    on_node.HOLD_MS = HOLD_MS  # type: ignore[attr-defined]
    faulthandler.register(signal.SIGUSR1)  # what its threads do, when it seems to do nothing
    sys.argv = ["lowmark", *sys.argv[3:]]
    lowmark()


if __name__ == "__main__":
    main()
