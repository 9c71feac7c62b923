"""Whose ledgers a place has, and the proof that a process sees that place and no other.

A file at the root of the store names the database: the claim. The first node of a cluster writes
it, or the process that owns a directory. Any other process only looks for it: a path that leads to
an empty folder on its machine has none, so nothing is written there that the others would miss.

A node proves more before it joins a cluster, and at each start: that it can write there, read what
it wrote, and remove it.
"""

from __future__ import annotations

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.ledger.errors import LedgerLost
from lowmark.runtime import FileMissing
from lowmark.runtime.disk import StoreFailed
from lowmark.runtime.store import Store

_CLAIM = "database"


class LedgersUnseen(Unavailable):
    """A process that does not see, or can't use, the place where its database has its ledgers."""

    def __init__(self, location: str, why: str | LowmarkError) -> None:
        super().__init__(
            f"the ledgers of this cluster are in {location}, which can't be used from here",
            detail=why.message if isinstance(why, LowmarkError) else why,
            hint=why.hint
            if isinstance(why, StoreFailed)
            else "Every node, and every task of compaction, needs the same place: mount a shared"
            " file system at that path, or found the cluster with an object store"
            ' (ledger.location = "s3://bucket/prefix").',
        )
        self.location = location


def claim(store: Store, database: str) -> None:
    """Take a place for the ledgers of one database; refused if another one has it."""
    try:
        owner = _owner(store)
    except FileMissing:
        store.write(_CLAIM, f"{database}\n".encode())
        owner = _owner(store)
    _check_owner(store, database, owner)


def check_claim(store: Store, database: str) -> None:
    """Refuse a place that is not the one that the database has claimed."""
    try:
        owner = _owner(store)
    except FileMissing as missing:
        why = f"{store.url(_CLAIM)} is not there: here this path leads to another place."
        raise LedgersUnseen(store.location, why) from missing
    except LowmarkError as error:
        raise LedgersUnseen(store.location, error) from error
    _check_owner(store, database, owner)


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
    that is not mounted: then its ledgers are as they were, and nothing is to be rebuilt.
    """
    where = store.url(path)
    if store.stat(_CLAIM) is None and not store.folders(""):
        return LedgersUnseen(store.location, f"{where} is not there, nor is any other file.")
    return LedgerLost(where)


def _owner(store: Store) -> str:
    return store.read(_CLAIM).decode("utf-8", "replace").strip()


def _check_owner(store: Store, database: str, owner: str) -> None:
    if owner != database:
        raise Rejected(
            f"{store.location} has the ledgers of another database, {owner}",
            detail=f"This one is {database}. Each would take the other's files for leftovers.",
            hint="Give every database a place of its own (ledger.location).",
        )
