"""`lowmark cursor`: named durable readers of a table, and what is kept for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from lowmark.catalog import duration_text
from lowmark.cli.database import (
    NUMBER_MAX,
    DatabaseOption,
    TableArgument,
    offsets_of,
    opened_database,
    parse_place,
)
from lowmark.cli.formatting import facts_of
from lowmark.cli.output import Json, show_json, show_table
from lowmark.cli.session import WrongUse, help_if_bare
from lowmark.formatting import bytes_text, counted, time_text, times_text
from lowmark.node.status import WAITING_MS_MAX, cursor_warning
from lowmark.runtime import millis_of
from lowmark.table import CHANGE, TIME

if TYPE_CHECKING:
    from lowmark.client import CursorPlace, Table, TableCursor

app = typer.Typer(invoke_without_command=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The cursor's name.")]
KINDS = ("raw", "compacted")
_PLACE = "earliest, latest, a time, or offsets by partition: 0:17,1:4."
ToOption = Annotated[str, typer.Option("--to", metavar="PLACE", help=f"Where to: {_PLACE}")]


@app.callback()
def cursor(ctx: typer.Context) -> None:
    """Manage cursors: named readers of a table, for which the rows that they have not read stay."""
    help_if_bare(ctx)


@app.command("list")
def list_(
    ctx: typer.Context, table: TableArgument, data: DatabaseOption = None, as_json: Json = False
) -> None:
    """List a table's cursors: how far behind each is, and how much it keeps.

    With --json, a list: cursor, kind, lag_rows, pinned_bytes, moved, age_ms, overdue,
    max_lag_rows, max_lag_ms, idle_expiry_ms, expired, position, warning.

    Example: lowmark cursor list orders --data ./shop
    """
    with opened_database(ctx, data) as database:
        rows = cursor_rows(database.table(table))
    if as_json:
        show_json(rows)
    else:
        show_cursors(rows)


def cursor_rows(table: Table) -> list[dict[str, Any]]:
    """All cursors of a table, in figures."""
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    return [_row(table, one, now_ms) for one in table.cursors.list()]


def _row(table: Table, one: TableCursor, now_ms: int) -> dict[str, Any]:
    moved_ms = max(millis_of(place.moved) for place in one.places)
    _, why = cursor_warning(
        pinned_bytes=one.pinned_bytes,
        waiting_ms=max(_waiting_ms(table, place, now_ms) for place in one.places),
        overdue=one.overdue,
    )
    return {
        "cursor": one.name,
        **facts_of(one, "kind lag_rows pinned_bytes"),
        "moved": time_text(moved_ms),
        "age_ms": max(0, now_ms - moved_ms),
        "overdue": one.overdue,
        "max_lag_rows": one.max_lag_rows or None,
        "max_lag_ms": one.max_lag_ms or None,
        "idle_expiry_ms": one.idle_expiry_ms or None,
        "expired": one.expired,
        "position": {str(number): offset for number, offset in one.position.items()},
        "warning": why,
    }


def _waiting_ms(table: Table, place: CursorPlace, now_ms: int) -> int:
    """For how long it has not moved while rows were there for it."""
    waiting_ms = now_ms - millis_of(place.moved)
    if not place.lag_rows or waiting_ms <= WAITING_MS_MAX:
        return 0
    # It may have seen everything for most of that time: ask the first row that waits.
    at = {place.partition: place.offset}
    columns = [TIME, CHANGE]  # with it, deletes are rows, too
    with table.read(columns=columns, start=at, limit=1, on_gap="skip") as reader:
        times = [row[TIME] for row in reader.to_pylist()]
    return min([waiting_ms, *(now_ms - millis_of(time) for time in times)])


def show_cursors(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> None:
    """Show what `cursor_rows` gave to people."""
    shown = [
        {
            "cursor": row["cursor"],
            "kind": row["kind"],
            "lag_rows": row["lag_rows"],
            "pinned": bytes_text(row["pinned_bytes"]),
            "moved": f"{times_text(row['age_ms'])} ago",
            "overdue": row["overdue"],
            "max_lag": _max_lag(row),
            "idle_expiry": times_text(row["idle_expiry_ms"]) if row["idle_expiry_ms"] else None,
            "position": " ".join(f"{at}:{offset}" for at, offset in row["position"].items()),
        }
        for row in rows
    ]
    columns = "cursor kind lag_rows pinned moved overdue max_lag idle_expiry position"
    show_table(shown, columns=columns.split(), as_json=False, title=title)


def _max_lag(row: Mapping[str, Any]) -> str | None:
    limits = []
    if row["max_lag_rows"]:
        limits.append(counted(row["max_lag_rows"], "row"))
    if row["max_lag_ms"]:
        limits.append(times_text(row["max_lag_ms"]))
    return ", ".join(limits) or None


def _tell(table: Table, one: TableCursor, words: str, *, as_json: bool) -> None:
    """What became of a cursor."""
    if as_json:
        [row] = [row for row in cursor_rows(table) if row["cursor"] == one.name]
        show_json(row)
        return
    position = " ".join(f"{number}:{offset}" for number, offset in one.position.items())
    print(
        f"cursor {one.name} of table {table.name} {words} {position},"
        f" {counted(one.lag_rows, 'row')} behind"
    )


# -- changing -----------------------------------------------------------------------------------


@app.command()
def create(
    ctx: typer.Context,
    table: TableArgument,
    name: NameArgument,
    kind: Annotated[
        str,
        typer.Option(metavar="KIND", help="raw: every change; compacted: the last of each key."),
    ] = "raw",
    start: Annotated[
        str, typer.Option(metavar="PLACE", help=f"Where it begins: {_PLACE}")
    ] = "earliest",
    max_lag_rows: Annotated[
        int,
        typer.Option(
            min=0, max=NUMBER_MAX, metavar="N", help="Overdue if more rows behind; 0 is no limit."
        ),
    ] = 0,
    max_lag_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=NUMBER_MAX,
            metavar="MS",
            help="Overdue if an unread row is older; 0 is no limit.",
        ),
    ] = 0,
    idle_expiry: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="It expires when it was not committed for that long ('7 days'); never, if left"
            " out.",
        ),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Create a cursor. A raw cursor keeps the backlog from its position on, until it moves.

    A cursor that falls further behind than its maximum lag is overdue: it holds nothing from then
    on, and the next command that moves it fails with an error that says so. So does one that has
    expired.

    With --json, one object: what `cursor list` shows of it.

    Example: lowmark cursor create orders billing --start latest --data ./shop
    """
    if kind not in KINDS:
        raise WrongUse(f"a cursor is {' or '.join(KINDS)}, not {kind!r}")
    if not name.isprintable():
        raise WrongUse(f"{name!r} can't name a cursor", hint="Use printable characters.")
    place = parse_place(start, option="--start")
    with opened_database(ctx, data) as database:
        one = database.table(table)
        # The two words are settled where the cursor is made: rows may come until then.
        named = (
            place if place in ("earliest", "latest") else offsets_of(place, one, option="--start")
        )
        made = one.cursors.create(
            name,
            kind=cast("Literal['raw', 'compacted']", kind),
            start=cast("Literal['earliest', 'latest'] | Mapping[int, int]", named),
            max_lag_rows=max_lag_rows,
            max_lag_ms=max_lag_ms,
            idle_expiry=idle_expiry,
        )
        _tell(one, made, "begins at", as_json=as_json)


