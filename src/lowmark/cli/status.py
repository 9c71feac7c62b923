"""`lowmark status`: who is up, who leads, who is behind."""

from __future__ import annotations

from collections import Counter

import msgspec
import typer

from lowmark.cli.formatting import facts_of, up_text
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.source import DataOption, NodeOption, opened_source
from lowmark.formatting import time_text
from lowmark.metastore.nodes import lease_of
from lowmark.node import STATES, GroupRow, Status
from lowmark.table import parse_group_name


def status(
    ctx: typer.Context, node: NodeOption = None, data: DataOption = None, as_json: Json = False
) -> None:
    """Show nodes, groups, leaders, lag, tables, and where the metastore and the catalog are.

    The node that you ask asks all others. A node that was killed stays up for the rest of its
    lease, up to 10 seconds: until then it is shown as silent, with the time since it was last
    heard. With --data, the command shows what the directory's node knew at the end.
    Groups of tables are shown if something is wrong with them, and counted otherwise. Warnings
    name cursors that keep much, or for long, readers that hold the low watermark, tables that have
    fewer replicas than their zone asks for, and moves of partitions that fail again and again.

    A partition is available if all its voters are sound, degraded if only a majority is, read-only
    without one, and unavailable if no copy is sound.

    With --json, one object: source, cluster, nodes, groups (each with its members), metastore,
    catalog, tables (state is the worst of its partitions; rows and bytes are those of the backlog;
    `lowmark table show` knows what ledgers have besides), watermark, warnings.

    Example: lowmark status --node 127.0.0.1:6572
    """
    with opened_source(ctx, node, data, damaged_ok=True) as source:
        found = source.status()
    if as_json:
        show_json(msgspec.to_builtins(found))
    else:
        _show(found)


def _show(found: Status) -> None:
    _show_cluster(found)
    print()
    draining = any(node.draining for node in found.nodes)
    show_table(
        [
            {
                "node": node.name,
                "up": up_text(node),
                **({"draining": node.draining} if draining else {}),
                "role": node.role or None,
                "endpoint": node.endpoint,
                "peers": node.address,
                "rack": node.rack or None,
                "attributes": ", ".join(f"{k}={v}" for k, v in sorted(node.attributes.items()))
                or None,
                "problem": node.problem or None,
            }
            for node in found.nodes
        ],
        columns=(
            *("node", "up", *(("draining",) if draining else ()), "role", "endpoint", "peers"),
            *("rack", "attributes", "problem"),
        ),
        as_json=False,
    )
    for group in found.groups:
        if not _worth_showing(group):
            continue
        print()
        if _is_of_files(found):
            words = f"group {group.group}: not running, term {group.term}"
        else:
            words = f"group {group.group}: {_leader(group.leader_name)}, term {group.term}"
            words += f", {group.state}" if group.state else ""
        show_table(
            [
                {
                    "member": member.name,
                    **facts_of(member, "role applied committed"),
                    "behind": member.entries_behind,
                    "bytes_behind": member.bytes_behind,
                    "problem": member.problem or None,
                }
                for member in group.members
            ],
            columns=["member", "role", "applied", "committed", "behind", "bytes_behind", "problem"],
            as_json=False,
            title=words if group.stage in {"none", "stopped"} else f"{words}, {group.stage}",
        )
    _show_leases(found)
    _show_tables(found)
    for warning in found.warnings:
        print(f"\nwarning: {warning.text}")


def _worth_showing(group: GroupRow) -> bool:
    """There may be thousands of groups of tables: only those are shown that need a look."""
    if parse_group_name(group.group) is None:
        return True
    busy = group.stage not in {"none", "stable", "stopped"}
    return not group.leader or busy or any(member.problem for member in group.members)


def _show_tables(found: Status) -> None:
    if not found.tables:
        return
    print()
    columns = ("table", "partitions", "state", "here", "backlog_rows", "backlog_bytes", "cursors")
    rows: list[dict[str, Cell]] = [
        {
            "table": table.name,
            "partitions": table.partitions or None,
            "state": _states(found, table.id),
            "here": table.here,
            "backlog_rows": table.rows,
            "backlog_bytes": table.bytes,
            "cursors": table.cursors,
        }
        for table in found.tables
    ]
    show_table(rows, columns=columns, as_json=False)


def _states(found: Status, table: int) -> str | None:
    """How its partitions are: `available`, or how many are what."""
    states = Counter(
        group.state
        for group in found.groups
        if group.state and (place := parse_group_name(group.group)) and place[0] == table
    )
    if len(states) == 1:
        return next(iter(states))
    order = sorted(states, key=STATES.index)
    return ", ".join(f"{states[state]} {state}" for state in order) or None


def _leader(name: str) -> str:
    return f"{name} leads" if name else "no node leads"


def _is_of_files(found: Status) -> bool:
    """Whether it was read from a directory that no process has open: nothing runs there."""
    return found.source.startswith("directory ")


def _show_cluster(found: Status) -> None:
    not_running = " (no process has it open)" if _is_of_files(found) else ""
    facts: dict[str, Cell] = {"source": f"{found.source}{not_running}"}
    if found.cluster is not None:
        facts["cluster"] = found.cluster.id
        facts["topology_version"] = found.cluster.topology_version
    if found.metastore is not None:
        facts["metastore_revision"] = found.metastore.revision
        facts["metastore_cut"] = found.metastore.compacted
        facts["metastore_keys"] = found.metastore.keys
        facts["metastore_watches"] = found.metastore.watches
    facts["catalog_version"] = found.catalog.version if found.catalog is not None else None
    facts["catalog_earliest"] = found.catalog.earliest if found.catalog is not None else None
    if found.catalog is not None and found.catalog.problem:
        facts["catalog_problem"] = found.catalog.problem
    mark = found.watermark
    if mark is not None:
        facts["low_watermark"] = time_text(mark.time_ms) if mark.time_ms else None
        facts["watermark_goal"] = time_text(mark.goal_ms)
        if mark.holders:
            facts["watermark_held_by"] = ", ".join(one.holder for one in mark.holders)
    show_facts(facts, as_json=False)


def _show_leases(found: Status) -> None:
    if found.metastore is None or not found.metastore.leases:
        return
    names = {lease_of(node.number): f"node {node.name}" for node in found.nodes}
    print()
    show_table(
        [
            {
                "lease": names.get(lease.name, lease.name),
                "holds_from": lease.hold or None,
                "until": time_text(lease.expires_at_ms) + (" (over)" if lease.expired else ""),
                "why": lease.why,
            }
            for lease in found.metastore.leases
        ],
        columns=("lease", "holds_from", "until", "why"),
        as_json=False,
    )
