"""Log replication: the leader's side, and the follower's.

A leader sends each member what follows the last index that was sent, without waiting for answers
while its window has room. A refused append says where the logs may agree; both sides skip whole
terms, so that at most one probe per term is needed. An entry is committed when a majority has it
durable, the leader included, and it is of the leader's own term.
"""

from __future__ import annotations

from lowmark.raft import membership
from lowmark.raft.log_view import LogDiverged
from lowmark.raft.messages import (
    NOBODY,
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Install,
    Snapshot,
    TimeoutNow,
    payload_bytes,
)
from lowmark.raft.progress import Progress, ProgressState
from lowmark.raft.state import Core, Role

# -- the leader's side --------------------------------------------------------------------------


def append_own(core: Core, entries: list[Entry]) -> bool:
    """Put proposals at the end of the leader's log; False if too much is uncommitted already.

    The leader counts itself only when they are durable, so it answers itself as any member does.
    """
    size = payload_bytes(entries)
    waiting = core.uncommitted_bytes
    # Any one proposal is taken while nothing waits; an empty one is never refused.
    if waiting > 0 and size > 0 and waiting + size > core.config.uncommitted_bytes_max:
        return False
    core.uncommitted_bytes += size
    last, term = core.log.last_index, core.term
    for offset, entry in enumerate(entries, start=1):
        entry.index, entry.term = last + offset, term
    last = core.log.append(entries)
    core.send_durable(AppendResponse(core.node, core.node, term, core.incarnation, last))
    return True


def send_append(core: Core, to: int) -> None:
    """Send what is missing, or at least the commit index."""
    maybe_send_append(core, to, if_empty=True)


def maybe_send_append(core: Core, to: int, *, if_empty: bool) -> bool:
    """Send what is missing; False if there is nothing to send, or nothing may be sent."""
    progress = core.progress[to]
    if progress.paused:
        return False
    log = core.log
    previous = progress.next - 1
    previous_term = log.term(previous)
    if previous_term is None:
        return _maybe_send_snapshot(core, to, progress)
    entries: list[Entry] | None = []
    # With a full window only empty appends go out. They do go out, because the window may be full
    # of messages that were all lost.
    if progress.state is not ProgressState.REPLICATE or not progress.inflights.full:
        entries = log.entries(progress.next, core.config.message_bytes_max)
    if not entries and not if_empty:
        return False
    if entries is None:
        return _maybe_send_snapshot(core, to, progress)
    message = Append(
        to,
        core.node,
        core.term,
        progress.incarnation,
        previous,
        previous_term,
        log.committed,
        entries,
    )
    core.send(message)
    progress.sent_entries(len(entries), payload_bytes(entries))
    progress.sent(log.committed)
    return True


def _maybe_send_snapshot(core: Core, to: int, progress: Progress) -> bool:
    if not progress.recent_active:
        return False  # it would be work in vain
    snapshot = core.log.unstable.snapshot or core.log.storage.snapshot()
    if snapshot is None:
        return False  # none to send just now: the next answer or heartbeat asks again
    progress.become_snapshot(snapshot.index)
    core.send(Install(to, core.node, core.term, progress.incarnation, snapshot))
    return True


def broadcast_append(core: Core) -> None:
    """Send every member what it misses."""
    for node in core.progress:
        if node != core.node:
            send_append(core, node)


def broadcast_heartbeat(core: Core) -> None:
    """Tell every member that the leader is there, and which round of reads waits for it."""
    for node, progress in core.progress.items():
        if node != core.node:
            send_heartbeat(core, node, progress)


def send_heartbeat(core: Core, to: int, progress: Progress) -> None:
    """The same for one member."""
    context = core.waiting_reads[-1][0] if core.waiting_reads else 0
    # Never beyond what is known to be the same there: its tail may be another leader's.
    commit = min(progress.match, core.log.committed)
    core.send(Heartbeat(to, core.node, core.term, progress.incarnation, commit, context))
    progress.sent(commit)


def maybe_commit(core: Core) -> bool:
    """Commit what a majority has; True if that is more than before."""
    return core.log.maybe_commit(core.quorum_index(), core.term)


