"""`lowmark node`: the nodes of a cluster; have all partitions leave one, take it out, or have
another one take the place of one that is lost.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from lowmark.cli.formatting import up_text
from lowmark.cli.output import Cell, Json, show_json, show_table
from lowmark.cli.session import WrongUse, help_if_bare
from lowmark.cli.source import NodeOption, node_client
from lowmark.errors import Conflict, Unavailable
from lowmark.formatting import bytes_text, counted, verb
from lowmark.node import NodeClient, Status
from lowmark.node.messages import (
    DrainAsk,
    DrainReply,
    NodeReply,
    NodeRow,
    Nothing,
    RebalanceReply,
    RemoveNodeAsk,
)
from lowmark.table import parse_group_name

app = typer.Typer(invoke_without_command=True)

LOOK_S = 0.5
_PATIENCE_S = 30.0
"""How long a node that is asked may be away while a drain is waited for."""

NameArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node's name or number.")]


@app.callback()
def node(ctx: typer.Context) -> None:
    """List, drain, remove and replace the nodes of a cluster.

    To take a node out for good: drain it, remove it, stop its process. Of one that is lost with its
    disk, have another machine take the place: replace it.
    """
    help_if_bare(ctx)


@app.command("list")
def list_(node: NodeOption = None, as_json: Json = False) -> None:
    """List the nodes of the cluster, with how many partitions each holds and leads.

    With --json, a list: node, number, up (null: unknown), silent_ms (since it was last heard, if it
    did not answer), rack, draining, partitions, leads, endpoint, problem.

    Example: lowmark node list --node 127.0.0.1:6572
    """
    with node_client(node) as client:
        found = client.status()
    nodes = sorted(found.nodes, key=lambda one: one.name)
    rows = _rows(found, nodes)
    if as_json:
        show_json(rows)
        return
    shown = [
        row | {"rack": row["rack"] or None, "problem": row["problem"] or None, "up": up_text(one)}
        for row, one in zip(rows, nodes, strict=True)
    ]
    left_out = {"number", "silent_ms"}
    columns = [name for name in shown[0] if name not in left_out] if shown else ["node"]
    show_table(shown, columns=columns, as_json=False)


def _rows(found: Status, nodes: Sequence[NodeRow]) -> list[dict[str, Cell]]:
    tables = [group for group in found.groups if parse_group_name(group.group) is not None]
    return [
        {
            "node": one.name,
            "number": one.number,
            "up": one.up,
            "silent_ms": one.silent_ms,
            "rack": one.rack,
            "draining": one.draining,
            "partitions": sum(one.number in {*each.voters, *each.learners} for each in tables),
            "leads": sum(each.leader == one.number for each in tables),
            "endpoint": one.endpoint,
            "problem": one.problem,
        }
        for one in nodes
    ]


@app.command()
def drain(
    name: NameArgument,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the drain: the node may get partitions again.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Start the drain, and do not wait for its end.")
    ] = False,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Move all partitions off a node, and wait until nothing is left on it.

    The node stays in the cluster and serves what it still has; it gets no new partitions. The
    drain stands until it is ended (--stop) or the node is removed, also over restarts. Ctrl-C only
    ends the waiting. Run it again to see how far it is.

    Partitions stay if their zone may have no other node: the drain says which zones, why, and what
    to do, and goes on when that has changed.

    With --json, one object at the end: node, draining, partitions, leads, bytes_left, stuck (zones
    without another node: node, zone, partitions, reason, hint).

    Example: lowmark node drain n3 --node 127.0.0.1:6572
    """
    if stop and no_wait:
        raise WrongUse("--stop waits for nothing", hint="Leave --no-wait out.")
    with node_client(node) as client:
        found = client.ask("node.drain", DrainAsk(node=name, stop=stop), DrainReply)
        if not stop and not no_wait:
            try:
                found = _wait(client, found)
            except KeyboardInterrupt:
                print(
                    f"the drain of node {found.node} goes on: `lowmark node drain {found.node}`"
                    " shows it again, and with --stop ends it",
                    file=sys.stderr,
                )
                raise
    if as_json:
        show_json(msgspec.to_builtins(found))
    elif stop:
        print(f"node {found.node} may have partitions again")
    elif _is_empty(found):
        print(f"node {found.node} is drained: nothing is left on it")
        print(f"`lowmark node remove {found.node}` takes it out of the cluster")
    else:
        print(f"node {found.node} is being drained: {_left(found)}")
        for one in found.stuck:
            print(f"warning: {one.text}")


def _is_empty(found: DrainReply) -> bool:
    return not found.partitions and not found.leads


