"""Errors, sorted by what the caller does next.

    LowmarkError
    ├── Rejected      change the request: it is wrong as it stands
    ├── Conflict      read again, then retry: the world has moved on
    ├── Unavailable   retry later: nothing is wrong with the request
    └── Corrupt       stop and call a person: data is not what was written

Each error says what happened (its message), why (`detail`) and what to do (`hint`), each on a line
of its own.

This module also has every error that a caller may want to catch, by its name, wherever it is
defined: `lowmark.errors.GapFound`. Its package is imported when the name is first used, so this
module needs none of the packages above it, and `import lowmark` stays cheap.
"""

from __future__ import annotations

import copyreg
import importlib
from typing import Any, Self

__all__ = [
    "Conflict",
    "Corrupt",
    "InvariantBroken",
    "LowmarkError",
    "NoMemory",
    "NoThreads",
    "Rejected",
    "Unavailable",
    "invariant",
]


class LowmarkError(Exception):
    """The root of everything that Lowmark raises on purpose."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.__module__ != __name__ and cls.__module__.startswith(_HOMES.get(cls.__name__, "?")):
            cls.__module__ = __name__  # a traceback shows the name by which it can be caught

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def again(self) -> Self:
        """The same error to raise once more; raised twice, one object would gather tracebacks."""
        fresh = self.__class__.__new__(self.__class__)
        fresh.__dict__.update(self.__dict__)
        fresh.args = self.args
        return fresh

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is: constructors want other arguments than the message in `args`."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def __str__(self) -> str:
        hint = f"hint: {self.hint}" if self.hint else ""
        return "\n".join(part for part in (self.message, self.detail, hint) if part)

    def one_line(self) -> str:
        """All of it on one line, for logs and records."""
        return " ".join(part for part in (self.message, self.detail, self.hint) if part)


class Rejected(LowmarkError):
    """The request is wrong as it stands; change it."""


class Conflict(LowmarkError):
    """The world has moved on; read again and retry."""


class Unavailable(LowmarkError):
    """Nothing is wrong with the request; retry later."""


class NoMemory(Unavailable):
    """This process got no memory for what it was about to do."""

    def __init__(self, what: str = "", *, where: str = "") -> None:
        super().__init__(
            f"there is not enough memory{f' at {where}' if where else ''}",
            detail=f"Python said: {what}." if what else "",
            hint="Ask for less at once (fewer rows or columns, a smaller batch_bytes), or give this"
            " process more memory.",
        )


class NoThreads(Unavailable):
    """This process could not start a thread."""

    def __init__(self, *, where: str = "") -> None:
        super().__init__(
            f"no thread can be started{f' at {where}' if where else ''}",
            detail="The limit of threads of this user, or of this container, is reached; or there"
            " is no memory for one more.",
            hint="End threads or processes, or raise the limit (`ulimit -u`, pids of the"
            " container); then open the database again.",
        )


class Corrupt(LowmarkError):
    """Data is not what was written; stop and call a person."""


class InvariantBroken(AssertionError):
    """A thing that must never happen did. It is a bug of Lowmark, not of its caller."""


def invariant(ok: object, message: str) -> None:
    """Raise if `ok` is false, also under `python -O`."""
    if not ok:
        raise InvariantBroken(message)


# -- by name --------------------------------------------------------------------------------------

_DEFINED_IN = {
    "lowmark.authority.errors": "AuthorityRefused CertificateRefused",
    "lowmark.backend.errors": (
        "AnswerUnread AppendFailed Cancelled Closed DirectoryChanged Ended EpochUnread Forked"
        " HoldUnknown OtherDatabase PackageMissing PartitionReset PartlyMade PlanOutdated"
        " ProducerClosed PutEnded ProtocolRefused ReadOnly ReaderEnded RequestRefused"
        " ResetsUnheard RowMisplaced RowsLost"
        " RowsUnrecoverable RunUnderWay SegmentsElsewhere TableUnknown"
    ),
    "lowmark.backend.condition": "ConditionRefused",
    "lowmark.access.directory": "NoOwner",
    "lowmark.convert.errors": "ColumnRefused LineRefused ValueRefused",
    "lowmark.client": "ArgumentRefused ChangesGone GapFound",
    "lowmark.export.errors": "ColumnUnfit DestinationRefused",
    "lowmark.frames.errors": (
        "CatalogTable ColumnChanged ColumnsMissing CursorShared ModeRefused NoRecordsMax"
        " OptionRefused OtherTable SchemaRefused StreamBehind WorkerMissing"
    ),
    "lowmark.spark.errors": (
        "JavaMissing JavaTooOld MasterNotReached NoExecutors SessionRefused SparkGone"
        " SparkMissing SparkNotStarted TaskFailed TaskLost WorkersUnfit"
    ),
    "lowmark.inspect": "DataInUse",
    "lowmark.backend.attached": "LedgersUnknown",
    "lowmark.backend.spread": "CopiesAway",
    "lowmark.node": (
        "AnswerLost NodeSilent NodeUnreachable NotADatabase NotAdvertised NotLoopback"
    ),
    "lowmark.node.errors": "PermissionDenied ServerFailed ServerFull ServerStuck",
    "lowmark.ledger.claim": "LedgersUnseen OtherLedgers",
    "lowmark.ledger.errors": (
        "LedgerDamaged LedgerLost LedgerMisplaced NothingLike ProofFailed SourceMoved"
    ),
    "lowmark.table.errors": (
        "BatchRefused BelowWatermark CursorExists CursorExpired CursorMovesBack CursorOverdue"
        " CursorUnknown DeletesGone DeletesHeld EpochHalfBound EpochPassed EpochUnfinished"
        " EpochsUnfinished LeaseExpired MembersBehind OffsetExpired OffsetToCome OutOfSequence"
        " PartitionNotHere ProducerFenced ProducerForgotten SchemaNotInForce StagedRowsMissing"
        " StagingFull TimeInFuture TooMany"
    ),
    "lowmark.catalog.errors": (
        "CatalogBusy CatalogRefused CatalogTooNew CatalogUnreadable IndexNotBuildable NotInForce"
        " PartitionsFixed VersionCompacted VersionUnknown"
    ),
    "lowmark.metastore.errors": (
        "ClusterRefused MetastoreDamagedHere MetastoreOutdated MetastoreUnreachable NotInCluster"
        " RevisionCompacted"
        " RevisionUnknown"
    ),
    "lowmark.metastore.identity": (
        "MetastoreDamaged MetastoreMissing MetastoreUnreadable NodeFileDamaged NodeFileMissing"
    ),
    "lowmark.group.errors": (
        "CommandTooLarge CopyOutdated GroupBusy GroupStopped GroupUnfinished MachineTooOld NoQuorum"
        " NotLeader NotWritten OutcomeUnknown QuarantinedHere ReadTimedOut ShuttingDown"
        " Superseded"
    ),
    "lowmark.raft.log_view": "LogDiverged LogLost",
    "lowmark.log.errors": (
        "Damaged FolderMissing FolderMistaken EntryTooLarge GroupQuarantined GroupUnwritable"
        " LogBusy LogClosed NewerFormat NotContiguous"
    ),
    "lowmark.placement.rebuilding": "CopyNeeded CopySound",
    "lowmark.tokens.errors": (
        "BeyondPass NoSuchToken PassEnded PassesFull TokenExists TokenExpired TokenMalformed"
        " TokenMissing TokenRevoked TokenUnknown TokensFull TokensUnknown Unauthenticated"
    ),
    "lowmark.runtime.clock": "ClockSkew",
    "lowmark.runtime.disk": "DiskFailed DiskFull Locked NoHandles NotAllowed StoreFailed",
    "lowmark.runtime.network": "AddressInUse AddressUnusable",
    "lowmark.runtime.profiles": "ProfileUnknown ProfilesUnusable",
    "lowmark.runtime.refusals": "AuthorityUnusable ServerNotTrusted TlsNeeded TlsNotSpoken",
    "lowmark.runtime.tls": "KeyMismatch TlsUnusable",
}
"""Where each error is defined that callers catch; `tests/docs/test_errors.py` keeps it complete."""

_HOMES = {name: module for module, names in _DEFINED_IN.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lowmark.errors' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
