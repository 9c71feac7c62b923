"""Where a task reads the backlog of its partition: the segments of a node, or a node's server.

A task that sees the directory in which the segments of its tail stand opens them. Any other one
asks a server for the same batches, over Arrow Flight, as any reader does: by their places in the
log, a few megabytes at a time. If the server dies, the next one that has a copy goes on with the
batch after the last that came. The task gets, byte for byte, what stands in the segments; so both
ways give equal ledgers.

What such a task goes by is its run's lease, which all copies of the partition know: what is read
stays. The server is asked whether the lease is there, in the same moment in which it pins what it
is going to give; without it the run was ended, or was silent for too long, and is planned again.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence

from lowmark.backend.errors import (
    BatchesMoved,
    HoldUnknown,
    OtherDatabase,
    PartitionReset,
    SegmentsElsewhere,
)
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.task_pass import KNOWN_S, to_show
from lowmark.backend.values import BatchRange, ReadRange
from lowmark.catalog.serializers import decode_table
from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.ledger import Segments, Source, SourceMoved, Span, Tail, Work, view_of
from lowmark.runtime import Buffer, RealDisk, place_of
from lowmark.tokens import PassEnded

_CONNECT_S = 2.0
_PATIENCE_S = 15.0
"""So long a task tries to reach one of its servers."""
_PAUSE_S = 0.1
_ASKED_MAX = 32
"""This many spans are asked for at once."""
_WHY = "a task of compaction reads it"


def is_here(tail: Tail) -> bool:
    """Whether this process sees the directory that has the segments of a tail."""
    return bool(tail.place) and place_of(f"{tail.root}/{tail.folder}") == tail.place


def source_of(work: Work) -> tuple[Source, str]:
    """What a task reads the tail of its work from, and where that is, in words."""
    tail = work.tail
    if not tail:
        return _Nothing(), ""
    here = is_here(tail)
    if here and work.read != "flight":
        disk = RealDisk(tail.root, create=False)
        return Segments(disk, tail, partition=work.partition), "segments"
    if work.read == "segments" or not tail.addresses:
        raise SegmentsElsewhere(work.table_name, work.partition, here=here)
    batches = ServerBatches(work)
    return batches, batches.address


class _Nothing:
    """Of a run that has nothing new to read, and writes its ledger anew."""

    def read(self, spans: Sequence[Span]) -> Iterator[Sequence[Buffer]]:
        del spans  # there are none
        return iter(())

    def close(self) -> None:
        pass


class ServerBatches:
    """The batches of a tail, from a server that has a copy of the partition; see `Source`."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._table = decode_table(work.table).id
        self._view = view_of(work.tail)
        self._backend = _connected(work)
        self.address = self._backend.info.name
        try:
            self._show_lease()
        except BaseException:
            self._backend.close()
            raise

    def _show_lease(self) -> None:
        """Have the batches held while they are read, if the run's lease is there."""
        work = self._work
        held = self._backend.hold(
            self._table,
            {work.partition: ReadRange(work.tail.low, work.tail.high)},
            kind="run",
            holder=f"{work.lease} {secrets.token_hex(4)}",  # a server has one hold of a name
            why=_WHY,
        )
        leases = held.partitions[work.partition].live_leases()
        if not any(lease.name == work.lease for lease in leases):
            raise SourceMoved(work.partition)

    def read(self, spans: Sequence[Span]) -> Iterator[Sequence[Buffer]]:
        """See `Source`."""
        try:
            for at in range(0, len(spans), _ASKED_MAX):
                yield from self._some(spans[at : at + _ASKED_MAX])
        except (BatchesMoved, HoldUnknown, PartitionReset) as moved:
            raise SourceMoved(self._work.partition) from moved

    def _some(self, spans: Sequence[Span]) -> Iterator[Sequence[Buffer]]:
        partition = self._work.partition
        ranges = [BatchRange.of(self._view, low, high) for low, high in spans]
        found = self._backend.batches(self._table, partition, ranges, held=True)
        for (low, high), commands in zip(spans, found, strict=True):
            if len(commands) != high - low:
                raise Corrupt(
                    f"a server gave {len(commands)} batches of partition {partition} for"
                    f" {high - low} that were asked for"
                )
            yield commands

    def close(self) -> None:
        """See `Source`. What is held for it ends with its connection."""
        self._backend.close()


def _connected(work: Work) -> RemoteBackend:
    """The first server that answers; each is tried again and again for a while."""
    ends_at, known_by = time.monotonic() + _PATIENCE_S, time.monotonic() + KNOWN_S
    while True:
        failed: LowmarkError
        for address in work.tail.addresses:
            try:
                found = RemoteBackend(
                    address,
                    timeout_s=_CONNECT_S,
                    cluster=work.cluster,
                    ca=work.ca if os.path.exists(work.ca) else None,
                    secret=to_show(work.shows),
                )
                if work.tail.lineage:
                    found.lineages.learn({work.tail.group: work.tail.lineage})
                return found
            except PassEnded as error:  # a node may not have heard of it yet
                if time.monotonic() >= known_by:
                    raise
                failed = error
            except (Unavailable, OtherDatabase) as error:
                failed = error
        if time.monotonic() >= ends_at:
            raise failed
        time.sleep(_PAUSE_S)