def _left(found: DrainReply) -> str:
    words = f"{counted(found.partitions, 'partition')} left, {found.leads} led by it"
    return f"{words}, {bytes_text(found.bytes_left)} to send" if found.bytes_left else words


def _wait(client: NodeClient, found: DrainReply) -> DrainReply:
    """Until nothing is left on it; says on stderr how far it is."""
    away_since = 0.0
    with _said() as say:
        while not _is_empty(found):
            words = f"{found.node}: {_left(found)}"
            try:
                moves = client.ask("rebalance.status", Nothing(), RebalanceReply)
                say(words + _trouble(moves, found))
                time.sleep(LOOK_S)
                asked = DrainAsk(node=found.node, look=True)
                found = client.ask("node.drain", asked, DrainReply)
                away_since = 0.0
            except Unavailable as error:
                now = time.monotonic()
                away_since = away_since or now
                if now - away_since > _PATIENCE_S:
                    raise
                say(f"{words}; {error.message}")
                time.sleep(LOOK_S)
            if not found.draining:
                raise Conflict(
                    f"the drain of node {found.node} was ended meanwhile",
                    hint=f"Begin it again with `lowmark node drain {found.node}`.",
                )
    return found


def _trouble(moves: RebalanceReply, found: DrainReply) -> str:
    """Why it does not get on, if so."""
    words = "".join(f"; {one.text}" for one in found.stuck)
    if moves.settings.paused:
        words += "; moves are paused: `lowmark rebalance resume` lets them go on"
    troubled = [one for one in moves.moves if found.node in one.stable]
    failing = [one for one in troubled if one.attempts or one.alarm]
    if failing:
        one = failing[0]
        words += f"; {len(failing)} {verb(len(failing), 'fail')}, such as {one.table}"
        words += f" {one.partition}: {one.reason}"
    return words


@contextlib.contextmanager
def _said() -> Iterator[Callable[[str], None]]:
    """Says how far something is: in one line that changes, or a line for each change."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("") as line:
            yield line.update
        return
    last = ""

    def say(words: str) -> None:
        nonlocal last
        if words != last:
            print(words, file=sys.stderr, flush=True)
        last = words

    yield say


@app.command()
def remove(name: NameArgument, node: NodeOption = None, as_json: Json = False) -> None:
    """Take a node out of the cluster, for good, whether it is up or not.

    The command is refused while a partition has its only copy there, or would be without a majority
    of nodes that are up: drain the node first. Copies of dropped tables do not move, and count
    until the low watermark has passed the drop. Remove a node that is lost with its disk like this,
    too; the others make new replicas of what it held.

    With --json, one object: node, number, keep (a folder in its directory that the cluster needs).

    Example: lowmark node remove n3 --node 127.0.0.1:6572
    """
    with node_client(node) as client:
        done = client.ask("node.remove", RemoveNodeAsk(node=name), NodeReply)
    if as_json:
        show_json(msgspec.to_builtins(done))
        return
    print(f"node {done.node} is out of the cluster: stop its process")
    print("its data directory can't be used to join again; give a new node an empty one")
    if done.keep:
        print(f"warning: keep {done.keep}: the ledgers of the cluster are there")


@app.command()
def replace(
    name: NameArgument,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="PATH", help="The new node's data directory, on this machine; empty."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what it leaves behind; from any machine.")
    ] = False,
    gone: Annotated[
        bool,
        typer.Option(
            "--gone", help="You made sure that it is off: do not try whether its addresses answer."
        ),
    ] = False,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Have a new node take the place of one that is lost with its disk.

    Give the command on the new machine. It shows what the lost node leaves behind, and writes into
    the directory whose place the new node takes: its name, its rack, its attributes, and its copies
    of partitions and of the metastore. Then start the new node in that directory with `lowmark
    serve --join`, as you would any new one. Its first start takes the lost node out of the cluster
    and the new one in, in one step. Until then nothing has changed, and you may delete the
    directory. Whatever is interrupted, give the same command again, or start the same directory
    again.

    It is refused while the lost node is up, or was heard a moment ago, and while partitions have no
    majority without it: these are listed, with what to do. If the lost machine comes back with its
    old directory, it is refused, and its rows count for nothing.

    With --json, one object: node, number, cluster, address, endpoint, rack, attributes, voter,
    zones, partitions, bytes, losses (table, partition, only, left, down, dropped, hint), ledgers,
    join, tokens, refused, detail, hint, data, new_number. Exit code 1 if it is refused.

    Example: lowmark node replace n2 --data ./n2 --node 127.0.0.1:6570
    """
    from lowmark.cli.node_replace import replace_node  # noqa: PLC0415 (the others don't need it)

    replace_node(name, data, dry_run=dry_run, gone=gone, node=node, as_json=as_json)
