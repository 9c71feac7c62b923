"""What Spark users can get wrong, and what they get then."""

from __future__ import annotations

from lowmark.errors import Rejected, Unavailable


class OptionRefused(Rejected):
    """An option of a read or a stream that can't be used."""


class SchemaRefused(Rejected):
    """Columns that the table does not have, or has in another type."""


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


class OtherTable(Rejected):
    """A checkpoint of a table that was dropped."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"the checkpoint is of another table {table}, which was dropped",
            hint="Start the query with a new checkpoint: it reads the table that is there now.",
        )


class WorkerMissing(Unavailable):
    """A plan that no worker has carried out in time."""

    def __init__(self, run: str, *, waited_s: float) -> None:
        super().__init__(
            f"run {run} was not carried out within {waited_s:g} s",
            detail="It stays planned.",
            hint="Start a worker: `lowmark worker`. Or compact by `lowmark compact TABLE`.",
        )
