"""The work of a run: what is to be done to each partition, and how it is handed to a runner.

A piece of work says all that a task needs to know: what it reads, up to where, and what may go.
Pieces are packed for the slots that there are, and the run's rates are shared among the packs.
Whatever partition turns out to be damaged keeps no other from being compacted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import chain

import msgspec

from lowmark.backend.errors import SegmentsElsewhere
from lowmark.backend.passing import Given
from lowmark.backend.remote import RemoteBackend
from lowmark.catalog import Table
from lowmark.catalog.errors import VersionCompacted
from lowmark.catalog.serializers import encode_table
from lowmark.compaction.context import RunContext
from lowmark.compaction.holds import lease_of
from lowmark.compaction.plan import PlanInput, catalog_then
from lowmark.compaction.runner import Runner, work_off
from lowmark.compaction.tail_source import is_here
from lowmark.errors import Corrupt, LowmarkError
from lowmark.fault import decode_fault
from lowmark.ledger import (
    Done,
    Expected,
    Manifest,
    PartitionPlan,
    SourceMoved,
    Tail,
    Work,
    may_go_below,
    read_adopted,
)
from lowmark.runtime.store import Store
from lowmark.tokens import Right
from lowmark.version import __version__

_SMALL_BYTES = 1 << 20
"""A piece that reads no more than this takes next to nothing, but for waiting for the disk."""
_MANY = 32
"""From this many small pieces on, several are worked on at the same time."""


def work_for(context: RunContext, plan: PartitionPlan, given: PlanInput, tail: Tail) -> Work:
    """All that a task has to know of one partition."""
    table, options, backend = context.table, context.options, context.backend
    info = backend.info
    if tail and not tail.addresses and not (is_here(tail) and options.read != "flight"):
        raise SegmentsElsewhere(table.name, plan.partition, here=is_here(tail))
    base = _base(context.store, given)
    mark = _mark(plan, given, base)
    return Work(
        run=context.run,
        store=context.store.address,
        read=options.read or "auto",
        cluster=info.cluster,
        ca=backend.ca if isinstance(backend, RemoteBackend) else "",
        claimed=info.ledgers_claimed,
        lease=lease_of(context.run),
        table=encode_table(table),
        table_name=table.name,
        partition=plan.partition,
        epoch=max(plan.base_epoch, given.seen.epoch) + 1,
        base=plan.base,
        base_is=_base_is(table, plan, given),
        tail=tail,
        horizon=plan.horizon,
        schema=_schema(context, plan, given, base, mark=mark),
        deletes_below=may_go_below(given.deletes_below, horizon=plan.horizon),
        watermark=mark,
        base_bytes=base.bytes if base is not None else 0,
        expired=base.expired if base is not None else given.status.expired,
        made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        release=__version__,
        verify=options.verify,
        rewrite=options.rewrite,
        budget_bytes=options.memory_bytes,
        read_rate=options.read_rate or 0,
        write_rate=options.write_rate or 0,
    )


def _mark(plan: PartitionPlan, given: PlanInput, base: Manifest | None) -> int:
    """At or after the time of every row below the horizon, of the base's, too: a table's history
    may have been lengthened since these were planned (`lowmark.table.history`).
    """
    view, mark = given.view, given.watermark
    if base is not None:
        mark = max(mark, base.watermark)
    if view.count and plan.horizon > view.start:
        mark = max(mark, int(view.columns.time[view.batch_at(plan.horizon - 1)]))
    return mark


def _schema(
    context: RunContext, plan: PartitionPlan, given: PlanInput, base: Manifest | None, *, mark: int
) -> int:
    """The version that new files get: the one in force at the table's mark.

    A reader as of that time or later finds every column that it may ask for. Rows that
    come with a newer version were written later, but for a clock that went back. No row is written
    with a lower version than it has: that would lose columns of it, and the catalog may have
    forgotten versions below all those that rows have (`schemas`).
    """
    table, view = context.table, given.view
    at, end = view.batch_at(plan.low), view.batch_at(max(plan.horizon - 1, plan.low))
    versions = view.columns.schema[at : end + 1][: max(view.count - at, 0)]
    newest = int(versions.max()) if len(versions) and plan.rows else 0
    # If the catalog of then can't be read, the run fails: with an older version, columns would be
    # missing in its files that readers may ask for. But if it was cut off, no reader can ask for
    # columns of that time: the earliest one that is left says which there may be.
    try:
        then = catalog_then(context.backend, mark).table(table.id)
    except VersionCompacted as gone:
        if not gone.since:
            raise
        then = catalog_then(context.backend, gone.since).table(table.id)
    in_force = table.schemas[0] if then is None else then.latest
    return max(newest, in_force.number, *(base.schemas if base is not None else ()))


def _base_is(table: Table, plan: PartitionPlan, given: PlanInput) -> Expected | None:
    """What the partition has noted of the ledger that the work begins with."""
    ledger = given.ledger
    if ledger is None or ledger.manifest != plan.base:
        return None  # what a rebuild begins with: it says so itself
    return Expected.adopted(table.id, plan.partition, ledger)


def _base(store: Store, given: PlanInput) -> Manifest | None:
    """The ledger that there is; it says below which offset rows went by retention that no ledger
    has: what it cuts off a backlog below the horizon stays in the ledger.
    """
    if given.ledger is not None:
        with contextlib.suppress(Corrupt):  # told by the work, which reads it as well
            return read_adopted(store, given.ledger)
    return None


def carried_out(
    context: RunContext, works: Sequence[Work], runner: Callable[[], Runner]
) -> tuple[list[Done], dict[int, LowmarkError]]:
    """Have it done; gives the answers, and the damage that was found instead of one."""
    made = runner()
    with contextlib.ExitStack() as ends, context.token.calls(made.cancel):
        context.token.check()
        packs = _packed(works, _slots(made, works))
        shows = _shown(context, works, ends)
        share = [
            [msgspec.msgpack.encode(_shared(work, len(packs), shows)) for work in pack]
            for pack in packs
        ]
        try:
            answers = made.run(work_off, share, label=f"compact {context.table.name}")
        except SourceMoved:
            return [], {}  # the next round plans again
    found: list[Done] = []
    damaged: dict[int, LowmarkError] = {}
    for work, answer in zip(chain.from_iterable(packs), answers, strict=True):
        damage = decode_fault(answer)
        if damage is not None:
            damaged[work.partition] = damage
        else:
            found.append(msgspec.msgpack.decode(answer, type=Done))
    return found, damaged


def _shown(context: RunContext, works: Sequence[Work], ends: contextlib.ExitStack) -> str:
    """The pass of tasks that may ask a server for their tails; it ends with these tasks."""
    if all(work.read == "segments" or not work.tail.addresses for work in works):
        return ""
    return ends.enter_context(Given(context.backend, Right.RUN, context.table.id)).shown


def _slots(made: Runner, works: Sequence[Work]) -> int:
    """How many pieces are worked on at the same time."""
    if len(works) < _MANY or any(work.tail.size + work.base_bytes > _SMALL_BYTES for work in works):
        return made.slots
    return max(made.slots, getattr(made, "small_slots", 1))


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


def _shared(work: Work, tasks: int, shows: str) -> Work:
    """With its share of the rates, and the pass of the run."""
    return msgspec.structs.replace(
        work,
        shows=shows,
        read_rate=max(1, work.read_rate // tasks) if work.read_rate else 0,
        write_rate=max(1, work.write_rate // tasks) if work.write_rate else 0,
    )
