"""Tables as logs: keyed rows in Arrow batches, appended to partitions, each a replicated group.

Words
    row, change   a row as it was written; its change is an upsert or a delete
    batch         rows that were appended together: one entry of the partition's log
    offset        the number of a row in its partition: dense, assigned when the batch is applied
    time          of a batch: the leader's hybrid time; it grows with the offset
    backlog       the batches of a partition that are still there, from `start` to `end`
    ledger        the compacted form of a partition, in files outside; it is *adopted*
    horizon       where the adopted ledger ends: it covers the rows below
    closed time   no row at or below it will ever be added
    cursor        a named durable reader; it holds the deletes from its offset on, and a raw one
                  the backlog, too
    lease         a hold of a reader, or of a run, that ends by itself unless it is renewed
    low watermark the cluster's agreed time: history at or after it is exact

A row's way: the caller's batch is split by the bucket of its key and written as Arrow IPC messages
(`batches`), each behind a small header (`commands`). A partition's leader proposes it; when it is
committed, every member applies the header alone (`machine`): offsets, time, producer. The rows
stay in the log, where they are live entries, and are read from there. No code touches a single row.

Invariants
    1. An append that was acknowledged is in the log of a majority, and has its offsets for good.
       One that was refused has left nothing behind but, at most, an entry that no snapshot keeps.
    2. Offsets are dense: the next batch begins where the last one ended. Times never fall.
    3. A producer's batches go into a partition in the order of their numbers, each once: a repeat
       gets its first answer, a gap and a fenced epoch are refused. Snapshots keep what that needs.
    4. A batch is live from its append until a cut passes its last row. A cut passes no hold that
       came before it in the log, and nothing that is not in a ledger yet, unless it expires rows
       by the table's retention. `start` says where the backlog begins; it never falls.
    5. Everything else in the log (cursors, leases, ticks, finishes) is dead after the next
       snapshot. A cursor that is overdue or has expired, and a lease that is over, hold nothing.
    6. Staged rows have no offset and are not read. Finishing gives all of them offsets and one
       time, or drops them; a repeated finish gets the first answer. What a query has staged is
       bound to its epochs, each once (`binding`). Rows that are neither are dropped after a day,
       when all partitions have answered that they do not count for an epoch; those of one that
       was decided stay until they are bound, whatever their age.
    7. What readers see is a value that never changes (`View`); a newer one replaces it before
       the caller that appended gets its answer.
    8. Applying looks at nothing but the state and the command.
    9. Of adopted ledgers neither epoch nor horizon falls. A view has a ledger and a
       backlog that belong together: what the backlog no longer has is in the ledger, or expired.
   10. A reader that has seen a key gets its delete: a ledger that lacks deletes at or above an
       offset where a reader stands, by a hold that came before it in the log, is not adopted.
   11. Once a partition was told to keep schema versions from one on, no batch of a lower one is
       added. So what it answers then, of the rows that it has, stays true for those to come.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.ids import group_name
    from lowmark.table.adopting import DIGEST_BYTES, MANIFEST_CHARACTERS_MAX, Adopted
    from lowmark.table.backlog import Backlog, Columns, View
    from lowmark.table.batches import (
        CHANGE,
        CHANGE_TYPE,
        OFFSET,
        PARTITION,
        SYSTEM_COLUMNS,
        TIME,
        Compression,
        Mask,
        Shape,
        decode_rows,
        encode_rows,
        stored_schema,
    )
    from lowmark.table.binding import KEEP_MS_MAX, QUERY_BYTES, STAGED_MS, Bound
    from lowmark.table.commands import (
        NO_PRODUCER,
        Abandon,
        Adopt,
        Begin,
        Bind,
        Change,
        Control,
        CreateCursor,
        DeleteCursor,
        Drop,
        Fence,
        Finish,
        KeepSchemas,
        MoveCursor,
        ReleaseLease,
        RenewCursor,
        RenewLease,
        TakeLease,
        Tick,
        Trim,
        encode_batch,
        encode_control,
    )
    from lowmark.table.errors import (
        BatchRefused,
        BelowWatermark,
        CommandRefused,
        CursorExists,
        CursorExpired,
        CursorMovesBack,
        CursorOverdue,
        CursorUnknown,
        DeletesGone,
        DeletesHeld,
        EpochHalfBound,
        EpochPassed,
        EpochsUnfinished,
        EpochUnfinished,
        LeaseExists,
        LeaseExpired,
        LedgerConflict,
        LedgerOld,
        MembersBehind,
        OffsetExpired,
        OffsetToCome,
        OutOfSequence,
        PartitionNotHere,
        ProducerFenced,
        ProducerForgotten,
        RepeatTooOld,
        SchemaNotInForce,
        StagedRowsMissing,
        StagingFull,
        TimeInFuture,
        TooMany,
        TransactionUnknown,
    )
    from lowmark.table.fold import Fold
    from lowmark.table.hashing import I64, U64
    from lowmark.table.history import table_mark
    from lowmark.table.key_index import KeyIndex
    from lowmark.table.keys import KeyForm
    from lowmark.table.keys_of import KeyReader, Keys
    from lowmark.table.machine import PartitionMachine
    from lowmark.table.partition import Partition, parse_group_name
    from lowmark.table.producers import Appended
    from lowmark.table.producing import EPOCH_BITS, Outgoing, Producing
    from lowmark.table.readers import (
        IDLE_MS_MAX,
        NAME_CHARACTERS_MAX,
        Cursor,
        Lease,
        deletes_held,
        holds_of,
    )
    from lowmark.table.renewing import Renewal, renewed_rows
    from lowmark.table.splitting import check_row_sizes, outgoing, split
    from lowmark.table.state import Begun, Finished, Outcome, SchemasKept, State, Ticked, Trimmed
    from lowmark.table.tables import Distant, Tables
    from lowmark.table.watermark import (
        HISTORY_KEY,
        Advanced,
        AsOfHold,
        LowWatermark,
        WatermarkStanding,
        read_history,
        write_history,
    )

__all__ = [
    "CHANGE",
    "CHANGE_TYPE",
    "DIGEST_BYTES",
    "EPOCH_BITS",
    "HISTORY_KEY",
    "I64",
    "IDLE_MS_MAX",
    "KEEP_MS_MAX",
    "MANIFEST_CHARACTERS_MAX",
    "NAME_CHARACTERS_MAX",
    "NO_PRODUCER",
    "OFFSET",
    "PARTITION",
    "QUERY_BYTES",
    "STAGED_MS",
    "SYSTEM_COLUMNS",
    "TIME",
    "U64",
    "Abandon",
    "Adopt",
    "Adopted",
    "Advanced",
    "Appended",
    "AsOfHold",
    "Backlog",
    "BatchRefused",
    "Begin",
    "Begun",
    "BelowWatermark",
    "Bind",
    "Bound",
    "Change",
    "Columns",
    "CommandRefused",
    "Compression",
    "Control",
    "CreateCursor",
    "Cursor",
    "CursorExists",
    "CursorExpired",
    "CursorMovesBack",
    "CursorOverdue",
    "CursorUnknown",
    "DeleteCursor",
    "DeletesGone",
    "DeletesHeld",
    "Distant",
    "Drop",
    "EpochHalfBound",
    "EpochPassed",
    "EpochUnfinished",
    "EpochsUnfinished",
    "Fence",
    "Finish",
    "Finished",
    "Fold",
    "KeepSchemas",
    "KeyForm",
    "KeyIndex",
    "KeyReader",
    "Keys",
    "Lease",
    "LeaseExists",
    "LeaseExpired",
    "LedgerConflict",
    "LedgerOld",
    "LowWatermark",
    "Mask",
    "MembersBehind",
    "MoveCursor",
    "OffsetExpired",
    "OffsetToCome",
    "OutOfSequence",
    "Outcome",
    "Outgoing",
    "Partition",
    "PartitionMachine",
    "PartitionNotHere",
    "ProducerFenced",
    "ProducerForgotten",
    "Producing",
    "ReleaseLease",
    "RenewCursor",
    "RenewLease",
    "Renewal",
    "RepeatTooOld",
    "SchemaNotInForce",
    "SchemasKept",
    "Shape",
    "StagedRowsMissing",
    "StagingFull",
    "State",
    "Tables",
    "TakeLease",
    "Tick",
    "Ticked",
    "TimeInFuture",
    "TooMany",
    "TransactionUnknown",
    "Trim",
    "Trimmed",
    "View",
    "WatermarkStanding",
    "check_row_sizes",
    "decode_rows",
    "deletes_held",
    "encode_batch",
    "encode_control",
    "encode_rows",
    "group_name",
    "holds_of",
    "outgoing",
    "parse_group_name",
    "read_history",
    "renewed_rows",
    "split",
    "stored_schema",
    "table_mark",
    "write_history",
]

__getattr__, __dir__ = face(__name__)
