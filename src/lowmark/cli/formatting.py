"""How runs, ledgers and logs are shown: to people in tables and lines, to programs in JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, assert_never

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from lowmark.cli.output import Cell, show_facts, show_table
from lowmark.formatting import bytes_text, counted, time_text, times_text, verb
from lowmark.holds import Hold, Span
from lowmark.inspect import DumpEntry, DumpLine, DumpPiece, DumpWal, Finding
from lowmark.ledger import young_hint
from lowmark.log import Explanation, SegmentExplained
from lowmark.node.messages import NodeRow
from lowmark.runtime import millis_of

if TYPE_CHECKING:  # `lowmark log` shows logs without the client, which takes long to import
    from lowmark.client import LedgerVerdict, Lost, PartitionPlan, Rebuilt, Reconciled, RunRecord


def facts_of(value: object, names: str) -> dict[str, Any]:
    """Some fields of a value, by the names that JSON has for them: a promise to programs."""
    return {name: getattr(value, name) for name in names.split()}


@contextlib.contextmanager
def terminal_bar() -> Iterator[Progress | None]:
    """A bar of bytes on stderr while something goes on; None if no person looks at it. A task has a
    field `beside`: the words beside its bar.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[beside]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield bar


def up_text(node: NodeRow) -> Cell:
    """Whether a node is up, as far as that is known: a lease outlives a node that was killed."""
    if node.up and node.silent_ms:
        return f"silent for {times_text(node.silent_ms)}"
    return node.up


def show_table_without(
    rows: Sequence[dict[str, Cell]], *, unless_empty: Sequence[str], zero_is_empty: bool = True
) -> None:
    """A table without those of these columns that say nothing."""
    columns = [
        name
        for name in (rows[0] if rows else ())
        if name not in unless_empty
        or any(row[name] if zero_is_empty else row[name] is not None for row in rows)
    ]
    show_table(rows, columns=columns, as_json=False)


# -- runs of compaction -------------------------------------------------------------------------

_TOTALS = (
    *("rows_read", "rows_live", "rows_died", "deletes", "deletes_dropped"),
    *("bytes_read", "bytes_written", "ledger_bytes", "trimmed_bytes", "too_young_rows"),
)


def run_row(record: RunRecord) -> dict[str, Any]:
    """A run in one row: what it was, what it did, what it cost."""
    totals = {name: sum(getattr(one, name) for one in record.partitions) for name in _TOTALS}
    return {
        "run": record.run,
        "table": record.table_name,
        "state": record.state,
        "trigger": record.trigger,
        "began": time_text(record.began_at_ms),
        "ended": time_text(record.ended_at_ms) if record.ended_at_ms else None,
        "seconds": round(record.seconds, 3),
        "engine": record.engine or None,
        "where": record.where,
        "by": record.by or None,
        "watermark": time_text(millis_of(record.watermark)) if record.watermark else None,
        **facts_of(record, "verify trim rewrite read read_rate write_rate resumed"),
        "error": record.error or None,
        **totals,
        "held_until": record.held_until or None,
        "ready_at": record.ready_at or None,
        "hint": _what_to_do(record) or None,
    }


def run_json(record: RunRecord) -> dict[str, Any]:
    """All of it, partition by partition."""
    partitions = [
        {
            name: None if value == "" else value
            for name, value in msgspec.structs.asdict(one).items()
        }
        for one in record.partitions
    ]
    return run_row(record) | {"partitions": partitions}


def show_runs(rows: Sequence[dict[str, Any]]) -> None:
    """Runs, one a line."""
    columns = "run table state trigger began seconds rows_read rows_live read written engine where"
    shown = [
        row | {"read": bytes_text(row["bytes_read"]), "written": bytes_text(row["bytes_written"])}
        for row in rows
    ]
    show_table(shown, columns=columns.split(), as_json=False)


def show_plan(record: RunRecord) -> None:
    """What a run would do."""
    rows: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "from": one.low,
            "horizon": one.horizon,
            "rows": one.rows,
            "bytes": bytes_text(one.bytes),
            "too_young": one.too_young_rows,
            "until_watermark": one.held_until or None,
            "note": one.why or None,
        }
        for one in record.partitions
    ]
    show_table_without(rows, unless_empty=("until_watermark", "note"))
    print()
    todo = [one for one in record.partitions if one.state != "skipped"]
    if not todo:
        print(_nothing(record))
    else:
        size = bytes_text(sum(one.bytes for one in todo))
        rows_read = sum(one.rows for one in todo)
        print(
            f"a run would compact {counted(rows_read, 'row')}, {size} of the backlog, of"
            f" {counted(len(todo), 'partition')} of {record.table_name}"
        )
    _show_young(record)


