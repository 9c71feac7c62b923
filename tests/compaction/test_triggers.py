"""Compaction that begins by itself: when a table is due, when it is not, what becomes of failures,
and of runs whose process has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import lowmark
from compaction.operating import flip, run_aside, set_options
from compaction.world import COLUMNS, World
from eventually import eventually
from inside import backend_of
from lowmark.catalog.options import TableOptions
from lowmark.client import Database
from lowmark.compaction import automatic
from lowmark.compaction import runner as running
from lowmark.compaction.automatic import Automatic
from lowmark.errors import LowmarkError, Unavailable
from lowmark.ledger import REBUILD, RunRecord
from lowmark.ledger.policy import Dirt, due
from lowmark.runtime import COUNTER_BITS, HybridTime

# -- when a table is due: pure --------------------------------------------------------------------

AUTO = TableOptions.of(
    [("compaction", "auto"), ("dirty_bytes", "1000"), ("dirty_percent", "50"), ("max_lag_ms", "60")]
)
CLEAN = Dirt(0, 10_000, 0)

DUE: dict[str, tuple[TableOptions, list[Dirt]]] = {
    "as many bytes as there must be": (AUTO, [Dirt(1_000, 2_000, 0)]),
    "bytes of several partitions together": (AUTO, [Dirt(400, 700, 0), Dirt(600, 1_300, 0)]),
    "all of it is dirty": (AUTO, [Dirt(5_000, 5_000, 0)]),
    "a row older than the largest lag": (AUTO, [Dirt(1, 10**9, 61)]),
    "such a row in one of the partitions": (AUTO, [CLEAN, Dirt(1, 10**9, 61), Dirt(1, 9, 0)]),
    "one byte, where no more is asked for": (
        replace(AUTO, dirty_bytes=0, dirty_percent=0),
        [Dirt(1, 10**12, 0)],
    ),
    "by percent at its edge": (replace(AUTO, dirty_bytes=0, dirty_percent=100), [Dirt(7, 7, 0)]),
    "any age, where none may be waited for": (replace(AUTO, max_lag_ms=0), [Dirt(1, 10**9, 1)]),
}
NOT_DUE: dict[str, tuple[TableOptions, list[Dirt]]] = {
    "no partition": (AUTO, []),
    "nothing is dirty": (AUTO, [CLEAN]),
    "nothing is there": (AUTO, [Dirt(0, 0, 0)]),
    "nothing is dirty, and everything would do": (
        replace(AUTO, dirty_bytes=0, dirty_percent=0, max_lag_ms=0),
        [CLEAN],
    ),
    "a byte less than there must be": (AUTO, [Dirt(999, 999, 0)]),
    "a little less than the percentage": (AUTO, [Dirt(1_000, 2_001, 0)]),
    "many bytes, but few of all": (AUTO, [Dirt(10**6, 10**9, 0)]),
    "a row exactly as old as it may be": (AUTO, [Dirt(1, 10**9, 60)]),
    "an old row, and no largest lag": (replace(AUTO, max_lag_ms=None), [Dirt(1, 10**9, 10**12)]),
    "people do it": (replace(AUTO, compaction="manual"), [Dirt(10**9, 10**9, 10**9)]),
    "nobody may": (replace(AUTO, compaction="off"), [Dirt(10**9, 10**9, 10**9)]),
    "one hundred percent, and a ledger besides": (
        replace(AUTO, dirty_bytes=0, dirty_percent=100),
        [Dirt(7, 8, 0)],
    ),
}


@pytest.mark.parametrize("case", DUE)
def test_a_table_is_due(case: str) -> None:
    options, parts = DUE[case]
    assert due(options, parts)


@pytest.mark.parametrize("case", NOT_DUE)
def test_a_table_is_not_due(case: str) -> None:
    options, parts = NOT_DUE[case]
    assert due(options, parts) is None


def test_why_a_table_is_due_is_said_in_numbers() -> None:
    assert due(AUTO, [Dirt(1_500, 2_000, 0)]) == "1500 bytes are dirty, 75 % of all"
    assert due(AUTO, [Dirt(1, 2_000, 100)]) == "a row waits for 100 ms, and max_lag_ms is 60"


# -- a database that compacts by itself -----------------------------------------------------------

EAGER: dict[str, str | int] = {"compaction": "auto", "dirty_bytes": 1, "dirty_percent": 1}


class AutoWorld(World):
    """Nothing happens until somebody has it look."""

    def _open(self) -> Database:
        return lowmark.open(self.path, settings=self.settings, engine="local")

    @property
    def auto(self) -> Automatic:
        assert self.db.auto is not None
        return self.db.auto

    def look(self) -> list[str]:
        self.settle()
        return self.auto.look()


@pytest.fixture(autouse=True)
def looks_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a database looks so rarely that only the tests do."""
    monkeypatch.setattr(automatic, "LOOK_S", 3_600.0)


