"""`lowmark table`: make tables, look at them, change them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from lowmark.catalog import (
    DEFAULT_SCHEMA,
    OPTIONS,
    AddColumns,
    AlterColumn,
    AlterTable,
    CatalogRefused,
    Command,
    CreateTable,
    DropColumns,
    NewColumn,
    RenameColumn,
    SetTableOptions,
    Value,
    diff,
    parse_type,
    parse_value,
    type_text,
    value_text,
)
from lowmark.cli.cursor import cursor_rows, show_cursors
from lowmark.cli.database import DatabaseOption, TableArgument, listed, opened_database
from lowmark.cli.formatting import facts_of
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import FAILED, WrongUse, help_if_bare, wrong_use
from lowmark.client import Database, TableUnknown
from lowmark.convert.columns import columns_of, of_column
from lowmark.errors import Rejected, Unavailable
from lowmark.formatting import bytes_text, counted, verb
from lowmark.table import SYSTEM_COLUMNS

# Columns as a command line has them: `id string not null, price decimal(10,2) default 0`.
#
# A column is its name, its type, `not null` if it must have a value, and `default` with a value. A
# name that has blanks or commas in it stands in backticks, a default in single quotes; both are
# doubled inside their own kind.

_HINT = 'Write it as "id string not null, price decimal(10,2) default 0".'
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`,]+))\s*(.*)", re.DOTALL)
_DEFAULT = re.compile(r"\s+default\s+(.*)", re.DOTALL | re.IGNORECASE)
_NOT_NULL = re.compile(r"\s+not\s+null\s*$", re.IGNORECASE)
_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_OPENING, _CLOSING = "<(", ">)"


def parse_columns(text: str) -> list[NewColumn]:
    """All columns of a list."""
    return [_parse_column(part) for part in _split(text)]


def _split(text: str) -> Iterator[str]:
    """Cut at commas that stand neither in quotes nor inside of a type."""
    depth, quote, begin = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'":
            quote = sign
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if quote:
        raise WrongUse(f"a quote is not closed in {text!r}", hint=_HINT)
    yield text[begin:]


def _parse_column(text: str) -> NewColumn:
    found = _NAME.fullmatch(text)
    if found is None or not found[3].strip():
        raise WrongUse(f"{text.strip()!r} is not a column with its type", hint=_HINT)
    name = found[2] if found[1] is None else found[1].replace("``", "`")
    return _column(name, found[3])


def _column(name: str, words: str) -> NewColumn:
    """A column from its name and all that stands behind it."""
    given: str | None = None
    found = _DEFAULT.search(_without_backticks(words))
    if found is not None:
        words, given = words[: found.start()], words[found.start(1) :].strip()
    required = _NOT_NULL.search(words) is not None
    if given is not None and not _QUOTED.fullmatch(given) and _NOT_NULL.search(given):
        required, given = True, _NOT_NULL.sub("", given)
    try:
        kind = parse_type(_NOT_NULL.sub("", words).strip())
    except CatalogRefused as error:
        raise of_column(error, name) from error
    default: Value | None = None
    if given is not None:
        quoted = _QUOTED.fullmatch(given)
        plain = given if quoted is None else quoted[1].replace("''", "'")
        default = parse_value(kind, plain, column=name)
    return NewColumn(name=name, type=kind, required=required, default=default)


def _without_backticks(words: str) -> str:
    """The same with other signs inside of backticks, where a field may be called ` default `."""
    return re.sub(r"`(?:[^`]|``)*`", lambda found: "`" * len(found[0]), words)


# -- files --------------------------------------------------------------------------------------


def read_columns(path: Path) -> list[NewColumn]:
    """The columns that a file has: of Parquet or Arrow, or JSON of names and types."""
    if not path.is_file():
        raise WrongUse(f"there is no file {path}")
    try:
        if path.suffix == ".json":
            return _from_json(path)
        schema = _arrow_schema(path)
    except (OSError, pa.ArrowException) as error:
        lines = str(error).splitlines() or [""]
        raise Rejected(
            f"the schema of {path} can't be read",
            detail=f"{lines[0]}.",
            hint="Give a .parquet or .arrow file, or .json: an object of names and types.",
        ) from error
    fields = [field for field in schema if field.name not in SYSTEM_COLUMNS]
    return list(columns_of(fields, ()))


def _arrow_schema(path: Path) -> pa.Schema:
    with path.open("rb") as opened:
        head = opened.read(6)
    if head.startswith(b"PAR1"):
        return pq.read_schema(path)
    with pa.OSFile(str(path)) as file:
        if head == b"ARROW1":
            return pa.ipc.open_file(file).schema
        return pa.ipc.open_stream(file).schema


def _from_json(path: Path) -> list[NewColumn]:
    try:
        # An object becomes a tuple of pairs: a name that is there twice is seen.
        found = json.loads(path.read_text(), object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{path} is not JSON: {error}") from error
    pairs = found if isinstance(found, tuple) else ()
    if not pairs or not all(isinstance(words, str) for _, words in pairs):
        raise Rejected(
            f"{path} is not an object of names and types",
            hint='Write it as {"id": "string not null", "price": "decimal(10,2)"}.',
        )
    return [_column(name, f" {words}") for name, words in pairs]


app = typer.Typer(invoke_without_command=True)

T = TypeVar("T")


@app.callback()
def table(ctx: typer.Context) -> None:
    """Create, show, change and drop tables."""
    help_if_bare(ctx)


# -- creating -----------------------------------------------------------------------------------


@app.command()
def create(
    ctx: typer.Context,
    name: TableArgument,
    columns: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Names and types: 'id string, price decimal(10,2)'."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Take the columns from a .parquet, .arrow or .json file."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Columns of the key: id, or order,line.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="the zone's")
    ] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", show_default="the default zone")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the table; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail if the table exists.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Create a table; if there is no database in the directory, make one.

    A column is its name and type, then `not null` if it must have a value, then `default` and a
    value. Columns of the key always have a value. Key, zone and number of partitions never change.

    With --json, one object: table, created, columns, key, partitions.

    Example: lowmark table create t --columns "id string" --key id --data ./shop
    """
    command = _creation(
        name,
        _columns(columns, schema),
        key=listed(key),
        partitions=partitions,
        zone=zone,
        options=_pairs(option, "--option"),
        if_not_exists=if_not_exists,
    )
    # What is wrong on its face was said before a directory is made.
    with opened_database(ctx, data, create=True) as database:
        [created] = database.execute([command]).applied
        made = database.table(name)
        facts: dict[str, Any] = {
            "table": name,
            "created": created,
            "columns": {column.name: type_text(column.type) for column in made.descriptor.columns},
            "key": list(made.key),
            "partitions": made.partitions,
        }
    if as_json:
        show_json(facts)
    elif not created:
        print(f"nothing to do: there is a table {name}")
    else:
        words = f"key {', '.join(facts['key'])}" if facts["key"] else "no key"
        print(
            f"created table {name}: {counted(len(facts['columns']), 'column')}, {words},"
            f" {counted(facts['partitions'], 'partition')}"
        )


