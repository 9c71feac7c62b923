"""Phase 4 for operators: `lowmark log rewrite`. Scattered live entries of a partition's log are
proposed again, side by side, by the node that leads it; then their old places are freed there.

Steps at the leader, and what is true after each

    1. the scattered entries are counted, and the files measured; a dry run ends here
    2. copies of them are in the log of a majority, and count on every member (`group.rewrite`). The
       old entries are still there
    3. a snapshot of the leader's copy says that the old ones are dead
    4. phases 1 and 3 have freed them there. Other members do that after their own next snapshots

The node that was asked finds the leader and asks it now and then how far it is. If it ends, or its
client does, the leader finishes what it has begun. If leadership changes, it ends with an error;
copies that are in the log stay, and asking again goes on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from lowmark.catalog import Catalogs
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.fault import decode_fault, encode_fault
from lowmark.group import Future, Groups, NotLeader, Reply
from lowmark.log import Compacted, CompactionRequest, Log, Measure
from lowmark.metastore import Cluster
from lowmark.node.action import Action, Call, stream
from lowmark.node.bridge import Bridge
from lowmark.node.homes import find_table, name_of
from lowmark.node.log_compaction import LOOK_MS, TIMEOUT_S, SnapshotTaken
from lowmark.node.messages import RewriteLogAsk, RewrittenRow
from lowmark.placement import Placement
from lowmark.runtime import Buffer, Loop
from lowmark.table import PartitionNotHere, Tables, group_name

SERVICE = "partition.rewrite"
ANSWER_MS = 5_000
NEIGHBOURS = 32
JOBS_MAX = 64
"""This many are remembered after their end."""


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    """Begin with a partition, or say how far a job is."""

    table: int
    number: int
    job: int = 0
    bytes_per_s: int | None = None
    dry_run: bool = False


class _Said(msgspec.Struct, frozen=True, array_like=True):
    job: int = 0
    stage: str = ""
    planned: int = 0
    rewritten: int = 0
    bytes_rewritten: int = 0
    bytes_before: int = 0
    bytes_freed: int = 0
    error: bytes = b""
    leader: int = 0
    """The node to ask instead, if it is known."""


_ENDS = ("done", "failed", "planned")
_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_said = msgspec.msgpack.Decoder(_Said).decode


class _Job:
    """One partition's log, at its leader. On the loop."""

    def __init__(self, loop: Loop, groups: Groups, log: Log, number: int, asked: _Ask) -> None:
        self._loop = loop
        self._groups = groups
        self._log = log
        self._name = group_name(asked.table, asked.number)
        group = groups.group(self._name)
        if not group.ready:
            raise NotLeader(self._name, leader=group.leader or None)
        self._group = group
        self._run = group.planned_rewrite(bytes_per_s=asked.bytes_per_s, neighbours=NEIGHBOURS)
        self._said = _Said(job=number, stage="rewriting", planned=self._run.planned)
        self._before = Measure(log, group.log.state)
        self._before.done.then(partial(self._measured, dry_run=asked.dry_run))

    @property
    def said(self) -> _Said:
        return msgspec.structs.replace(
            self._said, rewritten=self._run.copied, bytes_rewritten=self._run.copied_bytes
        )

    def _measured(self, size: Future[int], *, dry_run: bool) -> None:
        if size.error is not None:
            self._failed(size.error)
            return
        self._set(bytes_before=size.result())
        if dry_run:
            self._set(stage="planned")
        elif not self._run.planned:
            self._set(stage="done")
        else:
            self._run.future.then(self._rewritten)
            self._group.begin_rewrite(self._run)

    def _rewritten(self, future: Future[int]) -> None:
        if future.error is not None:
            self._failed(future.error)
            return
        self._set(stage="snapshot")
        SnapshotTaken(self._loop, self._groups, self._name).done.then(self._compact)

    def _compact(self, taken: Future[bool]) -> None:
        if not taken.result():
            self._failed(
                Unavailable(
                    f"no snapshot of group {self._name} was taken: nothing is freed yet",
                    hint="The next snapshot and compaction free it by themselves.",
                )
            )
            return
        self._set(stage="compacting")
        request = CompactionRequest(self._log, self._name, before=self._before)
        request.done.then(self._compacted)

    def _compacted(self, future: Future[Compacted]) -> None:
        found = future.result()
        if found.result.startswith(("refused", "failed")):
            self._failed(Unavailable(f"compaction of group {self._name}: {found.result}"))
        else:
            self._set(stage="done", bytes_freed=found.bytes_freed)

    def _failed(self, error: LowmarkError) -> None:
        self._set(stage="failed", error=encode_fault(error))

    def _set(self, **values: object) -> None:
        self._said = msgspec.structs.replace(self._said, **values)


