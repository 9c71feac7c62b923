"""Rebuild ledgers that are missing or damaged, from whatever still has their rows.

Sources, in this order; the first that will do is taken:

    published   a newer ledger was published and is sound: it only has to be adopted
    adopted     what is adopted is sound, and only what was published after it is not
    keys        the rows are sound: indexes of keys are made again from them
    backlog     the backlog begins at offset 0: it is folded again
    retired     a ledger that was replaced is whole, and goes up to the backlog: on from there
    files       the manifest is gone, and the files beside it come to the digest that was adopted
    salvage     what is sound of the ledger is kept, and the backlog is folded again from its start.
                What lies below that and is in no sound file is lost

Steps, and what is true after each. They are those of a run of compaction (see `run`), with
another base.

    1. every ledger is read, and a source chosen. If rows would be lost and that was not accepted,
       this is all: nothing is changed
    2. the run is noted; a lease holds the backlog that is folded again
    3. what is salvaged is put into files with the run's name. No manifest refers to them
    4. the work is carried out, and proven: a whole new ledger is there
    5. the pointer is swapped. Readers still get the error that names the damage
    6. the partition adopts it: from here on every reader gets the right rows
    7. the run is noted as done, and files that nothing names go

A crash before 5 leaves files that the next call gives up and sweeps; one between 5 and 6 leaves a
sound ledger that was published, and the next call has it adopted. The epoch is above all that was
ever published or adopted, so a metastore that is behind does no harm here.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from lowmark.backend.errors import RowsUnrecoverable
from lowmark.catalog import Table
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import RunContext, RunOptions
from lowmark.compaction.plan import PlanInput, plan_input
from lowmark.compaction.records import SeenPointer
from lowmark.compaction.run import Run
from lowmark.compaction.runner import LocalRunner, Runner
from lowmark.compaction.verify import Inspector, Looked
from lowmark.errors import Conflict
from lowmark.formatting import counted
from lowmark.ledger import (
    REBUILD,
    Expected,
    LedgerDamaged,
    LedgerLost,
    Lost,
    PartitionPlan,
    Pointer,
    Problem,
    RunRecord,
    Salvage,
    Verified,
    Work,
    lacks_needed_deletes,
    read_adopted,
    read_manifest,
    recover_ledger,
)
from lowmark.runtime.store import Store
from lowmark.table import Adopted, View

Source = Literal[
    "none", "sound", "published", "adopted", "keys", "backlog", "retired", "files", "salvage"
]
"""What a ledger is made from; `none` and `sound` ones are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What became, or would become, of the ledger of one partition."""

    partition: int
    source: Source
    problems: tuple[Problem, ...] = ()
    """What was wrong with it."""
    base: str = ""
    """The older ledger that it is based on."""
    low: int = 0
    """From this offset on the backlog is folded again."""
    horizon: int = 0
    lost: tuple[Lost, ...] = ()
    """What it lacks that the one before had."""
    epoch: int = 0
    """Its own; 0 if it has none."""
    manifest: str = ""
    live_rows: int | None = None
    same: bool | None = None
    """Whether its live rows have the digest of those before; deletes that all readers have passed
    may be gone. None: it was not made."""

    @property
    def done(self) -> bool:
        """Whether there was anything to do."""
        return self.source not in {"none", "sound"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remedy:
    """What is to be done about one partition."""

    source: Source
    looked: Looked
    low: int = 0
    horizon: int = 0
    base: Verified | None = None
    """The ledger that it is based on, as it is, or as much of it as is sound."""
    lost: tuple[Lost, ...] = ()

    @property
    def adopted(self) -> Adopted | None:
        return self.looked.view.ledger

    def is_of(self, view: View) -> bool:
        """Whether the partition still is as it was when this was found."""
        was = self.looked.view
        return (was.start, was.ledger) == (view.start, view.ledger)


def rebuild_ledgers(
    compactor: Compactor,
    table: Table,
    partitions: Collection[int],
    options: RunOptions,
    *,
    dry_run: bool,
    accept_loss: bool,
) -> list[Rebuilt]:
    """Rebuild what is not sound; gives what became of each partition."""
    context = compactor.context(table, partitions, options)
    run = _Rebuild(compactor, context, accept_loss=accept_loss)
    if dry_run:
        with run.inspector:
            run.choose_all()
        return run.outcome()
    with compactor.only(run):
        with run.inspector:
            run.choose_all()
            run.rebuild()
        run.tidy()
    return run.outcome()


class _Rebuild(Run):
    """A run whose ledgers begin with what is left."""

    def __init__(self, compactor: Compactor, context: RunContext, *, accept_loss: bool) -> None:
        super().__init__(context, sweep=compactor.sweep)
        self._give_up_others = compactor.give_up_others
        self._accept_loss = accept_loss
        self._remedies: dict[int, _Remedy] = {}
        self._made = self._untidy = False
        self.inspector = Inspector(context)

    # -- choosing -------------------------------------------------------------------------------

    def choose_all(self) -> None:
        """Step 1: read everything, and find a source for each that is not sound."""
        looked = self.inspector.look_at_all()
        self._remedies = {number: self._remedy(number, one) for number, one in looked.items()}

    def _remedy(self, number: int, looked: Looked, *, adopt_published: bool = True) -> _Remedy:
        if looked.adopted is None and looked.ahead is None:
            return _Remedy(source="none", looked=looked)
        if not looked.problems:
            return _Remedy(source="sound", looked=looked)
        found, ahead, view = looked.adopted, looked.ahead, looked.view
        goal = _goal(looked)
        if found is None:  # everything that is read is in the backlog
            return _Remedy(source="backlog", looked=looked, low=view.start, horizon=goal)
        if found.sound:
            return _Remedy(source="adopted", looked=looked, low=goal, horizon=goal, base=found)
        if adopt_published and ahead is not None and ahead.sound:
            return _Remedy(source="published", looked=looked, horizon=goal, base=ahead)
        if found.manifest is not None and found.rows_sound:
            return _Remedy(source="keys", looked=looked, low=goal, horizon=goal, base=found)
        if view.start == 0:
            return _Remedy(source="backlog", looked=looked, low=0, horizon=goal)
        return self._from_older(number, looked, goal)

    def _from_older(self, number: int, looked: Looked, goal: int) -> _Remedy:
        """The backlog was cut: another ledger is needed for what lies before it."""
        found, view = looked.adopted, looked.view
        assert found is not None
        floor = min(view.start, goal)
        older = None
        for one in self._whole_ones(number, looked):
            assert one.manifest is not None
            horizon = one.manifest.horizon
            if horizon >= floor:
                goal = max(goal, horizon)
                return _Remedy(source="retired", looked=looked, low=horizon, horizon=goal, base=one)
            older = older or one
        recovered = self._recovered(number, looked)
        if recovered is not None:
            return _Remedy(source="files", looked=looked, low=goal, horizon=goal, base=recovered)
        if found.manifest is not None:
            bad = [lost for file in found.files for lost in file.bad]
            again = any(one.last >= floor for one in bad)
            lost = [_below(one, floor) for one in bad if one.first < floor]
            low = floor if again else goal
            base: Verified | None = found
        else:
            # It is not known what it had. What an older one has may have been replaced since then.
            base, low = older, floor
            first = older.manifest.horizon if older is not None and older.manifest else 0
            rows = self._rows_noted(looked)
            lost = [Lost(first=first, last=floor - 1, rows=rows, stale=older is not None)]
        return _Remedy(
            source="salvage", looked=looked, low=low, horizon=goal, base=base, lost=tuple(lost)
        )

    def _recovered(self, number: int, looked: Looked) -> Verified | None:
        """What the adopted ledger was, if only its manifest is gone."""
        adopted, found = looked.view.ledger, looked.adopted
        assert adopted is not None
        if found is None or found.manifest is not None:
            return None
        return recover_ledger(
            self._store,
            self.table,
            adopted.manifest,
            partition=number,
            expected=Expected.adopted(self.table.id, number, adopted),
            deletes_below=adopted.deletes_below,
            pace=lambda _: self.context.token.check(),
        )

    def _whole_ones(self, number: int, looked: Looked) -> Iterator[Verified]:
        """Older ledgers that are sound and lack no delete that the adopted one has, the newest
        first.
        """
        adopted, pointer = looked.view.ledger, looked.seen.pointer
        assert adopted is not None
        names = {
            epoch: one.manifest
            for partition, epoch, one in self._records.retired(self.table.id)
            if partition == number
        }
        if pointer is not None and pointer.epoch <= adopted.epoch:
            names[pointer.epoch] = pointer.manifest  # of a metastore that is behind
        for epoch in sorted(names, reverse=True):
            if names[epoch] == adopted.manifest:
                continue
            one = self.inspector.verify(names[epoch])
            manifest = one.manifest
            if one.sound and manifest is not None and manifest.horizon <= looked.view.end:
                gone = adopted.deletes_below  # what readers have passed for certain
                if not lacks_needed_deletes(manifest.deletes_below, passed=gone):
                    yield one

    def _rows_noted(self, looked: Looked) -> int | None:
        """How many rows and deletes a ledger had, as the run has noted that has made it."""
        adopted = looked.view.ledger
        for record in self._records.runs(self.table.id):
            for plan in record.partitions:
                if adopted is not None and plan.manifest == adopted.manifest:
                    return plan.rows_live + plan.deletes
        return None

    def _check_loss(self) -> None:
        """Refuse to leave rows out, unless that was accepted."""
        losing = {number: one for number, one in self._remedies.items() if one.lost}
        if not losing or self._accept_loss:
            return
        raise RowsUnrecoverable(
            self.table.name,
            lost=[
                f"partition {number} would lose {_lost_words(lost)}"
                for number, one in losing.items()
                for lost in one.lost
            ],
            files=[problem.path for one in losing.values() for problem in one.looked.problems],
        )

    # -- the run --------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Steps 2 to 7, if there is anything to do."""
        self._check_loss()
        record = RunRecord(
            run=self.name,
            table=self.table.id,
            table_name=self.table.name,
            state="planned",
            trigger=REBUILD,
            began_at_ms=self.context.now_ms(),
            watermark=self._watermark(),
            trim=False,
            engine=self._options.engine,
            where=self._options.where,
            partitions=tuple(_plan(number, one) for number, one in self._remedies.items()),
        )
        given_up = self._give_up_others(record, trigger=REBUILD)
        self._untidy = given_up
        if all(one.state == "skipped" for one in record.partitions):
            return
        self._made = self._untidy = True
        try:
            self.go(record, LocalRunner)
        except (LedgerLost, LedgerDamaged):
            # If all is done, the sweep has met a ledger that this call does not rebuild.
            if self._records.run(self.table.id, self.name).state != "done":
                raise

    def tidy(self) -> None:
        """What the damaged ledgers had goes, now that the check reads them no more."""
        if self._untidy:
            with contextlib.suppress(LedgerLost, LedgerDamaged):  # as above
                self._sweep(self.table)

    def _plan_input(self, number: int, watermark: int, *, dry: bool = False) -> PlanInput:
        """Where a partition stands, whatever the metastore says; no more deletes go than went."""
        del dry
        seen = self._records.pointer(self.table.id, number)
        given = plan_input(
            self._backend, self.table, number, seen, watermark=watermark, compare=False
        )
        return replace(given, deletes_below=given.deletes_gone)

    def _round(
        self, record: RunRecord, todo: Sequence[PartitionPlan], runner: Callable[[], Runner]
    ) -> RunRecord:
        works: dict[int, tuple[Work, PlanInput]] = {}
        for plan in todo:
            number = plan.partition
            given = self._plan_input(number, record.watermark)
            if not self._remedies[number].is_of(given.view):
                self._remedies[number] = self._remedy(number, self.inspector.look(number))
                self._check_loss()
            if self._remedies[number].source == "published":
                if self._adopted_published(number):
                    done = msgspec.structs.replace(plan, state="adopted")
                    record = record.with_partition(done)
                    continue
                looked = self._remedies[number].looked
                self._remedies[number] = self._remedy(number, looked, adopt_published=False)
                self._check_loss()
            remedy = self._remedies[number]
            fresh = _plan(number, remedy)
            if fresh.state != "skipped":
                self.context.step(f"salvage partition {number}")
                fresh = msgspec.structs.replace(fresh, base=self._base(number, remedy))
                works[number] = self._work(fresh, given, remedy), given
            record = record.with_partition(fresh)
        return self._worked_off(record, works, {}, runner)

    def _adopted_published(self, number: int) -> bool:
        pointer = self._remedies[number].looked.seen.pointer
        assert pointer is not None
        self.context.step(f"adopt partition {number}")
        return self._publisher.adopt(number, pointer)

    def _base(self, number: int, remedy: _Remedy) -> str:
        """Step 3: the manifest that the work begins with; empty: with nothing."""
        one = remedy.base
        if remedy.source not in {"keys", "files", "salvage"}:
            return "" if one is None else one.path
        before = None if one is None else one.manifest
        known = () if before is None else before.lost
        salvage = Salvage(
            self._store,
            self.table,
            partition=number,
            token=f"{self.name}-{secrets.token_hex(4)}",
            pace=lambda _: self.context.token.check(),
        )
        return salvage.base(
            before,
            () if one is None else one.files,
            horizon=remedy.low,
            lost=(*known, *remedy.lost),
            made_by=self.name,
        )

    def _work(self, plan: PartitionPlan, given: PlanInput, remedy: _Remedy) -> Work:
        work = self._prepared(plan, given)
        schemas: tuple[int, ...] = ()
        base_is, base_bytes = work.base_is, 0
        if plan.base:
            base = read_manifest(self._store, plan.base, base_is)
            schemas, base_is, base_bytes = base.schemas, Expected.of(base), base.bytes
        return msgspec.structs.replace(
            work,
            base_is=base_is,
            base_bytes=base_bytes,
            schema=max(work.schema, *schemas, 0),
            deletes_gone=given.deletes_gone,
            # Of a key whose last row is lost, no older one may stay, for the same reason for which
            # a delete may not go then (see `ledger.rule`). Nor may one in files that were found
            # again: older ones among them have rows whose deletes are gone.
            rewrite=bool(remedy.lost) or remedy.source == "files",
        )

    # -- telling --------------------------------------------------------------------------------

    def outcome(self) -> list[Rebuilt]:
        """What became of each partition, or would."""
        return [self._rebuilt(number, one) for number, one in self._remedies.items()]

    def _rebuilt(self, number: int, remedy: _Remedy) -> Rebuilt:
        before, now = remedy.adopted, self._backend.view(self.table.id, number).ledger
        url = self._store.url
        based = remedy.base is not None and remedy.source != "published"
        plain = remedy.source in {"none", "sound"}
        one = Rebuilt(
            partition=number,
            source=remedy.source,
            problems=remedy.looked.problems,
            base=url(remedy.base.path) if based and remedy.base is not None else "",
            low=remedy.low,
            horizon=remedy.horizon,
            lost=remedy.lost,
        )
        if plain or not self._made:
            shown = before if plain else None
            return replace(
                one,
                epoch=0 if shown is None else shown.epoch,
                manifest="" if shown is None else url(shown.manifest),
                horizon=one.horizon if shown is None else shown.horizon,
            )
        if now is None or now == before:
            return one
        return replace(
            one,
            epoch=now.epoch,
            manifest=url(now.manifest),
            horizon=now.horizon,
            live_rows=read_adopted(self._store, now).live_rows,
            same=before is not None and before.digest == now.digest,
        )


