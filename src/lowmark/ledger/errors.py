"""What can go wrong with a ledger, sorted by what to do next."""

from __future__ import annotations

from lowmark.errors import Conflict, Corrupt

_REBUILD = (
    "If a copy of the place of ledgers has it, bring it back from there. Else rebuild it with"
    " `lowmark ledger rebuild`; what that can't bring back, it names."
)


class LedgerLost(Corrupt):
    """A file of a ledger is not where it should be."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a ledger can't be read: {what} is missing",
            detail="The reader gets no rows: the backlog alone is only a part of the answer.",
            hint=_REBUILD,
        )
        self.what = what


class LedgerDamaged(Corrupt):
    """A file of a ledger is not what was written."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"a ledger can't be read: {what} is damaged: {why}",
            detail="The reader gets no rows: the backlog alone is only a part of the answer.",
            hint=_REBUILD,
        )
        self.what, self.why = what, why


class LedgerMisplaced(LedgerDamaged):
    """A manifest is whole, but it is another ledger's: it lies where it does not belong."""

    def __init__(self, what: str, *, found: str, expected: str) -> None:
        super().__init__(what, f"it is the manifest of {found}; that of {expected} belongs there")
        self.detail = (
            "Its checksum is right, so it was put there as a whole: by a copy to the wrong name, or"
            " from a backup of another time. The reader gets no rows."
        )
        self.found, self.expected = found, expected


class ProofFailed(Corrupt):
    """What a run wrote is not what it should have written. Nothing of it was published."""

    def __init__(self, partition: int, why: str) -> None:
        super().__init__(
            f"compaction of partition {partition} is not proven: {why}",
            detail="Nothing of it was published; the ledger and the backlog are as they were.",
            hint="This is a bug of Lowmark, or bad memory: report it, with the run's record.",
        )


class SourceMoved(Conflict):
    """What a run reads has moved to other files meanwhile: plan again."""

    def __init__(self, partition: int) -> None:
        super().__init__(
            f"batches of partition {partition} have moved since the run was planned",
            hint="Run it again; what is finished stays finished.",
        )


class NothingLike(Corrupt):
    """Two ledgers, or a pointer and a partition, say different things."""

    def __init__(self, what: str) -> None:
        super().__init__(
            what,
            detail="A metastore that is older than the partitions, such as a restored backup, looks"
            " like this.",
            hint="Look at both with `lowmark ledger show`; `lowmark ledger reconcile` takes what"
            " the partition has adopted.",
        )
