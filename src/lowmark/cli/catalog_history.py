"""`lowmark catalog compact` and `lowmark catalog explain`: how the catalog's history is cut."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from lowmark.cli.database import DatabaseOption, opened_database
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.client.catalog import CatalogExplanation, KeptVersions
from lowmark.client.database import Database
from lowmark.formatting import counted, time_text, times_text, verb
from lowmark.upkeep import Holder, Round


def compact(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and what holds the rest.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Cut the catalog's history as far as nothing in the cluster needs it.

    That happens by itself whenever the low watermark has moved. A version goes when no read, no
    transaction, no recovery of a log, no index build, no rebalance and no run of compaction can
    ask for it again.

    With --json, one object: number, trigger, node, began_ms, took_us, nodes, groups, earliest,
    version (the earliest one left), present, latest, dry_run, holders (holder, kind, version,
    since_ms, why, hint), held, error, cut.

    Example: lowmark catalog compact --dry-run --data ./shop
    """
    with opened_database(ctx, data) as database:
        made = database.catalog.compact(dry_run=dry_run)
    if as_json:
        show_json(round_facts(made))
        return
    would = "would be" if dry_run else verb(made.cut, "were")
    if made.error:
        print(f"nothing was cut: {made.error}")
    elif made.cut:
        print(
            f"{counted(made.cut, 'version')} {would} cut; the earliest one left is {made.version}"
        )
    else:
        print(f"nothing {'would be' if dry_run else 'was'} cut; the earliest is {made.version}")
    _show_holders(made.holders, made.held)


def explain(ctx: typer.Context, data: DatabaseOption = None, as_json: Json = False) -> None:
    """Say what needs each version of the catalog that is kept, since when, and what to do.

    With --json, one object: earliest, latest, would_cut, versions (first, last, present, needed_by:
    names of holders), holders (holder, kind, version, since_ms, why, hint), held.

    Example: lowmark catalog explain --data ./shop
    """
    with opened_database(ctx, data) as database:
        show_explanation(database, as_json=as_json)


def show_explanation(database: Database, *, as_json: bool) -> None:
    """What is kept of the catalog, and what needs it."""
    found = database.catalog.explain()
    if as_json:
        show_json(_explanation_facts(found))
        return
    show_facts(
        {"earliest": found.earliest, "latest": found.latest, "would_cut": found.would_cut},
        as_json=False,
    )
    rows: list[dict[str, Cell]] = [
        {"versions": _range(one), "needed_by": _needed_by(one)} for one in found.versions
    ]
    print()
    show_table(rows, columns=("versions", "needed_by"), as_json=False)
    _show_holders(found.holders, found.held)


def _range(one: KeptVersions) -> str:
    return str(one.first) if one.first == one.last else f"{one.first} to {one.last}"


def _needed_by(one: KeptVersions) -> str:
    if one.present:
        return "the present" if one.first == one.last else "the present, and what comes into force"
    if not one.needed_by:
        return "nothing: the next round cuts them"
    names = [holder.holder for holder in one.needed_by]
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _explanation_facts(found: CatalogExplanation) -> dict[str, Any]:
    return {
        "earliest": found.earliest,
        "latest": found.latest,
        "would_cut": found.would_cut,
        "versions": [
            {
                "first": one.first,
                "last": one.last,
                "present": one.present,
                "needed_by": [holder.holder for holder in one.needed_by],
            }
            for one in found.versions
        ],
        "holders": [msgspec.to_builtins(one) for one in found.holders],
        "held": found.held,
    }


def round_facts(made: Round) -> dict[str, Any]:
    """A round, for --json."""
    return {name: msgspec.to_builtins(getattr(made, name)) for name in made.__struct_fields__} | {
        "cut": made.cut
    }


def round_row(made: Round) -> dict[str, Cell]:
    """A round as a line of a table."""
    lowest = [one for one in made.holders if one.version == made.version]
    if made.error:
        result = f"failed: {made.error}"
    elif made.cut:
        result = f"{counted(made.cut, 'version')} cut, from {made.earliest} to {made.version}"
    else:
        result = f"nothing cut at {made.version}"
    return {
        "round": made.number,
        "time": time_text(made.began_ms),
        "trigger": made.trigger,
        "took_ms": round(made.took_us / 1_000, 1),
        "nodes": made.nodes,
        "copies": made.groups,
        "result": result,
        "held_by": lowest[0].holder if lowest else None,
    }


def _show_holders(holders: Sequence[Holder], held: int) -> None:
    if not holders:
        return
    now_ms = time.time() * 1_000
    rows: list[dict[str, Cell]] = [
        {
            "holder": one.holder,
            "kind": one.kind,
            "needs_from": one.version,
            "for": times_text(int(now_ms - one.since_ms)) if one.since_ms else None,
            "why": one.why,
            "what_to_do": one.hint,
        }
        for one in holders
    ]
    print()
    show_table(rows, columns=tuple(rows[0]), as_json=False)
    if held > len(holders):
        print(f"and {held - len(holders)} more")
