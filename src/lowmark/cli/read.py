"""`lowmark read`: rows of a table, for people, as JSON lines, or into a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import typer

from lowmark.cli.database import (
    DatabaseOption,
    TableArgument,
    check_place,
    listed,
    opened_database,
    parse_moment,
    parse_place,
)
from lowmark.cli.files import FileKind, cells, json_lines, write_file
from lowmark.cli.output import Cell, show_table
from lowmark.cli.session import WrongUse
from lowmark.client import Database, Reader, Table
from lowmark.client.table_reading import Start
from lowmark.errors import Rejected
from lowmark.formatting import counted

SHOWN_ROWS = 100
"""What people get to see if they do not say how much they want."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the command line asks for."""

    table: str
    start: str | None
    end: str | None
    as_of: str | None
    columns: str | None
    limit: int | None
    partition: list[int] | None
    follow: bool
    on_gap: str | None
    compacted: bool
    cursor: str | None

    def check(self) -> None:
        if self.on_gap not in {None, "raise", "skip"}:
            raise WrongUse(f"--on-gap is raise or skip, not {self.on_gap!r}")
        if self.as_of is not None and (self.start or self.end or self.follow):
            raise WrongUse(
                "a table as of a time has no start, no end and no tail",
                hint="Leave --start, --end and --follow out, or --as-of.",
            )
        if self.as_of is not None and (self.compacted or self.cursor is not None):
            raise WrongUse(
                "a table as of a time is the last row of each key already",
                hint="Leave --compacted and --cursor out, or --as-of.",
            )
        if self.cursor is not None and self.start is not None:
            raise WrongUse("a reader has one start", hint="Leave --start or --cursor out.")
        if self.follow and self.end is not None:
            raise WrongUse("a reader that follows has no end", hint="Leave --follow or --end out.")
        if self.columns is not None and not listed(self.columns):
            raise WrongUse("--columns names no column", hint="Leave it out for all of them.")

    def reader(self, database: Database, limit: int | None) -> Reader:
        moment = None if self.as_of is None else parse_moment(self.as_of)
        # One that was dropped or renamed since is found by the name that it had.
        table = database.table(self.table, as_of=moment)
        self._note(table)
        return table.read(
            columns=listed(self.columns) or None,
            start=self._start(table),
            end=None
            if self.end is None
            else check_place(parse_place(self.end, option="--end"), table, option="--end"),
            follow=self.follow,
            as_of=moment,
            partitions=self._partitions(table),
            limit=limit,
            on_gap=cast("Literal['raise', 'skip']", self.on_gap or "raise"),
            compacted=self.compacted,
            cursor=self.cursor,
        )

    def _start(self, table: Table) -> Start | None:
        """None: all changes are meant, and those that were compacted are a gap. Who says what is
        to happen at gaps means that; others get what is left, with a note.
        """
        if self.start is None and self.on_gap is not None:
            return None
        place = parse_place(self.start or "earliest", option="--start")
        return check_place(place, table, option="--start")

    def _note(self, table: Table) -> None:
        """Say so if the earliest is not the beginning of the table: who reads all wants to know."""
        if self.compacted or any((self.as_of, self.start, self.cursor, self.on_gap)):
            return
        gone = sum(min(part.start, part.horizon) for part in table.explain().partitions)
        if gone:
            print(
                f"note: {gone:,} earlier changes were compacted; --compacted has the last of each"
                " key",
                file=sys.stderr,
            )

    def _partitions(self, table: Table) -> list[int] | None:
        if self.partition is None:
            return None
        bad = [number for number in self.partition if number >= table.partitions]
        if bad:
            raise Rejected(
                f"table {table.name} has no partition {bad[0]}",
                hint=f"It has 0 to {table.partitions - 1}.",
            )
        return list(dict.fromkeys(self.partition))


