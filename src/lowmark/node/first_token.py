"""The first token of a cluster, and one in its place when it is lost: in a file, then in force.

    1. a token is drawn and written to `admin.token.new~`, synced
    2. that is renamed to `admin.token.new`      a crash before leaves nothing that counts
    3. its digest is in the metastore, under the name admin. At founding that is the cluster's first
       revision; else the node proposes it at its start, until it is done
    4. the file is renamed to `admin.token`      a crash before: step 3 again, with no effect

So each file is of a token that is in force, or will be when its node is next started; and no token
is in force that was never on a disk. The cluster is ready only after step 4.

A user who may write a node's directory and start the node can become an administrator of its
cluster in this way.
"""

from __future__ import annotations

import logging
from typing import Final

from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.log import files
from lowmark.log.files import discard, read_whole, write_whole
from lowmark.metastore import Compare, Metastore, Operation, Put, Revision, load_identity
from lowmark.metastore.watches import Entry
from lowmark.node.tokens import token_of
from lowmark.runtime import Disk, Loop
from lowmark.tokens import ADMIN, Record, Secret, TokenMalformed, drawn, token_key

logger = logging.getLogger(__name__)

PATH: Final = files.ADMIN_TOKEN
NEW: Final = f"{files.ADMIN_TOKEN}{files.NEW}"
_ASIDE: Final = f"{NEW}~"
_BYTES_MAX: Final = 1_024
_AGAIN_MS: Final = 300
_AGAIN_MS_MAX: Final = 10_000


def write_new(disk: Disk) -> Secret:
    """Steps 1 and 2."""
    secret = drawn()
    discard(disk, _ASIDE)
    write_whole(disk, _ASIDE, secret.reveal().encode() + b"\n")
    disk.rename(_ASIDE, NEW)
    disk.sync_dir("")
    return secret


def read_new(disk: Disk) -> Secret | None:
    """The token that is to be in force; None if there is none."""
    found = disk.stat(NEW)
    if found is None or found.size > _BYTES_MAX:
        return None
    try:
        return Secret(read_whole(disk, NEW).decode(errors="replace").strip())
    except TokenMalformed as error:
        logger.warning(
            "a file has no token in it, and is left alone",
            extra={"file": disk.describe(NEW), "reason": error.message},
        )
        return None


def prepare(disk: Disk, *, join: bool) -> tuple[Operation, ...] | None:
    """Before a node that is served starts: what it writes in the first revision, if it founds a
    cluster; None, if it does not.

    A token that was drawn before a crash is used again. If there is one that was in force, the
    crash came after step 4. A node that joins brings no token of another cluster.
    """
    known = load_identity(disk)
    if disk.stat(_ASIDE) is not None:
        discard(disk, _ASIDE)
    if known is not None and known.cluster and known.founding is None:
        return None  # it comes back
    if join and (known is None or not known.cluster):
        discard(disk, NEW)
        return None
    if disk.stat(PATH) is not None:
        return ()
    return (_put(read_new(disk) or write_new(disk)),)


def _put(secret: Secret) -> Put:
    return Put(token_key(ADMIN), Record(digest=secret.digest()).encode())


class FirstToken:
    """Steps 3 and 4, on the loop."""

    def __init__(self, loop: Loop, disk: Disk, metastore: Metastore) -> None:
        self._loop = loop
        self._disk = disk
        self._metastore = metastore
        self._closed = False
        self._again_ms = _AGAIN_MS
        self.done: Future[None] = Future()
        """When there is nothing left to do."""

    def close(self) -> None:
        """Try no more; the next start does."""
        self._closed = True

    def propose(self) -> None:
        """Have the token of the file in force, if there is one."""
        try:
            secret = read_new(self._disk)
        except LowmarkError as error:
            self._later(error)
            return
        if secret is None:
            self.done.resolve(None)
            return

        def found(future: Future[Entry | None]) -> None:
            if future.error is not None:
                self._later(future.error)
                return
            entry = future.result()
            token = None if entry is None else token_of(entry)
            if token is not None and token.record.digest == secret.digest():
                self._finish()
                return
            # Whatever had the name before is not in force any more: it was lost.
            unchanged = Revision(token_key(ADMIN), Compare.EQ, entry.revision if entry else 0)
            self._metastore.invoke_if(unchanged, [_put(secret)]).then(written)

        def written(future: Future[bool]) -> None:
            if future.error is not None:
                self._later(future.error)
            else:
                self._again()  # and find it, or what was faster

        self._metastore.get(token_key(ADMIN)).then(found)

    def _finish(self) -> None:
        try:
            self._disk.rename(NEW, PATH)
            self._disk.sync_dir("")
        except LowmarkError as error:
            self._later(error)
            return
        self.done.resolve(None)

    def _later(self, error: LowmarkError) -> None:
        if self._again_ms == _AGAIN_MS:  # else it was said
            logger.warning(
                "the token in a file is not in force yet",
                extra={"file": self._disk.describe(NEW), "reason": error.message},
            )
        self._loop.call_later(self._again_ms, self._again)
        self._again_ms = min(2 * self._again_ms, _AGAIN_MS_MAX)

    def _again(self) -> None:
        if not self._closed:
            self.propose()
