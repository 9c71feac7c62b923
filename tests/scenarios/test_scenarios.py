"""The golden files: each folder has a driver, and each file is a test.

`make golden` writes what is printed now into the files; read the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from compaction.mutants import COMPACTION_MUTANTS
from lowmark.log import identity
from lowmark.log.files import SharedFolder
from lowmark.log.kept import Owner
from lowmark.log.roster import Roster
from scenarios.compaction_driver import CompactionDriver
from scenarios.disk_driver import DiskDriver
from scenarios.raft_driver import RaftDriver
from scenarios.runner import Handler, ScenarioDiffers, run_file
from sim.mutants import MUTANTS, replaced

HERE = Path(__file__).parent
REWRITE = os.environ.get("REWRITE", "") == "1"
DRIVERS: dict[str, Callable[[], Handler]] = {
    "compaction": CompactionDriver,
    "disk": DiskDriver,
    "raft": RaftDriver,
}
FILES = sorted(HERE.glob("*/*.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[f"{one.parent.name}/{one.stem}" for one in FILES])
def test_the_code_prints_what_the_file_says(path: Path) -> None:
    run_file(path, DRIVERS[path.parent.name](), rewrite=REWRITE)


def test_every_driver_has_files() -> None:
    assert {one.parent.name for one in FILES} == set(DRIVERS)


# -- and a fault shows in them --------------------------------------------------------------------


def moves_a_folder_before_its_entry_goes() -> AbstractContextManager[None]:
    def delete(self: Roster, name: str) -> set[Owner]:
        identity.move_aside(self._disk, name, groups=self._groups, again=False)
        for incarnation in self._entries.pop(name):
            self._strike(name, incarnation)
        identity.remove_aside(self._disk, name)
        return set()

    return replaced(Roster, "delete", delete)


def never_syncs_a_shared_folder() -> AbstractContextManager[None]:
    return replaced(SharedFolder, "sync", lambda *given, **more: None)


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    name: (mutants[name], path)
    for mutants, name, path in [
        (MUTANTS, "commits old terms by counting", "raft/replication_overwrite"),
        (MUTANTS, "counts learners", "raft/membership_learner"),
        (MUTANTS, "reads without asking", "raft/reading"),
        (COMPACTION_MUTANTS, "compacts one row too many", "compaction/low_watermark"),
        (COMPACTION_MUTANTS, "drops deletes that somebody needs", "compaction/deletes"),
        (COMPACTION_MUTANTS, "forgets who came while it worked", "compaction/pointer_ahead"),
        (COMPACTION_MUTANTS, "cuts what a cursor holds", "compaction/cursors_and_trimming"),
    ]
} | {
    "moves a folder before its entry goes": (moves_a_folder_before_its_entry_goes, "disk/groups"),
    "never syncs a shared folder": (never_syncs_a_shared_folder, "disk/roll_over"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_in_shows_in_a_file(fault: str) -> None:
    # given code with one thing wrong, then what a file has is not what is printed
    mutant, name = FAULTS[fault]
    path = HERE / f"{name}.txt"
    with mutant(), pytest.raises(ScenarioDiffers, match=rf"{name}\.txt:\d+"):
        run_file(path, DRIVERS[path.parent.name](), rewrite=False)
