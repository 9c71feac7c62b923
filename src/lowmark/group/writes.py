"""Makes durable what the core orders, in order, and lets its answers go only then.

One order may carry a snapshot, a vote and entries. They are written in that order, and an order
counts as done when all of it and every order before it is durable. The WAL writes in the order it
was given things, so whatever it reports is news about everything before, too: entries that were
overwritten before they were written never get a report of their own.

A full queue or disk only delays an order (`retry`); on a follower that has only reserved space
left, one with entries that may not use it. A commit index alone is not worth a write: it
rides along with the next vote, and is learned again from the leader otherwise. Only that a change
of members is committed is worth one: it goes before the next entries. So whoever has a change
durable never elects or commits, after any crash, with the members before the last change but one;
and whoever has an entry that was sent when a change was committed has those members for good.

A record never calls an entry committed that is not ahead of it in the WAL: a crash between the two
would commit whatever older entry stands there. So an order whose own entries hold a change that is
committed is written in pieces, with the record between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.group.envelope import wrap_change
from lowmark.group.storage import GroupMeta
from lowmark.log import EntryTooLarge, GroupLog, GroupQuarantined, InstallRefused, Written
from lowmark.raft import Entry, EntryKind, HardState, Snapshot, StorageAppend
from lowmark.raft.messages import Response
from lowmark.runtime import Buffer

_data_of = attrgetter("data")

Install = Callable[[Snapshot, Callable[[LowmarkError | None], None]], None]


class _Write:
    __slots__ = (
        "appended",
        "entries_done",
        "last",
        "last_term",
        "order",
        "records_due",
        "snapshot_done",
        "voted",
    )

    def __init__(self, order: StorageAppend) -> None:
        self.order = order
        self.snapshot_done = order.snapshot is None
        self.voted = False
        """Whether the log has taken its term, vote, incarnation and lineage."""
        self.records_due = 0
        """Records that are on their way to the disk."""
        self.appended = 0
        """How many of its entries the log has taken."""
        self.entries_done = not order.entries
        self.last = order.entries[-1].index if order.entries else 0
        self.last_term = order.entries[-1].term if order.entries else 0


class Writes:
    """The orders of one group."""

    def __init__(
        self,
        log: GroupLog,
        meta: GroupMeta,
        *,
        install: Install,
        release: Callable[[list[Response]], None],
        failed: Callable[[LowmarkError], None],
        may_use_reserve: Callable[[list[Entry], int], bool],
    ) -> None:
        self._may_use_reserve = may_use_reserve
        self._log = log
        self._install = install
        self._release = release
        self._failed = failed
        self._meta = meta
        self._hard = meta.hard
        """As the last order has it; its commit index may be ahead of the record's."""
        self._changes_at: list[int] = []
        """Where changes of members are that the record does not call committed."""
        self._unknown_to = log.last_index
        """Any entry up to here may be one: it was there before this life."""
        self.waits: deque[_Write] = deque()
        """Orders that the log has not taken yet, or not whole."""
        self.refused: LowmarkError | None = None
        """Why the log did not take the first of them when it was last tried."""
        self._ordered: deque[_Write] = deque()
        self._closed = False
        self._submitting = False

    @property
    def idle(self) -> bool:
        """Whether everything that was ordered is durable."""
        return not self.waits and not self._ordered

    @property
    def stuck_order(self) -> object:
        """The order that the log does not take, if any."""
        return self.waits[0] if self.waits and self.waits[0].snapshot_done else None

    @property
    def hard(self) -> HardState:
        """The hard state that was last ordered."""
        return self._meta.hard

    def order(self, order: StorageAppend) -> None:
        """Carry an order out."""
        self.waits.append(_Write(order))
        self.retry()

    def retry(self) -> None:
        """Go on, if something kept orders waiting."""
        if self._submitting:
            return
        self._submitting = True
        try:
            while self.waits and not self._closed:
                write = self.waits[0]
                if not write.snapshot_done:
                    self._begin_install(write)
                    break
                try:
                    if not write.voted:
                        self._submit_vote(write)
                    for term, datas, first, reserve in self._entries_of(write):
                        self._log.append(term, datas, first=first, reserve=reserve)
                except (Unavailable, InstallRefused) as refused:
                    self.refused = refused
                    break  # it waits
                self.refused = None
                self.waits.popleft()
                self._ordered.append(write)
        except (Corrupt, EntryTooLarge, GroupQuarantined) as error:
            self._fail(error)
        finally:
            self._submitting = False
        self._settle()

    def save(
        self, hard: HardState, on_done: Callable[[LowmarkError | None], None] = lambda _: None
    ) -> bool:
        """Make a commit index durable, when there is time for it; whether it will be."""
        if self._closed or not self.idle or self._log.quarantined is not None:
            return False
        if hard == self._meta.hard:
            return False
        try:
            self._put_meta(hard, on_done)
        except Unavailable:
            return False  # it was a favour
        return True

    def written(self, event: Written) -> None:
        """The log says that entries are durable."""
        for at, write in enumerate(self._ordered):
            if write.entries_done:
                continue
            if event.last >= write.last and event.term >= write.last_term:
                for earlier in list(self._ordered)[: at + 1]:
                    earlier.entries_done = True
        self._settle()

    def close(self) -> None:
        """Answer nothing any more."""
        self._closed = True
        self.waits.clear()
        self._ordered.clear()

    # -- one order ------------------------------------------------------------------------------

    def _begin_install(self, write: _Write) -> None:
        snapshot = write.order.snapshot
        if self._ordered or snapshot is None:
            return  # first everything before it

        def done(error: LowmarkError | None) -> None:
            if self._closed:
                return
            if error is not None:
                self._fail(error)
                return
            write.snapshot_done = True
            self.retry()

        write.order.snapshot = None  # begun once
        self._install(snapshot, done)

    def _submit_vote(self, write: _Write) -> None:
        """Write all but the commit index, if it is new, ahead of the entries."""
        self._hard = write.order.hard or self._hard
        hard, old = self._hard, self._meta.hard
        new = (hard.term, hard.vote, hard.incarnation, hard.lineage)
        if new != (old.term, old.vote, old.incarnation, old.lineage):
            entries = write.order.entries
            self._record(write, below=entries[0].index if entries else hard.commit + 1)
        write.voted = True

    def _record(self, write: _Write, *, below: int) -> None:
        """Write the hard state; of the commit index, what speaks of entries below an index."""
        commit = max(self._meta.hard.commit, min(self._hard.commit, below - 1))

        def done(error: LowmarkError | None) -> None:
            if error is None and not self._closed:
                write.records_due -= 1
                self._settle()

        self._put_meta(msgspec.structs.replace(self._hard, commit=commit), done)
        write.records_due += 1

    def _has_committed_change(self, old: int, new: int) -> bool:
        """Whether a change of members may be among what was committed since the record."""
        if old < min(new, self._unknown_to):
            return True
        return any(old < at <= new for at in self._changes_at)

    def _put_meta(self, hard: HardState, on_done: Callable[[LowmarkError | None], None]) -> None:
        meta = msgspec.structs.replace(self._meta, hard=hard)
        self._log.put_meta(meta.encode(), on_done)
        self._meta = meta
        self._changes_at = [at for at in self._changes_at if at > hard.commit]

    def _entries_of(self, write: _Write) -> Iterator[tuple[int, list[Buffer], int, bool]]:
        """What the log is to append, piece by piece, each with the record that must be before it.

        A piece counts as taken when the next one is asked for.
        """
        if not write.order.entries:
            return
        for piece in _pieces(write.order.entries[write.appended :]):
            first, kind, known = piece[0].index, piece[0].kind, self._meta.hard.commit
            if self._changes_at or known < self._unknown_to:  # else there is none to look for
                if self._has_committed_change(known, min(self._hard.commit, first - 1)):
                    self._record(write, below=first)
            datas: list[Buffer] = list(map(_data_of, piece))
            if kind is not EntryKind.NORMAL:
                datas = [wrap_change(kind, data) for data in datas]
            reserve = self._may_use_reserve(piece, sum(map(len, datas)))
            yield piece[0].term, datas, first, reserve
            self._unknown_to = min(self._unknown_to, first - 1)
            if self._changes_at:
                self._changes_at = [at for at in self._changes_at if at < first]
            if kind is not EntryKind.NORMAL:
                self._changes_at.append(first)
            write.appended += len(piece)
        if self._log.written_index >= write.last and not self._ordered:
            write.entries_done = True

    def _settle(self) -> None:
        while self._ordered and not self._closed:
            first = self._ordered[0]
            if not first.snapshot_done or first.records_due or not first.entries_done:
                break
            self._ordered.popleft()
            self._release(first.order.responses)
        if self.waits and not self._ordered and not self._submitting:
            if self.waits[0].order.snapshot is not None:
                self.retry()  # it waited for everything before it

    def _fail(self, error: LowmarkError) -> None:
        self.close()
        self._failed(error)


def _pieces(entries: list[Entry]) -> list[list[Entry]]:
    """The entries, cut before and behind each change of members, and where the term changes."""
    pieces: list[list[Entry]] = []
    for entry in entries:
        before = pieces[-1][-1] if pieces else None
        both_normal = before is not None and before.kind is entry.kind is EntryKind.NORMAL
        if before is not None and both_normal and before.term == entry.term:
            pieces[-1].append(entry)
        else:
            pieces.append([entry])
    return pieces
