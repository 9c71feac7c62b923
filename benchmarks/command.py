"""`lowmark bench`: measure this machine, side by side with the bare disk.

The suites are imported by the command that runs one: the help would wait for them.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowmark.cli.output import Json, show_json, show_table
from lowmark.cli.session import help_if_bare, wrong_use
from lowmark.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from benchmarks.runner import Report

app = typer.Typer(invoke_without_command=True)


@app.callback()
def bench(ctx: typer.Context) -> None:
    """Measure Lowmark beside what this machine and other programs can do; needs a checkout."""
    help_if_bare(ctx)


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", "--figure", metavar="FIELD", help="Measure this figure only; may be repeated."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="PATH",
        help="The disk to measure; else the current directory's. Nothing is left there.",
    ),
]
Tiny = Annotated[bool, typer.Option("--tiny", hidden=True)]
Quick = Annotated[bool, typer.Option("--quick", help="Less data, or fewer rounds.")]

Hosts = Annotated[
    float | None,
    typer.Option(
        "--hosts",
        metavar="MS",
        help="Have each node in a host of its own (a network namespace: this takes root), and what"
        " leaves it arrive so much later.",
        show_default="all on loopback",
    ),
]
BETWEEN_HOSTS = {"cluster"}
DELAY_MS_MAX = 1_000

COMMANDS = {
    "log": (40, "the log: appends, opening, compaction, memory.", ""),
    "group": (
        60,
        "replicated groups: three nodes against one, against etcd, against copying.",
        "Figures against etcd need the extra packages that `bench` names.",
    ),
    "catalog": (
        60,
        "the catalog and the metastore: long histories, many tables, watchers, etcd.",
        "The figure against etcd needs the extra packages that `bench` names.",
    ),
    "table": (
        90,
        "tables: append, send, get, read, memory; beside SQLite, PostgreSQL, bare files.",
        "The figure against PostgreSQL needs its server programs (Debian: `postgresql`).",
    ),
    "server": (
        150,
        "the server: append, send, read, get; beside SQLite, NATS, Flight, Redis; TLS, tokens.",
        "Figures against NATS need the extra packages that `bench` names.",
    ),
    "compact": (
        150,
        "compaction on Spark: beside plain Spark, DuckDB, Polars, and copying.",
        "It needs PySpark and Java; figures against DuckDB and Polars need what `bench` names.",
    ),
    "spark": (
        150,
        "tables in Spark: reads, writes, upserts, streams; beside Parquet, appends, Delta, Kafka.",
        "It needs PySpark and Java; see the guide for Delta and Kafka.",
    ),
    "cluster": (
        120,
        "three served nodes: append beside one node, with a node killed; start, rest.",
        "",
    ),
    "rebalance": (
        120,
        "moves of partitions: beside copying, clients meanwhile, the plan.",
        "",
    ),
    "upkeep": (
        90,
        "cuts of the catalog's history: their time, clients meanwhile, what is left of it.",
        "",
    ),
}
"""Seconds of a quick run, what it measures, and what it needs. The suites take long to import."""


def _command(name: str) -> Callable[..., None]:
    def run(
        as_json: Json = False,
        quick: Quick = False,
        only: Only = None,
        folder: Folder = None,
        tiny: Tiny = False,
    ) -> None:
        _run(name, as_json=as_json, quick=quick, only=only, folder=folder, tiny=tiny)

    def run_in_hosts(
        as_json: Json = False,
        quick: Quick = False,
        only: Only = None,
        folder: Folder = None,
        hosts: Hosts = None,
        tiny: Tiny = False,
    ) -> None:
        _run(name, as_json=as_json, quick=quick, only=only, folder=folder, tiny=tiny, hosts=hosts)

    return run_in_hosts if name in BETWEEN_HOSTS else run


def _run(
    name: str,
    *,
    as_json: bool,
    quick: bool,
    only: list[str] | None,
    folder: Path | None,
    tiny: bool,
    hosts: float | None = None,
) -> None:
    with contextlib.ExitStack() as ends:
        if hosts is not None:  # before anything starts a thread
            ends.enter_context(_between_hosts(hosts))
        from benchmarks.cluster_sizes import ClusterSizes  # noqa: PLC0415
        from benchmarks.suites import SUITES  # noqa: PLC0415

        suite = SUITES[name]
        pick = suite.sizes
        sizes = pick.tiny() if tiny else pick.quick() if quick else pick.full()
        if hosts is not None:
            assert isinstance(sizes, ClusterSizes)
            sizes = replace(sizes, delay_ms=hosts)
        with _measured_in(folder, only, suite.figures, sizes.space_needed_bytes) as root:
            report = suite.run(root, sizes, only=only or (), say=_say)
    _say("")
    if as_json:
        show_json(report.as_json())
    else:
        _show(report)


@contextlib.contextmanager
def _between_hosts(delay_ms: float) -> Iterator[None]:
    from clusters.places import in_hosts  # noqa: PLC0415
    from hosts.hosts import why_none  # noqa: PLC0415

    with wrong_use():
        if not 0 <= delay_ms <= DELAY_MS_MAX:
            raise Rejected(f"{delay_ms:g} ms is no delay", hint=f"Give 0 to {DELAY_MS_MAX} ms.")
        if why_none():
            raise Rejected(f"no hosts can be made here: {why_none()}")
    with (
        tempfile.TemporaryDirectory(prefix="lowmark-hosts-") as folder,
        in_hosts(Path(folder), delay_ms=delay_ms),
    ):
        yield


def _help(seconds: int, what: str, needs: str) -> str:
    skipped = (
        f"{needs} A figure whose peer is missing is left out, and it says so. " if needs else ""
    )
    return (
        f"Measure {what}\n\n{skipped}With `--quick` it takes less than {seconds} seconds. A figure"
        " that misses its target is a result, too: the exit code is 0."
    )


for _name, _words in COMMANDS.items():
    app.command(_name, help=_help(*_words))(_command(_name))


@contextlib.contextmanager
def _measured_in(
    folder: Path | None, only: Sequence[str] | None, known: Iterable[str], needed: int
) -> Iterator[Path]:
    with wrong_use():
        _check_fields(only or (), known)
        parent = _parent(folder)
    _check_space(parent, needed)
    with _folder_in(parent) as root:
        yield root


def _check_fields(only: Sequence[str], known: Iterable[str]) -> None:
    for name in only:
        if name not in known:
            names = ", ".join(known)
            raise Rejected(f"there is no figure {name!r}", hint=f"Choose one of: {names}.")


def _parent(folder: Path | None) -> Path:
    parent = Path.cwd() if folder is None else folder
    if not parent.is_dir():
        raise Rejected(f"there is no folder at {parent}")
    if folder is None and _in_memory(parent):
        raise Rejected(
            f"{parent} is kept in memory, not on a disk",
            hint="Choose a folder on the disk to be measured with --dir.",
        )
    return parent


def _in_memory(folder: Path) -> bool:
    """Whether the folder's file system lives in memory, as far as the system says."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    mounts = {fields[1]: fields[2] for fields in (line.split() for line in lines)}
    here = folder.resolve()
    nearest = next((p for p in (here, *here.parents) if str(p) in mounts), None)
    return nearest is not None and mounts[str(nearest)] in ("tmpfs", "ramfs")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    _say(f"using up to {needed / 1e9:.1f} GB in {folder} ({free / 1e9:.1f} GB are free)")
    if free < needed:
        raise Unavailable(
            f"the bench needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {folder}",
            hint="Choose another disk with --dir, or use --quick.",
        )


