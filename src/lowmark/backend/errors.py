"""What can go wrong with a database and its tables as a whole."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence

from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable
from lowmark.group import NotLeader as _NotLeader
from lowmark.group import OutcomeUnknown as _OutcomeUnknown
from lowmark.group import Superseded as _Superseded
from lowmark.node.errors import ServerFailed as _ServerFailed
from lowmark.node.errors import ServerFull as _ServerFull
from lowmark.node.errors import ServerStuck as _ServerStuck
from lowmark.runtime import by_name
from lowmark.table.errors import BatchRefused, MembersBehind

OutcomeUnknown = _OutcomeUnknown
"""What was asked may have been done: look before you ask again. It is the group's error."""
NotLeader = _NotLeader
"""Another node leads, or none does for a moment. It is the group's error, too."""
Superseded = _Superseded
"""Another leader came, and what was asked was not done. It is the group's error, too."""
ServerFailed, ServerFull, ServerStuck = _ServerFailed, _ServerFull, _ServerStuck
"""What a server says of itself. They are the listener's errors."""


class AnswerUnread(OutcomeUnknown):
    """A change that was made, at least in part, and whose answer has to be read and can't be."""

    def __init__(self, what: str, *, why: str) -> None:
        LowmarkError.__init__(
            self,
            f"{what}, but what came of it can't be read: {why}",
            detail="The change was made, or a part of it; nothing takes it back.",
            hint="Look at what is there before you repeat it.",
        )


class EpochUnread(AnswerUnread):
    """An epoch that is decided, and is not known to be bound everywhere."""

    def __init__(self, epoch: int, *, why: str) -> None:
        LowmarkError.__init__(
            self,
            f"epoch {epoch} is decided, but may not be readable in all partitions yet: {why}",
            detail="Its rows are given, for good; nothing takes them back.",
            hint="Commit it again: nothing is stored twice. If you don't, the rest is done without"
            " you, ten minutes later.",
        )


@contextlib.contextmanager
def made(what: str) -> Iterator[None]:
    """While what a change has led to is read: that this fails does not say that nothing changed."""
    try:
        yield
    except LowmarkError as error:
        raise AnswerUnread(what, why=error.message) from error


@contextlib.contextmanager
def looked_up(unknown: OutcomeUnknown) -> Iterator[None]:
    """While it is looked up what came of a change: if that fails, it stays unknown."""
    try:
        yield
    except LowmarkError as error:
        raise unknown from error


class PartitionReset(Conflict):
    """An operator has reset the partition: what its caller knows of it may not be so any more."""

    def __init__(self, table: int, partition: int, *, at: int | None = None) -> None:
        whose = f"partition {partition} of table {table}"
        what = f"{whose} was reset after this reader had looked at it"
        if at is not None:
            what = f"{whose} was reset, and this reader had come to offset {at} of it"
        super().__init__(
            what,
            detail="Its majority was lost, and one copy goes on alone (`lowmark partition reset`)."
            " Rows that only the lost copies had are gone; their offsets are given to other rows.",
            hint="Read again. What was made of rows that are gone has to be made anew: read from"
            " before the loss, or from the earliest.",
        )
        self.partition = partition


class ResetsUnheard(Unavailable):
    """A server of an earlier release: it can't be told that a group was reset."""

    def __init__(self, address: str, groups: Iterable[str]) -> None:
        super().__init__(
            f"the server at {address} can't tell whether a reset has left it behind",
            detail=f"It runs an earlier release. Reset: {', '.join(sorted(groups))}.",
            hint="Ask another node, or upgrade this one.",
        )


class PartlyMade(OutcomeUnknown):
    """A change that some partitions have made, and that others have refused, or could not be asked
    for.
    """

    def __init__(self, made: Sequence[int], missing: Sequence[int], *, why: str) -> None:
        LowmarkError.__init__(
            self,
            f"the change was made in {_partitions(made)}, and not in {_partitions(missing)}: {why}",
            detail="Each partition decides for itself; nothing takes back what some have done.",
            hint="Look at what is there, and repeat it if it is meant all the same.",
        )
        self.made, self.missing = list(made), list(missing)


class PutEnded(OutcomeUnknown):
    """A stream of batches that ended behind some that are stored."""

    def __init__(self, batches: int, *, cause: LowmarkError) -> None:
        LowmarkError.__init__(
            self,
            f"the stream of rows ended after {batches} batches: {cause.message}",
            detail="Each batch that was answered is stored, and the one behind them is not.",
            hint="Send what has no answer, in another stream.",
        )
        self.batches = batches


