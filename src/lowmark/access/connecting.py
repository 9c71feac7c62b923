"""Use a database that another process serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowmark.backend.remote import RemoteBackend
from lowmark.client.database import Database
from lowmark.errors import Rejected

if TYPE_CHECKING:
    from lowmark.compaction.runner import Engine


def connect(
    address: str,
    *,
    timeout_s: float = 10.0,
    spark: object = None,
    engine: Engine | None = None,
) -> Database:
    """Use a database that another process serves: the same API as `open` gives.

    `address` is `host:port`, or `unix:PATH` for a socket of this machine. A server that is not
    there yet, or is started again, is waited for: `timeout_s` here, and later for as long as each
    call may take. Appends are numbered: what is sent again is stored once. `spark` and `engine`
    are as for `open`: runs of compaction read the segments of the database, so they are made on
    its machine.
    """
    given: object = address
    if not isinstance(given, str):
        raise Rejected(f"{given!r} is not the address of a server", hint='Give text: "host:port".')
    backend = RemoteBackend(address, timeout_s=timeout_s)
    try:
        return Database(backend, spark=spark, engine=engine)
    except BaseException:
        backend.close()
        raise
