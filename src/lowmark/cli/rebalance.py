"""`lowmark rebalance`: what moves between nodes, what would, and how fast."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from lowmark.cli.database import parse_size
from lowmark.cli.output import Cell, Json, check_taken, show_facts, show_json, show_table
from lowmark.cli.session import WrongUse, help_if_bare, wrong_use
from lowmark.cli.source import NodeOption, node_client
from lowmark.client.cluster import new_node
from lowmark.formatting import bytes_text, counted, times_text
from lowmark.node.messages import (
    CancelAsk,
    CancelledReply,
    ChangeAsk,
    MoveRow,
    Nothing,
    PlanAsk,
    PlanReply,
    RebalanceReply,
    RebalanceSettings,
)

app = typer.Typer(invoke_without_command=True)

WATCH_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"


@app.callback()
def rebalance(ctx: typer.Context) -> None:
    """Show, plan, pause, limit and cancel moves of partitions between nodes.

    Partitions move by themselves when nodes join, leave or are drained, and when a zone gets other
    replicas. A partition serves while it moves.
    """
    help_if_bare(ctx)


# -- looking ------------------------------------------------------------------------------------


@app.command()
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it every second until nothing moves.")
    ] = False,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Show which partitions move, how far each is, and what fails.

    A move is waiting, copying rows, switching to its new nodes, or paused; failed, if it will be
    tried again; without a leader, if no node that leads the partition answers. Of one that does not
    get on, the reason is shown, and how long that has been so; an alarm if it lasts for all
    retries. Bytes are those that the new nodes get.

    With --json, one object (with --watch one a line): settings (paused, bytes_per_s; 0 is no limit,
    null is what each node's settings say), draining, moves (table, partition, stage, stable,
    pending, planned, leader, bytes_done, bytes_left, bytes_per_s, seconds_left, reason, attempts,
    failing_ms, alarm), silent (nodes that did not answer), stuck (what can't leave nodes that are
    drained: node, zone, partitions, reason, hint), totals.

    Example: lowmark rebalance status --watch --node 127.0.0.1:6572
    """
    with node_client(node) as client:
        while True:
            found = client.ask("rebalance.status", Nothing(), RebalanceReply)
            if as_json:
                facts = msgspec.to_builtins(found) | {"totals": _totals(found.moves)}
                if not watch:
                    show_json(facts)
                else:
                    print(json.dumps(facts, ensure_ascii=False), flush=True)
            else:
                if watch and sys.stdout.isatty():
                    print(_CLEAR, end="")
                _show(found)
            if not watch or not found.moves:
                return
            check_taken()
            time.sleep(WATCH_S)
            if not as_json and not sys.stdout.isatty():
                print()


def _totals(moves: Sequence[MoveRow]) -> dict[str, Any]:
    rate, left = sum(one.bytes_per_s for one in moves), sum(one.bytes_left for one in moves)
    known = [one.seconds_left for one in moves if one.seconds_left is not None]
    seconds = max(known, default=0.0) if len(known) == len(moves) else None
    if rate > 0:
        seconds = max(seconds or 0.0, left / rate)
    return {
        "moves": len(moves),
        "failing": sum(one.attempts > 0 or one.alarm for one in moves),
        "alarms": sum(one.alarm for one in moves),
        "bytes_done": sum(one.bytes_done for one in moves),
        "bytes_left": left,
        "bytes_per_s": rate,
        "seconds_left": seconds,
    }


def _show(found: RebalanceReply) -> None:
    facts: dict[str, Cell] = {
        "moves": "paused" if found.settings.paused else "running",
        "limit": limit_text(found.settings),
    }
    if found.draining:
        facts["draining"] = ", ".join(found.draining)
    if found.silent:
        facts["no_answer_from"] = ", ".join(found.silent)
    show_facts(facts, as_json=False)
    print()
    if found.moves:
        _show_moves(found.moves)
    else:
        print("nothing moves")
    for stuck in found.stuck:
        print(f"warning: {stuck.text}")


