"""`lowmark append`: rows of a file into a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from lowmark.cli.database import DatabaseOption, TableArgument, opened_database
from lowmark.cli.files import opened_input, readable
from lowmark.cli.formatting import terminal_bar
from lowmark.cli.output import Json, show_json
from lowmark.cli.session import WrongUse
from lowmark.client import AppendFailed, Table
from lowmark.convert.files import FORMATS, read_rows
from lowmark.convert.source import FileBatch
from lowmark.errors import LowmarkError
from lowmark.formatting import bytes_text, counted, verb


def append(
    ctx: typer.Context,
    table: TableArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Parquet, Arrow, CSV or JSON lines; - is stdin.")
    ],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}; default: by the file."
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="SIGN",
            help="What is between two fields of CSV.",
            show_default="a comma, for .tsv a tab",
        ),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Append the rows of a file to a table, batch by batch.

    A value that its column can't hold is refused with its line and column: nothing of its batch
    is stored, and the error says how many rows before it were. A column `_change` may say of each
    row whether it is an upsert or a delete.

    With --json, one object: table, rows, batches, bytes, seconds, rows_per_s, complete.

    Example: lowmark append orders orders.csv --data ./shop
    """
    if format_ is not None and format_ not in FORMATS:
        raise WrongUse(f"{format_!r} is not a format", hint=f"Use one of: {', '.join(FORMATS)}.")
    with opened_input(file) as (source, name), opened_database(ctx, data) as database:
        one = database.table(table)
        descriptor = one.descriptor
        batches = read_rows(
            source,
            schema=descriptor.latest,
            format=format_,
            key=frozenset(descriptor.key),
            keyless_ok=not descriptor.key or descriptor.settings.keyless_rows == "keep",
            changes=bool(descriptor.key),
            delimiter=delimiter,
            name=name,
        )
        done = _Done(one)
        try:
            with terminal_bar() as bar:
                task = None if bar is None else bar.add_task(name, total=None, beside="0 rows")

                def tell(each: FileBatch) -> None:
                    if bar is not None and task is not None:
                        rows = counted(done.rows, "row")
                        total = each.bytes_total
                        bar.update(task, completed=each.bytes_done, total=total, beside=rows)

                done.store(readable(batches, name), tell)
        except BaseException as error:
            if as_json:
                show_json(done.facts(table, complete=False))
            _say_stored(error, done)
            raise
    if as_json:
        show_json(done.facts(table, complete=True))
        return
    facts = done.facts(table, complete=True)
    print(
        f"appended {counted(done.rows, 'row')} to {table} in"
        f" {counted(done.batches, 'batch', 'batches')}: {bytes_text(done.bytes)} in"
        f" {facts['seconds']:.2f} s, {facts['rows_per_s']:,.0f} rows/s"
    )


def _say_stored(error: BaseException, done: _Done) -> None:
    """How much is there, of a file that was not appended to its end."""
    unsure = isinstance(error, AppendFailed)
    words = (
        f"Before that, {counted(done.rows, 'row')} in"
        f" {counted(done.batches, 'batch', 'batches')} {verb(done.rows, 'were')} stored"
        f"{'.' if unsure else '; nothing of the batch with it was.'}"
    )
    if isinstance(error, LowmarkError):
        error.detail = f"{error.detail} {words}".strip()
    elif isinstance(error, KeyboardInterrupt):
        print(f"{counted(done.rows, 'row')} {verb(done.rows, 'were')} stored", file=sys.stderr)


@dataclass(slots=True)
class _Done:
    """How far it is. While one batch is stored, the next one is read."""

    table: Table
    rows: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def store(self, batches: Iterator[FileBatch], tell: Callable[[FileBatch], None]) -> None:
        began = time.monotonic()
        under_way: Future[int] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="lowmark-append") as storing:
            try:
                for each in batches:
                    if under_way is not None:
                        before, under_way = under_way, None
                        self._stored(before.result())
                    under_way = storing.submit(self._append, each)
                    self.bytes = each.bytes_done
                    tell(each)
            finally:
                # Also when the next one is refused: this one was taken.
                if under_way is not None:
                    self._stored(under_way.result())
                self.seconds = time.monotonic() - began

    def _append(self, each: FileBatch) -> int:
        return self.table.append(each.batch).rows

    def _stored(self, rows: int) -> None:
        self.rows += rows
        self.batches += 1

    def facts(self, table: str, *, complete: bool) -> dict[str, Any]:
        return {
            "table": table,
            "rows": self.rows,
            "batches": self.batches,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.rows / self.seconds) if self.seconds else 0,
            "complete": complete,
        }
