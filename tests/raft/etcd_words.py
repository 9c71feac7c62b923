"""How etcd's scenario files write messages, entries, batches of work and configurations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from lowmark.raft import (
    Append,
    AppendResponse,
    ChangeKind,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Install,
    Members,
    Message,
    Progress,
    ProgressState,
    ReadIndex,
    ReadIndexResponse,
    Ready,
    Role,
    Snapshot,
    StorageAppend,
    StorageAppended,
    StorageApplied,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteResponse,
)
from lowmark.raft.messages import Forward, StorageApply

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "ROLES",
    "Letter",
    "describe_config",
    "describe_entries",
    "describe_letter",
    "describe_progress",
    "describe_ready",
    "letters_of",
]

APPEND_THREAD = -1
APPLY_THREAD = -2

ROLES = {
    Role.FOLLOWER: "StateFollower",
    Role.PRE_CANDIDATE: "StatePreCandidate",
    Role.CANDIDATE: "StateCandidate",
    Role.LEADER: "StateLeader",
}
_PROGRESS = {
    ProgressState.PROBE: "StateProbe",
    ProgressState.REPLICATE: "StateReplicate",
    ProgressState.SNAPSHOT: "StateSnapshot",
}
_ENTRY_KINDS = {
    EntryKind.NORMAL: "EntryNormal",
    EntryKind.CHANGE: "EntryConfChange",
    EntryKind.JOINT_CHANGE: "EntryConfChangeV2",
}
_CHANGE_LETTERS = {
    ChangeKind.ADD_VOTER: "v",
    ChangeKind.ADD_LEARNER: "l",
    ChangeKind.REMOVE: "r",
    ChangeKind.UPDATE: "u",
}
_KINDS: dict[type, str] = {
    Append: "MsgApp",
    AppendResponse: "MsgAppResp",
    Heartbeat: "MsgHeartbeat",
    HeartbeatResponse: "MsgHeartbeatResp",
    Install: "MsgSnap",
    TimeoutNow: "MsgTimeoutNow",
    TransferLeader: "MsgTransferLeader",
    ReadIndex: "MsgReadIndex",
    ReadIndexResponse: "MsgReadIndexResp",
    Forward: "MsgProp",
    StorageAppend: "MsgStorageAppend",
    StorageAppended: "MsgStorageAppendResp",
    StorageApply: "MsgStorageApply",
    StorageApplied: "MsgStorageApplyResp",
}

Content = Message | StorageAppend | StorageAppended | StorageApply | StorageApplied


@dataclass(slots=True)
class Letter:
    """A message with its envelope: storage threads have an address here too."""

    sender: int
    to: int
    content: Content

    @property
    def kind(self) -> str:
        match self.content:
            case Vote(pre=pre):
                return "MsgPreVote" if pre else "MsgVote"
            case VoteResponse(pre=pre):
                return "MsgPreVoteResp" if pre else "MsgVoteResp"
            case content:
                return _KINDS[type(content)]

    @property
    def is_local(self) -> bool:
        return self.sender == self.to or self.sender < 0 or self.to < 0


def letters_of(node: int, ready: Ready) -> list[Letter]:
    """Everything that a batch of work sends, to others and to its own storage."""
    # Whoever shall lead counts as the sender of a request to hand over.
    letters = [
        Letter(m.transferee if isinstance(m, TransferLeader) else m.sender, m.to, m)
        for m in ready.messages
    ]
    if ready.append is not None:
        letters.append(Letter(node, APPEND_THREAD, ready.append))
    if ready.apply is not None:
        letters.append(Letter(node, APPLY_THREAD, ready.apply))
    return letters


def responses(letter: Letter) -> list[Letter]:
    """What storage answers when it is done."""
    match letter.content:
        case StorageAppend(responses=answers):
            return [
                Letter(APPEND_THREAD, letter.sender, answer)
                if isinstance(answer, StorageAppended)
                else Letter(answer.sender, answer.to, answer)
                for answer in answers
            ]
        case StorageApply(entries=entries):
            return [Letter(APPLY_THREAD, letter.sender, StorageApplied(entries))]
        case _:
            return []


def describe_letter(letter: Letter, indent: str = "", *, with_responses: bool = True) -> str:
    content = letter.content
    term, log_term, index = _positions(content)
    text = f"{indent}{_address(letter.sender)}->{_address(letter.to)} {letter.kind}"
    text += f" Term:{term} Log:{log_term}/{index}" + _details(content)
    text += _inline_entries(getattr(content, "entries", []), indent)
    snapshot = getattr(content, "snapshot", None)
    if snapshot is not None:
        text += f"\n{indent}  Snapshot: {_snapshot(snapshot)}"
    answers = responses(letter) if with_responses else []
    if answers:
        lines = "".join(f"\n{describe_letter(answer, indent + '  ')}" for answer in answers)
        text += f" Responses:[{lines}\n{indent}]"
    return text


def _address(node: int) -> str:
    return {APPEND_THREAD: "AppendThread", APPLY_THREAD: "ApplyThread", 0: "None"}.get(
        node, f"{node:x}"
    )


def _positions(content: Content) -> tuple[int, int, int]:
    """(term, log term, index), as etcd's one message struct has them."""
    match content:
        case StorageAppend(hard=hard):
            return (hard.term if hard is not None else 0, 0, 0)
        case StorageApply() | StorageApplied():
            return 0, 0, 0
        case StorageAppended():
            return content.term, content.log_term, content.index
        case Append() | Vote():
            return content.term, content.log_term, content.index
        case AppendResponse():
            return content.term, content.hint_term, content.index
        case ReadIndexResponse():
            return content.term, 0, content.index
        case _:
            return content.term, 0, 0


