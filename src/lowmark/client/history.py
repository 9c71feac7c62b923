"""What became of a table: its schema versions, runs of compaction, and cuts.

There is no record of its own for this. It is put together from what is noted for other reasons, and
a line has a time and an author as far as that says them:

    the catalog's update log   changes of the table: when, and the node that carried them out. Once
                               the log is cut, earlier schema versions are known by their columns
                               only, and of all earlier changes, the time of the last one
    runs of compaction         the last ones of the table: when, and the process that made them;
                               what they cut off backlogs, and the deletes that they dropped
    rounds of the catalog      the one that has cut the update log to where it begins now
    partitions                 where backlogs begin, and below which offset rows went by retention.
                               When that was, and who did it, is noted nowhere
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lowmark.backend.operating import Nothing, RoundsReply, operated
from lowmark.backend.port import Backend
from lowmark.catalog import (
    BY_PREFIX,
    SNAPSHOT_KEY,
    UPDATE_PREFIX,
    Catalog,
    History,
    NewTable,
    Snapshot,
    Table,
    TableId,
    describe,
    read_log,
    replay,
    version_of,
)
from lowmark.catalog.describing import column_text
from lowmark.catalog.entries import ChangedTable, Entry, TableChange, apply
from lowmark.catalog.errors import CatalogUnreadable
from lowmark.catalog.history import Update
from lowmark.convert.times import datetime_of
from lowmark.formatting import by_text, bytes_text, counted, verb
from lowmark.ledger import RunRecord
from lowmark.ledger.records import REBUILD
from lowmark.metastore.nodes import NODE_PREFIX, decode_node
from lowmark.runtime import COUNTER_BITS

_SHOWN_OFFSETS = 4
_OPERATIONS = {
    TableChange.RENAMED: "rename table",
    TableChange.OPTIONS_SET: "set options",
    TableChange.COLUMNS_ADDED: "add columns",
    TableChange.COLUMNS_DROPPED: "drop columns",
    TableChange.COLUMN_RENAMED: "rename column",
    TableChange.COLUMN_ALTERED: "alter column",
    TableChange.SCHEMAS_TRIMMED: "forget schema versions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """One thing that became of a table."""

    at: datetime | None
    """When: of a change of the table, when it was written; of a run and of what it cut, when the
    run ended or, as long as it has not, when it began. None: that is noted nowhere."""
    kind: Literal["schema", "table", "run", "cut"]
    """A schema version; another change of the table, such as its options; a run of compaction; or
    something that went."""
    operation: str
    """What was done, in a word or two: `create table`, `add columns`, `compact`, `trim`."""
    by: str | None
    """Who did it: the node that carried out a change of the catalog, by name; the process of a run,
    as `machine:pid`. With the name of the token before it, if it was asked for by one:
    `nightly-job@n1`. None: that is noted nowhere. No line names a person: Lowmark knows none."""
    what: str
    """In words."""
    schema_version: int | None = None
    """Of a schema version, its number; of those that went, the oldest one that is left."""
    catalog_version: int | None = None
    """The version of the catalog that a change has made; of versions that went, the earliest one
    that is left."""
    run: str | None = None
    """The run, or the one that has cut."""
    rows: int | None = None
    """Of a run, the rows of backlogs that it read; of a cut, the rows or deletes that went."""
    bytes: int | None = None
    """Of a run, what it wrote; of a cut, what went."""
    offsets: Mapping[int, int] | None = None
    """Of a cut of backlogs: by partition, where the backlog begins since."""


def table_history(backend: Backend, table: Table, runs: Sequence[RunRecord]) -> list[HistoryLine]:
    """All that is known, the newest first; what has no time comes last."""
    nodes = {one.number: one.name for one in map(decode_node, _values(backend, NODE_PREFIX))}
    # Oldest first up to here, so that what has the same time stays in its order.
    lines = [
        *_of_partitions(backend, table, runs),
        *_of_catalog(backend, table.id, nodes),
        *(line for run in reversed(runs) for line in _of_run(run)),
    ]
    dated = [line for line in lines if line.at is not None]
    dated.sort(key=lambda line: line.at.timestamp() if line.at is not None else 0)
    return [*reversed(dated), *(line for line in reversed(lines) if line.at is None)]


# -- the catalog ----------------------------------------------------------------------------------


def _of_catalog(
    backend: Backend, table: TableId, nodes: Mapping[int, str]
) -> Iterator[HistoryLine]:
    asked = {version_of(one.key): one.value.decode() for one in backend.range(BY_PREFIX)}
    for value, before, made in replay(_update_log(backend), History()):
        if isinstance(value, Snapshot):
            if (there := made.table(table)) is not None:
                yield from _before_the_log(there)
                yield from _forgotten_versions(backend, made, nodes)
        else:
            by = by_text(_node(value.author, nodes), asked.get(value.version, ""))
            yield from _of_update(value, before, made, table, by)


def _update_log(backend: Backend) -> list[tuple[Update | Snapshot, int]]:
    """The update log as of one moment: parts of a large snapshot go when the log is cut again."""
    while True:
        seen = backend.get(SNAPSHOT_KEY)
        try:
            return list(
                read_log(backend.range(UPDATE_PREFIX), parts=lambda key: _part(backend, key))
            )
        except CatalogUnreadable:
            if backend.get(SNAPSHOT_KEY) == seen:
                raise  # no cut is the reason


def _part(backend: Backend, key: bytes) -> bytes | None:
    found = backend.get(key)
    return None if found is None else bytes(found.value)


def _values(backend: Backend, prefix: bytes) -> Iterator[bytes]:
    return (entry.value for entry in backend.range(prefix))


def _before_the_log(table: Table) -> Iterator[HistoryLine]:
    """What a snapshot of the catalog says of a table: its columns, and neither when they came nor
    who changed them; and when the last change was, whichever it was.
    """
    first = table.schemas[0].number
    if first > 1:
        yield HistoryLine(
            at=None,
            kind="cut",
            operation="forget schema versions",
            by=None,
            what=f"forgot schema versions before {first}",
            schema_version=first,
        )
    for schema in table.schemas:
        columns = ", ".join(column_text(column) for column in schema.columns)
        yield HistoryLine(
            at=None,
            kind="schema",
            operation="schema version",
            by=None,
            what=f"columns: {columns}",
            schema_version=schema.number,
        )
    yield HistoryLine(
        at=datetime_of(table.updated_at),
        kind="table",
        operation="last change",
        by=None,
        what="changed for the last time before the catalog's log begins; what changed is forgotten",
    )


def _forgotten_versions(
    backend: Backend, first: Catalog, nodes: Mapping[int, str]
) -> Iterator[HistoryLine]:
    """The round that has cut the update log to where it begins."""
    rounds = operated(backend, "catalog.rounds", Nothing(), RoundsReply).rounds
    made = next((one for one in rounds if one.cut and one.version == first.version), None)
    yield HistoryLine(
        at=None if made is None else _moment(made.began_ms),
        kind="cut",
        operation="forget catalog versions",
        by=None if made is None else _node(made.node, nodes),
        what=f"the catalog's log begins with version {first.version}: when changes up to that one"
        " were made, and by which node, is forgotten",
        catalog_version=first.version,
    )


def _of_update(
    update: Update, before: Catalog, made: Catalog, table: TableId, by: str
) -> Iterator[HistoryLine]:
    """What one version of the catalog did to the table, step by step."""
    if not any(_changes(entry, table) for entry in update.entries):
        return
    now = before
    for entry in update.entries:
        after = apply(
            now, [entry], version=now.version, time=now.time, activates_at=now.activates_at
        )
        there = after.table(table)
        if _changes(entry, table) and there is not None:
            old = now.table(table)
            cut = isinstance(entry, ChangedTable) and entry.change is TableChange.SCHEMAS_TRIMMED
            new = old is None or old.latest.number != there.latest.number
            kind: Literal["cut", "schema", "table"] = "schema" if new else "table"
            number = there.latest.number if new else None
            yield HistoryLine(
                at=datetime_of(made.time),
                kind="cut" if cut else kind,
                operation=_operation(entry),
                by=by,
                what="; ".join(describe(now, [entry])),
                schema_version=there.schemas[0].number if cut else number,
                catalog_version=update.version,
            )
        now = after


def _changes(entry: Entry, table: TableId) -> bool:
    return isinstance(entry, NewTable | ChangedTable) and entry.table.id == table


def _operation(entry: Entry) -> str:
    return _OPERATIONS[entry.change] if isinstance(entry, ChangedTable) else "create table"


def _node(number: int, nodes: Mapping[int, str]) -> str:
    """A node by its name; by its number, once it has left."""
    return nodes.get(number, str(number))


# -- runs -----------------------------------------------------------------------------------------


def _of_run(run: RunRecord) -> Iterator[HistoryLine]:
    """A run, and what went by it: of partitions that have adopted what it made."""
    at, by = _moment(run.ended_at_ms or run.began_at_ms), run.by or None
    rebuilt = run.trigger == REBUILD
    words = f"{'rebuild' if rebuilt else 'run'} {run.run} is {run.state} ({run.trigger})"
    if run.error:
        words += f": {run.error}"
    elif run.rows_read:
        left = f"{counted(run.rows_live, 'row')} {verb(run.rows_live, 'are')} left"
        words += f": read {counted(run.rows_read, 'row')}, {left}"
    yield HistoryLine(
        at=at,
        kind="run",
        operation="rebuild ledger" if rebuilt else "compact",
        by=by,
        what=words,
        run=run.run,
        rows=run.rows_read,
        bytes=run.bytes_written,
    )
    adopted = [one for one in run.partitions if one.state == "adopted"]
    if deletes := sum(one.deletes_dropped for one in adopted):
        yield HistoryLine(
            at=at,
            kind="cut",
            operation="drop deletes",
            by=by,
            what=f"dropped {counted(deletes, 'delete')} that every reader had passed",
            run=run.run,
            rows=deletes,
        )
    if cut := {one.partition: one.trimmed_to for one in run.partitions if one.trimmed_bytes}:
        yield HistoryLine(
            at=at,
            kind="cut",
            operation="trim",
            by=by,
            what=f"cut {bytes_text(run.trimmed_bytes)} off backlogs: {_begin_at(cut)}",
            run=run.run,
            bytes=run.trimmed_bytes,
            offsets=cut,
        )


# -- partitions -----------------------------------------------------------------------------------


def _of_partitions(
    backend: Backend, table: Table, runs: Sequence[RunRecord]
) -> Iterator[HistoryLine]:
    """What is gone of backlogs, and no run says so: by retention, by hand, or by a run that is not
    listed any more.
    """
    found = backend.status(table.id, range(table.partitions))
    if expired := {number: one.expired for number, one in found.items() if one.expired}:
        yield HistoryLine(
            at=None,
            kind="cut",
            operation="expire",
            by=None,
            what=f"rows went by retention: {_begin_at(expired)}",
            offsets=expired,
        )
    known = dict(expired)
    for run in runs:
        for plan in run.partitions:
            known[plan.partition] = max(known.get(plan.partition, 0), plan.trimmed_to)
    other = {
        number: one.view.start
        for number, one in found.items()
        if one.view.start > known.get(number, 0)
    }
    if other:
        yield HistoryLine(
            at=None,
            kind="cut",
            operation="trim",
            by=None,
            what=f"backlogs were cut, and no run that is listed says so: {_begin_at(other)}",
            offsets=other,
        )


def _begin_at(offsets: Mapping[int, int]) -> str:
    places = [f"partition {number} begins at {at:,}" for number, at in sorted(offsets.items())]
    more = len(places) - _SHOWN_OFFSETS
    return ", ".join(places[:_SHOWN_OFFSETS]) + (f", and {more} more" if more > 0 else "")


def _moment(millis: int) -> datetime:
    return datetime_of(millis << COUNTER_BITS)
