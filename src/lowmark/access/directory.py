"""A directory that several processes use: who owns it, and how the others find the owner."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lowmark.backend.errors import Closed
from lowmark.client import Database
from lowmark.errors import LowmarkError, Unavailable
from lowmark.faces import deferred
from lowmark.log import files
from lowmark.node import NodeUnreachable, check_directory, data_path
from lowmark.node.owner import SCHEME, Owner
from lowmark.runtime import Locked, RealDisk, host_and_port

if TYPE_CHECKING:
    from lowmark.access.owning import OwnerEndpoint, serve_others
else:
    (serve_others,) = deferred("lowmark.access.owning", "serve_others")

logger = logging.getLogger(__name__)

_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.1
_SILENT_S = 1.0
"""A holder of the lock that has not said within this who it is never will."""


class Directory:
    """One directory, as a guest uses it; it becomes the owner if there is none, and it may."""

    def __init__(
        self,
        path: str,
        own: Callable[[], Database] | None,
    ) -> None:
        """`own` opens it; without, it is never owned here."""
        self._path = path
        self._own = own
        self.away_s = 0.0
        """How long it waits for the next owner, if it never becomes one, before `NoOwner`."""
        self._lock = threading.Lock()
        self._owned: Database | None = None
        self._endpoint: OwnerEndpoint | None = None
        self._closed = False
        self.owner: Owner | None = None
        """The last owner that was found."""

    def has_owner(self) -> bool:
        """Whether a process has it open. Nothing is claimed or written."""
        return RealDisk(self._path, create=False).holder(files.LOCK) is not None

    def explain(self, error: LowmarkError) -> LowmarkError:
        """Why the owner gives no answer, as far as can be seen from here."""
        try:
            owner = owner_of(self._path)
        except LowmarkError:
            return error
        if owner is None and self.owner is not None and self.owner.serves:
            return NodeGone(self._path)
        served = owner is None or owner.serves
        return error if served else unreachable(self._path, owner, error)

    def locate(self, timeout_s: float) -> str:
        """The address of the owner; see `backend.connection.Locate`."""
        ends_at, pause_s = time.monotonic() + timeout_s, _PAUSE_S
        silent_at = time.monotonic() + min(timeout_s, _SILENT_S)
        away_at = time.monotonic() + min(timeout_s, self.away_s)
        with self._lock:
            while True:
                if self._closed:
                    raise Closed(self._path)
                if self._endpoint is not None:
                    return self._endpoint.address
                try:
                    found = self._try()
                    if found:
                        return found
                except NodeGone:
                    if time.monotonic() >= ends_at:
                        raise
                except NoOwner:
                    if time.monotonic() >= away_at:
                        raise
                except Locked as locked:
                    self.owner = Owner.noted(locked.note)
                    of_here = self.owner is not None and self.owner.is_of_here()
                    if of_here and is_strangers(locked, self.owner):
                        self.owner = None  # it left its name, and does not hold the lock
                    if self.owner is not None and self.owner.address:
                        return self.owner.address
                    if self.owner is not None and self.owner.alone:
                        raise
                    # One that starts has said who it is, and will say where.
                    over = ends_at if self.owner is not None else silent_at
                    if time.monotonic() >= over:
                        raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _try(self) -> str:
        """Own the directory; `Locked` says who does."""
        served = self.owner is not None and self.owner.serves
        if self._own is None or served:
            locked = RealDisk(self._path, create=False).holder(files.LOCK)
            raise locked or (NodeGone(self._path) if served else NoOwner(self._path))
        database = self._own()
        endpoint = serve_others(database, self._path)
        if not endpoint.address:
            database.close()
            raise Unavailable(
                f"{self._path} has no owner any more, and no endpoint can be made for it",
                hint="Close the database and open it again; see the log for the reason.",
            )
        logger.info("took a directory over", extra={"data": self._path})
        self._owned, self._endpoint = database, endpoint
        return endpoint.address

    def finish(self) -> None:
        """If it is the owner: let the others end what they have under way, and close it."""
        self._closed = True  # a thread that looks for an owner ends
        with self._lock:
            owned, self._owned, self._endpoint = self._owned, None, None
        if owned is not None:
            owned.close()


class NodeGone(NodeUnreachable):
    """A directory whose node was served, and is not any more: this process does not take its
    place.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, why="The node that serves this directory does not run.")
        self.message = f"no node serves {path} any more"
        self.args = (self.message,)
        self.hint = "Start it again with `lowmark serve`; what is waiting then goes on."


class NoOwner(Unavailable):
    """A directory that no process has open, and that this one may not open itself."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"no process has {path} open",
            detail="A task of Spark uses a directory through the process that has it open, and so"
            " does a database that was opened read-only beside one.",
            hint="For a task, keep it open in the driver by lowmark.open. To read what is on disk,"
            " open it again with read_only=True.",
        )


def owner_of(path: str) -> Owner | None:
    """The process that has a directory open, as it says itself; None: none has, or says so."""
    locked = RealDisk(path, create=False).holder(files.LOCK)
    return None if locked is None else Owner.noted(locked.note)


def is_strangers(locked: Locked, owner: Owner | None) -> bool:
    """Whether another program has the lock than the owner that the file names. That the system
    names another process does not say so alone: in a container an owner has a number of its own.
    But then it answers where it says.
    """
    return locked.unsigned and (owner is None or not _listens(owner.address))


def _listens(address: str) -> bool:
    """Whether a process takes calls at an address of an owner's."""
    try:
        if address.startswith(SCHEME):
            with socket.socket(socket.AF_UNIX) as there:
                there.settimeout(_SILENT_S)
                there.connect(address.removeprefix(SCHEME))
        else:
            socket.create_connection(host_and_port(address), _SILENT_S).close()
    except (OSError, LowmarkError, ValueError):
        return False
    return True


def unreachable(path: str, owner: Owner | None, error: LowmarkError) -> Locked:
    """Why a directory can't be used: another process has it, and does not let others in."""
    # What the file says may be of an owner that is gone, while another program has it locked.
    held = error if isinstance(error, Locked) else None
    if held is None:
        with contextlib.suppress(LowmarkError):
            held = RealDisk(path, create=False).holder(files.LOCK)
    if held is not None and is_strangers(held, owner):
        return held
    locked = error if isinstance(error, Locked) else Locked(path, holder=str(owner))
    if owner is not None and owner.alone:
        locked.detail = f"That process lets no other one in: {owner.alone}."
    elif owner is None:
        locked.detail = (
            "It does not say where others reach it: it only reads, or is of an earlier release."
        )
    else:
        locked.detail = f"It was asked: {error.message}. {error.detail}".strip()
    locked.hint = (
        "Close it there, or wait for its end. A process of another machine, container, user or"
        " release can't be reached, and one that is suspended does not answer."
    )
    return locked


def check_owned(data: str | os.PathLike[str]) -> None:
    """Refuse a directory that no process has open (`NoOwner`), as a task of Spark's would."""
    path = data_path(data)
    check_directory(path, create=False)
    if not Directory(path, None).has_owner():
        raise NoOwner(path)