@pytest.fixture
def auto(tmp_path: Path) -> Iterator[AutoWorld]:
    with AutoWorld(tmp_path / "data", options=EAGER) as one:
        yield one


def test_a_table_that_is_due_is_compacted_and_the_run_says_why(auto: AutoWorld) -> None:
    auto.write(*[(f"k{number % 5}", number) for number in range(20)])
    (run,) = auto.look()
    (record,) = auto.table.runs()
    assert (record.run, record.state, record.where) == (run, "done", "this process")
    assert record.trigger.endswith("100 % of all")
    auto.check()
    # and once it is clean, there is nothing to do
    assert auto.look() == []
    assert auto.table.runs() == [record]


def test_the_thread_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "LOOK_S", 0.02)
    with AutoWorld(tmp_path / "data", options=EAGER) as world:
        world.write(("k", 1), ("k", 2))

        def compacted() -> bool:
            world.db.advance_watermark()
            ledger = world.view().ledger
            return ledger is not None and ledger.horizon == 2

        eventually(compacted)
        world.check()


@pytest.mark.parametrize("compaction", ["off", "manual"])
def test_a_table_that_does_not_ask_for_it_is_left_alone(auto: AutoWorld, compaction: str) -> None:
    set_options(auto, compaction=compaction)
    auto.write(("k", 1), ("k", 2))
    auto.db.advance_watermark()
    assert auto.auto.look() == []
    assert auto.view().ledger is None
    # and when it does, later, it is compacted with all it had before
    set_options(auto, compaction="auto")
    assert len(auto.look()) == 1
    assert auto.adopted().horizon == 2
    auto.check()


@pytest.mark.slow
def test_a_ledger_counts_as_clean_so_a_large_table_waits_for_more(auto: AutoWorld) -> None:
    # given a table half of which must be dirty, with a ledger
    set_options(auto, dirty_percent=50)
    auto.write(*[(f"key number {number}", number) for number in range(2_000)])
    assert len(auto.look()) == 1
    # when a little comes, then it waits; when much comes, it does not
    auto.write(("k", 1))
    assert auto.look() == []
    auto.write(*[(f"another key {number}", number) for number in range(4_000)])
    assert len(auto.look()) == 1
    auto.check()


def test_few_bytes_wait_until_the_largest_lag(auto: AutoWorld) -> None:
    set_options(auto, dirty_bytes=1 << 40, max_lag_ms=3_600_000)
    auto.write(("k", 1), ("k", 2))
    assert auto.look() == []
    # when rows may wait for no time at all, they are due as soon as a millisecond has passed
    set_options(auto, max_lag_ms=0)
    eventually(lambda: bool(auto.look()))
    assert auto.table.runs()[0].trigger.endswith("max_lag_ms is 0")
    auto.check()


def test_a_clock_that_was_ahead_once_makes_no_table_due(auto: AutoWorld) -> None:
    # given few rows of now, and one that was written while the clock was two hours ahead
    set_options(auto, dirty_bytes=1 << 40, max_lag_ms=3_600_000)
    auto.write(("k", 1), ("k", 2))
    backend = backend_of(auto.table)
    ahead = HybridTime(backend.now().wall_ms + 7_200_000 << COUNTER_BITS)
    backend.ask_now(lambda: backend.node.runtime.clock.catch_up(ahead))
    auto.write(("k", 3))
    # then they have not waited for two hours
    auto.db.advance_watermark("now")
    assert auto.auto.look() == []


