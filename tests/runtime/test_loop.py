"""What any loop does: one suite, run on the real loop, on the simulated one, and on its nodes'."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lowmark.runtime import Loop, Outcome, RealLoop
from lowmark.runtime.sim import SimLoop
from lowmark.runtime.sim.node import SimNode

# No test waits for time to pass; this only bounds how long a broken one hangs.
SOON_MS = 10_000


class Broken(Exception):
    pass


@pytest.fixture(params=["real", "simulated", "a node's", "a fast node's"])
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    loop: Loop
    match request.param:
        case "real":
            loop = RealLoop()
        case "simulated":
            loop = SimLoop(1)
        case "a node's":
            loop = SimNode(SimLoop(1), "n")
        case _:
            loop = SimNode(SimLoop(1), "n", skew_ms=99, rate=1.1)
    yield loop
    loop.close()


@pytest.fixture
def real_loop() -> Iterator[RealLoop]:
    loop = RealLoop()
    yield loop
    loop.close()


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def run_until_count(loop: Loop, happened: list[str], count: int) -> None:
    loop.run_until(lambda: len(happened) >= count, timeout_ms=SOON_MS)


# -- callbacks and timers -------------------------------------------------------------------------


def test_callbacks_run_in_the_order_they_were_asked_for(loop: Loop) -> None:
    happened: list[str] = []
    for name in "abc":
        loop.call_soon(lambda name=name: happened.append(name))  # type: ignore[misc]
    run_until_count(loop, happened, 3)
    assert happened == ["a", "b", "c"]


def test_a_callback_asked_for_in_a_callback_runs_after_those_that_wait(loop: Loop) -> None:
    happened: list[str] = []

    def first() -> None:
        happened.append("first")
        loop.call_soon(lambda: happened.append("third"))

    loop.call_soon(first)
    loop.call_soon(lambda: happened.append("second"))
    run_until_count(loop, happened, 3)
    assert happened == ["first", "second", "third"]


def test_a_condition_that_holds_already_lets_nothing_run(loop: Loop) -> None:
    loop.call_soon(raising(Broken()))
    loop.run_until(lambda: True)


def test_nothing_runs_after_the_condition_came_true(loop: Loop) -> None:
    # given three callbacks that are ready together
    happened: list[str] = []
    for name in "abc":
        loop.call_soon(lambda name=name: happened.append(name))  # type: ignore[misc]
    # when the loop is to run until the second
    run_until_count(loop, happened, 2)
    # then the third waits for its turn
    assert happened == ["a", "b"]
    run_until_count(loop, happened, 3)
    assert happened == ["a", "b", "c"]


def test_timers_go_off_by_their_time(loop: Loop) -> None:
    happened: list[str] = []
    loop.call_later(20, lambda: happened.append("late"))
    loop.call_later(1, lambda: happened.append("soon"))
    began_us = loop.elapsed_us()
    run_until_count(loop, happened, 2)
    assert happened == ["soon", "late"]
    assert loop.elapsed_us() - began_us >= 19_000


def test_a_cancelled_timer_does_not_go_off(loop: Loop) -> None:
    happened: list[str] = []
    timer = loop.call_later(1, raising(Broken()))
    loop.call_later(5, lambda: happened.append("after"))
    timer.cancel()
    run_until_count(loop, happened, 1)
    timer.cancel()  # twice, and late, is fine


def test_a_timer_can_be_cancelled_in_the_very_moment_it_is_due(loop: Loop) -> None:
    # given two timers that are due together, of which the first cancels the second
    happened: list[str] = []

    def cancel_other() -> None:
        happened.append("first")
        other.cancel()

    loop.call_later(0, cancel_other)
    other = loop.call_later(0, raising(Broken()))
    loop.call_later(5, lambda: happened.append("after"))
    run_until_count(loop, happened, 2)
    assert happened == ["first", "after"]


def test_a_timer_may_cancel_itself(loop: Loop) -> None:
    happened: list[str] = []

    def once() -> None:
        timer.cancel()
        happened.append("once")

    timer = loop.call_later(0, once)
    run_until_count(loop, happened, 1)


def test_a_condition_that_never_holds_ends_in_a_timeout(loop: Loop) -> None:
    happened: list[str] = []
    with pytest.raises(TimeoutError):
        loop.run_until(lambda: False, timeout_ms=5)
    # and the loop is as good as before
    loop.call_soon(lambda: happened.append("again"))
    run_until_count(loop, happened, 1)


def test_a_timer_beyond_the_timeout_does_not_go_off_before_it(loop: Loop) -> None:
    loop.call_later(50_000, raising(Broken()))
    with pytest.raises(TimeoutError):
        loop.run_until(lambda: False, timeout_ms=5)


def test_the_elapsed_time_never_goes_back(loop: Loop) -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(loop.elapsed_us())
        loop.call_soon(look)

    look()
    loop.run_until(lambda: len(seen) > 100, timeout_ms=SOON_MS)
    assert seen == sorted(seen)


# -- failures -------------------------------------------------------------------------------------


def test_a_callback_that_raises_ends_the_run_with_its_error(loop: Loop) -> None:
    happened: list[str] = []
    loop.call_soon(raising(Broken("callback")))
    loop.call_soon(lambda: happened.append("after"))
    with pytest.raises(Broken, match="callback"):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)
    # then nothing ran after it, and the next run goes on from there
    assert happened == []
    run_until_count(loop, happened, 1)


def test_of_two_failures_the_first_comes_first(loop: Loop) -> None:
    loop.call_soon(raising(Broken("one")))
    loop.call_soon(raising(Broken("two")))
    with pytest.raises(Broken, match="one"):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)
    with pytest.raises(Broken, match="two"):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)


def test_a_timer_that_raises_ends_the_run(loop: Loop) -> None:
    loop.call_later(1, raising(Broken()))
    with pytest.raises(Broken):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)


def test_a_condition_that_raises_ends_the_run(loop: Loop) -> None:
    happened: list[str] = []

    def condition() -> bool:
        if happened:
            raise Broken
        return False

    loop.call_soon(lambda: happened.append("now"))
    with pytest.raises(Broken):
        loop.run_until(condition, timeout_ms=SOON_MS)


def test_an_interrupt_ends_the_run_as_it_is(loop: Loop) -> None:
    loop.call_soon(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)


def test_what_on_done_raises_ends_the_run(loop: Loop) -> None:
    loop.lane("disk").submit(lambda: 1, raising(Broken()))
    with pytest.raises(Broken):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)


def test_a_step_that_ends_the_program_ends_the_run(loop: Loop) -> None:
    loop.lane("disk").submit(raising(SystemExit(3)), raising(Broken()))
    with pytest.raises(SystemExit):
        loop.run_until(lambda: False, timeout_ms=SOON_MS)


# -- lanes ----------------------------------------------------------------------------------------


def test_steps_of_one_lane_and_their_outcomes_keep_their_order(loop: Loop) -> None:
    steps: list[int] = []
    outcomes: list[int] = []
    lane = loop.lane("disk")

    def step(n: int) -> Callable[[], int]:
        def run() -> int:
            steps.append(n)
            return n

        return run

    for n in range(50):
        lane.submit(step(n), lambda outcome: outcomes.append(outcome.value()))
    loop.run_until(lambda: len(outcomes) == 50, timeout_ms=SOON_MS)
    assert steps == outcomes == list(range(50))


def test_a_lane_is_known_by_its_name(loop: Loop) -> None:
    assert loop.lane("a") is loop.lane("a")
    assert loop.lane("a") is not loop.lane("b")


def test_an_error_of_a_step_is_its_outcome_and_the_lane_goes_on(loop: Loop) -> None:
    outcomes: list[Outcome[None]] = []
    lane = loop.lane("disk")
    lane.submit(raising(Broken("step")), outcomes.append)
    lane.submit(lambda: None, outcomes.append)
    loop.run_until(lambda: len(outcomes) == 2, timeout_ms=SOON_MS)
    assert isinstance(outcomes[0].error, Broken)
    with pytest.raises(Broken, match="step"):
        outcomes[0].value()
    assert outcomes[1].error is None


def test_a_step_can_be_submitted_when_the_last_one_is_done(loop: Loop) -> None:
    done: list[int] = []
    lane = loop.lane("disk")

    def next_one(outcome: Outcome[int]) -> None:
        done.append(outcome.value())
        if outcome.value() < 5:
            lane.submit(lambda: outcome.value() + 1, next_one)

    lane.submit(lambda: 1, next_one)
    loop.run_until(lambda: len(done) == 5, timeout_ms=SOON_MS)
    assert done == [1, 2, 3, 4, 5]


def test_outcomes_that_wait_behind_a_failure_keep_their_order(loop: Loop) -> None:
    # given outcomes of which every third fails
    done: list[int] = []
    lane = loop.lane("disk")

    def on_done(outcome: Outcome[int]) -> None:
        done.append(outcome.value())
        if outcome.value() % 3 == 0:
            raise Broken

    for n in range(1, 31):
        lane.submit(lambda n=n: n, on_done)  # type: ignore[misc]
    # when the loop is run again after each failure
    for _ in range(10):
        with pytest.raises(Broken):
            loop.run_until(lambda: len(done) > 30, timeout_ms=SOON_MS)
    # then nothing was lost or overtaken
    assert done == list(range(1, 31))


# -- the real one ---------------------------------------------------------------------------------


def test_a_step_runs_on_its_lane_and_its_outcome_on_the_loop(real_loop: RealLoop) -> None:
    threads: list[str] = []

    def on_done(outcome: Outcome[str]) -> None:
        threads.extend([outcome.value(), threading.current_thread().name])

    real_loop.lane("wal").submit(lambda: threading.current_thread().name, on_done)
    run_until_count(real_loop, threads, 2)
    assert threads == ["lowmark-wal", threading.current_thread().name]


def test_closing_finishes_the_steps_at_hand_and_calls_nothing() -> None:
    loop = RealLoop()
    steps: list[int] = []
    for n in range(100):
        loop.lane("disk").submit(lambda n=n: steps.append(n), raising(Broken()))  # type: ignore[misc]
    loop.call_soon(raising(Broken()))
    lane = loop.lane("disk")
    loop.close()
    loop.close()  # twice is fine
    assert steps == list(range(100))
    # and nothing can be given to it any more, to be forgotten in silence
    with pytest.raises(AssertionError, match="closed"):
        lane.submit(lambda: None, lambda _: None)
    with pytest.raises(AssertionError, match="closed"):
        loop.lane("other")


def test_other_threads_call_on_the_loop_each_in_its_order(real_loop: RealLoop) -> None:
    # given threads that call while the loop runs
    heard: list[tuple[int, int]] = []
    on: set[threading.Thread] = set()

    def call(who: int, count: int) -> None:
        on.add(threading.current_thread())
        heard.append((who, count))

    def work(who: int) -> None:
        for count in range(100):
            real_loop.call_from_thread(lambda count=count: call(who, count))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    # when the loop runs
    real_loop.run_until(lambda: len(heard) == 400, timeout_ms=SOON_MS)
    # then all were called, on the loop's thread, and nobody's calls changed places
    assert on == {threading.current_thread()}
    for who in range(4):
        assert [count for each, count in heard if each == who] == list(range(100))
    for thread in threads:
        thread.join()


def test_a_call_wakes_a_loop_that_has_nothing_to_do(real_loop: RealLoop) -> None:
    asked = threading.Event()
    caller = threading.Timer(0.01, lambda: real_loop.call_from_thread(asked.set))
    caller.start()
    real_loop.run_until(asked.is_set, timeout_ms=SOON_MS)
    caller.join()


def test_what_comes_from_other_threads_and_lanes_is_called_within_what_is_around(
    real_loop: RealLoop,
) -> None:
    # given something that goes around such calls
    heard: list[str] = []

    def around(callback: Callable[[], None]) -> None:
        heard.append("before")
        callback()
        heard.append("behind")

    real_loop.around = around
    # when a thread calls, a lane has finished a step, and the loop itself calls
    real_loop.call_from_thread(lambda: heard.append("thread"))
    real_loop.run_until(lambda: len(heard) == 3, timeout_ms=SOON_MS)
    real_loop.lane("one").submit(lambda: None, lambda _: heard.append("lane"))
    real_loop.run_until(lambda: len(heard) == 6, timeout_ms=SOON_MS)
    real_loop.call_soon(lambda: heard.append("loop"))
    real_loop.run_until(lambda: len(heard) == 7, timeout_ms=SOON_MS)
    # then it is around those from outside alone
    assert heard == ["before", "thread", "behind", "before", "lane", "behind", "loop"]


def test_a_closed_loop_hears_no_other_thread() -> None:
    loop = RealLoop()
    loop.close()
    loop.call_from_thread(raising(Broken()))


def test_what_asyncio_would_only_log_ends_the_run(real_loop: RealLoop) -> None:
    real_loop.asyncio.call_soon(raising(Broken("asyncio")))
    with pytest.raises(Broken, match="asyncio"):
        real_loop.run_until(lambda: False, timeout_ms=SOON_MS)


def test_the_real_clock_is_the_machines(real_loop: RealLoop) -> None:
    assert real_loop.wall_ms() > 1_600_000_000_000


# -- the simulated one ----------------------------------------------------------------------------


def test_simulated_time_passes_without_waiting() -> None:
    loop = SimLoop(1, start_ms=5_000)
    loop.run_for(3_600_000)
    assert loop.elapsed_us() == 3_600_000_000
    assert loop.wall_ms() == 3_605_000
    # and the wall clock can be put wrong while the elapsed time goes on
    loop.skew_ms = -10_000
    assert loop.wall_ms() == 3_595_000
    loop.run_for(0)
    assert loop.elapsed_us() == 3_600_000_000


def test_a_simulated_timeout_takes_exactly_its_time() -> None:
    loop = SimLoop(1)
    with pytest.raises(TimeoutError):
        loop.run_until(lambda: False, timeout_ms=250)
    assert loop.elapsed_us() == 250_000


def test_a_timer_at_the_very_end_of_the_timeout_still_counts() -> None:
    loop = SimLoop(1)
    happened: list[str] = []
    loop.call_later(250, lambda: happened.append("just in time"))
    loop.run_until(lambda: bool(happened), timeout_ms=250)


def test_simulated_lanes_interleave_in_more_than_one_way() -> None:
    def order(seed: int) -> str:
        loop = SimLoop(seed)
        happened: list[str] = []
        for name in "ab":
            for _ in range(3):
                loop.lane(name).submit(lambda name=name: happened.append(name), lambda _: None)  # type: ignore[misc]
        loop.run_until(lambda: len(happened) == 6)
        return "".join(happened)

    assert len({order(seed) for seed in range(40)}) > 8


def test_a_simulated_step_may_run_before_the_loop_hears_of_the_last() -> None:
    # a real thread does not wait for the loop either
    def order(seed: int) -> str:
        loop = SimLoop(seed)
        happened: list[str] = []
        lane = loop.lane("disk")
        for n in "12":
            lane.submit(
                lambda n=n: happened.append(f"step {n}"),  # type: ignore[misc]
                lambda _, n=n: happened.append(f"done {n}"),  # type: ignore[misc]
            )
        loop.run_until(lambda: len(happened) == 4)
        return ", ".join(happened)

    assert {order(seed) for seed in range(40)} == {
        "step 1, done 1, step 2, done 2",
        "step 1, step 2, done 1, done 2",
    }


def test_a_closed_simulation_has_nothing_left_to_do() -> None:
    loop = SimLoop(1)
    loop.call_soon(raising(Broken()))
    loop.close()
    assert not loop.turn()


def test_ctrl_c_while_something_is_handed_over_delays_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a caller that was interrupted while it handed something to the loop
    loop = RealLoop()
    try:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(loop.asyncio, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loop.call_from_thread(lambda: None)
        # when another one does so
        called: list[str] = []
        loop.call_from_thread(lambda: called.append("second"))
        # then that is called, in its own turn
        loop.run_until(lambda: bool(called), timeout_ms=5_000)
        assert called == ["second"]
    finally:
        loop.close()
