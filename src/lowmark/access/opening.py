"""Open a directory, or connect to a server: what gives a `Database`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from lowmark.access.directory import Directory, NoOwner, is_strangers, unreachable
from lowmark.backend.errors import DirectoryChanged, ProtocolRefused
from lowmark.backend.port import Backend
from lowmark.backend.remote import RemoteBackend
from lowmark.client import Database
from lowmark.client.database import history_ms
from lowmark.client.edges import raise_by_name
from lowmark.errors import Rejected, Unavailable
from lowmark.faces import deferred
from lowmark.log import files
from lowmark.node import (
    NodeUnreachable,
    NotADatabase,
    Settings,
    check_directory,
    data_path,
    load_settings,
    make_directory,
)
from lowmark.node.owner import Owner
from lowmark.node.settings import chosen
from lowmark.runtime import DiskFull, Locked, RealDisk
from lowmark.runtime.store import place_of_location, without_credentials

if TYPE_CHECKING:
    from lowmark.access.owning import serve_others
    from lowmark.backend.embedded import Embedded
    from lowmark.backend.read_only import FilesBackend, RemoteReader
    from lowmark.compaction.runner import Engine
else:  # a guest has neither a node nor an endpoint
    (serve_others,) = deferred("lowmark.access.owning", "serve_others")
    (Embedded,) = deferred("lowmark.backend.embedded", "Embedded")
    FilesBackend, RemoteReader = deferred(
        "lowmark.backend.read_only", "FilesBackend", "RemoteReader"
    )

START_S = 60.0
"""How long an owner may take to start."""
HELLO_S = 10.0
"""How long one may take to answer."""
_AWAY_S = 5.0
"""How long a reader waits for the next owner when one is gone."""
_ATTEMPTS = 10
_SHOWN_MAX = 3
_MIB = 1 << 20
_START_BYTES = 4 * _MIB
"""What a start may take beside as much as its WAL files have, with a margin."""


def open_database(
    data: str | os.PathLike[str],
    *,
    create: bool = True,
    owner: bool = False,
    read_only: bool = False,
    settings: Settings | None = None,
    watermark_availability_ms: int | None = None,
    spark: object = None,
    engine: Engine | None = None,
) -> Database:
    """Open a directory, or make a new database in it. Nothing else has to be started.

    `data` is a path of this machine; `~` is expanded. A path that holds other files, or is a file,
    is refused (`NotADatabase`); so is the address of a server or of an object store. With
    `create=False` nothing is made: the database must be there.

    Any number of processes may have a directory open at the same time. The first one owns it; the
    others use it through that one, by themselves. When the owner closes or dies, another process
    takes its place at its next call. `Locked` means that the owner can't be reached: it is on
    another machine, of another user or release, or suspended. With `owner=True` this process owns
    the directory, or gets `Locked`. Close the database when done, best by `with`; at exit it is
    closed by itself.

    With `read_only=True` this process never owns the directory, and never writes to it: not a byte
    of it changes, and it may be one that can't be written to. If a process has it open, it is read
    through that one; else it is what was on disk when it was opened, and `DirectoryChanged` says
    that a process has opened it since and what is needed is gone. What would change the database
    is refused (`ReadOnly`).

    Settings come from `lowmark.toml` and the environment, unless given. The owner's count: settings
    that are given, and are not the owner's, are refused. How long history stays exact
    (`watermark_availability_ms`, ten minutes if not given) is said when the database is made;
    `Database.set_history` alters it, and a table may keep its own for longer (option `history`).

    With `engine` or `spark`, tables with the option `compaction=auto` are compacted when they are
    due, by a thread of this process: `spark` is a Spark session of yours, or the master of one of
    its own, such as `local[*]`; `engine` is as `Table.compact` has it, and `local` is without
    Spark.
    """
    path, given = data_path(data), settings
    if settings is not None and watermark_availability_ms is not None:
        raise Rejected(
            "the availability of history is given twice",
            hint="Put it into the settings, or leave the settings out.",
        )
    if settings is None:
        watermark = {}
        if watermark_availability_ms is not None:
            watermark["availability_ms"] = watermark_availability_ms
        settings = load_settings(arguments={"watermark": watermark})
    if read_only and (owner or spark is not None or engine is not None):
        raise Rejected(
            "a database that is opened read-only is neither owned nor compacted",
            hint="Leave read_only out, or owner, spark and engine.",
        )
    if read_only:
        _check_there(path)
    else:
        check_directory(path, create=create)
        make_directory(path)
    there = os.path.abspath(path)  # a guest that takes over may be in another folder by then

    def check(backend: Backend) -> None:
        _check_settled(backend, watermark_availability_ms, settings.ledger.location)

    def own(*, first: bool = False, spark: object = None, engine: Engine | None = None) -> Database:
        if not first:  # by a guest: the directory may be gone, and no new one is made in its place
            check_directory(there, create=False)
        backend = Embedded(path if first else there, settings)
        try:
            if first:  # what is settled may have been altered before a later one
                check(backend)
            return Database(backend, spark=spark, engine=engine)
        except BaseException:
            backend.abandon()
            raise

    try:
        if read_only:
            return _to_read(path, there, settings, check, given)
        if _in_spark_task() and not owner:
            return _as_guest(path, Directory(there, None), check, given)
        try:
            database = own(first=True, spark=spark, engine=engine)
        except Locked as locked:
            if owner:
                raise _owned(locked) from None
            directory = Directory(there, own)
            return _as_guest(path, directory, check, given, spark=spark, engine=engine)
        serve_others(database, path)
    except DiskFull as full:
        raise _no_space(path, full) from full
    except BaseException as error:
        raise_by_name(error, data)
    return database


def _check_there(path: str) -> None:
    try:
        check_directory(path, create=False)
    except NotADatabase as refused:
        refused.hint = "Check the path. With read_only=True nothing is made."
        raise


def _to_read(
    path: str,
    there: str,
    settings: Settings,
    check: Callable[[Backend], None],
    given: Settings | None,
) -> Database:
    """Read a directory: through its owner, or its files while there is none."""
    for _ in range(_ATTEMPTS):
        try:
            directory = Directory(there, None)
            if directory.has_owner():
                database = _as_guest(path, directory, check, given, read_only=True)
                directory.away_s = _AWAY_S
                return database
        except NoOwner:
            continue  # it went just now
        # It notes first when the directory was last opened. If that has not changed when all of
        # it is read, and there was no owner in between, then it is as it was at one moment.
        try:
            backend = FilesBackend(path, settings, has_owner=directory.has_owner)
        except DirectoryChanged:
            continue
        try:
            check(backend)
            return Database(backend, read_only=True)
        except BaseException:
            backend.abandon()
            raise
    raise Unavailable(
        f"{path} can't be opened read-only: other processes open and close it all the time",
        hint="Open it again, or keep it open in one of them.",
    )


def _owned(locked: Locked) -> Locked:
    """Why a directory can't be owned: who has it."""
    owner = Owner.noted(locked.note)
    if owner is not None and not locked.here and not is_strangers(locked, owner):
        locked.message = f"{locked.path} is owned by {owner}"
        locked.args = (locked.message,)
        locked.detail = "One process owns a directory; others use it through that one."
        locked.hint = "Leave owner=True out to use it together, or close it there first."
    return locked


