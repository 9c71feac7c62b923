"""The real loop: asyncio's, with one thread per lane."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from lowmark.errors import invariant
from lowmark.runtime.loop import Outcome

T = TypeVar("T")
Callback = Callable[[], None]


class _RealTimer:
    def __init__(self, callback: Callback) -> None:
        self._callback: Callback | None = callback
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self._callback = None
        if self.handle is not None:
            self.handle.cancel()

    def __call__(self) -> None:
        # Asked again here: another callback may have cancelled it while it stood in the queue.
        if self._callback is not None:
            self._callback()


class _RealLane:
    def __init__(
        self, name: str, finish: Callable[[Callback], None], *, may_hang: bool = False
    ) -> None:
        self._may_hang = may_hang
        self._steps: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._finish = finish
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=f"lowmark-{name}", daemon=True)
        self._thread.start()

    def submit(self, step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        if self._stopped:
            invariant(False, "nothing is submitted to a loop that was closed")
        self._steps.put((step, on_done))

    def stop(self) -> None:
        self._stopped = True
        self._steps.put(None)
        if not self._may_hang:
            self._thread.join()

    def _work(self) -> None:
        while (item := self._steps.get()) is not None:
            step, on_done = item
            try:
                outcome = Outcome(step())
            except Exception as error:
                outcome = Outcome(None, error)
            except BaseException as failure:
                # Not the step's business to report: it ends the loop, as it would end a program.
                self._finish(_raising(failure))
                continue
            self._finish(partial(on_done, outcome))
            # Nothing may hang on to the last step's buffers while this thread waits for the next.
            del item, step, on_done, outcome


def _raising(failure: BaseException) -> Callback:
    def fail() -> None:
        raise failure

    return fail


class RealLoop:
    """Runs callbacks on the thread that calls `run_until`; close it when done."""

    def __init__(self) -> None:
        self.asyncio = asyncio.new_event_loop()
        self.asyncio.set_exception_handler(self._asyncio_failed)
        self._ready: deque[Callback] = deque()
        self._lanes: dict[str, _RealLane] = {}
        self._at_close: list[Callback] = []
        self._condition: Callable[[], bool] | None = None
        self._failure: BaseException | None = None
        self._stopping = False
        self._closed = False
        self.around: Callable[[Callback], None] | None = None
        """Calls what comes from other threads, lanes among them, and then what that gave it to do:
        so one turn does for both. `Groups.turn` is one.
        """

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def call_soon(self, callback: Callback) -> None:
        self._ready.append(callback)
        self.asyncio.call_soon(self._turn)

    def call_from_thread(self, callback: Callback) -> None:
        """As `call_soon`, from any thread; on a loop that was closed, nothing is called."""
        # In one call, with the callback in it: Ctrl-C may come between any two, and a callback
        # without a turn of its own would make each later one wait for the turn after it.
        try:
            self.asyncio.call_soon_threadsafe(self._turn, callback)
        except RuntimeError:
            return  # the loop is gone, as when the last step of a lane ends: no caller waits for it

    def call_later(self, delay_ms: float, callback: Callback) -> _RealTimer:
        timer = _RealTimer(callback)
        timer.handle = self.asyncio.call_later(delay_ms / 1000, self.call_soon, timer)
        return timer

    def lane(self, name: str, *, may_hang: bool = False) -> _RealLane:
        """`may_hang`: its steps change nothing, and `close` does not wait for the one at hand."""
        invariant(not self._closed, "nothing is submitted to a loop that was closed")
        if name not in self._lanes:
            self._lanes[name] = _RealLane(name, self.call_from_thread, may_hang=may_hang)
        return self._lanes[name]

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        if condition():
            return
        self._condition = condition
        alarm = self.asyncio.call_later(timeout_ms / 1000, self._time_out)
        try:
            self.asyncio.run_forever()
        finally:
            alarm.cancel()
            self._condition = None
            self._stopping = False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def at_close(self, callback: Callback) -> None:
        """Call back when the loop is closed, to give back what lives on it."""
        self._at_close.append(callback)

    def close(self) -> None:
        """Finish the steps at hand and give the threads back; nothing is called any more."""
        if self._closed:
            return
        self._closed = True
        for give_back in self._at_close:
            give_back()
        for lane in self._lanes.values():
            lane.stop()
        self._lanes.clear()
        self._ready.clear()
        self.asyncio.run_until_complete(self._let_go())
        self.asyncio.close()

    async def _let_go(self) -> None:
        """Give asyncio the turns it needs to close its sockets and end its tasks."""
        # A connection that was just accepted is made, cut and closed, each in a turn of its own;
        # a task that is cancelled before its first turn would drop its socket unclosed.
        for _ in range(4):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.asyncio.shutdown_default_executor()
        await asyncio.sleep(0)

    def _turn(self, callback: Callback | None = None) -> None:
        """Call the first of those that wait; a callback from another thread comes behind them.

        asyncio finishes its round after `stop`. We must not: what comes after a failure, or after
        the condition came true, waits for the next `run_until`, and keeps its place until then.
        That is why the callbacks stand in a queue of our own; each one there owns one turn.
        """
        if callback is not None:
            around = self.around
            self._ready.append(callback if around is None else partial(around, callback))
        if self._closed:
            return
        if self._stopping:
            self.asyncio.call_soon(self._turn)
            return
        try:
            self._ready.popleft()()
            done = self._condition is not None and self._condition()
        except BaseException as failure:
            self._stop(failure)
        else:
            if done:
                self._stop()

    def _stop(self, failure: BaseException | None = None) -> None:
        self._failure = failure
        self._stopping = True
        self.asyncio.stop()

    def _time_out(self) -> None:
        if not self._stopping:
            self._stop(TimeoutError("the condition did not come true in time"))

    def _asyncio_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Raise what asyncio would only have logged."""
        del loop
        failure = context.get("exception") or RuntimeError(context["message"])
        if not self._closed and not self._stopping:
            self._stop(failure)
