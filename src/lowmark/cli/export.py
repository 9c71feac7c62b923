"""`lowmark export`: a table as it was at a time, into a directory that other programs read."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, cast, get_args

import typer

from lowmark.cli.compact import ConfOption, MasterOption, place_of
from lowmark.cli.database import (
    DatabaseOption,
    TableArgument,
    listed,
    opened_database,
    parse_moment,
)
from lowmark.cli.formatting import terminal_bar
from lowmark.cli.output import Json, show_json
from lowmark.cli.session import WrongUse
from lowmark.client import Exported, ExportProgress, time_text
from lowmark.export import Format
from lowmark.formatting import bytes_text, counted


def export(
    ctx: typer.Context,
    table: TableArgument,
    to: Annotated[
        str, typer.Option(metavar="DIR", help="A directory that is not there yet, or is empty.")
    ],
    format: Annotated[  # noqa: A002
        str, typer.Option(metavar="parquet|delta|iceberg", help="The format to write.")
    ] = "parquet",
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Export the table as of this time.", show_default="now"),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these columns: id,status.")
    ] = None,
    on_gap: Annotated[
        str, typer.Option(metavar="HOW", help="Where retention removed rows: raise or skip.")
    ] = "raise",
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="local|spark|auto",
            help="What does the work: this process; or Spark, for large tables. auto is Spark where"
            " PySpark and Java are installed, else this process.",
            show_default="local",
        ),
    ] = None,
    spark_master: MasterOption = None,
    spark_conf: ConfOption = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Write a table to a directory for other programs: the last row of each key, as of one time.

    The format parquet is files in the directory; delta is a Delta table (by the package deltalake);
    iceberg is an Iceberg table (by pyiceberg), without a catalog: readers open the directory, or
    metadata/v1.metadata.json in it. An Iceberg table can't be moved: it names its files by whole
    paths.

    The directory appears when all of it is written: an export that fails leaves none. On
    Spark each partition is a task, and all machines must see the directory under the same path. A
    time is ISO 8601, such as 2026-07-01T12:00:00Z, `5 minutes ago`, `now`, or a row's _time.
    Columns may be system columns, too: _partition, _offset, _time.

    With --json, one object: table, format, to, as_of, time (the same as a row's _time), rows,
    files, bytes (of the files with rows), engine, where, gaps.

    Example: lowmark export orders --to ./orders --columns id,status --data ./shop
    """
    if format not in get_args(Format):
        raise WrongUse(f"--format can't be {format!r}", hint="Use parquet, delta or iceberg.")
    if on_gap not in {"raise", "skip"}:
        raise WrongUse(f"--on-gap is raise or skip, not {on_gap!r}")
    if columns is not None and not listed(columns):
        raise WrongUse("--columns names no column", hint="Leave it out for all of them.")
    elsewhere = spark_master is not None or bool(spark_conf)
    place = place_of(spark_master, spark_conf, engine=engine or ("spark" if elsewhere else "local"))
    moment = None if as_of is None else parse_moment(as_of)
    with opened_database(ctx, data) as database, terminal_bar() as bar:
        task = None if bar is None else bar.add_task("exporting", total=None, beside="")

        def progress(now: ExportProgress) -> None:
            if bar is None or task is None:
                return
            # Keys are spread evenly: the partitions to come are as large as those that are done.
            ready = now.partitions_done
            total = now.bytes_done * now.partitions // ready if ready else None
            beside = f"{ready} of {counted(now.partitions, 'partition')}"
            bar.update(task, completed=now.bytes_done, total=total, beside=beside)

        # One that was dropped or renamed since is found by the name that it had.
        done = database.table(table, as_of=moment).export(
            to,
            format=format,
            as_of=moment,
            columns=listed(columns) or None,
            on_gap=cast("Literal['raise', 'skip']", on_gap),
            progress=progress,
            **place,
        )
    for gap in done.gaps:
        offsets = f"offsets {gap.first} to {gap.last} of partition {gap.partition}"
        print(f"note: {offsets} are {gap.kind}", file=sys.stderr)
    if as_json:
        show_json(_json(done))
        return
    files = f"{counted(done.files, 'file')} ({bytes_text(done.bytes)})"
    print(
        f"exported {counted(done.rows, 'row')} of {done.table} as of {time_text(done.time)} to"
        f" {done.path}: {files}, {done.format}"
    )


def _json(done: Exported) -> dict[str, object]:
    return {
        "table": done.table,
        "format": done.format,
        "to": done.path,
        "as_of": time_text(done.time),
        "time": done.time,
        "rows": done.rows,
        "files": done.files,
        "bytes": done.bytes,
        "engine": done.engine,
        "where": done.where,
        "gaps": [
            {"partition": gap.partition, "first": gap.first, "last": gap.last, "kind": gap.kind}
            for gap in done.gaps
        ],
    }
