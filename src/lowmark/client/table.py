"""A table: append rows, read them, follow them, look keys up, look back.

This is what callers see: each call finds out what the table is now, checks what it was given, and
hands over to the part that does it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from lowmark.backend.errors import TableUnknown
from lowmark.backend.port import Backend, LooksUp
from lowmark.backend.values import Found
from lowmark.catalog import Catalog, Executed
from lowmark.catalog import Table as TableDescriptor
from lowmark.catalog.errors import VersionCompacted
from lowmark.client.appending import Result
from lowmark.client.changes import ChangesReader
from lowmark.client.checking import (
    check_detached,
    check_key,
    check_offsets,
    coerced_key,
    column_names,
    key_batches,
    key_values,
    many,
    whole,
)
from lowmark.client.edges import edge, raise_by_name
from lowmark.client.reading import BATCH_BYTES, Reader
from lowmark.client.session import Session
from lowmark.client.staging import (
    ONCE_MS,
    STREAM_MS,
    Commit,
    Committed,
    Stage,
    Staged,
    drawn_number,
)
from lowmark.client.table_reading import Snapshot, Start, TableReaders
from lowmark.client.table_writing import TableWriter
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import Progress, RunOptions
from lowmark.convert.columns import ColumnsLike
from lowmark.convert.times import TimeLike
from lowmark.errors import Rejected
from lowmark.faces import deferred
from lowmark.formatting import counted
from lowmark.runtime import RAN_OUT
from lowmark.table import KeyForm, Shape, Trim, Trimmed

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from lowmark.client.altering import alterations
    from lowmark.client.cursors import Cursors
    from lowmark.client.distant_lookup import DistantLookup
    from lowmark.client.explaining import (
        Explanation,
        KeyExplanation,
        TableExplanation,
        explain_key,
        explain_table,
    )
    from lowmark.client.exporting import Exported, ExportProgress, export_table
    from lowmark.client.history import HistoryLine, table_history
    from lowmark.client.lookup import IndexSize, Lookup
    from lowmark.client.producer import Producer
    from lowmark.client.tide import Tide, tide_of
    from lowmark.compaction.description import LedgerDescription
    from lowmark.compaction.repair import Rebuilt, Reconciled, rebuild_ledgers, reconcile_ledgers
    from lowmark.compaction.runner import Engine, Runners, as_before, read_way
    from lowmark.compaction.schemas import SchemasTrimmed
    from lowmark.compaction.verify import LedgerVerdict, verify_ledgers
    from lowmark.ledger import ReadWay, RunRecord
else:
    (Cursors,) = deferred("lowmark.client.cursors", "Cursors")
    (DistantLookup,) = deferred("lowmark.client.distant_lookup", "DistantLookup")
    (Lookup,) = deferred("lowmark.client.lookup", "Lookup")
    (Producer,) = deferred("lowmark.client.producer", "Producer")
    (tide_of,) = deferred("lowmark.client.tide", "tide_of")
    (alterations,) = deferred("lowmark.client.altering", "alterations")
    explain_key, explain_table = deferred(
        "lowmark.client.explaining", "explain_key", "explain_table"
    )
    (export_table,) = deferred("lowmark.client.exporting", "export_table")
    (table_history,) = deferred("lowmark.client.history", "table_history")
    rebuild_ledgers, reconcile_ledgers = deferred(
        "lowmark.compaction.repair", "rebuild_ledgers", "reconcile_ledgers"
    )
    Runners, as_before, read_way = deferred(
        "lowmark.compaction.runner", "Runners", "as_before", "read_way"
    )
    (verify_ledgers,) = deferred("lowmark.compaction.verify", "verify_ledgers")

MEMORY_BYTES = 1 << 30
"""What the keys of one partition may take in a task, if not told otherwise."""
_STRETCHES = 200
"""Into this many stretches a picture divides a partition, to show which rows are left."""


@edge(but=("get", "append"))
class Table:
    """One table of a database. Safe to use from any thread; not after a fork."""

    def __init__(
        self,
        session: Session,
        descriptor: TableDescriptor,
        compactor: Compactor,
        *,
        then: TableDescriptor | None = None,
    ) -> None:
        self._session = session
        self._compactor = compactor
        self._first = descriptor
        self._then = then
        """Of a table that was dropped: as it was at the time by which it was asked for."""
        self._seen: Catalog | None = None
        """The version of the catalog that `_first` is of."""
        self._there = True
        self._lock = threading.Lock()
        self._writer = TableWriter(session, descriptor, self._current)
        self._readers = TableReaders(
            session,
            compactor.ledgers,
            descriptor.id,
            described=self._described,
            current=self._current,
            cursors=lambda: self.cursors,
        )
        self._lookup: Lookup | None = None
        self._looks_in: Catalog | None = None
        """The version of the catalog that `_lookup` is of."""

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    # -- what it is -----------------------------------------------------------------------------

    @property
    def descriptor(self) -> TableDescriptor:
        """What the catalog says of it now. If it was dropped, the last word; or, if you have it
        by a time (`Database.table`), what the catalog said then.
        """
        return self._described() if self._then is None else self._then

    def _described(self) -> TableDescriptor:
        """The table as it is now, or was when it was dropped."""
        self._refresh()
        return self._first

    def _refresh(self) -> bool:
        """Take note of what the catalog says; False if the table is not there any more."""
        catalog = self._session.backend.catalog()
        if catalog is not self._seen:
            found = catalog.table(self._first.id)
            if found is not None:
                self._first = found
            elif self._there:
                self._first = self._last_word()
            self._there = found is not None
            self._seen = catalog
        return self._there

    def _last_word(self) -> TableDescriptor:
        """The table right before it was dropped: it may have changed since it was last seen here,
        and rows may have a schema version of after that.
        """
        backend = self._session.backend
        if backend.closed:
            return self._first
        dropped_at = backend.dropped_at(self._first.id)
        if dropped_at is None:
            return self._first
        try:
            return backend.catalog_at(dropped_at - 1).table(self._first.id) or self._first
        except VersionCompacted:  # the low watermark has passed it: no row can be read any more
            return self._first

    def _current(self) -> TableDescriptor:
        """The table as it is now; refused if it was dropped."""
        backend = self._session.backend
        backend.check()
        if backend.catalog() is self._seen and self._there:
            return self._first
        if not self._refresh():
            known = [table.name for table in self._backend.catalog().all_tables()]
            raise TableUnknown(self._first.name, known=known)
        return self._first

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

    def alter(
        self,
        *,
        add: ColumnsLike | None = None,
        drop: str | Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: ColumnsLike | None = None,
        options: Mapping[str, str | int | None] | None = None,
        partitions: int | None = None,
    ) -> Executed:
        """Change columns and options: all of it, in one version of the catalog, or nothing.

        `add` takes columns as `create_table` does; they come last, and older rows show null in
        them, or the default of a `NewColumn`. `drop` names columns, `rename` maps old names to
        new ones, `widen` maps names to types that hold more; all by the names that columns have
        before, so columns may take each other's names. Options that are None go back to their
        defaults. The number of partitions never changes: another one than the table has is refused
        (`PartitionsFixed`).
        """
        table = self._current()
        catalog = self._backend.catalog()
        commands = alterations(
            catalog,
            table,
            add=add,
            drop=drop,
            rename=rename,
            widen=widen,
            options=options,
            partitions=partitions,
        )
        return self._backend.execute(commands)

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
        try:  # and no `edge`: an append of one row is too quick for one call more
            parts = self._writer.parts(rows, schema_version=schema_version)
            return self._writer.appender().append(parts)
        except RAN_OUT as error:
            raise_by_name(error, self._backend.info.name)

    def upsert(self, rows: object, *, schema_version: int | None = None) -> Result:
        """Store rows of which each takes the place of the last one with its key: `append`, by the
        name that it has for a table with a key. Refused for a table without one.
        """
        check_key(self._current(), hint="Store rows without a key by `append`.")
        return self.append(rows, schema_version=schema_version)

    def delete(self, keys: object) -> Result:
        """Delete rows by their keys: a list of keys, each a value, or a tuple for several columns;
        or a frame with the key's columns (pandas, Polars, Arrow), whose other columns are ignored.

        Deleting is a change like any other: it has an offset, and readers see it. A key that was
        never there can be deleted, too.
        """
        return self._writer.appender().append(self._writer.deletes(keys))

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
        table = self._current()
        producer = Producer(
            self._writer.sink(table, name),
            linger_ms=linger_ms,
            batch_rows=batch_rows,
            in_flight=in_flight,
        )
        self._session.storing.add(producer)
        return producer

    def stage(self, *, number: int | None = None) -> Stage:
        """A writer of rows that no reader sees before they are committed (`commit`): one of many,
        in any process. Rows that are not committed within a day are dropped by their partition's
        leader, when all partitions have answered that they do not count for a commit.

        Its `number` is drawn, if not given (`client.staging.attempt_number`).
        """
        self._backend.check()
        number = drawn_number() if number is None else number
        self._writer.begin_at(number)  # writers of rows without a key begin in different partitions
        parts = partial(self._writer.parts, schema_version=None)
        return Stage(self._backend, self._current(), parts, number=number)

    def commit(
        self,
        staged: Sequence[Staged],
        *,
        query: str | None = None,
        epoch: int = 0,
        keep_ms: int | None = None,
    ) -> Committed:
        """Have readers see what these writers have staged, and store it once: an epoch of a query
        that was committed before gets its first answer, and what was staged for the repeat is
        dropped. It becomes visible partition by partition.

        `query` is any name; epochs of one grow. A query is known for 90 days after its last epoch,
        or `keep_ms`. Without `query`, what was staged is its own: to commit the same again within
        an hour is a repeat.
        """
        known_ms = ONCE_MS if query is None else STREAM_MS
        commit = Commit(self._backend, self._current(), staged, query=query, epoch=epoch)
        return commit.run(known_ms if keep_ms is None else whole(keep_ms, "keep_ms", least=1))

    def discard(
        self, staged: Sequence[Staged], *, query: str | None = None, epoch: int = 0
    ) -> bool:
        """Drop what these writers have staged, unless it is committed as that epoch, or is about to
        be: then nothing changes. Says whether it was dropped.
        """
        current = self._current()
        there = [one for one in staged if one.table == current.id]  # else it is gone with its table
        return Commit(self._backend, current, there, query=query, epoch=epoch).give_up()

    # -- reading --------------------------------------------------------------------------------

    def read(
        self,
        *,
        columns: str | Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        start: Start | None = None,
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
        Deletes that every cursor and lease has passed may be gone from the ledger: a reader that
        goes on from an offset below them gets `GapFound` (kind `deleted`), because keys that it
        knows may be gone.
        With `cursor` it begins where the cursor of that name stands, which holds what it needs.

        Without `as_of` every change is given in the order of its offset, one partition after the
        other; with `follow`, in turns. `start` and `end` are `"earliest"`, `"latest"`, a time, or
        offsets by partition (a plain offset, if there is only one); `end` may be a `snapshot()`.
        Rows of a time are read from it on, and up to it; an end by offset is the first that is not.
        Where rows of the start's time or later are gone, or may be, the reader raises `GapFound`.
        A time is a `datetime` with its zone, ISO 8601 text, or a row's `_time`. Bounded, the reader
        ends with what was there when it was made; with `follow` it waits for more.

        Without `start` all changes are meant: if some were compacted and cut, the reader raises
        `GapFound` instead of giving a part. `"earliest"` means the changes that are left.

        `columns` is a name or a list of names, system columns among them (`_partition`, `_offset`,
        `_time`, `_change`); without any, all of the table's are given, and `_change` if it has a
        key. Deletes are returned only if `_change` is selected, since they would look like rows
        otherwise.

        `where` is a condition on the table's columns and system columns: text as SQL has it, such
        as `"status = 'new' and amount > 5"` (comparisons with values, `in`, `is null`, `and`, `or`,
        `not` and parentheses), or an Arrow expression, such as `pc.field("status") == "new"`. Only
        rows of which it is true are given, exactly those that filtering afterwards would leave;
        `limit` counts them. Columns that only `where` needs are not given. Of ledgers, row groups
        are passed over whose statistics say that they have none.
        A delete has its key and null in all other columns; to have deletes among the rows, say so:
        `(pc.field("status") == "new") | (pc.field("_change") == "delete")`, and select `_change`.
        As of a time, the last row of each key is found first, and then has to pass.

        Rows that retention has removed before the reader came raise `GapFound`, or are counted in
        `gaps` (`on_gap="skip"`). With `lease_ms` nothing is removed that this reader has not read,
        as long as it does not pause for longer than that.
        """
        self._backend.check()
        limit = None if limit is None else whole(limit, "limit")
        batch_bytes = whole(batch_bytes, "batch_bytes", least=1)
        lease_ms = None if lease_ms is None else whole(lease_ms, "lease_ms")
        if on_gap not in {"raise", "skip"}:
            raise Rejected(f"on_gap can't be {on_gap!r}", hint="Use 'raise' or 'skip'.")
        wanted, names = self._wanted(partitions), column_names(columns)
        if as_of is not None:
            if follow or (start is not None and start != "earliest") or end is not None:
                raise Rejected(
                    "as_of and start, end or follow exclude each other",
                    hint="Leave start, end and follow out, or as_of.",
                )
            return self._readers.as_of(
                as_of, names, list(wanted), limit=limit, on_gap=on_gap, where=where
            )
        return self._readers.forward(
            list(wanted),
            columns=names,
            start=start,
            end=end,
            follow=follow,
            limit=limit,
            batch_bytes=batch_bytes,
            on_gap=on_gap,
            lease_ms=lease_ms,
            compacted=compacted,
            cursor=cursor,
            where=where,
        )

    def offsets(self, where: Start, *, end: bool = False) -> dict[int, int]:
        """The offsets that a position stands for now: where a reader that starts there begins or,
        `end`, stops. Of offsets by partition, those that are given.
        """
        self._current()
        return self._readers.offsets(where, range(self.partitions), what="end" if end else "start")

    def offsets_from(self, times: Mapping[int, int]) -> dict[int, int]:
        """The same for a start that has a time of its own in each partition: a row's `_time`."""
        self._current()
        return self._readers.offsets_from(times)

    def changes(
        self,
        start: Start | Snapshot,
        end: Start | Snapshot | None = None,
        *,
        preimages: bool = False,
        net: bool = False,
        columns: str | Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        on_gap: Literal["raise", "skip"] = "raise",
    ) -> ChangesReader:
        """What changed from `start` to `end`, key by key: the table's columns, and behind them
        `_change_type` (`insert`, `delete`, `update_postimage`, `update_preimage`),
        `_commit_version` (the row's `_time`) and `_commit_timestamp`, as Spark has them.

        A change is an insert or an update by what its key was right before it; deleting a key that
        is not there is no change. If a batch has a key more than once, its last row counts. Rows
        that equal the ones they replace are updates, too. Without a key all rows are inserts.
        An update is given as its post-image, a delete as its key, with null in all other columns.
        With `preimages`, an update's pre-image comes before it, and a delete has all that was
        deleted. With `net`, each key that is not as it was right before `start`, or was written
        since, comes once, with the version of its last change; one that came and went does not.

        Both times belong to the range. They are given as for `read`; `start` may be a `snapshot()`,
        too: then the changes since are given. Without `end`, all up to now. The end is closed: no
        row of it can come any more, so that feeds of `a` to `b` and of `b + 1` to `c` are together
        that of `a` to `c`; the reader's `time` is that `b`, and its `position` has the offsets. By
        offsets, `end` is the first that is not given, and neither may lie within a batch.
        `"earliest"` is the first place from which on all changes are known.

        Partitions come one after the other, each in the order of versions. `columns` may name
        `_partition` and `_offset`, which is that of the change.

        `ChangesGone` is raised if what a key was before is not kept any more: the feed is exact as
        far back as `read(as_of=...)` is, and further if no run has compacted what is needed. With
        `on_gap="skip"`, keys whose rows went by retention count as new, and `gaps` lists these.
        """
        self._backend.check()
        if on_gap not in {"raise", "skip"}:
            raise Rejected(f"on_gap can't be {on_gap!r}", hint="Use 'raise' or 'skip'.")
        return self._readers.changes(
            self._wanted(partitions),
            start=start,
            end=end,
            columns=column_names(columns),
            preimages=preimages,
            net=net,
            on_gap=on_gap,
        )

    def snapshot(self) -> Snapshot:
        """Where every partition ends at one moment: all rows up to its time, and no other."""
        self._current()
        return self._readers.snapshot(range(self.partitions))

    def export(
        self,
        to: str | os.PathLike[str],
        *,
        format: str = "parquet",  # noqa: A002
        as_of: TimeLike | None = None,
        columns: str | Sequence[str] | None = None,
        on_gap: Literal["raise", "skip"] = "raise",
        spark: object = None,
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        engine: Engine | None = None,
        progress: Callable[[ExportProgress], None] | None = None,
    ) -> Exported:
        """Write the table as it is now, or was at a time, into a directory for other programs.

        All partitions are as of one time, with the columns of then: of each key its last row, and
        no deletes; without a key, all rows. `format` is `"parquet"`, files in the directory;
        `"delta"`, a Delta table (by the package deltalake); or `"iceberg"`, an Iceberg table
        without a catalog (by pyiceberg), which stays where it is, because Iceberg names files by
        whole paths.

        The directory must not be there yet, or be empty (`DestinationRefused`). It is written aside
        and renamed at the end: if the export fails, it is not there. The answer says the time,
        rows, files and bytes. Times, columns and `on_gap` are as for `read`. A column whose name
        or type the format can't have is refused (`ColumnUnfit`) before anything is written.

        It runs in this process, or on Spark if a session of yours (`spark`), a `master` or
        `engine="spark"` is given, as for `compact`: then each partition is a task, and all machines
        must see the directory under the same path. The files are the same.
        """
        self._backend.check()
        if on_gap not in {"raise", "skip"}:
            raise Rejected(f"on_gap can't be {on_gap!r}", hint="Use 'raise' or 'skip'.")
        asked: TimeLike = "now" if as_of is None else as_of
        elsewhere = spark is not None or master is not None or bool(spark_config)

        def read(
            partitions: Sequence[int], names: Sequence[str] | None, time: int | None
        ) -> Reader:
            at = asked if time is None else time
            return self._readers.as_of(at, names, partitions, on_gap=on_gap)

        return export_table(
            self._backend,
            read,
            columns=column_names(columns),
            partitions=self._wanted(),
            to=to,
            wanted=format,
            on_gap=on_gap,
            runners=Runners(
                self._compactor.spark,
                session=spark,
                master=master,
                config=spark_config,
                engine=engine or ("spark" if elsewhere else "local"),
            ),
            progress=progress,
        )

    def _wanted(self, numbers: Sequence[int] | None = None) -> list[int]:
        """Numbers of partitions, all of them if none are given."""
        if numbers is None:
            return list(range(self.partitions))
        numbers = list(many(numbers, "partitions"))  # type: ignore[arg-type]
        if not numbers:
            raise Rejected("no partition is named", hint="Name some, or leave partitions out.")
        bad = [number for number in numbers if number not in range(self.partitions)]
        if bad:
            raise Rejected(
                f"table {self.name} has no partition {bad[0]!r}",
                hint=f"It has 0 to {self.partitions - 1}.",
            )
        return numbers

    # -- looking up -----------------------------------------------------------------------------

    def get(self, key: object, *, as_of: TimeLike | None = None) -> dict[str, Any] | None:
        """The latest row of a key; None if it was deleted, or never there (see `explain`).

        With `as_of`, the row that it had at a time, with the columns of then; a time is given as
        to `read`. UUIDs come as `uuid.UUID`, maps as dicts.
        """
        try:  # and no `edge`: a look-up is too quick for one call more
            if as_of is not None:
                return self._get_as_of(key, as_of)
            lookup = self._lookup
            if lookup is None or self._session.backend.catalog() is not self._looks_in:
                lookup = self._looking_up()
            short = len(lookup.table.key) == 1 and not isinstance(key, dict | tuple)
            values = (key,) if short else key_values(lookup.table, key)
            try:
                return lookup.get(values)
            except Rejected:
                return lookup.get(coerced_key(lookup.table, values))
        except RAN_OUT as error:
            raise_by_name(error, self._backend.info.name)

    def _get_as_of(self, key: object, as_of: TimeLike) -> dict[str, Any] | None:
        table = self.descriptor  # of a table that was dropped, too: it was there then
        check_key(table)
        values = coerced_key(table, key_values(table, key))
        form = KeyForm.of(table)
        number = form.bucket_one(form.one(values), table.partitions)
        return self._readers.as_of(as_of, None, [number], on_gap="skip").row_of(values)

    def count(
        self, *, where: str | pc.Expression | None = None, as_of: TimeLike | None = None
    ) -> int:
        """How many rows the table has now, or had at a time: of each key one, unless it was
        deleted; without a key, all that are left. It is exact. Rows in ledgers are counted by their
        manifests; of the backlog, keys and changes are read, and without a key nothing is.

        With `where`, how many rows pass, as with `read`: then the columns that it needs are read.
        """
        at = "now" if as_of is None else as_of
        if where is not None:
            with self.read(where=where, as_of=at, columns=[], on_gap="skip") as reader:
                return sum(batch.num_rows for batch in reader)
        return self._readers.as_of(at, None, self._wanted(), on_gap="skip").count()

    def get_many(self, keys: object) -> list[dict[str, Any] | None]:
        """The latest rows of keys, in the order of the keys; they are given as to `delete`."""
        lookup = self._looking_up()
        batches = list(key_batches(lookup.table, keys, "get_many"))
        return [row for batch in batches for row in lookup.get_many(batch)]

    def _looking_up(self) -> Lookup:
        table = self._current()
        with self._lock:
            known = self._lookup
            backend = self._backend
            if known is None or known.backend is not backend or known.table.latest != table.latest:
                kind = DistantLookup if isinstance(backend, LooksUp) else Lookup
                self._lookup = known = kind(
                    backend,
                    table,
                    known=known,
                    newest=self._current,
                    ledgers=self._compactor.ledgers,
                )
            known.table = table
            self._looks_in = self._seen
            return known

    def find_keys(self, keys: Sequence[int | bytes]) -> list[Found | None]:
        """The last change of each key, given in its form (`KeyForm.one`): for a server."""
        lookup = self._looking_up()
        return [lookup.find_key(key) for key in keys]

    def partitions_of(self, keys: Sequence[int | bytes]) -> list[int]:
        """Where keys belong that are given in their form: for a server."""
        lookup = self._looking_up()
        return [lookup.partition_of_key(key) for key in keys]

    @property
    def index_size(self) -> IndexSize | None:
        """What the index of its keys costs in memory; None before the first look-up."""
        return None if self._lookup is None else self._lookup.size()

    # -- cursors, and what is kept for them -------------------------------------------------------

    @property
    def cursors(self) -> Cursors:
        """The named durable readers of this table."""
        self._current()
        return Cursors(self._backend, self._first)

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
            check_key(table)
            values = coerced_key(table, key_values(table, key))
            return explain_key(self._looking_up(), values)
        ledgers = self._compactor.ledgers
        return explain_table(self._backend, table, range(table.partitions), ledgers)

    def tide(self, *, stretches: int = _STRETCHES) -> Tide:
        """Where ledger, backlog, low watermark and readers stand, and what each of them keeps; its
        `save` draws a picture.

        `stretches` is how finely it is counted which rows are left in ledgers; for that, the
        offsets in them are read. With 0 nothing of that is.
        """
        return tide_of(
            self._backend,
            self._current(),
            range(self.partitions),
            ledgers=self._compactor.ledgers,
            newest=self._current,
            stretches=whole(stretches, "stretches"),
        )

    def trim(self, offsets: Mapping[int, int]) -> dict[int, Trimmed]:
        """Cut the backlog below offsets, as far as it is in ledgers and no reader holds it."""
        self._current()
        offsets = check_offsets(offsets, "trim", partitions=self.partitions)
        if not offsets:
            raise Rejected("no partition is named", hint="Say how far: trim({0: 1000}).")
        cuts = {number: Trim(offset) for number, offset in offsets.items()}
        outcomes = self._backend.propose(self._first.id, cuts)
        return {
            number: outcome for number, outcome in outcomes.items() if isinstance(outcome, Trimmed)
        }

    # -- compaction -----------------------------------------------------------------------------

    def compact(
        self,
        *,
        spark: object = None,
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        engine: Engine = "auto",
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        verify: bool = False,
        trim: bool = True,
        rewrite: bool = False,
        read: ReadWay | None = None,
        read_rate: int | None = None,
        write_rate: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        progress: Callable[[Progress], None] | None = None,
        resume: str | None = None,
        detach: bool = False,
        step: Callable[[str], None] | None = None,
        here: object = None,
    ) -> RunRecord:
        """Put all rows up to the low watermark into ledgers, of each key the last one; then cut the
        backlog as far as no reader holds it. Gives what was done, and what it cost. Its `state` is
        `done`; or `nothing`, if no row is new; or `too young`, if no new row is old enough, and
        then `too_young_rows` says how many there are, and `held_until` what the low watermark has
        to pass before the first of them can be compacted.

        With `engine="spark"` it runs on a Spark session of yours (`spark`), or on one of its own
        (`master`, `local[*]` if nothing is said, with settings of Spark's in `spark_config`; it
        stays for the next run, until the database is closed). With `engine="local"` it runs in this
        process, without Spark, which is quicker for less than a million rows. `"auto"` is Spark
        where PySpark and Java are installed, else this process; the answer says which (`engine`,
        `where`). `dry_run` gives the plan. `verify` finds every survivor by a second algorithm, not
        only those of a sample of keys. Without `trim` the backlog stays as it is. `rewrite` writes
        every file of the ledgers anew. `read` says how tasks read the backlog: `"segments"`, files
        in the directory of a node; `"flight"`, rows from a node's server; `"auto"` (the default) is
        segments where the task sees that directory, else a server. `read_rate` and `write_rate` are
        bytes a second, `memory_bytes` is what the keys of one partition may take in a task.
        `resume` goes on with a run that was interrupted, as it was planned, with the engine, by the
        way to read and at the rates that it had, unless others are given. `detach` leaves the run
        to a worker (`lowmark worker`), and gives the plan: its state is `planned`. `step` gets the
        name of every step before it is made.
        """
        if here is not None:
            raise Rejected(
                "compact no longer has the argument here",
                hint="Say engine='local' for this process; engine='spark' for Spark.",
            )
        table = self._current()
        wanted = self._wanted(partitions)
        own = self._compactor.spark
        if resume is not None and engine == "auto" and not (spark or master or spark_config):
            runners = as_before(own, self._compactor.run(table.id, resume))
        else:
            runners = Runners(own, session=spark, master=master, config=spark_config, engine=engine)
        options = RunOptions(
            verify=verify,
            trim=trim,
            rewrite=rewrite,
            read=read_way(read),
            read_rate=None if read_rate is None else whole(read_rate, "read_rate"),
            write_rate=None if write_rate is None else whole(write_rate, "write_rate"),
            memory_bytes=whole(memory_bytes, "memory_bytes", least=1 << 20),
            engine=runners.engine,
            where=runners.where,
            progress=progress,
            **({} if step is None else {"step": step}),  # type: ignore[arg-type]
        )
        if dry_run:
            return self._compactor.plan(table, wanted, options)
        if detach:
            check_detached(
                resume=resume,
                spark=spark,
                master=master,
                spark_config=spark_config,
                engine="" if engine == "auto" else engine,
                memory_bytes=0 if memory_bytes == MEMORY_BYTES else memory_bytes,
            )
            return self._compactor.detach(table, wanted, replace(options, engine="", where=""))
        if resume is not None:
            return self._compactor.resume(table, runners.get, options, run=resume)
        return self._compactor.compact(table, wanted, runners.get, options)

    def runs(self) -> list[RunRecord]:
        """The runs of this table that are known, the newest first."""
        return self._compactor.runs(self._current().id)

    def history(self) -> list[HistoryLine]:
        """What became of the table: schema versions and other changes of it, runs of compaction,
        and what was cut, each with its time and who did it; the newest first.

        A line has None where that is noted nowhere, and lines without a time come last. The times
        of changes are kept as long as the catalog's versions are; of runs, the last 50.
        """
        table = self._current()
        return table_history(self._backend, table, self._compactor.runs(table.id))

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
        table, wanted = self._current(), self._wanted(partitions)
        return verify_ledgers(self._compactor.context(table, wanted, RunOptions(progress=progress)))

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
        `accept_loss` they are left out, and a reader that comes to them gets `GapFound` (kind
        `lost`). `dry_run` says what would be done. `step` gets the name of every step before it
        is made.
        """
        options = RunOptions(
            trim=False,
            engine="local",
            where="this process",
            progress=progress,
            **({} if step is None else {"step": step}),  # type: ignore[arg-type]
        )
        return rebuild_ledgers(
            self._compactor,
            self._current(),
            self._wanted(partitions),
            options,
            dry_run=dry_run,
            accept_loss=accept_loss,
        )

    def reconcile_ledgers(self) -> list[Reconciled]:
        """Set what the metastore has published to what the partitions have adopted, where it is
        behind that or contradicts it: after a backup of the metastore was restored.
        """
        table = self._current()
        numbers = range(table.partitions)
        return reconcile_ledgers(self._compactor.context(table, numbers, RunOptions()))

    def sweep(self, *, dry_run: bool = False) -> list[str]:
        """Remove files of this table's ledgers that nothing refers to; gives which. A dry run only
        says what would go.
        """
        return self._compactor.sweep(self._current(), dry_run=dry_run)

    def trim_schemas(self, *, dry_run: bool = False) -> SchemasTrimmed:
        """Forget the schema versions of this table that no row and no file needs any more; says
        which stay, and what needs those before the latest. Runs of compaction do this at their
        end. A dry run only says what would go.
        """
        return self._compactor.trim_schemas(self._current(), dry_run=dry_run)

    def __repr__(self) -> str:
        return f"<lowmark.Table {self._first.name}, {counted(self.partitions, 'partition')}>"
