"""The scenario files of etcd-io/raft that are about arithmetic: quorums and configurations."""

from __future__ import annotations

from collections.abc import Collection

from lowmark.raft import Change, ChangeKind, Config, Entry, EntryKind, MembershipRefused
from lowmark.raft.membership import enter_joint, leave_joint, simple
from lowmark.raft.quorum import (
    EVERYTHING,
    VoteResult,
    joint_committed,
    joint_vote,
    majority_committed,
    majority_vote,
)
from lowmark.raft.state import NO_LIMIT, Core
from raft.etcd_words import describe_config, describe_progress
from raft.memory_storage import MemoryStorage
from raft.scenario import Stanza

__all__ = [
    "ELECTION_TICKS",
    "HEARTBEAT_TICKS",
    "Configurations",
    "changes_of",
    "etcd_config",
    "quorum",
]

ELECTION_TICKS = 3
HEARTBEAT_TICKS = 1
_CHANGE_KINDS = {
    "v": ChangeKind.ADD_VOTER,
    "l": ChangeKind.ADD_LEARNER,
    "r": ChangeKind.REMOVE,
    "u": ChangeKind.UPDATE,
}


# -- quorum ---------------------------------------------------------------------------------------


def quorum(stanza: Stanza) -> str:
    args = {arg.key: arg.values for arg in stanza.args}
    incoming = [int(node) for node in args.get("cfg", ())]
    joint = "cfgj" in args
    outgoing = [int(node) for node in args.get("cfgj", ()) if node != "zero"]
    voters = list(dict.fromkeys(incoming + outgoing))
    if stanza.command == "vote":
        given = args.get("votes", ())
        votes = {n: v == "y" for n, v in zip(voters, given, strict=True) if v != "_"}
        return f"{_vote(incoming, outgoing, votes, joint=joint)}\n"
    given = args.get("idx", ())
    acked = {n: int(v) for n, v in zip(voters, given, strict=True) if v != "_"}
    index = _committed(incoming, outgoing, acked, joint=joint)
    return f"{_bars(voters, acked)}{'∞' if index == EVERYTHING else index}\n"


def _vote(
    incoming: Collection[int], outgoing: Collection[int], votes: dict[int, bool], *, joint: bool
) -> str:
    result = joint_vote(incoming, outgoing, votes)
    assert result is joint_vote(outgoing, incoming, votes)
    if not joint:
        assert result is majority_vote(incoming, votes) is joint_vote(incoming, incoming, votes)
    names = {VoteResult.WON: "VoteWon", VoteResult.LOST: "VoteLost"}
    return names.get(result, "VotePending")


def _committed(
    incoming: Collection[int], outgoing: Collection[int], acked: dict[int, int], *, joint: bool
) -> int:
    def index_of(node: int) -> int:
        return acked.get(node, 0)

    index = joint_committed(incoming, outgoing, index_of)
    assert index == joint_committed(outgoing, incoming, index_of)
    if not joint:
        assert index == majority_committed(incoming, index_of)
        assert index == joint_committed(incoming, incoming, index_of)
        for node in incoming:
            if 0 < index_of(node) < index:  # it holds nothing back, so it can't by being lower
                assert index == majority_committed(
                    incoming, {**dict.fromkeys(incoming, 0), **acked, node: 0}.__getitem__
                )
    return index


def _bars(voters: Collection[int], acked: dict[int, int]) -> str:
    """A picture: how many each voter is ahead of."""
    if not voters:
        return "<empty majority quorum>"
    size = len(voters)
    text = " " * size + "    idx\n"
    for node in sorted(voters):
        index = acked.get(node, 0)
        ahead_of = sum(acked.get(other, 0) < index for other in voters)
        bar = "x" * ahead_of + ">" + " " * (size - ahead_of) if node in acked else "?" + " " * size
        text += f"{bar} {index:5d}    (id={node})\n"
    return text


# -- configurations -------------------------------------------------------------------------------


class Configurations:
    """One configuration after the other; the log grows by one entry with each command."""

    def __init__(self) -> None:
        self._core = Core(etcd_config(1, MemoryStorage()))

    def handle(self, stanza: Stanza) -> str:
        core, changes = self._core, changes_of(stanza.input)
        autoleave = any(a.key == "autoleave" and "true" in a.values for a in stanza.args)
        try:
            if stanza.command == "simple":
                changed = simple(core.members, changes)
            elif stanza.command == "enter-joint":
                changed = enter_joint(core.members, changes, auto_leave=autoleave)
            elif stanza.command == "leave-joint":
                changed = leave_joint(core.members)
            else:
                return "unknown command"
        except MembershipRefused as error:
            return f"{error.message}\n"
        else:
            core.set_members(*changed)
            return f"{describe_config(core.members)}\n{describe_progress(core.progress)}"
        finally:
            core.log.append([Entry(core.log.last_index + 1, 1, EntryKind.NORMAL, b"")])


def changes_of(lines: Collection[str]) -> tuple[Change, ...]:
    words = " ".join(lines).split()
    return tuple(Change(_CHANGE_KINDS[word[0]], int(word[1:])) for word in words)


def etcd_config(node: int, storage: MemoryStorage) -> Config:
    """As etcd's harness sets its nodes up: no limits, and none of our own additions."""
    return Config(
        node=node,
        storage=storage,
        election_ticks=ELECTION_TICKS,
        heartbeat_ticks=HEARTBEAT_TICKS,
        draw=lambda below: below - 1,
        async_storage=False,
        message_bytes_max=NO_LIMIT,
        inflight_max=(1 << 31) - 1,
        check_quorum=False,
        pre_vote=False,
        forward_proposals=True,
        changes_after_noop=False,
        step_down_on_removal=False,
        commit_by_vote=False,
    )
