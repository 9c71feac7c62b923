"""Use a database that another process serves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lowmark.backend.connection import addresses_of
from lowmark.backend.remote import RemoteBackend
from lowmark.client.database import Database
from lowmark.errors import Rejected
from lowmark.node.showing import secret_of
from lowmark.runtime.profiles import authorities, profiles_file, using_profile

if TYPE_CHECKING:
    from lowmark.compaction.runner import Engine
    from lowmark.runtime.profiles import Profile

NODE_VARIABLE: Final = "LOWMARK_NODE"


def connect(
    address: str | Sequence[str] | None = None,
    *,
    profile: str | None = None,
    ca: str | None = None,
    token: str | None = None,
    timeout_s: float = 10.0,
    spark: object = None,
    engine: Engine | None = None,
) -> Database:
    """Use a database that another process serves: the same API as `open` gives.

    `address` is `host:port`, or `unix:PATH` for a socket of this machine. Of a cluster, give
    several, as a list or with commas between: the first of them that answers is used, and any other
    when that one is away. Without an address, $LOWMARK_NODE names it, else the profile.
    `lowmark+tls://` before the address is for servers that speak TLS; before the first of several,
    it is meant for all. `ca` is the file of the authority that signed their certificates, else the
    one that $LOWMARK_CA names, else that of the profile, else those that this machine knows. A
    server that is not there yet, or is started again, is waited for: `timeout_s` here, and later
    for as long as each call may take. Appends are numbered: what is sent again is stored once.

    `token` is for a server that asks for one; without it, the environment names it:
    `LOWMARK_TOKEN`, or `LOWMARK_TOKEN_FILE`, a file that has it; or else the profile does.
    `profile` is the name of a profile in the user's file of them (`lowmark profile list`), else
    $LOWMARK_PROFILE is. `spark` and `engine` are as for `open`: tasks of a run read a partition's
    segments where they see its directory, and ask its servers where they don't.
    """
    with using_profile(profile) as chosen:
        first, *also = addresses_of(_address(chosen) if address is None else address)
        ca = authorities(ca)
        secret = secret_of(token)
    name = ",".join([first, *also])
    backend = RemoteBackend(first, also=also, ca=ca, timeout_s=timeout_s, name=name, secret=secret)
    try:
        return Database(backend, spark=spark, engine=engine)
    except BaseException:
        backend.close()
        raise


def _address(profile: Profile | None) -> str:
    """What the environment names or, without, the profile in use."""
    if named := os.environ.get(NODE_VARIABLE, "").strip():
        return named
    if profile is None:
        raise Rejected(
            "no server is named",
            hint='Write lowmark.connect("127.0.0.1:6570"); or name a profile: profile="prod".',
        )
    if not profile.node:
        directory = f"lowmark.open({profile.data!r}) opens its directory."
        raise Rejected(
            f"profile {profile.name} in {profiles_file()} names no node",
            hint=directory if profile.data else 'Give it one: node = "127.0.0.1:6570".',
        )
    return profile.node
