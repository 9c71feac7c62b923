"""Phases 1 and 3 of the log for operators, at a node that runs: `lowmark log compact --node`.

A node compacts its own logs: each copy of a group has its own. Groups go one after another, as the
lane does; a client that goes away ends it before the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowmark.catalog import Catalogs
from lowmark.errors import Rejected
from lowmark.group import Future, Groups
from lowmark.log import Compacted, CompactionRequest, Log, Measure
from lowmark.metastore.identity import GROUP
from lowmark.node.action import Action, Call, stream
from lowmark.node.bridge import Bridge
from lowmark.node.homes import find_table, name_of
from lowmark.node.messages import CompactedRow, CompactLogAsk, KeptRow
from lowmark.runtime import Loop
from lowmark.table import group_name, parse_group_name

LOOK_MS = 300
"""So often a client hears how far it is."""
TIMEOUT_S = 30.0
SNAPSHOT_MS_MAX = 60_000
_LOOK_SNAPSHOT_MS = 20


class SnapshotTaken:
    """Has a group take a snapshot of all that it has applied. On the loop."""

    def __init__(self, loop: Loop, groups: Groups, name: str) -> None:
        self._loop = loop
        self._group = groups.group(name)
        self._goal = self._group.applied
        self._ends_at_us = loop.elapsed_us() + 1_000 * SNAPSHOT_MS_MAX
        self.done: Future[bool] = Future()
        """Whether there is one; not, if the copy has stopped or that takes too long."""
        if self._group.log.row.snapshot_index < self._goal:
            self._group.snapshot()
        self._look()

    def _look(self) -> None:
        group = self._group
        if group.log.row.snapshot_index >= self._goal:
            self.done.resolve(True)
        elif group.stopped is not None or self._loop.elapsed_us() >= self._ends_at_us:
            self.done.resolve(False)
        else:
            self._loop.call_later(_LOOK_SNAPSHOT_MS, self._look)


class _Job:
    """One group's turn."""

    def __init__(
        self, loop: Loop, groups: Groups, log: Log, name: str, asked: CompactLogAsk
    ) -> None:
        self._log = log
        self._name = name
        self._dry_run = asked.dry_run
        self._request: CompactionRequest | None = None
        self.done: Future[Compacted] = Future()
        if asked.snapshot and not asked.dry_run:
            # What the snapshot frees by itself was freed on request, too.
            before = Measure(log, log.group(name).state)
            SnapshotTaken(loop, groups, name).done.then(lambda _: self._begin(before))
        else:
            self._begin(None)

    def _begin(self, before: Measure | None) -> None:
        self._request = CompactionRequest(
            self._log, self._name, dry_run=self._dry_run, before=before
        )
        self._request.done.then(self.done.follow)

    @property
    def so_far(self) -> Compacted:
        if self._request is None:
            return Compacted(group=self._name, dry_run=self._dry_run, result="taking a snapshot")
        return self._request.so_far


class LogCompaction:
    """Answers clients; all but the action on the loop."""

    def __init__(
        self, loop: Loop, groups: Groups, log: Log, catalogs: Catalogs, bridge: Bridge
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._log = log
        self._catalogs = catalogs
        self._bridge = bridge

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {"log.compact": stream(CompactLogAsk, self._compact)}

    def _compact(self, asked: CompactLogAsk, call: Call) -> Iterator[CompactedRow]:
        for name in self._bridge.ask_now(lambda: self.chosen(asked), timeout_s=TIMEOUT_S):
            job = self._bridge.ask_now(
                lambda name=name: self.begin(name, asked),  # type: ignore[misc]
                timeout_s=TIMEOUT_S,
            )
            while True:
                row = self._bridge.ask(lambda job=job: self._look(job), timeout_s=TIMEOUT_S)  # type: ignore[misc]
                yield row
                if row.done:
                    break
                if call.gone():
                    return

    def chosen(self, asked: CompactLogAsk) -> list[str]:
        """The groups of this node that were asked for."""
        if asked.table is None:
            if asked.partition is not None:
                raise Rejected("a partition is named, but no table", hint="Name the table, too.")
            return [
                one.name for one in self._groups.groups() if not asked.meta or one.name == GROUP
            ]
        if asked.meta:
            raise Rejected("a table is named, and the metastore", hint="Ask for one of them.")
        table = find_table(self._catalogs.latest, asked.table, asked.partition)
        wanted = range(table.partitions) if asked.partition is None else [asked.partition]
        here = {one.name for one in self._groups.groups()}
        names = [group_name(table.id, number) for number in wanted]
        found = [name for name in names if name in here]
        if not found:
            of = asked.table
            of = of if asked.partition is None else f"partition {asked.partition} of {of}"
            raise Rejected(
                f"this node has no copy of {of}",
                hint=f"`lowmark partition list {asked.table}` shows the nodes that have one.",
            )
        return found

    def begin(self, name: str, asked: CompactLogAsk) -> _Job:
        """Begin with a group."""
        return _Job(self._loop, self._groups, self._log, name, asked)

    def _look(self, job: _Job) -> Future[CompactedRow]:
        """What came of it, or how far it is after a while."""
        row: Future[CompactedRow] = Future()
        timer = self._loop.call_later(
            LOOK_MS, lambda: row.resolve(self._row(job.so_far, done=False))
        )

        def done(future: Future[Compacted]) -> None:
            timer.cancel()
            row.resolve(self._row(future.result(), done=True))

        job.done.then(done)
        return row

    def _row(self, found: Compacted, *, done: bool) -> CompactedRow:
        place, table = parse_group_name(found.group), ""
        if place is not None:
            described = self._catalogs.latest.table(place[0])
            table = name_of(self._catalogs.latest, described) if described is not None else ""
        return CompactedRow(
            group=found.group,
            table=table,
            partition=None if place is None else place[1],
            done=done,
            result=found.result,
            segments_before=found.segments_before,
            segments_after=found.segments_after,
            bytes_before=found.bytes_before,
            bytes_freed=found.bytes_freed,
            merges=found.merges,
            bytes_copied=found.bytes_copied,
            wal_bytes=found.wal_bytes,
            kept=tuple(
                KeptRow(reason=one.reason, segments=one.segments, bytes=one.bytes)
                for one in found.kept
            ),
        )