def _show_moves(moves: Sequence[MoveRow]) -> None:
    rows = [_move_row(one) for one in moves]
    show_table(rows, columns=tuple(rows[0]), as_json=False)
    totals = _totals(moves)
    words = (
        f"{counted(totals['moves'], 'partition')} to move:"
        f" {bytes_text(totals['bytes_done'])} done, {bytes_text(totals['bytes_left'])} left"
    )
    if totals["bytes_per_s"]:
        words += f", {bytes_text(int(totals['bytes_per_s']))} a second"
    if totals["bytes_left"] and totals["seconds_left"] is not None:
        words += f", {times_text(int(totals['seconds_left'] * 1_000))} to go"
    print(f"\n{words}")
    for one in moves:
        if one.alarm:
            fails = (
                f"failed {counted(one.attempts, 'time')} in" if one.attempts else "not got on for"
            )
            print(
                f"warning: partition {one.partition} of {one.table} has {fails}"
                f" {times_text(one.failing_ms)}: {one.reason}"
            )


def _move_row(one: MoveRow) -> dict[str, Cell]:
    time_left = one.seconds_left if one.bytes_left else None
    why = None
    if one.reason:
        age = times_text(one.failing_ms)
        times = f"{counted(one.attempts, 'time')} in {age}" if one.attempts else f"for {age}"
        why = f"{one.reason} ({times})"
    return {
        "table": one.table,
        "partition": one.partition,
        "stage": one.stage,
        "from": ", ".join(one.stable),
        "to": ", ".join(one.pending),
        "then": ", ".join(one.planned) or None,
        "leader": one.leader or None,
        "done": bytes_text(one.bytes_done),
        "left": bytes_text(one.bytes_left),
        "rate": f"{bytes_text(int(one.bytes_per_s))}/s" if one.bytes_per_s else None,
        "time_left": None if time_left is None else times_text(int(time_left * 1_000)),
        "why": why,
    }


def limit_text(settings: RebalanceSettings) -> str:
    """What each node may send for moves."""
    if settings.bytes_per_s is None:
        return "as each node's settings say (group.install_bytes_per_s)"
    if not settings.bytes_per_s:
        return "none"
    return f"{bytes_text(settings.bytes_per_s)} a second for each node"


