"""Where the work of a run is carried out: on Spark, or right here. And the part of it that runs
there.

A runner takes packs of work, one for each task, and gives the answers. It knows nothing of what the
work is; Spark's is in `lowmark.spark`.
"""

from __future__ import annotations

import importlib
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args

from lowmark.compaction.context import CancelToken
from lowmark.compaction.tail_source import source_of
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected
from lowmark.fault import encode_fault
from lowmark.ledger import ReadWay, RunRecord, Source, Work, carry_out
from lowmark.runtime import DiskFull

# Several things at the same time, each on a thread: for what mostly waits for the disk.
#
# Plain threads, not a pool of `concurrent.futures`: that refuses work as soon as the main thread
# has ended, while a thread of the user's, which the interpreter waits for, may still be in a run.

T = TypeVar("T")
U = TypeVar("U")


def together(
    function: Callable[[T], U],
    items: Sequence[T],
    *,
    most: int,
    name: str,
    failed: Callable[[], object] = lambda: None,
) -> list[U]:
    """Call a function on all, on this thread and on others, `most` at once; gives the answers in
    order. Where no more threads can be started, those that there are do it all.

    When all have ended, the first error is raised. `failed` is called at once, on whatever thread,
    and may make the others end early. What ends the process, Ctrl-C too, lets none begin any more,
    and goes before other errors.
    """
    todo = deque(enumerate(items))
    answers: dict[int, U] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                at, one = todo.popleft()
            except IndexError:
                return
            try:
                answers[at] = function(one)
            except BaseException as error:
                note(error)

    def note(error: BaseException) -> None:
        if isinstance(error, Exception):
            errors.append(error)
        else:
            errors.insert(0, error)
            todo.clear()
        failed()

    threads: list[threading.Thread] = []
    try:
        for number in range(1, min(len(items), most)):
            run = copy_context().run
            thread = threading.Thread(target=run, args=(work,), name=f"{name} {number}")
            try:
                thread.start()
            except RuntimeError:  # the system has no more of them, or the interpreter ends
                break
            threads.append(thread)
        work()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C between two items, or while the others are waited for
        note(error)
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [answers[at] for at in range(len(items))]


Engine: TypeAlias = Literal["auto", "spark", "local"]
"""What carries the work of a run out: Spark, this process, or Spark where it is installed and else
this process."""
_THEIRS = "your Spark session"
_HERE = "here"
"""What was noted of runs in a process before engines had names."""
_SOMEWHERE = "Spark"
"""And of runs on Spark that were made by themselves: no master has that name."""


class Runner(Protocol):
    """Carries work out."""

    @property
    def slots(self) -> int:
        """This many tasks run at once."""

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """Call a function on every piece of every pack; gives all answers, in order."""

    @property
    def busy(self) -> bool:
        """Whether something runs."""

    def cancel(self) -> None:
        """End what runs; the caller that waits for it gets `Cancelled`. From any thread."""


_token: ContextVar[CancelToken | None] = ContextVar("token", default=None)
"""Of the work that is carried out in this context."""


class LocalRunner:
    """In this process: no Java, no start, one core. One piece after another, but for small ones:
    what they take is mostly waiting for the disk, and several can wait for the same sync.
    """

    slots = 1
    small_slots = 8
    """If all pieces are small."""

    def __init__(self) -> None:
        self._token = CancelToken("the run")
        self.busy = False

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """See `Runner`."""
        del label
        before, self.busy = _token.set(self._token), True
        try:
            if len(packs) == 1:
                return [function(piece) for piece in packs[0]]
            answers = together(
                lambda pack: list(map(function, pack)),
                packs,
                most=len(packs),
                name="lowmark work",
                failed=self._token.cancel,  # the others end as soon as they look
            )
            return [answer for pack in answers for answer in pack]
        finally:
            _token.reset(before)
            self.busy = False

    def cancel(self) -> None:
        """See `Runner`."""
        self._token.cancel()


class OwnSpark:
    """A Spark session that this process has opened for its runs: it is slow to start, so it stays
    for the next one. There is one at a time, as Spark has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: tuple[str, dict[str, str]] = "", {}
        self._session: Any = None
        self._given: weakref.WeakSet[Runner] = weakref.WeakSet()
        """Runners on that session, one for each run."""

    def get(self, master: str, config: Mapping[str, str] | None = None) -> Runner:
        """A runner for one run on that master, with the session that is there, if it still answers
        and was opened with these settings.
        """
        asked = master, dict(config or {})
        with self._lock:
            if self._session is not None:
                if not _answers(_spark().SparkRunner(self._session)):
                    self._close()
                elif asked != self._asked:
                    self._check_free()
                    self._close()
            if self._session is None:
                self._session = _spark().open_session(master, config=asked[1])
                self._asked = asked
            runner: Runner = _spark().SparkRunner(self._session)
            self._given.add(runner)
            return runner

    def _check_free(self) -> None:
        if any(runner.busy for runner in self._given):
            raise Conflict(
                f"another run is using {self._asked[0]}, and a process has one Spark at a time",
                hint="Name the same master with the same settings, or wait until it has ended.",
            )

    def finish(self) -> None:
        """The database is about to be closed."""
        with self._lock:
            if self._session is not None:
                self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        _spark().close_session(session)


def _spark() -> Any:
    """Only when it is asked for: importing it names a Python for Spark's sessions."""
    return importlib.import_module("lowmark.spark")


