"""How what is known about a log is said: to people in tables and lines, to programs in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, assert_never

import msgspec

from lowmark.cli.output import Cell, show_facts, show_table
from lowmark.formatting import counted
from lowmark.holds import Hold, Span
from lowmark.inspect import (
    DumpEntry,
    DumpLine,
    DumpPiece,
    DumpWal,
    Finding,
)
from lowmark.log import Explanation, SegmentExplained


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


# -- explain ------------------------------------------------------------------------------------


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
        {
            "segments": " + ".join(map(str, merge.sources)),
            "kept_entries": merge.kept_entries,
            "kept_bytes": merge.kept_bytes,
            "freed_bytes": merge.freed_bytes,
        }
        for merge in one.merges
    ]
    _show_part("phase 3 would merge", merges)
    holds: list[dict[str, Cell]] = [
        {
            "holder": each.hold.holder,
            "kind": each.hold.kind,
            "pins": _pins_text(each.hold),
            "since": _time(each.hold.since_ms),
            "why": each.hold.why,
            "freed_without_it": each.freed_bytes,
        }
        for each in one.holds
    ]
    _show_part("holds", holds)
    runs: list[dict[str, Cell]] = [
        {
            "started": _time(run.started_ms),
            "trigger": run.trigger,
            "took_ms": run.ended_ms - run.started_ms,
            "merges": run.merges,
            "sources": run.sources,
            "entries_copied": run.entries_copied,
            "bytes_copied": run.bytes_copied,
            "bytes_freed": run.bytes_freed,
            "result": run.result,
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


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(" ", "seconds")[:19] + "Z"


def explanation_json(one: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON values."""
    snapshot = None
    if one.snapshot is not None:
        snapshot = {
            "index": one.snapshot.index,
            "term": one.snapshot.term,
            "machine_version": one.snapshot.machine_version,
            "state_bytes": one.snapshot_bytes,
        }
    return {
        "group": one.group,
        "snapshot": snapshot,
        "live_known": one.live_known,
        "live_entries": one.live_entries,
        "first_index": one.first_index,
        "last_index": one.last_index,
        "written_index": one.written_index,
        "quarantine": one.quarantine,
        "in_wal_entries": one.in_wal_entries,
        "in_wal_bytes": one.in_wal_bytes,
        "file_bytes": one.file_bytes,
        "freed_bytes": one.freed_bytes,
        "segments": [_segment_json(segment) for segment in one.segments],
        "merges": [asdict(merge) for merge in one.merges],
        "holds": [
            _hold_json(each.hold) | {"age_ms": each.age_ms, "freed_bytes": each.freed_bytes}
            for each in one.holds
        ],
        "runs": [msgspec.to_builtins(run) for run in one.runs],
        "requests_dropped": one.requests_dropped,
    }


def _segment_json(segment: SegmentExplained) -> dict[str, Any]:
    reasons = [
        {
            "kind": reason.kind,
            "text": reason.text,
            "hold": None if reason.hold is None else _hold_json(reason.hold),
        }
        for reason in segment.reasons
    ]
    return {
        "number": segment.number,
        "first": segment.first,
        "last": segment.last,
        "entries": segment.entries,
        "live_entries": segment.live_entries,
        "live_bytes": segment.live_bytes,
        "held_entries": segment.held_entries,
        "file_bytes": segment.file_bytes,
        "reasons": reasons,
        "freed_by": segment.freed_by or None,
        "freed_bytes": segment.freed_bytes,
        "damage": segment.damage or None,
    }


def _hold_json(hold: Hold) -> dict[str, Any]:
    return {
        "holder": hold.holder,
        "kind": hold.kind,
        "pins": _pins_text(hold),
        "since_ms": hold.since_ms,
        "expires_at_ms": hold.expires_at_ms,
        "why": hold.why,
    }


# -- dump ---------------------------------------------------------------------------------------


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
