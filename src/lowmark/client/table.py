"""A table: append rows, read them, follow them, look keys up, look back."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, overload

import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import Catalog, TableSchema
from lowmark.catalog import Table as TableDescriptor
from lowmark.client.appending import Appender, Part, Parts, Pending, Result
from lowmark.client.checking import check_offsets, check_values, many, whole
from lowmark.client.coerce import Coercion
from lowmark.client.compacting import Compactor, Progress, Wishes
from lowmark.client.cursors import Cursors
from lowmark.client.describing import LedgerDescription
from lowmark.client.embedded import Embedded
from lowmark.client.explaining import (
    Explanation,
    KeyExplanation,
    TableExplanation,
    explain_key,
    explain_table,
)
from lowmark.client.failures import TableUnknown
from lowmark.client.looking_back import AsOfReader
from lowmark.client.lookup import IndexSize, Lookup
from lowmark.client.producer import Producer
from lowmark.client.reading import BATCH_BYTES, Reader, Reading, horizon_of
from lowmark.client.rebuilding import Rebuilt, rebuild_ledgers
from lowmark.client.reconciling import Reconciled, reconcile_ledgers
from lowmark.client.running import HereRunner, Runner, on_session
from lowmark.client.tide import STRETCHES, Tide, tide_of
from lowmark.client.times import TimeLike, is_hybrid, parse_time, time_text
from lowmark.client.verifying import LedgerVerdict, verify_ledgers
from lowmark.errors import Rejected
from lowmark.group import Future, when_all
from lowmark.ledger import RunRecord
from lowmark.runtime import COUNTER_BITS
from lowmark.table import (
    CHANGE,
    EPOCH_BITS,
    NAME_CHARACTERS_MAX,
    AsOfHold,
    Change,
    Compression,
    CursorOverdue,
    Fence,
    KeyForm,
    Partition,
    Shape,
    TimeInFuture,
    Trim,
    Trimmed,
    View,
    check_row_sizes,
    outgoing,
    split,
)

__all__ = ["Snapshot", "Start", "Table"]

MEMORY_BYTES = 1 << 30
"""What the keys of one partition may take in a task, if not told otherwise."""
SLICE_ROWS = 1 << 16
"""Rows that are split and sent together."""

Start: TypeAlias = str | int | Mapping[int, int] | datetime
"""`earliest`, `latest`, a time, or offsets by partition."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent set of end offsets: of every partition all rows up to one time, and no other."""

    time: int
    ends: Mapping[int, int]


