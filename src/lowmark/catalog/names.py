"""Which names objects may have, and how many of everything there may be.

Tables, indexes, schemas and zones have names that can stand in `schema.table`, in a key of the
metastore and on a command line without quotes. Columns come with the data and may be called almost
anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lowmark.catalog.errors import CatalogRefused, Reason

NAME_BYTES_MAX = 128
COLUMNS_MAX = 1_000
KEY_COLUMNS_MAX = 16
INDEX_COLUMNS_MAX = 16
INDEXES_PER_TABLE_MAX = 64
SCHEMA_VERSIONS_MAX = 1_000
"""How many schema versions of a table are kept at once; trimming makes room."""
PARTITIONS_MAX = 65_000
REPLICAS_MAX = 25
COMMANDS_PER_BATCH_MAX = 1_000
DEFAULT_BYTES_MAX = 4_096
NODE_FILTER_CHARACTERS_MAX = 1_000
TYPE_DEPTH_MAX = 16
"""How deep types nest; `list<int32>` is 2 deep."""
TYPE_PARTS_MAX = 1_000
"""How many types one type is made of, itself included."""

RESERVED_SCHEMAS = frozenset({"information_schema", "system"})
RESERVED_COLUMNS = frozenset(
    {
        "_change",
        "_change_type",
        "_commit_timestamp",
        "_commit_version",
        "_offset",
        "_partition",
        "_time",
    }
)
"""Columns that every table has by itself."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_name(kind: str, name: str) -> None:
    """Refuse what can't name a table, an index, a schema or a zone."""
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise CatalogRefused(
            f"{_shown(name)} can't name {_a(kind)}",
            reason=Reason.NAME,
            about=(kind, name),
            hint=f"Use 1 to {NAME_BYTES_MAX} of A-Z, a-z, 0-9 and '_', not starting with a digit.",
        )


def check_schema_name(name: str) -> None:
    """Refuse what can't name a schema, or names one that belongs to the system."""
    check_name("schema", name)
    if name.lower() in RESERVED_SCHEMAS:
        raise CatalogRefused(
            f"schema {name} belongs to the system",
            reason=Reason.RESERVED,
            about=("schema", name),
            hint="Use a schema of your own.",
        )


def check_column_name(name: str, *, kind: str = "column") -> None:
    """Refuse what can't name a column, or a field of a struct."""
    # Printable text has no lone surrogates, so it can be encoded.
    if (
        not name.strip()
        or name != name.strip()
        or not name.isprintable()
        or len(name.encode()) > NAME_BYTES_MAX
    ):
        raise CatalogRefused(
            f"{_shown(name)} can't name {_a(kind)}",
            reason=Reason.NAME,
            about=(kind, name),
            hint=f"Use 1 to {NAME_BYTES_MAX} bytes of printable text without spaces at its ends.",
        )
    if kind == "column" and name.lower() in RESERVED_COLUMNS:
        raise CatalogRefused(
            f"column {name} is one that every table has by itself",
            reason=Reason.RESERVED,
            about=(kind, name),
            hint="Choose another name.",
        )


def check_distinct(
    names: Iterable[str], *, kind: str, of: str, fold: bool = False, of_kind: str = "table"
) -> None:
    """Refuse a list that names one thing twice; folded, `Id` and `id` are one thing.

    Column names are folded because Spark does not tell them apart by case unless told to, and a
    table must not become unreadable there.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = name.casefold() if fold else name
        if key in seen:
            other = seen[key]
            detail = "" if other == name else f"{other} and {name} differ in case only."
            raise CatalogRefused(
                f"{kind} {name} is given twice for {of_kind} {of}",
                reason=Reason.REPEATED,
                about=(kind, name),
                detail=detail,
                hint="Give it once.",
            )
        seen[key] = name


def check_range(
    value: object, *, most: int, what: str, about: tuple[str, str], least: int = 1
) -> None:
    """Refuse a number outside its range."""
    if isinstance(value, bool) or not (isinstance(value, int) and least <= value <= most):
        raise CatalogRefused(
            f"{about[0]} {about[1]} can't have {value!r} {what}",
            reason=Reason.LIMIT,
            about=about,
            hint=f"Choose from {least} to {most}.",
        )


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _shown(name: str) -> str:
    shown = repr(name)
    return shown if len(shown) <= 60 else f"{shown[:50]}…' ({len(name)} characters)"
