"""What `lowmark log` asks of a running node: compaction and rewriting, with how far they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec
import typer
from rich.console import Console

from lowmark.cli.output import Cell, show_json, show_table
from lowmark.cli.session import FAILED
from lowmark.cli.source import node_client
from lowmark.formatting import bytes_text, counted
from lowmark.node.messages import CompactedRow, CompactLogAsk, RewriteLogAsk, RewrittenRow


@contextlib.contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is under way; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


# -- phases 1 and 3 -----------------------------------------------------------------------------


def compact_at_node(node: str, asked: CompactLogAsk, *, as_json: bool) -> None:
    """`lowmark log compact --node`."""
    found: list[CompactedRow] = []
    with node_client(node) as client, spinner() as say:
        for row in client.follow("log.compact", asked, CompactedRow):
            if row.done:
                found.append(row)
            else:
                copied = bytes_text(row.bytes_copied)
                say(f"{row.group}: {counted(row.merges, 'merge')}, {copied} copied; {row.result}")
    freed = sum(row.bytes_freed for row in found)
    if as_json:
        rows = [msgspec.to_builtins(row) for row in found]
        for one in rows:
            del one["done"]
        show_json({"dry_run": asked.dry_run, "bytes_freed": freed, "groups": rows})
    else:
        _show_compacted(found, freed, dry_run=asked.dry_run)
    if any(row.result.startswith(("refused", "failed")) for row in found):
        raise typer.Exit(FAILED)


def _show_compacted(found: list[CompactedRow], freed: int, *, dry_run: bool) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "group": row.group,
            "table": row.table or None,
            "partition": row.partition,
            "result": row.result,
            "segments": f"{row.segments_before} > {row.segments_after}",
            "before": bytes_text(row.bytes_before),
            "would_free" if dry_run else "freed": bytes_text(row.bytes_freed),
        }
        for row in found
    ]
    show_table(rows, columns=list(rows[0]) if rows else ["group"], as_json=False)
    words = "would be freed" if dry_run else "freed"
    print(f"\n{bytes_text(freed)} {words} of {counted(len(found), 'group')}")
    held: dict[str, tuple[int, int]] = {}
    for row in found:
        for kept in row.kept:
            segments, size = held.get(kept.reason, (0, 0))
            held[kept.reason] = segments + kept.segments, size + kept.bytes
    for reason, (segments, size) in sorted(held.items()):
        print(f"{counted(segments, 'segment')} ({bytes_text(size)}) kept: {reason}")
    wal = sum(row.wal_bytes for row in found)
    if wal:
        print(f"{bytes_text(wal)} in the WAL, not in segments yet")
    if any("quarantine" in row.result for row in found):
        print("`lowmark partition rebuild` rebuilds a copy in quarantine")


# -- phase 4 ------------------------------------------------------------------------------------


def rewrite_at_node(node: str | None, asked: RewriteLogAsk, *, as_json: bool) -> None:
    """`lowmark log rewrite`."""
    found: list[RewrittenRow] = []
    with node_client(node) as client, spinner() as say:
        for row in client.follow("log.rewrite", asked, RewrittenRow):
            if row.done:
                found.append(row)
            else:
                entries = f"{row.rewritten:,} of {counted(row.planned, 'entry', 'entries')}"
                say(f"partition {row.partition} at {row.node or '?'}: {row.stage}, {entries}")
    if as_json:
        rows = [msgspec.to_builtins(row) for row in found]
        for one in rows:
            del one["done"]
        show_json({"dry_run": asked.dry_run, "partitions": rows})
    else:
        _show_rewritten(found, dry_run=asked.dry_run)
    if any(row.stage == "failed" for row in found):
        raise typer.Exit(FAILED)


def _show_rewritten(found: list[RewrittenRow], *, dry_run: bool) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "partition": row.partition,
            "leader": row.node or None,
            "stage": row.stage,
            "scattered": row.planned,
            "rewritten": row.rewritten,
            "copied": bytes_text(row.bytes_rewritten),
            "before": bytes_text(row.bytes_before),
            "freed": bytes_text(row.bytes_freed),
        }
        for row in found
    ]
    if dry_run:
        for one in rows:
            for name in ("rewritten", "copied", "freed"):
                del one[name]
    show_table(rows, columns=list(rows[0]) if rows else ["partition"], as_json=False)
    for row in found:
        if row.problem:
            print(f"partition {row.partition}: {row.problem}. {row.hint}".rstrip())
    if dry_run:
        entries = counted(sum(row.planned for row in found), "entry", "entries")
        print(f"\n{entries} would be written again")
        return
    freed = bytes_text(sum(row.bytes_freed for row in found))
    entries = counted(sum(row.rewritten for row in found), "entry", "entries")
    print(f"\n{entries} written again, {freed} freed on the leaders")
