"""`lowmark compact`: put a table's history into ledgers, and cut what no reader needs any more."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lowmark.cli.database import (
    DatabaseOption,
    TableArgument,
    listed,
    opened_database,
    parse_size,
)
from lowmark.cli.making_runs import (
    ConfOption,
    EngineOption,
    MasterOption,
    ReadRateOption,
    WriteRateOption,
    is_local,
    made,
    place_of,
    rates_of,
    shown_progress,
)
from lowmark.cli.output import Json, show_json
from lowmark.cli.run_words import run_json, show_done, show_plan
from lowmark.cli.session import WrongUse

_MEMORY_LEAST = 1 << 20


def compact(
    ctx: typer.Context,
    table: TableArgument,
    partitions: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Only these: 0,3.", show_default="all")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Check the survivors of all keys by a second way, not of a sample."
        ),
    ] = False,
    no_trim: Annotated[bool, typer.Option("--no-trim", help="Leave the backlog as it is.")] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write every file of the ledgers anew.")
    ] = False,
    engine: EngineOption = "auto",
    spark_master: MasterOption = None,
    spark_conf: ConfOption = None,
    read_rate: ReadRateOption = None,
    write_rate: WriteRateOption = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What the keys of one partition may take in a task.",
            show_default="1GiB",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Go on with a run that was interrupted, or has failed, as it was."
        ),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Compact a table: of each key the last row goes into a ledger, up to the low watermark.

    Then the run cuts the backlog up to there, as far as no reader holds it; it names those that do.
    Ctrl-C cancels the run, and leaves nothing behind; what was published by then stays.

    With --json, one object: run, table, state (done; nothing, if no row is new; too young, if all
    new rows are later than held_until says; planned, if it is a dry run), trigger, began, ended,
    seconds, engine (spark or local), where, watermark, verify, trim, rewrite, read_rate,
    write_rate, resumed, error; of all partitions rows_read, rows_live, rows_died, deletes,
    deletes_dropped, bytes_read, bytes_written, ledger_bytes, trimmed_bytes, too_young_rows,
    held_until; and partitions, each with these and its partition, state, why, base, base_epoch,
    low, horizon, rows, bytes, manifest, files_written, rows_checked, trimmed_to, held_by.

    rows_live does not count deletes that are kept; those are in deletes. bytes_read counts the
    backlog once for each pass over it: once for the keys, or once for each range of them that fits
    into --memory, and once for the rows; and what is read of the ledgers before.

    Example: lowmark compact orders --engine local --data ./shop
    """
    place = place_of(spark_master, spark_conf, engine=engine)
    if resume is not None and (dry_run or partitions or verify or no_trim or rewrite):
        raise WrongUse(
            "a run that is resumed goes on as it was planned",
            hint="Leave --dry-run, --partitions, --verify, --no-trim and --rewrite out.",
        )
    options: dict[str, Any] = {
        "partitions": _numbers(partitions),
        "dry_run": dry_run,
        "verify": verify,
        "trim": not no_trim,
        "rewrite": rewrite,
        "resume": resume,
        **rates_of(read_rate, write_rate),
    }
    memory_bytes = parse_size(memory, option="--memory", least=_MEMORY_LEAST)
    if memory_bytes is not None:
        options["memory_bytes"] = memory_bytes
    with opened_database(ctx, data) as database:
        one = database.table(table)
        resumed = next((run for run in one.runs() if run.run == resume), None)
        with shown_progress(here=is_local(place, resumed)) as told:
            record = made(
                one,
                lambda: one.compact(progress=told.progress, step=told.step, **place, **options),
                resumed=resume,
            )
    if as_json:
        show_json(run_json(record))
    elif dry_run:
        show_plan(record)
    else:
        show_done(record)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = listed(text)
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise WrongUse(
            f"--partitions can't be {text!r}", hint="Write their numbers, with commas: 0,3."
        )
    return list(dict.fromkeys(int(word) for word in words))
