"""What a start finds: every group as its folder and the WAL have it, and what is wrong with it.

Groups first, then the WAL on top, oldest file first; then the question whether every entry that
counts is somewhere. Damage puts its group into quarantine, and that is on the disk before anything
else happens: the WAL file that shows the damage may go only after.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from lowmark.errors import Corrupt, LowmarkError
from lowmark.log import files, identity, wal_format, wal_recovery
from lowmark.log.entries import Run
from lowmark.log.errors import Damaged, NewerFormat
from lowmark.log.group_recovery import check_coverage, recover_group
from lowmark.log.state import GroupState
from lowmark.log.wal_format import Kind
from lowmark.log.wal_recovery import WalFile, WalRecord
from lowmark.runtime import Disk, DiskFailed

__all__ = ["Opening", "replay_run"]

logger = logging.getLogger(__name__)


def replay_run(state: GroupState, found: WalRecord, run: Run) -> str | None:
    """Add a run from the WAL to a group; or say which entries are missing before it.

    Perhaps a later run overwrites what is missing: then the file was flushed already, and what it
    overwrote is gone. Only a gap that stays to the end is a loss.
    """
    if state.snapshot is not None and state.snapshot.floor.voids(found.wal, found.sequence):
        return None  # an installed snapshot took the place of all that
    # A run that the snapshot covers is taken, too: it may cut off the tail of an older one.
    memory, last = state.memtable, state.memtable.last
    previous = found.record.previous if found.record is not None else run.first - 1
    follows = previous <= max(state.last_index, state.row.snapshot_index)
    joins = last is None or run.first <= last + 1
    if not (follows and joins):
        return f"entries {state.last_index + 1} to {run.first - 1} of {state.name} are missing"
    memory.append(run)
    memory.stored(run, found.wal)
    state.last_index, state.last_term = run.last, run.term
    return None


@dataclass(slots=True)
class Opening:
    """A start in progress, and what it came to."""

    disk: Disk
    read_only: bool
    states: dict[str, GroupState] = field(default_factory=dict)
    unreadable: dict[str, LowmarkError] = field(default_factory=dict)
    """Groups whose folder can't even say who they are; they are left alone."""
    wals: list[WalFile] = field(default_factory=list)
    damaged_wals: set[int] = field(default_factory=set)
    """Files with something damaged in them: they are kept for analysis."""
    quarantine_unsaved: bool = False
    """A quarantine could not be written down: no WAL file may go, the next start must see it."""
    _gaps: dict[str, Damaged] = field(default_factory=dict)

    def recover(self) -> None:
        """Mend what a crash left, and read everything that says what is there."""
        self._refuse_newer_wals()
        if not self.read_only:
            self._prepare()
        for name in self.disk.list(files.GROUPS):
            if not name.startswith(identity.ASIDE):
                self._recover_group(name)
        for record in wal_recovery.read_wals(self.disk, self.wals):
            self._replay(record)
        for file in self.wals:
            for damage in file.damage:
                self.damaged_wals.add(file.number)
                self._quarantine_all(damage)
        for name, damage in self._gaps.items():
            self._quarantine(self.states[name], damage)
        for state in self.states.values():
            self._settle(state)

    def _refuse_newer_wals(self) -> None:
        """A later release's WAL may hold anything, so nothing at all is touched."""
        for number in wal_recovery.list_wals(self.disk):
            path = files.wal_path(number)
            file = self.disk.open(path, "read")
            head = file.read_at(0, wal_format.FILE_HEADER_BYTES)
            file.close()
            try:
                wal_format.decode_header(self.disk.describe(path), head)
            except NewerFormat:
                raise
            except Damaged:
                continue

    def _prepare(self) -> None:
        disk = self.disk
        for folder in (files.WAL, files.GROUPS):
            if disk.stat(folder) is None:
                disk.make_dir(folder)
        disk.sync_dir("")
        identity.sweep_folders(disk)
        for name in disk.list(files.WAL):
            if name.endswith(files.TEMPORARY):
                disk.unlink(f"{files.WAL}/{name}")
        disk.sync_dir(files.GROUPS)

    def _recover_group(self, name: str) -> None:
        try:
            state, damage = recover_group(self.disk, name, read_only=self.read_only)
        except (Corrupt, DiskFailed) as unreadable:
            logger.error("a group can't be read", extra={"group": name, "reason": str(unreadable)})
            self.unreadable[name] = unreadable
            return
        self.states[name] = state
        if damage is not None:
            self._quarantine(state, damage)

    def _replay(self, found: WalRecord) -> None:
        if found.damage is not None:
            self.damaged_wals.add(found.wal)
        if not found.incarnation:
            where = self.disk.describe(files.wal_path(found.wal))
            unknown = Damaged(where, offset=found.offset, what="a writer is unknown")
            self.damaged_wals.add(found.wal)
            self._quarantine_all(found.damage or unknown)
            return
        state = self.states.get(found.group)
        if state is None or state.incarnation != found.incarnation:
            return  # the group was deleted, and perhaps made anew
        if found.damage is not None:
            self._quarantine(state, found.damage)
        elif found.record is not None and found.record.kind is Kind.META:
            state.meta = bytes(found.record.body[0])
        elif found.record is not None:
            gap = replay_run(state, found, wal_format.decode_run(found.record))
            if gap is None:
                self._gaps.pop(state.name, None)
            else:
                where = self.disk.describe(files.wal_path(found.wal))
                self._gaps.setdefault(state.name, Damaged(where, offset=found.offset, what=gap))

    def _settle(self, state: GroupState) -> None:
        """After the replay: what is there is durable, unless something is missing."""
        row = state.row
        if state.last_index <= row.snapshot_index:
            state.last_index, state.last_term = row.snapshot_index, row.snapshot_term
        state.written_index = state.last_index
        if state.quarantine is None:
            try:
                check_coverage(state, where=self.disk.describe(state.folder))
            except Damaged as damage:
                self._quarantine(state, damage)

    def _quarantine(self, state: GroupState, damage: LowmarkError) -> None:
        if state.quarantine is not None:
            return
        state.quarantine = damage.message
        logger.error("quarantined", extra={"group": state.name, "reason": damage.message})
        # A newer file, or one that can't be read just now, is not damage for good.
        lasting = isinstance(damage, Corrupt) and not isinstance(damage, NewerFormat)
        if not self.read_only and lasting:
            try:
                identity.write_quarantine(self.disk, state.name, damage.message)
            except LowmarkError as error:
                self.quarantine_unsaved = True
                extra = {"group": state.name, "reason": error.message}
                logger.error("a quarantine could not be written down", extra=extra)

    def _quarantine_all(self, damage: Corrupt) -> None:
        for name in sorted(self.states):
            self._quarantine(self.states[name], damage)
