"""What a table refuses, by what the caller does next."""

from __future__ import annotations

from collections.abc import Sequence

from lowmark.catalog import duration_text
from lowmark.errors import Conflict, Corrupt, Rejected, Unavailable
from lowmark.formatting import time_text
from lowmark.holds import Hold
from lowmark.runtime import HybridTime, millis_of


class BatchRefused(Rejected):
    """A batch that can't be stored as it is."""


class SchemaNotInForce(BatchRefused):
    """A batch that was written with a schema version which the table does not take, or no more."""

    def __init__(self, table: str = "", *, version: int, why: str) -> None:
        super().__init__(
            f"{f'table {table}' if table else 'this table'} takes no rows of schema version"
            f" {version}: {why}",
            detail="Nothing of the batch was stored.",
            hint="Read the catalog again, and write with the newest version.",
        )
        self.version = version


class CommandRefused(Rejected):
    """Anything else that is asked of a partition and can't be done as it is."""


class OutOfSequence(Conflict):
    """A producer's batch whose predecessor never came."""

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(
            f"batch {got} of this producer came before batch {expected}",
            detail="Taken as it is, it would leave a gap, or change the order of its rows.",
            hint=f"Send batch {expected} first.",
        )
        self.expected, self.got = expected, got


class RepeatTooOld(Conflict):
    """A repeat of a batch that is too long ago for its answer to be known."""

    def __init__(self, *, got: int, oldest: int) -> None:
        super().__init__(
            f"batch {got} of this producer is stored, but its offsets are no longer known",
            detail=f"Answers are kept from batch {oldest} on.",
            hint="Go on with the next batch.",
        )


class ProducerFenced(Conflict):
    """A producer that another one with its name has replaced."""

    current = 0
    """The epoch of that one; 0: a peer did not say."""

    def __init__(self, *, epoch: int, current: int) -> None:
        super().__init__(
            f"this producer (epoch {epoch}) was replaced by a newer one (epoch {current})",
            hint="Close it: the producer that replaced it goes on with its work.",
        )
        self.current = current


class ProducerForgotten(Conflict):
    """A producer that a partition no longer remembers."""

    def __init__(self, *, got: int) -> None:
        super().__init__(
            f"batch {got} comes from a producer that this partition does not know",
            detail="It was idle while many others came, or it never sent its first batch.",
            hint="Read the table to find out what was stored, and go on with a new producer.",
        )


class CursorUnknown(Rejected):
    """There is no cursor of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no cursor {name!r}", hint="List the cursors of the table.")


class CursorExists(Conflict):
    """There is a cursor of that name already."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is a cursor {name!r} already",
            hint="Choose another name, or delete that cursor first.",
        )


class CursorMovesBack(Rejected):
    """A cursor only moves forward."""

    def __init__(self, name: str, *, at: int, to: int) -> None:
        super().__init__(
            f"cursor {name!r} stands at {at} and can't move back to {to}",
            detail="What lies behind a cursor may be gone.",
            hint="Reset it by name if you mean it.",
        )


class CursorOverdue(Conflict):
    """A cursor that fell too far behind, and no longer holds anything."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"cursor {name!r} is overdue: it fell further behind than its maximum lag",
            detail="It holds nothing any more; rows that it did not see may be gone.",
            hint="Reset it to where you want it to go on. It may have missed rows before that.",
        )


class CursorExpired(Conflict):
    """A cursor whose reader was away for too long, and which no longer holds anything."""

    def __init__(self, name: str, *, idle_ms: int) -> None:
        super().__init__(
            f"cursor {name!r} expired: it was idle for {duration_text(idle_ms)}",
            detail="That is its cursor.idle_expiry. It holds nothing any more; rows that its reader"
            " did not see may be gone.",
            hint="Reset it to where its reader goes on (`lowmark cursor reset`), and take note of"
            " what it may have missed; or delete it.",
        )


class LeaseExists(Conflict):
    """Another reader has a lease of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"another holder has the lease {name!r}", hint="Choose another name, or wait."
        )


