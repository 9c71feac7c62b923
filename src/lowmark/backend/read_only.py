"""A database that is only read: through its owner, or from the files of its directory.

Whatever would change it is refused here, before anything is sent or written. From its files it is
what was there when it was opened: a node replays them into memory (`NodeOptions.read_only`). It has
no lock. So another process may open the directory at any time, and this one hears of it only when
it looks: the lock file is written at each open and each close. What was read is sound all the same,
since files never change; one that is missing, or another than before, is no damage then, but
`DirectoryChanged`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import DirectoryChanged, ReadOnly
from lowmark.backend.operating import check_looks
from lowmark.backend.port import Sent
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import BatchRange, DatabaseInfo, Hold
from lowmark.catalog import Command, Executed, TableId
from lowmark.errors import LowmarkError, Rejected
from lowmark.group import Future
from lowmark.ledger import Tail
from lowmark.log import files
from lowmark.metastore import Condition, Operation
from lowmark.node import Settings
from lowmark.runtime import Buffer
from lowmark.runtime.store import Store
from lowmark.table import Advanced, Control, Outcome, Outgoing

T = TypeVar("T")


class ReadOnlyStore(Store):
    """The files of ledgers, to be read."""

    def __init__(self, info: DatabaseInfo) -> None:
        super().__init__(info.ledger_location, owner=info.ledger_owner)
        self._database = info.name

    def create(self, path: str, *, settled: bool = True) -> NoReturn:
        """Refused."""
        del settled
        raise ReadOnly(self._database, f"writing {path}")

    def hint(self, path: str, data: bytes) -> None:
        """Refused."""
        del data
        raise ReadOnly(self._database, f"writing {path}")

    def delete(self, path: str) -> None:
        """Refused."""
        raise ReadOnly(self._database, f"removing {path}")

    def delete_folder(self, path: str) -> None:
        """Refused."""
        raise ReadOnly(self._database, f"removing {path}")


class _FilesStore(ReadOnlyStore):
    """Of a directory that another process may open and change."""

    def __init__(self, backend: FilesBackend) -> None:
        super().__init__(backend.info)
        self._backend = backend

    @contextlib.contextmanager
    def told(self, path: str, call: str) -> Iterator[None]:
        """See `Store`."""
        with self._backend.unless_changed(), super().told(path, call):
            yield


class _TakesNothing:
    """Refuses rows."""

    def __init__(self, database: str) -> None:
        self._database = database

    def send(self, parts: Sequence[tuple[int, Outgoing]]) -> Sent:
        """Refused."""
        del parts
        raise ReadOnly(self._database, "an append")


class _Refusing:
    """Refuses all calls of the port that change something."""

    _database: str

    def execute(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> Executed:
        """Refused."""
        del commands, timeout_s
        raise ReadOnly(self._database, "a change of the catalog")

    def advance_watermark(
        self, to: int | None = None, *, timeout_s: float | None = None
    ) -> Advanced:
        """Refused."""
        del to, timeout_s
        raise ReadOnly(self._database, "a move of the low watermark")

    def appender(self, table: TableId, *, producer: bytes, epoch: int = 0) -> Any:
        """One that takes nothing: every open table has one (see `docs/design/0023`)."""
        del table, producer, epoch
        return _TakesNothing(self._database)

    def epoch_of(
        self,
        table: TableId,
        producer: bytes,
        *,
        partitions: Collection[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Refused."""
        del table, producer, partitions, timeout_s
        raise ReadOnly(self._database, "a producer with a name")

    def propose(
        self,
        table: TableId,
        commands: Mapping[int, Control],
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, Outcome]:
        """Refused."""
        del table, timeout_s
        if not wait:
            return {}  # it never raises, and there is nothing that could be let go
        one = next(iter(commands.values()), None)
        raise ReadOnly(self._database, f"the command {type(one).__name__}")

    def tail(
        self,
        table: TableId,
        partition: int,
        *,
        low: int,
        high: int,
        timeout_s: float | None = None,
    ) -> Tail:
        """Refused: it is for runs, and writes segments."""
        del table, partition, low, high, timeout_s
        raise ReadOnly(self._database, "a run of compaction")

    def write(
        self,
        operations: Sequence[Operation],
        *,
        condition: Condition | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """Refused."""
        del operations, condition, timeout_s
        raise ReadOnly(self._database, "a write to the metastore")


class RemoteReader(_Refusing, RemoteBackend):
    """A database through its owner, to be read."""

    def __init__(self, address: str, **named: Any) -> None:
        super().__init__(address, **named)
        self._database = self.info.name
        self.store = ReadOnlyStore(self.info)

    def operate(self, action: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """See `Backend`."""
        check_looks(self._database, action, body)
        return super().operate(action, body, timeout_s=timeout_s)


class FilesBackend(_Refusing, Embedded):
    """A directory as its files have it, to be read. See above.

    `has_owner` is asked once its last use was noted. One that is used while it is being opened is
    not opened (`DirectoryChanged`).
    """

    def __init__(self, data: str, settings: Settings, *, has_owner: Callable[[], bool]) -> None:
        self._database = data
        self._lock_file = os.path.join(os.path.abspath(data), files.LOCK)
        self._opened = _last_use(self._lock_file)
        if has_owner():
            raise DirectoryChanged(data)
        with self.unless_changed():
            super().__init__(data, settings, read_only=True)
        self.store = _FilesStore(self)
        if self.changed:
            self.abandon()
            raise DirectoryChanged(data)

    def _claim_ledgers(self) -> None:
        """See `Embedded`. It writes nothing, so it claims nothing."""

    @property
    def changed(self) -> bool:
        """Whether a process has opened the directory to change it, since this one did to read."""
        return _last_use(self._lock_file) != self._opened

    @contextlib.contextmanager
    def unless_changed(self) -> Iterator[None]:
        """Say why something is not as it was, if that is why."""
        try:
            yield
        except LowmarkError as error:
            if isinstance(error, Rejected | DirectoryChanged) or not self.changed:
                raise
            raise DirectoryChanged(self._database, error) from error

    def ask(self, function: Callable[[], Future[T]], *, timeout_s: float | None = None) -> T:
        """See `NodeThread`."""
        with self.unless_changed():
            return super().ask(function, timeout_s=timeout_s)

    def wait(self, hold: Hold, timeout_s: float, *, seen: int = 0) -> int:
        """See `Backend`. Nothing comes here: but there may be a process by now that appends."""
        with self.unless_changed():
            now = super().wait(hold, timeout_s, seen=seen)
        if self.changed:
            raise DirectoryChanged(self._database)
        return now

    def batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None = None,
    ) -> Iterator[list[Buffer]]:
        """See `Backend`."""
        with self.unless_changed():
            yield from super().batches(table, partition, ranges, held=held, timeout_s=timeout_s)

    def operate(self, action: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """See `Backend`."""
        check_looks(self._database, action, body)
        return super().operate(action, body, timeout_s=timeout_s)


def _last_use(lock_file: str) -> tuple[int, int, int] | None:
    """What differs once a process has opened the directory, or has closed it again."""
    try:
        found = os.stat(lock_file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