def show_done(record: RunRecord) -> None:
    """What a run has done, and what it could not do and why."""
    _show_partitions(record)
    print()
    print(_summary(record))
    _show_young(record)
    _show_held(record)


def _show_partitions(record: RunRecord) -> None:
    if any(one.state != "skipped" for one in record.partitions):
        show_table_without(
            [_work_row(one) for one in record.partitions],
            unless_empty=("rows_died", "deletes_dropped", "note"),
        )
        print()
    standing: list[dict[str, Cell]] = [
        {
            "partition": one.partition,
            "horizon": one.horizon,
            "trimmed_to": one.trimmed_to or None,
            "trimmed": bytes_text(one.trimmed_bytes),
            "held_by": ", ".join(one.held_by) or None,
            "too_young": one.too_young_rows,
            "until_watermark": one.held_until or None,
        }
        for one in record.partitions
    ]
    show_table_without(standing, unless_empty=("held_by", "until_watermark"))


def _work_row(one: PartitionPlan) -> dict[str, Cell]:
    return facts_of(one, "partition rows_read rows_live rows_died") | {
        "deletes_kept": one.deletes,
        "deletes_dropped": one.deletes_dropped,
        "read": bytes_text(one.bytes_read),
        "written": bytes_text(one.bytes_written),
        "ledger": bytes_text(one.ledger_bytes),
        "note": one.why or ("" if one.state == "adopted" else one.state) or None,
    }


def _summary(record: RunRecord) -> str:
    if all(one.state == "skipped" for one in record.partitions):
        words = _nothing(record)
        if record.trimmed_bytes:
            words += f"; {bytes_text(record.trimmed_bytes)} of the backlog were trimmed"
        return words
    return (
        f"compacted {record.table_name} in {record.seconds:.2f} s ({_place(record)}):"
        f" {counted(record.rows_read, 'row')} read → {record.rows_live:,} live{_deletes(record)},"
        f" {bytes_text(record.bytes_read)} read, {bytes_text(record.bytes_written)} written,"
        f" ledgers take {bytes_text(record.ledger_bytes)},"
        f" {bytes_text(record.trimmed_bytes)} trimmed; run {record.run}"
    )


def _deletes(record: RunRecord) -> str:
    if not record.deletes:
        return ""
    return f" and {counted(record.deletes, 'delete')} that readers have not passed"


def _place(record: RunRecord) -> str:
    return f"in {record.where}" if record.engine == "local" else f"on Spark, {record.where}"


def _nothing(record: RunRecord) -> str:
    why = " and ".join(dict.fromkeys(one.why for one in record.partitions if one.why))
    return f"nothing to do for {record.table_name}: {why}"


def _show_young(record: RunRecord) -> None:
    rows = record.too_young_rows
    if rows:
        print(f"{counted(rows, 'row')} {verb(rows, 'are')} too young. {_what_to_do(record)}")


def _what_to_do(record: RunRecord) -> str:
    """About rows that are too young, on a command line."""
    history = "`lowmark watermark history`"
    return young_hint(
        record,
        advance="`lowmark watermark advance --to now`",
        unset=f"`lowmark table alter {record.table_name} --unset {{}}`",
        setting=(history, f'{history[:-1]} "1 minute"`'),
    )


def _show_held(record: RunRecord) -> None:
    names = dict.fromkeys(name for one in record.partitions for name in one.held_by)
    if names:
        print(
            f"the backlog below the horizon is kept for {', '.join(names)}"
            f" (`lowmark explain {record.table_name}`)"
        )


def show_noted(record: RunRecord) -> None:
    """All that is noted of a run that is over, or was interrupted."""
    row = run_row(record)
    facts: dict[str, Cell] = {
        **{name: row[name] for name in ("run", "table", "state", "trigger", "began", "ended")},
        "took": times_text(round(record.seconds * 1_000)),
        "engine": row["engine"],
        "where": row["where"],
        "by": row["by"],
        "low_watermark": row["watermark"],
        **{name: row[name] for name in ("verify", "trim", "rewrite", "read")},
        "read_rate": _rate(record.read_rate),
        "write_rate": _rate(record.write_rate),
        "resumed": counted(record.resumed, "time") if record.resumed else None,
        "error": row["error"],
    }
    show_facts(facts, as_json=False)
    if record.partitions:
        print()
        _show_partitions(record)


def _rate(rate: int) -> str:
    return f"{bytes_text(rate)}/s" if rate else "no limit"


# -- ledgers ------------------------------------------------------------------------------------

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


def lost_facts(lost: Lost) -> dict[str, Any]:
    """Offsets whose rows are lost."""
    return msgspec.structs.asdict(lost)


