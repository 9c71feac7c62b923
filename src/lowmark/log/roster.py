"""Which groups this node has, written down apart from their folders: the folder `roster/`.

A folder that is missing says nothing: the group may have been deleted, or its disk may not be
mounted just now. So for each group there is an empty file `roster/<group>@<incarnation>`, its
entry. A start learns all groups by listing one folder, and reads no file for it. And an entry that
is missing says nothing either: a person may have removed it, or the roster may be lost. So a
deletion renames the entry to `roster/~<group>@<incarnation>`, its mark; one of the two is there at
any moment. The mark stays as long as a WAL file may hold records of the group.

Creating a group, and what is true after each step:
    1. its folder is made aside, synced, renamed, `groups/` synced   the group is there, empty, and
       no caller knows of it. A crash here leaves a folder without an entry
    2. its entry is made, `roster/` synced                           a folder that is missing from
       here on is noticed. Only now is the caller answered
Deleting a group:
    1. its entry is renamed to its mark, `roster/` synced            the group is there, whole. A
       crash here leaves a folder with a mark
    2. its folder is renamed, `groups/` synced, and removed          the group is gone: there is a
       mark without a folder, and perhaps there are records in the WAL, which are passed over
    3. later: no WAL file that counts has records of it any more, and the mark is removed, without
       a sync                                                        nothing speaks of it. A crash
       may bring the mark back; then a start removes it again
If another group's folder lies in its place, no step is taken: that one is not removed. A group that
has no entry (a start could not write it, or it was lost) gets its mark made in step 1. All
incarnations of its name that the WAL has records of get one: they are given up with it.
So at a start:
    folder and entry agree     the group is there
    a folder without an entry  it is taken over: it gets an entry. One of the crashes above left it,
                               or a release without a roster did. What was asked for before the
                               crash is asked for again: nobody was told that it is done
    a folder with a mark       the same: the mark is renamed to an entry. If that can't be done for
                               sure, the group is left alone: it must take nothing that a mark
                               denies at the next start
    an entry without a folder, or with an empty one
                               the folder is away: the group is unreadable (see `opening`)
    an entry of another incarnation than the folder's
                               another group's folder lies there: the group is unreadable, too. No
                               crash leaves that: the entry of an old group is gone for sure before
                               its folder goes, and so before a new folder gets its name
    an entry and a mark        the entry counts. No crash leaves that, a person may
    a mark alone               the group was deleted: its records in the WAL are passed over
    nothing, but records in the WAL
                               the folder is away, and its entry is lost: the group is unreadable,
                               as with an entry. But a release without a roster left no marks; so
                               this holds for WAL files whose header says that their log had one
                               (`wal_format.ROSTERED`), whether there is a roster now or not. What
                               other files have of such a group is passed over. It is passed over,
                               too, if another incarnation has its name: then a person has put
                               another folder in its place

When marks go: `Log` says by its number which WAL file is finished, in order: it is gone, or a note
beside it says for whom it still counts. A mark remembers the highest number that a file had when
its group was deleted, or when a start found it: later files have nothing of that group.

Two lanes change names here: the loop creates, the lane `compaction` deletes; so failed syncs are
counted (`SharedFolder`), of `groups/`, too. If a sync fails, its caller hears so, and no later step
is taken. An entry whose renaming was not synced may come back with a crash, so the next try gives
it its name back and renames it again: else it would speak of a folder that is gone on purpose. The
same holds for the name of a folder that was moved aside: nothing in it goes before its name has. An
entry that was made, and whose sync failed, may be lost with a crash: that costs nothing as long as
the folder is there, because a start makes it again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping

from lowmark.errors import LowmarkError
from lowmark.log import files, identity
from lowmark.log.errors import FolderMissing, FolderMistaken
from lowmark.log.files import SharedFolder, discard
from lowmark.log.kept import Owner
from lowmark.runtime import Disk, NoHandles

logger = logging.getLogger(__name__)


def read_entries(disk: Disk) -> dict[str, set[bytes]]:
    """The groups that the roster names, each with its incarnation; most often there is one."""
    return _by_name(map(files.entry_of, disk.list(files.ROSTER)))


def read_marks(disk: Disk) -> dict[str, set[bytes]]:
    """The groups that the roster says were deleted, each with its incarnations."""
    return _by_name(map(files.mark_of, disk.list(files.ROSTER)))


def _by_name(found: Iterable[Owner | None]) -> dict[str, set[bytes]]:
    groups: dict[str, set[bytes]] = {}
    for owner in found:
        if owner is not None:
            groups.setdefault(owner[0], set()).add(owner[1])
    return groups


class Roster:
    """The entries of one log, and the two folders that have to agree."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._folder = SharedFolder(files.ROSTER)
        self._groups = SharedFolder(files.GROUPS)
        self._entries: dict[str, set[bytes]] = {}
        """All entries that may be on the disk: also one that is not there for sure yet, or not
        gone for sure."""
        self._marks: dict[Owner, int] = {}
        """Groups that were deleted, each with the highest number of a WAL file that may have
        records of it. Only the loop changes it."""
        self._strange: dict[str, set[bytes]] = {}
        """Incarnations that the WAL has records of, and that are not there."""
        self._begun: dict[str, bytes] = {}
        """Groups that this process failed to create: what there is of them, no caller knows."""

        self._struck: dict[str, set[Owner]] = {}
        """What has a mark for sure of groups whose deletion is not through."""
        self._moving: set[str] = set()
        """Groups whose folder is being moved aside, and not for sure yet."""

    # -- at a start -----------------------------------------------------------------------------

    def read(self) -> None:
        """Learn what is written down."""
        names = self._disk.list(files.ROSTER)
        self._entries = _by_name(map(files.entry_of, names))
        marks = {owner for owner in map(files.mark_of, names) if owner is not None}
        # Where there is an entry, too, the entry counts.
        self._marks = {one: 0 for one in marks if one[1] not in self._entries.get(one[0], ())}

    def names(self) -> set[str]:
        """All groups that are written down."""
        return set(self._entries)

    def was_deleted(self, owner: Owner) -> bool:
        """Whether a mark says so."""
        return owner in self._marks

    def notice(self, owner: Owner) -> None:
        """Learn that the WAL has records of a group that is not there; it goes with its name."""
        self._strange.setdefault(owner[0], set()).add(owner[1])

    def missing(self, name: str, *, how: str = "missing") -> FolderMissing:
        """What to tell of a group that is written down, and whose folder is not there."""
        folder, least = self._disk.describe(files.group_dir(name)), min(self._entries[name])
        mark = self._disk.describe(files.mark_path(name, least))
        return FolderMissing(name, folder=folder, mark=mark, entry=self._entry(name), how=how)

    def lost(self, owner: Owner, wal: str) -> FolderMissing:
        """What to tell of a group that only a WAL file speaks of."""
        folder = self._disk.describe(files.group_dir(owner[0]))
        mark = self._disk.describe(files.mark_path(*owner))
        return FolderMissing(owner[0], folder=folder, mark=mark, wal=self._disk.describe(wal))

    def mistaken(self, name: str, found: bytes) -> FolderMistaken | None:
        """What to tell of a folder with that incarnation, if another one is written down."""
        if found in self._entries.get(name, {found}):
            return None
        folder = self._disk.describe(files.group_dir(name))
        return FolderMistaken(name, folder=folder, found=found, entry=self._entry(name))

    def _entry(self, name: str) -> str:
        return self._disk.describe(files.entry_path(name, min(self._entries[name])))

    def settle(self, there: Mapping[str, bytes]) -> dict[str, LowmarkError]:
        """Have an entry for each group that is there, and no other one of its name.

        What can't be written (the disk is full) does not keep the log from starting: the next start
        tries again, and until then a missing folder of that group would be noticed only by what the
        WAL has of it. Gives the groups that have to be left alone, because there may be a mark.
        """
        faults, made = self._folder.faults, list[str]()
        marked = [owner for owner in there.items() if self._marks.pop(owner, None) is not None]
        try:
            self._make_folder()
            for name, incarnation in marked:
                self._disk.rename(
                    files.mark_path(name, incarnation), files.entry_path(name, incarnation)
                )
                self._entries.setdefault(name, set()).add(incarnation)
            for name, incarnation in there.items():
                path, known = files.entry_path(name, incarnation), self._entries.get(name, set())
                for stale in sorted(known - {incarnation}):
                    self._disk.rename(files.entry_path(name, stale), files.mark_path(name, stale))
                    self._marks[name, stale] = 0
                if incarnation not in known:
                    made.append(path)
                    self._disk.open(path, "create").close()
                self._entries[name] = {incarnation}
            # A killed process may have left entries that were made and never synced.
            self._folder.sync(self._disk, since=faults)
        except NoHandles:
            raise
        except LowmarkError as error:
            extra = {"reason": error.message}
            logger.warning("the roster of groups could not be completed", extra=extra)
            # So that the next start makes them again, and syncs them:
            for path in made:
                with contextlib.suppress(LowmarkError):
                    discard(self._disk, path)
            for owner in marked:
                with contextlib.suppress(LowmarkError):
                    self._disk.rename(files.entry_path(*owner), files.mark_path(*owner))
            return {name: error for name, _ in marked}
        return {}

    # -- groups come and go ---------------------------------------------------------------------

    def create(self, name: str, incarnation: bytes) -> None:
        """Make a group's folder, then its entry."""
        if name in self._begun:
            self._clear(name)
        self._begun[name] = incarnation
        identity.create_folder(self._disk, name, incarnation, groups=self._groups)
        self._make_folder()
        faults = self._folder.faults
        self._entries.setdefault(name, set()).add(incarnation)
        self._disk.open(files.entry_path(name, incarnation), "create").close()
        self._folder.sync(self._disk, since=faults)
        del self._begun[name]

    def delete(self, name: str) -> set[Owner]:
        """Make a group's entry a mark; then remove its folder, if it is there, and if it is its
        own. Gives what has a mark now: tell `mark` of it.
        """
        own = self._check_own(name)
        if name not in self._struck:
            entries = self._entries.get(name, set())
            self._make_folder()
            # Its own one last: an older entry alone would speak of another folder.
            for incarnation in sorted((self._strange.get(name, set()) | own) - entries):
                self._make_mark(files.mark_path(name, incarnation))
                own.add(incarnation)
            for incarnation in sorted(entries):
                self._strike(name, incarnation)
                own.add(incarnation)
            self._entries.pop(name, None)
            self._struck[name] = {(name, incarnation) for incarnation in own}
        again = name in self._moving
        self._moving.add(name)
        identity.move_aside(self._disk, name, groups=self._groups, again=again)
        self._moving.discard(name)
        identity.remove_aside(self._disk, name)
        return self._struck.pop(name)

    def _check_own(self, name: str) -> set[bytes]:
        """The incarnation of its folder, if that can be told.

        Raise if another group's folder lies in its place: that is not ours to remove.
        """
        owner = identity.owner_of(self._disk, name)
        if owner is None:
            return set()
        if owner[0] != name:
            identity.read_identity(self._disk, name)  # says whose it is, and what to do
        mistaken = self.mistaken(name, owner[1]) if name in self._entries else None
        if mistaken is not None:
            raise mistaken
        return {owner[1]}

    def _clear(self, name: str) -> None:
        """Remove what a creation left that failed in this process; nothing else of that name."""
        folder = files.group_dir(name)
        there = self._disk.stat(folder) is not None
        if there and identity.read_identity(self._disk, name) != self._begun[name]:
            return  # it was put there meanwhile, and is not ours to remove
        self.mark(self.delete(name), wal=0)

    def _strike(self, name: str, incarnation: bytes) -> None:
        """Make a mark of an entry."""
        disk, faults = self._disk, self._folder.faults
        entry, mark = files.entry_path(name, incarnation), files.mark_path(name, incarnation)
        if disk.stat(entry) is None:  # renamed by an earlier try, and perhaps not for good
            if disk.stat(mark) is not None:
                disk.rename(mark, entry)
            else:
                disk.open(entry, "create").close()
            self._folder.sync(disk, since=faults)
        disk.rename(entry, mark)
        self._folder.sync(disk, since=faults)

    def _make_mark(self, mark: str) -> None:
        """Make a mark of a group that has no entry."""
        faults = self._folder.faults
        discard(self._disk, mark)  # made by an earlier try, and perhaps not for good
        self._disk.open(mark, "create").close()
        self._folder.sync(self._disk, since=faults)

    def _make_folder(self) -> None:
        disk = self._disk
        if disk.stat(files.ROSTER) is not None:
            return
        disk.make_dir(files.ROSTER)
        try:
            disk.sync_dir("")
        except LowmarkError:
            with contextlib.suppress(LowmarkError):
                disk.remove_dir(files.ROSTER)  # so that the next try makes it again
            raise

    # -- marks ----------------------------------------------------------------------------------

    def mark(self, owners: Iterable[Owner], *, wal: int) -> None:
        """Learn which WAL file is the last that may have records of groups that were deleted."""
        self._marks.update(dict.fromkeys(owners, wal))

    def mark_found(self, *, wal: int) -> None:
        """The same, of all marks that a start found."""
        self.mark(list(self._marks), wal=wal)

    def take_spent(self, *, wal: int, owed: Iterable[Owner]) -> set[Owner]:
        """Marks that may go: all WAL files up to that one are finished, and count for `owed`."""
        if not self._marks:
            return set()
        spent = {owner for owner, last in self._marks.items() if last <= wal}.difference(owed)
        for owner in spent:
            del self._marks[owner]
        return spent

    def remove_marks(self, spent: Iterable[Owner]) -> None:
        """Remove marks. What can't be removed, the next start removes."""
        for owner in sorted(spent):
            with contextlib.suppress(LowmarkError):
                discard(self._disk, files.mark_path(*owner))
