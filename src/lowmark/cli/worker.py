"""`lowmark worker`: a process that compacts what is due, for a cluster or a directory."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lowmark.cli.compact import (
    ConfOption,
    EngineOption,
    MasterOption,
    ReadOption,
    ReadRateOption,
    WriteRateOption,
    place_of,
    rates_of,
    read_of,
)
from lowmark.cli.database import DatabaseOption, opened_database
from lowmark.cli.formatting import run_row
from lowmark.cli.output import Json
from lowmark.cli.session import WrongUse
from lowmark.client import Told
from lowmark.errors import Unavailable
from lowmark.formatting import counted

_LEASE_S = 20.0
_LEASE_S_LEAST = 1.0
_LEASE_S_MOST = 3_600.0
_LOOK_S = 0.5
"""How often the main thread sees whether the worker has ended by itself."""


def worker(
    ctx: typer.Context,
    engine: EngineOption = "auto",
    spark_master: MasterOption = None,
    spark_conf: ConfOption = None,
    read: ReadOption = None,
    read_rate: ReadRateOption = None,
    write_rate: WriteRateOption = None,
    lease: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="If this worker dies, another one goes on with its run after this time.",
        ),
    ] = _LEASE_S,
    once: Annotated[
        bool, typer.Option("--once", help="Make the runs that are due now, then exit.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Compact tables when they are due, until Ctrl-C or SIGTERM.

    The worker looks every few seconds. It compacts tables with the option compaction=auto when
    they are due, makes runs that were left to a worker (lowmark compact --detach), and goes on with
    runs whose process has died. Start as many as you like: each run is made by one of them, and
    they go to another node when theirs is away.

    A worker that is asked to end leaves its run to the others. It says on stderr which runs begin
    and end. A table that can't be compacted is tried again after 30 seconds, and later each time.

    With --json, one object a line on stdout: event (ready, began, resumed, done, failed, cancelled;
    left, if the worker ends before its run), table, run, why; and of a run that is done, what
    `lowmark runs` lists of it.

    Example: lowmark worker --node 127.0.0.1:6570 --engine local
    """
    options: dict[str, Any] = place_of(spark_master, spark_conf, engine=engine)
    options |= read_of(read) | rates_of(read_rate, write_rate)
    if not _LEASE_S_LEAST <= lease <= _LEASE_S_MOST:
        raise WrongUse(
            f"--lease can't be {lease:g}",
            hint=f"Use {_LEASE_S_LEAST:g} to {_LEASE_S_MOST:g} seconds.",
        )
    say = _say_json if as_json else _say
    with _asked_to_end() as ended, opened_database(ctx, data) as database:
        one = database.worker(tell=say, lease_ms=int(lease * 1_000), **options)
        one.start(once=once)
        if as_json:
            print(json.dumps({"event": "ready", "at": database.path}), flush=True)
        else:
            print(f"looks after the tables of {database.path}", file=sys.stderr, flush=True)
        while not ended.is_set() and not one.wait(0.0):
            ended.wait(_LOOK_S)
    if ended.is_set():
        return
    if not once:
        raise Unavailable(f"the database {database.path} was closed", hint="Start it again.")
    for table, why in sorted(one.problems.items()):
        what = f"table {table} could not be compacted" if table else "no table could be looked at"
        raise Unavailable(what, detail=why, hint="Run it again, or without --once.")


@contextlib.contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM, meanwhile: the worker closes what it has open, and ends."""
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(told: Told) -> None:
    """In words, on stderr."""
    run = f" {told.run}" if told.run else ""
    match told.event:
        case "began" | "resumed":
            words = f"{told.table}: run{run} {told.event}: {told.why}"
        case "done" if told.record is not None:
            rows = counted(told.record.rows_read, "row")
            words = f"{told.table}: run{run} done in {told.record.seconds:.1f} s, {rows} read"
        case "left":
            words = f"{told.table}: run{run} is left to be resumed"
        case _:
            words = f"{told.table}: run{run} {told.event}: {told.why}"
    print(words, file=sys.stderr, flush=True)


def _say_json(told: Told) -> None:
    facts = {"event": told.event, "table": told.table, "run": told.run, "why": told.why}
    if told.record is not None:
        facts = run_row(told.record) | facts
    print(json.dumps(facts, ensure_ascii=False), flush=True)
