"""Where a cluster has its ledgers that has settled no place for them: in the directory of a node.

ledgers.home    {"node":1,"path":"/data/n1/ledgers"}
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowmark.errors import Corrupt
from lowmark.runtime import Buffer

HOME_KEY: Final = b"ledgers.home"


class LedgerHome(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cluster has its ledgers that has settled no place for them."""

    node: int
    """Whose directory it is in."""
    path: str


def decode_home(value: Buffer) -> LedgerHome:
    """As it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=LedgerHome)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the place of ledgers in the metastore can't be read: {error}") from error


def keep_of(noted: Buffer | None, node: int) -> str:
    """The folder that stays needed when a node leaves the cluster; empty: none."""
    home = None if noted is None else decode_home(noted)
    return home.path if home is not None and home.node == node else ""
