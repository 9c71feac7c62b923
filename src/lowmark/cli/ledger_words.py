"""How the state of ledgers, and what was done about it, looks: as JSON, and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lowmark.cli.database import bytes_text
from lowmark.cli.output import Cell, show_table
from lowmark.client import LedgerVerdict, Lost, Problem, Rebuilt, Reconciled
from lowmark.formatting import counted

_SOURCES = {
    "none": "it has no ledger",
    "sound": "it is sound",
    "published": "a newer one was published and is sound: it is adopted",
    "adopted": "the adopted one is sound: it is published again",
    "keys": "its rows are sound: indexes of keys are made again",
    "backlog": "the backlog has everything: it is folded again",
    "retired": "one that was replaced is whole: on from there",
    "files": "its manifest is gone, and its files come to what was adopted",
    "salvage": "what is sound of it is kept",
}


# -- as JSON ------------------------------------------------------------------------------------


def lost_facts(lost: Lost) -> dict[str, Any]:
    """Offsets whose rows are lost."""
    return msgspec.structs.asdict(lost)


def _problem_facts(problem: Problem) -> dict[str, Any]:
    return {
        "path": problem.path,
        "what": problem.what,
        "missing": problem.missing,
        "why": problem.why,
    }


def verdict_facts(one: LedgerVerdict) -> dict[str, Any]:
    """A ledger that was read."""
    return {
        "partition": one.partition,
        "epoch": one.epoch,
        "horizon": one.horizon,
        "manifest": one.manifest or None,
        "sound": one.sound,
        "files": one.files,
        "rows": one.rows,
        "live_rows": one.live_rows,
        "bytes": one.bytes,
        "lost": [lost_facts(lost) for lost in one.lost],
        "problems": [_problem_facts(problem) for problem in one.problems],
    }


def rebuilt_facts(one: Rebuilt) -> dict[str, Any]:
    """A ledger that was, or would be, made again."""
    return {
        "partition": one.partition,
        "source": one.source,
        "problems": [_problem_facts(problem) for problem in one.problems],
        "base": one.base or None,
        "low": one.low,
        "horizon": one.horizon,
        "lost": [lost_facts(lost) for lost in one.lost],
        "epoch": one.epoch or None,
        "manifest": one.manifest or None,
        "live_rows": one.live_rows,
        "same": one.same,
    }


def reconciled_facts(one: Reconciled) -> dict[str, Any]:
    """A pointer, before and after."""
    before, after = one.before, one.after
    return {
        "partition": one.partition,
        "state": one.state,
        "adopted_epoch": None if one.adopted is None else one.adopted.epoch,
        "before_epoch": None if before is None else before.epoch,
        "before_manifest": None if before is None else before.manifest,
        "after_epoch": None if after is None else after.epoch,
        "after_manifest": None if after is None else after.manifest,
    }


# -- for people ---------------------------------------------------------------------------------


def lost_text(lost: dict[str, Any]) -> str:
    """What is lost, in words."""
    rows = "rows" if lost["rows"] is None else f"up to {counted(lost['rows'], 'row')}"
    words = f"{rows} at offsets {lost['first']:,} to {lost['last']:,}"
    return f"{words}; rows before them may be old" if lost["stale"] else words


def show_verdicts(found: Sequence[LedgerVerdict]) -> None:
    """Which ledgers are sound, and what is wrong with the others."""
    rows: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "epoch": one.epoch,
            "horizon": one.horizon,
            "files": one.files,
            "live_rows": one.live_rows,
            "bytes": bytes_text(one.bytes),
            "sound": "no" if not one.sound else "yes" if one.epoch is not None else None,
        }
        for one in found
    ]
    show_table(rows, columns=list(rows[0]) if rows else (), as_json=False)
    print()
    for one in found:
        for problem in one.problems:
            print(f"partition {one.partition}: {problem}")
        for lost in one.lost:
            print(f"partition {one.partition} was rebuilt without {lost_text(lost_facts(lost))}")
    bad = sum(not one.sound for one in found)
    there = sum(one.epoch is not None for one in found)
    if bad:
        print(f"{_count(bad, 'ledger')} of {there:,} can't be relied on")
    elif there:
        print(f"{_count(there, 'ledger')}: every byte is as it was written")
    else:
        print("there is no ledger: all rows are in the backlog")


def show_rebuilt(found: Sequence[Rebuilt], *, table: str, dry_run: bool) -> None:
    """What was done about each ledger, or would be."""
    rows: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "what": _SOURCES[one.source],
            "folded_from": one.low if one.done and one.low < one.horizon else None,
            "horizon": one.horizon,
            "epoch": one.epoch or None,
            "live_rows": one.live_rows,
            "same_rows": one.same,
        }
        for one in found
    ]
    unless_empty = ("folded_from", "live_rows", "same_rows")
    columns = [
        name
        for name in (rows[0] if rows else ())
        if name not in unless_empty or any(row[name] is not None for row in rows)
    ]
    show_table(rows, columns=columns, as_json=False)
    print()
    for one in found:
        for problem in one.problems:
            print(f"partition {one.partition}: {problem}")
        for lost in one.lost:
            word = "would lose" if dry_run else "has lost"
            print(f"partition {one.partition} {word} {lost_text(lost_facts(lost))}")
    done = sum(one.done for one in found)
    if not done:
        print(f"nothing to do for {table}: no ledger is missing or damaged")
    else:
        verb = "would be" if dry_run else "was" if done == 1 else "were"
        print(f"{_count(done, 'ledger')} of {table} {verb} rebuilt")


def show_reconciled(found: Sequence[Reconciled], *, table: str) -> None:
    """Which pointers were set, and from what to what."""
    rows: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "state": one.state,
            "adopted": None if one.adopted is None else one.adopted.epoch,
            "published": None if one.before is None else one.before.epoch,
            "published_now": None if one.after is None else one.after.epoch,
            "manifest": None if one.after is None else one.after.manifest,
        }
        for one in found
    ]
    show_table(rows, columns=list(rows[0]) if rows else (), as_json=False)
    print()
    changed = sum(one.state == "changed" for one in found)
    if changed:
        print(f"{_count(changed, 'pointer')} of {table} set to what the partitions have adopted")
    else:
        print(f"nothing to do for {table}: the metastore is not behind")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
