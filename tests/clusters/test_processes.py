"""Real children: they answer, die, are killed, and never stay behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusters.processes import (
    MESSAGE_BYTES_MAX,
    Child,
    ChildDied,
    Children,
    NotInTime,
    _Lines,
)
from eventually import eventually
from lowmark.errors import InvariantBroken

TESTS = Path(__file__).parents[1]

A_CHILD = """
import select, signal, subprocess, sys
from clusters.processes import Parent

parent = Parent()
match sys.argv[1]:
    case "echo":
        print("printed by a child")
        for message in parent.messages(object):
            parent.send(message)
    case "echo-from-a-loop":
        while True:
            select.select([parent], [], [])
            for message in parent.arrived(object):
                parent.send(message)
    case "last-words":
        parent.send("farewell")
        sys.exit("it broke")
    case "fail-at-the-end":
        list(parent.messages(object))
        sys.exit("it broke late")
    case "deaf":
        parent.send(0)
        signal.pause()
    case "mother":
        parent.send(subprocess.Popen(["/bin/sleep", "600"]).pid)
        list(parent.messages(object))
"""

A_PARENT = """
import os, signal, sys
from pathlib import Path
from clusters.processes import Children

with Children(Path(sys.argv[1])) as children:
    child = children.start("a_child", "deaf", name="deaf", env=os.environ)
    child.receive(int)
    print(child.pid, flush=True)
    signal.pause()
