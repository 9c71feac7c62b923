"""Names that cross rooms, as types of their own."""

from __future__ import annotations

import re
from typing import NewType

from lowmark.errors import Rejected

__all__ = [
    "GROUP_ID_BYTES_MAX",
    "METASTORE",
    "PARTITIONS",
    "GroupId",
    "Index",
    "Term",
    "group_id",
    "group_name",
]

GroupId = NewType("GroupId", str)
Index = NewType("Index", int)
Term = NewType("Term", int)

GROUP_ID_BYTES_MAX = 64
METASTORE = "metastore"
"""The metastore's group."""
PARTITIONS = "table."
"""The names of partitions' groups begin so."""
_GROUP_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")


def group_id(text: str) -> GroupId:
    """Parse the name of a group; it is also the name of its folder."""
    if len(text.encode()) > GROUP_ID_BYTES_MAX or not _GROUP_ID.fullmatch(text):
        raise Rejected(
            f"{text!r} can't name a group",
            detail="A group's name is also the name of its folder.",
            hint=f"Use 1 to {GROUP_ID_BYTES_MAX} of a-z, 0-9, '.', '_' and '-',"
            " starting with a letter or a digit.",
        )
    return GroupId(text)


def group_name(table: int, number: int) -> str:
    """The group of a partition; ids are never used again, so neither is this name."""
    return f"{PARTITIONS}{table}.{number}"
