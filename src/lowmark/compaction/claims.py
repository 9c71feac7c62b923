"""Which process compacts a table: one at a time, wherever it is, and whichever node it asks.

A claim stands in the metastore. Its steps, and what is true after each:

    1. it is taken, if it still is what was seen: from here on this process alone notes and
       publishes for the table, for each of its writes has the condition that the claim is its own
    2. it is renewed as long as the run goes on: a number beside it changes
    3. it is given back: it is removed; or, if its run stays to be made or resumed, it is left
       without a holder, and the next worker that looks takes it. If it was taken from another run
       that still stays, as by a rebuild or by a cancel, it is left to that one

A process that ends without step 3 leaves a claim that changes no more. A worker takes it over once
it has seen it unchanged for the time of its lease, by its own monotonic clock: no wall clock is
asked, so none can be wrong. A person who compacts, resumes or cancels does not wait that long: it
is enough that no process is known to have the run under way (`Compactor.only`).

Safety does not depend on time. A process that has lost its claim, since it was suspended for
longer than its lease or because a person has acted, can neither publish nor note anything.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from lowmark.backend.errors import OutcomeUnknown, looked_up
from lowmark.backend.port import Backend, HasBackend
from lowmark.errors import LowmarkError
from lowmark.ledger import Claim, decode_record
from lowmark.ledger.records import CLAIM_PREFIX, claim_prefix, table_of
from lowmark.metastore import (
    AllOf,
    Compare,
    Condition,
    Entry,
    Operation,
    Put,
    Remove,
    Revision,
    missing,
    value_is,
)

logger = logging.getLogger(__name__)

_RENEWALS = 5
"""A claim is renewed this often within its lease."""
_HOLDER, _TURN, _CANCEL = b"holder", b"turn", b"cancel"


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A claim as it stood; the revisions that wrote it, and its turn; 0: there is none."""

    claim: Claim | None = None
    revision: int = 0
    turn: int = 0
    cancelled: bool = False
    """Whether its run was asked to end."""

    @property
    def held(self) -> bool:
        """Whether a process has it, or had it when it died."""
        return self.claim is not None and bool(self.claim.holder)

    @property
    def detached(self) -> bool:
        """Whether its run is for workers, also if the table is not compacted by itself."""
        return self.claim is not None and self.claim.detached


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that this process has taken."""

    table: int
    claim: Claim
    over: SeenClaim = SeenClaim()
    """What stood in its place."""

    @property
    def key(self) -> bytes:
        """Where it stands in the metastore."""
        return claim_prefix(self.table) + _HOLDER

    @property
    def value(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self.claim)

    @property
    def is_ours(self) -> Condition:
        """What every write of its run requires."""
        return value_is(self.key, self.value)


class Claims:
    """The claims of one database, as a process sees them, takes them and gives them back."""

    def __init__(self, session: HasBackend) -> None:
        self._session = session

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    # -- looking --------------------------------------------------------------------------------

    def all(self) -> dict[int, SeenClaim]:
        """Of all tables that have one."""
        found: dict[int, list[Entry]] = {}
        for entry in self._backend.range(CLAIM_PREFIX):
            found.setdefault(table_of(entry.key), []).append(entry)
        return {table: _seen(entries) for table, entries in found.items()}

    def of(self, table: int) -> SeenClaim:
        """Of one table."""
        return _seen(self._backend.range(claim_prefix(table)))

    # -- taking, and giving back ----------------------------------------------------------------

    def take(
        self, table: int, run: str, seen: SeenClaim, *, lease_ms: int, detached: bool
    ) -> HeldClaim | None:
        """Step 1; None if another process was quicker, or if its holder has renewed it, or if its
        run was asked to end since it was seen: this would remove the word unheard.
        """
        holder = f"{this_process()}:{secrets.token_hex(4)}"
        claim = Claim(run=run, holder=holder, lease_ms=lease_ms, detached=detached)
        held, prefix = HeldClaim(table, claim, seen), claim_prefix(table)
        operations: list[Operation] = [
            Put(prefix + _HOLDER, held.value),
            Put(prefix + _TURN, b"0"),
            Remove(prefix + _CANCEL),
        ]
        unchanged = _as_seen(table, seen)
        if not seen.cancelled:
            unchanged = (*unchanged, missing(prefix + _CANCEL))
        try:
            taken = self._backend.write(operations, condition=AllOf(unchanged))
        except OutcomeUnknown as unknown:
            # If it is applied later, it is a claim that no process renews: it ends with its lease.
            with looked_up(unknown):
                there = self.of(table).claim
            if there != claim:
                raise
            taken = True
        return held if taken else None

    def give_back(self, held: HeldClaim, *, left: Claim | None = None) -> None:
        """Step 3: it is over; or it is `left` to a run for a worker to make, or to go on with: to
        its own, or to the one that it was taken from. A word to end that run stays with it.
        """
        prefix = claim_prefix(held.table)
        operations: list[Operation] = [Remove(prefix + _TURN)]
        if left is None:
            operations.append(Remove(prefix + _HOLDER))
        else:
            waits = Claim(run=left.run, detached=left.detached)
            operations.append(Put(prefix + _HOLDER, msgspec.json.encode(waits)))
        if left is not None and left is held.over.claim and held.over.cancelled:
            operations.append(Put(prefix + _CANCEL, left.run.encode()))
        elif left is not held.claim:
            operations.append(Remove(prefix + _CANCEL))
        self._backend.write(operations, condition=held.is_ours)

    def forget(self, table: int, seen: SeenClaim) -> None:
        """Remove one whose run is over, or was never noted, if it still is what was seen."""
        prefix = claim_prefix(table)
        gone = [Remove(prefix + name) for name in (_HOLDER, _TURN, _CANCEL)]
        with contextlib.suppress(OutcomeUnknown):  # the next look finds it
            self._backend.write(gone, condition=AllOf(_as_seen(table, seen)))

    # -- while the run goes on ------------------------------------------------------------------

    @contextlib.contextmanager
    def renewed(
        self, held: HeldClaim, *, on_asked: Callable[[], None], on_lost: Callable[[str], None]
    ) -> Iterator[None]:
        """Step 2, on a thread, which calls back when the run is asked to end, or when another
        process has the claim: with its name.
        """
        over = threading.Event()

        def renew() -> None:
            turn = 0
            while not over.wait(held.claim.lease_ms / 1_000 / _RENEWALS):
                turn += 1
                with contextlib.suppress(LowmarkError):  # a node that is away may be back in time
                    ours = self.renew(held, turn)
                    now = self.of(held.table)
                    if ours and now.cancelled:
                        on_asked()  # again: what was about to begin before goes on now
                    if ours or over.is_set():
                        continue
                    by = now.claim.holder if now.claim is not None else ""
                    logger.warning("a claim was lost", extra={"run": held.claim.run, "to": by})
                    on_lost(by or "another process")
                    return

        thread = threading.Thread(target=renew, name="lowmark claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def renew(self, held: HeldClaim, turn: int) -> bool:
        """Have other processes see that it goes on; False if it is not ours any more."""
        put = Put(claim_prefix(held.table) + _TURN, b"%d" % turn)
        return self._backend.write([put], condition=held.is_ours)

    def ask_to_end(self, table: int, run: str) -> None:
        """Leave a word for the process that has the claim of this run; also if another one takes
        it over at this moment.
        """
        word = Put(claim_prefix(table) + _CANCEL, run.encode())
        while True:
            seen = self.of(table)
            if seen.claim is None or not seen.held or seen.claim.run != run:
                return
            unchanged = Revision(claim_prefix(table) + _HOLDER, Compare.EQ, seen.revision)
            if self._backend.write([word], condition=unchanged):
                return


class ClaimWatch:
    """Tells which claims may be taken: those without a holder, and those that this process itself
    has seen unchanged for the time of their lease.
    """

    def __init__(self, claims: Claims, clock: Callable[[], float]) -> None:
        self._claims = claims
        self._clock = clock
        self._since: dict[int, tuple[SeenClaim, float]] = {}
        """Claims that are held, and when this process first saw each as it is."""

    def look(self) -> tuple[dict[int, SeenClaim], set[int]]:
        """The claims that may be taken, by table; and the tables whose claims may not.

        From the end of one look to the beginning of another that finds the same, nothing has
        changed: the clock of this process says for how long. A look that fails ends that time:
        while no node answers, holders that live can't renew their claims either.
        """
        began_s = self._clock()
        before, self._since = self._since, {}
        found = self._claims.all()
        ended_s, free = self._clock(), dict[int, SeenClaim]()
        for table, seen in found.items():
            if seen.claim is None or not seen.held:
                free[table] = seen
                continue
            known, since_s = before.get(table, (None, ended_s))
            self._since[table] = seen, since_s if known == seen else ended_s
            if known == seen and began_s - since_s >= seen.claim.lease_ms / 1_000:
                free[table] = seen
        return free, set(self._since) - set(free)


def this_process() -> str:
    """This process as people know it: its machine and its number."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _as_seen(table: int, seen: SeenClaim) -> tuple[Condition, ...]:
    """That no process has taken the claim since it was seen, and its holder has not renewed it."""
    prefix = claim_prefix(table)
    return (
        Revision(prefix + _HOLDER, Compare.EQ, seen.revision),
        Revision(prefix + _TURN, Compare.EQ, seen.turn),
    )


def _seen(entries: tuple[Entry, ...] | list[Entry]) -> SeenClaim:
    """What the keys of one claim say."""
    found = {entry.key.rpartition(b".")[2]: entry for entry in entries}
    holder, turn = found.get(_HOLDER), found.get(_TURN)
    return SeenClaim(
        claim=None if holder is None else decode_record(holder.value, Claim),
        revision=0 if holder is None else holder.revision,
        turn=0 if turn is None else turn.revision,
        cancelled=_CANCEL in found,
    )
