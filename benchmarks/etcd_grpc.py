"""Puts to etcd as a Python program would make them, with `grpc.aio`: see `etcd_peer`.

Only this file needs `grpcio`, and nobody imports it: it is a process of its own, run with
`python -m`. `etcd_http2` does the same for much less, so that is the one to compare with; this one
is there to show that an ordinary client gets the same answers, and what it costs.
"""

from __future__ import annotations

import asyncio
import time
from itertools import cycle

import grpc
import grpc.aio

from benchmarks.etcd_wire import PATHS, Done, Go, Order, Ready
from clusters.processes import Parent

__all__: list[str] = []


async def _work(parent: Parent) -> None:
    order = parent.receive(Order)
    # Loopback must not go by a proxy that the environment names.
    async with grpc.aio.insecure_channel(
        order.address, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        put = channel.unary_unary(PATHS[order.kind])  # bytes in, bytes out
        feed = cycle(order.feed())
        # The first call connects, and etcd has a window to open: neither is measured.
        await asyncio.gather(*(put(next(feed)) for _ in range(order.in_flight)))
        parent.send(Ready(warmed_up_with=order.in_flight))
        parent.receive(Go)

        latencies_us: list[int] = []
        left = order.count
        cpu_before, began_ns = time.process_time(), time.monotonic_ns()
        ends_ns = None if order.seconds is None else began_ns + int(order.seconds * 1e9)

        async def one_at_a_time() -> None:
            nonlocal left
            while left is None or left > 0:
                if left is not None:
                    left -= 1
                before_ns = time.monotonic_ns()
                if ends_ns is not None and before_ns >= ends_ns:
                    return
                await put(next(feed))
                latencies_us.append((time.monotonic_ns() - before_ns) // 1_000)

        # A put that fails raises, and ends this process: there are no half measures.
        async with asyncio.TaskGroup() as group:
            for _ in range(order.in_flight):
                group.create_task(one_at_a_time())
        ended_ns, cpu_after = time.monotonic_ns(), time.process_time()
    parent.send(
        Done(
            began_ns=began_ns,
            ended_ns=ended_ns,
            latencies_us=latencies_us,
            cpu_seconds=cpu_after - cpu_before,
        )
    )


if __name__ == "__main__":
    asyncio.run(_work(Parent()))
