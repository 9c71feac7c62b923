"""What the bench and its processes say to each other. Pure.

A worker is a process of its own: a client of ours (`server_client`) or of a peer's
(`server_peer_client`). It is given work, builds what that takes, says `Ready`, waits for `Go`, and
says how long it took. All workers of a turn begin together, so a turn lasts from the first `began`
to the last `ended`, or until the server has come to rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from benchmarks.figure import Side
from clusters.processes import Child


class Reach(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have a database open: own its directory, be a guest there, or connect to a server."""

    folder: str = ""
    address: str = ""
    wal_bytes: int = 0
    """Of the owner's WAL; a guest has the owner's settings."""
    ca: str = ""
    """The authority of a server with TLS."""
    token_file: str = ""
    """What has the token for a server that asks for one."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Close it."""


class Rest(msgspec.Struct, frozen=True, tag=True):
    """Say when nothing is left to do: the segment writer is idle, not only the WAL."""


class Append(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append batches of 10,000 rows, the next when the last was acknowledged."""

    first: int
    """The number of the first row."""
    rows: int


class Pace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append batches, the next when the last was acknowledged, and note when that was."""

    first: int
    batch_rows: int
    batches: int
    seconds: float = 0.0
    """Go on for so long, with the same batches again and again; 0: each of them once."""


class Send(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give single rows to a producer, or publish them as messages."""

    first: int
    rows: int
    window: int
    """So many rows at most are sent and not acknowledged."""
    address: str = ""
    """Of a peer."""
    bare: bool = False
    """Of a peer: by a client with nothing around the protocol."""


class Read(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Read everything, batch by batch, and count the rows."""

    address: str = ""
    """Of a peer."""


class Get(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Look keys up, one after the other; they are drawn evenly."""

    keys: int
    gets: int
    seed: int
    address: str = ""
    """Of a peer."""


Work = Append | Pace | Send | Read | Get


class Order(msgspec.Struct, frozen=True):
    """Whatever a process is told, but `Go`."""

    what: Reach | Leave | Rest | Work


class There(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for is so; a server says where it listens."""

    address: str = ""


class Ready(msgspec.Struct, frozen=True):
    """What the work takes is built, and connections are open."""


class Go(msgspec.Struct, frozen=True):
    """Begin: all workers are ready."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What it came to. Times are the machine's monotonic clock, the same in every process."""

    amount: int
    began_ns: int
    ended_ns: int
    acks: tuple[tuple[int, int], ...] = ()
    """Of each append of a `Pace`: when it was made, and when it was acknowledged."""


class Rested(msgspec.Struct, frozen=True, kw_only=True):
    """Since when nothing is left to do."""

    at_ns: int


WORK_DEADLINE_S = 600.0


def done_by(
    workers: Sequence[Child],
    work: Sequence[Work],
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Done]:
    """Have each worker do its part, all at the same time; what each came to."""
    for worker, part in zip(workers, work, strict=True):
        worker.send(Order(part))
    for worker in workers:
        worker.receive(Ready, deadline_s=WORK_DEADLINE_S)
    for worker in workers:
        worker.send(Go())
    meanwhile()
    return [worker.receive(Done, deadline_s=WORK_DEADLINE_S) for worker in workers]


def worked(
    workers: Sequence[Child], work: Sequence[Work], *, until_rest_of: Child | None = None
) -> Side:
    """Have each worker do its part, all at the same time; what they came to together."""
    done = done_by(workers, work)
    ends = [one.ended_ns for one in done]
    if until_rest_of is not None:
        rested = until_rest_of.ask(Order(Rest()), Rested, deadline_s=WORK_DEADLINE_S)
        ends.append(rested.at_ns)
    began = min(one.began_ns for one in done)
    return Side(sum(one.amount for one in done), (max(ends) - began) / 1e9)