def _goal(looked: Looked) -> int:
    """Up to where the new ledger goes: as far as what it replaces."""
    view, pointer = looked.view, looked.seen.pointer
    if view.ledger is not None:
        return view.ledger.horizon
    assert pointer is not None
    return max(view.start, min(pointer.horizon, view.end))


def _plan(number: int, remedy: _Remedy) -> PartitionPlan:
    view, adopted = remedy.looked.view, remedy.adopted
    if remedy.source in {"none", "sound"}:
        why = "it has no ledger" if remedy.source == "none" else "its ledger is sound"
        return PartitionPlan(partition=number, state="skipped", why=why)
    low, horizon = remedy.low, remedy.horizon
    folds = horizon > low and remedy.source != "published"
    return PartitionPlan(
        partition=number,
        base_epoch=adopted.epoch if adopted is not None else 0,
        lineage=view.lineage,
        low=low,
        horizon=horizon,
        rows=horizon - low if folds else 0,
        bytes=view.bytes_from(low) - view.bytes_from(horizon) if folds else 0,
    )


def _below(lost: Lost, floor: int) -> Lost:
    return msgspec.structs.replace(lost, last=min(lost.last, floor - 1))


def _lost_words(lost: Lost) -> str:
    rows = (
        "an unknown number of rows" if lost.rows is None else f"up to {counted(lost.rows, 'row')}"
    )
    return f"{rows} at offsets {lost.first} to {lost.last}"


