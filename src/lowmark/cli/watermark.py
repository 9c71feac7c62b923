"""`lowmark watermark`: from which time on history is exact, and who keeps it there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from lowmark.catalog import duration_text
from lowmark.cli.database import DatabaseOption, opened_database, parse_moment
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.formatting import time_text, times_text
from lowmark.holds import Hold
from lowmark.runtime import millis_of

app = typer.Typer(invoke_without_command=True)


@app.callback()
def watermark(ctx: typer.Context, data: DatabaseOption = None, as_json: Json = False) -> None:
    """Show the low watermark, its goal, and its holders; or move it.

    History at or after it is exact. With --json, one object: watermark (null if it was never
    moved), moved_at, goal, holders (holder, time, age_ms, why), the earliest first.

    Example: lowmark watermark --data ./shop
    """
    if ctx.invoked_subcommand is not None:
        return
    with opened_database(ctx, data) as database:
        standing = database.watermark()
    holders = _rows(standing.holds)
    facts: dict[str, Cell] = {
        "watermark": _time(standing.value),
        "moved_at": _time(standing.moved_at),
        "goal": _time(standing.goal),
    }
    if as_json:
        show_json(facts | {"holders": holders})
        return
    show_facts(facts, as_json=False)
    _show_holders(holders, "Nothing holds it.")


@app.command()
def advance(
    ctx: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Move it up to this time; default: its goal."),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Move the low watermark as far as its holders allow, and name those that held it back.

    With --json, one object: before, after, wanted, held_by (holder, time, age_ms, why).

    Example: lowmark watermark advance --data ./shop
    """
    # `lowmark watermark --data DIR advance` means the same as with --data at the end.
    parent = ctx.parent.params if ctx.parent is not None else {}
    wanted = None if to is None else parse_moment(to)
    with opened_database(ctx, data if data is not None else parent.get("data")) as database:
        moved = database.advance_watermark(wanted)
    held_by = _rows(moved.held_by)
    facts: dict[str, Cell] = {
        "before": _time(moved.before),
        "after": _time(moved.after),
        "wanted": _time(moved.wanted),
    }
    if as_json or parent.get("as_json"):
        show_json(facts | {"held_by": held_by})
        return
    show_facts(facts, as_json=False)
    _show_holders(held_by, "Nothing held it back.")


@app.command()
def history(
    ctx: typer.Context,
    length: Annotated[
        str | None,
        typer.Argument(metavar="[LENGTH]", help="How long: '1 day' or '90 minutes'."),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show how long the past of all tables stays exact; with a LENGTH, alter it.

    A longer one counts from now on. With a shorter one, the low watermark moves on within seconds,
    and what it passes can't be read as of any more. A table keeps its own past for longer by its
    option history: lowmark table alter orders --set "history=7 days"

    With --json, one object: history, history_ms.

    Example: lowmark watermark history "1 day" --data ./shop
    """
    parent = ctx.parent.params if ctx.parent is not None else {}
    with opened_database(ctx, data if data is not None else parent.get("data")) as database:
        if length is not None:
            database.set_history(length)
        millis = database.history // timedelta(milliseconds=1)
    if as_json or parent.get("as_json"):
        show_json({"history": duration_text(millis), "history_ms": millis})
    else:
        print(f"the past stays exact for {duration_text(millis)}")


def _time(time: int) -> str | None:
    return time_text(millis_of(time)) if time else None


def _rows(holds: Sequence[Hold]) -> list[dict[str, Any]]:
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    return [
        {
            "holder": hold.holder,
            "time": _time(hold.lowest() or 0),
            "age_ms": max(0, now_ms - hold.since_ms),
            "why": hold.why,
        }
        for hold in holds
    ]


def _show_holders(holders: list[dict[str, Any]], if_none: str) -> None:
    print()
    if not holders:
        print(if_none)
        return
    rows = [row | {"for": times_text(row["age_ms"])} for row in holders]
    show_table(rows, columns=("holder", "time", "for", "why"), as_json=False)
