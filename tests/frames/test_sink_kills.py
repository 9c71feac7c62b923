"""What is killed while Spark writes a table: each row is stored once, and none is seen early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventually import eventually
from frames.writing import EACH, Driver, Steps
from lowmark.client import Database, Table
from lowmark.client.table_writing import SLICE_ROWS
from spark.standalone import Standalone, standalone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("standalone")]

COLUMNS = {"id": "int64", "v": "string"}
SOON_S = 120.0
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("spark"), workers=2, apart=True) as started:
        yield started


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", COLUMNS, key="id", partitions=PARTITIONS)


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "steps")


def stored(table: Table) -> Counter[int]:
    """How often each key is in the log."""
    keys = table.read(start="earliest", columns=["id"]).to_arrow()["id"]
    return Counter(keys.to_pylist())


def once(numbers: int) -> Counter[int]:
    """All rows of so many numbers, each once."""
    return Counter(range(numbers * EACH))


def waiting(table: Table) -> int:
    found = table._backend.status(table.descriptor.id).values()
    return sum(one.staging.rows for one in found if one.staging is not None)


def visible(table: Table) -> list[int]:
    """How many rows are read, by partition."""
    return [one.view.end for one in table._backend.status(table.descriptor.id).values()]


def source(db: Database, numbers: int) -> Table:
    """A stream's: two numbers make a batch."""
    made = db.create_table("source", COLUMNS, partitions=2)
    for first in range(2):  # rows without a key that are appended together stay together
        made.append([{"id": number, "v": "x"} for number in range(first, numbers, 2)])
    ends = [one.view.end for one in made._backend.status(made.descriptor.id).values()]
    assert ends == [numbers // 2] * 2
    return made


@pytest.fixture
def drivers(cluster: Standalone, place: str, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts drivers, which are gone in the end."""
    started: list[Driver] = []

    def start(kind: str, **config: str) -> Driver:
        started.append(Driver(kind, cluster.master, place, tmp_path / "steps", **config))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()


def come_to(driver: Driver, steps: Steps, step: str, times: int = 1) -> None:
    eventually(lambda: driver.runs() and steps.reached(step) >= times, deadline_s=SOON_S)


def hold_tasks(steps: Steps, *numbers: int) -> None:
    for number in numbers:
        steps.hold(f"first-{number}")


def release_tasks(steps: Steps, *numbers: int) -> None:
    for number in numbers:
        steps.release(f"first-{number}")


def kill_an_executor(cluster: Standalone) -> None:
    assert len(cluster.executors()) == 2
    cluster.kill_executor(cluster.executors()[0])


@pytest.mark.release  # the stream below loses an executor at the same step
def test_an_executor_is_killed_while_its_task_of_a_write_stages(
    cluster: Standalone, table: Table, steps: Steps, drivers: Callable[..., Driver]
) -> None:
    # given two tasks on two executors, which have staged a part of their rows
    hold_tasks(steps, 0, 1)
    driver = drivers("write")
    for number in range(2):
        come_to(driver, steps, f"first-{number}")
    eventually(lambda: waiting(table) >= 2 * SLICE_ROWS)
    # when one of them is killed
    kill_an_executor(cluster)
    eventually(lambda: steps.reached("again-0") + steps.reached("again-1") == 1, deadline_s=SOON_S)
    # then nothing is seen until the second attempt and the other task are through
    assert sum(visible(table)) == 0
    release_tasks(steps, 0, 1)
    driver.end()
    # and then each row is there once, and nothing waits of the first attempt
    assert stored(table) == once(2)
    assert waiting(table) == 0


def test_a_stream_loses_an_executor_and_then_its_driver(
    cluster: Standalone, db: Database, table: Table, steps: Steps, drivers: Callable[..., Driver]
) -> None:
    # given a stream of two batches, and two tasks that have staged a part of the first
    source(db, 4)
    hold_tasks(steps, 0, 1)
    steps.hold("half")
    driver = drivers("stream")
    for number in range(2):
        come_to(driver, steps, f"first-{number}")
    eventually(lambda: waiting(table) >= 2 * SLICE_ROWS)
    # when an executor is killed
    kill_an_executor(cluster)
    eventually(lambda: steps.reached("again-0") + steps.reached("again-1") == 1, deadline_s=SOON_S)
    assert sum(visible(table)) == 0
    release_tasks(steps, 0, 1)
    # and the driver, when some partitions have the batch and others not yet
    come_to(driver, steps, "half")
    some = visible(table)
    assert 0 < some.count(0) < PARTITIONS
    driver.kill()
    # then a driver that goes on from its checkpoint ends the batch: its rows are there once
    steps.forget()
    again = drivers("stream")
    come_to(again, steps, "half")
    assert stored(table) <= once(2)
    steps.release("half")
    again.end()
    assert stored(table) == once(4)
    assert waiting(table) == 0


@pytest.mark.release  # the stream above loses its driver at the last of these steps
@pytest.mark.parametrize("step", ["first-1", "committing", "decided", "half"])
def test_a_driver_is_killed_at_each_step_of_a_batch(
    db: Database, table: Table, steps: Steps, drivers: Callable[..., Driver], step: str
) -> None:
    # given a stream that has come to a step of its first batch
    source(db, 4)
    steps.hold(step)
    driver = drivers("stream")
    come_to(driver, steps, step)
    eventually(lambda: waiting(table) >= SLICE_ROWS)
    staged, some = waiting(table), visible(table)
    # when it is killed
    driver.kill()
    # then what is seen is what it has bound, and no row twice
    expected = {"first-1": 0, "committing": 0, "decided": 1, "half": 1 + 3}[step]
    assert sum(rows > 0 for rows in some) == expected
    assert stored(table) <= once(2)
    # and when it is started again from its checkpoint, each row is there once
    steps.release(step)
    drivers("stream").end()
    assert stored(table) == once(4)
    # and what waits is what the dead driver had not decided on: it goes after a day
    if expected:
        assert waiting(table) == 0
    else:
        assert SLICE_ROWS <= waiting(table) <= once(2).total()
        assert step == "first-1" or waiting(table) == staged


# In `test_sink`, tasks stage their rows twice, one attempt after the other, and one counts; in
# `tests/client/test_staging.py`, two attempts stage in turns.
@pytest.mark.release
@pytest.mark.parametrize("late", [False, True])
def test_of_two_attempts_at_once_one_counts(
    table: Table, steps: Steps, drivers: Callable[..., Driver], late: bool
) -> None:
    # given a task that is slow, so that Spark starts it a second time
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.minTaskRuntime": "50ms",
    }
    steps.hold("first-1")
    steps.hold("again-1")
    driver = drivers("write", **speculation)
    # when both attempts have staged rows
    come_to(driver, steps, "first-1")
    come_to(driver, steps, "again-1")
    eventually(lambda: waiting(table) >= once(1).total() + 2 * SLICE_ROWS)
    assert sum(visible(table)) == 0
    # and go on, both, or the first one when the second is through
    steps.release("again-1")
    if not late:
        steps.release("first-1")
    driver.end()
    steps.release("first-1")
    # then one of them counts, and nothing waits of the other
    assert stored(table) == once(2)
    assert waiting(table) == 0
