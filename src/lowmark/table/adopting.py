"""Which ledger a partition has adopted, and what may follow it. Pure.

A ledger is the compacted form of a partition, in files outside: of each key the last row below the
horizon, and those deletes that a reader may not have got yet. A reader that has seen a key must get
its delete; so deletes go only below every hold. A hold that is earlier in the log always
wins: then the ledger is refused, and its run makes another one that keeps more.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowmark.errors import LowmarkError
from lowmark.holds import Hold, safe_point
from lowmark.table.commands import Adopt, is_text
from lowmark.table.errors import (
    CommandRefused,
    DeletesGone,
    DeletesHeld,
    LedgerConflict,
    LedgerOld,
)

DIGEST_BYTES = 16
MANIFEST_CHARACTERS_MAX = 256


class Adopted(msgspec.Struct, frozen=True, array_like=True):
    """The ledger that a partition is read from, together with its backlog."""

    epoch: int
    """Grows with every ledger that is adopted."""
    manifest: str
    """Its manifest's name."""
    horizon: int
    """It covers the offsets from 0 up to this one, and without it."""
    digest: bytes
    """Of its live rows."""
    deletes_below: int
    """Deletes below this offset may be gone from it."""
    time: int = 0
    """When it was adopted."""

    def is_same(self, wanted: Adopt) -> bool:
        """Whether this is what a command wants to have adopted."""
        return (self.epoch, self.manifest, self.horizon, self.digest, self.deletes_below) == (
            wanted.epoch,
            wanted.manifest,
            wanted.horizon,
            wanted.digest,
            wanted.deletes_below,
        )


def adopt(
    wanted: Adopt, *, there: Adopted | None, end: int, held: Iterable[Hold], time: int
) -> Adopted | LowmarkError:
    """The ledger that is adopted from now on, or why it is not; a repeat gets its first answer.

    `there` is the one so far, `end` the end of the backlog, and `held` are the holds on deletes.
    """
    if there is not None and there.is_same(wanted):
        return there
    refusal = _malformed(wanted) or _behind(wanted, there) or _out_of_place(wanted, there, end)
    if refusal is not None:
        return refusal
    if wanted.deletes_below > (0 if there is None else there.deletes_below):
        safe = safe_point(wanted.deletes_below, held)
        if safe.held_by:
            return DeletesHeld(safe.held_by[0], at=safe.position, wanted=safe.wanted)
    return Adopted(
        wanted.epoch,
        wanted.manifest,
        wanted.horizon,
        wanted.digest,
        wanted.deletes_below,
        time,
    )


def deletes_gone(offset: int, ledger: Adopted | None) -> LowmarkError | None:
    """Why no reader can begin at an offset to read compacted.

    At 0 any reader can: it has seen no key, so it needs no delete. It must
    then read from a view that is no older than its hold: an earlier ledger has keys of which a
    later one lacks the delete.
    """
    if ledger is None or not 0 < offset < ledger.deletes_below:
        return None
    return DeletesGone(wanted=offset, below=ledger.deletes_below)


def _malformed(wanted: Adopt) -> LowmarkError | None:
    """What is wrong with it wherever it is."""
    if not is_text(wanted.manifest, MANIFEST_CHARACTERS_MAX):
        return CommandRefused(
            f"{wanted.manifest[:40]!r} can't name a manifest",
            hint=f"Use 1 to {MANIFEST_CHARACTERS_MAX} printable characters.",
        )
    if len(wanted.digest) != DIGEST_BYTES:
        return CommandRefused(
            f"a digest of {len(wanted.digest)} bytes can't prove a ledger",
            hint=f"Give the {DIGEST_BYTES} bytes that its manifest has.",
        )
    if wanted.epoch < 0:
        return CommandRefused(f"there is no epoch {wanted.epoch}", hint="Count from 0.")
    if not 0 <= wanted.deletes_below <= wanted.horizon:
        return CommandRefused(
            f"a ledger up to offset {wanted.horizon} can't lack deletes up to"
            f" {wanted.deletes_below}",
            hint="Deletes go below an offset from 0 up to the horizon.",
        )
    return None


def _behind(wanted: Adopt, there: Adopted | None) -> LowmarkError | None:
    """Whether it is older than what is there, or contradicts it."""
    if there is None or wanted.epoch > there.epoch:
        return None
    if wanted.epoch < there.epoch:
        return LedgerOld(epoch=wanted.epoch, current=there.epoch)
    return LedgerConflict(epoch=wanted.epoch, there=there.manifest, wanted=wanted.manifest)


def _out_of_place(wanted: Adopt, there: Adopted | None, end: int) -> LowmarkError | None:
    """Whether it covers what it can't, or less than what is there."""
    if wanted.horizon > end:
        return CommandRefused(
            f"a ledger can't go up to offset {wanted.horizon}: the next one to be written is {end}",
            hint="Compact what is there.",
        )
    if there is None:
        return None
    if wanted.horizon < there.horizon:
        return CommandRefused(
            f"a ledger up to offset {wanted.horizon} can't follow one up to {there.horizon}",
            detail="What lies between them may be in no backlog any more.",
            hint="Start from the ledger that is adopted.",
        )
    if wanted.deletes_below < there.deletes_below:
        return CommandRefused(
            f"a ledger with deletes from offset {wanted.deletes_below} on can't follow one that"
            f" lacks those below {there.deletes_below}",
            detail="They do not come back.",
            hint="Start from the ledger that is adopted.",
        )
    return None
