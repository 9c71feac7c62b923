"""Forgets schema versions of a table that nothing needs any more, by a command with a version of
the catalog of its own.

What needs a version: a batch of a backlog, or one that is staged; a file of a ledger that a
partition has adopted, that was published, that was replaced and is not swept yet, or that a reader
reads; a file that a run has written which can be resumed; and the low watermark: the version that
was in force then, and later ones, are never refused to a writer that is behind.

Steps, and what is true after each. They are made for all partitions of the table, under its claim.

    1. a look at all of that; if the oldest version is needed, nothing more is done
    2. each partition refuses batches below the version that was found (`KeepSchemas`), and answers
       which versions its rows need. That is an entry of its log, so the answer stays true: no
       later row has a lower version. Writers that are behind encode their rows anew
    3. a second look at the ledgers and runs. Rows that had left a backlog before step 2 are in a
       ledger by now, or expired. Ledgers to come are made of files that were seen here, and
       of rows that were counted in step 2, and no run writes a row with a lower version than the
       row has (`work`). So from here on the versions that are needed only rise
    4. the catalog forgets the others (`TrimTableSchemas`)

After a crash between them partitions refuse versions which the catalog still has. That is no harm,
and the next look goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec

from lowmark.backend.values import ALL_FILES
from lowmark.catalog.table_commands import TrimTableSchemas
from lowmark.compaction.context import RunContext
from lowmark.compaction.plan import catalog_then
from lowmark.errors import LowmarkError
from lowmark.ledger import Done, LedgerLost, done_path, read_manifest, table_folder
from lowmark.ledger.manifest import is_run
from lowmark.ledger.records import UNDECIDED
from lowmark.runtime import FileMissing
from lowmark.table import KeepSchemas, SchemasKept


class SchemaHolder(NamedTuple):
    """What needs a schema version, and so all later ones."""

    version: int
    holder: str


@dataclass(frozen=True, slots=True)
class SchemasTrimmed:
    """What became of the schema versions of a table, or would."""

    table: str
    first: int
    """The oldest one before."""
    keep_from: int
    """The oldest one that stays."""
    latest: int
    held_by: tuple[SchemaHolder, ...] = ()
    """What needs one before the latest, the lowest first; if the oldest one is needed, perhaps not
    all of it."""

    @property
    def trimmed(self) -> int:
        """This many versions went."""
        return self.keep_from - self.first


def trim_schemas(context: RunContext) -> SchemasTrimmed:
    """Steps 1 to 4."""
    seen = look_at_schemas(context)
    if not seen.trimmed:
        return seen
    table, backend = context.table, context.backend
    context.options.step("refuse old schema versions")
    keep = KeepSchemas(seen.keep_from)
    kept = backend.propose(table.id, dict.fromkeys(range(table.partitions), keep))
    answers = {number: cast("SchemasKept", answer).least for number, answer in kept.items()}
    context.options.step("look for schema versions")
    found = _summed_up(context, [*seen.held_by, *_of_backlogs(answers), *_elsewhere(context)])
    if found.trimmed:
        context.options.step("forget schema versions")
        backend.execute([TrimTableSchemas(table_id=table.id, keep_from=found.keep_from)])
    return found


def look_at_schemas(context: RunContext, *, all_of: bool = False) -> SchemasTrimmed:
    """Step 1: what may go. What costs least is looked at first, and not all of it, unless that is
    asked for, if the rest can't matter.
    """
    first, holders = context.table.schemas[0].number, list[SchemaHolder]()
    for one in _needs(context) if len(context.table.schemas) > 1 else ():
        holders.append(one)
        if one.version <= first and not all_of:
            break
    return _summed_up(context, holders)


def _summed_up(context: RunContext, holders: Iterable[SchemaHolder]) -> SchemasTrimmed:
    table = context.table
    first, latest = table.schemas[0].number, table.latest.number
    held = sorted({one for one in holders if one.version < latest})
    keep = max(held[0].version, first) if held else latest
    return SchemasTrimmed(table.name, first, keep, latest, tuple(held))


def _needs(context: RunContext) -> Iterator[SchemaHolder]:
    backend, table = context.backend, context.table
    then = catalog_then(backend, backend.watermark(latest=True).value).table(table.id)
    version = table.schemas[0].number if then is None else then.latest.number
    yield SchemaHolder(version, "the low watermark: it was in force then")
    found = backend.status(table.id, range(table.partitions))
    yield from _of_backlogs({number: one.view.least_schema for number, one in found.items()})
    yield from _elsewhere(context)


def _of_backlogs(least: dict[int, int]) -> Iterator[SchemaHolder]:
    for number, version in sorted(least.items()):
        if version:
            yield SchemaHolder(version, f"rows in the backlog of partition {number}")


def _elsewhere(context: RunContext) -> Iterator[SchemaHolder]:
    """What ledgers need, and runs."""
    backend, records, table = context.backend, context.records, context.table
    first = table.schemas[0].number
    names: dict[str, str] = {}
    for partition, epoch, retired in records.retired(table.id):
        names[retired.manifest] = f"the ledger of partition {partition}, epoch {epoch}, replaced"
    for number, pointer in records.pointers(table.id).items():
        names[pointer.manifest] = f"the ledger of partition {number}, epoch {pointer.epoch}"
    for number, one in backend.status(table.id, range(table.partitions)).items():
        if one.ledger is not None:
            epoch = one.ledger.epoch
            names[one.ledger.manifest] = f"the ledger of partition {number}, epoch {epoch}"
    # After what is adopted: a reader of an older ledger came before, or is counted with that.
    in_use = backend.files_in_use()
    if ALL_FILES in in_use:
        yield SchemaHolder(first, "readers that may read any ledger, and are not known yet")
        return
    folder = f"{table_folder(table.id)}/"
    for manifest in sorted(in_use):
        if manifest.startswith(folder) and not is_run(manifest):
            names[manifest] = f"a reader of {names.get(manifest, manifest)}"
    for manifest, holder in sorted(names.items()):
        lost_ok = holder.endswith("replaced")  # by a sweep that was interrupted
        yield from _of_manifest(context, manifest, holder, lost_ok=lost_ok)
    for record in records.runs(table.id):
        if record.state in UNDECIDED and record.run != context.run:
            for plan in record.partitions:
                path = done_path(table.id, record.run, plan.partition)
                yield from _of_run(context, path, f"run {record.run}, which is {record.state}")


def _of_run(context: RunContext, path: str, holder: str) -> Iterator[SchemaHolder]:
    """What a run has written for a partition, and would publish when it is resumed."""
    try:
        done = msgspec.json.decode(context.store.read(path), type=Done)
    except FileMissing:
        return
    except (LowmarkError, msgspec.MsgspecError):
        return  # no run could go on with it
    yield from _of_manifest(context, done.manifest, holder, lost_ok=True)


def _of_manifest(
    context: RunContext, manifest: str, holder: str, *, lost_ok: bool
) -> Iterator[SchemaHolder]:
    """What its files need; all versions, if it can't be read."""
    first = context.table.schemas[0].number
    try:
        files = read_manifest(context.store, manifest).files
    except LedgerLost as lost:
        if not lost_ok:
            yield SchemaHolder(first, f"{holder}: {lost.message}")
        return
    except LowmarkError as error:
        yield SchemaHolder(first, f"{holder}: {error.message}")
        return
    if files:
        yield SchemaHolder(min(file.schema for file in files), holder)
