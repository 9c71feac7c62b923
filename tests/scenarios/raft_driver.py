"""A group of cores that a golden file moves by hand: what they say to each other, and what becomes
of them.

After each command everything goes on until it rests. Printed are the messages, in the order in
which they arrive (`lost` stands before one that does not), what is applied, and a line for each
member of which something has changed. An entry is written as `index@term`, and t3 is term 3;
`quiet` leaves the messages out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowmark.raft import (
    Append,
    AppendResponse,
    Change,
    ChangeKind,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Install,
    Message,
    Progress,
    ReadIndex,
    ReadIndexResponse,
    Role,
    TimeoutNow,
    TransferLeader,
    Transition,
    Vote,
    VoteResponse,
)
from lowmark.raft.messages import Forward
from raft.cluster import Cluster, Member
from scenarios.runner import Command, ScenarioBroken

__all__ = ["RaftDriver"]

_SETTINGS = ("pre_vote", "check_quorum", "forward_proposals")
_LIMITS = ("inflight_max", "message_bytes_max", "uncommitted_bytes_max")
_KINDS = {
    "voter": ChangeKind.ADD_VOTER,
    "learner": ChangeKind.ADD_LEARNER,
    "remove": ChangeKind.REMOVE,
    "replace": ChangeKind.REPLACE,
}
_TRANSITIONS = {
    "if-needed": Transition.AUTO,
    "always": Transition.JOINT_IMPLICIT,
    "until-left": Transition.JOINT_EXPLICIT,
}


class RaftDriver:
    """Handles the commands of a file."""

    def __init__(self) -> None:
        self._cluster = Cluster()
        self._alone: frozenset[int] = frozenset()
        self._cut: set[frozenset[int]] = set()
        self._said: list[str] = []
        self._known: dict[int, list[str]] = {}
        self._applied: dict[int, int] = {}
        self._commands: dict[str, Callable[[Command], None]] = {
            "cluster": self._make,
            "given": self._given,
            "campaign": self._campaign,
            "tick": self._tick,
            "propose": self._propose,
            "change": self._change,
            "leave": self._leave,
            "transfer": lambda c: self._member(c).raft.transfer_leader(c.number("to")),
            "read": lambda c: self._member(c).raft.read_index(c.word(1).encode()),
            "isolate": self._isolate,
            "cut": self._cut_links,
            "heal": self._heal,
            "hold-writes": self._hold_writes,
            "release-writes": self._release_writes,
            "restart": self._restart,
            "compact": lambda c: self._member(c).compact(keep=c.number("keep")),
        }
        self._looks: dict[str, Callable[[Command], list[str]]] = {
            "state": lambda c: [_state(one)[0] for one in self._all()],
            "members": lambda c: [_state(one)[1] for one in self._all()],
            "log": self._log,
            "progress": self._progress,
        }

    def __call__(self, command: Command) -> str:
        if command.name in self._looks:
            return "\n".join(self._looks[command.name](command))
        if command.name not in self._commands:
            raise ScenarioBroken(f"there is no command `{command.name}`")
        quiet = command.flag("quiet")
        self._said = []
        self._commands[command.name](command)
        self._cluster.run()
        said = [] if quiet else self._said
        return "\n".join([*said, *(line for one in self._all() for line in self._news(one))])

    # -- members --------------------------------------------------------------------------------

    def _all(self) -> list[Member]:
        return [self._cluster[node] for node in sorted(self._cluster.members)]

    def _member(self, command: Command) -> Member:
        return self._cluster[int(command.word())]

    def _make(self, command: Command) -> None:
        """`voters` found the group; `others` have no part in it yet, and know who founded it. Time
        is up after 10 ticks without a leader; for those that are `patient`, after 19.
        """
        options: dict[str, Any] = {
            name: command.text(name) == "yes" for name in _SETTINGS if name in command.options
        }
        options |= {name: command.number(name) for name in _LIMITS if name in command.options}
        voters, learners = command.numbers("voters"), command.numbers("learners")
        nodes = (*voters, *learners, *command.numbers("others"))
        patient = command.numbers("patient")
        members = [
            Member(
                node,
                voters,
                learners=learners,
                draw=_longest if node in patient else _shortest,
                **options,
            )
            for node in nodes
        ]
        self._cluster = Cluster(*members)
        self._cluster.passes = self._passes
        self._alone, self._cut = frozenset(), set()
        self._applied = {}
        self._known = {member.node: _state(member) for member in members}

    def _given(self, command: Command) -> None:
        """Give a member a log, by the terms of its entries, and how much of it is committed."""
        old = self._member(command)
        log = command.numbers("log")
        self._cluster.members[old.node] = Member(
            old.node,
            members=old.storage.base.members,
            log=log,
            hard=HardState(
                term=command.number("term", max(log, default=0)), commit=command.number("commit")
            ),
            **old.options,
        )

    # -- events ---------------------------------------------------------------------------------

    def _campaign(self, command: Command) -> None:
        for word in command.rest():
            self._cluster[int(word)].raft.campaign()

    def _tick(self, command: Command) -> None:
        """Let time pass for some members, or for all."""
        self._cluster.tick(command.number("times", 1), *map(int, command.rest()))

    def _propose(self, command: Command) -> None:
        self._member(command).raft.propose([word.encode() for word in command.rest(1)])

    def _change(self, command: Command) -> None:
        changes = tuple(
            Change(kind, node) for name, kind in _KINDS.items() for node in command.numbers(name)
        )
        transition = _TRANSITIONS[command.text("joint", "if-needed")]
        self._member(command).raft.propose_change(ConfChange(transition, changes))

    def _leave(self, command: Command) -> None:
        self._member(command).raft.propose_change(ConfChange())

    # -- disks and wires ------------------------------------------------------------------------

    def _passes(self, message: Message) -> bool:
        ends = frozenset({message.sender, message.to})
        apart = (message.sender in self._alone) is not (message.to in self._alone)
        lost = apart or ends in self._cut or message.to not in self._cluster.members
        self._said.append(f"{'lost: ' if lost else ''}{_message(message)}")
        return not lost

    def _isolate(self, command: Command) -> None:
        """What goes between these and all others is lost."""
        self._alone = frozenset(map(int, command.rest()))

    def _cut_links(self, command: Command) -> None:
        """`1-2`: what goes between these two is lost."""
        self._cut |= {frozenset(map(int, word.split("-"))) for word in command.rest()}

    def _heal(self, command: Command) -> None:
        self._alone, self._cut = frozenset(), set()

    def _hold_writes(self, command: Command) -> None:
        """A disk that takes its time: nothing that is ordered from now on is written."""
        self._member(command).holds_writes = True

    def _release_writes(self, command: Command) -> None:
        self._member(command).holds_writes = False

    def _restart(self, command: Command) -> None:
        """Begin again from what is durable."""
        member = self._member(command)
        member.start()
        self._applied[member.node] = 0

    # -- looking --------------------------------------------------------------------------------

    def _news(self, member: Member) -> list[str]:
        """What has become of a member since the last command."""
        applied = member.applied[self._applied.get(member.node, 0) :]
        self._applied[member.node] = len(member.applied)
        node, lines = member.node, _state(member)
        known, self._known[node] = self._known.get(node, []), lines
        news = [f"{node} applies {_entries(applied)}"] if applied else []
        news += [f'{node} may read "{one.context.decode()}" at {one.index}' for one in member.reads]
        member.reads.clear()
        return [*news, *(line for line in lines if line not in known)]

    def _log(self, command: Command) -> list[str]:
        log = self._member(command).core.log
        before = log.first_index - 1
        lines = [f"{before}@{log.term(before)} ends a snapshot"] if before else []
        entries = self._member(command).storage.log
        return [*lines, *(_entry(one) for one in entries)] or ["nothing"]

    def _progress(self, command: Command) -> list[str]:
        core = self._member(command).core
        if core.role is not Role.LEADER:
            return [f"{core.node} does not lead"]
        return [f"{node}: {_known(one)}" for node, one in sorted(core.progress.items())]


def _shortest(below: int) -> int:
    del below
    return 0


def _longest(below: int) -> int:
    return below - 1


# -- words ----------------------------------------------------------------------------------------


def _state(member: Member) -> list[str]:
    """Two lines: where it stands, and who belongs to its group."""
    core = member.core
    log = core.log
    role = core.role.value + (
        f" of {core.leader}" if core.role is Role.FOLLOWER and core.leader else ""
    )
    vote = f", voted for {core.vote}" if core.vote and core.role is not Role.LEADER else ""
    last = f"log ends at {log.last_index}@{log.term(log.last_index)}"
    durable = member.storage.last_index()
    if durable < log.last_index:
        last += f" (written to {durable})"
    lines = [f"{member.node}: {role} t{core.term}{vote}, {last}, committed {log.committed}"]
    return [*lines, f"{member.node}: members {_members(core.members.stored())}"]


def _members(stored: ConfState) -> str:
    text = _nodes(stored.voters)
    if stored.voters_outgoing:
        text = f"{text} and {_nodes(stored.voters_outgoing)}"
        text += ", left by itself" if stored.auto_leave else ", until it is left"
    text += f", learners {_nodes(stored.learners)}" if stored.learners else ""
    text += f", to be learners {_nodes(stored.learners_next)}" if stored.learners_next else ""
    text += f", to come back {_nodes(stored.returning)}" if stored.returning else ""
    added = " ".join(f"{node} by {index}" for node, index in stored.incarnations)
    return text + (f", added {added}" if added else "")


def _nodes(nodes: tuple[int, ...]) -> str:
    return f"({' '.join(map(str, nodes))})"


def _entries(entries: list[Entry]) -> str:
    return ", ".join(map(_entry, entries)) or "nothing"


def _entry(entry: Entry) -> str:
    where = f"{entry.index}@{entry.term}"
    if entry.kind is EntryKind.NORMAL:
        data = bytes(entry.data).decode()
        return f"{where} {data}" if data else f"{where} -"
    change = ConfChange.decode(entry.data)
    if change.leaves_joint:
        return f"{where} [leave]"
    names = {kind: name for name, kind in _KINDS.items()}
    return f"{where} [{' '.join(f'{names[one.kind]} {one.node}' for one in change.changes)}]"


def _message(message: Message) -> str:
    meant = f" (copy {message.incarnation})" if message.incarnation else ""
    term = f" t{message.term}" if message.term else ""
    return f"{message.sender} -> {message.to}{term}: {_words(message)}{meant}"


def _words(message: Message) -> str:
    match message:
        case Append():
            after = f"after {message.index}@{message.log_term}"
            return f"append {_entries(message.entries)} {after}, committed {message.commit}"
        case AppendResponse(reject=True):
            return f"refuses what follows {message.index}, try {message.hint}@{message.hint_term}"
        case AppendResponse():
            return f"has all to {message.index}"
        case Vote():
            asks = "would you vote for me" if message.pre else "vote for me"
            asked = ", as the leader wishes" if message.transfer else ""
            return f"{asks}, my log ends at {message.index}@{message.log_term}{asked}"
        case VoteResponse():
            yes, no = ("would", "would not") if message.pre else ("yes", "no")
            known = f", {message.commit}@{message.commit_term} is committed"
            return (no if message.reject else yes) + (known if message.commit else "")
        case Heartbeat():
            asked = f", read round {message.context}" if message.context else ""
            return f"heartbeat, committed {message.commit}{asked}"
        case HeartbeatResponse():
            return "heard" + (f", read round {message.context}" if message.context else "")
        case Install(snapshot=snapshot):
            return f"snapshot {snapshot.index}@{snapshot.term} of {_members(snapshot.members)}"
        case TimeoutNow():
            return "stand for election now"
        case TransferLeader():
            return f"hand over to {message.transferee}"
        case ReadIndex():
            return f'where may I read "{message.context.decode()}"'
        case ReadIndexResponse():
            return f'read "{message.context.decode()}" at {message.index}'
        case Forward():
            return f"propose {len(message.entries)} for me"
        case _:
            raise ScenarioBroken(f"no words for {message!r}")


def _known(known: Progress) -> str:
    """What a leader knows of a member."""
    text = f"{known.state.value}, has {known.match}, next {known.next}"
    text += ", learner" if known.is_learner else ""
    text += ", paused" if known.paused else ""
    text += f", snapshot {known.pending_snapshot} on its way" if known.pending_snapshot else ""
    text += "" if known.recent_active else ", silent"
    return text + (f", {len(known.inflights)} in flight" if len(known.inflights) else "")
