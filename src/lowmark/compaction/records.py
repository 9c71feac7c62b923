"""Pointers, retired ledgers and runs, as a caller's thread reads and writes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from lowmark.backend.errors import Cancelled, OutcomeUnknown, looked_up
from lowmark.backend.port import Backend, HasBackend
from lowmark.compaction.claims import HeldClaim
from lowmark.errors import Rejected
from lowmark.ledger import (
    Pointer,
    Retired,
    RunRecord,
    decode_record,
    parse_retired_key,
    pointer_key,
    pointer_prefix,
    retired_key,
    retired_prefix,
    run_key,
    run_prefix,
)
from lowmark.ledger.records import (
    CLAIM_PREFIX,
    POINTER_PREFIX,
    RUN_PREFIX,
    ledger_keys,
    table_of,
)
from lowmark.metastore import (
    AllOf,
    Compare,
    Condition,
    Operation,
    Put,
    Remove,
    Revision,
    missing,
    value_is,
)

_ATTEMPTS = 3
"""How often a write is made whose outcome is not known."""
_FINISHED_KEPT = 50
"""This many runs of a table are listed after they are over."""


@dataclass(frozen=True, slots=True)
class SeenPointer:
    """A pointer as it stood, and the revision that wrote it; 0: there is none."""

    pointer: Pointer | None
    revision: int

    @property
    def epoch(self) -> int:
        """Of the ledger that it names."""
        return self.pointer.epoch if self.pointer is not None else 0


class Records:
    """What the metastore says of ledgers."""

    def __init__(self, session: HasBackend) -> None:
        self._session = session
        self._noted: dict[bytes, bytes] = {}
        """What was noted last of each run that goes on here. What others noted meanwhile fails the
        condition of the next write: only then is it looked at.
        """
        self._claims: dict[int, HeldClaim] = {}
        """Of tables that are compacted here: what is written of them requires their claims."""

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    # -- claims ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def fenced(self, held: HeldClaim) -> Iterator[None]:
        """Meanwhile, nothing is noted of the table's runs, or published for them, unless the claim
        is still ours.
        """
        self._claims[held.table] = held
        try:
            yield
        finally:
            del self._claims[held.table]

    def _while_ours(self, table: int, condition: Condition) -> Condition:
        held = self._claims.get(table)
        return condition if held is None else AllOf((condition, held.is_ours))

    def is_ours(self, table: int) -> bool:
        """Whether this process still has the claim of a table that it compacts."""
        held = self._claims.get(table)
        if held is None:
            return True
        there = self._backend.get(held.key)
        return there is not None and there.value == held.value

    # -- pointers -------------------------------------------------------------------------------

    def pointer(self, table: int, partition: int) -> SeenPointer:
        """The ledger of a partition that was published last."""
        entry = self._backend.get(pointer_key(table, partition))
        if entry is None:
            return SeenPointer(None, 0)
        return SeenPointer(decode_record(entry.value, Pointer), entry.revision)

    def pointers(self, table: int) -> dict[int, Pointer]:
        """Of all partitions that have one."""
        return {
            int(entry.key.rpartition(b".")[2]): decode_record(entry.value, Pointer)
            for entry in self._backend.range(pointer_prefix(table))
        }

    def publish(
        self,
        table: int,
        partition: int,
        pointer: Pointer,
        *,
        seen: SeenPointer,
        now_ms: int,
        fenced: bool = False,
    ) -> bool:
        """Swap a pointer, if it still is what was seen; whether it is the new one now.

        `fenced`: and if its run was not given up, and no other process has the claim of the table.
        Another process may take a run for interrupted that goes on; once it has noted that, the
        files of the run may go at any moment, and nothing that names them may be published.

        An outcome that is not known is looked up: the pointer says whose it is. If it is another's,
        the write may still be applied, later; so it is made again, which can't be done twice. If
        nothing is known in the end, that is an error: the run keeps its files.
        """
        key = pointer_key(table, partition)
        unchanged: Condition
        unchanged = Revision(key, Compare.EQ, seen.revision) if seen.revision else missing(key)
        operations: list[Operation] = [Put(key, msgspec.json.encode(pointer))]
        if seen.pointer is not None:
            gone = Retired(manifest=seen.pointer.manifest, at_ms=now_ms, by=pointer.run)
            operations.append(
                Put(retired_key(table, partition, seen.epoch), msgspec.json.encode(gone))
            )
        if fenced:
            run = run_key(table, pointer.run)
            if (last := self._noted.get(run)) is not None:
                goes_on = self._while_ours(table, AllOf((unchanged, value_is(run, last))))
                try:
                    if self._backend.write(operations, condition=goes_on):
                        return True
                except OutcomeUnknown as unknown:
                    with looked_up(unknown):
                        if self.pointer(table, partition).pointer == pointer:
                            return True
            noted = self._backend.get(run)
            if noted is None or decode_record(noted.value, RunRecord).state == "cancelled":
                return False
            unchanged = AllOf((unchanged, Revision(noted.key, Compare.EQ, noted.revision)))
            unchanged = self._while_ours(table, unchanged)
        for attempt in range(_ATTEMPTS):
            try:
                if self._backend.write(operations, condition=unchanged):
                    return True
            except OutcomeUnknown as unknown:
                with looked_up(unknown):
                    if self.pointer(table, partition).pointer == pointer:
                        return True
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        return self.pointer(table, partition).pointer == pointer

    def retired(self, table: int) -> list[tuple[int, int, Retired]]:
        """Ledgers that were replaced and not removed yet: partition, epoch, and which."""
        return [
            (*parse_retired_key(entry.key), decode_record(entry.value, Retired))
            for entry in self._backend.range(retired_prefix(table))
        ]

    def forget_retired(self, table: int, partition: int, epoch: int) -> None:
        """Nothing is left of it."""
        self._remove([retired_key(table, partition, epoch)])

    # -- all of a table -------------------------------------------------------------------------

    def tables(self) -> set[int]:
        """The tables of which anything is known."""
        found = set()
        for prefix in (POINTER_PREFIX, RUN_PREFIX, CLAIM_PREFIX):
            found |= {table_of(entry.key) for entry in self._backend.range(prefix)}
        return found

    def forget_table(self, table: int) -> None:
        """Nothing is left of it."""
        with contextlib.suppress(OutcomeUnknown):  # removed or not: the next one finds it
            self._backend.write(ledger_keys(table))

    # -- runs -----------------------------------------------------------------------------------

    def put_run(self, record: RunRecord) -> None:
        """Note how far a run is, whatever was noted of it before."""
        key, value = run_key(record.table, record.run), msgspec.json.encode(record)
        held = self._claims.get(record.table)
        if not self._backend.write(
            [Put(key, value)], condition=None if held is None else held.is_ours
        ):
            raise Cancelled(f"another process compacts table {record.table_name} now")

    def note_run(self, record: RunRecord) -> bool:
        """Note how far the caller's own run is; False if another process has given it up, or has
        taken the claim of its table.

        An outcome that is not known is looked up, and the write is made again if it is not there:
        the leader of the metastore may have died with it, and the run goes on. Each write requires
        what was noted before it, so one that is applied late changes nothing any more.
        """
        key, value = run_key(record.table, record.run), msgspec.json.encode(record)
        last, unknown_left = self._noted.pop(key, None), _ATTEMPTS
        while True:
            unchanged = self._as_it_is(key) if last is None else value_is(key, last)
            if unchanged is None:
                return False
            try:
                ours = self._while_ours(record.table, unchanged)
                if self._backend.write([Put(key, value)], condition=ours):
                    break
            except OutcomeUnknown as unknown:
                with looked_up(unknown):
                    there = self._backend.get(key)
                if there is not None and there.value == value:
                    break
                unknown_left -= 1
                if not unknown_left:
                    raise
                continue
            if not self.is_ours(record.table):
                return False
            last = None  # another process has noted something
        if record.state == "running":
            self._noted[key] = value
        return True

    def _as_it_is(self, key: bytes) -> Condition | None:
        """That the note of a run stays as it is now; None if the run was given up."""
        noted = self._backend.get(key)
        if noted is None:
            return missing(key)
        if decode_record(noted.value, RunRecord).state == "cancelled":
            return None
        return Revision(key, Compare.EQ, noted.revision)

    def run(self, table: int, run: str) -> RunRecord:
        """A run by its name."""
        found = self.find_run(table, run)
        if found is None:
            raise Rejected(f"there is no run {run}", hint="`lowmark runs` lists them.")
        return found

    def find_run(self, table: int, run: str) -> RunRecord | None:
        """A run by its name; None if nothing is noted of it."""
        entry = self._backend.get(run_key(table, run))
        return None if entry is None else decode_record(entry.value, RunRecord)

    def runs(self, table: int | None = None) -> list[RunRecord]:
        """All runs that are known, of one table or of all; the newest first."""
        prefix = RUN_PREFIX if table is None else run_prefix(table)
        found = [decode_record(entry.value, RunRecord) for entry in self._backend.range(prefix)]
        return sorted(found, key=lambda one: (one.began_at_ms, one.run), reverse=True)

    def forget_old_runs(self, table: int) -> None:
        """Keep the last ones that are over."""
        over = [one for one in self.runs(table) if one.state not in {"planned", "running"}]
        self._remove([run_key(table, one.run) for one in over[_FINISHED_KEPT:]])

    def _remove(self, keys: Iterable[bytes]) -> None:
        operations = tuple(Remove(key) for key in keys)
        if operations:
            with contextlib.suppress(OutcomeUnknown):  # removed or not: the next one finds it
                self._backend.write(operations)