def _as_guest(
    path: str,
    directory: Directory,
    check: Callable[[Backend], None],
    given: Settings | None,
    *,
    spark: object = None,
    engine: Engine | None = None,
    read_only: bool = False,
) -> Database:
    """Use a directory through its owner."""
    try:
        backend = _reached(path, directory, RemoteReader if read_only else RemoteBackend)
    except BaseException:
        directory.finish()
        raise
    try:
        if given is not None and directory.owner is not None and not directory.owner.serves:
            _check_same(path, directory.owner, given)
        check(backend)
        database = Database(backend, spark=spark, engine=engine, read_only=read_only)
    except BaseException:
        backend.close()
        directory.finish()
        raise
    database.finish_last(directory, behind=True)
    return database


def _reached(path: str, directory: Directory, kind: type[RemoteBackend]) -> RemoteBackend:
    try:
        address = directory.locate(START_S)
        return kind(
            address,
            timeout_s=HELLO_S,
            locate=directory.locate,
            explain=directory.explain,
            name=path,
        )
    except (Locked, NodeUnreachable, ProtocolRefused) as error:
        raise unreachable(path, directory.owner, error) from error


def _check_same(path: str, owner: Owner, given: Settings) -> None:
    """Refuse settings that are not the owner's."""
    mine = chosen(given)
    differ = sorted(
        name for name in {*mine, *owner.settings} if mine.get(name) != owner.settings.get(name)
    )
    if differ:
        some = ", ".join(
            f"{name} ({owner.settings.get(name, 'as usual')} there,"
            f" {mine.get(name, 'as usual')} here)"
            for name in differ[:_SHOWN_MAX]
        )
        raise Rejected(
            f"{path} is open with other settings in {owner}: {some}",
            hint="Leave the settings out to use it as it is, or close it there first.",
        )


def _in_spark_task() -> bool:
    """Whether this process works on a task of Spark's: it may end, or be used for another one."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.TaskContext.get() is not None


def _no_space(path: str, full: DiskFull) -> DiskFull:
    """Why a directory can't be opened whose disk has not even the reserve left.

    A start begins a WAL file, and rewrites what is in the older ones into segments before it
    removes them. With less free than they take, the two compete for it.
    """
    disk = RealDisk(path, create=False)
    free = disk.free_bytes()
    found = (disk.stat(f"{files.WAL}/{name}") for name in disk.list(files.WAL))
    needed = sum(stat.size for stat in found if stat is not None) + _START_BYTES
    if free >= needed:
        return full  # of another disk, or it has just become free
    told = DiskFull(path)
    told.message = f"no space left to open {path}: {free:,} bytes are free on its disk"
    told.detail = "Opening a directory writes to it, also for reads alone. Nothing is lost."
    told.hint = (
        f"Free at least {-(-needed // _MIB)} MiB on that disk by removing other files, and none"
        f" of {path}; then open it again. `lowmark compact` and `lowmark table drop` free more."
    )
    told.args = (told.message,)
    told.free = free
    return told


def _check_settled(backend: Backend, availability_ms: int | None, location: str) -> None:
    info = backend.info
    ledgers = info.ledger_location if info.ledgers_elsewhere else ""
    if location and place_of_location(location) != place_of_location(ledgers):
        raise Rejected(
            f"the ledgers of {info.name} are in"
            f" {without_credentials(ledgers) or 'its own directory'}, not in {location}",
            detail="It was set when the database was made.",
            hint="Leave ledger.location out.",
        )
    if availability_ms is not None and availability_ms != (settled := history_ms(backend)):
        raise Rejected(
            f"the database {info.name} keeps history exact for {settled} ms, not {availability_ms}",
            detail="It was set when the database was made, or altered since.",
            hint="Leave watermark_availability_ms out, and call db.set_history.",
        )
