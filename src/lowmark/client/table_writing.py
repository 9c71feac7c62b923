"""Rows on their way into a table: coerced, checked, split by key, encoded, and handed over.

All of a call is coerced and checked before any of it is stored, unless the rows come by and by.
What that takes is worked out once for each version of the schema, and again when the table has
changed. It is all done on the caller's thread; any number of them may write at once.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lowmark.backend.errors import OutcomeUnknown
from lowmark.backend.port import Backend
from lowmark.catalog import Table, TableSchema
from lowmark.client.appending import Part, Parts, Pending, TableAppender
from lowmark.client.checking import check_key, check_values, key_batches, key_schema
from lowmark.client.session import Session
from lowmark.convert.coercion import Coercion
from lowmark.convert.rows import is_frame
from lowmark.errors import LowmarkError, Rejected
from lowmark.table import (
    CHANGE,
    EPOCH_BITS,
    NAME_CHARACTERS_MAX,
    Change,
    Compression,
    Fence,
    KeyForm,
    ProducerFenced,
    check_row_sizes,
    outgoing,
    renewed_rows,
    split,
)

if TYPE_CHECKING:
    from lowmark.client.producer import Sink

SLICE_ROWS = 1 << 16
"""Rows that are split and sent together."""
_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.25
"""Before the next number of a producer's epoch is tried: at most so long."""


def _begun(backend: Backend, table: Table, producer: bytes) -> int:
    """A new epoch of a producer, in all partitions.

    Its number is chosen here, once: a call that is carried out late, at a node that was suspended,
    finds that a newer epoch has begun, and changes nothing. When an answer was lost, or another
    producer of that name was opened at the same moment, the next number is tried: after a while by
    chance, for of two that try again at once each may win a partition, again and again.
    """
    ends_at = time.monotonic() + backend.info.request_timeout_ms / 1_000
    pause_s = _PAUSE_S
    while True:
        epoch = (backend.epoch_of(table.id, producer) >> EPOCH_BITS) + 1 << EPOCH_BITS
        fences = dict.fromkeys(range(table.partitions), Fence(producer, epoch))
        try:
            backend.propose(table.id, fences)
        except (OutcomeUnknown, ProducerFenced) as error:
            if isinstance(error, ProducerFenced) and error.current > epoch:
                raise  # replaced
            if time.monotonic() >= ends_at:
                if isinstance(error, OutcomeUnknown):
                    raise
                raise ProducerNotBegun(table.name) from error
        else:
            return epoch
        time.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


class ProducerNotBegun(OutcomeUnknown):
    """A producer that was opened at the same moments as others of its name."""

    def __init__(self, table: str) -> None:
        LowmarkError.__init__(
            self,
            f"the producer was not opened: others of its name in table {table} were opened at the"
            " same moment, each time that it was tried",
            detail="Those that were open before may have been replaced all the same.",
            hint="Open one of that name at a time, and try again.",
        )


def written_with(table: Table, version: int | None) -> TableSchema:
    """The schema that rows are written with: the newest one, or one that still can be."""
    if version is None or version == table.latest.number:
        return table.latest
    schema = table.schema_version(version)
    if schema is None:
        raise Rejected(
            f"table {table.name} has no schema version {version}",
            hint=f"It has {table.schemas[0].number} to {table.latest.number}.",
        )
    for column in table.columns:
        if column.required and column.default is None and schema.column(column.id) is None:
            raise Rejected(
                f"schema version {version} of table {table.name} is too old to write with",
                detail=f"Column {column.name} was added since, must have a value, and has no"
                " default.",
                hint=f"Write with schema version {table.latest.number}.",
            )
    return schema


def _renamed(table: Table, schema: TableSchema) -> dict[str, str]:
    """What columns were called in versions that are kept, and what they are called now."""
    now = {column.id: column.name for column in schema.columns}
    return {
        column.name: now[column.id]
        for version in table.schemas
        for column in version.columns
        if column.id in now and column.name not in now.values()
    }


