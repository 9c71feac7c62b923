"""Compaction with one thing wrong, on purpose: what the lives of compacted tables must be able to
find.

Each mutant is a context manager; within it, every database that is opened has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from lowmark.backend import values as backend_values
from lowmark.backend.embedded import Embedded
from lowmark.backend.ledgers import OpenLedger
from lowmark.client import Reader
from lowmark.client.reading import PartitionReader
from lowmark.compaction import compactor as compactor_module
from lowmark.compaction import plan as planning
from lowmark.compaction import run as compacting
from lowmark.compaction import sweep as sweeping
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.publish import Publisher
from lowmark.compaction.records import Records
from lowmark.holds import Hold, SafePoint
from lowmark.ledger import OpenFile, PartitionPlan, Pointer
from lowmark.ledger import manifest as manifest_module
from lowmark.ledger import work as work_module
from lowmark.table import U64, Mask, State, Trim
from lowmark.table import state as state_module
from sim.mutants import replaced

__all__ = ["COMPACTION_MUTANTS"]


def compacts_one_row_too_many() -> AbstractContextManager[None]:
    """The first row that is later than the watermark, too."""
    original = planning.plan_partition

    def plan_partition(*given: Any, **more: Any) -> PartitionPlan:
        plan = original(*given, **more)
        if plan.state == "skipped" or not plan.too_young_rows:
            return plan
        return msgspec.structs.replace(plan, horizon=plan.horizon + 1, rows=plan.rows + 1)

    return replaced(compacting, "plan_partition", plan_partition)


def drops_deletes_that_older_rows_need() -> AbstractContextManager[None]:
    """Whoever reads the files without live sets finds the older row."""
    original = work_module._held

    def held(*given: Any) -> Mask:
        return original(*given) & False

    return replaced(work_module, "_held", held)


def nobody(*_: object, **__: object) -> Iterator[Hold]:
    """Who holds deletes."""
    return iter(())


@contextmanager
def drops_deletes_that_somebody_needs() -> Iterator[None]:
    """Both who plans and who adopts believe that nobody reads."""
    with (
        replaced(backend_values, "deletes_held", nobody),
        replaced(state_module, "deletes_held", nobody),
    ):
        yield


def forgets_who_came_while_it_worked() -> AbstractContextManager[None]:
    """The partition adopts a ledger that lacks deletes which a new reader holds."""
    return replaced(state_module, "deletes_held", nobody)


def ignores_that_a_ledger_is_refused() -> AbstractContextManager[None]:
    original = Publisher.adopt

    def adopt(self: Publisher, number: int, pointer: Pointer) -> bool:
        original(self, number, pointer)
        return True

    return replaced(Publisher, "adopt", adopt)


def takes_dead_rows_for_live_ones() -> AbstractContextManager[None]:
    def live(self: OpenLedger, at: int) -> Mask | None:
        del self, at
        return None

    return replaced(OpenLedger, "live", live)


def supersedes_rows_of_the_last_file_only() -> AbstractContextManager[None]:
    original = OpenLedger.superseded_by

    def superseded_by(self: OpenLedger, keys: pa.Array, hashes: U64) -> list[Mask | None]:
        masks = original(self, keys, hashes)
        return [*([None] * (len(masks) - 1)), *masks[-1:]]

    return replaced(OpenLedger, "superseded_by", superseded_by)


def cuts_what_a_cursor_holds() -> AbstractContextManager[None]:
    original = State.would_trim

    def would_trim(self: State, trim: Trim, time: int) -> SafePoint:
        cursors, self.cursors = self.cursors, {}
        safe = original(self, trim, time)
        self.cursors = cursors
        return safe

    return replaced(State, "would_trim", would_trim)


def sweeps_what_somebody_reads() -> AbstractContextManager[None]:
    def files_in_use(self: Embedded) -> frozenset[str]:
        del self
        return frozenset()

    return replaced(Embedded, "files_in_use", files_in_use)


def sweeps_what_a_run_has_written() -> AbstractContextManager[None]:
    original = sweeping.sweep

    def sweep(backend: Any, ledgers: Any, records: Records, *given: Any, **more: Any) -> list[str]:
        with replaced(records, "runs", lambda table: []):
            return original(backend, ledgers, records, *given, **more)

    return replaced(compactor_module, "sweep", sweep)


def publishes_whatever_was_published_meanwhile() -> AbstractContextManager[None]:
    original = Records.publish

    def publish(self: Records, table: int, partition: int, pointer: Pointer, **more: Any) -> bool:
        more["seen"] = self.pointer(table, partition)
        return original(self, table, partition, pointer, **more)

    return replaced(Records, "publish", publish)


def reads_a_row_below_the_horizon_again() -> AbstractContextManager[None]:
    """The ledger had it already; the backlog has it, too, as long as it is not cut."""
    original = Reader._from_ledger

    def from_ledger(self: Reader, part: PartitionReader, end: int) -> Iterator[pa.RecordBatch]:
        before = part.at
        yield from original(self, part, end)
        horizon = 0 if part.ledger is None else part.ledger.horizon
        if before < part.at == horizon and horizon > part.view.start:
            part.at -= 1

    return replaced(Reader, "_from_ledger", from_ledger)


def stays_with_an_older_ledger() -> AbstractContextManager[None]:
    """A reader that follows does not see that the backlog was cut while it read its ledger."""
    original = Reader._from_ledger

    def from_ledger(self: Reader, part: PartitionReader, end: int) -> Iterator[pa.RecordBatch]:
        newer = part.view.ledger
        yield from original(self, part, end)
        if part.ledger is not None and newer != part.ledger and part.at >= part.ledger.horizon:
            part.at = max(part.at, part.view.start)

    return replaced(Reader, "_from_ledger", from_ledger)


def reads_without_checking() -> AbstractContextManager[None]:
    def checked(self: OpenFile, number: int, names: list[str]) -> list[int]:
        del number
        return [leaf for name in names for leaf in self._leaves[name]]

    return replaced(OpenFile, "_checked", checked)


def trusts_any_manifest_with_a_valid_checksum() -> AbstractContextManager[None]:
    """Whatever ledger it is of."""

    def check_right(*_: object, **__: object) -> None:
        return None

    return replaced(manifest_module, "_check_right", check_right)


def leaves_the_leases_of_a_run_that_was_killed() -> AbstractContextManager[None]:
    def release_leases(self: Compactor, run: Any) -> None:
        del self, run

    return replaced(Compactor, "_release_leases", release_leases)


COMPACTION_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "compacts one row too many": compacts_one_row_too_many,
    "drops deletes that older rows need": drops_deletes_that_older_rows_need,
    "drops deletes that somebody needs": drops_deletes_that_somebody_needs,
    "forgets who came while it worked": forgets_who_came_while_it_worked,
    "ignores that a ledger is refused": ignores_that_a_ledger_is_refused,
    "takes dead rows for live ones": takes_dead_rows_for_live_ones,
    "supersedes rows of the last file only": supersedes_rows_of_the_last_file_only,
    "cuts what a cursor holds": cuts_what_a_cursor_holds,
    "sweeps what somebody reads": sweeps_what_somebody_reads,
    "sweeps what a run has written": sweeps_what_a_run_has_written,
    "publishes whatever was published meanwhile": publishes_whatever_was_published_meanwhile,
    "reads a row below the horizon again": reads_a_row_below_the_horizon_again,
    "stays with an older ledger": stays_with_an_older_ledger,
    "reads without checking": reads_without_checking,
    "trusts any manifest with a valid checksum": trusts_any_manifest_with_a_valid_checksum,
    "leaves the leases of a run that was killed": leaves_the_leases_of_a_run_that_was_killed,
}
