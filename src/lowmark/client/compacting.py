"""A run of compaction: plan, work, publish, adopt, trim, retire.

Steps, and what is true after each. A crash anywhere leaves what the last finished step left;
`resume` goes on from there, and the sweep removes what nobody names.

    1. the run is noted in the metastore: its name is in every file that it writes, so nobody sweeps
       them while it can be resumed
    2. a lease in each partition holds the backlog that is going to be read
    3. the work is carried out, somewhere. Each finished partition has written its files, its
       manifest, and an answer that says so: it is not done again
    4. the pointer is swapped, if it still is what the plan saw, and the ledger before is noted as
       retired. Nobody reads the new one yet
    5. the partition adopts it: from here on it is read. If somebody has come meanwhile who needs
       deletes that it lacks, it is refused, and the partition is planned anew; the pointer is ahead
       then, which is no harm: reads go by what was adopted
    6. the backlog is cut up to the horizon, as far as nobody holds it
    7. the lease is given back, the run noted as done, and what was retired goes when nobody reads
       it
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import cast

import msgspec
from pyroaring import BitMap64

from lowmark import __version__
from lowmark.catalog import Table, TableId
from lowmark.catalog.serializers import encode_table
from lowmark.client.describing import LedgerDescription, describe_ledgers
from lowmark.client.embedded import Embedded
from lowmark.client.failures import Cancelled, Closed, RunUnderWay
from lowmark.client.ledgers import Ledgers
from lowmark.client.planning import Standing, plan_partition, sealed_tail, standing_of
from lowmark.client.run_records import Records
from lowmark.client.running import OwnSpark, Runner, work_off
from lowmark.client.sweeping import sweep, sweep_dropped
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected
from lowmark.ledger import (
    REBUILD,
    Done,
    PartitionPlan,
    Pointer,
    RunRecord,
    SourceMoved,
    Work,
    check_there,
    done_path,
    progress_path,
    read_manifest,
    run_folder,
)
from lowmark.node.faults import decode_fault
from lowmark.runtime import FileMissing, HybridTime
from lowmark.table import (
    Adopt,
    DeletesHeld,
    Partition,
    ReleaseLease,
    RenewLease,
    TakeLease,
    Trim,
    Trimmed,
    View,
)

__all__ = ["Compactor", "Progress", "Run", "Wishes"]

logger = logging.getLogger(__name__)

LEASE_MS = 600_000
_RENEW_S = 60.0
_LOOK_S, _LOOK_ELSEWHERE_S = 0.25, 2.0
"""How often a run is looked after: each look is a request to the store."""
_STOP_S = 20.0
_ATTEMPTS = 5
"""So often a partition is planned anew, because somebody came who needs what it would drop."""
_TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: never less than it was told before, and all of it in the end."""

    step: str
    """`compacting`, or `done`."""
    bytes_done: int
    bytes_total: int
    partitions_done: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How a run is to be made."""

    verify: bool = False
    trim: bool = True
    rewrite: bool = False
    """Write every file anew, though nothing may be new."""
    read_rate: int | None = None
    """Bytes a second; 0: no limit; None: no limit, or as before if the run is resumed."""
    write_rate: int | None = None
    memory_bytes: int = _TASK_BYTES
    trigger: str = "by hand"
    where: str = ""
    progress: Callable[[Progress], None] | None = None
    step: Callable[[str], None] = field(default=lambda name: None)
    """Told of every step before it is made."""


class Compactor:
    """Makes the runs of one database, one at a time for each table."""

    def __init__(self, embedded: Embedded, ledgers: Ledgers, *, grace_ms: int) -> None:
        self._embedded = embedded
        self.ledgers = ledgers
        self._grace_ms = grace_ms
        self.records = Records(embedded)
        self.spark = OwnSpark()
        self._lock = threading.Lock()
        self._active: dict[int, Run] = {}
        self._changed = threading.Condition(self._lock)
        self._closing = False
        embedded.before_close.add(self)

    # -- from outside ---------------------------------------------------------------------------

    def plan(self, table: Table, partitions: Mapping[int, Partition], wishes: Wishes) -> RunRecord:
        """What a run would do: nothing is written, nothing is held."""
        return Run(self, table, partitions, wishes).plan(dry=True)

    def compact(
        self,
        table: Table,
        partitions: Mapping[int, Partition],
        runner: Callable[[], Runner],
        wishes: Wishes,
    ) -> RunRecord:
        """Make a run; gives what it did. Without anything to do, nothing is begun."""
        run = Run(self, table, partitions, wishes)
        with self.only(run):
            record = run.plan()
            if self.give_up_others(record):
                # Before it writes: else a run that is interrupted each time would fill the disk.
                with contextlib.suppress(Corrupt):  # a ledger that can't be read, the run tells of
                    self.sweep(table)
            if all(one.state == "skipped" for one in record.partitions):
                record = msgspec.structs.replace(
                    record, state="done", ended_at_ms=record.began_at_ms
                )
                return run.finish_published(record)
            return run.go(record, runner)

    def give_up_others(self, record: RunRecord, *, trigger: str | None = None) -> bool:
        """Runs of the table that were interrupted: this one does what they would have done.

        With a trigger, only those that had it. Says whether there were any.
        """
        found = False
        for one in self.records.runs(record.table):
            if trigger is not None and one.trigger != trigger:
                continue
            if one.state in {"running", "failed"} and one.run != record.run:
                self.records.put_run(
                    msgspec.structs.replace(
                        one,
                        state="cancelled",
                        ended_at_ms=record.began_at_ms,
                        error=one.error or f"interrupted, and given up for run {record.run}",
                    )
                )
                self._release_leases(one)
                found = True
        return found

    def resume(
        self,
        table: Table,
        partitions: Mapping[int, Partition],
        runner: Callable[[], Runner],
        wishes: Wishes,
        *,
        run: str,
    ) -> RunRecord:
        """Go on with a run that was interrupted; what is finished is not done again."""
        _check_wanted(table)
        record = self.records.run(table.id, run)
        wanted = [one.partition for one in record.partitions]
        wishes = _as_before(wishes, record)
        one = Run(self, table, {number: partitions[number] for number in wanted}, wishes)
        with self.only(one):
            record = self.records.run(table.id, run)  # nobody gives it up from here on
            if record.state not in {"running", "failed"}:
                raise Rejected(f"run {run} is {record.state}", hint="Begin another one.")
            if record.trigger == REBUILD:
                raise Rejected(
                    f"run {run} was to rebuild ledgers, not to compact",
                    hint="Run `lowmark ledger rebuild` again: it goes on from what is there.",
                )
            again = msgspec.structs.replace(
                record,
                resumed=record.resumed + 1,
                state="running",
                ended_at_ms=0,
                error="",
                read_rate=wishes.read_rate or 0,
                write_rate=wishes.write_rate or 0,
            )
            self._release_leases(record)
            return one.go(again, runner)

    def cancel(self, table: Table, run: str) -> RunRecord:
        """End a run that goes on here, or give up one that was interrupted."""
        active = self._active.get(table.id)
        if active is not None and active.name == run:
            active.cancel()
            return self.records.run(table.id, run)
        # It must not be resumed while it is given up: its files go.
        with self.only(Run(self, table, {}, Wishes())):
            record = self.records.run(table.id, run)
            if record.state not in {"running", "failed"}:
                raise Rejected(f"run {run} is {record.state}", hint="There is nothing to cancel.")
            ended = msgspec.structs.replace(
                record, state="cancelled", ended_at_ms=self._embedded.node.loop.wall_ms()
            )
            self.records.put_run(ended)
            self._release_leases(ended)
            self.sweep(table)
        return ended

    def _release_leases(self, run: RunRecord) -> None:
        """Hold nothing any more for a run whose process has ended before it could let go."""
        tables = self._embedded.node.tables
        assert tables is not None
        copies = self._embedded.ask_now(lambda: tables.of(TableId(run.table)))
        release = ReleaseLease(_lease_of(run.run), _holder_of(run.run))
        for one in copies:
            with contextlib.suppress(LowmarkError):  # it ends by itself, later
                self._embedded.ask(lambda one=one: one.ask(release))  # type: ignore[misc]

    def sweep(self, table: Table, *, dry_run: bool = False) -> list[str]:
        """Remove files of a table that nobody names; gives which. And what is left of tables that
        were dropped. A dry run only says what would go.
        """
        gone = sweep(
            self._embedded, self.ledgers, self.records, table.id, self._grace_ms, dry_run=dry_run
        )
        if not dry_run:
            self.sweep_dropped()
        return gone

    def sweep_dropped(self) -> None:
        """Remove what is left of tables that were dropped, once nobody can look back to them."""
        sweep_dropped(self._embedded, self.ledgers, self.records, busy=set(self._active))

    def describe(
        self, table: Table, partitions: Mapping[int, Partition]
    ) -> list[LedgerDescription]:
        """What the ledgers of partitions consist of, and which older ones wait to be removed."""
        return describe_ledgers(
            self._embedded,
            self.ledgers,
            self.records,
            partitions,
            table=table.id,
            grace_ms=self._grace_ms,
        )

    def active(self, table: int) -> str | None:
        """The run that compacts a table right now."""
        run = self._active.get(table)
        return None if run is None else run.name

    def finish(self) -> None:
        """The database is about to be closed: runs end, and stay to be resumed; then Spark ends."""
        with self._lock:
            self._closing = True
            runs = list(self._active.values())
        for run in runs:
            run.interrupt()
        with self._lock:
            self._changed.wait_for(self._is_idle, _STOP_S)
        self.spark.finish()

    def _is_idle(self) -> bool:
        """Whether all runs have ended but one that closes the database itself, in a step."""
        me = threading.get_ident()
        return all(run.thread == me for run in self._active.values())

    @contextlib.contextmanager
    def only(self, run: Run) -> Iterator[None]:
        """While it goes on, no other run of its table can."""
        with self._lock:
            if self._closing:
                raise Closed(str(self._embedded.data))
            other = self._active.get(run.table.id)
            if other is not None:
                raise RunUnderWay(run.table.name, other.name)
            self._active[run.table.id] = run
        try:
            yield
        finally:
            with self._lock:
                del self._active[run.table.id]
                self._changed.notify_all()


def _check_wanted(table: Table) -> None:
    if table.settings.compaction == "off":
        raise Rejected(
            f"table {table.name} has compaction=off",
            hint="Set it to manual or auto.",
        )


def _as_before(wishes: Wishes, record: RunRecord) -> Wishes:
    return Wishes(
        verify=record.verify,
        trim=record.trim,
        rewrite=record.rewrite,
        read_rate=record.read_rate if wishes.read_rate is None else wishes.read_rate,
        write_rate=record.write_rate if wishes.write_rate is None else wishes.write_rate,
        memory_bytes=wishes.memory_bytes,
        trigger=record.trigger,
        where=wishes.where,
        progress=wishes.progress,
        step=wishes.step,
    )


class Run:
    """One run, on its caller's thread."""

    def __init__(
        self,
        compactor: Compactor,
        table: Table,
        partitions: Mapping[int, Partition],
        wishes: Wishes,
    ) -> None:
        self._embedded = compactor._embedded
        self._ledgers = compactor.ledgers
        self._records = compactor.records
        self._compactor = compactor
        self.table = table
        self._partitions = partitions
        self._wishes = wishes
        now = datetime.now(UTC)
        self.name = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self._held: dict[int, int] = {}
        """Where each partition's backlog is held from."""
        self._damaged: dict[int, LowmarkError] = {}
        """Partitions that can't be compacted, and why."""
        self.thread = threading.get_ident()
        self._runner: Runner | None = None
        self._cancelled = threading.Event()
        self._interrupted = False
        self._spoilt: Exception | None = None
        """What the caller's word for progress has raised."""
        self._told: Progress | None = None
        self._began_s = time.monotonic()

    # -- planning -------------------------------------------------------------------------------

    def plan(self, *, dry: bool = False) -> RunRecord:
        """Step 0: see what there is to do; dry, without any change."""
        table, wishes = self.table, self._wishes
        _check_wanted(table)
        watermark = self._watermark()
        plans = []
        for number in sorted(self._partitions):
            standing = self._sound_standing(number, watermark, dry=dry)
            if standing is None:
                plans.append(PartitionPlan(partition=number, why=self._damaged[number].message))
            else:
                plans.append(plan_partition(number, table, standing, anyway=wishes.rewrite))
        return RunRecord(
            run=self.name,
            table=table.id,
            table_name=table.name,
            state="planned",
            trigger=wishes.trigger,
            began_at_ms=self._embedded.node.loop.wall_ms(),
            watermark=watermark,
            verify=wishes.verify,
            trim=wishes.trim,
            rewrite=wishes.rewrite,
            read_rate=wishes.read_rate or 0,
            write_rate=wishes.write_rate or 0,
            where=wishes.where,
            partitions=tuple(plans),
        )

    def _watermark(self) -> int:
        mark = self._embedded.node.watermark
        assert mark is not None
        return self._embedded.ask(mark.read)

    def _sound_standing(self, number: int, watermark: int, *, dry: bool = False) -> Standing | None:
        """Where a partition stands; None if that can't be told: it is left out, and told of when
        the others are done. With nothing else to do, it is told at once.
        """
        try:
            return self._standing(number, watermark, dry=dry)
        except Corrupt as damage:
            if dry or len(self._partitions) == 1:
                raise
            self._damaged[number] = damage
            return None

    def _standing(self, number: int, watermark: int, *, dry: bool = False) -> Standing:
        """Where a partition stands, after it has adopted what was published for it before."""
        partition = self._partitions[number]
        seen = self._records.pointer(self.table.id, number)
        standing = standing_of(self._embedded, partition, seen, watermark=watermark)
        ledger = standing.view.ledger
        adopted = ledger.epoch if ledger is not None else 0
        if seen.pointer is None or seen.pointer.epoch <= adopted:
            return standing
        if dry:
            return standing.once_adopted(seen.pointer)
        if self._adopt(number, seen.pointer):
            return standing_of(self._embedded, partition, seen, watermark=watermark)
        return standing

    # -- the run --------------------------------------------------------------------------------

    def go(self, record: RunRecord, runner: Callable[[], Runner]) -> RunRecord:
        """Steps 1 to 7."""
        self.name = record.run
        record = msgspec.structs.replace(record, state="running", where=self._wishes.where)
        self._step("note the run")
        planned = record
        try:
            self._records.put_run(record)
            with self._watched(record):
                record = self._all(record, runner)
            self._check()
        except BaseException as error:
            spoilt = self._spoilt if isinstance(error, Cancelled) else None
            self._failed(spoilt or error)
            if spoilt is not None:
                raise spoilt from None
            raise
        finally:
            self._let_go()
        # All is done: from here on it is too late to cancel.
        self._wishes.step("note the end")
        record = self._ended(record, "done")
        self._records.forget_old_runs(self.table.id)
        self._wishes.step("sweep")
        self._swept()
        with contextlib.suppress(Exception):  # it is done, whatever the caller makes of it
            self._tell(_whole(planned))
        return record

    def _swept(self) -> None:
        """What can't be swept now is swept by a later run: that fails nothing."""
        try:
            self._compactor.sweep(self.table)
        except LowmarkError as error:
            logger.warning(
                "files of ledgers could not be swept",
                extra={"table": self.table.name, "reason": error.message},
            )

    def _all(self, record: RunRecord, runner: Callable[[], Runner]) -> RunRecord:
        for attempt in range(_ATTEMPTS + 1):
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
            if attempt < _ATTEMPTS:
                record = self._round(record, todo, runner)
        raise Conflict(
            f"table {self.table.name} could not be compacted: something came in between each time",
            detail="Readers came that need deletes which the new ledger would lack, or segments of"
            " the log were merged while they were read.",
            hint="Run it again.",
        )

    def _round(
        self, record: RunRecord, todo: Sequence[PartitionPlan], runner: Callable[[], Runner]
    ) -> RunRecord:
        """Work off what is left, then publish it; what was refused stays to be done."""
        finished: dict[int, tuple[Done, Standing]] = {}
        works: dict[int, tuple[Work, Standing]] = {}
        for plan in todo:
            standing = self._sound_standing(plan.partition, record.watermark)
            if standing is None:
                continue
            ledger = standing.ledger
            if ledger is not None and ledger.manifest == plan.manifest:
                # It was adopted before the run was interrupted: what is left is to cut.
                record = self._trimmed(record, plan)
                continue
            done = self._finished(plan, standing)
            if done is not None:
                finished[plan.partition] = done, standing
                continue
            fresh = plan_partition(
                plan.partition, self.table, standing, anyway=self._wishes.rewrite
            )
            record = record.with_partition(fresh)
            if fresh.state != "skipped":
                works[plan.partition] = self._prepared(fresh, standing), standing
        return self._worked_off(record, works, finished, runner)

    def _worked_off(
        self,
        record: RunRecord,
        works: Mapping[int, tuple[Work, Standing]],
        finished: dict[int, tuple[Done, Standing]],
        runner: Callable[[], Runner],
    ) -> RunRecord:
        """Have the work done, and publish it with what was finished before."""
        record = self._noted(record)
        if works:
            self._step("carry out the work")
            for answer in self._carried_out([work for work, _ in works.values()], runner):
                finished[answer.partition] = answer, works[answer.partition][1]
            for number, damage in self._damaged.items():
                left = record.partition(number)
                assert left is not None
                record = record.with_partition(msgspec.structs.replace(left, why=damage.message))
        for done, _ in finished.values():
            record = record.with_partition(_written(record, done))
        if finished:
            record = self._noted(record)
        for number in sorted(finished):
            self._check()
            record = self._finish(record, *finished[number])
        return record

    def _finished(self, plan: PartitionPlan, standing: Standing) -> Done | None:
        """What a partition has written before the run was interrupted, if it can still be used."""
        path = done_path(self.table.id, self.name, plan.partition)
        try:
            data = self._ledgers.store.read(path)
            done = msgspec.json.decode(data, type=Done)
            manifest = read_manifest(self._ledgers.store, done.manifest)
        except (FileMissing, msgspec.MsgspecError, LowmarkError):
            return None
        base = standing.ledger.manifest if standing.ledger is not None else ""
        if manifest.based_on != base or done.deletes_below > self._passed(standing):
            return None
        if done.epoch <= standing.seen.epoch:
            return None  # another one was published meanwhile, and was not adopted
        return done

    def _passed(self, standing: Standing) -> int:
        """Below this offset deletes may go."""
        return max(standing.deletes_gone, standing.deletes_below)

    # -- the work -------------------------------------------------------------------------------

    def _prepared(self, plan: PartitionPlan, standing: Standing) -> Work:
        """Step 2: hold what is read, and say where it is."""
        number, partition = plan.partition, self._partitions[plan.partition]
        view = standing.view
        self._step(f"hold partition {number}")
        low = max(plan.low, view.start)
        lease = TakeLease(self._lease, self._holder, low, LEASE_MS, "compaction reads it", "run")
        self._held[number] = low  # first: an outcome that is not known has to be given back, too
        self._embedded.ask(lambda: partition.ask(lease))
        self._pin(partition, standing, plan)
        tail = sealed_tail(self._embedded, partition, view, low=plan.low, high=plan.horizon)
        wishes, table = self._wishes, self.table
        return Work(
            run=self.name,
            store=self._ledgers.store.location,
            root=str(self._embedded.data.absolute()),
            table=encode_table(table),
            table_name=table.name,
            partition=number,
            epoch=max(plan.base_epoch, standing.seen.epoch) + 1,
            base=plan.base,
            tail=tail,
            horizon=plan.horizon,
            schema=self._schema(standing, plan),
            deletes_below=min(standing.deletes_below, plan.horizon),
            watermark=standing.watermark,
            expired=self._expired(standing),
            made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            release=__version__,
            verify=wishes.verify,
            rewrite=wishes.rewrite,
            budget_bytes=wishes.memory_bytes,
            read_rate=wishes.read_rate or 0,
            write_rate=wishes.write_rate or 0,
        )

    def _expired(self, standing: Standing) -> int:
        """Below this offset rows went by retention that no ledger has: what it cuts off a backlog
        below the horizon stays in the ledger.
        """
        if standing.ledger is not None:
            with contextlib.suppress(Corrupt):  # told by the work, which reads it as well
                return read_manifest(self._ledgers.store, standing.ledger.manifest).expired
        return standing.expired

    def _pin(self, partition: Partition, standing: Standing, plan: PartitionPlan) -> None:
        view = standing.view
        if plan.low >= plan.horizon:
            return
        pins = BitMap64(view.places[view.batch_at(plan.low) : view.batch_at(plan.horizon - 1) + 1])
        log = partition.group.log
        self._embedded.ask_now(
            lambda: log.hold(self._lease, kind="run", pins=pins, why="compaction reads it")
        )

    def _schema(self, standing: Standing, plan: PartitionPlan) -> int:
        """The version that new files get: the one in force at the watermark.

        Whoever reads as of that time or later finds every column that it may ask for. Rows that
        come with a newer version were written later, but for a clock that went back.
        """
        catalogs = self._embedded.node.catalogs
        assert catalogs is not None
        view = standing.view
        at, end = view.batch_at(plan.low), view.batch_at(max(plan.horizon - 1, plan.low))
        versions = view.columns.schema[at : end + 1][: max(view.count - at, 0)]
        newest = int(versions.max()) if len(versions) and plan.rows else 0
        in_force = self.table.schemas[0].number
        with contextlib.suppress(LowmarkError):  # the watermark is older than the catalog's history
            catalog = self._embedded.ask(lambda: catalogs.at(HybridTime(standing.watermark)))
            then = catalog.table(self.table.id)
            in_force = max(in_force, then.latest.number if then is not None else 0)
        return max(newest, in_force)

    def _carried_out(self, works: Sequence[Work], runner: Callable[[], Runner]) -> list[Done]:
        """Step 3. What is damaged is noted, and has no part in the answer."""
        self._runner = made = runner()
        try:
            self._check()
            packs = _packed(works, made.slots)
            share = [
                [msgspec.msgpack.encode(_shared(work, len(packs))) for work in pack]
                for pack in packs
            ]
            label = f"compact {self.table.name}"
            answers = made.run(work_off, share, label=label)
        except SourceMoved:
            return []  # the next round plans again
        finally:
            self._runner = None
        found = []
        for work, answer in zip(chain.from_iterable(packs), answers, strict=True):
            damage = decode_fault(answer)
            if damage is not None:
                self._damaged[work.partition] = damage
            else:
                found.append(msgspec.msgpack.decode(answer, type=Done))
        return found

    # -- publishing -----------------------------------------------------------------------------

    def _finish(self, record: RunRecord, done: Done, standing: Standing) -> RunRecord:
        """Steps 4 to 7 for one partition."""
        number = done.partition
        plan = record.partition(number)
        assert plan is not None
        now = self._standing(number, record.watermark)
        if now.view.ledger != standing.view.ledger or done.epoch <= now.seen.epoch:
            return self._noted(
                record.with_partition(msgspec.structs.replace(plan, state="overtaken"))
            )
        if done.deletes_below > self._passed(now):
            return self._noted(record.with_partition(_anew(plan)))
        pointer = Pointer(
            manifest=done.manifest,
            horizon=done.horizon,
            epoch=done.epoch,
            digest=done.digest,
            deletes_below=max(done.deletes_below, now.deletes_gone),
            run=self.name,
        )
        self._step(f"publish partition {number}")
        store = self._ledgers.store
        check_there(store, read_manifest(store, done.manifest).files)
        published = self._records.publish(
            self.table.id,
            number,
            pointer,
            seen=now.seen,
            now_ms=self._embedded.node.loop.wall_ms(),
        )
        if not published:
            return self._noted(
                record.with_partition(msgspec.structs.replace(plan, state="overtaken"))
            )
        self._step(f"adopt partition {number}")
        if not self._adopt(number, pointer):
            # It keeps what it was: if whoever held deletes goes, the next round has it adopted.
            again = msgspec.structs.replace(plan, state="planned")
            return self._noted(record.with_partition(again))
        return self._trimmed(record, plan)

    def _adopt(self, number: int, pointer: Pointer) -> bool:
        """Have a partition read from a ledger that was published; False if somebody needs more."""
        partition = self._partitions[number]
        manifest = read_manifest(self._ledgers.store, pointer.manifest)
        adopt = Adopt(
            pointer.epoch,
            pointer.manifest,
            pointer.horizon,
            manifest.digest_value().form,
            pointer.deletes_below,
        )
        try:
            self._embedded.ask(lambda: partition.ask(adopt))
        except DeletesHeld:
            return False
        return True

    def _trimmed(self, record: RunRecord, plan: PartitionPlan) -> RunRecord:
        """Steps 6 and 7: cut what is in the ledger, and hold nothing any more."""
        self._release(plan.partition)
        plan = msgspec.structs.replace(plan, state="adopted")
        if self._wishes.trim:
            self._step(f"trim partition {plan.partition}")
            plan = self._cut(plan)
        return self._noted(record.with_partition(plan))

    def _cut(self, plan: PartitionPlan) -> PartitionPlan:
        """Cut the backlog up to the horizon, as far as nobody holds it; says how far, and who."""
        partition = self._partitions[plan.partition]
        before = partition.view
        self._check_there(before)
        outcome = self._embedded.ask(lambda: partition.ask(Trim(plan.horizon)))
        trimmed = cast("Trimmed", outcome)
        after = partition.view
        if trimmed.batches:
            self._embedded.ask_now(partition.group.snapshot)
        names = tuple(f"{hold.kind} {hold.holder}" for hold in trimmed.safe.held_by)
        return msgspec.structs.replace(
            plan,
            trimmed_to=after.start,
            trimmed_bytes=before.bytes_from(before.start) - after.bytes_from(after.start),
            held_by=names if after.start < plan.horizon else (),
        )

    def _check_there(self, view: View) -> None:
        """Raise if a file of the ledger is missing, or is cut: then the backlog must not be, since
        nothing else has its rows.
        """
        if view.ledger is not None and view.start < view.ledger.horizon:
            store = self._ledgers.store
            check_there(store, read_manifest(store, view.ledger.manifest).files)

    def finish_published(self, record: RunRecord) -> RunRecord:
        """Where nothing is new, what was published and not cut yet may be cut all the same."""
        if not self._wishes.trim:
            return record
        for plan in record.partitions:
            view = self._partitions[plan.partition].view
            cut = view.ledger is None or view.start >= view.ledger.horizon
            if plan.state == "skipped" and not cut:
                record = record.with_partition(self._cut(plan))
        return record

    # -- around it ------------------------------------------------------------------------------

    @property
    def _lease(self) -> str:
        return _lease_of(self.name)

    @property
    def _holder(self) -> int:
        return _holder_of(self.name)

    def _release(self, number: int) -> None:
        if self._held.pop(number, None) is None or self._embedded.closed:
            return
        partition, name, holder = self._partitions[number], self._lease, self._holder

        def let_go() -> None:
            partition.group.log.release(name, "run")

        with contextlib.suppress(LowmarkError):
            self._embedded.ask_now(let_go)
            self._embedded.ask(lambda: partition.ask(ReleaseLease(name, holder)))

    def _let_go(self) -> None:
        for number in list(self._held):
            self._release(number)

    def _step(self, name: str) -> None:
        self._check()
        self._wishes.step(name)

    def _noted(self, record: RunRecord) -> RunRecord:
        self._wishes.step("note progress")
        record = msgspec.structs.replace(record, seconds=time.monotonic() - self._began_s)
        self._records.put_run(record)
        return record

    def _ended(self, record: RunRecord, state: str, error: str = "") -> RunRecord:
        record = msgspec.structs.replace(
            record,
            state=state,
            error=error,
            ended_at_ms=self._embedded.node.loop.wall_ms(),
            seconds=time.monotonic() - self._began_s,
        )
        self._records.put_run(record)
        return record

    def _failed(self, error: BaseException) -> None:
        """Say what became of it; a run that failed can be resumed, one that was cancelled not."""
        if not isinstance(error, Exception) and not isinstance(error, KeyboardInterrupt):
            return  # the process ends: the run stays as it is, to be resumed
        if self._interrupted:
            return
        with contextlib.suppress(LowmarkError):
            record = self._records.run(self.table.id, self.name)
            asked = isinstance(error, Cancelled) and self._cancelled.is_set()
            if asked or isinstance(error, KeyboardInterrupt):
                self._let_go()
                self._ended(record, "cancelled", "cancelled")
                self._swept()
            else:
                # Also if it was cancelled in Spark, by somebody who knows nothing of runs.
                self._ended(record, "failed", str(error))
                self._records.forget_old_runs(self.table.id)

    def cancel(self) -> None:
        """From another thread."""
        self._cancelled.set()
        runner = self._runner
        if runner is not None:
            runner.cancel()

    def interrupt(self) -> None:
        """From another thread: the process ends, and the run stays to be resumed."""
        self._interrupted = True
        self.cancel()

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled(f"run {self.name} was cancelled")

    @contextlib.contextmanager
    def _watched(self, record: RunRecord) -> Iterator[None]:
        """Renew leases, tell progress, and look whether somebody asks to end it, on a thread."""
        over = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(record, over), name=f"lowmark {self.name}", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, record: RunRecord, over: threading.Event) -> None:
        store, renewed_s = self._ledgers.store, time.monotonic()
        folder = run_folder(self.table.id, self.name)
        with contextlib.suppress(LowmarkError):
            # So that whoever has no more than the files can tell that it goes on, and ask it to
            # end. A word from before it was resumed is not meant for it.
            store.delete(f"{folder}/cancel")
            store.hint(f"{folder}/begun", b"")
        while not over.wait(_LOOK_S if store.local else _LOOK_ELSEWHERE_S):
            with contextlib.suppress(LowmarkError):
                if self._cancelled.is_set() or store.stat(f"{folder}/cancel") is not None:
                    self.cancel()  # again: what was about to begin the first time goes on now
                if time.monotonic() - renewed_s > _RENEW_S:
                    renewed_s = time.monotonic()
                    self._renew()
                if self._wishes.progress is not None:
                    try:
                        self._tell(self._progress(record))
                    except Exception as error:
                        # The caller's own: it ends the run, and comes out where the caller waits.
                        self._spoilt = error
                        self.cancel()
                        return

    def _renew(self) -> None:
        for number, low in list(self._held.items()):
            renew = RenewLease(self._lease, self._holder, low)
            partition = self._partitions[number]
            # If it is gone, what is read stays all the same: the log of this process holds it.
            with contextlib.suppress(LowmarkError):
                self._embedded.ask(lambda partition=partition, renew=renew: partition.ask(renew))  # type: ignore[misc]

    def _tell(self, now: Progress) -> None:
        """Say how far it is; never less than before, though a task may begin anew."""
        if self._wishes.progress is None:
            return
        if self._told is not None:
            now = replace(
                now,
                bytes_done=max(now.bytes_done, self._told.bytes_done),
                partitions_done=max(now.partitions_done, self._told.partitions_done),
            )
        self._told = now
        self._wishes.progress(now)

    def _progress(self, record: RunRecord) -> Progress:
        store, done, ready, whole = self._ledgers.store, 0, 0, _whole(record)
        there = {one.path for one in store.files(run_folder(self.table.id, self.name))}
        for plan in _not_skipped(record):
            if done_path(self.table.id, self.name, plan.partition) in there:
                done, ready = done + plan.bytes, ready + 1
                continue
            path = progress_path(self.table.id, self.name, plan.partition)
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


