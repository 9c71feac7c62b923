"""A run of compaction: plan, work, publish, adopt, trim, retire.

Steps, and what is true after each. A crash anywhere leaves what the last finished step left;
`resume` goes on from there, and the sweep removes what nothing names.

    1. the run is noted in the metastore: its name is in every file that it writes, so no sweep
       removes them while it can be resumed
    2. a lease in each partition holds the backlog that is going to be read
    3. the work is carried out, somewhere. Each finished partition has written its files, its
       manifest, and an answer that says so: it is not done again
    4. the pointer is swapped, if it still is what the plan saw, and the ledger before is noted as
       retired. No reader reads the new one yet
    5. the partition adopts it: from here on it is read. If a reader has come meanwhile that needs
       deletes that it lacks, it is refused, and the partition is planned anew; the pointer is ahead
       then, which is no harm: reads go by what was adopted
    6. the backlog is cut up to the horizon, as far as no reader holds it
    7. the lease is given back, the run noted as done, and what was retired goes when no reader
       reads it. Schema versions that nothing needs any more are forgotten (`schemas`)

A run may be overtaken: by one that has taken it for dead and given it up, or by one of a release
that knows no claims. Its files may go then, and those of the ledger that it began with; no row goes
with them, and nothing that names them can be published (see `sweep`). So what fails because of it,
a file that is missing, a backlog that was cut, or an older ledger that is refused, is no damage:
the partition is noted as overtaken, or the run ends as given up.

With many partitions, steps 2 and 4 to 6 are made for several of them at once, wave by wave, and the
run is noted after each wave. Each partition still goes through its own steps in this order, so a
crash within a wave leaves some of them further than others, as a crash between two partitions does:
what a partition has adopted says more than the note.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from lowmark.backend.errors import Cancelled, PlanOutdated
from lowmark.catalog import Table
from lowmark.catalog.errors import VersionCompacted
from lowmark.compaction.claims import this_process
from lowmark.compaction.context import Progress, RunContext
from lowmark.compaction.holds import RunHolds
from lowmark.compaction.plan import PlanInput, catalog_then, plan_input, plan_partition, waiting
from lowmark.compaction.publish import Publisher
from lowmark.compaction.records import SeenPointer
from lowmark.compaction.runner import Runner, together
from lowmark.compaction.schemas import trim_schemas
from lowmark.compaction.work import carried_out, work_for
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected
from lowmark.formatting import by_text
from lowmark.ledger import (
    Done,
    Expected,
    LedgerLost,
    NothingLike,
    PartitionPlan,
    RunRecord,
    Work,
    done_path,
    progress_path,
    read_manifest,
    run_folder,
)
from lowmark.runtime import DiskFull, FileMissing
from lowmark.runtime.store import Store
from lowmark.table import LedgerOld, OffsetExpired

logger = logging.getLogger(__name__)

# Looks after a run while it works, on a thread: renews what it holds, tells how far it is, and
# looks whether another process asks it to end, by a file in the run's folder (see `context`).
#
# Progress comes from the files that tasks leave in the same folder, wherever they run.

_RENEW_S = 60.0
_LOOK_S, _LOOK_ELSEWHERE_S = 0.25, 2.0
"""How often a run is looked after: each look is a request to the store."""


class RunWatch:
    """Looks after one run."""

    def __init__(self, context: RunContext, renew: Callable[[], None]) -> None:
        self._store = context.store
        self._wanted = context.options.progress
        self._token = context.token
        self._renew = renew
        self._told: Progress | None = None
        self.spoilt: Exception | None = None
        """What the caller's function for progress has raised."""

    @contextlib.contextmanager
    def over(self, record: RunRecord) -> Iterator[None]:
        """Meanwhile the run is looked after."""
        ended = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(record, ended), name=f"lowmark {record.run}", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def tell_whole(self, record: RunRecord) -> None:
        """Say that all of a plan is done."""
        self._tell(_whole(record))

    def _watch(self, record: RunRecord, ended: threading.Event) -> None:
        store, renewed_s = self._store, time.monotonic()
        folder = run_folder(record.table, record.run)
        with contextlib.suppress(LowmarkError):
            # So that a process that has no more than the files can tell that it goes on, and ask
            # it to end. A word from before it was resumed is not meant for it.
            store.delete(f"{folder}/cancel")
            store.hint(f"{folder}/begun", b"")
        while not ended.wait(_LOOK_S if store.local else _LOOK_ELSEWHERE_S):
            with contextlib.suppress(LowmarkError):
                if self._token.cancelled or store.stat(f"{folder}/cancel") is not None:
                    self._token.cancel()  # again: what was about to begin before goes on now
                if time.monotonic() - renewed_s > _RENEW_S:
                    renewed_s = time.monotonic()
                    self._renew()
                if self._wanted is not None:
                    try:
                        self._tell(_progress(store, record))
                    except Exception as error:
                        # The caller's own: it ends the run, and comes out where the caller waits.
                        self.spoilt = error
                        self._token.cancel()
                        return

    def _tell(self, now: Progress) -> None:
        """Say how far it is; never less than before, though a task may begin anew."""
        if self._wanted is None:
            return
        if self._told is not None:
            now = replace(
                now,
                bytes_done=max(now.bytes_done, self._told.bytes_done),
                partitions_done=max(now.partitions_done, self._told.partitions_done),
            )
        self._told = now
        self._wanted(now)


