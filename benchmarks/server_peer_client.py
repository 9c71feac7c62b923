"""A process that uses a peer's server, as `server_client` uses ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import msgspec
from pyarrow import flight

from benchmarks.nats_wire import SUBJECT, BareNats
from benchmarks.server_client import begin, end
from benchmarks.server_peers import BareRedis
from benchmarks.server_wire import Get, Order, Read, Send
from benchmarks.table_workload import batches_of, dicts_of, id_of
from clusters.processes import Parent
from lowmark.errors import InvariantBroken, invariant

ANSWER_S = 600.0


def payloads_of(first: int, rows: int) -> list[bytes]:
    """Rows as JSON, one message each."""
    dicts = [row for batch in batches_of(first + rows) for row in dicts_of(batch)][first:]
    return [msgspec.json.encode(row) for row in dicts]


def _publish(parent: Parent, work: Send) -> None:
    payloads = payloads_of(work.first, work.rows)
    if work.bare:
        with BareNats(work.address) as client:
            end(parent, begin(parent), client.publish(payloads, window=work.window))
    else:
        asyncio.run(_publish_by_nats_py(parent, work, payloads))


async def _publish_by_nats_py(parent: Parent, work: Send, payloads: Sequence[bytes]) -> None:
    import nats  # noqa: PLC0415 - it is optional

    connection = await nats.connect(f"nats://{work.address}")
    stream = connection.jetstream(publish_async_max_pending=work.window)

    began = begin(parent)
    acks = [
        await stream.publish_async(SUBJECT, payload, wait_stall=ANSWER_S) for payload in payloads
    ]
    # A message that was refused has an error instead of an answer, and raises it here.
    stored = len([await ack for ack in acks])
    end(parent, began, stored)
    await connection.close()


def _read(parent: Parent, work: Read) -> None:
    with flight.FlightClient(f"grpc+tcp://{work.address}") as client:
        client.wait_for_available()
        began = begin(parent)
        rows = sum(one.data.num_rows for one in client.do_get(flight.Ticket(b"")))
        end(parent, began, rows)


def _get(parent: Parent, work: Get) -> None:
    dice = Random(work.seed)
    wanted = [id_of(dice.randrange(work.keys)).encode() for _ in range(work.gets)]
    with BareRedis(work.address) as client:
        began = begin(parent)
        for key in wanted:
            invariant(client.get(key) is not None, "the value of that key was found")
        end(parent, began, len(wanted))


def main() -> None:
    """Do what the parent says, until it says no more."""
    parent = Parent()
    for order in parent.messages(Order):
        match order.what:
            case Send() as work:
                _publish(parent, work)
            case Read() as work:
                _read(parent, work)
            case Get() as work:
                _get(parent, work)
            case other:
                raise InvariantBroken(f"a client of a peer is not told {other}")


if __name__ == "__main__":
    main()