class Table:
    """One table of a database. Safe to use from any thread; not after a fork."""

    def __init__(
        self, embedded: Embedded, descriptor: TableDescriptor, compactor: Compactor
    ) -> None:
        self._embedded = embedded
        self._compactor = compactor
        self._first = descriptor
        self._seen: Catalog | None = None
        """The version of the catalog that `_first` is of."""
        self._there = True
        node = embedded.node
        assert node.catalogs is not None
        assert node.tables is not None
        assert node.watermark is not None
        self._catalogs = node.catalogs
        self._tables = node.tables
        self._watermark = node.watermark
        self._lock = threading.Lock()
        self._appender = Appender(embedded, descriptor.id, descriptor.name)
        self._coercions: dict[int, tuple[TableDescriptor, Coercion]] = {}
        self._ways: dict[int, tuple[TableDescriptor, tuple[KeyForm | None, Compression]]] = {}
        self._keyless_turn = 0
        self._lookup: Lookup | None = None
        self._looks_in: Catalog | None = None
        """The version of the catalog that `_lookup` is of."""
        self._partitions: dict[int, Partition] = {}

    # -- what it is -----------------------------------------------------------------------------

    @property
    def descriptor(self) -> TableDescriptor:
        """What the catalog says of it now; the last word, if it was dropped."""
        self._refresh()
        return self._first

    def _described(self) -> TableDescriptor:
        return self.descriptor

    def _refresh(self) -> bool:
        """Take note of what the catalog says; False if the table is not there any more."""
        latest = self._catalogs.latest
        if latest is self._seen:
            return self._there
        # The last one that everybody here was told of, not the one of a time: clocks may jump, and
        # in one process there is nobody who could still be using the one before.
        catalog = self._catalogs.version(self._catalogs.ready_version)
        found = catalog.table(self._first.id)
        if found is not None:
            self._first = found
        self._there = found is not None
        if catalog is latest:
            self._seen = latest
        return self._there

    def _current(self) -> TableDescriptor:
        """The table as it is now; refused if it was dropped."""
        self._embedded.check()
        if not self._refresh():
            catalog = self._catalogs.latest
            known = [table.name for table in catalog.all_tables()]
            raise TableUnknown(self._first.name, known=known)
        return self._first

    def _now(self) -> int:
        """A time above all that any partition has."""
        return self._embedded.ask_now(self._now_on_loop)

    def _now_on_loop(self) -> int:
        closed = max((one.view.closed for one in self._tables.of(self._first.id)), default=0)
        return max(int(self._embedded.node.runtime.clock.now()), closed)

    @property
    def name(self) -> str:
        """Its name."""
        return self.descriptor.name

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as Arrow has them."""
        descriptor = self.descriptor
        return Shape(descriptor, [column.name for column in descriptor.columns]).schema

    @property
    def key(self) -> tuple[str, ...]:
        """The names of its key columns."""
        return tuple(column.name for column in self.descriptor.key_columns)

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return self._first.partitions

    def _partition(self, number: int) -> Partition:
        """A copy at this node; may be asked on any thread."""
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._embedded.ask_now(lambda: self._tables.get(self._first.id, number))
            self._partitions[number] = partition
        return partition

    def _all_partitions(self) -> dict[int, Partition]:
        if len(self._partitions) < self.partitions:
            for partition in self._embedded.ask_now(lambda: self._tables.of(self._first.id)):
                self._partitions[partition.number] = partition
        return {number: self._partition(number) for number in range(self.partitions)}

    # -- appending ------------------------------------------------------------------------------

    def append(self, rows: object, *, schema_version: int | None = None) -> Result:
        """Store rows; done when they are durable. Gives where they went.

        `rows`: a pyarrow Table or RecordBatch, a pandas or Polars data frame, anything with Arrow's
        stream interface, a list of dicts, or any iterable of those. Values are coerced where
        nothing is lost; else the whole call is refused, with row, column and value, and nothing of
        it is stored. An iterable that is no list is taken by and by: then what came before a
        refused chunk is stored.

        A column `_change` may say of each row whether it is an `upsert` or a `delete`.
        """
        table = self._current()
        schema = self._written_with(table, schema_version)
        coercion = self._coercion(table, schema)
        batches = _checked(coercion.batches(rows), made_here=_are_dicts(rows))
        if not isinstance(rows, Iterator):
            batches = iter(list(batches))  # all of it is checked before any of it is stored
        return self._appender.append(self._parted(table, schema, batches))

    def delete(self, keys: Iterable[object]) -> Result:
        """Delete rows by their keys: a list of keys, each a value, or a tuple for several columns.

        Deleting is a change like any other: it has an offset, and readers see it. A key that was
        never there can be deleted, too.
        """
        table = self._current()
        self._needs_key(table)
        keys = many(keys, "delete")
        names = self.key
        rows = [dict(zip(names, _key_values(table, key), strict=True)) for key in keys]
        batches = list(self._key_coercion(table).batches(rows))
        schema = _key_schema(table)
        return self._appender.append(self._parted(table, schema, iter(batches), Change.DELETE))

    def _key_coercion(self, table: TableDescriptor) -> Coercion:
        return Coercion(_key_schema(table), keyless_ok=False, key=frozenset(table.key))

    def producer(
        self,
        *,
        name: str | None = None,
        linger_ms: float = 5,
        batch_rows: int = 10_000,
        in_flight: int = 4,
    ) -> Producer:
        """A producer for rows that come one at a time: they are gathered and sent together.

        With a name there is one at a time: a newer one of that name fences the older one off, and
        what the older one still sends is refused (`ProducerFenced`).
        """
        self._current()
        appender = self._appender if name is None else self._fencing(name)
        producer = Producer(
            _Sink(self, appender), linger_ms=linger_ms, batch_rows=batch_rows, in_flight=in_flight
        )
        self._embedded.before_close.add(producer)
        return producer

    def _fencing(self, name: str) -> Appender:
        """An appender for the newest producer of a name: above every epoch that is known of it."""
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise Rejected(
                f"{name[:40]!r} can't name a producer",
                hint=f"Use 1 to {NAME_CHARACTERS_MAX} printable characters.",
            )
        producer = hashlib.blake2b(name.encode(), digest_size=16, person=b"producer").digest()
        asked = list(self._all_partitions().values())
        epochs = self._embedded.ask(
            lambda: when_all(
                [one.read(lambda state: state.producers.epoch_of(producer)) for one in asked]
            )
        )
        newest = max((epoch for epoch in epochs if epoch is not None), default=0)
        epoch = (newest >> EPOCH_BITS) + 1 << EPOCH_BITS
        self._embedded.ask(lambda: when_all([one.ask(Fence(producer, epoch)) for one in asked]))
        table = self._first
        return Appender(self._embedded, table.id, table.name, producer=producer, epoch=epoch)

    def _written_with(self, table: TableDescriptor, version: int | None) -> TableSchema:
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

    def _coercion(self, table: TableDescriptor, schema: TableSchema) -> Coercion:
        known = self._coercions.get(schema.number)
        if known is not None and known[0] is table:
            return known[1]
        keyless_ok = not table.key or table.settings.keyless_rows == "keep"
        coercion = Coercion(
            schema, keyless_ok=keyless_ok, key=frozenset(table.key), changes=bool(table.key)
        )
        self._coercions[schema.number] = (table, coercion)
        return coercion

    def _parted(
        self,
        table: TableDescriptor,
        schema: TableSchema,
        batches: Iterator[pa.RecordBatch],
        change: Change = Change.UPSERT,
    ) -> Iterator[Parts]:
        """What goes to which partition, slice by slice."""
        form, compression = self._way(table, schema)
        for batch in batches:
            self._current()  # rows may come for hours: not into a table that was dropped
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

    def _way(
        self, table: TableDescriptor, schema: TableSchema
    ) -> tuple[KeyForm | None, Compression]:
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
        return list(self._parted(table, table.latest, iter(batches)))

    # -- reading --------------------------------------------------------------------------------

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Start = "earliest",
        end: Start | Snapshot | None = None,
        follow: bool = False,
        as_of: TimeLike | None = None,
        partitions: Sequence[int] | None = None,
        limit: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        on_gap: Literal["raise", "skip"] = "raise",
        lease_ms: int | None = None,
        compacted: bool = False,
        cursor: str | None = None,
    ) -> Reader:
        """Read the backlog forward; or, with `as_of`, the table as it was at a time.

        With `compacted` the rows below the horizon come from the ledger, of each key the last one,
        and the rest from the backlog, with no gap and no repeat; `"earliest"` is offset 0 then.
        Deletes that everybody has passed are not in the ledger any more: whoever goes on from an
        offset below them gets `GapFound` (kind `deleted`), because keys that it knows may be gone.
        With `cursor` it begins where the cursor of that name stands, which holds what it needs.

        Without `as_of` every change is given in the order of its offset, one partition after
        another in turns. `start` and `end` are `"earliest"`, `"latest"`, a time, or offsets by
        partition (a plain offset, if there is only one); `end` may be a `snapshot()`. Rows of a
        time are read from it on, and up to it; an end by offset is the first that is not. Bounded,
        the
        reader ends with what was there when it was made; with `follow` it waits for more.

        `columns` may name system columns (`_partition`, `_offset`, `_time`, `_change`); without
        any, all of the table's are given, and `_change` if it has a key. Deletes are given only
        where `_change` is, since they could not be told from rows otherwise.

        Rows that retention has removed before the reader came raise `GapFound`, or are counted in
        `gaps` (`on_gap="skip"`). With `lease_ms` nothing is removed that this reader has not read,
        as long as it does not pause for longer than that.
        """
        self._embedded.check()
        limit = None if limit is None else whole(limit, "limit")
        batch_bytes = whole(batch_bytes, "batch_bytes", least=1)
        lease_ms = None if lease_ms is None else whole(lease_ms, "lease_ms")
        if on_gap not in {"raise", "skip"}:
            raise Rejected(f"on_gap can't be {on_gap!r}", hint="Use 'raise' or 'skip'.")
        wanted = self._wanted(partitions)
        if as_of is not None:
            if follow or start != "earliest" or end is not None:
                raise Rejected(
                    "a table as of a time has no start, no end and no tail",
                    hint="Leave start, end and follow out, or as_of.",
                )
            return self._read_as_of(as_of, columns, wanted, limit=limit, on_gap=on_gap)
        if follow and end is not None:
            raise Rejected("a reader that follows has no end", hint="Leave one of both out.")
        shape = Shape(self._current(), columns, newest=self._current)
        if cursor is not None:
            if start != "earliest":
                raise Rejected("a reader has one start", hint="Leave start or cursor out.")
            stands = self.cursors.get(cursor)
            if stands.overdue:
                raise CursorOverdue(cursor)
            start = {number: stands.position[number] for number in wanted}
        views = self._views(wanted)
        starts = self._offsets(start, views, what="start", compacted=compacted)
        ends = None
        if not follow:
            last = "latest" if end is None else end
            ends = self._offsets(last, views, what="end", compacted=compacted)
        reading = Reading(
            shape,
            starts,
            ends,
            limit,
            batch_bytes,
            on_gap,
            name=f"a reader of {self.name}",
            lease_ms=lease_ms,
            earliest=isinstance(start, str) and start == "earliest",
            newest=self._current,
            ledgers=self._compactor.ledgers,
            described=self._described,
            compacted=compacted,
            trusted=cursor is not None,
        )
        return Reader(self._embedded, wanted, reading)

    def _read_as_of(
        self,
        as_of: TimeLike,
        columns: Sequence[str] | None,
        wanted: dict[int, Partition],
        *,
        limit: int | None,
        on_gap: Literal["raise", "skip"],
    ) -> Reader:
        time = self._past(as_of)
        # The catalog of then says which columns there were.
        then = self._embedded.ask(lambda: self._catalogs.at(time)).table(self._first.id)
        if then is None:
            raise Rejected(
                f"table {self._first.name} was not there at {time_text(time)}",
                hint="Look back to a time between its creation and its drop.",
            )
        if columns is None:
            columns = [column.name for column in then.columns]
        hold = self._hold(time, f"table {self._first.name} is read as of then")
        try:
            views = self._closed(wanted, time)
            ends = {number: view.offset_after(time) for number, view in views.items()}
            starts = {number: horizon_of(view) for number, view in views.items()}
            shape = Shape(then, columns)
            reading = Reading(
                shape,
                starts,
                ends,
                limit,
                on_gap=on_gap,
                name="an as-of reader",
                ledgers=self._compactor.ledgers,
                described=self._described,
            )
            return AsOfReader(self._embedded, wanted, reading, time=time, hold=hold)
        except BaseException:
            self._embedded.tell(hold)
            raise

    def _hold(self, time: int, why: str) -> AsOfHold:
        """Hold history from a time on. Whoever is interrupted meanwhile holds nothing."""
        taken: list[AsOfHold] = []
        given_up = False

        def done(future: Future[AsOfHold]) -> None:
            if future.error is None:
                taken.append(future.result())
                if given_up:
                    taken[0]()

        def take() -> Future[AsOfHold]:
            future = self._watermark.hold(time, why)
            future.then(done)
            return future

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            for hold in taken:
                hold()

        try:
            return self._embedded.ask(take)
        except BaseException:
            self._embedded.tell(give_up)
            raise

    def snapshot(self) -> Snapshot:
        """Where every partition ends at one moment: all rows up to its time, and no other."""
        self._current()
        time = self._now()
        views = self._closed(self._all_partitions(), time)
        ends = {number: view.offset_after(time) for number, view in views.items()}
        return Snapshot(time, ends)

    def _past(self, given: TimeLike) -> int:
        now = self._now()
        time = parse_time(given, now=now)
        if time > now:
            raise TimeInFuture(time=time, now=now)
        return time

    def _wanted(self, numbers: Sequence[int] | None) -> dict[int, Partition]:
        if numbers is None:
            return self._all_partitions()
        numbers = list(many(numbers, "partitions"))  # type: ignore[arg-type]
        bad = [number for number in numbers if number not in range(self.partitions)]
        if bad:
            raise Rejected(
                f"table {self.name} has no partition {bad[0]!r}",
                hint=f"It has 0 to {self.partitions - 1}.",
            )
        return {number: self._partition(number) for number in numbers}

    def _views(self, wanted: dict[int, Partition]) -> dict[int, View]:
        """All that was acknowledged before this moment."""
        if all(partition.alone for partition in wanted.values()):
            return {number: partition.view for number, partition in wanted.items()}
        asked = list(wanted.items())
        views = self._embedded.ask(lambda: when_all([one.latest() for _, one in asked]))
        return {number: view for (number, _), view in zip(asked, views, strict=True)}

    def _closed(self, wanted: dict[int, Partition], time: int) -> dict[int, View]:
        asked = list(wanted.items())
        views = self._embedded.ask(lambda: when_all([one.closed(time) for _, one in asked]))
        return {number: view for (number, _), view in zip(asked, views, strict=True)}

    def _offsets(
        self, where: Start | Snapshot, views: dict[int, View], *, what: str, compacted: bool = False
    ) -> dict[int, int]:
        if isinstance(where, Snapshot):
            where = where.ends
        if where == "earliest":
            return {number: 0 if compacted else view.start for number, view in views.items()}
        if where == "latest":
            return {number: view.end for number, view in views.items()}
        if isinstance(where, Mapping):
            offsets = check_offsets(where, what, partitions=self.partitions)
            return {number: offsets[number] for number in views if number in offsets}
        if isinstance(where, int) and not isinstance(where, bool):
            if not is_hybrid(where):
                if self.partitions > 1:
                    raise Rejected(
                        f"{what} is one offset, but table {self.name} has {self.partitions}"
                        " partitions",
                        hint="Give offsets by partition: {0: 17, 1: 4, ...}.",
                    )
                return {number: whole(where, what) for number in views}
            first = last = where
        else:
            last = parse_time(where, now=self._now())
            first = last >> COUNTER_BITS << COUNTER_BITS  # the whole of a millisecond
        # Both with all that has that time.
        after = what == "end"
        time = last if after else first
        return {
            number: self._offset_of(view, time, after=after, compacted=compacted)
            for number, view in views.items()
        }

    def _offset_of(self, view: View, time: int, *, after: bool, compacted: bool) -> int:
        """The first offset of a time or, `after`, behind it: in the ledger, where it counts."""
        in_backlog = view.offset_after(time) if after else view.offset_from(time)
        if not compacted or view.readable is None or in_backlog > horizon_of(view):
            return in_backlog
        ledger = self._compactor.ledgers.open(view.readable.manifest, self._described)
        offset = ledger.offset_of_time(time, after=after)
        return offset if offset < ledger.horizon else max(in_backlog, ledger.horizon)

    # -- looking up -----------------------------------------------------------------------------

    def get(self, key: object) -> dict[str, Any] | None:
        """The latest row of a key; None if it was deleted, or never there (see `explain`)."""
        lookup = self._lookup
        if lookup is None or self._catalogs.latest is not self._looks_in:
            lookup = self._looking_up()
        short = len(lookup.table.key) == 1 and not isinstance(key, dict | tuple)
        values = (key,) if short else _key_values(lookup.table, key)
        try:
            return lookup.get(values)
        except Rejected:
            return lookup.get(self._coerced_key(lookup.table, values))

    def _coerced_key(
        self, table: TableDescriptor, values: tuple[object, ...]
    ) -> tuple[object, ...]:
        """A key that was given as it could be appended: text for a date, say."""
        names = [column.name for column in table.key_columns]
        row = dict(zip(names, values, strict=True))
        (batch,) = self._key_coercion(table).batches([row])
        return tuple(batch.column(name)[0].as_py() for name in names)

    def get_many(self, keys: Iterable[object]) -> list[dict[str, Any] | None]:
        """The latest rows of keys, in the order of the keys."""
        keys = many(keys, "get_many")
        lookup = self._looking_up()
        table = lookup.table
        rows = [dict(zip(lookup.key_names, _key_values(table, key), strict=True)) for key in keys]
        batches = list(self._key_coercion(table).batches(rows))
        return [row for batch in batches for row in lookup.get_many(batch)]

    def _looking_up(self) -> Lookup:
        table = self._current()
        with self._lock:
            known = self._lookup
            if known is None or known.table.latest != table.latest:
                self._lookup = known = Lookup(
                    self._embedded,
                    table,
                    self._partition,
                    known=known,
                    newest=self._current,
                    ledgers=self._compactor.ledgers,
                )
            known.table = table
            self._looks_in = self._seen
            return known

    @property
    def index_size(self) -> IndexSize | None:
        """What the index of its keys costs in memory; None if nobody has looked a key up yet."""
        return None if self._lookup is None else self._lookup.size()

    # -- cursors, and what is kept for whom -------------------------------------------------------

    @property
    def cursors(self) -> Cursors:
        """The named durable readers of this table."""
        self._current()
        return Cursors(self._embedded, self._first, self._all_partitions)

    @overload
    def explain(self) -> TableExplanation: ...

    @overload
    def explain(self, key: object) -> KeyExplanation: ...

    def explain(self, key: object = None) -> Explanation:
        """What is kept, who still needs it, and what would be freed without them.

        With a key: whether it is there, was deleted, or is unknown.
        """
        table = self._current()
        if key is not None:
            self._needs_key(table)
            values = self._coerced_key(table, _key_values(table, key))
            return explain_key(self._looking_up(), values)
        ledgers = self._compactor.ledgers
        return explain_table(self._embedded, table, self._all_partitions(), ledgers)

    def tide(self, *, stretches: int = STRETCHES) -> Tide:
        """Where ledger, backlog, low watermark and readers stand, and what each of them keeps; its
        `save` draws a picture.

        `stretches` is how finely it is counted which rows are left in ledgers; for that, the
        offsets in them are read. With 0 nothing of that is.
        """
        return tide_of(
            self._embedded,
            self._current(),
            self._all_partitions(),
            ledgers=self._compactor.ledgers,
            newest=self._current,
            stretches=whole(stretches, "stretches"),
        )

    def trim(self, offsets: Mapping[int, int]) -> dict[int, Trimmed]:
        """Cut the backlog below offsets, as far as it is in ledgers and nobody holds it."""
        self._current()
        offsets = check_offsets(offsets, "trim", partitions=self.partitions)
        wanted = self._wanted(list(offsets))
        asked = list(wanted.items())
        outcomes = self._embedded.ask(
            lambda: when_all([one.ask(Trim(offsets[number])) for number, one in asked])
        )
        return {
            number: outcome
            for (number, _), outcome in zip(asked, outcomes, strict=True)
            if isinstance(outcome, Trimmed)
        }

    # -- compaction -----------------------------------------------------------------------------

    def compact(
        self,
        *,
        spark: object = None,
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        here: bool = False,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        verify: bool = False,
        trim: bool = True,
        rewrite: bool = False,
        read_rate: int | None = None,
        write_rate: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        progress: Callable[[Progress], None] | None = None,
        resume: str | None = None,
        step: Callable[[str], None] | None = None,
    ) -> RunRecord:
        """Put all rows up to the low watermark into ledgers, of each key the last one; then cut the
        backlog as far as nobody holds it. Gives what was done, and what it cost.

        It runs on a Spark session of yours (`spark`), on one of its own (`master`, `local[*]` if
        nothing is said, with settings of Spark's in `spark_config`; it stays for the next run,
        until the database is closed), or in this process without Spark (`here`), which is quicker
        for less than a million rows. `dry_run` gives the plan. `verify` finds every survivor by a
        second algorithm, not only those of a sample of keys. Without `trim` the backlog stays as it
        is. `rewrite` writes every file of the ledgers anew. `read_rate` and `write_rate` are bytes
        a second, `memory_bytes` is what the keys of one partition may take in a task. `resume` goes
        on with a run that was interrupted, as it was planned, at the same rates unless others are
        given. `step` is told the name of every step before it is made.
        """
        table = self._current()
        wanted = self._wanted(partitions)
        runners = _Runners(self._compactor, spark, master, spark_config, here=here)
        wishes = Wishes(
            verify=verify,
            trim=trim,
            rewrite=rewrite,
            read_rate=None if read_rate is None else whole(read_rate, "read_rate"),
            write_rate=None if write_rate is None else whole(write_rate, "write_rate"),
            memory_bytes=whole(memory_bytes, "memory_bytes", least=1 << 20),
            where=runners.where,
            progress=progress,
            **({} if step is None else {"step": step}),  # type: ignore[arg-type]
        )
        if dry_run:
            return self._compactor.plan(table, wanted, wishes)
        if resume is not None:
            return self._compactor.resume(
                table, self._all_partitions(), runners.get, wishes, run=resume
            )
        return self._compactor.compact(table, wanted, runners.get, wishes)

    def runs(self) -> list[RunRecord]:
        """The runs of this table that are known, the newest first."""
        return self._compactor.records.runs(self._current().id)

    def cancel_run(self, run: str) -> RunRecord:
        """End a run that goes on, or give up one that was interrupted."""
        return self._compactor.cancel(self._current(), run)

    def ledgers(self, partitions: Sequence[int] | None = None) -> list[LedgerDescription]:
        """What its ledgers consist of, file by file, and which older ones wait to be removed."""
        return self._compactor.describe(self._current(), self._wanted(partitions))

    def verify_ledgers(
        self,
        partitions: Sequence[int] | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> list[LedgerVerdict]:
        """Read all of its ledgers, with every checksum and every digest; says what is not sound."""
        made = self._compactor
        table, wanted = self._current(), self._wanted(partitions)
        return verify_ledgers(self._embedded, made.ledgers, made.records, table, wanted, progress)

    def rebuild_ledger(
        self,
        partitions: Sequence[int] | None = None,
        *,
        dry_run: bool = False,
        accept_loss: bool = False,
        progress: Callable[[Progress], None] | None = None,
        step: Callable[[str], None] | None = None,
    ) -> list[Rebuilt]:
        """Make ledgers anew that are missing or damaged, from what still has their rows: their own
        sound files, the backlog, or a ledger that was replaced. Sound ones are left alone.

        If rows can't be brought back, nothing is changed and `RowsUnrecoverable` says which; with
        `accept_loss` they are left out, and whoever reads across them is told (`GapFound`, kind
        `lost`). `dry_run` says what would be done. `step` is told the name of every step before it
        is made.
        """
        wishes = Wishes(
            trim=False,
            where="here",
            progress=progress,
            **({} if step is None else {"step": step}),  # type: ignore[arg-type]
        )
        return rebuild_ledgers(
            self._compactor,
            self._current(),
            self._wanted(partitions),
            wishes,
            dry_run=dry_run,
            accept_loss=accept_loss,
        )

    def reconcile_ledgers(self) -> list[Reconciled]:
        """Set what the metastore has published to what the partitions have adopted, where it is
        behind that or contradicts it: after a backup of the metastore was restored.
        """
        made = self._compactor
        partitions = self._all_partitions()
        return reconcile_ledgers(
            self._embedded, made.ledgers, made.records, self._current(), partitions
        )

    def sweep(self, *, dry_run: bool = False) -> list[str]:
        """Remove files of this table's ledgers that nobody names any more; gives which. A dry run
        only says what would go.
        """
        return self._compactor.sweep(self._current(), dry_run=dry_run)

    def _needs_key(self, table: TableDescriptor) -> None:
        if not table.key:
            raise Rejected(
                f"table {table.name} has no key",
                hint="Read it with `read`; rows without a key go by retention only.",
            )

    def __repr__(self) -> str:
        return f"<lowmark.Table {self._first.name}, {self.partitions} partitions>"


class _Runners:
    """The runner that was asked for, made when it is needed."""

    def __init__(
        self,
        compactor: Compactor,
        spark: object,
        master: str | None,
        config: Mapping[str, str] | None,
        *,
        here: bool,
    ) -> None:
        if sum([spark is not None, master is not None, here]) > 1:
            raise Rejected(
                "a run is made in one place",
                hint="Give a session, or a master, or here=True.",
            )
        if config and (spark is not None or here):
            raise Rejected(
                "spark_config is for a session that is opened here",
                hint="Give a master, or leave it out: a session of yours has its own settings.",
            )
        self._config = config
        self._compactor = compactor
        self._spark = spark
        self._master = master or "local[*]"
        self._here = here
        self.where = "here" if here else "your Spark session" if spark else self._master

    def get(self) -> Runner:
        if self._here:
            return HereRunner()
        if self._spark is not None:
            return on_session(self._spark)
        return self._compactor.spark.get(self._master, self._config)


class _Sink:
    """A table as its producers see it."""

    def __init__(self, table: Table, appender: Appender) -> None:
        self._table = table
        self._appender = appender

    @property
    def closed(self) -> bool:
        return self._table._embedded.closed

    def check(self) -> None:
        self._table._embedded.check()

    def submit(self, rows: list[Mapping[str, Any]]) -> list[Pending]:
        return [self._appender.submit(parts) for parts in self._table._prepared(rows)]

    def wait(self, pending: Pending) -> list[Part]:
        return self._appender.wait(pending)


def _are_dicts(rows: object) -> bool:
    return isinstance(rows, list | tuple) and all(isinstance(row, dict) for row in rows[:1])


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


def _key_schema(table: TableDescriptor) -> TableSchema:
    """The columns of the key alone, as they are now, in the table's order."""
    columns = tuple(column for column in table.columns if column.id in table.key)
    return TableSchema(number=table.latest.number, columns=columns)


def _key_values(table: TableDescriptor, key: object) -> tuple[object, ...]:
    """A key as a caller gives it: one value, a tuple, or a dict by column."""
    names = [column.name for column in table.key_columns]
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise Rejected(
                f"the key of table {table.name} is ({', '.join(names)}), not ({', '.join(key)})"
            )
        return tuple(key[name] for name in names)
    if len(names) == 1 and not isinstance(key, tuple):
        return (key,)
    if not isinstance(key, tuple | list) or len(key) != len(names):
        raise Rejected(
            f"the key of table {table.name} has {len(names)} columns",
            hint=f"Give a tuple of ({', '.join(names)}).",
        )
    return tuple(key)
