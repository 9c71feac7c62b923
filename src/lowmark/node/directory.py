"""Which directory a caller means, and whether a node may work in it.

A directory that is not there is made, and an empty one is used, unless the caller forbids it. A
directory that holds anything else is used only if a node has worked in it before: it has `LOCK`,
which every open makes first, and a folder `wal` or `groups`. A first open that was interrupted
leaves `LOCK` and a part of the rest, so a directory with no other names is used, too. What a system
or a user puts into a new directory does not count: `lost+found`, `lowmark.toml`, and names that
begin with a dot.

`ledgers` alone is refused: a new database in there would take its files for its own, and remove
them.
"""

from __future__ import annotations

import errno
import os
import re
from urllib.parse import unquote, urlsplit

from lowmark.errors import Rejected
from lowmark.log import files, is_log
from lowmark.log.identity import ASIDE
from lowmark.runtime import DiskFull, NoHandles, RealDisk
from lowmark.runtime.real_disk import FOLDER_MODE
from lowmark.runtime.store import without_credentials

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+:/|file:)")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):[0-9]{1,5}")
_STORES = frozenset({"abfs", "abfss", "gcs", "gs", "hdfs", "s3", "s3a", "viewfs"})
_IDENTITY = "node"
_FIRST_NAMES = frozenset(
    {
        files.LOCK,
        files.WAL,
        files.GROUPS,
        files.ROSTER,
        files.ENDPOINT,
        _IDENTITY,
        f"{_IDENTITY}~",
        f"{files.ADMIN_TOKEN}{files.NEW}",
        f"{files.ADMIN_TOKEN}{files.NEW}~",
    }
)
"""What a first open makes, in the order of its steps, before it has a cluster."""
_NOT_COUNTED = frozenset({"lost+found", "lowmark.toml"})
_SHOWN_MAX = 3


class NotADatabase(Rejected):
    """A path that is no data directory of Lowmark, and that none will be made of."""


def data_path(given: str | os.PathLike[str]) -> str:
    """The path of a directory, with `~` expanded; refused if it is the address of something."""
    path: object = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise Rejected(
            f"a database is opened by the path of its directory, not by {given!r:.100}",
            hint="Give its path as text, or as a pathlib.Path.",
        )
    if not path.strip():
        raise Rejected("a database needs a directory", hint="Give its path, such as './shop'.")
    if "\0" in path:
        raise Rejected(f"{path!r:.100} can't be a path", hint="Leave the null character out.")
    if _URL.match(path):
        raise _no_url(path)
    addresses = path.split(",")
    if all(_ADDRESS.fullmatch(one.strip()) for one in addresses):
        raise _no_address(path, addresses[0].strip())
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        user = expanded.split("/", 1)[0]
        raise Rejected(
            f"{path} can't be opened: there is no user {user[1:]} whose home is known",
            hint=f"For a directory whose name begins with ~, write './{path}'.",
        )
    return expanded


def _no_url(path: str) -> Rejected:
    path = without_credentials(path)
    scheme, _, rest = path.partition(":")
    scheme = scheme.lower()
    if scheme == "file":
        local = unquote(urlsplit(path).path) or rest
        return Rejected(
            f"{path} is a URL, and a database is opened by its path",
            hint=f"Write its path: {local}",
        )
    if scheme in _STORES:
        return Rejected(
            f"{path} is not a directory of this machine",
            detail="A database writes its log to a local disk. Only its ledgers, the compacted"
            " files, may be in an object store.",
            hint=f'Open a local directory, and put [ledger] location = "{path}" into lowmark.toml'
            " before you make the database.",
        )
    return _no_address(path, urlsplit(path).netloc or rest.strip("/"))


def _no_address(path: str, address: str) -> Rejected:
    plain = "" if "/" in path else f" For a directory of that name, write './{path}'."
    return Rejected(
        f"{path} is the address of a server, and a database is opened by its directory",
        detail="A database that another process serves is connected to.",
        hint=f'In Python: lowmark.connect("{address}"). See what it does with'
        f" `lowmark status --node {address}`.{plain}",
    )