def test_rows_that_are_too_young_make_no_table_due(auto: AutoWorld) -> None:
    # given rows that no run may touch yet, by the least lag or by somebody who looks back
    auto.write(("k", 1), ("k", 2))
    set_options(auto, min_lag_ms=3_600_000)
    auto.db.advance_watermark()
    assert auto.auto.look() == []
    set_options(auto, min_lag_ms=0)
    looking = auto.table.read(as_of="now")
    auto.write(("k", 3))
    auto.db.advance_watermark()
    assert len(auto.auto.look()) == 1
    assert auto.adopted().horizon == 2
    assert auto.auto.look() == []
    looking.close()
    eventually(lambda: bool(auto.look()))
    assert auto.adopted().horizon == 3
    auto.check()


def test_a_run_by_hand_is_not_disturbed_and_no_failure(auto: AutoWorld) -> None:
    auto.write(("k", 1), ("k", 2))
    with run_aside(auto, until="carry out the work") as end:
        assert auto.auto.look() == []
        assert auto.auto.problems == {}
        outcome = end()
    assert isinstance(outcome, RunRecord)
    assert auto.look() == []


# -- failures -------------------------------------------------------------------------------------


class Hands:
    """A clock that tests turn, and a runner that fails when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.error: Exception | None = None
        self.tries = 0
        monkeypatch.setattr(automatic, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        run = running.LocalRunner.run

        def maybe(*given: Any, **more: Any) -> list[bytes]:
            self.tries += 1
            if self.error is not None:
                raise self.error
            return run(*given, **more)

        monkeypatch.setattr(running.LocalRunner, "run", maybe)


@pytest.mark.parametrize(
    "error",
    [Unavailable("the disk is full"), OSError("no space left"), MemoryError()],
    ids=["an error of ours", "of the system", "of the memory"],
)
def test_a_failure_is_told_and_the_other_tables_go_on(
    auto: AutoWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    # given two tables that are due, of which the first one fails
    other = auto.db.create_table("other", COLUMNS, key="id", partitions=1, options=EAGER)
    auto.write(("k", 1), ("k", 2))
    other.append([{"id": "k", "v": 1}, {"id": "k", "v": 2}])
    auto.settle(other)
    hands = Hands(monkeypatch)
    run = running.LocalRunner.run

    def first_fails(*given: Any, **more: Any) -> list[bytes]:
        hands.error = error if hands.tries == 0 else None
        return run(*given, **more)

    monkeypatch.setattr(running.LocalRunner, "run", first_fails)
    # when it looks
    with caplog.at_level(logging.WARNING, logger="lowmark.compaction.automatic"):
        runs = auto.look()
    # then the other one is compacted, and of the first one it is said what happened, and logged
    assert len(runs) == 1
    assert other.runs()[0].state == "done"
    problem = auto.auto.problems["t"]
    assert (error.message if isinstance(error, LowmarkError) else repr(error)) in problem
    assert "other" not in auto.auto.problems
    (told,) = [one for one in caplog.records if one.message == "a table could not be compacted"]
    assert getattr(told, "table", None) == "t"
    auto.check()


@pytest.mark.slow
def test_a_table_that_failed_is_left_alone_for_longer_each_time(
    auto: AutoWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto.write(("k", 1), ("k", 2))
    auto.settle()
    hands = Hands(monkeypatch)
    hands.error = Unavailable("the disk is full")
    for tries, wait_s in enumerate([30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600], start=1):
        # when it is tried and fails
        assert auto.auto.look() == []
        assert hands.tries == tries
        # then it is not tried again before its time
        hands.now_s += wait_s - 0.1
        assert auto.auto.look() == []
        assert hands.tries == tries
        hands.now_s += 0.2
    # and when nothing is in its way any more, it is compacted, and nothing is left of the trouble
    assert list(auto.auto.problems) == ["t"]
    hands.error = None
    assert len(auto.auto.look()) == 1
    assert auto.auto.problems == {}
    auto.check()
    # nor of the waiting: the next failure begins with the shortest
    hands.error = Unavailable("the disk is full")
    auto.write(("k", 3))
    auto.settle()
    tries = hands.tries
    for _ in range(2):
        assert auto.auto.look() == []
        hands.now_s += 30.1
    assert hands.tries == tries + 2


def test_a_damaged_partition_does_not_keep_the_others_from_being_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AutoWorld(tmp_path / "data", partitions=3, options=EAGER) as world:
        world.write(*[(f"k{number}", 0) for number in range(30)])
        assert len(world.look()) == 1
        hands = Hands(monkeypatch)
        # given a manifest that can't be read
        bad = world.path / "ledgers" / world.adopted(1).manifest
        flip(bad)
        world.table._compactor.ledgers.forget_all()
        world.write(*[(f"k{number}", 1) for number in range(30)])
        # when it looks, then the others go on, and it is said which one does not
        assert world.look() == []
        assert bad.name in world.auto.problems["t"]
        assert [world.adopted(number).epoch for number in range(3)] == [2, 1, 2]
        # and once it is whole again, it is made up for, without a restart
        flip(bad)
        hands.now_s += 31
        assert len(world.look()) == 1
        assert world.auto.problems == {}
        world.check()
        world.check_tidy()


# -- ended in the middle --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["carry out the work", "publish partition 0", "adopt partition 0", "trim partition 0"]
)
def test_what_a_process_left_in_the_middle_is_resumed_by_the_next_one(
    auto: AutoWorld, step: str
) -> None:
    # given a run whose process has ended
    auto.write(*[(f"k{number % 5}", number) for number in range(20)])
    left = auto.stopped_before(step)
    assert left.state == "interrupted"
    # when the next one looks, then that run goes on, though the table may not be due any more
    assert auto.look() == [left.run]
    (record,) = auto.table.runs()
    assert (record.run, record.state, record.resumed) == (left.run, "done", 1)
    assert auto.adopted().horizon == auto.view().start == 20
    auto.check()
    auto.check_tidy()
    # and it is resumed once
    assert auto.look() == []


def test_a_run_that_was_given_up_is_not_resumed(auto: AutoWorld) -> None:
    auto.write(*[(f"k{number % 5}", number) for number in range(20)])
    left = auto.stopped_before("publish partition 0")
    assert auto.table.cancel_run(left.run).state == "cancelled"
    (run,) = auto.look()
    assert run != left.run
    auto.check()
    auto.check_tidy()


def test_what_was_to_rebuild_a_ledger_is_not_resumed_to_compact(auto: AutoWorld) -> None:
    auto.write(*[(f"k{number % 5}", number) for number in range(20)])
    left = auto.stopped_before("carry out the work")
    auto.table._compactor.records.put_run(msgspec.structs.replace(left, trigger=REBUILD))
    (run,) = auto.look()
    assert run != left.run
    assert auto.auto.problems == {}
    auto.check()


def test_a_run_under_way_when_the_database_is_closed_is_left_to_be_resumed(
    auto: AutoWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a run of its own that closing finds in the middle
    auto.write(*[(f"k{number % 5}", number) for number in range(20)])
    auto.settle()
    work_off = running.work_off

    def closing(data: bytes) -> bytes:
        auto.auto.finish()
        return work_off(data)

    with monkeypatch.context() as patch:
        patch.setattr("lowmark.compaction.work.work_off", closing)
        assert auto.auto.look() == []
    assert auto.auto.problems == {}
    # when the database is opened again, then it can be resumed, and is
    auto.reopen()
    (left,) = auto.table.runs()
    assert left.state == "interrupted"
    assert auto.look() == [left.run]
    auto.check()
    auto.check_tidy()