class Rewriting:
    """Asks leaders for rewrites, and carries them out. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        groups: Groups,
        log: Log,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        placement: Placement,
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._log = log
        self._cluster = cluster
        self._catalogs = catalogs
        self._tables = tables
        self._placement = placement
        self._jobs: dict[int, _Job] = {}
        self._last_job = 0
        groups.calls.serve(SERVICE, self._asked)

    def partitions(self, asked: RewriteLogAsk) -> list[RewriteOf]:
        """Those that were asked for, to be looked at one after another."""
        if asked.bytes_per_s is not None and asked.bytes_per_s < 0:
            raise Rejected("a rate can't be less than 0", hint="0 is no limit.")
        catalog = self._catalogs.latest
        table = find_table(catalog, asked.table, asked.partition)
        name = name_of(catalog, table)
        numbers = range(table.partitions) if asked.partition is None else [asked.partition]
        return [RewriteOf(self, table.id, number, name, asked) for number in numbers]

    # -- finding the leader -----------------------------------------------------------------------

    def candidates(self, table: int, number: int) -> list[int]:
        """Nodes to ask, the likeliest leader first."""
        copy, own = self._tables.here(table, number), self._groups.node
        leader = 0 if copy is None or copy.group.stopped is not None else copy.group.leader
        nodes = sorted(self._placement.routes(table, number), key=lambda node: node != own)
        return [leader, *(node for node in nodes if node != leader)] if leader else nodes

    def ask(self, node: int, asked: _Ask) -> Future[_Said]:
        """Ask a node, which may be this one."""
        if node == self._groups.node:
            return Future.of(self._answer(asked))
        question = _encode(asked)
        return self._groups.calls.ask(node, SERVICE, question, timeout_ms=ANSWER_MS).map(_read)

    def name_of_node(self, number: int) -> str:
        """As people call it."""
        names = {node.number: node.name for node in self._cluster.nodes()}
        return names.get(number, str(number)) if number else ""

    def later(self, callback: Callable[[], None]) -> None:
        """After a while."""
        self._loop.call_later(LOOK_MS, callback)

    # -- at the leader ----------------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender
        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError as error:
            bad = encode_fault(Rejected(f"a bad question: {error}"))
            answer(_encode(_Said(stage="failed", error=bad)))
            return
        answer(_encode(self._answer(asked)))

    def _answer(self, asked: _Ask) -> _Said:
        try:
            if asked.job:
                job = self._jobs.get(asked.job)
                if job is None:
                    raise Unavailable("the node was restarted and no longer knows of this rewrite")
                return job.said
            if self._tables.here(asked.table, asked.number) is None:
                raise PartitionNotHere(asked.table, asked.number)
            self._last_job += 1
            job = _Job(self._loop, self._groups, self._log, self._last_job, asked)
            self._jobs[self._last_job] = job
            over = [number for number, one in self._jobs.items() if one.said.stage in _ENDS]
            for number in over[: max(0, len(self._jobs) - JOBS_MAX)]:
                del self._jobs[number]
            return job.said
        except LowmarkError as error:
            leader = getattr(error, "leader", None) or 0
            return _Said(stage="failed", error=encode_fault(error), leader=leader)


class RewriteOf:
    """One partition, at the node that was asked. On the loop."""

    def __init__(
        self, host: Rewriting, table: int, number: int, name: str, asked: RewriteLogAsk
    ) -> None:
        self._host = host
        self._name = name
        self._ask = _Ask(table, number, 0, asked.bytes_per_s, asked.dry_run)
        self._number = number
        self._leader = 0
        self._job = 0
        self._tried: set[int] = set()
        self._last = _Said(stage="rewriting")

    def look(self) -> Future[RewrittenRow]:
        """How far it is, after a while or when it is over."""
        row: Future[RewrittenRow] = Future()
        if not self._job:
            self._begin(row, self._host.candidates(self._ask.table, self._number))
        elif self._last.stage in _ENDS:
            row.resolve(self._row(self._last))
        else:
            asked = msgspec.structs.replace(self._ask, job=self._job)

            def ask() -> None:
                self._host.ask(self._leader, asked).then(partial(self._heard, row))

            self._host.later(ask)
        return row

    def _begin(self, row: Future[RewrittenRow], nodes: list[int]) -> None:
        left = [node for node in nodes if node not in self._tried]
        if not left:
            problem = Unavailable(
                f"no node that leads partition {self._number} of {self._name} answers",
                hint="`lowmark partition list` shows its state; ask again when it has a leader.",
            )
            said = self._last if self._last.error else _Said(error=encode_fault(problem))
            self._last = msgspec.structs.replace(said, stage="failed")
            row.resolve(self._row(self._last))
            return
        node = left[0]
        self._tried.add(node)
        self._host.ask(node, self._ask).then(partial(self._begun, row, node, left[1:]))

    def _begun(
        self, row: Future[RewrittenRow], node: int, others: list[int], future: Future[_Said]
    ) -> None:
        if future.error is not None:
            self._begin(row, others)
            return
        said = future.result()
        if not said.job:  # it does not lead, or has no copy
            if isinstance(decode_fault(said.error), NotLeader | PartitionNotHere):
                self._begin(row, [said.leader, *others] if said.leader else others)
                return
        self._leader, self._job = node, said.job or -1
        self._heard(row, Future.of(said))

    def _heard(self, row: Future[RewrittenRow], future: Future[_Said]) -> None:
        if future.error is not None:
            fault = encode_fault(
                Unavailable(
                    f"node {self._host.name_of_node(self._leader)}, which led the partition, does"
                    f" not answer: {future.error.message}",
                    hint="Ask again: what was copied stays, and the rest is found again.",
                )
            )
            self._last = msgspec.structs.replace(self._last, stage="failed", error=fault)
        else:
            self._last = future.result()
        row.resolve(self._row(self._last))

    def _row(self, said: _Said) -> RewrittenRow:
        error = decode_fault(said.error) if said.error else None
        return RewrittenRow(
            table=self._name,
            partition=self._number,
            node=self._host.name_of_node(self._leader),
            done=said.stage in _ENDS,
            stage=said.stage,
            planned=said.planned,
            rewritten=said.rewritten,
            bytes_rewritten=said.bytes_rewritten,
            bytes_before=said.bytes_before,
            bytes_freed=said.bytes_freed,
            problem="" if error is None else error.message,
            hint="" if error is None else error.hint,
        )


class RewriteActions:
    """What clients may ask; on threads of the server."""

    def __init__(self, rewriting: Rewriting, bridge: Bridge) -> None:
        self._rewriting = rewriting
        self._bridge = bridge

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {"log.rewrite": stream(RewriteLogAsk, self._rewrite)}

    def _rewrite(self, asked: RewriteLogAsk, call: Call) -> Iterator[RewrittenRow]:
        ask = self._bridge.ask
        chosen = self._bridge.ask_now(
            lambda: self._rewriting.partitions(asked), timeout_s=TIMEOUT_S
        )
        for one in chosen:
            row = ask(one.look, timeout_s=TIMEOUT_S)
            yield row
            while not row.done:
                if call.gone():
                    return
                row = ask(one.look, timeout_s=TIMEOUT_S)
                yield row


def _read(data: bytes) -> _Said:
    try:
        return _decode_said(data)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"an answer can't be read: {error}") from error
