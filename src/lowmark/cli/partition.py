"""`lowmark partition`: where partitions are, the reset of one whose majority is lost, and new
copies in place of damaged ones.
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from lowmark.cli.log_work import spinner
from lowmark.cli.output import Cell, Json, show_json, show_table
from lowmark.cli.session import FAILED, WrongUse, help_if_bare
from lowmark.cli.source import NodeOption, node_client
from lowmark.formatting import counted, verb
from lowmark.node.messages import (
    PartitionsAsk,
    PartitionsReply,
    RebuildAsk,
    RebuildRow,
    ResetAsk,
    ResetReply,
)

app = typer.Typer(invoke_without_command=True)


@app.callback()
def partition(ctx: typer.Context) -> None:
    """List partitions with their nodes and leaders; reset or rebuild copies after a loss."""
    help_if_bare(ctx)


@app.command("list")
def list_(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only partitions of this table.")
    ] = None,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """List partitions: leader, nodes, where they move to, and state.

    A partition is available if all its voters are sound, degraded if only a majority is, read-only
    without one, and unavailable if no copy is sound. Nodes that are down are marked with an
    exclamation mark.

    With --json, a list: table, partition, leader, stable, pending, planned, down, state.

    Example: lowmark partition list orders
    """
    with node_client(node) as client:
        found = client.ask("partition.list", PartitionsAsk(table=table), PartitionsReply)
    if as_json:
        show_json([msgspec.to_builtins(row) for row in found.partitions])
        return

    def nodes(names: tuple[str, ...], down: tuple[str, ...]) -> str | None:
        return ", ".join(f"{name}!" if name in down else name for name in names) or None

    rows: list[dict[str, Cell]] = [
        {
            "table": row.table,
            "partition": row.partition,
            "leader": row.leader or None,
            "stable": nodes(row.stable, row.down),
            "pending": nodes(row.pending, row.down),
            "planned": nodes(row.planned, row.down),
            "state": row.state or None,
        }
        for row in found.partitions
    ]
    columns = ("table", "partition", "leader", "stable", "pending", "planned", "state")
    show_table(rows, columns=columns, as_json=False)


@app.command()
def reset(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    number: Annotated[int, typer.Argument(metavar="N", min=0, help="The number of the partition.")],
    survivor: Annotated[
        str, typer.Option("--from", metavar="NODE", help="The node whose copy goes on.")
    ],
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost", metavar="NODE", help="A node that is lost; repeat it for each."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what may be lost.")] = False,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Let one copy of a partition go on alone, after the majority of its nodes is lost for good.

    Rows that only the lost nodes had acknowledged are gone after that. Of several copies,
    choose the one with the highest last term, then last index; --dry-run shows them. Every
    other node of the partition must be named by --lost, must be down, and its lease must be
    over. The lost nodes are drained, and the partition gets other replicas. Without --yes it
    asks first, if it runs in a terminal.

    With --json, one object: table, partition, node, replicas (node, up, lease, rows, more_rows,
    last_term, last_index, committed, problem), done, refused, hint, rows, kept, committed,
    lost, drained. Exit code 1 if a dry run finds that the reset would be refused.

    Example: lowmark partition reset orders 3 --from n1 --lost n2 --lost n3
    """
    asked = ResetAsk(table=table, partition=number, node=survivor, lost=tuple(lost or ()))
    with node_client(node) as client:
        if dry_run or not (yes or as_json):
            look = msgspec.structs.replace(asked, dry_run=True)
            before = client.ask("partition.reset", look, ResetReply)
            if not as_json:
                _show(before)
            if dry_run:
                if as_json:
                    show_json(msgspec.to_builtins(before))
                if before.refused:
                    raise typer.Exit(FAILED)
                return
            if before.refused:
                raise typer.Exit(FAILED)
        if not yes:
            _ask(f"partition {number} of {table}", survivor, as_json=as_json)
        done = client.ask("partition.reset", asked, ResetReply)
    if as_json:
        show_json(msgspec.to_builtins(done))
        return
    print(
        f"partition {number} of {table} goes on from node {done.node} alone, with the rows below"
        f" offset {done.rows:,}"
    )
    if done.kept > done.committed:
        more = done.kept - done.committed
        print(
            f"{counted(more, 'entry', 'entries')} of them {verb(more, 'were')} not known to be"
            f" committed, and {verb(more, 'are')} kept"
        )
    if done.drained:
        print(
            f"drained: {', '.join(done.drained)}; remove nodes that are lost with"
            " `lowmark node remove NODE`"
        )
    print("other nodes get replicas; `lowmark partition list` shows them")