def _progress(store: Store, record: RunRecord) -> Progress:
    """How far a run is, by the files in its folder."""
    done, ready, whole = 0, 0, _whole(record)
    there = {one.path for one in store.files(run_folder(record.table, record.run))}
    for plan in _not_skipped(record):
        if done_path(record.table, record.run, plan.partition) in there:
            done, ready = done + plan.bytes, ready + 1
            continue
        path = progress_path(record.table, record.run, plan.partition)
        if path in there:
            with contextlib.suppress(LowmarkError, ValueError):
                # It reads everything twice: once for the keys, once for the rows.
                done += min(int(store.read(path)) // 2, plan.bytes)
    return replace(
        whole,
        step="compacting",
        bytes_done=min(done, whole.bytes_total),
        partitions_done=ready,
    )


def _whole(record: RunRecord) -> Progress:
    """Of a run that has done all of its plan."""
    plans = _not_skipped(record)
    total = sum(one.bytes for one in plans)
    return Progress("done", total, total, len(plans), len(plans))


def _not_skipped(record: RunRecord) -> list[PartitionPlan]:
    return [one for one in record.partitions if one.state != "skipped"]


_ATTEMPTS = 5
"""This many rounds may get no partition further, because a reader came that needs what it drops,
or because there was no space. Those that do are not counted: there are at most as many of them as
partitions."""
_WAVES = 16
"""In this many waves partitions are held, and published, if there are more of them: those of a wave
together, so that they wait for the same syncs. After each wave the run is noted, once: its record
has all partitions, and noted after each of them it would be written as often as it is long."""
_TOGETHER_MAX = 32
"""This many partitions at most are waited for at the same time."""
_OVERTAKEN = (LedgerLost, LedgerOld, OffsetExpired)
"""What a run meets when another one has published a ledger in its place: a file went with the
ledger that was replaced, its own ledger is older than the adopted one, or the backlog was cut."""
T = TypeVar("T")
U = TypeVar("U")


class Run:
    """One run, on its caller's thread."""

    def __init__(self, context: RunContext, *, sweep: Callable[[Table], object]) -> None:
        self.context = context
        self.table = context.table
        self.name = context.run
        self._backend = context.backend
        self._store = context.store
        self._records = context.records
        self._options = context.options
        self._sweep = sweep
        self._damaged: dict[int, LowmarkError] = {}
        """Partitions that can't be compacted, and why."""
        self._short: dict[int, LowmarkError] = {}
        """Partitions that found no space when they were tried last, and are tried again."""
        self.thread = threading.get_ident()
        self._holds = RunHolds(context)
        self._watch = RunWatch(context, self._holds.renew)
        self._publisher = Publisher(context, self._holds)
        self._began_s = time.monotonic()

    # -- planning -------------------------------------------------------------------------------

    def plan(self, *, dry: bool = False) -> RunRecord:
        """Step 0: see what there is to do; dry, without any change."""
        table, options = self.table, self._options
        check_wanted(table)
        standing = self._backend.watermark(latest=True)
        watermark = standing.value
        plans = []
        for number in sorted(self.context.partitions):
            given = self._sound_input(number, watermark, dry=dry)
            if given is None:
                plans.append(PartitionPlan(partition=number, why=self._damaged[number].message))
            else:
                plans.append(plan_partition(number, table, given, anyway=options.rewrite))
        began_at_ms = self.context.now_ms()
        return RunRecord(
            run=self.name,
            table=table.id,
            table_name=table.name,
            state="planned",
            trigger=options.trigger,
            began_at_ms=began_at_ms,
            watermark=watermark,
            catalog=catalog_then(self._backend, watermark).version,
            verify=options.verify,
            trim=options.trim,
            rewrite=options.rewrite,
            read=options.read or "auto",
            read_rate=options.read_rate or 0,
            write_rate=options.write_rate or 0,
            engine=options.engine,
            where=options.where,
            by=by_text(this_process(), self._backend.caller),
            partitions=tuple(plans),
            **waiting(table, plans, standing, now_ms=began_at_ms),
        )

    def _watermark(self) -> int:
        return self._backend.watermark(latest=True).value

    def _sound_input(self, number: int, watermark: int, *, dry: bool = False) -> PlanInput | None:
        """Where a partition stands; None if that can't be told: the run leaves it out, and says
        so when the others are done; with nothing else to do, at once.
        """
        try:
            return self._plan_input(number, watermark, dry=dry)
        except Corrupt as damage:
            if dry or len(self.context.partitions) == 1:
                raise
            self._damaged[number] = damage
            return None

    def _plan_input(self, number: int, watermark: int, *, dry: bool = False) -> PlanInput:
        """Where a partition stands, after it has adopted what was published for it before."""
        while True:
            seen = self._records.pointer(self.table.id, number)
            try:
                return self._input_as_seen(number, watermark, seen, dry=dry)
            except (NothingLike, *_OVERTAKEN):
                if self._records.pointer(self.table.id, number).revision == seen.revision:
                    raise
                # Another one was published since it was seen, and perhaps adopted.

    def _input_as_seen(
        self, number: int, watermark: int, seen: SeenPointer, *, dry: bool
    ) -> PlanInput:
        given = plan_input(self._backend, self.table, number, seen, watermark=watermark)
        ledger = given.view.ledger
        adopted = ledger.epoch if ledger is not None else 0
        if seen.pointer is None or seen.pointer.epoch <= adopted:
            return given
        if dry:
            return given.once_adopted(seen.pointer)
        if self._publisher.adopt(number, seen.pointer):
            return plan_input(self._backend, self.table, number, seen, watermark=watermark)
        return given

    # -- the run --------------------------------------------------------------------------------

    def go(
        self, record: RunRecord, runner: Callable[[], Runner], *, waited: bool = False
    ) -> RunRecord:
        """Steps 1 to 7. A run that has `waited` is planned anew: the low watermark and the catalog
        have moved on, and nothing that it has written depends on where they were.
        """
        options = self._options
        record = msgspec.structs.replace(
            record,
            state="running",
            engine=options.engine,
            where=options.where,
            by=by_text(this_process(), self._backend.caller),
        )
        planned = record
        try:
            self.context.step("note the run")
            if waited:
                planned = record = msgspec.structs.replace(
                    self.plan(), state="running", began_at_ms=record.began_at_ms
                )
            self._note(record)
            self._check_catalog(record)
            with self._watch.over(record):
                record = self._all(record, runner)
            self.context.token.check()
        except BaseException as error:
            spoilt = self._watch.spoilt if isinstance(error, Cancelled) else None
            # Whatever it met: its files may have gone with the run that took its place.
            if isinstance(error, LowmarkError) and self._is_lost():
                raise Cancelled(f"run {self.name} was taken over by another process") from error
            if isinstance(error, Corrupt | Conflict | Rejected) and self._was_given_up():
                raise self._given_up() from error
            self._failed(spoilt or error)
            if spoilt is not None:
                raise spoilt from None
            raise
        finally:
            # A process that has taken the run over holds by the same names.
            if not self.context.token.taken_over:
                self._holds.release_all()
        # All is done: from here on it is too late to cancel.
        self._options.step("note the end")
        record = self._ended(record, "done")
        self._records.forget_old_runs(self.table.id)
        self._options.step("sweep")
        self._swept()
        self._forget_schemas()
        with contextlib.suppress(Exception):  # it is done, whatever the caller makes of it
            self._watch.tell_whole(planned)
        return record

    def _check_catalog(self, record: RunRecord) -> None:
        """Refuse to go on with a run that was planned with a catalog which is not there any more:
        its partitions would get another schema than those that are finished, and an older one.
        """
        if not record.resumed or not record.catalog:
            return
        try:
            found = catalog_then(self._backend, record.watermark).version
        except VersionCompacted as gone:
            raise PlanOutdated(record.run, record.catalog, why=gone.detail) from gone
        if found != record.catalog:
            why = f"At that time version {found} was in force, as the catalog has it now."
            raise PlanOutdated(record.run, record.catalog, why=why)

    def _all(self, record: RunRecord, runner: Callable[[], Runner]) -> RunRecord:
        attempts, left = 0, len(record.partitions) + 1
        while True:
            over = {"adopted", "skipped", "overtaken"}
            todo = [
                one
                for one in record.partitions
                if one.state not in over and one.partition not in self._damaged
            ]
            if not todo:
                # What can't be compacted is told when all that can be was: else one partition
                # would keep the others from it, this time and every time.
                for number in sorted(self._damaged):
                    raise self._damaged[number]
                return self.finish_published(record)
            attempts += len(todo) >= left
            left = len(todo)
            if attempts >= _ATTEMPTS:
                break
            record = self._round(record, todo, runner)
        for one in todo:
            if one.partition in self._short:
                raise self._short[one.partition]
        raise Conflict(
            f"table {self.table.name} could not be compacted: each attempt was overtaken",
            detail="New readers need deletes that the new ledger would lack, or segments of"
            " the log were merged while they were read.",
            hint="Run it again.",
        )

    def _round(
        self, record: RunRecord, todo: Sequence[PartitionPlan], runner: Callable[[], Runner]
    ) -> RunRecord:
        """Work off what is left, then publish it; what was refused stays to be done."""
        finished: dict[int, tuple[Done, PlanInput]] = {}
        works: dict[int, tuple[Work, PlanInput]] = {}
        for wave in _waves(todo):
            ready: list[tuple[PartitionPlan, PlanInput]] = []
            for plan in wave:
                given = self._sound_input(plan.partition, record.watermark)
                if given is None:
                    continue
                ledger = given.ledger
                if ledger is not None and ledger.manifest == plan.manifest:
                    # It was adopted before the run was interrupted: what is left is to cut.
                    record = record.with_partition(self._publisher.trimmed(plan))
                    if len(wave) == 1:
                        record = self._noted(record)
                    continue
                done = self._finished(plan, given)
                if done is not None:
                    finished[plan.partition] = done, given
                    continue
                fresh = plan_partition(
                    plan.partition, self.table, given, anyway=self._options.rewrite
                )
                record = record.with_partition(fresh)
                if fresh.state != "skipped":
                    ready.append((fresh, given))
            held = _together(lambda one: self._held_unless_overtaken(*one), ready)
            record = record.with_partitions(one for one in held if one.state == "overtaken")
            for (fresh, given), one in zip(ready, held, strict=True):
                if one.state != "overtaken":
                    works[fresh.partition] = self._work_for(fresh, given), given
        return self._worked_off(record, works, finished, runner)

    def _worked_off(
        self,
        record: RunRecord,
        works: Mapping[int, tuple[Work, PlanInput]],
        finished: dict[int, tuple[Done, PlanInput]],
        runner: Callable[[], Runner],
    ) -> RunRecord:
        """Have the work done, and publish it with what was finished before."""
        record = self._noted(record)
        damaged: dict[int, LowmarkError] = {}
        if works:
            self.context.step("carry out the work")
            answers, damaged = carried_out(
                self.context, [work for work, _ in works.values()], runner
            )
            # If others are about to free space, those that had none are tried again; of a run that
            # was resumed, also what was finished before.
            self._short = {
                number: error
                for number, error in damaged.items()
                if (answers or finished) and isinstance(error, DiskFull)
            }
            for number, error in damaged.items():
                if self._is_overtaken(number, works[number][1], error):
                    plan = record.partition(number)
                    assert plan is not None
                    record = record.with_partition(self._overtaken(plan))
                elif number not in self._short:
                    self._damaged[number] = error
            for answer in answers:
                finished[answer.partition] = answer, works[answer.partition][1]
        for number, damage in (self._damaged | self._short).items():
            left = record.partition(number)
            assert left is not None
            record = record.with_partition(msgspec.structs.replace(left, why=damage.message))
        plans = {one.partition: one for one in record.partitions}
        record = record.with_partitions(
            _written(plans[done.partition], done) for done, _ in finished.values()
        )
        if finished or damaged or self._damaged:
            record = self._noted(record)
        plans = {one.partition: one for one in record.partitions}

        def finish(number: int) -> PartitionPlan:
            self.context.token.check()
            done, before = finished[number]
            try:
                now = self._plan_input(number, record.watermark)
                return self._publisher.finish(plans[number], done, before=before, now=now)
            except _OVERTAKEN as error:
                if not self._is_overtaken(number, before, error):
                    raise
                return self._overtaken(plans[number])

        for wave in _waves(sorted(finished)):
            record = self._noted(record.with_partitions(_together(finish, wave)))
        return record

    def _finished(self, plan: PartitionPlan, given: PlanInput) -> Done | None:
        """What a partition has written before the run was interrupted, if it can still be used."""
        path = done_path(self.table.id, self.name, plan.partition)
        try:
            data = self._store.read(path)
            done = msgspec.json.decode(data, type=Done)
            said = Expected.noted(
                self.table.id,
                plan.partition,
                epoch=done.epoch,
                horizon=done.horizon,
                digest=done.digest,
            )
            manifest = read_manifest(self._store, done.manifest, said)
        except (FileMissing, msgspec.MsgspecError, LowmarkError):
            return None
        if done.partition != plan.partition:
            return None  # another one's answer, in the wrong place
        base = given.ledger.manifest if given.ledger is not None else ""
        if manifest.based_on != base or given.refuses(done.deletes_below):
            return None
        if done.epoch <= given.seen.epoch:
            return None  # another one was published meanwhile, and was not adopted
        return done

    def _prepared(self, plan: PartitionPlan, given: PlanInput) -> Work:
        """Step 2: hold what is read, and say where it is."""
        self._held(plan, given)
        return self._work_for(plan, given)

    def _held(self, plan: PartitionPlan, given: PlanInput) -> None:
        self.context.step(f"hold partition {plan.partition}")
        self._holds.take(plan, given.view)

    def _held_unless_overtaken(self, plan: PartitionPlan, given: PlanInput) -> PartitionPlan:
        try:
            self._held(plan, given)
        except _OVERTAKEN as error:
            if not self._is_overtaken(plan.partition, given, error):
                raise
            return self._overtaken(plan)
        return plan

    def _is_overtaken(self, number: int, given: PlanInput, error: LowmarkError) -> bool:
        """Whether an error comes from another run that has published a ledger since then."""
        if not isinstance(error, _OVERTAKEN):
            return False
        now = self._records.pointer(self.table.id, number)
        if now.pointer is None or now.revision == given.seen.revision:
            return False
        return now.pointer.run != self.name

    def _overtaken(self, plan: PartitionPlan) -> PartitionPlan:
        """Of a partition that another run sees to now: hold nothing of it any more."""
        self._holds.release(plan.partition)
        return msgspec.structs.replace(plan, state="overtaken")

    def _work_for(self, plan: PartitionPlan, given: PlanInput) -> Work:
        tail = self._backend.tail(self.table.id, plan.partition, low=plan.low, high=plan.horizon)
        return work_for(self.context, plan, given, tail)

    def finish_published(self, record: RunRecord) -> RunRecord:
        """Where nothing is new, what was published and not cut yet may be cut all the same."""
        return self._publisher.cut_rest(record)

    # -- noting it, and ending it ---------------------------------------------------------------

    def _noted(self, record: RunRecord) -> RunRecord:
        self._options.step("note progress")
        record = msgspec.structs.replace(record, seconds=time.monotonic() - self._began_s)
        self._note(record)
        return record

    def _note(self, record: RunRecord) -> None:
        if not self._records.note_run(record):
            raise self._given_up()

    def _given_up(self) -> Cancelled:
        return Cancelled(f"run {self.name} was given up by another process, or for another run")

    def _was_given_up(self) -> bool:
        """Whether another process has noted that this run is over."""
        with contextlib.suppress(LowmarkError):
            noted = self._records.find_run(self.table.id, self.name)
            return noted is not None and noted.state == "cancelled"
        return False

    def _is_lost(self) -> bool:
        """Whether another process has the claim of the table: it goes on with this run, or with
        another one in its place.
        """
        token = self.context.token
        if not token.interrupted:
            with contextlib.suppress(LowmarkError):
                if not self._records.is_ours(self.table.id):
                    token.take_over("another process")
        return token.taken_over

    def _ended(self, record: RunRecord, state: str, error: str = "") -> RunRecord:
        record = msgspec.structs.replace(
            record,
            state=state,
            error=error,
            ended_at_ms=self.context.now_ms(),
            seconds=time.monotonic() - self._began_s,
        )
        self._records.note_run(record)  # one that was given up stays so
        return record

    def _failed(self, error: BaseException) -> None:
        """Say what became of it; a run that failed can be resumed, one that was cancelled not."""
        if not isinstance(error, Exception) and not isinstance(error, KeyboardInterrupt):
            return  # the process ends: the run stays as it is, to be resumed
        if self.context.token.interrupted:
            return
        with contextlib.suppress(LowmarkError):
            record = self._records.run(self.table.id, self.name)
            asked = isinstance(error, Cancelled) and self.context.token.cancelled
            if asked or isinstance(error, KeyboardInterrupt):
                self._holds.release_all()
                self._ended(record, "cancelled", "cancelled")
                self._swept()
            else:
                # Also if it was cancelled in Spark, by a user who knows nothing of runs.
                said = error.one_line() if isinstance(error, LowmarkError) else str(error)
                self._ended(record, "failed", said)
                self._records.forget_old_runs(self.table.id)

    def _swept(self) -> None:
        """What can't be swept now is swept by a later run: that fails nothing."""
        try:
            self._sweep(self.table)
        except LowmarkError as error:
            logger.warning(
                "files of ledgers could not be swept",
                extra={"table": self.table.name, "reason": error.message},
            )

    def _forget_schemas(self) -> None:
        """What can't be forgotten now is forgotten after a later run: that fails nothing."""
        try:
            trim_schemas(self.context)
        except LowmarkError as error:
            logger.warning(
                "schema versions could not be forgotten",
                extra={"table": self.table.name, "reason": error.message},
            )


def check_wanted(table: Table) -> None:
    """Refuse a table that is not to be compacted."""
    if table.settings.compaction == "off":
        raise Rejected(
            f"table {table.name} has compaction=off",
            hint="Set it to manual or auto.",
        )


def _waves(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """In as many parts as there are waves; one by one, if there are not twice as many."""
    size = max(1, len(items) // _WAVES)
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _together(function: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Call a function on all, each on a thread of its own: what they wait for is a sync of the log,
    and it does for all that wait. When all have ended, the first error is raised.
    """
    if len(items) <= 1:
        return [function(one) for one in items]
    return together(function, items, most=_TOGETHER_MAX, name="lowmark run")


def _written(plan: PartitionPlan, done: Done) -> PartitionPlan:
    """A partition's plan with what became of it."""
    known = {field.name for field in msgspec.structs.fields(PartitionPlan)}
    said = {name: value for name, value in msgspec.structs.asdict(done).items() if name in known}
    return msgspec.structs.replace(plan, state="written", **said)