class LeaseExpired(Conflict):
    """A lease that is over can't be renewed: what it held may be gone."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the lease {name!r} is over", hint="Take a new one and look what is left."
        )


class LedgerOld(Conflict):
    """A ledger that a newer one has replaced."""

    def __init__(self, *, epoch: int, current: int) -> None:
        super().__init__(
            f"the ledger of epoch {epoch} is older than the adopted one, of epoch {current}",
            hint="Read what is adopted, and start from there.",
        )
        self.epoch, self.current = epoch, current


class LedgerConflict(Corrupt):
    """Another ledger of the epoch that is adopted: two runs have published the same one."""

    def __init__(self, *, epoch: int, there: str, wanted: str) -> None:
        super().__init__(
            f"there are two ledgers of epoch {epoch}: {there!r}, which is adopted, and {wanted!r}",
            detail="An epoch is published once. If both have one name, they differ in what they"
            " hold.",
            hint="Stop compaction, and find out what has published the other one: a metastore from"
            " a backup does not know of the first.",
        )
        self.epoch = epoch


class DeletesHeld(Conflict):
    """A ledger that lacks deletes which a reader has not got yet."""

    def __init__(self, hold: Hold, *, at: int, wanted: int) -> None:
        super().__init__(
            f"deletes can't go below offset {wanted}: {hold.kind} {hold.holder!r} stands at {at}",
            detail="A reader that has seen a key must get its delete.",
            hint=f"Make a ledger that keeps deletes from {at} on, or have the {hold.kind} move on.",
        )
        self.holder, self.kind, self.at, self.wanted = hold.holder, hold.kind, at, wanted


class DeletesGone(Conflict):
    """An offset from which on deletes are missing: no reader can begin there."""

    def __init__(self, *, wanted: int, below: int) -> None:
        super().__init__(
            f"a compacted reader can't begin at offset {wanted}: deletes below {below} may be gone",
            detail="It would keep keys that were deleted since.",
            hint="Begin at 0, with an empty state.",
        )
        self.wanted, self.below = wanted, below


class OffsetExpired(Rejected):
    """An offset below the backlog."""

    def __init__(self, *, wanted: int, start: int) -> None:
        super().__init__(
            f"offset {wanted} is no longer in the backlog, which begins at {start}",
            hint=f"Begin at {start}, or with the earliest.",
        )
        self.wanted, self.start = wanted, start


class OffsetToCome(Rejected):
    """An offset that no row has yet."""

    def __init__(self, *, wanted: int, end: int, partition: int | None = None) -> None:
        where = "" if partition is None else f" of partition {partition}"
        super().__init__(
            f"offset {wanted}{where} is not written yet: the next one is {end}",
            hint=f"Use an offset up to {end}, or the latest.",
        )


class TransactionUnknown(Conflict):
    """A transaction that staged nothing here, or was finished long ago."""

    def __init__(self, transaction: int) -> None:
        super().__init__(f"transaction {transaction} has staged nothing in this partition")


class MembersBehind(Unavailable):
    """Not all members of a partition know a command yet."""

    def __init__(self, what: str = "how rows are staged and committed") -> None:
        super().__init__(
            f"not all members of a partition know {what}",
            detail="They agree on that a moment after a table was made; but not while a node runs"
            " an earlier release.",
            hint="Have all nodes run the same release.",
        )


class StagedRowsMissing(Conflict):
    """Of what an epoch has staged, some is not there any more: it waited for too long."""

    def __init__(self, *, wanted: int, found: int) -> None:
        super().__init__(
            f"expected {wanted} staged rows, found {found}",
            detail="Rows that no writer finishes are dropped a day later by the leader of their"
            " partition, when all partitions have answered; or by hand. Nothing was changed."
            if found < wanted
            else "A batch was stored twice, because too many writers stage at a time. Nothing was"
            " changed.",
            hint="Write them again.",
        )


class EpochHalfBound(Conflict):
    """An epoch that some partitions have, and others can't have any more."""

    def __init__(self, epoch: int, *, bound: Sequence[int], missing: Sequence[int]) -> None:
        super().__init__(
            f"epoch {epoch} is in partitions {', '.join(map(str, bound))}, and its rows for"
            f" partitions {', '.join(map(str, missing))} are gone",
            detail="It was decided, and what was left was dropped before all partitions had it: by"
            " hand, or by an earlier release a day after it was staged. A repeat with other rows"
            " can't take its place.",
            hint="Go on with another query (a new checkpoint) behind this epoch, and write its rows"
            " for those partitions by hand.",
        )
        self.bound, self.missing = tuple(bound), tuple(missing)


