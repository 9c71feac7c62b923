"""Answers that come later, several at a time."""

from __future__ import annotations

from itertools import permutations

import pytest

from lowmark.errors import Unavailable
from lowmark.runtime import Future, when_all


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_several_answers_the_first_error_counts_in_whatever_order_they_come(
    order: tuple[int, ...],
) -> None:
    # given three answers, of which the first is an error and the last a value, or the other way
    futures: list[Future[int]] = [Future() for _ in range(3)]
    whole = when_all(futures)
    # when they come
    for number in order:
        if number == 0:
            futures[number].reject(Unavailable("it is away"))
        else:
            futures[number].resolve(number)
    # then all of them together are that error, and no answer that came later raised it
    assert whole.done
    assert whole.error is not None
    assert whole.error.message == "it is away"


def test_of_several_answers_all_values_come_in_their_order() -> None:
    futures: list[Future[int]] = [Future() for _ in range(2)]
    whole = when_all(futures)
    futures[1].resolve(1)
    assert not whole.done
    futures[0].resolve(0)
    assert whole.result() == [0, 1]
