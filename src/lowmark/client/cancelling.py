"""Ask the process that has a database open to end a run of it.

A directory belongs to one process; whoever comes second can't look into it. But a run looks into
its own folder among the ledgers for a word that it shall end, and says there that it goes on.
"""

from __future__ import annotations

import os

from lowmark.client.database import LEDGERS
from lowmark.errors import Rejected
from lowmark.runtime.store import Store

__all__ = ["ask_to_cancel"]

_BEGUN = "begun"
_CANCEL = "cancel"


def ask_to_cancel(data: str | os.PathLike[str], run: str, *, location: str = "") -> str:
    """Leave a word for a run that goes on in another process; gives where.

    `location` is where ledgers are, if they may be somewhere else than in the data directory.
    """
    usual = os.path.join(os.path.abspath(os.fspath(data)), LEDGERS)
    ending = f"/runs/{run}/{_BEGUN}"
    for place in dict.fromkeys([location or usual, usual]):
        store = Store(place)
        for one in store.files("") if run and "/" not in run else ():
            if one.path.endswith(ending):
                path = f"{one.path.removesuffix(_BEGUN)}{_CANCEL}"
                store.hint(path, b"")
                return store.url(path)
    raise Rejected(
        f"no run {run} goes on in another process that has {os.fspath(data)} open",
        detail="Of what is over, only whoever can open the database can tell.",
        hint="See whether the name is right, and whether the run has ended meanwhile.",
    )
