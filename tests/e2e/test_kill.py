"""A real process on a real disk, killed with -9 while it works: nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import eventually
from lowmark.inspect import verify_log
from lowmark.log import Log, LogConfig
from lowmark.runtime import RealDisk, real_runtime

WRITER = """
import sys
from pyroaring import BitMap64
from lowmark.log import Log, LogConfig, SnapshotMeta
from lowmark.runtime import real_runtime

def data(group, index):
    large = index % 50 == 0
    return f"{group.name} {index} ".encode() * (3000 if large else 3)

runtime = real_runtime(sys.argv[1])
config = LogConfig(wal_bytes_max=1 << 16, segment_bytes_max=1 << 15, large_entry_bytes_min=1 << 14)
log = Log.open(runtime, config)
groups = log.groups() or [log.create_group(name) for name in "ab"]
if len(groups) == 1:
    groups.append(log.create_group("b"))

def written(event):
    print("written", event.group, event.last, flush=True)

log.on_written = written
while True:
    for group in groups:
        first = group.last_index + 1
        group.append(1, [data(group, i) for i in range(first, first + 20)])
    runtime.loop.run_until(lambda: all(g.written_index == g.last_index for g in groups))
    for group in groups:
        index = group.written_index
        if index - group.row.snapshot_index > 300 and not group.state.snapshot_busy:
            live = BitMap64(i for i in range(1, index + 1) if i % 7 == 0 and group.row.counts(i))
            meta = SnapshotMeta(index=index, term=1)
            print("snapshot", group.name, index, flush=True)
            group.take_snapshot(meta, [b"state"], live, lambda _: None)
"""

CONFIG = LogConfig(wal_bytes_max=1 << 16, segment_bytes_max=1 << 15, large_entry_bytes_min=1 << 14)


def data(name: str, index: int) -> bytes:
    return f"{name} {index} ".encode() * (3000 if index % 50 == 0 else 3)


@pytest.mark.slow
def test_a_process_killed_again_and_again_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    acknowledged = {"a": 0, "b": 0}
    for life in range(6):
        # given a process that appends, takes snapshots and compacts, and says what is written
        said = tmp_path / f"said-{life}"
        with said.open("wb") as out:
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path / "data")], stdout=out
            )
        # when it is killed at some moment of its work
        enough = 4_000 + 1_777 * life
        eventually(lambda said=said, enough=enough: said.stat().st_size > enough)  # type: ignore[misc]
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        for line in said.read_text().splitlines():
            match line.split():
                case ["written", name, number]:
                    acknowledged[name] = max(acknowledged[name], int(number))
                case _:
                    pass
        # then everything it acknowledged and that still counts is there
        runtime = real_runtime(str(tmp_path / "data"))
        log = Log.open(runtime, CONFIG)
        for name, last in acknowledged.items():
            group = log.group(name)
            assert group.quarantined is None
            assert group.last_index >= last > 0
            counting = [i for i in range(1, last + 1) if group.row.counts(i)]
            for entry in group.read(counting):
                assert bytes(entry.data) == data(name, entry.index)
        runtime.loop.run_until(lambda log=log: log.idle)  # type: ignore[misc]
        log.close()
        runtime.loop.close()
        assert list(verify_log(RealDisk(str(tmp_path / "data")))) == []
