"""Tables for Flight clients with none of our code: list them, read one in parallel, append to one.

A descriptor's path is the table's name, or its command is JSON: `{"table": "orders", "as_of":
"2026-01-01T00:00:00Z"}`. A table is given as it was at one time, the same for all partitions: now,
if none is given. With `"changes": true` it is every change that is left, with system columns. Each
partition is an endpoint of its own; its ticket is JSON, too, and good for as long as history is.

Rows are put as whole batches, which are split here: coerced, checked and stored as `Table.append`
does, and acknowledged with offsets and times, batch by batch. They have no numbers, so a batch that
is sent again is stored again: at least once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import RequestRefused, TableUnknown
from lowmark.backend.spread import Spread
from lowmark.client import Database, Reader, Table
from lowmark.convert.times import known_in, parse_time
from lowmark.node.addresses import location_of
from lowmark.server.receiving import chunks_of
from lowmark.table import SYSTEM_COLUMNS, TimeInFuture

MESSAGE_BYTES: Final = (4 << 20) - (64 << 10)
"""Of values. With its head, a message has at most 4 MiB: the most that gRPC takes in Go and Java,
unless a client says otherwise. (A single row may have more.)
"""
JSON_BYTES_MAX: Final = 64 << 10
_UNKNOWN: Final = -1


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a table is meant: the command of a descriptor."""

    table: str
    as_of: int | str | None = None
    columns: tuple[str, ...] | None = None
    changes: bool = False


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One partition of it."""

    table: str
    partition: int
    as_of: int
    columns: tuple[str, ...] | None = None
    start: int | None = None
    end: int | None = None
    """Of changes: from where, and to where."""


class PutPart(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a batch that went into one partition together."""

    partition: int
    first: int
    rows: int
    time: int


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch that was put."""

    rows: int
    parts: list[PutPart]


def is_plain(ticket: bytes) -> bool:
    """Whether a ticket is of a client with none of our code."""
    return ticket[:1] == b"{"


class PlainTables:
    """The tables of one database."""

    def __init__(self, database: Database, served: Embedded) -> None:
        self._db = database
        self._served = served

    # -- what there is ----------------------------------------------------------------------------

    def flights(self, location: str) -> Iterator[Any]:
        """One for each table, as it is now."""
        # As of one time by this node's clock: a table of which no copy answers is listed, too.
        now = self._db.backend.now().time
        for name in self._db.tables():
            with contextlib.suppress(TableUnknown):  # dropped meanwhile
                descriptor = flight.FlightDescriptor.for_path(*name.split("."))
                yield self._info(
                    descriptor, self._db.table(name), Wanted(table=name), now, location
                )

    def wanted(self, descriptor: Any) -> Wanted:
        """What a descriptor means."""
        if descriptor.path:
            name = ".".join(part.decode("utf-8", "replace") for part in descriptor.path)
            return Wanted(table=name)
        if not descriptor.command:
            raise RequestRefused(
                "a descriptor names no table",
                hint='Use the table\'s name as its path, or a command {"table": "orders"}.',
            )
        wanted: Wanted = _parsed(descriptor.command, Wanted, "a command")
        return wanted

    def schema(self, descriptor: Any) -> pa.Schema:
        """The columns that rows are given with."""
        wanted = self.wanted(descriptor)
        table, _ = self._table(wanted)
        return _shown(table, wanted)

    def info(self, descriptor: Any, location: str) -> Any:
        """Where its rows are: an endpoint a partition."""
        wanted = self.wanted(descriptor)
        table, time = self._table(wanted)
        return self._info(descriptor, table, wanted, time, location)

    def _info(self, descriptor: Any, table: Table, wanted: Wanted, time: int, location: str) -> Any:
        records = _UNKNOWN
        if wanted.changes:
            tickets, records = self._changes(table, wanted, time)
        else:
            tickets = [
                Ticket(table=wanted.table, partition=one, as_of=time, columns=wanted.columns)
                for one in range(table.partitions)
            ]
        endpoints = [
            flight.FlightEndpoint(msgspec.json.encode(one), [self._at(table, one, location)])
            for one in tickets
        ]
        return flight.FlightInfo(_shown(table, wanted), descriptor, endpoints, records, _UNKNOWN)

    def _at(self, table: Table, ticket: Ticket, location: str) -> str:
        """Where a partition is best read: in a cluster, at its leader. Any node gives it."""
        backend = self._db.backend
        if not isinstance(backend, Spread):
            return location
        return location_of(backend.endpoint_of(table.descriptor.id, ticket.partition))

    def _table(self, wanted: Wanted) -> tuple[Table, int]:
        """A table, and the time as of which it is meant."""
        if wanted.as_of is None or wanted.as_of == "now":
            table = self._db.table(wanted.table)
            return table, self._db.backend.now(table.descriptor.id).time
        now = self._db.backend.now(known=known_in(wanted.as_of)).time
        time = parse_time(wanted.as_of, now=now)
        if time > now:
            raise TimeInFuture(time=time, now=now)
        return self._db.table(wanted.table, as_of=time), time

    def _changes(self, table: Table, wanted: Wanted, time: int) -> tuple[list[Ticket], int]:
        views = self._db.backend.views(table.descriptor.id, range(table.partitions), closed_at=time)
        tickets = [
            Ticket(
                table=wanted.table,
                partition=number,
                as_of=time,
                columns=wanted.columns,
                start=view.start,
                end=max(view.start, view.offset_after(time)),
            )
            for number, view in views.items()
        ]
        return tickets, sum((one.end or 0) - (one.start or 0) for one in tickets)

    # -- rows out ---------------------------------------------------------------------------------

    def read(self, ticket: bytes) -> tuple[pa.Schema, Iterator[Any]]:
        """The rows of a ticket."""
        wanted = _parsed(ticket, Ticket, "a ticket")
        table = self._db.table(wanted.table, as_of=wanted.as_of)
        if not 0 <= wanted.partition < table.partitions:
            raise RequestRefused(f"table {wanted.table} has no partition {wanted.partition}")
        if wanted.start is None or wanted.end is None:
            reader = table.read(
                as_of=wanted.as_of, partitions=[wanted.partition], columns=wanted.columns
            )
        else:
            reader = table.read(
                start={wanted.partition: wanted.start},
                end={wanted.partition: wanted.end},
                partitions=[wanted.partition],
                columns=wanted.columns or _all_columns(table),
            )
        return _plain_schema(reader.schema), _messages(reader)

    # -- rows in ----------------------------------------------------------------------------------

    def put(self, descriptor: Any, reader: Any) -> Iterator[bytes]:
        """Store batches as they come; gives what is said of each."""
        if not descriptor.path:
            raise RequestRefused(
                "a descriptor of rows names no table", hint="Use the table's name as its path."
            )
        table = self._db.table(self.wanted(descriptor).table)
        for rows, _ in chunks_of(reader, self._served):
            if rows is None:
                continue
            result = table.append(rows)
            del rows  # not kept while the next one comes
            parts = [
                PutPart(partition=one.partition, first=one.first, rows=one.rows, time=one.time)
                for one in result.parts
            ]
            yield msgspec.json.encode(Put(rows=result.rows, parts=parts))


def _parsed(data: bytes, kind: Any, what: str) -> Any:
    if len(data) > JSON_BYTES_MAX:
        raise RequestRefused(f"{what} of {len(data):,} bytes is too long")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestRefused(
            f"{what} can't be read: {error}",
            hint=f"It is JSON with {', '.join(kind.__struct_fields__)}.",
        ) from error


def _all_columns(table: Table) -> list[str]:
    return [*table.schema.names, *SYSTEM_COLUMNS]


def _shown(table: Table, wanted: Wanted) -> pa.Schema:
    """The columns that a client gets."""
    names: Sequence[str] | None = wanted.columns
    if names is None:
        if not wanted.changes:
            return _plain_schema(table.schema)
        names = _all_columns(table)
    known = {field.name: field for field in table.schema}
    known |= {name: pa.field(name, kind) for name, kind in SYSTEM_COLUMNS.items()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestRefused(
            f"table {table.name} has no column {unknown[0]!r}", hint=f"It has {', '.join(known)}."
        )
    return _plain_schema(pa.schema([known[name] for name in names]))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without dictionaries, which not every client takes in a stream."""
    return pa.schema(
        [
            pa.field(field.name, field.type.value_type)
            if pa.types.is_dictionary(field.type)
            else field
            for field in schema
        ]
    )


def _messages(reader: Reader) -> Iterator[Any]:
    with reader:
        schema = _plain_schema(reader.schema)
        for batch in reader:
            plain = batch.cast(schema) if batch.schema != schema else batch
            rows = max(1, plain.num_rows * MESSAGE_BYTES // max(plain.nbytes, 1))
            for at in range(0, plain.num_rows, rows):
                yield plain.slice(at, rows), None