def _partitions(numbers: Sequence[int]) -> str:
    return f"partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def could_not_be_asked(error: BaseException | None) -> bool:
    """Whether a partition has done nothing because it could not, and has not refused to. So another
    one may have done what this one has not.
    """
    if isinstance(error, OutcomeUnknown | MembersBehind):
        return False
    return isinstance(error, Unavailable | Corrupt | NotLeader | Superseded)


class Closed(Rejected):
    """A database that was closed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the database {path} is closed", hint="Open it again.")


class Ended(OutcomeUnknown):
    """A database that was closed, or failed, before an answer was there."""

    def __init__(self, path: str, failure: BaseException | None = None) -> None:
        named = None if failure is None else by_name(failure)
        said = named.message if isinstance(named, LowmarkError) else repr(failure)
        why = "was closed" if failure is None else f"has failed ({said})"
        LowmarkError.__init__(
            self,
            f"the database {path} {why} before the answer was there",
            detail="The request may have been carried out all the same.",
            hint="Open it again, and look whether it happened.",
        )
        self.failed = failure is not None


class ProducerClosed(Closed):
    """A producer that was closed."""

    def __init__(self) -> None:
        Rejected.__init__(self, "this producer is closed", hint="Make another one.")


class ReaderEnded(Rejected):
    """A reader that is asked for all of its rows, and has given them or can't give them."""

    def __init__(self, *, read: bool) -> None:
        if read:
            what, detail = (
                "this reader was read to its end already",
                "A reader gives its rows once.",
            )
        else:
            what = "this reader ended before all of its rows were read"
            detail = "It was closed, by `with` or close(), or an error ended it."
        super().__init__(
            what,
            detail=detail,
            hint="Read again with another one, and use it before you close it. For rows that you"
            " use later or more than once: to_arrow().",
        )


class Forked(Rejected):
    """A database that belongs to the parent process; or, not `opened`, a process that can't have
    one, because its parent had one when it forked.
    """

    def __init__(self, path: str, *, opened: bool = True) -> None:
        super().__init__(
            f"the database {path} was opened by the parent of this process"
            if opened
            else f"{path} can't be opened in a process that was forked while a database was open",
            detail="Its threads and its lock stayed there; both processes would write one log."
            if opened
            else "The threads of gRPC stayed in the parent: a call would never be answered.",
            hint="Open databases after the fork, or start processes by `spawn`.",
        )


class ReadOnly(Rejected):
    """A change of a database that was opened to be read."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"the database {path} is open read-only, and {what} would change it",
            detail="Nothing was sent or written.",
            hint="Open it without read_only=True to change it.",
        )


class DirectoryChanged(Conflict):
    """A directory that was opened to be read while no process owned it, and that one has opened
    since: files that are needed may be gone.
    """

    def __init__(self, path: str, found: LowmarkError | None = None) -> None:
        super().__init__(
            f"another process has opened {path} since it was opened here read-only",
            detail="What was read before is as the directory had it then."
            + ("" if found is None else f" Found now: {found.message}."),
            hint="Open it again with read_only=True: while that process has it open, you read"
            " through it.",
        )


class PackageMissing(Rejected):
    """An optional package that is not installed."""

    def __init__(self, package: str, *, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package}, which is not installed",
            hint=f"Install it into the environment of this Python: pip install {package}",
        )
        self.package = package


class TableUnknown(Rejected):
    """There is no table of that name."""

    def __init__(self, name: str, *, known: Sequence[str], then: bool = False) -> None:
        """`known`: the tables of now; `then`: it is asked for as of an earlier time."""
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Create it first."
        if then and name in known:
            hint = "There is one now: it was made, or renamed, after that time."
        when = " as of that time" if then else ""
        super().__init__(f"there is no table {name}{when}", hint=hint)


class AppendFailed(Conflict):
    """Rows that were not all stored: which partitions have theirs, and which may have.

    A retry of the whole call would store twice what is stored already.
    """

    def __init__(
        self,
        table: str,
        *,
        stored: Sequence[int],
        refused: Sequence[int],
        unknown: Sequence[int],
        cause: LowmarkError,
    ) -> None:
        super().__init__(
            f"not all rows for table {table} were stored: {cause.message}",
            detail=f"Partitions that have theirs: {_listed(stored)}; that refused theirs:"
            f" {_listed(refused)}; whose outcome is unknown: {_listed(unknown)}.",
            hint="Read what is there before you append again. With a key, appending the same rows"
            " again does no harm if no other writer has changed those keys meanwhile.",
        )
        self.stored, self.refused, self.unknown = tuple(stored), tuple(refused), tuple(unknown)
        self.cause = cause


class Cancelled(Conflict):
    """Work that a user ended before it was done."""

    def __init__(self, what: str) -> None:
        super().__init__(what, hint="Begin it again; what was published stays.")


class RunUnderWay(Conflict):
    """Another run compacts the table."""

    def __init__(self, table: str, run: str) -> None:
        super().__init__(
            f"table {table} is being compacted by run {run}",
            hint="Wait for it, or cancel it.",
        )


class PlanOutdated(Conflict):
    """A run can't be resumed: the version of the catalog that it was planned with is gone."""

    def __init__(self, run: str, version: int, *, why: str) -> None:
        super().__init__(
            f"run {run} was planned with version {version} of the catalog, which is gone",
            detail=f"{why} With another version its ledgers could lack columns. Nothing was"
            " changed.",
            hint="Begin another run: `lowmark compact` gives this one up.",
        )
        self.version = version


