"""`lowmark read`: rows of a table, for people, as JSON lines, or into a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, cast

import typer

from lowmark.backend.condition import ConditionRefused
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
from lowmark.cli.output import Cell, check_taken, show_table, write_whole
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
    commit: bool
    where: str | None

    def check(self) -> None:
        if self.on_gap not in {None, "raise", "skip"}:
            raise WrongUse(f"--on-gap is raise or skip, not {self.on_gap!r}")
        if self.as_of is not None and (self.start or self.end or self.follow):
            raise WrongUse(
                "--as-of and --start, --end or --follow exclude each other",
                hint="Leave --start, --end and --follow out, or --as-of.",
            )
        if self.as_of is not None and (self.compacted or self.cursor is not None):
            raise WrongUse(
                "--as-of and --compacted or --cursor exclude each other",
                hint="Leave --compacted and --cursor out, or --as-of.",
            )
        if self.cursor is not None and self.start is not None:
            raise WrongUse("--start and --cursor exclude each other", hint="Leave one of them out.")
        if self.commit and self.cursor is None:
            raise WrongUse("--commit needs a cursor", hint="Add --cursor NAME.")
        if self.follow and self.end is not None:
            raise WrongUse("--follow and --end exclude each other", hint="Leave one of them out.")
        if self.columns is not None and not listed(self.columns):
            raise WrongUse("--columns names no column", hint="Leave it out for all of them.")

    def begin(self, database: Database, limit: int | None) -> _Reading:
        moment = None if self.as_of is None else parse_moment(self.as_of)
        # One that was dropped or renamed since is found by the name that it had.
        table = database.table(self.table, as_of=moment)
        self._note(table)
        reader = self._reader(table, limit, moment=moment, start=self._start(table))
        return _Reading(table, reader, self.cursor if self.commit else None)

    def has_more(self, table: Table, position: dict[int, int]) -> bool:
        """Whether a reader that goes on there would get a row."""
        goes_on = replace(self, cursor=None, on_gap="skip")
        with goes_on._reader(table, 1, moment=None, start=position) as reader:
            return any(batch.num_rows for batch in reader)

    def _reader(
        self, table: Table, limit: int | None, *, moment: int | str | None, start: Start | None
    ) -> Reader:
        end = None
        if self.end is not None:
            end = check_place(parse_place(self.end, option="--end"), table, option="--end")
        try:
            return table.read(
                columns=listed(self.columns) or None,
                where=self.where,
                start=start,
                end=end,
                follow=self.follow,
                as_of=moment,
                partitions=self._partitions(table),
                limit=limit,
                on_gap=cast("Literal['raise', 'skip']", self.on_gap or "raise"),
                compacted=self.compacted,
                cursor=self.cursor,
            )
        except ConditionRefused as refused:
            words = f"--{refused.message}"
            raise WrongUse(words, detail=refused.detail, hint=refused.hint) from refused

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


@dataclass(slots=True)
class _Reading:
    """A reader, how far its rows are out, and the cursor that is to follow it."""

    table: Table
    reader: Reader
    cursor: str | None
    out: dict[int, int] | None = None
    """Every row before this position was written, and flushed."""

    def flushed(self) -> None:
        """All that was read so far is written: see that it is out, and only then commit it."""
        sys.stdout.flush()
        check_taken()
        before, self.out = self.out, self.reader.position
        if self.cursor is not None and self.out != before:
            self.table.cursors.commit(self.cursor, self.out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.reader.close()
        if kind is not None and issubclass(kind, OSError):
            return  # the reader of the output has seen enough, or it can't be written
        for gap in self.reader.gaps:
            print(
                f"note: offsets {gap.first} to {gap.last} of partition {gap.partition} are"
                f" {gap.kind}",
                file=sys.stderr,
            )
        if self.out:
            print(f"position: {position_text(self.out)}", file=sys.stderr)


def position_text(position: Mapping[int, int]) -> str:
    """As --start takes it."""
    return ",".join(f"{number}:{offset}" for number, offset in sorted(position.items()))


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
            help="Where to begin: earliest, latest, a time, or offsets by partition: 0:17,1:4.",
            show_default="earliest",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="Where to end, in the same forms.", show_default="latest"
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Read the table as of this time: the last row of each key."
        ),
    ] = None,
    compacted: Annotated[
        bool,
        typer.Option(
            "--compacted",
            help="Begin with the last row of each key in the ledger; then all changes.",
        ),
    ] = False,
    cursor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Begin where this cursor stands."),
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Move the cursor behind the rows that were written.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="Only rows that match: \"status = 'new' and n > 5\"."
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these columns: id,status.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="At most this many rows.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show more than {SHOWN_ROWS} rows.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this partition; repeatable."),
    ] = None,
    on_gap: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="Where rows are gone: raise or skip.", show_default="raise"
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
    only if you select _change. A time is ISO 8601, such as 2026-07-01T12:00:00Z, or `5 minutes
    ago`; for --as-of also `now` or a row's _time.

    Rows that a run has compacted and cut from the backlog are gone for readers of every change;
    with --compacted the ledger gives the last one of each key, and the backlog goes on from there.

    With --cursor and --commit the command consumes rows: when it has written them, it moves the
    cursor behind them; with --follow, batch by batch. If it is interrupted before that, the next
    reader of the cursor gets them again.

    At the end the command prints its position on stderr. Give it to --start to go on from there.

    Without --limit and --all, the command shows the first 100 rows. With --json it prints all rows,
    one object a line: decimals are text, times ISO 8601, bytes hexadecimal digits.

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
        commit,
        where,
    )
    wanted.check()
    kinds: dict[FileKind, str | None] = {"parquet": parquet, "arrow": arrow, "csv": csv}
    files = [(kind, path) for kind, path in kinds.items() if path is not None]
    if len(files) + as_json > 1:
        raise WrongUse(
            "--parquet, --arrow, --csv and --json exclude each other", hint="Leave all but one out."
        )
    if files and follow:
        raise WrongUse("--follow can't write a file", hint="Leave --follow out, or use --json.")
    with opened_database(ctx, data) as database:
        if files:
            [(kind, path)] = files
            with wanted.begin(database, limit) as reading:
                rows = write_file(reading.reader, kind, path)
                reading.flushed()
                print(f"wrote {counted(rows, 'row')}", file=sys.stderr)
        elif as_json:
            with wanted.begin(database, limit) as reading:
                for batch in reading.reader:
                    write_whole(json_lines(batch))
                    if follow:
                        reading.flushed()
                reading.flushed()
        elif follow:
            with wanted.begin(database, limit) as reading:
                _show_lines(reading)
        elif everything or limit is not None:
            with wanted.begin(database, limit) as reading:
                _show(reading.reader, None)
                reading.flushed()
        else:
            _show_first(wanted, database)


def _show_first(wanted: _Wanted, database: Database) -> None:
    """As many rows as people want to see at once, and whether there are more."""
    # As of a time the position is the end of the table, so one row more does no harm, and says it.
    past = wanted.as_of is not None
    with wanted.begin(database, SHOWN_ROWS + past) as reading:
        rows = _show(reading.reader, SHOWN_ROWS)
        reading.flushed()
        assert reading.out is not None
        if rows > SHOWN_ROWS or (
            rows == SHOWN_ROWS and not past and wanted.has_more(reading.table, reading.out)
        ):
            more = "for more: --all, or --limit N"
            print(f"these are the first {SHOWN_ROWS} rows; {more}", file=sys.stderr)


def _show(reader: Reader, most: int | None) -> int:
    """Show rows; gives how many there were."""
    names = reader.schema.names
    rows: list[list[str]] = []
    for batch in reader:
        rows += cells(batch)
    shown: list[dict[str, Cell]] = [
        dict(zip(names, row, strict=True)) for row in rows[: len(rows) if most is None else most]
    ]
    show_table(shown, columns=names, as_json=False, names_as_they_are=True)
    return len(rows)


def _show_lines(reading: _Reading) -> None:
    """Rows as they come, one a line, in columns as wide as they had to be so far."""
    names = reading.reader.schema.names
    widths = [len(name) for name in names]
    print(_line(names, widths), flush=True)
    for batch in reading.reader:
        rows = cells(batch)
        widths = [max(width, *(len(row[at]) for row in rows)) for at, width in enumerate(widths)]
        write_whole("".join(f"{_line(row, widths)}\n" for row in rows))
        reading.flushed()
    reading.flushed()


def _line(row: list[str], widths: list[int]) -> str:
    parts = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(parts).rstrip()