def _creation(
    name: str,
    columns: list[NewColumn],
    *,
    key: list[str],
    partitions: int | None,
    zone: str | None,
    options: dict[str, str],
    if_not_exists: bool,
) -> CreateTable:
    schema, plain = _path(name)
    with wrong_use():
        return CreateTable(
            name=plain,
            schema=schema,
            # A column of the key always has a value.
            columns=tuple(
                replace(column, required=True) if column.name in key else column
                for column in columns
            ),
            key=tuple(key),
            partitions=partitions,
            zone=zone,
            options=options,
            if_not_exists=if_not_exists,
        )


def _columns(text: str | None, file: Path | None) -> list[NewColumn]:
    if (text is None) == (file is None):
        raise WrongUse("give either --columns or --schema", hint="`lowmark table create --help`.")
    with wrong_use():
        if text is not None:
            return parse_columns(text)
        assert file is not None
        return read_columns(file)


def _pairs(words: Iterable[str] | None, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise WrongUse(
                f"{word!r} is not a name and a value", hint=f"Write {option} name=value."
            )
        if name.strip() in found:
            raise WrongUse(f"{option} names {name.strip()} twice")
        found[name.strip()] = value.strip()
    return found


# -- looking ------------------------------------------------------------------------------------


@app.command("list")
def list_(ctx: typer.Context, data: DatabaseOption = None, as_json: Json = False) -> None:
    """List tables, with what they hold.

    With --json, a list: table, key, columns, partitions, rows, bytes, cursors. Of a table of whose
    partitions no copy answers, the last three are null, and stderr says why.

    Example: lowmark table list --data ./shop
    """
    rows: list[dict[str, Cell]] = []
    with opened_database(ctx, data) as database:
        for name in database.tables():
            one = database.table(name)
            row: dict[str, Cell] = {
                "table": name,
                "key": ", ".join(one.key) or None,
                "columns": len(one.descriptor.columns),
                "partitions": one.partitions,
            }
            rows.append(row)
            try:
                kept = one.explain()
                row["rows"] = kept.readable_rows
                row["bytes"] = kept.bytes + kept.ledger_bytes
                row["cursors"] = len(one.cursors.list())
            except Unavailable as away:
                if type(away).__name__ != "CopiesAway":  # its module is a long one to import
                    raise
                # The other tables can be listed all the same.
                row |= dict.fromkeys(("rows", "bytes", "cursors"))
                print(f"lowmark: table {name}: {away.one_line()}", file=sys.stderr)
    columns = ("table", "key", "columns", "partitions", "rows", "bytes", "cursors")
    show_table(rows, columns=columns, as_json=as_json)


@app.command()
def show(
    ctx: typer.Context,
    name: TableArgument,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show a table: its columns and options, what each partition holds, its cursors, warnings.

    The backlog of a partition goes from start to end; its ledger has what lies below the horizon.
    Rows are those of ledgers, without deletes, and all changes that came after them.

    With --json, one object: table, id, zone, replicas, key, schema_version,
    oldest_schema_version, rows, bytes, backlog_rows, backlog_bytes, ledger_rows, ledger_deletes,
    ledger_bytes, columns, options, partitions, cursors, warnings.

    Example: lowmark table show orders --data ./shop
    """
    with opened_database(ctx, data) as database:
        found = _described(database, name)
    if as_json:
        show_json(found)
        return
    facts: dict[str, Cell] = {
        "table": found["table"],
        "key": ", ".join(found["key"]) or "none",
        "rows": f"{found['rows']:,}: {found['ledger_rows']:,} in ledgers, and changes after them",
        "backlog_rows": found["backlog_rows"],
        "bytes": f"{bytes_text(found['bytes'])}, of which {bytes_text(found['ledger_bytes'])}"
        " are ledgers",
        "zone": f"{found['zone']}, {counted(found['replicas'], 'replica')}",
        "schema_versions": f"{found['oldest_schema_version']} to {found['schema_version']}",
    }
    show_facts(facts, as_json=False)
    for title in ("columns", "options", "partitions"):
        print()
        show_table(found[title], columns=list(found[title][0]), as_json=False, title=title)
    if found["cursors"]:
        print()
        show_cursors(found["cursors"], title="cursors")
    for warning in found["warnings"]:
        print(f"\nwarning: {warning}")


def _described(database: Database, name: str) -> dict[str, Any]:
    one = database.table(name)
    descriptor, kept = one.descriptor, one.explain()
    zone = database.catalog.zones[descriptor.zone_id]
    cursors = cursor_rows(one)
    given = dict(descriptor.options)
    return {
        "table": name,
        "id": descriptor.id,
        "zone": zone.name,
        "replicas": zone.replicas,
        "key": list(one.key),
        "schema_version": descriptor.latest.number,
        "oldest_schema_version": descriptor.schemas[0].number,
        "rows": kept.readable_rows,
        "bytes": kept.bytes + kept.ledger_bytes,
        "backlog_rows": kept.rows,
        "backlog_bytes": kept.bytes,
        **facts_of(kept, "ledger_rows ledger_deletes ledger_bytes"),
        "columns": [
            {
                "name": column.name,
                "type": type_text(column.type),
                "required": column.required,
                "default": None if column.default is None else value_text(column.default),
            }
            for column in descriptor.columns
        ],
        "options": [
            {
                "name": option.name,
                "value": given.get(option.name, option.default),
                "set": option.name in given,
            }
            for option in OPTIONS.values()
        ],
        "partitions": [
            {
                **facts_of(part, "partition start end"),
                "rows": part.end - part.start,
                **facts_of(part, "batches bytes horizon"),
                "ledger_rows": part.ledger.rows if part.ledger is not None else 0,
                "ledger_bytes": part.ledger.bytes if part.ledger is not None else 0,
            }
            for part in kept.partitions
        ],
        "cursors": cursors,
        "warnings": [
            *zone.warnings,
            *(f"cursor {row['cursor']} {row['warning']}" for row in cursors if row["warning"]),
        ],
    }


# -- changing -----------------------------------------------------------------------------------


@app.command()
def alter(
    ctx: typer.Context,
    name: TableArgument,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A new column: 'note string [not null] [default v]'."),
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN")] = None,
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW")] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=TYPE", help="Give a column a type that holds more."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="OPTION=VALUE")] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Set an option back to its default.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Refused: the error says how to copy the table."),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Change a table's columns and options: all changes in one version of the catalog, or none.

    Each option may be given several times. Use the names that columns have before the change; what
    is added comes last, so a name that was dropped or given away may be used again. The number of
    partitions never changes.

    With --json, one object: table, version, schema_version, changes.

    Example: lowmark table alter orders --add "note string" --data ./shop
    """
    schema, plain = _path(name)
    commands = _alterations(
        schema, plain, add=add, drop=drop, rename=rename, widen=widen, set_=set_, unset=unset
    )
    if partitions is not None:
        with wrong_use():
            fixed = AlterTable(name=plain, schema=schema, partitions=partitions)
        commands.insert(0, fixed)
    if not commands:
        raise WrongUse("no change is given", hint="See `lowmark table alter --help`.")
    with opened_database(ctx, data) as database:
        one = database.table(name)  # an unknown name gets a better answer here
        before = database.catalog
        after = database.execute(commands).catalog
        changes = [each.text for each in diff(before, after)]
        found = {
            "table": name,
            "version": after.version,
            "schema_version": after.tables[one.descriptor.id].latest.number,
            "changes": changes,
        }
    if as_json:
        show_json(found)
    elif not changes:
        print(f"nothing to do: version {after.version} has it all")
    else:
        print(f"version {after.version} is in force")
        for change in changes:
            print(f"  {change}")


def _alterations(
    schema: str,
    table: str,
    *,
    add: list[str] | None,
    drop: list[str] | None,
    rename: list[str] | None,
    widen: list[str] | None,
    set_: list[str] | None,
    unset: list[str] | None,
) -> list[Command]:
    commands: list[Command] = []
    with wrong_use():
        for column, kind in _pairs(widen, "--widen").items():
            wider = AlterColumn(table=table, schema=schema, column=column, type=parse_type(kind))
            commands.append(wider)
        if drop:
            commands.append(DropColumns(table=table, schema=schema, columns=tuple(drop)))
        renames = _pairs(rename, "--rename")
        commands += RenameColumn.several(renames, table=table, schema=schema)
        if add:
            columns = tuple(column for text in add for column in parse_columns(text))
            commands.append(AddColumns(table=table, schema=schema, columns=columns))
        options: dict[str, str | int | None] = dict(_pairs(set_, "--set"))
        for option in unset or ():
            if option in options:
                raise Rejected(f"option {option} is both set and unset")
            options[option] = None
        if options:
            commands.append(SetTableOptions(table=table, schema=schema, options=options))
    return commands


def _path(name: str) -> tuple[str, str]:
    schema, dot, plain = name.rpartition(".")
    return (schema, plain) if dot else (DEFAULT_SCHEMA, name)


@app.command()
def schemas(
    ctx: typer.Context,
    name: TableArgument,
    trim: Annotated[
        bool, typer.Option("--trim", help="Forget the versions that nothing needs any more.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show which schema versions of a table may be forgotten, and what needs the others.

    Every alteration of columns makes a version. It stays as long as a row, a file of a ledger, a
    reader or a run needs it, and until the low watermark has passed the alteration that replaced
    it; then the next run of compaction forgets it.

    With --json, one object: table, trim, first, keep_from, latest, held_by (version, holder).

    Example: lowmark table schemas orders --data ./shop
    """
    with opened_database(ctx, data) as database:
        told = database.table(name).trim_schemas(dry_run=not trim)
    if as_json:
        held = [one._asdict() for one in told.held_by]
        facts = {"first": told.first, "keep_from": told.keep_from, "latest": told.latest}
        show_json({"table": name, "trim": trim, **facts, "held_by": held})
        return
    for one in told.held_by:
        print(f"version {one.version} is needed by {one.holder}")
    if not told.trimmed:
        print(f"nothing to forget: there are versions {told.first} to {told.latest}")
    else:
        be = "may be" if not trim else verb(told.trimmed, "were")
        print(f"{counted(told.trimmed, 'schema version')} {be} forgotten")


@app.command()
def drop(
    ctx: typer.Context,
    name: TableArgument,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if there is no such table.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Drop a table. You can read it as of earlier times until the low watermark passes the drop.

    On a terminal, the command asks first, unless --yes is given.

    With --json, one object: table, dropped.

    Example: lowmark table drop orders --yes --data ./shop
    """
    with opened_database(ctx, data) as database:
        found = _unless_unknown(lambda: database.table(name), unknown_ok=if_exists)
        if found is not None:
            if not yes:
                _ask(name, found.explain().readable_rows, as_json=as_json)
            database.drop_table(name)
    if as_json:
        show_json({"table": name, "dropped": found is not None})
    elif found is None:
        print(f"nothing to do: there is no table {name}")
    else:
        print(f"dropped table {name}")


def _unless_unknown(ask: Callable[[], T], *, unknown_ok: bool) -> T | None:
    try:
        return ask()
    except TableUnknown:
        if not unknown_ok:
            raise
        return None


def _ask(name: str, rows: int, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise WrongUse(
            f"table {name} has {counted(rows, 'row')}, and there is no terminal to ask on",
            hint="Give --yes to drop it without being asked.",
        )
    if not typer.confirm(f"Drop table {name} with {counted(rows, 'row')}?", err=True):
        print("nothing was dropped", file=sys.stderr)
        raise typer.Exit(FAILED)
