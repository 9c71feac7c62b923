"""Whose ledgers a place has, and the proof that a process sees that place and no other.

A file at the root of the store names the database: the claim. The first node of a cluster writes
it, or the process that owns a directory. Any other process only looks for it: a path that leads to
an empty folder on its machine has none, so nothing is written there that the others would miss.

A node proves more before it joins a cluster, and at each start: that it can write there, read what
it wrote, and remove it.

A reader that lacks a file looks for the claim before it says that the file is lost, and a sweep
looks for it before it removes any. So a place that is empty, or another database's, is told by name
(`LedgersUnseen`, `OtherLedgers`), and what was meant for ours is not done there.
"""

from __future__ import annotations

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.ledger.errors import LedgerLost
from lowmark.runtime import FileMissing
from lowmark.runtime.disk import StoreFailed
from lowmark.runtime.store import Store

_CLAIM = "database"
_BRING_BACK = (
    "Every node, and every task of compaction, needs the same place: mount the shared file system"
    " at that path again, or the right bucket. Then all is read as before, without a restart;"
    " nothing is to be rebuilt. If it is lost for good: `lowmark ledger location --claim`."
)


class LedgersUnseen(Unavailable):
    """A process that does not see, or can't use, the place where its database has its ledgers."""

    def __init__(self, location: str, why: str | LowmarkError) -> None:
        super().__init__(
            f"the ledgers of this cluster are in {location}, which can't be used from here",
            detail=why.message if isinstance(why, LowmarkError) else why,
            hint=why.hint if isinstance(why, StoreFailed) else _BRING_BACK,
        )
        self.location = location


class OtherLedgers(LedgersUnseen):
    """A place with the ledgers of another database, where ours should be."""

    def __init__(self, location: str, *, found: str, expected: str) -> None:
        super().__init__(location, f"This one is {expected}. Nothing is read or written there.")
        self.message = f"{location} has the ledgers of another database, {found}"
        self.args = (self.message,)
        self.found, self.expected = found, expected


def claim(store: Store, database: str) -> None:
    """Take a place for the ledgers of one database; refused if another one has it."""
    try:
        owner = _owner(store)
    except FileMissing:
        store.write(_CLAIM, f"{database}\n".encode())
        owner = _owner(store)
    if owner != database:
        raise Rejected(
            f"{store.location} has the ledgers of another database, {owner}",
            detail=f"This one is {database}. Each would take the other's files for leftovers.",
            hint="Give every database a place of its own (ledger.location).",
        )


def check_claim(store: Store, database: str) -> None:
    """Refuse a place that is not the one that the database has claimed."""
    try:
        owner = _owner(store)
    except FileMissing as missing:
        where = store.url(_CLAIM)
        why = f"{where} is not there: here this path leads to another place."
        if not store.folders(""):
            why = (
                f"{where} is not there, nor is any other file: here this path leads to another"
                " place, or it was emptied."
            )
        raise LedgersUnseen(store.location, why) from missing
    except LowmarkError as error:
        raise LedgersUnseen(store.location, error) from error
    if owner != database:
        raise OtherLedgers(store.location, found=owner, expected=database)


def prove(store: Store, database: str, *, token: str) -> None:
    """Refuse a place that is not the claimed one, or that can't be written to, or read from. Each
    process has a token of its own.
    """
    check_claim(store, database)
    path, said = f"probe-{token}", token.encode()
    try:
        store.write(path, said)
        if store.read(path) != said:
            raise LedgersUnseen(store.location, f"{store.url(path)} is not what was written.")
        store.delete(path)
    except LedgersUnseen:
        raise
    except LowmarkError as error:
        raise LedgersUnseen(store.location, error) from error


def missing(store: Store, path: str) -> LowmarkError:
    """Why a file of a ledger is not there. It is lost; or the whole place is away, as a share is
    that is not mounted, or another one is in its place: then its ledgers are as they were, and
    nothing is to be rebuilt.
    """
    where = store.url(path)
    if store.owner:
        try:
            check_claim(store, store.owner)
        except LowmarkError as error:
            return error
    elif store.stat(_CLAIM) is None and not store.folders(""):
        return LedgersUnseen(store.location, f"{where} is not there, nor is any other file.")
    return LedgerLost(where)


def _owner(store: Store) -> str:
    return store.read(_CLAIM).decode("utf-8", "replace").strip()