# A metastore that is older than the partitions, such as a restored backup: its pointers are set
# to what the partitions have adopted.
#
# A partition's own word counts: it is in its log, and reads go by it. Everything is looked at
# before anything is written; each pointer is one conditional write, so a run that publishes
# meanwhile wins, and a call that was interrupted is made again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What was found of one partition, and what was done about it."""

    partition: int
    state: Literal["same", "ahead", "none", "changed"]
    """`ahead`: what was published is newer, and is adopted by the next run, as it should be."""
    adopted: Adopted | None
    before: Pointer | None
    """What the metastore had."""
    after: Pointer | None
    """What it has now."""


def reconcile_ledgers(context: RunContext) -> list[Reconciled]:
    """Set pointers that are behind what partitions have adopted, or contradict it."""
    table = context.table.id
    found: dict[int, tuple[Adopted | None, SeenPointer, Pointer | None]] = {}
    for number in sorted(context.partitions):
        view = context.backend.views(table, [number])[number]
        adopted = view.ledger
        # Looked up after that: what it has adopted was published before, if all is well.
        seen = context.records.pointer(table, number)
        wrong = adopted is not None and not _follows(adopted, seen)
        found[number] = adopted, seen, None
        if wrong and adopted is not None:
            said = Expected.adopted(table, number, adopted)
            found[number] = adopted, seen, _pointer(context.store, adopted, said, view.lineage)
    return [_reconciled(context, number, *one) for number, one in found.items()]


