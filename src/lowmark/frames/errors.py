"""What Spark users can get wrong, and what they get then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowmark.errors import Conflict, Rejected, Unavailable


class OptionRefused(Rejected):
    """An option of a read or a stream that can't be used."""


class SchemaRefused(Rejected):
    """Columns that the table does not have, or has in another type."""


class ColumnChanged(Rejected):
    """A value that does not fit the type that its column had when the query began."""

    def __init__(self, table: str, column: str, *, then: str, now: str, why: str) -> None:
        super().__init__(
            f"column {column} of table {table} was made {now} while the query ran, which began when"
            f" it was {then}: a value does not fit ({why})",
            detail="A query keeps the types that it began with, as long as all values fit.",
            hint="Start the query again: it then has the columns as they are now, and goes on from"
            " its checkpoint, without a gap.",
        )


class ColumnsMissing(Rejected):
    """Rows that do not have all columns of the table, where they must."""

    def __init__(self, table: str, missing: Sequence[str]) -> None:
        columns = "column" if len(missing) == 1 else "columns"
        super().__init__(
            f"the rows have no {columns} {', '.join(missing)} of table {table}",
            detail="A row takes the place of the last one with its key as a whole, so what it does"
            " not have would become its default, or null; failOnMissingColumns refuses that.",
            hint="Add what is missing, by a join with the table if need be; or leave the option"
            " out.",
        )


class ModeRefused(Rejected):
    """A mode of a write that a log of changes does not have."""

    def __init__(self) -> None:
        super().__init__(
            "a table can't be overwritten",
            detail="A write adds changes to a table: rows take the place of those with their key,"
            " and deletes delete.",
            hint='Use mode("append"); to delete rows, give a column _change that says delete. For'
            " results of a stream that change, use lowmark.spark.upsert in foreachBatch.",
        )


class CatalogTable(Rejected):
    """A stream into a table of Spark's catalog."""

    def __init__(self) -> None:
        super().__init__(
            "toTable can't be used with lowmark: use start()",
            detail="It makes a table in Spark's catalog, which keeps no options for a source that"
            " is written in Python: its rows would not be found there.",
            hint='Name the table of Lowmark by .option("table", NAME), and call start(). Drop what'
            " Spark has made: DROP TABLE NAME.",
        )


class OtherTable(Rejected):
    """A checkpoint of a table that was dropped."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"the checkpoint is of another table {table}, which was dropped",
            hint="Start the query with a new checkpoint: it reads the table that is there now.",
        )


class StreamBehind(Conflict):
    """A query that goes on where the log was cut, because no cursor held it for the query."""

    def __init__(self, table: str, cursor: str, cut: Mapping[int, tuple[int, int]]) -> None:
        where = ", ".join(
            f"{first} to {end - 1} of partition {number}" for number, (first, end) in cut.items()
        )
        super().__init__(
            f"the stream can't go on: offsets {where} of table {table} went while no cursor held"
            " them",
            detail=f"Compaction or retention has cut them. The stream's cursor {cursor!r} was not"
            " there: it goes with a run of availableNow, expires (cursor.idle_expiry), or was"
            " deleted.",
            hint='To go on with what is left: .option("failOnDataLoss", "false"). To have the table'
            " as it is now: a new checkpoint. To have rows held between runs of availableNow from"
            ' now on: .option("cursor", NAME).',
        )
        self.cut = dict(cut)


class CursorShared(Conflict):
    """Two readers that move one cursor."""

    def __init__(self, table: str, cursor: str) -> None:
        super().__init__(
            f"cursor {cursor!r} of table {table} was moved by another reader while this stream ran",
            detail="A cursor holds what one reader has not done. The other reader is ahead, so rows"
            " that this stream has not read yet may go before it has.",
            hint='Give each query a cursor of its own: .option("cursor", NAME), or leave it out.'
            " Started again with a name that no other query uses, this one goes on from its"
            " checkpoint.",
        )


class NoRecordsMax(Rejected):
    """A session in which Spark can read no source that is written in Python."""

    def __init__(self, setting: str) -> None:
        super().__init__(
            f"{setting} is 0: Spark reads no source in Python so",
            detail="Elsewhere that is no limit. Spark's own worker refuses it before it asks a"
            " source for anything.",
            hint=f'Set a limit: spark.conf.set("{setting}", "10000"). Lowmark gives batches as they'
            " are stored, whatever the limit is.",
        )


class WorkerMissing(Unavailable):
    """A plan that no worker has carried out in time."""

    def __init__(self, run: str, *, waited_s: float) -> None:
        super().__init__(
            f"run {run} was not carried out within {waited_s:g} s",
            detail="It stays planned.",
            hint="Start a worker: `lowmark worker`. Or compact by `lowmark compact TABLE`.",
        )