def _details(content: Content) -> str:
    text = ""
    if getattr(content, "reject", False):
        text += f" Rejected (Hint: {getattr(content, 'hint', 0)})"
    hard = content.hard if isinstance(content, StorageAppend) else None
    commit = hard.commit if hard is not None else getattr(content, "commit", 0)
    if commit:
        text += f" Commit:{commit}"
    if hard is not None and hard.vote:
        text += f" Vote:{hard.vote}"
    return text


def _inline_entries(entries: list[Entry], indent: str) -> str:
    if not entries:
        return ""
    if len(entries) == 1:
        return f" Entries:[{describe_entry(entries[0])}]"
    lines = "".join(f"\n{indent}  {describe_entry(entry)}" for entry in entries)
    return f" Entries:[{lines}\n{indent}]"


def describe_entry(entry: Entry) -> str:
    if entry.kind is EntryKind.NORMAL:
        body = json.dumps(bytes(entry.data).decode())
    else:
        changes = ConfChange.decode(entry.data).changes
        body = " ".join(f"{_CHANGE_LETTERS[change.kind]}{change.node}" for change in changes)
    return f"{entry.term}/{entry.index} {_ENTRY_KINDS[entry.kind]} {body}".rstrip(" ")


def describe_entries(entries: Iterable[Entry]) -> str:
    return "".join(f"{describe_entry(entry)}\n" for entry in entries)


def describe_ready(node: int, ready: Ready) -> str:
    text = ""
    if ready.soft is not None:
        text += f"Lead:{ready.soft.leader} State:{ROLES[ready.soft.role]}\n"
    if ready.hard is not None:
        text += f"HardState {_hard(ready.hard)}\n"
    if ready.entries:
        text += "Entries:\n" + describe_entries(ready.entries)
    if ready.snapshot is not None:
        text += f"Snapshot {_snapshot(ready.snapshot)}\n"
    if ready.committed:
        text += "CommittedEntries:\n" + describe_entries(ready.committed)
    letters = letters_of(node, ready)
    if letters:
        text += "Messages:\n" + "".join(f"{describe_letter(letter)}\n" for letter in letters)
    if not text:
        return "<empty Ready>"
    return f"Ready MustSync={'true' if ready.must_sync else 'false'}:\n{text}"


def _hard(hard: HardState) -> str:
    vote = f" Vote:{hard.vote}" if hard.vote else ""
    return f"Term:{hard.term}{vote} Commit:{hard.commit}"


def _snapshot(snapshot: Snapshot) -> str:
    return f"Index:{snapshot.index} Term:{snapshot.term} ConfState:{_members(snapshot.members)}"


def _members(stored: ConfState) -> str:
    def numbers(nodes: tuple[int, ...]) -> str:
        return f"[{' '.join(map(str, nodes))}]"

    return (
        f"Voters:{numbers(stored.voters)} VotersOutgoing:{numbers(stored.voters_outgoing)}"
        f" Learners:{numbers(stored.learners)} LearnersNext:{numbers(stored.learners_next)}"
        f" AutoLeave:{'true' if stored.auto_leave else 'false'}"
    )


def describe_config(members: Members) -> str:
    def group(nodes: frozenset[int]) -> str:
        return f"({' '.join(map(str, sorted(nodes)))})"

    text = f"voters={group(members.incoming)}"
    if members.outgoing:
        text += f"&&{group(members.outgoing)}"
    if members.learners:
        text += f" learners={group(members.learners)}"
    if members.learners_next:
        text += f" learners_next={group(members.learners_next)}"
    return text + (" autoleave" if members.auto_leave else "")


def describe_progress(everybody: dict[int, Progress]) -> str:
    return "".join(f"{node}: {_progress(known)}\n" for node, known in sorted(everybody.items()))


def _progress(known: Progress) -> str:
    text = f"{_PROGRESS[known.state]} match={known.match} next={known.next}"
    text += " learner" if known.is_learner else ""
    text += " paused" if known.paused else ""
    text += f" pendingSnap={known.pending_snapshot}" if known.pending_snapshot else ""
    text += "" if known.recent_active else " inactive"
    if len(known.inflights):
        text += f" inflight={len(known.inflights)}" + ("[full]" if known.inflights.full else "")
    return text