@app.command()
def rebuild(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    number: Annotated[int, typer.Argument(metavar="N", min=0, help="The number of the partition.")],
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="NODE", help="The node of the copy; default: the one that you ask."
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Start it, and do not wait for its end.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would do; change nothing.")
    ] = False,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Throw a damaged copy of a partition away, and get a new one from the other nodes.

    A copy in quarantine (a file failed its checksum; `lowmark status` shows it) neither votes nor
    acknowledges. No node throws one away by itself. The new copy returns as a learner, gets all
    rows from the leader, and votes when it has them; the command waits for that. The partition
    serves meanwhile. It is refused (`CopySound`) if the copy is not in quarantine, and
    (`CopyNeeded`) if it is the only one or the other nodes have no majority. Ctrl-C only ends the
    waiting.

    With --json, one object at the end: table, partition, node, stage (voter; planned by a dry run;
    asking or learner with --no-wait; failed), cause, incarnation, applied, rows, leader, others,
    problem.

    Example: lowmark partition rebuild orders 3 --node 127.0.0.1:6572
    """
    asked = RebuildAsk(table=table, partition=number, node=on, dry_run=dry_run)
    last: RebuildRow | None = None
    try:
        with node_client(node) as client, spinner() as say:
            for row in client.follow("partition.rebuild", asked, RebuildRow):
                if last is None and not as_json:
                    _say_rebuild(row)
                last = row
                say(f"{row.stage}: rows below offset {row.rows:,}; {row.problem}".rstrip("; "))
                if no_wait:
                    break
    except KeyboardInterrupt:
        print("the new copy is made all the same; `lowmark status` shows it", file=sys.stderr)
        raise
    assert last is not None
    if as_json:
        facts = msgspec.to_builtins(last)
        del facts["done"]
        show_json(facts)
    elif last.stage == "voter":
        print(
            f"the copy of partition {number} of {table} at node {last.node} votes again, with the"
            f" rows below offset {last.rows:,}"
        )
    elif last.stage == "failed":
        print(f"it failed: {last.problem}", file=sys.stderr)
    if last.stage == "failed":
        raise typer.Exit(FAILED)


def _say_rebuild(row: RebuildRow) -> None:
    print(f"the copy of partition {row.partition} of {row.table} at node {row.node} is damaged:")
    print(f"  {row.cause}")
    others = ", ".join(row.others)
    if row.stage == "planned":
        print(f"It would delete this copy, and rebuild it from {others}.")
    else:
        print(f"It deletes this copy, and rebuilds it from {others}.", flush=True)


def _show(before: ResetReply) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "node": row.node,
            "up": row.up,
            "lease": "not over" if row.lease else "over",
            "rows_below": row.rows,
            "more_rows": row.more_rows,
            "last_term": row.last_term,
            "last_index": row.last_index,
            "problem": row.problem or None,
        }
        for row in before.replicas
    ]
    columns = (
        "node",
        "up",
        "lease",
        "rows_below",
        "more_rows",
        "last_term",
        "last_index",
        "problem",
    )
    show_table(rows, columns=columns, as_json=False)
    own = next((row for row in before.replicas if row.node == before.node), None)
    if own is not None and own.rows is not None:
        words = f"\nA reset keeps the rows below offset {own.rows:,}"
        if own.more_rows is None:
            words += ", and more that are not known to be committed"
        elif own.more_rows:
            words += f", and up to {counted(own.more_rows, 'more row')} not known to be committed"
        print(f"{words}.")
    print("Rows that only the other nodes had acknowledged are lost for good.")
    if before.refused:
        print(f"\nIt would be refused: {before.refused}. {before.hint}")


def _ask(name: str, survivor: str, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise WrongUse(
            f"a reset of {name} may lose rows, and there is no terminal to ask on",
            hint="Look at it with --dry-run, then give --yes.",
        )
    if not typer.confirm(f"Reset {name} from node {survivor}?", err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(FAILED)