def heard_append_response(core: Core, message: AppendResponse, progress: Progress) -> bool:
    """A member answered an append; True if more is committed now."""
    progress.recent_active = True
    if message.reject:
        _rejected(core, message, progress)
        return False
    if message.index > core.log.last_index:
        return False  # it has committed what this log lacks: it finds out, and stops
    probed = progress.match == message.index and progress.state is ProgressState.PROBE
    if not progress.maybe_update(message.index) and not probed:
        return False
    match progress.state:
        case ProgressState.PROBE:
            progress.become_replicate()
        case ProgressState.SNAPSHOT:
            # However it got there: from here on the log can serve it.
            if progress.match + 1 >= core.log.first_index:
                progress.become_probe()
                progress.become_replicate()
        case ProgressState.REPLICATE:
            progress.inflights.free(message.index)
    committed = maybe_commit(core)
    if committed:
        broadcast_append(core)
    elif message.sender != core.node and progress.can_bump_commit(core.log.committed):
        send_append(core, message.sender)
    if message.sender != core.node:
        while maybe_send_append(core, message.sender, if_empty=False):
            pass
        if message.sender == core.transferee and progress.match == core.log.last_index:
            send_timeout_now(core, message.sender)
    return committed


def _rejected(core: Core, message: AppendResponse, progress: Progress) -> None:
    probe = message.hint
    if message.hint_term > 0:
        probe, _ = core.log.find_conflict_by_term(message.hint, message.hint_term)
    if progress.maybe_decrease(message.index, probe):
        if progress.state is ProgressState.REPLICATE:
            progress.become_probe()
        send_append(core, message.sender)


def unreachable(progress: Progress) -> None:
    """A message to a member was probably lost: what was sent ahead must be probed."""
    if progress.state is ProgressState.REPLICATE:
        progress.become_probe()


def snapshot_reported(progress: Progress, *, failed: bool) -> None:
    """A snapshot was delivered, or was not. Either way wait for the member, or a heartbeat's."""
    if progress.state is ProgressState.SNAPSHOT:
        if failed:
            progress.pending_snapshot = 0
        progress.become_probe()
        progress.flow_paused = True


def send_timeout_now(core: Core, to: int) -> None:
    """Hand leadership over."""
    core.send(TimeoutNow(to, core.node, core.term, core.incarnation_of(to)))


# -- the follower's side --------------------------------------------------------------------------


def answer_append(core: Core, message: Append) -> None:
    """Take entries, or say where the logs may agree."""
    log = core.log
    response = AppendResponse(message.sender, core.node, core.term, core.incarnation, 0)
    if message.index <= log.committed and log.term(message.index) not in {None, message.log_term}:
        raise LogDiverged(index=message.index, commit=log.committed)
    if message.index < log.committed:
        # A leader has all that is committed anywhere. One that has something else there lost it;
        # and it would count this member for entries that it does not have.
        for entry in message.entries:
            if entry.index > log.committed:
                break
            if log.term(entry.index) not in {None, entry.term}:
                raise LogDiverged(index=entry.index, commit=log.committed)
        response.index = log.committed
    else:
        last = log.maybe_append(message.index, message.log_term, message.commit, message.entries)
        if last is not None:
            response.index = last
        else:
            hint = min(message.index, log.last_index)
            hint, hint_term = log.find_conflict_by_term(hint, message.log_term)
            response.index, response.reject = message.index, True
            response.hint, response.hint_term = hint, hint_term
    core.send_durable(response)


def answer_heartbeat(core: Core, message: Heartbeat) -> None:
    """The leader is there; it says how far this log is committed."""
    # It is what an earlier incarnation had durable, if the message was meant for that one.
    if message.incarnation >= core.incarnation:
        core.log.commit_to(message.commit)
    core.send(
        HeartbeatResponse(
            message.sender,
            core.node,
            core.term,
            core.incarnation,
            message.context,
            core.disk_full,
        )
    )


def answer_install(core: Core, message: Install) -> None:
    """Take a snapshot if it is ahead; either way say how far this log is."""
    took = _restore(core, message.snapshot)
    index = core.log.last_index if took else core.log.committed
    core.send_durable(AppendResponse(message.sender, core.node, core.term, core.incarnation, index))


def _restore(core: Core, snapshot: Snapshot) -> bool:
    log = core.log
    if snapshot.index <= log.committed or core.role is not Role.FOLLOWER:
        return False
    if log.matches(snapshot.index, snapshot.term):
        # The log has it all: to know that it is committed is enough.
        log.commit_to(snapshot.index)
        return False
    # A node that is not among these members was added later: the entry that did it follows.
    members = membership.restore(snapshot.members)
    log.restore(snapshot)
    core.set_members(members)
    core.transferee = NOBODY
    return True
