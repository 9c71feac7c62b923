"""Runs that end otherwise than by being done: cancelled, interrupted, spoilt by their caller."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import lowmark
from compaction.world import World
from eventually import eventually
from lowmark.backend.errors import Cancelled
from lowmark.client import Progress, RunUnderWay
from lowmark.compaction.context import CancelToken
from lowmark.compaction.records import Records
from lowmark.errors import Rejected
from lowmark.ledger import LedgerLost, RunRecord, table_folder
from lowmark.node import load_settings

ROWS = [(f"k{number % 50}", number) for number in range(400)]


class Slow:
    """A run on a thread, which waits at a step until it is let go."""

    def __init__(self, world: World, step: str, **how: object) -> None:
        self._step = step
        self._go_on, self.there = threading.Event(), threading.Event()
        self.error: BaseException | None = None

        def run() -> None:
            try:
                world.table.compact(engine="local", step=self._wait, **how)  # type: ignore[arg-type]
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()
        eventually(self.there.is_set)

    def _wait(self, name: str) -> None:
        if name == self._step:
            self.there.set()
            self._go_on.wait(30)

    def end(self) -> None:
        self._go_on.set()
        self._thread.join(30)


@pytest.mark.slow
def test_a_callers_error_in_its_word_for_progress_ends_the_run_and_comes_out(world: World) -> None:
    # given a run whose caller's word for progress fails
    world.write(*ROWS)
    world.settle()

    def tell(progress: Progress) -> None:
        raise KeyError("a bug of the caller")

    # when it is slow enough to be told of
    with pytest.raises(KeyError, match="a bug of the caller"):
        world.table.compact(engine="local", progress=tell, read_rate=5_000)
    # then it has failed, and goes on when it is resumed
    [failed] = world.table.runs()
    assert failed.state == "failed"
    assert world.table.compact(engine="local", resume=failed.run, read_rate=0).state == "done"
    world.check()
    world.check_tidy()


def test_a_word_for_progress_that_fails_at_the_end_does_not_undo_what_is_done(world: World) -> None:
    world.write(*ROWS)
    world.settle()

    def tell(progress: Progress) -> None:
        if progress.bytes_done == progress.bytes_total:
            raise KeyError("a bug of the caller")

    assert world.table.compact(engine="local", progress=tell).state == "done"
    world.check()


def test_closing_the_database_leaves_a_run_to_be_resumed(world: World) -> None:
    # given a run under way on another thread
    world.write(*ROWS)
    world.settle()
    run = Slow(world, "carry out the work", read_rate=1_000)
    threading.Timer(0, run.end).start()
    # when the database is closed
    world.db.close()
    run.end()
    assert isinstance(run.error, Cancelled)
    # then the run was interrupted, not given up, and can be resumed
    table = world.reopen()
    [left] = table.runs()
    assert left.state == "interrupted"
    assert table.compact(engine="local", resume=left.run, read_rate=0).state == "done"
    world.check()
    world.check_tidy()


def test_a_run_is_not_given_up_while_another_one_goes_on(world: World) -> None:
    # given a run that was interrupted, and one that goes on
    world.write(*ROWS)
    left = world.stopped_before("publish partition 0")
    world.settle()
    run = Slow(world, "note the run")
    # when somebody gives the first one up, then that is refused by name
    with pytest.raises(RunUnderWay):
        world.table.cancel_run(left.run)
    run.end()
    assert run.error is None
    world.check()
    world.check_tidy()


@pytest.mark.slow
def test_a_published_ledger_that_is_gone_keeps_no_other_partition_from_being_compacted(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "data", partitions=2) as world:
        # given a ledger that was published, and lost before anybody adopted it
        world.write(*ROWS)
        world.stopped_before("adopt partition 0")
        published = world.table._compactor.records.pointers(world.table.descriptor.id)[0]
        (world.path / "ledgers" / published.manifest).unlink()
        # when the table is compacted, then that is told, and the other partition is compacted
        world.settle()
        with pytest.raises(LedgerLost):
            world.table.compact(engine="local")
        assert world.view(0).ledger is None
        assert world.adopted(1).horizon == world.view(1).end
        world.check()
        # and when it is rebuilt, all is as it should be
        world.table.rebuild_ledger()
        world.compact()
        world.check()
        world.check_tidy()


def test_one_ledger_that_can_not_be_read_does_not_stop_the_sweep_of_the_others(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "data", partitions=2) as world:
        # given two ledgers, and beside each a file that nobody names
        world.write(*ROWS)
        world.compact()
        folder = table_folder(world.table.descriptor.id)
        leftovers = [f"{folder}/{number}/left" for number in (0, 1)]
        for name in leftovers:
            (world.path / "ledgers" / name).write_bytes(b"")
        # when one of them can't be read
        manifest = world.path / "ledgers" / world.adopted(0).manifest
        before = manifest.read_bytes()
        manifest.write_bytes(b"")
        # then the other partition is swept, and of this one nothing goes
        assert world.table.sweep() == [leftovers[1]]
        manifest.write_bytes(before)
        assert world.table.sweep() == [leftovers[0]]
        world.check()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"spark": 42}, "is not a Spark session"),
        ({"spark": "local[2]", "engine": "local"}, "runs without Spark"),
        ({"engine": "local", "partitions": []}, "no partition is named"),
        ({"engine": "local", "spark_config": {"spark.ui.port": "1"}}, "spark_config"),
    ],
)
def test_what_can_not_be_meant_is_refused_before_anything_is_noted(
    world: World, how: dict[str, Any], said: str
) -> None:
    world.write(*ROWS)
    with pytest.raises(Rejected, match=said):
        world.table.compact(**how)
    assert world.table.runs() == []


def test_ledgers_are_where_they_were_from_whatever_folder_a_database_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a database whose ledgers were put into a folder that was named from another one
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    settings = load_settings(
        arguments={"ledger": {"location": "led"}, "watermark": {"availability_ms": 0}}
    )
    with lowmark.open(tmp_path / "db", settings=settings) as db:
        table = db.create_table("t", {"id": "int64"}, key="id")
        table.append([{"id": 1}])

        def compacted() -> bool:
            db.advance_watermark()
            return table.compact(engine="local").rows_live == 1

        eventually(compacted)
    # when it is opened elsewhere
    monkeypatch.chdir(tmp_path / "two")
    with lowmark.open(tmp_path / "db") as db:
        # then they are found
        assert db.table("t").get(1) == {"id": 1}
    assert list((tmp_path / "two").iterdir()) == []


@pytest.mark.parametrize("place", ["file:led", "s3:bucket"])
def test_a_place_that_is_neither_a_path_nor_a_url_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(Rejected, match="neither a path nor a URL"):
        load_settings(arguments={"ledger": {"location": place}})


# -- the token ------------------------------------------------------------------------------------


def test_a_run_that_is_cancelled_while_it_is_taken_up_again_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a run that was interrupted
    world.write(*ROWS)
    left = world.stopped_before("carry out the work").run
    # when it is cancelled after it was taken up again, and before its first step
    look_up, asked = Records.run, list[str]()

    def run(self: Records, table: int, name: str) -> RunRecord:
        if world.table._compactor.active(table) == left and not asked:
            asked.append(name)
            world.table.cancel_run(left)
        return look_up(self, table, name)

    monkeypatch.setattr(Records, "run", run)
    with pytest.raises(Cancelled, match=left):
        world.table.compact(engine="local", resume=left)
    # then it is given up, and nothing of it stays
    [record] = world.table.runs()
    assert (asked, record.state) == ([left], "cancelled")
    world.compact()
    world.check()
    world.check_tidy()


def test_a_token_ends_what_was_begun_elsewhere_each_time_that_it_is_asked_for() -> None:
    token, ended = CancelToken("run r"), list[str]()
    token.check()
    with token.calls(lambda: ended.append("job")):
        token.cancel()
        token.cancel()  # what was about to begin at the first time goes on now
    token.interrupt()
    assert (ended, token.cancelled, token.interrupted) == (["job", "job"], True, True)
    with pytest.raises(Cancelled, match="run r was cancelled"):
        token.wait(60)  # it does not