@app.command()
def commit(
    ctx: typer.Context,
    table: TableArgument,
    name: NameArgument,
    to: ToOption,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Commit what was read: the cursor moves forward, and no longer keeps the rows behind it.
    `move` is the older name of this command.

    With --json, one object: what `cursor list` shows of it.

    Example: lowmark cursor commit orders billing --to 0:1200,1:1187 --data ./shop
    """
    _commit(ctx, table, name, to, data, reset=False, as_json=as_json)


app.command(
    "move", hidden=True, help=(commit.__doc__ or "").replace("cursor commit", "cursor move")
)(commit)


@app.command()
def reset(
    ctx: typer.Context,
    table: TableArgument,
    name: NameArgument,
    to: ToOption,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Move a cursor to any position, also back. A cursor that was overdue holds rows again.

    With --json, one object: what `cursor list` shows of it.

    Example: lowmark cursor reset orders billing --to earliest --data ./shop
    """
    _commit(ctx, table, name, to, data, reset=True, as_json=as_json)


@app.command()
def renew(
    ctx: typer.Context,
    table: TableArgument,
    name: NameArgument,
    idle_expiry: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="From now on it expires when it was not committed for that long ('7 days'); '0 s':"
            " never.",
        ),
    ],
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Say that a cursor's reader is still there, and for how long it may stay away from now on.

    A cursor that has expired already needs `cursor reset` first: its reader may have missed rows.

    With --json, one object: what `cursor list` shows of it.

    Example: lowmark cursor renew orders billing --idle-expiry 7d --data ./shop
    """
    with opened_database(ctx, data) as database:
        one = database.table(table)
        renewed = one.cursors.renew(name, idle_expiry=idle_expiry)
        _tell(one, renewed, f"{_expiry(renewed)}; it stands at", as_json=as_json)


def _expiry(one: TableCursor) -> str:
    if not one.idle_expiry_ms:
        return "never expires"
    return f"expires when it is idle for {duration_text(one.idle_expiry_ms)}"


def _commit(
    ctx: typer.Context,
    table: str,
    name: str,
    to: str,
    data: str | None,
    *,
    reset: bool,
    as_json: bool,
) -> None:
    place = parse_place(to, option="--to")
    with opened_database(ctx, data) as database:
        one = database.table(table)
        one.cursors.get(name)  # an unknown name first, before its place
        moved = one.cursors.commit(name, offsets_of(place, one, option="--to"), reset=reset)
        _tell(one, moved, "stands at", as_json=as_json)


@app.command()
def delete(
    ctx: typer.Context,
    table: TableArgument,
    name: NameArgument,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Delete a cursor: it no longer keeps any rows.

    With --json, one object: table, cursor, deleted.

    Example: lowmark cursor delete orders billing --data ./shop
    """
    with opened_database(ctx, data) as database:
        database.table(table).cursors.delete(name)
    if as_json:
        show_json({"table": table, "cursor": name, "deleted": True})
    else:
        print(f"deleted cursor {name} of table {table}")