def read(
    ctx: typer.Context,
    table: TableArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more, until Ctrl-C or --limit.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="earliest, latest, a time, or offsets by partition: 0:17,1:4.",
            show_default="earliest",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The same; up to there.", show_default="latest"),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The table as it was then: the last row of each key."),
    ] = None,
    compacted: Annotated[
        bool,
        typer.Option(
            "--compacted", help="Of what is in the ledger the last row of each key; then the rest."
        ),
    ] = False,
    cursor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Begin where this cursor stands; it is not moved."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these, with commas between them.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="At most this many rows.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show more than {SHOWN_ROWS} rows.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this one; may be given several times."),
    ] = None,
    on_gap: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="raise or skip, where rows are gone.", show_default="raise"
        ),
    ] = None,
    parquet: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a Parquet file; - is stdout.")
    ] = None,
    arrow: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write an Arrow file; - is stdout, as a stream."),
    ] = None,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a CSV file; - is stdout.")
    ] = None,
    data: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Read a table's changes in the order of their offsets; or the table as it was at a time.

    Columns may be system columns, too: _partition, _offset, _time, _change. Deletes are shown
    only if you select _change. A time is ISO 8601, such as 2026-07-01T12:00:00Z, or for --as-of
    also `now` or a row's _time.

    Rows that a run has compacted and cut from the backlog are gone for readers of every change;
    with --compacted the ledger gives the last one of each key, and the backlog goes on from there.

    Shown to people are the first 100 rows, unless --limit or --all says otherwise. With --json,
    one object a line, all rows: decimals are text, times ISO 8601, bytes hexadecimal digits.

    Example: lowmark read orders --columns id,_offset --follow --data ./shop
    """
    wanted = _Wanted(
        table,
        start,
        end,
        as_of,
        columns,
        limit,
        partition,
        follow,
        on_gap,
        compacted,
        cursor,
    )
    wanted.check()
    kinds: dict[FileKind, str | None] = {"parquet": parquet, "arrow": arrow, "csv": csv}
    files = [(kind, path) for kind, path in kinds.items() if path is not None]
    if len(files) + as_json > 1:
        raise WrongUse("rows are given in one form", hint="Leave all but one of the forms out.")
    if files and follow:
        raise WrongUse(
            "a file that is written has an end", hint="Leave --follow out, or use --json."
        )
    with opened_database(ctx, data) as database:
        if files:
            [(kind, path)] = files
            with wanted.reader(database, limit) as reader:
                rows = write_file(reader, kind, path)
            print(f"wrote {counted(rows, 'row')}", file=sys.stderr)
        elif as_json:
            with wanted.reader(database, limit) as reader:
                for batch in reader:
                    sys.stdout.write(json_lines(batch))
                    if follow:
                        sys.stdout.flush()
        elif follow:
            with wanted.reader(database, limit) as reader:
                _show_lines(reader)
        else:
            unbounded = everything or limit is not None
            # One more than is shown says whether there are more.
            with wanted.reader(database, limit if unbounded else SHOWN_ROWS + 1) as reader:
                _show(reader, None if unbounded else SHOWN_ROWS)
        for gap in reader.gaps:
            print(
                f"note: offsets {gap.first} to {gap.last} of partition {gap.partition} are"
                f" {gap.kind}",
                file=sys.stderr,
            )


def _show(reader: Reader, most: int | None) -> None:
    names = reader.schema.names
    rows: list[list[str]] = []
    for batch in reader:
        rows += cells(batch)
    shown: list[dict[str, Cell]] = [
        dict(zip(names, row, strict=True)) for row in rows[: len(rows) if most is None else most]
    ]
    show_table(shown, columns=names, as_json=False, names_as_they_are=True)
    if most is not None and len(rows) > most:
        print(f"these are the first {most} rows; for more: --all, or --limit N", file=sys.stderr)


def _show_lines(reader: Reader) -> None:
    """Rows as they come, one a line, in columns as wide as they had to be so far."""
    names = reader.schema.names
    widths = [len(name) for name in names]
    print(_line(names, widths), flush=True)
    for batch in reader:
        rows = cells(batch)
        widths = [max(width, *(len(row[at]) for row in rows)) for at, width in enumerate(widths)]
        sys.stdout.write("".join(f"{_line(row, widths)}\n" for row in rows))
        sys.stdout.flush()


def _line(row: list[str], widths: list[int]) -> str:
    parts = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(parts).rstrip()
