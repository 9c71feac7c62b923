"""A batch of commands against a catalog: all of it, or nothing.

A command checks its shape when it is made and its sense when it meets a catalog. Each command of a
batch sees what those before it did. One that has nothing to do gives no entries; a batch in which
none has anything to do makes no version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

import msgspec

from lowmark.catalog.catalog import DEFAULT_SCHEMA, DEFAULT_ZONE, Catalog, CatalogVersion
from lowmark.catalog.descriptors import IndexStatus
from lowmark.catalog.entries import Entry, NewIndex, apply
from lowmark.catalog.errors import CatalogRefused, IndexNotBuildable, Reason
from lowmark.catalog.index_commands import (
    CreateIndex,
    IndexCommand,
    MakeIndexAvailable,
    RemoveIndex,
    StartBuildingIndex,
)
from lowmark.catalog.names import COMMANDS_PER_BATCH_MAX, check_range
from lowmark.catalog.schema_commands import (
    CreateSchema,
    CreateZone,
    SchemaCommand,
    SetDefaultZone,
    ZoneCommand,
)
from lowmark.catalog.table_commands import (
    AlterColumn,
    ColumnCommand,
    NewColumn,
    TableCommand,
    TrimTableSchemas,
)
from lowmark.catalog.types import ColumnType, parse_type
from lowmark.catalog.values import Value, canonical, parse_value

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


@dataclass(frozen=True, slots=True)
class Executed:
    """What became of a list of commands."""

    catalog: Catalog
    """The version in which they are done."""
    applied: tuple[bool, ...]
    """Which of them changed something."""

    def __repr__(self) -> str:
        # A catalog is long: in a shell, the answer to a change would fill the screen.
        return f"Executed(version={self.catalog.version}, applied={self.applied})"


def check_buildable(commands: Sequence[Command]) -> None:
    """Refuse new indexes of users (`IndexNotBuildable`): no release builds, reads or enforces them.

    The command itself stays. Catalogs have indexes that earlier releases made, and simulations see
    to it that what is to be built holds later versions.
    """
    for command in commands:
        if isinstance(command, CreateIndex):
            raise IndexNotBuildable(command.name, table=command.table)


def evaluate(catalog: Catalog, commands: Sequence[Command]) -> Evaluation:
    """The entries of a batch, or the refusal of its first command that can't be."""
    check_range(
        len(commands),
        least=0,
        most=COMMANDS_PER_BATCH_MAX,
        what="commands",
        about=("batch", "of commands"),
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
    if not isinstance(entry, NewIndex):
        return entry
    index = entry.index
    # A table that is made in this very batch has no rows: its index is built already.
    if index.table_id not in before.tables:
        return NewIndex(replace(index, status=IndexStatus.AVAILABLE))
    return entry


# Commands as people and programs write them down: JSON-like values.
#
#     {"create_table": {"name": "orders", "key": ["id"],
#                       "columns": [{"name": "id", "type": "int64", "required": true}]}}
#
# One key says which command, its value has the command's fields by name; types and defaults are
# text, as `catalog show` prints them. What can't be a command is refused as a command would be.

_INTERNAL = {StartBuildingIndex, MakeIndexAvailable, RemoveIndex, TrimTableSchemas}
"""Steps of Lowmark's own: no user sends them."""


def _named(*unions: UnionType) -> dict[str, type[Any]]:
    kinds = [kind for union in unions for kind in get_args(union) if kind not in _INTERNAL]
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower(): kind for kind in kinds}


_COMMANDS: Final = _named(TableCommand, ColumnCommand, IndexCommand, ZoneCommand, SchemaCommand)
COMMAND_NAMES: Final = tuple(sorted(_COMMANDS))


def read_commands(wishes: object) -> tuple[Command, ...]:
    """A list of commands, or a single one."""
    listed = wishes if isinstance(wishes, Sequence) and not isinstance(wishes, str) else [wishes]
    return tuple(read_command(wish) for wish in listed)


def read_command(wish: object) -> Command:
    """One command."""
    if not isinstance(wish, Mapping) or len(wish) != 1:
        raise _refused("a command is an object with one key, its name", "command")
    [(name, given)] = wish.items()
    kind = _COMMANDS.get(name)
    if kind is None:
        raise _refused(f"there is no command {name!r}", str(name))
    if not isinstance(given, Mapping):
        raise _refused(f"the fields of {name} are an object", name)
    values = dict(given)
    _check_fields(name, kind, values)
    if "columns" in values and _wants_columns(kind):
        values["columns"] = _columns(values["columns"], name)
    if kind is AlterColumn:
        _read_altered(values, name)
    command: Command = kind(**values)
    return command


def _check_fields(name: str, kind: type[Any], values: Mapping[str, object]) -> None:
    known = {field.name: field for field in fields(kind)}
    hints = get_type_hints(kind)
    for field_name, value in values.items():
        if field_name not in known:
            there = ", ".join(sorted(known))
            raise _refused(f"{name} has no field {field_name!r}; it has {there}", name)
        if field_name in {"columns", "type", "default", "options"}:
            continue  # read, or checked, where they are used
        try:
            msgspec.convert(value, hints[field_name])
        except msgspec.ValidationError as error:
            raise _refused(f"{field_name} of {name}: {error}", name) from error
    required = [
        field.name
        for field in fields(kind)
        if field.default is field.default_factory and field.name not in values
    ]
    if required:
        raise _refused(f"{name} needs {', '.join(required)}", name)
    options = values.get("options", {})
    if not isinstance(options, Mapping):
        raise _refused(f"options of {name} are an object", name)


def _wants_columns(kind: type[Any]) -> bool:
    return bool(get_type_hints(kind)["columns"] == tuple[NewColumn, ...])


class _WrittenColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    type: str
    required: bool = False
    default: str | int | float | bool | None = None


def _columns(given: object, command: str) -> tuple[NewColumn, ...]:
    try:
        written = msgspec.convert(given, tuple[_WrittenColumn, ...])
    except msgspec.ValidationError as error:
        raise _refused(f"columns of {command}: {error}", command) from error
    return tuple(_column(one) for one in written)


def _column(written: _WrittenColumn) -> NewColumn:
    column_type = parse_type(written.type)
    default = None
    if written.default is not None:
        default = _value(column_type, written.default, written.name)
    return NewColumn(
        name=written.name, type=column_type, required=written.required, default=default
    )


def _value(column_type: ColumnType, given: object, column: str) -> Value:
    if isinstance(given, str):
        return parse_value(column_type, given, column=column)
    return canonical(column_type, given, column=column)


def _read_altered(values: dict[str, Any], name: str) -> None:
    """A new type is text; a new default needs a type to be read by, unless it is plain."""
    if values.get("type") is not None:
        if not isinstance(values["type"], str):
            raise _refused(f"the type in {name} is text, such as 'int64'", name)
        values["type"] = wanted = parse_type(values["type"])
        if isinstance(values.get("default"), str):
            column = str(values.get("column", ""))
            values["default"] = parse_value(wanted, values["default"], column=column)


def _refused(message: str, name: str) -> CatalogRefused:
    return CatalogRefused(
        message,
        reason=Reason.NAME,
        about=("command", name),
        hint=f"Commands: {', '.join(COMMAND_NAMES)}.",
    )
