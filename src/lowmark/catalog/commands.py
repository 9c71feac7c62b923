"""A batch of commands against a catalog: all of it, or nothing.

A command checks its shape when it is made and its sense when it meets a catalog. Each command of a
batch sees what those before it did. One that has nothing to do gives no entries; a batch in which
none has anything to do makes no version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowmark.catalog.catalog import DEFAULT_SCHEMA, DEFAULT_ZONE, Catalog, CatalogVersion
from lowmark.catalog.column_commands import ColumnCommand
from lowmark.catalog.descriptors import IndexStatus
from lowmark.catalog.entries import Entry, NewIndex, apply
from lowmark.catalog.index_commands import IndexCommand
from lowmark.catalog.names import COMMANDS_PER_BATCH_MAX, check_range
from lowmark.catalog.schema_commands import CreateSchema, SchemaCommand
from lowmark.catalog.table_commands import TableCommand
from lowmark.catalog.zone_commands import CreateZone, SetDefaultZone, ZoneCommand

Command = TableCommand | ColumnCommand | IndexCommand | ZoneCommand | SchemaCommand

INITIAL_COMMANDS: tuple[Command, ...] = (
    CreateSchema(name=DEFAULT_SCHEMA),
    CreateZone(name=DEFAULT_ZONE),
    SetDefaultZone(name=DEFAULT_ZONE),
)
"""What makes version 1 of every catalog."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a batch would change, and which of its commands had something to do."""

    entries: tuple[Entry, ...]
    applied: tuple[bool, ...]


def evaluate(catalog: Catalog, commands: Sequence[Command]) -> Evaluation:
    """The entries of a batch, or the refusal of its first command that can't be."""
    check_range(
        len(commands),
        least=0,
        most=COMMANDS_PER_BATCH_MAX,
        what="commands",
        object_kind="batch",
        object_name="of commands",
    )
    entries: list[Entry] = []
    applied: list[bool] = []
    now = catalog
    for command in commands:
        made = tuple(_born(catalog, entry) for entry in command.entries(now))
        now = apply(
            now,
            made,
            version=CatalogVersion(catalog.version + 1),
            time=catalog.time,
            activates_at=catalog.activates_at,
        )
        entries += made
        applied.append(bool(made))
    return Evaluation(tuple(entries), tuple(applied))


def _born(before: Catalog, entry: Entry) -> Entry:
    # A table that is made in this very batch has no rows: its index is built already.
    if isinstance(entry, NewIndex) and entry.index.table_id not in before.tables:
        return NewIndex(replace(entry.index, status=IndexStatus.AVAILABLE))
    return entry
