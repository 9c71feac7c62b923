"""What the process that owns a directory has for the others: an endpoint."""

from __future__ import annotations

import contextlib
import logging
import threading

from lowmark.backend.embedded import Embedded
from lowmark.backend.forks import check_fork
from lowmark.client import Database
from lowmark.errors import LowmarkError
from lowmark.node.owner import new_address, remove_address
from lowmark.server import HOLD_MS, OwnerNote, Server

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_MADE_S = 5.0


class OwnerEndpoint:
    """Where the owner answers other processes of this machine."""

    def __init__(self, database: Database, path: str) -> None:
        backend = database.backend
        assert isinstance(backend, Embedded)  # only an owner has an endpoint
        self._server: Server | None = None
        note = OwnerNote(backend.node, hold_ms=HOLD_MS)
        self.address = ""
        try:
            check_fork(path)  # a child by fork has its database for itself
            self.address = new_address(path)
            self._server = Server(database, self.address, on_held=note.held)
        except (LowmarkError, OSError) as error:
            # The database works without: a full disk has no room for a socket's name either.
            logger.warning(
                "no other process can use this database while it is open here",
                extra={"data": path, "reason": str(error)},
            )
            self.address = ""
            alone = error.message if isinstance(error, LowmarkError) else str(error)
            note.answers_at("", alone=alone)
            return
        note.answers_at(self.address)

    def finish(self) -> None:
        """Take no more calls, let those that are under way end, and close."""
        server, self._server = self._server, None
        if server is None:
            return
        try:
            server.close()
        finally:
            remove_address(self.address)


def serve_others(database: Database, path: str) -> OwnerEndpoint:
    """Let other processes use a database that this one owns, until it is closed.

    The endpoint is made on a thread of its own: Ctrl-C interrupts no more than the waiting, and
    never leaves half of it behind. A database that its caller does not get is closed.
    """
    made: list[OwnerEndpoint] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def make() -> None:
        try:
            made.append(OwnerEndpoint(database, path))
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    try:
        threading.Thread(target=make, name="lowmark-endpoint", daemon=True).start()
        while not over.wait(_LOOK_S):
            pass
        if failed:
            raise failed[0]
        database.finish_last(made[0])
    except BaseException:
        over.wait(_MADE_S)  # if it was begun
        for endpoint in made:
            database.finish_last(endpoint)
        with contextlib.suppress(LowmarkError):
            database.close()
        raise
    return made[0]
