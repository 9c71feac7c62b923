"""What all that have a part in one run know of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lowmark.backend.errors import Cancelled
from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.catalog import Table
from lowmark.compaction.records import Records
from lowmark.errors import Rejected
from lowmark.ledger.manifest import run_folder
from lowmark.log import files
from lowmark.runtime.store import Store

if TYPE_CHECKING:
    from lowmark.ledger import ReadWay

# How a run is ended before its end.
#
# Each run has one token. A call in this process cancels it; so does closing the database, a
# progress callback that raises, and a word of another process: a file in the run's folder, and a
# key beside its claim (see `claims`), for processes that do not have that folder. The run checks
# its token before each step; the work of a run checks it, too, where it is carried out in this
# process. On Spark the token cancels the job.

_BEGUN = "begun"
_CANCEL = "cancel"


class CancelToken:
    """Says that a run, or a piece of work, shall end. From any thread, and as often as you like."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._asked = threading.Event()
        self._calls: list[Callable[[], None]] = []
        self.interrupted = False
        """Whether the process ends, and the run stays to be resumed; or another one has it."""
        self.taken_over = False
        """Whether another process has it: what it holds is that one's."""
        self._why = "was cancelled"

    @property
    def cancelled(self) -> bool:
        """Whether it shall end."""
        return self._asked.is_set()

    def cancel(self) -> None:
        """End it, and what it has begun elsewhere."""
        self._asked.set()
        for call in list(self._calls):
            call()

    def interrupt(self) -> None:
        """End it, because the process ends."""
        self.interrupted = True
        self.cancel()

    def take_over(self, by: str) -> None:
        """End it here, because another process goes on with it, or in its place."""
        self.interrupted = self.taken_over = True
        self._why = f"was taken over by {by}"
        self.cancel()

    def check(self) -> None:
        """Raise if it shall end."""
        if self._asked.is_set():
            raise Cancelled(f"{self._what} {self._why}")

    def wait(self, seconds: float) -> None:
        """Let time pass; raises as soon as it shall end."""
        self._asked.wait(seconds)
        self.check()

    @contextlib.contextmanager
    def calls(self, end: Callable[[], None]) -> Iterator[None]:
        """Meanwhile, cancelling calls a function, too: each time that it is asked for."""
        self._calls.append(end)
        try:
            yield
        finally:
            self._calls.remove(end)


def runs_begun(data: str | os.PathLike[str], *, location: str = "") -> list[str]:
    """Runs that have begun and are not over, as far as files tell: one whose process was killed is
    among them, until it is resumed or cancelled.
    """
    return sorted({folder.rpartition("/")[2] for _, folder in _begun(data, location)})


def cancel_path(table: int, run: str) -> str:
    """The file that asks a run to end."""
    return f"{run_folder(table, run)}/{_CANCEL}"


def leave_word(store: Store, folder: str) -> str:
    """Ask the run of this folder to end, wherever it goes on; gives the file that says so."""
    path = f"{folder}/{_CANCEL}"
    store.hint(path, b"")
    return store.url(path)


def ask_to_cancel(data: str | os.PathLike[str], run: str, *, location: str = "") -> str:
    """Leave a word for a run that goes on in another process; gives where.

    `location` is where ledgers are, if they may be somewhere else than in the data directory.
    """
    for store, folder in _begun(data, location):
        if folder.rpartition("/")[2] == run:
            return leave_word(store, folder)
    others = runs_begun(data, location=location)
    raise Rejected(
        f"no run {run} goes on in another process that has {os.fspath(data)} open",
        detail="Runs that are over are known only to a process that has the database open.",
        hint=f"There is {' and '.join(others)}."
        if others
        else "See whether the name is right, and whether the run has ended meanwhile.",
    )


def _begun(data: str | os.PathLike[str], location: str) -> Iterator[tuple[Store, str]]:
    """The folders of runs that have begun, and where they are."""
    usual = os.path.join(os.path.abspath(os.fspath(data)), files.LEDGERS)
    for place in dict.fromkeys([location or usual, usual]):
        store = Store(place)
        for one in store.files(""):
            folder, _, name = one.path.rpartition("/")
            if name == _BEGUN and "/runs/" in folder:
                yield store, folder


# What a caller asks of a run, and what it is told while the run goes on.

_TASK_BYTES = 1 << 30
LEASE_MS = 20_000
LEASE_MS_LEAST = 1_000
"""A shorter lease would be lost by a node's short pause."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: never less than it was told before, and all of it in the end."""

    step: str
    """`compacting`, or `done`."""
    bytes_done: int
    bytes_total: int
    partitions_done: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run is to be made."""

    verify: bool = False
    trim: bool = True
    rewrite: bool = False
    """Write every file anew, though nothing may be new."""
    read: ReadWay | None = None
    """How tasks read backlogs; None: `auto`, or as before if the run is resumed."""
    read_rate: int | None = None
    """Bytes a second; 0: no limit; None: no limit, or as before if the run is resumed."""
    write_rate: int | None = None
    memory_bytes: int = _TASK_BYTES
    trigger: str = "by hand"
    engine: Literal["", "spark", "local"] = ""
    where: str = ""
    progress: Callable[[Progress], None] | None = None
    step: Callable[[str], None] = field(default=lambda name: None)
    """Called before every step, with its name."""
    lease_ms: int = LEASE_MS
    """For this long the claim of the run lasts when its process is gone."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run, or one look at the ledgers of a table."""

    backend: Backend
    ledgers: Ledgers
    records: Records
    table: Table
    partitions: tuple[int, ...]
    options: RunOptions
    run: str
    """Its name."""
    token: CancelToken
    """Ends it."""

    @property
    def store(self) -> Store:
        """Where its files are."""
        return self.ledgers.store

    def step(self, name: str) -> None:
        """Tell of a step before it is made; raises if the run shall end."""
        self.token.check()
        self.options.step(name)

    def now_ms(self) -> int:
        """The wall clock of the database."""
        return self.backend.now().wall_ms
