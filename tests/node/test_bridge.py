from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lowmark.errors import InvariantBroken, Rejected, invariant
from lowmark.group import Future
from lowmark.node.bridge import Bridge, NodeClosing, NodeSilent
from lowmark.runtime import RealLoop


class Loop:
    """A loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = RealLoop()
        self.failure: BaseException | None = None
        self.over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_until(lambda: self.over, timeout_ms=60_000)
        except BaseException as failure:
            self.failure = failure

    def end(self) -> None:
        self.over = True
        self.loop.call_from_thread(lambda: None)
        self._thread.join()

    def close(self) -> None:
        self.end()
        self.loop.close()


@pytest.fixture
def running() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


def test_what_is_asked_runs_on_the_loop_and_comes_back(running: Loop) -> None:
    bridge = Bridge(running.loop)

    def later() -> Future[threading.Thread]:
        future: Future[threading.Thread] = Future()
        running.loop.call_soon(lambda: future.resolve(threading.current_thread()))
        return future

    assert bridge.ask(later, timeout_s=10) is not threading.current_thread()
    assert bridge.ask_now(lambda: 7, timeout_s=10) == 7


def test_an_error_comes_back_as_itself_and_the_loop_goes_on(running: Loop) -> None:
    bridge = Bridge(running.loop)
    with pytest.raises(Rejected, match="no"):
        bridge.ask(lambda: Future.failed(Rejected("no")), timeout_s=10)

    def bug() -> Future[int]:
        return Future.of(1 // 0)

    with pytest.raises(ZeroDivisionError):
        bridge.ask(bug, timeout_s=10)
    assert bridge.ask_now(lambda: 7, timeout_s=10) == 7


def test_a_broken_invariant_ends_the_loop_too(running: Loop) -> None:
    bridge = Bridge(running.loop)
    with pytest.raises(InvariantBroken):
        bridge.ask_now(lambda: invariant(False, "never"), timeout_s=10)
    running.end()
    assert isinstance(running.failure, InvariantBroken)


def test_who_gets_no_answer_is_told_so(running: Loop) -> None:
    never: Future[int] = Future()
    with pytest.raises(NodeSilent):
        Bridge(running.loop).ask(lambda: never, timeout_s=0.01)


def test_closing_lets_nobody_wait(running: Loop) -> None:
    # given somebody who waits for what never comes
    bridge = Bridge(running.loop)
    never: Future[int] = Future()
    asked = threading.Event()
    errors: list[BaseException] = []

    def ask() -> Future[int]:
        asked.set()
        return never

    def wait() -> None:
        try:
            bridge.ask(ask, timeout_s=60)
        except NodeClosing as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert asked.wait(10)
    # when the bridge is closed
    bridge.close()
    # then he is told, and nobody else is let on it; a late answer does no harm
    waiting.join(10)
    assert len(errors) == 1
    with pytest.raises(NodeClosing):
        bridge.ask_now(lambda: 7, timeout_s=10)
    never.resolve(3)
