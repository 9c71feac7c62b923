"""The runs of compaction of one database: begins them, goes on with them, gives them up.

For each table there is one run at a time, in all processes (see `claims`); the second one is
refused, and the error names the first. A run that was interrupted stays until it is resumed,
cancelled, or given up for another one: as long as it is known, no sweep removes its files. When the
database is closed, runs end and stay to be resumed.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from lowmark.backend.errors import Closed, RunUnderWay
from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend, HasBackend
from lowmark.backend.values import Hold
from lowmark.catalog import Table, TableId
from lowmark.compaction.claims import Claims, HeldClaim, SeenClaim
from lowmark.compaction.context import CancelToken, RunContext, RunOptions, leave_word
from lowmark.compaction.holds import release_of
from lowmark.compaction.records import Records
from lowmark.compaction.sweep import sweep, sweep_dropped
from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.faces import deferred
from lowmark.ledger import REBUILD, RunRecord
from lowmark.ledger.claim import check_claim
from lowmark.ledger.manifest import is_run, run_folder, table_folder
from lowmark.ledger.records import UNDECIDED

if TYPE_CHECKING:
    from lowmark.compaction.description import LedgerDescription, describe_ledgers
    from lowmark.compaction.run import Run, check_wanted
    from lowmark.compaction.runner import OwnSpark, Runner
    from lowmark.compaction.schemas import SchemasTrimmed, look_at_schemas, trim_schemas
else:
    (describe_ledgers,) = deferred("lowmark.compaction.description", "describe_ledgers")
    Run, check_wanted = deferred("lowmark.compaction.run", "Run", "check_wanted")
    (OwnSpark,) = deferred("lowmark.compaction.runner", "OwnSpark")
    look_at_schemas, trim_schemas = deferred(
        "lowmark.compaction.schemas", "look_at_schemas", "trim_schemas"
    )

_STOP_S = 20.0


class Compactor:
    """Makes the runs of one database, one at a time for each table.

    A run that is under way ends with its backend; the next one works with the backend of then.
    """

    def __init__(self, session: HasBackend, ledgers: Ledgers) -> None:
        self._session = session
        self.ledgers = ledgers
        self.records = Records(session)
        self.claims = Claims(session)
        self._spark: OwnSpark | None = None
        self._lock = threading.Lock()
        self._active: dict[int, Run] = {}
        self._held: dict[int, HeldClaim] = {}
        """The claims of those."""
        self._changed = threading.Condition(self._lock)
        self._closing = False

    @property
    def backend(self) -> Backend:
        """The backend of now."""
        return self._session.backend

    @property
    def spark(self) -> OwnSpark:
        """The session that this process opens for its runs."""
        with self._lock:
            if self._spark is None:
                self._spark = OwnSpark()
            return self._spark

    # -- from outside ---------------------------------------------------------------------------

    def plan(self, table: Table, partitions: Collection[int], options: RunOptions) -> RunRecord:
        """What a run would do: nothing is written, nothing is held."""
        return self._run(table, partitions, options).plan(dry=True)

    def compact(
        self,
        table: Table,
        partitions: Collection[int],
        runner: Callable[[], Runner],
        options: RunOptions,
        *,
        over: SeenClaim | None = None,
    ) -> RunRecord:
        """Make a run; gives what it did. Without anything to do, nothing is begun, and the state
        says why. `over`: see `only`.
        """
        run = self._run(table, partitions, options)
        with self.only(run, over=over) as before:
            record = self._planned(run, before)
            if record.state != "planned":
                return run.finish_published(record)
            return run.go(record, runner)

    def detach(self, table: Table, partitions: Collection[int], options: RunOptions) -> RunRecord:
        """Plan a run for a worker to carry out; gives the plan, which waits until one does. Without
        anything to do, nothing waits, and the state says why.

        1. the claim of the table is taken, as one for workers
        2. the plan is noted
        3. the claim has no holder: the next worker that looks takes it. If this process dies before
           that, or no node answers it, workers find the plan when the claim's lease is over, or
           find that there is none
        """
        run = self._run(table, partitions, options)
        with self.only(run, detached=True) as before:
            waits = self.records.find_run(table.id, before.claim.run) if before.claim else None
            if waits is not None and waits.state == "planned":
                raise RunUnderWay(table.name, waits.run)  # it may have been asked for other things
            record = self._planned(run, before)
            if record.state == "planned":
                run.context.step("note the plan")
                self.records.put_run(record)
                run.context.step("leave it to a worker")
        return record

    def _planned(self, run: Run, before: SeenClaim) -> RunRecord:
        """The plan of a run, in the place of those that were interrupted or wait for a worker. One
        that has nothing to do leaves to workers what was left to them.
        """
        record = run.plan()
        nothing = all(one.state == "skipped" for one in record.partitions)
        left = before.claim.run if before.claim is not None and before.detached else ""
        if self.give_up_others(record, spared=left if nothing else ""):
            # Before it writes: else a run that is interrupted each time would fill the disk.
            with contextlib.suppress(Corrupt):  # a ledger that can't be read, the run tells of
                self.sweep(run.table)
        if nothing:
            record = msgspec.structs.replace(
                record,
                state="too young" if record.too_young_rows else "nothing",
                ended_at_ms=record.began_at_ms,
            )
        return record

    def context(
        self, table: Table, partitions: Collection[int], options: RunOptions, *, run: str = ""
    ) -> RunContext:
        """What a run works with; without a name it is a new one."""
        name = run or f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        return RunContext(
            self.backend,
            self.ledgers,
            self.records,
            table,
            tuple(partitions),
            options,
            name,
            CancelToken(f"run {name}"),
        )

    def _run(
        self, table: Table, partitions: Collection[int], options: RunOptions, *, run: str = ""
    ) -> Run:
        return Run(self.context(table, partitions, options, run=run), sweep=self.sweep)

    def give_up_others(
        self, record: RunRecord, *, trigger: str | None = None, spared: str = ""
    ) -> bool:
        """Runs of the table that were interrupted: this one does what they would have done.

        With a trigger, only those that had it; never the run that is `spared`. Says whether there
        were any.
        """
        found = False
        for one in self.records.runs(record.table):
            if trigger is not None and one.trigger != trigger:
                continue
            if one.state in UNDECIDED and one.run not in {record.run, spared}:
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
        runner: Callable[[], Runner],
        options: RunOptions,
        *,
        run: str,
        over: SeenClaim | None = None,
    ) -> RunRecord:
        """Go on with a run that was interrupted, or begin one that waits for a worker; what is
        finished is not done again. `over`: see `only`.
        """
        check_wanted(table)
        record = self.records.run(table.id, run)
        wanted = [one.partition for one in record.partitions]
        options = _as_before(options, record)
        one = self._run(table, wanted, options, run=run)
        with self.only(one, over=over):
            record = self.records.run(table.id, run)  # no other call gives it up from here on
            if record.state not in UNDECIDED:
                raise Rejected(f"run {run} is {record.state}", hint="Begin another one.")
            if record.trigger == REBUILD:
                raise Rejected(
                    f"run {run} rebuilds ledgers and is not a compaction",
                    hint="Run `lowmark ledger rebuild` again: it goes on from what is there.",
                )
            again = msgspec.structs.replace(
                record,
                resumed=record.resumed + (record.state != "planned"),
                state="running",
                ended_at_ms=0,
                error="",
                read=options.read or "auto",
                read_rate=options.read_rate or 0,
                write_rate=options.write_rate or 0,
            )
            self._release_leases(record)
            return one.go(again, runner, waited=record.state == "planned")

    def cancel(self, table: Table, run: str, *, over: SeenClaim | None = None) -> RunRecord:
        """End a run that goes on, here or in another process, or give up one that was interrupted
        or waits for a worker.

        One that goes on is asked to end: it is noted as running until it does. `over`: see `only`.
        """
        active = self._active.get(table.id)
        if active is not None and active.name == run:
            active.context.token.cancel()
            return self.records.run(table.id, run)
        if over is None and run_folder(table.id, run) in self._under_way():
            self.claims.ask_to_end(table.id, run)
            with contextlib.suppress(LowmarkError):  # the folder may be on another machine
                leave_word(self.ledgers.store, run_folder(table.id, run))
            return self.records.run(table.id, run)
        # It must not be resumed while it is given up: its files go.
        with self.only(self._run(table, (), RunOptions()), over=over):
            record = self.records.run(table.id, run)
            if record.state not in UNDECIDED:
                raise Rejected(f"run {run} is {record.state}", hint="There is nothing to cancel.")
            ended = msgspec.structs.replace(
                record, state="cancelled", ended_at_ms=self.backend.now().wall_ms
            )
            self.records.put_run(ended)
            self._release_leases(ended)
            self.sweep(table)
        return ended

    def _release_leases(self, run: RunRecord) -> None:
        """Hold nothing any more for a run whose process has ended before it could let go."""
        table, release = TableId(run.table), release_of(run.run)
        with contextlib.suppress(LowmarkError):  # they end by themselves, later
            there = self.backend.status(table, latest=False)
            self.backend.propose(table, dict.fromkeys(there, release))

    def sweep(self, table: Table, *, dry_run: bool = False) -> list[str]:
        """Remove files of a table that nothing names; gives which. And what is left of tables that
        were dropped. A dry run only says what would go.
        """
        self._check_place()  # what lies in another database's place has no name here, and would go
        gone = sweep(self.backend, self.ledgers, self.records, table.id, dry_run=dry_run)
        if not dry_run:
            self.sweep_dropped()
        return gone

    def trim_schemas(self, table: Table, *, dry_run: bool = False) -> SchemasTrimmed:
        """Forget schema versions of a table that nothing needs; says what needs the others.

        Files of ledgers that nothing names are swept first, for they would need theirs.
        """
        run = self._run(table, (), RunOptions())
        if not dry_run:
            self.sweep(table)
        seen = look_at_schemas(run.context, all_of=dry_run)
        if dry_run or not seen.trimmed:
            return seen  # nothing is written for nothing
        with self.only(run):
            return trim_schemas(run.context)

    def sweep_dropped(self) -> None:
        """Remove what is left of tables that were dropped, once no read can look back to them."""
        sweep_dropped(
            self.backend,
            self.ledgers,
            self.records,
            busy=set(self._active),
            check_place=self._check_place,
        )

    def describe(self, table: Table, partitions: Collection[int]) -> list[LedgerDescription]:
        """What the ledgers of partitions consist of, and which older ones wait to be removed."""
        return describe_ledgers(self.context(table, partitions, RunOptions()))

    def run(self, table: int, run: str) -> RunRecord:
        """A run by its name."""
        return self._as_it_is(self.records.run(table, run))

    def runs(self, table: int | None = None) -> list[RunRecord]:
        """All runs that are known, of one table or of all; the newest first."""
        return [self._as_it_is(one) for one in self.records.runs(table)]

    def _as_it_is(self, record: RunRecord) -> RunRecord:
        """One that is noted as running goes on in a process that says so, or nowhere."""
        folder = run_folder(record.table, record.run)
        for _ in range(2):
            if record.state != "running" or folder in self._under_way():
                return record
            # It may have ended since it was read, and before it was asked for.
            record = self.records.run(record.table, record.run)
        return msgspec.structs.replace(record, state="interrupted")

    def _under_way(self) -> set[str]:
        """The folders of runs that go on, in any process: each holds its own as long as it does.

        When the owner of a directory was killed, a hold may be unknown until its process is next
        heard of. A run that is given up meanwhile ends, and publishes nothing (`Records.publish`).
        """
        return {name for name in self.backend.files_in_use() if is_run(name)}

    def active(self, table: int) -> str | None:
        """The run that compacts a table right now."""
        run = self._active.get(table)
        return None if run is None else run.name

    @property
    def closing(self) -> bool:
        """Whether the database is about to be closed: no run begins any more."""
        return self._closing

    def finish(self) -> None:
        """The database is about to be closed: runs end, and stay to be resumed; then Spark ends."""
        with self._lock:
            self._closing = True
            runs = list(self._active.values())
        for run in runs:
            run.context.token.interrupt()
        with self._lock:
            self._changed.wait_for(self._is_idle, _STOP_S)
            left = list(self._held.values())
        for held in left:  # of a run that can't end before this does, or does not
            self._give_back(held)
        if self._spark is not None:
            self._spark.finish()

    def _is_idle(self) -> bool:
        """Whether all runs have ended but one that closes the database itself, in a step."""
        me = threading.get_ident()
        return all(run.thread == me for run in self._active.values())

    @contextlib.contextmanager
    def only(
        self, run: Run, *, over: SeenClaim | None = None, detached: bool = False
    ) -> Iterator[SeenClaim]:
        """While it goes on, no other run of its table can, in any process; gives the claim that it
        has taken the place of.

        A table that another process is known to compact is refused. A worker takes a claim `over`
        that it has seen unchanged for its lease, whatever is known of the process that had it.
        """
        table = run.table
        with self._lock:
            if self._closing:
                raise Closed(self.backend.info.name)
            other = self._active.get(table.id)
            if other is not None:
                raise RunUnderWay(table.name, other.name)
            self._active[table.id] = run
        hold = Hold.drawn()
        mine = run_folder(table.id, run.name)
        try:
            self._check_place()
            seen = self.claims.of(table.id) if over is None else over
            gone = over.claim.run if over is not None and over.claim is not None else None
            # Looked at before, for another process may resume the same run, and after: of two that
            # begin at a time, at least one sees the other, also if it knows of no claims.
            self._check_elsewhere(table, self._under_way(), seen, gone=gone)
            self.backend.hold_files([mine], hold=hold)
            self._check_elsewhere(table, self._under_way() - {mine}, seen, gone=gone)
            if seen.claim is not None and seen.claim.run == run.name:
                detached = detached or seen.claim.detached
            with self._claimed(run, seen, detached=detached):
                yield seen
        finally:
            self.backend.release(hold)
            with self._lock:
                del self._active[table.id]
                self._changed.notify_all()

    def _check_place(self) -> None:
        """Refuse to write ledgers to a place that the nodes do not read them from, or to remove
        any there.
        """
        info = self.backend.info
        if info.ledgers_claimed:
            check_claim(self.ledgers.store, info.cluster)

    @contextlib.contextmanager
    def _claimed(self, run: Run, seen: SeenClaim, *, detached: bool) -> Iterator[None]:
        """While it goes on, the claim of its table is ours; then it is given back."""
        table, token = run.table.id, run.context.token
        held = self.claims.take(
            table, run.name, seen, lease_ms=run.context.options.lease_ms, detached=detached
        )
        if held is None:
            now = self.claims.of(table).claim
            raise RunUnderWay(run.table.name, run.name if now is None else now.run)
        self._held[table] = held
        try:
            renewed = self.claims.renewed(held, on_asked=token.cancel, on_lost=token.take_over)
            with renewed, self.records.fenced(held):
                yield
        finally:
            self._give_back(held)
            del self._held[table]

    def _give_back(self, held: HeldClaim) -> None:
        """Leave a claim to the run that stays to be made, or resumed: its own, or the one that it
        was taken from; or else remove it.

        It never raises: what is not given back ends with its lease.
        """
        with contextlib.suppress(LowmarkError):
            for claim in (held.claim, held.over.claim):
                if claim is None:
                    continue
                record = self.records.find_run(held.table, claim.run)
                if record is not None and record.state in {"planned", "running"}:
                    self.claims.give_back(held, left=claim)
                    return
            self.claims.give_back(held)

    def _check_elsewhere(
        self, table: Table, under_way: set[str], seen: SeenClaim, *, gone: str | None
    ) -> None:
        """Refuse a run of a table that another process compacts. The files of the run of a process
        that is `gone` may still be held for it.
        """
        for folder in sorted(under_way):
            run = folder.rpartition("/")[2]
            if not folder.startswith(f"{table_folder(table.id)}/") or run == gone:
                continue
            if not (seen.held and seen.claim is not None and seen.claim.run == run):
                record = self.records.find_run(table.id, run)
                if record is not None and record.state not in UNDECIDED:
                    continue  # it is over, and its process has died before it could let go
            raise RunUnderWay(table.name, run)


def _as_before(options: RunOptions, record: RunRecord) -> RunOptions:
    return replace(
        options,
        verify=record.verify,
        trim=record.trim,
        rewrite=record.rewrite,
        read=record.read if options.read is None else options.read,
        read_rate=record.read_rate if options.read_rate is None else options.read_rate,
        write_rate=record.write_rate if options.write_rate is None else options.write_rate,
        trigger=record.trigger,
    )
