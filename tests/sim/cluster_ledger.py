"""What a whole cluster knows of one group, over all copies and all lives: the judge of lives.

Every copy tells what its log holds, what it takes for committed, who leads and what its machine has
become. The ledger keeps the first word on each and breaks the life when a later one differs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from group.kv import KvMachine, digest, value_of
from lowmark.raft import Members
from lowmark.runtime import Buffer

__all__ = ["Broken", "Election", "GroupLedger", "WatchedMachine", "confirm"]


class Broken(BaseException):
    """A promise was broken. Not an Exception, so that no error handling in between swallows it."""


def confirm(ok: object, promise: str) -> None:
    """Break the life unless a promise holds."""
    if not ok:
        raise Broken(promise)


@dataclass(frozen=True, slots=True)
class Election:
    """Who became leader of a term, and what its log held then."""

    node: int
    term: int
    snapshot_index: int
    terms: dict[int, int]


class GroupLedger:
    """Everything that was ever true of one group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[tuple[int, int], tuple[int, bytes]] = {}
        """(index, term): the term before it, and its data."""
        self.committed: dict[int, int] = {}
        self.committed_in: dict[int, int] = {}
        """In which term an index was first known to be committed."""
        self.last_committed = 0
        self.elections: dict[int, Election] = {}
        self.members = Members()
        """The newest configuration that anybody has applied."""
        self.members_at = -1
        self._digests: dict[int, bytes] = {}
        self._digest_indexes: list[int] = []

    def entry(self, index: int, term: int, *, previous: int | None, data: bytes, who: str) -> None:
        """A copy has an entry; `previous` is None if a snapshot hides the term before it."""
        known = self.entries.get((index, term))
        if known is None:
            if previous is not None:
                self.entries[index, term] = (previous, data)
            return
        where = f"entry {index} of term {term} on {who}"
        confirm(known[1] == data, f"log matching: {where} has other data")
        if previous is not None:
            confirm(
                known[0] == previous,
                f"log matching: {where} follows term {previous}, elsewhere term {known[0]}",
            )

    def commit(self, index: int, term: int, *, in_term: int, who: str) -> None:
        """A copy takes an entry for committed."""
        known = self.committed.setdefault(index, term)
        confirm(
            known == term,
            f"a committed entry changed: {index} was of term {known}, is of term {term} on {who}",
        )
        if index in self.committed_in:
            return
        self.committed_in[index] = in_term
        self.last_committed = max(self.last_committed, index)
        for election in self.elections.values():
            if election.term > in_term and election.snapshot_index < index:
                self._check_complete(election, index)

    def elected(self, election: Election) -> None:
        """A copy leads."""
        first = self.elections.setdefault(election.term, election)
        confirm(
            first.node == election.node,
            f"two leaders of term {election.term}: nodes {first.node} and {election.node}",
        )
        if first is not election:
            return
        for index, in_term in self.committed_in.items():
            if in_term < election.term and index > election.snapshot_index:
                self._check_complete(election, index)

    def _check_complete(self, election: Election, index: int) -> None:
        term = self.committed[index]
        found = election.terms.get(index)
        confirm(
            found == term,
            f"leader completeness: node {election.node} leads term {election.term}"
            f" and has term {found} at {index}, where term {term} is committed",
        )

    def in_force(self, index: int, members: Members) -> None:
        """A copy has applied everything up to an index, and has these members."""
        if index > self.members_at:
            self.members, self.members_at = members, index

    # -- machines -------------------------------------------------------------------------------

    def became(self, index: int, digest: bytes, *, who: str) -> None:
        """A machine was changed by an entry."""
        known = self._digests.get(index)
        if known is None:
            self._digests[index] = digest
            insort(self._digest_indexes, index)
        confirm(known in {None, digest}, f"machines differ at {index}, on {who} and before")

    def stands(self, index: int, digest: bytes, *, who: str) -> None:
        """A machine has applied, or restored, everything up to an index."""
        at = bisect_right(self._digest_indexes, index)
        known = self._digests[self._digest_indexes[at - 1]] if at else None
        confirm(known in {None, digest}, f"machines differ when {index} is applied, on {who}")


class WatchedMachine(KvMachine):
    """Tells the ledger what every entry made of it."""

    def __init__(self, newest_version: int, ledger: GroupLedger, who: str) -> None:
        super().__init__(newest_version)
        self._ledger = ledger
        self._who = who

    def digest(self) -> bytes:
        rows = msgspec.msgpack.encode(sorted(self.rows.items()))
        return blake2b(rows, digest_size=8).digest()

    def holds(self, key: str, command: Buffer) -> bool:
        """Whether a command is the one that gave a key its value."""
        return self.rows[key].digest == digest(value_of(command))

    def apply(self, index: int, time: int, command: Buffer) -> object:
        result = super().apply(index, time, command)
        self._ledger.became(index, self.digest(), who=self._who)
        return result

    def moved(self, old: int, new: int) -> None:
        super().moved(old, new)
        self._ledger.became(new, self.digest(), who=self._who)
