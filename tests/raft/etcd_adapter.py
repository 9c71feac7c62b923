"""Runs the scenario files of etcd-io/raft against this core.

There are three kinds of files. `quorum` and `confchange` are about arithmetic; `interaction` drives
a whole cluster, message by message. What etcd logs is not compared: this core does not log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lowmark.errors import LowmarkError, Rejected
from lowmark.raft import (
    Append,
    AppendResponse,
    ConfChange,
    Config,
    ConfState,
    Entry,
    EntryKind,
    HeartbeatResponse,
    Install,
    ProposalDropped,
    RaftNode,
    ReadIndexResponse,
    Role,
    Snapshot,
    StorageAppend,
    StorageAppended,
    StorageApplied,
    Transition,
    VoteResponse,
)
from lowmark.raft.messages import StorageApply
from lowmark.raft.state import ReadMode
from raft.etcd_arithmetic import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    Configurations,
    changes_of,
    etcd_config,
    quorum,
)
from raft.etcd_words import (
    ROLES,
    Letter,
    describe_entries,
    describe_letter,
    describe_progress,
    describe_ready,
    letters_of,
    responses,
)
from raft.memory_storage import MemoryStorage
from raft.scenario import Arg, Stanza, parse, parse_command

__all__ = ["run_file"]

_LEVELS = ("debug", "info", "warn", "error", "fatal", "none")
_LOG_LINES = tuple(f"{level.upper()} " for level in _LEVELS)
_TRANSITIONS = {
    "auto": Transition.AUTO,
    "implicit": Transition.JOINT_IMPLICIT,
    "explicit": Transition.JOINT_EXPLICIT,
}


class ScenarioFailed(AssertionError):
    """Not what the file says."""


def run_file(path: Path) -> None:
    """Run one file; raises where it prints something else."""
    folders = path.parent.parts
    handle: Callable[[Stanza], str]
    exact = True
    if "quorum" in folders:
        handle = quorum
    elif "confchange" in folders:
        handle = Configurations().handle
    else:
        handle, exact = _Cluster().handle, False
    for stanza in parse(path):
        printed, expected = handle(stanza), stanza.expected
        if not exact:
            printed, expected = _without_log_lines(printed), _without_log_lines(expected)
        if printed.rstrip("\n") != expected.rstrip("\n"):
            raise ScenarioFailed(
                f"{path.name}, {stanza}\n--- expected\n{expected}\n--- printed\n{printed}"
            )


def _without_log_lines(text: str) -> str:
    lines = [line for line in text.split("\n") if not line.lstrip().startswith(_LOG_LINES)]
    kept = "\n".join(lines)
    # A command that prints nothing says so, but not if it has logged something.
    return "" if kept.strip() == "ok" else kept


# -- interaction ----------------------------------------------------------------------------------


class _Output:
    """What the harness prints; at level `none` it is silent."""

    def __init__(self) -> None:
        self.text = ""
        self.level = "debug"

    @property
    def quiet(self) -> bool:
        return self.level == "none"

    def write(self, text: str) -> None:
        if not self.quiet:
            self.text += text

    def line(self, text: str) -> None:
        self.write(f"{text}\n")

    def set_level(self, name: str) -> None:
        if name.lower() not in _LEVELS:
            raise Rejected(f"log levels must be either of [{' '.join(_LEVELS).upper()}]")
        self.level = name.lower()

    @contextmanager
    def indented(self) -> Iterator[None]:
        before, self.text = self.text, ""
        try:
            yield
        finally:
            inner = "".join(f"  {line}\n" for line in self.text.splitlines())
            self.text = before + inner


class _Member:
    """A node with its storage, its storage's work, and the history of its state machine."""

    def __init__(self, config: Config, storage: MemoryStorage) -> None:
        self.id = config.node
        self.config = config
        self.storage = storage
        self.node = RaftNode(config)
        self.append_work: list[Letter] = []
        self.apply_work: list[Letter] = []
        storage.offered = storage.base

    def append(self, order: StorageAppend) -> None:
        assert not (order.snapshot is not None and order.entries)
        self.storage.write(order.hard, order.entries, order.snapshot)

    def apply(self, entries: list[Entry]) -> None:
        """Each applied entry makes a snapshot; the newest is the one that is served."""
        for entry in entries:
            latest = self.storage.offered
            members = latest.members if latest is not None else ConfState()
            if entry.kind is not EntryKind.NORMAL:
                change = ConfChange.decode(entry.data)
                members = self.node.apply_change(change, index=entry.index)
            self.storage.offered = Snapshot(entry.index, entry.term, members)


