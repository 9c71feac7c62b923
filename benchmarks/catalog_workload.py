"""Histories of a catalog, made of commands as people give them. Pure.

Tables come, are altered, and go, so a catalog has as many tables at the end of a long history as at
the end of a short one, with the same columns and the same schema versions:

    life of a table    create, add a column, rename one, widen one, drop the table
    a long history     lives of all tables, one command per version; the last ones do not end
    a short history    the same last lives, the same step of all tables in one version
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    Catalog,
    Command,
    CreateTable,
    DropTable,
    History,
    NewColumn,
    RenameColumn,
    SetTableOptions,
    parse_type,
)
from lowmark.catalog.catalog import EMPTY, CatalogVersion
from lowmark.catalog.commands import INITIAL_COMMANDS, evaluate
from lowmark.catalog.history import TOKEN_BYTES, Update, apply_update
from lowmark.errors import invariant
from lowmark.runtime import COUNTER_BITS, HybridTime

Batch = tuple[Command, ...]
"""The commands that make one version."""

DELAY_MS = 500
TABLES_PER_BATCH = 1_000


def _name(number: int) -> str:
    return f"table_{number:05d}"


def creating(number: int) -> Command:
    """A table with a key and three columns."""
    columns = (
        NewColumn.of("id", "int64", required=True),
        NewColumn.of("note", "string"),
        NewColumn.of("amount", "int32"),
    )
    return CreateTable(name=_name(number), columns=columns, key=("id",))


def adding(number: int) -> Command:
    """One more column for it."""
    return AddColumns(table=_name(number), columns=(NewColumn.of("seen_at", "timestamp"),))


def _renaming(number: int) -> Command:
    return RenameColumn(table=_name(number), column="note", to="remark")


def _widening(number: int) -> Command:
    return AlterColumn(table=_name(number), column="amount", type=parse_type("int64"))


def _dropping(number: int) -> Command:
    return DropTable(name=_name(number))


_GROWS: tuple[Callable[[int], Command], ...] = (creating, adding, _renaming, _widening)
_LIFE = (*_GROWS, _dropping)


def batches(*, versions: int, tables: int) -> list[Batch]:
    """What makes the versions after the first, up to that one."""
    wanted = versions - 1
    made: list[Batch] = []
    if wanted < len(_GROWS) * tables:
        made += [tuple(step(number) for number in range(tables)) for step in _GROWS]
    else:
        lives = (wanted - len(_GROWS) * tables) // (len(_LIFE) * tables)
        steps = [*_LIFE * lives, *_GROWS]
        made += [(step(number),) for step in steps for number in range(tables)]
    invariant(len(made) <= wanted, f"{versions} versions are enough for {len(_GROWS)} steps")
    # What is left is the same table, set to and fro.
    for number in range(wanted - len(made)):
        word = ("lz4", "zstd")[number % 2]
        made.append((SetTableOptions(table=_name(0), options={"compression": word}),))
    return made


def updates(catalog: Catalog, todo: Sequence[Batch], *, author: int) -> Iterator[Update]:
    """The updates that these batches come to, on top of a catalog."""
    for commands in todo:
        version = CatalogVersion(catalog.version + 1)
        update = Update(
            version=version,
            delay_ms=DELAY_MS,
            author=author,
            token=int(version).to_bytes(TOKEN_BYTES),
            entries=evaluate(catalog, commands).entries,
        )
        invariant(update.entries, "every batch of a history changes something")
        yield update
        catalog = apply_update(catalog, update, time=HybridTime(catalog.time + 1))


def history_of(*, versions: int, tables: int) -> History:
    """A history in memory, a version a second."""
    history, time = History(), HybridTime(1_700_000_000_000 << COUNTER_BITS)
    todo = [INITIAL_COMMANDS, *batches(versions=versions, tables=tables)]
    for update in updates(EMPTY, todo, author=1):
        time = HybridTime(time + (1_000 << COUNTER_BITS))
        history.add(apply_update(history.latest, update, time=time))
    invariant(history.latest.version == versions, "the history has as many versions as asked for")
    return history


def catalog_with(tables: int) -> Catalog:
    """A catalog with so many tables."""
    starts = range(0, tables, TABLES_PER_BATCH)
    todo: list[Batch] = [INITIAL_COMMANDS]
    for start in starts:
        numbers = range(start, min(start + TABLES_PER_BATCH, tables))
        todo.append(tuple(creating(number) for number in numbers))
    catalog = EMPTY
    for update in updates(EMPTY, todo, author=1):
        catalog = apply_update(catalog, update, time=HybridTime(catalog.time + 1))
    invariant(len(catalog.tables) == tables, "the catalog has as many tables as asked for")
    return catalog