def _not_skipped(record: RunRecord) -> list[PartitionPlan]:
    return [one for one in record.partitions if one.state != "skipped"]


def _whole(record: RunRecord) -> Progress:
    """Of a run that has done all of its plan."""
    plans = _not_skipped(record)
    total = sum(one.bytes for one in plans)
    return Progress("done", total, total, len(plans), len(plans))


def _lease_of(run: str) -> str:
    return f"compaction {run}"


def _holder_of(run: str) -> int:
    """The same in every process: whoever resumes a run, or gives it up, can end its leases."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=7).digest(), "little")


def _written(record: RunRecord, done: Done) -> PartitionPlan:
    """A partition's plan with what became of it."""
    plan = record.partition(done.partition)
    assert plan is not None
    return msgspec.structs.replace(
        plan,
        state="written",
        manifest=done.manifest,
        horizon=done.horizon,
        rows_read=done.rows_read,
        rows_live=done.rows_live,
        rows_died=done.rows_died,
        deletes=done.deletes,
        deletes_dropped=done.deletes_dropped,
        bytes_read=done.bytes_read,
        bytes_written=done.bytes_written,
        files_written=done.files_written,
        ledger_bytes=done.ledger_bytes,
        rows_checked=done.rows_checked,
    )


def _anew(plan: PartitionPlan) -> PartitionPlan:
    return PartitionPlan(partition=plan.partition)


def _packed(works: Sequence[Work], slots: int) -> list[list[Work]]:
    """As many packs as there are slots, about equally heavy: the heaviest first, each into the
    lightest pack.
    """
    packs: list[list[Work]] = [[] for _ in range(max(1, min(slots, len(works))))]
    weights = [0] * len(packs)
    for work in sorted(works, key=lambda one: (-one.tail.size, one.partition)):
        at = weights.index(min(weights))
        packs[at].append(work)
        weights[at] += work.tail.size + 1
    return packs


def _shared(work: Work, tasks: int) -> Work:
    """With its share of the rates."""
    return msgspec.structs.replace(
        work,
        read_rate=max(1, work.read_rate // tasks) if work.read_rate else 0,
        write_rate=max(1, work.write_rate // tasks) if work.write_rate else 0,
    )
