"""Work on a local session: answers, errors, workers that die, and the end of a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.backend.errors import Cancelled
from lowmark.errors import LowmarkError, Rejected
from lowmark.spark import SessionRefused, SparkRunner, TaskFailed, TaskLost
from spark.jobs import (
    Spoilt,
    die,
    die_once,
    refuse_or_wait,
    shout,
    spoil,
    stumble,
    wait_forever,
    who,
)
from spark.processes import LOOPBACK_ADDRESSES, below, is_alive, listening

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


def waiting(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.waiting")]


@contextmanager
def running(runner: SparkRunner, *, folder: Path, tasks: int) -> Iterator[list[LowmarkError]]:
    """A run that does not end by itself, under way in another thread; and how it ended."""
    ended: list[LowmarkError] = []

    def run() -> None:
        try:
            runner.run(wait_forever, [[str(folder).encode()]] * tasks, label="waiting")
        except LowmarkError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: len(waiting(folder)) == tasks)
        yield ended
    finally:
        runner.cancel()
        thread.join()


def test_answers_come_in_the_order_of_the_pieces(shared: SparkRunner) -> None:
    # given packs of different sizes, an empty one among them
    packs = [[b"a", b"b", b"c"], [], [b"d"], [b"e", b"f"]]
    # when they are worked off
    answers = shared.run(shout, packs, label="shouting")
    # then there is an answer for each piece, in order
    assert answers == [b"A", b"B", b"C", b"D", b"E", b"F"]


def test_nothing_to_do_needs_no_task(shared: SparkRunner) -> None:
    assert shared.run(shout, [], label="nothing") == []
    assert shared.run(shout, [[], []], label="nothing") == []


def test_a_pack_is_a_task(shared: SparkRunner) -> None:
    # when five pieces in three packs are worked off
    answers = shared.run(who, [[b"", b""], [b"", b""], [b""]], label="who")
    # then each pack was one task, in one process
    said = [tuple(map(int, answer.split())) for answer in answers]
    assert [task for _, task in said] == [0, 0, 1, 1, 2]
    assert said[0] == said[1]
    assert said[2] == said[3]


def test_slots_are_the_cores_of_the_session(shared: SparkRunner) -> None:
    assert shared.slots == 2


def test_large_pieces_and_answers_pass(shared: SparkRunner) -> None:
    piece = b"x" * 3_000_000
    assert shared.run(shout, [[piece], [piece]], label="large") == [piece.upper()] * 2


def test_an_error_of_lowmark_comes_back_as_what_it_was(shared: SparkRunner) -> None:
    # when a function raises an error with words and fields of its own
    with pytest.raises(Spoilt) as caught:
        shared.run(spoil, [[b"good", b"bad"], [b"good"]], label="spoiling")
    # then that is what the caller gets, but for what can't travel
    error = caught.value
    assert (error.message, error.detail, error.hint) == (
        "leaf is spoilt",
        "At 7.",
        "Throw it away.",
    )
    assert (error.file, error.offset, error.marks) == ("leaf", 7, ("a", "b"))
    assert not hasattr(error, "secret")


def test_any_other_error_comes_with_its_traceback(shared: SparkRunner) -> None:
    with pytest.raises(TaskFailed) as caught:
        shared.run(stumble, [[b"1"], [b"0"]], label="dividing")
    assert caught.value.message.startswith("dividing failed: ZeroDivisionError")
    assert "in stumble" in caught.value.detail


def test_an_error_ends_the_other_tasks(shared: SparkRunner, tmp_path: Path) -> None:
    # given a task that would go on for ever, beside one that fails
    packs = [[str(tmp_path).encode()], [b"refuse"]]
    # when they are run
    with pytest.raises(Rejected, match="not this one"):
        shared.run(refuse_or_wait, packs, label="refusing")
    # then the run ends, and no task is left
    assert not any(is_alive(pid) for pid in waiting(tmp_path))


def test_a_worker_that_dies_is_tried_again(shared: SparkRunner, tmp_path: Path) -> None:
    piece = str(tmp_path / "died").encode()
    assert shared.run(die_once, [[piece], [piece]], label="dying") == [b"alive"] * 2


def test_a_task_whose_worker_always_dies_is_given_up(shared: SparkRunner) -> None:
    with pytest.raises(TaskLost) as caught:
        shared.run(die, [[b""]], label="dying")
    assert "died" in caught.value.message


def test_a_cancelled_run_ends_and_its_tasks_with_it(shared: SparkRunner, tmp_path: Path) -> None:
    # given a run of two tasks that do not end by themselves
    with running(shared, folder=tmp_path, tasks=2) as ended:
        # when it is cancelled from another thread
        shared.cancel()
        eventually(lambda: bool(ended))
        # then its caller hears so, and by then no process works on it
        assert isinstance(ended[0], Cancelled)
        assert not any(is_alive(pid) for pid in waiting(tmp_path))
    # and the session goes on
    assert shared.run(shout, [[b"a"]], label="after") == [b"A"]


def test_cancelling_when_nothing_runs_changes_nothing(shared: SparkRunner) -> None:
    shared.cancel()
    assert shared.run(shout, [[b"a"]], label="after") == [b"A"]


def test_two_runs_share_a_session(shared: SparkRunner, tmp_path: Path) -> None:
    # given a run that holds one of two slots
    other = SparkRunner(shared._session)
    with running(shared, folder=tmp_path, tasks=1) as ended:
        # when another runner of the same session runs something, and is cancelled and closed
        assert other.run(shout, [[b"a"], [b"b"]], label="beside") == [b"A", b"B"]
        other.cancel()
        other.close()
        # then the first goes on
        assert not ended
        assert all(is_alive(pid) for pid in waiting(tmp_path))


def test_what_the_caller_has_told_spark_for_its_thread_stays(shared: SparkRunner) -> None:
    # given a thread with a group of jobs of its own
    context = shared._session.sparkContext
    context.setJobGroup("mine", "my jobs")
    try:
        # when it runs something
        shared.run(shout, [[b"a"]], label="ours")
        # then its group is still its own, and our jobs were not in it
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert not list(context.statusTracker().getJobIdsForGroup("mine"))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_only_what_can_be_imported_is_sent(shared: SparkRunner) -> None:
    def inner(data: bytes) -> bytes:
        return data

    functions: list[Any] = [inner, lambda data: data, b"".join]
    for function in functions:
        with pytest.raises(Rejected, match="can't be sent"):
            shared.run(function, [[b""]], label="inner")


def test_ctrl_c_stays_what_it_was(shared: SparkRunner) -> None:
    assert shared.slots
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_everything_listens_on_loopback(shared: SparkRunner) -> None:
    # given a session with its workers
    shared.run(shout, [[b"a"], [b"b"]], label="waking")
    java = shared._session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    # then the Java process and its workers listen nowhere else
    addresses = listening([java, *below(java)])
    assert addresses
    assert addresses <= LOOPBACK_ADDRESSES


def test_a_connect_session_is_refused_by_name() -> None:
    # given a session that speaks another protocol, as far as one can tell from its class
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionRefused, match="Connect"):
        SparkRunner(connect)
