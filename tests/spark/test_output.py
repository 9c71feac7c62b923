"""What the Java process of a session prints: what is shown of it, and what is not."""

from __future__ import annotations

import io

import pytest

from lowmark.spark.jvm import Output

TRACEBACK = "Traceback (most recent call last):"
IN_DAEMON = '  File "/opt/spark/python/lib/pyspark.zip/pyspark/daemon.py", line 246, in manager'
IN_OURS = '  File "/opt/python/site-packages/lowmark/spark/daemon.py", line 90, in worker'
CODE = "    return work(*arguments)"
IN_TASK = '  File "/opt/job/lines.py", line 3, in parse'
HUNG_UP = "BrokenPipeError: [Errno 32] Broken pipe"


def shown(*lines: str) -> list[str]:
    output = Output(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))
    output.join(10.0)
    return output.last().splitlines()


def test_a_line_is_shown_and_what_java_always_says_is_not() -> None:
    said = shown("WARNING: Using incubator modules: jdk.incubator.vector", "", "no space left")
    assert said == ["no space left"]


def test_a_worker_that_spark_hung_up_on_is_not_shown() -> None:
    assert shown(TRACEBACK, IN_DAEMON, HUNG_UP, "next") == ["next"]


def test_two_workers_that_print_at_the_same_time_are_not_shown_either() -> None:
    said = shown(TRACEBACK, TRACEBACK, IN_DAEMON, IN_DAEMON, HUNG_UP, HUNG_UP, "next")
    assert said == ["next"]


def test_a_worker_of_our_daemon_is_not_shown_either() -> None:
    lines = (
        IN_DAEMON,
        "    code = worker(sock, authenticated)",
        IN_OURS,
        CODE,
        "    ^^^^",
        IN_DAEMON,
    )
    assert shown(TRACEBACK, *lines, HUNG_UP, "next") == ["next"]


@pytest.mark.parametrize("lines", [1, 2])
def test_a_worker_that_was_ended_before_its_last_line_is_not_shown(lines: int) -> None:
    assert shown("first", *(TRACEBACK, IN_DAEMON)[:lines]) == ["first"]


def test_a_traceback_of_a_task_is_shown_whole() -> None:
    whole = (TRACEBACK, IN_DAEMON, CODE, IN_TASK, CODE, "ValueError: no number: 'x'")
    assert shown(*whole) == list(whole)


def test_another_error_of_the_daemon_is_shown_whole() -> None:
    whole = (TRACEBACK, IN_DAEMON, "OSError: [Errno 24] Too many open files")
    assert shown(*whole) == list(whole)