def verdict_facts(one: LedgerVerdict) -> dict[str, Any]:
    """A ledger that was read."""
    return (
        facts_of(one, "partition epoch horizon")
        | {"manifest": one.manifest or None}
        | facts_of(one, "sound files rows live_rows bytes")
        | {"lost": [lost_facts(lost) for lost in one.lost], "problems": _problems(one)}
    )


def rebuilt_facts(one: Rebuilt) -> dict[str, Any]:
    """A ledger that was, or would be, made again."""
    return (
        facts_of(one, "partition source")
        | {"problems": _problems(one), "base": one.base or None}
        | facts_of(one, "low horizon")
        | {"lost": [lost_facts(lost) for lost in one.lost]}
        | {"epoch": one.epoch or None, "manifest": one.manifest or None}
        | facts_of(one, "live_rows same")
    )


def _problems(one: LedgerVerdict | Rebuilt) -> list[dict[str, Any]]:
    return [facts_of(problem, "path what missing why") for problem in one.problems]


def reconciled_facts(one: Reconciled) -> dict[str, Any]:
    """A pointer, before and after."""
    facts = facts_of(one, "partition state")
    facts["adopted_epoch"] = None if one.adopted is None else one.adopted.epoch
    for name, pointer in (("before", one.before), ("after", one.after)):
        facts[f"{name}_epoch"] = None if pointer is None else pointer.epoch
        facts[f"{name}_manifest"] = None if pointer is None else pointer.manifest
    return facts


def lost_text(lost: dict[str, Any]) -> str:
    """What is lost, in words."""
    rows = "rows" if lost["rows"] is None else f"up to {counted(lost['rows'], 'row')}"
    words = f"{rows} at offsets {lost['first']:,} to {lost['last']:,}"
    return f"{words}; rows before them may be old" if lost["stale"] else words


