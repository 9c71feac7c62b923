"""A real file system that is small and runs full: what each command says and does then."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowmark
from eventually import eventually
from lowmark.client import DiskFull
from lowmark.log import LogConfig
from lowmark.node import Settings

pytestmark = pytest.mark.slow

SIZE, RESERVED = 24 << 20, 8 << 20
SETTINGS = Settings(log=LogConfig(disk_reserved_bytes=RESERVED))
ENVIRONMENT = {**os.environ, "LOWMARK_LOG_DISK_RESERVED_BYTES": str(RESERVED)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a small file system can't be mounted here: that takes root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lowmark", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=ENVIRONMENT,
    )


def rows(first: int, *, keys: int) -> list[dict[str, Any]]:
    dice = random.Random(first)
    return [
        {"id": number % keys, "note": dice.randbytes(500).hex()}
        for number in range(first, first + 200)
    ]


def fill(data: Path, *, keys: int) -> int:
    """Append until the disk is full; gives how many rows were stored."""
    with lowmark.open(data, settings=SETTINGS) as db:
        columns = {"id": "int64", "note": "string"}
        table = db.create_table("t", columns, key="id", partitions=2)
        stored = 0
        with contextlib.suppress(DiskFull):
            while True:
                stored += table.append(rows(stored, keys=keys)).rows
        db.create_table("old", {"id": "int64"})
        return stored


def take_everything(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))


def test_a_full_disk_is_read_deleted_from_compacted_and_taken_again(disk: Path) -> None:
    data = disk / "data"
    stored = fill(data, keys=500)
    # given a disk that is full but for the reserve
    assert stored > 5_000
    assert RESERVED - (1 << 20) < free(disk) < RESERVED + (1 << 20)
    place = ("--data", str(data))
    # then other processes can do all but append
    assert run("read", "t", *place, "--limit", "1", "--json").stdout.startswith('{"id":')
    for words in (
        ("delete", "t", *place, "2"),
        ("watermark", "advance", *place, "--to", "now"),
        ("table", "drop", "old", *place, "--yes"),
    ):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    # when it is compacted, then appends go on, in a process that was refused before
    with lowmark.open(data, settings=SETTINGS) as db:
        table = db.table("t")
        with pytest.raises(DiskFull):
            table.append(rows(0, keys=500))
        db.advance_watermark("now")
        assert table.compact(engine="local").state == "done"
        eventually(lambda: free(disk) > SIZE // 2)
        assert table.append([{"id": 2, "note": "again"}]).rows == 1
        assert len(table.get_many(range(500))) == 500
    # when another program takes all that is left, then the directory says so, by name
    ballast = disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        take_everything(ballast)
    done = run("compact", "t", *place, "--engine", "local")
    assert done.returncode == 1
    assert f"error: no space left to open {data}: 0 bytes are free" in done.stderr
    # and how much it takes; with that much, a new process can read, delete and compact
    needed = re.search(r"hint: Free at least ([0-9]+) MiB", done.stderr)
    assert needed is not None, done.stderr
    os.truncate(ballast, ballast.stat().st_size - (int(needed[1]) << 20))
    with lowmark.open(data, settings=SETTINGS) as db:
        assert db.table("t").get(2) == {"id": 2, "note": "again"}
        assert db.table("t").delete([2]).rows == 1
        db.advance_watermark("now")
        assert db.table("t").compact(engine="local").state == "done"


def test_partitions_are_compacted_one_by_one_if_there_is_no_space_for_all(disk: Path) -> None:
    data = disk / "data"
    # given a table whose ledgers take as much as its rows, and do not fit beside them
    stored = fill(data, keys=1 << 40)
    place = ("--data", str(data))
    done = run("watermark", "advance", *place, "--to", "now")
    assert done.returncode == 0, done.stderr
    # when it is compacted, then as often as it is run, one more partition fits
    for _ in range(3):
        done = run("compact", "t", *place, "--engine", "local")
        if done.returncode == 0:
            break
        assert "no space left" in done.stderr
        assert "runs resume" in done.stderr
    assert done.returncode == 0, done.stderr
    # and nothing is lost
    with lowmark.open(data, settings=SETTINGS) as db:
        assert db.table("t").read(compacted=True, columns=["id"]).to_arrow().num_rows == stored
