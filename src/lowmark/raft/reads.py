"""Linearizable reads without writing: read index (thesis, 6.4).

The leader notes its commit index and asks a majority, by a round of heartbeats, whether it still
leads; then the reader waits until that index is applied. Two rules keep it honest:

    - Rounds are numbered by the leader and never used twice, whatever callers use as their context:
      a late answer to an old round confirms no newer one.
    - Before the leader has committed an entry of its own term it does not know what is committed,
      so reads wait for that.

A member that answers round n followed the leader after all reads of rounds up to n were asked, so
confirming a round is a quorum over numbers, like committing an index.
"""

from __future__ import annotations

from lowmark.raft.messages import NOBODY, HeartbeatResponse, ReadIndex, ReadIndexResponse
from lowmark.raft.progress import Progress
from lowmark.raft.replication import broadcast_heartbeat
from lowmark.raft.state import Core, ReadMode, ReadState

READS_MAX = 16_384
"""Rounds that wait for a majority."""


def ask(core: Core, request: ReadIndex) -> None:
    """The leader is asked for an index to read at."""
    if len(core.early_reads) + len(core.waiting_reads) >= READS_MAX:
        return  # a node that asks that much without an answer will ask again
    if not core.committed_in_term():
        core.early_reads.append(request)
    elif core.singleton or core.config.read_mode is ReadMode.LEASE:
        _answer(core, request, core.log.committed)
    else:
        core.read_round += 1
        own = core.progress.get(core.node)
        if own is not None:
            own.read_round = core.read_round
        core.waiting_reads.append((core.read_round, core.log.committed, request))
        broadcast_heartbeat(core)


def release_early(core: Core) -> None:
    """The first entry of the term is committed: now reads can be answered."""
    if core.early_reads and core.committed_in_term():
        requests, core.early_reads = core.early_reads, []
        for request in requests:
            ask(core, request)


def heard_round(core: Core, message: HeartbeatResponse, progress: Progress) -> None:
    """A member followed in a round."""
    if message.context <= progress.read_round or message.context > core.read_round:
        return
    progress.read_round = message.context
    release_confirmed(core)


def release_confirmed(core: Core) -> None:
    """Answer what a majority has confirmed; members may have changed meanwhile."""
    confirmed = core.quorum_round()
    while core.waiting_reads and core.waiting_reads[0][0] <= confirmed:
        _, index, request = core.waiting_reads.pop(0)
        _answer(core, request, index)


def _answer(core: Core, request: ReadIndex, index: int) -> None:
    if request.sender in {NOBODY, core.node}:
        core.read_states.append(ReadState(index, request.context))
    else:
        core.send(
            ReadIndexResponse(
                request.sender,
                core.node,
                core.term,
                core.incarnation_of(request.sender),
                index,
                request.context,
            )
        )
