"""Makes a run of compaction in sight of a person: where, with a bar, and with a word when it is
interrupted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from lowmark.cli.database import parse_size
from lowmark.cli.session import WrongUse
from lowmark.client import Engine, Progress, RunRecord, Table, why_no_spark
from lowmark.errors import LowmarkError

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        metavar="MASTER",
        help="Where the work is done: local[N], or the URL of a master.",
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
        help="What does the work: Spark; or this process, without Spark, which is quicker for less"
        " than a million rows. auto is Spark where PySpark and Java are installed, else this"
        " process; for a run that is resumed, what it had.",
    ),
]
_RATE = "Bytes a second, for all tasks together: 50MiB; else as fast as it goes."
ReadRateOption = Annotated[str | None, typer.Option("--read-rate", metavar="SIZE", help=_RATE)]
WriteRateOption = Annotated[
    str | None, typer.Option("--write-rate", metavar="SIZE", help="The same.")
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
        words = "Leave --engine local, or --spark-master and --spark-conf, out."
        raise WrongUse("a run is made in one place", hint=words)
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
    """One that shows nothing: no terminal is there to see it."""

    def step(self, name: str) -> None:
        """The run makes this step now."""

    def progress(self, progress: Progress) -> None:
        """So far it is."""


class _TerminalBar(ProgressBar):
    """A bar on a terminal. Called by the run's thread, and by the one that watches it."""

    def __init__(self, bar: Bar, *, here: bool, words: str) -> None:
        self._bar = bar
        self._here = here
        self._words = words
        self._task: TaskID = bar.add_task(self._words, total=None, partitions="")
        self._done: int | None = None
        """What was done when it was first asked for: a run that is resumed has something."""

    def step(self, name: str) -> None:
        if name == _WORK:
            self._say(_COMPACTING if self._here else _STARTING)
        elif name.startswith(_AFTER):
            self._say("publishing")

    def progress(self, progress: Progress) -> None:
        if self._done is None:
            self._done = progress.bytes_done
        if self._words == _STARTING and progress.bytes_done > self._done:
            self._say(_COMPACTING)
        self._bar.update(
            self._task,
            completed=progress.bytes_done,
            total=progress.bytes_total,
            partitions=f"{progress.partitions_done} of {progress.partitions} partitions",
        )

    def _say(self, words: str) -> None:
        self._words = words
        self._bar.update(self._task, description=words)


@contextlib.contextmanager
def shown_progress(*, here: bool, words: str = "planning") -> Iterator[ProgressBar]:
    """A bar, if a terminal shows it; the words stand before it at first."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressBar()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[partitions]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        yield _TerminalBar(bar, here=here, words=words)
