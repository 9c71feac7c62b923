"""Ask the process that has a database open to end a run of it.

A directory belongs to one process; whoever comes second can't look into it. But a run looks into
its own folder among the ledgers for a word that it shall end, and says there that it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lowmark.errors import Rejected
from lowmark.log import files
from lowmark.runtime.store import Store

__all__ = ["ask_to_cancel", "runs_begun"]

_BEGUN = "begun"
_CANCEL = "cancel"


def runs_begun(data: str | os.PathLike[str], *, location: str = "") -> list[str]:
    """Runs that have begun and are not over, as far as files tell: one whose process was killed is
    among them, until it is resumed or cancelled.
    """
    return sorted({folder.rpartition("/")[2] for _, folder in _begun(data, location)})


def ask_to_cancel(data: str | os.PathLike[str], run: str, *, location: str = "") -> str:
    """Leave a word for a run that goes on in another process; gives where.

    `location` is where ledgers are, if they may be somewhere else than in the data directory.
    """
    for store, folder in _begun(data, location):
        if folder.rpartition("/")[2] == run:
            path = f"{folder}/{_CANCEL}"
            store.hint(path, b"")
            return store.url(path)
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
