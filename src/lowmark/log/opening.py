"""What a start finds: every group as its folder and the WAL have it, and what is wrong with it.

Groups first, then the WAL on top, oldest file first; then the question whether every entry that
counts is somewhere. Damage puts its group into quarantine, and that is on the disk before anything
else happens: the WAL file that shows the damage may go only after.

A group is one of these at a start:
    there        its folder is read; its records are replayed
    unreadable   its folder is there, but who it is, or what it has, can't be read just now; or the
                 roster has it, and its folder is missing, empty, or another one's (`roster`); or
                 the WAL has records of it, and nothing else says that it is or was there. It is
                 not taken for deleted: its records, votes included, stay in their WAL files, it is
                 left alone, and a caller that asks for it hears which file can't be read, and why
    deleted      the roster has a mark that says so, or another incarnation has its name: its
                 records are passed over. So are those of a release that made no marks
So a WAL file ends only as `flush` says: this file finds out who is owed which file (`strangers`),
because its records were not taken into memory: those of unreadable groups, and those that leave a
gap, which no quarantine mends. An unreadable group is owed also a file that is lost, or damaged so
that nobody can tell whose records are gone, if the file's note names it.

A file that was set aside without a note beside it may hold what is nowhere else: earlier releases
set sound files aside when a folder could not be written. It is too late to replay it over segments
that may be newer. But what it holds beyond a group's last entry, and what joins that entry in the
same term or a later one, is taken. What does not fit stays where it is; `verify` names it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field

from lowmark.errors import Corrupt, LowmarkError
from lowmark.log import files, identity, wal_format, wal_recovery
from lowmark.log.entries import Run
from lowmark.log.errors import Damaged, NewerFormat
from lowmark.log.flush import ClosedFile
from lowmark.log.group_recovery import check_coverage, recover_group
from lowmark.log.kept import Owner
from lowmark.log.roster import Roster
from lowmark.log.snapshot_format import Floor
from lowmark.log.state import GroupState
from lowmark.log.wal_format import Kind
from lowmark.log.wal_recovery import WalFile, WalRecord
from lowmark.runtime import Disk, DiskFailed, FileMissing, NoHandles

logger = logging.getLogger(__name__)


def replay_run(state: GroupState, found: WalRecord, run: Run) -> str | None:
    """Add a run from the WAL to a group; or say which entries are missing before it.

    Perhaps a later run overwrites what is missing: then the file was flushed already, and what it
    overwrote is gone. Only a gap that stays to the end is a loss.
    """
    if state.snapshot is not None and state.snapshot.floor.voids(found.wal, found.sequence):
        return None  # an installed snapshot took the place of all that
    # A run that the snapshot covers is taken, too: it may cut off the tail of an older one.
    last = state.memtable.last
    previous = found.record.previous if found.record is not None else run.first - 1
    follows = previous <= state.last_index or previous <= state.row.snapshot_index
    joins = last is None or run.first <= last + 1
    if not (follows and joins):
        return f"entries {state.last_index + 1} to {run.first - 1} of {state.name} are missing"
    take_run(state, found.wal, run)
    return None


def take_run(state: GroupState, wal: int, run: Run) -> None:
    """Add a run from a WAL file to a group's log."""
    state.memtable.append(run)
    state.memtable.stored(run, wal)
    state.last_index, state.last_term = run.last, run.term


def extension(state: GroupState, disk: Disk, runs: list[Run]) -> list[Run] | None:
    """What a file that was set aside adds to a group's log: its runs beyond the last entry.

    None: it holds entries beyond it, but they do not join it, or their data is gone.
    """
    tail: list[Run] = []
    for run in runs:
        tail = [older for older in tail if older.first < run.first]
        tail.append(run)
    last, term = state.last_index, state.last_term
    if not tail or tail[-1].last <= last:
        return []
    beyond = [run for run in tail if run.last > last]
    joint = [run for run in tail if run.first <= last <= run.last]
    joins = joint[-1].term == term if joint else beyond[0].first == last + 1
    follows = joins and beyond[0].term >= term
    expected = last + 1
    for run in beyond:
        large = run.large
        gone = large is not None and not disk.stat(
            f"{state.folder}/{files.large_name(large.number)}"
        )
        if run.first > expected or gone:
            return None
        expected = run.last + 1
    return beyond if follows else None


