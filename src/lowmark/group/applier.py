"""The machine of one copy, and how far it is: committed entries go in one after another.

Most entries are commands, and the machine's. The others are the group's own: copies of live
entries, versions of the machine, the first members, changes of members (see `envelope`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lowmark.errors import LowmarkError, invariant
from lowmark.group import envelope
from lowmark.group.errors import EntryTooNew, MachineFailed, MachineTooOld
from lowmark.group.machine import Machine
from lowmark.group.requests import CONFIRM, Read
from lowmark.group.storage import GroupStorage, SnapshotMembers
from lowmark.log import GroupLog
from lowmark.raft import (
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    MembershipRefused,
    StorageApplied,
)
from lowmark.runtime import Buffer

if TYPE_CHECKING:
    from lowmark.group.group import Group


logger = logging.getLogger(__name__)

Answer = Callable[[int, int, object, int], None]
"""Called with an entry's index and term, its result, and who leads."""


class Applier:
    """The machine, and everything that entries change beside it."""

    def __init__(self, host: Group, log: GroupLog, machine: Machine, founders: ConfState) -> None:
        self._host = host
        self._log = log
        self.machine = machine
        self.applied = 0
        self.last_time = 0
        """Of the last command that was applied."""
        self.version = 1
        self.members = founders
        """As of the last entry that was applied."""
        self.founded = False
        """Whether the first members stand in the log."""

    def restore(self) -> None:
        """Begin with the snapshot, if there is one."""
        snapshot = self._log.snapshot
        if snapshot is None:
            return
        meta, newest = snapshot.meta, self.machine.newest_version
        if meta.machine_version > newest:
            raise MachineTooOld(self._host.name, needed=meta.machine_version, have=newest)
        self.machine.restore(self._log.read_snapshot(), meta.machine_version)
        record = SnapshotMembers.decode(meta.members)
        self.applied, self.last_time = meta.index, max(self.last_time, record.last_time)
        self.version = meta.machine_version
        self.members = record.members
        self.founded = True
        if not self._log.row.known:
            self._log.restore_live(self.machine.live_indexes(), lambda _: None)

    def apply(self, entries: list[Entry], answer: Answer) -> bool:
        """Apply entries and answer for each; False if this copy stopped on the way."""
        host, machine, leader = self._host, self.machine, self._host.leader
        for entry in entries:
            if entry.index != self.applied + 1:
                invariant(False, "entries are applied one after another")
            result: object = None
            data = entry.data
            if entry.kind is not EntryKind.NORMAL:
                self._apply_change(entry)
            elif data:
                kind = data[0]
                if kind == envelope.COMMAND:
                    time, command = envelope.open_command(data)
                    try:
                        result = machine.apply(entry.index, time, command)
                    except Exception as error:
                        what = f"the command at {entry.index}: {error!r}"
                        host.stop(MachineFailed(host.name, what=what))
                        return False
                    self.last_time = max(self.last_time, time)
                elif kind == envelope.COPY:
                    machine.moved(envelope.old_index_of(data), entry.index)
                elif kind == envelope.VERSION:
                    if not self._upgrade(envelope.version_of(data)):
                        return False
                elif kind == envelope.FOUNDING:
                    self._apply_founding(data)
                elif kind == envelope.RESET:
                    self._apply_reset(data)
                else:
                    host.stop(EntryTooNew(host.name, index=entry.index, kind=kind))
                    return False
            self.applied = entry.index
            answer(entry.index, entry.term, result, leader)
            if host.stopped is not None:
                return False  # whoever was answered has closed it
        host.raft.applied(StorageApplied(entries))
        self._log.let_go(self.applied)
        return True

    def replay_sound(self, storage: GroupStorage, answer: Answer, bytes_max: int) -> None:
        """For those who only look: bring the machine as far as committed entries are sound."""
        core = self._host.raft.core
        if core.singleton:
            core.log.commit_to(self._log.last_index)  # nobody else need agree
        while self._host.stopped is None and self.applied < core.log.committed:
            try:
                page = storage.entries(self.applied + 1, core.log.committed + 1, bytes_max)
                self.apply(page or [], answer)
            except LowmarkError:
                if bytes_max == 1:
                    return
                bytes_max = 1  # one at a time, up to the bad one

    def _apply_change(self, entry: Entry) -> None:
        host = self._host
        was_joint, led = host.raft.core.members.joint, host.leads
        try:
            change = ConfChange.decode(entry.data)
            self.members = host.raft.apply_change(change, index=entry.index)
        except MembershipRefused as refused:
            # The same for every member, since all apply it to the same configuration.
            logger.warning(
                "a change of members could not be made",
                extra={"group": host.name, "index": entry.index, "reason": refused.message},
            )
        host.members_changed(was_joint=was_joint, led=led)

    def _apply_founding(self, data: Buffer) -> None:
        if not self.founded:
            self.founded = True
            self.members = envelope.founders_of(data)
            self._host.raft.found(self.members)

    def _apply_reset(self, data: Buffer) -> None:
        self.founded = True
        self.members = envelope.reset_of(data)
        self._host.raft.found(self.members)
        self._host.was_reset()

    def _upgrade(self, version: int) -> bool:
        newest = self.machine.newest_version
        if version > newest:
            self._host.too_old(MachineTooOld(self._host.name, needed=version, have=newest))
            return False
        if version > self.version:
            self.version = version
            self.machine.upgrade(version)
        return True

    def answer(self, reads: Iterable[Read]) -> None:
        """Answer questions whose index is applied."""
        for read in reads:
            try:
                answer = None if read.query is CONFIRM else self.machine.read(read.query)
            except LowmarkError as error:
                read.future.reject(error)
            except Exception as error:
                read.future.reject(MachineFailed(self._host.name, what=f"a read: {error!r}"))
            else:
                read.future.resolve(answer)
