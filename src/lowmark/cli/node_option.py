"""`--node ADDR` beside `--data DIR`: every command on tables works over a server, too.

The option is added here to each command that opens a database, so that no command has to pass it
on: what was given is kept with the run, and `opened_database` looks there.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.main import get_command

NODE_KEY = "lowmark.node"
_HELP = "Ask the server at this address instead: host:port, or unix:PATH."


def _keep(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.meta[NODE_KEY] = value
    return value


def _option() -> Any:
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def bare(
        node: Annotated[
            str | None, typer.Option("--node", metavar="ADDR", help=_HELP, callback=_keep)
        ] = None,
    ) -> None:
        del node

    command: Any = get_command(alone)
    (option,) = [one for one in command.params if one.name == "node"]
    option.expose_value = False  # no command has an argument for it
    return option


def offer_node(command: Any) -> Any:
    """The command with `--node`, and so are all that are below it, where they open a database."""
    for one in getattr(command, "commands", {}).values():
        offer_node(one)
    names = [name for option in command.params for name in getattr(option, "opts", ())]
    for at, option in enumerate(command.params):
        opens = getattr(option, "metavar", "") == "DIR" and "--data" in option.opts
        if opens and "--node" not in names and "--listen" not in names:
            command.params.insert(at + 1, _option())
            break
    return command