@dataclass(slots=True)
class Opening:
    """A start in progress, and what it came to."""

    disk: Disk
    read_only: bool
    roster: Roster
    states: dict[str, GroupState] = field(default_factory=dict)
    unreadable: dict[str, LowmarkError] = field(default_factory=dict)
    """Groups whose folder can't be read just now; they are left alone, and so are their records."""
    wals: list[WalFile] = field(default_factory=list)
    damaged_wals: set[int] = field(default_factory=set)
    """Files with something damaged in them: they are kept for analysis."""
    holders: dict[int, set[Owner]] = field(default_factory=lambda: defaultdict(set))
    """Per WAL file, everybody who has records in it that may count."""
    strangers: dict[int, set[Owner]] = field(default_factory=lambda: defaultdict(set))
    """Per WAL file, those of them whose records were not taken into memory."""
    _unread_folders: set[str] = field(default_factory=set)
    """Groups whose folder is there, and can't be read."""
    _held: dict[str, int] = field(default_factory=dict)
    """Per group, the WAL file that was last found to hold records of it."""
    _gaps: dict[str, Damaged] = field(default_factory=dict)
    _behind_gap: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _aside: dict[Owner, list[Run]] = field(default_factory=dict)

    def recover(self) -> None:
        """Mend what a crash left, and read everything that says what is there."""
        self._refuse_newer_wals()
        self.roster.read()
        if not self.read_only:
            self._prepare()
        self._recover_groups()
        self._replay_all(wal_recovery.find_wals(self.disk))
        for file in self.wals:
            self._tell_torn(file)
            self._lost_file(file)
            for damage in file.damage if not file.aside else ():
                self.damaged_wals.add(file.number)
                self._quarantine_all(damage, file)
        for name, damage in self._gaps.items():
            self._quarantine(self.states[name], damage)
            for wal in self._behind_gap[name]:
                self.strangers[wal].add((name, self.states[name].incarnation))
        if not self.read_only:
            known = {*self.states, *self.unreadable, *self.roster.names()}
            identity.sweep_quarantines(self.disk, known=known)
        self._rely_on_names()
        for state in self.states.values():
            self._settle(state)

    def _rely_on_names(self) -> None:
        """Let nobody be owed a file whose name may not be durable; older ones say the same.

        What an older file has said of a group goes only when the newer one is there for sure. So if
        no older file has anything of a group that is owed this one, its name is durable.
        """
        older: set[Owner] = set()
        for file in self.wals:
            mine = self.strangers[file.number]
            if file.unused and mine <= older:
                mine.clear()
            else:
                file.unused = False
            older |= mine

    def closed_files(self) -> list[ClosedFile]:
        """All files that are to be worked off."""
        return [
            ClosedFile(
                file.number,
                bytes=file.durable_bytes,
                aside=file.aside,
                damaged=file.number in self.damaged_wals,
                spent=file.spent,
                noted=file.kept,
                unsure=file.kept is not None,
                holders=self.holders[file.number],
                strangers=self.strangers[file.number],
            )
            for file in self.wals
        ]

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

    def _recover_groups(self) -> None:
        folders = [n for n in self.disk.list(files.GROUPS) if not n.startswith(identity.ASIDE)]
        for name in folders:
            self._recover_group(name)
        self._unread_folders = set(self.unreadable)
        for name in sorted(self.roster.names() - set(folders)):
            self._leave_alone(name, self.roster.missing(name))
        if not self.read_only:
            there = {name: state.incarnation for name, state in self.states.items()}
            for name, unsettled in self.roster.settle(there).items():
                del self.states[name]
                self._leave_alone(name, unsettled)

    def _leave_alone(self, name: str, unreadable: LowmarkError) -> None:
        logger.error("a group can't be read", extra={"group": name, "reason": str(unreadable)})
        self.unreadable[name] = unreadable

    def _recover_group(self, name: str) -> None:
        roster = self.roster
        try:
            state, damage = recover_group(self.disk, name, roster=roster, read_only=self.read_only)
        except NoHandles:
            raise  # that is this process's trouble, and no group's: the next start has it all
        except FileMissing as missing:
            where = self.disk.describe(missing.path)
            self._leave_alone(name, Damaged(where, offset=0, what="it is missing"))
            return
        except (Corrupt, DiskFailed) as unreadable:
            away = name in roster.names() and isinstance(unreadable, Damaged)
            if away and self._is_empty(name):
                how = files.no_folder_text(self.disk, files.group_dir(name))
                unreadable = roster.missing(name, how=how)
            self._leave_alone(name, unreadable)
            return
        self.states[name] = state
        if damage is not None:
            self._quarantine(state, damage)

    def _is_empty(self, name: str) -> bool:
        """Whether a folder is one in which nothing is mounted just now, and nothing else is."""
        try:
            return not self.disk.list(files.group_dir(name))
        except DiskFailed:
            return False

    # -- the WAL --------------------------------------------------------------------------------

    def _replay_all(self, files_there: list[WalFile]) -> None:
        at: WalFile | None = None
        by_number = {file.number: file for file in files_there}
        for record in wal_recovery.read_wals(self.disk, self.wals, files_there):
            if at is None or at.number != record.wal:
                if at is not None:
                    self._extend_all(at)
                at = by_number[record.wal]
            if at.kept is None or at.counts_for(record):
                self._replay(at, record)
        if at is not None:
            self._extend_all(at)

    def _replay(self, file: WalFile, found: WalRecord) -> None:
        # Once per record of the WAL: what is the same for all of a group's in a file is done once.
        if found.damage is not None and not file.aside:
            self.damaged_wals.add(found.wal)
        state = self.states.get(found.group)
        if state is None or state.incarnation != found.incarnation:
            self._replay_stranger(file, found)
            return
        if self._held.get(found.group) != found.wal:
            self._held[found.group] = found.wal
            self.holders[found.wal].add((found.group, found.incarnation))
        record = found.record
        if file.aside:
            floor = state.snapshot.floor if state.snapshot is not None else Floor()
            void = floor.voids(found.wal, found.sequence)
            if not void and record is not None and record.kind is not Kind.META:
                owner = (found.group, found.incarnation)
                self._aside.setdefault(owner, []).append(wal_format.decode_run(record))
        elif found.damage is not None:
            self._quarantine(state, found.damage)
        elif record is not None and record.kind is Kind.META:
            state.meta = bytes(record.body[0])
        elif record is not None:
            gap = replay_run(state, found, wal_format.decode_run(record))
            if gap is None:
                if state.name in self._gaps:
                    del self._gaps[state.name]
                    self._behind_gap.pop(state.name, None)
            else:
                where = self.disk.describe(file.path)
                self._gaps.setdefault(state.name, Damaged(where, offset=found.offset, what=gap))
                self._behind_gap[state.name].add(found.wal)

    def _replay_stranger(self, file: WalFile, found: WalRecord) -> None:
        """A record of a group that is not there: unreadable, deleted, or unknown."""
        owner = (found.group, found.incarnation)
        if not found.incarnation:
            if not file.aside:
                where = self.disk.describe(file.path)
                unknown = Damaged(where, offset=found.offset, what="a writer is unknown")
                self.damaged_wals.add(found.wal)
                self._quarantine_all(found.damage or unknown, file)
        elif not self._was_deleted(file, owner):
            self.roster.notice(owner)
            if found.group in self.states:
                return  # it was made anew: a person has put another folder in its place
            if found.group not in self.unreadable:
                self._leave_alone(found.group, self.roster.lost(owner, file.path))
            self.strangers[found.wal].add(owner)

    def _was_deleted(self, file: WalFile, owner: Owner) -> bool:
        """Whether a group with records in a file is gone on purpose (see `roster`)."""
        if owner[0] in self.unreadable:
            # A folder that can't be read may be that of a group whose deletion was interrupted.
            return self.roster.was_deleted(owner) and owner[0] not in self._unread_folders
        return self.roster.was_deleted(owner) or not file.rostered

    def _extend_all(self, file: WalFile) -> None:
        """A file that was set aside is read: take what only it has, group by group."""
        taken, self._aside = self._aside, {}
        for owner, runs in taken.items():
            state = self.states[owner[0]]
            beyond = extension(state, self.disk, runs)
            if beyond is None:
                self.strangers[file.number].add(owner)
                where = self.disk.describe(file.path)
                extra = {"group": state.name, "file": where, "last": runs[-1].last}
                logger.error("a file that was set aside has entries that do not fit", extra=extra)
                continue
            for run in beyond:
                take_run(state, file.number, run)

    def _tell_torn(self, file: WalFile) -> None:
        """Say what was cut: a torn write looks like a last batch that was sound once."""
        if file.torn_bytes:
            logger.warning(
                "the end of a WAL file was cut: it is no whole batch",
                extra={
                    "file": self.disk.describe(file.path),
                    "bytes": file.torn_bytes,
                    "from_byte": file.durable_bytes,
                },
            )

    def _lost_file(self, file: WalFile) -> None:
        """A file that groups are owed must be there."""
        if file.kept is None or file.spent or file.size or self.disk.stat(file.path) is not None:
            return
        what = "the file is missing, and its note says that it holds entries"
        file.damage.append(Damaged(self.disk.describe(file.path), offset=0, what=what))

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

    # -- quarantine -----------------------------------------------------------------------------

    def _quarantine(self, state: GroupState, damage: LowmarkError) -> None:
        if state.quarantine is not None:
            return
        state.quarantine = damage.message
        logger.error("quarantined", extra={"group": state.name, "reason": damage.message})
        # A newer file is not damage for good.
        state.quarantine_lasts = isinstance(damage, Corrupt) and not isinstance(damage, NewerFormat)
        if not self.read_only and state.quarantine_lasts:
            try:
                identity.write_quarantine(
                    self.disk,
                    state.name,
                    state.incarnation,
                    damage.message,
                    folder=state.shared_folder,
                )
                state.quarantine_saved = True
            except LowmarkError as error:
                extra = {"group": state.name, "reason": error.message}
                logger.error("a quarantine could not be written down", extra=extra)

    def _quarantine_all(self, damage: Corrupt, file: WalFile) -> None:
        for name in sorted(self.states):
            state = self.states[name]
            if file.kept is None or (name, state.incarnation) in file.kept.owners:
                self._quarantine(state, damage)
        # A group that can't be read just now hears of it at a later start: the file's note stays.
        owners = file.kept.owners if file.kept is not None else frozenset()
        self.strangers[file.number] |= {one for one in owners if one[0] in self.unreadable}
