"""`lowmark ledger`: the compacted form of a table's partitions, in files for any program.

`verify` finds what is missing or damaged, and `rebuild` makes it again; `reconcile` sets right a
metastore that is behind; `sweep` removes files that nothing refers to.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from lowmark.cli.compact import shown_progress
from lowmark.cli.database import DatabaseOption, TableArgument, opened_database
from lowmark.cli.formatting import (
    facts_of,
    lost_facts,
    lost_text,
    rebuilt_facts,
    reconciled_facts,
    show_rebuilt,
    show_reconciled,
    show_verdicts,
    verdict_facts,
)
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import FAILED, help_if_bare
from lowmark.client import LedgerDescription
from lowmark.formatting import bytes_text, counted, time_text, verb
from lowmark.ledger import LedgerFile, Manifest

app = typer.Typer(invoke_without_command=True)

PartitionOption = Annotated[
    list[int] | None,
    typer.Option(min=0, metavar="N", help="Only this partition; repeatable."),
]


@app.callback()
def ledger(ctx: typer.Context) -> None:
    """Show, verify and rebuild ledgers, the compacted form of a table."""
    help_if_bare(ctx)


@app.command()
def show(
    ctx: typer.Context,
    table: TableArgument,
    partition: PartitionOption = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show the ledger of each partition: its horizon, its files, and the run that made it.

    Readers use the ledger that the partition has adopted; a newer one may be published already.
    Other programs can open the manifest and the files. Ledgers that were replaced are listed until
    their files are removed, with what they wait for.

    With --json, a list: partition, epoch, published_epoch, horizon, deletes_below, manifest,
    digest, rows, live_rows, deletes, bytes, made_by, made_at, release, problem, lost (first, last,
    rows, stale), layouts (schema, columns: id, name, type, key, filling), files (path, keys_path,
    rows, live_rows, deletes, bytes, keys_bytes, schema_version, first, last), retired (epoch,
    manifest, retired_at, by, removable_at, waits_for).

    Example: lowmark ledger show orders --partition 0 --data ./shop
    """
    with opened_database(ctx, data) as database:
        found = database.table(table).ledgers(partition)
    described = [_facts(one) for one in found]
    if as_json:
        show_json(described)
        return
    for nth, one in enumerate(described):
        if nth:
            print()
        _show(one)


