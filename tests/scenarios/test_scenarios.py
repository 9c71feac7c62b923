"""The golden files: each folder has a driver, and each file is a test.

`make golden` writes what is printed now into the files; read the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios.compaction_driver import CompactionDriver
from scenarios.raft_driver import RaftDriver
from scenarios.runner import Handler, run_file

HERE = Path(__file__).parent
REWRITE = os.environ.get("REWRITE", "") == "1"
DRIVERS: dict[str, Callable[[], Handler]] = {
    "compaction": CompactionDriver,
    "raft": RaftDriver,
}
FILES = sorted(HERE.glob("*/*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[f"{one.parent.name}/{one.stem}" for one in FILES])
def test_the_code_prints_what_the_file_says(path: Path) -> None:
    run_file(path, DRIVERS[path.parent.name](), rewrite=REWRITE)


def test_every_driver_has_files() -> None:
    assert {one.parent.name for one in FILES} == set(DRIVERS)
