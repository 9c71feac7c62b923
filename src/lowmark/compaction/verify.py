"""Whether the ledgers of a table are as they were written: those that partitions have adopted, and
those that were published for them and are not adopted yet.

What the check reads stays: no sweep removes its files until the check is done.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Self

from lowmark.backend.values import Hold, PartitionStatus, ReadRange
from lowmark.compaction.context import Progress, RunContext
from lowmark.compaction.records import SeenPointer
from lowmark.errors import LowmarkError
from lowmark.ledger import Expected, Lost, Problem, Verified, read_manifest, verify_ledger
from lowmark.runtime.store import Store
from lowmark.table import Adopted, View


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerVerdict:
    """The ledger of one partition, after all of it was read."""

    partition: int
    epoch: int | None
    """Of the ledger that the partition has adopted; None: it has none."""
    horizon: int = 0
    manifest: str = ""
    """As other programs open it."""
    files: int = 0
    rows: int = 0
    live_rows: int = 0
    bytes: int = 0
    lost: tuple[Lost, ...] = ()
    """What it is known to lack, since it was rebuilt without it."""
    problems: tuple[Problem, ...] = ()
    """What is not as it was written, of it and of one that was published and is not adopted."""

    @property
    def sound(self) -> bool:
        """Whether all is as it was written."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Looked:
    """A partition at one moment, and its ledgers."""

    view: View
    seen: SeenPointer
    adopted: Verified | None
    ahead: Verified | None
    """What was published after what is adopted."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Of both."""
        return tuple(
            one
            for found in (self.adopted, self.ahead)
            if found is not None
            for one in found.problems
        )


class Inspector:
    """Reads ledgers of one table, each once. Use it by `with`: what it reads stays for as long."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._backend = context.backend
        self._store = context.store
        self._table = context.table
        self._partitions = context.partitions
        self._progress = context.options.progress
        self._found: dict[str, Verified] = {}
        self._holds: list[Hold] = []
        self._read = self._total = self._ready = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._holds:
            self._backend.release(self._holds.pop())

    def look_at_all(self) -> dict[int, Looked]:
        """Every partition, in the order of their numbers."""
        for number in self._partitions:
            ledger = self._backend.view(self._table.id, number).ledger
            if ledger is not None:
                self._total += self._size_of(ledger.manifest)
        found = {}
        for number in sorted(self._partitions):
            found[number] = self.look(number)
            self._ready += 1
            self._tell(0)
        return found

    def look(self, number: int) -> Looked:
        """One partition, as it is now."""
        seen = self._context.records.pointer(self._table.id, number)
        view = self._held(number).view
        adopted, pointer = view.ledger, seen.pointer
        ahead = None
        if pointer is not None and pointer.epoch > (adopted.epoch if adopted is not None else -1):
            said = Expected.published(self._table.id, number, pointer)
            ahead = self.verify(pointer.manifest, said)
        return Looked(view, seen, self._adopted(number, adopted), ahead)

    def _held(self, number: int) -> PartitionStatus:
        """A partition, whose ledger's files stay from then on."""
        held = self._backend.hold(
            self._table.id,
            {number: ReadRange(0, 0, ledger="beside")},
            holder="verify",
            why="its ledger is verified",
        )
        self._holds.append(held.hold)
        status = held.partitions[number]
        if status.stopped is not None:
            raise status.stopped.again()
        return status

    def _adopted(self, number: int, adopted: Adopted | None) -> Verified | None:
        if adopted is None:
            return None
        said = Expected.adopted(self._table.id, number, adopted)
        return self.verify(adopted.manifest, said)

    def verify(self, manifest: str, expected: Expected | None = None) -> Verified:
        """Read all of a ledger, if that was not done yet."""
        if manifest not in self._found:
            self._holds.append(self._backend.hold_files([manifest]))
            self._found[manifest] = verify_ledger(
                self._store, manifest, self._table, expected=expected, pace=self._tell
            )
        return self._found[manifest]

    def _size_of(self, manifest: str) -> int:
        with contextlib.suppress(LowmarkError):  # it is found soon
            return read_manifest(self._store, manifest).bytes
        return 0

    def _tell(self, count: int) -> None:
        self._read += count
        if self._progress is not None:
            total = max(self._total, self._read)
            partitions = len(self._partitions)
            self._progress(Progress("verifying", self._read, total, self._ready, partitions))


def verify_ledgers(context: RunContext) -> list[LedgerVerdict]:
    """Read all ledgers of some partitions; gives what is wrong with each."""
    with Inspector(context) as inspector:
        found = inspector.look_at_all()
    return [_verdict(number, one, context.store) for number, one in found.items()]


def _verdict(number: int, looked: Looked, store: Store) -> LedgerVerdict:
    adopted = looked.view.ledger
    shown = looked.adopted if looked.adopted is not None else looked.ahead
    manifest = shown.manifest if shown is not None else None
    return LedgerVerdict(
        partition=number,
        epoch=None if adopted is None else adopted.epoch,
        horizon=0 if adopted is None else adopted.horizon,
        manifest="" if shown is None else store.url(shown.path),
        files=0 if manifest is None else len(manifest.files),
        rows=0 if manifest is None else manifest.rows,
        live_rows=0 if manifest is None else manifest.live_rows,
        bytes=0 if manifest is None else manifest.bytes,
        lost=() if manifest is None else manifest.lost,
        problems=looked.problems,
    )
