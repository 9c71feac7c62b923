"""Short ways to make catalogs for tests."""

from __future__ import annotations

from lowmark.catalog import Catalog, Command, CreateTable, NewColumn, Table
from lowmark.catalog.catalog import EMPTY, CatalogVersion
from lowmark.catalog.commands import INITIAL_COMMANDS, evaluate
from lowmark.catalog.history import Update, apply_update
from lowmark.catalog.serializers import decode_update, encode_update
from lowmark.runtime import HybridTime

__all__ = ["DELAY_MS", "STEP", "execute", "fresh", "orders", "table_of", "update_of"]

DELAY_MS = 500
STEP = 1_000 << 16
TOKEN = bytes(range(16))


def update_of(catalog: Catalog, *commands: Command, delay_ms: int = DELAY_MS) -> Update:
    """The update that a batch comes to."""
    return Update(
        version=CatalogVersion(catalog.version + 1),
        delay_ms=delay_ms,
        author=1,
        token=TOKEN,
        entries=evaluate(catalog, commands).entries,
    )


def execute(catalog: Catalog, *commands: Command) -> Catalog:
    """The catalog after a batch, which goes through bytes as it would through the update log. A
    batch that does nothing makes no version.
    """
    update = update_of(catalog, *commands)
    if not update.entries:
        return catalog
    read = decode_update(encode_update(update))
    assert read == update
    return apply_update(catalog, read, time=HybridTime(catalog.time + STEP))


def fresh(*commands: Command) -> Catalog:
    """Version 1, and then one version per command."""
    update = update_of(EMPTY, *INITIAL_COMMANDS, delay_ms=0)
    catalog = apply_update(EMPTY, update, time=HybridTime(EMPTY.time + STEP))
    for command in commands:
        catalog = execute(catalog, command)
    return catalog


def orders(name: str = "orders", **more: object) -> CreateTable:
    """A table that is good for most things."""
    given: dict[str, object] = {
        "columns": (
            NewColumn.of("id", "int64", required=True),
            NewColumn.of("city", "string"),
            NewColumn.of("amount", "decimal(10,2)"),
            NewColumn.of("small", "int16"),
        ),
        "key": ("id",),
        **more,
    }
    return CreateTable(name=name, **given)  # type: ignore[arg-type]


def table_of(catalog: Catalog, name: str = "orders", schema: str = "public") -> Table:
    """A table that is there."""
    table = catalog.table_named(schema, name)
    assert table is not None
    return table
