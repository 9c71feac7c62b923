"""The log with one thing wrong, on purpose: what its sick lives must be able to find.

Each mutant is a context manager; within it, every log that is opened has the fault. Lowmark once
had the first four of them: they cost acknowledged rows without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lowmark.log import wal_recovery
from lowmark.log.flush import ClosedFile, SegmentWriter
from lowmark.log.kept import Owner
from lowmark.log.log import Log
from lowmark.log.opening import Opening
from lowmark.log.roster import Roster
from lowmark.log.wal import Wal
from lowmark.log.wal_recovery import WalFile, WalRecord
from sim.mutants import replaced

__all__ = ["MUTANTS"]


def gives_a_sick_folder_up() -> AbstractContextManager[None]:
    """A WAL file goes though a group could not flush its part of it."""
    original = SegmentWriter._owed

    def owed(self: SegmentWriter, file: ClosedFile) -> tuple[set[Owner], bool]:
        file.parked = []
        return original(self, file)

    return replaced(SegmentWriter, "_owed", owed)


def takes_an_unreadable_group_for_a_deleted_one() -> AbstractContextManager[None]:
    original = Opening._replay

    def replay(self: Opening, file: WalFile, found: WalRecord) -> None:
        if found.group not in self.unreadable:
            original(self, file, found)

    return replaced(Opening, "_replay", replay)


def takes_a_missing_folder_for_a_deleted_group() -> AbstractContextManager[None]:
    """A group is there if its folder is, whatever the roster says."""
    return replaced(Roster, "names", lambda _self: set())


def takes_a_group_without_an_entry_for_a_deleted_one() -> AbstractContextManager[None]:
    """A group is there if its folder or its entry is, whatever the WAL says."""

    def was_deleted(self: Opening, _file: WalFile, owner: Owner) -> bool:
        return owner[0] not in self.unreadable

    return replaced(Opening, "_was_deleted", was_deleted)


def goes_on_with_what_it_could_not_read() -> AbstractContextManager[None]:
    """What leaves a gap is not kept: a segment could not be read, and the WAL goes on behind it."""
    original = Opening.closed_files

    def closed_files(self: Opening) -> Any:
        self.strangers.clear()
        return original(self)

    return replaced(Opening, "closed_files", closed_files)


def replays_a_kept_file_for_all() -> AbstractContextManager[None]:
    """What a kept file holds of others undoes what is newer."""
    return replaced(WalFile, "counts_for", lambda _self, _record: True)


@contextmanager
def replays_a_file_that_came_back() -> Iterator[None]:
    """A removal whose sync failed is taken for done, and a file that comes back for a new one."""
    original = SegmentWriter._finish

    def finish(self: SegmentWriter, file: ClosedFile) -> None:
        file.spent = file.spent and file.noted is not None
        original(self, file)

    with (
        replaced(SegmentWriter, "_finish", finish),
        replaced(wal_recovery, "_mark_returned", lambda *_: None),
    ):
        yield


def clears_a_failed_batch_away() -> AbstractContextManager[None]:
    """The large files of a failed batch go while a start may still read the batch."""
    original = Wal._give_back

    def give_back(self: Wal, batch: Any) -> None:
        original(self, batch)
        for state, large in self._unsure_large:
            state.large_garbage.add(large)

    return replaced(Wal, "_give_back", give_back)


def trusts_the_last_batch() -> AbstractContextManager[None]:
    """A batch that the next process can read is taken for durable."""
    return replaced(Log, "_make_durable", lambda _self, _file: None)


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "gives a sick folder up": gives_a_sick_folder_up,
    "takes an unreadable group for a deleted one": takes_an_unreadable_group_for_a_deleted_one,
    "takes a missing folder for a deleted group": takes_a_missing_folder_for_a_deleted_group,
    "takes a group without an entry for a deleted one": (
        takes_a_group_without_an_entry_for_a_deleted_one
    ),
    "goes on with what it could not read": goes_on_with_what_it_could_not_read,
    "replays a kept file for all": replays_a_kept_file_for_all,
    "replays a file that came back": replays_a_file_that_came_back,
    "trusts the last batch": trusts_the_last_batch,
    "clears a failed batch away": clears_a_failed_batch_away,
}