def log_disk(
    path: str,
    *,
    missing_hint: str = "",
    hint: str = "Give the directory that the node was started with.",
) -> RealDisk:
    """The disk of a data directory; refused if it is not there, or no log is in it."""
    if not os.path.isdir(path):
        raise Rejected(f"there is no directory {path}", hint=missing_hint)
    disk = RealDisk(path, create=False)
    if not is_log(disk):
        raise Rejected(
            f"{path} is not a data directory of Lowmark",
            detail="It has neither a folder wal nor a folder groups.",
            hint=hint,
        )
    return disk


def check_directory(path: str, *, create: bool) -> None:
    """Refuse what is no directory for a node; one that is not there yet only without `create`."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        if create:
            return
        raise NotADatabase(f"there is no directory {path}", hint=_HINT_CREATE) from None
    except NotADirectoryError as error:
        if os.path.exists(path):
            raise NotADatabase(
                f"{path} is a file, and a database is a directory",
                hint="Give the path of a directory. To append a file's rows to a table, read it"
                " with pyarrow or use `lowmark append TABLE FILE`.",
            ) from error
        raise _not_made(path, error) from error
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            reason = os.strerror(error.errno)
            raise NoHandles(path, call="listdir", reason=reason) from error
        raise NotADatabase(
            f"{path} can't be opened: {os.strerror(error.errno or 0)}",
            hint="Check its permissions, or use another directory.",
        ) from error
    counted = {name for name in names if name not in _NOT_COUNTED and not name.startswith(".")}
    if _was_used(path, counted):
        if not create and not _has_node(path):
            raise NotADatabase(
                f"there is no database in {path}",
                detail="It has only what an interrupted first open leaves behind.",
                hint=_HINT_CREATE,
            )
        return
    if not counted or (files.LOCK in counted and counted <= _FIRST_NAMES):
        if create:
            return
        raise NotADatabase(f"there is no database in {path}", hint=_HINT_CREATE)
    foreign = sorted(counted - _FIRST_NAMES) or sorted(counted)
    some = ", ".join(foreign[:_SHOWN_MAX])
    raise NotADatabase(
        f"{path} is not a data directory of Lowmark: it has other files in it",
        detail=f"Found there: {some}{'' if len(foreign) <= _SHOWN_MAX else ' and more'}.",
        hint="Give the path of a database, of an empty directory, or of one that is not there yet.",
    )


_HINT_CREATE = "Check the path; leave create=False out to make a new database there."


def _was_used(path: str, names: set[str]) -> bool:
    known = files.LOCK in names or _IDENTITY in names
    return known and any(
        name in names and os.path.isdir(os.path.join(path, name))
        for name in (files.WAL, files.GROUPS)
    )


def _has_node(path: str) -> bool:
    """Whether a node has come so far that it can be opened, or has lost what it needs for that:
    then the open says what is missing. In any other directory, an open makes a new node.
    """

    def names(folder: str) -> list[str]:
        found = os.path.join(path, folder)
        return os.listdir(found) if os.path.isdir(found) else []

    return (
        os.path.isfile(os.path.join(path, _IDENTITY))
        or any(not name.startswith(ASIDE) for name in names(files.GROUPS))
        or bool(names(files.ROSTER))
        or bool(names(files.LEDGERS))
    )


def make_directory(path: str) -> None:
    """Make the directory, unless it is there; `check_directory` comes first."""
    try:
        os.makedirs(path, FOLDER_MODE, exist_ok=True)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(path) from error
        raise _not_made(path, error) from error


def _not_made(path: str, error: OSError) -> NotADatabase:
    where = error.filename or path
    return NotADatabase(
        f"the directory {path} can't be made: {os.strerror(error.errno or 0)} ({where})",
        hint="Check the path and the permissions there.",
    )
