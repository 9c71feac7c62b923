"""A process that opens and closes databases, or appends, for long: what it takes stays the same."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import lowmark
from eventually import eventually

COLUMNS = {"id": "int64", "status": "string"}
MINUTES = 10
GROWTH_MAX = 1.2


def use(data: Path, times: int) -> None:
    """Open a directory twice, use it, and close it: so many times, in every way."""
    for number in range(times):
        with lowmark.open(data) as owner, lowmark.open(data) as guest:
            for db in (owner, guest):
                table = db["t"]
                table.append([{"id": number % 7, "status": "new"}])
                table.get(number % 7)
                with table.producer(linger_ms=0) as producer:
                    producer.send({"id": 8, "status": "new"})
                with table.read(follow=True) as reader:
                    next(reader)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def objects() -> Counter[str]:
    """Those of our classes that live."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("lowmark."))


def anonymous_kib() -> int:
    """What this process holds of memory that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with lowmark.open(tmp_path / "data") as db:
        db.create_table("t", COLUMNS, key="id", partitions=2)
    return tmp_path / "data"


def check_flat(data: Path, times: int) -> None:
    # given what a process has when it has opened and closed a database a few times
    use(data, 3)
    before, kept = (threads(), handles()), objects()
    # when it does so again and again
    use(data, times)
    # then it has no more threads, handles and objects than before
    eventually(lambda: threads() <= before[0] and handles() <= before[1])
    more = objects() - kept
    assert {name: count for name, count in more.items() if count >= times // 4} == {}


@pytest.mark.slow
def test_opening_and_closing_leaves_nothing_behind(data: Path) -> None:
    check_flat(data, 12)


# shorter relative: test_opening_and_closing_leaves_nothing_behind
@pytest.mark.release
@pytest.mark.timeout(1_800)
def test_opening_and_closing_a_thousand_times_leaves_nothing_behind(data: Path) -> None:
    check_flat(data, 100)
    before = anonymous_kib()
    check_flat(data, 400)
    # (malloc has an arena for each of several threads, and fills them by and by)
    assert anonymous_kib() - before < 64 << 10


PROGRAM = """
import json, sys, threading, time
import numpy as np
import pyarrow as pa
import lowmark
from lowmark.node import load_settings

folder, seconds = sys.argv[1], float(sys.argv[2])
settings = {"log": {"wal_bytes_max": 8 << 20}, "watermark": {"availability_ms": 0}}
with lowmark.open(folder, settings=load_settings(arguments=settings)) as db:
    table = db.create_table("t", {"id": "int64", "a": "string"}, key="id", partitions=4)
    runs, dice = 0, np.random.default_rng(17)

    def compact():
        global runs
        db.advance_watermark("now")
        runs += table.compact(engine="local").state == "done"

    # What is in memory between two runs are the rows between them: as many each time, however busy
    # the machine is. A run goes on beside the appends behind it.
    compacting = threading.Thread(target=compact)
    compacting.start()
    began, said, appends, most = time.monotonic(), 0, 0, 0
    while (passed := time.monotonic() - began) < seconds:
        keys = np.unique(dice.integers(0, 50_000, 5_000))
        table.append(pa.table({"id": keys, "a": [f"a value of {key}" for key in keys]}))
        table.get(int(keys[0]))
        appends += 1
        if appends % 200 == 0:
            compacting.join()
            compacting = threading.Thread(target=compact)
            compacting.start()
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("RssAnon:"))
        most = max(most, int(line.split()[1]))
        if passed > (said + 1) * seconds / 10:
            print(json.dumps([appends, runs, most, threading.active_count()]), flush=True)
            said, most = said + 1, 0
    compacting.join()
"""


# shorter relatives: test_batches_below_a_cut_are_at_hand_no_longer (tests/client), and those above
@pytest.mark.release
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_memory_stays_as_it_is_while_rows_are_appended_looked_up_and_compacted(
    tmp_path: Path,
) -> None:
    # when a process appends for minutes, looks keys up, and compacts again and again
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), str(MINUTES * 60)]
    root = Path(__file__).parents[2]
    ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=root)
    tenths = [json.loads(line) for line in ran.stdout.splitlines()]
    # then it weighs as much at its end as when it had just begun
    appends, runs, weights, threads = zip(*tenths, strict=True)
    assert runs[-1] >= MINUTES
    assert appends[-1] > 2 * appends[2]
    assert max(weights[7:]) <= GROWTH_MAX * max(weights[1:3]), weights
    assert max(threads[7:]) <= max(threads[1:3]) + 2, threads
