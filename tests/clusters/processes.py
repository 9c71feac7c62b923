"""Child processes: started, talked to, killed with -9, and always reaped.

A child of ours is `python -m <module>`. It hears and says JSON lines, over pipes that are its
standard input and output: `Child` is the end that starts it, `Parent` the end inside it. A program
of somebody else's (`Program`) is started and ended in the same way, but nobody talks to it.

How nothing is left behind
    1. Leaving the `with` of `Children` kills and reaps all of them, whatever happened inside.
    2. Children have sessions of their own, so Ctrl-C reaches only us, and we end them as in 1.
    3. If we are killed ourselves, the kernel kills them. To the kernel a child's parent is the
       *thread* that started it, so start children from the main thread. What a child started
       itself ends with it in every case but this one.
    4. What a child says on stderr goes to a file, and its end is shown when the child dies.
    5. Whoever waits for a child has a deadline, and hears at once when it dies instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from lowmark.errors import InvariantBroken, Unavailable, invariant

T = TypeVar("T")

DEADLINE_S = 30.0
MESSAGE_BYTES_MAX = 16 << 20
READ_BYTES = 64 << 10
SHOWN_BYTES = 2_000

# Run first in every child. If we died before it could ask, it has another parent by now.
_GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(9))  # PR_SET_PDEATHSIG, SIGKILL; it outlasts exec
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class ChildDied(Unavailable):
    """A child is gone that nobody had killed."""

    def __init__(self, name: str, code: int, said: str) -> None:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        super().__init__(f"the child {name!r} {how}", detail=f"It said: {said or 'nothing'}")
        self.name = name
        self.code = code


class NotInTime(Unavailable):
    """What was waited for did not come."""

    def __init__(self, what: str, deadline_s: float, said: str = "") -> None:
        super().__init__(
            f"{what}: not within {deadline_s:g} seconds", detail=f"It said: {said}" if said else ""
        )


class Children:
    """All children of one measurement. Their stderr is kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def start(
        self,
        module: str,
        *args: str,
        name: str,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        within: Callable[[Sequence[str]], Sequence[str]] = list,
    ) -> Child:
        """Start `python -m module`, which makes itself a `Parent` to talk to; as the command that
        `within` makes of it.
        """
        env = own_path() if env is None else env
        return self._add(Child, within([python, "-m", module, *args]), name=name, env=env)

    def start_program(
        self, command: Sequence[str], *, name: str, env: Mapping[str, str] | None = None
    ) -> Program:
        """Start another program; the command's first word is a path."""
        return self._add(Program, command, name=name, env=env)

    def kill_all(self) -> None:
        """Kill and reap all of them: first everybody gets the signal, then we wait."""
        for child in self._all:
            child.send_signal(signal.SIGKILL)
        while self._all:
            self._all[-1].kill()
            self._all.pop()

    def check(self) -> None:
        """Raise if one has died that nobody had killed, nor asked to finish."""
        for child in self._all:
            child.check()

    def eventually(
        self, condition: Callable[[], bool], *, what: str, deadline_s: float = DEADLINE_S
    ) -> None:
        """Return as soon as the condition holds; a child that dies meanwhile is an error."""
        ends_at = time.monotonic() + deadline_s
        while not condition():
            self.check()
            if time.monotonic() > ends_at:
                raise NotInTime(what, deadline_s)
            time.sleep(0.005)

    def _add(
        self, kind: type[_P], command: Sequence[str], *, name: str, env: Mapping[str, str] | None
    ) -> _P:
        invariant(
            not any(child.name == name and child.alive for child in self._all),
            f"only one child at a time is called {name!r}",
        )
        child = kind(command, name=name, stderr=self._folder / f"{name}.stderr", env=env)
        self._all.append(child)
        return child


