"""`--node ADDR` beside `--data DIR`: every command on tables works over a server, too. And
`--read-only`, for those that only read.

The options are added here to each command that opens a database, so that no command has to pass
them on: what was given is kept with the run, and `opened_database` looks there.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.main import get_command

NODE_KEY = "lowmark.node"
READ_ONLY_KEY = "lowmark.read-only"
_READ = frozenset({"explain", "get", "list", "read", "show", "tide"})
"""Commands that change nothing, by their last word."""
_HELP = "Ask the server at this address instead: host:port, or unix:PATH."
_HELP_READ = "Never write to the directory; what no process has open is read from its files."


def _keep(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.meta[NODE_KEY] = value
    return value


def _keep_read_only(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.meta[READ_ONLY_KEY] = True
    return value


def _options() -> tuple[Any, Any]:
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def bare(
        node: Annotated[
            str | None, typer.Option("--node", metavar="ADDR", help=_HELP, callback=_keep)
        ] = None,
        read_only: Annotated[
            bool, typer.Option("--read-only", help=_HELP_READ, callback=_keep_read_only)
        ] = False,
    ) -> None:
        del node, read_only

    command: Any = get_command(alone)
    found = {one.name: one for one in command.params}
    for option in found.values():
        option.expose_value = False  # no command has an argument for it
    return found["node"], found["read_only"]


def offer_node(command: Any) -> Any:
    """The command with these options, and so are all below it, where they open a database."""
    for one in getattr(command, "commands", {}).values():
        offer_node(one)
    names = [name for option in command.params for name in getattr(option, "opts", ())]
    for at, option in enumerate(command.params):
        opens = getattr(option, "metavar", "") == "DIR" and "--data" in option.opts
        if opens and "--node" not in names and "--listen" not in names:
            node, read_only = _options()
            command.params.insert(at + 1, node)
            if command.name in _READ:
                command.params.insert(at + 2, read_only)
            break
    return command
