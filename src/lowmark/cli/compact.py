"""`lowmark compact`: put a table's history into ledgers, and cut what no reader needs any more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

import typer
from rich.progress import Progress as Bar
from rich.progress import TaskID

from lowmark.cli.database import (
    DatabaseOption,
    TableArgument,
    listed,
    opened_database,
    parse_size,
)
from lowmark.cli.formatting import run_json, show_done, show_plan, terminal_bar
from lowmark.cli.output import Json, show_json
from lowmark.cli.session import WrongUse
from lowmark.client import Engine, Progress, ReadWay, RunRecord, Table, why_no_spark
from lowmark.errors import LowmarkError, Unavailable
from lowmark.formatting import counted

# Makes a run of compaction in sight of a person: where, with a bar, and with a word when it is
# interrupted.

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        metavar="MASTER",
        help="The Spark master: local[N], or its URL.",
        show_default="local[*]",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf",
        metavar="KEY=VALUE",
        help="A setting of the Spark session, such as spark.driver.host for a master elsewhere; may"
        " be given several times.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|spark|local",
        help="What does the work: Spark, or this process, without Spark, which is quicker for less"
        " than a million rows. auto is Spark where PySpark and Java are installed, else this"
        " process; for a run that is resumed, what it had.",
    ),
]
ReadOption = Annotated[
    str | None,
    typer.Option(
        "--read",
        metavar="auto|segments|flight",
        help="How tasks read the backlog: segments, files in a node's directory; flight, rows from"
        " a node's server. auto is segments where a task sees that directory, else flight.",
        show_default="auto",
    ),
]
_RATE = "at most this much a second, all tasks together: 50MiB; default: no limit."
ReadRateOption = Annotated[
    str | None, typer.Option("--read-rate", metavar="SIZE", help=f"Read {_RATE}")
]
WriteRateOption = Annotated[
    str | None, typer.Option("--write-rate", metavar="SIZE", help=f"Write {_RATE}")
]
_WORK = "carry out the work"
"""The step in which Spark is started, and the rows are read."""
_AFTER = ("publish ", "adopt ", "trim ")
_STARTING, _COMPACTING = "starting Spark", "compacting"


def place_of(
    master: str | None, conf: Sequence[str] | None = None, *, engine: str
) -> dict[str, Any]:
    """Where a run is made, as `Table.compact` takes it."""
    if engine not in get_args(Engine):
        raise WrongUse(f"--engine can't be {engine!r}", hint="Use auto, spark or local.")
    if engine == "local" and (master is not None or conf):
        words = "Leave --engine out, or --spark-master and --spark-conf."
        raise WrongUse("--engine local runs without Spark", hint=words)
    config = {}
    for one in conf or ():
        name, mark, value = one.partition("=")
        if not mark or not name.startswith("spark."):
            raise WrongUse(
                f"--spark-conf can't be {one!r}", hint="Write spark.driver.host=10.1.2.3."
            )
        config[name] = value
    return {"engine": engine, "master": master, "spark_config": config}


def is_local(place: Mapping[str, Any], resumed: RunRecord | None = None) -> bool:
    """Whether a run is going to be made in this process."""
    if place["engine"] != "auto" or place["master"] or place["spark_config"]:
        return bool(place["engine"] == "local")
    return resumed.engine == "local" if resumed is not None else bool(why_no_spark())


def read_of(read: str | None) -> dict[str, str | None]:
    """How a run reads, as `Table.compact` takes it."""
    if read is not None and read not in get_args(ReadWay):
        raise WrongUse(f"--read can't be {read!r}", hint="Use auto, segments or flight.")
    return {"read": read}


def rates_of(read_rate: str | None, write_rate: str | None) -> dict[str, int | None]:
    """How fast a run may be, as `Table.compact` takes it."""
    return {
        "read_rate": parse_size(read_rate, option="--read-rate"),
        "write_rate": parse_size(write_rate, option="--write-rate"),
    }


def made(table: Table, make: Callable[[], RunRecord], *, resumed: str | None = None) -> RunRecord:
    """Make a run. If it fails, the error says how to go on; if it is interrupted, it is cancelled,
    and a line says so.
    """
    before = {one.run for one in table.runs()} - {resumed}
    try:
        return make()
    except LowmarkError as error:
        for one in table.runs():
            if one.run not in before and one.state == "failed":
                words = f"`lowmark runs resume {one.run}` goes on with what is finished."
                error.hint = f"{error.hint} {words}".strip()
        raise
    except KeyboardInterrupt:
        for one in table.runs():
            if one.run not in before:
                print(f"run {one.run} was {one.state}", file=sys.stderr)
        raise


class ProgressBar:
    """What a run has done so far, on a terminal if there is one. The run's thread calls it, and so
    does the thread that watches the run.
    """

    def __init__(self, bar: Bar | None, *, here: bool, words: str) -> None:
        self._bar = bar
        self._here = here
        self._words = words
        self._task = bar.add_task(words, total=None, beside="") if bar is not None else TaskID(0)
        self._done: int | None = None
        """What was done when it was first asked for: a run that is resumed has something."""

    def step(self, name: str) -> None:
        """The run makes this step now."""
        if name == _WORK:
            self._say(_COMPACTING if self._here else _STARTING)
        elif name.startswith(_AFTER):
            self._say("publishing")

    def progress(self, progress: Progress) -> None:
        """The run is this far."""
        if self._bar is None:
            return
        if self._done is None:
            self._done = progress.bytes_done
        if self._words == _STARTING and progress.bytes_done > self._done:
            self._say(_COMPACTING)
        self._bar.update(
            self._task,
            completed=progress.bytes_done,
            total=progress.bytes_total,
            beside=f"{progress.partitions_done} of {counted(progress.partitions, 'partition')}",
        )

    def _say(self, words: str) -> None:
        self._words = words
        if self._bar is not None:
            self._bar.update(self._task, description=words)


@contextlib.contextmanager
def shown_progress(*, here: bool, words: str = "planning") -> Iterator[ProgressBar]:
    """A bar, if a terminal shows it; the words stand before it at first."""
    with terminal_bar() as bar:
        yield ProgressBar(bar, here=here, words=words)


_MEMORY_LEAST = 1 << 20


def compact(
    ctx: typer.Context,
    table: TableArgument,
    partitions: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", help="Compact only these partitions: 0,3.", show_default="all"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a run would do; change nothing.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Verify every key with a second algorithm (default: a sample of 1 in 16).",
        ),
    ] = False,
    no_trim: Annotated[bool, typer.Option("--no-trim", help="Do not cut the backlog.")] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Rewrite every file of the ledgers.")
    ] = False,
    engine: EngineOption = "auto",
    spark_master: MasterOption = None,
    spark_conf: ConfOption = None,
    read: ReadOption = None,
    read_rate: ReadRateOption = None,
    write_rate: WriteRateOption = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory that the keys of one partition may take in a task.",
            show_default="1GiB",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Resume this run, which was interrupted or has failed."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Leave the run to a worker (lowmark worker), and do not wait for it."
        ),
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Compact a table: write the last row of each key to a ledger, up to the low watermark.

    Then the run cuts the backlog up to there, as far as no reader holds it, and names the holders.
    Ctrl-C cancels the run, and leaves nothing behind; what was published by then stays.

    With --json, one object: run, table, state (done; nothing, if no row is new; too young, if all
    new rows are later than held_until says; planned, if it is a dry run, or waits for a worker),
    trigger, began, ended, seconds, engine (spark or local), where, by, watermark, verify, trim,
    rewrite, read (auto, segments or flight), read_rate, write_rate, resumed, error; of all
    partitions rows_read, rows_live, rows_died, deletes, deletes_dropped, bytes_read, bytes_written,
    ledger_bytes, trimmed_bytes, too_young_rows, held_until, ready_at (from when on the first of
    those rows is old enough), hint (what to do until then); and partitions, each with these and its
    partition, state, why, base, base_epoch, low, horizon, rows, bytes, manifest, files_written,
    rows_checked, read_from (segments, or the address of a server), trimmed_to, held_by, lineage (of
    the partition when it was planned; 0, if it was never reset).

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
    if detach and dry_run:
        raise WrongUse("--dry-run and --detach exclude each other", hint="Leave one of them out.")
    options: dict[str, Any] = {
        "detach": detach,
        "partitions": _numbers(partitions),
        "dry_run": dry_run,
        "verify": verify,
        "trim": not no_trim,
        "rewrite": rewrite,
        "resume": resume,
        **read_of(read),
        **rates_of(read_rate, write_rate),
    }
    memory_bytes = parse_size(memory, option="--memory", least=_MEMORY_LEAST)
    if memory_bytes is not None:
        options["memory_bytes"] = memory_bytes
    with opened_database(ctx, data) as database:
        one = database.table(table)
        if not dry_run and resume is None:
            # The low watermark follows the clock by a timer: a command ends before the first time.
            # If it can't be moved just now, there is less to compact, and the run says so.
            with contextlib.suppress(Unavailable):
                database.advance_watermark()
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
    elif record.state == "planned":
        print(f"run {record.run} waits for a worker; `lowmark runs show {record.run}` follows it")
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