"""

Start = Callable[[str], Child]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "a_child.py").write_text(A_CHILD)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{TESTS}"}


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as children:
        yield children


@pytest.fixture
def start(children: Children, env: dict[str, str]) -> Start:
    return lambda what: children.start("a_child", what, name=what, env=env)


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one whose new parent has yet to reap it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def is_reaped(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("way", ["echo", "echo-from-a-loop"])
def test_a_child_answers_until_it_is_let_go(start: Start, way: str) -> None:
    # given a child
    child = start(way)
    # when it is told things, one by one and several at once
    assert child.ask({"how": "are you"}, dict[str, str]) == {"how": "are you"}
    child.send([1, 2])
    child.send("three")
    # then it answers in order, and ends in peace when nobody speaks any more
    assert child.receive(list[int]) == [1, 2]
    assert child.receive(str) == "three"
    child.finish()
    assert is_reaped(child.pid)


def test_what_a_child_prints_is_no_answer(start: Start) -> None:
    child = start("echo")
    assert child.ask("hello", str) == "hello"
    child.finish()
    assert child.said() == "printed by a child"


def test_a_message_may_be_as_long_as_the_limit_and_no_longer(start: Start) -> None:
    child = start("echo")
    longest = "x" * (MESSAGE_BYTES_MAX - 2)  # and two quotes
    assert child.ask(longest, str) == longest
    with pytest.raises(InvariantBroken):
        child.send(longest + "x")


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    lines = _Lines()
    lines.feed(b"x" * MESSAGE_BYTES_MAX)
    with pytest.raises(InvariantBroken):
        lines.feed(b"x")


def test_lines_come_whole_however_they_are_cut() -> None:
    lines = _Lines()
    for byte in b"one\n\ntwo\nthr":
        lines.feed(bytes([byte]))
    assert [lines.next() for _ in range(4)] == [b"one", b"", b"two", None]


def test_an_answer_of_another_kind_is_a_bug(start: Start) -> None:
    with pytest.raises(InvariantBroken, match="echo"):
        start("echo").ask("a word", int)


def test_a_death_comes_with_the_last_words(start: Start, children: Children) -> None:
    # given a child that says something and breaks
    child = start("last-words")
    # then what it said is heard first
    assert child.receive(str) == "farewell"
    # and then why it died, by whoever asks
    with pytest.raises(ChildDied, match="it broke") as died:
        child.receive(str)
    assert died.value.code == 1
    with pytest.raises(ChildDied, match="last-words"):
        children.check()
    with pytest.raises(ChildDied):
        child.send("anybody there?")


def test_who_waits_for_something_else_hears_of_a_death(start: Start, children: Children) -> None:
    start("last-words")
    with pytest.raises(ChildDied):
        children.eventually(lambda: False, what="never")


def test_waiting_has_a_deadline(children: Children, start: Start) -> None:
    child = start("deaf")
    child.receive(int)
    with pytest.raises(NotInTime, match="pigs fly"):
        children.eventually(lambda: False, what="pigs fly", deadline_s=0.02)
    with pytest.raises(NotInTime, match="deaf"):
        child.receive(str, deadline_s=0.02)
    with pytest.raises(NotInTime, match="deaf"):
        child.send("x" * 1_000_000, deadline_s=0.02)  # more than a pipe holds


def test_a_child_that_does_not_finish_is_killed(start: Start) -> None:
    child = start("deaf")
    child.receive(int)
    with pytest.raises(NotInTime):
        child.finish(deadline_s=0.02)
    assert is_reaped(child.pid)


def test_a_child_that_fails_at_its_end_has_died(start: Start) -> None:
    child = start("fail-at-the-end")
    with pytest.raises(ChildDied, match="it broke late"):
        child.finish()


def test_a_killed_child_is_gone_and_may_come_back(start: Start, children: Children) -> None:
    # given a child that is killed, twice for good measure
    first = start("deaf")
    first.receive(int)
    first.kill()
    first.kill()
    # then it is gone, nobody is surprised, nobody talks to it, and its name is free
    assert is_reaped(first.pid)
    children.check()
    with pytest.raises(InvariantBroken):
        first.send("nobody hears this")
    second = start("deaf")
    assert second.alive
    with pytest.raises(InvariantBroken):
        start("deaf")


def killed(child: Child) -> None:
    child.kill()


def killed_by_somebody_else(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildDied, match="SIGKILL"):
        child.receive(str)


def finished(child: Child) -> None:
    child.finish()


@pytest.mark.parametrize("end", [killed, killed_by_somebody_else, finished])
def test_a_child_takes_its_own_along(start: Start, end: Callable[[Child], None]) -> None:
    # given a child with a child of its own
    mother = start("mother")
    grandchild = mother.receive(int)
    assert not is_gone(grandchild)
    # when it ends, in whatever way
    end(mother)
    # then both are gone
    assert is_reaped(mother.pid)
    eventually(lambda: is_gone(grandchild))


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_nobody_stays_behind_when_we_fail(
    tmp_path: Path, env: dict[str, str], failure: type[BaseException]
) -> None:
    started: list[Child] = []

    def interrupted() -> None:
        with Children(tmp_path) as children:
            started.append(children.start("a_child", "deaf", name="one", env=env))
            started.append(children.start("a_child", "deaf", name="two", env=env))
            started[0].receive(int)  # the other one is still on its way
            raise failure

    with pytest.raises(failure):
        interrupted()
    assert len(started) == 2
    assert all(is_reaped(child.pid) for child in started)


def test_nobody_stays_behind_when_we_are_killed(tmp_path: Path, env: dict[str, str]) -> None:
    # given a process with a child that listens to nobody
    with subprocess.Popen(
        [sys.executable, "-c", A_PARENT, str(tmp_path)], env=env, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        # when the process is killed, so that it can't clean up
        parent.kill()
    # then the kernel does
    eventually(lambda: is_gone(child))


def test_a_program_that_is_not_there_has_died(children: Children) -> None:
    children.start_program(["/nowhere/program"], name="nobody")
    with pytest.raises(ChildDied, match="No such file"):
        children.eventually(lambda: False, what="never")


def test_a_program_s_work_is_counted(children: Children) -> None:
    busy = children.start_program([sys.executable, "-c", "while True: pass"], name="busy")
    children.eventually(lambda: busy.cpu_seconds() > 0.05, what="some work")


def test_a_second_life_s_words_are_not_mixed_with_the_first_s(children: Children) -> None:
    for word in ("first", "second"):
        program = children.start_program([sys.executable, "-c", f"exit({word!r})"], name="talker")
        eventually(lambda program=program: not program.alive)  # type: ignore[misc]
        assert program.said() == word
