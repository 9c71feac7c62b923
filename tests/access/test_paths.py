"""Directories whose paths mean something in a URI are shared as any other."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import lowmark
from lowmark.errors import Rejected
from lowmark.node.owner import new_address
from lowmark.server import Server

NAMES = ["x#1", "x#2", "q?a", "q?b", "a b", "ü", "[a]", "50%"]
_GUEST = """
import sys, lowmark
for path in sys.argv[1:]:
    with lowmark.open(path, create=False) as db:
        assert type(db.backend).__name__ != "Embedded"
        db["t"].append([{"id": path}])
"""


@pytest.mark.slow
def test_guests_get_to_the_directory_that_they_name(tmp_path: Path) -> None:
    # given owners of directories whose names differ behind a character that ends a path in a URI
    paths = [tmp_path / name for name in NAMES]
    with contextlib.ExitStack() as owners:
        found = [owners.enter_context(lowmark.open(path)) for path in paths]
        for db in found:
            db.create_table("t", {"id": "string"}, key="id", partitions=1)
        # when a guest opens each and appends
        subprocess.run([sys.executable, "-c", _GUEST, *map(str, paths)], check=True)
        # then each has its own row, and no socket lies outside
        for db, path in zip(found, paths, strict=True):
            assert [row["id"] for row in db["t"].read().to_pylist()] == [str(path)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


def test_a_socket_whose_path_would_be_another_one_is_refused(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "data") as db, pytest.raises(Rejected, match="Arrow Flight"):
        Server(db, f"unix:{tmp_path}/a#b")


def test_a_long_path_and_one_that_is_not_plain_go_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="lm") as short:  # a test's own folder may be too long
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        for name in ("l" * 150, "a#b"):
            (tmp_path / name / "endpoint").mkdir(parents=True)
            assert new_address(str(tmp_path / name)).startswith(f"unix:{short}/lowmark-")
        assert next(Path(short).glob("lowmark-*")).stat().st_mode & 0o777 == 0o700