@app.command()
def verify(
    ctx: typer.Context,
    table: TableArgument,
    partition: PartitionOption = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Read all ledgers, and check that they are as they were written.

    The command computes every checksum: of manifests, of files, of their footers and columns, of
    indexes of keys; and the digest of the rows that count. The exit code is 1 if a ledger is not
    sound; `lowmark ledger rebuild` makes it again.

    With --json, a list: partition, epoch (null without a ledger), horizon, manifest, sound, files,
    rows, live_rows, bytes, lost (first, last, rows, stale), problems (path, what: manifest, rows or
    keys, missing, why).

    Example: lowmark ledger verify orders --data ./shop
    """
    with (
        opened_database(ctx, data) as database,
        shown_progress(here=True, words="verifying") as told,
    ):
        found = database.table(table).verify_ledgers(partition, progress=told.progress)
    if as_json:
        show_json([verdict_facts(one) for one in found])
    else:
        show_verdicts(found)
    if not all(one.sound for one in found):
        raise typer.Exit(FAILED)


@app.command()
def rebuild(
    ctx: typer.Context,
    table: TableArgument,
    partition: PartitionOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would do; change nothing.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Leave out what can't be brought back, for good."),
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Rebuild ledgers that are missing or damaged; sound ones are left alone.

    Rows come from the sound files of the ledger, from the backlog, or from a ledger that was
    replaced and is still there. If some can't be brought back, nothing is changed, and the error
    says which. With --accept-loss they are left out: the new ledger says so, and a reader that
    comes across them gets an error. Until the new ledger is there, readers get the error that names
    the damage.

    With --json, a list: partition, source (none, sound, published, adopted, keys, backlog, retired,
    files or salvage), problems (path, what, missing, why), base, low, horizon, lost (first, last,
    rows, stale), epoch, manifest, live_rows, same (whether the rows are those of before).

    Example: lowmark ledger rebuild orders --dry-run --data ./shop
    """
    with (
        opened_database(ctx, data) as database,
        shown_progress(here=True, words="verifying") as told,
    ):
        found = database.table(table).rebuild_ledger(
            partition,
            dry_run=dry_run,
            accept_loss=accept_loss,
            progress=told.progress,
            step=told.step,
        )
    if as_json:
        show_json([rebuilt_facts(one) for one in found])
    else:
        show_rebuilt(found, table=table, dry_run=dry_run)


@app.command()
def location(
    ctx: typer.Context,
    location: Annotated[
        str | None, typer.Argument(metavar="[LOCATION]", help="The same place, reached otherwise.")
    ] = None,
    claim: Annotated[
        bool,
        typer.Option(
            "--claim", help="Take the place though it lacks this database's mark: it was emptied."
        ),
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show where ledgers are, or alter how that place is reached.

    The place is settled when a database is made; what stands behind the question mark of its URL,
    such as the endpoint, may change. Keys that a database of an earlier release has in its location
    are never shown, and go when a location is given: give the one that is shown to have them go.
    Processes that have the database open go on as before until they open it again.

    Ledgers are read and written only where the file `database` says that they are this database's.
    With --claim it is written anew, for a place whose content is lost for good: what was there is
    `LedgerLost` from then on, and `lowmark ledger rebuild` makes again what can be made.

    With --json, one object: location.

    Example: lowmark ledger location "s3://ledgers/shop?region=eu" --data ./shop
    """
    with opened_database(ctx, data) as database:
        if location is not None or claim:
            database.set_ledger_location(location or database.ledger_location, claim=claim)
        shown = database.ledger_location if location is None else location
    if as_json:
        show_json({"location": shown})
    else:
        print(shown)


@app.command()
def reconcile(
    ctx: typer.Context, table: TableArgument, data: DatabaseOption = None, as_json: Json = False
) -> None:
    """Set the metastore's pointers to what the partitions have adopted, where they are behind.

    A metastore that was restored from a backup names older ledgers than the partitions have, and
    compaction stops at that. What the partitions have adopted is what all readers read; it is not
    changed. If a manifest can't be read, nothing is changed: rebuild the ledger first.

    With --json, a list: partition, state (same, ahead, none or changed), adopted_epoch,
    before_epoch, before_manifest, after_epoch, after_manifest.

    Example: lowmark ledger reconcile orders --data ./shop
    """
    with opened_database(ctx, data) as database:
        found = database.table(table).reconcile_ledgers()
    if as_json:
        show_json([reconciled_facts(one) for one in found])
    else:
        show_reconciled(found, table=table)


@app.command()
def sweep(
    ctx: typer.Context,
    table: TableArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files; remove nothing.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Remove files of a table's ledgers that no ledger and no run names any more, and list them.

    Every run does that at its end. A ledger that was replaced is named until its grace time
    (ledger.grace_ms) is over and no reader reads it; a run that can be resumed names all it wrote.

    With --json, one object: table, dry_run, files.

    Example: lowmark ledger sweep orders --dry-run --data ./shop
    """
    with opened_database(ctx, data) as database:
        gone = database.table(table).sweep(dry_run=dry_run)
    if as_json:
        show_json({"table": table, "dry_run": dry_run, "files": gone})
        return
    for path in gone:
        print(path)
    if not gone:
        print("nothing to remove")
    else:
        be = "would be" if dry_run else verb(len(gone), "were")
        print(f"{counted(len(gone), 'file')} {be} removed")


def _facts(one: LedgerDescription) -> dict[str, Any]:
    """A ledger, in values that JSON has."""
    adopted, published, manifest = one.adopted, one.published, one.manifest
    shown = adopted or published
    facts: dict[str, Any] = {
        "partition": one.partition,
        "epoch": None if adopted is None else adopted.epoch,
        "published_epoch": None if published is None else published.epoch,
        "horizon": 0 if shown is None else shown.horizon,
        "deletes_below": 0 if shown is None else shown.deletes_below,
        "manifest": one.location or None,
        "problem": one.problem or None,
    }
    if manifest is not None:
        facts |= _manifest_facts(manifest)
    files = manifest.files if manifest is not None else ()
    facts["files"] = [
        _file_facts(path, keys, file)
        for path, keys, file in zip(one.files, one.key_files, files, strict=True)
    ]
    facts["retired"] = [
        facts_of(old, "epoch manifest")
        | {
            "retired_at": time_text(old.retired_at_ms),
            "by": old.by,
            "removable_at": time_text(old.removable_at_ms),
            "waits_for": old.waits_for,
        }
        for old in one.retired
    ]
    return facts


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    return {
        **facts_of(manifest, "digest rows live_rows"),
        "deletes": manifest.live_deletes,
        **facts_of(manifest, "bytes made_by made_at release"),
        "lost": [lost_facts(lost) for lost in manifest.lost],
        "layouts": [msgspec.to_builtins(layout) for layout in manifest.layouts],
    }


def _file_facts(path: str, keys: str, file: LedgerFile) -> dict[str, Any]:
    return {
        "path": path,
        "keys_path": keys or None,
        **facts_of(file, "rows live_rows"),
        "deletes": file.live_deletes,
        **facts_of(file, "bytes keys_bytes"),
        "schema_version": file.schema,
        **facts_of(file, "first last"),
    }


# -- for people ---------------------------------------------------------------------------------

_FILE_COLUMNS = ("path", "rows", "live_rows", "deletes", "bytes", "schema_version", "first", "last")


def _show(one: dict[str, Any]) -> None:
    if one["manifest"] is None:
        print(f"partition {one['partition']} has no ledger: all its rows are in the backlog")
        return
    facts: dict[str, Cell] = {
        "partition": one["partition"],
        "epoch": _epoch(one),
        "horizon": f"{one['horizon']:,}: it has all offsets below",
        "deletes_below": f"{one['deletes_below']:,}: deletes below may be gone",
        "manifest": one["manifest"],
    }
    if one["problem"]:
        facts["problem"] = one["problem"]
    else:
        facts |= {
            "live_rows": f"{one['live_rows']:,} of {one['rows']:,} in its files",
            "deletes": f"{one['deletes']:,}, for readers that have not passed them",
            "bytes": bytes_text(one["bytes"]),
            "digest": one["digest"],
            "made_by": f"run {one['made_by']}, {one['made_at']}, release {one['release']}",
        }
        if one["lost"]:
            facts["lost"] = "; ".join(lost_text(lost) for lost in one["lost"])
    show_facts(facts, as_json=False)
    if one["files"]:
        print()
        show_table(one["files"], columns=_FILE_COLUMNS, as_json=False, title="files")
    if one["retired"]:
        print()
        title = "replaced, and not removed yet"
        show_table(one["retired"], columns=list(one["retired"][0]), as_json=False, title=title)


def _epoch(one: dict[str, Any]) -> str:
    adopted, published = one["epoch"], one["published_epoch"]
    if adopted == published:
        return str(adopted)
    if adopted is None:
        return f"{published} was published, and is not adopted yet: the next run does that"
    return f"{adopted} is adopted, {published} was published"
