"""Which groups this node has, written down apart from their folders: the folder `roster/`.

A folder that is missing says nothing: the group may have been deleted, or its disk may not be
mounted just now. So for each group there is an empty file `roster/<group>@<incarnation>`. A start
learns all groups by listing one folder, and reads no file for it.

Creating a group, and what is true after each step:
    1. its folder is made aside, synced, renamed, `groups/` synced   the group is there, empty, and
       no caller knows of it. A crash here leaves a folder without an entry
    2. its entry is made, `roster/` synced                           a folder that is missing from
       here on is noticed. Only now is the caller answered
Deleting a group:
    1. its entry is removed, `roster/` synced                        the group is there, whole. A
       crash here leaves a folder without an entry
    2. its folder is renamed, `groups/` synced, and removed          the group is gone
If another group's folder lies in its place, no step is taken: that one is not removed.
So at a start:
    folder and entry agree     the group is there
    a folder without an entry  it is taken over: it gets an entry. One of the crashes above left it,
                               or a release without a roster did. What was asked for before the
                               crash is asked for again: nobody was told that it is done
    an entry without a folder, or with an empty one
                               the folder is away: the group is unreadable (see `opening`)
    an entry of another incarnation than the folder's
                               another group's folder lies there: the group is unreadable, too. No
                               crash leaves that: the entry of an old group is gone for sure before
                               its folder goes, and so before a new folder gets its name
    neither                    the group was deleted: its records in the WAL are passed over

Two lanes change names here: the loop creates, the lane `compaction` deletes; so failed syncs are
counted (`SharedFolder`), of `groups/`, too. If a sync fails, its caller hears so, and no later step
is taken. An entry whose removal was not synced may come back with a crash, so the next try makes it
again and removes it again: else it would speak of a folder that is gone on purpose. The same holds
for the name of a folder that was moved aside: nothing in it goes before its name has. An entry that
was made, and whose sync failed, may be lost with a crash: that costs nothing as long as the folder
is there, because a start makes it again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from lowmark.errors import LowmarkError
from lowmark.log import files, identity
from lowmark.log.errors import FolderMissing, FolderMistaken
from lowmark.log.files import SharedFolder, discard
from lowmark.runtime import Disk, NoHandles

logger = logging.getLogger(__name__)


def read_entries(disk: Disk) -> dict[str, set[bytes]]:
    """The groups that the roster names, each with its incarnation; most often there is one."""
    found: dict[str, set[bytes]] = {}
    for entry in disk.list(files.ROSTER):
        parsed = files.entry_of(entry)
        if parsed is not None:
            found.setdefault(parsed[0], set()).add(parsed[1])
    return found


class Roster:
    """The entries of one log, and the two folders that have to agree."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._folder = SharedFolder(files.ROSTER)
        self._groups = SharedFolder(files.GROUPS)
        self._entries: dict[str, set[bytes]] = {}
        """All entries that may be on the disk: also one that is not there for sure yet, or not
        gone for sure."""
        self._begun: dict[str, bytes] = {}
        """Groups that this process failed to create: what there is of them, no caller knows."""

        self._moving: set[str] = set()
        """Groups whose folder is being moved aside, and not for sure yet."""

    # -- at a start -----------------------------------------------------------------------------

    def read(self) -> None:
        """Learn what is written down."""
        self._entries = read_entries(self._disk)

    def names(self) -> set[str]:
        """All groups that are written down."""
        return set(self._entries)

    def missing(self, name: str, *, empty: bool = False) -> FolderMissing:
        """What to tell of a group that is written down, and whose folder is not there."""
        folder = self._disk.describe(files.group_dir(name))
        return FolderMissing(name, folder=folder, entry=self._entry(name), empty=empty)

    def mistaken(self, name: str, found: bytes) -> FolderMistaken | None:
        """What to tell of a folder with that incarnation, if another one is written down."""
        if found in self._entries.get(name, {found}):
            return None
        folder = self._disk.describe(files.group_dir(name))
        return FolderMistaken(name, folder=folder, found=found, entry=self._entry(name))

    def _entry(self, name: str) -> str:
        return self._disk.describe(files.entry_path(name, min(self._entries[name])))

    def settle(self, there: Mapping[str, bytes]) -> None:
        """Have an entry for each group that is there, and no other one of its name.

        What can't be written (the disk is full) does not keep the log from starting: the next start
        tries again, and until then a missing folder of that group would not be noticed.
        """
        faults, made = self._folder.faults, list[str]()
        try:
            self._make_folder()
            for name, incarnation in there.items():
                path, known = files.entry_path(name, incarnation), self._entries.get(name, set())
                for stale in sorted(known - {incarnation}):
                    discard(self._disk, files.entry_path(name, stale))
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
            for path in made:  # so that the next start makes them again, and syncs them
                with contextlib.suppress(LowmarkError):
                    discard(self._disk, path)

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

    def delete(self, name: str) -> None:
        """Remove a group's entry, then its folder, if it is there, and if it is this group's."""
        self._check_own(name)
        for incarnation in sorted(self._entries.get(name, ())):
            self._strike(files.entry_path(name, incarnation))
        self._entries.pop(name, None)
        again = name in self._moving
        self._moving.add(name)
        identity.move_aside(self._disk, name, groups=self._groups, again=again)
        self._moving.discard(name)
        identity.remove_aside(self._disk, name)

    def _check_own(self, name: str) -> None:
        """Raise if another group's folder lies in its place: that is not ours to remove."""
        owner = identity.owner_of(self._disk, name)
        if owner is None:
            return
        if owner[0] != name:
            identity.read_identity(self._disk, name)  # says whose it is, and what to do
        mistaken = self.mistaken(name, owner[1]) if name in self._entries else None
        if mistaken is not None:
            raise mistaken

    def _clear(self, name: str) -> None:
        """Remove what a creation left that failed in this process; nothing else of that name."""
        folder = files.group_dir(name)
        there = self._disk.stat(folder) is not None
        if there and identity.read_identity(self._disk, name) != self._begun[name]:
            return  # it was put there meanwhile, and is not ours to remove
        self.delete(name)

    def _strike(self, path: str) -> None:
        disk, faults = self._disk, self._folder.faults
        if disk.stat(path) is None:  # removed by an earlier try, and perhaps not for good
            disk.open(path, "create").close()
            self._folder.sync(disk, since=faults)
        disk.unlink(path)
        self._folder.sync(disk, since=faults)

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