def _answers(runner: Runner) -> bool:
    try:
        return runner.slots > 0
    except LowmarkError:
        return False


def why_no_spark() -> str:
    """Why nothing can be carried out on Spark here; empty if it can. Nothing is started."""
    return str(_spark().why_not())


class Runners:
    """Makes the runner that was asked for, when it is needed: in this process, on a Spark session
    of the caller's, or on one of our own.
    """

    def __init__(
        self,
        own: OwnSpark,
        *,
        session: object = None,
        master: str | None = None,
        config: Mapping[str, str] | None = None,
        engine: Engine = "auto",
    ) -> None:
        if isinstance(session, str) and master is None:
            session, master = None, session  # as a database is opened with either, too
        _check_place(session, master, config, engine)
        self._own = own
        self._session = session
        self._master = master or "local[*]"
        self._config = config
        self.engine, self.where = self._chosen(engine, named=bool(session or master or config))

    def _chosen(self, engine: Engine, *, named: bool) -> tuple[Literal["spark", "local"], str]:
        """What carries the work out, and where that is, in words."""
        if engine == "auto" and not named:
            missing = why_no_spark()
            if missing:
                return "local", f"this process: {missing}"
        if engine == "local":
            return "local", "this process"
        return "spark", _THEIRS if self._session is not None else self._master

    def get(self) -> Runner:
        """A runner for one run."""
        if self.engine == "local":
            return LocalRunner()
        if self._session is not None:
            return _on_session(self._session)
        return self._own.get(self._master, self._config)


def _check_place(
    session: object, master: str | None, config: Mapping[str, str] | None, engine: Engine
) -> None:
    if engine not in get_args(Engine) or master == _HERE:
        wrong = engine if engine not in get_args(Engine) else _HERE
        words = " 'local' is what was called 'here'." if wrong == _HERE else ""
        raise Rejected(
            f"engine can't be {wrong!r}",
            hint=f"It is 'spark', 'local' for this process, or 'auto' for either.{words}",
        )
    if session is not None and master is not None:
        raise Rejected("spark and master are both given", hint="Leave one of them out.")
    if engine == "local" and (session is not None or master is not None or config):
        raise Rejected(
            "engine='local' runs without Spark, and a setting of Spark is given",
            hint="Leave engine out, or leave spark, master and spark_config out.",
        )
    if session is not None and not hasattr(session, "sparkContext"):
        raise Rejected(
            f"{session!r} is not a Spark session",
            hint="Give a SparkSession, or the name of a master such as local[2].",
        )
    if config and session is not None:
        raise Rejected(
            "spark_config is for a session that is opened here",
            hint="Give a master, or leave it out: a session of yours has its own settings.",
        )


def read_way(read: str | None) -> ReadWay | None:
    """How tasks shall read backlogs, if that was said; refused, if it is no such way."""
    for known in get_args(ReadWay):
        if read == known:
            way: ReadWay = known
            return way
    if read is None:
        return None
    raise Rejected(
        f"read can't be {read!r}",
        hint="It is 'segments', 'flight' for rows from a server, or 'auto' for either.",
    )


def _on_session(session: Any) -> Runner:
    runner: Runner = _spark().SparkRunner(session)
    return runner


def work_off(data: bytes) -> bytes:
    """One partition's part of a run, in whatever process this is.

    Damage is an answer, too (`decode_fault` reads it), and so is a full disk: neither must keep
    other partitions from being compacted, which may free space.
    """
    try:
        return carry_out(data, _ThisProcess())
    except (Corrupt, DiskFull) as damage:
        return encode_fault(damage)


class _ThisProcess:
    """See `lowmark.ledger.TaskContext`."""

    def now_s(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        token = _token.get()
        if token is None:
            time.sleep(seconds)
        else:
            token.wait(seconds)

    def draw(self) -> str:
        return secrets.token_hex(4)

    def source(self, work: Work) -> tuple[Source, str]:
        return source_of(work)

    def check(self) -> None:
        token = _token.get()
        if token is not None:
            token.check()


def as_before(own: OwnSpark, record: RunRecord) -> Runners:
    """For a run that is resumed, and of which nothing else was said. A session of the caller's is
    not there any more: one of our own takes its place.
    """
    local = record.engine == "local" or record.where == _HERE
    if local:
        return Runners(own, engine="local")
    theirs = record.where in {"", _THEIRS, _SOMEWHERE}
    return Runners(own, master=None if theirs else record.where, engine="spark")
