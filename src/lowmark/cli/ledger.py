"""`lowmark ledger`: the compacted form of a table's partitions, in files that anybody can read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lowmark.cli.database import DatabaseOption, TableArgument, bytes_text, opened_database
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table, time_text
from lowmark.cli.session import help_if_bare
from lowmark.client import LedgerDescription
from lowmark.ledger import LedgerFile, Manifest

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True)

PartitionOption = Annotated[
    list[int] | None,
    typer.Option(min=0, metavar="N", help="Only this one; may be given several times."),
]


@app.callback()
def ledger(ctx: typer.Context) -> None:
    """Look at ledgers: what compaction has made of a table's partitions."""
    help_if_bare(ctx)


@app.command()
def show(
    ctx: typer.Context,
    table: TableArgument,
    partition: PartitionOption = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show the ledger of each partition: up to where it goes, its files, who made it and when.

    Reads go by what the partition has adopted; what was published may be ahead of that. The
    manifest and the files can be opened by other programs. Ledgers that were replaced are listed
    until their files go, with what they wait for.

    With --json, a list: partition, epoch, published_epoch, horizon, deletes_below, manifest,
    digest, rows, live_rows, bytes, made_by, made_at, release, problem, files (path, rows,
    live_rows, bytes, keys_bytes, schema_version, first, last), retired (epoch, manifest,
    retired_at, by, removable_at, waits_for).

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
    facts["files"] = [_file_facts(path, file) for path, file in zip(one.files, files, strict=True)]
    facts["retired"] = [
        {
            "epoch": old.epoch,
            "manifest": old.manifest,
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
        "digest": manifest.digest,
        "rows": manifest.rows,
        "live_rows": manifest.live_rows,
        "bytes": manifest.bytes,
        "made_by": manifest.made_by,
        "made_at": manifest.made_at,
        "release": manifest.release,
    }


def _file_facts(path: str, file: LedgerFile) -> dict[str, Any]:
    return {
        "path": path,
        "rows": file.rows,
        "live_rows": file.live_rows,
        "bytes": file.bytes,
        "keys_bytes": file.keys_bytes,
        "schema_version": file.schema,
        "first": file.first,
        "last": file.last,
    }


# -- for people ---------------------------------------------------------------------------------

_FILE_COLUMNS = ("path", "rows", "live_rows", "bytes", "schema_version", "first", "last")


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
            "bytes": bytes_text(one["bytes"]),
            "digest": one["digest"],
            "made_by": f"run {one['made_by']}, {one['made_at']}, release {one['release']}",
        }
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
