"""`lowmark log`: look into a node's log, on disk, and compact it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lowmark.cli.database import parse_size
from lowmark.cli.formatting import (
    dump_text,
    explanation_json,
    show_explanation,
    show_findings,
    terminal_bar,
)
from lowmark.cli.log_work import compact_at_node, rewrite_at_node, spinner
from lowmark.cli.output import Cell, Json, show_error, show_json, show_table
from lowmark.cli.session import FAILED, WrongUse, help_if_bare, settings_of, wrong_use
from lowmark.cli.source import NodeOption
from lowmark.errors import Rejected
from lowmark.formatting import counted
from lowmark.inspect import Finding, dump_log, verify_access, verify_log, verify_node
from lowmark.log import CompactionRun, Log, LogConfig, explain_log
from lowmark.node.directory import log_disk
from lowmark.node.messages import CompactLogAsk, RewriteLogAsk
from lowmark.runtime import RealDisk, Runtime, real_runtime

app = typer.Typer(invoke_without_command=True)

_NO_HURRY_MS = 1e11

DataPath = Annotated[Path, typer.Argument(metavar="PATH", help="The node's data directory.")]
GroupName = Annotated[str | None, typer.Option("--group", metavar="G", help="Only this group.")]


@app.callback()
def log(ctx: typer.Context) -> None:
    """Show, verify and compact the log of a node."""
    help_if_bare(ctx)


@app.command()
def verify(path: DataPath, as_json: Json = False) -> None:
    """Check every checksum, every link, every left-over, and who may look; change nothing.

    Exit code 0: all is well. 1: something is wrong, and is listed with its file, its place and what
    to do. 2: PATH is not a data directory.

    With --json, one object: path, ok, bytes, findings (kind, group, path, offset, what, hint).

    Example: lowmark log verify ./data && echo fine
    """
    disk = _disk_of(path)
    total_bytes = 0

    def seen(done: int, total: int, _: str) -> None:
        nonlocal total_bytes
        total_bytes = total
        if bar is not None and task is not None:
            bar.update(task, completed=done, total=total)

    with terminal_bar() as bar:
        task = None if bar is None else bar.add_task("verifying", total=None, beside="")
        recorded: set[str] = set()
        findings = list(verify_log(disk, seen, recorded=recorded))
        findings += list(verify_node(disk, findings, recorded=recorded))
        findings += list(verify_access(disk))
    if as_json:
        found = [asdict(finding) for finding in findings]
        ok = not findings
        show_json({"path": str(path), "ok": ok, "bytes": total_bytes, "findings": found})
    else:
        show_findings(findings, root=disk.describe(""))
        print(_verdict(path, findings, total_bytes))
    if findings:
        raise typer.Exit(FAILED)


def _verdict(path: Path, findings: list[Finding], total_bytes: int) -> str:
    if not findings:
        return f"{path}: nothing is wrong, {total_bytes:,} bytes checked"
    counts = Counter(finding.kind for finding in findings)
    return f"{path}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


@app.command()
def explain(
    ctx: typer.Context, path: DataPath, group: GroupName = None, as_json: Json = False
) -> None:
    """Show for each segment what is live in it, why it is kept, and what would be freed.

    Also for each group: its snapshot, its holders, and the last compactions with their trigger,
    cost and result. Nothing is changed.

    With --json, one object: path, groups (each with segments, merges, holds, runs), unreadable.

    Example: lowmark log explain ./data --group orders-0
    """
    with _opened(settings_of(ctx).log, path, read_only=True) as (opened, _):
        _check_group(opened, group)
        explanations = explain_log(opened, group)
        unreadable = {} if group is not None else dict(opened.unreadable)
    if as_json:
        show_json(
            {
                "path": str(path),
                "groups": [explanation_json(each) for each in explanations],
                "unreadable": {name: error.message for name, error in unreadable.items()},
            }
        )
        return
    for each in explanations:
        show_explanation(each)
    for error in unreadable.values():
        show_error(error, as_json=False)


@app.command()
def dump(
    path: DataPath,
    group: GroupName = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many lines.")
    ] = None,
    data: Annotated[bool, typer.Option("--data", help="Show the first bytes of each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print the content of the log: WAL records, snapshots, segments and their entries.

    Dead and overwritten entries are printed like the rest. A bad piece gives a line with its
    problem, and the exit code is 1.

    With --json, one object a line; `kind` is "wal", "piece" or "entry".

    Example: lowmark log dump ./data --group orders-0 --limit 100 --data
    """
    disk = _disk_of(path)
    with wrong_use():
        if group is not None and disk.stat(f"groups/{group}") is None:
            raise Rejected(f"there is no group {group} in {path}")
    problems = 0
    lines = dump_log(disk, group, data=data)
    try:
        with contextlib.closing(lines):
            for count, line in enumerate(lines, start=1):
                problems += bool(line.problem)
                if as_json:
                    kind = type(line).__name__.removeprefix("Dump").lower()
                    print(json.dumps({"kind": kind} | asdict(line), ensure_ascii=False))
                else:
                    print(dump_text(line, root=disk.describe("")))
                if count == limit:
                    break
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`); Python must not complain when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if problems:
        raise typer.Exit(FAILED)


@app.command()
def compact(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(metavar="PATH|TABLE", help="A data directory; with --node, a table."),
    ] = None,
    number: Annotated[
        int | None, typer.Argument(metavar="N", min=0, help="With --node: only this partition.")
    ] = None,
    group: GroupName = None,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="ADDR", help="Ask the running node at this endpoint."),
    ] = None,
    meta: Annotated[
        bool, typer.Option("--meta", help="With --node: only the metastore's log.")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="With --node: take snapshots first.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --node: only say what would be freed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete what is no longer needed (phase 1), and merge sparse segments (phase 3).

    Of a directory: it must not be open elsewhere; entries in the WAL are moved into segments first.
    With --node, a running node compacts the logs of its own copies while it serves: all of them,
    those of a TABLE, of one partition, or of the metastore (--meta). Only what a snapshot covers
    can be freed: --snapshot has each group take one first. Nodes compact by themselves, too.

    With --json, one object. Of a directory: path, runs (group, trigger, result, segments and bytes
    before and after, merges, sources, entries_copied, bytes_copied, bytes_freed, took_ms). With
    --node: dry_run, bytes_freed, groups (group, table, partition, result, segments_before,
    segments_after, bytes_before, bytes_freed, merges, bytes_copied, wal_bytes, kept: reason,
    segments, bytes). Exit code 1 if a group was refused or failed.

    Example: lowmark log compact ./data --group orders-0

    Example: lowmark log compact orders --node 127.0.0.1:6570 --dry-run
    """
    if node is None:
        if what is None or number is not None or meta or snapshot or dry_run:
            raise WrongUse(
                "without --node, name a data directory and nothing else",
                hint="A running node is asked with --node ADDR.",
            )
        _compact_directory(ctx, Path(what), group, as_json=as_json)
        return
    if group is not None or (meta and what is not None) or (dry_run and snapshot):
        raise WrongUse(
            "with --node, name a table, or --meta, or neither; a dry run takes no snapshot",
            hint="See `lowmark log compact --help`.",
        )
    asked = CompactLogAsk(
        table=what, partition=number, meta=meta, snapshot=snapshot, dry_run=dry_run
    )
    compact_at_node(node, asked, as_json=as_json)


def _compact_directory(ctx: typer.Context, path: Path, group: str | None, *, as_json: bool) -> None:
    disk = _disk_of(path)
    before = {name: _on_disk(disk, name) for name in disk.list("groups")}
    rows: list[dict[str, Cell]] = []
    # What is asked for here is done here: nothing else may start a run before it.
    own = settings_of(ctx).log
    config = replace(own, compaction_dead_ratio=1.0, compaction_interval_ms=0)
    with _opened(config, path, read_only=False) as (opened, runtime):
        _check_group(opened, group)
        names = [group] if group is not None else [each.name for each in opened.groups()]
        with spinner() as say:
            say("opening")
            runtime.loop.run_until(lambda: opened.idle, timeout_ms=_NO_HURRY_MS)
            for name in names:
                run = _compact_one(opened, runtime, name, say)
                rows.append(_run_row(disk, name, run, before.get(name, (0, 0))))
        unreadable = {} if group is not None else dict(opened.unreadable)
    if as_json:
        show_json({"path": str(path), "runs": rows})
    else:
        columns = list(rows[0]) if rows else ["group"]
        show_table(rows, columns=columns, as_json=False, title="compacted")
    for error in unreadable.values():
        show_error(error, as_json=as_json)
    if unreadable or any(not str(row["result"]).startswith(("done", "nothing")) for row in rows):
        raise typer.Exit(FAILED)


def _compact_one(
    log: Log, runtime: Runtime, name: str, say: Callable[[str], None]
) -> CompactionRun:
    group = log.group(name)
    ended: list[CompactionRun] = []
    log.phase1(group.state)
    runtime.loop.run_until(lambda: log.idle, timeout_ms=_NO_HURRY_MS)
    if not group.compact(ended.append):
        why = "the group is in quarantine" if group.quarantined else "its live set is lost"
        return CompactionRun(trigger="asked", started_ms=0, result=f"refused: {why}")

    def over() -> bool:
        run = group.state.compacting
        if run is not None:
            merges = counted(run.merges, "merge")
            say(f"compacting {name}: {merges}, {run.bytes_copied:,} bytes copied")
        return bool(ended) and log.idle

    runtime.loop.run_until(over, timeout_ms=_NO_HURRY_MS)
    return ended[0]


def _run_row(
    disk: RealDisk, name: str, run: CompactionRun, before: tuple[int, int]
) -> dict[str, Cell]:
    segments, size = _on_disk(disk, name)
    known: dict[str, Cell] = msgspec.to_builtins(run)
    took_ms = max(0, run.ended_ms - run.started_ms)
    for field in ("trigger", "result", "started_ms", "ended_ms"):
        known.pop(field)
    row: dict[str, Cell] = {
        "group": name,
        "trigger": run.trigger,
        "result": run.result,
        "segments_before": before[0],
        "segments_after": segments,
        "bytes_before": before[1],
        "bytes_after": size,
    }
    return row | known | {"took_ms": took_ms}


def _on_disk(disk: RealDisk, group: str) -> tuple[int, int]:
    """How many segments a group has, and the bytes of all its segments and large files."""
    stats = {
        name: stat
        for name in disk.list(f"groups/{group}")
        if (stat := disk.stat(f"groups/{group}/{name}")) is not None and stat.kind == "file"
    }
    segments = sum(name.endswith(".segment") for name in stats)
    pieces = (stats[name].size for name in stats if name.endswith((".segment", ".large")))
    return segments, sum(pieces)


@app.command()
def rewrite(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    number: Annotated[
        int | None, typer.Argument(metavar="N", min=0, help="Only this partition.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="At most this much a second, as 8MiB; 0 is no limit."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the entries that are scattered.")
    ] = False,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Rewrite scattered live entries of a table's log, side by side at its end (phase 4).

    A few live entries in each of many segments keep all of these segments. The leader of each
    partition proposes copies of such entries, in chunks, while it serves; then it takes a snapshot
    and runs phases 1 and 3, which free the old places. Other nodes free theirs with their next
    snapshots. Rows keep their offsets and times. You may ask any node: it finds the leaders.

    Without --rate, `group.rewrite_bytes_per_s` of the leader counts. Ctrl-C ends the waiting; the
    partition that is being rewritten is finished.

    With --json, one object: dry_run, partitions (table, partition, node, stage, planned,
    rewritten, bytes_rewritten, bytes_before, bytes_freed, problem, hint). Exit code 1 if one
    failed.

    Example: lowmark log rewrite orders 3 --rate 8MiB --node 127.0.0.1:6570
    """
    asked = RewriteLogAsk(
        table=table,
        partition=number,
        bytes_per_s=parse_size(rate, option="--rate"),
        dry_run=dry_run,
    )
    rewrite_at_node(node, asked, as_json=as_json)


# -- what the commands share --------------------------------------------------------------------


def _disk_of(path: Path) -> RealDisk:
    with wrong_use():
        return log_disk(str(path))


def _check_group(log: Log, group: str | None) -> None:
    if group is None or group in log.unreadable:
        return
    with wrong_use():
        log.group(group)


@contextlib.contextmanager
def _opened(config: LogConfig, path: Path, *, read_only: bool) -> Iterator[tuple[Log, Runtime]]:
    _disk_of(path)
    runtime = real_runtime(str(path))
    try:
        opened = Log.open(runtime, config, read_only=read_only)
        try:
            yield opened, runtime
        finally:
            opened.close()
    finally:
        runtime.loop.close()
