"""The scenario files of etcd-io/raft, run against this core.

They are not part of this repository. ETCD_RAFT_TESTDATA names a folder that has them, in the
folders `quorum`, `confchange` and `interaction`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raft.etcd_adapter import run_file

FOLDER = os.environ.get("ETCD_RAFT_TESTDATA", "")
FILES = sorted(Path(FOLDER).rglob("*.txt")) if FOLDER else []
MISSING = pytest.mark.skip(reason="ETCD_RAFT_TESTDATA names no folder with etcd's scenario files")


@pytest.mark.parametrize(
    "path",
    [pytest.param(file, id=f"{file.parent.name}/{file.stem}") for file in FILES]
    or [pytest.param(None, id="none", marks=[MISSING] if not FOLDER else [])],
)
def test_the_core_behaves_as_etcd_does(path: Path | None) -> None:
    assert path is not None, f"there are no scenario files in {FOLDER}"
    run_file(path)
