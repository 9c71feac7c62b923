"""Use a database that another process serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowmark.backend.connection import addresses_of
from lowmark.backend.remote import RemoteBackend
from lowmark.client.database import Database
from lowmark.node.showing import secret_of

if TYPE_CHECKING:
    from lowmark.compaction.runner import Engine


def connect(
    address: str | Sequence[str],
    *,
    ca: str | None = None,
    token: str | None = None,
    timeout_s: float = 10.0,
    spark: object = None,
    engine: Engine | None = None,
) -> Database:
    """Use a database that another process serves: the same API as `open` gives.

    `address` is `host:port`, or `unix:PATH` for a socket of this machine. Of a cluster, give
    several, as a list or with commas between: the first of them that answers is used, and any other
    when that one is away. `lowmark+tls://` before the address, or before the first of several, is
    for servers that speak TLS; `ca` is the file of the authority that signed their certificates,
    else the one that $LOWMARK_CA names, else those that this machine knows. A server that is not
    there yet, or is started again, is waited for: `timeout_s` here, and later for as long as each
    call may take. Appends are numbered: what is sent again is stored once.

    `token` is for a server that asks for one; without it, the environment names it:
    `LOWMARK_TOKEN`, or `LOWMARK_TOKEN_FILE`, a file that has it. `spark` and `engine` are as for
    `open`: runs of compaction read the segments of the database, so they are made on its machine.
    """
    first, *also = addresses_of(address)
    name = ",".join([first, *also])
    secret = secret_of(token)
    backend = RemoteBackend(first, also=also, ca=ca, timeout_s=timeout_s, name=name, secret=secret)
    try:
        return Database(backend, spark=spark, engine=engine)
    except BaseException:
        backend.close()
        raise