class BatchesMoved(Conflict):
    """Batches that a view names were cut meanwhile."""

    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(
            f"batches of partition {partition} from offset {offset} on were cut meanwhile",
            hint="Take a newer view.",
        )


class SegmentsElsewhere(Rejected):
    """A backlog that a task can't read: it sees no segments, or no server gives the rows."""

    def __init__(self, table: str, partition: int, *, here: bool = False) -> None:
        if here:
            detail = "The run reads from a server (read='flight'), and no server has this database."
            hint = "Leave read='flight' (--read flight) out, or serve the database."
        else:
            detail = "The task does not see the directory in which the segments of its node are."
            hint = (
                "Compact where that directory is, or let tasks read from a server: connect to a"
                " node, and leave read='segments' (--read segments) out."
            )
        super().__init__(
            f"the backlog of partition {partition} of table {table} can't be compacted from here",
            detail=detail,
            hint=hint,
        )


class HoldUnknown(Conflict):
    """A hold that was released, or that the database does not know any more."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"hold {number} was released or is no longer known",
            detail="The database may have been opened again since. What the hold kept may be gone.",
            hint="Read again from the start.",
        )


class ProtocolRefused(Rejected):
    """A client and a server whose releases do not understand each other."""

    def __init__(self, *, theirs: int, ours: int, release: str) -> None:
        super().__init__(
            f"the server speaks protocol {ours}, and this client protocol {theirs}",
            detail=f"The server is release {release} of Lowmark.",
            hint="Use releases of Lowmark that belong together.",
        )
        self.theirs, self.ours, self.release = theirs, ours, release


class OtherDatabase(Rejected):
    """Another database than before answers at an address."""

    def __init__(self, address: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"another database answers at {address} than the one that was connected to",
            detail=f"It was {expected}, and now it is {found}. Nothing was done.",
            hint="Connect again, if you mean the new one.",
        )


class RequestRefused(Rejected):
    """A message to a server that is not what it takes."""


class RowMisplaced(BatchRefused):
    """A batch with a row that belongs into another partition."""

    def __init__(self, table: str, *, partition: int, row: int, belongs: int) -> None:
        super().__init__(
            f"row {row} of a batch for partition {partition} of table {table} belongs to"
            f" partition {belongs}",
            detail="Rows go by the hash of their key. Nothing of the batch was stored.",
            hint="Have Lowmark's client split the rows, or send them whole, without a partition.",
        )
        self.partition, self.row, self.belongs = partition, row, belongs


class RowsLost(LowmarkError):
    """Rows that should be there can't be read."""


NOT_HELD = (
    "A hold does not outlive the process that keeps it, nor a client that is silent for too long."
    " If no process was started again meanwhile, please report this as a bug of Lowmark."
)
"""Why rows may be gone that a reader had held."""


class RowsUnrecoverable(Corrupt):
    """A ledger can't be rebuilt without leaving rows out. Nothing was changed."""

    def __init__(self, table: str, *, lost: Sequence[str], files: Sequence[str]) -> None:
        named = ", ".join(dict.fromkeys(files))
        super().__init__(
            f"ledgers of table {table} can't be rebuilt as they were: {'; '.join(lost)}",
            detail=f"Missing or damaged: {named}. Neither the backlog nor an older ledger has those"
            " rows. Nothing was changed.",
            hint="Bring the files back from a copy, and see with `lowmark ledger verify`; or go on"
            " without those rows: `lowmark ledger rebuild --accept-loss`. Readers that come"
            " across them get an error.",
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if numbers else "none"