class Program:
    """A process that we started; what it prints goes to the file of its stderr."""

    talks = False

    def __init__(
        self, command: Sequence[str], *, name: str, stderr: Path, env: Mapping[str, str] | None
    ) -> None:
        self.name = name
        self._stderr = stderr
        self._over = False
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
        with stderr.open("ab") as said:
            self._said_from = said.tell()  # what stands before is of an earlier life
            self._process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE if self.talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.talks else said,
                stderr=said,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        # To look is not to reap: while it is not reaped, its number is nobody else's, and what it
        # left running can still be killed by it.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return not self._reaped and os.waitid(os.P_PID, self.pid, look) is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started itself."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it with -9, and reap it; a second time does nothing."""
        self._over = True
        self._reap()

    def check(self) -> None:
        """Raise if it has died, and nobody had killed it, nor asked it to finish."""
        if not self._over and not self.alive:
            raise self._died()

    def cpu_seconds(self) -> float:
        """The processor time it took so far; only while it runs."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        # The second field is the program's name, which may have spaces; user and system time are
        # the 14th and the 15th.
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def said(self) -> str:
        """The end of what it said on stderr in this life."""
        with self._stderr.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._said_from, size - SHOWN_BYTES))
            return file.read().decode(errors="replace").strip()

    @property
    def _reaped(self) -> bool:
        return self._process.returncode is not None

    def _reap(self) -> int:
        """Whatever still runs of it does no longer; how it ended."""
        self.send_signal(signal.SIGKILL)
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()  # nothing is buffered: we write to the pipe itself
        return code

    def _died(self) -> ChildDied:
        return ChildDied(self.name, self._reap(), self.said())

    def _ends_within(self, deadline_s: float) -> bool:
        ends_at = time.monotonic() + deadline_s
        while self.alive:
            if time.monotonic() > ends_at:
                return False
            time.sleep(0.005)
        return True


_P = TypeVar("_P", bound=Program)


class Child(Program):
    """A process of ours, and the pipes to talk to it."""

    talks = True

    def __init__(
        self, command: Sequence[str], *, name: str, stderr: Path, env: Mapping[str, str] | None
    ) -> None:
        super().__init__(command, name=name, stderr=stderr, env=env)
        invariant(self._process.stdin and self._process.stdout, "a child has its pipes")
        assert self._process.stdin is not None  # for the type checker
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._lines = _Lines()

    def send(self, message: object, *, deadline_s: float = DEADLINE_S) -> None:
        """Say something. It waits only if the child does not listen and the pipe is full."""
        self._can_talk()
        ends_at = time.monotonic() + deadline_s
        rest = memoryview(_encoded(message))
        while rest:
            self._wait(self._to, select.POLLOUT, ends_at, deadline_s)
            try:
                rest = rest[os.write(self._to, rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._gone(deadline_s) from None

    def receive(self, kind: type[T], *, deadline_s: float = DEADLINE_S) -> T:
        """The next thing it says; what it said before it died can still be heard."""
        self._can_talk()
        ends_at = time.monotonic() + deadline_s
        while (line := self._lines.next()) is None:
            self._wait(self._from, select.POLLIN, ends_at, deadline_s)
            got = os.read(self._from, READ_BYTES)
            if not got:
                raise self._gone(deadline_s)
            self._lines.feed(got)
        return _decoded(line, kind, who=f"the child {self.name!r}")

    def has_answer(self) -> bool:
        """Whether it has said something that nobody has heard yet, or has gone."""
        if self._lines.has_next:
            return True
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        return bool(poll.poll(0))

    def ask(self, message: object, kind: type[T], *, deadline_s: float = DEADLINE_S) -> T:
        """Say something and wait for the answer."""
        self.send(message, deadline_s=deadline_s)
        return self.receive(kind, deadline_s=deadline_s)

    def finish(self, *, deadline_s: float = DEADLINE_S) -> None:
        """Let it come to an end by itself: say no more, and wait until it has gone in peace."""
        self._can_talk()
        self._over = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        in_time = self._ends_within(deadline_s)
        code = self._reap()
        if not in_time:
            raise NotInTime(f"the end of the child {self.name!r}", deadline_s, self.said())
        if code:
            raise self._died()

    def _can_talk(self) -> None:
        invariant(not self._over, f"nobody talks to {self.name!r} after its end")
        if self._reaped:  # its death was told before; its pipes are closed
            raise self._died()

    def _wait(self, fd: int, event: int, ends_at: float, deadline_s: float) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(max(0.0, ends_at - time.monotonic()) * 1_000):
            raise NotInTime(f"a word with the child {self.name!r}", deadline_s, self.said())

    def _gone(self, deadline_s: float) -> ChildDied | NotInTime:
        """Its pipe is closed: it has ended, or will in a moment."""
        if self._ends_within(deadline_s):
            return self._died()
        return NotInTime(f"the end of the child {self.name!r}", deadline_s, self.said())


class Parent:
    """The other end, inside a child; make one before anything is printed.

    From then on standard output is the parent's alone: what anybody prints goes to stderr. When the
    parent says no more, `messages` ends and `receive` leaves by SystemExit, so that a child never
    outlives the one it works for. A child with a loop watches `fileno()` and takes `arrived`.
    """

    def __init__(self) -> None:
        self._from, self._to = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._lines = _Lines()
        self._over = False

    def fileno(self) -> int:
        """Readable when there is something to hear, or the parent says no more."""
        return self._from

    def send(self, message: object) -> None:
        """Say something."""
        rest = memoryview(_encoded(message))
        while rest:
            rest = rest[os.write(self._to, rest) :]

    def receive(self, kind: type[T]) -> T:
        """The next thing the parent says."""
        for message in self.messages(kind):
            return message
        raise SystemExit(0)

    def messages(self, kind: type[T]) -> Iterator[T]:
        """Everything that the parent says from now on, until it says no more."""
        while True:
            while (line := self._lines.next()) is None:
                if self._over:
                    return
                self._read()
            yield _decoded(line, kind, who="the parent")

    def arrived(self, kind: type[T]) -> list[T]:
        """What is there to hear now, without waiting; SystemExit if there will be no more."""
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        if not self._over and poll.poll(0):
            self._read()
        found = []
        while (line := self._lines.next()) is not None:
            found.append(_decoded(line, kind, who="the parent"))
        if self._over and not found:
            raise SystemExit(0)
        return found

    def _read(self) -> None:
        got = os.read(self._from, READ_BYTES)
        self._lines.feed(got)
        self._over = not got


def own_path() -> dict[str, str]:
    """Our environment, in which a child finds every module that we find."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class _Lines:
    """Cuts what comes out of a pipe into lines."""

    def __init__(self) -> None:
        self._whole: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def feed(self, got: bytes) -> None:
        first, *others = got.split(b"\n")
        self._begin(first)
        for other in others:
            self._whole.append(b"".join(self._begun))
            self._begun, self._begun_bytes = [], 0
            self._begin(other)

    @property
    def has_next(self) -> bool:
        return bool(self._whole)

    def next(self) -> bytes | None:
        return self._whole.popleft() if self._whole else None

    def _begin(self, part: bytes) -> None:
        self._begun.append(part)
        self._begun_bytes += len(part)
        invariant(self._begun_bytes <= MESSAGE_BYTES_MAX, "a message is not too long to be heard")


def _encoded(message: object) -> bytes:
    line = msgspec.json.encode(message)
    invariant(len(line) <= MESSAGE_BYTES_MAX, f"a message of {len(line)} bytes is not sent")
    return line + b"\n"


def _decoded(line: bytes, kind: type[T], *, who: str) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise InvariantBroken(f"{who} said {line[:200]!r}: {error}") from None
