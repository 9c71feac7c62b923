"""Several things at the same time: all of them are done, however many threads there are, and errors
come out when all have ended.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lowmark.compaction.runner import together


def test_answers_come_in_order_from_as_many_threads_as_were_asked_for() -> None:
    # given three things that wait for one another
    all_there = threading.Barrier(3)

    def double(number: int) -> int:
        if number < 3:
            all_there.wait(30)
        return 2 * number

    # when they are done together, then none waits in vain
    assert together(double, range(10), most=3, name="t") == [2 * number for number in range(10)]
    assert together(double, [], most=3, name="t") == []


@pytest.mark.parametrize("can_start", [0, 1])
def test_where_no_more_threads_can_be_started_those_that_there_are_do_it_all(
    monkeypatch: pytest.MonkeyPatch, can_start: int
) -> None:
    # given a system that refuses threads
    start, left = threading.Thread.start, can_start

    def refuse(self: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    # then all is done all the same
    assert together(str, range(5), most=4, name="t") == ["0", "1", "2", "3", "4"]


def test_the_error_that_came_first_is_raised_when_all_have_ended() -> None:
    told, ended = threading.Event(), []

    def work(number: int) -> None:
        if number == 1:
            raise KeyError("the cause")
        # given others that end only because they are told of it
        assert told.wait(30)
        ended.append(number)
        raise ValueError("ended early")

    with pytest.raises(KeyError, match="the cause"):
        together(work, range(3), most=3, name="t", failed=told.set)
    assert sorted(ended) == [0, 2]


def test_after_a_ctrl_c_nothing_more_is_begun_and_it_goes_before_other_errors() -> None:
    begun: list[int] = []

    def work(number: int) -> Any:
        begun.append(number)
        raise KeyboardInterrupt if number == 1 else ValueError(number)

    with pytest.raises(KeyboardInterrupt):
        together(work, range(5), most=1, name="t")
    assert begun == [0, 1]
