"""`lowmark runs`: runs of compaction, what they did, what they cost; cancel or resume one."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lowmark.cli.compact import (
    ConfOption,
    EngineOption,
    MasterOption,
    ReadOption,
    ReadRateOption,
    WriteRateOption,
    is_local,
    made,
    place_of,
    rates_of,
    read_of,
    shown_progress,
)
from lowmark.cli.database import DatabaseOption, directory_of, opened_database
from lowmark.cli.formatting import run_json, run_row, show_done, show_noted, show_runs
from lowmark.cli.output import Json, show_json
from lowmark.cli.session import settings_of
from lowmark.client import Database, Locked, RunRecord, Table
from lowmark.compaction.context import ask_to_cancel, cancel_path, runs_begun
from lowmark.errors import Rejected

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, from `lowmark runs`.")
]


class _Runs(TyperGroup):
    """A word that is no command is the name of a table: `lowmark runs orders` lists its runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["list", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Runs, invoke_without_command=True, subcommand_metavar="[TABLE | COMMAND [ARGS]...]"
)


@app.callback()
def runs(ctx: typer.Context, data: DatabaseOption = None, as_json: Json = False) -> None:
    """List runs of compaction, of one table or of all, the newest first; or look at one.

    The last 50 of a table are kept. One that was interrupted can be resumed, or cancelled.

    With --json, a list: run, table, state (planned, if it waits for a worker; running, done,
    failed, cancelled or interrupted), trigger, began, ended, seconds, engine, where, by (its
    process), watermark, verify, trim, rewrite, read, read_rate, write_rate, resumed, error, and of
    all partitions rows_read, rows_live, rows_died, deletes, deletes_dropped, bytes_read,
    bytes_written, ledger_bytes, trimmed_bytes, too_young_rows, held_until, ready_at, hint.
    rows_live does not count deletes; bytes_read counts the backlog once for each pass over it.

    Example: lowmark runs orders --data ./shop
    """
    if ctx.invoked_subcommand is None:
        _list(ctx, None, data, as_json=as_json)


@app.command("list")
def list_(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only runs of this one.")
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """List runs; `lowmark runs [TABLE]` is the same.

    Example: lowmark runs list --data ./shop
    """
    _list(ctx, table, _data(ctx, data), as_json=_as_json(ctx, as_json))


def _list(ctx: typer.Context, table: str | None, data: str | None, *, as_json: bool) -> None:
    try:
        with opened_database(ctx, data) as database:
            found = database.runs() if table is None else database.table(table).runs()
    except Locked as locked:
        begun = runs_begun(directory_of(data), location=settings_of(ctx).ledger.location)
        for run in begun:
            words = f"`lowmark runs cancel {run}` ends that run, if it goes on there."
            locked.hint = f"{locked.hint} {words}"
        raise
    rows = [run_row(one) for one in found]
    if as_json:
        show_json(rows)
    elif rows:
        show_runs(rows)
    else:
        print("no run is known" if table is None else f"no run of {table} is known")


@app.command()
def show(
    ctx: typer.Context, run: RunArgument, data: DatabaseOption = None, as_json: Json = False
) -> None:
    """Show a run: how it was made, and what it did to each partition.

    With --json, one object: what `runs` lists of it, and partitions.

    Example: lowmark runs show 20260701T120000-1a2b3c --data ./shop
    """
    with opened_database(ctx, _data(ctx, data)) as database:
        record = _run(database, run)
    if _as_json(ctx, as_json):
        show_json(run_json(record))
    else:
        show_noted(record)


@app.command()
def cancel(
    ctx: typer.Context, run: RunArgument, data: DatabaseOption = None, as_json: Json = False
) -> None:
    """Cancel a run that goes on or waits for a worker, or give up one that was interrupted; remove
    its files.

    If the run goes on in another process, also on another machine, the command asks that process
    to end it, which takes seconds. What was published stays.

    With --json, one object: run, state (cancelled, or asked), word (the file that asks for it).

    Example: lowmark runs cancel 20260701T120000-1a2b3c --data ./shop
    """
    data, as_json = _data(ctx, data), _as_json(ctx, as_json)
    word: str | None = None
    try:
        with opened_database(ctx, data) as database:
            record = _table_of(database, _run(database, run)).cancel_run(run)
            store = database.backend.store
        state: str = record.state
        words = f"run {run} is {state}"
        if state == "running":  # in another process, which finds this word
            state, word = "asked", store.url(cancel_path(record.table, run))
            words = f"run {run} was asked to end"
    except Locked as locked:
        word = ask_to_cancel(directory_of(data), run, location=settings_of(ctx).ledger.location)
        state = "asked"
        words = f"{locked.message}, which was asked to end run {run}"
    if as_json:
        show_json({"run": run, "state": state, "word": word})
    else:
        print(words)


@app.command()
def resume(
    ctx: typer.Context,
    run: RunArgument,
    engine: EngineOption = "auto",
    spark_master: MasterOption = None,
    spark_conf: ConfOption = None,
    read: ReadOption = None,
    read_rate: ReadRateOption = None,
    write_rate: WriteRateOption = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted or has failed; what is finished is not done again.

    It goes on with the engine that it had, on the same master, unless another one is named;
    settings by --spark-conf are not kept. It reads as it did, and is as fast as it was allowed to
    be before, unless --read or other rates are given; 0 is no limit.

    With --json, one object: what `compact` gives.

    Example: lowmark runs resume 20260701T120000-1a2b3c --data ./shop
    """
    place = place_of(spark_master, spark_conf, engine=engine)
    options = place | read_of(read) | rates_of(read_rate, write_rate)
    with opened_database(ctx, _data(ctx, data)) as database:
        resumed = _run(database, run)
        table = _table_of(database, resumed)
        with shown_progress(here=is_local(place, resumed)) as told:
            record = made(
                table,
                lambda: table.compact(
                    resume=run, progress=told.progress, step=told.step, **options
                ),
                resumed=run,
            )
    if _as_json(ctx, as_json):
        show_json(run_json(record))
    else:
        show_done(record)


# -- finding ------------------------------------------------------------------------------------


def _run(database: Database, run: str) -> RunRecord:
    found = [one for one in database.runs() if one.run == run]
    if not found:
        raise Rejected(f"there is no run {run}", hint="`lowmark runs` lists them.")
    return found[0]


def _table_of(database: Database, record: RunRecord) -> Table:
    """By its number: it may have another name by now."""
    for name in database.tables():
        table = database.table(name)
        if table.descriptor.id == record.table:
            return table
    raise Rejected(
        f"table {record.table_name} of run {record.run} was dropped",
        hint="Nothing is left to be done: what it wrote goes with the table.",
    )


def _data(ctx: typer.Context, data: str | None) -> str | None:
    """`lowmark runs --data DIR show RUN` means the same as with --data at the end."""
    if data is not None or ctx.parent is None:
        return data
    named: str | None = ctx.parent.params.get("data")
    return named


def _as_json(ctx: typer.Context, as_json: bool) -> bool:
    return as_json or bool(ctx.parent is not None and ctx.parent.params.get("as_json"))
