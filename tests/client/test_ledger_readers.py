"""What reading a ledger costs: files that stay on disk, row groups in memory, and who waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compaction.world import World
from eventually import eventually
from inside import backend_of
from lowmark.backend import ledgers as client_ledgers
from lowmark.backend.ledgers import Ledgers, OpenLedger
from lowmark.backend.values import Held
from lowmark.client import Gap, Reader
from lowmark.ledger import OpenFile
from lowmark.ledger import files as ledger_files
from lowmark.ledger import tail as ledger_tail
from lowmark.table import Trim

ROWS_IN_GROUP = 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data") as one:
        yield one


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger files of a row group for each batch that is written by `write_groups`."""
    monkeypatch.setattr(ledger_files, "ROW_GROUP_ROWS", ROWS_IN_GROUP)
    monkeypatch.setattr(ledger_tail, "_CHUNK_BYTES", 1)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each row group was decoded."""
    counts: Counter[int] = Counter()
    original = OpenFile.group

    def group(self: OpenFile, number: int, names: Sequence[str]) -> pa.RecordBatch:
        counts[number] += 1
        return original(self, number, names)

    monkeypatch.setattr(OpenFile, "group", group)
    return counts


def write_groups(world: World, letter: str, count: int) -> None:
    """Write so many new keys, ten at a time."""
    for low in range(0, count, ROWS_IN_GROUP):
        world.write(*[(f"{letter}{at:03}", at) for at in range(low, low + ROWS_IN_GROUP)])


def ledgers_of(world: World) -> Ledgers:
    return world.table._compactor.ledgers


def read_until(reader: Reader, key: str) -> list[str]:
    """The keys that a reader gives, up to one of them."""
    keys: list[str] = []
    while key not in keys:
        keys += next(reader).column("id").to_pylist()
    return keys


# -- how long files stay --------------------------------------------------------------------------


def test_a_follower_that_keeps_up_holds_no_ledger_that_it_has_passed(world: World) -> None:
    # given a follower that has read a ledger, and a row behind it
    world.write(("a", 1))
    world.compact()
    first = world.adopted().manifest
    world.write(("b", 1))
    with world.table.read(compacted=True, follow=True) as follower:
        assert backend_of(world.table).files_in_use() == {first}
        assert read_until(follower, "b") == ["a", "b"]
        assert backend_of(world.table).files_in_use() == set()
        # when one ledger after another is published while it keeps up
        for number in range(4):
            world.compact(rewrite=True)
            # then none stays but the one that counts
            world.check_tidy()
            world.write((f"c{number}", number))
            assert read_until(follower, f"c{number}") == [f"c{number}"]


@pytest.mark.slow
def test_a_follower_that_lags_holds_one_ledger_at_most(world: World, small_groups: None) -> None:
    # given somebody who follows and always stands within a ledger
    write_groups(world, "a", 30)
    world.compact()
    keys: list[str] = []
    with world.table.read(compacted=True, follow=True) as follower:
        for letter in "bcde":
            keys += next(follower).column("id").to_pylist()
            # when others come before it has read that one, and the backlog is cut
            write_groups(world, letter, 30)
            world.compact(rewrite=True)
            world.table.sweep()
            held = backend_of(world.table).files_in_use()
            # then no more than one is held for it, and it goes on in the newer one
            assert len(held) == 1
            assert held != {world.adopted().manifest}
            keys += read_until(follower, f"{letter}000")
        keys += read_until(follower, "e029")
        world.write(("last", 1))
        keys += read_until(follower, "last")
        # and it has missed nothing, and holds nothing any more
        assert keys == [*(f"{letter}{at:03}" for letter in "abcde" for at in range(30)), "last"]
        assert backend_of(world.table).files_in_use() == set()
        world.compact()
        world.check_tidy()


def test_a_follower_does_not_go_back_to_a_ledger_that_it_has_passed(world: World) -> None:
    # given a follower that has passed the ledger
    world.write(("a", 1))
    world.compact()
    world.write(("b", 1))
    follower = world.table.read(compacted=True, follow=True, on_gap="skip")
    assert read_until(follower, "b") == ["a", "b"]
    # when a row that it has not read, and that is in no ledger, is cut off
    world.write(("c", 1))
    world.write(("d", 1))
    world.ask(Trim(3, expire=True))
    # then it says so and goes on in the backlog
    with follower:
        assert read_until(follower, "d") == ["d"]
        assert follower.gaps == [Gap(0, 2, 2, "expired")]
        assert backend_of(world.table).files_in_use() == set()


@pytest.mark.parametrize("how", [{"compacted": True}, {"as_of": "now"}])
def test_a_bounded_reader_gives_back_each_ledger_that_it_has_read(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    with World(tmp_path / "data", partitions=2) as world:
        # given ledgers of two partitions, and rows behind both
        world.write(*[(f"a{number}", number) for number in range(20)])
        world.compact()
        world.write(*[(f"b{number}", number) for number in range(20)])
        manifests = [world.adopted(number).manifest for number in range(2)]
        with world.table.read(columns=["id", "_partition"], **how) as reader:
            assert backend_of(world.table).files_in_use() == set(manifests)
            # when it has come to the second one, then it does not hold the first one any more
            rows = next(reader).to_pylist()
            while rows[-1]["_partition"] == 0:
                rows += next(reader).to_pylist()
            assert backend_of(world.table).files_in_use() == {manifests[1]}
            # and it gives all rows all the same
            rows += [row for batch in reader for row in batch.to_pylist()]
            assert {row["id"] for row in rows} == set(world.model)
            assert len(rows) == len(world.model)
        eventually(lambda: not backend_of(world.table).files_in_use())


def test_a_reader_that_is_closed_while_it_changes_to_a_newer_ledger_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a follower whose rows are in a newer ledger only
    world.write(("a", 1))
    follower = world.table.read(compacted=True, follow=True)
    assert read_until(follower, "a") == ["a"]
    world.write(("b", 1))
    world.compact()
    assert world.view().start == 2
    backend = backend_of(world.table)
    original = backend.hold

    def hold(*given: Any, **more: Any) -> Held:
        held = original(*given, **more)
        # when it is closed, as another thread may do, right after it took that one
        monkeypatch.setattr(backend, "hold", original)
        assert held.files
        follower.close()
        backend.now()  # what it holds was released before this
        return held

    monkeypatch.setattr(backend, "hold", hold)
    list(follower)
    # then nothing stays held
    assert backend_of(world.table).files_in_use() == set()


# -- decoded row groups ---------------------------------------------------------------------------


def test_decoded_row_groups_of_all_ledgers_together_have_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_groups: None
) -> None:
    # given room for a few row groups, and several ledgers that have more of them each
    limit = 2_000
    monkeypatch.setattr(client_ledgers, "_GROUPS_BYTES_MAX", limit)
    with World(tmp_path / "data", partitions=3) as world:
        write_groups(world, "k", 300)
        world.compact()
        largest = 0
        # when all keys are looked up, one by one and at once
        for number in range(300):
            assert world.table.get(f"k{number:03}") == {"id": f"k{number:03}", "v": number}
            largest = max(largest, ledgers_of(world).cached_bytes)
        world.check()
        # then some are kept, but never more than there is room for
        assert limit / 2 < largest <= limit
        assert ledgers_of(world).cached_bytes <= limit


def test_the_row_groups_that_were_used_last_stay_decoded(
    world: World, monkeypatch: pytest.MonkeyPatch, small_groups: None, decoded: Counter[int]
) -> None:
    write_groups(world, "k", 3 * ROWS_IN_GROUP)
    world.compact()
    first, second, third = (f"k{number * ROWS_IN_GROUP:03}" for number in range(3))
    # given room for two of three row groups
    world.table.get(first)
    one = ledgers_of(world).cached_bytes
    monkeypatch.setattr(client_ledgers, "_GROUPS_BYTES_MAX", 2 * one + one // 2)
    decoded.clear()
    # when the first one is used again before there is no more room
    for key in (second, first, third, first, third, second):
        world.table.get(key)
    # then the other one was let go
    assert decoded == {1: 2, 2: 1}


def test_a_row_group_that_is_larger_than_the_limit_is_read_and_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(*[(f"k{number}", number) for number in range(100)])
    world.compact()
    monkeypatch.setattr(client_ledgers, "_GROUPS_BYTES_MAX", 10)
    world.check()
    assert ledgers_of(world).cached_bytes == 0


def test_nothing_is_kept_of_a_ledger_that_was_swept(world: World) -> None:
    # given a ledger in which somebody has looked
    world.write(("k", 1))
    world.compact()
    assert world.table.get("k") == {"id": "k", "v": 1}
    old = opened(world)
    gone = weakref.ref(old)
    assert ledgers_of(world).cached_bytes > 0
    # when another one takes its place
    world.write(("k", 2))
    world.compact(rewrite=True)
    world.check_tidy()
    # then nothing of it stays in memory
    assert ledgers_of(world).cached_bytes == 0
    # and whoever still has it may go on, but nothing of that is kept either
    names = ("id", "v", "_offset", "_time")
    rows = pa.record_batch({"id": ["k"]})
    assert old._groups.put((old, 0, 0, names), rows) is rows
    assert ledgers_of(world).cached_bytes == 0
    # and its files are closed with the last one who had it
    del old
    assert gone() is None


def test_of_too_many_open_ledgers_those_that_were_used_last_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path / "data", partitions=4) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        world.compact()
        world.check()
        all_of_them = ledgers_of(world).cached_bytes
        ledgers_of(world).forget_all()
        assert ledgers_of(world).cached_bytes == 0
        # when only one may be open, then everything is found, and only its rows are kept
        monkeypatch.setattr(client_ledgers, "_OPEN_MAX", 1)
        world.check()
        assert 0 < ledgers_of(world).cached_bytes < all_of_them
        ledgers_of(world).forget(next(iter(ledgers_of(world)._open)))
        assert ledgers_of(world).cached_bytes == 0


def opened(world: World) -> OpenLedger:
    """The adopted ledger, as it is open."""
    return ledgers_of(world).open(world.adopted(), world.table._described)


# -- who waits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["a warm row", "a cold row", "the same row"])
def test_a_row_that_takes_long_to_decode_keeps_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, small_groups: None, other: str
) -> None:
    # given somebody who looks for a row of the first row group, which takes long
    write_groups(world, "k", 3 * ROWS_IN_GROUP)
    world.compact()
    warm, cold, slow = "k025", "k015", "k005"
    assert world.table.get(warm) == {"id": warm, "v": 25}
    original, begun, over = OpenFile.group, threading.Event(), threading.Event()

    def group(self: OpenFile, number: int, names: Sequence[str]) -> pa.RecordBatch:
        if number == 0 and not begun.is_set():
            begun.set()
            assert over.wait(60)
        return original(self, number, names)

    monkeypatch.setattr(OpenFile, "group", group)
    with ThreadPoolExecutor(2) as threads:
        try:
            waiting = threads.submit(world.table.get, slow)
            assert begun.wait(60)
            # when somebody else looks for another row, or for the same
            key = {"a warm row": warm, "a cold row": cold, "the same row": slow}[other]
            found = threads.submit(world.table.get, key).result(20)
            # then that one is there at once
            assert found == {"id": key, "v": int(key[1:])}
            assert not waiting.done()
        finally:
            over.set()
        # and the first one gets its row, too; of two row groups that are the same, one is kept
        assert waiting.result(60) == {"id": slow, "v": 5}
    keys = list(ledgers_of(world)._groups._rows)
    assert len(keys) == (3 if other == "a cold row" else 2)
    sizes = [rows.get_total_buffer_size() for rows in ledgers_of(world)._groups._rows.values()]
    assert ledgers_of(world).cached_bytes == sum(sizes)


@pytest.mark.slow
def test_many_threads_find_every_row_while_groups_come_and_go(
    world: World, monkeypatch: pytest.MonkeyPatch, small_groups: None
) -> None:
    monkeypatch.setattr(client_ledgers, "_GROUPS_BYTES_MAX", 2_000)
    write_groups(world, "k", 200)
    world.compact()

    def look(first: int) -> None:
        for number in range(first, first + 200):
            key = f"k{number % 200:03}"
            assert world.table.get(key) == {"id": key, "v": number % 200}
            if number % 50 == 0:
                ledgers_of(world).forget_all()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(look, first) for first in range(0, 200, 25)]:
            done.result(60)
    kept = ledgers_of(world)._groups
    assert kept.bytes == sum(rows.get_total_buffer_size() for rows in kept._rows.values()) <= 2_000


AFTER_THE_MAIN_THREAD = """
import sys, threading, time
from concurrent.futures import thread as pools
import lowmark
from lowmark.ledger import files, tail

files.ROW_GROUP_ROWS = 4
tail._CHUNK_BYTES = 1
db = lowmark.open(sys.argv[1])
table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
for first in range(0, 20, 4):
    table.append([{"id": n} for n in range(first, first + 4)])
db.advance_watermark("now")
table.compact(engine="local")

def read():
    while not pools._shutdown:
        time.sleep(0.01)
    print(sum(table.read(compacted=True).to_arrow()["id"].to_pylist()))
    db.close()

threading.Thread(target=read).start()
"""


@pytest.mark.slow
def test_a_thread_reads_on_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    # given a program whose main thread ends, and a thread of it that reads then
    words = [sys.executable, "-c", AFTER_THE_MAIN_THREAD, str(tmp_path / "shop")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    # then it gets all rows, from several row groups
    assert (done.stdout, done.returncode) == ("190\n", 0), done.stderr