class _Cluster:
    """Members, and everything that is on its way between them."""

    def __init__(self) -> None:
        self._out = _Output()
        self._members: list[_Member] = []
        self._letters: list[Letter] = []
        self._commands: dict[str, Callable[[tuple[Arg, ...]], None]] = {
            "_breakpoint": lambda _: None,
            "add-nodes": self._add_nodes,
            "campaign": lambda args: self._first(args).node.campaign(),
            "compact": self._compact,
            "deliver-msgs": self._deliver_msgs,
            "forget-leader": lambda args: self._first(args).node.forget_leader(),
            "log-level": lambda args: self._out.set_level(args[0].key),
            "process-append-thread": self._each("processing append thread", self._append_thread),
            "process-apply-thread": self._each("processing apply thread", self._apply_thread),
            "process-ready": self._each("handling Ready", self._process_ready),
            "propose": lambda args: self._first(args).node.propose([args[1].key.encode()]),
            "raft-log": lambda args: self._raft_log(self._first(args)),
            "raft-state": self._raft_state,
            "report-unreachable": self._report_unreachable,
            "send-snapshot": self._send_snapshot,
            "set-randomized-election-timeout": self._set_timeout,
            "stabilize": self._stabilize,
            "status": self._status,
            "tick-election": lambda args: self._tick(self._first(args), ELECTION_TICKS),
            "tick-heartbeat": lambda args: self._tick(self._first(args), HEARTBEAT_TICKS),
            "transfer-leadership": self._transfer,
        }

    def handle(self, stanza: Stanza) -> str:
        self._out.text = ""
        try:
            if stanza.command == "propose-conf-change":
                self._propose_change(stanza)
            else:
                self._run(stanza.command, stanza.args)
                for line in stanza.input:
                    self._run(*parse_command(line))
        except LowmarkError as error:
            if self._out.quiet:
                return _in_etcds_words(error)
            self._out.write(_in_etcds_words(error))
        return self._out.text or "ok"

    def _run(self, command: str, args: tuple[Arg, ...]) -> None:
        if command not in self._commands:
            raise Rejected("unknown command")
        self._commands[command](args)

    # -- arguments ------------------------------------------------------------------------------

    def _first(self, args: tuple[Arg, ...]) -> _Member:
        return self._members[int(args[0].key) - 1]

    def _chosen(self, args: tuple[Arg, ...]) -> list[_Member]:
        return [self._members[int(arg.key) - 1] for arg in args if not arg.values]

    def _each(
        self, header: str, act: Callable[[_Member], None]
    ) -> Callable[[tuple[Arg, ...]], None]:
        def run(args: tuple[Arg, ...]) -> None:
            chosen = self._chosen(args)
            for member in chosen:
                if len(chosen) > 1:
                    self._out.line(f"> {member.id} {header}")
                    with self._out.indented():
                        act(member)
                else:
                    act(member)

        return run

    # -- the commands ---------------------------------------------------------------------------

    def _add_nodes(self, args: tuple[Arg, ...]) -> None:
        given = {arg.key: arg.values for arg in args[1:]}
        voters = tuple(sorted(int(node) for node in given.get("voters", ())))
        learners = tuple(sorted(int(node) for node in given.get("learners", ())))
        index = int(given["index"][0]) if "index" in given else 0
        from_snapshot = bool(voters or learners or index or given.get("content"))
        if from_snapshot and index <= 1:
            raise Rejected("index must be specified as > 1 due to bootstrap")
        for _ in range(int(args[0].key)):
            storage = MemoryStorage()
            if from_snapshot:
                members = ConfState(voters=voters, learners=learners)
                storage = MemoryStorage(Snapshot(index, 1, members))
            config = etcd_config(len(self._members) + 1, storage)
            config.applied = index
            for key, values in given.items():
                _set_option(config, key, values[-1] if values else "")
            self._members.append(_Member(config, storage))

    def _compact(self, args: tuple[Arg, ...]) -> None:
        member = self._first(args)
        member.storage.compact(int(args[1].key))
        self._raft_log(member)

    def _propose_change(self, stanza: Stanza) -> None:
        given = {arg.key: arg.values[0] for arg in stanza.args[1:]}
        changes = changes_of(stanza.input)
        transition = _TRANSITIONS[given.get("transition", "auto")]
        single = given.get("v1") == "true"
        if single and (len(changes) > 1 or transition is not Transition.AUTO):
            raise Rejected("v1 conf change can only have one operation and no transition")
        member = self._first(stanza.args)
        member.node.propose_change(ConfChange(transition, changes), single=single)

    def _raft_log(self, member: _Member) -> None:
        first, last = member.storage.first_index(), member.storage.last_index()
        if last < first:
            self._out.write(f"log is empty: first index={first}, last index={last}")
        else:
            self._out.write(describe_entries(member.storage.log))

    def _raft_state(self, args: tuple[Arg, ...]) -> None:
        for member in self._members:
            core = member.node.core
            votes = "Voter" if core.node in core.members.voters else "Non-Voter"
            self._out.line(
                f"{core.node}: {ROLES[core.role]} ({votes}) Term:{core.term} Lead:{core.leader}"
            )

    def _report_unreachable(self, args: tuple[Arg, ...]) -> None:
        reporter, reported = self._chosen(args)
        reporter.node.report_unreachable(reported.id)

    def _send_snapshot(self, args: tuple[Arg, ...]) -> None:
        sender, to = self._chosen(args)
        snapshot, core = sender.storage.offered, sender.node.core
        assert snapshot is not None
        message = Install(to.id, sender.id, core.term, core.incarnation_of(to.id), snapshot)
        self._letters.append(Letter(sender.id, to.id, message))
        self._out.write(describe_letter(self._letters[-1]))

    def _set_timeout(self, args: tuple[Arg, ...]) -> None:
        given = {arg.key: arg.values for arg in args[1:]}
        self._first(args).node.core.election_timeout = int(given["timeout"][0])

    def _status(self, args: tuple[Arg, ...]) -> None:
        core = self._first(args).node.core
        if core.role is Role.LEADER:
            self._out.write(describe_progress(core.progress))

    def _tick(self, member: _Member, times: int) -> None:
        for _ in range(times):
            member.node.tick()

    def _transfer(self, args: tuple[Arg, ...]) -> None:
        given = {arg.key: int(arg.values[0]) for arg in args}
        self._members[given["from"] - 1].node.transfer_leader(given["to"])

    # -- work -----------------------------------------------------------------------------------

    def _process_ready(self, member: _Member) -> None:
        ready = member.node.ready()
        self._out.write(describe_ready(member.id, ready))
        if not member.config.async_storage:
            member.append(StorageAppend(ready.entries, ready.hard, ready.snapshot, []))
            member.apply(ready.committed)
        for letter in letters_of(member.id, ready):
            match letter.content:
                case StorageAppend():
                    member.append_work.append(letter)
                case StorageApply():
                    member.apply_work.append(letter)
                case _:
                    self._letters.append(letter)
        if not member.config.async_storage:
            member.node.advance()

    def _append_thread(self, member: _Member) -> None:
        if not member.append_work:
            self._out.write("no append work to perform")
            return
        letter = member.append_work.pop(0)
        self._out.line("Processing:")
        self._out.line(describe_letter(letter, with_responses=False))
        assert isinstance(letter.content, StorageAppend)
        member.append(letter.content)
        self._answer(letter)

    def _apply_thread(self, member: _Member) -> None:
        if not member.apply_work:
            self._out.write("no apply work to perform")
            return
        letter = member.apply_work.pop(0)
        self._out.line("Processing:")
        self._out.line(describe_letter(letter, with_responses=False))
        assert isinstance(letter.content, StorageApply)
        member.apply(letter.content.entries)
        self._answer(letter)

    def _answer(self, letter: Letter) -> None:
        self._out.line("Responses:")
        for answer in responses(letter):
            self._out.line(describe_letter(answer))
            self._letters.append(answer)

    def _deliver_msgs(self, args: tuple[Arg, ...]) -> None:
        kind, recipients = "", []
        for arg in args:
            if not arg.values:
                recipients.append((int(arg.key), False))
            elif arg.key == "drop":
                recipients += [(int(node), True) for node in arg.values]
            elif arg.key == "type":
                kind = arg.values[0]
        handled = sum(self._deliver(node, kind=kind, drop=drop) for node, drop in recipients)
        if not handled:
            self._out.line("no messages")

    def _deliver(self, node: int, *, kind: str = "", drop: bool = False) -> int:
        """Deliver or drop what is on its way to a node. Nothing is lost within a node."""
        chosen = [
            letter
            for letter in self._letters
            if letter.to == node
            and not (drop and letter.is_local)
            and (not kind or letter.kind == kind)
        ]
        self._letters = [letter for letter in self._letters if letter not in chosen]
        for letter in chosen:
            self._out.line(("dropped: " if drop else "") + describe_letter(letter))
            if not drop:
                try:
                    self._step(self._members[node - 1], letter)
                except LowmarkError as error:
                    self._out.line(_in_etcds_words(error))
        return len(chosen)

    def _step(self, member: _Member, letter: Letter) -> None:
        content = letter.content
        if isinstance(content, StorageAppended | StorageApplied):
            member.node.deliver(content)
            return
        assert not isinstance(content, StorageAppend | StorageApply)
        answers = AppendResponse | HeartbeatResponse | VoteResponse | ReadIndexResponse
        if isinstance(content, answers) and letter.sender not in member.node.core.progress:
            raise Rejected("raft: cannot step as peer not found")
        if isinstance(content, Append):
            # Members share this process: an entry must not be shared with it.
            content.entries = [Entry(e.index, e.term, e.kind, e.data) for e in content.entries]
        member.node.step(content)

    def _stabilize(self, args: tuple[Arg, ...]) -> None:
        members = self._chosen(args) or self._members
        level = self._out.level
        for arg in args:
            if arg.key == "log-level":
                self._out.set_level(arg.values[0])
        try:
            while self._round(members):
                pass
        finally:
            self._out.level = level

    def _round(self, members: list[_Member]) -> bool:
        busy = False
        for member in members:
            if member.node.has_ready():
                busy = True
                self._out.line(f"> {member.id} handling Ready")
                with self._out.indented():
                    self._process_ready(member)
        for member in members:
            if any(letter.to == member.id for letter in self._letters):
                busy = True
                self._out.line(f"> {member.id} receiving messages")
                with self._out.indented():
                    self._deliver(member.id)
        for member in members:
            busy |= bool(member.append_work)
            self._drain(member, "append", member.append_work, self._append_thread)
        for member in members:
            busy |= bool(member.apply_work)
            self._drain(member, "apply", member.apply_work, self._apply_thread)
        return busy

    def _drain(
        self, member: _Member, name: str, work: list[Letter], act: Callable[[_Member], None]
    ) -> None:
        if work:
            self._out.line(f"> {member.id} processing {name} thread")
            while work:
                with self._out.indented():
                    act(member)


def _set_option(config: Config, key: str, value: str) -> None:
    on = value == "true"
    match key:
        case "inflight":
            config.inflight_max = int(value)
        case "async-storage-writes":
            config.async_storage = on
        case "prevote":
            config.pre_vote = on
        case "checkquorum":
            config.check_quorum = on
        case "max-committed-size-per-ready":
            config.applying_bytes_max = int(value)
        case "disable-conf-change-validation":
            config.validate_changes = not on
        case "read-only":
            config.read_mode = {"safe": ReadMode.SAFE, "lease-based": ReadMode.LEASE}[value]
        case "step-down-on-removal":
            config.step_down_on_removal = on
        case _:
            pass  # about the snapshot to start from


def _in_etcds_words(error: LowmarkError) -> str:
    return "raft proposal dropped" if isinstance(error, ProposalDropped) else error.message
