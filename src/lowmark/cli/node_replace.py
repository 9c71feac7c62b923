"""`lowmark node replace`: what a lost node leaves behind, and the directory of the one that takes
its place.
"""

from __future__ import annotations

import msgspec
import typer

from lowmark.cli.output import Cell, show_json, show_table
from lowmark.cli.session import FAILED, WrongUse, wrong_use
from lowmark.cli.source import node_client
from lowmark.errors import Rejected
from lowmark.formatting import bytes_text, counted, verb
from lowmark.node.directory import data_path
from lowmark.node.messages import ReplaceAsk
from lowmark.node.metastore_reset import answers
from lowmark.node.replacements import ReplaceReply, prepare_directory
from lowmark.runtime.network import TLS_SCHEME, speaks_tls


def replace_node(
    name: str, data: str, *, dry_run: bool, gone: bool, node: str | None, as_json: bool
) -> None:
    """Show what is left behind, and prepare the directory."""
    if dry_run == bool(data.strip()):
        raise WrongUse(
            "give the new node's directory, or --dry-run: one of both",
            hint="On the new machine: --data DIR. To see what the node leaves behind: --dry-run.",
        )
    if data:
        with wrong_use():
            data = data_path(data)
    with node_client(node) as client:
        found = client.ask("node.replacement", ReplaceAsk(node=name, tries=not gone), ReplaceReply)
    if not found.refused and not gone and found.endpoint:
        found = _tried(found)
    number = 0
    if not found.refused and not dry_run:
        number = prepare_directory(data, found.lost).number
    if as_json:
        more = {"data": data, "new_number": number} if number else {}
        show_json(msgspec.to_builtins(found) | more)
    else:
        _show(found)
    if found.refused:
        if not as_json:
            raise Rejected(found.refused, detail=found.detail, hint=found.hint)
        raise typer.Exit(FAILED)
    if as_json:
        return
    if dry_run:
        print(
            f"node {found.node} can be replaced: on the new machine, give this command with --data"
        )
        return
    print(f"{data} is prepared; nothing has changed in the cluster yet")
    print(f"start the new node there: {_start(found, data)}")


def _tried(found: ReplaceReply) -> ReplaceReply:
    """Refused, if its endpoint answers: nodes may not reach what clients reach."""
    why = answers(found.endpoint, cluster=found.cluster)
    if not why:
        return found
    return msgspec.structs.replace(
        found,
        refused=f"node {found.node} can't be replaced: it may be up",
        detail=f"This shows it: {why}.",
        hint="Stop its process, or its machine, and try again. If something else has its address by"
        " now, add --gone.",
    )


def _show(found: ReplaceReply) -> None:
    attributes = ", ".join(f"{key}={value}" for key, value in sorted(found.attributes.items()))
    size = f", {bytes_text(found.bytes)} to copy" if found.bytes else ""
    rows: list[tuple[str, str]] = [
        ("node", f"{found.node} (number {found.number}, was at {found.address})"),
        ("rack", found.rack),
        ("attributes", attributes),
        ("metastore", "it votes" if found.voter else ""),
        ("zones", ", ".join(found.zones)),
        ("partitions", f"{found.partitions:,}{size}"),
    ]
    print("the new node takes over:")
    for what, words in rows:
        if words:
            print(f"  {what}: {words}")
    if found.ledgers:
        print(
            f"warning: the cluster's ledgers are in its directory, {found.ledgers}: compacted rows"
            " are lost with it, unless you put that folder back"
        )
    if not found.losses:
        print("no row is lost: each partition has a majority on other nodes that are up")
        return
    count = counted(len(found.losses), "partition")
    has = verb(len(found.losses), "have")
    print(f"{count} {has} no majority without it; if it is lost for good, do this:")
    lines: list[dict[str, Cell]] = [
        {
            "table": loss.table + (" (dropped)" if loss.dropped else ""),
            "partition": loss.partition,
            "left on": ", ".join(loss.left) or None,
            "down": ", ".join(loss.down) or None,
            "what to do": loss.hint,
        }
        for loss in found.losses
    ]
    columns = ("table", "partition", "left on", "down", "what to do")
    show_table(lines, columns=columns, as_json=False)


def _start(found: ReplaceReply, data: str) -> str:
    """How a node is started there; where it listens is for its operator to say."""
    join = ",".join(one.removeprefix(TLS_SCHEME) for one in found.join)
    words = f"lowmark serve --data {data} --join {join} --listen ADDR --advertise ADDR"
    if any(speaks_tls(one) for one in found.join):
        words += " --tls DIR"
    return words + (" --tokens" if found.tokens else "")