@app.command()
def plan(
    add_node: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:RACK]", help="Plan as if this node had joined; repeatable."),
    ] = None,
    remove_node: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="Plan as if this node had left; repeatable."),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option(metavar="ZONE=N", help="Plan as if the zone had N replicas; repeatable."),
    ] = None,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Show what would move if nodes came or went, or zones had other replicas. Nothing changes.

    The plan is made by the code that decides on moves. Without options: what the next change would
    move, whatever it is. Bytes are those of backlogs: ledgers are in one place, and stay there.
    Warnings name zones with too few nodes or replicas, filters that match no node, and nodes that
    are down.

    With --json, one object: moves (table, partition, now, then, bytes), replicas (how many would be
    made), bytes (how many would be sent), warnings.

    Example: lowmark rebalance plan --add-node n4:r2 --replicas default=3
    """
    with wrong_use():
        asked = PlanAsk(
            add=tuple(new_node(text) for text in add_node or ()),
            remove=tuple(remove_node or ()),
            replicas=dict(_zone_and_number(text) for text in replicas or ()),
        )
    with node_client(node) as client:
        found = client.ask("rebalance.plan", asked, PlanReply)
    if as_json:
        show_json(msgspec.to_builtins(found))
        return
    if found.moves:
        rows: list[dict[str, Cell]] = [
            {
                "table": one.table,
                "partition": one.partition,
                "now": ", ".join(one.now),
                "then": ", ".join(one.then),
                "size": bytes_text(one.bytes),
            }
            for one in found.moves
        ]
        show_table(rows, columns=tuple(rows[0]), as_json=False)
        print(
            f"\n{counted(len(found.moves), 'partition')} would move:"
            f" {counted(found.replicas, 'new replica')}, {bytes_text(found.bytes)} to send"
        )
    else:
        print("nothing would move")
    for warning in found.warnings:
        print(f"warning: {warning}")


def _zone_and_number(text: str) -> tuple[str, int]:
    zone, equals, number = text.rpartition("=")
    if not equals or not zone or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise WrongUse(f"--replicas can't be {text!r}", hint="Write --replicas default=3.")
    return zone, int(number)


# -- changing -----------------------------------------------------------------------------------


@app.command()
def pause(node: NodeOption = None, as_json: Json = False) -> None:
    """Pause moves: none begins, and those that still copy rows stop, until you resume them.

    Planned moves are kept, also over restarts. A move that is switching to its new nodes is
    finished. The cluster still plans moves for new events.

    With --json, one object: paused, bytes_per_s (0 is no limit, null is what settings say).

    Example: lowmark rebalance pause
    """
    _change(node, ChangeAsk(paused=True), as_json=as_json)


@app.command()
def resume(node: NodeOption = None, as_json: Json = False) -> None:
    """Resume moves that were paused. They copy on from where they were.

    With --json, one object: paused, bytes_per_s (0 is no limit, null is what settings say).

    Example: lowmark rebalance resume
    """
    _change(node, ChangeAsk(paused=False), as_json=as_json)


@app.command(context_settings={"ignore_unknown_options": True})
def throttle(
    rate: Annotated[
        str, typer.Argument(metavar="RATE", help="Bytes a second: 50MiB; off lifts the limit.")
    ],
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Limit what each node sends for moves, at once and over restarts.

    The limit applies to all nodes, and replaces their setting group.install_bytes_per_s.
    Copies that serve are not slowed down.

    With --json, one object: paused, bytes_per_s (0 is no limit).

    Example: lowmark rebalance throttle 50MiB
    """
    size: int | None = 0
    if rate != "off":
        try:
            size = parse_size(rate.removesuffix("/s"), option="RATE", least=1)
        except WrongUse as error:
            raise WrongUse(error.message, hint="Write 50MiB, or off for no limit.") from error
    _change(node, ChangeAsk(bytes_per_s=size), as_json=as_json)


def _change(node: str | None, asked: ChangeAsk, *, as_json: bool) -> None:
    with node_client(node) as client:
        settings = client.ask("rebalance.change", asked, RebalanceSettings)
    if as_json:
        show_json(msgspec.to_builtins(settings))
        return
    print(f"moves: {'paused' if settings.paused else 'running'}")
    print(f"limit: {limit_text(settings)}")


@app.command()
def cancel(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Cancel only moves of this table.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Argument(metavar="PARTITION", min=0, help="Cancel only the move of this partition."),
    ] = None,
    node: NodeOption = None,
    as_json: Json = False,
) -> None:
    """Cancel moves, so that partitions stay where they are: all, those of a table, or one.

    A move that is switching to its new nodes is not cancelled: it is listed as too late. The next
    change of the cluster (a node that joins or leaves, other replicas) decides anew. To make moves
    wait instead, pause them.

    With --json, one object: cancelled and too_late, lists of table and partition.

    Example: lowmark rebalance cancel orders 3
    """
    asked = CancelAsk(table=table, partition=partition)
    with node_client(node) as client:
        done = client.ask("rebalance.cancel", asked, CancelledReply)
    if as_json:
        show_json(msgspec.to_builtins(done))
        return
    for one in done.cancelled:
        print(f"partition {one.partition} of {one.table} stays where it is")
    for one in done.too_late:
        print(f"partition {one.partition} of {one.table}: too late to cancel, already switching")
    if not done.cancelled and not done.too_late:
        print("nothing moves there")
