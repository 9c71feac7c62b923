"""Who this node is, kept in its data directory: its number, its cluster, and whom it knows.

The addresses are those of other nodes when they were last heard of: a node that starts must reach
somebody before it can ask anybody where the others are.

    1. the note is written aside and synced
    2. it is renamed over the old one     a crash before leaves the old one, whole
    3. its folder is synced
"""

from __future__ import annotations

import msgspec

from lowmark.log import files
from lowmark.log.files import Note, read_note, write_note
from lowmark.metastore.nodes import ClusterSettings
from lowmark.runtime import Disk

PATH = files.NODE


class Identity(Note, frozen=True, kw_only=True):
    """What a node knows about itself without asking anybody."""

    number: int
    name: str
    cluster: str = ""
    """The id of its cluster; empty until it belongs to one."""
    founding: ClusterSettings | None = None
    """What it settles as the founder of its cluster: it may have crashed before it did."""
    left: bool = False
    """Whether it has left: then it belongs to no cluster any more."""
    peers: dict[str, str] = msgspec.field(default_factory=dict)
    """Addresses by number."""


def load_identity(disk: Disk) -> Identity | None:
    """Who this node is; None in a new data directory."""
    return read_note(disk, PATH, Identity) if disk.stat(PATH) is not None else None


def save_identity(disk: Disk, identity: Identity) -> None:
    """Replace what is kept."""
    aside = f"{PATH}~"
    if disk.stat(aside) is not None:
        disk.unlink(aside)
    write_note(disk, aside, identity)
    disk.rename(aside, PATH)
    disk.sync_dir("")