@contextlib.contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """A folder that goes at the end, also at that by SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(
            prefix="lowmark-bench-", dir=parent, ignore_cleanup_errors=True
        ) as root:
            yield Path(root)
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(what: str) -> None:
    """Progress is for people at a terminal: one line that is written over and over."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr)


def _show(report: Report) -> None:
    rows = [
        {
            "figure": f.name,
            "measured": f.value if f.unit != "bytes" else round(f.value),
            "target": str(f.target),
            "met": f.met,
            "ours": round(f.ours),
            "peer": None if f.peer is None else round(f.peer),
            "unit": f.unit,
            "from": f.spread[0] if f.unit != "bytes" else round(f.spread[0]),
            "to": f.spread[1] if f.unit != "bytes" else round(f.spread[1]),
        }
        for f in report.results
    ]
    if rows:
        show_table(rows, columns=list(rows[0]), as_json=False)
    for f in report.results:
        print(f"\n{f.name}: {f.notes}.")
        for name, v in f.variants.items():
            values = f"{v.value:.2f} ({v.ours:,.0f} against {v.peer:,.0f} {f.unit})"
            print(f"  {name.replace('_', ' ')}: {values}")
        if f.profile:
            print("  where our time goes (share of the samples of one more turn):")
        for spot in f.profile:
            print(f"    {spot.share:5.0%}  {spot.thread}  {spot.where}")
    for name, why in report.skipped.items():
        print(f"\n{name}: {why}")
    for name, seconds in report.apart.items():
        print(f"\n{name.replace('_', ' ')}: {seconds}")