class EpochPassed(Conflict):
    """An epoch of a query that came long before the last one that was bound."""

    def __init__(self, epoch: int, *, newest: int) -> None:
        super().__init__(
            f"epoch {epoch} is too old: this query has already committed epoch {newest}",
            detail=f"Lowmark no longer knows what became of epoch {epoch}. Nothing was changed.",
            hint="Epochs of a query only grow. If it was started again with an old copy of its"
            " checkpoint, or with a new one under a name that was used before, give it a new"
            " checkpoint, or another name.",
        )


class EpochUnfinished(Unavailable):
    """A query's next epoch, while its last one may lack rows in some partitions."""

    newest = 0
    """The last one."""
    over = False
    """Whether the query is known for longer than it said, only because of that."""

    def __init__(self, epoch: int, *, newest: int, over: bool) -> None:
        super().__init__(
            f"epoch {epoch} has to wait: epoch {newest} of this query is decided, and may lack rows"
            " in some partitions",
            detail="No driver has said yet that all of them have it. Nothing was changed.",
            hint=f"Commit epoch {newest} again, then epoch {epoch}. Or wait: where it was decided,"
            " the leader has epochs bound everywhere that no driver has ended for ten minutes.",
        )
        self.newest, self.over = newest, over


class EpochsUnfinished(Unavailable):
    """An epoch, while too many others may lack rows in some partitions."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} queries have an epoch that is decided, and may lack rows in some partitions;"
            " a partition decides no more",
            detail="Their drivers are at it, or their partition's leader is, ten minutes later."
            " Nothing was changed.",
            hint="Retry in a moment. If that does not help, look which partitions have no leader.",
        )


class StagingFull(Unavailable):
    """A batch to be staged, while too many others wait for their transactions."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} staged batches wait in this partition, and it takes no more",
            detail="Those that were staged an hour ago or earlier make room, as soon as every other"
            " partition of the table has answered that they do not count for an epoch. Nothing was"
            " stored.",
            hint="Commit or discard what is staged (`lowmark explain` shows it), and stage the rows"
            " again. See to partitions of the table that have no leader: nothing goes until they"
            " answer.",
        )


class TooMany(Rejected):
    """More of something than a partition keeps."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"a partition keeps at most {limit} {what}",
            hint=f"Delete {what} that are no longer needed.",
        )


class PartitionNotHere(Unavailable):
    """This node has no copy of a partition (yet)."""

    def __init__(self, table: int, number: int) -> None:
        super().__init__(
            f"partition {number} of table {table} is not at this node",
            hint="Retry in a moment, or ask a node that holds it.",
        )


class BelowWatermark(Rejected):
    """A time before the low watermark: what was removed since may have changed the answer."""

    def __init__(self, *, time: int, watermark: int, table: str = "") -> None:
        before = "the low watermark, which is at"
        if table:  # it has a history of its own
            before = f"the history of table {table}, which is exact from"
        super().__init__(
            f"{_shown(time)} is before {before} {_shown(watermark)}{' on' if table else ''}",
            detail="Rows that were replaced or deleted before it may be gone.",
            hint=f"Read as of {_shown(watermark)} or later. To have a table stay exact for longer"
            ' from now on: table.alter(options={"history": "7 days"}) (lowmark table alter --set'
            ' "history=7 days"); all tables: db.set_history("1 day").',
        )
        self.time, self.watermark = time, watermark


class TimeInFuture(Rejected):
    """A time that has not come yet: what will have happened by then is open."""

    def __init__(self, *, time: int, now: int) -> None:
        super().__init__(
            f"{_shown(time)} is in the future: by this node's clock it is {_shown(now)}",
            hint="Use a time that has passed, or leave it out.",
        )
        self.time, self.now = time, now


def _shown(time: int) -> str:
    """A hybrid time, for people; one that no calendar has is shown as its number."""
    try:
        return time_text(millis_of(HybridTime(time)))
    except (OverflowError, ValueError, OSError):
        return f"time {time}"
