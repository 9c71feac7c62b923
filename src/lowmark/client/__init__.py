"""The Python API: `open` a directory, and use its tables. Nothing else has to be started.

    import lowmark

    db = lowmark.open("./data")
    orders = db.create_table("orders", {"id": str, "status": str}, key="id")
    orders.append([{"id": "o-1", "status": "new"}])
    orders.get("o-1")

What it guarantees
    1. An append that returned is durable: a process that is killed right after it loses nothing.
    2. A batch that was refused has left nothing behind.
    3. `get` and `read` see every append that returned before them, from any thread.
    4. Use after `close`, in a child process, or of a directory that is open elsewhere is refused
       by name.
    5. Errors are sorted by what the caller does next: `Rejected` (change the request), `Conflict`
       (read again, then retry), `Unavailable` (retry later), `Corrupt` (stop, call a person). All
       of them are in `lowmark.errors`, by their names.
    6. A read that can't give all that was asked for raises `GapFound`; it never gives a part
       silently.

Callers come from any thread; the node inside this process has one loop. Batches are coerced, split
and encoded, and read and decoded, on the caller's thread; the loop only numbers and orders them.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.backend.errors import (
        AppendFailed,
        Cancelled,
        Closed,
        Ended,
        Forked,
        PackageMissing,
        ProducerClosed,
        ReaderEnded,
        RowsLost,
        RowsUnrecoverable,
        RunUnderWay,
        TableUnknown,
    )
    from lowmark.client.appending import Part, Result
    from lowmark.client.changes import ChangesGone, ChangesReader
    from lowmark.client.cluster import Cluster
    from lowmark.client.cursors import CursorPlace, Cursors, TableCursor
    from lowmark.client.database import Database
    from lowmark.client.edges import ArgumentRefused
    from lowmark.client.explaining import (
        Explanation,
        Holder,
        KeyExplanation,
        LedgerExplanation,
        PartitionExplanation,
        TableExplanation,
    )
    from lowmark.client.exporting import Exported, ExportProgress
    from lowmark.client.history import HistoryLine
    from lowmark.client.lookup import IndexSize
    from lowmark.client.producer import Producer
    from lowmark.client.reading import Gap, GapFound, Reader
    from lowmark.client.staging import Committed, Stage, Staged
    from lowmark.client.table import Table
    from lowmark.client.table_reading import Snapshot
    from lowmark.client.tide import HolderTotal, PartitionTide, Tide, TideHolder, TideLedger
    from lowmark.client.tokens import NewToken, Tokens
    from lowmark.compaction.automatic import Told
    from lowmark.compaction.context import Progress
    from lowmark.compaction.description import LedgerDescription, RetiredLedger
    from lowmark.compaction.repair import Rebuilt, Reconciled
    from lowmark.compaction.runner import Engine, why_no_spark
    from lowmark.compaction.schemas import SchemaHolder, SchemasTrimmed
    from lowmark.compaction.verify import LedgerVerdict
    from lowmark.convert.errors import ColumnRefused, LineRefused, ValueRefused
    from lowmark.convert.times import datetime_of, parse_time, time_text
    from lowmark.errors import NoMemory, NoThreads
    from lowmark.ledger import Lost, PartitionPlan, Problem, ReadWay, RunRecord
    from lowmark.runtime import DiskFailed, DiskFull, Locked, NoHandles, NotAllowed
    from lowmark.table import (
        BelowWatermark,
        CursorExists,
        CursorExpired,
        CursorMovesBack,
        CursorOverdue,
        CursorUnknown,
        LeaseExpired,
        ProducerFenced,
        TimeInFuture,
    )

__all__ = [
    "AppendFailed",
    "ArgumentRefused",
    "BelowWatermark",
    "Cancelled",
    "ChangesGone",
    "ChangesReader",
    "Closed",
    "Cluster",
    "ColumnRefused",
    "Committed",
    "CursorExists",
    "CursorExpired",
    "CursorMovesBack",
    "CursorOverdue",
    "CursorPlace",
    "CursorUnknown",
    "Cursors",
    "Database",
    "DiskFailed",
    "DiskFull",
    "Ended",
    "Engine",
    "Explanation",
    "ExportProgress",
    "Exported",
    "Forked",
    "Gap",
    "GapFound",
    "HistoryLine",
    "Holder",
    "HolderTotal",
    "IndexSize",
    "KeyExplanation",
    "LeaseExpired",
    "LedgerDescription",
    "LedgerExplanation",
    "LedgerVerdict",
    "LineRefused",
    "Locked",
    "Lost",
    "NewToken",
    "NoHandles",
    "NoMemory",
    "NoThreads",
    "NotAllowed",
    "PackageMissing",
    "Part",
    "PartitionExplanation",
    "PartitionPlan",
    "PartitionTide",
    "Problem",
    "Producer",
    "ProducerClosed",
    "ProducerFenced",
    "Progress",
    "ReadWay",
    "Reader",
    "ReaderEnded",
    "Rebuilt",
    "Reconciled",
    "Result",
    "RetiredLedger",
    "RowsLost",
    "RowsUnrecoverable",
    "RunRecord",
    "RunUnderWay",
    "SchemaHolder",
    "SchemasTrimmed",
    "Snapshot",
    "Stage",
    "Staged",
    "Table",
    "TableCursor",
    "TableExplanation",
    "TableUnknown",
    "Tide",
    "TideHolder",
    "TideLedger",
    "TimeInFuture",
    "Tokens",
    "Told",
    "ValueRefused",
    "datetime_of",
    "parse_time",
    "time_text",
    "why_no_spark",
]

__getattr__, __dir__ = face(__name__)