def _follows(adopted: Adopted, seen: SeenPointer) -> bool:
    """Whether what was published is what was adopted, or newer."""
    if seen.pointer is None or seen.epoch < adopted.epoch:
        return False
    return seen.epoch > adopted.epoch or seen.pointer.manifest == adopted.manifest


def _pointer(store: Store, adopted: Adopted, said: Expected, lineage: int) -> Pointer:
    """What a partition has adopted, as it was published; raises if its manifest can't be read."""
    manifest = read_manifest(store, adopted.manifest, said)
    return Pointer(
        manifest=adopted.manifest,
        horizon=adopted.horizon,
        epoch=adopted.epoch,
        digest=base64.b64encode(adopted.digest).decode(),
        deletes_below=adopted.deletes_below,
        run=manifest.made_by,
        lineage=lineage,
    )


def _reconciled(
    context: RunContext,
    number: int,
    adopted: Adopted | None,
    seen: SeenPointer,
    wanted: Pointer | None,
) -> Reconciled:
    before = seen.pointer
    if wanted is not None:
        table, now_ms = context.table, context.now_ms()
        if not context.records.publish(table.id, number, wanted, seen=seen, now_ms=now_ms):
            raise Conflict(
                f"the pointer of partition {number} of table {table.name} has changed meanwhile",
                hint="Run it again.",
            )
        return Reconciled(
            partition=number, state="changed", adopted=adopted, before=before, after=wanted
        )
    state: Literal["same", "ahead", "none"] = "same"
    if before is None:
        state = "none"
    elif adopted is None or before.epoch > adopted.epoch:
        state = "ahead"
    return Reconciled(partition=number, state=state, adopted=adopted, before=before, after=before)