class TableWriter:
    """Writes into one table."""

    def __init__(
        self,
        session: Session,
        table: Table,
        current: Callable[[], Table],
    ) -> None:
        self._session = session
        self._current = current
        self._appends = session.backend, TableAppender(session.backend, table.id, table.name)
        self._coercions: dict[int, tuple[Table, Coercion]] = {}
        self._ways: dict[int, tuple[Table, tuple[KeyForm | None, Compression]]] = {}
        self._keyless_turn = 0

    def appender(self) -> TableAppender:
        """One for the backend of now."""
        backend, appender = self._appends
        if self._session.backend is not backend:
            table, backend = self._current(), self._session.backend
            appender = TableAppender(backend, table.id, table.name)
            self._appends = backend, appender
        return appender

    def begin_at(self, turn: int) -> None:
        """Put the first rows without a key into this partition, by its number modulo all."""
        self._keyless_turn = turn

    def parts(self, rows: object, *, schema_version: int | None) -> Iterator[Parts]:
        """What goes to which partition; see `Table.append`. A list is checked whole before that."""
        table = self._current()
        schema = written_with(table, schema_version)
        coercion = self._coercion(table, schema)
        batches: Iterable[pa.RecordBatch]
        batches = _checked(coercion.batches(rows), made_here=_are_dicts(rows))
        if not isinstance(rows, Iterator):
            batches = list(batches)  # all of it is checked before any of it is stored
        return self._parted(table, schema, batches)

    def deletes(self, keys: object) -> Iterator[Parts]:
        """What goes to which partition; see `Table.delete`."""
        table = self._current()
        check_key(table)
        made = key_batches(table, keys, "delete")
        batches = list(_checked(made, made_here=False) if is_frame(keys) else made)
        schema = key_schema(table)
        return self._parted(table, schema, batches, Change.DELETE)

    def sink(self, table: Table, name: str | None) -> Sink:
        """Where the rows of a producer go; with a name, it fences older ones of that name off."""
        if name is None:
            return _Sink(self._session, self._prepared, self.appender)
        appender = self._fencing(table, name)
        return _Sink(self._session, self._prepared, lambda: appender)

    def _fencing(self, table: Table, name: str) -> TableAppender:
        """An appender for the newest producer of a name: above every epoch that is known of it.

        It ends with its backend: to take the name again, another producer is made.
        """
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise Rejected(
                f"{name[:40]!r} can't name a producer",
                hint=f"Use 1 to {NAME_CHARACTERS_MAX} printable characters.",
            )
        producer = hashlib.blake2b(name.encode(), digest_size=16, person=b"producer").digest()
        backend = self._session.backend
        epoch = _begun(backend, table, producer)
        return TableAppender(backend, table.id, table.name, producer=producer, epoch=epoch)

    def _coercion(self, table: Table, schema: TableSchema) -> Coercion:
        known = self._coercions.get(schema.number)
        if known is not None and known[0] is table:
            return known[1]
        keyless_ok = not table.key or table.settings.keyless_rows == "keep"
        coercion = Coercion(
            schema,
            keyless_ok=keyless_ok,
            key=frozenset(table.key),
            changes=bool(table.key),
            renamed=_renamed(table, schema),
        )
        self._coercions[schema.number] = (table, coercion)
        return coercion

    def _parted(
        self,
        table: Table,
        schema: TableSchema,
        batches: Iterable[pa.RecordBatch],
        change: Change = Change.UPSERT,
    ) -> Iterator[Parts]:
        """What goes to which partition, slice by slice. Batches that are not a list come by and by:
        that may take hours, and nothing goes into a table that was dropped meanwhile. If their
        schema version is not kept any more, they go on with the newest one.
        """
        form, compression = self._way(table, schema)
        looked, written = isinstance(batches, list), schema
        for batch in batches:
            if not looked:
                now = self._current()
                if schema.number < now.schemas[0].number:  # it was forgotten meanwhile
                    table, schema = now, now.latest
                    form, compression = self._way(table, schema)
            looked = False
            if schema is not written and change is not Change.DELETE:
                batch = renewed_rows(batch, written, table)
            kind = Change.MIXED if batch.schema.names[-1:] == [CHANGE] else change
            if kind is Change.MIXED and form is not None:
                batch = _bare_deletes(batch, form.names)
            for at in range(0, batch.num_rows, SLICE_ROWS):
                rows = batch.slice(at, SLICE_ROWS) if batch.num_rows > SLICE_ROWS else batch
                keyless = self._keyless_turn = (self._keyless_turn + 1) % table.partitions
                yield [
                    (number, out)
                    for number, part in split(
                        rows, form, partitions=table.partitions, keyless=keyless
                    )
                    for out in outgoing(
                        part, schema=schema.number, change=kind, compression=compression
                    )
                ]

    def _way(self, table: Table, schema: TableSchema) -> tuple[KeyForm | None, Compression]:
        """How rows of a schema version are split and encoded; worked out once for each."""
        known = self._ways.get(schema.number)
        if known is not None and known[0] is table:
            return known[1]
        form = KeyForm.of(table, schema) if table.key else None
        way = (form, table.settings.compression)
        self._ways[schema.number] = (table, way)
        return way

    def _prepared(self, rows: Sequence[Mapping[str, Any]]) -> list[Parts]:
        """Rows as they are handed over, for a producer."""
        table = self._current()
        batches = list(self._coercion(table, table.latest).batches(rows))
        return list(self._parted(table, table.latest, batches))


class _Sink:
    """A table as its producers see it."""

    def __init__(
        self,
        session: Session,
        prepared: Callable[[Sequence[Mapping[str, Any]]], list[Parts]],
        appender: Callable[[], TableAppender],
    ) -> None:
        self._session = session
        self._prepared = prepared
        self._appender = appender

    @property
    def closed(self) -> bool:
        return self._session.backend.closed

    def check(self) -> None:
        self._session.backend.check()

    def submit(self, rows: list[Mapping[str, Any]]) -> list[Pending]:
        appender = self._appender()
        return [appender.submit(parts) for parts in self._prepared(rows)]

    def wait(self, pending: Pending) -> list[Part]:
        return self._appender().wait(pending)


def _are_dicts(rows: object) -> bool:
    return isinstance(rows, list | tuple) and (not rows or isinstance(rows[0], dict))


def _checked(batches: Iterable[pa.RecordBatch], *, made_here: bool) -> Iterator[pa.RecordBatch]:
    """Batches without a value that is not what its type says, or a row that is too large."""
    before = 0
    for batch in batches:
        if not made_here:
            check_values(batch, before)
        check_row_sizes(batch, before)
        before += batch.num_rows
        yield batch


def _bare_deletes(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    """Rows of both kinds of change, with nothing but their key in deletes."""
    deletes = pc.equal(batch.column(CHANGE), int(Change.DELETE))
    if not pc.any(deletes).as_py():
        return batch
    columns = [
        column
        if name in key or name == CHANGE
        else pc.if_else(deletes, pa.scalar(None, column.type), column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