def show_verdicts(found: Sequence[LedgerVerdict]) -> None:
    """Which ledgers are sound, and what is wrong with the others."""
    rows: list[dict[str, Cell]] = [
        facts_of(one, "partition epoch horizon files live_rows")
        | {
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
        print(f"{counted(bad, 'ledger')} of {there:,} can't be trusted: missing or damaged")
    elif there:
        print(f"{counted(there, 'ledger')}: every byte is as it was written")
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
    show_table_without(rows, unless_empty=unless_empty, zero_is_empty=False)
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
        be = "would be" if dry_run else verb(done, "were")
        print(f"{counted(done, 'ledger')} of {table} {be} rebuilt")


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
        print(f"{counted(changed, 'pointer')} of {table} set to what the partitions have adopted")
    else:
        print(f"nothing to do for {table}: the metastore is not behind")


# -- logs ---------------------------------------------------------------------------------------


def show_findings(findings: Sequence[Finding], *, root: str) -> None:
    """A table of what is wrong, then what to do, each advice once."""
    if not findings:
        return
    rows: list[dict[str, Cell]] = [
        {
            "kind": finding.kind,
            "group": finding.group,
            "file": _below(finding.path, root),
            "byte": finding.offset,
            "what": finding.what,
        }
        for finding in findings
    ]
    show_table(rows, columns=list(rows[0]), as_json=False)
    for hint in dict.fromkeys((finding.kind, finding.hint) for finding in findings):
        if hint[1]:
            print(f"{hint[0]}: {hint[1]}")


def show_explanation(one: Explanation) -> None:
    """Everything about one group."""
    snapshot = one.snapshot
    facts: dict[str, Cell] = {
        "group": one.group,
        "entries": f"{one.first_index:,} to {one.last_index:,} follow the snapshot,"
        f" durable up to {one.written_index:,}",
        "snapshot": "none"
        if snapshot is None
        else f"at {snapshot.index:,}, term {snapshot.term:,}, {one.snapshot_bytes:,} bytes",
        "live": f"{counted(one.live_entries, 'entry', 'entries')} up to the snapshot"
        if one.live_known
        else "the live set is lost: everything is kept until it is rebuilt",
        "in the WAL": f"{counted(one.in_wal_entries, 'entry', 'entries')},"
        f" {one.in_wal_bytes:,} bytes",
        "segments": f"{len(one.segments):,}, {one.file_bytes:,} bytes,"
        f" of which {one.freed_bytes:,} would be freed",
    }
    if one.quarantine is not None:
        facts["quarantine"] = one.quarantine
    if one.requests_dropped:
        facts["dropped requests"] = one.requests_dropped
    show_facts(facts, as_json=False)
    _show_part("segments", [_segment_row(segment) for segment in one.segments])
    merges: list[dict[str, Cell]] = [
        {"segments": " + ".join(map(str, merge.sources))}
        | facts_of(merge, "kept_entries kept_bytes freed_bytes")
        for merge in one.merges
    ]
    _show_part("phase 3 would merge", merges)
    holds: list[dict[str, Cell]] = [
        facts_of(each.hold, "holder kind")
        | {
            "pins": _pins_text(each.hold),
            "since": time_text(each.hold.since_ms),
            "why": each.hold.why,
            "freed_without_it": each.freed_bytes,
        }
        for each in one.holds
    ]
    _show_part("holds", holds)
    runs: list[dict[str, Cell]] = [
        {
            "started": time_text(run.started_ms),
            "trigger": run.trigger,
            "took_ms": run.ended_ms - run.started_ms,
            **facts_of(run, "merges sources entries_copied bytes_copied bytes_freed result"),
        }
        for run in one.runs
    ]
    _show_part("compactions", runs)
    print()


def _show_part(title: str, rows: list[dict[str, Cell]]) -> None:
    if rows:
        print()
        show_table(rows, columns=list(rows[0]), as_json=False, title=title)


def _segment_row(segment: SegmentExplained) -> dict[str, Cell]:
    reasons = "; ".join(reason.text for reason in segment.reasons)
    return {
        "segment": segment.number,
        "range": f"{segment.first}..{segment.last}",
        "entries": segment.entries,
        "live": segment.live_entries,
        "live_bytes": segment.live_bytes,
        "file_bytes": segment.file_bytes,
        "kept_because": segment.damage or reasons or "nothing in it is needed",
        "freed_by": segment.freed_by or None,
        "freed_bytes": segment.freed_bytes,
    }


def _pins_text(hold: Hold) -> str:
    if isinstance(hold.pins, Span):
        return f"{hold.pins.low}..{'' if hold.pins.high is None else hold.pins.high}"
    if not hold.pins:
        return "nothing"
    return f"{counted(len(hold.pins), 'entry', 'entries')}, {hold.pins.min()}..{hold.pins.max()}"


def explanation_json(one: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON values."""
    snapshot = None
    if one.snapshot is not None:
        snapshot = facts_of(one.snapshot, "index term machine_version")
        snapshot["state_bytes"] = one.snapshot_bytes
    return (
        {"group": one.group, "snapshot": snapshot}
        | facts_of(one, "live_known live_entries first_index last_index written_index quarantine")
        | facts_of(one, "in_wal_entries in_wal_bytes file_bytes freed_bytes")
        | {
            "segments": [_segment_json(segment) for segment in one.segments],
            "merges": [asdict(merge) for merge in one.merges],
            "holds": [
                _hold_json(each.hold) | facts_of(each, "age_ms freed_bytes") for each in one.holds
            ],
            "runs": [msgspec.to_builtins(run) for run in one.runs],
            "requests_dropped": one.requests_dropped,
        }
    )


def _segment_json(segment: SegmentExplained) -> dict[str, Any]:
    reasons = [
        facts_of(reason, "kind text")
        | {"hold": None if reason.hold is None else _hold_json(reason.hold)}
        for reason in segment.reasons
    ]
    return (
        facts_of(segment, "number first last entries live_entries live_bytes held_entries")
        | {"file_bytes": segment.file_bytes, "reasons": reasons}
        | {"freed_by": segment.freed_by or None, "freed_bytes": segment.freed_bytes}
        | {"damage": segment.damage or None}
    )


def _hold_json(hold: Hold) -> dict[str, Any]:
    return (
        facts_of(hold, "holder kind")
        | {"pins": _pins_text(hold)}
        | facts_of(hold, "since_ms expires_at_ms why")
    )


def dump_text(line: DumpLine, *, root: str) -> str:
    """One line of a dump."""
    match line:
        case DumpWal():
            span = f"{line.first}..{line.last} term {line.term}" if line.last else "-"
            words = [
                _below(line.path, root),
                f"@{line.offset}",
                f"batch {line.sequence}",
                line.record,
                line.group or "?",
                span,
                f"{line.bytes:,} bytes",
            ]
        case DumpPiece():
            span = f"{line.first}..{line.last}" if line.last else "-"
            words = [
                _below(line.path, root),
                line.piece,
                span,
                counted(line.entries, "entry", "entries"),
                f"{line.bytes:,} bytes",
                line.says,
            ]
        case DumpEntry():
            words = [
                f"  {line.index}",
                f"term {line.term}",
                f"{line.bytes:,} bytes",
                "" if line.place == "here" else line.place,
                "ok" if line.ok else "BAD",
            ]
        case _:
            assert_never(line)
    shown = None if isinstance(line, DumpPiece) else line.data
    words += [] if shown is None else [shown]
    words += [f"PROBLEM: {line.problem}"] if line.problem else []
    return "  ".join(word for word in words if word)


def _below(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/") or path
